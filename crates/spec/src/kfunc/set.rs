//! Who may call a kfunc.

use crate::{AttachType as At, Caller, ProgType as P};

/// The place where a kfunc set is registered: a group of program types.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hook {
    /// Every program.
    Common,
    /// XDP.
    Xdp,
    /// `sched_cls`.
    Tc,
    /// `sched_act`.
    SchedAct,
    /// `struct_ops`.
    StructOps,
    /// Programs with typed arguments, tracepoints, perf events, LSM.
    Tracing,
    /// `syscall`.
    Syscall,
    /// Cgroup hooks.
    Cgroup,
    /// `sk_skb`.
    SkSkb,
    /// `socket_filter`.
    SocketFilter,
    /// Lightweight tunnels.
    Lwt,
    /// `netfilter`.
    Netfilter,
    /// `kprobe`.
    Kprobe,
}

impl Hook {
    /// The hook of that program type beside [`Hook::Common`]; some types have none. An
    /// extension has the hook of the program it replaces.
    pub const fn of(prog_type: P) -> Option<Hook> {
        Some(match prog_type {
            P::Xdp => Hook::Xdp,
            P::SchedCls => Hook::Tc,
            P::SchedAct => Hook::SchedAct,
            P::StructOps => Hook::StructOps,
            P::Tracing | P::Tracepoint | P::PerfEvent | P::Lsm => Hook::Tracing,
            P::Syscall => Hook::Syscall,
            P::CgroupSkb
            | P::CgroupSock
            | P::CgroupDevice
            | P::CgroupSockAddr
            | P::CgroupSockopt
            | P::CgroupSysctl
            | P::SockOps => Hook::Cgroup,
            P::SkSkb => Hook::SkSkb,
            P::SocketFilter => Hook::SocketFilter,
            P::LwtIn | P::LwtOut | P::LwtXmit | P::LwtSeg6local => Hook::Lwt,
            P::Netfilter => Hook::Netfilter,
            P::Kprobe => Hook::Kprobe,
            _ => return None,
        })
    }
}

/// Kfuncs that are registered together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Set {
    /// For everyone.
    Common,
    /// Objects, lists, trees, tasks, cgroups, keys, exceptions.
    Generic,
    /// CPU masks.
    Cpumask,
    /// Dynptrs of packets.
    Skb,
    /// Dynptrs of packet metadata.
    SkbMeta,
    /// XDP frames, and what XDP programs look up.
    Xdp,
    /// Socket buffers in tc: sockets, tunnels.
    Tc,
    /// Cgroup hooks.
    Cgroup,
    /// Iterators over sockets.
    SockIter,
    /// Connection tracking.
    Conntrack,
    /// Setting up encryption.
    CryptoInit,
    /// Encryption.
    Crypto,
    /// Kprobe and uprobe sessions.
    Session,
    /// Cgroup statistics.
    Rstat,
    /// Files, for LSM programs.
    Fs,
    /// Congestion control.
    TcpCa,
    /// Queueing disciplines.
    Qdisc,
    /// Input devices.
    Hid,
    /// Extensible scheduler.
    SchedExt,
    /// The kernel's self-test of kfunc calls.
    Test,
    /// `bpf_testmod` of the kernel's selftests.
    TestModule,
}

impl Set {
    /// Where it is registered.
    pub const fn hooks(self) -> &'static [Hook] {
        match self {
            Set::Common => &[Hook::Common],
            Set::Generic => &[
                Hook::Tracing,
                Hook::Tc,
                Hook::Xdp,
                Hook::StructOps,
                Hook::Syscall,
                Hook::Cgroup,
            ],
            Set::Cpumask => &[Hook::Tracing, Hook::StructOps, Hook::Syscall],
            Set::Skb => &[
                Hook::Tc,
                Hook::SchedAct,
                Hook::SkSkb,
                Hook::SocketFilter,
                Hook::Cgroup,
                Hook::Lwt,
                Hook::Netfilter,
                Hook::Tracing,
            ],
            Set::SkbMeta => &[Hook::Tc, Hook::SchedAct],
            Set::Xdp => &[Hook::Xdp],
            Set::Tc => &[Hook::Tc],
            Set::Cgroup => &[Hook::Cgroup],
            Set::SockIter | Set::Rstat | Set::Fs => &[Hook::Tracing],
            Set::Conntrack => &[Hook::Xdp, Hook::Tc],
            Set::CryptoInit => &[Hook::Syscall],
            Set::Crypto => &[Hook::Tc, Hook::SchedAct, Hook::Xdp],
            Set::Session => &[Hook::Kprobe],
            Set::TcpCa | Set::Qdisc => &[Hook::StructOps],
            Set::Hid => &[Hook::StructOps, Hook::Syscall],
            Set::SchedExt => &[Hook::StructOps, Hook::Tracing, Hook::Syscall],
            Set::Test => &[Hook::Tc, Hook::Tracing, Hook::Syscall],
            Set::TestModule => &[Hook::Tc, Hook::Tracing, Hook::Syscall, Hook::StructOps],
        }
    }

    /// Whether that program may call the kfunc of that name in this set.
    pub(super) fn is_for(self, caller: &Caller<'_>, kfunc: &str) -> bool {
        let hook = Hook::of(caller.prog_type);
        let registered = self
            .hooks()
            .iter()
            .any(|&at| at == Hook::Common || Some(at) == hook);
        registered && self.filter(caller, kfunc)
    }

    /// What the set asks beside the program type.
    fn filter(self, caller: &Caller<'_>, kfunc: &str) -> bool {
        match self {
            Set::SockIter => caller.attach_type == At::TraceIter,
            Set::Fs => caller.prog_type == P::Lsm,
            Set::Session => matches!(
                caller.attach_type,
                At::TraceKprobeSession | At::TraceUprobeSession
            ),
            Set::Qdisc => caller.target == "Qdisc_ops" && qdisc_member(caller.member, kfunc),
            Set::SchedExt => caller.prog_type != P::StructOps || caller.target == "sched_ext_ops",
            _ => true,
        }
    }
}

/// Which kfuncs a member of `Qdisc_ops` may call.
fn qdisc_member(member: &str, kfunc: &str) -> bool {
    match kfunc {
        "bpf_skb_get_hash" | "bpf_kfree_skb" | "bpf_dynptr_from_skb" => true,
        "bpf_qdisc_skb_drop" => member == "enqueue",
        "bpf_qdisc_watchdog_schedule" => matches!(member, "enqueue" | "dequeue"),
        "bpf_qdisc_bstats_update" => member == "dequeue",
        _ => false,
    }
}

/// Functions of the kernel that fmod_ret programs may replace beside system calls, LSM
/// hooks and functions open to error injection.
pub const FMOD_RET_FUNCTIONS: &[&str] = &[
    "bpf_fentry_test1",
    "bpf_modify_return_test",
    "bpf_modify_return_test2",
    "bpf_modify_return_test_tp",
    "update_socket_protocol",
];
