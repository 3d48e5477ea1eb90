//! Programs over one packet and nothing else: what classic filters become.
//!
//! Such a program is called with the packet's address in R1, its length in R2, its length on
//! the wire in R3 and the address of [`Ancillary`] words in R4. It calls nothing, so that an
//! engine runs it without a [`Vm`](crate::Vm): a call costs what a function call costs.
//! [`PacketProgram::new`] proves that it stays inside of what it is given and ends, in one
//! pass: classic filters have to be ready in microseconds.

mod check;

use std::sync::Arc;

use bpfkit_isa::Insn;
use bpfkit_object::Program;

use bpfkit_object::raw_program;

/// What a filter can learn besides the packet: a word for each `SKF_AD_*` offset, in their
/// order. The default is a packet of which nothing is known.
pub type Ancillary = [u32; 16];

/// Bytes of stack that a program may use: classic BPF's 16 scratch words.
pub const STACK_BYTES: usize = 64;

/// The stack of a program; aligned for accesses of every size.
pub type Stack = [u64; STACK_BYTES / 8];

/// Why a program is not one over a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("instruction {at}: {why}")]
pub struct PacketError {
    /// Instruction slot.
    pub at: usize,
    /// What cannot be proven of it.
    pub why: &'static str,
}

/// A program of which it is proven that it reads only its packet, its ancillary words and
/// its stack, writes only its stack, and ends.
#[derive(Clone, Debug)]
pub struct PacketProgram {
    program: Arc<Program>,
}

impl PacketProgram {
    /// Proves it.
    ///
    /// # Errors
    /// The first instruction that the proof does not cover.
    pub fn new(insns: Vec<Insn>) -> Result<PacketProgram, PacketError> {
        check::check(&insns)?;
        Ok(PacketProgram {
            program: Arc::new(raw_program("filter", insns)),
        })
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }
}

/// A program over a packet, ready to run; see
/// [`Engine::load_packet`](crate::Engine::load_packet).
pub trait PacketCode: Send + Sync {
    /// Runs it on a packet: the low 32 bits of R0.
    fn run(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32;
}

/// R1–R4 for a packet.
#[inline]
pub fn arguments(packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> [u64; 4] {
    [
        packet.as_ptr().expose_provenance() as u64,
        packet.len() as u64,
        wire_len.into(),
        ancillary.as_ptr().expose_provenance() as u64,
    ]
}
