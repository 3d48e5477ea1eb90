//! Random programs come to the same compiled as interpreted, with any rules: some that touch
//! their frame only and are taken as they are, others that are verified first.

#[path = "../../../tests/programs/accepted.rs"]
mod accepted;
#[path = "../../../tests/programs/engines.rs"]
mod engines;
#[path = "../../../tests/programs/frames.rs"]
mod frames;
#[path = "../../../tests/programs/random.rs"]
#[allow(dead_code, reason = "noise is never accepted")]
mod random;

use std::sync::Arc;

use bpfkit_isa::{Syntax, disasm};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_runtime::{
    Code, Engine, Interpreter, LoadOptions, MapSet, RawMemory, Trusted, Vm, raw_program,
};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_way_comes_to_the_same(
        seeds in prop::collection::vec(any::<i32>(), 10),
        body in frames::body(),
    ) {
        let program = Arc::new(raw_program("random", frames::program(&seeds, &body)));
        // SAFETY: the program touches its stack frame only, whose bytes it has written, and
        // its one jump back is counted.
        let trusted = || Code::Trusted(unsafe { Trusted::assume(Arc::clone(&program)) });
        let checked = || Code::Unverified(Arc::clone(&program));
        let run = |engine: &dyn Engine, code| {
            let exec = engine.load(code, &MapSet::empty(), &LoadOptions::default()).unwrap();
            exec.run(&mut Vm::default(), &mut RawMemory::default())
        };
        let expected = run(&Interpreter::default(), checked());
        prop_assert_eq!(&expected.fault, &None);
        // Code memory of its own for each program: QEMU before 8.1 does not see that space
        // mapped twice has been written anew.
        let jit = |rules, bmi2| Jit::new(CodeMemory::new(), rules, Features { bmi2, ..Features::ALL });
        for (rules, bmi2) in [(Rules::default(), true), (Rules::default(), false), (Rules::NONE, true)] {
            prop_assert_eq!(&run(&jit(rules, bmi2), checked()), &expected);
            let outcome = run(&jit(rules, bmi2), trusted());
            prop_assert_eq!((outcome.ret, outcome.fault), (expected.ret, None));
        }
    }
}

/// Code memory of its own each time: QEMU before 8.1 does not see that space mapped twice has
/// been written anew.
fn jit(rules: Rules) -> Box<dyn Engine> {
    Box::new(Jit::new(CodeMemory::new(), rules, Features::ALL))
}

const ENGINES: [(&str, engines::Make); 3] = [
    ("interpreter", || Box::<Interpreter>::default()),
    ("compiler", || jit(Rules::default())),
    ("compiler without rules", || jit(Rules::NONE)),
];

#[test]
fn accepted_programs_leave_the_same_behind() {
    let mut accepted = 0;
    for seed in 0..500 {
        let mut random = random::Random::of(seed);
        let program = accepted::accepted(&mut random);
        for _ in 0..2 {
            let contents = accepted::Contents::of(&mut random);
            match engines::compare(&ENGINES, &program, &contents) {
                Ok(was_accepted) => accepted += u32::from(was_accepted),
                Err(wrong) => {
                    let listing =
                        disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols);
                    panic!("program {seed}: {wrong}\n{listing}");
                }
            }
        }
    }
    assert!(accepted > 500, "{accepted} accepted");
}
