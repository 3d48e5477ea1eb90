//! The programs on every engine of this crate: checked and trusted, threaded and looping. `BPFKIT_BLESS=1` rewrites the expectations with what the
//! checked loop says.

use std::collections::HashSet;
use std::sync::Arc;

use bpfkit_isa::table::{self, Accepted, Form};
use bpfkit_object::Program;
use bpfkit_runtime::{
    Code, Engine, Interpreter, LoadOptions, MapSet, Outcome, RawMemory, Trusted, Vm, raw_program,
};

use crate::{assemble, parser};

/// What a run came to, as a row says it.
fn said(outcome: &Outcome) -> String {
    match &outcome.fault {
        None => format!("{:#x}", outcome.ret),
        Some(fault) => format!("fault: {}", fault.kind),
    }
}

fn agrees(said: &str, expected: &str) -> bool {
    match expected.strip_prefix("fault: ") {
        Some(part) => said.starts_with("fault: ") && said.contains(part),
        // Faults and load errors are given by a part of their text.
        None if expected.starts_with("load error: ") => said.starts_with(expected),
        None => said == expected,
    }
}

struct Engines(Vec<(&'static str, Interpreter, bool)>);

impl Engines {
    fn all() -> Self {
        let (threaded, looping) = (Interpreter::default(), Interpreter::looping());
        Self(vec![
            ("checked, loop", looping, false),
            ("checked", threaded, false),
            ("trusted, loop", looping, true),
            ("trusted", threaded, true),
        ])
    }
}

fn run(engine: &Interpreter, trusted: bool, program: &Arc<Program>, data: Option<&[u8]>) -> String {
    let program = Arc::clone(program);
    let code = match trusted {
        // SAFETY: the corpus is ours; programs that fault are run in checked mode only.
        true => Code::Trusted(unsafe { Trusted::assume(program) }),
        false => Code::Unverified(program),
    };
    let exec = match engine.load(code, &MapSet::empty(), &LoadOptions::default()) {
        Ok(exec) => exec,
        Err(error) => return format!("load error: {error}"),
    };
    let mut memory = RawMemory::new(data.unwrap_or_default());
    let mut vm = Vm::default();
    vm.step_limit = 60_000_000;
    said(&exec.run(&mut vm, &mut memory))
}

#[test]
fn every_engine_runs_the_corpus() {
    let bless = std::env::var_os("BPFKIT_BLESS").is_some();
    let engines = Engines::all().0;
    let (mut runs, mut failures) = (0, Vec::new());
    let mut seen = HashSet::new();
    for mut file in parser::files("run").unwrap() {
        let mut changed = Vec::new();
        let name = file
            .path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        for (c, case) in file.cases.iter().enumerate() {
            assert!(!case.rows.is_empty(), "{name}: {}: no rows", case.title);
            for (r, row) in case.rows.iter().enumerate() {
                let text = case.text(row);
                let insns = match assemble(&text) {
                    Ok(insns) => insns,
                    Err(error) => {
                        failures.push(format!("{name}: {}: {error}\n{text}", case.title));
                        break;
                    }
                };
                for at in 0..insns.len() {
                    if let Ok(row) = bpfkit_isa::row_of(&insns[at..]) {
                        seen.insert((row.code, row.form));
                    }
                }
                let program = Arc::new(raw_program(&case.title, insns));
                let faults = row.expected.starts_with("fault") || row.expected.starts_with("load");
                for (engine, interpreter, trusted) in &engines {
                    if *trusted && faults {
                        continue;
                    }
                    runs += 1;
                    let said = run(interpreter, *trusted, &program, row.data().as_deref());
                    if agrees(&said, &row.expected) {
                        continue;
                    }
                    if bless && !trusted {
                        changed.push((c, r, said));
                        break;
                    }
                    failures.push(format!(
                        "{name}: {}: {engine}: {said}, expected {}\n{text}",
                        case.title, row.expected
                    ));
                }
            }
        }
        if !changed.is_empty() {
            changed
                .into_iter()
                .for_each(|(c, r, said)| file.bless(c, r, &said));
            file.write().unwrap();
        }
    }
    println!("{runs} runs of {} instruction forms", seen.len());
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(runs > 5000, "only {runs} runs");
    // Every form that programs may hold has a case, but those that need more than a text.
    let elsewhere = |form: &Form| {
        use Form::*;
        matches!(
            form,
            AddrSpaceCast
                | CallKfunc
                | LoadMapFd
                | LoadMapFdValue
                | LoadBtfId
                | LoadMapIdx
                | LoadMapIdxValue
        )
    };
    let missing: Vec<_> = table::rows()
        .filter(|row| matches!(row.accepted, Accepted::Since(..)) && !elsewhere(&row.form))
        .filter(|row| !seen.contains(&(row.code, row.form)))
        .map(|row| row.meaning)
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}
