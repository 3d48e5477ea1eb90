//! Whatever the instructions, verification ends without a panic, and soon.

use bpfkit_isa::{Insn, code};
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, verify};

mod common;
#[path = "../../../tests/programs/random.rs"]
mod random;

use random::{Choose, Random, likely, noise};

const TYPES: [ProgType; 8] = [
    ProgType::SocketFilter,
    ProgType::Kprobe,
    ProgType::SchedCls,
    ProgType::Xdp,
    ProgType::CgroupSkb,
    ProgType::CgroupSock,
    ProgType::Tracepoint,
    ProgType::Syscall,
];

/// Most instructions walked for a short program: beyond, states are not pruned as they should.
const MAX_WALKED: u32 = 1_000_001;

fn run(random: &mut Random, insns: Vec<Insn>) -> bool {
    let mut program = common::program(random.of(&TYPES), insns);
    // Also function starts that are none.
    for _ in 0..random.below(3) {
        let mut sub = program.subprograms[0].clone();
        sub.start = random.below(program.insns.len() + 2) as u32;
        sub.global = random.below(2) == 0;
        program.subprograms.push(sub);
    }
    program.subprograms.sort_by_key(|s| s.start);
    let mut env = Environment::new(None);
    env.privileged = random.below(4) != 0;
    // A loop of a million steps at level 2 would give gigabytes.
    let loops = program.insns.iter().any(|i| {
        let jumps = i.class() == code::JMP || i.class() == code::JMP32;
        jumps && (i.off < 0 || i.src == code::PSEUDO_CALL)
    });
    env.log_level = if loops {
        4
    } else {
        random.of(&[0, 1, 2, 4, 7])
    };
    env.test_state_freq = random.below(4) == 0;
    env.strict_alignment = random.below(4) == 0;
    let verdict = verify(&program, &common::maps(), &env);
    assert!(verdict.stats.processed <= MAX_WALKED);
    verdict.result.is_ok()
}

#[test]
fn noise_is_refused() {
    let mut random = Random::of(1);
    for _ in 0..5_000 {
        let insns = noise(&mut random);
        run(&mut random, insns);
    }
}

#[test]
fn likely_programs_end() {
    let mut random = Random::of(2);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let insns = likely(&mut random);
        accepted += usize::from(run(&mut random, insns));
    }
    // Else the programs would all be refused before they are walked.
    assert!(accepted > 100, "{accepted} accepted");
}
