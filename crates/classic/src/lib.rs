//! Classic BPF: the filters of sockets, tcpdump and seccomp.
//!
//! - [`Insn`] is an instruction as it stands in memory, [`Op`] the same understood;
//!   opcodes and mnemonics come from one [`table`], ancillary loads from another.
//! - [`asm`] and [`disasm`] read and write the text forms of tcpdump and bpf_asm.
//! - [`Program::new`] checks a filter by the kernel's rules; [`run`] and
//!   [`run_seccomp`] interpret what passed.
//! - [`convert`] makes an extended BPF program of it.
//!
//! Source of the rules: the kernel's `Documentation/networking/filter.rst` and the
//! manual page of `bpf_filter`.
#![forbid(unsafe_code)]

mod ancillary;
pub mod asm;
mod check;
mod convert;
pub mod disasm;
mod insn;
mod interp;
mod op;
pub mod seccomp;
pub mod table;

pub use ancillary::{ANCILLARY, Ancillary, AncillaryRow};
pub use check::{Broken, CheckError, Program, Rules};
pub use convert::{ConvertError, Options, Returns, Target, convert};
pub use insn::{Insn, code};
pub use interp::{Context, Dialect, Packet, run, run_seccomp};
pub use op::{AluOp, Cond, Op, Operand, Size};
