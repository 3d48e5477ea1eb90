//! Rewritten programs are programs: every slot decodes, jumps and calls lead to where something
//! begins, and what tells of slots (origins, functions, lines) moved along.

use bpfkit_isa::{Insn, Syntax, code, decode_program, disasm};
use bpfkit_object::{LineInfo, Program, raw_program};
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, Rewritten, verify};

#[path = "../../../tests/programs/accepted.rs"]
#[allow(dead_code, reason = "nothing is run here")]
mod accepted;
#[path = "../../../tests/programs/random.rs"]
#[allow(dead_code, reason = "noise is never accepted")]
mod random;

use random::Random;

/// Programs of each kind.
const PROGRAMS: u64 = 2_000;
/// The scratch register that only rewritten programs name.
const AX: u8 = 11;
const CALL: u8 = code::JMP | code::CALL;
const TAIL_CALL: u8 = code::JMP | 0xf0;

/// The instruction of a program that stands for one that only rewritten programs have.
fn plain(insn: &Insn) -> Insn {
    let mut plain = *insn;
    for register in [&mut plain.dst, &mut plain.src] {
        if *register == AX {
            *register = 0;
        }
    }
    if matches!(insn.class(), code::LDX | code::ST | code::STX) {
        plain.code = match insn.code & 0xe0 {
            0x20 | 0xa0 => insn.code & 0x1f | code::MEM,
            0x40 => insn.code & 0x1f | code::MEMSX,
            0xe0 => insn.code & 0x1f | code::ATOMIC,
            _ => insn.code,
        };
    }
    if insn.code == TAIL_CALL {
        plain = Insn {
            code: CALL,
            imm: 12,
            ..Insn::default()
        };
    }
    plain
}

/// What a jump or a call of a subprogram leads to.
fn target(at: usize, insn: &Insn) -> Option<i64> {
    let distance = match (insn.class(), insn.code & 0xf0) {
        _ if insn.code == CALL => (insn.src == code::PSEUDO_CALL).then_some(insn.imm)?,
        (code::JMP | code::JMP32, code::EXIT) => return None,
        _ if insn.code == TAIL_CALL => return None,
        _ if insn.code == code::JMP32 | code::JA => insn.imm,
        (code::JMP | code::JMP32, _) => insn.off.into(),
        _ => return None,
    };
    Some(at as i64 + 1 + i64::from(distance))
}

fn check(program: &Program, rewritten: &Rewritten) -> Result<(), String> {
    let insns: Vec<Insn> = rewritten.insns.iter().map(plain).collect();
    let ops = decode_program(&insns).map_err(|e| e.to_string())?;
    let mut begins = vec![true; insns.len()];
    let mut at = 0;
    while at < insns.len() {
        if insns[at].is_ld_imm64() {
            begins[at + 1] = false;
            at += 1;
        }
        at += 1;
    }
    let functions: Vec<i64> = rewritten.subprograms.iter().map(|s| s.0.into()).collect();
    for (at, insn) in insns.iter().enumerate().filter(|(at, _)| begins[*at]) {
        let Some(to) = target(at, insn) else { continue };
        let begins = usize::try_from(to).is_ok_and(|to| begins.get(to) == Some(&true));
        if !begins || (insn.code == CALL && !functions.contains(&to)) {
            return Err(format!("slot {at} leads to {to}"));
        }
    }
    let rising = |slots: &[u32]| slots.is_sorted() && slots.iter().all(|s| *s < insns.len() as u32);
    let lines: Vec<u32> = rewritten.lines.iter().map(|l| l.insn).collect();
    let starts: Vec<u32> = rewritten.subprograms.iter().map(|s| s.0).collect();
    let old = program.insns.len() as u32;
    let complete = ops.len() == insns.len()
        && rewritten.origins.len() == insns.len()
        && rewritten.origins.is_sorted()
        && rewritten.origins.iter().all(|o| *o < old);
    if !complete || !rising(&lines) || !rising(&starts) || starts.first() != Some(&0) {
        return Err("origins, lines or functions".to_owned());
    }
    // What is not removed or patched is there still, and in its place.
    let last = insns.last().copied().unwrap_or_default();
    let ends = matches!(last.code, 0x95 | 0x05 | CALL) || last.code == code::JMP32 | code::JA;
    match ends {
        true => Ok(()),
        false => Err("the end is open".to_owned()),
    }
}

/// Gives every slot a source line.
fn with_lines(mut program: Program) -> Program {
    let mut at = 0;
    while at < program.insns.len() {
        program.lines.push(LineInfo {
            insn: at as u32,
            ..line()
        });
        at += 1 + usize::from(program.insns[at].is_ld_imm64());
    }
    program
}

fn line() -> LineInfo {
    LineInfo {
        insn: 0,
        file: "made.c".into(),
        text: "line".into(),
        line: 1,
        column: 1,
        offsets: [0, 0],
    }
}

fn look_at(make: impl Fn(&mut Random) -> Program) -> usize {
    let maps = accepted::maps();
    let mut rewritten = 0;
    for seed in 0..PROGRAMS {
        let program = with_lines(make(&mut Random::of(seed)));
        let environment = Environment {
            rewrite: true,
            ..Environment::new(None)
        };
        let Ok(verified) = verify(&program, &maps, &environment).result else {
            continue;
        };
        let Some(Ok(new)) = verified.rewritten() else {
            panic!("program {seed} is not rewritten");
        };
        if let Err(what) = check(&program, new) {
            let list = |insns: &[Insn]| {
                disasm::listing(insns, Syntax::Kernel, &disasm::NoSymbols).to_string()
            };
            panic!(
                "program {seed}: {what}\n{}\n{}",
                list(&program.insns),
                list(&new.insns)
            );
        }
        rewritten += 1;
    }
    rewritten
}

#[test]
fn programs_that_know_much_stay_programs() {
    let rewritten = look_at(accepted::accepted);
    assert!(rewritten as u64 > PROGRAMS / 2, "{rewritten} accepted");
}

#[test]
fn random_programs_stay_programs() {
    let rewritten = look_at(|random| {
        let mut program = raw_program("main", random::likely(random));
        program.decl.prog_type = ProgType::SchedCls;
        program
    });
    assert!(rewritten > 10, "{rewritten} accepted");
}
