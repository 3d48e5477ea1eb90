//! Jumps.

use bpfkit_isa::{Cond, Operand, Width};

use super::Compiler;
use super::call::Stub;
use super::emit::{Alu, Cc, Label};
use super::regs::{ADDRESS, DETAIL, SP, T0, ZR, gpr};
use crate::lower::{Plan, Rule, Test};

fn code(cond: Cond) -> Cc {
    match cond {
        Cond::Eq => Cc::Eq,
        Cond::Ne | Cond::Set => Cc::Ne,
        Cond::Gt => Cc::Hi,
        Cond::Ge => Cc::Hs,
        Cond::Lt => Cc::Lo,
        Cond::Le => Cc::Ls,
        Cond::Sgt => Cc::Gt,
        Cond::Sge => Cc::Ge,
        Cond::Slt => Cc::Lt,
        Cond::Sle => Cc::Le,
    }
}

impl Compiler<'_> {
    pub(super) fn jump_to(&self, off: i32) -> Label {
        Label(Plan::target(self.slot, off) as u32)
    }

    pub(super) fn jump(&mut self, off: i32) {
        if off != 0 {
            self.asm.b(self.jump_to(off));
        }
    }

    /// Compares: the condition that holds where the test does.
    pub(super) fn compare(&mut self, test: Test) -> Cc {
        let op = if test.cond == Cond::Set {
            Alu::Ands
        } else {
            Alu::Subs
        };
        let (wide, dst) = (test.width == Width::W64, gpr(test.dst));
        match test.src {
            Operand::Reg(src) => self.asm.alu(op, wide, ZR, dst, gpr(src)),
            Operand::Imm(imm) => self.asm.alu_imm(op, wide, ZR, dst, imm),
        }
        code(test.cond)
    }

    /// Jumps where the condition holds or, negated, where it does not.
    pub(super) fn branch(&mut self, test: Test, negated: bool, to: Label) {
        let (wide, reg) = (test.width == Width::W64, gpr(test.dst));
        match (test.cond, test.src) {
            (Cond::Eq | Cond::Ne, Operand::Imm(0)) if self.has(Rule::CompareBranch) => {
                let nonzero = (test.cond == Cond::Ne) != negated;
                return self.asm.cb(wide, nonzero, reg, to);
            }
            (Cond::Set, Operand::Imm(imm)) if self.has(Rule::TestBranch) => {
                let mask = if wide {
                    i64::from(imm) as u64
                } else {
                    u64::from(imm as u32)
                };
                if mask.is_power_of_two() && !self.asm.is_far() {
                    return self.asm.tb(!negated, reg, mask.trailing_zeros(), to);
                }
            }
            _ => {}
        }
        let cc = self.compare(test);
        self.asm.b_if(if negated { cc.inverted() } else { cc }, to);
    }

    /// Falls through as long as the frame's budget allows. The budget lies on top of the stack.
    pub(super) fn may_goto(&mut self, off: i16) {
        self.asm.load(8, false, T0, SP, 0);
        let (count, go_on) = (self.asm.label(), self.asm.label());
        self.asm.cb(true, true, T0, count);
        self.asm.sp(Alu::Add, ADDRESS, SP, 0);
        self.asm.mov_imm(DETAIL, (self.slot as u64) << 8);
        let stub = self.stubs.label(Stub::MayGoto, &mut self.asm);
        self.asm.bl(stub);
        self.asm.cb(true, false, ADDRESS, self.jump_to(off.into()));
        self.asm.b(go_on);
        self.asm.bind(count);
        self.asm.alu_imm(Alu::Sub, true, T0, T0, 1);
        self.asm.store(8, T0, SP, 0);
        self.asm.bind(go_on);
    }
}
