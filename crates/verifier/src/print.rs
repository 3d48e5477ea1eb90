//! States and instructions as the log shows them.

use crate::checker::Checker;
use crate::state::StateId;

/// What changed since it was printed last.
#[derive(Default)]
pub(crate) struct Printer {
    regs: u16,
    slots: u64,
}

impl Printer {
    pub const fn touch_reg(&mut self, n: u8) {
        self.regs |= 1 << n;
    }

    pub const fn touch_slot(&mut self, _frame: u8, slot: usize) {
        self.slots |= 1 << slot;
    }
}

impl Checker<'_> {
    /// Prints the source line of an instruction, if it was not printed just before.
    pub fn print_line(&mut self, _insn: u32, _prefix: &str) {}

    pub fn print_insn(&mut self, _insn: u32) {
        self.log.push("\n");
    }

    pub fn print_cur(&mut self, _frame: usize, _all: bool) {
        self.log.push("\n");
    }

    pub fn print_kept(&mut self, _id: StateId, _frame: usize, _all: bool) {
        self.log.push("\n");
    }

    pub fn print_after_insn(&mut self) {}
}
