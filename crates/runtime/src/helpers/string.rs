//! The string kfuncs of Linux 6.17 and 6.18. They read memory that may be bad: `ERANGE` for
//! an address that can be no kernel address, `EFAULT` for one that cannot be read,
//! `E2BIG` for a string of more than 64 KiB.

use bpfkit_maps::Errno;

use super::{Ret, Row, errno, probe};
use crate::env::{Args, Env};

/// Longest string (`XATTR_SIZE_MAX`).
const MAX: u64 = 65536;
/// Addresses below are nobody's.
const FIRST_ADDRESS: u64 = 4096;

fn byte(env: &mut Env<'_>, at: u64) -> Result<u8, Errno> {
    if at < FIRST_ADDRESS {
        return Err(Errno::ERANGE);
    }
    probe::byte(env, at).ok_or(Errno::EFAULT)
}

fn int(result: Result<i64, Errno>) -> Ret {
    Ok(result.map_or_else(errno, |n| n as u64))
}

fn compare(env: &mut Env<'_>, a: &Args, max: u64, fold: bool) -> Result<i64, Errno> {
    for i in 0..max.min(MAX) {
        let (mut l, mut r) = (byte(env, a[0] + i)?, byte(env, a[1] + i)?);
        if fold {
            (l, r) = (l.to_ascii_lowercase(), r.to_ascii_lowercase());
        }
        if l != r {
            return Ok(if l < r { -1 } else { 1 });
        }
        if l == 0 {
            return Ok(0);
        }
    }
    if max <= MAX { Ok(0) } else { Err(Errno::E2BIG) }
}

fn strcmp(env: &mut Env<'_>, a: &Args) -> Ret {
    int(compare(env, a, u64::MAX, false))
}

fn strcasecmp(env: &mut Env<'_>, a: &Args) -> Ret {
    int(compare(env, a, u64::MAX, true))
}

/// `(s1, s2, len)`.
fn strncasecmp(env: &mut Env<'_>, a: &Args) -> Ret {
    int(compare(env, a, a[2], true))
}

/// Index of the first `wanted` among `max` bytes; `at_end` where a missing one is the end's.
fn find(env: &mut Env<'_>, s: u64, max: u64, wanted: u8, at_end: bool) -> Result<i64, Errno> {
    for i in 0..max.min(MAX) {
        let c = byte(env, s + i)?;
        if c == wanted || (at_end && c == 0) {
            return Ok(i as i64);
        }
        if c == 0 {
            return Err(Errno::ENOENT);
        }
    }
    Err(if max <= MAX {
        Errno::ENOENT
    } else {
        Errno::E2BIG
    })
}

/// `(s, c)`.
fn strchr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(find(env, a[0], u64::MAX, a[1] as u8, false))
}

/// `(s, c)`.
fn strchrnul(env: &mut Env<'_>, a: &Args) -> Ret {
    int(find(env, a[0], u64::MAX, a[1] as u8, true))
}

/// `(s, count, c)`.
fn strnchr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(find(env, a[0], a[1], a[2] as u8, false))
}

/// `(s, c)`.
fn strrchr(env: &mut Env<'_>, a: &Args) -> Ret {
    let search = |env: &mut Env<'_>| {
        let mut last = Err(Errno::ENOENT);
        for i in 0..MAX {
            let c = byte(env, a[0] + i)?;
            if c == a[1] as u8 {
                last = Ok(i as i64);
            }
            if c == 0 {
                return last;
            }
        }
        Err(Errno::E2BIG)
    };
    int(search(env))
}

fn length(env: &mut Env<'_>, s: u64, max: u64) -> Result<i64, Errno> {
    for i in 0..max.min(MAX) {
        if byte(env, s + i)? == 0 {
            return Ok(i as i64);
        }
    }
    if max <= MAX {
        Ok(max as i64)
    } else {
        Err(Errno::E2BIG)
    }
}

fn strlen(env: &mut Env<'_>, a: &Args) -> Ret {
    int(length(env, a[0], u64::MAX))
}

/// `(s, count)`.
fn strnlen(env: &mut Env<'_>, a: &Args) -> Ret {
    int(length(env, a[0], a[1]))
}

/// Bytes of `s` before the first that is (`REJECT`) or is not in the set.
fn span<const REJECT: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    let search = |env: &mut Env<'_>| {
        for i in 0..MAX {
            let c = byte(env, a[0] + i)?;
            if c == 0 {
                return Ok(i as i64);
            }
            let member = match find(env, a[1], u64::MAX, c, false) {
                Ok(_) => true,
                Err(Errno::ENOENT) => false,
                Err(e) => return Err(e),
            };
            if member == REJECT {
                return Ok(i as i64);
            }
        }
        Err(Errno::E2BIG)
    };
    int(search(env))
}

/// Index of the first place where `s2` starts in the first `max` bytes of `s1`.
fn search(env: &mut Env<'_>, a: &Args, max: u64, fold: bool) -> Result<i64, Errno> {
    for i in 0..max.min(MAX) {
        for j in 0..=MAX {
            let wanted = byte(env, a[1] + j)?;
            if wanted == 0 {
                return Ok(i as i64);
            }
            if i + j >= max {
                break;
            }
            let c = byte(env, a[0] + i + j)?;
            if c == 0 {
                return Err(Errno::ENOENT);
            }
            let same = if fold {
                c.eq_ignore_ascii_case(&wanted)
            } else {
                c == wanted
            };
            if !same {
                break;
            }
            if j == MAX {
                return Err(Errno::E2BIG);
            }
        }
    }
    if max > MAX {
        return Err(Errno::E2BIG);
    }
    // An empty needle is found in an empty haystack too.
    if byte(env, a[1])? == 0 {
        Ok(0)
    } else {
        Err(Errno::ENOENT)
    }
}

fn strstr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(search(env, a, u64::MAX, false))
}

/// `(s1, s2, len)`.
fn strnstr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(search(env, a, a[2], false))
}

fn strcasestr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(search(env, a, u64::MAX, true))
}

/// `(s1, s2, len)`.
fn strncasestr(env: &mut Env<'_>, a: &Args) -> Ret {
    int(search(env, a, a[2], true))
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_strcmp", strcmp),
    ("bpf_strcasecmp", strcasecmp),
    ("bpf_strncasecmp", strncasecmp),
    ("bpf_strchr", strchr),
    ("bpf_strchrnul", strchrnul),
    ("bpf_strnchr", strnchr),
    ("bpf_strrchr", strrchr),
    ("bpf_strlen", strlen),
    ("bpf_strnlen", strnlen),
    ("bpf_strspn", span::<false>),
    ("bpf_strcspn", span::<true>),
    ("bpf_strstr", strstr),
    ("bpf_strnstr", strnstr),
    ("bpf_strcasestr", strcasestr),
    ("bpf_strncasestr", strncasestr),
];
