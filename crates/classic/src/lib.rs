//! Classic BPF: the filters of sockets, tcpdump and seccomp.
//!
//! - [`Insn`] is an instruction as it stands in memory, [`Op`] the same understood;
//!   opcodes and mnemonics come from one [`table`], ancillary loads from another.
//! - [`asm`] and [`disasm`] read and write the text forms of tcpdump and bpf_asm.
//! - [`Program::new`] checks a filter by the kernel's rules; [`run`] and
//!   [`run_seccomp`] interpret what passed.
//! - [`convert`] makes an extended BPF program of it.
//!
//! ```
//! use bpfkit_classic::{Context, Dialect, Options, Packet, Program, Rules, Target};
//! use bpfkit_classic::{asm, convert, run};
//!
//! let insns = asm::assemble("ldh [12]\njne #0x806, drop\nret #-1\ndrop: ret #0")?;
//! let filter = Program::new(&insns, Rules::Packet)?;
//!
//! let arp = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
//! let packet = Packet { data: &arp, wire_len: 14, context: &Context::default() };
//! assert_eq!(run(&filter, &packet, Dialect::Kernel), u32::MAX);
//!
//! let extended = convert(&filter, &Options::new(Target::SkBuff))?;
//! assert_eq!(extended.len(), 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
