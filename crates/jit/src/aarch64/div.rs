//! Division and modulo. The processor's division by zero gives 0, and the minimum by −1 the
//! minimum: so quotients are BPF's, and remainders are the dividend less the product.

use bpfkit_isa::{AluOp, Operand};

use super::Compiler;
use super::emit::Two;
use super::regs::{Gpr, T1};
use crate::lower::Rule;

impl Compiler<'_> {
    pub(super) fn divide(&mut self, op: AluOp, wide: bool, d: Gpr, src: Operand) {
        if let (AluOp::Div, Operand::Imm(imm @ 1..)) = (op, src) {
            let by = imm.trailing_zeros();
            if imm & (imm - 1) == 0 && by > 0 && self.has(Rule::PowerOfTwo) {
                return self.asm.lsr_imm(wide, d, d, by);
            }
        }
        let divisor = self.in_register(wide, src);
        let signed = matches!(op, AluOp::SDiv | AluOp::SMod);
        let division = if signed { Two::Sdiv } else { Two::Udiv };
        if matches!(op, AluOp::Div | AluOp::SDiv) {
            return self.asm.two(division, wide, d, d, divisor);
        }
        self.asm.two(division, wide, T1, d, divisor);
        self.asm.msub(wide, d, T1, divisor, d);
    }
}
