//! Arithmetic, moves, byte order.

use bpfkit_isa::{AluOp, Operand, Reg, Swap, Width};

use super::Compiler;
use super::emit::{Alu, Two};
use super::regs::{Gpr, T0, ZR, gpr};
use crate::lower::Rule;

impl Compiler<'_> {
    pub(super) fn alu(&mut self, op: AluOp, width: Width, dst: Reg, src: Operand) {
        let (wide, d) = (width == Width::W64, gpr(dst));
        match op {
            AluOp::Mov => self.mov(wide, dst, src),
            AluOp::Add => self.simple(Alu::Add, wide, d, src),
            AluOp::Sub => self.simple(Alu::Sub, wide, d, src),
            AluOp::Or => self.simple(Alu::Orr, wide, d, src),
            AluOp::And => self.simple(Alu::And, wide, d, src),
            AluOp::Xor => match src {
                Operand::Imm(-1) => self.asm.mvn(wide, d, d),
                _ => self.simple(Alu::Eor, wide, d, src),
            },
            AluOp::Mul => {
                let src = self.in_register(wide, src);
                self.asm.mul(wide, d, d, src);
            }
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => self.shift(op, wide, d, src),
            AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod => self.divide(op, wide, d, src),
        }
    }

    fn mov(&mut self, wide: bool, dst: Reg, src: Operand) {
        let d = gpr(dst);
        match src {
            Operand::Imm(imm) if wide => self.asm.mov_imm(d, i64::from(imm) as u64),
            Operand::Imm(imm) => self.asm.mov_imm(d, u64::from(imm as u32)),
            Operand::Reg(src) => {
                let known = self.has(Rule::ZeroExtension) && self.zeros.has(src);
                if src != dst || !(wide || known) {
                    self.asm.mov(wide, d, gpr(src));
                }
            }
        }
    }

    fn simple(&mut self, op: Alu, wide: bool, d: Gpr, src: Operand) {
        match src {
            Operand::Reg(src) => self.asm.alu(op, wide, d, d, gpr(src)),
            Operand::Imm(imm) => self.asm.alu_imm(op, wide, d, d, imm),
        }
    }

    /// An operand in a register; an immediate in T0.
    pub(super) fn in_register(&mut self, wide: bool, src: Operand) -> Gpr {
        match src {
            Operand::Reg(src) => gpr(src),
            Operand::Imm(0) => ZR,
            Operand::Imm(imm) => {
                let value = if wide {
                    i64::from(imm) as u64
                } else {
                    u64::from(imm as u32)
                };
                self.asm.mov_imm(T0, value);
                T0
            }
        }
    }

    pub(super) fn shift(&mut self, op: AluOp, wide: bool, d: Gpr, src: Operand) {
        match src {
            Operand::Reg(src) => {
                let op = match op {
                    AluOp::Lsh => Two::Lsl,
                    AluOp::Rsh => Two::Lsr,
                    _ => Two::Asr,
                };
                self.asm.two(op, wide, d, d, gpr(src));
            }
            Operand::Imm(imm) => {
                let by = imm as u32 & if wide { 63 } else { 31 };
                match op {
                    _ if by == 0 && wide => {}
                    _ if by == 0 => self.asm.mov(false, d, d),
                    AluOp::Lsh => self.asm.lsl_imm(wide, d, d, by),
                    AluOp::Rsh => self.asm.lsr_imm(wide, d, d, by),
                    _ => self.asm.asr_imm(wide, d, d, by),
                }
            }
        }
    }

    pub(super) fn move_signed(&mut self, width: Width, bits: u8, dst: Reg, src: Reg) {
        self.asm
            .sign_extend(width == Width::W64, bits, gpr(dst), gpr(src));
    }

    pub(super) fn negate(&mut self, width: Width, dst: Reg) {
        self.asm.neg(width == Width::W64, gpr(dst), gpr(dst));
    }

    pub(super) fn swap(&mut self, kind: Swap, bits: u8, dst: Reg) {
        let d = gpr(dst);
        match (kind, bits) {
            (Swap::ToLe, 16) => self.asm.zero_extend16(d, d),
            (Swap::ToLe, 32) => self.asm.mov(false, d, d),
            (Swap::ToLe, _) => {}
            (_, 16) => {
                self.asm.rev16(d, d);
                self.asm.zero_extend16(d, d);
            }
            (_, bits) => self.asm.rev(bits == 64, d, d),
        }
    }

    /// Null stays null; other pointers get the upper half of their space.
    pub(super) fn arena_cast(&mut self, dst: Reg, src: Reg, to: u16) {
        let high = if to == 0 {
            self.plan.arena.0
        } else {
            self.plan.arena.1
        };
        let d = gpr(dst);
        self.asm.mov(false, d, gpr(src));
        if high != 0 {
            let null = self.asm.label();
            self.asm.cb(true, false, d, null);
            self.asm.mov_imm(T0, high);
            self.asm.alu(Alu::Orr, true, d, d, T0);
            self.asm.bind(null);
        }
    }
}
