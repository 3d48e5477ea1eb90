//! Conditional jumps.

use bpfkit_isa::{AluOp, Cond, Op, Operand, Width};

use super::{Combined, Match, Target, Test, View};
use crate::lower::{Plan, Rule};

impl View<'_, '_> {
    /// A conditional jump and what it jumps over.
    pub(super) fn conditional(&self, slot: usize, jump: &Op) -> Option<Match> {
        let Op::JumpIf {
            cond,
            width,
            dst,
            src,
            off,
        } = *jump
        else {
            return None;
        };
        let test = Test {
            cond,
            width,
            dst,
            src,
        };
        self.select(slot, test, false, off)
            .or_else(|| self.inverted(slot, test, off))
    }

    /// `if … goto +1; goto TARGET` and `if … goto +1; exit`.
    fn inverted(&self, slot: usize, test: Test, off: i16) -> Option<Match> {
        // In checked code the second one counts for itself.
        if off != 1 || self.plan.checked || !self.has(Rule::InvertJump) {
            return None;
        }
        let next = slot + 1;
        let to = match *self.next(next)? {
            Op::Jump { off, .. } => Target::Slot(Plan::target(next, off)),
            Op::Exit if next + 1 != self.end => Target::Exit,
            _ => return None,
        };
        Some(Match {
            combined: Combined::Branch {
                test,
                negated: true,
                to,
            },
            end: next + 1,
        })
    }

    /// `t = x; t &= mask; if t == 0 goto`, with or without the copy, where `t` is not used any
    /// more.
    pub(super) fn test_bits(&self, slot: usize, first: &Op) -> Option<Match> {
        let (copied, and_slot, and) = match *first {
            Op::Alu {
                op: AluOp::Mov,
                width,
                dst,
                src: Operand::Reg(src),
            } => (Some((width, dst, src)), slot + 1, *self.next(slot + 1)?),
            and => (None, slot, and),
        };
        let Op::Alu {
            op: AluOp::And,
            width: and_width,
            dst: masked,
            src: mask,
        } = and
        else {
            return None;
        };
        let end = and_slot + 2;
        let Op::JumpIf {
            cond: cond @ (Cond::Eq | Cond::Ne),
            width: jump_width,
            dst: tested,
            src: Operand::Imm(0),
            off,
        } = *self.next(and_slot + 1)?
        else {
            return None;
        };
        if tested != masked || self.lives(end - 1, masked) || !self.has(Rule::TestBits) {
            return None;
        }
        let width = if (and_width, jump_width) == (Width::W64, Width::W64) {
            Width::W64
        } else {
            Width::W32
        };
        let dst = match copied {
            Some((moved, to, from)) => {
                if to != masked
                    || mask == Operand::Reg(masked)
                    || (moved, width) == (Width::W32, Width::W64)
                {
                    return None;
                }
                from
            }
            None => masked,
        };
        let test = Test {
            cond: Cond::Set,
            width,
            dst,
            src: mask,
        };
        let negated = cond == Cond::Eq;
        if let Some(found) = self.select(end - 1, test, negated, off) {
            return Some(found);
        }
        Some(Match {
            combined: Combined::Branch {
                test,
                negated,
                to: Target::Slot(Plan::target(end - 1, off.into())),
            },
            end,
        })
    }
}
