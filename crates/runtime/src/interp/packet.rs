//! Programs over a packet: a run needs registers and perhaps a little stack, no [`Vm`].
//!
//! [`Vm`]: crate::Vm

use std::ptr;

use bpfkit_isa::{Op, Operand, Reg};

use super::inst::{Cpu, Flow, Inst, Instruction};
use super::prepare::{self, Mode};
use crate::engine::{LoadError, LoadOptions};
use crate::mapset::MapSet;
use crate::packet::{self, Ancillary, PacketCode, PacketProgram, STACK_BYTES, Stack};

/// A program over a packet, ready to be interpreted.
pub(super) struct Loaded {
    code: Box<[Inst]>,
    threaded: bool,
    uses_stack: bool,
}

// SAFETY: the code is not changed once made, and refers to nothing outside.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// `exit` of a program over a packet: there is nowhere to return to.
pub(super) struct Exit;

impl Instruction for Exit {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(_: &mut Cpu) -> Flow {
        Flow::Done
    }
}

impl Loaded {
    pub(super) fn new(program: &PacketProgram, threaded: bool) -> Result<Loaded, LoadError> {
        let mode = Mode {
            checked: false,
            threaded,
            packet: true,
        };
        let (maps, options) = (MapSet::empty(), LoadOptions::default());
        let prepared = prepare::prepare(program.program(), &maps, &options, mode)?;
        Ok(Loaded {
            code: prepared.code,
            threaded,
            uses_stack: program.program().insns.iter().any(|insn| {
                let op = Op::decode(std::slice::from_ref(insn));
                op.is_ok_and(|op| names_stack(&op))
            }),
        })
    }

    /// Runs it with that end of the stack.
    #[inline(always)]
    fn run_at(&self, args: [u64; 4], stack: u64) -> u32 {
        let mut registers = [0; 11];
        let [packet, len, wire_len, ancillary] = args;
        registers[1..5].copy_from_slice(&[packet, len, wire_len, ancillary]);
        registers[10] = stack;
        let regs = registers.as_mut_ptr();
        let pc = self.code.as_ptr();
        // SAFETY: `PacketProgram` proves that the program reads the packet, the ancillary
        // words and its stack only, writes its stack only, calls nothing and ends by an
        // `exit`. So the run and its spans are not touched, and of a window the registers.
        unsafe {
            if self.threaded {
                ((*pc).run.threaded)(pc, regs, i64::MAX, ptr::null_mut(), ptr::null());
            } else {
                let mut cpu = Cpu::new(pc, regs, i64::MAX, ptr::null_mut(), ptr::null());
                while ((*cpu.pc).run.step)(&mut cpu) {}
            }
            regs.read() as u32
        }
    }

    #[inline(never)]
    fn run_with_stack(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32 {
        let mut stack = Stack::default();
        let top = stack.as_mut_ptr().expose_provenance() + STACK_BYTES;
        self.run_at(packet::arguments(packet, wire_len, ancillary), top as u64)
    }
}

impl PacketCode for Loaded {
    fn run(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32 {
        match self.uses_stack {
            true => self.run_with_stack(packet, wire_len, ancillary),
            false => self.run_at(packet::arguments(packet, wire_len, ancillary), 0),
        }
    }
}

/// Whether an instruction that programs over a packet have names R10.
fn names_stack(op: &Op) -> bool {
    let is = |operand: Operand| operand == Operand::Reg(Reg::R10);
    match *op {
        Op::Alu { dst, src, .. } | Op::JumpIf { dst, src, .. } => dst == Reg::R10 || is(src),
        Op::Store { base, src, .. } => base == Reg::R10 || is(src),
        Op::Load { base, .. } => base == Reg::R10,
        _ => false,
    }
}
