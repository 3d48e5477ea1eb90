//! Candidates, modules, and records that make no sense.

use bpfkit_btf::core::ReloKind::{
    EnumvalValue, FieldByteOffset, FieldByteSize, FieldExists, TypeExists, TypeIdLocal, TypeMatches,
};
use bpfkit_btf::core::{CoreError, ReloKind, Relocator};
use bpfkit_btf::ext::CoreRelo;
use bpfkit_btf::{BtfBuilder, MemberDef};

use crate::{FIRST, INT, LONG, PTR, copy_of, m, resolve, resolve_in, s, types, value, with_struct};

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
        copy_of(&b.build().expect("sound")),
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
