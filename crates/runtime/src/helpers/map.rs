//! Maps: look-ups, updates, queues, and walks with a callback.

use std::sync::Arc;

use bpfkit_maps::{Errno, Progress};
use bpfkit_spec::MapType;

use super::{Ret, Row, errno, status};
use crate::env::{Args, Env};
use crate::memory::{Region, RegionKind};

/// `(map, key)`.
fn lookup(env: &mut Env<'_>, a: &Args) -> Ret {
    let cpu = env.cpu();
    lookup_on(env, a, cpu)
}

fn lookup_on(env: &mut Env<'_>, a: &Args, cpu: u32) -> Ret {
    let map = env.map(a[0])?;
    let key = env.read(a[1], map.key_size() as u64)?;
    if matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps) {
        if env.checked() {
            return Ok(map.inner(key).map_or(0, |inner| env.keep_map(inner)));
        }
        // The run's own guard keeps the inner map for as long as verified code can use it.
        let guard = bpfkit_maps::pin();
        let inner = map.lookup_inner(key, &guard);
        return Ok(inner.map_or(0, |inner| (&raw const *inner).expose_provenance() as u64));
    }
    Ok(map
        .lookup(cpu, key)
        .map_or(0, |value| value.as_ptr().expose_provenance() as u64))
}

/// `(map, key, cpu)`.
fn lookup_percpu(env: &mut Env<'_>, a: &Args) -> Ret {
    use MapType::{LruPercpuHash, PercpuArray, PercpuHash};
    let cpu = a[2] as u32;
    let map = env.map(a[0])?;
    let per_cpu = matches!(map.map_type(), PercpuArray | PercpuHash | LruPercpuHash);
    if !per_cpu || cpu >= map.params().cpus {
        return Ok(0);
    }
    lookup_on(env, a, cpu)
}

/// `(map, key, value, flags)`.
fn update(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[0])?;
    let key = env.read(a[1], map.key_size() as u64)?;
    let value = env.read(a[2], map.value_size() as u64)?;
    status(map.update(env.cpu(), key, value, a[3]))
}

/// `(map, key)`.
fn delete(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[0])?;
    let key = env.read(a[1], map.key_size() as u64)?;
    status(map.delete(env.cpu(), key))
}

/// `(map, value, flags)`.
fn push(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[0])?;
    let value = env.read(a[1], map.value_size() as u64)?;
    status(map.push(value, a[2]))
}

/// `(map, value)`.
fn pop(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[0])?;
    status(map.pop(env.write(a[1], map.value_size() as u64)?))
}

/// `(map, value)`.
fn peek(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[0])?;
    status(map.peek(env.write(a[1], map.value_size() as u64)?))
}

/// `(map, callback, ctx, flags)`: the number of elements that the callback saw.
fn for_each(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[3] != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let map: Arc<_> = env.map_shared(a[0])?;
    let (cpu, key_size) = (env.cpu(), map.key_size() as u64);
    let mut trap = None;
    let seen = map.for_each_value(cpu, &mut |key, value| {
        let key = key.expose_provenance() as u64;
        let value = value.as_ptr().expose_provenance() as u64;
        let checked = env.checked();
        if checked {
            let kind = RegionKind::Other("map key");
            env.memory.grant(Region {
                start: key,
                len: key_size,
                writable: false,
                kind,
            });
        }
        let result = env.call(a[1], [a[0], key, value, a[2], 0]);
        if checked {
            env.memory.revoke(key);
        }
        match result {
            Ok(0) => Progress::Go,
            Ok(_) => Progress::Stop,
            Err(t) => {
                trap = Some(t);
                Progress::Stop
            }
        }
    });
    match (trap, seen) {
        (Some(trap), _) => Err(trap),
        (None, Ok(seen)) => Ok(u64::from(seen)),
        (None, Err(e)) => Ok(errno(e)),
    }
}

/// kfunc `(map)`: the number of elements, all CPUs together.
fn sum_elem_count(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(env.map(a[0])?.count().unwrap_or(0))
}

pub(super) const HELPERS: &[Row] = &[
    ("map_lookup_elem", lookup),
    ("map_lookup_percpu_elem", lookup_percpu),
    ("map_update_elem", update),
    ("map_delete_elem", delete),
    ("map_push_elem", push),
    ("map_pop_elem", pop),
    ("map_peek_elem", peek),
    ("for_each_map_elem", for_each),
];

pub(super) const KFUNCS: &[Row] = &[("bpf_map_sum_elem_count", sum_elem_count)];
