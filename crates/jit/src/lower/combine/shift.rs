//! Shifts that are rotations or extensions.

use bpfkit_isa::{AluOp, Op, Operand, Reg, Size, Width};

use super::{Combined, Match, View};
use crate::backend::Arch;
use crate::lower::Rule;

/// A shift by a constant that is not zero: operation, width, register, amount.
fn shift(op: &Op) -> Option<(AluOp, Width, Reg, u8)> {
    match *op {
        Op::Alu {
            op: op @ (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh),
            width,
            dst,
            src: Operand::Imm(by),
        } if by > 0 && by < bits(width) => Some((op, width, dst, by as u8)),
        _ => None,
    }
}

fn bits(width: Width) -> i32 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// What a shift to the left and one back to the right, by the same amount, do to a register.
fn extension(back: AluOp, width: Width, reg: Reg, by: u8) -> Option<Op> {
    let kept = bits(width) as u8 - by;
    let masked = |mask| Op::Alu {
        op: AluOp::And,
        width: Width::W32,
        dst: reg,
        src: Operand::Imm(mask),
    };
    Some(match (back, kept) {
        (AluOp::Rsh, 32) => Op::Alu {
            op: AluOp::Mov,
            width: Width::W32,
            dst: reg,
            src: Operand::Reg(reg),
        },
        (AluOp::Rsh, 16) => masked(0xffff),
        (AluOp::Rsh, 8) => masked(0xff),
        (AluOp::Arsh, 8 | 16 | 32) => Op::MovSx {
            width,
            bits: kept,
            dst: reg,
            src: reg,
        },
        _ => return None,
    })
}

impl View<'_, '_> {
    /// `a = x; a >>= 64 - k; x <<= k; x |= a`, where `a` is not used any more, with the shifts
    /// in either order and in either width.
    pub(super) fn rotation(&self, slot: usize, first: &Op) -> Option<Match> {
        let Op::Alu {
            op: AluOp::Mov,
            dst: a,
            src: Operand::Reg(x),
            ..
        } = *first
        else {
            return None;
        };
        let second = shift(self.next(slot + 1)?)?;
        if !self.has(Rule::Rotate) || a == x {
            return None;
        }
        let third = shift(self.next(slot + 2)?)?;
        let (of_a, of_x) = if second.2 == a {
            (second, third)
        } else {
            (third, second)
        };
        let width = of_a.1;
        let opposite = matches!(
            (of_a.0, of_x.0),
            (AluOp::Lsh, AluOp::Rsh) | (AluOp::Rsh, AluOp::Lsh)
        );
        if !opposite
            || (of_a.2, of_x.2) != (a, x)
            || of_x.1 != width
            || i32::from(of_a.3 + of_x.3) != bits(width)
        {
            return None;
        }
        let Op::Alu {
            op: AluOp::Or,
            width: joined,
            dst,
            src: Operand::Reg(other),
        } = *self.next(slot + 3)?
        else {
            return None;
        };
        // Both halves are zero above the width, however they are joined. A move of 32 bits
        // in front of shifts of 64 is another matter.
        let narrow = matches!(
            first,
            Op::Alu {
                width: Width::W32,
                ..
            }
        ) && width == Width::W64;
        let wide = joined == Width::W32 && width == Width::W64;
        let pair = (dst, other) == (a, x) || (dst, other) == (x, a);
        if !pair || narrow || wide || self.lives(slot + 3, other) {
            return None;
        }
        let right = if of_a.0 == AluOp::Rsh { of_a.3 } else { of_x.3 };
        Some(Match {
            combined: Combined::Rotate {
                width,
                dst,
                src: x,
                right,
            },
            end: slot + 4,
        })
    }

    /// A shift to the left and one back to the right by the same amount.
    pub(super) fn shift_pair(&self, slot: usize, first: &Op) -> Option<Match> {
        let (AluOp::Lsh, width, reg, by) = shift(first)? else {
            return None;
        };
        let (back, _, _, _) =
            shift(self.next(slot + 1)?).filter(|s| (s.1, s.2, s.3) == (width, reg, by))?;
        let op = extension(back, width, reg, by)?;
        self.has(Rule::ShiftPair).then_some(Match {
            combined: Combined::Op(op),
            end: slot + 2,
        })
    }

    /// A load and what extends the sign of its value.
    pub(super) fn signed_load(&self, slot: usize, load: &Op) -> Option<Match> {
        let Op::Load {
            size,
            signed: false,
            dst: loaded,
            base,
            off,
        } = *load
        else {
            return None;
        };
        if size == Size::DW || !self.has(Rule::SignedLoad) {
            return None;
        }
        let (extended, end) = match self.next(slot + 1)? {
            &op @ Op::MovSx { .. } => (op, slot + 2),
            first => {
                let pair = self.shift_pair(slot + 1, first)?;
                let Combined::Op(op) = pair.combined else {
                    return None;
                };
                (op, pair.end)
            }
        };
        let Op::MovSx {
            width: Width::W64,
            bits,
            dst,
            src,
        } = extended
        else {
            return None;
        };
        let fits = u32::from(bits) == size.bytes() * 8 && src == loaded;
        if !fits || (dst != loaded && self.lives(end - 1, loaded)) {
            return None;
        }
        let load = Op::Load {
            size,
            signed: true,
            dst,
            base,
            off,
        };
        Some(Match {
            combined: Combined::Op(load),
            end,
        })
    }

    /// Zero extension of what the next instruction reads only the lower half of.
    pub(super) fn shifted_out(&self, slot: usize, first: &Op) -> Option<Match> {
        let Op::Alu {
            op: AluOp::Mov,
            width: Width::W32,
            dst,
            src: src @ Operand::Reg(from),
        } = *first
        else {
            return None;
        };
        // A mask that leaves nothing of the upper half, or an operation of 32 bits. On x86-64
        // only extensions have two operands.
        let narrow = match *self.next(slot + 1)? {
            Op::Alu {
                op: AluOp::And,
                dst: on,
                src: Operand::Imm(mask @ 0..),
                ..
            } => on == dst && (matches!(mask, 0xff | 0xffff) || self.arch == Arch::Aarch64),
            Op::Alu {
                op,
                width: Width::W32,
                dst: on,
                ..
            } => on == dst && op != AluOp::Mov && self.arch == Arch::Aarch64,
            _ => false,
        };
        if !narrow || dst == from || !self.has(Rule::ZeroExtension) {
            return None;
        }
        let copy = Op::Alu {
            op: AluOp::Mov,
            width: Width::W64,
            dst,
            src,
        };
        Some(Match {
            combined: Combined::Op(copy),
            end: slot + 1,
        })
    }
}
