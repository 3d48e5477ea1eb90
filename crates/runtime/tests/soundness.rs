//! Accepted programs run in the interpreter while every register and every stack slot is
//! compared with what the verifier says of it at that instruction, branches with the ways that
//! they may go, keys of calls with the bytes passed; and none faults.
//!
//! Each program is verified twice: as the kernel does, where states stand for others whose
//! numbers did not matter, and with exact numbers, where every number that the verifier saw
//! is a claim.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bpfkit_btf::Btf;
use bpfkit_isa::{Syntax, disasm};
use bpfkit_object::{Linker, Object, Program, Target};
use bpfkit_runtime::{MapOptions, MapSet, RawMemory, raw_program};
use bpfkit_spec::ProgType;

#[path = "../../../tests/programs/accepted.rs"]
mod accepted;
#[path = "../../../tests/filetests/parser.rs"]
#[allow(dead_code, reason = "expectations belong to other tests")]
mod parser;
#[path = "../../../tests/programs/random.rs"]
#[allow(dead_code, reason = "noise is never accepted")]
mod random;
#[path = "../../../tests/programs/watch.rs"]
mod watch;

use accepted::{Contents, accepted};
use random::{Choose, Random};
use watch::{Findings, watched, watched_on, ways};

/// How much was looked at.
#[derive(Default)]
struct Tally {
    findings: Arc<Mutex<Findings>>,
    programs: usize,
    accepted: usize,
    runs: usize,
}

impl Tally {
    /// Counts a run, and says where it contradicted the verifier.
    fn ran(&mut self, ran: bool, place: impl FnOnce() -> String) {
        self.runs += usize::from(ran);
        let wrong = &self.findings.lock().unwrap().wrong;
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), place());
    }

    fn report(&self) {
        let findings = self.findings.lock().unwrap();
        println!(
            "{} programs, {} accepted, {} runs; compared {} values, {} of them numbers, {} in slots",
            self.programs,
            self.accepted,
            self.runs,
            findings.values,
            findings.narrow,
            findings.slots
        );
    }
}

fn listing(program: &Program) -> String {
    disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols).to_string()
}

/// A number from the environment: `BPFKIT_SEED` is the first program's, `BPFKIT_PROGRAMS` how
/// many programs of each generator are looked at.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Looks at programs of one generator: each is run on several inputs.
fn look_at(count: u64, make: impl Fn(&mut Random) -> Program) -> Tally {
    let mut tally = Tally::default();
    let defs = accepted::maps();
    let first = setting("BPFKIT_SEED").unwrap_or(0);
    for seed in first..first + setting("BPFKIT_PROGRAMS").unwrap_or(count) {
        let mut random = Random::of(seed);
        let program = Arc::new(make(&mut random));
        let facts = ways(&program, &defs, None);
        tally.programs += 1;
        tally.accepted += usize::from(!facts.is_empty());
        for facts in &facts {
            for _ in 0..3 {
                let maps = MapSet::new(&defs, &MapOptions::default()).unwrap();
                let contents = Contents::of(&mut random);
                contents.put(&maps);
                let packet = &contents.packet;
                let outcome = watched_on(&program, facts, &maps, packet, &tally.findings);
                let place = || format!("program {seed} (BPFKIT_SEED):\n{}", listing(&program));
                tally.ran(outcome.is_some(), place);
            }
        }
    }
    tally.report();
    tally
}

#[test]
fn random_programs_do_as_the_verifier_says() {
    let tally = look_at(4_000, |random| {
        let mut program = raw_program("main", random::likely(random));
        program.decl.prog_type = ProgType::SchedCls;
        program
    });
    assert!(tally.accepted > 20, "{} accepted", tally.accepted);
}

#[test]
fn programs_that_know_much_do_as_the_verifier_says() {
    let tally = look_at(3_000, accepted);
    assert!(
        tally.accepted * 2 > tally.programs,
        "{} accepted",
        tally.accepted
    );
}

#[test]
fn filetests_do_as_the_verifier_says() {
    let mut tally = Tally::default();
    for file in parser::files("run").unwrap() {
        for case in &file.cases {
            for row in case.rows.iter().filter(|row| row.data().is_none()) {
                let Ok(assembled) = bpfkit_isa::asm::assemble(&case.text(row)) else {
                    continue;
                };
                let mut program = raw_program(&case.title, assembled.insns);
                program.decl.prog_type = ProgType::SocketFilter;
                let facts = ways(&program, &[], None);
                tally.programs += 1;
                tally.accepted += usize::from(!facts.is_empty());
                let program = Arc::new(program);
                for facts in &facts {
                    let mut memory = RawMemory::default();
                    let findings = &tally.findings;
                    let maps = MapSet::empty();
                    let outcome = watched(&program, facts, &maps, &mut memory, None, findings);
                    tally.ran(outcome.is_some(), || case.title.clone());
                }
            }
        }
    }
    tally.report();
    assert!(tally.accepted > 100, "{} accepted", tally.accepted);
}

/// Program types that run on packets.
const PACKETS: [ProgType; 4] = [
    ProgType::Xdp,
    ProgType::SchedCls,
    ProgType::CgroupSkb,
    ProgType::SocketFilter,
];

#[test]
fn selftests_do_as_the_verifier_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-selftests");
    let Ok(entries) = std::fs::read_dir(folder) else {
        println!("skipped: no target/kernel-selftests");
        return;
    };
    let kernel = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let kernel = kernel.and_then(|bytes| Btf::parse(&bytes).ok());
    let mut paths: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    let mut random = Random::of(1);
    let mut tally = Tally::default();
    // Every third: with all of them this test takes too long for every day.
    for path in paths.iter().step_by(stride()) {
        let Ok(bytes) = std::fs::read(path) else {
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(object) = Object::open(&name, &bytes) else {
            continue;
        };
        let target = Target {
            kernel_btf: kernel.as_ref().into(),
            ..Target::default()
        };
        let mut linker = Linker::new(&object, &target);
        for index in 0..object.programs.len() {
            let decl = &object.programs[index];
            if !PACKETS.contains(&decl.prog_type) || decl.own_insns > 2_000 {
                continue;
            }
            let Ok(program) = linker.link(index) else {
                continue;
            };
            let defs = linker.maps();
            let facts = ways(&program, &defs, kernel.as_ref());
            tally.programs += 1;
            tally.accepted += usize::from(!facts.is_empty());
            let program = Arc::new(program);
            for facts in &facts {
                let Ok(maps) = MapSet::new(&defs, &MapOptions::default()) else {
                    continue;
                };
                for size in [64, 200] {
                    let packet: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                    let outcome = watched_on(&program, facts, &maps, &packet, &tally.findings);
                    tally.ran(outcome.is_some(), || {
                        format!("{name}/{}", program.decl.name)
                    });
                }
            }
        }
    }
    tally.report();
}

/// `BPFKIT_ALL=1` looks at every object of the corpus.
fn stride() -> usize {
    match std::env::var_os("BPFKIT_ALL") {
        Some(_) => 1,
        None => 3,
    }
}
