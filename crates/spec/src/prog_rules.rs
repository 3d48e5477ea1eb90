//! What holds for each program type: how it is loaded, attached, tested.

use crate::{AttachType as At, ProgType as P, ProgTypes};

/// Program types whose programs trace: spin locks, timers, lists and trees are not for them.
pub const TRACING_TYPES: ProgTypes = ProgTypes::of(&[
    P::Kprobe,
    P::Tracepoint,
    P::PerfEvent,
    P::RawTracepoint,
    P::RawTracepointWritable,
]);

/// Program types that read the packet through pointers.
pub const PACKET_READERS: ProgTypes = PACKET_WRITERS.with(&[
    P::LwtIn,
    P::LwtOut,
    P::LwtSeg6local,
    P::SkReuseport,
    P::FlowDissector,
    P::CgroupSkb,
]);

/// Program types that write the packet through pointers.
pub const PACKET_WRITERS: ProgTypes = ProgTypes::of(&[
    P::SchedCls,
    P::SchedAct,
    P::Xdp,
    P::LwtXmit,
    P::SkSkb,
    P::SkMsg,
    P::CgroupSockopt,
]);

/// Program types that pass packet pointers to helpers whatever the helper's prototype says.
pub const PACKET_POINTERS_TO_ANY_HELPER: ProgTypes = ProgTypes::of(&[P::CgroupSockopt]);

/// Program types that `BPF_PROG_TEST_RUN` runs.
pub const TEST_RUN: ProgTypes = ProgTypes::of(&[
    P::SocketFilter,
    P::SchedCls,
    P::SchedAct,
    P::Xdp,
    P::CgroupSkb,
    P::LwtIn,
    P::LwtOut,
    P::LwtXmit,
    P::LwtSeg6local,
    P::FlowDissector,
    P::RawTracepoint,
    P::Tracing,
    P::StructOps,
    P::SkLookup,
    P::Syscall,
    P::Netfilter,
]);

/// Program types that a process may load without any capability, where unprivileged
/// programs are not turned off.
pub const UNPRIVILEGED: ProgTypes = ProgTypes::of(&[P::SocketFilter, P::CgroupSkb]);

/// Program types that need `CAP_NET_ADMIN`.
pub const NET_ADMIN: ProgTypes = ProgTypes::of(&[
    P::SchedCls,
    P::SchedAct,
    P::Xdp,
    P::LwtIn,
    P::LwtOut,
    P::LwtXmit,
    P::LwtSeg6local,
    P::SkSkb,
    P::SkMsg,
    P::FlowDissector,
    P::CgroupDevice,
    P::CgroupSock,
    P::CgroupSockAddr,
    P::CgroupSockopt,
    P::CgroupSysctl,
    P::SockOps,
    P::Ext,
    P::Netfilter,
]);

/// Program types that need `CAP_PERFMON`.
pub const PERFMON: ProgTypes = TRACING_TYPES.with(&[P::Tracing, P::Lsm, P::StructOps, P::Ext]);

/// Program types that must have a GPL-compatible licence.
pub const GPL_ONLY: ProgTypes = ProgTypes::of(&[P::StructOps, P::Lsm]);

/// Program types that an extension may not replace.
pub const NOT_REPLACEABLE: ProgTypes =
    ProgTypes::of(&[P::Unspec, P::Tracing, P::StructOps, P::Ext, P::Lsm]);

/// Program types that a tracing program cannot be attached to.
pub const NOT_TRACEABLE: ProgTypes = ProgTypes::of(&[P::Unspec, P::Ext]);

impl P {
    /// Attach types that mean something to programs of this type.
    pub const fn attach_types(self) -> &'static [At] {
        match self {
            P::CgroupSkb => &[At::CgroupInetIngress, At::CgroupInetEgress],
            P::CgroupSock => &[
                At::CgroupInetSockCreate,
                At::CgroupInetSockRelease,
                At::CgroupInet4PostBind,
                At::CgroupInet6PostBind,
            ],
            P::CgroupSockAddr => &[
                At::CgroupInet4Bind,
                At::CgroupInet6Bind,
                At::CgroupInet4Connect,
                At::CgroupInet6Connect,
                At::CgroupUnixConnect,
                At::CgroupInet4Getpeername,
                At::CgroupInet6Getpeername,
                At::CgroupUnixGetpeername,
                At::CgroupInet4Getsockname,
                At::CgroupInet6Getsockname,
                At::CgroupUnixGetsockname,
                At::CgroupUdp4Sendmsg,
                At::CgroupUdp6Sendmsg,
                At::CgroupUnixSendmsg,
                At::CgroupUdp4Recvmsg,
                At::CgroupUdp6Recvmsg,
                At::CgroupUnixRecvmsg,
            ],
            P::CgroupSockopt => &[At::CgroupGetsockopt, At::CgroupSetsockopt],
            P::CgroupDevice => &[At::CgroupDevice],
            P::CgroupSysctl => &[At::CgroupSysctl],
            P::SockOps => &[At::CgroupSockOps],
            P::SkSkb => &[
                At::SkSkbStreamParser,
                At::SkSkbStreamVerdict,
                At::SkSkbVerdict,
            ],
            P::SkMsg => &[At::SkMsgVerdict],
            P::SkLookup => &[At::SkLookup],
            P::SkReuseport => &[At::SkReuseportSelect, At::SkReuseportSelectOrMigrate],
            P::FlowDissector => &[At::FlowDissector],
            P::LircMode2 => &[At::LircMode2],
            P::Netfilter => &[At::Netfilter],
            P::Xdp => &[At::Xdp, At::XdpDevmap, At::XdpCpumap],
            P::SchedCls => &[
                At::TcxIngress,
                At::TcxEgress,
                At::NetkitPrimary,
                At::NetkitPeer,
            ],
            P::PerfEvent => &[At::PerfEvent],
            P::Kprobe => &[
                At::PerfEvent,
                At::TraceKprobeMulti,
                At::TraceKprobeSession,
                At::TraceUprobeMulti,
                At::TraceUprobeSession,
            ],
            P::Tracing => &[
                At::TraceRawTp,
                At::TraceFentry,
                At::TraceFexit,
                At::ModifyReturn,
                At::TraceIter,
            ],
            P::Lsm => &[At::LsmMac, At::LsmCgroup],
            P::StructOps => &[At::StructOps],
            _ => &[],
        }
    }

    /// Whether loading refuses an expected attach type that is not in
    /// [`attach_types`](Self::attach_types); where it does not, any number will do, and 0
    /// is the usual one. Types without attach types that check take only 0.
    pub const fn checks_attach_type(self) -> bool {
        matches!(
            self,
            P::CgroupSkb
                | P::CgroupSock
                | P::CgroupSockAddr
                | P::CgroupSockopt
                | P::SkLookup
                | P::SkReuseport
                | P::Netfilter
                | P::Tracing
                | P::Lsm
                | P::Syscall
                | P::Ext
        )
    }

    /// The attach type that loading puts in the place of 0.
    pub const fn default_attach_type(self) -> Option<At> {
        match self {
            P::CgroupSock => Some(At::CgroupInetSockCreate),
            P::SkReuseport => Some(At::SkReuseportSelect),
            _ => None,
        }
    }

    /// Whether such a program may be sleepable. Syscall programs must be. For kprobes this
    /// is for uprobes, which loading cannot tell apart; an LSM hook and a struct_ops member
    /// have a say of their own.
    pub const fn can_sleep(self, attach_type: At) -> bool {
        match self {
            P::Syscall | P::Kprobe | P::StructOps => true,
            P::Tracing => matches!(
                attach_type,
                At::TraceFentry | At::TraceFexit | At::ModifyReturn | At::TraceIter
            ),
            P::Lsm => !matches!(attach_type, At::LsmCgroup),
            _ => false,
        }
    }
}
