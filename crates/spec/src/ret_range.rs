//! What a program may return.

use crate::attach;
use crate::{AttachType as At, Caller, Feature, ProgType as P};

/// Greatest errno of the kernel.
const MAX_ERRNO: i32 = 4095;

/// What R0 must be when the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReturnRule {
    /// Nothing: R0 may be unset.
    Nothing,
    /// Set, and no pointer.
    Scalar,
    /// A number within that range, both ends included, by its 64 bits.
    Within(i32, i32),
    /// A number within that range by its low 32 bits.
    Within32(i32, i32),
}

/// What asynchronous callbacks return.
pub const ASYNC_CALLBACK: ReturnRule = ReturnRule::Within(0, 0);

/// What callbacks that run at once return: 0 to go on, 1 to stop.
pub const SYNC_CALLBACK: ReturnRule = ReturnRule::Within(0, 1);

/// The rule for that program; `returns_void` where the function that it attaches to, or the
/// member that it implements, returns nothing.
pub fn of(caller: &Caller<'_>, returns_void: bool) -> ReturnRule {
    use ReturnRule::{Nothing, Scalar, Within, Within32};
    match (caller.prog_type, caller.attach_type) {
        (P::StructOps, _) if returns_void => Nothing,
        (P::Lsm, At::LsmCgroup) if returns_void => Within(1, 1),
        (P::Lsm, At::LsmCgroup) => Within(0, 1),
        (P::Lsm, _) if returns_void => Nothing,
        (P::Lsm, _) if caller.kernel < Feature::LsmReturnRanges.since() => Scalar,
        (P::Lsm, _) => {
            let hook = caller.target.strip_prefix("bpf_lsm_");
            if hook.is_some_and(|hook| attach::LSM_BOOL.contains(&hook)) {
                Within32(0, 1)
            } else {
                Within32(-MAX_ERRNO, 0)
            }
        }
        (
            P::CgroupSockAddr,
            At::CgroupUdp4Recvmsg
            | At::CgroupUdp6Recvmsg
            | At::CgroupUnixRecvmsg
            | At::CgroupInet4Getpeername
            | At::CgroupInet6Getpeername
            | At::CgroupUnixGetpeername
            | At::CgroupInet4Getsockname
            | At::CgroupInet6Getsockname
            | At::CgroupUnixGetsockname,
        ) => Within(1, 1),
        (P::CgroupSockAddr, At::CgroupInet4Bind | At::CgroupInet6Bind) => Within(0, 3),
        (P::CgroupSkb, At::CgroupInetEgress) => Within(0, 3),
        (
            P::CgroupSockAddr
            | P::CgroupSkb
            | P::CgroupSock
            | P::SockOps
            | P::CgroupDevice
            | P::CgroupSysctl
            | P::CgroupSockopt
            | P::SkLookup
            | P::Netfilter,
            _,
        ) => Within(0, 1),
        (P::RawTracepoint, _) if !caller.target.is_empty() => Within(0, 0),
        (P::Tracing, At::TraceFentry | At::TraceFexit) => Within(0, 0),
        (P::Tracing, At::TraceIter) => Within(0, 1),
        (P::Kprobe, At::TraceKprobeSession | At::TraceUprobeSession) => Within(0, 1),
        _ => Scalar,
    }
}
