//! Facts about a program's instructions as JSON (`docs/verify.md` has the schema).

use std::collections::BTreeMap;

use bpfkit_object::{MapDef, Program};
use bpfkit_verifier::{Branch, BtfOf, CallFact, Facts, Home, Pointer, Range, SlotValue, Value};
use serde::Serialize;

/// What is known about a program.
#[derive(Serialize)]
pub struct Document {
    file: String,
    prog: String,
    subprograms: Vec<Subprogram>,
    insns: Vec<Instruction>,
}

#[derive(Serialize)]
struct Subprogram {
    name: String,
    insn: u32,
    stack_depth: u32,
}

#[derive(Serialize)]
struct Instruction {
    insn: u32,
    reachable: bool,
    live_registers: Vec<u8>,
    /// Offsets from the frame pointer.
    live_slots: Vec<i32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    values: BTreeMap<String, Known>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    slots: BTreeMap<String, Slot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Call>,
}

#[derive(Serialize)]
struct Slot {
    #[serde(skip_serializing_if = "Option::is_none")]
    spilled: Option<Known>,
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<u8>,
    /// Numbers of the zero bytes, from the lowest address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    zeros: Vec<u8>,
}

/// Numbers are hexadecimal text: JSON's are too narrow.
#[derive(Serialize)]
#[serde(untagged)]
enum Known {
    Constant {
        constant: String,
    },
    Number {
        unsigned: [String; 2],
        signed: [i64; 2],
        unsigned32: [u32; 2],
        signed32: [i32; 2],
        bits: String,
        unknown_bits: String,
    },
    Pointer {
        pointer: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        offset: Option<(i64, i64)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        map: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel_type: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        program_type: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stack: Option<&'static str>,
    },
}

#[derive(Serialize)]
struct Call {
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback: Option<String>,
}

impl Document {
    /// What was learned about a program of an object with those maps.
    pub fn new(file: &str, program: &Program, maps: &[MapDef], facts: &Facts) -> Document {
        let depths = facts.stack_depths();
        Document {
            file: file.to_owned(),
            prog: program.decl.name.clone(),
            subprograms: program
                .subprograms
                .iter()
                .zip(depths)
                .map(|(sub, &stack_depth)| Subprogram {
                    name: sub.name.clone(),
                    insn: sub.start,
                    stack_depth,
                })
                .collect(),
            insns: slots(program)
                .map(|at| Instruction::new(at, program, maps, facts))
                .collect(),
        }
    }
}

/// The first slot of every instruction.
fn slots(program: &Program) -> impl Iterator<Item = u32> {
    let mut second = false;
    program.insns.iter().zip(0..).filter_map(move |(insn, at)| {
        let is_second = second;
        second = !is_second && insn.is_ld_imm64();
        (!is_second).then_some(at)
    })
}

impl Instruction {
    fn new(at: u32, program: &Program, maps: &[MapDef], facts: &Facts) -> Instruction {
        let live = facts.live_registers(at);
        let slots = facts.live_slots(at);
        Instruction {
            insn: at,
            reachable: facts.reachable(at),
            live_registers: (0..11).filter(|n| live & (1 << n) != 0).collect(),
            live_slots: (0..64)
                .filter(|n| slots & (1 << n) != 0)
                .map(|n| -8 * (n + 1))
                .collect(),
            values: (0..11)
                .filter_map(|n| Some((format!("r{n}"), known(facts.value(at, n), maps)?)))
                .collect(),
            slots: (0..64)
                .filter_map(|n| {
                    let offset = 8 * (u16::from(n) + 1);
                    Some((format!("fp-{offset}"), slot(facts.slot(at, n), maps)?))
                })
                .collect(),
            branch: match facts.branch(at) {
                Branch::Unknown => None,
                Branch::Always => Some("always"),
                Branch::Never => Some("never"),
            },
            call: facts.call(at).map(|fact| call(fact, program, maps)),
        }
    }
}

fn map_name(map: u32, maps: &[MapDef]) -> String {
    match maps.get(map as usize) {
        Some(def) => def.name.clone(),
        None => "inner map".to_owned(),
    }
}

fn call(fact: &CallFact, program: &Program, maps: &[MapDef]) -> Call {
    let callback = fact
        .callback
        .and_then(|sub| program.subprograms.get(sub as usize));
    Call {
        map: fact.map.map(|map| map_name(map, maps)),
        key: fact.key.map(|key| format!("{key:#x}")),
        callback: callback.map(|sub| sub.name.clone()),
    }
}

fn known(value: Value, maps: &[MapDef]) -> Option<Known> {
    match value {
        Value::Unknown => None,
        Value::Number(range) => Some(number(&range)),
        Value::Pointer(p) => Some(pointer(&p, maps)),
    }
}

fn slot(value: SlotValue, maps: &[MapDef]) -> Option<Slot> {
    let zeros: Vec<u8> = (0..8).filter(|n| value.zeros & (1 << n) != 0).collect();
    let spilled = known(value.spilled, maps);
    (spilled.is_some() || !zeros.is_empty()).then_some(Slot {
        width: spilled.is_some().then_some(value.width),
        spilled,
        zeros,
    })
}

fn number(range: &Range) -> Known {
    match range.constant() {
        Some(value) => Known::Constant {
            constant: format!("{value:#x}"),
        },
        None => Known::Number {
            unsigned: [range.umin, range.umax].map(|v| format!("{v:#x}")),
            signed: [range.smin, range.smax],
            unsigned32: [range.umin32, range.umax32],
            signed32: [range.smin32, range.smax32],
            bits: format!("{:#x}", range.bits.value),
            unknown_bits: format!("{:#x}", range.bits.mask),
        },
    }
}

fn pointer(pointer: &Pointer, maps: &[MapDef]) -> Known {
    let type_of = |which| {
        pointer
            .btf()
            .and_then(|(of, id)| (of == which).then_some(id))
    };
    let is_stack = pointer.ty.base() == bpfkit_verifier::Base::Stack;
    Known::Pointer {
        pointer: pointer.ty.to_string(),
        offset: pointer.offset(),
        map: pointer.map().map(|map| map_name(map, maps)),
        kernel_type: type_of(BtfOf::Kernel),
        program_type: type_of(BtfOf::Program),
        size: pointer.mem_size(),
        stack: is_stack.then_some(match pointer.home() {
            Home::Own => "own",
            Home::Caller => "caller",
            Home::Any => "any",
        }),
    }
}
