//! From [`Op`] to the type that executes it.

use bpfkit_isa::{AluOp, AtomicOp, Call, Cond, Op, Operand, Size, Source, Swap, Width};

use super::access::{
    self, Atomic32, Atomic64, Load, LoadAcquire, LoadPacket, Store, StoreRelease, Update,
};
use super::access::{TO_NOWHERE, TO_R0, TO_SRC, Value};
use super::alu::{self, Alu, ArenaCast, Binary, LoadImm64, MovPercpu, Move};
use super::call::{CallHelper, CallLocal, Exit, TailCall};
use super::inst::Instruction;
use super::jump::{self, Compare, Jump, JumpIf, MayGoto};
use crate::env::TAIL_CALL;

/// Something to do with an instruction's type.
pub(super) trait Visit {
    type Out;
    fn visit<I: Instruction>(self) -> Self::Out;
}

/// Calls `v` with the type that executes `op`; `None` for what cannot run here.
pub(super) fn select<V: Visit>(op: &Op, v: V) -> Option<V::Out> {
    Some(match *op {
        Op::Alu { op, width, src, .. } => {
            let reg = matches!(src, Operand::Reg(_));
            match op {
                AluOp::Add => binary::<V, alu::Add>(v, width, reg),
                AluOp::Sub => binary::<V, alu::Sub>(v, width, reg),
                AluOp::Mul => binary::<V, alu::Mul>(v, width, reg),
                AluOp::Div => binary::<V, alu::Div>(v, width, reg),
                AluOp::SDiv => binary::<V, alu::SDiv>(v, width, reg),
                AluOp::Mod => binary::<V, alu::Mod>(v, width, reg),
                AluOp::SMod => binary::<V, alu::SMod>(v, width, reg),
                AluOp::Or => binary::<V, alu::Or>(v, width, reg),
                AluOp::And => binary::<V, alu::And>(v, width, reg),
                AluOp::Lsh => binary::<V, alu::Lsh>(v, width, reg),
                AluOp::Rsh => binary::<V, alu::Rsh>(v, width, reg),
                AluOp::Arsh => binary::<V, alu::Arsh>(v, width, reg),
                AluOp::Xor => binary::<V, alu::Xor>(v, width, reg),
                AluOp::Mov => binary::<V, alu::Mov>(v, width, reg),
            }
        }
        Op::MovSx { width, bits, .. } => match (width, bits) {
            (Width::W64, 8) => v.visit::<Move<alu::Sx8>>(),
            (Width::W64, 16) => v.visit::<Move<alu::Sx16>>(),
            (Width::W64, _) => v.visit::<Move<alu::Sx32>>(),
            (Width::W32, 8) => v.visit::<Move<alu::Sx8Narrow>>(),
            (Width::W32, _) => v.visit::<Move<alu::Sx16Narrow>>(),
        },
        Op::Neg {
            width: Width::W64, ..
        } => v.visit::<Move<alu::Neg64>>(),
        Op::Neg {
            width: Width::W32, ..
        } => v.visit::<Move<alu::Neg32>>(),
        Op::Swap { kind, bits, .. } => {
            let keeps = match kind {
                Swap::ToLe => cfg!(target_endian = "little"),
                Swap::ToBe => cfg!(target_endian = "big"),
                Swap::Always => false,
            };
            match (keeps, bits) {
                (true, 16) => v.visit::<Move<alu::Zx16>>(),
                (true, 32) => v.visit::<Move<alu::Zx32>>(),
                (true, _) => v.visit::<Move<alu::Same64>>(),
                (false, 16) => v.visit::<Move<alu::Swap16>>(),
                (false, 32) => v.visit::<Move<alu::Swap32>>(),
                (false, _) => v.visit::<Move<alu::Swap64>>(),
            }
        }
        Op::AddrSpaceCast { dst_as: 0, .. } => v.visit::<ArenaCast<false>>(),
        Op::AddrSpaceCast { .. } => v.visit::<ArenaCast<true>>(),
        Op::LoadImm64 { .. } => v.visit::<LoadImm64>(),
        Op::Load { size, signed, .. } => match (size, signed) {
            (Size::B, false) => v.visit::<Load<u8, false>>(),
            (Size::H, false) => v.visit::<Load<u16, false>>(),
            (Size::W, false) => v.visit::<Load<u32, false>>(),
            (Size::B, true) => v.visit::<Load<u8, true>>(),
            (Size::H, true) => v.visit::<Load<u16, true>>(),
            (Size::W, true) => v.visit::<Load<u32, true>>(),
            (Size::DW, _) => v.visit::<Load<u64, false>>(),
        },
        Op::LoadPacket { size, source, .. } => {
            let indirect = matches!(source, Source::Ind(_));
            match size {
                Size::B => packet::<V, u8>(v, indirect),
                Size::H => packet::<V, u16>(v, indirect),
                Size::W | Size::DW => packet::<V, u32>(v, indirect),
            }
        }
        Op::Store { size, src, .. } => {
            let reg = matches!(src, Operand::Reg(_));
            match size {
                Size::B => store::<V, u8>(v, reg),
                Size::H => store::<V, u16>(v, reg),
                Size::W => store::<V, u32>(v, reg),
                Size::DW => store::<V, u64>(v, reg),
            }
        }
        Op::Atomic {
            op, size, fetch, ..
        } => {
            let wide = size == Size::DW;
            match op {
                AtomicOp::Add => atomic::<V, access::Add>(v, wide, fetch),
                AtomicOp::Or => atomic::<V, access::Or>(v, wide, fetch),
                AtomicOp::And => atomic::<V, access::And>(v, wide, fetch),
                AtomicOp::Xor => atomic::<V, access::Xor>(v, wide, fetch),
                AtomicOp::Xchg => atomic::<V, access::Xchg>(v, wide, true),
                AtomicOp::Cmpxchg if wide => v.visit::<Atomic64<access::Cmpxchg, TO_R0>>(),
                AtomicOp::Cmpxchg => v.visit::<Atomic32<access::Cmpxchg, TO_R0>>(),
            }
        }
        Op::LoadAcquire { size, .. } => match size {
            Size::B => v.visit::<LoadAcquire<u8>>(),
            Size::H => v.visit::<LoadAcquire<u16>>(),
            Size::W => v.visit::<LoadAcquire<u32>>(),
            Size::DW => v.visit::<LoadAcquire<u64>>(),
        },
        Op::StoreRelease { size, .. } => match size {
            Size::B => v.visit::<StoreRelease<u8>>(),
            Size::H => v.visit::<StoreRelease<u16>>(),
            Size::W => v.visit::<StoreRelease<u32>>(),
            Size::DW => v.visit::<StoreRelease<u64>>(),
        },
        Op::Jump { .. } => v.visit::<Jump>(),
        Op::JumpIf {
            cond, width, src, ..
        } => {
            let reg = matches!(src, Operand::Reg(_));
            match cond {
                Cond::Eq => compare::<V, jump::Eq>(v, width, reg),
                Cond::Ne => compare::<V, jump::Ne>(v, width, reg),
                Cond::Gt => compare::<V, jump::Gt>(v, width, reg),
                Cond::Ge => compare::<V, jump::Ge>(v, width, reg),
                Cond::Lt => compare::<V, jump::Lt>(v, width, reg),
                Cond::Le => compare::<V, jump::Le>(v, width, reg),
                Cond::Set => compare::<V, jump::Set>(v, width, reg),
                Cond::Sgt => compare::<V, jump::Sgt>(v, width, reg),
                Cond::Sge => compare::<V, jump::Sge>(v, width, reg),
                Cond::Slt => compare::<V, jump::Slt>(v, width, reg),
                Cond::Sle => compare::<V, jump::Sle>(v, width, reg),
            }
        }
        Op::MayGoto { .. } => v.visit::<MayGoto>(),
        Op::Call(Call::Helper(TAIL_CALL)) => v.visit::<TailCall>(),
        Op::Call(Call::Helper(_) | Call::Kfunc { .. }) => v.visit::<CallHelper>(),
        Op::Call(Call::Local(_)) => v.visit::<CallLocal>(),
        Op::Exit => v.visit::<Exit>(),
        Op::MovPercpu { .. } => v.visit::<MovPercpu>(),
        Op::CallReg(_) => return None,
    })
}

fn binary<V: Visit, F: Binary>(v: V, width: Width, reg: bool) -> V::Out {
    match (width, reg) {
        (Width::W64, true) => v.visit::<Alu<F, true, true>>(),
        (Width::W64, false) => v.visit::<Alu<F, true, false>>(),
        (Width::W32, true) => v.visit::<Alu<F, false, true>>(),
        (Width::W32, false) => v.visit::<Alu<F, false, false>>(),
    }
}

fn compare<V: Visit, C: Compare>(v: V, width: Width, reg: bool) -> V::Out {
    match (width, reg) {
        (Width::W64, true) => v.visit::<JumpIf<C, true, true>>(),
        (Width::W64, false) => v.visit::<JumpIf<C, true, false>>(),
        (Width::W32, true) => v.visit::<JumpIf<C, false, true>>(),
        (Width::W32, false) => v.visit::<JumpIf<C, false, false>>(),
    }
}

fn atomic<V: Visit, F: Update>(v: V, wide: bool, fetch: bool) -> V::Out {
    match (wide, fetch) {
        (true, true) => v.visit::<Atomic64<F, TO_SRC>>(),
        (true, false) => v.visit::<Atomic64<F, TO_NOWHERE>>(),
        (false, true) => v.visit::<Atomic32<F, TO_SRC>>(),
        (false, false) => v.visit::<Atomic32<F, TO_NOWHERE>>(),
    }
}

fn store<V: Visit, T: Value>(v: V, reg: bool) -> V::Out {
    if reg {
        v.visit::<Store<T, true>>()
    } else {
        v.visit::<Store<T, false>>()
    }
}

fn packet<V: Visit, T: Value>(v: V, indirect: bool) -> V::Out {
    if indirect {
        v.visit::<LoadPacket<T, true>>()
    } else {
        v.visit::<LoadPacket<T, false>>()
    }
}
