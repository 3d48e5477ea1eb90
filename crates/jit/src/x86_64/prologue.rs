//! How programs and functions begin and end.

use std::mem::offset_of;

use bpfkit_runtime::native::{MayGoto, State};

use super::Compiler;
use super::emit::{Arith, Label, Mem};
use super::regs::{ARGS, FRAME, FUEL, Gpr, RAX, RCX, RDI, RDX, RSI, RSP, SAVED, STATE};
use crate::lower::{Mask, Plan};

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;
/// Room for a [`MayGoto`], that keeps the stack aligned.
const MAY_GOTO: i32 = size_of::<MayGoto>().next_multiple_of(16) as i32;
const UNWIND_AT: i32 = offset_of!(State, unwind) as i32;

/// What a call from outside saves: for the main function and for all it calls, because a
/// trap in any of them returns from here.
pub(super) struct Entry {
    saved: Vec<Gpr>,
    frame: bool,
    state: bool,
    /// Bytes that align the stack.
    pad: i32,
}

impl Entry {
    pub(super) fn of(plan: &Plan<'_>) -> Self {
        let written = plan.functions.iter().fold(0, |all, f| all | f.writes);
        let mut saved = saved(written);
        if plan.needs.frame {
            saved.push(FRAME);
        }
        if plan.needs.state {
            saved.push(STATE);
        }
        // Return address, these, and the outer unwinding point.
        let words = 1 + saved.len() + usize::from(plan.needs.state);
        let aligned = plan.functions.iter().any(|f| f.calls) || plan.main_is_called;
        let pad = if aligned && words % 2 == 1 { 8 } else { 0 };
        Self {
            saved,
            frame: plan.needs.frame,
            state: plan.needs.state,
            pad,
        }
    }
}

fn saved(written: Mask) -> Vec<Gpr> {
    SAVED
        .into_iter()
        .filter(|(_, bit)| written & bit != 0)
        .map(|(reg, _)| reg)
        .collect()
}

impl Compiler<'_> {
    /// `(state, arguments, frame, function)` to registers, up to the arguments.
    fn enter(&mut self) {
        for i in 0..self.entry.saved.len() {
            self.asm.push(self.entry.saved[i]);
        }
        self.move_stack(Arith::Sub, self.entry.pad);
        if self.entry.state {
            self.asm.push_mem(Mem::at(RDI, UNWIND_AT));
            self.asm.store(8, Mem::at(RDI, UNWIND_AT), RSP);
            self.asm.mov(true, STATE, RDI);
        }
        if self.entry.frame {
            self.asm.mov(true, FRAME, RDX);
        }
        if self.plan.checked {
            self.asm.load(8, false, FUEL, Mem::at(STATE, FUEL_AT));
        }
    }

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

    /// The main function, entered from outside only.
    pub(super) fn enter_main(&mut self) {
        self.asm.bind(Label(self.function_labels));
        self.enter();
        let live = self.plan.live_in(0);
        self.load_args(live);
        self.clear(live);
        self.open_locals();
    }

    /// A call of a certain function from outside.
    pub(super) fn enter_through(&mut self, function: Label) {
        self.enter();
        self.load_args(!0);
        self.asm.call(function);
        self.leave_well();
    }

    /// A call of any function from outside.
    pub(super) fn enter_any(&mut self) {
        self.asm.mov(true, RAX, RCX);
        self.enter();
        self.load_args(!0);
        self.asm.call_reg(RAX);
        self.leave_well();
    }

    fn leave_well(&mut self) {
        self.asm.zero(RDX);
        self.leave();
    }

    /// Returns to outside with RAX and RDX.
    pub(super) fn leave(&mut self) {
        if self.plan.checked {
            self.asm.store(8, Mem::at(STATE, FUEL_AT), FUEL);
        }
        if self.entry.state {
            self.asm.pop_mem(Mem::at(STATE, UNWIND_AT));
        }
        self.move_stack(Arith::Add, self.entry.pad);
        for i in (0..self.entry.saved.len()).rev() {
            self.asm.pop(self.entry.saved[i]);
        }
        self.asm.ret();
    }

    fn is_entry(&self) -> bool {
        self.function.start == 0 && !self.plan.main_is_called
    }

    /// What a function pushes, and the bytes that align the stack.
    fn frame_of_function(&self) -> (Vec<Gpr>, i32) {
        let saved = saved(self.function.writes);
        let pad = if self.function.calls && saved.len().is_multiple_of(2) {
            8
        } else {
            0
        };
        (saved, pad)
    }

    /// A function that others call.
    pub(super) fn enter_function(&mut self) {
        let (saved, pad) = self.frame_of_function();
        saved.into_iter().for_each(|reg| self.asm.push(reg));
        self.move_stack(Arith::Sub, pad);
        if self.plan.checked {
            self.clear(self.plan.live_in(self.function.start as usize));
        }
        self.open_locals();
    }

    pub(super) fn epilogue(&mut self) {
        self.move_stack(Arith::Add, self.locals);
        if self.is_entry() {
            return self.leave_well();
        }
        let (saved, pad) = self.frame_of_function();
        self.move_stack(Arith::Add, pad);
        saved.into_iter().rev().for_each(|reg| self.asm.pop(reg));
        self.asm.ret();
    }
}
