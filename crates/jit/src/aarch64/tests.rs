//! What the encoder writes, read by LLVM's disassembler where it is there.

#[cfg(test)]
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::emit::{Alu, Asm, Cc, Lse, Pick, Two, pattern};
use super::regs::{Gpr, SP, ZR};

fn x(n: u8) -> Gpr {
    Gpr(n)
}

type Case = (Box<dyn Fn(&mut Asm)>, String);

/// Every instruction with what it should read as.
fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut case = |emit: Box<dyn Fn(&mut Asm)>, text: &str| cases.push((emit, text.to_owned()));
    macro_rules! case {
        ($asm:ident => $emit:expr, $text:expr) => {
            case(Box::new(move |$asm: &mut Asm| $emit), &$text)
        };
    }
    for (wide, w) in [(true, "x"), (false, "w")] {
        for (op, word) in [
            (Alu::Add, "add"),
            (Alu::Sub, "sub"),
            (Alu::Subs, "subs"),
            (Alu::And, "and"),
            (Alu::Ands, "ands"),
            (Alu::Orr, "orr"),
            (Alu::Eor, "eor"),
        ] {
            case!(a => a.alu(op, wide, x(1), x(20), x(30)), format!("{word} {w}1, {w}20, {w}30"));
        }
        for (op, word) in [
            (Two::Udiv, "udiv"),
            (Two::Sdiv, "sdiv"),
            (Two::Lsl, "lsl"),
            (Two::Lsr, "lsr"),
            (Two::Asr, "asr"),
        ] {
            case!(a => a.two(op, wide, x(1), x(20), x(30)), format!("{word} {w}1, {w}20, {w}30"));
        }
        case!(a => a.mul(wide, x(1), x(20), x(30)), format!("mul {w}1, {w}20, {w}30"));
        case!(a => a.msub(wide, x(1), x(2), x(3), x(4)), format!("msub {w}1, {w}2, {w}3, {w}4"));
        case!(a => a.mov(wide, x(1), x(19)), format!("mov {w}1, {w}19"));
        case!(a => a.mvn(wide, x(1), x(19)), format!("mvn {w}1, {w}19"));
        case!(a => a.neg(wide, x(1), x(19)), format!("neg {w}1, {w}19"));
        case!(a => a.rev(wide, x(1), x(19)), format!("rev {w}1, {w}19"));
        for by in [1_u32, 7, 31] {
            case!(a => a.lsl_imm(wide, x(1), x(2), by), format!("lsl {w}1, {w}2, #{by}"));
            case!(a => a.lsr_imm(wide, x(1), x(2), by), format!("lsr {w}1, {w}2, #{by}"));
            case!(a => a.asr_imm(wide, x(1), x(2), by), format!("asr {w}1, {w}2, #{by}"));
        }
        case!(a => a.sign_extend(wide, 8, x(1), x(2)), format!("sxtb {w}1, w2"));
        case!(a => a.sign_extend(wide, 16, x(1), x(2)), format!("sxth {w}1, w2"));
        for (op, word) in [
            (Lse::Add, "ldaddal"),
            (Lse::Clear, "ldclral"),
            (Lse::Xor, "ldeoral"),
            (Lse::Set, "ldsetal"),
            (Lse::Swap, "swpal"),
        ] {
            case!(a => a.lse(op, wide, x(1), x(2), x(3)), format!("{word} {w}1, {w}2, [x3]"));
        }
        case!(a => a.cas(wide, x(1), x(2), x(3)), format!("casal {w}1, {w}2, [x3]"));
        for (pick, word) in [
            (Pick::Same, "csel"),
            (Pick::Incremented, "csinc"),
            (Pick::Inverted, "csinv"),
            (Pick::Negated, "csneg"),
        ] {
            let text = format!("{word} x1, x2, x3, hi");
            case!(a => a.pick(pick, x(1), x(2), x(3), Cc::Hi), text);
        }
        case!(a => a.ror_imm(wide, x(1), x(2), 13), format!("ror {w}1, {w}2, #13"));
        case!(a => a.alu_imm(Alu::Add, wide, x(1), x(2), 4095), format!("add {w}1, {w}2, #4095"));
        case!(a => a.alu_imm(Alu::Add, wide, x(1), x(2), -8), format!("sub {w}1, {w}2, #8"));
        case!(a => a.alu_imm(Alu::Subs, wide, ZR, x(2), -8), format!("cmn {w}2, #8"));
        case!(a => a.alu_imm(Alu::Subs, wide, ZR, x(2), 8), format!("cmp {w}2, #8"));
        case!(a => a.alu_imm(Alu::And, wide, x(1), x(2), 255), format!("and {w}1, {w}2, #0xff"));
        case!(a => a.alu_imm(Alu::Ands, wide, ZR, x(2), 7), format!("tst {w}2, #0x7"));
    }
    case!(a => a.alu_imm(Alu::Add, true, x(1), x(2), 0x5000), "add x1, x2, #5, lsl #12");
    case!(a => a.sp(Alu::Sub, SP, SP, 64), "sub sp, sp, #64");
    case!(a => a.sp(Alu::Add, x(10), SP, 0), "mov x10, sp");
    case!(a => a.sp(Alu::Add, SP, x(10), 0), "mov sp, x10");
    case!(a => a.sign_extend(true, 32, x(1), x(2)), "sxtw x1, w2");
    case!(a => a.zero_extend16(x(1), x(2)), "uxth w1, w2");
    case!(a => a.rev16(x(1), x(2)), "rev16 w1, w2");
    for (bytes, signed, word) in [
        (1, false, "ldrb w1"),
        (2, false, "ldrh w1"),
        (4, false, "ldr w1"),
        (8, false, "ldr x1"),
        (1, true, "ldrsb x1"),
        (2, true, "ldrsh x1"),
        (4, true, "ldrsw x1"),
    ] {
        case!(a => a.load(bytes, signed, x(1), x(2), 0), format!("{word}, [x2]"));
        case!(a => a.load(bytes, signed, x(1), x(2), 64), format!("{word}, [x2, #64]"));
        let unscaled = word.replacen("ldr", "ldur", 1);
        case!(a => a.load(bytes, signed, x(1), x(2), -9), format!("{unscaled}, [x2, #-9]"));
    }
    for (bytes, word) in [(1, "strb w1"), (2, "strh w1"), (4, "str w1"), (8, "str x1")] {
        case!(a => a.store(bytes, x(1), x(2), 64), format!("{word}, [x2, #64]"));
        let unscaled = word.replacen("str", "stur", 1);
        case!(a => a.store(bytes, x(1), x(2), -9), format!("{unscaled}, [x2, #-9]"));
    }
    for (bytes, load, store) in [
        (1, "ldarb w1", "stlrb w1"),
        (2, "ldarh w1", "stlrh w1"),
        (4, "ldar w1", "stlr w1"),
        (8, "ldar x1", "stlr x1"),
    ] {
        case!(a => a.load_acquire(bytes, x(1), x(2)), format!("{load}, [x2]"));
        case!(a => a.store_release(bytes, x(1), x(2)), format!("{store}, [x2]"));
    }
    case!(a => a.store_pair(x(1), x(2), 16), "stp x1, x2, [sp, #16]");
    case!(a => a.load_pair(x(1), x(2), 16), "ldp x1, x2, [sp, #16]");
    case!(a => a.push_pair(x(1), x(2), 16), "stp x1, x2, [sp, #-16]!");
    case!(a => a.pop_pair(x(1), x(2), 16), "ldp x1, x2, [sp], #16");
    case!(a => a.blr(x(10)), "blr x10");
    case!(a => a.ret(), "ret");
    for (value, text) in [
        (0_u64, "mov x1, #0"),
        (5, "mov x1, #5"),
        (0x5_0000, "mov x1, #327680"),
        (u64::MAX, "mov x1, #-1"),
        (!5, "mov x1, #-6"),
        (0xffff_fff0, "mov w1, #-16"),
        (0xff00_ff00_ff00_ff00, "mov x1, #-71777214294589696"),
    ] {
        case!(a => a.mov_imm(x(1), value), text);
    }
    for (cc, word) in [
        (Cc::Eq, "b.eq"),
        (Cc::Hi, "b.hi"),
        (Cc::Mi, "b.mi"),
        (Cc::Le, "b.le"),
    ] {
        let emit = move |a: &mut Asm| {
            let label = a.label();
            a.bind(label);
            a.b_if(cc, label);
        };
        case!(a => emit(a), format!("{word} #0"));
    }
    case!(a => { let l = a.label(); a.bind(l); a.cb(true, true, x(3), l) }, "cbnz x3, #0");
    case!(a => { let l = a.label(); a.bind(l); a.cb(false, false, x(3), l) }, "cbz w3, #0");
    case!(a => { let l = a.label(); a.bind(l); a.tb(true, x(3), 5, l) }, "tbnz w3, #5, #0");
    case!(a => { let l = a.label(); a.bind(l); a.tb(false, x(3), 63, l) }, "tbz x3, #63, #0");
    case!(a => { let l = a.label(); a.bind(l); a.b(l) }, "b #0");
    case!(a => { let l = a.label(); a.bind(l); a.bl(l) }, "bl #0");
    cases
}

#[test]
fn llvm_reads_what_was_meant() {
    let cases = cases();
    let mut input = String::new();
    for (emit, text) in &cases {
        let mut asm = Asm::new(0, crate::lower::Rules::default(), false);
        emit(&mut asm);
        let code = asm.finish().unwrap().code;
        assert_eq!(code.len(), 4, "{text}");
        code.iter()
            .for_each(|byte| input.push_str(&format!("{byte:#04x} ")));
        input.push('\n');
    }
    let child = Command::new("llvm-mc-19")
        .args(["--disassemble", "--triple=aarch64", "--mattr=+lse"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: no llvm-mc-19");
        return;
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().starts_with('.') && !line.trim().is_empty())
        .map(|line| line.trim().replace('\t', " "))
        .map(|line| {
            line.split("//")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .collect();
    assert_eq!(
        lines.len(),
        cases.len(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let wrong: Vec<_> = lines
        .iter()
        .zip(&cases)
        .filter(|(line, (_, text))| *line != text)
        .map(|(l, c)| (l, &c.1))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Bit patterns encode as the architecture decodes them.
#[test]
fn patterns() {
    let decode = |field: u32| -> u64 {
        let (n, immr, imms) = (field >> 22 & 1, field >> 16 & 0x3f, field >> 10 & 0x3f);
        let len = 31 - ((n << 6) | (!imms & 0x3f)).leading_zeros();
        let size = 1_u32 << len;
        let (s, r) = (imms & (size - 1), immr & (size - 1));
        let run = u64::MAX >> (63 - s);
        let mask = u64::MAX >> (64 - size);
        let element = (run >> r | if r == 0 { 0 } else { run << (size - r) }) & mask;
        (0..64 / size).fold(0, |all, i| all | element << (i * size))
    };
    let mut encoded = 0;
    for size in [2_u32, 4, 8, 16, 32, 64] {
        for ones in 1..size {
            for by in 0..size {
                let run = u64::MAX >> (64 - ones);
                let mask = u64::MAX >> (64 - size);
                let element = (run << by | if by == 0 { 0 } else { run >> (size - by) }) & mask;
                let value = (0..64 / size).fold(0, |all, i| all | element << (i * size));
                let field = pattern(value, true).unwrap_or_else(|| panic!("{value:#x}"));
                assert_eq!(decode(field), value);
                encoded += 1;
            }
        }
    }
    assert_eq!(encoded, 2 + 12 + 56 + 240 + 992 + 4032);
    for value in [0, u64::MAX, 5, 0x1234, 0xff00_00ff_0000_0001] {
        assert_eq!(pattern(value, true), None, "{value:#x}");
    }
}
