//! Jumps.

use std::marker::PhantomData;

use super::inst::{Cpu, Flow, Instruction};

/// A comparison.
pub(super) trait Compare {
    fn wide(a: u64, b: u64) -> bool;
    fn narrow(a: u32, b: u32) -> bool;
}

macro_rules! compare {
    ($($Name:ident: |$a:ident, $b:ident| $wide:expr, $narrow:expr;)*) => {
        $(
            pub(super) struct $Name;
            impl Compare for $Name {
                #[inline(always)]
                fn wide($a: u64, $b: u64) -> bool { $wide }
                #[inline(always)]
                fn narrow($a: u32, $b: u32) -> bool { $narrow }
            }
        )*
    };
}

compare! {
    Eq: |a, b| a == b, a == b;
    Ne: |a, b| a != b, a != b;
    Gt: |a, b| a > b, a > b;
    Ge: |a, b| a >= b, a >= b;
    Lt: |a, b| a < b, a < b;
    Le: |a, b| a <= b, a <= b;
    Set: |a, b| a & b != 0, a & b != 0;
    Sgt: |a, b| a as i64 > b as i64, a as i32 > b as i32;
    Sge: |a, b| a as i64 >= b as i64, a as i32 >= b as i32;
    Slt: |a, b| (a as i64) < b as i64, (a as i32) < b as i32;
    Sle: |a, b| a as i64 <= b as i64, a as i32 <= b as i32;
}

/// A conditional jump.
pub(super) struct JumpIf<C, const WIDE: bool, const REG: bool>(PhantomData<C>);

impl<C: Compare, const WIDE: bool, const REG: bool> Instruction for JumpIf<C, WIDE, REG> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let (a, b) = (cpu.dst_value::<LINK>(), cpu.operand::<REG, LINK>());
            let taken = if WIDE {
                C::wide(a, b)
            } else {
                C::narrow(a as u32, b as u32)
            };
            if taken {
                cpu.jump::<CHECKED>(i32::from(cpu.off()))
            } else {
                cpu.next()
            }
        }
    }
}

/// An unconditional jump; `imm` holds the distance of both forms.
pub(super) struct Jump;

impl Instruction for Jump {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe { cpu.jump::<CHECKED>(cpu.imm()) }
    }
}

/// Falls through as long as the frame's budget allows, then jumps.
pub(super) struct MayGoto;

impl Instruction for MayGoto {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let left = &mut (*cpu.window()).may_goto.left;
            if *left == 0 {
                return Flow::Slow;
            }
            *left -= 1;
            cpu.next()
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; the run's Env is borrowed by nobody else here.
        unsafe {
            let budget = &mut (*cpu.window()).may_goto;
            match budget.again((*cpu.env).host()) {
                true => cpu.next(),
                false => cpu.jump::<CHECKED>(i32::from(cpu.off())),
            }
        }
    }
}
