//! What the encoder writes, read by another's decoder.

use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};

use super::emit::{Arith, Asm, Cc, Mem, Shift};
use super::regs::Gpr;

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

fn name(reg: Gpr, bytes: u32) -> String {
    let wide = NAMES[reg.0 as usize];
    match (bytes, reg.0) {
        (8, _) => wide.to_owned(),
        (4, 0..8) => format!("e{}", &wide[1..]),
        (4, _) => format!("{wide}d"),
        (2, 0..8) => wide[1..].to_owned(),
        (2, _) => format!("{wide}w"),
        (_, 0..4) => format!("{}l", &wide[1..2]),
        (_, 4..8) => format!("{}l", &wide[1..]),
        _ => format!("{wide}b"),
    }
}

fn place(mem: Mem) -> String {
    let mut parts = Vec::new();
    parts.extend(mem.base.map(|base| name(base, 8)));
    parts.extend(mem.index.map(|(index, scale)| match scale {
        0 if mem.base.is_some() => name(index, 8),
        _ => format!("{}*{}", name(index, 8), 1 << scale),
    }));
    let sum = parts.join("+");
    let sign = if mem.disp < 0 { '-' } else { '+' };
    match mem.disp {
        0 if mem.index.is_none() || mem.base.is_some() => format!("[{sum}]"),
        disp => format!("[{sum}{sign}{:#x}]", disp.unsigned_abs()),
    }
}

/// Decodes one instruction; the text without spaces after commas and without size words.
fn read(emit: impl FnOnce(&mut Asm)) -> String {
    let mut asm = Asm::new(0, 0);
    emit(&mut asm);
    let code = asm.finish().code;
    let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
    let instruction = decoder.decode();
    assert!(!instruction.is_invalid(), "{code:02x?}");
    assert_eq!(
        instruction.len(),
        code.len(),
        "one instruction: {code:02x?}"
    );
    let mut formatter = NasmFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_show_zero_displacements(false);
    options.set_space_after_operand_separator(true);
    let mut text = String::new();
    formatter.format(&instruction, &mut text);
    for word in ["byte ", "word ", "dword ", "qword ", "near ", "short "] {
        text = text.replace(&format!(" {word}"), " ");
    }
    text
}

fn gprs() -> impl Iterator<Item = Gpr> {
    (0..16).filter(|&n| n != 4).map(Gpr)
}

fn places() -> Vec<Mem> {
    let mut places = Vec::new();
    for base in gprs() {
        for disp in [0, 1, -128, 127, 128, -129, i32::MAX, i32::MIN + 1] {
            places.push(Mem::at(base, disp));
            for (index, scale) in [(Gpr(0), 0), (Gpr(5), 1), (Gpr(12), 2), (Gpr(13), 3)] {
                places.push(Mem {
                    base: Some(base),
                    index: Some((index, scale)),
                    disp,
                });
            }
        }
    }
    for index in gprs() {
        for scale in 1..4 {
            places.push(Mem {
                base: None,
                index: Some((index, scale)),
                disp: 64,
            });
        }
    }
    places.push(Mem::at(Gpr(4), 8));
    places.push(Mem::at(Gpr(4), 0));
    places
}

#[test]
fn registers() {
    use Arith::*;
    for dst in gprs() {
        for src in gprs() {
            for (wide, bytes) in [(false, 4), (true, 8)] {
                let pair = format!("{}, {}", name(dst, bytes), name(src, bytes));
                for (op, word) in [
                    (Add, "add"),
                    (Or, "or"),
                    (And, "and"),
                    (Sub, "sub"),
                    (Xor, "xor"),
                    (Cmp, "cmp"),
                ] {
                    assert_eq!(
                        read(|a| a.arith(op, wide, dst, src)),
                        format!("{word} {pair}")
                    );
                }
                assert_eq!(read(|a| a.mov(wide, dst, src)), format!("mov {pair}"));
                let moved = read(|a| a.cmov(Cc::A, wide, dst, src));
                assert_eq!(moved, format!("cmova {pair}"));
                assert_eq!(read(|a| a.test(wide, dst, src)), format!("test {pair}"));
                assert_eq!(read(|a| a.imul(wide, dst, src)), format!("imul {pair}"));
                // With one register, the decoder names it once.
                let factors = if dst == src {
                    name(dst, bytes)
                } else {
                    pair.clone()
                };
                for (imm, text) in [(100, "0x64"), (1000, "0x3e8")] {
                    let text = format!("imul {factors}, {text}");
                    assert_eq!(read(|a| a.imul_imm(wide, dst, src, imm)), text);
                }
                for bits in [8, 16] {
                    let narrow = name(src, u32::from(bits) / 8);
                    let text = format!("movsx {}, {narrow}", name(dst, bytes));
                    assert_eq!(read(|a| a.movsx(wide, bits, dst, src)), text);
                    let text = format!("movzx {}, {narrow}", name(dst, 4));
                    assert_eq!(read(|a| a.movzx(bits, dst, src)), text);
                }
                let amount = name(Gpr(9), bytes);
                for (op, word) in [
                    (Shift::Shl, "shlx"),
                    (Shift::Shr, "shrx"),
                    (Shift::Sar, "sarx"),
                ] {
                    let text = format!("{word} {pair}, {amount}");
                    assert_eq!(read(|a| a.shift_x(op, wide, dst, src, Gpr(9))), text);
                }
                assert_eq!(
                    read(|a| a.rorx(wide, dst, src, 5)),
                    format!("rorx {pair}, 0x5")
                );
            }
            let text = format!("movsxd {}, {}", name(dst, 8), name(src, 4));
            assert_eq!(read(|a| a.movsx(true, 32, dst, src)), text);
        }
    }
}

#[test]
fn one_register() {
    for reg in gprs() {
        for (wide, bytes) in [(false, 4), (true, 8)] {
            let n = name(reg, bytes);
            assert_eq!(read(|a| a.neg(wide, reg)), format!("neg {n}"));
            assert_eq!(read(|a| a.not(wide, reg)), format!("not {n}"));
            assert_eq!(read(|a| a.div(wide, false, reg)), format!("div {n}"));
            assert_eq!(read(|a| a.div(wide, true, reg)), format!("idiv {n}"));
            assert_eq!(read(|a| a.bswap(wide, reg)), format!("bswap {n}"));
            for (op, word) in [
                (Shift::Rol, "rol"),
                (Shift::Shl, "shl"),
                (Shift::Shr, "shr"),
                (Shift::Sar, "sar"),
            ] {
                assert_eq!(
                    read(|a| a.shift_imm(op, wide, reg, 31)),
                    format!("{word} {n}, 0x1f")
                );
                assert_eq!(
                    read(|a| a.shift_imm(op, wide, reg, 1)),
                    format!("{word} {n}, 0x1")
                );
                assert_eq!(
                    read(|a| a.shift_cl(op, wide, reg)),
                    format!("{word} {n}, cl")
                );
            }
            for (imm, text) in [
                (1, "0x1"),
                (127, "0x7f"),
                (128, "0x80"),
                (0x7654_3210, "0x76543210"),
            ] {
                assert_eq!(
                    read(|a| a.arith_imm(Arith::Sub, wide, reg, imm)),
                    format!("sub {n}, {text}")
                );
            }
            assert_eq!(
                read(|a| a.test_imm(wide, reg, 0x100)),
                format!("test {}, 0x100", name(reg, 4))
            );
            assert_eq!(
                read(|a| a.test_imm(wide, reg, 1)),
                format!("test {}, 0x1", name(reg, 1))
            );
        }
        assert_eq!(
            read(|a| a.swap16(reg)),
            format!("rol {}, 0x8", name(reg, 2))
        );
        assert_eq!(read(|a| a.push(reg)), format!("push {}", name(reg, 8)));
        assert_eq!(read(|a| a.pop(reg)), format!("pop {}", name(reg, 8)));
        assert_eq!(read(|a| a.call_reg(reg)), format!("call {}", name(reg, 8)));
        let n = name(reg, 4);
        assert_eq!(read(|a| a.mov_imm(reg, 5)), format!("mov {n}, 0x5"));
        assert_eq!(
            read(|a| a.mov_imm(reg, 0xffff_ffff)),
            format!("mov {n}, 0xffffffff")
        );
        let n = name(reg, 8);
        assert_eq!(
            read(|a| a.mov_imm(reg, u64::MAX)),
            format!("mov {n}, 0xffffffffffffffff")
        );
        assert_eq!(
            read(|a| a.mov_imm(reg, 0x1234_5678_9abc_def0)),
            format!("mov {n}, 0x123456789abcdef0")
        );
    }
}

#[test]
fn memory() {
    for mem in places() {
        let at = place(mem);
        for reg in [Gpr(0), Gpr(5), Gpr(6), Gpr(9), Gpr(12)] {
            let n = |bytes| name(reg, bytes);
            assert_eq!(read(|a| a.lea(reg, mem)), format!("lea {}, {at}", n(8)));
            for (bytes, signed, word, width) in [
                (1, false, "movzx", 4),
                (2, false, "movzx", 4),
                (4, false, "mov", 4),
                (8, false, "mov", 8),
                (1, true, "movsx", 8),
                (2, true, "movsx", 8),
                (4, true, "movsxd", 8),
            ] {
                let text = format!("{word} {}, {at}", n(width));
                assert_eq!(read(|a| a.load(bytes, signed, reg, mem)), text);
            }
            for bytes in [1, 2, 4, 8] {
                assert_eq!(
                    read(|a| a.store(bytes, mem, reg)),
                    format!("mov {at}, {}", n(bytes))
                );
                assert_eq!(
                    read(|a| a.store_imm(bytes, mem, 7)),
                    format!("mov {at}, 0x7")
                );
            }
            for (wide, bytes) in [(false, 4), (true, 8)] {
                let text = format!("lock add {at}, {}", n(bytes));
                assert_eq!(read(|a| a.lock_arith(Arith::Add, wide, mem, reg)), text);
                let text = format!("lock xadd {at}, {}", n(bytes));
                assert_eq!(read(|a| a.lock_xadd(wide, mem, reg)), text);
                let text = format!("lock cmpxchg {at}, {}", n(bytes));
                assert_eq!(read(|a| a.lock_cmpxchg(wide, mem, reg)), text);
                assert_eq!(
                    read(|a| a.xchg(wide, mem, reg)),
                    format!("xchg {}, {at}", n(bytes))
                );
                let text = format!("cmp {}, {at}", n(bytes));
                assert_eq!(read(|a| a.arith(Arith::Cmp, wide, reg, mem)), text);
            }
        }
        assert_eq!(read(|a| a.push_mem(mem)), format!("push {at}"));
        assert_eq!(read(|a| a.pop_mem(mem)), format!("pop {at}"));
        assert_eq!(
            read(|a| a.arith_imm(Arith::Sub, true, mem, 1)),
            format!("sub {at}, 0x1")
        );
    }
}

/// Jumps over every distance around the limits of the short form lead to their targets.
#[test]
fn jumps_reach_their_labels() {
    for between in (100..150).chain([0, 1, 1000]) {
        let mut asm = Asm::new(0, 0);
        let (start, end) = (asm.label(), asm.label());
        asm.bind(start);
        asm.jcc(Cc::E, end);
        asm.jmp(end);
        asm.bytes(&vec![0x90; between]);
        asm.jcc(Cc::G, start);
        asm.call(start);
        asm.bind(end);
        asm.ret();
        let finished = asm.finish();
        let ends = u64::from(finished.offset(end).unwrap());
        let decoder = Decoder::with_ip(64, &finished.code, 0, DecoderOptions::NONE);
        let targets: Vec<(String, u64)> = decoder
            .into_iter()
            .filter(|i| i.near_branch_target() != 0 || i.is_jcc_short_or_near() || i.is_call_near())
            .map(|i| (format!("{:?}", i.mnemonic()), i.near_branch_target()))
            .collect();
        let expected = [("Je", ends), ("Jmp", ends), ("Jg", 0), ("Call", 0)];
        let expected: Vec<_> = expected.map(|(m, at)| (m.to_owned(), at)).into();
        assert_eq!(targets, expected, "{between}");
        assert_eq!(finished.code[ends as usize], 0xc3);
    }
}

#[test]
fn operations_on_memory() {
    let mem = Mem::at(Gpr(13), 8);
    for bytes in [1, 2, 4, 8] {
        for src in gprs() {
            let text = format!("add [r13+0x8], {}", name(src, bytes));
            assert_eq!(read(|a| a.arith_at(Arith::Add, bytes, mem, src)), text);
        }
        for (imm, text) in [(7, "0x7"), (-1, "0xff")] {
            let said = read(|a| a.arith_imm_at(Arith::Xor, bytes, mem, imm));
            let text = match (imm, bytes) {
                (-1, 2..) => "-0x1".to_owned(),
                _ => text.to_owned(),
            };
            assert!(
                said == format!("xor [r13+0x8], {text}") || said.starts_with("xor [r13+0x8], 0xff"),
                "{said}"
            );
        }
    }
    for (bytes, imm, text) in [(4, 1000, "0x3e8"), (8, 1000, "0x3e8"), (2, 1000, "0x3e8")] {
        let said = read(|a| a.arith_imm_at(Arith::Cmp, bytes, mem, imm));
        assert_eq!(said, format!("cmp [r13+0x8], {text}"));
        let said = read(|a| a.test_imm_at(bytes, mem, imm));
        assert_eq!(said, format!("test [r13+0x8], {text}"));
    }
    assert_eq!(read(|a| a.test_at(4, mem, Gpr(9))), "test [r13+0x8], r9d");
    assert_eq!(read(|a| a.arith_imm(Arith::Add, true, Gpr(9), 1)), "inc r9");
    assert_eq!(
        read(|a| a.arith_imm(Arith::Add, false, Gpr(3), -1)),
        "dec ebx"
    );
}
