//! Attach types.

use crate::uapi_enum::uapi_enum;

uapi_enum! {
    /// `enum bpf_attach_type`. [`AttachType::TraceFsession`] is later than the target
    /// kernel; it is here because libbpf 1.7 knows sections for it.
    pub enum AttachType, prefix "BPF_" {
        CgroupInetIngress = 0, "cgroup_inet_ingress", (4, 10);
        CgroupInetEgress = 1, "cgroup_inet_egress", (4, 10);
        CgroupInetSockCreate = 2, "cgroup_inet_sock_create", (4, 10);
        CgroupSockOps = 3, "cgroup_sock_ops", (4, 13);
        SkSkbStreamParser = 4, "sk_skb_stream_parser", (4, 14);
        SkSkbStreamVerdict = 5, "sk_skb_stream_verdict", (4, 14);
        CgroupDevice = 6, "cgroup_device", (4, 15);
        SkMsgVerdict = 7, "sk_msg_verdict", (4, 17);
        CgroupInet4Bind = 8, "cgroup_inet4_bind", (4, 17);
        CgroupInet6Bind = 9, "cgroup_inet6_bind", (4, 17);
        CgroupInet4Connect = 10, "cgroup_inet4_connect", (4, 17);
        CgroupInet6Connect = 11, "cgroup_inet6_connect", (4, 17);
        CgroupInet4PostBind = 12, "cgroup_inet4_post_bind", (4, 17);
        CgroupInet6PostBind = 13, "cgroup_inet6_post_bind", (4, 17);
        CgroupUdp4Sendmsg = 14, "cgroup_udp4_sendmsg", (4, 18);
        CgroupUdp6Sendmsg = 15, "cgroup_udp6_sendmsg", (4, 18);
        LircMode2 = 16, "lirc_mode2", (4, 18);
        FlowDissector = 17, "flow_dissector", (4, 20);
        CgroupSysctl = 18, "cgroup_sysctl", (5, 2);
        CgroupUdp4Recvmsg = 19, "cgroup_udp4_recvmsg", (5, 2);
        CgroupUdp6Recvmsg = 20, "cgroup_udp6_recvmsg", (5, 2);
        CgroupGetsockopt = 21, "cgroup_getsockopt", (5, 3);
        CgroupSetsockopt = 22, "cgroup_setsockopt", (5, 3);
        TraceRawTp = 23, "trace_raw_tp", (5, 5);
        TraceFentry = 24, "trace_fentry", (5, 5);
        TraceFexit = 25, "trace_fexit", (5, 5);
        ModifyReturn = 26, "modify_return", (5, 7);
        LsmMac = 27, "lsm_mac", (5, 7);
        TraceIter = 28, "trace_iter", (5, 8);
        CgroupInet4Getpeername = 29, "cgroup_inet4_getpeername", (5, 8);
        CgroupInet6Getpeername = 30, "cgroup_inet6_getpeername", (5, 8);
        CgroupInet4Getsockname = 31, "cgroup_inet4_getsockname", (5, 8);
        CgroupInet6Getsockname = 32, "cgroup_inet6_getsockname", (5, 8);
        XdpDevmap = 33, "xdp_devmap", (5, 8);
        CgroupInetSockRelease = 34, "cgroup_inet_sock_release", (5, 9);
        XdpCpumap = 35, "xdp_cpumap", (5, 9);
        SkLookup = 36, "sk_lookup", (5, 9);
        Xdp = 37, "xdp", (5, 9);
        SkSkbVerdict = 38, "sk_skb_verdict", (5, 13);
        SkReuseportSelect = 39, "sk_reuseport_select", (5, 14);
        SkReuseportSelectOrMigrate = 40, "sk_reuseport_select_or_migrate", (5, 14);
        PerfEvent = 41, "perf_event", (5, 15);
        TraceKprobeMulti = 42, "trace_kprobe_multi", (5, 18);
        LsmCgroup = 43, "lsm_cgroup", (6, 0);
        StructOps = 44, "struct_ops", (6, 4);
        Netfilter = 45, "netfilter", (6, 4);
        TcxIngress = 46, "tcx_ingress", (6, 6);
        TcxEgress = 47, "tcx_egress", (6, 6);
        TraceUprobeMulti = 48, "trace_uprobe_multi", (6, 6);
        CgroupUnixConnect = 49, "cgroup_unix_connect", (6, 7);
        CgroupUnixSendmsg = 50, "cgroup_unix_sendmsg", (6, 7);
        CgroupUnixRecvmsg = 51, "cgroup_unix_recvmsg", (6, 7);
        CgroupUnixGetpeername = 52, "cgroup_unix_getpeername", (6, 7);
        CgroupUnixGetsockname = 53, "cgroup_unix_getsockname", (6, 7);
        NetkitPrimary = 54, "netkit_primary", (6, 7);
        NetkitPeer = 55, "netkit_peer", (6, 7);
        TraceKprobeSession = 56, "trace_kprobe_session", (6, 10);
        TraceUprobeSession = 57, "trace_uprobe_session", (6, 13);
        TraceFsession = 58, "trace_fsession", (7, 0);
    }
}
