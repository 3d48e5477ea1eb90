//! How programs and functions begin and end.

use std::mem::offset_of;

use bpfkit_runtime::native::{MayGoto, State};

use super::Compiler;
use super::emit::{Alu, Label};
use super::regs::{
    ARGS, FRAME, FUEL, Gpr, LINK, RESULT, SAVED, SP, STATE, T0, T1, X0, X1, X2, X3, X4, ZR,
};
use crate::lower::{Mask, Plan, Rule};

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;
/// R5 in masks of BPF registers: no argument of a program over a packet.
const R5: Mask = 1 << 5;

/// Room for a [`MayGoto`], that keeps the stack aligned.
const MAY_GOTO: u32 = size_of::<MayGoto>().next_multiple_of(16) as u32;
const UNWIND_AT: i32 = offset_of!(State, unwind) as i32;

/// What a call from outside saves: for the main function and for all it calls, because a
/// trap in any of them returns from here.
pub(super) struct Entry {
    /// An even number; the zero register fills up.
    saved: Vec<Gpr>,
    frame: bool,
    state: bool,
}

fn paired(mut saved: Vec<Gpr>) -> Vec<Gpr> {
    if !saved.len().is_multiple_of(2) {
        saved.push(ZR);
    }
    saved
}

fn saved(written: Mask) -> impl Iterator<Item = Gpr> {
    SAVED
        .into_iter()
        .filter(move |(_, bit)| written & bit != 0)
        .map(|(reg, _)| reg)
}

impl Entry {
    pub(super) fn of(plan: &Plan<'_>) -> Self {
        let written = plan.functions.iter().fold(0, |all, f| all | f.writes);
        let calls = plan.functions.iter().any(|f| f.calls) || plan.functions.len() > 1;
        let mut registers: Vec<Gpr> = saved(written).collect();
        if calls || plan.main_is_called {
            registers.push(LINK);
        }
        // Atomics stop where they are misaligned.
        let state = plan.needs.state || plan.has_atomics;
        let frame = plan.needs.frame || state;
        if frame {
            registers.push(FRAME);
        }
        if state {
            registers.push(STATE);
        }
        if plan.checked {
            registers.push(FUEL);
        }
        if state && !registers.contains(&LINK) {
            registers.push(LINK);
        }
        Self {
            saved: paired(registers),
            frame,
            state,
        }
    }
}

impl Compiler<'_> {
    /// The first pair lies lowest. Either the stack pointer moves once, with that pair, or with
    /// every one.
    fn save(&mut self, registers: &[Gpr]) {
        let mut pairs = registers.chunks_exact(2);
        if !self.has(Rule::PairOffset) {
            return pairs
                .rev()
                .for_each(|pair| self.asm.push_pair(pair[0], pair[1], 16));
        }
        if let Some(first) = pairs.next() {
            let bytes = registers.len() as u32 * 8;
            self.asm.push_pair(first[0], first[1], bytes);
        }
        for (pair, off) in pairs.zip((16..).step_by(16)) {
            self.asm.store_pair(pair[0], pair[1], off);
        }
    }

    fn restore(&mut self, registers: &[Gpr]) {
        let mut pairs = registers.chunks_exact(2);
        if !self.has(Rule::PairOffset) {
            return pairs.for_each(|pair| self.asm.pop_pair(pair[0], pair[1], 16));
        }
        let first = pairs.next();
        for (pair, off) in pairs.zip((16..).step_by(16)) {
            self.asm.load_pair(pair[0], pair[1], off);
        }
        if let Some(first) = first {
            let bytes = registers.len() as u32 * 8;
            self.asm.pop_pair(first[0], first[1], bytes);
        }
    }

    /// `(state, arguments, frame, function)` to registers, up to the arguments.
    fn enter(&mut self) {
        let registers = std::mem::take(&mut self.entry.saved);
        self.save(&registers);
        self.entry.saved = registers;
        if self.entry.state {
            // The outer unwinding point, below what is saved.
            self.asm.sp(Alu::Sub, SP, SP, 16);
            self.asm.load(8, false, T0, X0, UNWIND_AT);
            self.asm.store(8, T0, SP, 0);
            self.asm.sp(Alu::Add, T0, SP, 0);
            self.asm.store(8, T0, X0, UNWIND_AT);
            self.asm.mov(true, STATE, X0);
        }
        if self.entry.frame {
            let frame = if self.plan.packet { X4 } else { X2 };
            self.asm.mov(true, FRAME, frame);
        }
        if self.plan.checked {
            self.asm.load(8, false, FUEL, STATE, FUEL_AT);
        }
    }

    /// Returns to outside with X0 and X1.
    pub(super) fn leave(&mut self) {
        self.restore_outside();
        self.asm.ret();
    }

    /// Gives the caller outside its registers and its stack back: what follows jumps to another
    /// program or returns.
    pub(super) fn restore_outside(&mut self) {
        if self.plan.checked {
            self.asm.store(8, FUEL, STATE, FUEL_AT);
        }
        if self.entry.state {
            self.asm.load(8, false, T0, SP, 0);
            self.asm.store(8, T0, STATE, UNWIND_AT);
            self.asm.sp(Alu::Add, SP, SP, 16);
        }
        let registers = std::mem::take(&mut self.entry.saved);
        self.restore(&registers);
        self.entry.saved = registers;
    }

    fn load_args(&mut self, live: Mask) {
        // X1 points to them: R2 last.
        for number in [1, 3, 4, 5, 2] {
            if live & 1 << number != 0 {
                self.asm
                    .load(8, false, ARGS[number - 1], X1, (number as i32 - 1) * 8);
            }
        }
    }

    /// Registers that unverified code reads before it writes them are 0.
    fn clear(&mut self, live: Mask) {
        for (home, bit) in SAVED.into_iter().chain([(RESULT, 1)]) {
            if live & bit != 0 {
                self.asm.mov(true, home, ZR);
            }
        }
    }

    fn open_locals(&mut self) {
        self.clear(self.function.spills.cleared);
        if self.function.may_goto {
            self.asm.sp(Alu::Sub, SP, SP, MAY_GOTO);
            self.asm.mov_imm(T0, MayGoto::NEW.left);
            self.asm.store_pair(T0, ZR, 0);
            self.asm.store(8, ZR, SP, 16);
        }
    }

    /// The main function, entered from outside only.
    pub(super) fn enter_main(&mut self) {
        self.asm.bind(Label(self.function_labels));
        self.enter();
        let live = self.plan.live_in(0);
        match self.plan.packet {
            true if live & R5 != 0 => self.asm.mov(true, X4, ZR),
            true => {}
            false => self.load_args(live),
        }
        self.clear(live);
        self.open_locals();
    }

    /// A call of a certain function from outside.
    pub(super) fn enter_through(&mut self, function: Label) {
        self.enter();
        self.load_args(!0);
        self.asm.bl(function);
        self.leave_well();
    }

    /// A call of any function from outside.
    pub(super) fn enter_any(&mut self) {
        self.asm.mov(true, T1, X3);
        self.enter();
        self.load_args(!0);
        self.asm.blr(T1);
        self.leave_well();
    }

    fn is_entry(&self) -> bool {
        self.function.start == 0 && !self.plan.main_is_called
    }

    fn saved_by_function(&self) -> Vec<Gpr> {
        paired(saved(self.function.writes).chain([LINK]).collect())
    }

    /// A function that others call.
    pub(super) fn enter_function(&mut self) {
        let registers = self.saved_by_function();
        self.save(&registers);
        if self.plan.checked {
            self.clear(self.plan.live_in(self.function.start as usize));
        }
        self.open_locals();
    }

    pub(super) fn epilogue(&mut self) {
        if self.function.may_goto {
            self.asm.sp(Alu::Add, SP, SP, MAY_GOTO);
        }
        if self.is_entry() {
            return self.leave_well();
        }
        let registers = self.saved_by_function();
        self.restore(&registers);
        self.asm.ret();
    }
}
