//! Rewritten programs as text, in the manner of `bpftool prog dump xlated`.

use std::borrow::Cow;
use std::fmt::Write;

use bpfkit_isa::{Syntax, disasm};
use bpfkit_object::Program;
use bpfkit_spec::helper;
use bpfkit_verifier::{Rewritten, Symbol};

/// The listing: functions with their names, slots, and what an instruction refers to in the
/// kernel behind it.
pub fn render(program: &Program, rewritten: &Rewritten) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < rewritten.insns.len() {
        let function = rewritten
            .subprograms
            .iter()
            .find(|(start, _)| *start as usize == at);
        let function = function.and_then(|(_, sub)| program.subprograms.get(*sub as usize));
        if let Some(function) = function {
            let _ = writeln!(text, "{}:", function.name);
        }
        let line = disasm::line(&rewritten.insns, at, Syntax::Kernel, &disasm::NoSymbols);
        let _ = write!(text, "{at:4}: {line}");
        let symbol = rewritten
            .symbols
            .iter()
            .find(|(insn, _)| *insn as usize == at);
        if let Some((_, symbol)) = symbol {
            let _ = write!(text, " ; {}", name(*symbol));
        }
        text.push('\n');
        at += if rewritten.insns[at].is_ld_imm64() {
            2
        } else {
            1
        };
    }
    text
}

fn name(symbol: Symbol) -> Cow<'static, str> {
    match symbol {
        Symbol::Helper(id) => match helper::by_id(id) {
            Some(helper) => format!("bpf_{}", helper.name).into(),
            None => format!("helper {id}").into(),
        },
        Symbol::Function(name) | Symbol::Variable(name) => name.into(),
    }
}
