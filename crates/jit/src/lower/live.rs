//! Which registers' values are used later.

use bpfkit_isa::{Call, Op};
use bpfkit_runtime::TAIL_CALL;
use bpfkit_runtime::native::Slot;

use super::Plan;
use super::regs::{Mask, reads, writes};

/// For every slot, the registers that are live before it, and after it.
pub(super) fn around(plan: &Plan<'_>) -> (Vec<Mask>, Vec<Mask>) {
    let slots = plan.slots();
    let mut out: Vec<Mask> = vec![0; slots.len()];
    // Behind the last there is a trap.
    let mut before: Vec<Mask> = vec![0; slots.len() + 1];
    loop {
        let mut changed = false;
        for slot in (0..slots.len()).rev() {
            let next = before[slot + 1];
            let after = match slots[slot] {
                Slot::Op(Op::Jump { off, .. }) => before[Plan::target(slot, off)],
                Slot::Op(Op::JumpIf { off, .. } | Op::MayGoto { off }) => {
                    next | before[Plan::target(slot, off.into())]
                }
                Slot::Op(Op::Exit) | Slot::Poison => 0,
                _ => next,
            };
            out[slot] = after;
            let live = match &slots[slot] {
                // One that does not happen leaves R0–R5 as they are.
                Slot::Op(Op::Call(Call::Helper(TAIL_CALL))) => after | 0b11_1111,
                Slot::Op(Op::Call(call)) => after & !1 | plan.arguments(slot, *call, &before) & !1,
                Slot::Op(op) => after & !writes(op) | reads(op),
                Slot::Second => after,
                Slot::Poison => 0,
            };
            // Only what jumps or calls back can have seen too little.
            changed |= live != before[slot] && plan.is_loop(slot);
            before[slot] = live;
        }
        if !changed {
            return (before, out);
        }
    }
}
