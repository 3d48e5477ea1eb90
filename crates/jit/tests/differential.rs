//! Random programs come to the same compiled as interpreted, with any rules.

#[path = "../../../tests/programs/frames.rs"]
mod random;

use std::sync::Arc;

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
        body in random::body(),
    ) {
        let program = Arc::new(raw_program("random", random::program(&seeds, &body)));
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
        let jit = |rules, bmi2| Jit::new(CodeMemory::new(), rules, Features { bmi2, ..Features::ALL });
        for engine in [jit(Rules::default(), true), jit(Rules::default(), false), jit(Rules::NONE, true)] {
            prop_assert_eq!(&run(&engine, checked()), &expected);
            let outcome = run(&engine, trusted());
            prop_assert_eq!((outcome.ret, outcome.fault), (expected.ret, None));
        }
    }
}
