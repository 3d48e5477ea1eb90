//! Rewritten programs beside the kernel's, without what differs from boot to boot.
//!
//! The kernel shows (`bpf_insn_prepare_dump` of `kernel/bpf/syscall.c`) loads that may fault and
//! tail calls as the program had them, maps by their ids, and calls of subprograms with the
//! distance in `off` (in `imm`, where its compiler gave up). Addresses are left out on both sides; which they are is known from ours.

use bpfkit_isa::{Insn, Syntax, code, disasm};
use bpfkit_verifier::Rewritten;

/// Loads and stores that survive a fault: mode, and the mode it is shown with.
const SHOWN_MODES: [(u8, u8); 3] = [(0x20, code::MEM), (0x40, code::MEMSX), (0xa0, code::MEM)];
const TAIL_CALL: u8 = code::JMP | 0xf0;
const TAIL_CALL_HELPER: i32 = 12;
const CALL: u8 = code::JMP | code::CALL;
/// How an `ld_imm64` says that it loads the address of a subprogram.
const PSEUDO_FUNC: u8 = 4;

/// Characters of a slot's text that tell opcode and registers.
const KIND: usize = 6;

/// One slot of each side as text: ours, and the kernel's.
pub type Pair = (Option<String>, Option<String>);

/// Both programs, slot by slot.
pub fn pairs(ours: &Rewritten, theirs: &[Insn]) -> Vec<Pair> {
    let shown: Vec<Insn> = ours.insns.iter().map(shown).collect();
    let mut hidden = vec![false; shown.len() + 1];
    for &(at, _) in &ours.symbols {
        hidden[at as usize] = true;
    }
    let mut second = false;
    for (at, insn) in shown.iter().enumerate() {
        if !second && insn.is_ld_imm64() {
            let old = ours.insns[at].src;
            hidden[at] |= old != 0 && old != PSEUDO_FUNC;
            // What follows an address is its other half; the offset into a map stays.
            hidden[at + 1] = hidden[at] && insn.src != 2 || old == PSEUDO_FUNC;
        }
        hidden[at] |= insn.code == CALL;
        second = !second && insn.is_ld_imm64();
    }
    let line = |insns: &[Insn], at: usize| {
        let mut insn = *insns.get(at)?;
        let calls = insn.code == CALL && insn.src == code::PSEUDO_CALL;
        if calls && insn.off == 0 && shown.get(at).is_some_and(|ours| ours.imm == insn.imm) {
            insn.off = insn.imm as i16;
        }
        let hide = hidden.get(at).copied().unwrap_or(false) || insn.code == CALL;
        Some(text(&masked(insn, hide)))
    };
    let slots = shown.len().max(theirs.len());
    (0..slots)
        .map(|at| (line(&shown, at), line(theirs, at)))
        .collect()
}

/// An instruction as the kernel shows it.
fn shown(insn: &Insn) -> Insn {
    let mut shown = *insn;
    match (insn.class(), insn.code) {
        (code::LDX | code::ST | code::STX, _) => {
            let mode = SHOWN_MODES.iter().find(|m| m.0 == insn.code & 0xe0);
            if let Some(&(_, mode)) = mode {
                shown.code = insn.code & 0x1f | mode;
            }
        }
        (_, TAIL_CALL) => {
            shown.code = CALL;
            shown.imm = TAIL_CALL_HELPER;
        }
        (_, CALL) if insn.src == code::PSEUDO_CALL => shown.off = insn.imm as i16,
        _ if insn.is_ld_imm64() => {
            shown.src = match insn.src {
                1 | 5 => 1,
                2 | 6 => 2,
                PSEUDO_FUNC => PSEUDO_FUNC,
                _ => 0,
            };
        }
        _ => {}
    }
    shown
}

fn masked(mut insn: Insn, hide: bool) -> Insn {
    if hide {
        insn.imm = 0;
    }
    insn
}

fn text(insn: &Insn) -> String {
    let words = format!(
        "{:02x} {:x} {:x} {} {:#x}",
        insn.code, insn.dst, insn.src, insn.off, insn.imm
    );
    let insns = [*insn];
    let line = disasm::line(&insns, 0, Syntax::Kernel, &disasm::NoSymbols);
    match insn.code {
        0 => format!("{words:24} …"),
        _ => format!("{words:24} {line}"),
    }
}

/// The first slot that differs: the first whose instruction does, else the first jump with
/// another distance, which follows from what stands between.
pub fn first_difference(pairs: &[Pair]) -> Option<usize> {
    let is_jump = |text: &String| matches!(&text[1..2], "5" | "6" | "d" | "e");
    let differs = |(ours, theirs): &Pair| match (ours, theirs) {
        (Some(a), Some(b)) if is_jump(a) && is_jump(b) => a[..KIND] != b[..KIND],
        _ => ours != theirs,
    };
    let exact = || pairs.iter().position(|(ours, theirs)| ours != theirs);
    pairs.iter().position(differs).or_else(exact)
}

/// Both sides around a slot, differing lines marked.
pub fn around(pairs: &[Pair], at: usize, lines: usize) -> String {
    let from = at.saturating_sub(lines);
    let shown = pairs.iter().enumerate().skip(from).take(2 * lines + 1);
    let rows = shown.map(|(n, (ours, theirs))| {
        let mark = if ours == theirs { ' ' } else { '!' };
        let side = |s: &Option<String>| s.clone().unwrap_or_default();
        format!("{mark} {n:5} {:64} | {}", side(ours), side(theirs))
    });
    rows.collect::<Vec<_>>().join("\n")
}
