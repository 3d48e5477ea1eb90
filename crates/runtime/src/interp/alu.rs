//! Arithmetic, moves, byte order.

use std::marker::PhantomData;

use super::inst::{Cpu, Flow, Instruction};
use crate::memory::Memory;

/// A two-operand operation.
pub(super) trait Binary {
    fn wide(a: u64, b: u64) -> u64;
    fn narrow(a: u32, b: u32) -> u32;
}

macro_rules! binary {
    ($($(#[$meta:meta])* $Name:ident: |$a:ident, $b:ident| $wide:expr, $narrow:expr;)*) => {
        $(
            $(#[$meta])*
            pub(super) struct $Name;
            impl Binary for $Name {
                #[inline(always)]
                fn wide($a: u64, $b: u64) -> u64 { $wide }
                #[inline(always)]
                fn narrow($a: u32, $b: u32) -> u32 { $narrow }
            }
        )*
    };
}

binary! {
    Add: |a, b| a.wrapping_add(b), a.wrapping_add(b);
    Sub: |a, b| a.wrapping_sub(b), a.wrapping_sub(b);
    Mul: |a, b| a.wrapping_mul(b), a.wrapping_mul(b);
    /// By zero: 0.
    Div: |a, b| a.checked_div(b).unwrap_or(0), a.checked_div(b).unwrap_or(0);
    /// By zero: 0; minimum by −1: the minimum.
    SDiv: |a, b| if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 },
                 if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 };
    /// By zero: the dividend.
    Mod: |a, b| a.checked_rem(b).unwrap_or(a), a.checked_rem(b).unwrap_or(a);
    /// By zero: the dividend; minimum by −1: 0.
    SMod: |a, b| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 },
                 if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 };
    Or: |a, b| a | b, a | b;
    And: |a, b| a & b, a & b;
    /// The amount is masked to the width.
    Lsh: |a, b| a.wrapping_shl(b as u32), a.wrapping_shl(b);
    Rsh: |a, b| a.wrapping_shr(b as u32), a.wrapping_shr(b);
    Arsh: |a, b| (a as i64).wrapping_shr(b as u32) as u64, (a as i32).wrapping_shr(b) as u32;
    Xor: |a, b| a ^ b, a ^ b;
    Mov: |_a, b| b, b;
}

/// `dst = dst op src`; the upper half of a 32-bit result is zero.
pub(super) struct Alu<F, const WIDE: bool, const REG: bool>(PhantomData<F>);

impl<F: Binary, const WIDE: bool, const REG: bool> Instruction for Alu<F, WIDE, REG> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let (a, b) = (cpu.dst_value::<LINK>(), cpu.operand::<REG, LINK>());
            let result = if WIDE {
                F::wide(a, b)
            } else {
                u64::from(F::narrow(a as u32, b as u32))
            };
            cpu.set_dst(result);
            cpu.next()
        }
    }
}

/// A one-operand operation, `dst = f(src)`.
pub(super) trait Unary {
    fn apply(a: u64) -> u64;
}

macro_rules! unary {
    ($($(#[$meta:meta])* $Name:ident: |$a:ident| $result:expr;)*) => {
        $(
            $(#[$meta])*
            pub(super) struct $Name;
            impl Unary for $Name {
                #[inline(always)]
                fn apply($a: u64) -> u64 { $result }
            }
        )*
    };
}

unary! {
    Neg64: |a| a.wrapping_neg();
    Neg32: |a| u64::from((a as u32).wrapping_neg());
    Sx8: |a| i64::from(a as i8) as u64;
    Sx16: |a| i64::from(a as i16) as u64;
    Sx32: |a| i64::from(a as i32) as u64;
    /// To 32 bits, the upper half zero.
    Sx8Narrow: |a| u64::from(i32::from(a as i8) as u32);
    Sx16Narrow: |a| u64::from(i32::from(a as i16) as u32);
    Zx16: |a| u64::from(a as u16);
    Zx32: |a| u64::from(a as u32);
    Swap16: |a| u64::from((a as u16).swap_bytes());
    Swap32: |a| u64::from((a as u32).swap_bytes());
    Swap64: |a| a.swap_bytes();
    /// A byte order conversion to the order that the host has.
    Same64: |a| a;
}

/// `dst = f(src)`. Operations on `dst` alone are prepared with `src = dst`.
pub(super) struct Move<F>(PhantomData<F>);

impl<F: Unary> Instruction for Move<F> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            cpu.set_dst(F::apply(cpu.src_value::<LINK>()));
            cpu.next()
        }
    }
}

/// `dst = src` in this CPU's data.
pub(super) struct MovPercpu;

impl Instruction for MovPercpu {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; nobody else borrows the run's Env here.
        unsafe {
            let offset = (*cpu.env).percpu_offset();
            cpu.set_dst(cpu.src_value::<LINK>().wrapping_add(offset));
            cpu.next()
        }
    }
}

/// `ld_imm64`; the value lies in the second slot.
pub(super) struct LoadImm64;

impl Instruction for LoadImm64 {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; `prepare` puts the value into the second slot.
        unsafe {
            let value = (*cpu.pc.add(1)).run.value;
            cpu.set_dst(value);
            cpu.pc = cpu.pc.add(2);
            // Two slots, one step.
            cpu.fuel = cpu.fuel.wrapping_add(1);
            Flow::Go
        }
    }
}

/// The casts between arena address spaces, to the addresses of the program (the kernel's
/// own, there) or to those of the host. The lower half of a pointer stays; null stays null.
pub(super) struct ArenaCast<const TO_HOST: bool>;

impl<const TO_HOST: bool> Instruction for ArenaCast<TO_HOST> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let low = u64::from(cpu.src_value::<LINK>() as u32);
            let high = if low == 0 {
                0
            } else {
                arena_half((*cpu.env).memory, TO_HOST)
            };
            cpu.set_dst(high | low);
            cpu.next()
        }
    }
}

/// The upper half of arena pointers, the lower one 0; all 0 where there is no arena.
#[inline(never)]
fn arena_half(memory: &Memory, host: bool) -> u64 {
    let Some(arena) = memory.arena.as_ref().and_then(|map| map.as_arena()) else {
        return 0;
    };
    let start = if host {
        arena.user_start()
    } else {
        arena.base().as_ptr() as u64
    };
    start & !u64::from(u32::MAX)
}
