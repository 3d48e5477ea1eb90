//! Helpers that need no call, or a short one.

use std::mem::offset_of;

use bpfkit_runtime::native::State;

use super::Compiler;
use super::emit::{Alu, Asm, Cc};
use super::regs::{Gpr, RESULT, STATE, T0, T1, X0, X1, X2, ZR, gpr};
use crate::callout;
use crate::lower::{ARG_REGS, Array, Inline};

const CPU_AT: i32 = offset_of!(State, cpu) as i32;

impl Compiler<'_> {
    pub(super) fn inline(&mut self, inline: Inline) {
        match inline {
            Inline::Constant(value) => self.asm.mov_imm(RESULT, value),
            Inline::State(offset) => self.asm.load(4, false, RESULT, STATE, offset as i32),
            Inline::Array(array) => self.array(array),
            Inline::Lookup { function, map } => self.direct(function, |asm| {
                // The key is in x1 already, and a map that is not known in x0.
                if let Some(map) = map {
                    asm.mov_imm(X0, map);
                }
                asm.load(4, false, X2, STATE, CPU_AT);
            }),
            // `call` sees to these.
            Inline::TailCall(_) => {}
            Inline::Ask(helper) => self.direct(callout::ask as *const () as u64, |asm| {
                asm.mov(true, X0, STATE);
                asm.mov_imm(X1, helper);
            }),
        }
    }

    /// Calls a function of the C calling convention that cannot trap.
    fn direct(&mut self, function: u64, arguments: impl FnOnce(&mut Asm)) {
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        // Rust keeps the register of the steps left.
        arguments(&mut self.asm);
        self.asm.mov_imm(T0, function);
        self.asm.blr(T0);
        self.asm.mov(true, RESULT, X0);
        self.restore_args(kept);
    }

    fn array(&mut self, array: Array) {
        let index = match array.key {
            Some(_) => None,
            None => {
                self.asm.load(4, false, T0, gpr(bpfkit_isa::Reg::R2), 0);
                Some(T0)
            }
        };
        self.asm.mov(true, RESULT, ZR);
        let done = self.asm.label();
        if let Some(index) = index {
            let len = array.len as i32;
            self.asm.alu_imm(Alu::Subs, false, ZR, index, len);
            self.asm.b_if(Cc::Hs, done);
            self.times(index, array.stride);
        }
        let mut offset = index;
        if let Some((stride, cpus)) = array.per_cpu {
            let cpu = T1;
            self.asm.load(4, false, cpu, STATE, CPU_AT);
            self.asm.alu_imm(Alu::Subs, false, ZR, cpu, cpus as i32);
            self.asm.b_if(Cc::Hs, done);
            if cpus > 1 {
                self.times(cpu, stride);
                match index {
                    Some(index) => self.asm.alu(Alu::Add, true, index, index, cpu),
                    None => offset = Some(cpu),
                }
            }
        }
        let known = u64::from(array.key.unwrap_or(0)) * u64::from(array.stride);
        self.asm.mov_imm(RESULT, array.base + known);
        if let Some(offset) = offset {
            self.asm.alu(Alu::Add, true, RESULT, RESULT, offset);
        }
        self.asm.bind(done);
    }

    /// Multiplies what fills 32 bits.
    fn times(&mut self, reg: Gpr, by: u32) {
        if by.is_power_of_two() {
            self.asm.lsl_imm(true, reg, reg, by.trailing_zeros());
        } else {
            self.asm.mov_imm(super::regs::T2, by.into());
            self.asm.mul(true, reg, reg, super::regs::T2);
        }
    }
}
