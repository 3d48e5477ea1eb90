//! Jumps.

use bpfkit_isa::{Cond, Operand, Width};

use super::Compiler;
use super::emit::{Arith, Cc, Label, Mem};
use super::regs::{R10, R11, RSP};
use super::shared::Stub;
use crate::lower::{Mask, Plan, Rule, Test};

pub(super) fn code(cond: Cond) -> Cc {
    match cond {
        Cond::Eq => Cc::E,
        Cond::Ne | Cond::Set => Cc::Ne,
        Cond::Gt => Cc::A,
        Cond::Ge => Cc::Ae,
        Cond::Lt => Cc::B,
        Cond::Le => Cc::Be,
        Cond::Sgt => Cc::G,
        Cond::Sge => Cc::Ge,
        Cond::Slt => Cc::L,
        Cond::Sle => Cc::Le,
    }
}

impl Compiler<'_> {
    fn jump_to(&self, off: i32) -> Label {
        Label(Plan::target(self.slot, off) as u32)
    }

    pub(super) fn jump(&mut self, off: i32) {
        self.flush(self.plan.live_out(self.slot));
        if off != 0 {
            self.asm.jmp(self.jump_to(off));
        }
    }

    /// Compares, with everything that is live behind it settled.
    pub(super) fn compare(&mut self, test: Test, live: Mask) -> Cc {
        let Test {
            cond,
            width,
            dst,
            src,
        } = test;
        let wide = width == Width::W64;
        match src {
            Operand::Reg(src) => {
                // Fetching one can settle what the other was read from.
                self.value(dst);
                self.value(src);
                let (dst, src) = (self.value(dst), self.value(src));
                self.flush(live);
                if cond == Cond::Set {
                    self.asm.test(wide, dst, src);
                } else {
                    self.asm.arith(Arith::Cmp, wide, dst, src);
                }
            }
            Operand::Imm(imm) => {
                let dst = self.value(dst);
                self.flush(live);
                match (cond, imm) {
                    (Cond::Set, imm) => self.asm.test_imm(wide, dst, imm),
                    (Cond::Eq | Cond::Ne | Cond::Slt | Cond::Sge | Cond::Sgt | Cond::Sle, 0) => {
                        let equality = matches!(cond, Cond::Eq | Cond::Ne);
                        let known = self.asm.has_flags_of(wide, dst, equality);
                        if !(known && self.has(Rule::Flags)) {
                            self.asm.test(wide, dst, dst);
                        }
                    }
                    _ => self.asm.arith_imm(Arith::Cmp, wide, dst, imm),
                }
            }
        }
        code(cond)
    }

    pub(super) fn jump_if(&mut self, test: Test, off: i16) {
        let cc = self.compare(test, self.plan.live_out(self.slot));
        self.asm.jcc(cc, self.jump_to(off.into()));
    }

    /// Falls through as long as the frame's budget allows. The budget lies on top of the stack.
    pub(super) fn may_goto(&mut self, off: i16) {
        self.flush(self.plan.live_out(self.slot));
        self.asm.arith_imm(Arith::Sub, true, Mem::at(RSP, 0), 1);
        let (spent, go_on) = (self.jump_to(off.into()), self.asm.label());
        self.asm.jcc(Cc::Ae, go_on);
        self.asm.lea(R11, Mem::at(RSP, 0));
        self.asm.mov_imm(R10, (self.slot as u64) << 8);
        self.call_stub(Stub::MayGoto);
        self.asm.test(false, R11, R11);
        self.asm.jcc(Cc::E, spent);
        self.asm.bind(go_on);
    }
}
