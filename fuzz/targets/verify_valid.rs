//! Valid instructions in any order, with and without what the caller may switch on.
#![no_main]

use bpfkit_verifier::{Environment, explain, verify};
use libfuzzer_sys::fuzz_target;

mod made;

use made::random::{Choose, likely};

fuzz_target!(|data: &[u8]| {
    let mut bytes = made::Bytes(data);
    let insns = likely(&mut bytes);
    let program = made::program(&mut bytes, insns);
    let mut environment = Environment::new(None);
    environment.privileged = bytes.below(4) != 0;
    environment.test_state_freq = bytes.below(4) == 1;
    environment.test_reg_invariants = bytes.below(4) == 1;
    environment.strict_alignment = bytes.below(4) == 1;
    environment.exact_numbers = bytes.below(4) == 1;
    environment.precision_early_stop = bytes.below(4) == 1;
    environment.facts = true;
    let verdict = verify(&program, &made::accepted::maps(), &environment);
    assert!(verdict.stats.processed <= 1_000_001);
    // The log of a long way would be gigabytes.
    if let (Err(rejection), true) = (&verdict.result, verdict.stats.processed < 1_000) {
        environment.log_level = 2;
        let log = verify(&program, &made::accepted::maps(), &environment).log;
        let _ = explain(&program, rejection, &log);
    }
});
