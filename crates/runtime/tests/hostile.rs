//! Programs that nobody verified do no harm in checked mode: whatever they hold, a run ends
//! with a value or a fault. A wrong access would crash the test.
//!
//! `BPFKIT_HOSTILE=N` runs N programs instead of a few thousand.

use std::sync::Arc;

use bpfkit_isa::table::{self, Field};
use bpfkit_isa::{Insn, Op, code};
use bpfkit_object::{InsnRef, MapDef, RefTarget, Subprogram};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Context, Engine, Interpreter, LoadErrorKind, LoadOptions, MapOptions, MapSet, RawMemory,
    Vm, raw_program,
};
use bpfkit_spec::{MapType, ProgType};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn map(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
    MapDef::new(
        format!("{map_type}"),
        map_type,
        key_size,
        value_size,
        max_entries,
    )
}

fn maps() -> Arc<MapSet> {
    let inner = map(MapType::Array, 4, 8, 2);
    let defs = [
        map(MapType::Array, 4, 24, 5),
        map(MapType::Hash, 8, 16, 5),
        map(MapType::Array, 4, 40, 1),
        map(MapType::PercpuArray, 4, 8, 3),
        map(MapType::LruHash, 4, 4, 3),
        map(MapType::Ringbuf, 0, 0, 4096),
        map(MapType::ProgArray, 4, 4, 4),
        map(MapType::Queue, 0, 8, 3),
        map(MapType::BloomFilter, 0, 8, 3),
        MapDef {
            inner: Some(Box::new(inner.clone())),
            ..map(MapType::ArrayOfMaps, 4, 4, 2)
        },
        map(MapType::PerfEventArray, 4, 4, 0),
        MapDef {
            flags: 1,
            ..map(MapType::LpmTrie, 8, 8, 4)
        },
        MapDef {
            flags: 1 << 10,
            ..map(MapType::Arena, 0, 0, 10)
        },
    ];
    MapSet::new(&defs, &MapOptions::default()).unwrap()
}

const KFUNCS: &[&str] = &[
    "bpf_arena_alloc_pages",
    "bpf_arena_free_pages",
    "bpf_throw",
    "bpf_iter_num_new",
    "bpf_iter_num_next",
    "bpf_iter_num_destroy",
    "bpf_dynptr_from_xdp",
    "bpf_dynptr_slice",
    "bpf_dynptr_slice_rdwr",
    "bpf_obj_new_impl",
    "bpf_obj_drop_impl",
    "bpf_rcu_read_lock",
    "bpf_rdonly_cast",
];

/// An instruction of any form, with operands that often mean something.
fn insn(random: &mut Random, len: i64, at: i64, kfuncs: &mut Vec<InsnRef>) -> Vec<Insn> {
    let rows: Vec<_> = table::rows().collect();
    let row = match random.below(10) {
        // Calls and loads of maps are few among the forms.
        0 | 1 => rows
            .iter()
            .copied()
            .find(|r| r.form == table::Form::CallHelper)
            .unwrap(),
        2 => rows
            .iter()
            .copied()
            .find(|r| r.form == table::Form::LoadMapIdx)
            .unwrap(),
        _ => random.pick(&rows),
    };
    let field = |random: &mut Random, field: Field, any: i64| match field {
        Field::Zero => 0,
        Field::Is(value) => i64::from(value),
        Field::Reg => random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        Field::Any => any,
    };
    let jump = random.below(len as u64 + 1) as i64 - at - 1;
    let off = match random.below(3) {
        0 => jump,
        1 => -(random.below(520) as i64),
        _ => random.pick(&[0, 0, 1, 4, 8, 16, 64, -8, -16, 32767, -32768]),
    };
    let imm = match row.form {
        table::Form::CallHelper => random.below(215) as i64,
        table::Form::LoadMapIdx | table::Form::LoadMapIdxValue => random.below(13) as i64,
        table::Form::CallLocal | table::Form::LoadFunc => jump,
        table::Form::AddrSpaceCast => random.pick(&[1, 1 << 16]),
        _ if row.code & 7 == code::JMP32 => jump,
        _ => random.pick(&[
            0,
            1,
            2,
            3,
            4,
            8,
            16,
            64,
            -1,
            i64::from(i32::MIN),
            i64::from(i32::MAX),
        ]),
    };
    let mut insn = Insn {
        code: row.code,
        dst: field(random, row.dst, 0) as u8,
        src: field(random, row.src, 0) as u8,
        off: field(random, row.off, off) as i16,
        imm: field(random, row.imm, imm) as i32,
    };
    if row.form == table::Form::CallKfunc {
        insn.off = 0;
        let name = random.pick(KFUNCS).to_owned();
        kfuncs.push(InsnRef {
            insn: at as u32,
            target: RefTarget::Kfunc {
                name,
                type_id: 0,
                weak: false,
            },
        });
    }
    match row.next {
        None => vec![insn],
        Some(next) => {
            let imm = field(random, next, random_small(at)) as i32;
            vec![
                insn,
                Insn {
                    imm,
                    ..Insn::default()
                },
            ]
        }
    }
}

fn random_small(seed: i64) -> i64 {
    seed % 16
}

/// Random instructions; what cannot be loaded is replaced by a move until it can.
fn program(random: &mut Random) -> bpfkit_object::Program {
    let len = 4 + random.below(40) as i64;
    let (mut insns, mut kfuncs) = (Vec::new(), Vec::new());
    while (insns.len() as i64) < len {
        let at = insns.len() as i64;
        insns.extend(insn(random, len, at, &mut kfuncs));
    }
    insns.push(Insn {
        code: code::JMP | code::EXIT,
        ..Insn::default()
    });
    let mut program = raw_program("hostile", insns);
    program.refs = kfuncs;
    let half = program.insns.len() as u32 / 2;
    program.subprograms.push(Subprogram {
        name: "half".to_owned(),
        start: half,
        type_id: 0,
        global: false,
    });
    program
}

#[test]
fn whatever_a_program_holds_a_run_ends() {
    let count = std::env::var("BPFKIT_HOSTILE")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3000);
    let start = std::env::var("BPFKIT_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let (mut ran, mut faulted, mut steps) = (0, 0, 0);
    let maps = maps();
    let engines = [Interpreter::default(), Interpreter::looping()];
    for seed in start..start + count {
        if std::env::var_os("BPFKIT_SEED").is_some() {
            println!("seed {seed}");
        }
        let mut random = Random(seed);
        let mut program = program(&mut random);
        let types = [
            ProgType::Unspec,
            ProgType::Xdp,
            ProgType::SchedCls,
            ProgType::SocketFilter,
        ];
        let prog_type = random.pick(&types);
        program.decl.prog_type = prog_type;
        let exec = loop {
            let code = Code::Unverified(Arc::new(program.clone()));
            let engine = random.pick(&engines);
            match engine.load(code, &maps, &LoadOptions::default()) {
                Ok(exec) => break exec,
                Err(error) => {
                    // Dead ends become moves, two-slot ones two of them.
                    let at = error.insn as usize;
                    let wide = Op::decode(&program.insns[at..]).is_ok_and(|op| op.slots() == 2);
                    let dst = random.below(10) as u8;
                    let mov = Insn {
                        code: code::ALU64 | code::MOV,
                        dst,
                        imm: 8,
                        ..Insn::default()
                    };
                    program.insns[at] = mov;
                    let both = wide || matches!(error.kind, LoadErrorKind::Malformed(_));
                    if let Some(next) = program.insns.get_mut(at + 1).filter(|_| both) {
                        *next = mov;
                    }
                }
            }
        };
        let mut vm = Vm::default();
        vm.step_limit = 20_000;
        let packet: Vec<u8> = (0..80).collect();
        let mut raw = RawMemory::new(packet.clone());
        let mut input = (prog_type != ProgType::Unspec)
            .then(|| Input::packet(prog_type, &packet).ok())
            .flatten();
        let context: &mut dyn Context = match &mut input {
            Some(input) => input,
            None => &mut raw,
        };
        let outcome = exec.run(&mut vm, context);
        ran += 1;
        faulted += u32::from(outcome.fault.is_some());
        steps += outcome.steps;
    }
    println!("{ran} programs, {faulted} faulted, {steps} steps");
}
