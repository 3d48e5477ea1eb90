//! Objects written back.

mod common;

use bpfkit_isa::{Insn, code};
use bpfkit_object::{ErrorKind, Linker, Object, Program, RefTarget, Target};
use common::{OBJECTS, bytes, open};

/// Every program of an object, linked without a target.
fn linked(object: &Object) -> Vec<Program> {
    let target = Target {
        kconfig: Some("CONFIG_NUMBER=1\n"),
        ..Target::default()
    };
    let mut linker = Linker::new(object, &target);
    (0..object.programs.len())
        .map(|i| {
            linker
                .link(i)
                .unwrap_or_else(|e| panic!("{}: {e}", object.name))
        })
        .collect()
}

/// What a program's references say, whatever their subprograms are called now.
fn references(program: &Program) -> Vec<(u32, RefTarget)> {
    program
        .refs
        .iter()
        .map(|r| (r.insn, r.target.clone()))
        .collect()
}

#[test]
fn the_same_programs_give_an_object_that_links_the_same() {
    for name in OBJECTS.iter().filter(|name| **name != "beside") {
        let object = open(name);
        let before = linked(&object);
        let written = object
            .write(&before)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = Object::open(&format!("{name}.bpf.o"), &written)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(again.programs.len(), object.programs.len());
        for (a, b) in object.maps.iter().zip(&again.maps) {
            assert_eq!(
                (&a.name, &a.origin, &a.slots),
                (&b.name, &b.origin, &b.slots),
                "{name}"
            );
        }
        for (a, b) in before.iter().zip(linked(&again)) {
            // The exception callback goes on calling the original functions.
            if a.exception_callback.is_some() {
                assert!(b.exception_callback.is_some());
                continue;
            }
            assert_eq!(a.insns, b.insns, "{name}: {}", a.decl.name);
            assert_eq!(references(a), references(&b), "{name}: {}", a.decl.name);
            assert_eq!(a.lines.len(), b.lines.len());
            for (l, m) in a.lines.iter().zip(&b.lines) {
                assert_eq!(
                    (l.insn, l.line, l.column, &l.text),
                    (m.insn, m.line, m.column, &m.text)
                );
            }
            let types = |p: &Program| -> Vec<_> {
                p.subprograms
                    .iter()
                    .map(|s| (s.start, s.type_id, s.global))
                    .collect()
            };
            assert_eq!(types(a), types(&b));
        }
    }
}

#[test]
fn one_program_is_replaced_and_the_others_stay() {
    let object = open("functions");
    let before = linked(&object);
    let mut first = before[0].clone();
    // Two more instructions at its beginning.
    let nop = Insn {
        code: code::ALU64 | code::MOV | code::K,
        dst: 0,
        imm: 7,
        ..Insn::default()
    };
    first.insns.splice(0..0, [nop, nop]);
    first
        .subprograms
        .iter_mut()
        .skip(1)
        .for_each(|s| s.start += 2);
    first.refs.iter_mut().for_each(|r| r.insn += 2);
    first.lines.iter_mut().for_each(|l| l.insn += 2);
    let written = object.write(std::slice::from_ref(&first)).expect("writes");
    let again = Object::open("functions.bpf.o", &written).expect("opens");
    let after = linked(&again);
    assert_eq!(after[0].insns, first.insns);
    assert_eq!(after[0].decl.own_insns, first.decl.own_insns + 2);
    assert_eq!(after[0].subprograms[1].name, "middle.first");
    for (a, b) in before.iter().zip(&after).skip(1) {
        assert_eq!(a.insns, b.insns);
        assert_eq!(a.subprograms, b.subprograms);
    }
}

#[test]
fn references_without_a_name_are_refused() {
    let object = open("functions");
    let mut first = object.link("first", &Target::default()).expect("links");
    first.refs.clear();
    let e = object.write(&[first]).expect_err("calls without names");
    assert_eq!(e.kind(), ErrorKind::Relocation);
    assert!(
        e.message()
            .ends_with("refers to something that has no name"),
        "{e}"
    );
    let object = open("beside");
    let entry = object.link("entry", &Target::default()).expect("links");
    let e = object.write(&[entry]).expect_err("static functions");
    assert_eq!(e.message(), "section 'tc' holds static functions");
}

#[test]
fn nothing_replaced_is_nothing_changed_but_places() {
    for name in OBJECTS {
        let original = open(name);
        let written = original.write(&[]).expect("writes");
        let again = Object::open(&format!("{name}.bpf.o"), &written).expect("opens");
        assert!(written.len() < bytes(name).len() + 256);
        assert_eq!(original.globals.len(), again.globals.len());
        for (a, b) in linked(&original).iter().zip(&linked(&again)) {
            assert_eq!((&a.insns, &a.refs), (&b.insns, &b.refs));
        }
    }
}
