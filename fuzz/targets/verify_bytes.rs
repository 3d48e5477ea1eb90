//! Any bytes as instructions: verification ends, soon and without a panic.
#![no_main]

use bpfkit_isa::Insn;
use bpfkit_verifier::{Environment, verify};
use libfuzzer_sys::fuzz_target;

mod made;

use made::random::Choose;

fuzz_target!(|data: &[u8]| {
    let (head, body) = data.split_at(data.len().min(8));
    let mut bytes = made::Bytes(head);
    let (slots, _) = body.as_chunks::<8>();
    let insns: Vec<Insn> = slots.iter().copied().map(Insn::from_le_bytes).collect();
    let program = made::program(&mut bytes, insns);
    let mut environment = Environment::new(None);
    environment.privileged = bytes.below(4) != 0;
    environment.test_state_freq = bytes.below(4) == 1;
    environment.facts = true;
    let verdict = verify(&program, &made::accepted::maps(), &environment);
    assert!(verdict.stats.processed <= 1_000_001);
});
