//! The eBPF instruction set.
//!
//! [`Insn`] is an instruction as it stands in memory: eight bytes, fields as the
//! kernel names them. [`Op`] is the same instruction understood: every legal
//! encoding is exactly one `Op`, and [`Op::decode`] says why anything else is not
//! an instruction. Mnemonics, encodings, ISA versions and the documentation come
//! from one table.
//!
//! - [`table`]: the rows, with ISA and kernel version of each form;
//! - [`disasm`]: text in the kernel's syntax and in LLVM's;
//! - [`asm`]: reads both back;
//! - [`docs`]: the reference as Markdown.
//!
//! ```
//! use bpfkit_isa::{Op, Syntax, asm, disasm};
//!
//! let program = asm::assemble("if r1 s> 5 goto out\nr0 += r1\nout: exit")?;
//! assert!(matches!(Op::decode(&program.insns), Ok(Op::JumpIf { off: 1, .. })));
//! let text = disasm::line(&program.insns, 0, Syntax::Kernel, &disasm::NoSymbols);
//! assert_eq!(text.to_string(), "(65) if r1 s> 0x5 goto pc+1");
//! # Ok::<(), asm::AsmError>(())
//! ```
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
