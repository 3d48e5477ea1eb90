//! Accepted programs do as the verifier says: registers hold what it claims, branches go the
//! ways that it saw, and nothing faults.
#![no_main]

use std::sync::{Arc, Mutex};

use bpfkit_isa::{Syntax, disasm};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{MapOptions, MapSet, raw_program};
use bpfkit_spec::ProgType;
use libfuzzer_sys::fuzz_target;

mod made;
#[path = "../../tests/programs/watch.rs"]
mod watch;

use made::random::{Choose, likely};

fuzz_target!(|data: &[u8]| {
    let mut bytes = made::Bytes(data);
    let packet: Vec<u8> = (0..64).map(|_| bytes.below(256) as u8).collect();
    let mut program = raw_program("main", likely(&mut bytes));
    program.decl.prog_type = ProgType::SchedCls;
    let defs = made::maps();
    let program = Arc::new(program);
    for facts in &watch::ways(&program, &defs, None) {
        let Ok(maps) = MapSet::new(&defs, &MapOptions::default()) else { continue };
        let Ok(mut input) = Input::packet(ProgType::SchedCls, &packet) else { continue };
        let findings = Arc::new(Mutex::new(watch::Findings::default()));
        let outcome = watch::watched(&program, facts, &defs, &maps, &mut input, &findings);
        let Some(outcome) = outcome else { continue };
        let unsound = watch::is_unsound(&outcome, &program, facts);
        let mut findings = findings.lock().unwrap();
        findings.wrong.extend(unsound);
        assert!(
            findings.wrong.is_empty(),
            "{}\n{}",
            findings.wrong.join("\n"),
            disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols)
        );
    }
});
