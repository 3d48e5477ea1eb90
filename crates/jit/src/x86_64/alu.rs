//! Arithmetic, moves, byte order.

use bpfkit_isa::{AluOp, Operand, Reg, Swap, Width};

use super::Compiler;
use super::emit::{Arith, Cc, Shift};
use super::regs::{FREE_BIT, Gpr, R11, RCX};
use crate::lower::Rule;

impl Compiler<'_> {
    pub(super) fn alu(&mut self, op: AluOp, width: Width, dst: Reg, src: Operand) {
        let wide = width == Width::W64;
        match (op, src) {
            (AluOp::Mov, src) => self.mov(wide, dst, src),
            (AluOp::Add, Operand::Imm(imm)) if wide => self.add_imm(dst, imm),
            (AluOp::Sub, Operand::Imm(imm)) if wide && imm != i32::MIN => self.add_imm(dst, -imm),
            (AluOp::Add, Operand::Reg(src)) if wide => self.add_reg(dst, src),
            (AluOp::Add, _) => self.arith(Arith::Add, wide, dst, src),
            (AluOp::Sub, _) => self.arith(Arith::Sub, wide, dst, src),
            (AluOp::Or, _) => self.arith(Arith::Or, wide, dst, src),
            (AluOp::And, _) => self.and(wide, dst, src),
            (AluOp::Xor, Operand::Imm(-1)) => {
                let dst = self.change(dst);
                self.asm.not(wide, dst);
            }
            (AluOp::Xor, _) => self.arith(Arith::Xor, wide, dst, src),
            (AluOp::Mul, _) => self.multiply(wide, dst, src),
            (AluOp::Lsh, Operand::Imm(imm @ 1..=3)) if wide && self.scale(dst, imm as u8) => {}
            (AluOp::Lsh, _) => self.shift(Shift::Shl, wide, dst, src),
            (AluOp::Rsh, _) => self.shift(Shift::Shr, wide, dst, src),
            (AluOp::Arsh, _) => self.shift(Shift::Sar, wide, dst, src),
            (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, _) => {
                self.divide(op, wide, dst, src);
            }
        }
    }

    fn mov(&mut self, wide: bool, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(imm) => {
                let dst = self.define(dst);
                match (imm, wide) {
                    (0, _) => self.asm.zero(dst),
                    (_, true) => self.asm.mov_imm(dst, i64::from(imm) as u64),
                    (_, false) => self.asm.mov_imm(dst, u64::from(imm as u32)),
                }
            }
            Operand::Reg(src) if wide => self.copy(dst, src),
            Operand::Reg(src) if self.zeros.has(src) && self.has(Rule::ZeroExtension) => {
                self.copy(dst, src);
            }
            Operand::Reg(src) => {
                let (src, dst) = (self.value(src), self.define(dst));
                self.asm.mov(false, dst, src);
            }
        }
    }

    fn arith(&mut self, op: Arith, wide: bool, dst: Reg, src: Operand) {
        match src {
            Operand::Reg(src) => {
                let src = self.value(src);
                let dst = self.change(dst);
                self.asm.arith(op, wide, dst, src);
            }
            Operand::Imm(imm) => {
                let dst = self.change(dst);
                self.asm.arith_imm(op, wide, dst, imm);
            }
        }
    }

    fn and(&mut self, wide: bool, dst: Reg, src: Operand) {
        match src {
            Operand::Imm(imm @ (0xff | 0xffff)) => {
                let (value, dst) = (self.value(dst), self.define(dst));
                self.asm.movzx(if imm == 0xff { 8 } else { 16 }, dst, value);
            }
            // The upper half of the result is 0 either way.
            Operand::Imm(0..) => self.arith(Arith::And, false, dst, src),
            _ => self.arith(Arith::And, wide, dst, src),
        }
    }

    fn multiply(&mut self, wide: bool, dst: Reg, src: Operand) {
        match src {
            Operand::Reg(src) => {
                let src = self.value(src);
                let dst = self.change(dst);
                self.asm.imul(wide, dst, src);
            }
            Operand::Imm(imm) => {
                let src = self.value(dst);
                let dst = self.define(dst);
                self.asm.imul_imm(wide, dst, src, imm);
            }
        }
    }

    fn shift(&mut self, op: Shift, wide: bool, dst: Reg, src: Operand) {
        let src = match src {
            Operand::Imm(imm) => {
                let dst = self.change(dst);
                match imm as u8 & if wide { 63 } else { 31 } {
                    0 if wide => {}
                    0 => self.asm.mov(false, dst, dst),
                    amount => self.asm.shift_imm(op, wide, dst, amount),
                }
                return;
            }
            Operand::Reg(src) => src,
        };
        let amount = self.value(src);
        if self.features.bmi2 {
            let value = self.value(dst);
            let dst = self.define(dst);
            return self.asm.shift_x(op, wide, dst, value, amount);
        }
        let dst = self.change(dst);
        if amount == RCX {
            return self.asm.shift_cl(op, wide, dst);
        }
        self.asm.mov(true, R11, RCX);
        self.asm.mov(false, RCX, amount);
        // Where RCX is shifted, it lies in R11 meanwhile.
        self.asm
            .shift_cl(op, wide, if dst == RCX { R11 } else { dst });
        self.asm.mov(true, RCX, R11);
    }

    pub(super) fn move_signed(&mut self, width: Width, bits: u8, dst: Reg, src: Reg) {
        let src = self.value(src);
        let dst = self.define(dst);
        self.asm.movsx(width == Width::W64, bits, dst, src);
    }

    pub(super) fn negate(&mut self, width: Width, dst: Reg) {
        let dst = self.change(dst);
        self.asm.neg(width == Width::W64, dst);
    }

    pub(super) fn swap(&mut self, kind: Swap, bits: u8, dst: Reg) {
        let dst = self.change(dst);
        match (kind, bits) {
            (Swap::ToLe, 16) => self.asm.movzx(16, dst, dst),
            (Swap::ToLe, 32) => self.asm.mov(false, dst, dst),
            (Swap::ToLe, _) => {}
            (_, 16) => {
                self.asm.swap16(dst);
                self.asm.movzx(16, dst, dst);
            }
            (_, bits) => self.asm.bswap(bits == 64, dst),
        }
    }

    /// Null stays null; other pointers get the upper half of their space.
    pub(super) fn arena_cast(&mut self, dst: Reg, src: Reg, to: u16) {
        let high = if to == 0 {
            self.plan.arena.0
        } else {
            self.plan.arena.1
        };
        let src = self.value(src);
        let dst = self.define(dst);
        self.asm.mov(false, dst, src);
        if high == 0 {
            return;
        }
        let null = self.asm.label();
        self.asm.test(false, dst, dst);
        self.asm.jcc(Cc::E, null);
        self.asm.mov_imm(R11, high);
        self.asm.arith(Arith::Or, true, dst, R11);
        self.asm.bind(null);
    }

    /// A register that holds none of these.
    pub(super) fn scratch(&self, taken: &[Gpr]) -> Option<Gpr> {
        use super::regs::{R9, R10};
        let all = [R11, R10, R9];
        // The last one may hold steps or a stack slot.
        let taken_last = self.plan.checked || self.function.writes & FREE_BIT != 0;
        let count = if taken_last { 2 } else { 3 };
        all[..count]
            .iter()
            .copied()
            .find(|reg| !taken.contains(reg))
    }
}
