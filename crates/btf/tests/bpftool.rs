//! The printed forms against bpftool's own on the running kernel's types.

mod common;

use std::collections::HashMap;
use std::path::Path;

use bpfkit_btf::{Btf, dump};

/// Definitions of a C file: what stands between empty lines.
fn definitions(text: &str) -> Vec<&str> {
    text.split("\n\n").filter(|d| d.ends_with(';')).collect()
}

/// Kinds that the kernel's own types lack are in an object.
#[test]
fn every_kind_prints_as_with_bpftool() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/types.bpf.o");
    let Some(raw) = common::bpftool_dump(&path, "raw") else {
        return;
    };
    let Some(c) = common::bpftool_dump(&path, "c") else {
        return;
    };
    let object = std::fs::read(&path).expect("it is part of the sources");
    let elf = common::Elf::parse(&object).expect("an object");
    let btf = Btf::parse(elf.section(".BTF").expect("types")).expect("sound");
    assert_eq!(dump::raw(&btf), raw);
    let ours = dump::c_file(&btf).expect("has a C form");
    assert_eq!(definitions(&ours), definitions(&c));
}

#[test]
fn raw_lines_are_those_of_bpftool() {
    let Some(bytes) = common::vmlinux() else {
        return;
    };
    let path = Path::new("/sys/kernel/btf/vmlinux");
    let Some(theirs) = common::bpftool_dump(path, "raw") else {
        return;
    };
    let ours = dump::raw(&Btf::parse(&bytes).expect("the kernel's BTF is sound"));
    let different = ours.lines().zip(theirs.lines()).find(|(o, t)| o != t);
    assert_eq!(different, None);
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn c_definitions_are_those_of_bpftool() {
    let Some(bytes) = common::vmlinux() else {
        return;
    };
    let path = Path::new("/sys/kernel/btf/vmlinux");
    let Some(theirs) = common::bpftool_dump(path, "c") else {
        return;
    };
    let btf = Btf::parse(&bytes).expect("the kernel's BTF is sound");
    let ours = dump::c_file(&btf).expect("the kernel's types have a C form");

    // Versions before 7.2 leave out that an enumeration has one or eight bytes.
    let ours = match theirs.contains("__attribute__((mode(") {
        true => ours,
        false => ["byte", "word"].iter().fold(ours, |c, mode| {
            c.replace(&format!(" __attribute__((mode({mode})))"), "")
        }),
    };
    let ours = definitions(&ours);
    let theirs = definitions(&theirs);
    let mut count: HashMap<&str, i32> = HashMap::new();
    theirs
        .iter()
        .for_each(|d| *count.entry(d).or_default() += 1);
    ours.iter().for_each(|d| *count.entry(d).or_default() -= 1);
    let only: i32 = count.values().filter(|c| **c > 0).sum();
    let agreed = theirs.len() as i32 - only;
    println!(
        "{agreed} of {} definitions as bpftool prints them",
        theirs.len()
    );
    for (definition, count) in count.iter().filter(|c| *c.1 != 0).take(10) {
        println!("{count:+} {definition}");
    }
    // bpftool's later versions sort the definitions and so number equal names otherwise.
    assert!(
        agreed as usize * 100 >= theirs.len() * 99,
        "{agreed} of {}",
        theirs.len()
    );
}
