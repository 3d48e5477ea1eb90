//! Types and enumerators: whether they exist, match, and what they are.

use bpfkit_btf::core::ReloKind::{
    EnumvalExists, EnumvalValue, TypeExists, TypeIdLocal, TypeIdTarget, TypeMatches, TypeSize,
};
use bpfkit_btf::core::{CoreError, ReloKind};
use bpfkit_btf::{BtfBuilder, IntEncoding};

use crate::{FIRST, INT, LONG, PTR, UINT, m, resolve, types, value, with_struct};

#[test]
fn questions_about_types() {
    let local = || with_struct("s___mine", 4, &[]);
    let target = || {
        let mut b = types();
        b.union("s", 8, &[]);
        b.structure("s", 24, &[m("a", INT, 0)]);
        b
    };
    let ask = |kind| value(local(), target(), (FIRST, "0", kind));
    assert_eq!(ask(TypeExists), Some(1));
    assert_eq!(ask(TypeSize), Some(24));
    assert_eq!(ask(TypeIdTarget), Some(u64::from(FIRST) + 1));
    assert_eq!(ask(TypeIdLocal), Some(u64::from(FIRST)));
    let ask = |kind| value(local(), types(), (FIRST, "0", kind));
    for kind in [TypeExists, TypeMatches, TypeSize, TypeIdTarget] {
        assert_eq!(ask(kind), Some(0), "{kind:?}");
    }
    assert_eq!(ask(TypeIdLocal), Some(u64::from(FIRST)));
    // Ids in the instruction may be out of date.
    let id = resolve(local(), target(), (FIRST, "0", TypeIdTarget));
    assert!(id.is_ok_and(|r| !r.validate));
}

/// What the last type of one builder is to that of another, both named `t`.
fn type_answer(
    kind: ReloKind,
    local: impl FnOnce(&mut BtfBuilder) -> u32,
    target: impl FnOnce(&mut BtfBuilder) -> u32,
) -> Result<bool, CoreError> {
    let (mut l, mut t) = (types(), types());
    let of = local(&mut l);
    let id = l.typedef("t", of);
    let of = target(&mut t);
    t.typedef("t", of);
    resolve(l, t, (id, "0", kind)).map(|r| r.value == 1)
}

#[test]
fn types_exist_by_kind() {
    let compatible = |l: fn(&mut BtfBuilder) -> u32, t: fn(&mut BtfBuilder) -> u32| {
        type_answer(TypeExists, l, t)
    };
    assert_eq!(compatible(|_| INT, |_| LONG), Ok(true));
    assert_eq!(compatible(|_| INT, |_| PTR), Ok(false));
    assert_eq!(compatible(|_| PTR, |b| b.ptr(INT)), Ok(false));
    assert_eq!(compatible(|b| b.ptr(LONG), |b| b.ptr(INT)), Ok(true));
    assert_eq!(
        compatible(|b| b.structure("a", 4, &[]), |b| b.structure("b", 8, &[])),
        Ok(true)
    );
    assert_eq!(
        compatible(|b| b.structure("a", 4, &[]), |b| b.union("a", 4, &[])),
        Ok(false)
    );
    assert_eq!(
        compatible(
            |b| b.enumeration("a", 4, &[]),
            |b| b.enumeration64("b", 8, false, &[])
        ),
        Ok(true)
    );
    assert_eq!(
        compatible(|b| b.array(INT, INT, 1), |b| b.array(LONG, INT, 2)),
        Ok(true)
    );
    assert_eq!(
        compatible(|b| b.array(INT, INT, 1), |b| b.array(PTR, INT, 1)),
        Ok(false)
    );
    let call = |params: &'static [(&str, u32)]| move |b: &mut BtfBuilder| b.func_proto(INT, params);
    let same = type_answer(TypeExists, call(&[("a", INT)]), call(&[("b", LONG)]));
    assert_eq!(same, Ok(true));
    let fewer = type_answer(TypeExists, call(&[("a", INT)]), call(&[]));
    assert_eq!(fewer, Ok(false));
    let other = type_answer(TypeExists, call(&[("a", INT)]), call(&[("a", PTR)]));
    assert_eq!(other, Ok(false));
    let returns = type_answer(TypeExists, call(&[]), |b| b.func_proto(0, &[]));
    assert_eq!(returns, Ok(false));
    // FLOAT is not among the kinds that libbpf compares.
    assert_eq!(
        compatible(|b| b.float("f", 4), |b| b.float("f", 4)),
        Ok(false)
    );
}

#[test]
fn types_match_by_what_they_have() {
    let matches = |l: fn(&mut BtfBuilder) -> u32, t: fn(&mut BtfBuilder) -> u32| {
        type_answer(TypeMatches, l, t)
    };
    assert_eq!(matches(|_| INT, |_| INT), Ok(true));
    // Names count, then size and sign.
    assert_eq!(matches(|_| INT, |_| UINT), Ok(false));
    assert_eq!(
        matches(
            |b| b.int("x", 4, IntEncoding::NONE),
            |b| b.int("x", 4, IntEncoding::BOOL)
        ),
        Ok(true)
    );
    assert_eq!(
        matches(
            |b| b.int("x", 4, IntEncoding::NONE),
            |b| b.int("x", 4, IntEncoding::SIGNED)
        ),
        Ok(false)
    );
    assert_eq!(
        matches(
            |b| b.int("x", 4, IntEncoding::NONE),
            |b| b.int("x", 8, IntEncoding::NONE)
        ),
        Ok(false)
    );
    assert_eq!(
        matches(|b| b.array(INT, INT, 2), |b| b.array(INT, LONG, 2)),
        Ok(true)
    );
    assert_eq!(
        matches(|b| b.array(INT, INT, 2), |b| b.array(INT, INT, 3)),
        Ok(false)
    );
}

#[test]
fn structures_match_member_by_member() {
    let st = |members: &'static [(&str, u32)]| {
        move |b: &mut BtfBuilder| {
            let members: Vec<_> = members.iter().map(|&(n, t)| m(n, t, 0)).collect();
            b.structure("s", 16, &members)
        }
    };
    let whole: &[(&str, u32)] = &[("a", INT), ("b", PTR), ("c", LONG)];
    assert_eq!(
        type_answer(TypeMatches, st(&[("b", PTR)]), st(whole)),
        Ok(true)
    );
    assert_eq!(
        type_answer(TypeMatches, st(whole), st(&[("b", PTR)])),
        Ok(false)
    );
    assert_eq!(
        type_answer(TypeMatches, st(&[("d", INT)]), st(whole)),
        Ok(false)
    );
    assert_eq!(
        type_answer(TypeMatches, st(&[("a", LONG)]), st(whole)),
        Ok(false)
    );
    let union = |b: &mut BtfBuilder| b.union("s", 16, &[m("b", PTR, 0)]);
    assert_eq!(
        type_answer(TypeMatches, st(&[("b", PTR)]), union),
        Ok(false)
    );
}

#[test]
fn behind_a_pointer_the_name_is_enough() {
    let behind = |f: fn(&mut BtfBuilder) -> u32| {
        move |b: &mut BtfBuilder| {
            let to = f(b);
            b.ptr(to)
        }
    };
    let full: fn(&mut BtfBuilder) -> u32 = |b| b.structure("s", 4, &[m("x", INT, 0)]);
    let empty: fn(&mut BtfBuilder) -> u32 = |b| b.structure("s", 0, &[]);
    let declared: fn(&mut BtfBuilder) -> u32 = |b| b.fwd("s", false);
    let union: fn(&mut BtfBuilder) -> u32 = |b| b.union("s", 4, &[]);
    let other: fn(&mut BtfBuilder) -> u32 = |b| b.structure("t", 4, &[]);
    let ask = |l, t| type_answer(TypeMatches, behind(l), behind(t));
    assert_eq!(ask(full, empty), Ok(true));
    assert_eq!(ask(full, declared), Ok(true));
    assert_eq!(ask(declared, full), Ok(true));
    assert_eq!(ask(declared, union), Ok(false));
    assert_eq!(ask(full, other), Ok(false));
    // Not behind a pointer, a declaration is not a definition.
    assert_eq!(type_answer(TypeMatches, full, empty), Ok(false));
    assert_eq!(type_answer(TypeMatches, declared, full), Ok(false));
    assert_eq!(
        type_answer(TypeMatches, declared, |b| b.fwd("s", false)),
        Ok(true)
    );
    assert_eq!(
        type_answer(TypeMatches, declared, |b| b.fwd("s", true)),
        Ok(false)
    );
}

#[test]
fn enumerations_match_by_their_names() {
    let e = |size, values: &'static [(&str, i32)]| {
        move |b: &mut BtfBuilder| b.enumeration("e", size, values)
    };
    let ask = |l: &'static [(&str, i32)], size, t| type_answer(TypeMatches, e(4, l), e(size, t));
    assert_eq!(ask(&[("A", 1)], 4, &[("B", 1), ("A", 2)]), Ok(true));
    assert_eq!(ask(&[("A___x", 1)], 4, &[("A", 2)]), Ok(true));
    assert_eq!(ask(&[("A", 1)], 4, &[("B", 1)]), Ok(false));
    assert_eq!(ask(&[("A", 1)], 1, &[("A", 1)]), Ok(false));
    assert_eq!(ask(&[("A", 1), ("B", 2)], 4, &[("A", 1)]), Ok(false));
    let wide = |b: &mut BtfBuilder| b.enumeration64("e", 4, false, &[("A", 1)]);
    assert_eq!(type_answer(TypeMatches, e(4, &[("A", 1)]), wide), Ok(true));
}

#[test]
fn enumerators_are_found_by_name() {
    let local = || {
        let mut b = types();
        b.enumeration("e___mine", 4, &[("A", 1), ("B___x", 2)]);
        b
    };
    let target = |values: &[(&str, i32)]| {
        let mut b = types();
        b.enumeration("e", 4, values);
        b
    };
    let what = |kind| (FIRST, "1", kind);
    assert_eq!(
        value(local(), target(&[("B", 7)]), what(EnumvalValue)),
        Some(7)
    );
    assert_eq!(
        value(local(), target(&[("B", -7)]), what(EnumvalValue)),
        Some(-7i64 as u64)
    );
    assert_eq!(
        value(local(), target(&[("B", 7)]), what(EnumvalExists)),
        Some(1)
    );
    assert_eq!(
        value(local(), target(&[("C", 7)]), what(EnumvalValue)),
        None
    );
    assert_eq!(
        value(local(), target(&[("C", 7)]), what(EnumvalExists)),
        Some(0)
    );
    let mut wide = types();
    wide.enumeration64("e", 8, false, &[("B", 1 << 40)]);
    assert_eq!(value(local(), wide, what(EnumvalValue)), Some(1 << 40));
    assert!(resolve(local(), target(&[("B", 7)]), (FIRST, "2", EnumvalValue)).is_err());
    assert!(resolve(local(), target(&[("B", 7)]), (FIRST, "1:0", EnumvalValue)).is_err());
    assert!(resolve(local(), target(&[("B", 7)]), (INT, "0", EnumvalValue)).is_err());
}
