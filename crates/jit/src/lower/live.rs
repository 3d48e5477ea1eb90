//! Which registers' values are used later.

use bpfkit_isa::{Call, Op};
use bpfkit_runtime::TAIL_CALL;
use bpfkit_runtime::native::Slot;

use super::Plan;

/// Finds out for every slot which registers are live before it, and after it.
pub(super) fn mark(plan: &mut Plan<'_>) {
    let slots = plan.slots().len();
    loop {
        let mut changed = false;
        for slot in (0..slots).rev() {
            // Behind the last there is a trap.
            let next = plan.live_in(slot + 1);
            let info = plan.info[slot];
            let (after, before) = match plan.slots()[slot] {
                Slot::Op(Op::Jump { off, .. }) => {
                    let to = plan.live_in(Plan::target(slot, off));
                    (to, to)
                }
                Slot::Op(Op::JumpIf { off, .. } | Op::MayGoto { off }) => {
                    let after = next | plan.live_in(Plan::target(slot, off.into()));
                    (after, after | info.reads)
                }
                Slot::Op(Op::Exit) => (0, info.reads),
                // One that does not happen leaves R0–R5 as they are.
                Slot::Op(Op::Call(Call::Helper(TAIL_CALL))) => (next, next | 0b11_1111),
                Slot::Op(Op::Call(call)) => (next, (next | plan.arguments(slot, call)) & !1),
                Slot::Op(_) => (next, next & !info.writes | info.reads),
                Slot::Second => (next, next),
                Slot::Poison => (0, 0),
            };
            // Only what jumps or calls back can have seen too little.
            changed |= before != info.live_in && plan.is_loop(slot);
            let info = &mut plan.info[slot];
            (info.live_in, info.live_out) = (before, after);
        }
        if !changed {
            return;
        }
    }
}
