//! Which registers are known to have a zero upper half.

use bpfkit_isa::{AluOp, Call, Op, Operand, Size, Width};

use super::regs::{Mask, writes};

/// The registers whose upper 32 bits are known to be zero, on the way through a block.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Zeros(Mask);

impl Zeros {
    /// Nothing is known where jumps meet.
    pub(crate) fn forget(&mut self) {
        self.0 = 0;
    }

    pub(crate) fn has(self, reg: bpfkit_isa::Reg) -> bool {
        self.0 & 1 << reg.number() != 0
    }

    pub(crate) fn clear(&mut self, reg: bpfkit_isa::Reg) {
        self.0 &= !(1 << reg.number());
    }

    /// Takes an instruction into account.
    pub(crate) fn step(&mut self, op: &Op) {
        let zero = self.result_is_narrow(op);
        let written = writes(op);
        self.0 = if zero {
            self.0 | written
        } else {
            self.0 & !written
        };
        if let Op::Call(Call::Local(_)) = op {
            self.0 &= !0b11_1110;
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
