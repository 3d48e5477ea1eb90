//! Putting the result into an instruction.

use bpfkit_btf::core::ReloKind::FieldByteOffset;
use bpfkit_btf::core::{CoreError, POISON, Poison, RawInsn, Resolution};
use bpfkit_btf::{IntEncoding, MemberDef};

use crate::{FIRST, INT, LONG, PTR, UINT, m, resolve, s, types, with_struct};

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
