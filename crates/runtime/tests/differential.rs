//! Random programs come to the same on every way to interpret them.

#[path = "../../../tests/programs/frames.rs"]
mod random;

use std::sync::Arc;

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
        let (threaded, looping) = (Interpreter::default(), Interpreter::looping());
        let outcomes = [
            (looping, checked()), (threaded, checked()), (looping, trusted()), (threaded, trusted()),
        ]
        .map(|(engine, code)| {
            let exec = engine.load(code, &MapSet::empty(), &LoadOptions::default()).unwrap();
            exec.run(&mut Vm::default(), &mut RawMemory::default())
        });
        prop_assert_eq!(&outcomes[0].fault, &None);
        for outcome in &outcomes[1..] {
            prop_assert_eq!(outcome, &outcomes[0]);
        }
    }
}
