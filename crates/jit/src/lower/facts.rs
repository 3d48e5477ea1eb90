//! Which registers are known to be zero, or to have a zero upper half.

use bpfkit_isa::{AluOp, Call, Op, Operand, Reg, Size, Width};

use super::regs::{ARGS, Mask, writes};

/// What is known of registers on the way through a block.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Zeros {
    /// Those whose upper 32 bits are zero.
    upper: Mask,
    /// Those that are zero.
    all: Mask,
}

impl Zeros {
    /// Nothing is known where jumps meet.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether the upper half of a register is zero.
    pub(crate) fn has(self, reg: Reg) -> bool {
        self.upper & 1 << reg.number() != 0
    }

    /// Whether all of a register is zero.
    pub(crate) fn is_zero(self, reg: Reg) -> bool {
        self.all & 1 << reg.number() != 0
    }

    /// What is known on either of two ways.
    pub(crate) fn join(&mut self, other: Self) {
        self.upper &= other.upper;
        self.all &= other.all;
    }

    /// Takes an instruction into account.
    pub(crate) fn step(&mut self, op: &Op) {
        let (narrow, zero) = (self.result_is_narrow(op), self.result_is_zero(op));
        let written = writes(op);
        let with = |set: Mask, yes| if yes { set | written } else { set & !written };
        self.upper = with(self.upper, narrow);
        self.all = with(self.all, zero);
        if let Op::Call(Call::Local(_)) = op {
            self.upper &= !ARGS;
            self.all &= !ARGS;
        }
    }

    fn result_is_zero(self, op: &Op) -> bool {
        match *op {
            Op::Alu {
                op: AluOp::Mov,
                src,
                ..
            } => match src {
                Operand::Reg(reg) => self.is_zero(reg),
                Operand::Imm(imm) => imm == 0,
            },
            Op::Alu {
                op: AluOp::Xor | AluOp::Sub,
                dst,
                src,
                ..
            } => src == Operand::Reg(dst),
            _ => false,
        }
    }

    fn result_is_narrow(self, op: &Op) -> bool {
        match *op {
            Op::Alu {
                op,
                width: Width::W64,
                dst,
                src,
                ..
            } => {
                let narrow = match src {
                    Operand::Reg(reg) => self.has(reg),
                    Operand::Imm(imm) => imm >= 0,
                };
                match op {
                    AluOp::Mov => narrow,
                    AluOp::And => narrow || self.has(dst),
                    AluOp::Or | AluOp::Xor => narrow && self.has(dst),
                    AluOp::Div | AluOp::Mod | AluOp::Rsh => {
                        self.has(dst) || matches!((op, src), (AluOp::Rsh, Operand::Imm(32..64)))
                    }
                    _ => false,
                }
            }
            Op::Alu {
                width: Width::W32, ..
            }
            | Op::MovSx {
                width: Width::W32, ..
            }
            | Op::Neg {
                width: Width::W32, ..
            }
            | Op::LoadPacket { .. } => true,
            Op::Swap { bits, .. } => bits < 64,
            Op::Load { size, signed, .. } => size != Size::DW && !signed,
            Op::LoadAcquire { size, .. } | Op::Atomic { size, .. } => size != Size::DW,
            _ => false,
        }
    }
}
