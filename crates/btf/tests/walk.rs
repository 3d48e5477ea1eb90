//! What lies at an offset.

use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, MemberDef, Place, Step};

fn m(name: &str, type_id: u32, bit_offset: u32) -> MemberDef<'_> {
    MemberDef::new(name, type_id, bit_offset)
}

/// `struct outer { int a; <4 bytes of padding> union { long l; struct { int x, y; } in; };
/// int grid[2][3]; int bits : 5, more : 27; int tail[]; }` and the ids in it.
fn outer() -> (Btf, u32) {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::SIGNED);
    let long = b.int("long", 8, IntEncoding::SIGNED);
    let inner = b.structure("inner", 8, &[m("x", int, 0), m("y", int, 32)]);
    let either = b.union("", 8, &[m("l", long, 0), m("in", inner, 0)]);
    let row = b.array(int, int, 3);
    let grid = b.array(row, int, 2);
    let tail = b.array(int, int, 0);
    let outer = b.structure(
        "outer",
        48,
        &[
            m("a", int, 0),
            m("", either, 64),
            m("grid", grid, 128),
            MemberDef::bitfield("bits", int, 320, 5),
            MemberDef::bitfield("more", int, 325, 27),
            m("tail", tail, 352),
        ],
    );
    (b.build().expect("sound"), outer)
}

/// Names of the members on the way, with indices: `grid[1][2]`.
fn path(btf: &Btf, place: &Place) -> String {
    let step = |s: &Step| match *s {
        Step::Member { of, index } => {
            let member = btf
                .type_by_id(of)
                .and_then(|t| t.member(index))
                .expect("on the way");
            format!(".{}", member.name())
        }
        Step::Element(index) => format!("[{index}]"),
    };
    place.path.iter().map(step).collect()
}

fn at(offset: u32) -> Vec<(String, u32, u32)> {
    let (btf, outer) = outer();
    btf.walk(outer, offset)
        .map(|p| (path(&btf, &p), p.start, p.offset))
        .collect()
}

fn place(path: &str, start: u32, offset: u32) -> (String, u32, u32) {
    (path.into(), start, offset)
}

#[test]
fn members_elements_and_alternatives_are_found() {
    assert_eq!(at(0), [place(".a", 0, 0)]);
    assert_eq!(at(3), [place(".a", 0, 3)]);
    assert_eq!(at(5), [], "padding");
    assert_eq!(at(8), [place("..l", 8, 0), place("..in.x", 8, 0)]);
    assert_eq!(at(13), [place("..l", 8, 5), place("..in.y", 12, 1)]);
    assert_eq!(at(16), [place(".grid[0][0]", 16, 0)]);
    assert_eq!(at(36), [place(".grid[1][2]", 36, 0)]);
}

#[test]
fn bit_fields_share_their_bytes() {
    assert_eq!(at(40), [place(".bits", 40, 0), place(".more", 40, 0)]);
    assert_eq!(at(41), [place(".more", 40, 1)]);
    let (btf, outer) = outer();
    let bits: Vec<_> = btf.walk(outer, 40).map(|p| p.bitfield).collect();
    assert_eq!(bits, [Some((320, 5)), Some((325, 27))]);
}

#[test]
fn an_open_array_at_the_end_has_every_element() {
    assert_eq!(at(44), [place(".tail[0]", 44, 0)]);
    assert_eq!(at(4045), [place(".tail[1000]", 4044, 1)]);
}

#[test]
fn other_types_than_structures_have_places_too() {
    let (btf, _) = outer();
    let grid = 6;
    let found: Vec<_> = btf
        .walk(grid, 21)
        .map(|p| (p.type_id, p.start, p.offset))
        .collect();
    assert_eq!(found, [(1, 20, 1)]);
    assert_eq!(btf.walk(grid, 24).next(), None);
    assert_eq!(btf.walk(1, 2).next().map(|p| p.offset), Some(2));
    assert_eq!(btf.walk(1, 4).next(), None);
    assert_eq!(btf.walk(99, 0).next(), None);
}

#[test]
fn unions_made_to_be_slow_end() {
    let mut b = BtfBuilder::new();
    let mut inner = b.int("int", 4, IntEncoding::SIGNED);
    for _ in 0..50 {
        inner = b.union("", 4, &[m("a", inner, 0), m("b", inner, 0)]);
    }
    let btf = b.build().expect("sound");
    assert!(btf.walk(inner, 0).count() < 1 << 16);
}
