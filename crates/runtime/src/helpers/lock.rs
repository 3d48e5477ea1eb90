//! Locks in map values and objects, and the regions that kfuncs open and close.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use bpfkit_maps::{Errno, spin_lock, spin_unlock};

use super::{Ret, Row, errno};
use crate::env::{Args, Env};
use crate::fault::Trap;

/// The lock word at `ptr`.
fn word(env: &mut Env<'_>, ptr: u64) -> Result<NonNull<u8>, Trap> {
    let at = env.resolve(ptr, 4, true)?;
    if !ptr.is_multiple_of(4) {
        return Err(Trap::helper("a lock must be aligned to 4 bytes"));
    }
    NonNull::new(at).ok_or_else(|| Trap::helper("no lock at address 0"))
}

/// Takes a lock unless somebody keeps it for long.
fn try_lock(at: NonNull<u8>) -> bool {
    const TRIES: u32 = 1 << 20;
    // SAFETY: `word` resolved four aligned bytes of memory that other threads touch
    // through atomics only.
    let lock = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) };
    (0..TRIES).any(|_| {
        std::hint::spin_loop();
        lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    })
}

fn lock(env: &mut Env<'_>, a: &Args) -> Ret {
    let at = word(env, a[0])?;
    if env.state.locks.contains(&a[0]) {
        return Err(Trap::helper("the program takes a lock that it holds"));
    }
    if !env.checked() {
        // SAFETY: `word` resolved four aligned bytes.
        unsafe { spin_lock(at) };
    } else if !try_lock(at) {
        // Programs that nobody verified take any word for a lock.
        return Err(Trap::helper("the lock is never given back"));
    }
    env.state.locks.push(a[0]);
    Ok(0)
}

fn unlock(env: &mut Env<'_>, a: &Args) -> Ret {
    let at = word(env, a[0])?;
    if let Some(i) = env.state.locks.iter().rposition(|&l| l == a[0]) {
        env.state.locks.remove(i);
        // SAFETY: `word` resolved four aligned bytes.
        unsafe { spin_unlock(at) };
    }
    Ok(0)
}

/// kfunc `(lock)`: 0, or `EDEADLK` for a lock that the program holds, or `ETIMEDOUT`.
fn res_lock(env: &mut Env<'_>, a: &Args) -> Ret {
    let at = word(env, a[0])?;
    if env.state.locks.contains(&a[0]) {
        return Ok(errno(Errno::EDEADLK));
    }
    if !try_lock(at) {
        return Ok(errno(Errno::ETIMEDOUT));
    }
    env.state.locks.push(a[0]);
    Ok(0)
}

/// Gives back what a program held when it stopped.
pub(crate) fn release_all(env: &mut Env<'_>) {
    while let Some(ptr) = env.state.locks.pop() {
        if let Ok(at) = word(env, ptr) {
            // SAFETY: `word` resolved four aligned bytes.
            unsafe { spin_unlock(at) };
        }
    }
}

/// Regions that mean nothing here: interrupts, preemption and RCU are the kernel's.
fn nothing(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// kfunc `(flags)`: saves the interrupt state.
fn irq_save(env: &mut Env<'_>, a: &Args) -> Ret {
    env.store(a[0], 1u64.to_ne_bytes())?;
    Ok(0)
}

fn res_lock_irqsave(env: &mut Env<'_>, a: &Args) -> Ret {
    let result = res_lock(env, a)?;
    if result == 0 {
        env.store(a[1], 1u64.to_ne_bytes())?;
    }
    Ok(result)
}

pub(super) const HELPERS: &[Row] = &[("spin_lock", lock), ("spin_unlock", unlock)];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_res_spin_lock", res_lock),
    ("bpf_res_spin_unlock", unlock),
    ("bpf_res_spin_lock_irqsave", res_lock_irqsave),
    ("bpf_res_spin_unlock_irqrestore", unlock),
    ("bpf_rcu_read_lock", nothing),
    ("bpf_rcu_read_unlock", nothing),
    ("bpf_preempt_disable", nothing),
    ("bpf_preempt_enable", nothing),
    ("bpf_local_irq_save", irq_save),
    ("bpf_local_irq_restore", nothing),
];
