//! Rewritten programs as text, in the manner of `bpftool prog dump xlated`.

use std::borrow::Cow;
use std::fmt::Write;

use bpfkit_isa::{Syntax, code, disasm};
use bpfkit_object::{Program, RefTarget};
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
        if let Some(name) = name_at(program, rewritten, at) {
            let _ = write!(text, " ; {name}");
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

/// What the instruction at a slot refers to in the kernel.
fn name_at<'p>(program: &'p Program, rewritten: &Rewritten, at: usize) -> Option<Cow<'p, str>> {
    let symbols = &rewritten.symbols;
    if let Ok(known) = symbols.binary_search_by_key(&(at as u32), |(insn, _)| *insn) {
        return Some(name(program, symbols[known].1));
    }
    let insn = rewritten.insns[at];
    let called = insn.code == code::JMP | code::CALL && insn.src == code::PSEUDO_KFUNC_CALL;
    let origin = *rewritten.origins.get(at).filter(|_| called)?;
    let named = program.refs.iter().find(|r| r.insn == origin)?;
    match &named.target {
        RefTarget::Kfunc { name, .. } => Some(name.into()),
        _ => None,
    }
}

fn name(program: &Program, symbol: Symbol) -> Cow<'_, str> {
    match symbol {
        Symbol::Helper(id) => match helper::by_id(id) {
            Some(helper) => format!("bpf_{}", helper.name).into(),
            None => format!("helper {id}").into(),
        },
        Symbol::Function(name) | Symbol::Variable(name) => name.into(),
        Symbol::Program => "bpf_prog_aux".into(),
        Symbol::StructFields(id) => {
            let of = program.btf.as_ref().and_then(|btf| btf.type_by_id(id));
            let of = of.map_or_else(String::new, |t| format!(" {}", t.name()));
            format!("btf_struct_meta of struct{of}").into()
        }
        Symbol::Arena(map) => format!("memory of arena {map}").into(),
    }
}
