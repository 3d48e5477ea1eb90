//! Both syntaxes: what the disassembler prints, that the assembler reads it back to the
//! same bits, and what the assembler says of text that is wrong.

use std::borrow::Cow;

use bpfkit_isa::asm::{self, MapRef, Resolver, assemble, assemble_with};
use bpfkit_isa::disasm::{NoSymbols, Symbols, line, listing};
use bpfkit_isa::table::{self, Field, Row};
use bpfkit_isa::{Imm64, Insn, Op, Syntax};
use proptest::prelude::*;

const OFFS: &[i16] = &[0, 1, -1, 4, -4, 255, i16::MAX, i16::MIN];
const IMMS: &[i32] = &[0, 1, -1, 5, -5, 255, 0x10000, 0x20001, i32::MAX, i32::MIN];

/// The slots of a form with these operands.
fn slots(row: &Row, dst: u8, src: u8, off: i16, imm: i32, next: i32) -> Vec<Insn> {
    let pick = |field, any| match field {
        Field::Is(v) => v,
        Field::Zero => 0,
        Field::Reg | Field::Any => any,
    };
    let first = Insn {
        code: row.code,
        dst: pick(row.dst, dst.into()) as u8,
        src: pick(row.src, src.into()) as u8,
        off: pick(row.off, off.into()) as i16,
        imm: pick(row.imm, imm),
    };
    let second = row.next.map(|field| Insn {
        imm: pick(field, next),
        ..Insn::default()
    });
    [first].into_iter().chain(second).collect()
}

/// Every form with all registers, and with edge values of its other operands.
fn each_encodable(mut check: impl FnMut(&[Insn])) {
    for row in table::rows() {
        for dst in 0..=10 {
            for src in 0..=10 {
                check(&slots(row, dst, src, -8, 16, 3));
            }
        }
        for &off in OFFS {
            for &imm in IMMS {
                for &next in if row.next.is_some() { IMMS } else { &[0] } {
                    check(&slots(row, 1, 2, off, imm, next));
                }
            }
        }
    }
}

/// Prints and reads back in a syntax.
fn round_trip(insns: &[Insn], syntax: Syntax) {
    let text = line(insns, 0, syntax, &NoSymbols).to_string();
    match assemble(&text) {
        Ok(back) => assert_eq!(back.insns, insns, "{text}"),
        Err(error) => panic!("{text}: {error}"),
    }
}

#[test]
fn every_instruction_round_trips_through_the_kernels_syntax() {
    each_encodable(|insns| round_trip(insns, Syntax::Kernel));
}

#[test]
fn every_instruction_round_trips_through_llvms_syntax() {
    each_encodable(|insns| round_trip(insns, Syntax::Llvm));
}

#[test]
fn the_kernels_text_needs_its_opcode_only_for_64_bit_constants() {
    each_encodable(|insns| {
        let text = line(insns, 0, Syntax::Kernel, &NoSymbols).to_string();
        let bare = assemble(&text[5..]);
        if insns[0].code == 0x18 && insns[0].src == 0 {
            assert_ne!(bare.map(|a| a.insns), Ok(insns.to_vec()), "{text}");
        } else {
            assert_eq!(bare.map(|a| a.insns), Ok(insns.to_vec()), "{text}");
        }
    });
}

#[test]
fn listings_round_trip() {
    let mut program = Vec::new();
    for row in table::rows() {
        program.extend(slots(row, 3, 4, -2, 16, 0));
    }
    for syntax in [Syntax::Kernel, Syntax::Llvm] {
        let text = listing(&program, syntax, &NoSymbols).to_string();
        let back = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(back.insns, program);
    }
}

/// Names as a caller would give them.
struct Names;

impl Symbols for Names {
    fn helper(&self, id: i32) -> Option<Cow<'_, str>> {
        (id == 1).then_some("bpf_map_lookup_elem".into())
    }

    fn kfunc(&self, btf_id: i32, _: i16) -> Option<Cow<'_, str>> {
        (btf_id == 777).then_some("bpf_task_acquire".into())
    }

    fn label(&self, slot: usize) -> Option<Cow<'_, str>> {
        (slot == 4).then_some("sub".into())
    }

    fn imm64(&self, _: usize, value: Imm64) -> Option<Cow<'_, str>> {
        match value {
            Imm64::MapFd(fd) => Some(format!("map[id:{}]", fd + 100).into()),
            _ => None,
        }
    }
}

impl Resolver for Names {
    fn helper(&self, name: &str) -> Option<i32> {
        (name == "bpf_map_lookup_elem").then_some(1)
    }

    fn kfunc(&self, name: &str) -> Option<(i32, i16)> {
        (name == "bpf_task_acquire").then_some((777, 2))
    }

    fn map(&self, name: &str) -> Option<MapRef> {
        match name {
            "flows" => Some(MapRef::Fd(3)),
            ".rodata" => Some(MapRef::Index(1)),
            _ => None,
        }
    }

    fn symbol(&self, name: &str) -> Option<Imm64> {
        (name == "bpf_prog_active").then_some(Imm64::BtfId { id: 9, btf_fd: 0 })
    }
}

/// Little-endian slots, kernel text, LLVM text; the first slot stands at slot 0.
const TEXTS: &[(&[u64], &str, &str)] = &[
    (&[0x0000_0000_0000_00b7], "(b7) r0 = 0", "r0 = 0x0"),
    (&[0xffff_fffc_0000_0107], "(07) r1 += -4", "r1 += -0x4"),
    (
        &[0x8000_0000_0000_01b4],
        "(b4) w1 = -2147483648",
        "w1 = -0x80000000",
    ),
    (&[0x0000_0000_0000_0184], "(84) w1 = -w1", "w1 = -w1"),
    (&[0x0000_0000_0001_213f], "(3f) r1 s/= r2", "r1 s/= r2"),
    (&[0x0000_0005_0001_0194], "(94) w1 s%= 5", "w1 s%= 0x5"),
    (&[0x0000_0000_0000_21cf], "(cf) r1 s>>= r2", "r1 s>>= r2"),
    (&[0x0000_0000_0008_21bf], "(bf) r1 = (s8)r2", "r1 = (s8)r2"),
    (
        &[0x0000_0000_0010_21bc],
        "(bc) w1 = (s16)w2",
        "w1 = (s16)w2",
    ),
    (
        &[0x0000_0010_0000_01d7],
        "(d7) r1 = bswap16 r1",
        "r1 = bswap16 r1",
    ),
    (
        &[0x0000_0040_0000_01dc],
        "(dc) r1 = be64 r1",
        "r1 = be64 r1",
    ),
    (
        &[0x0000_0001_0001_21bf],
        "(bf) r1 = addr_space_cast(r2, 0, 1)",
        "r1 = addr_space_cast(r2, 0x0, 0x1)",
    ),
    (
        &[0x0000_0000_ffff_21bf],
        "(bf) r1 = &(void __percpu *)(r2)",
        "r1 = &(void __percpu *)(r2)",
    ),
    (
        &[0x0000_0000_fffc_2171],
        "(71) r1 = *(u8 *)(r2 -4)",
        "w1 = *(u8 *)(r2 - 0x4)",
    ),
    (
        &[0x0000_0000_0000_1261],
        "(61) r2 = *(u32 *)(r1 +0)",
        "w2 = *(u32 *)(r1 + 0x0)",
    ),
    (
        &[0x0000_0000_0008_2181],
        "(81) r1 = *(s32 *)(r2 +8)",
        "r1 = *(s32 *)(r2 + 0x8)",
    ),
    (
        &[0x0000_0000_0008_2163],
        "(63) *(u32 *)(r1 +8) = r2",
        "*(u32 *)(r1 + 0x8) = w2",
    ),
    (
        &[0xffff_fffb_fff8_0a7a],
        "(7a) *(u64 *)(r10 -8) = -5",
        "*(u64 *)(r10 - 0x8) = -0x5",
    ),
    (
        &[0x0000_000c_0000_0030],
        "(30) r0 = *(u8 *)skb[12]",
        "r0 = *(u8 *)skb[0xc]",
    ),
    (
        &[0x0000_0000_0000_3048],
        "(48) r0 = *(u16 *)skb[r3 + 0]",
        "r0 = *(u16 *)skb[r3]",
    ),
    (
        &[0xffff_ffff_0000_3040],
        "(40) r0 = *(u32 *)skb[r3 + -1]",
        "r0 = *(u32 *)skb[r3 + -0x1]",
    ),
    (
        &[0x0000_0000_0000_21c3],
        "(c3) lock *(u32 *)(r1 +0) += r2",
        "lock *(u32 *)(r1 + 0x0) += w2",
    ),
    (
        &[0x0000_0041_0000_21db],
        "(db) r2 = atomic64_fetch_or((u64 *)(r1 +0), r2)",
        "r2 = atomic_fetch_or((u64 *)(r1 + 0x0), r2)",
    ),
    (
        &[0x0000_0001_0000_21c3],
        "(c3) r2 = atomic_fetch_add((u32 *)(r1 +0), r2)",
        "w2 = atomic_fetch_add((u32 *)(r1 + 0x0), w2)",
    ),
    (
        &[0x0000_00e1_0000_21db],
        "(db) r2 = atomic64_xchg((u64 *)(r1 +0), r2)",
        "r2 = xchg_64(r1 + 0x0, r2)",
    ),
    (
        &[0x0000_00f1_0000_21c3],
        "(c3) r0 = atomic_cmpxchg((u32 *)(r1 +0), r0, r2)",
        "w0 = cmpxchg32_32(r1 + 0x0, w0, w2)",
    ),
    (
        &[0x0000_0100_0000_21cb],
        "(cb) r1 = load_acquire((u16 *)(r2 +0))",
        "w1 = load_acquire((u16 *)(r2 + 0x0))",
    ),
    (
        &[0x0000_0110_0000_21db],
        "(db) store_release((u64 *)(r1 +0), r2)",
        "store_release((u64 *)(r1 + 0x0), r2)",
    ),
    (
        &[0x0000_0000_0003_0005],
        "(05) goto pc+3",
        "goto +0x3 <sub>",
    ),
    (&[0xffff_fffd_0000_0006], "(06) gotol pc-3", "gotol -0x3"),
    (
        &[0x0000_0005_0003_0165],
        "(65) if r1 s> 0x5 goto pc+3",
        "if r1 s> 0x5 goto +0x3 <sub>",
    ),
    (
        &[0xffff_fffb_0001_0116],
        "(16) if w1 == 0xfffffffb goto pc+1",
        "if w1 == -0x5 goto +0x1",
    ),
    (
        &[0x0000_0000_ffff_214d],
        "(4d) if r1 & r2 goto pc-1",
        "if r1 & r2 goto -0x1",
    ),
    (
        &[0x0000_0000_0003_00e5],
        "(e5) may_goto pc+3",
        "may_goto +0x3 <sub>",
    ),
    (
        &[0x0000_0001_0000_0085],
        "(85) call bpf_map_lookup_elem#1",
        "call 0x1",
    ),
    (
        &[0x0000_0400_0000_0085],
        "(85) call unknown#1024",
        "call 0x400",
    ),
    (
        &[0x0000_0003_0000_1085],
        "(85) call pc+3#sub",
        "call 0x3 <sub>",
    ),
    (
        &[0xffff_ffff_0000_1085],
        "(85) call pc-1",
        "call -0x1 <pc-1>",
    ),
    (
        &[0x0000_0309_0002_2085],
        "(85) call bpf_task_acquire#777",
        "call 0x309 <kfunc@2>",
    ),
    (
        &[0x0000_0005_0000_2085],
        "(85) call kernel-function#5",
        "call 0x5 <kfunc>",
    ),
    (&[0x0000_0000_0000_038d], "(8d) callx r3", "callx r3"),
    (&[0x0000_0000_0000_0095], "(95) exit", "exit"),
    (
        &[0x5566_7788_0000_0118, 0x1122_3344_0000_0000],
        "(18) r1 = 0x1122334455667788",
        "r1 = 0x1122334455667788 ll",
    ),
    (
        &[0xffff_fffb_0000_0118, 0xffff_ffff_0000_0000],
        "(18) r1 = 0xfffffffffffffffb",
        "r1 = -0x5 ll",
    ),
    (
        &[0x0000_0003_0000_1118, 0],
        "(18) r1 = map[id:103]",
        "r1 = map[id:103] ll",
    ),
    (
        &[0x0000_0003_0000_2118, 0x0000_0008_0000_0000],
        "(18) r1 = map[fd:3][0]+8",
        "r1 = map[fd:3][0]+8 ll",
    ),
    (
        &[0x0000_0003_0000_4118, 0],
        "(18) r1 = subprog[pc+3]",
        "r1 = subprog[+0x3 <sub>] ll",
    ),
    // Malformed: the kernel prints them before it refuses them.
    (&[0x0000_0060_0000_21db], "BUG_db", "<unknown>"),
    (&[0x0000_0000_0000_2121], "BUG_ldx_21", "<unknown>"),
    (&[0x0000_0000_0000_01a2], "BUG_st_a2", "<unknown>"),
    (&[0x0000_0000_0000_00c2], "(c2) nospec", "<unknown>"),
    (&[0x0000_0000_0000_0000], "BUG_ld_00", "<unknown>"),
    (&[0x0000_0008_0000_01d4], "(d4) r1 = le8 r1", "<unknown>"),
    (&[0x0000_0007_0005_21bf], "(bf) r1 = r2", "<unknown>"),
    (&[0x0000_0000_0000_0eb7], "(b7) r14 = 0", "<unknown>"),
    (&[0x0000_0000_0000_4085], "(85) call unknown#0", "<unknown>"),
    (&[0x0000_0009_0000_0118], "(18) r1 = 0x9", "<unknown>"),
];

fn insns(words: &[u64]) -> Vec<Insn> {
    words
        .iter()
        .map(|w| Insn::from_le_bytes(w.to_le_bytes()))
        .collect()
}

#[test]
fn texts_are_those_of_the_kernel_and_of_llvm() {
    for (words, kernel, llvm) in TEXTS {
        let insns = insns(words);
        assert_eq!(line(&insns, 0, Syntax::Kernel, &Names).to_string(), *kernel);
        assert_eq!(line(&insns, 0, Syntax::Llvm, &Names).to_string(), *llvm);
    }
}

#[test]
fn nothing_prints_past_the_end() {
    assert_eq!(line(&[], 0, Syntax::Kernel, &NoSymbols).to_string(), "");
    assert_eq!(
        line(&[Insn::default()], 7, Syntax::Llvm, &NoSymbols).to_string(),
        ""
    );
}

#[test]
fn a_listing_looks_like_the_tools() {
    let program = insns(&[0x05_0000_0118, 0, 0x1_0000_0085, 0x95, 0x95]);
    let lines = |syntax| {
        let text = listing(&program, syntax, &Names).to_string();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(Syntax::Kernel),
        [
            "   0: (18) r1 = 0x5",
            "   2: (85) call bpf_map_lookup_elem#1",
            "   3: (95) exit",
            "   4: (95) exit",
        ]
    );
    assert_eq!(
        lines(Syntax::Llvm),
        [
            "       0:\t18 01 00 00 05 00 00 00 00 00 00 00 00 00 00 00\tr1 = 0x5 ll",
            "       2:\t85 00 00 00 01 00 00 00\tcall 0x1",
            "       3:\t95 00 00 00 00 00 00 00\texit",
            "0000000000000020 <sub>:",
            "       4:\t95 00 00 00 00 00 00 00\texit",
        ]
    );
}

/// The program that `text` assembles to, in the kernel's syntax, a line each.
fn assembled(text: &str) -> Vec<String> {
    let insns = assemble_with(text, &Names)
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
        .insns;
    listing(&insns, Syntax::Kernel, &NoSymbols)
        .to_string()
        .lines()
        .map(|l| l[6..].to_owned())
        .collect()
}

#[test]
fn the_assembler_reads_what_clang_writes() {
    let text = "\
	.text
	.file	\"b.c\"
	.globl	f                               # -- Begin function f
	.p2align	3
	.type	f,@function
f:                                      # @f
.Lfunc_begin0:
	.loc	0 4 0                           # b.c:4:0
	.cfi_startproc
# %bb.0:
	#DEBUG_VALUE: f:p <- $r1
	r7 = r2
	*(u64 *)(r10 - 8) = r1
.Ltmp4:
	if r1 s> r7 goto LBB0_3
LBB0_2:                                 # =>This Inner Loop Header: Depth=1
	#APP
	w1 = *(u8 *)(r6 + 4)
	#NO_APP
	r8 <<= 32
	call bpf_map_lookup_elem
	r1 = flows ll
	call 14
	call sub
	if r7 s> r9 goto LBB0_2
LBB0_3:
	r2 = sub ll
	exit
.Lfunc_end0:
	.size	f, .Lfunc_end0-f
	.section	license,\"aw\",@progbits
	.ascii	\"GPL; and // more\"
_license:
	.8byte 77
	.section	xdp,\"ax\",@progbits
sub:
	r0 *= 3; exit
";
    assert_eq!(
        assembled(text),
        [
            "(bf) r7 = r2",
            "(7b) *(u64 *)(r10 -8) = r1",
            "(6d) if r1 s> r7 goto pc+8",
            "(71) r1 = *(u8 *)(r6 +4)",
            "(67) r8 <<= 32",
            "(85) call unknown#1",
            "(18) r1 = map[fd:3]",
            "(85) call unknown#14",
            "(85) call pc+4",
            "(6d) if r7 s> r9 goto pc-8",
            "(18) r2 = subprog[pc+2]",
            "(95) exit",
            "(27) r0 *= 3",
            "(95) exit",
        ]
    );
    let out = assemble_with(text, &Names).unwrap();
    let sections: Vec<_> = out
        .sections
        .iter()
        .map(|s| (s.name.as_str(), s.slot))
        .collect();
    assert_eq!(sections, [(".text", 0), ("xdp", 14)]);
    assert!(out.labels.contains(&asm::Label {
        name: "sub".into(),
        slot: 14
    }));
    assert_eq!(out.lines[..3], [12, 13, 15]);
}

#[test]
fn the_assembler_reads_names_labels_and_comments() {
    let cases: &[(&str, &[&str])] = &[
        ("r1 = map[flows] ll", &["(18) r1 = map[fd:3]"]),
        ("r1 = map[flows]", &["(18) r1 = map[fd:3]"]),
        ("r1 = map[flows][0]+4 ll", &["(18) r1 = map[fd:3][0]+4"]),
        (
            "r1 = map_value[.rodata][8] ll",
            &["(18) r1 = map[idx:1][0]+8"],
        ),
        ("r1 = map_value[flows] ll", &["(18) r1 = map[fd:3][0]+0"]),
        ("r1 = .rodata ll", &["(18) r1 = map[idx:1]"]),
        ("r1 = bpf_prog_active ll", &["(18) r1 = btf[id:9,fd:0]"]),
        ("(18) r1 = 0x5", &["(18) r1 = 0x5"]),
        ("r1 = -1 ll", &["(18) r1 = 0xffffffffffffffff"]),
        ("r1 = 0xffffffff", &["(b7) r1 = -1"]),
        (
            "if w1 == 4294967295 goto +1",
            &["(16) if w1 == 0xffffffff goto pc+1"],
        ),
        (
            "call bpf_task_acquire",
            &["(85) call kernel-function@2#777"],
        ),
        (
            "call kfunc bpf_task_acquire",
            &["(85) call kernel-function@2#777"],
        ),
        (
            "(85) call bpf_task_acquire#777",
            &["(85) call kernel-function@2#777"],
        ),
        (
            "12: (85) call bpf_map_lookup_elem#1   ; R0_w=map_value",
            &["(85) call unknown#1"],
        ),
        ("call bpf_unheard_of#211", &["(85) call unknown#211"]),
        ("call pc+3#some_name", &["(85) call pc+3"]),
        (
            "1: r0 = 0; goto 1b; 1: goto 1f // x\n1: exit",
            &[
                "(b7) r0 = 0",
                "(05) goto pc-2",
                "(05) goto pc+0",
                "(95) exit",
            ],
        ),
        ("; source line\n  ; another\nexit", &["(95) exit"]),
        ("/* a\n b */ exit # c", &["(95) exit"]),
        (
            "R1=5;r2=-r2\nr1=*(u32*)(r2+8)",
            &["(b7) r1 = 5", "(87) r2 = -r2", "(61) r1 = *(u32 *)(r2 +8)"],
        ),
        ("goto -3", &["(05) goto pc-3"]),
        ("goto 3", &["(05) goto pc+3"]),
        ("goto +0x3 <.text+0x108>", &["(05) goto pc+3"]),
        ("goto end\nend:", &["(05) goto pc+0"]),
        ("gotol end\nend:", &["(06) gotol pc+0"]),
        (
            "      37:	85 10 00 00 07 00 00 00	call 0x7",
            &["(85) call pc+7"],
        ),
        (
            "      37:\t85 20 02 00 07 00 00 00\tcall 0x7",
            &["(85) call kernel-function@2#7"],
        ),
        (
            "0000000000000130 <foo>:\n      38:\tb7 00 00 00 00 00 00 00\tr0 = 0x0",
            &["(b7) r0 = 0"],
        ),
        (
            "\nx.o:\tfile format elf64-bpf\n\nDisassembly of section .text:\n",
            &[],
        ),
        (
            ".8byte 0x95, 0x00000fff00000ab7",
            &["(95) exit", "(b7) r10 = 4095"],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(assembled(text), *expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let cases = [
        ("r1 + r2", "line 1, column 4: "),
        (
            "exit\n  frob r1",
            "line 2, column 3: no instruction starts with `frob`",
        ),
        (
            "r1 = r11",
            "line 1, column 6: register r11 does not exist: the last is r10",
        ),
        (
            "r12 += 1",
            "line 1, column 1: register r12 does not exist: the last is r10",
        ),
        ("r1 = w2", "line 1, column 6: expected "),
        (
            "r1 += 0x100000000",
            "line 1, column 7: 4294967296 does not fit in 32 bits; for a 64-bit constant write ` ll` after it",
        ),
        (
            "r1 = *(u32 *)(r2 + 40000)",
            "line 1, column 20: 40000 does not fit in 16 bits",
        ),
        (
            "r1 = *(u32 *)(r2)",
            "line 1, column 17: expected + or - and an offset, found `)`",
        ),
        (
            "r1 = *(u32 *)(r2 + 4",
            "line 1, column 21: expected ), found the end",
        ),
        ("r1 = *(u24 *)(r2 + 4)", "line 1, column 8: expected "),
        (
            "r1 = -r2",
            "line 1, column 7: must be register 1, the one named before",
        ),
        (
            "r1 = le16 r2",
            "line 1, column 11: must be register 1, the one named before",
        ),
        (
            "goto nowhere",
            "line 1, column 6: there is no label `nowhere`",
        ),
        (
            "goto 1f\n1: goto 2b",
            "line 2, column 9: there is no label `2b`",
        ),
        (
            "goto 40000",
            "line 1, column 6: 40000 does not fit in 16 bits",
        ),
        (
            "call frobnicate",
            "line 1, column 6: `frobnicate` is no label here and no helper or kernel function known",
        ),
        (
            "call kfunc frobnicate",
            "line 1, column 12: no kernel function `frobnicate` is known",
        ),
        (
            "call bpf_map_lookup_elem#2",
            "line 1, column 6: the helper bpf_map_lookup_elem has the number 1, not 2",
        ),
        (
            "r1 = map[nomap] ll",
            "line 1, column 10: no map `nomap` is known",
        ),
        (
            "r1 = thing ll",
            "line 1, column 6: `thing` is no label here and no symbol or map known",
        ),
        (
            "exit now",
            "line 1, column 6: expected the end, found `now`",
        ),
        (
            "r1 = 0x1ffffffffffffffff ll",
            "line 1, column 6: `0x1ffffffffffffffff` is not a number",
        ),
        ("r1 = ?", "line 1, column 6: unexpected character `?`"),
        (
            "a:\nexit\na:",
            "line 3, column 1: label `a` is defined twice",
        ),
        (
            "exit /* open",
            "line 1, column 6: this comment has no end: `*/` is missing",
        ),
        (
            "0: (07) r1 = 5",
            "line 1, column 12: expected +=, found `=`",
        ),
        (
            "0: b7 01 00 00 05 00 00 00 \tr1 = 6",
            "line 1, column 29: the text does not say what the bytes before it say",
        ),
        (
            "0: b7 01 00 00 05 00 00 00 01 \tr1 = 6",
            "line 1, column 4: 9 bytes are not an instruction",
        ),
        (
            ".8byte 1, x",
            "line 1, column 10: `x` is not a 64-bit number",
        ),
        (
            "r1 = addr_space_cast(r2, 0, 70000)",
            "line 1, column 29: 70000 is no address space: they are 0–65535",
        ),
        ("é = 1", "line 1, column 1: no instruction starts with `é`"),
        ("r1 = é", "line 1, column 6: "),
    ];
    for (text, message) in cases {
        let error = assemble_with(text, &Names).expect_err(text).to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
    let far = format!("goto end\n{}end:", "exit\n".repeat(32768));
    assert_eq!(
        assemble(&far).unwrap_err().to_string(),
        "line 1, column 6: label `end` is 32768 slots away, which does not fit in 16 bits"
    );
}

proptest! {
    #[test]
    fn whatever_decodes_prints_and_reads_back(bytes in any::<[u8; 8]>(), high in any::<i32>(), row in 0..table::rows().count()) {
        let random = Insn::from_le_bytes(bytes);
        let row = table::rows().nth(row).unwrap();
        let insns = slots(row, random.dst, random.src, random.off, random.imm, high);
        for syntax in [Syntax::Kernel, Syntax::Llvm] {
            // Printing must cope with anything; only instructions read back.
            let text = line(&[random], 0, syntax, &NoSymbols).to_string();
            prop_assert!(!text.is_empty());
            if Op::decode(&insns).is_ok() {
                round_trip(&insns, syntax);
            }
        }
    }

    #[test]
    fn no_text_makes_the_assembler_panic(text in "[-r0-9w =*()+<>a-f,:;#/x\\[\\]\n.u]{0,60}") {
        if let Err(error) = assemble(&text) {
            prop_assert!(error.line >= 1 && error.column >= 1);
        }
    }

    #[test]
    fn no_damage_to_a_listing_makes_the_assembler_panic(row in 0..table::rows().count(), at in any::<prop::sample::Index>(), c in any::<char>()) {
        let row = table::rows().nth(row).unwrap();
        for syntax in [Syntax::Kernel, Syntax::Llvm] {
            let mut text: Vec<char> = listing(&slots(row, 1, 2, 3, 16, 5), syntax, &NoSymbols).to_string().chars().collect();
            let at = at.index(text.len());
            text[at] = c;
            let _ = assemble(&text.iter().collect::<String>());
        }
    }
}
