//! Loads, stores, atomics, legacy packet loads.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use bpfkit_isa::Size;

use super::call;
use super::inst::{Cpu, Flow, Instruction, UNLINKED, trap};
use crate::env::Env;
use crate::fault::FaultKind;

/// A value as it lies in memory.
pub(super) trait Value: Copy {
    fn zero_extended(self) -> u64;
    fn sign_extended(self) -> u64;
    fn truncated(value: u64) -> Self;
    /// # Safety
    /// `at` is aligned and valid for reads.
    unsafe fn load_acquire(at: *mut Self) -> Self;
    /// # Safety
    /// `at` is aligned and valid for writes.
    unsafe fn store_release(at: *mut Self, value: Self);
}

macro_rules! value {
    ($($U:ident $I:ident $A:ident;)*) => {
        $(impl Value for $U {
            #[inline(always)]
            fn zero_extended(self) -> u64 { self as u64 }
            #[inline(always)]
            fn sign_extended(self) -> u64 { self as $I as i64 as u64 }
            #[inline(always)]
            fn truncated(value: u64) -> Self { value as $U }
            #[inline(always)]
            unsafe fn load_acquire(at: *mut Self) -> Self {
                // SAFETY: by this function's contract.
                unsafe { $A::from_ptr(at) }.load(Ordering::Acquire)
            }
            #[inline(always)]
            unsafe fn store_release(at: *mut Self, value: Self) {
                // SAFETY: by this function's contract.
                unsafe { $A::from_ptr(at) }.store(value, Ordering::Release)
            }
        })*
    };
}

value! {
    u8 i8 AtomicU8;
    u16 i16 AtomicU16;
    u32 i32 AtomicU32;
    u64 i64 AtomicU64;
}

/// The host address of an access of the instruction at `pc`: in checked mode `None` if
/// it is not within the span remembered for it.
///
/// # Safety
/// As [`Instruction::step`].
#[inline(always)]
unsafe fn locate<T, const CHECKED: bool, const WRITE: bool>(
    cpu: &Cpu,
    address: u64,
) -> Option<*mut T> {
    // SAFETY: the spans of the run.
    if CHECKED && !unsafe { (*cpu.spans).hit::<T, WRITE>(cpu.pc.addr(), address) } {
        return None;
    }
    Some(ptr::with_exposed_provenance_mut(address as usize))
}

/// Looks an access up whose span was not remembered, and remembers it. `None`: the trap
/// is set.
///
/// # Safety
/// As [`Instruction::step`].
#[cold]
#[inline(never)]
unsafe fn look_up<T, const WRITE: bool>(cpu: &Cpu, address: u64) -> Option<*mut T> {
    // SAFETY: the run's Env, borrowed by nobody else here.
    let env = unsafe { &mut *cpu.env };
    let size = size_of::<T>() as u64;
    let Some(found) = env.locate(address, size, WRITE) else {
        let fault = env.access_fault(address, size, WRITE);
        trap(env, fault.into());
        return None;
    };
    env.memory.spans.remember::<T, WRITE>(cpu.pc.addr(), &found);
    Some(ptr::with_exposed_provenance_mut(found.host as usize))
}

#[inline(always)]
fn displaced(base: u64, off: i16) -> u64 {
    base.wrapping_add(i64::from(off) as u64)
}

/// An instruction that accesses a `T` at a register plus an offset.
trait Access {
    type T: Copy;
    const WRITE: bool;

    /// The address as the program sees it.
    unsafe fn address<const LINK: u8>(cpu: &Cpu) -> u64;

    /// Does it at a host address that is valid for the access. Atomics answer
    /// [`Flow::Slow`] where `at` is not aligned for them.
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut Self::T) -> Flow;
}

impl<A: Access> Instruction for A {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; what `locate` gives is valid for the access.
        unsafe {
            let address = A::address::<LINK>(cpu);
            match A::WRITE {
                true => match locate::<A::T, CHECKED, true>(cpu, address) {
                    Some(at) => A::access::<LINK>(cpu, at),
                    None => Flow::Slow,
                },
                false => match locate::<A::T, CHECKED, false>(cpu, address) {
                    Some(at) => A::access::<LINK>(cpu, at),
                    None => Flow::Slow,
                },
            }
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; what `look_up` gives is valid for the access.
        unsafe {
            let address = A::address::<UNLINKED>(cpu);
            let at = match (CHECKED, A::WRITE) {
                (false, _) => Some(ptr::with_exposed_provenance_mut(address as usize)),
                (true, true) => look_up::<A::T, true>(cpu, address),
                (true, false) => look_up::<A::T, false>(cpu, address),
            };
            let Some(at) = at else { return Flow::Stop };
            match A::access::<UNLINKED>(cpu, at) {
                // Trusted code is looked at too: the kernel's verifier lets misaligned atomics
                // pass, but Rust's must be aligned.
                Flow::Slow => {
                    let size = size_of::<A::T>() as u64;
                    trap(
                        &mut *cpu.env,
                        FaultKind::Misaligned { address, size }.into(),
                    )
                }
                flow => flow,
            }
        }
    }
}

macro_rules! aligned_or_slow {
    ($at:ident) => {
        if !$at.is_aligned() {
            return Flow::Slow;
        }
    };
}

/// Accesses at `src + off`.
macro_rules! at_src {
    ($($T:tt)*) => {
        type T = $($T)*;
        const WRITE: bool = false;
        #[inline(always)]
        unsafe fn address<const LINK: u8>(cpu: &Cpu) -> u64 {
            // SAFETY: by this function's contract.
            unsafe { displaced(cpu.src_value::<LINK>(), cpu.off()) }
        }
    };
}

/// Accesses at `dst + off`.
macro_rules! at_dst {
    ($($T:tt)*) => {
        type T = $($T)*;
        const WRITE: bool = true;
        #[inline(always)]
        unsafe fn address<const LINK: u8>(cpu: &Cpu) -> u64 {
            // SAFETY: by this function's contract.
            unsafe { displaced(cpu.dst_value::<LINK>(), cpu.off()) }
        }
    };
}

/// `dst = *(T *)(src + off)`.
pub(super) struct Load<T, const SIGNED: bool>(PhantomData<T>);

impl<T: Value, const SIGNED: bool> Access for Load<T, SIGNED> {
    at_src!(T);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut T) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let value = at.read_unaligned();
            cpu.set_dst(if SIGNED {
                value.sign_extended()
            } else {
                value.zero_extended()
            });
            cpu.next()
        }
    }
}

/// `*(T *)(dst + off) = src` or `= imm`.
pub(super) struct Store<T, const REG: bool>(PhantomData<T>);

impl<T: Value, const REG: bool> Access for Store<T, REG> {
    at_dst!(T);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut T) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            at.write_unaligned(T::truncated(cpu.operand::<REG, LINK>()));
            cpu.next()
        }
    }
}

/// `dst = load_acquire((T *)(src + off))`.
pub(super) struct LoadAcquire<T>(PhantomData<T>);

impl<T: Value> Access for LoadAcquire<T> {
    at_src!(T);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut T) -> Flow {
        aligned_or_slow!(at);
        // SAFETY: by this function's contract; aligned.
        unsafe {
            cpu.set_reg(cpu.dst(), T::load_acquire(at).zero_extended());
            cpu.next()
        }
    }
}

/// `store_release((T *)(dst + off), src)`.
pub(super) struct StoreRelease<T>(PhantomData<T>);

impl<T: Value> Access for StoreRelease<T> {
    at_dst!(T);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut T) -> Flow {
        aligned_or_slow!(at);
        // SAFETY: by this function's contract; aligned.
        unsafe {
            T::store_release(at, T::truncated(cpu.reg(cpu.src())));
            cpu.next()
        }
    }
}

/// An atomic read-modify-write. `r0` is the current R0; the result is the old value.
pub(super) trait Update {
    fn wide(at: &AtomicU64, operand: u64, r0: u64) -> u64;
    fn narrow(at: &AtomicU32, operand: u32, r0: u32) -> u32;
}

macro_rules! update {
    ($($(#[$meta:meta])* $Name:ident: |$at:ident, $operand:ident, $r0:ident| $old:expr;)*) => {
        $(
            $(#[$meta])*
            pub(super) struct $Name;
            impl Update for $Name {
                #[inline(always)]
                fn wide($at: &AtomicU64, $operand: u64, $r0: u64) -> u64 { $old }
                #[inline(always)]
                fn narrow($at: &AtomicU32, $operand: u32, $r0: u32) -> u32 { $old }
            }
        )*
    };
}

const ORDER: Ordering = Ordering::SeqCst;

update! {
    Add: |at, operand, _r0| at.fetch_add(operand, ORDER);
    Or: |at, operand, _r0| at.fetch_or(operand, ORDER);
    And: |at, operand, _r0| at.fetch_and(operand, ORDER);
    Xor: |at, operand, _r0| at.fetch_xor(operand, ORDER);
    Xchg: |at, operand, _r0| at.swap(operand, ORDER);
    Cmpxchg: |at, operand, r0| match at.compare_exchange(r0, operand, ORDER, ORDER) {
        Ok(old) | Err(old) => old,
    };
}

/// Where the old value of an atomic goes.
pub(super) const TO_NOWHERE: u8 = 0;
pub(super) const TO_SRC: u8 = 1;
pub(super) const TO_R0: u8 = 2;

/// `*(u64 *)(dst + off) op= src`; `u32` in [`Atomic32`].
pub(super) struct Atomic64<F, const TO: u8>(PhantomData<F>);
/// See [`Atomic64`].
pub(super) struct Atomic32<F, const TO: u8>(PhantomData<F>);

/// # Safety
/// As [`Instruction::step`].
#[inline(always)]
unsafe fn put_old<const TO: u8>(cpu: &mut Cpu, old: u64) -> Flow {
    // SAFETY: by this function's contract.
    unsafe {
        match TO {
            TO_SRC => cpu.set_reg(cpu.src(), old),
            TO_R0 => cpu.set_reg(0, old),
            _ => {}
        }
        cpu.next()
    }
}

impl<F: Update, const TO: u8> Access for Atomic64<F, TO> {
    at_dst!(u64);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut u64) -> Flow {
        aligned_or_slow!(at);
        // SAFETY: by this function's contract; aligned.
        unsafe {
            let old = F::wide(AtomicU64::from_ptr(at), cpu.reg(cpu.src()), cpu.reg(0));
            put_old::<TO>(cpu, old)
        }
    }
}

impl<F: Update, const TO: u8> Access for Atomic32<F, TO> {
    at_dst!(u32);

    #[inline(always)]
    unsafe fn access<const LINK: u8>(cpu: &mut Cpu, at: *mut u32) -> Flow {
        aligned_or_slow!(at);
        // SAFETY: by this function's contract; aligned.
        unsafe {
            let old = F::narrow(
                AtomicU32::from_ptr(at),
                cpu.reg(cpu.src()) as u32,
                cpu.reg(0) as u32,
            );
            put_old::<TO>(cpu, u64::from(old))
        }
    }
}

/// `LD_ABS` and `LD_IND`: a load outside of the packet returns 0 from the function.
pub(super) struct LoadPacket<T, const INDIRECT: bool>(PhantomData<T>);

impl<T: Value, const INDIRECT: bool> Instruction for LoadPacket<T, INDIRECT> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            let base = if INDIRECT {
                cpu.reg(cpu.src()) as u32 as i32
            } else {
                0
            };
            let size = match size_of::<T>() {
                1 => Size::B,
                2 => Size::H,
                _ => Size::W,
            };
            match load_packet(&*cpu.env, base.wrapping_add(cpu.imm()), size) {
                Some(value) => {
                    cpu.set_reg(0, u64::from(value));
                    cpu.next()
                }
                None => {
                    cpu.set_reg(0, 0);
                    call::leave::<CHECKED>(cpu)
                }
            }
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe { call::leave_to_caller::<CHECKED>(cpu) }
    }
}

#[inline(never)]
fn load_packet(env: &Env<'static>, offset: i32, size: Size) -> Option<u32> {
    env.context.load_packet(offset, size)
}
