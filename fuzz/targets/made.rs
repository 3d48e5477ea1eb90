//! Programs out of the fuzzer's bytes.

use bpfkit_isa::Insn;
use bpfkit_object::{Program, raw_program};
use bpfkit_spec::ProgType;

#[path = "../../tests/programs/accepted.rs"]
#[allow(dead_code, reason = "each target takes what it needs")]
pub mod accepted;
#[path = "../../tests/programs/engines.rs"]
#[allow(dead_code, reason = "each target takes what it needs")]
pub mod engines;
#[path = "../../tests/programs/random.rs"]
#[allow(dead_code, reason = "each target takes what it needs")]
pub mod random;

use random::Choose;

/// Choices by a byte each; zero when the bytes are used up.
pub struct Bytes<'a>(pub &'a [u8]);

impl Choose for Bytes<'_> {
    fn next(&mut self) -> u64 {
        let (now, later) = self.0.split_at(self.0.len().min(8));
        self.0 = later;
        let mut word = [0; 8];
        word[..now.len()].copy_from_slice(now);
        u64::from_le_bytes(word)
    }

    fn below(&mut self, n: usize) -> usize {
        match self.0.split_first() {
            Some((&byte, later)) if n <= 256 => {
                self.0 = later;
                byte as usize % n
            }
            _ => (self.next() % n as u64) as usize,
        }
    }
}

const TYPES: [ProgType; 8] = [
    ProgType::SchedCls,
    ProgType::SocketFilter,
    ProgType::Xdp,
    ProgType::Kprobe,
    ProgType::CgroupSkb,
    ProgType::RawTracepoint,
    ProgType::PerfEvent,
    ProgType::Syscall,
];

/// A program of one of eight types.
#[allow(dead_code, reason = "each target takes what it needs")]
pub fn program(bytes: &mut Bytes<'_>, insns: Vec<Insn>) -> Program {
    let mut program = raw_program("main", insns);
    program.decl.prog_type = bytes.of(&TYPES);
    program.license = "GPL".to_owned();
    for _ in 0..bytes.below(3) {
        let mut sub = program.subprograms[0].clone();
        sub.start = bytes.below(program.insns.len() + 2) as u32;
        sub.global = bytes.below(2) == 0;
        program.subprograms.push(sub);
    }
    program.subprograms.sort_by_key(|s| s.start);
    program
}
