//! Operands that stay in memory.

use bpfkit_isa::{AluOp, Cond, Op, Operand, Reg, Size, Width};

use super::Compiler;
use super::combined::{test_reads, unsigned};
use super::emit::{Arith, Cc, Label, Mem};
use super::jump::code;
use super::regs::gpr;
use crate::lower::{Mask, Plan, Rule, Test, reads};

fn arith(op: AluOp) -> Option<Arith> {
    Some(match op {
        AluOp::Add => Arith::Add,
        AluOp::Sub => Arith::Sub,
        AluOp::Or => Arith::Or,
        AluOp::And => Arith::And,
        AluOp::Xor => Arith::Xor,
        _ => return None,
    })
}

/// The comparison of a loaded value with an immediate, as one of the bytes in memory: how
/// many of them, and the condition.
fn compared_bytes(size: Size, width: Width, cond: Cond, imm: i32) -> Option<(u32, Cc)> {
    let cc = code(cond);
    match (size, width) {
        (Size::DW, Width::W64) => Some((8, cc)),
        (Size::DW | Size::W, Width::W32) => Some((4, cc)),
        // The upper bits of the value are zero, and so are the immediate's.
        (Size::W, Width::W64) => (imm >= 0).then_some((4, unsigned(cc))),
        // A 16-bit immediate would stall decoders.
        (Size::H, _) => ((0..128).contains(&imm) && cond != Cond::Set).then_some((2, unsigned(cc))),
        (Size::B, _) => (0..1 << 8).contains(&imm).then_some((1, unsigned(cc))),
    }
}

/// An unsigned load.
#[derive(Clone, Copy)]
struct Load {
    size: Size,
    dst: Reg,
    base: Reg,
    off: i16,
}

impl Compiler<'_> {
    /// A load and what uses its value, or changes and stores it: the slot to go on at.
    pub(super) fn folded(&mut self, op: &Op) -> Option<usize> {
        let Op::Load {
            size,
            signed: false,
            dst,
            base,
            off,
        } = *op
        else {
            return None;
        };
        let next = self.follower(self.slot + 1)?;
        if !self.has(Rule::MemoryOperand) {
            return None;
        }
        let load = Load {
            size,
            dst,
            base,
            off,
        };
        match next {
            Op::Alu {
                op,
                width,
                dst: to,
                src,
            } if to == dst => self.read_modify_write(load, op, width, src),
            Op::Alu {
                op,
                width,
                dst: to,
                src: Operand::Reg(src),
            } if src == dst => self.operand(load, op, width, to),
            Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            } => {
                let test = Test {
                    cond,
                    width,
                    dst,
                    src,
                };
                self.compared(load, test, off.into())
            }
            _ => None,
        }
    }

    fn lives(&self, slot: usize, reg: Reg) -> bool {
        self.plan.live_out(slot) & 1 << reg.number() != 0
    }

    /// `t = *p; dst op= t`.
    fn operand(&mut self, load: Load, op: AluOp, width: Width, dst: Reg) -> Option<usize> {
        let user = self.slot + 1;
        let wide = match (load.size, width, op) {
            (Size::DW, Width::W64, _) => true,
            (Size::W, Width::W32, _) | (Size::W, Width::W64, AluOp::And) => false,
            _ => return None,
        };
        let known = op == AluOp::Mul || arith(op).is_some();
        if !known || self.lives(user, load.dst) {
            return None;
        }
        self.live = self.plan.live_out(user) | 1 << load.base.number() | 1 << dst.number();
        let home = self.change(dst);
        let mem = self.address(load.base, load.off);
        let mem = self.checked(mem, load.size, false);
        match arith(op) {
            Some(op) => self.asm.arith(op, wide, home, mem),
            None => self.asm.imul(wide, home, mem),
        }
        self.valid.changed(home);
        let narrow = Op::Alu {
            op: AluOp::Add,
            width: if wide { Width::W64 } else { Width::W32 },
            dst,
            src: Operand::Imm(1),
        };
        self.zeros.step(&narrow);
        Some(user + 1)
    }

    /// `t = *p; t op= src; *p = t`.
    fn read_modify_write(
        &mut self,
        load: Load,
        op: AluOp,
        width: Width,
        src: Operand,
    ) -> Option<usize> {
        let last = self.slot + 2;
        let store = Op::Store {
            size: load.size,
            base: load.base,
            off: load.off,
            src: Operand::Reg(load.dst),
        };
        let narrow = width == Width::W32 && load.size == Size::DW;
        let op = arith(op)?;
        // In checked code the store is checked for itself.
        if self.plan.checked
            || narrow
            || load.base == load.dst
            || src == Operand::Reg(load.dst)
            || self.follower(last)? != store
            || self.lives(last, load.dst)
            || (load.size == Size::H
                && matches!(src, Operand::Imm(imm) if i8::try_from(imm).is_err()))
        {
            return None;
        }
        self.live = self.plan.live_out(last) | reads(&store);
        let bytes = load.size.bytes();
        match src {
            Operand::Reg(src) => {
                self.live |= 1 << src.number();
                let src = self.value(src);
                let mem = self.address(load.base, load.off);
                self.asm.arith_at(op, bytes, mem, src);
            }
            Operand::Imm(imm) => {
                let mem = self.address(load.base, load.off);
                self.asm.arith_imm_at(op, bytes, mem, imm);
            }
        }
        Some(last + 1)
    }

    /// Settles those registers, and gives the place of a load, which stays what it is.
    fn settle_around(&mut self, load: Load, settled: Mask) -> Mem {
        if self.names_settled(load.base, settled) {
            self.flush(settled | 1 << load.base.number());
            return Mem::at(gpr(load.base), load.off.into());
        }
        let mem = self.address(load.base, load.off);
        self.flush(settled);
        mem
    }

    /// `t = *p; if t … goto`.
    fn compared(&mut self, load: Load, test: Test, off: i32) -> Option<usize> {
        let user = self.slot + 1;
        if self.lives(user, load.dst) {
            return None;
        }
        let (bytes, cc) = match test.src {
            Operand::Imm(imm) if test.dst == load.dst => {
                compared_bytes(load.size, test.width, test.cond, imm)?
            }
            Operand::Reg(src) if (test.dst == load.dst) != (src == load.dst) => {
                let same = matches!(
                    (load.size, test.width),
                    (Size::DW, Width::W64) | (Size::DW | Size::W, Width::W32)
                );
                // `test` has one direction only, which is as good.
                if !same || (test.cond == Cond::Set && src == load.dst) {
                    return None;
                }
                let bytes = if test.width == Width::W64 { 8 } else { 4 };
                (bytes, code(test.cond))
            }
            _ => return None,
        };
        let after = self.plan.live_out(user);
        self.live = after | 1 << load.base.number() | test_reads(test) & !(1 << load.dst.number());
        let other = match test.src {
            Operand::Reg(src) if test.dst == load.dst => Some(src),
            Operand::Reg(_) => Some(test.dst),
            Operand::Imm(_) => None,
        };
        let mem = self.settle_around(load, after | other.map_or(0, |reg| 1 << reg.number()));
        let mem = self.checked(mem, load.size, false);
        match test.src {
            Operand::Imm(imm) if test.cond == Cond::Set => self.asm.test_imm_at(bytes, mem, imm),
            Operand::Imm(imm) => self.asm.arith_imm_at(Arith::Cmp, bytes, mem, imm),
            Operand::Reg(src) if test.dst == load.dst => {
                if test.cond == Cond::Set {
                    self.asm.test_at(bytes, mem, gpr(src));
                } else {
                    self.asm.arith_at(Arith::Cmp, bytes, mem, gpr(src));
                }
            }
            Operand::Reg(_) => self.asm.arith(Arith::Cmp, bytes == 8, gpr(test.dst), mem),
        }
        self.asm.jcc(cc, Label(Plan::target(user, off) as u32));
        Some(user + 1)
    }
}
