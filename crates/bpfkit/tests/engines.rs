//! The kernel's `verifier_*` selftests come to the same on every engine of this process, with
//! checks and, where the verifier accepts them, without.
//!
//! The objects are looked for in `target/kernel-selftests` (or `BPFKIT_SELFTESTS`); without
//! them the test is skipped.

use std::fs;
use std::path::{Path, PathBuf};

use bpfkit::jit::{Arch, CodeMemory, Features, Jit, Rules};
use bpfkit::runtime::context::Input;
use bpfkit::runtime::{Engine, Interpreter};
use bpfkit::{Checks, Object, Session, SessionOptions, Target, Vm};
use bpfkit_btf::Btf;

fn corpus() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::env::var_os("BPFKIT_SELFTESTS")
        .map_or(root.join("target/kernel-selftests"), PathBuf::from);
    path.is_dir().then_some(path)
}

/// What a program comes to, and how many steps it took where they are counted; or why it does
/// not run.
fn run(
    object: &Object,
    program: &str,
    target: Target<'_>,
    engine: Box<dyn Engine>,
    checks: Checks,
) -> Result<(u64, Option<String>, u64), String> {
    let prog_type = object.programs[object.program_index(program).unwrap()].prog_type;
    let options = SessionOptions {
        target,
        engine,
        checks,
        ..SessionOptions::default()
    };
    let session = Session::with(object.clone(), options).map_err(|e| e.to_string())?;
    let executable = session.load(program).map_err(|e| e.to_string())?;
    let mut input = Input::default_for(prog_type).map_err(|e| e.to_string())?;
    let mut vm = Vm::default();
    vm.step_limit = 1 << 25;
    let outcome = executable.run(&mut vm, &mut input);
    let fault = outcome.fault.map(|fault| fault.to_string());
    Ok((outcome.ret, fault, outcome.steps))
}

/// A result without what may differ: addresses, and where exactly the steps are used up, which
/// compiled code counts by stretches.
fn alike((ret, fault, steps): &(u64, Option<String>, u64)) -> (u64, String, u64) {
    let fault = fault.as_deref().unwrap_or_default();
    if let Some((limit, _)) = fault.split_once(" executed at ") {
        return (0, limit.to_owned(), 0);
    }
    let cut = |word: &str| match word.starts_with("0x") {
        true => "address".to_owned(),
        false => word.to_owned(),
    };
    let words: Vec<String> = fault.split(' ').map(cut).collect();
    // What a program returns of a pointer.
    let pointer = (1 << 44..1 << 48).contains(ret);
    (if pointer { 0 } else { *ret }, words.join(" "), *steps)
}

fn jit(rules: Rules) -> Box<dyn Engine> {
    Box::new(Jit::new(CodeMemory::new(), rules, Features::ALL))
}

#[test]
fn engines_agree_on_the_selftests() {
    let Some(corpus) = corpus() else {
        println!("skipped: no kernel selftests in target/kernel-selftests");
        return;
    };
    if Arch::HOST.is_none() {
        println!("skipped: no compiler for this machine");
        return;
    }
    let btf = fs::read("/sys/kernel/btf/vmlinux").ok();
    let btf = btf.and_then(|bytes| Btf::parse(&bytes).ok());
    let target = Target {
        kernel_btf: btf.as_ref().into(),
        ..Target::default()
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let (mut ran, mut accepted, mut differ) = (0, 0, Vec::new());
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("verifier_") || !name.ends_with(".bpf.o") {
            continue;
        }
        let Ok(object) = Object::open(&name, &fs::read(&path).unwrap()) else {
            continue;
        };
        for decl in &object.programs {
            let try_on = |engine, checks| run(&object, &decl.name, target.clone(), engine, checks);
            let interpreter = || Box::<Interpreter>::default();
            let checked = try_on(interpreter(), Checks::AsItRuns);
            // A program that returns an address, or reads one, does so anew each time.
            let Ok(expected) = &checked else { continue };
            if try_on(interpreter(), Checks::AsItRuns) != checked {
                continue;
            }
            ran += 1;
            let mut compare = |engine: &str, got: Result<(u64, Option<String>, u64), String>| {
                if got.as_ref().map(alike) != Ok(alike(expected)) {
                    differ.push(format!(
                        "{name} {}: {engine}: {got:?}, not {expected:?}",
                        decl.name
                    ));
                }
            };
            compare(
                "jit, checked",
                try_on(jit(Rules::default()), Checks::AsItRuns),
            );
            let verified = try_on(interpreter(), Checks::Verified);
            if verified.is_err() || expected.1.is_some() {
                continue;
            }
            accepted += 1;
            // Without checks the compiler counts no steps.
            for (engine, rules) in [("jit", Rules::default()), ("jit, no rules", Rules::NONE)] {
                let got = try_on(jit(rules), Checks::Verified);
                compare(engine, got.map(|(ret, fault, _)| (ret, fault, expected.2)));
            }
        }
    }
    println!(
        "{ran} programs, {accepted} accepted, {} differ",
        differ.len()
    );
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(accepted > 500, "only {accepted} accepted programs");
}
