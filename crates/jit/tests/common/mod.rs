//! What tests of the compiler share: names in text programs, maps, engines.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;

use bpfkit_isa::asm::{self, MapRef, Resolver};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_object::{InsnRef, MapDef, Program, RefTarget, Subprogram};
use bpfkit_runtime::{Code, Engine, Executable, LoadOptions, MapSet, Trusted, raw_program};
use bpfkit_spec::MapType;

/// Helpers by name, maps as `m` and their number, any kernel function as number 1.
pub struct Names;

impl Resolver for Names {
    fn helper(&self, name: &str) -> Option<i32> {
        i32::try_from(bpfkit_spec::helper::by_name(name.strip_prefix("bpf_")?)?.id).ok()
    }

    fn map(&self, name: &str) -> Option<MapRef> {
        name.strip_prefix('m')?.parse().ok().map(MapRef::Index)
    }

    fn kfunc(&self, _: &str) -> Option<(i32, i16)> {
        Some((1, 0))
    }
}

/// A program of a text.
pub fn assemble(name: &str, text: &str) -> Program {
    let assembled = asm::assemble_with(text, &Names).unwrap_or_else(|e| panic!("{name}: {e}"));
    raw_program(name, assembled.insns)
}

/// A program; labels that begin with `f_` become subprograms, and every kernel function it
/// calls is `bpf_throw`.
pub fn program(name: &str, text: &str) -> Program {
    let assembled = asm::assemble_with(text, &Names).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut program = raw_program(name, assembled.insns.clone());
    for (insn, code) in (0..).zip(&assembled.insns) {
        if code.code == 0x85 && code.src == 2 {
            let name = "bpf_throw".to_owned();
            program.refs.push(InsnRef {
                insn,
                target: RefTarget::Kfunc {
                    name,
                    type_id: 0,
                    weak: false,
                },
            });
        }
    }
    for label in assembled.labels.iter().filter(|l| l.name.starts_with("f_")) {
        program.subprograms.push(Subprogram {
            name: label.name.clone(),
            start: label.slot as u32,
            type_id: 0,
            global: false,
        });
    }
    program
}

/// A map with 8 elements whose keys are 32 bits.
pub fn map(map_type: MapType, value_size: u32) -> MapDef {
    MapDef::new("m", map_type, 4, value_size, 8)
}

/// A compiler with code memory of its own: QEMU before 8.1 does not see that space mapped
/// twice has been written anew.
pub fn jit(rules: Rules) -> Jit {
    Jit::new(CodeMemory::new(), rules, Features::ALL)
}

/// Loads a program, to run with checks or without.
pub fn load(
    engine: &dyn Engine,
    program: &Arc<Program>,
    trusted: bool,
    maps: &Arc<MapSet>,
) -> Arc<dyn Executable> {
    let program = Arc::clone(program);
    let code = match trusted {
        // SAFETY: the programs that tests load so touch their frames and map values only, and end.
        true => Code::Trusted(unsafe { Trusted::assume(program) }),
        false => Code::Unverified(program),
    };
    engine.load(code, maps, &LoadOptions::default()).unwrap()
}
