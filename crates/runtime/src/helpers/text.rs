//! Strings: printing, formatting, comparing, numbers from text.

use bpfkit_maps::Errno;

use super::bprintf::{self, MAX_ARGS};
use super::{Ret, Row, errno, result};
use crate::env::{Args, Env};

/// Bytes of a trace line, NUL included (`MAX_BPRINTF_BUF`).
const TRACE_LINE: usize = 1024;
/// Arguments of `bpf_trace_printk`.
const TRACE_ARGS: usize = 3;

/// A format with its NUL somewhere inside `bytes`, without it.
fn terminated(bytes: &[u8]) -> Result<&[u8], Errno> {
    let end = bytes.iter().position(|&b| b == 0).ok_or(Errno::EINVAL)?;
    Ok(&bytes[..end])
}

/// The 64-bit arguments at `ptr`; `len` bytes, a multiple of 8, at most twelve.
fn arguments(
    env: &mut Env<'_>,
    ptr: u64,
    len: u64,
) -> Result<Result<([u64; MAX_ARGS], usize), Errno>, crate::Trap> {
    let count = (len / 8) as usize;
    if !len.is_multiple_of(8) || count > MAX_ARGS || (count > 0 && ptr == 0) {
        return Ok(Err(Errno::EINVAL));
    }
    let mut values = [0; MAX_ARGS];
    for (value, bytes) in values.iter_mut().zip(env.read(ptr, len)?.chunks_exact(8)) {
        *value = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(Ok((values, count)))
}

/// Formats into the run's text buffer and hands it to `done`.
fn formatted<T>(
    env: &mut Env<'_>,
    fmt: &[u8],
    args: &[u64],
    done: impl FnOnce(&mut Env<'_>, &[u8]) -> T,
) -> Result<T, Errno> {
    let mut text = std::mem::take(&mut env.state.text);
    text.clear();
    let result = bprintf::format(fmt, args, env, &mut text).map(|()| done(env, &text));
    env.state.text = text;
    result
}

fn trace(env: &mut Env<'_>, fmt: &[u8], args: &[u64]) -> Result<u64, Errno> {
    formatted(env, terminated(fmt)?, args, |env, text| {
        env.host().trace(&text[..text.len().min(TRACE_LINE - 1)]);
        text.len() as u64
    })
}

/// `(fmt, fmt_size, ...)` with up to three arguments.
fn trace_printk(env: &mut Env<'_>, a: &Args) -> Ret {
    let fmt = env.read(a[0], u64::from(a[1] as u32))?;
    result(trace(env, fmt, &a[2..2 + TRACE_ARGS]))
}

/// `(fmt, fmt_size, data, data_len)`.
fn trace_vprintk(env: &mut Env<'_>, a: &Args) -> Ret {
    let fmt = env.read(a[0], u64::from(a[1] as u32))?;
    let args = arguments(env, a[2], u64::from(a[3] as u32))?;
    result(args.and_then(|(args, n)| trace(env, fmt, &args[..n])))
}

/// `(str, str_size, fmt, data, data_len)`: the length that the whole text takes, with its NUL.
fn snprintf(env: &mut Env<'_>, a: &Args) -> Ret {
    let fmt = env.read_cstr(a[2], u64::from(u32::MAX))?;
    let out = env.write(a[0], u64::from(a[1] as u32))?;
    let (args, n) = match arguments(env, a[3], u64::from(a[4] as u32))? {
        Ok(args) => args,
        Err(e) => return Ok(errno(e)),
    };
    result(formatted(env, fmt, &args[..n], |_, text| {
        if let Some(room) = out.len().checked_sub(1) {
            let len = text.len().min(room);
            out[..len].copy_from_slice(&text[..len]);
            out[len] = 0;
        }
        text.len() as u64 + 1
    }))
}

/// `(seq_file, fmt, fmt_size, data, data_len)`.
fn seq_printf(env: &mut Env<'_>, a: &Args) -> Ret {
    let fmt = env.read(a[1], u64::from(a[2] as u32))?;
    let (args, n) = match arguments(env, a[3], u64::from(a[4] as u32))? {
        Ok(args) => args,
        Err(e) => return Ok(errno(e)),
    };
    let text = terminated(fmt).and_then(|fmt| {
        formatted(env, fmt, &args[..n], |env, text| {
            env.state.seq.extend_from_slice(text)
        })
    });
    result(text.map(|()| 0))
}

/// `(seq_file, data, len)`.
fn seq_write(env: &mut Env<'_>, a: &Args) -> Ret {
    let data = env.read(a[1], u64::from(a[2] as u32))?;
    env.state.seq.extend_from_slice(data);
    Ok(0)
}

/// `(stream_id, fmt, args, len, aux)`: the streams of a program are host traces here.
fn stream_vprintk(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `BPF_STDOUT` and `BPF_STDERR`.
    const STREAMS: std::ops::RangeInclusive<u64> = 1..=2;
    if !STREAMS.contains(&u64::from(a[0] as u32)) {
        return Ok(errno(Errno::ENOENT));
    }
    let fmt = env.read_cstr(a[1], u64::from(u32::MAX))?;
    let (args, n) = match arguments(env, a[2], u64::from(a[3] as u32))? {
        Ok(args) => args,
        Err(e) => return Ok(errno(e)),
    };
    result(formatted(env, fmt, &args[..n], |env, text| {
        env.host().trace(text);
        text.len() as u64
    }))
}

/// `(s1, s1_sz, s2)`.
fn strncmp(env: &mut Env<'_>, a: &Args) -> Ret {
    let left = env.read(a[0], u64::from(a[1] as u32))?;
    let right = env.read_cstr(a[2], left.len() as u64)?;
    let right = right.iter().chain(std::iter::once(&0));
    for (&l, &r) in left.iter().zip(right) {
        if l != r {
            return Ok(if l < r { -1i64 as u64 } else { 1 });
        }
        if l == 0 {
            break;
        }
    }
    Ok(0)
}

/// What `bpf_strtol` and `bpf_strtoul` find.
struct Number {
    negative: bool,
    magnitude: u64,
    consumed: u64,
}

/// A number in `text` as `_parse_integer` reads it; `flags` holds the base.
fn number(text: &[u8], flags: u64) -> Result<Number, Errno> {
    /// Most characters that are looked at.
    const LONGEST: usize = 63;
    let mut base = flags & 0x1f;
    if flags & !0x1f != 0 || ![0, 8, 10, 16].contains(&base) || text.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut at = text
        .iter()
        .position(|b| !matches!(b, 9..=13 | b' ' | 0xa0))
        .unwrap_or(text.len());
    let negative = text.get(at) == Some(&b'-');
    at += usize::from(negative);
    if at == text.len() {
        return Err(Errno::EINVAL);
    }
    let digits = &text[at..text.len().min(at + LONGEST)];
    let hex_mark = digits.first() == Some(&b'0') && matches!(digits.get(1), Some(b'x' | b'X'));
    if base == 0 {
        base = match digits.first() {
            Some(b'0') if hex_mark && digits.get(2).is_some_and(u8::is_ascii_hexdigit) => 16,
            Some(b'0') => 8,
            _ => 10,
        };
    }
    let skip = if base == 16 && hex_mark { 2 } else { 0 };
    let mut magnitude = 0u64;
    let mut count = 0;
    let mut overflow = false;
    for &c in &digits[skip..] {
        let Some(digit) = (c as char).to_digit(base as u32) else {
            break;
        };
        match magnitude
            .checked_mul(base)
            .and_then(|m| m.checked_add(u64::from(digit)))
        {
            Some(m) => magnitude = m,
            None => overflow = true,
        }
        count += 1;
    }
    if overflow {
        return Err(Errno::ERANGE);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Number {
        negative,
        magnitude,
        consumed: (at + skip + count) as u64,
    })
}

/// `(buf, buf_len, flags, res)`.
fn strtol(env: &mut Env<'_>, a: &Args) -> Ret {
    let text = env.read(a[0], a[1])?;
    env.store(a[3], [0; 8])?;
    let n = match number(text, a[2]) {
        Ok(n) => n,
        Err(e) => return Ok(errno(e)),
    };
    let value = if n.negative {
        n.magnitude.wrapping_neg() as i64
    } else {
        n.magnitude as i64
    };
    if n.magnitude != 0 && (value < 0) != n.negative {
        return Ok(errno(Errno::ERANGE));
    }
    env.store(a[3], value.to_ne_bytes())?;
    Ok(n.consumed)
}

/// `(buf, buf_len, flags, res)`.
fn strtoul(env: &mut Env<'_>, a: &Args) -> Ret {
    let text = env.read(a[0], a[1])?;
    env.store(a[3], [0; 8])?;
    match number(text, a[2]) {
        Ok(n) if n.negative => Ok(errno(Errno::EINVAL)),
        Ok(n) => {
            env.store(a[3], n.magnitude.to_ne_bytes())?;
            Ok(n.consumed)
        }
        Err(e) => Ok(errno(e)),
    }
}

pub(super) const HELPERS: &[Row] = &[
    ("trace_printk", trace_printk),
    ("trace_vprintk", trace_vprintk),
    ("snprintf", snprintf),
    ("seq_printf", seq_printf),
    ("seq_write", seq_write),
    ("strncmp", strncmp),
    ("strtol", strtol),
    ("strtoul", strtoul),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_stream_vprintk", stream_vprintk),
    ("bpf_stream_vprintk_impl", stream_vprintk),
];
