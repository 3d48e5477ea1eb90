//! Who and where the program runs: clocks, randomness, the current task and its cgroup.

use bpfkit_maps::Errno;

use super::{Ret, Row, errno, heap};
use crate::env::{Args, Env};
use crate::host::Clock;

fn clock<const CLOCK: u8>(env: &mut Env<'_>, _: &Args) -> Ret {
    let clock = match CLOCK {
        0 => Clock::Monotonic,
        1 => Clock::MonotonicCoarse,
        2 => Clock::Boot,
        _ => Clock::Tai,
    };
    Ok(env.host().now(clock))
}

/// Ticks since boot, as on a kernel with `CONFIG_HZ=1000`, which starts five minutes before zero.
fn jiffies64(env: &mut Env<'_>, _: &Args) -> Ret {
    const NANOSECONDS: u64 = 1_000_000;
    const INITIAL: u64 = (-300_000i32 as u32) as u64;
    Ok(INITIAL + env.host().now(Clock::Monotonic) / NANOSECONDS)
}

fn prandom(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(u64::from(env.host().random()))
}

fn processor(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(u64::from(env.cpu()))
}

fn numa_node(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

fn pid_tgid(env: &mut Env<'_>, _: &Args) -> Ret {
    let task = env.host().task();
    Ok(u64::from(task.tgid) << 32 | u64::from(task.pid))
}

fn uid_gid(env: &mut Env<'_>, _: &Args) -> Ret {
    let task = env.host().task();
    Ok(u64::from(task.gid) << 32 | u64::from(task.uid))
}

/// `(buf, size)`: the name, NUL-padded and NUL-terminated.
fn comm(env: &mut Env<'_>, a: &Args) -> Ret {
    let out = env.write(a[0], u64::from(a[1] as u32))?;
    let comm = env.host().task().comm;
    out.fill(0);
    let room = out.len().saturating_sub(1);
    for (to, from) in out
        .iter_mut()
        .take(room)
        .zip(comm.iter().take_while(|&&b| b != 0))
    {
        *to = *from;
    }
    Ok(0)
}

fn cgroup_id(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(env.host().task().cgroup_id)
}

fn ancestor(env: &Env<'_>, level: u64) -> u64 {
    let task = env.host().task();
    let depth = task.ancestor_cgroup_ids.len();
    match usize::try_from(level as i32) {
        Ok(level) if level == depth => task.cgroup_id,
        Ok(level) => task.ancestor_cgroup_ids.get(level).copied().unwrap_or(0),
        Err(_) => 0,
    }
}

/// `(ancestor_level)`.
fn ancestor_cgroup_id(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(ancestor(env, a[0]))
}

/// `(skb or sk, ancestor_level)`: sockets belong to the current task's cgroup.
fn socket_ancestor_cgroup_id(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(ancestor(env, a[1]))
}

/// `(dev, ino, nsdata, size)`: the task has the same ids in every namespace.
fn ns_current_pid_tgid(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `sizeof(struct bpf_pidns_info)`.
    const SIZE: u64 = 8;
    let out = env.write(a[2], u64::from(a[3] as u32))?;
    out.fill(0);
    if out.len() as u64 != SIZE {
        return Ok(errno(Errno::EINVAL));
    }
    let task = env.host().task();
    out[..4].copy_from_slice(&task.pid.to_ne_bytes());
    out[4..].copy_from_slice(&task.tgid.to_ne_bytes());
    Ok(0)
}

/// `(map, index)`: whether the task is under the cgroup in that slot. No slot holds one here.
fn under_cgroup(env: &mut Env<'_>, a: &Args) -> Ret {
    let entries = env.map(a[0])?.params().max_entries;
    Ok(errno(if a[1] as u32 >= entries {
        Errno::E2BIG
    } else {
        Errno::EAGAIN
    }))
}

/// `(skb, map, index)`.
fn skb_under_cgroup(env: &mut Env<'_>, a: &Args) -> Ret {
    under_cgroup(env, &[a[1], a[2], 0, 0, 0])
}

/// `(percpu_ptr, cpu)`: kernel variables have one instance here.
fn per_cpu_ptr(env: &mut Env<'_>, a: &Args) -> Ret {
    let cpu = a[1] as u32;
    Ok(heap::instance(env, a[0], cpu).unwrap_or(if cpu == 0 { a[0] } else { 0 }))
}

/// `(percpu_ptr)`.
fn this_cpu_ptr(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(heap::instance(env, a[0], env.cpu()).unwrap_or(a[0]))
}

/// Network namespace cookie of the initial namespace.
fn netns_cookie(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(1)
}

/// kfunc: a counter that grows with time, in nanoseconds here.
fn time_counter(env: &mut Env<'_>, _: &Args) -> Ret {
    Ok(env.host().now(Clock::Monotonic))
}

/// kfunc `(counter)`.
fn time_counter_to_ns(_: &mut Env<'_>, a: &Args) -> Ret {
    Ok(a[0])
}

pub(super) const HELPERS: &[Row] = &[
    ("ktime_get_ns", clock::<0>),
    ("ktime_get_coarse_ns", clock::<1>),
    ("ktime_get_boot_ns", clock::<2>),
    ("ktime_get_tai_ns", clock::<3>),
    ("jiffies64", jiffies64),
    ("get_prandom_u32", prandom),
    ("get_smp_processor_id", processor),
    ("get_numa_node_id", numa_node),
    ("get_current_pid_tgid", pid_tgid),
    ("get_current_uid_gid", uid_gid),
    ("get_current_comm", comm),
    ("get_current_cgroup_id", cgroup_id),
    ("get_current_ancestor_cgroup_id", ancestor_cgroup_id),
    ("skb_cgroup_id", cgroup_id),
    ("sk_cgroup_id", cgroup_id),
    ("skb_ancestor_cgroup_id", socket_ancestor_cgroup_id),
    ("sk_ancestor_cgroup_id", socket_ancestor_cgroup_id),
    ("get_ns_current_pid_tgid", ns_current_pid_tgid),
    ("current_task_under_cgroup", under_cgroup),
    ("skb_under_cgroup", skb_under_cgroup),
    ("per_cpu_ptr", per_cpu_ptr),
    ("this_cpu_ptr", this_cpu_ptr),
    ("get_netns_cookie", netns_cookie),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_cpu_time_counter", time_counter),
    ("bpf_cpu_time_counter_to_ns", time_counter_to_ns),
];
