//! What stands for several instructions.

use bpfkit_isa::{AluOp, Op, Operand, Reg, Width};
use bpfkit_runtime::LoadErrorKind;
use bpfkit_runtime::native::Slot;

use super::Compiler;
use super::emit::{Arith, Cc, Label, Mem, Shift};
use super::regs::{Gpr, R11, gpr};
use crate::lower::{Combined, Mask, Match, Target, Test, reads, writes};

impl Compiler<'_> {
    pub(super) fn combined(&mut self, found: &Match) -> Result<(), LoadErrorKind> {
        let after = self.plan.live_out(found.end - 1);
        match found.combined {
            Combined::Op(op) => {
                self.live = after | reads(&op);
                self.op(&op)?;
                self.zeros.step(&op);
            }
            Combined::LoadSwapped {
                size,
                dst,
                base,
                off,
            } => {
                self.live = after | 1 << base.number();
                let mem = self.address_for(dst, base, off);
                let mem = self.checked(mem, size, false);
                let home = self.define(dst);
                self.asm.load(size.bytes(), false, home, mem);
                match size.bytes() {
                    2 => self.asm.swap16(home),
                    bytes => self.asm.bswap(bytes == 8, home),
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
                self.live = after | 1 << src.number();
                self.rotate(width, dst, src, right);
            }
            Combined::StoreSwapped {
                size,
                base,
                off,
                src,
            } => {
                self.live = after | 1 << src.number() | 1 << base.number();
                let value = self.value(src);
                self.asm.mov(true, R11, value);
                let mem = self.address(base, off);
                match size.bytes() {
                    2 => self.asm.swap16(R11),
                    bytes => self.asm.bswap(bytes == 8, R11),
                }
                self.asm.store(size.bytes(), mem, R11);
            }
            Combined::Select {
                test,
                negated,
                body,
                to,
            } => {
                self.select(test, negated, &body, after);
                if let Some(to) = to {
                    self.asm.jmp(Label(to as u32));
                }
            }
            Combined::Branch { test, negated, to } => {
                // Where it stands for two jumps, the first one's other way is its own.
                let last = self.plan.slots()[found.end - 1];
                let after = match last {
                    Slot::Op(Op::JumpIf { .. }) => after,
                    _ => after | self.plan.live_out(found.end - 2),
                };
                self.live = after | test_reads(test);
                let cc = self.compare(test, after);
                let to = match to {
                    Target::Slot(slot) => Label(slot as u32),
                    Target::Exit => {
                        self.exit_used = true;
                        self.exit
                    }
                };
                self.asm.jcc(if negated { cc.inverted() } else { cc }, to);
            }
        }
        Ok(())
    }

    fn rotate(&mut self, width: Width, dst: Reg, src: Reg, right: u8) {
        let wide = width == Width::W64;
        let left = if wide { 64 } else { 32 } - right;
        let value = self.value(src);
        if self.features.bmi2 && value != gpr(dst) {
            let home = self.define(dst);
            self.asm.rorx(wide, home, value, right);
        } else {
            if dst != src {
                self.copy(dst, src);
            }
            let home = self.change(dst);
            self.asm.shift_imm(Shift::Rol, wide, home, left);
        }
        // As narrow as any result of that width.
        self.zeros.step(&Op::Alu {
            op: AluOp::Add,
            width,
            dst,
            src: Operand::Imm(left.into()),
        });
    }

    /// The assignment into R11 or a register that holds its value already, and a conditional
    /// move from there.
    fn select(&mut self, test: Test, negated: bool, body: &Op, after: Mask) {
        let Some(dst) = (0..10)
            .filter_map(Reg::new)
            .find(|r| writes(body) == 1 << r.number())
        else {
            return;
        };
        self.live = after | reads(body) | test_reads(test) | 1 << dst.number();
        self.flush(self.live);
        let home = gpr(dst);
        self.valid.changed(home);
        let value = self.in_vain(body, home);
        let cc = self.compare(test, after);
        let mut taken = self.zeros;
        taken.step(body);
        self.zeros.join(taken);
        let cc = if negated { cc } else { cc.inverted() };
        self.asm.cmov(cc, !self.zeros.has(dst), home, value);
    }

    /// The result of a cheap instruction on a register's home, which stays as it is.
    fn in_vain(&mut self, body: &Op, home: Gpr) -> Gpr {
        match *body {
            Op::Alu {
                op: AluOp::Mov,
                width,
                src: Operand::Reg(src),
                ..
            } => {
                if width == Width::W64 || self.zeros.has(src) {
                    return gpr(src);
                }
                self.asm.mov(false, R11, gpr(src));
            }
            Op::Alu {
                op: AluOp::Mov,
                width,
                src: Operand::Imm(imm),
                ..
            } => match width {
                Width::W32 => self.asm.mov_imm(R11, u64::from(imm as u32)),
                Width::W64 => self.asm.mov_imm(R11, i64::from(imm) as u64),
            },
            Op::MovSx {
                width, bits, src, ..
            } => self.asm.movsx(width == Width::W64, bits, R11, gpr(src)),
            Op::Neg { width, .. } => {
                self.asm.mov(true, R11, home);
                self.asm.neg(width == Width::W64, R11);
            }
            Op::Alu { op, width, src, .. } => self.arith_in_vain(op, width, src, home),
            _ => {}
        }
        R11
    }

    fn arith_in_vain(&mut self, op: AluOp, width: Width, src: Operand, home: Gpr) {
        let wide = width == Width::W64;
        if let (AluOp::Add, Operand::Imm(imm), true) = (op, src, wide) {
            return self.asm.lea(R11, Mem::at(home, imm));
        }
        self.asm.mov(wide, R11, home);
        let shift = match op {
            AluOp::Lsh => Some(Shift::Shl),
            AluOp::Rsh => Some(Shift::Shr),
            AluOp::Arsh => Some(Shift::Sar),
            _ => None,
        };
        let arith = match op {
            AluOp::Add => Arith::Add,
            AluOp::Sub => Arith::Sub,
            AluOp::Or => Arith::Or,
            AluOp::And => Arith::And,
            _ => Arith::Xor,
        };
        match (shift, src) {
            (Some(shift), Operand::Imm(imm)) => {
                let by = imm as u8 & if wide { 63 } else { 31 };
                if by != 0 {
                    self.asm.shift_imm(shift, wide, R11, by);
                }
            }
            (_, Operand::Imm(imm)) => self.asm.arith_imm(arith, wide, R11, imm),
            (_, Operand::Reg(src)) => self.asm.arith(arith, wide, R11, gpr(src)),
        }
    }
}

pub(super) fn test_reads(test: Test) -> Mask {
    let src = match test.src {
        Operand::Reg(reg) => 1 << reg.number(),
        Operand::Imm(_) => 0,
    };
    1 << test.dst.number() | src
}

/// Conditions on unsigned numbers that signed ones are on numbers that are not negative.
pub(super) fn unsigned(cc: Cc) -> Cc {
    match cc {
        Cc::L => Cc::B,
        Cc::Ge => Cc::Ae,
        Cc::Le => Cc::Be,
        Cc::G => Cc::A,
        cc => cc,
    }
}
