//! What is learned about a kept state after it was kept.

use crate::reg::RegType;
use crate::state::{FP, Frame};

/// About one frame; the frame itself, which other states share, stays as it was. Bits are
/// registers and slots of the stack.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    /// Where exact numbers mattered for safety further on. Means something for numbers only.
    precise_regs: u16,
    precise_slots: u64,
    /// What may be read further on; the rest counts as never written.
    pub live_regs: u16,
    pub live_slots: u64,
}

impl Marks {
    /// Nothing mattered so far, and everything may be read.
    pub const NEW: Marks = Marks {
        precise_regs: 0,
        precise_slots: 0,
        live_regs: u16::MAX,
        live_slots: u64::MAX,
    };

    /// Whether the number in a register mattered.
    pub const fn precise_reg(&self, n: usize) -> bool {
        self.precise_regs & (1 << n) != 0
    }

    /// Whether the number spilled to a slot mattered.
    pub const fn precise_slot(&self, n: usize) -> bool {
        self.precise_slots & (1 << n) != 0
    }

    /// The registers and slots whose numbers mattered.
    pub fn precise(&self, frame: &Frame) -> (u16, u64) {
        self.numbers(frame, self.precise_regs, self.precise_slots)
    }

    /// Those among some registers and slots that hold numbers that did not matter so far.
    pub fn loose(&self, frame: &Frame, regs: u16, slots: u64) -> (u16, u64) {
        self.numbers(
            frame,
            regs & !self.precise_regs,
            slots & !self.precise_slots,
        )
    }

    /// The exact numbers there matter.
    pub const fn mark(&mut self, regs: u16, slots: u64) {
        self.precise_regs |= regs;
        self.precise_slots |= slots;
    }

    /// All numbers matter.
    pub const fn mark_all(&mut self) {
        self.mark(u16::MAX, u64::MAX);
    }

    /// Those among some registers and slots that are live and hold numbers.
    pub fn numbers(&self, frame: &Frame, regs: u16, slots: u64) -> (u16, u64) {
        // The frame pointer is none.
        let regs = bits((regs & self.live_regs & ((1 << FP) - 1)).into())
            .filter(|n| frame.regs[*n].ty == RegType::SCALAR)
            .fold(0, |mask, n| mask | 1 << n);
        let slots = bits(slots & self.live_slots)
            .take_while(|n| *n < frame.stack.len())
            .filter(|n| frame.stack[*n].is_scalar_spill())
            .fold(0, |mask, n| mask | 1 << n);
        (regs, slots)
    }
}

/// The numbers of the bits that are set, from the lowest.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(bit)
    })
}
