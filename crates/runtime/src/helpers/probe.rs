//! Reads that may fail: `bpf_probe_read*`, `bpf_copy_from_user*`, and what format strings point to.
//!
//! The kernel catches the page fault; here an address is known memory of the program (its
//! stack, context, packet, map values, objects) or the read fails with `EFAULT`.

use bpfkit_maps::Errno;

use super::bprintf::Probe;
use super::{ESRCH, Ret, Row, errno, heap, status};
use crate::env::{Args, Env};
use crate::vm::FRAME_BYTES;

/// The host address of `len` known, readable bytes.
pub(crate) fn known(env: &mut Env<'_>, addr: u64, len: u64) -> Option<u64> {
    if !env.checked() && !std::mem::replace(&mut env.state.probed, true) {
        survey(env);
    }
    env.find(addr, len, false)
        .or_else(|| heap::holds(env, addr, len).then_some(addr))
}

/// Fills the memory table of a run without checks, which needs none otherwise.
fn survey(env: &mut Env<'_>) {
    // SAFETY: the first window and the current one are windows of the run's stack, and no
    // reference to them is held while a helper runs.
    let (first, current) = unsafe { ((*env.window_start).r[10], (*env.window).r[10]) };
    let stack = first.wrapping_sub(FRAME_BYTES as u64);
    let (maps, context) = (env.program.maps(), &*env.context);
    env.memory
        .begin(maps, stack, |memory| context.grant(memory));
    env.memory.set_stack_top(current);
    env.refresh_values();
}

/// Copies `dst.len()` bytes from `addr`; `false` leaves `dst` zeroed.
pub(crate) fn read(env: &mut Env<'_>, addr: u64, dst: &mut [u8]) -> bool {
    if dst.is_empty() {
        return true;
    }
    match known(env, addr, dst.len() as u64) {
        Some(at) => {
            // SAFETY: `known` found that many readable bytes; `copy` allows overlap with `dst`.
            unsafe {
                std::ptr::copy(
                    std::ptr::with_exposed_provenance(at as usize),
                    dst.as_mut_ptr(),
                    dst.len(),
                );
            }
            true
        }
        None => {
            dst.fill(0);
            false
        }
    }
}

/// One byte at `addr`.
pub(crate) fn byte(env: &mut Env<'_>, addr: u64) -> Option<u8> {
    let mut byte = [0];
    read(env, addr, &mut byte).then_some(byte[0])
}

impl Probe for Env<'_> {
    fn probe_bytes(&mut self, addr: u64, dst: &mut [u8]) -> bool {
        read(self, addr, dst)
    }

    fn probe_str(&mut self, addr: u64, max: usize, dst: &mut Vec<u8>) -> Option<usize> {
        let start = dst.len();
        for i in 0..max {
            match byte(self, addr.wrapping_add(i as u64)) {
                Some(0) => break,
                Some(b) => dst.push(b),
                None => {
                    dst.truncate(start);
                    return None;
                }
            }
        }
        Some(dst.len() - start)
    }

    fn symbol(&mut self, _addr: u64) -> Option<(String, u64, u64)> {
        None
    }
}

/// `(dst, size, unsafe_ptr)`.
fn probe_read(env: &mut Env<'_>, a: &Args) -> Ret {
    let dst = env.write(a[0], u64::from(a[1] as u32))?;
    Ok(if read(env, a[2], dst) {
        0
    } else {
        errno(Errno::EFAULT)
    })
}

/// `(dst, size, unsafe_ptr)`: the length with the NUL, which is always there.
fn probe_read_str(env: &mut Env<'_>, a: &Args) -> Ret {
    let dst = env.write(a[0], u64::from(a[1] as u32))?;
    if dst.is_empty() {
        return Ok(0);
    }
    for i in 0..dst.len() {
        match byte(env, a[2].wrapping_add(i as u64)) {
            Some(b) => dst[i] = b,
            None => {
                dst.fill(0);
                return Ok(errno(Errno::EFAULT));
            }
        }
        if dst[i] == 0 {
            return Ok(i as u64 + 1);
        }
    }
    if let Some(last) = dst.last_mut() {
        *last = 0;
    }
    Ok(dst.len() as u64)
}

/// `(dst, size, user_ptr, task, flags)`.
fn copy_from_user_task(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[4] != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    probe_read(env, a)
}

/// `(dst, src, size)`: writes where the program may write anyway, else `EFAULT`.
fn probe_write_user(env: &mut Env<'_>, a: &Args) -> Ret {
    let src = env.read(a[1], u64::from(a[2] as u32))?;
    let known = env.find(a[0], src.len() as u64, true).is_some();
    if !env.checked() || !known {
        return Ok(errno(Errno::EPERM));
    }
    env.copy(a[0], a[1], src.len() as u64)?;
    Ok(0)
}

/// kfunc `(dst, dst__sz, unsafe_ptr__ign, flags)`: a string of at most `dst__sz` bytes.
fn copy_from_user_str(env: &mut Env<'_>, a: &Args) -> Ret {
    const PAD_ZEROS: u64 = 1;
    let len = u64::from(a[1] as u32);
    if a[3] & !PAD_ZEROS != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    if len == 0 {
        return Ok(0);
    }
    let copied = probe_read_str(env, &[a[0], a[1], a[2], 0, 0])?;
    if a[3] & PAD_ZEROS != 0 && copied <= len {
        env.write(a[0].wrapping_add(copied), len - copied)?.fill(0);
    }
    Ok(copied)
}

/// kfuncs that read another task's memory: there is no other task.
fn no_task(_: &mut Env<'_>, _: &Args) -> Ret {
    status(Err(ESRCH))
}

pub(super) const HELPERS: &[Row] = &[
    ("probe_read", probe_read),
    ("probe_read_kernel", probe_read),
    ("probe_read_user", probe_read),
    ("probe_read_str", probe_read_str),
    ("probe_read_kernel_str", probe_read_str),
    ("probe_read_user_str", probe_read_str),
    ("copy_from_user", probe_read),
    ("copy_from_user_task", copy_from_user_task),
    ("probe_write_user", probe_write_user),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_copy_from_user_str", copy_from_user_str),
    ("bpf_copy_from_user_task_str", no_task),
];
