//! What programs attached to cgroups do: sysctls, socket options, return values.

use bpfkit_maps::Errno;

use super::{Effect, Ret, Row, errno, input};
use crate::env::{Args, Env};
use crate::fault::Trap;

/// Copies text and a NUL; `E2BIG` when it does not fit, with as much as does.
fn copy_text(env: &mut Env<'_>, text: &[u8], buf: u64, len: u64) -> Ret {
    let out = env.write(buf, len)?;
    let Some(room) = out.len().checked_sub(1) else {
        return Ok(errno(Errno::EINVAL));
    };
    let n = text.len().min(room);
    out.fill(0);
    out[..n].copy_from_slice(&text[..n]);
    Ok(if text.len() > room {
        errno(Errno::E2BIG)
    } else {
        n as u64
    })
}

/// `(ctx, buf, buf_len, flags)`.
fn sysctl_name(env: &mut Env<'_>, a: &Args) -> Ret {
    const BASE_NAME: u64 = 1;
    if a[3] & !BASE_NAME != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let mut name = input(env)
        .map(|i| i.sysctl.name.clone())
        .unwrap_or_default();
    if a[3] & BASE_NAME != 0
        && let Some(slash) = name.iter().rposition(|&b| b == b'/')
    {
        name.drain(..=slash);
    }
    copy_text(env, &name, a[1], a[2])
}

/// `(ctx, buf, buf_len)`.
fn sysctl_current(env: &mut Env<'_>, a: &Args) -> Ret {
    let value = input(env)
        .map(|i| i.sysctl.value.clone())
        .unwrap_or_default();
    if value.is_empty() {
        env.write(a[1], a[2])?.fill(0);
        return Ok(errno(Errno::EINVAL));
    }
    copy_text(env, &value, a[1], a[2])
}

/// `(ctx, buf, buf_len)`.
fn sysctl_new(env: &mut Env<'_>, a: &Args) -> Ret {
    match input(env).and_then(|i| i.sysctl.new_value.clone()) {
        Some(value) => copy_text(env, &value, a[1], a[2]),
        None => {
            env.write(a[1], a[2])?.fill(0);
            Ok(errno(Errno::EINVAL))
        }
    }
}

/// `(ctx, buf, buf_len)`.
fn sysctl_set_new(env: &mut Env<'_>, a: &Args) -> Ret {
    const PAGE: usize = 4096;
    let value = env.read(a[1], a[2])?;
    let refused = match input(env).map(|i| i.sysctl.new_value.as_mut()) {
        _ if value.is_empty() => Some(Errno::EINVAL),
        _ if value.len() > PAGE - 1 => Some(Errno::E2BIG),
        Some(Some(new)) => {
            value.clone_into(new);
            None
        }
        _ => Some(Errno::EINVAL),
    };
    Ok(refused.map_or(0, errno))
}

/// `(ctx, level, optname, optval, optlen)`: accepted and kept, for `getsockopt` to find.
fn setsockopt(env: &mut Env<'_>, a: &Args) -> Ret {
    let value = env.read(a[3], u64::from(a[4] as u32))?.to_vec();
    let (level, name) = (a[1] as i32, a[2] as i32);
    env.maps()
        .shared
        .options()
        .insert((level, name), value.clone());
    env.state
        .effects
        .push(Effect::SetSockOpt { level, name, value });
    Ok(0)
}

/// `(ctx, level, optname, optval, optlen)`: what was set before; other options are 0.
fn getsockopt(env: &mut Env<'_>, a: &Args) -> Ret {
    let out = env.write(a[3], u64::from(a[4] as u32))?;
    out.fill(0);
    if let Some(value) = env.maps().shared.options().get(&(a[1] as i32, a[2] as i32)) {
        let len = value.len().min(out.len());
        out[..len].copy_from_slice(&value[..len]);
    }
    Ok(0)
}

/// `(ctx, addr, addr_len)`.
fn bind(env: &mut Env<'_>, a: &Args) -> Ret {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let addr = env.read(a[1], u64::from(a[2] as u32))?;
    let Some(family) = addr.get(..2).map(|f| u16::from_ne_bytes([f[0], f[1]])) else {
        return Ok(errno(Errno::EINVAL));
    };
    let needed = match family {
        AF_INET => 16,
        AF_INET6 => 24,
        _ => return Ok(errno(super::EAFNOSUPPORT)),
    };
    if addr.len() < needed {
        return Ok(errno(Errno::EINVAL));
    }
    env.state.effects.push(Effect::Bind(addr.to_vec()));
    Ok(0)
}

/// The return value that the system call has so far.
fn get_retval(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(i64::from(last_retval(env)) as u64)
}

fn last_retval(env: &Env<'_>) -> i32 {
    let set = |e: &Effect| {
        if let Effect::SetRetval(value) = e {
            Some(*value)
        } else {
            None
        }
    };
    env.state.effects.iter().rev().find_map(set).unwrap_or(0)
}

/// `(retval)`.
fn set_retval(env: &mut Env<'_>, a: &Args) -> Ret {
    env.state.effects.push(Effect::SetRetval(a[0] as i32));
    Ok(0)
}

/// Keys and movements of an infrared remote: accepted.
fn remote_control(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// System calls of syscall programs: not permitted here.
fn not_permitted(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(errno(Errno::EPERM))
}

/// `(fd)`.
fn sys_close(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(errno(Errno::EBADF))
}

/// `(name, name_sz, kind, flags)`: no kernel's BTF.
fn btf_find(env: &mut Env<'_>, a: &Args) -> Ret {
    let name = env.read(a[0], u64::from(a[1] as u32))?;
    let wrong = a[3] != 0 || name.len() <= 1 || name.last() != Some(&0);
    Ok(errno(if wrong { Errno::EINVAL } else { Errno::ENOENT }))
}

/// `(name, name_sz, flags, res)`: no kernel symbols.
fn kallsyms(env: &mut Env<'_>, a: &Args) -> Ret {
    let name = env.read(a[0], u64::from(a[1] as u32))?;
    env.store(a[3], [0; 8])?;
    let wrong = a[2] != 0 || name.len() <= 1 || name.last() != Some(&0);
    Ok(errno(if wrong { Errno::EINVAL } else { Errno::ENOENT }))
}

/// Checks the flags of a helper that a type of program may call and that does nothing here.
fn bprm_opts(env: &mut Env<'_>, a: &Args) -> Result<u64, Trap> {
    const SECUREEXEC: u64 = 1;
    let _ = env;
    Ok(if a[1] & !SECUREEXEC != 0 {
        errno(Errno::EINVAL)
    } else {
        0
    })
}

pub(super) const HELPERS: &[Row] = &[
    ("sysctl_get_name", sysctl_name),
    ("sysctl_get_current_value", sysctl_current),
    ("sysctl_get_new_value", sysctl_new),
    ("sysctl_set_new_value", sysctl_set_new),
    ("setsockopt", setsockopt),
    ("getsockopt", getsockopt),
    ("bind", bind),
    ("get_retval", get_retval),
    ("set_retval", set_retval),
    ("rc_repeat", remote_control),
    ("rc_keydown", remote_control),
    ("rc_pointer_rel", remote_control),
    ("sys_bpf", not_permitted),
    ("sys_close", sys_close),
    ("btf_find_by_name_kind", btf_find),
    ("kallsyms_lookup_name", kallsyms),
    ("bprm_opts_set", bprm_opts),
];
