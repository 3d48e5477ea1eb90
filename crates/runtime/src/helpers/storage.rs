//! Storage that belongs to a socket, task, inode or cgroup: the owner is its address.

use bpfkit_maps::Errno;

use super::{Ret, Row, errno, status};
use crate::env::{Args, Env};
use crate::fault::Trap;

const CREATE: u64 = 1;

fn not_storage() -> Trap {
    Trap::helper("the map holds no storage of that kind")
}

/// `(map, owner, value, flags)`: the owner's value, or null.
fn get(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] == 0 || a[3] & !CREATE != 0 {
        return Ok(0);
    }
    let map = env.map(a[0])?;
    let storage = map.as_storage().ok_or_else(not_storage)?;
    let init = if a[2] == 0 {
        None
    } else {
        Some(env.read(a[2], map.value_size() as u64)?)
    };
    Ok(storage
        .get(a[1], a[3], init)
        .map_or(0, |value| value.as_ptr().expose_provenance() as u64))
}

/// `(map, owner)`.
fn delete(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] == 0 {
        return Ok(errno(Errno::EINVAL));
    }
    status(
        env.map(a[0])?
            .as_storage()
            .ok_or_else(not_storage)?
            .delete_owner(a[1]),
    )
}

/// `(map, flags)`: the value of the current cgroup for this kind of program.
fn get_local_storage(env: &mut Env<'_>, a: &Args) -> Ret {
    let cgroup = env.host().task().cgroup_id;
    let attach = env.program().decl.attach_type as u32;
    let cpu = env.cpu();
    let storage = env.map(a[0])?.as_storage().ok_or_else(not_storage)?;
    let value = storage.attached(cpu, cgroup, attach);
    let value = value.ok_or_else(|| Trap::helper("no memory for the cgroup's storage"))?;
    Ok(value.as_ptr().expose_provenance() as u64)
}

pub(super) const HELPERS: &[Row] = &[
    ("sk_storage_get", get),
    ("sk_storage_delete", delete),
    ("task_storage_get", get),
    ("task_storage_delete", delete),
    ("inode_storage_get", get),
    ("inode_storage_delete", delete),
    ("cgrp_storage_get", get),
    ("cgrp_storage_delete", delete),
    ("get_local_storage", get_local_storage),
];
