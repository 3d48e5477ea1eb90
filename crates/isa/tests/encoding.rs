//! Decoding and encoding: round trips over the whole encoding space, and the
//! reason given for each kind of malformed instruction.

use bpfkit_isa::{
    AluOp, DecodeError, FieldName, Imm64, Insn, Op, Operand, Reg, Size, Width, decode_program,
    table,
};
use proptest::prelude::*;

/// Values of the 16-bit field that select, sign-extend or wrap.
const OFFS: &[i16] = &[
    0,
    1,
    -1,
    2,
    8,
    16,
    32,
    64,
    -2,
    127,
    128,
    255,
    256,
    i16::MAX,
    i16::MIN,
];

/// The same for the 32-bit field.
const IMMS: &[i32] = &[
    0,
    1,
    -1,
    2,
    16,
    32,
    64,
    0x40,
    0x41,
    0x50,
    0x51,
    0xa0,
    0xa1,
    0xe0,
    0xe1,
    0xf0,
    0xf1,
    0x100,
    0x110,
    0x111,
    0x10000,
    0x20001,
    i32::MAX,
    i32::MIN,
];

/// Every opcode with every selector and edge value; the slot after it is as given.
fn each_slot(mut check: impl FnMut(Insn)) {
    for code in 0..=255 {
        for src in 0..16 {
            for dst in [0, 10, 11] {
                for &off in OFFS {
                    for &imm in IMMS {
                        check(Insn {
                            code,
                            dst,
                            src,
                            off,
                            imm,
                        });
                    }
                }
            }
        }
    }
}

fn round_trip(slots: &[Insn]) -> bool {
    let Ok(op) = Op::decode(slots) else {
        return false;
    };
    let (first, second) = op.encode();
    assert_eq!(slots[0], first, "{op:?}");
    assert_eq!(second.is_some(), op.slots() == 2);
    if let Some(second) = second {
        assert_eq!(slots[1], second, "{op:?}");
    }
    assert!(op.row().is_some());
    true
}

#[test]
fn what_decodes_encodes_to_the_same_bits() {
    let mut decoded = 0u32;
    each_slot(|insn| {
        for imm in [0, 5, -1] {
            decoded += u32::from(round_trip(&[
                insn,
                Insn {
                    imm,
                    ..Insn::default()
                },
            ]));
        }
    });
    assert!(decoded > 100_000, "only {decoded} decoded");
}

#[test]
fn each_row_is_reached_by_its_own_encoding() {
    for row in table::rows() {
        let value = |field, any| match field {
            table::Field::Is(v) => v,
            table::Field::Zero => 0,
            table::Field::Reg => 10,
            table::Field::Any => any,
        };
        let slots = [
            Insn {
                code: row.code,
                dst: value(row.dst, 0) as u8,
                src: value(row.src, 0) as u8,
                off: value(row.off, -7) as i16,
                imm: value(row.imm, 0x1234_5678),
            },
            Insn {
                imm: row.next.map_or(0, |field| value(field, -9)),
                ..Insn::default()
            },
        ];
        let op = Op::decode(&slots).unwrap_or_else(|e| panic!("{}: {e}", row.mnemonic));
        assert_eq!(
            op.row().map(|r| (r.mnemonic, r.code)),
            Some((row.mnemonic, row.code))
        );
        assert!(round_trip(&slots));
    }
}

#[test]
fn no_two_rows_share_an_encoding_or_a_text() {
    let rows: Vec<_> = table::rows().collect();
    for (i, a) in rows.iter().enumerate() {
        for b in &rows[i + 1..] {
            let apart =
                |x, y| matches!((x, y), (table::Field::Is(x), table::Field::Is(y)) if x != y);
            assert!(
                a.code != b.code
                    || apart(a.src, b.src)
                    || apart(a.off, b.off)
                    || apart(a.imm, b.imm),
                "{} and {} overlap",
                a.mnemonic,
                b.mnemonic
            );
            assert_ne!(a.llvm, b.llvm);
            assert_ne!(a.kernel, b.kernel);
        }
    }
}

#[test]
fn every_malformed_instruction_gets_its_reason() {
    let slot = |code, dst, src, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    let lddw = slot(0x18, 1, 0, 0, 5);
    let cases: &[(&[Insn], &str)] = &[
        (&[], "no instruction: the program ends here"),
        (&[slot(0xff, 0, 0, 0, 0)], "unknown opcode 0xff"),
        (&[slot(0x00, 0, 0, 0, 0)], "unknown opcode 0x00"),
        (&[slot(0x99, 0, 0, 0, 0)], "unknown opcode 0x99"),
        (
            &[slot(0xbf, 1, 2, 5, 0)],
            "mov (opcode 0xbf): off 5 selects no instruction",
        ),
        (
            &[slot(0x85, 0, 3, 0, 0)],
            "call (opcode 0x85): src 3 selects no instruction",
        ),
        (
            &[slot(0xdb, 1, 2, 0, 0x60)],
            "atomic_add (opcode 0xdb): imm 96 selects no instruction",
        ),
        (
            &[slot(0xd4, 1, 0, 0, 8)],
            "le16 (opcode 0xd4): imm 8 selects no instruction",
        ),
        (
            &[slot(0xb7, 1, 2, 0, 8)],
            "mov (opcode 0xb7): reserved field src is 2, must be 0",
        ),
        (
            &[slot(0x0f, 1, 2, 0, 8)],
            "add (opcode 0x0f): reserved field imm is 8, must be 0",
        ),
        (
            &[slot(0x61, 1, 2, 0, 1)],
            "ldxw (opcode 0x61): reserved field imm is 1, must be 0",
        ),
        (
            &[slot(0x95, 0, 0, 0, 1)],
            "exit (opcode 0x95): reserved field imm is 1, must be 0",
        ),
        (
            &[slot(0xb7, 11, 0, 0, 8)],
            "mov (opcode 0xb7): dst register r11 does not exist",
        ),
        (
            &[slot(0x0f, 1, 15, 0, 0)],
            "add (opcode 0x0f): src register r15 does not exist",
        ),
        (&[lddw], "lddw (opcode 0x18): second slot is missing"),
        (
            &[lddw, slot(0x95, 0, 0, 0, 0)],
            "lddw (opcode 0x18): opcode of the second slot is 149, must be 0",
        ),
        (
            &[lddw, slot(0, 0, 0, 3, 0)],
            "lddw (opcode 0x18): off of the second slot is 3, must be 0",
        ),
        (
            &[slot(0x18, 1, 1, 0, 5), slot(0, 0, 0, 0, 3)],
            "lddw (opcode 0x18): imm of the second slot is 3, must be 0",
        ),
        (
            &[slot(0x18, 1, 7, 0, 5), slot(0, 0, 0, 0, 3)],
            "lddw (opcode 0x18): src 7 selects no instruction",
        ),
    ];
    for (slots, message) in cases {
        assert_eq!(Op::decode(slots).unwrap_err().to_string(), *message);
    }
}

#[test]
fn a_program_error_carries_the_offset() {
    let exit = Insn {
        code: 0x95,
        ..Insn::default()
    };
    let lddw = Insn {
        code: 0x18,
        ..Insn::default()
    };
    let zero = Insn::default();
    let ops = decode_program(&[lddw, zero, exit]).unwrap();
    assert_eq!(
        ops,
        [
            Some(Op::LoadImm64 {
                dst: Reg::R0,
                value: Imm64::Value(0)
            }),
            None,
            Some(Op::Exit)
        ]
    );
    let error = decode_program(&[lddw, zero, zero]).unwrap_err();
    assert_eq!(
        (error.at, error.error),
        (2, DecodeError::UnknownOpcode { code: 0 })
    );
    let error = decode_program(&[exit, lddw]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "instruction 1: lddw (opcode 0x18): second slot is missing"
    );
    assert_eq!(decode_program(&[]), Ok(vec![]));
}

#[test]
fn an_op_outside_its_domain_encodes_to_no_instruction() {
    for op in [
        Op::MovSx {
            width: Width::W32,
            bits: 32,
            dst: Reg::R1,
            src: Reg::R2,
        },
        Op::Load {
            size: Size::DW,
            signed: true,
            dst: Reg::R1,
            base: Reg::R2,
            off: 0,
        },
        Op::Swap {
            kind: bpfkit_isa::Swap::ToBe,
            bits: 8,
            dst: Reg::R1,
        },
    ] {
        let (first, second) = op.encode();
        assert_eq!(
            (first, second, op.row().is_some()),
            (Insn::default(), None, false)
        );
        assert_eq!(
            Op::decode(&[first]),
            Err(DecodeError::UnknownOpcode { code: 0 })
        );
    }
}

#[test]
fn known_encodings() {
    let cases = [
        (
            0x0000_0004_0000_0107,
            Op::Alu {
                op: AluOp::Add,
                width: Width::W64,
                dst: Reg::R1,
                src: Operand::Imm(4),
            },
        ),
        (
            0x0000_0000_fffc_2181,
            Op::Load {
                size: Size::W,
                signed: true,
                dst: Reg::R1,
                base: Reg::R2,
                off: -4,
            },
        ),
        (
            0x0000_0000_0001_213f,
            Op::Alu {
                op: AluOp::SDiv,
                width: Width::W64,
                dst: Reg::R1,
                src: Operand::Reg(Reg::R2),
            },
        ),
    ];
    for (bits, op) in cases {
        let insn = Insn::from_le_bytes(u64::to_le_bytes(bits));
        assert_eq!(Op::decode(&[insn]), Ok(op));
        assert_eq!(op.encode().0.to_le_bytes(), u64::to_le_bytes(bits));
    }
}

proptest! {
    #[test]
    fn random_slots_round_trip(slots in prop::collection::vec(any::<[u8; 8]>(), 0..4)) {
        let insns: Vec<_> = slots.iter().map(|&b| Insn::from_le_bytes(b)).collect();
        if !insns.is_empty() {
            round_trip(&insns);
        }
        if let Err(error) = decode_program(&insns) {
            prop_assert!(error.at < insns.len());
        }
        for (bytes, insn) in slots.iter().zip(&insns) {
            prop_assert_eq!(&insn.to_le_bytes(), bytes);
            prop_assert_eq!(&Insn::from_be_bytes(insn.to_be_bytes()), insn);
        }
    }

    #[test]
    fn an_error_names_a_field_that_is_there(bytes in any::<[u8; 8]>(), code in prop::sample::select(vec![0xbfu8, 0xb7, 0x85, 0xdb, 0x61, 0x7b, 0x95])) {
        let insn = Insn { code, ..Insn::from_le_bytes(bytes) };
        if let Err(DecodeError::Reserved { field, value, .. }) = Op::decode(&[insn]) {
            let held = match field {
                FieldName::Code => i32::from(insn.code),
                FieldName::Dst => i32::from(insn.dst),
                FieldName::Src => i32::from(insn.src),
                FieldName::Off => i32::from(insn.off),
                FieldName::Imm => insn.imm,
            };
            prop_assert_eq!(held, value);
            prop_assert_ne!(value, 0);
        }
    }
}
