//! From classic to extended BPF.
//!
//! One classic instruction becomes one or a few extended ones. A first pass counts
//! them, a second writes them with the jumps in place. A (R0) and X keep their upper
//! halves zero, scratch words lie on the stack, instructions that no path reaches are
//! left out, and a load outside the packet jumps to a shared end that returns 0.
//!
//! Where the program reads the packet through pointers, a bounds check before a load
//! covers all that must be there for the filter to return anything but 0 ([`lengths`]),
//! and what is only compared with constants stays in the packet's byte order
//! ([`byte_order`]): such programs are for little-endian machines.

mod ancillary;
mod byte_order;
mod emit;
mod lengths;
mod liveness;
mod sink;

use bpfkit_isa::Insn;

use crate::ancillary::Ancillary;
use crate::check::{Program, Rules};
use crate::interp::Dialect;
use emit::Emitter;
use sink::{Count, Write};

/// What the converted program is called with, so how it reads the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// R1 is a `struct __sk_buff`, and the packet is read with the legacy packet loads: a
    /// socket filter or a tc classifier. Takes every packet as the kernel's own classic
    /// filters do, and all ancillary loads that the structure has a field for.
    SkBuff,
    /// R1 is a `struct xdp_md`, and the packet is read through `data` and `data_end`.
    /// Only for packets up to 65,535 bytes, the most that the verifier lets a packet
    /// pointer reach.
    Xdp,
    /// R1 is the address of the packet, R2 its length, R3 its length on the wire, R4 the
    /// address of the [`Context::words`](crate::Context::words). Lengths are below 2³¹. The
    /// program calls nothing and takes all ancillary loads; a jump back counts, as
    /// [`run`](crate::run) does.
    Memory,
    /// R1 is a `struct seccomp_data`.
    SeccompData,
}

/// How a filter is converted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// What the program is called with.
    pub target: Target,
    /// Whose semantics the filter has.
    pub dialect: Dialect,
    /// Offset of the network header, from which loads at `SKF_NET_OFF` count where the
    /// packet is read through pointers; 14 for Ethernet.
    pub network_offset: u16,
    /// What to return instead of the filter's own result, if anything.
    pub returns: Option<Returns>,
}

/// What a program returns for a filter's result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Returns {
    /// For a result other than 0, such as `XDP_PASS`.
    pub matched: i32,
    /// For 0.
    pub unmatched: i32,
}

impl Options {
    /// The kernel's semantics, Ethernet, the filter's own result.
    pub fn new(target: Target) -> Options {
        Options {
            target,
            dialect: Dialect::Kernel,
            network_offset: 14,
            returns: None,
        }
    }
}

/// Why a filter cannot be converted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ConvertError {
    /// The target has nothing to read this ancillary load from.
    #[error("instruction {at}: the program has no way to read `{}`: {}", .what.row().tcpdump, .what.row().meaning)]
    Ancillary {
        /// The classic instruction.
        at: usize,
        /// What it loads.
        what: Ancillary,
    },
    /// A packet filter for seccomp data or the other way round.
    #[error(
        "the filter was checked by the rules of {0:?} filters, which does not go with the target"
    )]
    Rules(Rules),
    /// A legacy packet load that fails returns 0, whatever is wanted for it.
    #[error("with legacy packet loads a packet that does not match can only give 0")]
    Unmatched,
}

/// Converts a checked filter.
pub fn convert(program: &Program, options: &Options) -> Result<Vec<Insn>, ConvertError> {
    let seccomp = options.target == Target::SeccompData;
    if seccomp != (program.rules() == Rules::Seccomp) {
        return Err(ConvertError::Rules(program.rules()));
    }
    if options.target == Target::SkBuff && options.returns.is_some_and(|r| r.unmatched != 0) {
        return Err(ConvertError::Unmatched);
    }
    let emitter = Emitter::new(program, options)?;
    // Jumps have 16 bits; a longer program pays for far jumps everywhere, which only
    // filters of thousands of instructions see.
    let mut count = Count::new(false);
    let mut starts = emitter.run(&mut count);
    let far = count.slots > i16::MAX as usize;
    if far {
        count = Count::new(true);
        starts = emitter.run(&mut count);
    }
    let mut write = Write::new(far, count.slots, starts);
    emitter.run(&mut write);
    Ok(write.finish())
}
