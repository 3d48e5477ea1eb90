//! libbpf's section names: which program type, attach type and flags a section asks for
//! (`SEC_DEF` rows of libbpf 1.7, in its order: the first that matches wins).

use bpfkit_spec::{AttachType, ProgType};

/// `BPF_F_SLEEPABLE` of `BPF_PROG_LOAD`.
pub const F_SLEEPABLE: u32 = 1 << 4;
/// `BPF_F_XDP_HAS_FRAGS` of `BPF_PROG_LOAD`.
pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// A section name that libbpf knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionDef {
    /// The name, without the `+` that libbpf writes for [`SectionDef::extras`].
    pub name: &'static str,
    /// Whether `name/anything` belongs here too.
    pub extras: bool,
    /// Program type.
    pub prog_type: ProgType,
    /// Expected attach type; number 0 where there is none.
    pub attach_type: AttachType,
    /// `prog_flags` of `BPF_PROG_LOAD`.
    pub flags: u32,
    /// The attach target is a BTF id, which the loader has to find.
    pub attach_btf: bool,
    /// A user-space tracepoint: the attach type depends on the kernel.
    pub usdt: bool,
}

impl SectionDef {
    /// Whether a section of that name (without the leading `?`) belongs here.
    pub fn matches(&self, section: &str) -> bool {
        match section.strip_prefix(self.name) {
            Some("") => true,
            Some(rest) => self.extras && rest.starts_with('/'),
            None => false,
        }
    }

    /// The row that libbpf picks for a section of that name (without the leading `?`).
    pub fn find(section: &str) -> Option<&'static SectionDef> {
        SECTIONS.iter().find(|def| def.matches(section))
    }
}

const NONE: u32 = 0;
const S: u32 = 1;
const FRAGS: u32 = 2;
const BTF: u32 = 4;
const USDT: u32 = 8;

/// One row: name (a final `+` allows extras), program type, attach type, marks.
const fn def(
    name: &'static str,
    prog_type: ProgType,
    attach_type: AttachType,
    marks: u32,
) -> SectionDef {
    let (name, extras) = match name.as_bytes() {
        [head @ .., b'+'] => (name.split_at(head.len()).0, true),
        _ => (name, false),
    };
    let mut flags = 0;
    if marks & S != 0 {
        flags |= F_SLEEPABLE;
    }
    if marks & FRAGS != 0 {
        flags |= F_XDP_HAS_FRAGS;
    }
    SectionDef {
        name,
        extras,
        prog_type,
        attach_type,
        flags,
        attach_btf: marks & BTF != 0,
        usdt: marks & USDT != 0,
    }
}

use AttachType as A;
use ProgType as P;

/// Number 0, which libbpf passes where a section asks for no attach type.
const NO: AttachType = AttachType::CgroupInetIngress;

/// All rows, in libbpf's order.
#[rustfmt::skip]
pub const SECTIONS: &[SectionDef] = &[
    def("socket", P::SocketFilter, NO, NONE),
    def("sk_reuseport/migrate", P::SkReuseport, A::SkReuseportSelectOrMigrate, NONE),
    def("sk_reuseport", P::SkReuseport, A::SkReuseportSelect, NONE),
    def("kprobe+", P::Kprobe, NO, NONE),
    def("uprobe+", P::Kprobe, NO, NONE),
    def("uprobe.s+", P::Kprobe, NO, S),
    def("kretprobe+", P::Kprobe, NO, NONE),
    def("uretprobe+", P::Kprobe, NO, NONE),
    def("uretprobe.s+", P::Kprobe, NO, S),
    def("kprobe.multi+", P::Kprobe, A::TraceKprobeMulti, NONE),
    def("kretprobe.multi+", P::Kprobe, A::TraceKprobeMulti, NONE),
    def("kprobe.session+", P::Kprobe, A::TraceKprobeSession, NONE),
    def("uprobe.multi+", P::Kprobe, A::TraceUprobeMulti, NONE),
    def("uretprobe.multi+", P::Kprobe, A::TraceUprobeMulti, NONE),
    def("uprobe.session+", P::Kprobe, A::TraceUprobeSession, NONE),
    def("uprobe.multi.s+", P::Kprobe, A::TraceUprobeMulti, S),
    def("uretprobe.multi.s+", P::Kprobe, A::TraceUprobeMulti, S),
    def("uprobe.session.s+", P::Kprobe, A::TraceUprobeSession, S),
    def("ksyscall+", P::Kprobe, NO, NONE),
    def("kretsyscall+", P::Kprobe, NO, NONE),
    def("usdt+", P::Kprobe, NO, USDT),
    def("usdt.s+", P::Kprobe, NO, S | USDT),
    def("tc/ingress", P::SchedCls, A::TcxIngress, NONE),
    def("tc/egress", P::SchedCls, A::TcxEgress, NONE),
    def("tcx/ingress", P::SchedCls, A::TcxIngress, NONE),
    def("tcx/egress", P::SchedCls, A::TcxEgress, NONE),
    def("tc", P::SchedCls, NO, NONE),
    def("classifier", P::SchedCls, NO, NONE),
    def("action", P::SchedAct, NO, NONE),
    def("netkit/primary", P::SchedCls, A::NetkitPrimary, NONE),
    def("netkit/peer", P::SchedCls, A::NetkitPeer, NONE),
    def("tracepoint+", P::Tracepoint, NO, NONE),
    def("tp+", P::Tracepoint, NO, NONE),
    def("raw_tracepoint+", P::RawTracepoint, NO, NONE),
    def("raw_tp+", P::RawTracepoint, NO, NONE),
    def("raw_tracepoint.w+", P::RawTracepointWritable, NO, NONE),
    def("raw_tp.w+", P::RawTracepointWritable, NO, NONE),
    def("tp_btf+", P::Tracing, A::TraceRawTp, BTF),
    def("fentry+", P::Tracing, A::TraceFentry, BTF),
    def("fmod_ret+", P::Tracing, A::ModifyReturn, BTF),
    def("fexit+", P::Tracing, A::TraceFexit, BTF),
    def("fentry.s+", P::Tracing, A::TraceFentry, S | BTF),
    def("fmod_ret.s+", P::Tracing, A::ModifyReturn, S | BTF),
    def("fexit.s+", P::Tracing, A::TraceFexit, S | BTF),
    def("fsession+", P::Tracing, A::TraceFsession, BTF),
    def("fsession.s+", P::Tracing, A::TraceFsession, S | BTF),
    def("freplace+", P::Ext, NO, BTF),
    def("lsm+", P::Lsm, A::LsmMac, BTF),
    def("lsm.s+", P::Lsm, A::LsmMac, S | BTF),
    def("lsm_cgroup+", P::Lsm, A::LsmCgroup, BTF),
    def("iter+", P::Tracing, A::TraceIter, BTF),
    def("iter.s+", P::Tracing, A::TraceIter, S | BTF),
    def("syscall", P::Syscall, NO, S),
    def("xdp.frags/devmap", P::Xdp, A::XdpDevmap, FRAGS),
    def("xdp/devmap", P::Xdp, A::XdpDevmap, NONE),
    def("xdp.frags/cpumap", P::Xdp, A::XdpCpumap, FRAGS),
    def("xdp/cpumap", P::Xdp, A::XdpCpumap, NONE),
    def("xdp.frags", P::Xdp, A::Xdp, FRAGS),
    def("xdp", P::Xdp, A::Xdp, NONE),
    def("perf_event", P::PerfEvent, NO, NONE),
    def("lwt_in", P::LwtIn, NO, NONE),
    def("lwt_out", P::LwtOut, NO, NONE),
    def("lwt_xmit", P::LwtXmit, NO, NONE),
    def("lwt_seg6local", P::LwtSeg6local, NO, NONE),
    def("sockops", P::SockOps, A::CgroupSockOps, NONE),
    def("sk_skb/stream_parser", P::SkSkb, A::SkSkbStreamParser, NONE),
    def("sk_skb/stream_verdict", P::SkSkb, A::SkSkbStreamVerdict, NONE),
    def("sk_skb/verdict", P::SkSkb, A::SkSkbVerdict, NONE),
    def("sk_skb", P::SkSkb, NO, NONE),
    def("sk_msg", P::SkMsg, A::SkMsgVerdict, NONE),
    def("lirc_mode2", P::LircMode2, A::LircMode2, NONE),
    def("flow_dissector", P::FlowDissector, A::FlowDissector, NONE),
    def("cgroup_skb/ingress", P::CgroupSkb, A::CgroupInetIngress, NONE),
    def("cgroup_skb/egress", P::CgroupSkb, A::CgroupInetEgress, NONE),
    def("cgroup/skb", P::CgroupSkb, NO, NONE),
    def("cgroup/sock_create", P::CgroupSock, A::CgroupInetSockCreate, NONE),
    def("cgroup/sock_release", P::CgroupSock, A::CgroupInetSockRelease, NONE),
    def("cgroup/sock", P::CgroupSock, A::CgroupInetSockCreate, NONE),
    def("cgroup/post_bind4", P::CgroupSock, A::CgroupInet4PostBind, NONE),
    def("cgroup/post_bind6", P::CgroupSock, A::CgroupInet6PostBind, NONE),
    def("cgroup/bind4", P::CgroupSockAddr, A::CgroupInet4Bind, NONE),
    def("cgroup/bind6", P::CgroupSockAddr, A::CgroupInet6Bind, NONE),
    def("cgroup/connect4", P::CgroupSockAddr, A::CgroupInet4Connect, NONE),
    def("cgroup/connect6", P::CgroupSockAddr, A::CgroupInet6Connect, NONE),
    def("cgroup/connect_unix", P::CgroupSockAddr, A::CgroupUnixConnect, NONE),
    def("cgroup/sendmsg4", P::CgroupSockAddr, A::CgroupUdp4Sendmsg, NONE),
    def("cgroup/sendmsg6", P::CgroupSockAddr, A::CgroupUdp6Sendmsg, NONE),
    def("cgroup/sendmsg_unix", P::CgroupSockAddr, A::CgroupUnixSendmsg, NONE),
    def("cgroup/recvmsg4", P::CgroupSockAddr, A::CgroupUdp4Recvmsg, NONE),
    def("cgroup/recvmsg6", P::CgroupSockAddr, A::CgroupUdp6Recvmsg, NONE),
    def("cgroup/recvmsg_unix", P::CgroupSockAddr, A::CgroupUnixRecvmsg, NONE),
    def("cgroup/getpeername4", P::CgroupSockAddr, A::CgroupInet4Getpeername, NONE),
    def("cgroup/getpeername6", P::CgroupSockAddr, A::CgroupInet6Getpeername, NONE),
    def("cgroup/getpeername_unix", P::CgroupSockAddr, A::CgroupUnixGetpeername, NONE),
    def("cgroup/getsockname4", P::CgroupSockAddr, A::CgroupInet4Getsockname, NONE),
    def("cgroup/getsockname6", P::CgroupSockAddr, A::CgroupInet6Getsockname, NONE),
    def("cgroup/getsockname_unix", P::CgroupSockAddr, A::CgroupUnixGetsockname, NONE),
    def("cgroup/sysctl", P::CgroupSysctl, A::CgroupSysctl, NONE),
    def("cgroup/getsockopt", P::CgroupSockopt, A::CgroupGetsockopt, NONE),
    def("cgroup/setsockopt", P::CgroupSockopt, A::CgroupSetsockopt, NONE),
    def("cgroup/dev", P::CgroupDevice, A::CgroupDevice, NONE),
    def("struct_ops+", P::StructOps, NO, NONE),
    def("struct_ops.s+", P::StructOps, NO, S),
    def("sk_lookup", P::SkLookup, A::SkLookup, NONE),
    def("netfilter", P::Netfilter, A::Netfilter, NONE),
];
