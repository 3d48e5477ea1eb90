//! Reading and writing BTF: what is refused and why, both byte orders, split BTF, names,
//! tags, sizes.

mod common;

use std::sync::Arc;

use bpfkit_btf::{
    Btf, BtfBuilder, BtfErrorKind, IntEncoding, Kind, Linkage, MemberDef, Section, VarSecinfo,
};

const OBJECT: &[u8] = include_bytes!("../testdata/types.bpf.o");

fn object() -> Vec<u8> {
    let elf = common::Elf::parse(OBJECT).expect("an object");
    elf.section(".BTF").expect("types").to_vec()
}

/// An integer, `[1]`, for the rest to refer to.
fn one_int() -> BtfBuilder {
    let mut b = BtfBuilder::new();
    b.int("int", 4, IntEncoding::SIGNED);
    b
}

#[test]
fn a_compiler_s_types_read_as_declared() {
    let btf = Btf::parse(&object()).expect("sound");
    let kinds: std::collections::BTreeSet<_> = btf.own_types().map(|t| t.kind()).collect();
    assert_eq!(kinds.len(), 19, "the object has every kind: {kinds:?}");

    let node = btf.by_name("node", Kind::Struct).expect("declared");
    assert_eq!(btf.size_of(node.id()), Some(64));
    assert_eq!(btf.align_of(node.id()), Some(8));
    let offsets: Vec<_> = node
        .members()
        .map(|m| (m.name(), m.byte_offset()))
        .collect();
    assert_eq!(
        offsets,
        [
            ("next", Some(0)),
            ("owner", Some(8)),
            ("value", Some(16)),
            ("", Some(24)),
            ("ports", Some(28)),
            ("visit", Some(40)),
            ("colour", Some(48)),
            ("wide", Some(56)),
            ("trailing", Some(64)),
        ]
    );
    let bits = node
        .member(3)
        .and_then(|m| m.type_in())
        .expect("the anonymous structure");
    let bits: Vec<_> = bits
        .members()
        .map(|m| (m.bit_offset, m.bitfield_size))
        .collect();
    assert_eq!(bits, [(0, 1), (1, 3), (4, 12)]);

    let ports = node
        .member_by_name("ports")
        .expect("declared")
        .type_in()
        .expect("an array");
    assert_eq!(btf.size_of(ports.id()), Some(12));
    assert_eq!(ports.array().map(|a| a.count), Some(2));

    let visit = node
        .member_by_name("visit")
        .and_then(|m| m.type_in())
        .expect("a pointer");
    let proto = visit.target().expect("a prototype");
    assert_eq!(proto.params().last().map(|p| p.type_id), Some(0));

    let colours: Vec<_> = btf
        .by_name("colour", Kind::Enum)
        .expect("declared")
        .enum_values()
        .map(|v| (v.name(), v.value()))
        .collect();
    assert_eq!(colours, [("RED", 0), ("GREEN", 5), ("BLUE", -1)]);
    let wide = btf.by_name("wide", Kind::Enum64).expect("declared");
    assert_eq!(
        wide.enum_values().nth(1).map(|v| v.value()),
        Some(0x1234_5678_9abc_def0)
    );

    let entry = btf.by_name("entry", Kind::Func).expect("declared");
    assert_eq!(entry.linkage(), Some(Linkage::Global));
    assert_eq!(
        entry
            .proto()
            .and_then(|p| p.params().next())
            .map(|p| p.name()),
        Some("node")
    );
    let hidden = btf.by_name("hidden", Kind::Var).expect("declared");
    assert_eq!(hidden.linkage(), Some(Linkage::Static));
    let kconfig = btf.by_name(".kconfig", Kind::Datasec).expect("declared");
    let elsewhere = kconfig
        .variables()
        .next()
        .and_then(|v| btf.type_by_id(v.type_id));
    assert_eq!(
        elsewhere.map(|v| (v.name(), v.linkage())),
        Some(("elsewhere", Some(Linkage::Extern)))
    );
    assert!(btf.by_name("double", Kind::Float).is_some());
}

#[test]
fn tags_are_found_by_what_they_are_on() {
    let btf = Btf::parse(&object()).expect("sound");
    let counter = btf.by_name("counter", Kind::Var).expect("declared");
    assert!(btf.has_decl_tag(counter.id(), "shared"));
    assert!(!btf.has_decl_tag(counter.id(), "arg"));
    let depth_of = btf.by_name("depth_of", Kind::Func).expect("declared");
    let tags: Vec<_> = btf
        .decl_tags(depth_of.id())
        .map(|t| (t.name(), t.component()))
        .collect();
    assert_eq!(tags, [("arg", Some(0))]);
    assert!(
        !btf.has_decl_tag(depth_of.id(), "arg"),
        "the tag is on the parameter"
    );

    let node = btf.by_name("node", Kind::Struct).expect("declared");
    let owner = node.member_by_name("owner").expect("declared");
    let (tags, to) = btf.pointer_tags(owner.type_id).expect("a pointer");
    assert_eq!((tags, to.name()), (vec!["kptr"], "later"));
    assert!(btf.pointer_tags(node.id()).is_none());
}

#[test]
fn both_byte_orders_read_and_write_the_same() {
    let bytes = object();
    let little = Btf::parse(&bytes).expect("sound");
    assert_eq!(little.to_bytes(), bytes);
    assert_eq!(
        BtfBuilder::from_btf(&little).to_bytes().as_ref(),
        Ok(&bytes)
    );

    let swapped = BtfBuilder::from_btf(&little)
        .big_endian()
        .to_bytes()
        .expect("fits");
    assert_eq!(swapped.first_chunk(), Some(&[0xeb, 0x9f, 1, 0]));
    let big = Btf::parse(&swapped).expect("sound");
    assert!(big.is_big_endian() && !little.is_big_endian());
    assert_eq!(big.to_bytes(), swapped);
    assert_eq!(bpfkit_btf::dump::raw(&big), bpfkit_btf::dump::raw(&little));
}

#[test]
fn every_type_can_be_copied() {
    let old = Btf::parse(&object()).expect("sound");
    let mut b = BtfBuilder::new();
    // In the way, so that every id moves by one.
    b.int("first", 4, IntEncoding::NONE);
    for t in old.own_types() {
        b.copy(t, |id| if id == 0 { 0 } else { id + 1 });
    }
    let new = b.build().expect("sound");
    let text = |btf: &Btf| bpfkit_btf::dump::c_types(btf, 1..btf.type_count()).expect("C");
    assert_eq!(text(&new), text(&old));
    assert_eq!(new.type_count(), old.type_count() + 1);
}

/// The error that replacing the word at `at` with `word` gives.
fn error_with(mut bytes: Vec<u8>, at: usize, word: u32) -> bpfkit_btf::BtfError {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    Btf::parse(&bytes).expect_err("refused")
}

#[test]
fn headers_are_checked() {
    let bytes = one_int().to_bytes().expect("fits");
    assert!(Btf::parse(&bytes).is_ok());
    for len in [0, 3, 23] {
        let error = Btf::parse(&bytes[..len]).expect_err("cut");
        assert!(
            matches!(error.kind(), BtfErrorKind::HeaderCut { .. }),
            "{error}"
        );
    }
    let kind = |at, word| error_with(bytes.clone(), at, word).kind().clone();
    assert_eq!(kind(0, 0x1_ab9f), BtfErrorKind::Magic(0xab9f));
    assert_eq!(kind(0, 0x2_eb9f), BtfErrorKind::Version(2));
    assert_eq!(kind(0, 0x101_eb9f), BtfErrorKind::Flags(1));
    assert!(matches!(kind(4, 23), BtfErrorKind::HeaderCut { .. }));
    assert!(matches!(kind(4, 1 << 30), BtfErrorKind::HeaderCut { .. }));
    assert!(matches!(
        kind(8, 2),
        BtfErrorKind::Layout {
            part: "the type section",
            ..
        }
    ));
    assert!(matches!(
        kind(12, u32::MAX),
        BtfErrorKind::Layout {
            part: "the type section",
            ..
        }
    ));
    assert!(matches!(
        kind(20, u32::MAX),
        BtfErrorKind::Layout {
            part: "the string section",
            ..
        }
    ));
    assert_eq!(kind(20, 0), BtfErrorKind::Strings);
    assert_eq!(kind(20, 3), BtfErrorKind::Strings);
    assert_eq!(
        kind(12, 15),
        BtfErrorKind::Unaligned("the type section's end")
    );
    let text = error_with(bytes, 12, 12).to_string();
    assert_eq!(
        text,
        ".BTF+0x18: type [1]: the type takes 16 bytes, 12 are left in the type section"
    );
}

#[test]
fn types_are_checked() {
    let types = |f: fn(&mut BtfBuilder) -> u32| {
        let mut b = one_int();
        f(&mut b);
        b.build()
            .map(|_| ())
            .map_err(|e| (e.offset(), e.type_id(), e.kind().clone()))
    };
    let dangling = |offset, to| Err((offset, Some(2), BtfErrorKind::Reference(to)));
    // Type 2 begins at 40, after the header and the integer.
    assert_eq!(types(|b| b.ptr(9)), dangling(48, 9));
    assert_eq!(types(|b| b.ptr(2)), Ok(()));
    assert_eq!(types(|b| b.array(9, 1, 1)), dangling(52, 9));
    assert_eq!(types(|b| b.array(1, 9, 1)), dangling(56, 9));
    let member = |b: &mut BtfBuilder| b.structure("s", 4, &[MemberDef::new("a", 9, 0)]);
    assert_eq!(types(member), dangling(56, 9));
    assert_eq!(types(|b| b.func_proto(9, &[])), dangling(48, 9));
    assert_eq!(types(|b| b.func_proto(0, &[("p", 9)])), dangling(56, 9));
    assert_eq!(types(|b| b.var("v", 9, Linkage::Global)), dangling(48, 9));
    let variable = VarSecinfo {
        type_id: 9,
        offset: 0,
        size: 4,
    };
    let mut b = one_int();
    b.datasec(".data", 4, &[variable]);
    assert_eq!(
        b.build().expect_err("refused").kind(),
        &BtfErrorKind::Reference(9)
    );
    assert_eq!(
        types(|b| b.func("f", 1, Linkage::Static)),
        Err((48, Some(2), BtfErrorKind::NotProto(1)))
    );

    let bytes = one_int().to_bytes().expect("fits");
    let error = error_with(bytes.clone(), 24, 999);
    assert_eq!(
        error.kind(),
        &BtfErrorKind::Name {
            what: "type",
            offset: 999
        }
    );
    assert_eq!((error.section(), error.type_id()), (Section::Btf, Some(1)));
    for kind in [0, 20, 31] {
        let error = error_with(bytes.clone(), 28, kind << 24);
        assert_eq!(error.kind(), &BtfErrorKind::Kind(kind));
    }
    let error = error_with(bytes, 28, (Kind::Struct as u32) << 24 | 0xffff);
    assert!(matches!(error.kind(), BtfErrorKind::TypeCut { .. }));
}

#[test]
fn a_split_btf_goes_on_where_its_base_ends() {
    let mut base = one_int();
    base.structure("s", 4, &[MemberDef::new("a", 1, 0)]);
    let base = Arc::new(base.build().expect("sound"));
    let mut b = BtfBuilder::split(Arc::clone(&base));
    let pointer = b.ptr(2);
    let own = b.structure("t", 8, &[MemberDef::new("a", pointer, 0)]);
    b.decl_tag("seen", 2, None);
    let bytes = b.to_bytes().expect("fits");
    let split = Btf::parse_split(&bytes, Arc::clone(&base)).expect("sound");

    assert_eq!(
        (pointer, own, split.first_id(), split.type_count()),
        (3, 4, 3, 6)
    );
    assert_eq!(split.by_name("s", Kind::Struct).map(|t| t.id()), Some(2));
    assert_eq!(split.by_name("t", Kind::Struct).map(|t| t.id()), Some(own));
    assert_eq!(split.by_name("t", Kind::Union).map(|t| t.id()), None);
    assert!(split.has_decl_tag(2, "seen") && !base.has_decl_tag(2, "seen"));
    let a = split
        .type_by_id(own)
        .and_then(|t| t.member(0))
        .expect("a member");
    assert_eq!(
        a.type_in().and_then(|p| p.target()).map(|t| t.name()),
        Some("s")
    );
    assert_eq!(split.own_types().count(), 3);
    assert_eq!(split.to_bytes(), bytes);
    assert_eq!(BtfBuilder::from_btf(&split).to_bytes().as_ref(), Ok(&bytes));
    // Without the base the same bytes refer to nothing.
    assert!(Btf::parse(&bytes).is_err());
}

#[test]
fn circles_end() {
    let mut b = one_int();
    let a = b.next_id();
    b.typedef("a", a + 1);
    b.modifier(Kind::Const, a);
    let array = b.array(a + 2, 1, 2);
    let inside = b.next_id();
    b.structure("s", 4, &[MemberDef::new("s", inside, 0)]);
    let btf = b.build().expect("each id exists");
    for id in [a, a + 1, array] {
        assert!(btf.size_of(id).is_none());
        assert!(btf.align_of(id).is_none());
    }
    assert!(btf.resolve(a).is_none());
    assert!(btf.align_of(inside).is_none());
    assert_eq!(btf.walk(inside, 0).count(), 0);
}

#[test]
fn sizes_and_alignments() {
    let mut b = one_int();
    let long = b.int("long unsigned int", 4, IntEncoding::NONE);
    let pointer = b.ptr(0);
    let many = b.array(1, 1, 1 << 30);
    let twice = b.array(many, 1, 4);
    let empty = b.array(1, 1, 0);
    let packed = b.structure(
        "packed",
        5,
        &[MemberDef::new("c", empty, 0), MemberDef::new("i", 1, 8)],
    );
    let padded = b.structure(
        "padded",
        6,
        &[MemberDef::new("i", 1, 0), MemberDef::new("p", packed, 32)],
    );
    let double = b.float("double", 8);
    let var = b.var("v", double, Linkage::Global);
    let proto = b.func_proto(0, &[]);
    let fwd = b.fwd("f", false);
    let btf = b.build().expect("sound");
    assert_eq!(btf.pointer_size(), 4, "that of long");
    assert_eq!(btf.size_of(pointer), Some(4));
    assert_eq!(btf.size_of(long), Some(4));
    assert_eq!(btf.size_of(many), None, "4 GiB do not fit in 32 bits");
    assert_eq!(btf.size_of(twice), None);
    assert_eq!(btf.size_of(empty), Some(0));
    assert_eq!(btf.align_of(empty), Some(4));
    assert_eq!(btf.align_of(packed), Some(1));
    assert_eq!(btf.align_of(padded), Some(1), "6 is no multiple of 4");
    assert_eq!(btf.align_of(double), Some(4), "no more than a pointer");
    assert_eq!(btf.size_of(var), Some(8));
    for id in [0, proto, fwd, 99] {
        assert_eq!((btf.size_of(id), btf.align_of(id)), (None, None), "{id}");
    }
    assert_eq!(
        one_int().build().expect("sound").pointer_size(),
        8,
        "nothing says otherwise"
    );
}

#[test]
fn strings_are_stored_once_and_may_be_anything() {
    let mut b = BtfBuilder::new();
    assert_eq!(b.string(""), 0);
    let first = b.string("name");
    assert_eq!(b.string("name"), first);
    assert_eq!(b.string("name\0rest"), first);
    let btf = b.build().expect("sound");
    assert_eq!(btf.string(first), Some("name"));
    assert_eq!(btf.string(first + 1), Some("ame"));
    assert_eq!(btf.string(first + 5), None);

    // A source line in Latin-1.
    let mut bytes = one_int().to_bytes().expect("fits");
    let at = bytes.len() - 3;
    bytes[at] = 0xe9;
    let btf = Btf::parse(&bytes).expect("sound");
    assert_eq!(btf.type_by_id(1).map(|t| t.name()), Some("i?t"));
    assert_eq!(btf.to_bytes(), bytes);
}

#[test]
fn records_can_be_changed() {
    let mut b = one_int();
    let var = b.var("v", 1, Linkage::Extern);
    let variable = VarSecinfo {
        type_id: var,
        offset: 0,
        size: 4,
    };
    let section = b.datasec(".data", 0, &[variable]);
    let [_, _, size, _, offset, _] = b.record_mut(section).expect("own") else {
        panic!("one variable")
    };
    (*size, *offset) = (24, 16);
    let [_, _, _, linkage] = b.record_mut(var).expect("own") else {
        panic!("a variable")
    };
    *linkage = Linkage::Global.number();
    let btf = b.build().expect("sound");
    let placed = btf.type_by_id(section).expect("there");
    assert_eq!(placed.size(), Some(24));
    assert_eq!(
        placed.variables().next(),
        Some(VarSecinfo {
            offset: 16,
            ..variable
        })
    );
    assert_eq!(
        btf.type_by_id(var).and_then(|v| v.linkage()),
        Some(Linkage::Global)
    );
    for id in [0, 4] {
        assert!(b.record_mut(id).is_none());
    }
    // The types of a base are not one's own.
    let mut b = BtfBuilder::split(Arc::new(btf));
    assert!(b.record_mut(var).is_none());
}

#[test]
fn too_many_items_are_refused() {
    let values = |n: usize| {
        let mut b = BtfBuilder::new();
        b.enumeration("e", 4, &vec![("", 0); n]);
        b.to_bytes().map(|_| ()).map_err(|e| e.kind().clone())
    };
    assert_eq!(values(0xffff), Ok(()));
    assert_eq!(values(0x1_0000), Err(BtfErrorKind::TooLarge));
    let mut b = one_int();
    b.structure("s", 4, &[MemberDef::bitfield("f", 1, 1 << 24, 1)]);
    assert_eq!(
        b.to_bytes().map_err(|e| e.kind().clone()),
        Err(BtfErrorKind::TooLarge)
    );
}

#[test]
fn the_kernel_s_types_are_all_found_by_name() {
    let Some(bytes) = common::vmlinux() else {
        return;
    };
    let btf = Btf::parse(&bytes).expect("the kernel's BTF is sound");
    assert_eq!(btf.to_bytes(), bytes);
    let task = btf
        .by_name("task_struct", Kind::Struct)
        .expect("every kernel has tasks");
    assert!(task.member_by_name("pid").is_some());
    let mut lost = 0;
    for t in btf.own_types().filter(|t| !t.name().is_empty()) {
        lost += usize::from(!btf.all_by_name(t.name()).any(|found| found.id() == t.id()));
    }
    assert_eq!(lost, 0);
}
