//! Damaged input: whatever it is made of, reading it and everything that can be asked
//! of it ends, in little time and without a panic.

mod common;

use bpfkit_btf::core::{RawInsn, Relocator};
use bpfkit_btf::ext::BtfExt;
use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, MemberDef, dump};
use proptest::prelude::*;

const OBJECT: &[u8] = include_bytes!("../testdata/types.bpf.o");

fn sections() -> (Vec<u8>, Vec<u8>) {
    let elf = common::Elf::parse(OBJECT).expect("an object");
    let section = |name| elf.section(name).expect("there").to_vec();
    (section(".BTF"), section(".BTF.ext"))
}

/// Asks everything there is to ask.
fn exercise(btf: &Btf) {
    for id in 0..btf.type_count().min(100) {
        let Some(t) = btf.type_by_id(id) else {
            continue;
        };
        btf.size_of(id);
        btf.align_of(id);
        btf.resolve(id);
        btf.pointer_tags(id);
        btf.decl_tags(id).for_each(drop);
        btf.walk(id, id).take(100).for_each(drop);
        t.members().for_each(|m| drop(m.name().to_owned()));
        t.params().for_each(|p| drop(p.name().to_owned()));
        t.enum_values().for_each(|v| drop(v.value().to_string()));
        t.variables().for_each(drop);
        btf.by_name(t.name(), t.kind());
        if id % 16 == 0 {
            let _ = dump::c_declaration(btf, id, "x");
        }
    }
    dump::raw(btf);
    let _ = dump::c_file(btf);
    let bytes = btf.to_bytes();
    let again = Btf::parse(&bytes).map(|b| b.to_bytes());
    assert_eq!(again, Ok(bytes), "what was accepted is accepted again");
    BtfBuilder::from_btf(btf)
        .build()
        .expect("and so are its parts");
}

fn relocate(local: &Btf, ext: &BtfExt, target: &Btf) {
    let mut relocator = Relocator::new(local, Some(target), Vec::new());
    for relo in ext.core_relo.sections.iter().flat_map(|s| &s.records) {
        let Ok(found) = relocator.resolve(relo) else {
            continue;
        };
        let _ = relocator.describe(relo);
        for code in [0x07, 0x18, 0x61, 0x62, 0x63, 0xb7] {
            let insn = RawInsn {
                code,
                imm: found.original as i32,
                ..RawInsn::default()
            };
            let _ = found.patch(0, insn, Some(RawInsn::default()));
        }
    }
}

/// xorshift64*: the same mutations on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }

    /// Changes bytes or words, or cuts the end.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.next(4) {
            let words = bytes.len() / 4;
            let at = 4 * self.next(words);
            let Some(word) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<4>()) else {
                return;
            };
            match self.next(8) {
                0 => word[self.next(4)] ^= 1 << self.next(8),
                1 => *word = (self.next(64) as u32).to_le_bytes(),
                2 => *word = u32::MAX.to_le_bytes(),
                3 => *word = ((self.next(21) as u32) << 24 | self.next(9) as u32).to_le_bytes(),
                4 => {
                    let small = self.next(5) as u32;
                    *word = u32::from_le_bytes(*word)
                        .wrapping_add(small)
                        .wrapping_sub(2)
                        .to_le_bytes();
                }
                5 | 6 => {
                    let from = 4 * self.next(words);
                    let copy = bytes
                        .get(from..from + 4)
                        .map(<[u8]>::to_vec)
                        .unwrap_or_default();
                    if let Some(word) = bytes.get_mut(at..at + copy.len()) {
                        word.copy_from_slice(&copy);
                    }
                }
                _ if self.next(16) == 0 => bytes.truncate(at),
                _ => word[3] ^= 0x80,
            }
        }
    }
}

#[test]
fn damaged_types_are_refused_or_can_be_used() {
    let (types, records) = sections();
    let ext = BtfExt::parse(&records).expect("sound");
    let sound = Btf::parse(&types).expect("sound");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..800 {
        let mut bytes = types.clone();
        random.damage(&mut bytes);
        let Ok(btf) = Btf::parse(&bytes) else {
            continue;
        };
        accepted += 1;
        exercise(&btf);
        relocate(&btf, &ext, &sound);
        relocate(&sound, &ext, &btf);
        relocate(&btf, &ext, &btf);
    }
    assert!(
        accepted > 100,
        "only {accepted} were accepted: the damage is too coarse"
    );
}

#[test]
fn damaged_records_are_refused_or_can_be_used() {
    let (types, records) = sections();
    let btf = Btf::parse(&types).expect("sound");
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut accepted = 0;
    for _ in 0..6_000 {
        let mut bytes = records.clone();
        random.damage(&mut bytes);
        let Ok(ext) = BtfExt::parse(&bytes) else {
            continue;
        };
        accepted += 1;
        assert_eq!(
            BtfExt::parse(&ext.to_bytes()).map(|e| e.func_info),
            Ok(ext.func_info.clone())
        );
        relocate(&btf, &ext, &btf);
    }
    assert!(
        accepted > 500,
        "only {accepted} were accepted: the damage is too coarse"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_after_a_sound_header(types in proptest::collection::vec(any::<u32>(), 0..64), strings in "[a-c\\x00]{0,8}") {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let strings = format!("\0{strings}\0");
        let len = 4 * types.len() as u32;
        for word in [24, 0, len, len, strings.len() as u32].into_iter().chain(types) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(strings.as_bytes());
        if let Ok(btf) = Btf::parse(&bytes) {
            exercise(&btf);
        }
        let _ = BtfExt::parse(&bytes);
    }

    #[test]
    fn types_that_refer_to_each_other_at_random(
        kinds in proptest::collection::vec((1u32..20, 0u32..12, 0u32..12, 0u32..5), 1..12)
    ) {
        let mut words = Vec::new();
        for &(kind, a, b, vlen) in &kinds {
            let name = [0, 1, 1, 3][(a % 4) as usize];
            let info = kind << 24 | if matches!(kind, 4..=6 | 12 | 13 | 15 | 19) { vlen } else { 0 };
            words.extend([name, info, a]);
            let per_item: &[u32] = match kind {
                4 | 5 => &[name, b, a * 8],
                6 => &[1, a],
                13 => &[name, b],
                15 => &[b, a, 4],
                19 => &[1, a, b],
                _ => &[],
            };
            (0..vlen).for_each(|_| words.extend(per_item));
            match kind {
                1 | 14 | 17 => words.push(b),
                3 => words.extend([b, a, vlen]),
                _ => {}
            }
        }
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let len = 4 * words.len() as u32;
        for word in [24, 0, len, len, 6].into_iter().chain(words) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"\0a\0bc\0");
        if let Ok(btf) = Btf::parse(&bytes) {
            exercise(&btf);
        }
    }
}

#[test]
fn types_made_to_be_slow_to_print_end() {
    let doubled = |f: fn(&mut BtfBuilder, u32) -> u32| {
        let mut b = BtfBuilder::new();
        let mut inner = b.int("int", 4, IntEncoding::SIGNED);
        for _ in 0..40 {
            inner = f(&mut b, inner);
        }
        b.structure("s", 4, &[MemberDef::new("x", inner, 0)]);
        let btf = b.build().expect("sound");
        assert!(dump::c_file(&btf).is_err());
    };
    doubled(|b, i| {
        b.structure(
            "",
            4,
            &[MemberDef::new("a", i, 0), MemberDef::new("b", i, 0)],
        )
    });
    doubled(|b, i| b.func_proto(i, &[("a", i), ("b", i)]));
    // A gap of 2^32 bits.
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::SIGNED);
    b.structure("s", 4, &[MemberDef::new("a", int, u32::MAX - 31)]);
    assert_eq!(
        dump::c_file(&b.build().expect("sound")),
        Err(dump::DumpError::TooLong)
    );
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = |f: fn(&mut BtfBuilder, u32) -> u32| {
        let mut b = BtfBuilder::new();
        let mut inner = b.int("int", 4, IntEncoding::SIGNED);
        for _ in 0..6_000 {
            inner = f(&mut b, inner);
        }
        b.typedef("t", inner);
        exercise(&b.build().expect("sound"));
    };
    deep(|b, i| b.structure("", 4, &[MemberDef::new("a", i, 0)]));
    deep(|b, i| b.ptr(i));
    deep(|b, i| b.array(i, 1, 1));
    deep(|b, i| b.func_proto(i, &[("a", i)]));
    deep(|b, i| b.typedef("t", i));
}
