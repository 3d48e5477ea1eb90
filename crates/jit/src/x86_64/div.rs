//! Division and modulo with BPF's results: by zero, a quotient is 0 and a remainder the
//! dividend; the minimum by −1 is the minimum, with remainder 0.

use bpfkit_isa::{AluOp, Operand, Reg};

use super::Compiler;
use super::emit::{Arith, Cc, Shift};
use super::regs::{Gpr, RAX, RDX, gpr};
use crate::lower::Rule;

impl Compiler<'_> {
    pub(super) fn divide(&mut self, op: AluOp, wide: bool, dst: Reg, src: Operand) {
        let signed = matches!(op, AluOp::SDiv | AluOp::SMod);
        let remainder = matches!(op, AluOp::Mod | AluOp::SMod);
        match src {
            Operand::Imm(imm) if self.by_constant(op, wide, dst, imm) => {}
            Operand::Imm(imm) => {
                let home = self.change(dst);
                let Some(divisor) = self.scratch(&[]) else {
                    return;
                };
                let value = if wide {
                    i64::from(imm) as u64
                } else {
                    u64::from(imm as u32)
                };
                self.asm.mov_imm(divisor, value);
                self.divide_by(wide, signed, remainder, home, divisor);
            }
            Operand::Reg(src) => {
                let source = self.value(src);
                let home = self.change(dst);
                self.divide_guarded(wide, signed, remainder, home, source);
            }
        }
    }

    /// Divisors that need no division.
    fn by_constant(&mut self, op: AluOp, wide: bool, dst: Reg, imm: i32) -> bool {
        let value = if wide {
            i64::from(imm) as u64
        } else {
            u64::from(imm as u32)
        };
        let power = value.is_power_of_two() && self.has(Rule::PowerOfTwo);
        match op {
            AluOp::Div | AluOp::SDiv if imm == 0 => {
                let home = self.define(dst);
                self.asm.zero(home);
            }
            AluOp::Mod | AluOp::SMod if imm == 0 => {
                let home = self.change(dst);
                if !wide {
                    self.asm.mov(false, home, home);
                }
            }
            AluOp::SDiv if imm == -1 => {
                let home = self.change(dst);
                self.asm.neg(wide, home);
            }
            AluOp::SMod if imm == -1 => {
                let home = self.define(dst);
                self.asm.zero(home);
            }
            AluOp::Div if power => {
                let home = self.change(dst);
                match value.trailing_zeros() as u8 {
                    0 if wide => {}
                    0 => self.asm.mov(false, home, home),
                    shift => self.asm.shift_imm(Shift::Shr, wide, home, shift),
                }
            }
            // As a sign-extended immediate the mask must not be negative.
            AluOp::Mod if power && value <= 1 << 31 => {
                let home = self.change(dst);
                self.asm
                    .arith_imm(Arith::And, false, home, (value - 1) as i32);
            }
            _ => return false,
        }
        true
    }

    fn divide_guarded(&mut self, wide: bool, signed: bool, remainder: bool, dst: Gpr, src: Gpr) {
        let (zero, done) = (self.asm.label(), self.asm.label());
        self.asm.test(wide, src, src);
        self.asm.jcc(Cc::E, zero);
        let minus_one = signed.then(|| self.asm.label());
        if let Some(label) = minus_one {
            self.asm.arith_imm(Arith::Cmp, wide, src, -1);
            self.asm.jcc(Cc::E, label);
        }
        self.divide_by(wide, signed, remainder, dst, src);
        self.asm.jmp(done);
        if let Some(label) = minus_one {
            self.asm.bind(label);
            if remainder {
                self.asm.zero(dst);
            } else {
                self.asm.neg(wide, dst);
            }
            self.asm.jmp(done);
        }
        self.asm.bind(zero);
        if !remainder {
            self.asm.zero(dst);
        } else if !wide {
            self.asm.mov(false, dst, dst);
        }
        self.asm.bind(done);
    }

    /// `dst = dst op divisor`, for a divisor that does not trap.
    fn divide_by(&mut self, wide: bool, signed: bool, remainder: bool, dst: Gpr, divisor: Gpr) {
        let mut taken = vec![divisor];
        let divisor = if divisor == RAX || divisor == RDX {
            let copy = self.scratch(&taken);
            let copy = copy.unwrap_or(divisor);
            self.asm.mov(wide, copy, divisor);
            taken.push(copy);
            copy
        } else {
            divisor
        };
        // RDX holds R3 and RAX R0: kept, if somebody needs them.
        let mut kept = Vec::new();
        for (home, owner) in [(RDX, Reg::R3), (RAX, Reg::R0)] {
            if home == dst || !self.keeps(owner) {
                continue;
            }
            let copy = self.scratch(&taken);
            match copy {
                Some(copy) => {
                    taken.push(copy);
                    self.asm.mov(true, copy, home);
                }
                None => self.asm.push(home),
            }
            kept.push((home, copy));
        }
        if dst != RAX {
            self.asm.mov(wide, RAX, dst);
        }
        if signed {
            self.asm.cqo(wide);
        } else {
            self.asm.zero(RDX);
        }
        self.asm.div(wide, signed, divisor);
        let result = if remainder { RDX } else { RAX };
        if dst != result {
            self.asm.mov(wide, dst, result);
        }
        for (home, copy) in kept.into_iter().rev() {
            match copy {
                Some(copy) => self.asm.mov(true, home, copy),
                None => self.asm.pop(home),
            }
        }
    }

    /// Whether the home of a register must keep its content over the current instruction.
    fn keeps(&self, reg: Reg) -> bool {
        self.is_live_out(reg) || self.is_named(gpr(reg))
    }
}
