//! Which of A and X may still be read. Where jumps only go forward, one pass from the
//! end is enough.

use crate::ancillary::Ancillary;
use crate::op::{Op, Operand, jump_target};

/// The registers that are live at a place.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Live {
    pub a: bool,
    pub x: bool,
}

impl Live {
    fn or(self, other: Live) -> Live {
        Live {
            a: self.a || other.a,
            x: self.x || other.x,
        }
    }
}

/// What is live before each instruction, with nothing live past the end.
pub(super) fn before(ops: &[Op]) -> Vec<Live> {
    let mut live = vec![Live::default(); ops.len() + 1];
    let loops = has_jump_back(ops);
    while pass(ops, &mut live) && loops {}
    live
}

/// Goes through the instructions once; says whether anything has changed.
fn pass(ops: &[Op], live: &mut [Live]) -> bool {
    let mut changed = false;
    for (at, op) in ops.iter().enumerate().rev() {
        let after = |skip: usize| live.get(at + 1 + skip).copied().unwrap_or_default();
        let next = after(0);
        let before = match *op {
            Op::LoadAncillary {
                what: Ancillary::NlAttr | Ancillary::NlAttrNest | Ancillary::AluXorX,
                ..
            } => Live { a: true, x: true },
            Op::LoadAbs { .. }
            | Op::LoadAncillary { .. }
            | Op::LoadLen
            | Op::LoadImm(_)
            | Op::LoadMem(_) => Live { a: false, ..next },
            Op::LoadInd { .. } | Op::Txa => Live { a: false, x: true },
            Op::LoadXLen | Op::LoadXImm(_) | Op::LoadXMem(_) | Op::LoadXMsh(_) => {
                Live { x: false, ..next }
            }
            Op::Store(_) | Op::Neg => Live { a: true, ..next },
            Op::StoreX(_) => Live { x: true, ..next },
            Op::Alu { src, .. } => Live {
                a: true,
                x: next.x || src == Operand::X,
            },
            Op::Jump(k) => jump_target(at, k)
                .and_then(|to| live.get(to))
                .copied()
                .unwrap_or_default(),
            Op::JumpIf { src, jt, jf, .. } => after(jt.into()).or(after(jf.into())).or(Live {
                a: true,
                x: src == Operand::X,
            }),
            Op::ReturnK(_) => Live::default(),
            Op::ReturnA => Live { a: true, x: false },
            Op::Tax => Live { a: true, x: false },
        };
        changed |= live[at] != before;
        live[at] = before;
    }
    changed
}

/// Whether the facts at a place may depend on places before it.
pub(super) fn has_jump_back(ops: &[Op]) -> bool {
    ops.iter()
        .enumerate()
        .any(|(at, op)| matches!(*op, Op::Jump(k) if jump_target(at, k).is_some_and(|to| to <= at)))
}
