//! Ring buffers: records that programs write, samples that the host writes.

use std::ptr::NonNull;

use bpfkit_maps::{Errno, RingBuf, RingQuery};

use super::dynptr::{self, Dynptr, Kind};
use super::{Ret, Row, errno, status};
use crate::env::{Args, Env};
use crate::fault::Trap;
use crate::memory::{Region, RegionKind};

const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

fn ring<'r>(env: &mut Env<'r>, map: u64) -> Result<&'r RingBuf, Trap> {
    env.map(map)?
        .as_ring()
        .ok_or_else(|| Trap::helper("the map is no ring buffer"))
}

/// `(ring, data, size, flags)`.
fn output(env: &mut Env<'_>, a: &Args) -> Ret {
    let data = env.read(a[1], a[2])?;
    status(ring(env, a[0])?.output(data, a[3]))
}

/// Reserves a record and lets the program write it.
fn take(env: &mut Env<'_>, map: u64, size: u64) -> Result<Option<u64>, Trap> {
    let Some(record) = ring(env, map)?.reserve(size) else {
        return Ok(None);
    };
    let start = record.as_ptr().expose_provenance() as u64;
    env.state.records.push(start);
    if env.checked() {
        env.memory.grant(Region {
            start,
            len: size,
            writable: true,
            kind: RegionKind::Record,
        });
    }
    Ok(Some(start))
}

/// Hands a record over; the program may not touch it any more.
fn give(env: &mut Env<'_>, record: u64, flags: u64, discard: bool) -> Result<(), Trap> {
    let Some(i) = env.state.records.iter().position(|&r| r == record) else {
        return Err(Trap::helper(format!(
            "{record:#x} is not a reserved record"
        )));
    };
    env.state.records.swap_remove(i);
    if env.checked() {
        env.memory.revoke(record);
    }
    if let Some(record) = NonNull::new(std::ptr::with_exposed_provenance_mut(record as usize)) {
        // SAFETY: the list of records holds what `reserve` gave in this run, whose maps live,
        // and each leaves the list when it is committed.
        unsafe { RingBuf::commit(record, flags, discard) };
    }
    Ok(())
}

/// Gives back what a program had reserved when it stopped.
pub(crate) fn discard_all(env: &mut Env<'_>) {
    while let Some(&record) = env.state.records.last() {
        if give(env, record, 0, true).is_err() {
            return;
        }
    }
}

/// `(ring, size, flags)`: the record, or null.
fn reserve(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[2] != 0 {
        return Ok(0);
    }
    Ok(take(env, a[0], a[1])?.unwrap_or(0))
}

/// `(record, flags)`.
fn submit<const DISCARD: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    give(env, a[0], a[1], DISCARD)?;
    Ok(0)
}

/// `(ring, what)`.
fn query(env: &mut Env<'_>, a: &Args) -> Ret {
    let ring = ring(env, a[0])?;
    Ok(match a[1] {
        0 => ring.query(RingQuery::AvailData),
        1 => ring.query(RingQuery::RingSize),
        2 => ring.query(RingQuery::ConsPos),
        3 => ring.query(RingQuery::ProdPos),
        _ => 0,
    })
}

/// `(ring, size, flags, ptr)`.
fn reserve_dynptr(env: &mut Env<'_>, a: &Args) -> Ret {
    let size = u64::from(a[1] as u32);
    let refused = match () {
        () if a[2] != 0 => Some(Errno::EINVAL),
        () if size > dynptr::MAX_SIZE => Some(Errno::E2BIG),
        () => None,
    };
    let record = match refused {
        None => take(env, a[0], size)?.ok_or(Errno::EINVAL),
        Some(e) => Err(e),
    };
    match record {
        Ok(data) => {
            Dynptr {
                data,
                kind: Kind::Ringbuf,
                offset: 0,
                size: size as u32,
                rdonly: false,
            }
            .store(env, a[3])?;
            Ok(0)
        }
        Err(e) => {
            dynptr::clear(env, a[3])?;
            Ok(errno(e))
        }
    }
}

/// `(ptr, flags)`: also of a dynptr that is null.
fn submit_dynptr<const DISCARD: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    if let Some(d) = Dynptr::load(env, a[0])? {
        give(env, d.data, a[1], DISCARD)?;
        dynptr::clear(env, a[0])?;
    }
    Ok(0)
}

/// `(map, callback, ctx, flags)`: the number of samples that the callback saw.
fn user_drain(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[3] & !(NO_WAKEUP | FORCE_WAKEUP) != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let ring = env
        .map(a[0])?
        .as_user_ring()
        .ok_or_else(|| Trap::helper("the map is no user ring buffer"))?;
    let mut drain = match ring.drain() {
        Ok(drain) => drain,
        Err(e) => return Ok(errno(e)),
    };
    // The dynptr that the callback gets.
    let mut place = Box::new([0u64; 2]);
    let ptr = place.as_mut_ptr().expose_provenance() as u64;
    let checked = env.checked();
    let mut result = Ok(0);
    for sample in drain.by_ref() {
        let data = sample.data.as_ptr().expose_provenance() as u64;
        if checked {
            let kind = RegionKind::Other("sample");
            env.memory.grant(Region {
                start: ptr,
                len: 16,
                writable: true,
                kind,
            });
            env.memory.grant(Region {
                start: data,
                len: sample.len.into(),
                writable: false,
                kind,
            });
        }
        let d = Dynptr {
            data,
            kind: Kind::Local,
            offset: 0,
            size: sample.len,
            rdonly: false,
        };
        result = match d.store(env, ptr) {
            Ok(()) => env.call(a[1], [ptr, a[2], 0, 0, 0]),
            Err(trap) => Err(trap),
        };
        if checked {
            env.memory.revoke(data);
            env.memory.revoke(ptr);
        }
        if !matches!(result, Ok(0)) {
            break;
        }
    }
    result.map(|_| u64::from(drain.taken()))
}

pub(super) const HELPERS: &[Row] = &[
    ("ringbuf_output", output),
    ("ringbuf_reserve", reserve),
    ("ringbuf_submit", submit::<false>),
    ("ringbuf_discard", submit::<true>),
    ("ringbuf_query", query),
    ("ringbuf_reserve_dynptr", reserve_dynptr),
    ("ringbuf_submit_dynptr", submit_dynptr::<false>),
    ("ringbuf_discard_dynptr", submit_dynptr::<true>),
    ("user_ringbuf_drain", user_drain),
];
