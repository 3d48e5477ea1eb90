//! Gathering what paths show while they are walked.

use bpfkit_isa::{Insn, code};
use bpfkit_spec::helper::{ArgKind, Proto};
use rustc_hash::FxHashMap;

use super::pointer::Pointer;
use super::slot::SeenSlots;
use super::{Branch, CallFact};
use crate::args::CallInfo;
use crate::checker::Checker;
use crate::range::Range;
use crate::reg::{Base, Reg};
use crate::rewrite::Note;
use crate::state::Frame;

/// Bit of [`Gatherer::ways`]: it went on to the next instruction.
const FELL: u8 = 1;
/// It jumped.
const JUMPED: u8 = 2;

/// What an instruction found in a register that it reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Seen {
    /// No path came yet.
    Nothing,
    /// Numbers only; with exact numbers, within that range.
    Number(Range),
    /// Pointers only.
    Pointer(Pointer),
    /// Different things.
    Mixed,
}

/// What was seen on the paths walked so far.
#[derive(Debug)]
pub(crate) struct Gatherer {
    /// Registers that each instruction reads.
    reads: Vec<u16>,
    /// Where its registers begin in `seen`.
    first: Vec<u32>,
    seen: Vec<Seen>,
    ways: Vec<u8>,
    /// The numbers of states hold for all that they stand for.
    exact: bool,
    /// With exact numbers, what slots held.
    pub(super) slots: SeenSlots,
    pub calls: FxHashMap<u32, CallFact>,
    /// For rewriting, by instruction.
    pub notes: FxHashMap<u32, Note>,
}

impl Gatherer {
    pub fn new(reads: Vec<u16>, exact: bool) -> Gatherer {
        let mut first = Vec::with_capacity(reads.len());
        let mut total = 0;
        for mask in &reads {
            first.push(total);
            total += mask.count_ones();
        }
        Gatherer {
            first,
            seen: vec![Seen::Nothing; total as usize],
            ways: vec![0; reads.len()],
            calls: FxHashMap::default(),
            notes: FxHashMap::default(),
            reads,
            exact,
            slots: SeenSlots::default(),
        }
    }

    /// An instruction is about to be walked.
    pub fn before(&mut self, insn: u32, frame: &Frame) {
        if self.exact {
            self.slots.before(insn, frame);
        }
        let mut mask = self.reads[insn as usize];
        let mut at = self.first[insn as usize] as usize;
        while mask != 0 {
            let number = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let seen = &mut self.seen[at];
            at += 1;
            // What names a register that does not exist is about to be refused.
            let Some(reg) = frame.regs.get(number) else {
                continue;
            };
            *seen = match (*seen, reg.ty.base()) {
                (Seen::Mixed, _) => continue,
                (Seen::Number(_) | Seen::Nothing, Base::Scalar) if !self.exact => {
                    Seen::Number(Range::UNKNOWN)
                }
                (Seen::Number(range), Base::Scalar) => Seen::Number(range.join(&reg.range)),
                (Seen::Nothing, Base::Scalar) => Seen::Number(reg.range),
                (before, Base::NotInit) => before,
                (before, _) => joined(before, reg, frame.frameno),
            };
        }
    }

    /// A conditional jump was walked: on to `next`, or both ways.
    pub fn went(&mut self, at: u32, insn: &Insn, next: u32, both: bool) {
        let conditional = matches!(insn.class(), code::JMP | code::JMP32)
            && !matches!(insn.code & 0xf0, code::JA | code::CALL | code::EXIT);
        if conditional {
            // A jump to the next instruction does not tell which way it went.
            let both = both || insn.off == 0;
            self.ways[at as usize] |= match (both, next == at + 1) {
                (true, _) => FELL | JUMPED,
                (_, true) => FELL,
                _ => JUMPED,
            };
        }
    }

    /// A call was walked.
    pub fn called(&mut self, at: u32, fact: CallFact) {
        self.calls
            .entry(at)
            .and_modify(|known| {
                if known.map != fact.map {
                    known.map = None;
                }
                known.exact_map &= fact.exact_map;
                if known.key != fact.key {
                    known.key = None;
                }
                if known.callback != fact.callback {
                    known.callback = None;
                }
            })
            .or_insert(fact);
    }

    /// What an instruction found in its registers: number and finding.
    pub fn found(&self, insn: u32) -> impl Iterator<Item = (u8, Seen)> {
        let mut mask = self.reads.get(insn as usize).copied().unwrap_or(0);
        let first = self.first.get(insn as usize).copied().unwrap_or(0) as usize;
        self.seen[first..].iter().map_while(move |seen| {
            let reg = (mask != 0).then(|| mask.trailing_zeros() as u8)?;
            mask &= mask - 1;
            Some((reg, *seen))
        })
    }

    /// Whether a conditional jump went that way.
    pub fn goes(&self, insn: u32, jumps: bool) -> bool {
        self.ways[insn as usize] & if jumps { JUMPED } else { FELL } != 0
    }

    pub fn branches(&self) -> Vec<Branch> {
        let branch = |ways: &u8| match *ways {
            FELL => Branch::Never,
            JUMPED => Branch::Always,
            _ => Branch::Unknown,
        };
        self.ways.iter().map(branch).collect()
    }
}

impl Checker<'_> {
    /// The call of a helper was walked.
    pub fn note_call(&mut self, call: &CallInfo, proto: &Proto) {
        let Some(gatherer) = &mut self.gatherer else {
            return;
        };
        let map = call.map;
        let template = map.is_some_and(|m| self.maps.iter().any(|of| of.inner == Some(m)));
        let calls_back = proto.args.iter().any(|a| a.kind == ArgKind::PtrToFunc);
        gatherer.called(
            self.insn,
            CallFact {
                map: map.map(|m| m as u32),
                exact_map: map.is_some() && !template,
                key: call.key,
                callback: calls_back.then_some(call.sub as u32),
            },
        );
    }
}

#[cold]
fn joined(before: Seen, reg: &Reg, frame: u8) -> Seen {
    match (before, Pointer::of(reg, frame as usize)) {
        (Seen::Nothing, Some(pointer)) => Seen::Pointer(pointer),
        (Seen::Pointer(known), Some(pointer)) => match known == pointer {
            true => before,
            false => known.join(&pointer).map_or(Seen::Mixed, Seen::Pointer),
        },
        _ => Seen::Mixed,
    }
}
