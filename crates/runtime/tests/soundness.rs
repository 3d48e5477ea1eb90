//! Accepted programs run in the interpreter while every register is compared with what the
//! verifier says of it at that instruction, branches with the ways that they may go, keys of
//! calls with the bytes passed; and none faults.
//!
//! Each program is verified twice: as the kernel does, where states stand for others whose
//! numbers did not matter, and with exact numbers, where every number that the verifier saw
//! is a claim.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bpfkit_btf::Btf;
use bpfkit_isa::{Insn, Syntax, disasm};
use bpfkit_object::{Linker, Object, Target};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{MapOptions, MapSet, RawMemory, raw_program};
use bpfkit_spec::ProgType;

#[path = "../../../tests/filetests/parser.rs"]
#[allow(dead_code, reason = "expectations belong to other tests")]
mod parser;
#[path = "../../../tests/programs/random.rs"]
#[allow(dead_code, reason = "noise is never accepted")]
mod random;
#[path = "../../../tests/programs/watch.rs"]
mod watch;

use random::Choose;
use watch::{Findings, is_unsound, watched, ways};

fn report(findings: &Mutex<Findings>, programs: usize, runs: usize) {
    let findings = findings.lock().unwrap();
    let (values, narrow) = (findings.values, findings.narrow);
    println!(
        "{programs} programs, {runs} runs, {values} values compared, {narrow} of them numbers"
    );
    assert!(findings.wrong.is_empty(), "{}", findings.wrong.join("\n"));
}

#[test]
fn random_programs_do_as_the_verifier_says() {
    let mut random = random::Random(0x5eed_0f50_00d5_eed1);
    let findings = Arc::new(Mutex::new(Findings::default()));
    let (mut accepted, mut runs) = (0, 0);
    for _ in 0..8_000 {
        let mut program = raw_program("main", random::likely(&mut random));
        program.decl.prog_type = ProgType::SchedCls;
        let facts = ways(&program, &[], None);
        accepted += usize::from(!facts.is_empty());
        let program = Arc::new(program);
        for facts in &facts {
            for _ in 0..3 {
                let packet: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
                let mut input = Input::packet(ProgType::SchedCls, &packet).unwrap();
                let maps = MapSet::empty();
                let before = findings.lock().unwrap().wrong.len();
                let outcome = watched(&program, facts, &[], &maps, &mut input, &findings);
                let Some(outcome) = outcome else { continue };
                runs += 1;
                let unsound = is_unsound(&outcome, &program, facts);
                let mut findings = findings.lock().unwrap();
                findings.wrong.extend(unsound);
                if findings.wrong.len() > before {
                    let text = listing(&program.insns);
                    findings.wrong.push(text);
                }
            }
        }
    }
    assert!(accepted > 50, "{accepted} accepted");
    report(&findings, accepted, runs);
}

fn listing(insns: &[Insn]) -> String {
    disasm::listing(insns, Syntax::Kernel, &disasm::NoSymbols).to_string()
}

#[test]
fn filetests_do_as_the_verifier_says() {
    let findings = Arc::new(Mutex::new(Findings::default()));
    let (mut accepted, mut runs) = (0, 0);
    for file in parser::files("run").unwrap() {
        for case in &file.cases {
            for row in case.rows.iter().filter(|row| row.data().is_none()) {
                let Ok(assembled) = bpfkit_isa::asm::assemble(&case.text(row)) else {
                    continue;
                };
                let mut program = raw_program(&case.title, assembled.insns);
                program.decl.prog_type = ProgType::SocketFilter;
                let facts = ways(&program, &[], None);
                accepted += usize::from(!facts.is_empty());
                let program = Arc::new(program);
                for facts in &facts {
                    let mut memory = RawMemory::default();
                    let maps = MapSet::empty();
                    let outcome = watched(&program, facts, &[], &maps, &mut memory, &findings);
                    let Some(outcome) = outcome else { continue };
                    runs += 1;
                    let unsound = is_unsound(&outcome, &program, facts);
                    findings.lock().unwrap().wrong.extend(unsound);
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted} accepted");
    report(&findings, accepted, runs);
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
    let mut random = random::Random(0x0b5e_55ed_ca5e_d001);
    let findings = Arc::new(Mutex::new(Findings::default()));
    let (mut accepted, mut runs) = (0, 0);
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
            kernel_btf: kernel.as_ref(),
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
            accepted += usize::from(!facts.is_empty());
            let program = Arc::new(program);
            for facts in &facts {
                let Ok(maps) = MapSet::new(&defs, &MapOptions::default()) else {
                    continue;
                };
                for size in [64, 200] {
                    let packet: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                    let Ok(mut input) = Input::packet(program.decl.prog_type, &packet) else {
                        continue;
                    };
                    let before = findings.lock().unwrap().wrong.len();
                    let outcome = watched(&program, facts, &defs, &maps, &mut input, &findings);
                    let Some(outcome) = outcome else { continue };
                    runs += 1;
                    let unsound = is_unsound(&outcome, &program, facts);
                    let mut findings = findings.lock().unwrap();
                    findings.wrong.extend(unsound);
                    if findings.wrong.len() > before {
                        let text = format!("  in {name}/{}", program.decl.name);
                        findings.wrong.push(text);
                    }
                }
            }
        }
    }
    report(&findings, accepted, runs);
}

/// `BPFKIT_ALL=1` looks at every object of the corpus.
fn stride() -> usize {
    match std::env::var_os("BPFKIT_ALL") {
        Some(_) => 1,
        None => 3,
    }
}
