//! Jumps over one instruction, as conditional moves.

use bpfkit_isa::{AluOp, Op, Operand};

use super::{Combined, Match, Test, View};
use crate::lower::{Plan, Rule};

/// Whether an instruction may be done in vain: cheap, and touching one register only.
fn is_cheap(op: &Op) -> bool {
    match *op {
        Op::Alu { op, src, .. } => match op {
            AluOp::Mov | AluOp::Add | AluOp::Sub | AluOp::Or | AluOp::And | AluOp::Xor => true,
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => matches!(src, Operand::Imm(_)),
            _ => false,
        },
        Op::MovSx { .. } | Op::Neg { .. } => true,
        _ => false,
    }
}

impl View<'_, '_> {
    /// `if … goto L; dst = …; L:`, and the same with `goto L` behind the assignment: what
    /// stands for these behind a test whose jump, at that slot, is taken or, negated, is not.
    pub(super) fn select(&self, jump: usize, test: Test, negated: bool, off: i16) -> Option<Match> {
        // In checked code what is skipped is not counted.
        if self.plan.checked || !self.has(Rule::Select) {
            return None;
        }
        let body = *self.next(jump + 1).filter(|op| is_cheap(op))?;
        let join = Plan::target(jump, off.into());
        let (to, end) = if off == 1 {
            (None, jump + 2)
        } else {
            match *self.next(jump + 2)? {
                Op::Jump { off, .. } if Plan::target(jump + 2, off) == join => {
                    (Some(join), jump + 3)
                }
                _ => return None,
            }
        };
        Some(Match {
            combined: Combined::Select {
                test,
                negated,
                body,
                to,
            },
            end,
        })
    }
}
