//! What needs more than a text: tail calls, exceptions, arenas, maps, limits, faults with
//! their source lines.

use std::sync::Arc;

use bpfkit_isa::asm::{self, MapRef, Resolver};
use bpfkit_object::{
    InsnRef, LineInfo, MapDef, MapOrigin, Program, RefTarget, SlotValue, Subprogram,
};
use bpfkit_runtime::{
    Code, Engine, Executable, FaultKind, Interpreter, LoadErrorKind, LoadOptions, MapOptions,
    MapSet, Outcome, RawMemory, RegionKind, Trusted, Vm, raw_program,
};
use bpfkit_spec::MapType;

struct Names;

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

/// A program; labels that begin with `f_` become subprograms, `kfuncs` are the names behind
/// its kernel function calls in order.
fn program(name: &str, text: &str, kfuncs: &[&str]) -> Program {
    let assembled = asm::assemble_with(text, &Names).unwrap_or_else(|e| panic!("{name}: {e}"));
    let calls = assembled.insns.iter().enumerate();
    let calls = calls
        .filter(|(_, insn)| insn.code == 0x85 && insn.src == 2)
        .map(|(i, _)| i as u32);
    let mut program = raw_program(name, assembled.insns.clone());
    program.refs = calls
        .zip(kfuncs)
        .map(|(insn, name)| InsnRef {
            insn,
            target: RefTarget::Kfunc {
                name: (*name).to_owned(),
                type_id: 0,
                weak: false,
            },
        })
        .collect();
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

const ENGINES: [fn() -> Interpreter; 2] = [Interpreter::default, Interpreter::looping];

fn load(engine: Interpreter, program: Program, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    let code = Code::Unverified(Arc::new(program));
    engine.load(code, maps, &LoadOptions::default()).unwrap()
}

fn run(exec: &dyn Executable) -> Outcome {
    exec.run(&mut Vm::default(), &mut RawMemory::default())
}

fn map(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
    MapDef::new("m", map_type, key_size, value_size, max_entries)
}

fn maps(defs: &[MapDef]) -> Arc<MapSet> {
    MapSet::new(defs, &MapOptions::default()).unwrap()
}

fn programs(names: &[&str]) -> MapDef {
    let slots = names
        .iter()
        .zip(0..)
        .map(|(n, i)| (i, SlotValue::Program((*n).to_owned())));
    MapDef {
        slots: slots.collect(),
        ..map(MapType::ProgArray, 4, 4, 8)
    }
}

/// Loads programs that share a program array and fills it with them.
fn linked(engine: Interpreter, texts: &[(&str, &str)]) -> Vec<Arc<dyn Executable>> {
    let names: Vec<_> = texts.iter().map(|(name, _)| *name).collect();
    let maps = maps(&[programs(&names)]);
    let execs: Vec<_> = texts
        .iter()
        .map(|(name, text)| load(engine, program(name, text, &[]), &maps))
        .collect();
    let find = |name: &str| {
        execs
            .iter()
            .find(|e| e.program().decl.name == name)?
            .clone()
            .local()
    };
    maps.set_programs(find).unwrap();
    execs
}

const TAIL: &str = "r2 = map[m0] ll
    call bpf_tail_call
";

/// 10⁸ instructions of a loop, on a thread whose stack could hold a few hundred frames only:
/// handlers that call instead of jumping would overflow it.
#[test]
fn small_stack() {
    // A bit of everything that a loop can hold.
    let text = "r6 = 0
        r7 = $n
        r1 = 0
        *(u64 *)(r10 - 8) = r1
        loop:
        r1 = r10
        r1 += -8
        r2 = *(u64 *)(r1 + 0)
        r3 = 0x100000002 ll
        lock *(u64 *)(r1 + 0) += r3
        r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)
        w4 = *(u8 *)(r1 + 3)
        *(u32 *)(r1 + 4) = r4
        r5 = load_acquire((u64 *)(r1 + 0))
        store_release((u64 *)(r1 + 0), r5)
        r5 = be32 r5
        r6 += r5
        r6 /= 3
        may_goto next
        next:
        call sub
        r7 += -1
        if r7 != 0 goto loop
        r0 = 1
        exit
        sub:
        r0 = r1
        w0 s>>= 3
        if w0 s> 5 goto out
        r0 ^= r2
        out:
        exit";
    let run = move || {
        for (trusted, n) in [(false, 4_000_000), (true, 4_000_000)] {
            let text = text.replace("$n", &n.to_string());
            let code = Arc::new(program("loop", &text, &[]));
            let code = match trusted {
                // SAFETY: the loop touches its stack frame only and ends.
                true => Code::Trusted(unsafe { Trusted::assume(code) }),
                false => Code::Unverified(code),
            };
            let exec = Interpreter::default()
                .load(code, &MapSet::empty(), &LoadOptions::default())
                .unwrap();
            let outcome = run(&*exec);
            assert_eq!(outcome.fault, None);
            assert!(outcome.steps > 20 * n, "{}", outcome.steps);
        }
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10);
    thread.spawn(run).unwrap().join().unwrap();
}

#[test]
fn steps_count_instructions() {
    let text = "r6 = 5 ll
        loop:
        r6 += -1
        call f
        if r6 != 0 goto loop
        exit
        f:
        r0 = 0
        exit";
    for engine in ENGINES {
        let exec = load(engine(), program("count", text, &[]), &MapSet::empty());
        assert_eq!(run(&*exec).steps, 1 + 5 * 5 + 1);
    }
}

#[test]
fn tail_calls_replace_the_program() {
    for engine in ENGINES {
        let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit");
        let execs = linked(engine(), &[("main", &main), ("next", "r0 = 42\n exit")]);
        let outcome = run(&*execs[0]);
        assert_eq!((outcome.ret, outcome.fault), (42, None));
        assert_eq!(outcome.steps, 1 + 2 + 2);
    }
}

#[test]
fn tail_calls_fall_through_without_a_program() {
    for engine in ENGINES {
        for index in ["5", "8", "-1"] {
            let main = format!("r3 = {index}\n{TAIL} r0 = 7\n exit");
            let execs = linked(engine(), &[("main", &main)]);
            assert_eq!(run(&*execs[0]).ret, 7, "{index}");
        }
    }
}

#[test]
fn thirty_three_tail_calls_and_no_more() {
    for engine in ENGINES {
        // Counts in R1's place: the context register goes along.
        let main = format!("r1 += 1\n r6 = r1\n r3 = 0\n{TAIL} r0 = r6\n exit");
        let execs = linked(engine(), &[("main", &main)]);
        assert_eq!(run(&*execs[0]).ret, 34);
    }
}

#[test]
fn a_tail_call_in_a_subprogram_returns_to_its_caller() {
    for engine in ENGINES {
        let main = format!(
            "r6 = 100\n call f_sub\n r0 += r6\n call f_sub\n r0 += r6\n exit
            f_sub:\n r3 = 1\n{TAIL} r0 = 0\n exit"
        );
        let next = "call f\n r0 += 1\n exit\n f:\n r0 = 10\n exit";
        let execs = linked(engine(), &[("main", &main), ("next", next)]);
        let outcome = run(&*execs[0]);
        assert_eq!((outcome.ret, outcome.fault), (111, None));
        assert_eq!(outcome.steps, 1 + 1 + 3 + 5 + 1 + 1 + 3 + 5 + 1 + 1);
    }
}

#[test]
fn faults_after_a_tail_call_name_the_program_they_are_in() {
    for engine in ENGINES {
        let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit");
        let execs = linked(
            engine(),
            &[
                ("main", &main),
                ("bad", "r0 = 0\n r0 = *(u8 *)(r0 + 9)\n exit"),
            ],
        );
        let fault = run(&*execs[0]).fault.unwrap();
        assert_eq!((fault.program.as_str(), fault.insn), ("bad", 1));
    }
}

#[test]
fn engines_mix_in_tail_calls() {
    let maps = maps(&[programs(&["other"])]);
    let main = format!("r6 = 1\n call f\n r0 += r6\n exit\n f:\n r3 = 0\n{TAIL} r0 = 0\n exit");
    let main = load(Interpreter::default(), program("main", &main, &[]), &maps);
    let other = load(
        Interpreter::looping(),
        program("other", "r0 = 20\n exit", &[]),
        &maps,
    );
    maps.set_programs(|_| Arc::clone(&other).local()).unwrap();
    let outcome = run(&*main);
    assert_eq!((outcome.ret, outcome.fault), (21, None));
}

#[test]
fn a_trusted_program_does_not_call_an_unverified_one() {
    let maps = maps(&[programs(&["other"])]);
    let main = Arc::new(program(
        "main",
        &format!("r3 = 0\n{TAIL} r0 = 0\n exit"),
        &[],
    ));
    // SAFETY: it touches nothing but its program array.
    let main = Code::Trusted(unsafe { Trusted::assume(main) });
    let main = Interpreter::default()
        .load(main, &maps, &LoadOptions::default())
        .unwrap();
    let other = load(
        Interpreter::default(),
        program("other", "r0 = 20\n exit", &[]),
        &maps,
    );
    maps.set_programs(|_| Arc::clone(&other).local()).unwrap();
    assert_eq!(run(&*main).fault.unwrap().kind, FaultKind::TailCallMode);
}

#[test]
fn exceptions_unwind_to_the_result_or_the_callback() {
    let text = "r6 = 1
        call f_deep
        r0 = 5
        exit
        f_deep:
        r1 = 3
        r2 = f_cb ll
        r3 = 0
        r4 = 0
        call bpf_loop
        r0 = 6
        exit
        f_cb:
        r1 = 77
        call kfunc bpf_throw
        r0 = 0
        exit
        f_catch:
        r0 = r1
        r0 += 1000
        exit";
    for engine in ENGINES {
        let plain = program("throws", text, &["bpf_throw"]);
        let mut caught = plain.clone();
        let catch = caught
            .subprograms
            .iter()
            .position(|s| s.name == "f_catch")
            .unwrap();
        caught.exception_callback = Some(catch as u32);
        for (program, expected) in [(plain, 77), (caught, 1077)] {
            let outcome = run(&*load(engine(), program, &MapSet::empty()));
            assert_eq!((outcome.ret, outcome.fault), (expected, None));
        }
    }
}

#[test]
fn an_error_in_a_callback_ends_the_program_there() {
    let text = "r1 = 3
        r2 = f_cb ll
        r3 = 0
        r4 = 0
        call bpf_loop
        r0 = 6
        exit
        f_cb:
        r0 = 0
        *(u8 *)(r0 + 1) = 2
        exit";
    for engine in ENGINES {
        let fault = run(&*load(
            engine(),
            program("bad", text, &[]),
            &MapSet::empty(),
        ))
        .fault
        .unwrap();
        assert_eq!((fault.insn, fault.function.as_deref()), (9, Some("f_cb")));
    }
}

#[test]
fn faults_name_their_source_line() {
    let mut program = program(
        "lines",
        "r1 = 0\n r0 = 0\n r0 = *(u64 *)(r1 + 8)\n exit",
        &[],
    );
    let line = |insn, line, text: &str| LineInfo {
        insn,
        file: "x.c".into(),
        text: text.into(),
        line,
        column: 5,
        offsets: [0, 0],
    };
    program.lines = vec![
        line(0, 10, "int *p = 0;"),
        line(2, 11, "\treturn p[2];"),
        line(3, 12, "}"),
    ];
    for engine in ENGINES {
        let fault = run(&*load(engine(), program.clone(), &MapSet::empty()))
            .fault
            .unwrap();
        assert_eq!(
            fault.to_string(),
            "invalid read of 8 bytes at 0x8 at instruction 2 of lines (x.c:11: return p[2];)"
        );
    }
}

#[test]
fn values_of_maps_are_regions_of_their_own() {
    let text = "*(u32 *)(r10 - 4) = $key
        r1 = map[m0] ll
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto none
        r1 = r0
        *(u64 *)(r1 + 0) = 7
        r0 = *(u32 *)(r1 + $at)
        exit
        none:
        r0 = 99
        exit";
    for engine in ENGINES {
        for (key, at, expected) in [
            (0, 0, Ok(7)),
            (3, 8, Ok(0)),
            (2, 9, Err(9)),
            (0, 12, Err(12)),
            (4, 0, Ok(99)),
            (1, -4, Err(-4)),
        ] {
            let maps = maps(&[map(MapType::Array, 4, 12, 4)]);
            let text = text
                .replace("$key", &key.to_string())
                .replace("$at", &at.to_string());
            let outcome = run(&*load(engine(), program("value", &text, &[]), &maps));
            match expected {
                Ok(value) => assert_eq!((outcome.ret, outcome.fault), (value, None), "{key} {at}"),
                Err(offset) => {
                    let fault = outcome.fault.unwrap();
                    let FaultKind::Access { near, .. } = fault.kind else {
                        panic!("{fault}")
                    };
                    let (kind, distance) = near.unwrap();
                    assert_eq!(kind, RegionKind::MapValue);
                    // The gap between two values belongs to one or the other.
                    assert!(distance == offset || distance == offset + 16, "{distance}");
                }
            }
        }
    }
}

#[test]
fn global_data_is_addressed_directly_and_may_be_read_only() {
    const RDONLY_PROG: u32 = 1 << 7;
    let data = |flags| MapDef {
        flags,
        origin: MapOrigin::Data {
            section: ".data".to_owned(),
            bytes: vec![1, 2, 3, 4, 5, 6, 7, 8],
        },
        ..map(MapType::Array, 4, 8, 1)
    };
    let text = "r1 = map_value[m0][4] ll
        r2 = *(u8 *)(r1 + 1)
        *(u8 *)(r1 + 0) = 9
        r0 = *(u32 *)(r1 + 0)
        exit";
    for engine in ENGINES {
        let writable = maps(&[data(0)]);
        assert_eq!(
            run(&*load(engine(), program("w", text, &[]), &writable)).ret,
            0x0807_0609
        );
        assert_eq!(
            writable.get(0).unwrap().read(&0u32.to_ne_bytes()).unwrap()[4],
            9
        );
        let frozen = maps(&[data(RDONLY_PROG)]);
        let fault = run(&*load(engine(), program("r", text, &[]), &frozen))
            .fault
            .unwrap();
        assert!(
            matches!(fault.kind, FaultKind::Access { write: true, .. }),
            "{fault}"
        );
        assert_eq!(fault.insn, 3);
    }
    let past = program("past", "r1 = map_value[m0][8] ll\n r0 = 0\n exit", &[]);
    let code = Code::Unverified(Arc::new(past));
    let error = Interpreter::default()
        .load(code, &maps(&[data(0)]), &LoadOptions::default())
        .err();
    assert_eq!(error.unwrap().kind, LoadErrorKind::MapValue(0, 8));
}

#[test]
fn arena_pointers_are_what_their_lower_halves_say() {
    // Allocates a page, then works through the pointer as allocated, cast, and cut to 32 bits.
    let text = "r1 = map[m0] ll
        r2 = 0
        r3 = 1
        r4 = -1
        r5 = 0
        call kfunc bpf_arena_alloc_pages
        if r0 == 0 goto none
        r6 = r0
        *(u64 *)(r6 + 8) = 5
        r1 = addr_space_cast(r6, 0, 1)
        r2 = *(u64 *)(r1 + 8)
        r2 += 1
        *(u64 *)(r1 + 8) = r2
        w3 = w6
        r0 = *(u64 *)(r3 + 8)
        r0 += 1
        *(u64 *)(r3 + 8) = r0
        r4 = addr_space_cast(r3, 1, 0)
        r0 = *(u64 *)(r4 + 8)
        r5 = *(u64 *)(r4 + 4096)
        r0 += r5
        *(u64 *)(r4 + 4096) = 77
        r5 = *(u64 *)(r4 + 4096)
        r0 += r5
        r1 = 0
        r1 = addr_space_cast(r1, 0, 1)
        r0 += r1
        exit
        none:
        r0 = 99
        exit";
    const MMAPABLE: u32 = 1 << 10;
    for engine in ENGINES {
        for extra in [0, 1 << 44] {
            let arena = MapDef {
                flags: MMAPABLE,
                extra,
                ..map(MapType::Arena, 0, 0, 10)
            };
            let maps = maps(&[arena]);
            let exec = load(
                engine(),
                program("arena", text, &["bpf_arena_alloc_pages"]),
                &maps,
            );
            let outcome = run(&*exec);
            assert_eq!((outcome.fault, outcome.ret), (None, 7), "{extra:#x}");
        }
    }
}

#[test]
fn inner_maps_stay_alive_for_the_run() {
    let inner = map(MapType::Array, 4, 8, 2);
    let outer = MapDef {
        inner: Some(Box::new(inner.clone())),
        slots: vec![(1, SlotValue::Map(1))],
        ..map(MapType::ArrayOfMaps, 4, 4, 2)
    };
    let text = "*(u32 *)(r10 - 4) = 1
        r1 = map[m0] ll
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto none
        r1 = r0
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto none
        r1 = 5
        *(u64 *)(r0 + 0) = r1
        r0 = *(u64 *)(r0 + 0)
        exit
        none:
        r0 = 99
        exit";
    for engine in ENGINES {
        let maps = maps(&[outer.clone(), inner.clone()]);
        let outcome = run(&*load(engine(), program("inner", text, &[]), &maps));
        assert_eq!((outcome.fault, outcome.ret), (None, 5));
        assert_eq!(
            maps.get(1).unwrap().read(&1u32.to_ne_bytes()).unwrap(),
            5u64.to_ne_bytes()
        );
    }
}

#[test]
fn a_worker_may_run_programs_of_different_objects_in_turn() {
    let text =
        "r1 = map_value[m0][0] ll\n r0 = *(u64 *)(r1 + 0)\n r0 += 1\n *(u64 *)(r1 + 0) = r0\n exit";
    let data = MapDef {
        origin: MapOrigin::Data {
            section: ".bss".to_owned(),
            bytes: vec![0; 8],
        },
        ..map(MapType::Array, 4, 8, 1)
    };
    for engine in ENGINES {
        let execs: Vec<_> = (0..3)
            .map(|_| {
                load(
                    engine(),
                    program("count", text, &[]),
                    &maps(std::slice::from_ref(&data)),
                )
            })
            .collect();
        let mut vm = Vm::default();
        for round in 1..5 {
            for exec in &execs {
                let outcome = exec.run(&mut vm, &mut RawMemory::default());
                assert_eq!((outcome.fault, outcome.ret), (None, round));
            }
        }
    }
}
