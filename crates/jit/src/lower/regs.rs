//! Which registers an instruction reads and writes.

use bpfkit_isa::{AluOp, AtomicOp, Call, Op, Operand, Reg, Source};

/// A set of BPF registers, one bit each.
pub(crate) type Mask = u16;

pub(crate) const FRAME: Mask = 1 << 10;
/// R1–R5.
pub(crate) const ARGS: Mask = 0b11_1110;

fn bit(reg: Reg) -> Mask {
    1 << reg.number()
}

fn operand(src: Operand) -> Mask {
    match src {
        Operand::Reg(reg) => bit(reg),
        Operand::Imm(_) => 0,
    }
}

/// Registers whose values an instruction uses. Calls use all their arguments.
pub(crate) fn reads(op: &Op) -> Mask {
    match *op {
        Op::Alu {
            op: AluOp::Mov,
            src,
            ..
        } => operand(src),
        Op::Alu { dst, src, .. } | Op::JumpIf { dst, src, .. } => bit(dst) | operand(src),
        Op::MovSx { src, .. } | Op::AddrSpaceCast { src, .. } | Op::MovPercpu { src, .. } => {
            bit(src)
        }
        Op::Neg { dst, .. } | Op::Swap { dst, .. } => bit(dst),
        Op::LoadImm64 { .. } | Op::Jump { .. } | Op::MayGoto { .. } => 0,
        Op::Load { base, .. } | Op::LoadAcquire { base, .. } => bit(base),
        Op::LoadPacket {
            source: Source::Ind(reg),
            ..
        } => bit(reg),
        Op::LoadPacket { .. } => 0,
        Op::Store { base, src, .. } => bit(base) | operand(src),
        Op::StoreRelease { base, src, .. } => bit(base) | bit(src),
        Op::Atomic {
            op: AtomicOp::Cmpxchg,
            base,
            src,
            ..
        } => bit(base) | bit(src) | 1,
        Op::Atomic { base, src, .. } => bit(base) | bit(src),
        // A tail call that does not happen leaves R0 as it is.
        Op::Call(Call::Helper(_)) => ARGS | 1,
        Op::Call(_) => ARGS,
        Op::CallReg(reg) => ARGS | bit(reg),
        Op::Exit => 1,
    }
}

/// Registers that an instruction writes.
pub(crate) fn writes(op: &Op) -> Mask {
    match *op {
        Op::Alu { dst, .. }
        | Op::MovSx { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Swap { dst, .. }
        | Op::AddrSpaceCast { dst, .. }
        | Op::MovPercpu { dst, .. }
        | Op::LoadImm64 { dst, .. }
        | Op::Load { dst, .. }
        | Op::LoadAcquire { dst, .. } => bit(dst),
        Op::LoadPacket { .. } | Op::Call(_) | Op::CallReg(_) => 1,
        Op::Atomic {
            op: AtomicOp::Cmpxchg,
            ..
        } => 1,
        Op::Atomic {
            src, fetch: true, ..
        } => bit(src),
        Op::Atomic { .. }
        | Op::Store { .. }
        | Op::StoreRelease { .. }
        | Op::Jump { .. }
        | Op::JumpIf { .. }
        | Op::MayGoto { .. }
        | Op::Exit => 0,
    }
}
