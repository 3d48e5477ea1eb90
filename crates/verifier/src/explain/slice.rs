//! The instructions of a path that the failing operand depends on: a slice, backwards.

use bpfkit_isa::{Insn, code};
use bpfkit_object::Program;

use crate::env::Rejection;
use crate::explain::path::{Path, Walked};
use crate::explain::{Step, step, words};

/// More steps than these are no explanation; the latest are kept.
const MAX_STEPS: usize = 12;
const FRAME_POINTER: u8 = 10;

/// What a value is in, by depth of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Reg(usize, u8),
    /// Offset from the frame pointer.
    Slot(usize, i16),
}

impl Place {
    /// As the log names it.
    fn name(self) -> String {
        match self {
            Place::Reg(_, n) => format!("R{n}"),
            Place::Slot(_, off) => format!("fp{}", off - off.rem_euclid(8)),
        }
    }
}

/// Steps in the order of the path, the failing instruction last.
pub fn slice(program: &Program, rejection: &Rejection, path: &Path<'_>) -> Vec<Step> {
    let walked = match path.walked.split_last() {
        Some((last, before)) if last.insn == rejection.insn => before,
        _ => &path.walked,
    };
    let failing = path
        .walked
        .last()
        .filter(|last| last.insn == rejection.insn);
    let mut last = step(
        program,
        rejection.insn,
        failing.map_or(String::new(), |last| last.listing.to_owned()),
    );
    last.notes.push(rejection.message.clone());
    let depths = depths(program, &path.walked);
    let depth = depths.get(walked.len()).copied().unwrap_or(0);
    let insn = program.insns.get(rejection.insn as usize);
    let mut wanted: Vec<Place> = operand(&rejection.message, insn)
        .map(|n| Place::Reg(depth, n))
        .into_iter()
        .collect();
    let acquired: Vec<u32> = path
        .details
        .iter()
        .filter_map(|line| alloc_insn(line))
        .collect();
    let opener = opener(&rejection.message, walked);
    let mut steps = Vec::new();
    for (at, here) in walked.iter().enumerate().rev() {
        if steps.len() >= MAX_STEPS {
            break;
        }
        let Some(insn) = program.insns.get(here.insn as usize) else {
            continue;
        };
        let depth = depths[at];
        let after = depths.get(at + 1).copied().unwrap_or(depth);
        let mut notes = back(program, here, insn, depth, after, &mut wanted);
        let open = walked[..at].iter().any(|w| acquired.contains(&w.insn));
        if open && is_branch(insn) && notes.is_empty() {
            let next = path.walked.get(at + 1).map(|next| next.insn);
            notes.push(match next == Some(here.insn + 1) {
                true => "goes on to the next instruction".to_owned(),
                false => "jumps".to_owned(),
            });
        }
        if acquired.contains(&here.insn) {
            notes.push("the reference is acquired here".to_owned());
        }
        if opener == Some(at) {
            notes.push("the section begins here".to_owned());
        }
        if !notes.is_empty() {
            let mut step = step(program, here.insn, here.listing.to_owned());
            step.notes = notes;
            steps.push(step);
        }
    }
    steps.reverse();
    steps.push(last);
    steps
}

/// Functions that begin a section which must be ended.
const OPENERS: [&str; 7] = [
    "bpf_spin_lock",
    "bpf_spin_lock_irqsave",
    "bpf_res_spin_lock",
    "bpf_res_spin_lock_irqsave",
    "bpf_rcu_read_lock",
    "bpf_preempt_disable",
    "bpf_local_irq_save",
];

/// The call that began the section which the message speaks of.
fn opener(message: &str, walked: &[Walked<'_>]) -> Option<usize> {
    let speaks = [
        "-ed region",
        "holding a lock",
        "different lock",
        "nested rcu",
    ];
    if !speaks.iter().any(|words| message.contains(words)) {
        return None;
    }
    walked.iter().rposition(|here| {
        let call = here.listing.strip_prefix("call ");
        let name = call.and_then(|call| call.split('#').next());
        name.is_some_and(|name| OPENERS.contains(&name))
    })
}

/// Calls that are open at each instruction of the path.
fn depths(program: &Program, walked: &[Walked<'_>]) -> Vec<usize> {
    let mut depth = 0usize;
    let mut depths = Vec::with_capacity(walked.len());
    for (at, here) in walked.iter().enumerate() {
        depths.push(depth);
        let insn = program.insns.get(here.insn as usize);
        let (Some(insn), Some(next)) = (insn, walked.get(at + 1)) else {
            continue;
        };
        if is_call(insn) && next.insn != here.insn + 1 {
            depth += 1;
        } else if is_exit(insn) {
            depth = depth.saturating_sub(1);
        }
    }
    depths
}

fn is_call(insn: &Insn) -> bool {
    insn.code == code::JMP | code::CALL
}

fn is_branch(insn: &Insn) -> bool {
    let operation = insn.code & 0xf0;
    matches!(insn.class(), code::JMP | code::JMP32)
        && !matches!(operation, code::JA | code::CALL | code::EXIT)
}

fn is_exit(insn: &Insn) -> bool {
    insn.code == code::JMP | code::EXIT
}

/// The register that the message speaks of, or that the instruction uses as an address or
/// as an amount.
fn operand(message: &str, insn: Option<&Insn>) -> Option<u8> {
    let number = |text: &str| {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        text.get(..digits)?.parse::<u8>().ok()
    };
    let named = message.split(|c: char| !c.is_ascii_alphanumeric());
    let named = named.filter_map(|word| word.strip_prefix('R'));
    // What leaks is in no register any more.
    if message.contains("reference leak") {
        return None;
    }
    if let Some(n) = named.filter_map(number).find(|&n| n <= FRAME_POINTER) {
        return Some(n);
    }
    for mark in ["arg#", "arg"] {
        let after = message.split(mark).nth(1).and_then(number);
        if let Some(n) = after.filter(|&n| n < 5) {
            return Some(n + 1);
        }
    }
    let insn = insn?;
    let from_register = insn.code & code::X != 0;
    match insn.class() {
        code::LDX => Some(insn.src),
        code::ST | code::STX => Some(insn.dst),
        code::ALU | code::ALU64 if from_register => Some(insn.src),
        code::ALU | code::ALU64 | code::JMP32 => Some(insn.dst),
        code::JMP if is_exit(insn) => Some(0),
        code::JMP if is_call(insn) => None,
        code::JMP => Some(insn.dst),
        _ => None,
    }
}

/// `Unreleased reference id=2 alloc_insn=7`
fn alloc_insn(line: &str) -> Option<u32> {
    let (_, number) = line.split_once("alloc_insn=")?;
    number.split_whitespace().next()?.parse().ok()
}

/// Goes back over an instruction: what it gave is wanted no more, what it took is. The notes
/// say what it did to what was wanted.
fn back(
    program: &Program,
    here: &Walked<'_>,
    insn: &Insn,
    depth: usize,
    after: usize,
    wanted: &mut Vec<Place>,
) -> Vec<String> {
    let from_register = insn.code & code::X != 0;
    let gives = |place: Place| {
        let name = place.name();
        here.value(&name)
            .map(|value| format!("{name}: {}", words::describe(value)))
            .into_iter()
            .collect::<Vec<String>>()
    };
    let dst = Place::Reg(depth, insn.dst);
    let src = Place::Reg(depth, insn.src);
    match insn.class() {
        code::ALU | code::ALU64 if wanted.contains(&dst) => {
            if insn.code & 0xf0 == code::MOV {
                wanted.retain(|place| *place != dst);
            }
            let swaps = insn.code & 0xf0 == code::END;
            if from_register && !swaps {
                want(wanted, src);
            }
            gives(dst)
        }
        code::LD if insn.is_ld_imm64() && wanted.contains(&dst) => {
            wanted.retain(|place| *place != dst);
            gives(dst)
        }
        code::LDX if wanted.contains(&dst) => {
            wanted.retain(|place| *place != dst);
            if insn.src == FRAME_POINTER {
                want(wanted, Place::Slot(depth, insn.off));
            }
            gives(dst)
        }
        code::ST | code::STX if insn.dst == FRAME_POINTER => {
            let slot = Place::Slot(depth, insn.off);
            if !wanted.contains(&slot) {
                return Vec::new();
            }
            wanted.retain(|place| *place != slot);
            if insn.class() == code::STX {
                want(wanted, src);
            }
            gives(slot)
        }
        code::JMP if is_exit(insn) => {
            // The callee's result becomes the caller's.
            for place in wanted.iter_mut() {
                if after < depth && *place == Place::Reg(after, 0) {
                    *place = Place::Reg(depth, 0);
                }
            }
            Vec::new()
        }
        code::JMP if is_call(insn) => call(program, here, insn, depth, after, wanted),
        code::JMP | code::JMP32 if is_branch(insn) => {
            let tests = wanted.contains(&dst) || (from_register && wanted.contains(&src));
            // Comparing any pointer into the packet with its end bounds all that share its id.
            let is_packet = |value: &str| value.starts_with("pkt");
            let packet = here.values().any(|(_, value)| value.starts_with("pkt_end"))
                && here.values().filter(|(_, value)| is_packet(value)).count() > 1;
            if !tests && !packet {
                return Vec::new();
            }
            let tested = [insn.dst, insn.src];
            let operands = if from_register {
                &tested[..]
            } else {
                &tested[..1]
            };
            let mut notes: Vec<String> = operands
                .iter()
                .map(|&n| Place::Reg(depth, n))
                .filter(|place| packet || wanted.contains(place))
                .flat_map(gives)
                .collect();
            if let Some(note) = notes.first_mut() {
                note.insert_str(0, "compared; from here ");
            }
            notes
        }
        _ => Vec::new(),
    }
}

fn call(
    program: &Program,
    here: &Walked<'_>,
    insn: &Insn,
    depth: usize,
    after: usize,
    wanted: &mut Vec<Place>,
) -> Vec<String> {
    if after > depth {
        let mut passed = false;
        for place in wanted.iter_mut() {
            match *place {
                Place::Reg(d, n @ 1..=5) if d == after => {
                    *place = Place::Reg(depth, n);
                    passed = true;
                }
                _ => {}
            }
        }
        let target = i64::from(here.insn) + 1 + i64::from(insn.imm);
        let callee = program
            .subprograms
            .iter()
            .find(|sub| i64::from(sub.start) == target);
        let name = callee.map_or("the function", |sub| &sub.name);
        return passed
            .then(|| format!("passed to {name}"))
            .into_iter()
            .collect();
    }
    let result = Place::Reg(depth, 0);
    if !wanted.contains(&result) {
        return Vec::new();
    }
    wanted.retain(|place| *place != result);
    let value = here.value("R0").map(words::describe);
    let function = here.listing.strip_prefix("call ").unwrap_or(here.listing);
    let function = function.split('#').next().unwrap_or(function);
    let value = value.map_or(String::new(), |value| format!(": {value}"));
    vec![format!("R0, what {function} returns{value}")]
}

fn want(wanted: &mut Vec<Place>, place: Place) {
    let fixed = matches!(place, Place::Reg(_, FRAME_POINTER));
    if !fixed && !wanted.contains(&place) {
        wanted.push(place);
    }
}
