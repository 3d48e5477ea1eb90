//! Jumps.

use bpfkit_isa::{Cond, Op, Operand, Reg, Width};
use bpfkit_runtime::native::Slot;

use super::Compiler;
use super::call::Stub;
use super::emit::{Alu, Cc, Label};
use super::regs::{ADDRESS, DETAIL, SP, T0, ZR, gpr};
use crate::lower::{Plan, Rule};

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

fn inverse(cc: Cc) -> Option<Cc> {
    Some(match cc {
        Cc::Eq => Cc::Ne,
        Cc::Ne => Cc::Eq,
        Cc::Hs => Cc::Lo,
        Cc::Lo => Cc::Hs,
        Cc::Hi => Cc::Ls,
        Cc::Ls => Cc::Hi,
        Cc::Ge => Cc::Lt,
        Cc::Lt => Cc::Ge,
        Cc::Gt => Cc::Le,
        Cc::Le => Cc::Gt,
        Cc::Mi => return None,
    })
}

impl Compiler<'_> {
    fn jump_to(&self, off: i32) -> Label {
        Label(Plan::target(self.slot, off) as u32)
    }

    pub(super) fn jump(&mut self, off: i32) {
        if off != 0 {
            self.asm.b(self.jump_to(off));
        }
    }

    fn compare(&mut self, cond: Cond, wide: bool, dst: Reg, src: Operand) -> Cc {
        let op = if cond == Cond::Set {
            Alu::Ands
        } else {
            Alu::Subs
        };
        match src {
            Operand::Reg(src) => self.asm.alu(op, wide, ZR, gpr(dst), gpr(src)),
            Operand::Imm(imm) => self.asm.alu_imm(op, wide, ZR, gpr(dst), imm),
        }
        code(cond)
    }

    pub(super) fn jump_if(&mut self, cond: Cond, width: Width, dst: Reg, src: Operand, off: i16) {
        let (wide, to) = (width == Width::W64, self.jump_to(off.into()));
        match (cond, src) {
            (Cond::Eq | Cond::Ne, Operand::Imm(0)) => {
                self.asm.cb(wide, cond == Cond::Ne, gpr(dst), to);
            }
            _ => {
                let cc = self.compare(cond, wide, dst, src);
                self.asm.b_if(cc, to);
            }
        }
    }

    /// `if … goto +1; goto TARGET`.
    pub(super) fn inverted(&mut self, op: &Op) -> Option<usize> {
        let Op::JumpIf {
            cond,
            width,
            dst,
            src,
            off: 1,
        } = *op
        else {
            return None;
        };
        let next = self.slot + 1;
        // In checked code the second one counts for itself.
        if self.plan.checked || !self.has(Rule::InvertJump) || self.plan.is_target(next) {
            return None;
        }
        let Some(Slot::Op(Op::Jump { off, .. })) = self.plan.slots().get(next) else {
            return None;
        };
        inverse(code(cond))?;
        let cc = self.compare(cond, width == Width::W64, dst, src);
        self.asm
            .b_if(inverse(cc)?, Label(Plan::target(next, *off) as u32));
        Some(next + 1)
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
