//! How programs and functions begin and end.

use bpfkit_runtime::native::MayGoto;

use super::Compiler;
use super::emit::{Arith, Label, Mem};
use super::regs::{
    ARGS, FRAME, Gpr, R8, RAX, RBX, RCX, RDX, RSI, RSP, SAVED, STATE, STATE_BIT, numbered,
};
use crate::lower::{Mask, Plan};

/// R5 in masks of BPF registers: no argument of a program over a packet.
const R5: Mask = 1 << 5;

/// Room for a [`MayGoto`], that keeps the stack aligned.
const MAY_GOTO: i32 = size_of::<MayGoto>().next_multiple_of(16) as i32;

/// R6–R9 as far as they are written.
fn saved(written: Mask) -> impl DoubleEndedIterator<Item = Gpr> {
    let written = SAVED.into_iter().filter(move |(_, bit)| written & bit != 0);
    written.map(|(reg, _)| reg)
}

/// What a program saves that is entered from outside as it is, because it needs nothing of the
/// run: then it has one function, which calls nothing.
fn saved_by_program(plan: &Plan<'_>) -> impl DoubleEndedIterator<Item = Gpr> + use<> {
    let written = plan.functions[0].writes;
    let frame = plan.needs.frame.then_some(FRAME);
    let state = (written & STATE_BIT != 0).then_some(STATE);
    saved(written).chain(frame).chain(state)
}

impl Compiler<'_> {
    fn load_args(&mut self, live: Mask) {
        // RSI points to them: R2 last.
        for number in [1, 3, 4, 5, 2] {
            if live & 1 << number != 0 {
                let arg = ARGS[number - 1];
                self.asm
                    .load(8, false, arg, Mem::at(RSI, (number as i32 - 1) * 8));
            }
        }
    }

    fn move_stack(&mut self, op: Arith, bytes: i32) {
        if bytes != 0 {
            self.asm.arith_imm(op, true, RSP, bytes);
        }
    }

    /// Registers that unverified code reads before it writes them are 0.
    fn clear(&mut self, live: Mask) {
        for (home, bit) in SAVED.into_iter().chain([(RAX, 1)]) {
            if live & bit != 0 {
                self.asm.zero(home);
            }
        }
    }

    fn open_locals(&mut self) {
        let cleared = self.function.spills.cleared;
        let numbers = (0..Mask::BITS).filter(|n| cleared & 1 << n != 0);
        numbers
            .filter_map(numbered)
            .for_each(|home| self.asm.zero(home));
        self.locals = 0;
        if self.function.may_goto {
            self.move_stack(Arith::Sub, MAY_GOTO);
            let MayGoto { left, .. } = MayGoto::NEW;
            for (i, word) in [left as i32, 0, 0].into_iter().enumerate() {
                self.asm.store_imm(8, Mem::at(RSP, 8 * i as i32), word);
            }
            self.locals = MAY_GOTO;
        }
    }

    /// The main function, entered from outside only: by way of what programs share, which
    /// saves everything and aligns the stack, or at once.
    pub(super) fn enter_main(&mut self) {
        self.asm.bind(Label(self.function_labels));
        let live = self.plan.live_in(0);
        if !self.plan.needs.state {
            saved_by_program(self.plan).for_each(|reg| self.asm.push(reg));
            let frame = if self.plan.packet { R8 } else { RDX };
            if self.plan.needs.frame {
                self.asm.mov(true, FRAME, frame);
            }
            match self.plan.packet {
                true if live & R5 != 0 => self.asm.zero(R8),
                true => {}
                false => self.load_args(live),
            }
        }
        self.clear(live);
        self.open_locals();
    }

    fn is_entry(&self) -> bool {
        self.function.start == 0 && !self.plan.main_is_called
    }

    /// Whether a word aligns the stack of a function that others call.
    fn is_padded(&self) -> bool {
        self.function.calls && saved(self.function.writes).count().is_multiple_of(2)
    }

    /// A function that others call.
    pub(super) fn enter_function(&mut self) {
        saved(self.function.writes).for_each(|reg| self.asm.push(reg));
        if self.is_padded() {
            self.asm.push(RAX);
        }
        if self.plan.checked {
            self.clear(self.plan.live_in(self.function.start as usize));
        }
        self.open_locals();
    }

    /// Whether the epilogue is no longer than a jump.
    pub(super) fn leaves_at_once(&self) -> bool {
        if self.locals != 0 {
            return false;
        }
        match self.is_entry() {
            true if self.plan.packet => saved_by_program(self.plan).next().is_none(),
            true => self.plan.needs.state,
            false => {
                let mut saved = saved(self.function.writes);
                let first = saved.next();
                match self.is_padded() {
                    true => first.is_none(),
                    false => first.is_none_or(|reg| reg == RBX) && saved.next().is_none(),
                }
            }
        }
    }

    pub(super) fn epilogue(&mut self) {
        self.move_stack(Arith::Add, self.locals);
        if !self.is_entry() {
            if self.is_padded() {
                // Whoever needs R4 behind a call keeps it.
                self.asm.pop(RCX);
            }
            let saved = saved(self.function.writes).rev();
            saved.for_each(|reg| self.asm.pop(reg));
        } else if !self.plan.needs.state {
            if !self.plan.packet {
                // No trap.
                self.asm.zero(RDX);
            }
            let saved = saved_by_program(self.plan).rev();
            saved.for_each(|reg| self.asm.pop(reg));
        }
        self.asm.ret();
    }
}
