//! The programs of `tests/filetests/run`, on every engine of this crate and in the running
//! kernel.

mod engines;
mod kernel;
#[path = "../../../../tests/filetests/parser.rs"]
mod parser;

use bpfkit_isa::Insn;
use bpfkit_isa::asm::{self, AsmError, Resolver};

struct Helpers;

impl Resolver for Helpers {
    fn helper(&self, name: &str) -> Option<i32> {
        i32::try_from(bpfkit_spec::helper::by_name(name.strip_prefix("bpf_")?)?.id).ok()
    }
}

fn assemble(text: &str) -> Result<Vec<Insn>, AsmError> {
    Ok(asm::assemble_with(text, &Helpers)?.insns)
}
