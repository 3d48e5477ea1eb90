//! Tail calls, between programs of this engine and of the interpreter: by a jump where the
//! array is known and both are verified, else through the run.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bpfkit_jit::{Rule, Rules};
use bpfkit_object::{MapDef, SlotValue};
use bpfkit_runtime::{
    Engine, Executable, FaultKind, Interpreter, MapOptions, MapSet, Outcome, RawMemory, Vm,
    set_program,
};
use bpfkit_spec::MapType;

use common::program;

fn jit() -> Box<dyn Engine> {
    Box::new(common::jit(Rules::default()))
}

/// The same, which asks the run for every tail call.
fn asking() -> Box<dyn Engine> {
    Box::new(common::jit(Rules::default().without(Rule::DirectTailCall)))
}

fn interpreter() -> Box<dyn Engine> {
    Box::new(Interpreter::default())
}

const ENGINES: [fn() -> Box<dyn Engine>; 3] = [interpreter, jit, asking];

fn load(
    engine: &dyn Engine,
    name: &str,
    text: &str,
    trusted: bool,
    maps: &Arc<MapSet>,
) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program(name, text)), trusted, maps)
}

fn run(exec: &dyn Executable) -> Outcome {
    exec.run(&mut Vm::default(), &mut RawMemory::default())
}

fn program_array() -> Arc<MapSet> {
    let array = MapDef {
        slots: (0..2)
            .map(|i| (i, SlotValue::Program(format!("p{i}"))))
            .collect(),
        ..common::map(MapType::ProgArray, 4)
    };
    let values = common::map(MapType::Array, 8);
    MapSet::new(&[array, values], &MapOptions::default()).unwrap()
}

const TAIL: &str = "r2 = map[m0] ll
    call bpf_tail_call
";

/// Loads two programs that share a program array, each on its engine, and fills it with them.
fn linked(
    engines: [fn() -> Box<dyn Engine>; 2],
    trusted: bool,
    texts: [&str; 2],
) -> [Arc<dyn Executable>; 2] {
    let maps = program_array();
    let execs = [0, 1].map(|i| load(&*engines[i](), &format!("p{i}"), texts[i], trusted, &maps));
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

#[test]
fn tail_calls_lead_from_engine_to_engine() {
    let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit");
    let sub = format!(
        "r6 = 100\n call f_sub\n r0 += r6\n call f_sub\n r0 += r6\n exit
        f_sub:\n r6 = 5\n r3 = 1\n{TAIL} r0 = 0\n exit"
    );
    let calling = "call f_a\n r0 += 1\n exit\n f_a:\n r6 = 7\n r7 = 8\n r0 = 10\n exit";
    for first in ENGINES {
        for second in ENGINES {
            for trusted in [false, true] {
                for (text, other, expected) in [(&main, "r0 = 42\n exit", 42), (&sub, calling, 111)]
                {
                    let execs = linked([first, second], trusted, [text, other]);
                    let outcome = run(&*execs[0]);
                    assert_eq!((outcome.ret, outcome.fault), (expected, None));
                    let interpreted = linked([interpreter; 2], trusted, [text, other]);
                    if !trusted {
                        assert_eq!(outcome.steps, run(&*interpreted[0]).steps);
                    }
                }
            }
        }
    }
}

#[test]
fn thirty_three_tail_calls_and_no_more() {
    // Counts in R1, the context, which goes along.
    let own = format!("r1 += 1\n r6 = r1\n r3 = 0\n{TAIL} r0 = r6\n exit");
    let other = format!("r1 += 1\n r6 = r1\n r3 = 1\n{TAIL} r0 = r6\n exit");
    let back = format!("r1 += 1\n r6 = r1\n r3 = 0\n{TAIL} r0 = r6\n exit");
    for trusted in [false, true] {
        assert_eq!(run(&*linked([jit, jit], trusted, [&own, &back])[0]).ret, 34);
        assert_eq!(
            run(&*linked([jit, jit], trusted, [&other, &back])[0]).ret,
            34
        );
        assert_eq!(
            run(&*linked([jit, interpreter], trusted, [&other, &back])[0]).ret,
            34
        );
    }
}

#[test]
fn without_a_program_tail_calls_fall_through() {
    for index in ["5", "8", "-1"] {
        let main = format!("r0 = 3\n r3 = {index}\n{TAIL} r0 += 4\n exit");
        for trusted in [false, true] {
            let execs = linked([jit, jit], trusted, [&main, "r0 = 0\n exit"]);
            assert_eq!(run(&*execs[0]).ret, 7, "{index}");
        }
    }
}

#[test]
fn a_trusted_program_does_not_call_an_unverified_one() {
    let maps = program_array();
    let text = format!("r3 = 1\n{TAIL} r0 = 0\n exit");
    let main = load(&*jit(), "p0", &text, true, &maps);
    let other = load(&*jit(), "p1", "r0 = 20\n exit", false, &maps);
    maps.set_programs(|_| Arc::clone(&other).local()).unwrap();
    assert_eq!(run(&*main).fault.unwrap().kind, FaultKind::TailCallMode);
}

#[test]
fn faults_name_the_program_and_instruction_they_are_in() {
    let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit");
    let bad = "r6 = 0\n call f_bad\n exit\n f_bad:\n r1 = 0\n r0 = *(u8 *)(r1 + 9)\n exit";
    let [interpreted, compiled, _] = ENGINES;
    let mixed = [
        [compiled; 2],
        [interpreted, compiled],
        [compiled, interpreted],
    ];
    for engines in mixed {
        let execs = linked(engines, false, [&main, bad]);
        let outcome = run(&*execs[0]);
        let fault = outcome.fault.unwrap();
        assert_eq!((fault.program.as_str(), fault.insn), ("p1", 4));
        assert_eq!(fault.function.as_deref(), Some("f_bad"));
        let expected = run(&*linked([interpreter; 2], false, [&main, bad])[0]);
        assert_eq!(outcome.steps, expected.steps);
    }
}

#[test]
fn the_slot_may_be_known_late() {
    // The index comes from memory, and registers of the caller live on where nothing happens.
    let main = format!(
        "r6 = r1\n r7 = 40\n *(u64 *)(r10 - 8) = 1\n r3 = *(u64 *)(r10 - 8)\n{TAIL}
        r0 = r7\n r0 += r6\n exit"
    );
    let next = "r6 = 9\n r7 = 9\n r0 = r1\n r0 += 5\n exit";
    for engine in ENGINES {
        for trusted in [false, true] {
            let execs = linked([engine, engine], trusted, [&main, next]);
            assert_eq!(run(&*execs[0]).ret, 5);
            let array = execs[0].maps().get(0).unwrap().as_prog_array().unwrap();
            array.clear(1).unwrap();
            assert_eq!(run(&*execs[0]).ret, 40);
        }
    }
}

/// Helpers and callbacks of the second program see that program: its functions, its maps.
#[test]
fn the_program_that_was_jumped_to_is_the_one_that_runs() {
    let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit\n f_first:\n r0 = 1\n exit");
    let next = "r7 = 0
        r1 = 6
        r2 = f_turn ll
        r3 = 0
        r4 = 0
        call bpf_loop
        r6 = r0
        *(u32 *)(r10 - 4) = 3
        r2 = r10
        r2 += -4
        r1 = map[m1] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto none
        *(u64 *)(r0 + 0) += r6
        r0 = *(u64 *)(r0 + 0)
        r0 += 100
        none:
        exit
        f_turn:
        r0 = 0
        exit";
    let next = next.replace(
        "*(u64 *)(r0 + 0) += r6",
        "r1 = *(u64 *)(r0 + 0)\n r1 += r6\n *(u64 *)(r0 + 0) = r1",
    );
    let [interpreted, jumps, asks] = ENGINES;
    let pairs = [
        [jumps, jumps],
        [asks, jumps],
        [jumps, asks],
        [interpreted, jumps],
    ];
    for engines in pairs {
        for trusted in [false, true] {
            let execs = linked(engines, trusted, [&main, &next]);
            let mut vm = Vm::default();
            for total in [106, 112] {
                let outcome = execs[0].run(&mut vm, &mut RawMemory::default());
                assert_eq!((outcome.ret, outcome.fault), (total, None));
            }
        }
    }
}

#[test]
fn an_exception_in_the_program_that_was_jumped_to_ends_the_run() {
    let main = format!("r6 = 1\n r7 = 2\n r3 = 1\n{TAIL} r0 = 1\n exit");
    let next = "r6 = 3\n r8 = 4\n call f_deep\n r0 = 0\n exit
        f_deep:\n r9 = 5\n r1 = 77\n call kfunc bpf_throw\n r0 = 0\n exit";
    for trusted in [false, true] {
        let execs = linked([jit, jit], trusted, [&main, next]);
        for _ in 0..3 {
            assert_eq!(run(&*execs[0]).ret, 77);
        }
    }
}

/// A loop with a budget of its own leaves no trace on the stack when it is left by a jump.
#[test]
fn a_budget_is_given_back() {
    let main = format!("r6 = 1\n may_goto out\n out:\n r3 = 1\n{TAIL} r0 = r6\n exit");
    let next = format!("may_goto out\n out:\n r6 = 2\n r3 = 0\n{TAIL} r0 = r6\n exit");
    for trusted in [false, true] {
        // 33 tail calls: the last is in the second program.
        assert_eq!(run(&*linked([jit, jit], trusted, [&main, &next])[0]).ret, 2);
    }
}

/// Programs come and go while others call them: each call meets one of them whole, or none.
#[test]
fn slots_change_while_programs_run() {
    let maps = program_array();
    let main = format!("r6 = 7\n r3 = 1\n{TAIL} r0 = r6\n exit");
    let main = load(&*jit(), "p0", &main, true, &maps);
    let (done, seen) = (
        AtomicBool::new(false),
        Arc::new([(); 3].map(|()| AtomicBool::new(false))),
    );
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (main, done, seen) = (&main, &done, Arc::clone(&seen));
            scope.spawn(move || {
                let mut vm = Vm::new(cpu, Arc::new(bpfkit_runtime::FixedHost::default()));
                while !done.load(Relaxed) {
                    let outcome = main.run(&mut vm, &mut RawMemory::default());
                    assert_eq!(outcome.fault, None);
                    match outcome.ret {
                        7 => seen[0].store(true, Relaxed),
                        value @ (100 | 200) => seen[value as usize / 100].store(true, Relaxed),
                        other => panic!("{other}"),
                    }
                }
            });
        }
        let array = maps.get(0).unwrap();
        let mut turns = 0;
        while turns < 50 || !seen.iter().all(|s| s.load(Relaxed)) {
            for value in [100, 200] {
                // Compiled anew each time, so that the old code goes away; with a helper, whose
                // run asks what program it is in.
                let text = format!("call bpf_get_smp_processor_id\n r6 = {value}\n r0 = r6\n exit");
                let next = load(&*asking(), "p1", &text, true, &maps);
                set_program(array, 1, next.local().unwrap(), 1).unwrap();
                std::thread::yield_now();
            }
            array.as_prog_array().unwrap().clear(1).unwrap();
            std::thread::yield_now();
            turns += 1;
        }
        done.store(true, Relaxed);
    });
}
