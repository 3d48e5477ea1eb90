//! The invariants that ARCHITECTURE.md states, held to.

use std::fs;
use std::path::{Path, PathBuf};

/// Every crate with the crates of ours that it may depend on, as ARCHITECTURE.md lists them.
const ARROWS: &[(&str, &[&str])] = &[
    ("isa", &[]),
    ("btf", &[]),
    ("spec", &["isa", "btf"]),
    ("object", &["isa", "btf", "spec"]),
    ("classic", &["isa"]),
    ("pcap", &["classic"]),
    ("verifier", &["isa", "btf", "object", "spec"]),
    ("maps", &["spec"]),
    (
        "runtime",
        &["isa", "btf", "object", "spec", "maps", "verifier"],
    ),
    ("jit", &["isa", "spec", "object", "maps", "runtime"]),
    ("oracle", &["isa", "object", "spec"]),
];

/// Crates that may hold unsafe code.
const MAY_BE_UNSAFE: &[&str] = &["maps", "runtime", "jit", "oracle", "pcap"];

/// Crates that may read files, environment, clock or kernel.
const MAY_READ_THE_MACHINE: &[&str] = &["bpfkit", "oracle"];

/// What reading the machine looks like in source.
const MACHINE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "File::open",
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/")
        .to_owned()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(crates())
        .expect("crates/")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    names
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn arrows_go_one_way() {
    let mut seen = 0;
    for name in names() {
        let Some((_, allowed)) = ARROWS.iter().find(|(listed, _)| *listed == name) else {
            assert_eq!(name, "bpfkit", "crate {name} is in no row of ARROWS");
            continue;
        };
        seen += 1;
        let manifest =
            fs::read_to_string(crates().join(&name).join("Cargo.toml")).expect("manifest");
        let (_, rest) = manifest.split_once("[dependencies]").expect("dependencies");
        let dependencies = rest.split("\n[").next().expect("a section");
        for line in dependencies.lines() {
            let Some(dependency) = line.strip_prefix("bpfkit-") else {
                continue;
            };
            let dependency = dependency.split(['.', ' ']).next().expect("a name");
            assert!(
                allowed.contains(&dependency),
                "{name} must not depend on {dependency}"
            );
        }
    }
    assert_eq!(seen, ARROWS.len());
}

#[test]
fn unsafe_code_only_where_it_belongs() {
    for name in names() {
        if MAY_BE_UNSAFE.contains(&name.as_str()) {
            continue;
        }
        let root = fs::read_to_string(crates().join(&name).join("src/lib.rs")).expect("lib.rs");
        assert!(
            root.contains("#![forbid(unsafe_code)]"),
            "crate {name} does not forbid unsafe code"
        );
    }
}

#[test]
fn only_the_program_and_the_oracle_read_the_machine() {
    for name in names() {
        if MAY_READ_THE_MACHINE.contains(&name.as_str()) {
            continue;
        }
        let mut files = Vec::new();
        sources(&crates().join(&name).join("src"), &mut files);
        // Files of unit tests are no product code.
        files.retain(|path| {
            !path
                .iter()
                .any(|part| part == "tests" || part == "tests.rs")
        });
        for path in files {
            let text = fs::read_to_string(&path).expect("a source file");
            let product = text
                .split("#[cfg(test)]")
                .next()
                .expect("the part before tests");
            for what in MACHINE {
                let code = product
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                for line in code {
                    assert!(
                        !line.contains(what),
                        "{} uses {what}: {line}",
                        path.display()
                    );
                }
            }
        }
    }
}

#[test]
fn the_docs_name_every_rule_of_the_compiler() {
    let docs = fs::read_to_string(crates().join("../docs/jit.md")).unwrap();
    for rule in bpfkit::jit::Rule::all() {
        let row = format!("| `{}` |", rule.name());
        assert!(docs.contains(&row), "docs/jit.md has no row for {row}");
    }
}
