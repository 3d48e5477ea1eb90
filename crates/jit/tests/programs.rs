//! What needs more than a text: tail calls, exceptions, callbacks, maps; between programs of
//! this engine and of the interpreter.

mod common;

use std::sync::Arc;

use bpfkit_isa::asm;
use bpfkit_jit::Rules;
use bpfkit_object::{InsnRef, MapDef, Program, RefTarget, SlotValue, Subprogram};
use bpfkit_runtime::{
    Code, Engine, Executable, FaultKind, Interpreter, LoadErrorKind, LoadOptions, MapOptions,
    MapSet, Outcome, RawMemory, Vm, raw_program,
};
use bpfkit_spec::MapType;

/// A program; labels that begin with `f_` become subprograms, and every kernel function it
/// calls is `bpf_throw`.
fn program(name: &str, text: &str) -> Program {
    let assembled =
        asm::assemble_with(text, &common::Names).unwrap_or_else(|e| panic!("{name}: {e}"));
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

fn jit() -> Box<dyn Engine> {
    Box::new(common::jit(Rules::default()))
}

fn interpreter() -> Box<dyn Engine> {
    Box::new(Interpreter::default())
}

const ENGINES: [fn() -> Box<dyn Engine>; 2] = [interpreter, jit];

fn load(engine: &dyn Engine, program: Program, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program), false, maps)
}

fn load_trusted(engine: &dyn Engine, program: Program, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program), true, maps)
}

fn run(exec: &dyn Executable) -> Outcome {
    exec.run(&mut Vm::default(), &mut RawMemory::default())
}

fn program_array() -> Arc<MapSet> {
    let def = MapDef {
        slots: (0..2)
            .map(|i| (i, SlotValue::Program(format!("p{i}"))))
            .collect(),
        ..common::map(MapType::ProgArray, 4)
    };
    MapSet::new(&[def], &MapOptions::default()).unwrap()
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
    let load = if trusted { load_trusted } else { load };
    let execs = [0, 1].map(|i| {
        let program = program(&format!("p{i}"), texts[i]);
        load(&*engines[i](), program, &maps)
    });
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
        let execs = linked([jit, jit], false, [&main, "r0 = 0\n exit"]);
        assert_eq!(run(&*execs[0]).ret, 7, "{index}");
    }
}

#[test]
fn a_trusted_program_does_not_call_an_unverified_one() {
    let maps = program_array();
    let main = program("p0", &format!("r3 = 1\n{TAIL} r0 = 0\n exit"));
    let main = load_trusted(&*jit(), main, &maps);
    let other = load(&*jit(), program("p1", "r0 = 20\n exit"), &maps);
    maps.set_programs(|_| Arc::clone(&other).local()).unwrap();
    assert_eq!(run(&*main).fault.unwrap().kind, FaultKind::TailCallMode);
}

#[test]
fn faults_name_the_program_and_instruction_they_are_in() {
    let main = format!("r3 = 1\n{TAIL} r0 = 1\n exit");
    let bad = "r6 = 0\n call f_bad\n exit\n f_bad:\n r1 = 0\n r0 = *(u8 *)(r1 + 9)\n exit";
    let [interpreted, compiled] = ENGINES;
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
fn exceptions_and_faults_unwind_callbacks_and_frames() {
    let text = "r6 = 1
        call f_deep
        r0 = 5
        exit
        f_deep:
        r6 = 9
        r1 = 3
        r2 = f_cb ll
        r3 = 0
        r4 = 0
        call bpf_loop
        r0 = 6
        exit
        f_cb:
        $body
        r0 = 0
        exit
        f_catch:
        r0 = r1
        r0 += 1000
        exit";
    let throws = text.replace("$body", "r1 = 77\n call kfunc bpf_throw");
    let faults = text.replace("$body", "r0 = 0\n *(u8 *)(r0 + 1) = 2");
    for trusted in [false, true] {
        let load = if trusted { load_trusted } else { load };
        let plain = program("throws", &throws);
        let mut caught = plain.clone();
        let catch = caught
            .subprograms
            .iter()
            .position(|s| s.name == "f_catch")
            .unwrap();
        caught.exception_callback = Some(catch as u32);
        for (program, expected) in [(plain, 77), (caught, 1077)] {
            let outcome = run(&*load(&*jit(), program, &MapSet::empty()));
            assert_eq!((outcome.ret, outcome.fault), (expected, None));
        }
    }
    let exec = load(&*jit(), program("faults", &faults), &MapSet::empty());
    let expected = load(
        &*interpreter(),
        program("faults", &faults),
        &MapSet::empty(),
    );
    let (outcome, expected) = (run(&*exec), run(&*expected));
    assert_eq!(outcome.fault, expected.fault);
    assert_eq!(outcome.fault.unwrap().function.as_deref(), Some("f_cb"));
}

#[test]
fn a_loop_stops_at_the_step_limit() {
    for text in [
        "l: goto l\n exit",
        "r0 = 0\n l: r0 += 1\n if r0 != 0 goto l\n exit",
    ] {
        let exec = load(&*jit(), program("endless", text), &MapSet::empty());
        let mut vm = Vm::default();
        vm.step_limit = 10_000;
        let outcome = exec.run(&mut vm, &mut RawMemory::default());
        let fault = outcome.fault.unwrap();
        assert_eq!(fault.kind, FaultKind::StepLimit { limit: 10_000 });
        assert!(
            outcome.steps >= 10_000 && outcome.steps < 10_010,
            "{}",
            outcome.steps
        );
    }
}

#[test]
fn what_cannot_be_compiled_does_not_load() {
    for (text, expected) in [
        ("callx r1\n exit", "callx"),
        (
            "call f_a\n goto inside\n f_a:\n r0 = 0\n inside:\n exit",
            "a jump into another function",
        ),
        (
            "call f_a\n f_a:\n r0 = 0\n exit",
            "a function that ends in another one",
        ),
    ] {
        let code = Code::Unverified(Arc::new(program("bad", text)));
        let error = jit()
            .load(code, &MapSet::empty(), &LoadOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.kind, LoadErrorKind::Unsupported(expected), "{text}");
    }
}
