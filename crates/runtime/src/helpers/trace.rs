//! What tracing programs ask about the call they are attached to.

use bpfkit_maps::Errno;

use super::{Effect, Ret, Row, errno, input};
use crate::context::{Traced, TracedCall};
use crate::env::{Args, Env};

fn call(env: &mut Env<'_>) -> TracedCall {
    if let Some(traced) = env.context_as::<Traced>() {
        return traced.call;
    }
    input(env).map(|i| i.call).unwrap_or_default()
}

/// kfunc `(ctx)`.
fn session_is_return(env: &mut Env<'_>, _: &Args) -> Ret {
    let traced = env.context_as::<Traced>();
    Ok(traced.is_some_and(|traced| traced.is_return).into())
}

/// kfunc `(ctx)`: where the session keeps eight bytes from entry to return.
fn session_cookie(env: &mut Env<'_>, _: &Args) -> Ret {
    let Some(traced) = env.context_as::<Traced>() else {
        return Ok(0);
    };
    Ok((&raw mut traced.session_cookie).expose_provenance() as u64)
}

fn func_ip(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(call(env).ip)
}

fn attach_cookie(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(call(env).cookie)
}

/// `(ctx, n, value)`.
fn func_arg(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] as u32 >= call(env).args {
        return Ok(errno(Errno::EINVAL));
    }
    let value: [u8; 8] = env.load(a[0] + 8 * u64::from(a[1] as u32))?;
    env.store(a[2], value)?;
    Ok(0)
}

/// `(ctx, value)`.
fn func_ret(env: &mut Env<'_>, a: &Args) -> Ret {
    let call = call(env);
    if !call.returned {
        return Ok(errno(Errno::EOPNOTSUPP));
    }
    let value: [u8; 8] = env.load(a[0] + 8 * u64::from(call.args))?;
    env.store(a[1], value)?;
    Ok(0)
}

fn func_arg_cnt(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(u64::from(call(env).args))
}

/// `(regs, rc)`.
fn override_return(env: &mut Env<'_>, a: &Args) -> Ret {
    env.state.effects.push(Effect::OverrideReturn(a[1]));
    Ok(0)
}

fn signal(env: &mut Env<'_>, signal: u64, thread: bool) -> Ret {
    /// Number of signals.
    const MAX: u32 = 64;
    let signal = signal as u32;
    if signal > MAX {
        return Ok(errno(Errno::EINVAL));
    }
    env.state.effects.push(Effect::Signal { signal, thread });
    Ok(0)
}

/// `(sig)`.
fn send_signal(env: &mut Env<'_>, a: &Args) -> Ret {
    signal(env, a[0], false)
}

/// `(sig)`.
fn send_signal_thread(env: &mut Env<'_>, a: &Args) -> Ret {
    signal(env, a[0], true)
}

/// A stack of one frame: where the program itself is.
pub(super) fn frame(env: &Env<'_>) -> u64 {
    /// Where the kernel keeps its JIT images.
    const MODULES: u64 = 0xffff_ffff_a000_0000;
    MODULES + u64::from(env.insn()) * 8
}

const SKIP_MASK: u64 = 0xff;
const USER_STACK: u64 = 1 << 8;
const USER_BUILD_ID: u64 = 1 << 11;

/// `(ctx, buf, size, flags)`: bytes filled with return addresses. Nothing is known of a
/// user stack.
fn get_stack(env: &mut Env<'_>, a: &Args) -> Ret {
    let out = env.write(a[1], u64::from(a[2] as u32))?;
    let user = a[3] & USER_STACK != 0;
    let element = if a[3] & USER_BUILD_ID != 0 { 32 } else { 8 };
    let refused = a[3] & !(SKIP_MASK | USER_STACK | USER_BUILD_ID) != 0
        || (a[3] & USER_BUILD_ID != 0 && !user)
        || out.len() % element != 0;
    out.fill(0);
    if refused {
        return Ok(errno(Errno::EINVAL));
    }
    if user {
        return Ok(errno(Errno::EFAULT));
    }
    if a[3] & SKIP_MASK > 0 || out.len() < 8 {
        return Ok(0);
    }
    out[..8].copy_from_slice(&frame(env).to_ne_bytes());
    Ok(8)
}

/// The task that runs the program has no `struct task_struct` here: null, which
/// `bpf_probe_read_kernel` refuses to follow.
fn current_task(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// `(ctx, buf, size, flags)`: no branch records.
fn no_branches(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(errno(Errno::ENOENT))
}

pub(super) const HELPERS: &[Row] = &[
    ("get_func_ip", func_ip),
    ("get_attach_cookie", attach_cookie),
    ("get_func_arg", func_arg),
    ("get_func_ret", func_ret),
    ("get_func_arg_cnt", func_arg_cnt),
    ("override_return", override_return),
    ("send_signal", send_signal),
    ("send_signal_thread", send_signal_thread),
    ("get_stack", get_stack),
    ("get_current_task", current_task),
    ("get_branch_snapshot", no_branches),
    ("read_branch_records", no_branches),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_session_is_return", session_is_return),
    ("bpf_session_cookie", session_cookie),
];
