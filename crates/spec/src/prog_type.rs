//! Program types.

use crate::uapi_enum::uapi_enum;

uapi_enum! {
    /// `enum bpf_prog_type`.
    pub enum ProgType, prefix "BPF_PROG_TYPE_" {
        Unspec = 0, "unspec", (3, 18);
        SocketFilter = 1, "socket_filter", (3, 19);
        Kprobe = 2, "kprobe", (4, 1);
        SchedCls = 3, "sched_cls", (4, 1);
        SchedAct = 4, "sched_act", (4, 1);
        Tracepoint = 5, "tracepoint", (4, 7);
        Xdp = 6, "xdp", (4, 8);
        PerfEvent = 7, "perf_event", (4, 9);
        CgroupSkb = 8, "cgroup_skb", (4, 10);
        CgroupSock = 9, "cgroup_sock", (4, 10);
        LwtIn = 10, "lwt_in", (4, 10);
        LwtOut = 11, "lwt_out", (4, 10);
        LwtXmit = 12, "lwt_xmit", (4, 10);
        SockOps = 13, "sock_ops", (4, 13);
        SkSkb = 14, "sk_skb", (4, 14);
        CgroupDevice = 15, "cgroup_device", (4, 15);
        SkMsg = 16, "sk_msg", (4, 17);
        RawTracepoint = 17, "raw_tracepoint", (4, 17);
        CgroupSockAddr = 18, "cgroup_sock_addr", (4, 17);
        LwtSeg6local = 19, "lwt_seg6local", (4, 18);
        LircMode2 = 20, "lirc_mode2", (4, 18);
        SkReuseport = 21, "sk_reuseport", (4, 19);
        FlowDissector = 22, "flow_dissector", (4, 20);
        CgroupSysctl = 23, "cgroup_sysctl", (5, 2);
        RawTracepointWritable = 24, "raw_tracepoint_writable", (5, 2);
        CgroupSockopt = 25, "cgroup_sockopt", (5, 3);
        Tracing = 26, "tracing", (5, 5);
        StructOps = 27, "struct_ops", (5, 6);
        Ext = 28, "ext", (5, 6);
        Lsm = 29, "lsm", (5, 7);
        SkLookup = 30, "sk_lookup", (5, 9);
        Syscall = 31, "syscall", (5, 14);
        Netfilter = 32, "netfilter", (6, 4);
    }
}
