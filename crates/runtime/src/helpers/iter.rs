//! Open-coded iterators: numbers and the bits of words.

use bpfkit_maps::Errno;

use super::{Ret, Row, errno, heap, probe};
use crate::env::{Args, Env};
use crate::fault::Trap;

/// Most numbers of one iteration (`BPF_MAX_LOOPS`).
const MAX_LOOPS: i64 = 8 << 20;

fn int(env: &mut Env<'_>, at: u64) -> Result<i32, Trap> {
    Ok(i32::from_ne_bytes(env.load(at)?))
}

/// `struct bpf_iter_num`: the present number and the end.
const END: u64 = 4;

/// `(it, start, end)`.
fn num_new(env: &mut Env<'_>, a: &Args) -> Ret {
    let (start, end) = (a[1] as i32, a[2] as i32);
    let refused = match i64::from(end) - i64::from(start) {
        ..0 => Some(Errno::EINVAL),
        n if n > MAX_LOOPS => Some(Errno::E2BIG),
        _ => None,
    };
    let (current, end) = if refused.is_some() {
        (0, 0)
    } else {
        (start.wrapping_sub(1), end)
    };
    env.store(a[0], current.to_ne_bytes())?;
    env.store(a[0] + END, end.to_ne_bytes())?;
    Ok(refused.map_or(0, errno))
}

/// `(it)`: the address of the next number, or null.
fn num_next(env: &mut Env<'_>, a: &Args) -> Ret {
    let (current, end) = (int(env, a[0])?, int(env, a[0] + END)?);
    let next = current.wrapping_add(1);
    if next >= end {
        env.store(a[0], [0; 8])?;
        return Ok(0);
    }
    env.store(a[0], next.to_ne_bytes())?;
    Ok(a[0])
}

fn num_destroy(env: &mut Env<'_>, a: &Args) -> Ret {
    env.store(a[0], [0; 8])?;
    Ok(0)
}

/// `struct bpf_iter_bits`: the word itself or the address of a copy, the number of bits,
/// the present bit.
const BITS: u64 = 8;
const BIT: u64 = 12;

/// `(it, words, count)`.
fn bits_new(env: &mut Env<'_>, a: &Args) -> Ret {
    const MAX_WORDS: u32 = 511;
    let words = a[2] as u32;
    env.store(a[0], [0; 12])?;
    env.store(a[0] + BIT, (-1i32).to_ne_bytes())?;
    if a[1] == 0 || words == 0 {
        return Ok(errno(Errno::EINVAL));
    }
    if words > MAX_WORDS {
        return Ok(errno(Errno::E2BIG));
    }
    let mut copy = [0u8; 8 * MAX_WORDS as usize];
    let copy = &mut copy[..8 * words as usize];
    if !probe::read(env, a[1], copy) {
        return Ok(errno(Errno::EFAULT));
    }
    if words == 1 {
        env.store(
            a[0],
            [
                copy[0], copy[1], copy[2], copy[3], copy[4], copy[5], copy[6], copy[7],
            ],
        )?;
    } else {
        let at = heap::alloc(env, copy.len(), copy, false);
        env.store(a[0], at.to_ne_bytes())?;
    }
    env.store(a[0] + BITS, (64 * words).to_ne_bytes())?;
    Ok(0)
}

/// `(it)`: the address of the next bit's number, or null.
fn bits_next(env: &mut Env<'_>, a: &Args) -> Ret {
    let count = int(env, a[0] + BITS)?.max(0) as u32;
    let words = u64::from_ne_bytes(env.load(a[0])?);
    let mut bit = int(env, a[0] + BIT)?.wrapping_add(1).max(0) as u32;
    while bit < count {
        let word = if count == 64 {
            words
        } else {
            u64::from_ne_bytes(env.load(words + u64::from(bit / 64) * 8)?)
        };
        let rest = word >> (bit % 64);
        if rest != 0 {
            bit += rest.trailing_zeros();
            env.store(a[0] + BIT, (bit as i32).to_ne_bytes())?;
            return Ok(a[0] + BIT);
        }
        bit = (bit / 64 + 1) * 64;
    }
    env.store(a[0] + BIT, (count as i32).to_ne_bytes())?;
    Ok(0)
}

fn bits_destroy(env: &mut Env<'_>, a: &Args) -> Ret {
    let words = u64::from_ne_bytes(env.load(a[0])?);
    if int(env, a[0] + BITS)? > 64 {
        heap::free(env, words);
    }
    Ok(0)
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_iter_num_new", num_new),
    ("bpf_iter_num_next", num_next),
    ("bpf_iter_num_destroy", num_destroy),
    ("bpf_iter_bits_new", bits_new),
    ("bpf_iter_bits_next", bits_next),
    ("bpf_iter_bits_destroy", bits_destroy),
];
