//! What stands for several instructions.

use bpfkit_isa::{AluOp, Op, Operand, Width};
use bpfkit_runtime::LoadErrorKind;

use super::Compiler;
use super::emit::{Alu, Label, Pick};
use super::regs::{Gpr, T0, ZR, gpr};
use crate::lower::{Combined, Match, Target, Test};

impl Compiler<'_> {
    pub(super) fn combined(&mut self, found: &Match) -> Result<(), LoadErrorKind> {
        match found.combined {
            Combined::Op(op) => {
                self.op(&op)?;
                self.zeros.step(&op);
            }
            Combined::LoadSwapped {
                size,
                dst,
                base,
                off,
            } => {
                self.load(size, false, dst, base, off);
                let d = gpr(dst);
                match size.bytes() {
                    2 => self.asm.rev16(d, d),
                    bytes => self.asm.rev(bytes == 8, d, d),
                }
                self.zeros.step(&Op::Load {
                    size,
                    signed: false,
                    dst,
                    base,
                    off,
                });
            }
            Combined::Rotate {
                width,
                dst,
                src,
                right,
            } => {
                let wide = width == Width::W64;
                self.asm.ror_imm(wide, gpr(dst), gpr(src), right.into());
                // As narrow as any result of that width.
                self.zeros.step(&Op::Alu {
                    op: AluOp::Add,
                    width,
                    dst,
                    src: Operand::Imm(right.into()),
                });
            }
            Combined::StoreSwapped {
                size,
                base,
                off,
                src,
            } => {
                match size.bytes() {
                    2 => self.asm.rev16(T0, gpr(src)),
                    bytes => self.asm.rev(bytes == 8, T0, gpr(src)),
                }
                self.asm.store(size.bytes(), T0, gpr(base), off.into());
            }
            Combined::Select {
                test,
                negated,
                body,
                to,
            } => {
                self.select(test, negated, &body);
                if let Some(to) = to {
                    self.asm.b(Label(to as u32));
                }
            }
            Combined::Branch { test, negated, to } => {
                let to = match to {
                    Target::Slot(slot) => Label(slot as u32),
                    Target::Exit => {
                        self.exit_used = true;
                        self.exit
                    }
                };
                self.branch(test, negated, to);
            }
        }
        Ok(())
    }

    /// The body's result where the test fails: from a register or, where `csel` and its kin
    /// make it on the way, from what the register holds already.
    fn select(&mut self, test: Test, negated: bool, body: &Op) {
        let (dst, value, pick) = match *body {
            Op::Alu {
                op,
                width,
                dst,
                src,
                ..
            } => {
                let d = gpr(dst);
                let (value, pick) = self.picked(op, width == Width::W64, d, src);
                (dst, value, pick)
            }
            Op::Neg {
                width: Width::W64,
                dst,
            } => (dst, gpr(dst), Pick::Negated),
            Op::Neg { dst, .. } => {
                self.asm.neg(false, T0, gpr(dst));
                (dst, T0, Pick::Same)
            }
            Op::MovSx {
                width,
                bits,
                dst,
                src,
            } => {
                self.asm
                    .sign_extend(width == Width::W64, bits, T0, gpr(src));
                (dst, T0, Pick::Same)
            }
            _ => return,
        };
        let mut taken = self.zeros;
        taken.step(body);
        self.zeros.join(taken);
        let cc = self.compare(test);
        let cc = if negated { cc.inverted() } else { cc };
        self.asm.pick(pick, gpr(dst), gpr(dst), value, cc);
    }

    fn picked(&mut self, op: AluOp, wide: bool, d: Gpr, src: Operand) -> (Gpr, Pick) {
        let alu = match (op, src) {
            (AluOp::Mov, Operand::Reg(src)) if wide || self.zeros.has(src) => {
                return (gpr(src), Pick::Same);
            }
            (AluOp::Mov, Operand::Reg(src)) => {
                self.asm.mov(false, T0, gpr(src));
                return (T0, Pick::Same);
            }
            (AluOp::Mov, Operand::Imm(1)) => return (ZR, Pick::Incremented),
            (AluOp::Mov, Operand::Imm(-1)) if wide => return (ZR, Pick::Inverted),
            (AluOp::Mov, src) => return (self.in_register(wide, src), Pick::Same),
            (AluOp::Add, Operand::Imm(1)) if wide => return (d, Pick::Incremented),
            (AluOp::Xor, Operand::Imm(-1)) if wide => return (d, Pick::Inverted),
            (AluOp::Add, _) => Alu::Add,
            (AluOp::Sub, _) => Alu::Sub,
            (AluOp::Or, _) => Alu::Orr,
            (AluOp::And, _) => Alu::And,
            (AluOp::Xor, _) => Alu::Eor,
            (op, Operand::Imm(imm)) => {
                self.asm.mov(wide, T0, d);
                self.shift(op, wide, T0, Operand::Imm(imm));
                return (T0, Pick::Same);
            }
            (_, Operand::Reg(_)) => return (d, Pick::Same),
        };
        match src {
            Operand::Reg(src) => self.asm.alu(alu, wide, T0, d, gpr(src)),
            Operand::Imm(imm) => self.asm.alu_imm(alu, wide, T0, d, imm),
        }
        (T0, Pick::Same)
    }
}
