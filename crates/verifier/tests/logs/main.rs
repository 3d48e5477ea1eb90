//! Whole logs of small programs, as text.
//!
//! A file begins with the program's type and the log level, then comes the program, then,
//! behind a line `----`, its log. `BPFKIT_BLESS=1 cargo test` rewrites the logs; where Linux
//! 6.18 may be asked, its logs are compared too.

use std::fs;
use std::path::{Path, PathBuf};

use bpfkit_object::Program;
use bpfkit_oracle::{Kernel, LoadError, LoadOptions};
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, verify};

#[path = "../common/mod.rs"]
mod common;

const RULE: &str = "----\n";

struct Case {
    path: PathBuf,
    head: String,
    level: u32,
    program: Program,
    log: String,
}

fn cases() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
    let files = fs::read_dir(&dir).expect("the folder of this test");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "txt"));
    paths.sort();
    paths.into_iter().map(case).collect()
}

fn case(path: PathBuf) -> Case {
    let text = fs::read_to_string(&path).expect("a text");
    let (head, log) = text.split_once(RULE).unwrap_or((&text, ""));
    let option = |name: &str| {
        let mut lines = head.lines();
        let line = lines.find_map(|line| line.strip_prefix("; ")?.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{}: no `; {name}`", path.display()))
    };
    let prog_type = ProgType::from_name(option("type: ")).expect("a program type");
    let level = option("level: ").parse().expect("a log level");
    let code: Vec<&str> = head.lines().filter(|l| !l.starts_with(';')).collect();
    let insns = common::assemble(&code.join("\n"));
    Case {
        level,
        program: common::program(prog_type, insns),
        head: head.to_owned(),
        log: log.to_owned(),
        path,
    }
}

fn ours(case: &Case) -> String {
    let mut env = Environment::new(None);
    env.cpus = 2;
    env.log_level = case.level;
    verify(&case.program, &common::maps(), &env).log
}

#[test]
fn logs_are_as_written() {
    let bless = std::env::var_os("BPFKIT_BLESS").is_some();
    let cases = cases();
    assert!(!cases.is_empty());
    for case in &cases {
        let log = ours(case);
        if bless {
            fs::write(&case.path, format!("{}{RULE}{log}", case.head)).expect("a file to write");
        } else {
            assert_eq!(log, case.log, "{}", case.path.display());
        }
    }
}

/// Lines without times, map references without addresses.
fn comparable(log: &str) -> Vec<String> {
    let lines = log
        .lines()
        .filter(|line| !line.starts_with("verification time "));
    lines
        .map(|line| match line.split_once("(18) r") {
            Some((before, after)) => {
                let state = after.split_once(" ; ").map_or("", |(_, state)| state);
                format!("{before}(18) ; {state}")
            }
            None => line.to_owned(),
        })
        .collect()
}

#[test]
fn logs_are_the_kernels() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !release.starts_with("6.18.") {
        println!("skipped: this is Linux {}", release.trim());
        return;
    }
    let mut kernel = match Kernel::start() {
        Ok(kernel) => kernel,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let maps: Vec<_> = common::maps()
        .iter()
        .map(|def| kernel.create_map(def, None).expect("a map"))
        .collect();
    for case in cases() {
        let options = LoadOptions {
            log_level: case.level,
            ..LoadOptions::default()
        };
        let log = match kernel.load(&case.program, &maps, None, &options) {
            Ok((handle, log)) => {
                kernel.unload(handle);
                log
            }
            Err(LoadError::Refused { log, .. }) => log,
            Err(error) => panic!("{}: {error}", case.path.display()),
        };
        let path = case.path.display();
        assert_eq!(comparable(&ours(&case)), comparable(&log), "{path}");
    }
}
