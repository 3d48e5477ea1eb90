//! The eBPF instruction set.
//!
//! [`Insn`] is an instruction as it stands in memory: eight bytes, fields as the
//! kernel names them. [`Op`] is the same instruction understood: every legal
//! encoding is exactly one `Op`, and [`Op::decode`] says why anything else is not
//! an instruction. Mnemonics, encodings, ISA versions and the documentation come
//! from one table.
//!
//! Source of the rules: RFC 9669 and the kernel's
//! `Documentation/bpf/standardization/instruction-set.rst`.
#![forbid(unsafe_code)]

pub mod asm;
mod decode;
pub mod disasm;
pub mod docs;
mod encode;
mod insn;
mod op;
mod syntax;
pub mod table;
mod token;

pub use decode::{DecodeError, FieldName, ProgramError, decode_program, row_of, rows_of};
pub use insn::{Insn, Reg, code};
pub use op::{AluOp, AtomicOp, Call, Cond, Imm64, Op, Operand, Size, Source, Swap, Width};
pub use syntax::Syntax;
