//! BTF.ext: what is read, changed, written back and refused.

mod common;

use bpfkit_btf::ext::{BtfExt, CoreRelo, FuncInfo, LineInfo, TableSection};
use bpfkit_btf::{Btf, BtfErrorKind, Section};

const OBJECT: &[u8] = include_bytes!("../testdata/types.bpf.o");

fn object() -> (Btf, Vec<u8>) {
    let elf = common::Elf::parse(OBJECT).expect("an object");
    let btf = Btf::parse(elf.section(".BTF").expect("types")).expect("sound");
    (btf, elf.section(".BTF.ext").expect("records").to_vec())
}

#[test]
fn a_compiler_s_records_are_read_by_section() {
    let (btf, bytes) = object();
    let ext = BtfExt::parse(&bytes).expect("sound");
    let [function] = ext.func_info.section(&btf, "socket") else {
        panic!("one function")
    };
    assert_eq!(
        btf.type_by_id(function.type_id).map(|t| t.name()),
        Some("entry")
    );
    assert_eq!(ext.func_info.section(&btf, ".text").len(), 1);
    assert_eq!(ext.func_info.section(&btf, "nowhere"), []);

    let lines = ext.line_info.section(&btf, "socket");
    let first = lines.first().expect("lines");
    assert_eq!(first.insn_off, 0);
    assert!(first.line() > 40);
    assert!(lines.iter().any(|l| l.column() > 0));
    assert_eq!(btf.string(first.file_name_off), Some("./types.c"));
    assert!(
        btf.string(first.line_off)
            .is_some_and(|l| l.contains("entry(struct node *node)"))
    );

    let relocations = ext.core_relo.section(&btf, "socket");
    let kinds: std::collections::BTreeSet<_> = relocations.iter().map(|r| r.kind).collect();
    assert_eq!(kinds.len(), 13, "the object has every kind: {kinds:?}");
    assert_eq!(ext.core_relo.section(&btf, ".text").len(), 2);
}

#[test]
fn what_is_read_is_written_back() {
    let (_, bytes) = object();
    let mut ext = BtfExt::parse(&bytes).expect("sound");
    assert_eq!(ext.to_bytes(), bytes);
    ext.big_endian = true;
    let swapped = ext.to_bytes();
    assert_ne!(swapped, bytes);
    assert_eq!(BtfExt::parse(&swapped).as_ref(), Ok(&ext));
    // Moved instructions.
    for section in &mut ext.line_info.sections {
        section.records.iter_mut().for_each(|r| r.insn_off += 8);
    }
    assert_eq!(BtfExt::parse(&ext.to_bytes()), Ok(ext));
}

#[test]
fn older_headers_and_longer_records_are_taken() {
    let word = |v: u32| v.to_le_bytes();
    let header = [0x0001_eb9f, 24, 0, 24, 24, 36];
    // func_info with records of three words, line_info of five.
    let tables = [12, 1, 2, 8, 5, 77, 88, 9, 99, 20, 1, 1, 0, 2, 3, 4, 66];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(word).collect();
    bytes.extend(tables.into_iter().take(9).flat_map(word).take(24 + 12));
    // Nine words of func_info: 4 + 8 + 2 × 12 bytes.
    bytes[12..16].copy_from_slice(&word(36));
    bytes[16..20].copy_from_slice(&word(36));
    bytes[20..24].copy_from_slice(&word(32));
    bytes.extend(tables.into_iter().skip(9).flat_map(word));
    let ext = BtfExt::parse(&bytes).expect("sound");
    assert_eq!(ext.func_info.record_size, 12);
    assert_eq!(
        ext.func_info.sections,
        [TableSection {
            name_off: 1,
            records: vec![
                FuncInfo {
                    insn_off: 8,
                    type_id: 5
                },
                FuncInfo {
                    insn_off: 88,
                    type_id: 9
                }
            ],
            extra: [word(77), word(99)].concat(),
        }]
    );
    let [lines] = ext.line_info.sections.as_slice() else {
        panic!("one section")
    };
    let line = LineInfo {
        insn_off: 0,
        file_name_off: 2,
        line_off: 3,
        line_col: 4,
    };
    assert_eq!(
        (lines.records.as_slice(), lines.extra.as_slice()),
        ([line].as_slice(), &word(66)[..])
    );
    assert!(ext.core_relo.is_empty());
    assert_eq!(BtfExt::parse(&ext.to_bytes()), Ok(ext));
}

#[test]
fn records_can_be_added() {
    let mut ext = BtfExt::default();
    let record = CoreRelo {
        insn_off: 16,
        type_id: 3,
        access_str_off: 9,
        kind: 2,
    };
    ext.core_relo.sections.push(TableSection {
        name_off: 1,
        records: vec![record],
        extra: vec![],
    });
    ext.core_relo.sections.push(TableSection {
        name_off: 5,
        records: vec![],
        extra: vec![],
    });
    let read = BtfExt::parse(&ext.to_bytes()).expect("sound");
    assert_eq!(
        read.core_relo.sections.len(),
        1,
        "a section without records is left out"
    );
    assert_eq!(read.core_relo.len(), 1);
}

#[test]
fn damage_is_named() {
    let (_, bytes) = object();
    let error = |at: usize, word: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        let error = BtfExt::parse(&bytes).expect_err("refused");
        assert_eq!(error.section(), Section::BtfExt);
        error.kind().clone()
    };
    assert_eq!(error(0, 0x1_0000), BtfErrorKind::Magic(0));
    assert_eq!(error(0, 0x3_eb9f), BtfErrorKind::Version(3));
    assert!(matches!(error(4, 20), BtfErrorKind::HeaderCut { .. }));
    assert_eq!(error(8, 2), BtfErrorKind::Unaligned("func_info"));
    assert!(matches!(
        error(12, u32::MAX),
        BtfErrorKind::Layout {
            part: "func_info",
            ..
        }
    ));
    assert!(matches!(
        error(12, 3),
        BtfErrorKind::Layout {
            part: "func_info",
            ..
        }
    ));
    assert_eq!(error(12, 4), BtfErrorKind::NoRecords("func_info"));
    assert_eq!(
        error(32, 4),
        BtfErrorKind::RecordSize {
            table: "func_info",
            size: 4
        }
    );
    assert_eq!(
        error(32, 10),
        BtfErrorKind::RecordSize {
            table: "func_info",
            size: 10
        }
    );
    assert_eq!(error(40, 0), BtfErrorKind::NoRecords("func_info"));
    let many = 0x2000_0001;
    assert_eq!(
        error(40, many),
        BtfErrorKind::RecordsCut {
            table: "func_info",
            records: many
        }
    );
    assert!(BtfExt::parse(&[]).is_err());
    assert!(BtfExt::parse(&bytes[..32]).is_err());
    let text = BtfExt::parse(&bytes[..40]).expect_err("cut").to_string();
    assert!(
        text.starts_with(".BTF.ext+0x8: func_info (offset 0, "),
        "{text}"
    );
}
