//! What needs more than a text: exceptions, callbacks, limits, refusals.

mod common;

use std::sync::Arc;

use bpfkit_jit::Rules;
use bpfkit_object::Program;
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Engine, Executable, FaultKind, Interpreter, LoadErrorKind, LoadOptions, MapSet, Outcome,
    RawMemory, Vm,
};
use bpfkit_spec::ProgType;
use bpfkit_verifier::Environment;

use common::program;

fn jit() -> Box<dyn Engine> {
    Box::new(common::jit(Rules::default()))
}

fn interpreter() -> Box<dyn Engine> {
    Box::new(Interpreter::default())
}

fn load(engine: &dyn Engine, program: Program, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program), false, maps)
}

fn load_trusted(engine: &dyn Engine, program: Program, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program), true, maps)
}

fn run(exec: &dyn Executable) -> Outcome {
    exec.run(&mut Vm::default(), &mut RawMemory::default())
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

#[test]
fn a_jump_that_never_jumps_may_be_jumped_to() {
    // Both jumps on R1 are decided; another jump leads to the first, a call to the second.
    let text = "r0 = *(u32 *)(r1 + 0)
        r1 = 5
        if r0 > 7 goto +1
        r0 += 1
        if r1 == 0 goto +1
        r0 += 2
        call f_more
        exit
        f_more:
        if r1 == 0 goto +1
        r0 = 9
        exit";
    let mut program = program("decided", text);
    program.decl.prog_type = ProgType::SchedCls;
    let maps = MapSet::empty();
    let environment = Environment {
        facts: true,
        ..Environment::new(None)
    };
    let code = Code::verify(&program, &maps, &environment).expect("it is accepted");
    let exec = jit().load(code, &maps, &LoadOptions::default());
    let mut input = Input::packet(ProgType::SchedCls, &[0; 64]).expect("a packet");
    let outcome = exec.expect("it loads").run(&mut Vm::default(), &mut input);
    assert_eq!((outcome.ret, outcome.fault), (9, None));
}
