//! Accepted programs do as the verifier says: registers and stack slots hold what it claims,
//! branches go the ways that it saw, and nothing faults.
#![no_main]

use std::sync::{Arc, Mutex};

use bpfkit_isa::{Syntax, disasm};
use bpfkit_runtime::{MapOptions, MapSet, raw_program};
use bpfkit_spec::ProgType;
use libfuzzer_sys::fuzz_target;

mod made;
#[path = "../../tests/programs/watch.rs"]
mod watch;

use made::accepted::{self, Contents, accepted};
use made::random::{Choose, likely};

fuzz_target!(|data: &[u8]| {
    let mut bytes = made::Bytes(data);
    let program = match bytes.below(4) {
        0 => {
            let mut program = raw_program("main", likely(&mut bytes));
            program.decl.prog_type = ProgType::SchedCls;
            program
        }
        _ => accepted(&mut bytes),
    };
    let defs = accepted::maps();
    let program = Arc::new(program);
    for facts in &watch::ways(&program, &defs, None) {
        let Ok(maps) = MapSet::new(&defs, &MapOptions::default()) else {
            continue;
        };
        let contents = Contents::of(&mut bytes);
        contents.put(&maps);
        let findings = Arc::new(Mutex::new(watch::Findings::default()));
        watch::watched_on(&program, facts, &maps, &contents.packet, &findings);
        let findings = findings.lock().unwrap();
        assert!(
            findings.wrong.is_empty(),
            "{}\n{}",
            findings.wrong.join("\n"),
            disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols)
        );
    }
});
