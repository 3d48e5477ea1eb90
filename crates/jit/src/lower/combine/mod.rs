//! Several instructions that are better done as one. Each rule looks at the instructions from
//! a slot on, and answers what stands for them; the backends do that instead.
//!
//! No jump leads into what a rule covers, and registers whose values it drops are dead behind
//! it. Registers that it reads still hold what they held before the first instruction.

mod bytes;
mod select;
mod shift;
mod test;

use bpfkit_isa::{Cond, Op, Operand, Reg, Size, Width};

use super::{Plan, Rule, Zeros};
use crate::backend::Arch;

/// What stands for the instructions of a [`Match`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Combined {
    /// A simpler instruction, no jump.
    Op(Op),
    /// `dst` is `src` rotated to the right.
    Rotate {
        width: Width,
        dst: Reg,
        src: Reg,
        right: u8,
    },
    /// A load of two, four or eight bytes in reverse order.
    LoadSwapped {
        size: Size,
        dst: Reg,
        base: Reg,
        off: i16,
    },
    /// A store of the lowest bytes of a register in reverse order.
    StoreSwapped {
        size: Size,
        base: Reg,
        off: i16,
        src: Reg,
    },
    /// `body` happens unless the condition holds or, negated, does not; then `to` follows, or
    /// what is behind.
    Select {
        test: Test,
        negated: bool,
        body: Op,
        to: Option<usize>,
    },
    /// A jump that is taken where the condition holds, or, negated, where it does not.
    Branch {
        test: Test,
        negated: bool,
        to: Target,
    },
}

/// The condition of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Test {
    pub(crate) cond: Cond,
    pub(crate) width: Width,
    pub(crate) dst: Reg,
    pub(crate) src: Operand,
}

/// Where a jump leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// To a slot.
    Slot(usize),
    /// Out of the function.
    Exit,
}

/// Instructions, up to the slot `end`, that something stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Match {
    pub(crate) combined: Combined,
    pub(crate) end: usize,
}

/// What rules see: the plan, and what is known of registers before the slot.
struct View<'a, 'p> {
    plan: &'a Plan<'p>,
    zeros: Zeros,
    arch: Arch,
    /// The slot after the function's last.
    end: usize,
}

impl View<'_, '_> {
    fn has(&self, rule: Rule) -> bool {
        self.plan.rules.has(rule)
    }

    /// The instruction at a slot that only the one before it leads to.
    fn next(&self, slot: usize) -> Option<&Op> {
        if slot >= self.end || self.plan.is_target(slot) {
            return None;
        }
        self.plan.op(slot)
    }

    /// Whether a register's value matters after a slot.
    fn lives(&self, slot: usize, reg: Reg) -> bool {
        self.plan.live_out(slot) & 1 << reg.number() != 0
    }
}

impl Plan<'_> {
    /// What stands for the instructions from a slot on, in the function that ends at `end`,
    /// if a rule finds something.
    pub(crate) fn combine(
        &self,
        slot: usize,
        end: usize,
        zeros: Zeros,
        arch: Arch,
    ) -> Option<Match> {
        let op = self.op(slot)?;
        let view = View {
            plan: self,
            zeros,
            arch,
            end,
        };
        match op {
            Op::Alu { .. } => view
                .rotation(slot, op)
                .or_else(|| view.shift_pair(slot, op))
                .or_else(|| view.test_bits(slot, op))
                .or_else(|| view.shifted_out(slot, op)),
            Op::Load { .. } => view
                .wide_load(slot, op)
                .or_else(|| view.signed_load(slot, op))
                .or_else(|| view.swapped_load(slot, op)),
            Op::Store { .. } => view.wide_store(slot),
            Op::JumpIf { .. } => view.conditional(slot, op),
            _ => None,
        }
    }
}
