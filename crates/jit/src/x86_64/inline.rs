//! Helpers that need no call, or a short one.

use bpfkit_isa::Reg;

use super::Compiler;
use super::emit::{Arith, Cc, Mem, Shift};
use super::regs::{Gpr, R10, R11, RAX, RDI, RDX, RSI, STATE};
use super::shared::{CPU, Thunk};
use crate::callout;
use crate::lower::{ARG_REGS, Array, Inline};

impl Compiler<'_> {
    pub(super) fn inline(&mut self, inline: Inline) {
        match inline {
            Inline::Constant(value) => {
                let home = self.define(Reg::R0);
                self.asm.mov_imm(home, value);
            }
            Inline::State(offset) => {
                let home = self.define(Reg::R0);
                self.asm.load(4, false, home, Mem::at(STATE, offset as i32));
            }
            Inline::Array(array) => self.array(array),
            // The key is in RSI already, and a map that is not known in RDI.
            Inline::Lookup { function, map } => self.direct(Thunk::Lookup, function, map),
            // `call` sees to these.
            Inline::TailCall(_) => {}
            Inline::Ask(helper) => self.direct(Thunk::Ask, helper, None),
        }
    }

    /// Calls a function of the C calling convention that cannot trap.
    fn direct(&mut self, thunk: Thunk, function: u64, map: Option<u64>) {
        self.flush(self.live);
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        if let Some(map) = map {
            self.asm.mov_imm(RDI, map);
        }
        match self.thunk(thunk, function) {
            Some(thunk) => self.asm.call_shared(thunk),
            None => self.call_rust(thunk, function),
        }
        self.restore_args(kept);
    }

    /// The same for a function that programs do not share.
    fn call_rust(&mut self, thunk: Thunk, function: u64) {
        self.put_fuel();
        let function = match thunk {
            Thunk::Ask => {
                self.asm.mov(true, RDI, STATE);
                self.asm.mov_imm(RSI, function);
                callout::ask as *const () as u64
            }
            _ => {
                self.asm.load(4, false, RDX, CPU);
                function
            }
        };
        self.asm.mov_imm(RAX, function);
        self.asm.call_reg(RAX);
        self.take_fuel();
    }

    fn array(&mut self, array: Array) {
        let index = match array.key {
            Some(_) => None,
            None => {
                let key = self.address(Reg::R2, 0);
                self.asm.load(4, false, R11, key);
                Some(R11)
            }
        };
        let home = self.define(Reg::R0);
        self.asm.zero(home);
        let done = self.asm.label();
        if let Some(index) = index {
            self.asm
                .arith_imm(Arith::Cmp, false, index, array.len as i32);
            self.asm.jcc(Cc::Ae, done);
            self.times(index, array.stride);
        }
        let mut offset = index;
        if let Some((stride, cpus)) = array.per_cpu {
            let cpu = if index.is_some() { R10 } else { R11 };
            self.asm.load(4, false, cpu, CPU);
            self.asm.arith_imm(Arith::Cmp, false, cpu, cpus as i32);
            self.asm.jcc(Cc::Ae, done);
            if cpus > 1 {
                self.times(cpu, stride);
                match index {
                    Some(index) => self.asm.arith(Arith::Add, true, index, cpu),
                    None => offset = Some(cpu),
                }
            }
        }
        let known = u64::from(array.key.unwrap_or(0)) * u64::from(array.stride);
        self.asm.mov_imm(home, array.base + known);
        if let Some(offset) = offset {
            self.asm.arith(Arith::Add, true, home, offset);
        }
        self.asm.bind(done);
    }

    /// Multiplies what fills 32 bits.
    fn times(&mut self, reg: Gpr, by: u32) {
        match by.is_power_of_two() {
            true if by == 1 => {}
            true => self
                .asm
                .shift_imm(Shift::Shl, true, reg, by.trailing_zeros() as u8),
            false => self.asm.imul_imm(true, reg, reg, by as i32),
        }
    }
}
