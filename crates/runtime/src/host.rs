//! What a program can learn about the machine and the task it runs in. The runtime
//! reads no clock and no environment: whoever runs a program passes a [`Host`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Clocks that helpers read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// `bpf_ktime_get_ns`: since boot, without suspend.
    Monotonic,
    /// `bpf_ktime_get_coarse_ns`.
    MonotonicCoarse,
    /// `bpf_ktime_get_boot_ns`: since boot, with suspend.
    Boot,
    /// `bpf_ktime_get_tai_ns`.
    Tai,
    /// Wall clock, nanoseconds since 1970.
    Realtime,
}

/// The task that tracing helpers see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Thread id (the kernel's `pid`).
    pub pid: u32,
    /// Process id (the kernel's `tgid`).
    pub tgid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Command name, NUL-padded.
    pub comm: [u8; 16],
    /// Id of the task's cgroup (v2).
    pub cgroup_id: u64,
    /// Ids of the cgroup's ancestors, from the root down, without its own.
    pub ancestor_cgroup_ids: Vec<u64>,
}

impl Default for Task {
    fn default() -> Self {
        let mut comm = [0; 16];
        comm[..6].copy_from_slice(b"bpfkit");
        Self {
            pid: 1,
            tgid: 1,
            uid: 0,
            gid: 0,
            comm,
            cgroup_id: 1,
            ancestor_cgroup_ids: Vec::new(),
        }
    }
}

/// The surroundings of a run: clocks, randomness, the current task, and where
/// `bpf_printk` goes. Every method has a deterministic default.
pub trait Host: Send + Sync {
    /// Nanoseconds of a clock.
    fn now(&self, clock: Clock) -> u64 {
        let _ = clock;
        0
    }

    /// 32 random bits.
    fn random(&self) -> u32 {
        0
    }

    /// The current task.
    fn task(&self) -> Task {
        Task::default()
    }

    /// Answers `bpf_fib_lookup`: `params` is `struct bpf_fib_lookup` (64 bytes), filled in
    /// with the route; the result is one of `BPF_FIB_LKUP_RET_*`.
    fn fib_lookup(&self, params: &mut [u8], flags: u32) -> u32 {
        /// `BPF_FIB_LKUP_RET_NOT_FWDED`
        const NOT_FORWARDED: u32 = 4;
        let _ = (params, flags);
        NOT_FORWARDED
    }

    /// Answers `bpf_sk_lookup_tcp` and `_udp`: `tuple` is the IPv4 (12 bytes) or IPv6 (36
    /// bytes) member of `struct bpf_sock_tuple`, `protocol` 6 or 17; the result is
    /// `struct bpf_sock`, if there is such a socket.
    fn socket(&self, tuple: &[u8], protocol: u32) -> Option<[u8; 80]> {
        let _ = (tuple, protocol);
        None
    }

    /// A line of `bpf_trace_printk`, `bpf_trace_vprintk` or a `bpf_stream_*` call.
    fn trace(&self, text: &[u8]) {
        let _ = text;
    }
}

/// A host for tests and reproducible runs: clocks stand still at the given time,
/// randomness follows from a seed, traces are dropped.
#[derive(Debug, Default)]
pub struct FixedHost {
    /// What every clock shows, in nanoseconds.
    pub time: AtomicU64,
    /// State of the generator.
    pub seed: AtomicU64,
    /// The current task.
    pub task: Task,
}

impl Host for FixedHost {
    fn now(&self, _clock: Clock) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    fn random(&self) -> u32 {
        // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
        // Not one atomic step: threads that share a host may draw the same number.
        let mut z = self
            .seed
            .load(Ordering::Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed.store(z, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    fn task(&self) -> Task {
        self.task.clone()
    }
}
