//! Sets of CPUs (`struct bpf_cpumask`). A CPU is a worker thread.

use super::{Ret, Row, errno, heap, probe};
use crate::env::{Args, Env};
use crate::fault::Trap;
use bpfkit_maps::Errno;

/// Words of a set: as many CPUs as maps can have.
const WORDS: usize = 16;
const BYTES: u64 = 8 * WORDS as u64;
type Mask = [u64; WORDS];

fn load(env: &mut Env<'_>, at: u64) -> Result<Mask, Trap> {
    let mut mask = [0; WORDS];
    for (word, bytes) in mask.iter_mut().zip(env.read(at, BYTES)?.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(mask)
}

fn store(env: &mut Env<'_>, at: u64, mask: &Mask) -> Result<(), Trap> {
    for (word, bytes) in mask.iter().zip(env.write(at, BYTES)?.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(())
}

/// Number of CPUs.
fn cpus(env: &Env<'_>) -> u32 {
    let of_maps = env
        .maps()
        .iter()
        .map(|m| m.params().cpus)
        .max()
        .unwrap_or(1);
    of_maps.max(env.cpu() + 1).min(64 * WORDS as u32)
}

/// All CPUs there are.
fn all(env: &Env<'_>) -> Mask {
    let n = cpus(env);
    std::array::from_fn(|i| match n.saturating_sub(64 * i as u32) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    })
}

/// The first CPU in the set, or the number of CPUs.
fn first_of(env: &Env<'_>, mask: &Mask) -> u64 {
    let found = mask.iter().position(|&w| w != 0);
    let n = u64::from(cpus(env));
    found.map_or(n, |i| {
        (64 * i as u64 + u64::from(mask[i].trailing_zeros())).min(n)
    })
}

fn create(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(heap::alloc(env, BYTES as usize, &[], true))
}

fn acquire(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(if heap::acquire(env, a[0]) { a[0] } else { 0 })
}

fn release(env: &mut Env<'_>, a: &Args) -> Ret {
    heap::release(env, a[0]);
    Ok(0)
}

fn first(env: &mut Env<'_>, a: &Args) -> Ret {
    let mask = load(env, a[0])?;
    Ok(first_of(env, &mask))
}

fn first_zero(env: &mut Env<'_>, a: &Args) -> Ret {
    let mask = load(env, a[0])?.map(|w| !w);
    Ok(first_of(env, &mask))
}

/// `(src1, src2)`.
fn first_and(env: &mut Env<'_>, a: &Args) -> Ret {
    let (x, y) = (load(env, a[0])?, load(env, a[1])?);
    Ok(first_of(env, &std::array::from_fn(|i| x[i] & y[i])))
}

/// `(cpu, mask)`: whether the CPU was in the set; `change` makes it so (`Some`).
fn bit(env: &mut Env<'_>, a: &Args, change: Option<bool>) -> Ret {
    let cpu = a[0] as u32;
    if cpu >= cpus(env) {
        return Ok(0);
    }
    let mut mask = load(env, a[1])?;
    let (word, bit) = (&mut mask[cpu as usize / 64], 1u64 << (cpu % 64));
    let was = *word & bit != 0;
    match change {
        Some(true) => *word |= bit,
        Some(false) => *word &= !bit,
        None => return Ok(u64::from(was)),
    }
    store(env, a[1], &mask)?;
    Ok(u64::from(was))
}

fn set_cpu(env: &mut Env<'_>, a: &Args) -> Ret {
    bit(env, a, Some(true))
}

fn clear_cpu(env: &mut Env<'_>, a: &Args) -> Ret {
    bit(env, a, Some(false))
}

fn test_cpu(env: &mut Env<'_>, a: &Args) -> Ret {
    bit(env, a, None)
}

fn setall(env: &mut Env<'_>, a: &Args) -> Ret {
    let mask = all(env);
    store(env, a[0], &mask)?;
    Ok(0)
}

fn clear(env: &mut Env<'_>, a: &Args) -> Ret {
    store(env, a[0], &[0; WORDS])?;
    Ok(0)
}

/// `(dst, src1, src2)`: whether anything is in the result.
fn combine(env: &mut Env<'_>, a: &Args, op: fn(u64, u64) -> u64) -> Ret {
    let (x, y) = (load(env, a[1])?, load(env, a[2])?);
    let mask = std::array::from_fn(|i| op(x[i], y[i]));
    store(env, a[0], &mask)?;
    Ok(u64::from(mask != [0; WORDS]))
}

fn and(env: &mut Env<'_>, a: &Args) -> Ret {
    combine(env, a, |x, y| x & y)
}

fn or(env: &mut Env<'_>, a: &Args) -> Ret {
    combine(env, a, |x, y| x | y)
}

fn xor(env: &mut Env<'_>, a: &Args) -> Ret {
    combine(env, a, |x, y| x ^ y)
}

/// `(dst, src)`.
fn copy(env: &mut Env<'_>, a: &Args) -> Ret {
    env.copy(a[0], a[1], BYTES)?;
    Ok(0)
}

/// `(src1, src2)`: whether `test` holds for every word.
fn compare(env: &mut Env<'_>, a: &Args, test: fn(u64, u64) -> bool) -> Ret {
    let (x, y) = (load(env, a[0])?, load(env, a[1])?);
    Ok(u64::from(x.iter().zip(&y).all(|(&x, &y)| test(x, y))))
}

fn equal(env: &mut Env<'_>, a: &Args) -> Ret {
    compare(env, a, |x, y| x == y)
}

fn subset(env: &mut Env<'_>, a: &Args) -> Ret {
    compare(env, a, |x, y| x & !y == 0)
}

fn intersects(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(compare(env, a, |x, y| x & y == 0)? == 0))
}

fn empty(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(load(env, a[0])? == [0; WORDS]))
}

fn full(env: &mut Env<'_>, a: &Args) -> Ret {
    let (mask, all) = (load(env, a[0])?, all(env));
    Ok(u64::from((0..WORDS).all(|i| mask[i] & all[i] == all[i])))
}

fn weight(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(load(env, a[0])?
        .iter()
        .map(|w| u64::from(w.count_ones()))
        .sum())
}

/// `(mask, src, src__sz)`: from words that need not be aligned.
fn populate(env: &mut Env<'_>, a: &Args) -> Ret {
    let len = a[2].min(BYTES) as usize;
    if (len as u64) < u64::from(cpus(env)).div_ceil(64) * 8 {
        return Ok(errno(Errno::EACCES));
    }
    let mut bytes = [0; BYTES as usize];
    if !probe::read(env, a[1], &mut bytes[..len]) {
        return Ok(errno(Errno::EFAULT));
    }
    env.write(a[0], BYTES)?.copy_from_slice(&bytes);
    Ok(0)
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_cpumask_create", create),
    ("bpf_cpumask_acquire", acquire),
    ("bpf_cpumask_release", release),
    ("bpf_cpumask_first", first),
    ("bpf_cpumask_first_zero", first_zero),
    ("bpf_cpumask_first_and", first_and),
    ("bpf_cpumask_any_distribute", first),
    ("bpf_cpumask_any_and_distribute", first_and),
    ("bpf_cpumask_set_cpu", set_cpu),
    ("bpf_cpumask_clear_cpu", clear_cpu),
    ("bpf_cpumask_test_cpu", test_cpu),
    ("bpf_cpumask_test_and_set_cpu", set_cpu),
    ("bpf_cpumask_test_and_clear_cpu", clear_cpu),
    ("bpf_cpumask_setall", setall),
    ("bpf_cpumask_clear", clear),
    ("bpf_cpumask_and", and),
    ("bpf_cpumask_or", or),
    ("bpf_cpumask_xor", xor),
    ("bpf_cpumask_copy", copy),
    ("bpf_cpumask_equal", equal),
    ("bpf_cpumask_subset", subset),
    ("bpf_cpumask_intersects", intersects),
    ("bpf_cpumask_empty", empty),
    ("bpf_cpumask_full", full),
    ("bpf_cpumask_weight", weight),
    ("bpf_cpumask_populate", populate),
];
