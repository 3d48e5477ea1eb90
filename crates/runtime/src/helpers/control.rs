//! Control flow: loops, exceptions, pointers swapped in and out of maps.

use std::sync::atomic::{AtomicU64, Ordering};

use bpfkit_maps::Errno;

use super::{Ret, Row, errno};
use crate::env::{Args, Env};
use crate::fault::Trap;

/// Most turns of `bpf_loop` (`BPF_MAX_LOOPS`).
const MAX_LOOPS: u32 = 8 << 20;

/// `(nr_loops, callback, ctx, flags)`: the number of turns.
fn bpf_loop(env: &mut Env<'_>, a: &Args) -> Ret {
    let turns = a[0] as u32;
    if a[3] != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    if turns > MAX_LOOPS {
        return Ok(errno(Errno::E2BIG));
    }
    let program = env.executable();
    program.repeat(env, a[1], turns, a[2])
}

/// `(kptr, new)`: puts `new` in place and returns what was there.
fn kptr_xchg(env: &mut Env<'_>, a: &Args) -> Ret {
    let at = env.resolve(a[0], 8, true)?;
    if !a[0].is_multiple_of(8) {
        return Err(Trap::helper("a kernel pointer must be aligned to 8 bytes"));
    }
    // SAFETY: `resolve` found eight writable bytes, aligned by the test above, which other
    // threads swap the same way.
    Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.swap(a[1], Ordering::AcqRel))
}

/// kfunc `(cookie)`.
fn throw(_: &mut Env<'_>, a: &Args) -> Ret {
    Err(Trap::throw(a[0]))
}

/// kfuncs that give their argument another type.
fn same(_: &mut Env<'_>, a: &Args) -> Ret {
    Ok(a[0])
}

pub(super) const HELPERS: &[Row] = &[("loop", bpf_loop), ("kptr_xchg", kptr_xchg)];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_throw", throw),
    ("bpf_rdonly_cast", same),
    ("bpf_cast_to_kern_ctx", same),
];
