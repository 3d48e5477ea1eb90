//! Programs from text, with two maps.

use bpfkit_isa::Insn;
use bpfkit_isa::asm::{self, MapRef, Resolver};
use bpfkit_object::{MapDef, Program, raw_program};
use bpfkit_spec::{MapType, ProgType};

/// Helpers by name; maps by index (`map[0] ll`).
struct Names;

impl Resolver for Names {
    fn helper(&self, name: &str) -> Option<i32> {
        i32::try_from(bpfkit_spec::helper::by_name(name)?.id).ok()
    }

    fn map(&self, name: &str) -> Option<MapRef> {
        match name {
            "values" => Some(MapRef::Index(0)),
            "ring" => Some(MapRef::Index(1)),
            _ => None,
        }
    }
}

/// `values`, a hash map of 4-byte keys and 8-byte values, and `ring`, a ring buffer.
pub fn maps() -> Vec<MapDef> {
    vec![
        MapDef::new("values", MapType::Hash, 4, 8, 16),
        MapDef::new("ring", MapType::Ringbuf, 0, 0, 4096),
    ]
}

/// A program of bare instructions.
pub fn program(prog_type: ProgType, insns: Vec<Insn>) -> Program {
    let mut program = raw_program("main", insns);
    program.decl.prog_type = prog_type;
    program
}

/// The instructions of a text.
#[allow(dead_code, reason = "not every test has texts")]
pub fn assemble(text: &str) -> Vec<Insn> {
    match asm::assemble_with(text, &Names) {
        Ok(assembled) => assembled.insns,
        Err(e) => panic!("{e}\n{text}"),
    }
}
