//! The rules of CO-RE, one small pair of types a rule: what fits, and what does not.

use bpfkit_btf::core::{CoreError, POISON, Poison, RawInsn, ReloKind, Relocator, Resolution};
use bpfkit_btf::ext::CoreRelo;
use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, Kind, MemberDef};

use ReloKind::{
    EnumvalExists, EnumvalValue, FieldByteOffset, FieldByteSize, FieldExists, FieldLshiftU64,
    FieldRshiftU64, FieldSigned, TypeExists, TypeIdLocal, TypeIdTarget, TypeMatches, TypeSize,
};

/// Resolves one relocation against a kernel and its modules.
fn resolve_in(
    mut local: BtfBuilder,
    kernel: &Btf,
    modules: Vec<&Btf>,
    (type_id, access, kind): (u32, &str, ReloKind),
) -> Result<Resolution, CoreError> {
    let access_str_off = local.string(access);
    let local = local.build().expect("the local types are sound");
    let relo = CoreRelo {
        insn_off: 8,
        type_id,
        access_str_off,
        kind: kind as u32,
    };
    Relocator::new(&local, Some(kernel), modules).resolve(&relo)
}

fn resolve(
    local: BtfBuilder,
    target: BtfBuilder,
    what: (u32, &str, ReloKind),
) -> Result<Resolution, CoreError> {
    let target = target.build().expect("the target types are sound");
    resolve_in(local, &target, Vec::new(), what)
}

/// The value found, `None` for poison.
fn value(local: BtfBuilder, target: BtfBuilder, what: (u32, &str, ReloKind)) -> Option<u64> {
    let found = resolve(local, target, what).expect("the relocation is sound");
    (!found.poison).then_some(found.value)
}

/// Types with `int` as 1, `unsigned` as 2, `long` as 3 and `void *` as 4.
fn types() -> BtfBuilder {
    let mut b = BtfBuilder::new();
    b.int("int", 4, IntEncoding::SIGNED);
    b.int("unsigned int", 4, IntEncoding::NONE);
    b.int("long", 8, IntEncoding::SIGNED);
    b.ptr(0);
    b
}
const INT: u32 = 1;
const UINT: u32 = 2;
const LONG: u32 = 3;
const PTR: u32 = 4;
/// The first type after those of [`types`].
const FIRST: u32 = 5;

/// [`types`] and a structure of these members as [`FIRST`].
fn with_struct(name: &str, size: u32, members: &[MemberDef<'_>]) -> BtfBuilder {
    let mut b = types();
    assert_eq!(b.structure(name, size, members), FIRST);
    b
}

fn m(name: &str, type_id: u32, bit_offset: u32) -> MemberDef<'_> {
    MemberDef::new(name, type_id, bit_offset)
}

fn s(members: &[MemberDef<'_>]) -> BtfBuilder {
    with_struct("s", 16, members)
}

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
            b_copy(&old),
            target,
            Vec::new(),
            (FIRST, "0:0", FieldExists),
        )
    };
    assert_eq!(ask(&old).map(|r| r.value), Ok(1));
    assert_eq!(ask(&odd).map(|r| r.value), Ok(0));
}

fn b_copy(btf: &Btf) -> BtfBuilder {
    BtfBuilder::from_btf(btf)
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

#[test]
fn candidates_must_agree() {
    let local = || s(&[m("a", INT, 0)]);
    let two = |first: MemberDef<'_>, second: MemberDef<'_>| {
        let mut b = types();
        b.structure("s", 16, &[first]);
        b.structure("s___2", 16, &[second]);
        b
    };
    let what = (FIRST, "0:0", FieldByteOffset);
    assert_eq!(
        value(local(), two(m("a", INT, 64), m("a", LONG, 64)), what),
        Some(8)
    );
    // One that does not fit has no say.
    assert_eq!(
        value(local(), two(m("a", INT, 64), m("a", PTR, 0)), what),
        Some(8)
    );
    assert_eq!(
        value(local(), two(m("b", INT, 64), m("a", INT, 0)), what),
        Some(0)
    );
    let different = resolve(local(), two(m("a", INT, 64), m("a", INT, 96)), what);
    assert_eq!(different, Err(CoreError::OffsetAmbiguity(96, 64)));
    let sizes = two(m("a", INT, 64), m("a", LONG, 64));
    let different = resolve(local(), sizes, (FIRST, "0:0", FieldByteSize));
    assert_eq!(
        different,
        Err(CoreError::DecisionAmbiguity((false, 8), (false, 4)))
    );
    assert_eq!(
        different.map_err(|e| e.in_program("p", 3)),
        Err("prog 'p': relo #3: relocation decision ambiguity: success 8 != success 4".into())
    );
}

#[test]
fn modules_are_searched_after_the_kernel() {
    let what = (FIRST, "0:0", FieldByteOffset);
    let kernel = std::sync::Arc::new(types().build().expect("sound"));
    let other = s(&[m("a", INT, 32)]).build().expect("sound");
    let mut module = BtfBuilder::split(kernel.clone());
    module.structure("s", 16, &[m("a", INT, 96)]);
    let module = module.build().expect("sound");
    let ask = |kernel, modules| {
        resolve_in(s(&[m("a", INT, 0)]), kernel, modules, what).map(|r| (r.poison, r.value))
    };
    assert_eq!(ask(&kernel, vec![&module]), Ok((false, 12)));
    assert_eq!(ask(&kernel, vec![]), Ok((true, 0)));
    assert_eq!(ask(&other, vec![&module]), Ok((false, 4)));
}

#[test]
fn accessor_strings_are_checked() {
    let local = || s(&[m("a", INT, 0)]);
    let errno = |access: &str, kind| match resolve(local(), local(), (FIRST, access, kind)) {
        Err(CoreError::Spec { errno, .. }) => Some(errno),
        _ => None,
    };
    for access in [
        "",
        ":0",
        "0:",
        "0::0",
        "0:x",
        "-1",
        "0:1",
        "0:0:0",
        "0:99999999999",
    ] {
        assert_eq!(errno(access, FieldByteOffset), Some(-22), "{access}");
    }
    let long = ["0"; 65].join(":");
    assert_eq!(errno(&long, FieldByteOffset), Some(-7));
    assert_eq!(errno("0:0", TypeExists), Some(-22));
    assert_eq!(errno("0:0", FieldByteOffset), None);
    let text =
        resolve(local(), local(), (FIRST, "0:7", FieldByteOffset)).map_err(|e| e.to_string());
    assert_eq!(
        text,
        Err(format!("parsing [{FIRST}] struct s + 0:7 failed: -22"))
    );
}

#[test]
fn records_that_make_no_sense_are_refused() {
    let local = with_struct("", 4, &[m("a", INT, 0)])
        .build()
        .expect("sound");
    let kernel = types().build().expect("sound");
    let mut relocator = Relocator::new(&local, Some(&kernel), vec![]);
    let relo = |type_id, kind| CoreRelo {
        insn_off: 0,
        type_id,
        access_str_off: 0,
        kind,
    };
    assert_eq!(relocator.resolve(&relo(99, 0)), Err(CoreError::NoType));
    assert_eq!(
        relocator.resolve(&relo(FIRST, 0)),
        Err(CoreError::Anonymous {
            type_id: FIRST,
            kind: "struct"
        })
    );
    assert!(matches!(
        relocator.resolve(&relo(INT, 13)),
        Err(CoreError::Spec { errno: -22, .. })
    ));
}

#[test]
fn a_relocation_is_described_as_libbpf_does() {
    let describe = |mut b: BtfBuilder, type_id, access: &str, kind: ReloKind| {
        let access_str_off = b.string(access);
        let local = b.build().expect("sound");
        let relo = CoreRelo {
            insn_off: 0,
            type_id,
            access_str_off,
            kind: kind as u32,
        };
        Relocator::new(&local, None, vec![])
            .describe(&relo)
            .expect("sound")
    };
    let mut b = types();
    let array = b.array(INT, INT, 4);
    let inner = b.structure(
        "",
        17,
        &[m("x", array, 0), MemberDef::bitfield("y", INT, 130, 3)],
    );
    let outer = b.structure("outer", 24, &[m("a", INT, 0), m("", inner, 32)]);
    let text = describe(
        b_copy(&b.build().expect("sound")),
        outer,
        "1:1:0:2",
        FieldByteOffset,
    );
    assert_eq!(
        text,
        format!("<byte_off> [{outer}] struct outer[1].x[2] (1:1:0:2 @ offset 36)")
    );
    let text = describe(b, outer, "0:1:1", FieldExists);
    assert_eq!(
        text,
        format!("<field_exists> [{outer}] struct outer.y (0:1:1 @ offset 20.2)")
    );
    let mut b = types();
    let id = b.enumeration("e", 4, &[("A", -3)]);
    assert_eq!(
        describe(b, id, "0", EnumvalValue),
        format!("<enumval_value> [{id}] enum e::A = -3")
    );
    assert_eq!(
        describe(types(), PTR, "0", TypeIdLocal),
        "<local_type_id> [4] ptr <anon>"
    );
}

const fn insn(code: u8, off: i16, imm: i32) -> RawInsn {
    RawInsn {
        code,
        dst: 1,
        src: 2,
        off,
        imm,
    }
}
const MOV_K: u8 = 0xb7;
const LDX_W: u8 = 0x61;
const LDX_H: u8 = 0x69;
const LDX_DW: u8 = 0x79;
const LD_IMM64: u8 = 0x18;

fn offset(local: MemberDef<'_>, target: MemberDef<'_>) -> Resolution {
    let what = (FIRST, "0:0", FieldByteOffset);
    resolve(s(&[local]), s(&[target]), what).expect("the relocation is sound")
}

#[test]
fn each_class_of_instruction_is_patched_in_its_own_field() {
    let moved = offset(m("a", INT, 32), m("a", INT, 96));
    let imm = RawInsn {
        src: 0,
        ..insn(MOV_K, 0, 4)
    };
    let patched = moved.patch(7, imm, None).expect("fits");
    assert_eq!(patched.first, RawInsn { imm: 12, ..imm });
    for code in [LDX_W, 0x62, 0x63, 0x81] {
        let patched = moved.patch(7, insn(code, 4, 9), None).expect("fits");
        assert_eq!(patched.first, insn(code, 12, 9));
    }
    let first = RawInsn {
        src: 0,
        ..insn(LD_IMM64, 0, 4)
    };
    let patched = moved
        .patch(7, first, Some(RawInsn::default()))
        .expect("fits");
    assert_eq!(patched.first, RawInsn { imm: 12, ..first });
    assert_eq!(patched.second, Some(RawInsn::default()));
    assert_eq!(patched.poison, None);
}

#[test]
fn an_instruction_must_hold_what_the_compiler_put_there() {
    let moved = offset(m("a", INT, 32), m("a", INT, 96));
    let text = |i, second| moved.patch(7, i, second).map_err(|e| e.in_program("p", 0));
    assert_eq!(
        text(insn(MOV_K, 0, 5), None),
        Err("prog 'p': relo #0: unexpected insn #7 (ALU/ALU64) value: got 5, exp 4 -> 12".into())
    );
    assert_eq!(
        text(insn(LDX_W, -1, 0), None),
        Err(
            "prog 'p': relo #0: unexpected insn #7 (LDX/ST/STX) value: got 4294967295, \
             exp 4 -> 12"
                .into()
        )
    );
    let wide = RawInsn {
        src: 0,
        ..insn(LD_IMM64, 0, 4)
    };
    let high = RawInsn {
        imm: 1,
        ..RawInsn::default()
    };
    assert_eq!(
        text(wide, Some(high)),
        Err(
            "prog 'p': relo #0: unexpected insn #7 (LDIMM64) value: got 4294967300, \
             exp 4 -> 12"
                .into()
        )
    );
    let odd = Err("prog 'p': relo #0: insn #7 (LDIMM64) has unexpected form".into());
    assert_eq!(text(wide, None), odd);
    assert_eq!(text(wide, Some(insn(0, 0, 0))), odd);
    assert_eq!(
        text(RawInsn { src: 1, ..wide }, Some(RawInsn::default())),
        odd
    );
    assert_eq!(
        text(insn(0x05, 1, 0), None),
        Err(
            "prog 'p': relo #0: trying to relocate unrecognized insn #7, code:0x5, src:0x2, \
             dst:0x1, off:0x1, imm:0x0"
                .into()
        )
    );
    // An operation on two registers has no immediate.
    assert!(matches!(
        moved.patch(7, insn(0xbf, 0, 4), None),
        Err(CoreError::Insn { .. })
    ));
}

#[test]
fn an_offset_fits_in_16_bits() {
    let far = |byte: u32| {
        let local = s(&[m("a", INT, 0)]);
        let target = with_struct("s", byte + 4, &[m("a", INT, byte * 8)]);
        resolve(local, target, (FIRST, "0:0", FieldByteOffset)).expect("sound")
    };
    assert!(far(32764).patch(0, insn(LDX_W, 0, 0), None).is_ok());
    let error = far(32768).patch(0, insn(LDX_W, 0, 0), None);
    assert_eq!(
        error,
        Err(CoreError::Offset {
            insn: 0,
            value: 32768
        })
    );
    assert_eq!(error.map_err(|e| e.errno()), Err(-34));
    assert!(far(32768).patch(0, insn(MOV_K, 0, 0), None).is_ok());
}

#[test]
fn loads_follow_the_size_of_unsigned_fields() {
    let mut local = types();
    let short = local.int("unsigned short", 2, IntEncoding::NONE);
    let id = local.structure("s", 8, &[m("a", short, 0)]);
    let grown = resolve(local, s(&[m("a", UINT, 32)]), (id, "0:0", FieldByteOffset));
    let grown = grown.expect("sound");
    let patched = grown.patch(0, insn(LDX_H, 0, 0), None).expect("fits");
    assert_eq!((patched.first, patched.poison), (insn(LDX_W, 4, 0), None));
    // The load has another size than the field.
    let error = grown.patch(0, insn(LDX_DW, 0, 0), None);
    assert_eq!(
        error,
        Err(CoreError::Size {
            insn: 0,
            got: 8,
            expected: 2
        })
    );
    // An address is not a load.
    assert!(
        grown
            .patch(
                0,
                RawInsn {
                    src: 0,
                    ..insn(MOV_K, 0, 0)
                },
                None
            )
            .is_ok()
    );
}

#[test]
fn loads_of_signed_fields_that_changed_size_are_poison() {
    for (local, target) in [(INT, LONG), (INT, PTR), (UINT, LONG)] {
        let what = (FIRST, "0:0", FieldByteOffset);
        let Ok(found) = resolve(s(&[m("a", local, 0)]), s(&[m("a", target, 0)]), what) else {
            panic!("sound")
        };
        let patched = found.patch(0, insn(LDX_W, 0, 0), None).expect("fits");
        assert_eq!(
            patched.first,
            RawInsn {
                code: 0x85,
                imm: POISON,
                ..RawInsn::default()
            }
        );
        let why = if found.poison {
            Poison::NoTarget
        } else {
            Poison::Resize
        };
        assert_eq!(patched.poison, Some(why));
        assert_eq!(found.poison, target == PTR);
    }
}

#[test]
fn a_size_that_no_load_has_is_refused() {
    let what = (FIRST, "0", FieldByteOffset);
    let local = with_struct("s", 8, &[]);
    let target = with_struct("s", 8, &[]);
    let same = resolve(local, target, what).expect("sound");
    assert!(same.patch(0, insn(LDX_W, 0, 0), None).is_ok());
    let mut local = types();
    let id = local.int("odd", 4, IntEncoding::NONE);
    let id = local.structure("s", 8, &[m("a", id, 0)]);
    let mut target = types();
    let odd = target.int("odd", 16, IntEncoding::NONE);
    target.structure("s", 16, &[m("a", odd, 0)]);
    let found = resolve(local, target, (id, "0:0", FieldByteOffset)).expect("sound");
    let error = found.patch(0, insn(LDX_W, 0, 0), None);
    assert_eq!(error, Err(CoreError::NewSize { insn: 0, size: 16 }));
}

#[test]
fn poison_takes_the_place_of_the_whole_instruction() {
    let missing = offset(m("a", INT, 32), m("b", INT, 32));
    assert!(missing.poison);
    let bad = RawInsn {
        code: 0x85,
        imm: 0xbad2310,
        ..RawInsn::default()
    };
    let patched = missing.patch(0, insn(LDX_W, 4, 0), None).expect("poisoned");
    assert_eq!((patched.first, patched.second), (bad, None));
    let wide = RawInsn {
        src: 0,
        ..insn(LD_IMM64, 0, 4)
    };
    let patched = missing
        .patch(0, wide, Some(RawInsn::default()))
        .expect("poisoned");
    assert_eq!((patched.first, patched.second), (bad, Some(bad)));
    assert_eq!(patched.poison, Some(Poison::NoTarget));
    // What cannot carry a relocation cannot carry poison either.
    assert!(missing.patch(0, insn(0x05, 0, 0), None).is_err());
}

#[test]
fn types_made_to_be_slow_are_given_up_on() {
    // Each level is searched twice: 2^60 ways.
    let mut target = types();
    let mut inner = target.structure("", 4, &[m("x", INT, 0)]);
    for _ in 0..60 {
        inner = target.structure("", 4, &[m("", inner, 0), m("", inner, 0)]);
    }
    target.structure("s", 4, &[m("", inner, 0)]);
    let found = resolve(s(&[m("a", INT, 0)]), target, (FIRST, "0:0", FieldExists));
    assert!(
        matches!(found, Err(CoreError::Match { errno: -7, .. })),
        "{found:?}"
    );

    let deep = || {
        let mut b = types();
        let mut inner = INT;
        for level in 0..40 {
            inner = b.structure(&format!("l{level}"), 4, &[m("x", inner, 0)]);
        }
        let last = b.structure("s", 4, &[m("x", inner, 0)]);
        (b, last)
    };
    let ((local, id), (target, _)) = (deep(), deep());
    let found = resolve(local, target, (id, "0", TypeMatches));
    assert!(
        matches!(found, Err(CoreError::Match { errno: -22, .. })),
        "{found:?}"
    );
}
