//! Programs from text, with two maps.

use bpfkit_isa::Insn;
use bpfkit_isa::asm::{self, MapRef, Resolver};
use bpfkit_object::{MapDef, MapOrigin, Program, ProgramDecl, Subprogram};
use bpfkit_spec::{AttachType, MapType, ProgType};

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

fn map(name: &str, map_type: MapType, sizes: [u32; 3]) -> MapDef {
    MapDef {
        name: name.to_owned(),
        map_type,
        key_size: sizes[0],
        value_size: sizes[1],
        max_entries: sizes[2],
        flags: 0,
        extra: 0,
        numa_node: 0,
        pin_by_name: false,
        autocreate: true,
        key_type_id: 0,
        value_type_id: 0,
        inner: None,
        slots: Vec::new(),
        origin: MapOrigin::Btf,
    }
}

/// `values`, a hash map of 4-byte keys and 8-byte values, and `ring`, a ring buffer.
pub fn maps() -> Vec<MapDef> {
    vec![
        map("values", MapType::Hash, [4, 8, 16]),
        map("ring", MapType::Ringbuf, [0, 0, 4096]),
    ]
}

/// A program of bare instructions.
pub fn program(prog_type: ProgType, insns: Vec<Insn>) -> Program {
    Program {
        decl: ProgramDecl {
            name: "main".to_owned(),
            section: String::new(),
            prog_type,
            attach_type: AttachType::CgroupInetIngress,
            attach_target: None,
            flags: 0,
            autoload: true,
            own_insns: insns.len() as u32,
        },
        insns,
        subprograms: vec![Subprogram {
            name: "main".to_owned(),
            start: 0,
            type_id: 0,
            global: true,
        }],
        lines: Vec::new(),
        refs: Vec::new(),
        exception_callback: None,
        attach: Ok(None),
        btf: None,
        license: "GPL".to_owned(),
        kernel_version: 0,
    }
}

/// The instructions of a text.
#[allow(dead_code, reason = "not every test has texts")]
pub fn assemble(text: &str) -> Vec<Insn> {
    match asm::assemble_with(text, &Names) {
        Ok(assembled) => assembled.insns,
        Err(e) => panic!("{e}\n{text}"),
    }
}
