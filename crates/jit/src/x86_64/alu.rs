//! Arithmetic, moves, byte order.

use bpfkit_isa::{AluOp, Op, Operand, Reg, Swap, Width};

use super::Compiler;
use super::emit::{Arith, Cc, Shift};
use super::regs::{Gpr, R11, RCX};
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
                let dst = self.change(dst);
                self.asm.movzx(if imm == 0xff { 8 } else { 16 }, dst, dst);
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

    /// `a = x; a >>= 64 - k; x <<= k; x |= a`, where `a` is not used any more.
    pub(super) fn rotation(&mut self, first: &Op) -> Option<usize> {
        let Op::Alu {
            op: AluOp::Mov,
            width: Width::W64,
            dst: a,
            src: Operand::Reg(x),
        } = *first
        else {
            return None;
        };
        let slot = self.slot;
        let shift = |op: Option<Op>, kind: AluOp, on: Reg| match op? {
            Op::Alu {
                op,
                width: Width::W64,
                dst,
                src: Operand::Imm(n @ 1..=63),
            } => (op == kind && dst == on).then_some(n as u8),
            _ => None,
        };
        if a == x || !self.has(Rule::Rotate) {
            return None;
        }
        let right = shift(self.follower(slot + 1), AluOp::Rsh, a)?;
        let left = shift(self.follower(slot + 2), AluOp::Lsh, x)?;
        let or = self.follower(slot + 3)?;
        let joins = Op::Alu {
            op: AluOp::Or,
            width: Width::W64,
            dst: x,
            src: Operand::Reg(a),
        };
        let after = self.plan.live_out(slot + 3);
        if left + right != 64 || or != joins || after & 1 << a.number() != 0 {
            return None;
        }
        self.live = after | 1 << x.number();
        let value = self.value(x);
        if self.features.bmi2 && value != super::regs::gpr(x) {
            let home = self.define(x);
            self.asm.rorx(true, home, value, right);
        } else {
            let home = self.change(x);
            self.asm.shift_imm(Shift::Rol, true, home, left);
        }
        self.define(a);
        self.zeros.clear(a);
        self.zeros.clear(x);
        Some(slot + 4)
    }

    /// `r <<= 32; r >>= 32` and `r <<= 32; r s>>= 32`.
    pub(super) fn shift_pair(&mut self, first: &Op) -> Option<usize> {
        let by_32 = |op: &Op| match *op {
            Op::Alu {
                op,
                width: Width::W64,
                dst,
                src: Operand::Imm(32),
            } => Some((op, dst)),
            _ => None,
        };
        let (AluOp::Lsh, reg) = by_32(first)? else {
            return None;
        };
        if !self.has(Rule::ShiftPair) {
            return None;
        }
        let second = self.follower(self.slot + 1)?;
        let (op, second_reg) = by_32(&second)?;
        if second_reg != reg || !matches!(op, AluOp::Rsh | AluOp::Arsh) {
            return None;
        }
        self.live = self.plan.live_out(self.slot + 1) | 1 << reg.number();
        if op == AluOp::Arsh {
            let value = self.value(reg);
            let home = self.define(reg);
            self.asm.movsx(true, 32, home, value);
        } else {
            self.mov(false, reg, Operand::Reg(reg));
        }
        self.zeros.step(first);
        self.zeros.step(&second);
        Some(self.slot + 2)
    }

    /// A register that holds none of these.
    pub(super) fn scratch(&self, taken: &[Gpr]) -> Option<Gpr> {
        use super::regs::{R9, R10};
        let all = [R11, R10, R9];
        let count = if self.plan.checked { 2 } else { 3 };
        all[..count]
            .iter()
            .copied()
            .find(|reg| !taken.contains(reg))
    }
}
