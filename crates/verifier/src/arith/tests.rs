//! Arithmetic and comparisons on ranges against those on numbers: over all pairs of small sets
//! of numbers at which widths and signs change, and on random ones.

use super::*;
use proptest::prelude::*;

const ALL: [Compare; 12] = [
    Compare::Eq,
    Compare::Ne,
    Compare::Gt,
    Compare::Ge,
    Compare::Lt,
    Compare::Le,
    Compare::Set,
    Compare::Clear,
    Compare::Sgt,
    Compare::Sge,
    Compare::Slt,
    Compare::Sle,
];

fn concrete_op(op: u8, wide: bool, a: u64, b: u64) -> u64 {
    if wide {
        match op {
            code::ADD => a.wrapping_add(b),
            code::SUB => a.wrapping_sub(b),
            code::MUL => a.wrapping_mul(b),
            code::AND => a & b,
            code::OR => a | b,
            code::XOR => a ^ b,
            code::LSH => a << (b & 63),
            code::RSH => a >> (b & 63),
            code::ARSH => ((a as i64) >> (b & 63)) as u64,
            _ => a.wrapping_neg(),
        }
    } else {
        let (a, b) = (a as u32, b as u32);
        u64::from(match op {
            code::ADD => a.wrapping_add(b),
            code::SUB => a.wrapping_sub(b),
            code::MUL => a.wrapping_mul(b),
            code::AND => a & b,
            code::OR => a | b,
            code::XOR => a ^ b,
            code::LSH => a << (b & 31),
            code::RSH => a >> (b & 31),
            code::ARSH => ((a as i32) >> (b & 31)) as u32,
            _ => a.wrapping_neg(),
        })
    }
}

fn concrete_compare(cmp: Compare, wide: bool, a: u64, b: u64) -> bool {
    let (a, b) = if wide {
        (a, b)
    } else {
        (u64::from(a as u32), u64::from(b as u32))
    };
    let (sa, sb) = if wide {
        (a as i64, b as i64)
    } else {
        (i64::from(a as i32), i64::from(b as i32))
    };
    match cmp {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Set => a & b != 0,
        Compare::Clear => a & b == 0,
        Compare::Sgt => sa > sb,
        Compare::Sge => sa >= sb,
        Compare::Slt => sa < sb,
        Compare::Sle => sa <= sb,
    }
}

/// Values near where widths and signs change, and anything else.
fn value() -> impl Strategy<Value = u64> {
    let edges = [
        0u64,
        1 << 31,
        1 << 32,
        1 << 63,
        0xffff_ffff_0000_0000,
        0xff,
        0x8000,
    ];
    prop_oneof![
        any::<u64>(),
        0..64u64,
        any::<u32>().prop_map(u64::from),
        (0..edges.len(), -4i64..4).prop_map(move |(i, d)| edges[i].wrapping_add(d as u64)),
    ]
}

/// A range and a value that it admits: learned from comparisons that the value passes.
fn range_with_member() -> impl Strategy<Value = (Range, u64)> {
    (
        value(),
        proptest::collection::vec((0..ALL.len(), any::<bool>(), value()), 0..4),
    )
        .prop_map(|(v, checks)| {
            let mut r = Range::UNKNOWN;
            for (cmp, wide, constant) in checks {
                let cmp = if concrete_compare(ALL[cmp], wide, v, constant) {
                    ALL[cmp]
                } else {
                    ALL[cmp].negated()
                };
                if decide(cmp, wide, &r, &Range::known(constant)).is_none() {
                    assume(cmp, wide, &mut r, &mut Range::known(constant));
                    r.sync();
                }
            }
            (r, v)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn known_numbers_fold_to_what_the_steps_come_to(
        a in value(),
        b in value(),
        op in prop::sample::select(vec![
            code::ADD, code::SUB, code::MUL, code::AND, code::OR, code::XOR,
            code::LSH, code::RSH, code::ARSH,
        ]),
        wide in any::<bool>(),
    ) {
        let shift = matches!(op, code::LSH | code::RSH | code::ARSH);
        let b = if shift { b & if wide { 63 } else { 31 } } else { b };
        let (a, b) = (Range::known(a), Range::known(b));
        let folded = fold(op, wide, &a, &b).map(Range::known);
        let mut by_steps = a;
        apply_by_steps(op, wide, &mut by_steps, &b);
        prop_assert_eq!(folded, Some(by_steps));
    }

    #[test]
    fn learning_keeps_the_value((r, v) in range_with_member()) {
        prop_assert!(r.admits(v), "{v:#x} not in {r:x?}");
        prop_assert_eq!(r.contradiction(), None);
    }

    #[test]
    fn arithmetic_keeps_the_result(
        (a, x) in range_with_member(),
        (b, y) in range_with_member(),
        op in prop::sample::select(vec![
            code::ADD, code::SUB, code::MUL, code::AND, code::OR, code::XOR,
            code::LSH, code::RSH, code::ARSH, code::NEG,
        ]),
        wide in any::<bool>(),
    ) {
        let shift = matches!(op, code::LSH | code::RSH | code::ARSH);
        let y = if shift { y & if wide { 63 } else { 31 } } else { y };
        let b = if shift { Range::known(y) } else { b };
        prop_assume!(computable(op, wide, &b));
        let mut r = a;
        apply(op, wide, &mut r, &b);
        let v = concrete_op(op, wide, x, y);
        prop_assert!(r.admits(v), "{op:#x} {x:#x} {y:#x} = {v:#x} not in {r:x?}");
    }

    #[test]
    fn comparisons_decide_and_narrow_soundly(
        (a, x) in range_with_member(),
        (b, y) in range_with_member(),
        cmp in 0..ALL.len(),
        wide in any::<bool>(),
    ) {
        let cmp = ALL[cmp];
        let holds = concrete_compare(cmp, wide, x, y);
        if let Some(decided) = decide(cmp, wide, &a, &b) {
            prop_assert_eq!(decided, holds);
        } else {
            let (mut a, mut b) = (a, b);
            assume(if holds { cmp } else { cmp.negated() }, wide, &mut a, &mut b);
            a.sync();
            b.sync();
            prop_assert!(a.admits(x), "{x:#x} not in {a:x?}");
            prop_assert!(b.admits(y), "{y:#x} not in {b:x?}");
        }
    }

    #[test]
    fn extensions_keep_the_value((r, v) in range_with_member(), bytes in prop::sample::select(vec![1u32, 2, 4])) {
        let mut zero = r;
        zero.zero_extend(bytes);
        let keep = (1u64 << (bytes * 8)) - 1;
        prop_assert!(zero.admits(v & keep));
        let mut sign = r;
        sign.sign_extend(bytes);
        let shift = 64 - bytes * 8;
        prop_assert!(sign.admits((((v << shift) as i64) >> shift) as u64));
    }
}

const OPS: [u8; 10] = [
    code::ADD,
    code::SUB,
    code::MUL,
    code::AND,
    code::OR,
    code::XOR,
    code::LSH,
    code::RSH,
    code::ARSH,
    code::NEG,
];

/// Numbers at which widths and signs change, and some between.
const EDGES: [u64; 18] = [
    0,
    1,
    2,
    31,
    32,
    63,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_8000_0000,
    0x7fff_ffff_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_fffe_ffff_ffff,
    0xffff_ffff_0000_0000,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_ffff,
];

/// The tightest range around two numbers.
fn around(a: u64, b: u64) -> Range {
    Range {
        bits: Tnum::known(a).join(Tnum::known(b)),
        umin: a.min(b),
        umax: a.max(b),
        smin: (a as i64).min(b as i64),
        smax: (a as i64).max(b as i64),
        umin32: (a as u32).min(b as u32),
        umax32: (a as u32).max(b as u32),
        smin32: (a as i32).min(b as i32),
        smax32: (a as i32).max(b as i32),
    }
}

/// All sets of one or two edges, and the range around each.
fn sets() -> Vec<([u64; 2], Range)> {
    let pairs = EDGES
        .iter()
        .enumerate()
        .flat_map(|(i, &a)| EDGES[i..].iter().map(move |&b| [a, b]));
    pairs.map(|[a, b]| ([a, b], around(a, b))).collect()
}

#[test]
fn arithmetic_on_edges_keeps_every_result() {
    let sets = sets();
    for (xs, a) in &sets {
        for (ys, b) in &sets {
            for op in OPS {
                for wide in [true, false] {
                    let width = if wide { 64 } else { 32 };
                    let shift = matches!(op, code::LSH | code::RSH | code::ARSH);
                    if !computable(op, wide, b) || (shift && ys[0] >= width) {
                        continue;
                    }
                    let mut r = *a;
                    apply(op, wide, &mut r, b);
                    for x in xs {
                        for y in ys {
                            let v = concrete_op(op, wide, *x, *y);
                            assert!(
                                r.admits(v),
                                "{op:#x} {x:#x} {y:#x} = {v:#x} not in {r:x?}, of {a:x?} and {b:x?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn comparisons_of_edges_are_sound() {
    let sets = sets();
    for (xs, a) in &sets {
        for (ys, b) in &sets {
            for cmp in ALL {
                for wide in [true, false] {
                    compare_sets(cmp, wide, (xs, a), (ys, b));
                }
            }
        }
    }
}

/// What a comparison decides holds for all members; what it teaches keeps those it holds for.
fn compare_sets(cmp: Compare, wide: bool, a: (&[u64; 2], &Range), b: (&[u64; 2], &Range)) {
    let decided = decide(cmp, wide, a.1, b.1);
    let (mut left, mut right) = (*a.1, *b.1);
    if decided.is_none() {
        assume(cmp, wide, &mut left, &mut right);
        left.sync();
        right.sync();
    }
    for &x in a.0 {
        for &y in b.0 {
            let holds = concrete_compare(cmp, wide, x, y);
            match decided {
                Some(decided) => assert_eq!(decided, holds, "{cmp:?} {wide} {x:#x} {y:#x}"),
                None if holds => assert!(
                    left.admits(x) && right.admits(y),
                    "{cmp:?} {wide} {x:#x} {y:#x}: {left:x?} {right:x?}"
                ),
                None => {}
            }
        }
    }
}

/// Bounds of all kinds, each from its own edges, so that they are far from sharp.
#[test]
fn sharpening_keeps_every_member() {
    let wide = [0u64, 5, 0x8000_0000, 0x1_0000_0003, 1 << 63, u64::MAX];
    let narrow = [0u32, 3, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let bits = [
        Tnum::UNKNOWN,
        Tnum {
            value: 3,
            mask: u64::MAX << 4,
        },
        Tnum {
            value: 1 << 63,
            mask: u64::MAX >> 1,
        },
        Tnum {
            value: 0,
            mask: u64::MAX >> 32,
        },
    ];
    let members: Vec<u64> = EDGES.iter().chain(&wide).copied().collect();
    let pairs = |n: usize| (0..n).flat_map(move |i| (0..n).map(move |j| (i, j)));
    let mut checked = 0u32;
    for (ul, uh) in pairs(wide.len()).filter(|&(i, j)| wide[i] <= wide[j]) {
        for (sl, sh) in pairs(wide.len()).filter(|&(i, j)| wide[i] as i64 <= wide[j] as i64) {
            for (ul32, uh32) in pairs(narrow.len()).filter(|&(i, j)| narrow[i] <= narrow[j]) {
                for (sl32, sh32) in
                    pairs(narrow.len()).filter(|&(i, j)| narrow[i] as i32 <= narrow[j] as i32)
                {
                    for bits in bits {
                        let before = Range {
                            bits,
                            umin: wide[ul],
                            umax: wide[uh],
                            smin: wide[sl] as i64,
                            smax: wide[sh] as i64,
                            umin32: narrow[ul32],
                            umax32: narrow[uh32],
                            smin32: narrow[sl32] as i32,
                            smax32: narrow[sh32] as i32,
                        };
                        let mut after = before;
                        after.sync();
                        for &v in members.iter().filter(|&&v| before.admits(v)) {
                            checked += 1;
                            assert!(after.admits(v), "{v:#x}: {before:x?} became {after:x?}");
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 50_000, "{checked}");
}

#[test]
fn extensions_of_the_lower_half_keep_the_value() {
    for ([x, y], range) in sets() {
        for v in [x, y] {
            let mut zero = range;
            zero.zero_extend32();
            zero.sync();
            assert!(zero.admits(v & 0xffff_ffff), "{v:#x} {range:x?}");
            for bytes in [1, 2] {
                let mut sign = range;
                sign.sign_extend_low32(bytes);
                sign.zero_extend32();
                sign.sync();
                let shift = 32 - bytes * 8;
                let v = (((v as u32) << shift) as i32 >> shift) as u32;
                assert!(sign.admits(u64::from(v)), "{v:#x} {bytes} {range:x?}");
            }
            for bytes in [1, 2, 4] {
                let (mut zero, mut sign) = (range, range);
                zero.zero_extend(bytes);
                sign.sign_extend(bytes);
                let shift = 64 - bytes * 8;
                assert!(zero.admits(v << shift >> shift), "{v:#x} {bytes}");
                assert!(sign.admits(((v << shift) as i64 >> shift) as u64), "{v:#x}");
            }
        }
    }
}
