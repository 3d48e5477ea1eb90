//! Every helper, one row each, in the order of their numbers.

use super::{Arg, ArgKind, Effects, Helper, Offer, Proto, Ret, RetKind, TargetRule};
use crate::{
    AttachType as At, Capability, KernelVersion, ProgType as P, ProgTypes, TypeFlags as F, When,
};

// Sets of program types, by the function of the kernel that gives them their helpers.

/// Programs that get the helpers for everyone; extensions get those of what they replace.
const BASE: ProgTypes = ProgTypes::ALL.without(&[P::LircMode2, P::Ext]);
/// tc.
const TC: ProgTypes = ProgTypes::of(&[P::SchedCls, P::SchedAct]);
/// XDP.
const XDP: ProgTypes = ProgTypes::of(&[P::Xdp]);
/// tc and XDP.
const TC_XDP: ProgTypes = TC.or(XDP);
/// Packets at a cgroup.
const CG_SKB: ProgTypes = ProgTypes::of(&[P::CgroupSkb]);
/// Streams of a socket.
const SK_SKB: ProgTypes = ProgTypes::of(&[P::SkSkb]);
/// Lightweight tunnels.
const LWT: ProgTypes = ProgTypes::of(&[P::LwtIn, P::LwtOut, P::LwtXmit, P::LwtSeg6local]);
/// The tunnel hook that may rewrite packets.
const LWT_XMIT: ProgTypes = ProgTypes::of(&[P::LwtXmit]);
/// Programs with an skb that find sockets and cookies by it.
const SKB_SOCK: ProgTypes = TC.or(CG_SKB).or(SK_SKB).with(&[P::SocketFilter]);
/// Programs at a socket or packet that know socket types (`bpf_sk_base_func_proto`).
const SK_BASE: ProgTypes = SKB_SOCK.or(XDP).or(LWT).with(&[
    P::SockOps,
    P::SkMsg,
    P::CgroupSockAddr,
    P::FlowDissector,
    P::SkLookup,
]);
/// Cgroup hooks that get `bpf_get_local_storage`.
const CGROUP: ProgTypes = ProgTypes::of(&[
    P::CgroupSock,
    P::CgroupSockAddr,
    P::CgroupDevice,
    P::CgroupSysctl,
    P::CgroupSockopt,
])
.or(CGROUP_COMMON_ONLY);
/// Cgroup hooks that run for a packet, with no task of their own.
const CGROUP_COMMON_ONLY: ProgTypes = ProgTypes::of(&[P::CgroupSkb, P::SockOps]);
/// Probes, with registers or raw arguments as their context.
const PROBE: ProgTypes = ProgTypes::of(&[
    P::Kprobe,
    P::Tracepoint,
    P::PerfEvent,
    P::RawTracepoint,
    P::RawTracepointWritable,
]);
/// Programs with typed arguments, and syscall programs, which get their helpers too.
const BTF_TRACE: ProgTypes = ProgTypes::of(&[P::Tracing, P::Lsm, P::Syscall]);
/// All tracing.
const TRACE: ProgTypes = PROBE.or(BTF_TRACE);
/// LSM programs.
const LSM: ProgTypes = ProgTypes::of(&[P::Lsm]);
/// Infrared decoders.
const LIRC: ProgTypes = ProgTypes::of(&[P::LircMode2]);
/// Everyone with map helpers and the like.
const BASE_LIRC: ProgTypes = BASE.or(LIRC);
/// Everyone but tracing: gained the tracing helpers for any type in 6.16.
const NOT_TRACE: ProgTypes = BASE.less(TRACE);
/// struct_ops.
const STRUCT_OPS: ProgTypes = ProgTypes::of(&[P::StructOps]);

// Conditions.

/// Programs that a trampoline calls.
const TRAMPOLINE: When = When::AttachIn(&[
    At::TraceFentry,
    At::TraceFexit,
    At::ModifyReturn,
    At::LsmMac,
]);
/// Programs that a trampoline calls, and typed raw tracepoints.
const TRAMPOLINE_OR_RAW_TP: When = When::AttachIn(&[
    At::TraceFentry,
    At::TraceFexit,
    At::ModifyReturn,
    At::TraceRawTp,
]);
/// Iterators.
const ITER: When = When::AttachIn(&[At::TraceIter]);
/// Cgroup hooks whose return value becomes an errno.
const RETVAL: When = When::AttachNotIn(&[
    At::CgroupInetIngress,
    At::CgroupInetEgress,
    At::CgroupSockOps,
    At::CgroupUdp4Recvmsg,
    At::CgroupUdp6Recvmsg,
    At::CgroupUnixRecvmsg,
    At::CgroupInet4Getpeername,
    At::CgroupInet6Getpeername,
    At::CgroupUnixGetpeername,
    At::CgroupInet4Getsockname,
    At::CgroupInet6Getsockname,
    At::CgroupUnixGetsockname,
]);
/// Socket addresses, at hooks where the socket may be set up.
const SOCK_ADDR_OPT: When = When::AttachIn(&[
    At::CgroupInet4Bind,
    At::CgroupInet6Bind,
    At::CgroupInet4Connect,
    At::CgroupInet6Connect,
    At::CgroupUnixConnect,
    At::CgroupUdp4Recvmsg,
    At::CgroupUdp6Recvmsg,
    At::CgroupUnixRecvmsg,
    At::CgroupUdp4Sendmsg,
    At::CgroupUdp6Sendmsg,
    At::CgroupUnixSendmsg,
    At::CgroupInet4Getpeername,
    At::CgroupInet6Getpeername,
    At::CgroupUnixGetpeername,
    At::CgroupInet4Getsockname,
    At::CgroupInet6Getsockname,
    At::CgroupUnixGetsockname,
]);
/// `connect`.
const CONNECT: When = When::AttachIn(&[At::CgroupInet4Connect, At::CgroupInet6Connect]);
/// LSM programs for a cgroup.
const LSM_CGROUP: When = When::AttachIn(&[At::LsmCgroup]);
/// Iterators over sockets that are locked meanwhile.
const SOCK_ITER: When = When::IterOver(&["tcp", "unix"]);
/// LSM hooks at a socket that is locked or in the making.
const SOCKOPT_HOOKS: When = When::CgroupLsmHook(crate::attach::LSM_SOCKOPT);
/// Congestion control.
const TCP_CA: When = When::StructOpsNot {
    ops: "tcp_congestion_ops",
    member: "",
};
/// Congestion control, but not while it is being taken off.
const TCP_CA_ALIVE: When = When::StructOpsNot {
    ops: "tcp_congestion_ops",
    member: "release",
};

// Arguments.

const ANY: Arg = Arg::new(ArgKind::Anything);
const CTX: Arg = Arg::new(ArgKind::PtrToCtx);
const CTX_OR_NULL: Arg = CTX.with(F::PTR_MAYBE_NULL);
const MAP: Arg = Arg::new(ArgKind::ConstMapPtr);
const KEY: Arg = Arg::new(ArgKind::PtrToMapKey);
const VALUE: Arg = Arg::new(ArgKind::PtrToMapValue);
const VALUE_OR_NULL: Arg = VALUE.with(F::PTR_MAYBE_NULL);
const VALUE_OUT: Arg = VALUE.with(F::MEM_UNINIT).with(F::MEM_WRITE);
/// Memory without flags: must be initialized, is taken as read.
const MEM: Arg = Arg::new(ArgKind::PtrToMem);
const MEM_IN: Arg = MEM.with(F::MEM_RDONLY);
const MEM_IN_OR_NULL: Arg = MEM_IN.with(F::PTR_MAYBE_NULL);
const MEM_INOUT: Arg = MEM.with(F::MEM_WRITE);
const MEM_OUT: Arg = MEM_INOUT.with(F::MEM_UNINIT);
const SIZE: Arg = Arg::new(ArgKind::ConstSize);
const SIZE0: Arg = Arg::new(ArgKind::ConstSizeOrZero);
const ALLOC_SIZE0: Arg = Arg::new(ArgKind::ConstAllocSizeOrZero);
const U32_INOUT: Arg = MEM_INOUT.with(F::MEM_ALIGNED).fixed(4);
const U64_OUT: Arg = MEM_OUT.with(F::MEM_ALIGNED).fixed(8);
const IPHDR: Arg = MEM.fixed(20);
const IPV6HDR: Arg = MEM.fixed(40);
const TCPHDR: Arg = MEM.fixed(20);
const LOCK: Arg = Arg::new(ArgKind::PtrToSpinLock);
const TIMER: Arg = Arg::new(ArgKind::PtrToTimer);
const FUNC: Arg = Arg::new(ArgKind::PtrToFunc);
const STACK_OR_NULL: Arg = Arg::new(ArgKind::PtrToStack).with(F::PTR_MAYBE_NULL);
const CONST_STR: Arg = Arg::new(ArgKind::PtrToConstStr);
const PERCPU: Arg = Arg::new(ArgKind::PtrToPercpuBtfId);
const RECORD: Arg = Arg::new(ArgKind::PtrToRingbufMem).with(F::OBJ_RELEASE);
const SOCK_COMMON: Arg = Arg::new(ArgKind::PtrToSockCommon);
const SOCKET_OR_NULL: Arg = Arg::new(ArgKind::PtrToSocket).with(F::PTR_MAYBE_NULL);
const SOCK: Arg = Arg::new(ArgKind::PtrToBtfIdSockCommon);
const SOCK_OR_NULL: Arg = SOCK.with(F::PTR_MAYBE_NULL);
const SOCK_RELEASE: Arg = SOCK.with(F::OBJ_RELEASE);
const BTF_SOCK_OR_NULL: Arg = Arg::btf("sock_common").with(F::PTR_MAYBE_NULL);
const TASK: Arg = Arg::btf("task_struct");
const TASK_OR_NULL: Arg = TASK.with(F::PTR_MAYBE_NULL);
const INODE: Arg = Arg::btf("inode");
const INODE_OR_NULL: Arg = INODE.with(F::PTR_MAYBE_NULL);
const CGROUP_OR_NULL: Arg = Arg::btf("cgroup").with(F::PTR_MAYBE_NULL);
const SEQ_FILE: Arg = Arg::btf("seq_file");
const KPTR: Arg = Arg::new(ArgKind::KptrXchgDest);
const KPTR_NEW: Arg = Arg::new(ArgKind::PtrToBtfId)
    .with(F::PTR_MAYBE_NULL)
    .with(F::OBJ_RELEASE);
const DYNPTR: Arg = Arg::new(ArgKind::PtrToDynptr).with(F::MEM_RDONLY);
const DYNPTR_OUT: Arg = Arg::new(ArgKind::PtrToDynptr)
    .with(F::MEM_UNINIT)
    .with(F::MEM_WRITE);
const DYNPTR_LOCAL_OUT: Arg = DYNPTR_OUT.with(F::DYNPTR_TYPE_LOCAL);
const DYNPTR_RINGBUF_OUT: Arg = DYNPTR_OUT.with(F::DYNPTR_TYPE_RINGBUF);
const DYNPTR_RINGBUF_RELEASE: Arg = Arg::new(ArgKind::PtrToDynptr)
    .with(F::DYNPTR_TYPE_RINGBUF)
    .with(F::OBJ_RELEASE);

// Results.

const INT: Ret = Ret::new(RetKind::Integer);
const VOID: Ret = Ret::new(RetKind::Void);
const MAP_VALUE: Ret = Ret::new(RetKind::PtrToMapValue);
const MAP_VALUE_OR_NULL: Ret = MAP_VALUE.or_null();
const SOCKET: Ret = Ret::new(RetKind::PtrToSocket).or_null();
const TCP_SOCK: Ret = Ret::new(RetKind::PtrToTcpSock).or_null();
const SOCK_COMMON_RET: Ret = Ret::new(RetKind::PtrToSockCommon).or_null();
const RECORD_OR_NULL: Ret = Ret::new(RetKind::PtrToMem).with(F::MEM_RINGBUF).or_null();
const MEM_OR_NULL: Ret = Ret::new(RetKind::PtrToMem).or_null();
const PERCPU_MEM: Ret = Ret::new(RetKind::PtrToMemOrBtfId).with(F::MEM_RDONLY);

// Prototypes that several rows share.

const fn int(args: &[Arg]) -> Proto {
    Proto::new(args, INT)
}

/// `bpf_perf_event_output` and its kin for a context.
const PERF_OUTPUT: Proto = int(&[CTX, MAP, ANY, MEM_IN, SIZE0]).gpl();
/// Reads memory of any address.
const PROBE_READ: Proto = int(&[MEM_OUT, SIZE0, ANY]).gpl();
/// Reads from a packet.
const LOAD_BYTES: Proto = int(&[CTX, ANY, MEM_OUT, SIZE]);
/// Reads from a packet, from a chosen header on.
const LOAD_BYTES_RELATIVE: Proto = int(&[CTX, ANY, MEM_OUT, SIZE, ANY]);
/// Looks a socket up.
const SK_LOOKUP: Proto = Proto::new(&[CTX, MEM_IN, SIZE0, ANY, ANY], SOCKET);
/// Looks a socket up, also one that is no full socket.
const SKC_LOOKUP: Proto = Proto::new(&[CTX, MEM_IN, SIZE0, ANY, ANY], SOCK_COMMON_RET);
/// Sets a socket option.
const SETSOCKOPT: Proto = int(&[SOCK, ANY, ANY, MEM_IN, SIZE]);
/// Reads a socket option.
const GETSOCKOPT: Proto = int(&[SOCK, ANY, ANY, MEM_OUT, SIZE]);
/// Sets an option of the context's socket.
const CTX_SETSOCKOPT: Proto = int(&[CTX, ANY, ANY, MEM_IN, SIZE]);
/// Reads an option of the context's socket.
const CTX_GETSOCKOPT: Proto = int(&[CTX, ANY, ANY, MEM_OUT, SIZE]);

/// Pushes a header on a tunnel packet.
const PUSH_ENCAP: Proto = int(&[CTX, ANY, MEM_IN, SIZE]);

const fn skc_to(name: &'static str, arg: Arg) -> Proto {
    Proto::new(&[arg], Ret::btf(name).or_null())
}

// Offers that several rows share.

const fn to(types: ProgTypes, proto: Proto) -> Offer {
    Offer::new(types, proto)
}

/// To everyone.
const fn base(proto: Proto) -> Offer {
    to(BASE, proto)
}

/// To everyone of a process with `CAP_BPF`.
const fn bpf(proto: Proto) -> Offer {
    base(proto).needs(Capability::Bpf)
}

/// To everyone of a process with `CAP_PERFMON`.
const fn perfmon(proto: Proto) -> Offer {
    base(proto).needs(Capability::Perfmon)
}

const fn row(
    id: u32,
    name: &'static str,
    (major, minor): (u8, u8),
    effects: Effects,
    offers: &'static [Offer],
) -> Helper {
    Helper {
        id,
        name,
        since: KernelVersion(major, minor),
        effects,
        offers,
    }
}

const NIL: Effects = Effects::NONE;
const PKT: Effects = Effects::CHANGES_PACKET;
const ACQ: Effects = Effects::ACQUIRES;
const CAST: Effects = Effects::CASTS;
const SYNC: Effects = Effects::SYNC_CALLBACK;
const ASYNC: Effects = Effects::ASYNC_CALLBACK;
const SIZED: Effects = Effects::RETURNS_UP_TO_SIZE;
const CPU: Effects = Effects::RETURNS_CPU;
const STORAGE: Effects = Effects::STORAGE_GET;

/// Every helper of Linux 6.18; the helper of number n stands at index n - 1.
#[rustfmt::skip]
pub static HELPERS: [Helper; 211] = [
    row(1, "map_lookup_elem", (3, 19), NIL, &[to(BASE_LIRC, Proto::new(&[MAP, KEY], MAP_VALUE_OR_NULL).pkt())]),
    row(2, "map_update_elem", (3, 19), NIL, &[to(BASE_LIRC, int(&[MAP, KEY, VALUE, ANY]).pkt())]),
    row(3, "map_delete_elem", (3, 19), NIL, &[to(BASE_LIRC, int(&[MAP, KEY]).pkt())]),
    row(4, "probe_read", (4, 1), NIL, &[to(TRACE, PROBE_READ)]),
    row(5, "ktime_get_ns", (4, 1), NIL, &[to(BASE_LIRC, int(&[]))]),
    row(6, "trace_printk", (4, 1), NIL, &[to(BASE_LIRC, int(&[MEM_IN, SIZE]).gpl()).needs(Capability::Perfmon)]),
    row(7, "get_prandom_u32", (4, 1), NIL, &[to(BASE_LIRC, int(&[]))]),
    row(8, "get_smp_processor_id", (4, 1), CPU, &[
        to(TRACE.or(TC_XDP).or(LWT), int(&[]).fastcall()),
        base(int(&[])),
    ]),
    row(9, "skb_store_bytes", (4, 1), PKT, &[to(TC.or(LWT_XMIT).or(SK_SKB), int(&[CTX, ANY, MEM_IN, SIZE, ANY]))]),
    row(10, "l3_csum_replace", (4, 1), PKT, &[to(TC.or(LWT_XMIT), int(&[CTX, ANY, ANY, ANY, ANY]))]),
    row(11, "l4_csum_replace", (4, 1), PKT, &[to(TC.or(LWT_XMIT), int(&[CTX, ANY, ANY, ANY, ANY]))]),
    row(12, "tail_call", (4, 2), PKT, &[to(BASE_LIRC, Proto::new(&[CTX, MAP, ANY], VOID))]),
    row(13, "clone_redirect", (4, 2), PKT, &[to(TC.or(LWT_XMIT), int(&[CTX, ANY, ANY]))]),
    row(14, "get_current_pid_tgid", (4, 2), NIL, &[to(TRACE, int(&[])), to(NOT_TRACE, int(&[])).since(6, 10)]),
    row(15, "get_current_uid_gid", (4, 2), NIL, &[
        to(TRACE.or(CGROUP.less(CGROUP_COMMON_ONLY)).with(&[P::SkMsg]), int(&[])),
        base(int(&[])).since(6, 16),
    ]),
    row(16, "get_current_comm", (4, 2), NIL, &[
        to(TRACE.or(CGROUP.less(CGROUP_COMMON_ONLY)), int(&[MEM_OUT, SIZE])),
        perfmon(int(&[MEM_OUT, SIZE])).since(6, 16),
    ]),
    row(17, "get_cgroup_classid", (4, 3), NIL, &[
        to(TC.or(LWT), int(&[CTX])),
        to(CGROUP.less(CGROUP_COMMON_ONLY).with(&[P::SkMsg]), int(&[])),
        bpf(int(&[])).since(6, 16),
    ]),
    row(18, "skb_vlan_push", (4, 3), PKT, &[to(TC, int(&[CTX, ANY, ANY]))]),
    row(19, "skb_vlan_pop", (4, 3), PKT, &[to(TC, int(&[CTX]))]),
    row(20, "skb_get_tunnel_key", (4, 3), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, MEM_OUT, SIZE, ANY]))]),
    row(21, "skb_set_tunnel_key", (4, 3), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, MEM_IN, SIZE, ANY]))]),
    row(22, "perf_event_read", (4, 3), NIL, &[
        to(TRACE, int(&[MAP, ANY]).gpl()),
        perfmon(int(&[MAP, ANY]).gpl()).since(6, 16),
    ]),
    row(23, "redirect", (4, 4), NIL, &[to(TC_XDP.or(LWT_XMIT), int(&[ANY, ANY]))]),
    row(24, "get_route_realm", (4, 4), NIL, &[to(TC.or(LWT), int(&[CTX]))]),
    row(25, "perf_event_output", (4, 4), NIL, &[
        to(SK_BASE.or(CGROUP).or(TRACE).without(&[P::FlowDissector]), PERF_OUTPUT),
    ]),
    row(26, "skb_load_bytes", (4, 5), NIL, &[
        to(SKB_SOCK.or(LWT).with(&[P::SkReuseport, P::FlowDissector]), LOAD_BYTES),
    ]),
    row(27, "get_stackid", (4, 6), NIL, &[
        to(TRACE.without(&[P::PerfEvent]), int(&[CTX, MAP, ANY]).gpl()),
        to(ProgTypes::of(&[P::PerfEvent]), int(&[CTX, MAP, ANY])),
    ]),
    row(28, "csum_diff", (4, 6), NIL, &[
        to(TC_XDP.or(LWT), int(&[MEM_IN_OR_NULL, SIZE0, MEM_IN_OR_NULL, SIZE0, ANY]).pkt()),
    ]),
    row(29, "skb_get_tunnel_opt", (4, 6), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, MEM_OUT, SIZE]))]),
    row(30, "skb_set_tunnel_opt", (4, 6), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, MEM_IN, SIZE]))]),
    row(31, "skb_change_proto", (4, 8), PKT, &[to(TC, int(&[CTX, ANY, ANY]))]),
    row(32, "skb_change_type", (4, 8), NIL, &[to(TC, int(&[CTX, ANY]))]),
    row(33, "skb_under_cgroup", (4, 8), NIL, &[to(TC.or(LWT), int(&[CTX, MAP, ANY]))]),
    row(34, "get_hash_recalc", (4, 8), NIL, &[to(TC.or(LWT), int(&[CTX]))]),
    row(35, "get_current_task", (4, 8), NIL, &[perfmon(int(&[]).gpl())]),
    row(36, "probe_write_user", (4, 8), NIL, &[
        to(TRACE, int(&[ANY, MEM_IN, SIZE]).gpl()).needs(Capability::SysAdmin),
    ]),
    row(37, "current_task_under_cgroup", (4, 9), NIL, &[
        to(TRACE.or(CGROUP.less(CGROUP_COMMON_ONLY)), int(&[MAP, ANY])),
        bpf(int(&[MAP, ANY])).since(6, 16),
    ]),
    row(38, "skb_change_tail", (4, 9), PKT, &[to(TC.or(LWT_XMIT).or(SK_SKB), int(&[CTX, ANY, ANY]))]),
    row(39, "skb_pull_data", (4, 9), PKT, &[to(TC.or(LWT).or(SK_SKB), int(&[CTX, ANY]))]),
    row(40, "csum_update", (4, 9), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, ANY]))]),
    row(41, "set_hash_invalid", (4, 9), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX]))]),
    row(42, "get_numa_node_id", (4, 10), NIL, &[base(int(&[]))]),
    row(43, "skb_change_head", (4, 10), PKT, &[to(TC.or(LWT_XMIT).or(SK_SKB), int(&[CTX, ANY, ANY]))]),
    row(44, "xdp_adjust_head", (4, 10), PKT, &[to(XDP, int(&[CTX, ANY]))]),
    row(45, "probe_read_str", (4, 11), SIZED, &[to(TRACE, PROBE_READ)]),
    row(46, "get_socket_cookie", (4, 12), NIL, &[
        to(SKB_SOCK.with(&[P::CgroupSock, P::CgroupSockAddr, P::SockOps]), int(&[CTX])),
        to(BTF_TRACE.with(&[P::SkReuseport]), int(&[SOCK_OR_NULL])),
    ]),
    row(47, "get_socket_uid", (4, 12), NIL, &[to(SKB_SOCK, int(&[CTX]))]),
    row(48, "set_hash", (4, 13), NIL, &[to(TC, int(&[CTX, ANY]))]),
    row(49, "setsockopt", (4, 13), NIL, &[
        to(ProgTypes::of(&[P::SockOps]), CTX_SETSOCKOPT),
        to(ProgTypes::of(&[P::CgroupSockAddr]), CTX_SETSOCKOPT).when(SOCK_ADDR_OPT),
        to(ProgTypes::of(&[P::CgroupSockopt]), SETSOCKOPT).when(When::AttachIn(&[At::CgroupSetsockopt])),
        to(STRUCT_OPS, SETSOCKOPT).when(TCP_CA_ALIVE),
        to(ProgTypes::of(&[P::Tracing]), SETSOCKOPT).when(SOCK_ITER),
        to(LSM, SETSOCKOPT).when(SOCKOPT_HOOKS),
    ]),
    row(50, "skb_adjust_room", (4, 13), PKT, &[to(TC.or(SK_SKB), int(&[CTX, ANY, ANY, ANY]))]),
    row(51, "redirect_map", (4, 14), NIL, &[to(XDP, int(&[MAP, ANY, ANY]))]),
    row(52, "sk_redirect_map", (4, 14), NIL, &[to(SK_SKB, int(&[CTX, MAP, ANY, ANY]))]),
    row(53, "sock_map_update", (4, 14), NIL, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, MAP, KEY, ANY]).pkt())]),
    row(54, "xdp_adjust_meta", (4, 15), PKT, &[to(XDP, int(&[CTX, ANY]))]),
    row(55, "perf_event_read_value", (4, 15), NIL, &[
        to(TRACE, int(&[MAP, ANY, MEM_OUT, SIZE]).gpl()),
        perfmon(int(&[MAP, ANY, MEM_OUT, SIZE]).gpl()).since(6, 16),
    ]),
    row(56, "perf_prog_read_value", (4, 15), NIL, &[
        to(ProgTypes::of(&[P::PerfEvent]), int(&[CTX, MEM_OUT, SIZE]).gpl()),
    ]),
    row(57, "getsockopt", (4, 15), NIL, &[
        to(ProgTypes::of(&[P::SockOps]), CTX_GETSOCKOPT),
        to(ProgTypes::of(&[P::CgroupSockAddr]), CTX_GETSOCKOPT).when(SOCK_ADDR_OPT),
        to(ProgTypes::of(&[P::CgroupSockopt]), GETSOCKOPT).when(When::AttachIn(&[At::CgroupSetsockopt])),
        to(STRUCT_OPS, GETSOCKOPT).when(TCP_CA_ALIVE),
        to(ProgTypes::of(&[P::Tracing]), GETSOCKOPT).when(SOCK_ITER),
        to(LSM, GETSOCKOPT).when(SOCKOPT_HOOKS),
    ]),
    row(58, "override_return", (4, 16), NIL, &[to(ProgTypes::of(&[P::Kprobe]), int(&[CTX, ANY]).gpl())]),
    row(59, "sock_ops_cb_flags_set", (4, 16), NIL, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, ANY]))]),
    row(60, "msg_redirect_map", (4, 17), NIL, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, MAP, ANY, ANY]))]),
    row(61, "msg_apply_bytes", (4, 17), NIL, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, ANY]))]),
    row(62, "msg_cork_bytes", (4, 17), NIL, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, ANY]))]),
    row(63, "msg_pull_data", (4, 17), PKT, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, ANY, ANY, ANY]))]),
    row(64, "bind", (4, 17), NIL, &[to(ProgTypes::of(&[P::CgroupSockAddr]), int(&[CTX, MEM_IN, SIZE])).when(CONNECT)]),
    row(65, "xdp_adjust_tail", (4, 18), PKT, &[to(XDP, int(&[CTX, ANY]))]),
    row(66, "skb_get_xfrm_state", (4, 18), NIL, &[to(TC, int(&[CTX, ANY, MEM_OUT, SIZE, ANY]))]),
    row(67, "get_stack", (4, 18), SIZED, &[
        to(ProgTypes::of(&[P::Kprobe]), int(&[CTX, MEM_OUT, SIZE0, ANY]).gpl().sleeps()).when(When::Sleepable),
        to(TRACE, int(&[CTX, MEM_OUT, SIZE0, ANY]).gpl()),
    ]),
    row(68, "skb_load_bytes_relative", (4, 18), NIL, &[
        to(SKB_SOCK.less(SK_SKB).with(&[P::SkReuseport]), LOAD_BYTES_RELATIVE),
    ]),
    row(69, "fib_lookup", (4, 18), NIL, &[to(TC_XDP, int(&[CTX, MEM_INOUT, SIZE, ANY]).gpl())]),
    row(70, "sock_hash_update", (4, 18), NIL, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, MAP, KEY, ANY]).pkt())]),
    row(71, "msg_redirect_hash", (4, 18), NIL, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, MAP, KEY, ANY]))]),
    row(72, "sk_redirect_hash", (4, 18), NIL, &[to(SK_SKB, int(&[CTX, MAP, KEY, ANY]))]),
    row(73, "lwt_push_encap", (4, 18), PKT, &[to(LWT_XMIT.with(&[P::LwtIn]), PUSH_ENCAP)]),
    row(74, "lwt_seg6_store_bytes", (4, 18), PKT, &[to(ProgTypes::of(&[P::LwtSeg6local]), PUSH_ENCAP)]),
    row(75, "lwt_seg6_adjust_srh", (4, 18), PKT, &[to(ProgTypes::of(&[P::LwtSeg6local]), int(&[CTX, ANY, ANY]))]),
    row(76, "lwt_seg6_action", (4, 18), PKT, &[to(ProgTypes::of(&[P::LwtSeg6local]), PUSH_ENCAP)]),
    row(77, "rc_repeat", (4, 18), NIL, &[to(LIRC, int(&[CTX]).gpl())]),
    row(78, "rc_keydown", (4, 18), NIL, &[to(LIRC, int(&[CTX, ANY, ANY, ANY]).gpl())]),
    row(79, "skb_cgroup_id", (4, 18), NIL, &[to(TC.or(CG_SKB), int(&[CTX]))]),
    row(80, "get_current_cgroup_id", (4, 18), NIL, &[bpf(int(&[]))]),
    row(81, "get_local_storage", (4, 19), NIL, &[
        to(CGROUP, Proto::new(&[MAP, ANY], MAP_VALUE)),
        to(LSM, Proto::new(&[MAP, ANY], MAP_VALUE)).when(LSM_CGROUP),
    ]),
    row(82, "sk_select_reuseport", (4, 19), NIL, &[to(ProgTypes::of(&[P::SkReuseport]), int(&[CTX, MAP, KEY, ANY]))]),
    row(83, "skb_ancestor_cgroup_id", (4, 19), NIL, &[to(TC.or(CG_SKB), int(&[CTX, ANY]))]),
    row(84, "sk_lookup_tcp", (4, 20), ACQ, &[
        to(TC_XDP.or(CG_SKB).or(SK_SKB), SK_LOOKUP.pkt()),
        to(ProgTypes::of(&[P::CgroupSockAddr]), SK_LOOKUP),
    ]),
    row(85, "sk_lookup_udp", (4, 20), ACQ, &[
        to(TC_XDP.or(CG_SKB).or(SK_SKB), SK_LOOKUP.pkt()),
        to(ProgTypes::of(&[P::CgroupSockAddr]), SK_LOOKUP),
    ]),
    row(86, "sk_release", (4, 20), NIL, &[
        to(TC_XDP.or(CG_SKB).or(SK_SKB).with(&[P::CgroupSockAddr, P::SkLookup]), int(&[SOCK_RELEASE])),
    ]),
    row(87, "map_push_elem", (4, 20), NIL, &[to(BASE_LIRC, int(&[MAP, VALUE, ANY]).pkt())]),
    row(88, "map_pop_elem", (4, 20), NIL, &[to(BASE_LIRC, int(&[MAP, VALUE_OUT]))]),
    row(89, "map_peek_elem", (4, 20), NIL, &[to(BASE_LIRC, int(&[MAP, VALUE_OUT]))]),
    row(90, "msg_push_data", (4, 20), PKT, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, ANY, ANY, ANY]))]),
    row(91, "msg_pop_data", (5, 0), PKT, &[to(ProgTypes::of(&[P::SkMsg]), int(&[CTX, ANY, ANY, ANY]))]),
    row(92, "rc_pointer_rel", (5, 0), NIL, &[to(LIRC, int(&[CTX, ANY, ANY]).gpl())]),
    row(93, "spin_lock", (5, 1), NIL, &[bpf(Proto::new(&[LOCK], VOID))]),
    row(94, "spin_unlock", (5, 1), NIL, &[bpf(Proto::new(&[LOCK], VOID))]),
    row(95, "sk_fullsock", (5, 1), CAST, &[to(TC.or(CG_SKB), Proto::new(&[SOCK_COMMON], SOCKET))]),
    row(96, "tcp_sock", (5, 1), CAST, &[
        to(TC.or(CG_SKB).with(&[P::SockOps, P::CgroupSockopt]), Proto::new(&[SOCK_COMMON], TCP_SOCK)),
    ]),
    row(97, "skb_ecn_set_ce", (5, 1), NIL, &[to(TC.or(CG_SKB), int(&[CTX]))]),
    row(98, "get_listener_sock", (5, 1), NIL, &[to(TC.or(CG_SKB), Proto::new(&[SOCK_COMMON], SOCKET))]),
    row(99, "skc_lookup_tcp", (5, 2), ACQ, &[
        to(TC_XDP.or(CG_SKB).or(SK_SKB), SKC_LOOKUP.pkt()),
        to(ProgTypes::of(&[P::CgroupSockAddr]), SKC_LOOKUP),
    ]),
    row(100, "tcp_check_syncookie", (5, 2), NIL, &[to(TC_XDP, int(&[SOCK, MEM_IN, SIZE, MEM_IN, SIZE]).gpl().pkt())]),
    row(101, "sysctl_get_name", (5, 2), NIL, &[to(ProgTypes::of(&[P::CgroupSysctl]), int(&[CTX, MEM_INOUT, SIZE, ANY]))]),
    row(102, "sysctl_get_current_value", (5, 2), NIL, &[to(ProgTypes::of(&[P::CgroupSysctl]), int(&[CTX, MEM_OUT, SIZE]))]),
    row(103, "sysctl_get_new_value", (5, 2), NIL, &[to(ProgTypes::of(&[P::CgroupSysctl]), int(&[CTX, MEM_OUT, SIZE]))]),
    row(104, "sysctl_set_new_value", (5, 2), NIL, &[to(ProgTypes::of(&[P::CgroupSysctl]), int(&[CTX, MEM_IN, SIZE]))]),
    row(105, "strtol", (5, 2), NIL, &[base(int(&[MEM_IN, SIZE, ANY, U64_OUT]))]),
    row(106, "strtoul", (5, 2), NIL, &[base(int(&[MEM_IN, SIZE, ANY, U64_OUT]))]),
    row(107, "sk_storage_get", (5, 2), STORAGE, &[
        to(ProgTypes::of(&[P::CgroupSock]), Proto::new(&[MAP, CTX, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)),
        to(
            TC.or(CG_SKB).or(LSM).with(&[P::CgroupSockAddr, P::SockOps, P::SkMsg, P::CgroupSockopt]),
            Proto::new(&[MAP, SOCK, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL),
        ),
        to(STRUCT_OPS, Proto::new(&[MAP, SOCK, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)).when(TCP_CA),
        to(
            BTF_TRACE,
            Proto::new(&[MAP, BTF_SOCK_OR_NULL, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL).only(TargetRule::SkStorageTracing),
        ),
    ]),
    row(108, "sk_storage_delete", (5, 2), NIL, &[
        to(
            TC.or(CG_SKB).or(LSM).with(&[P::CgroupSockAddr, P::SockOps, P::SkMsg, P::CgroupSockopt]),
            int(&[MAP, SOCK]),
        ),
        to(STRUCT_OPS, int(&[MAP, SOCK])).when(TCP_CA),
        to(BTF_TRACE, int(&[MAP, BTF_SOCK_OR_NULL]).only(TargetRule::SkStorageTracing)),
    ]),
    row(109, "send_signal", (5, 3), NIL, &[to(TRACE, int(&[ANY])), perfmon(int(&[ANY])).since(6, 16)]),
    row(110, "tcp_gen_syncookie", (5, 3), NIL, &[to(TC_XDP, int(&[SOCK, MEM_IN, SIZE, MEM_IN, SIZE]).gpl().pkt())]),
    row(111, "skb_output", (5, 5), NIL, &[to(BTF_TRACE, int(&[Arg::btf("sk_buff"), MAP, ANY, MEM_IN, SIZE0]).gpl())]),
    row(112, "probe_read_user", (5, 5), NIL, &[perfmon(PROBE_READ)]),
    row(113, "probe_read_kernel", (5, 5), NIL, &[perfmon(PROBE_READ)]),
    row(114, "probe_read_user_str", (5, 5), SIZED, &[perfmon(PROBE_READ)]),
    row(115, "probe_read_kernel_str", (5, 5), SIZED, &[perfmon(PROBE_READ)]),
    row(116, "tcp_send_ack", (5, 6), NIL, &[to(STRUCT_OPS, int(&[Arg::btf("tcp_sock"), ANY])).when(TCP_CA)]),
    row(117, "send_signal_thread", (5, 6), NIL, &[to(TRACE, int(&[ANY])), perfmon(int(&[ANY])).since(6, 16)]),
    row(118, "jiffies64", (5, 6), NIL, &[bpf(int(&[]))]),
    row(119, "read_branch_records", (5, 6), NIL, &[
        to(ProgTypes::of(&[P::PerfEvent]), int(&[CTX, MEM_INOUT.with(F::PTR_MAYBE_NULL), SIZE0, ANY]).gpl()),
    ]),
    row(120, "get_ns_current_pid_tgid", (5, 7), NIL, &[
        to(TRACE, int(&[ANY, ANY, MEM_OUT, SIZE])),
        to(NOT_TRACE, int(&[ANY, ANY, MEM_OUT, SIZE])).since(6, 10),
    ]),
    row(121, "xdp_output", (5, 7), NIL, &[to(BTF_TRACE, int(&[Arg::btf("xdp_buff"), MAP, ANY, MEM_IN, SIZE0]).gpl())]),
    row(122, "get_netns_cookie", (5, 7), NIL, &[
        to(ProgTypes::of(&[P::CgroupSock, P::CgroupSockAddr, P::SockOps, P::SkMsg, P::CgroupSockopt]), int(&[CTX_OR_NULL])),
        to(TC.or(CG_SKB).with(&[P::SocketFilter]), int(&[CTX_OR_NULL])).since(6, 15),
    ]),
    row(123, "get_current_ancestor_cgroup_id", (5, 7), NIL, &[bpf(int(&[ANY]))]),
    row(124, "sk_assign", (5, 7), NIL, &[
        to(TC, int(&[CTX, SOCK, ANY])),
        to(ProgTypes::of(&[P::SkLookup]), int(&[CTX, SOCKET_OR_NULL, ANY])),
    ]),
    row(125, "ktime_get_boot_ns", (5, 8), NIL, &[to(BASE_LIRC, int(&[]))]),
    row(126, "seq_printf", (5, 8), NIL, &[
        to(BTF_TRACE, int(&[SEQ_FILE, MEM_IN, SIZE, MEM_IN_OR_NULL, SIZE0]).gpl()).when(ITER),
    ]),
    row(127, "seq_write", (5, 8), NIL, &[to(BTF_TRACE, int(&[SEQ_FILE, MEM_IN, SIZE0]).gpl()).when(ITER)]),
    row(128, "sk_cgroup_id", (5, 8), NIL, &[to(CG_SKB, int(&[SOCK]))]),
    row(129, "sk_ancestor_cgroup_id", (5, 8), NIL, &[to(CG_SKB, int(&[SOCK, ANY]))]),
    row(130, "ringbuf_output", (5, 8), NIL, &[base(int(&[MAP, MEM_IN, SIZE0, ANY]))]),
    row(131, "ringbuf_reserve", (5, 8), ACQ, &[base(Proto::new(&[MAP, ALLOC_SIZE0, ANY], RECORD_OR_NULL))]),
    row(132, "ringbuf_submit", (5, 8), NIL, &[base(Proto::new(&[RECORD, ANY], VOID))]),
    row(133, "ringbuf_discard", (5, 8), NIL, &[base(Proto::new(&[RECORD, ANY], VOID))]),
    row(134, "ringbuf_query", (5, 8), NIL, &[base(int(&[MAP, ANY]))]),
    row(135, "csum_level", (5, 8), NIL, &[to(TC.or(LWT_XMIT), int(&[CTX, ANY]))]),
    row(136, "skc_to_tcp6_sock", (5, 9), CAST, &[
        to(BTF_TRACE, skc_to("tcp6_sock", SOCK)),
        to(SK_BASE, skc_to("tcp6_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(137, "skc_to_tcp_sock", (5, 9), CAST, &[
        to(BTF_TRACE, skc_to("tcp_sock", SOCK)),
        to(SK_BASE, skc_to("tcp_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(138, "skc_to_tcp_timewait_sock", (5, 9), CAST, &[
        to(BTF_TRACE, skc_to("tcp_timewait_sock", SOCK)),
        to(SK_BASE, skc_to("tcp_timewait_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(139, "skc_to_tcp_request_sock", (5, 9), CAST, &[
        to(BTF_TRACE, skc_to("tcp_request_sock", SOCK)),
        to(SK_BASE, skc_to("tcp_request_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(140, "skc_to_udp6_sock", (5, 9), CAST, &[
        to(BTF_TRACE, skc_to("udp6_sock", SOCK)),
        to(SK_BASE, skc_to("udp6_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(141, "get_task_stack", (5, 9), SIZED, &[
        to(TRACE, int(&[TASK, MEM_OUT, SIZE0, ANY]).sleeps()).when(When::Sleepable),
        to(TRACE, int(&[TASK, MEM_OUT, SIZE0, ANY])),
        perfmon(int(&[TASK, MEM_OUT, SIZE0, ANY]).sleeps()).when(When::Sleepable).since(6, 16),
        perfmon(int(&[TASK, MEM_OUT, SIZE0, ANY])).since(6, 16),
    ]),
    row(142, "load_hdr_opt", (5, 10), NIL, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, MEM_INOUT, SIZE, ANY]))]),
    row(143, "store_hdr_opt", (5, 10), PKT, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, MEM_IN, SIZE, ANY]))]),
    row(144, "reserve_hdr_opt", (5, 10), NIL, &[to(ProgTypes::of(&[P::SockOps]), int(&[CTX, ANY, ANY]))]),
    row(145, "inode_storage_get", (5, 10), STORAGE, &[
        to(LSM, Proto::new(&[MAP, INODE_OR_NULL, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)),
    ]),
    row(146, "inode_storage_delete", (5, 10), NIL, &[to(LSM, int(&[MAP, INODE_OR_NULL]))]),
    row(147, "d_path", (5, 10), NIL, &[to(BTF_TRACE, int(&[Arg::btf("path"), MEM_INOUT, SIZE0]).only(TargetRule::DPath))]),
    row(148, "copy_from_user", (5, 10), NIL, &[
        to(TRACE, int(&[MEM_OUT, SIZE0, ANY]).sleeps()),
        perfmon(int(&[MEM_OUT, SIZE0, ANY]).sleeps()).since(6, 16),
    ]),
    row(149, "snprintf_btf", (5, 10), NIL, &[perfmon(int(&[MEM_INOUT, SIZE, MEM_IN, SIZE, ANY]))]),
    row(150, "seq_printf_btf", (5, 10), NIL, &[to(BTF_TRACE, int(&[SEQ_FILE, MEM_IN, SIZE0, ANY]).gpl()).when(ITER)]),
    row(151, "skb_cgroup_classid", (5, 10), NIL, &[to(TC, int(&[CTX]))]),
    row(152, "redirect_neigh", (5, 10), NIL, &[to(TC, int(&[ANY, MEM_IN_OR_NULL, SIZE0, ANY]))]),
    row(153, "per_cpu_ptr", (5, 10), NIL, &[bpf(Proto::new(&[PERCPU, ANY], PERCPU_MEM.or_null()))]),
    row(154, "this_cpu_ptr", (5, 10), NIL, &[bpf(Proto::new(&[PERCPU], PERCPU_MEM))]),
    row(155, "redirect_peer", (5, 10), NIL, &[to(TC, int(&[ANY, ANY]))]),
    row(156, "task_storage_get", (5, 11), STORAGE, &[
        to(TRACE.or(STRUCT_OPS), Proto::new(&[MAP, TASK_OR_NULL, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)),
        bpf(Proto::new(&[MAP, TASK_OR_NULL, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)).since(6, 16),
    ]),
    row(157, "task_storage_delete", (5, 11), NIL, &[
        to(TRACE.or(STRUCT_OPS), int(&[MAP, TASK_OR_NULL])),
        bpf(int(&[MAP, TASK_OR_NULL])).since(6, 16),
    ]),
    row(158, "get_current_task_btf", (5, 11), NIL, &[
        perfmon(Proto::new(&[], Ret::btf("task_struct").with(F::PTR_TRUSTED)).gpl()),
    ]),
    row(159, "bprm_opts_set", (5, 11), NIL, &[to(LSM, int(&[Arg::btf("linux_binprm"), ANY]))]),
    row(160, "ktime_get_coarse_ns", (5, 11), NIL, &[
        to(SK_BASE.with(&[P::CgroupSock, P::CgroupSysctl, P::SkReuseport]), int(&[])),
        to(STRUCT_OPS, int(&[])).when(TCP_CA),
    ]),
    row(161, "ima_inode_hash", (5, 11), NIL, &[to(LSM, int(&[INODE, MEM_OUT, SIZE]).sleeps().only(TargetRule::SleepableLsmHook))]),
    row(162, "sock_from_file", (5, 11), NIL, &[to(BTF_TRACE, Proto::new(&[Arg::btf("file")], Ret::btf("socket").or_null()))]),
    row(163, "check_mtu", (5, 12), NIL, &[to(TC_XDP, int(&[CTX, ANY, U32_INOUT, ANY, ANY]).gpl())]),
    row(164, "for_each_map_elem", (5, 13), SYNC, &[bpf(int(&[MAP, FUNC, STACK_OR_NULL, ANY]))]),
    row(165, "snprintf", (5, 13), NIL, &[
        perfmon(int(&[MEM_INOUT.with(F::PTR_MAYBE_NULL), SIZE0, CONST_STR, MEM_IN_OR_NULL, SIZE0]).gpl()),
    ]),
    row(166, "sys_bpf", (5, 14), NIL, &[
        to(ProgTypes::of(&[P::Syscall]), int(&[ANY, MEM_IN, SIZE]).sleeps()).needs(Capability::Perfmon),
    ]),
    row(167, "btf_find_by_name_kind", (5, 14), NIL, &[
        to(ProgTypes::of(&[P::Syscall]), int(&[MEM_IN, SIZE, ANY, ANY]).sleeps()),
    ]),
    row(168, "sys_close", (5, 14), NIL, &[to(ProgTypes::of(&[P::Syscall]), int(&[ANY]).sleeps())]),
    row(169, "timer_init", (5, 15), NIL, &[bpf(int(&[TIMER, MAP, ANY]).gpl())]),
    row(170, "timer_set_callback", (5, 15), ASYNC, &[bpf(int(&[TIMER, FUNC]).gpl())]),
    row(171, "timer_start", (5, 15), NIL, &[bpf(int(&[TIMER, ANY, ANY]).gpl())]),
    row(172, "timer_cancel", (5, 15), NIL, &[bpf(int(&[TIMER]).gpl())]),
    row(173, "get_func_ip", (5, 15), NIL, &[
        to(ProgTypes::of(&[P::Kprobe]), int(&[CTX])).when(When::AttachIn(&[
            At::TraceKprobeMulti,
            At::TraceKprobeSession,
            At::TraceUprobeMulti,
            At::TraceUprobeSession,
        ])),
        to(TRACE, int(&[CTX]).gpl()),
    ]),
    row(174, "get_attach_cookie", (5, 15), NIL, &[
        to(PROBE, int(&[CTX])),
        to(ProgTypes::of(&[P::Tracing]), int(&[CTX])).when(TRAMPOLINE_OR_RAW_TP),
        to(LSM, int(&[CTX])).when(TRAMPOLINE),
    ]),
    row(175, "task_pt_regs", (5, 15), NIL, &[perfmon(Proto::new(&[TASK], Ret::btf("pt_regs")).gpl())]),
    row(176, "get_branch_snapshot", (5, 16), NIL, &[
        to(TRACE, int(&[MEM_OUT, SIZE0]).gpl()),
        perfmon(int(&[MEM_OUT, SIZE0]).gpl()).since(6, 16),
    ]),
    row(177, "trace_vprintk", (5, 16), NIL, &[perfmon(int(&[MEM_IN, SIZE, MEM_IN_OR_NULL, SIZE0]).gpl())]),
    row(178, "skc_to_unix_sock", (5, 16), CAST, &[
        to(BTF_TRACE, skc_to("unix_sock", SOCK)),
        to(SK_BASE, skc_to("unix_sock", SOCK)).needs(Capability::Perfmon),
    ]),
    row(179, "kallsyms_lookup_name", (5, 16), NIL, &[
        to(ProgTypes::of(&[P::Syscall]), int(&[MEM, SIZE0, ANY, U64_OUT])),
    ]),
    row(180, "find_vma", (5, 17), SYNC, &[
        to(TRACE, int(&[TASK, ANY, FUNC, STACK_OR_NULL, ANY])),
        perfmon(int(&[TASK, ANY, FUNC, STACK_OR_NULL, ANY])).since(6, 16),
    ]),
    row(181, "loop", (5, 17), SYNC, &[bpf(int(&[ANY, FUNC, STACK_OR_NULL, ANY]))]),
    row(182, "strncmp", (5, 17), NIL, &[base(int(&[MEM_IN, SIZE, CONST_STR]))]),
    row(183, "get_func_arg", (5, 17), NIL, &[to(BTF_TRACE, int(&[CTX, ANY, U64_OUT])).when(TRAMPOLINE)]),
    row(184, "get_func_ret", (5, 17), NIL, &[to(BTF_TRACE, int(&[CTX, U64_OUT])).when(TRAMPOLINE)]),
    row(185, "get_func_arg_cnt", (5, 17), NIL, &[to(BTF_TRACE, int(&[CTX])).when(TRAMPOLINE)]),
    row(186, "get_retval", (5, 18), NIL, &[
        to(CGROUP.less(CGROUP_COMMON_ONLY), int(&[])).when(RETVAL),
        to(LSM, int(&[])).when(LSM_CGROUP),
    ]),
    row(187, "set_retval", (5, 18), NIL, &[
        to(CGROUP.less(CGROUP_COMMON_ONLY), int(&[ANY])).when(RETVAL),
        to(LSM, int(&[ANY])).when(LSM_CGROUP),
    ]),
    row(188, "xdp_get_buff_len", (5, 18), NIL, &[to(XDP, int(&[CTX])), to(BTF_TRACE, int(&[Arg::btf("xdp_buff")]))]),
    row(189, "xdp_load_bytes", (5, 18), NIL, &[to(XDP, LOAD_BYTES)]),
    row(190, "xdp_store_bytes", (5, 18), NIL, &[to(XDP, int(&[CTX, ANY, MEM_IN, SIZE]))]),
    row(191, "copy_from_user_task", (5, 18), NIL, &[
        to(TRACE, int(&[MEM_OUT, SIZE0, ANY, TASK, ANY]).gpl().sleeps()),
        perfmon(int(&[MEM_OUT, SIZE0, ANY, TASK, ANY]).gpl().sleeps()).since(6, 16),
    ]),
    row(192, "skb_set_tstamp", (5, 18), NIL, &[to(TC, int(&[CTX, ANY, ANY]))]),
    row(193, "ima_file_hash", (5, 18), NIL, &[
        to(LSM, int(&[Arg::btf("file"), MEM_OUT, SIZE]).sleeps().only(TargetRule::SleepableLsmHook)),
    ]),
    row(194, "kptr_xchg", (5, 19), ACQ, &[
        bpf(Proto::new(&[KPTR, KPTR_NEW], Ret::new(RetKind::PtrToBtfId).or_null())),
    ]),
    row(195, "map_lookup_percpu_elem", (5, 19), NIL, &[base(Proto::new(&[MAP, KEY, ANY], MAP_VALUE_OR_NULL).pkt())]),
    row(196, "skc_to_mptcp_sock", (5, 19), CAST, &[
        to(BTF_TRACE, skc_to("mptcp_sock", SOCK_COMMON)),
        to(SK_BASE, skc_to("mptcp_sock", SOCK_COMMON)).needs(Capability::Perfmon),
    ]),
    row(197, "dynptr_from_mem", (5, 19), NIL, &[bpf(int(&[MEM_OUT, SIZE0, ANY, DYNPTR_LOCAL_OUT]))]),
    row(198, "ringbuf_reserve_dynptr", (5, 19), NIL, &[bpf(int(&[MAP, ANY, ANY, DYNPTR_RINGBUF_OUT]))]),
    row(199, "ringbuf_submit_dynptr", (5, 19), NIL, &[bpf(Proto::new(&[DYNPTR_RINGBUF_RELEASE, ANY], VOID))]),
    row(200, "ringbuf_discard_dynptr", (5, 19), NIL, &[bpf(Proto::new(&[DYNPTR_RINGBUF_RELEASE, ANY], VOID))]),
    row(201, "dynptr_read", (5, 19), NIL, &[bpf(int(&[MEM_OUT, SIZE0, DYNPTR, ANY, ANY]))]),
    row(202, "dynptr_write", (5, 19), NIL, &[bpf(int(&[DYNPTR, ANY, MEM_IN, SIZE0, ANY]))]),
    row(203, "dynptr_data", (5, 19), Effects::DYNPTR_DATA, &[bpf(Proto::new(&[DYNPTR, ANY, ALLOC_SIZE0], MEM_OR_NULL))]),
    row(204, "tcp_raw_gen_syncookie_ipv4", (6, 0), NIL, &[to(TC_XDP, int(&[IPHDR, MEM, SIZE0]).gpl().pkt())]),
    row(205, "tcp_raw_gen_syncookie_ipv6", (6, 0), NIL, &[to(TC_XDP, int(&[IPV6HDR, MEM, SIZE0]).gpl().pkt())]),
    row(206, "tcp_raw_check_syncookie_ipv4", (6, 0), NIL, &[to(TC_XDP, int(&[IPHDR, TCPHDR]).gpl().pkt())]),
    row(207, "tcp_raw_check_syncookie_ipv6", (6, 0), NIL, &[to(TC_XDP, int(&[IPV6HDR, TCPHDR]).gpl().pkt())]),
    row(208, "ktime_get_tai_ns", (6, 1), NIL, &[base(int(&[]))]),
    row(209, "user_ringbuf_drain", (6, 1), SYNC, &[bpf(int(&[MAP, FUNC, STACK_OR_NULL, ANY]))]),
    row(210, "cgrp_storage_get", (6, 2), STORAGE, &[
        bpf(Proto::new(&[MAP, CGROUP_OR_NULL, VALUE_OR_NULL, ANY], MAP_VALUE_OR_NULL)),
    ]),
    row(211, "cgrp_storage_delete", (6, 2), NIL, &[bpf(int(&[MAP, CGROUP_OR_NULL]))]),
];
