//! Fields: where they are, what they are, which ones fit.

use bpfkit_btf::core::CoreError;
use bpfkit_btf::core::ReloKind::{
    FieldByteOffset, FieldByteSize, FieldExists, FieldLshiftU64, FieldRshiftU64, FieldSigned,
};
use bpfkit_btf::{Btf, BtfBuilder, Kind, MemberDef};

use crate::{
    FIRST, INT, LONG, PTR, UINT, copy_of, m, resolve, resolve_in, s, types, value, with_struct,
};

#[test]
fn a_field_is_found_where_it_moved_to() {
    let local = || s(&[m("a", INT, 0), m("b", INT, 32)]);
    let target = || s(&[m("b", INT, 64), m("a", INT, 96)]);
    assert_eq!(
        value(local(), target(), (FIRST, "0:0", FieldByteOffset)),
        Some(12)
    );
    assert_eq!(
        value(local(), target(), (FIRST, "0:1", FieldByteOffset)),
        Some(8)
    );
    assert_eq!(
        value(local(), target(), (FIRST, "0:1", FieldByteSize)),
        Some(4)
    );
    assert_eq!(
        value(local(), target(), (FIRST, "0:1", FieldExists)),
        Some(1)
    );
}

#[test]
fn a_missing_field_is_poison_except_to_the_question() {
    let local = || s(&[m("a", INT, 0)]);
    let target = || s(&[m("b", INT, 0)]);
    for kind in [
        FieldByteOffset,
        FieldByteSize,
        FieldSigned,
        FieldLshiftU64,
        FieldRshiftU64,
    ] {
        assert_eq!(
            value(local(), target(), (FIRST, "0:0", kind)),
            None,
            "{kind:?}"
        );
    }
    assert_eq!(
        value(local(), target(), (FIRST, "0:0", FieldExists)),
        Some(0)
    );
    // Nor does it matter why it is not there.
    assert_eq!(
        value(local(), types(), (FIRST, "0:0", FieldByteOffset)),
        None
    );
    assert_eq!(
        value(local(), types(), (FIRST, "0:0", FieldExists)),
        Some(0)
    );
}

#[test]
fn flavours_do_not_count() {
    let local = || with_struct("s___old", 4, &[m("a", INT, 0)]);
    let target = |name| with_struct(name, 8, &[m("a", INT, 32)]);
    let what = (FIRST, "0:0", FieldByteOffset);
    assert_eq!(value(local(), target("s"), what), Some(4));
    assert_eq!(value(local(), target("s___new"), what), Some(4));
    assert_eq!(value(local(), target("s_old"), what), None);
    assert_eq!(value(local(), target("s____old"), what), None);
}

#[test]
fn anonymous_members_are_looked_through() {
    let local = || s(&[m("a", INT, 0)]);
    let nested = |name| {
        let mut b = types();
        let inner = b.union("", 8, &[m("x", LONG, 0), m(name, INT, 32)]);
        b.structure("s", 16, &[m("y", INT, 0), m("", inner, 64)]);
        b
    };
    assert_eq!(
        value(local(), nested("a"), (FIRST, "0:0", FieldByteOffset)),
        Some(12)
    );
    assert_eq!(
        value(local(), nested("b"), (FIRST, "0:0", FieldByteOffset)),
        None
    );
    // The local side may be nested as well; only the name counts.
    let mut local = types();
    let inner = local.structure("", 4, &[m("a", INT, 0)]);
    let outer = local.structure("s", 4, &[m("", inner, 0)]);
    assert_eq!(
        value(
            local,
            s(&[m("a", INT, 64)]),
            (outer, "0:0:0", FieldByteOffset)
        ),
        Some(8)
    );
}

#[test]
fn a_named_member_is_entered_by_name_only() {
    let nested = |name| {
        let mut b = types();
        let inner = b.structure("inner", 8, &[m("x", INT, 0), m("y", INT, 32)]);
        b.structure("s", 16, &[m("z", INT, 0), m(name, inner, 64)]);
        b
    };
    let what = (FIRST + 1, "0:1:1", FieldByteOffset);
    assert_eq!(value(nested("in"), nested("in"), what), Some(12));
    assert_eq!(value(nested("in"), nested("other"), what), None);
}

#[test]
fn array_elements_lie_inside_the_array() {
    let array = |count: u32| {
        let mut b = types();
        let array = b.array(LONG, INT, count);
        b.structure(
            "s",
            8 * count,
            &[m("before", INT, 0), m("a", array, 64), m("after", INT, 32)],
        );
        b
    };
    let what = (FIRST + 1, "0:1:3", FieldByteOffset);
    assert_eq!(value(array(4), array(5), what), Some(32));
    assert_eq!(value(array(4), array(3), what), None);
    let outside = resolve(array(3), array(4), what);
    assert!(
        matches!(outside, Err(CoreError::Spec { errno: -22, .. })),
        "{outside:?}"
    );
    // No elements at all, and not the last member.
    assert_eq!(value(array(4), array(0), what), None);
    assert!(resolve(array(0), array(4), what).is_err());
}

#[test]
fn a_flexible_array_has_any_element() {
    let array = |count: u32| {
        let mut b = types();
        let array = b.array(LONG, INT, count);
        b.structure("s", 8, &[m("before", INT, 0), m("a", array, 64)]);
        b
    };
    let what = (FIRST + 1, "0:1:3", FieldByteOffset);
    assert_eq!(value(array(4), array(0), what), Some(32));
    assert_eq!(value(array(0), array(4), what), Some(32));
    assert_eq!(value(array(0), array(3), what), None);
}

#[test]
fn a_pointer_may_be_used_as_an_array() {
    let sized = |size| with_struct("s", size, &[m("a", INT, 32)]);
    assert_eq!(
        value(sized(8), sized(24), (FIRST, "2:0", FieldByteOffset)),
        Some(52)
    );
    assert_eq!(
        value(sized(8), sized(24), (FIRST, "2", FieldByteOffset)),
        Some(48)
    );
    assert_eq!(
        value(sized(8), sized(24), (FIRST, "2", FieldByteSize)),
        Some(24)
    );
    let wrong = resolve(sized(8), sized(24), (FIRST, "2", FieldSigned));
    assert_eq!(wrong, Err(CoreError::ArrayAccess { kind: 3, insn: 1 }));
}

/// Whether a field of one type is taken for a field of another.
fn fields_fit(
    local: impl FnOnce(&mut BtfBuilder) -> u32,
    target: impl FnOnce(&mut BtfBuilder) -> u32,
) -> bool {
    let build = |f: Box<dyn FnOnce(&mut BtfBuilder) -> u32 + '_>| {
        let mut b = types();
        let field = f(&mut b);
        let id = b.structure("s", 64, &[m("f", field, 0)]);
        (b, id)
    };
    let (local, id) = build(Box::new(local));
    let (target, _) = build(Box::new(target));
    value(local, target, (id, "0:0", FieldExists)) == Some(1)
}

#[test]
fn fields_of_like_types_fit() {
    let modified = |of| {
        move |b: &mut BtfBuilder| {
            let constant = b.modifier(Kind::Const, of);
            let tagged = b.type_tag("rcu", constant);
            b.typedef("other_name", tagged)
        }
    };
    assert!(fields_fit(|_| INT, |_| LONG));
    assert!(fields_fit(|_| INT, |_| UINT));
    assert!(fields_fit(|_| INT, modified(LONG)));
    assert!(fields_fit(modified(INT), |_| INT));
    assert!(!fields_fit(|_| INT, |_| PTR));
    assert!(!fields_fit(|_| PTR, |_| LONG));
    assert!(fields_fit(|_| PTR, |b| b.ptr(INT)));
    assert!(fields_fit(
        |b| b.float("float", 4),
        |b| b.float("double", 8)
    ));
    assert!(!fields_fit(|b| b.float("float", 4), |_| INT));
    assert!(fields_fit(
        |b| b.structure("x", 4, &[]),
        |b| b.union("y", 8, &[])
    ));
    assert!(!fields_fit(
        |b| b.structure("x", 4, &[]),
        |b| b.fwd("x", false)
    ));
    assert!(fields_fit(
        |b| b.array(INT, INT, 3),
        |b| b.array(LONG, INT, 9)
    ));
    assert!(!fields_fit(
        |b| b.array(INT, INT, 3),
        |b| b.array(PTR, INT, 3)
    ));
    assert!(!fields_fit(|b| b.array(INT, INT, 3), |_| INT));
}

#[test]
fn enumerations_fit_by_name() {
    let named = |name: &'static str| move |b: &mut BtfBuilder| b.enumeration(name, 4, &[("A", 1)]);
    assert!(fields_fit(named("e"), named("e___v2")));
    assert!(fields_fit(named("e"), named("")));
    assert!(fields_fit(named(""), named("e")));
    assert!(!fields_fit(named("e"), named("f")));
    assert!(fields_fit(named("e"), |b| b.enumeration64(
        "e",
        8,
        false,
        &[("B", 7)]
    )));
    assert!(!fields_fit(named("e"), |_| INT));
}

#[test]
fn bit_fields_of_old_compilers_do_not_fit() {
    // An INT that begins at bit 4, as no builder makes it.
    let mut b = types();
    b.structure("s", 4, &[m("f", INT, 0)]);
    let mut bytes = b.to_bytes().expect("sound");
    let old = bytes.clone();
    // Byte 2 of the word after the first type's three is the bit offset.
    bytes[24 + 12 + 2] = 4;
    let (old, odd) = (
        Btf::parse(&old).expect("sound"),
        Btf::parse(&bytes).expect("sound"),
    );
    let ask = |target| {
        resolve_in(
            copy_of(&old),
            target,
            Vec::new(),
            (FIRST, "0:0", FieldExists),
        )
    };
    assert_eq!(ask(&old).map(|r| r.value), Ok(1));
    assert_eq!(ask(&odd).map(|r| r.value), Ok(0));
}

#[test]
fn bit_fields_are_loaded_and_shifted() {
    let plain = || s(&[m("f", UINT, 32)]);
    let bits = || s(&[MemberDef::bitfield("f", INT, 37, 5)]);
    let ask = |kind| value(plain(), bits(), (FIRST, "0:0", kind));
    assert_eq!(ask(FieldByteOffset), Some(4));
    assert_eq!(ask(FieldByteSize), Some(4));
    assert_eq!(ask(FieldSigned), Some(1));
    assert_eq!(ask(FieldRshiftU64), Some(59));
    let shift = if cfg!(target_endian = "little") {
        64 - 10
    } else {
        4 * 8 + 5
    };
    assert_eq!(ask(FieldLshiftU64), Some(shift));
    // And of a whole integer.
    let ask = |kind| value(bits(), plain(), (FIRST, "0:0", kind));
    assert_eq!(ask(FieldSigned), Some(0));
    assert_eq!(ask(FieldRshiftU64), Some(32));
    assert_eq!(ask(FieldLshiftU64), Some(32));
    // What depends on how the compiler cut it is not held against it.
    let validated = |kind| {
        resolve(bits(), plain(), (FIRST, "0:0", kind)).map(|r| (r.validate, r.original_size))
    };
    assert_eq!(validated(FieldByteOffset), Ok((false, 0)));
    assert_eq!(validated(FieldByteSize), Ok((false, 0)));
    assert_eq!(validated(FieldLshiftU64), Ok((false, 0)));
    assert_eq!(validated(FieldRshiftU64), Ok((true, 0)));
    assert_eq!(validated(FieldSigned), Ok((true, 0)));
}

#[test]
fn a_bit_field_takes_a_wider_load_where_it_must() {
    let plain = || s(&[m("f", LONG, 0)]);
    let bits = |at, width| s(&[MemberDef::bitfield("f", INT, at, width)]);
    let ask = |at, width, kind| value(plain(), bits(at, width), (FIRST, "0:0", kind));
    // Bits 28–35 are in no aligned 32 bits.
    assert_eq!(ask(28, 8, FieldByteSize), Some(8));
    assert_eq!(ask(28, 8, FieldByteOffset), Some(0));
    // Bits 60–67 are in no aligned 64 bits.
    let wrong = resolve(plain(), bits(60, 8), (FIRST, "0:0", FieldByteSize));
    assert_eq!(wrong, Err(CoreError::Bitfield { kind: 1, insn: 1 }));
    assert_eq!(ask(60, 8, FieldExists), Some(1));
}
