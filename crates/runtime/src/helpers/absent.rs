//! Kfuncs that look for objects of the kernel, of which there are none here: tasks,
//! cgroups, keys, connections, device metadata. A program that handles their absence runs.

use bpfkit_maps::Errno;

use super::{Ret, Row, errno};
use crate::env::{Args, Env};

/// No such object.
fn null(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// The object again; only null can come here.
fn same(_: &mut Env<'_>, a: &Args) -> Ret {
    Ok(a[0])
}

/// Nothing to be done, or 0.
fn nothing(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// The device offers no metadata.
fn no_metadata(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(errno(Errno::EOPNOTSUPP))
}

/// `(ctx, tuple, tuple__sz, opts, opts__sz)`: no connection is tracked.
fn ct_lookup(env: &mut Env<'_>, a: &Args) -> Ret {
    /// Offset of `error` in `struct bpf_ct_opts`, and the least size of that.
    const ERROR: u64 = 4;
    const SIZE: u64 = 12;
    if a[4] >= SIZE {
        let wrong = !matches!(a[2], 12 | 36);
        let error = if wrong { Errno::EINVAL } else { Errno::ENOENT };
        env.store(a[3] + ERROR, (-error.0).to_ne_bytes())?;
    }
    Ok(0)
}

/// `(it, …)` of an iterator over nothing.
fn iter_new(env: &mut Env<'_>, a: &Args) -> Ret {
    env.store(a[0], [0; 8])?;
    Ok(0)
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_task_from_pid", null),
    ("bpf_task_from_vpid", null),
    ("bpf_task_acquire", same),
    ("bpf_task_release", nothing),
    ("bpf_task_get_cgroup1", null),
    ("bpf_task_under_cgroup", nothing),
    ("bpf_cgroup_from_id", null),
    ("bpf_cgroup_acquire", same),
    ("bpf_cgroup_ancestor", null),
    ("bpf_cgroup_release", nothing),
    ("bpf_get_task_exe_file", null),
    ("bpf_put_file", nothing),
    ("bpf_lookup_user_key", null),
    ("bpf_lookup_system_key", null),
    ("bpf_key_put", nothing),
    ("bpf_get_kmem_cache", null),
    ("bpf_skb_ct_lookup", ct_lookup),
    ("bpf_xdp_ct_lookup", ct_lookup),
    ("bpf_ct_release", nothing),
    ("bpf_xdp_metadata_rx_hash", no_metadata),
    ("bpf_xdp_metadata_rx_timestamp", no_metadata),
    ("bpf_xdp_metadata_rx_vlan_tag", no_metadata),
    ("bpf_iter_task_new", iter_new),
    ("bpf_iter_task_next", null),
    ("bpf_iter_task_destroy", nothing),
    ("bpf_iter_task_vma_new", iter_new),
    ("bpf_iter_task_vma_next", null),
    ("bpf_iter_task_vma_destroy", nothing),
    ("bpf_iter_css_new", iter_new),
    ("bpf_iter_css_next", null),
    ("bpf_iter_css_destroy", nothing),
    ("bpf_iter_css_task_new", iter_new),
    ("bpf_iter_css_task_next", null),
    ("bpf_iter_css_task_destroy", nothing),
    ("bpf_iter_kmem_cache_new", iter_new),
    ("bpf_iter_kmem_cache_next", null),
    ("bpf_iter_kmem_cache_destroy", nothing),
];
