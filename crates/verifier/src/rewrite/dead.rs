//! Branches that never go one way, instructions that no path reaches, and jumps to the next
//! instruction.

use bpfkit_isa::{Insn, code};

use super::Rewriter;
use super::edit::{Outer, Patch, target};
use crate::checker::is_may_goto;

const fn is_conditional(insn: &Insn) -> bool {
    match insn.class() {
        code::JMP32 => insn.code & 0xf0 != code::JA,
        code::JMP => !matches!(insn.code & 0xf0, code::JA | code::CALL | code::EXIT),
        _ => false,
    }
}

const JUMP: Insn = Insn {
    code: code::JMP | code::JA,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};

impl Rewriter<'_, '_> {
    /// Plans what becomes of code that no path reaches.
    pub fn plan_dead(&mut self) {
        self.drop_fastcalls();
        if !self.checker.privileged() {
            return self.trap_dead();
        }
        let len = self.checker.insns.len() as u32;
        for at in 0..len {
            let insn = self.checker.insns[at as usize];
            if is_conditional(&insn) && self.seen(at) {
                self.hard_wire(at, &insn);
            }
        }
        for at in 0..len {
            if !self.seen(at) {
                self.edits.remove(at);
            }
        }
        self.drop_nops();
    }

    /// Whether a path reaches an instruction (or the one that it is the second half of).
    pub fn seen(&self, at: u32) -> bool {
        let at = at as usize;
        self.checker.aux[at].seen || (self.second[at] && self.checker.aux[at - 1].seen)
    }

    /// Spills and fills around calls that spare the registers.
    fn drop_fastcalls(&mut self) {
        for at in 0..self.checker.insns.len() as u32 {
            let pairs = u32::from(self.checker.aux[at as usize].fastcall_spills);
            for distance in 1..=pairs {
                self.edits.remove(at - distance);
                self.edits.remove(at + distance);
            }
        }
    }

    /// Without privileges dead code is not removed but made an endless loop.
    fn trap_dead(&mut self) {
        for at in 0..self.checker.insns.len() as u32 {
            if !self.seen(at) {
                let trap = Insn { off: -1, ..JUMP };
                self.edits.replace(
                    at,
                    Patch {
                        insns: vec![trap],
                        ..Patch::default()
                    },
                );
            }
        }
    }

    fn hard_wire(&mut self, at: u32, insn: &Insn) {
        let Some(to) = target(at, insn) else { return };
        let reached = |slot: u32| self.seen_at(slot);
        let to = if !reached(at + 1) {
            to
        } else if !reached(to) {
            at + 1
        } else {
            return;
        };
        self.edits.replace(
            at,
            Patch {
                insns: vec![JUMP],
                outer: vec![Outer { at: 0, target: to }],
                skipped_by_jumps: 0,
            },
        );
    }

    fn seen_at(&self, at: u32) -> bool {
        (at as usize) < self.checker.insns.len() && self.seen(at)
    }

    /// Jumps to the next instruction that is left.
    fn drop_nops(&mut self) {
        // What lies between a jump and its target when the pass comes to it: nothing that the
        // pass itself removed later counts, as in Linux, which goes through the program once
        // and only looks again at what stands before a `may_goto` that it removed.
        let len = self.checker.insns.len() as u32;
        let mut left = Left::new(len, |at| !self.edits.is_removed(at));
        let mut last_left = Vec::new();
        for at in 0..len {
            if self.edits.is_removed(at) {
                continue;
            }
            let Some(is_may_goto) = self.is_nop(at, &mut left) else {
                last_left.push(at);
                continue;
            };
            self.drop_nop(at, &mut left);
            if !is_may_goto {
                continue;
            }
            while let Some(&before) = last_left.last() {
                let Some(again) = self.is_nop(before, &mut left) else {
                    break;
                };
                self.drop_nop(before, &mut left);
                last_left.pop();
                if !again {
                    break;
                }
            }
        }
    }

    fn drop_nop(&mut self, at: u32, left: &mut Left) {
        self.edits.remove(at);
        left.remove(at);
    }

    /// Whether an instruction jumps to the next one that is left, and if so whether it is a
    /// `may_goto`.
    fn is_nop(&self, at: u32, left: &mut Left) -> Option<bool> {
        let (insn, to) = match self.edits.patch(at) {
            Some(patch) => (*patch.insns.first()?, patch.outer.first()?.target),
            None => {
                let insn = self.checker.insns[at as usize];
                (insn, target(at, &insn)?)
            }
        };
        let may_goto = is_may_goto(&insn);
        let jump = insn.code == code::JMP | code::JA;
        if !(jump || may_goto) || to <= at {
            return None;
        }
        (left.from(at + 1) >= to).then_some(may_goto)
    }
}

/// Which slots are left, asked for in order: removed ones point on, and ways walked are
/// shortened, so that long stretches are passed over once.
struct Left {
    next: Vec<u32>,
}

impl Left {
    fn new(len: u32, is_left: impl Fn(u32) -> bool) -> Left {
        let next = (0..len).map(|at| at + u32::from(!is_left(at)));
        Left {
            next: next.chain([len]).collect(),
        }
    }

    fn remove(&mut self, at: u32) {
        self.next[at as usize] = at + 1;
    }

    /// The first slot from `at` on that is left, or the end.
    fn from(&mut self, at: u32) -> u32 {
        let last = self.next.len() - 1;
        let mut end = (at as usize).min(last);
        while self.next[end] as usize != end {
            end = self.next[end] as usize;
        }
        let mut walked = (at as usize).min(last);
        while walked != end {
            let on = self.next[walked] as usize;
            self.next[walked] = end as u32;
            walked = on;
        }
        end as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_slots_point_to_the_next_that_is_left() {
        let mut left = Left::new(6, |at| at != 2);
        assert_eq!(left.from(2), 3);
        left.remove(3);
        left.remove(1);
        assert_eq!(
            left.from(1),
            4,
            "over what was removed before, between and after"
        );
        left.remove(4);
        left.remove(5);
        assert_eq!(left.from(1), 6, "the end");
        assert_eq!(left.from(0), 0);
    }
}
