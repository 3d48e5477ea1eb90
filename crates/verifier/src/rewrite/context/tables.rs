//! Fields of contexts and sockets as programs see them, and where the kernel keeps them.

use bpfkit_isa::Insn;
use bpfkit_spec::ProgType;

use super::Step::{self, Field, Follow, Inside, Same, Value};
use crate::reg::RegType;

/// A field that programs see.
pub(super) struct Row {
    /// Offset in the program's structure.
    pub at: u32,
    /// Bytes of the field.
    pub size: u32,
    /// Bytes of a whole access: a load of fewer takes part of what the whole reads as.
    pub unit: u32,
    pub way: Way,
    pub store: Store,
}

/// How a field is read.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// The last step's number.
    Path(&'static [Step]),
    /// The same, but the first pointer may be null, which reads as 0.
    Guarded(&'static [Step]),
    /// The same; where traffic is controlled, packets always have a device.
    Device(&'static [Step]),
    /// A number of several words: the access goes as far into it as into the program's field.
    Words(&'static [Step]),
    /// The same behind a pointer that may be null.
    GuardedWords(&'static [Step]),
    /// The path's number in the upper half of 32 bits.
    High(&'static [Step]),
    /// Whether the number is not 0.
    NotZero(&'static [Step]),
    /// The number, or 0 where it names no NAPI instance.
    Napi(&'static [Step]),
    /// The number, or −1 where it is the largest there is.
    Queue(&'static [Step]),
    /// A bit-field of `sk_buff`: marker of its byte, and name.
    Bits(&'static str, &'static str),
    /// The time of a packet, which has two meanings.
    Timestamp,
    /// A field of what lies behind a packet's data.
    Shared(&'static str),
    /// The same where the packet may be missing.
    SharedOf(Step, &'static str),
    /// End of a packet's data where nobody computed it before.
    DataEnd,
    /// A field of a socket that may be a smaller one, which reads as 0.
    Full(&'static [Step]),
    /// That socket itself.
    FullSocket,
    /// Room that reads as 0.
    Zero,
}

/// How a field is written.
#[derive(Clone, Copy)]
pub(super) enum Store {
    No,
    /// Where it is read from.
    There,
    /// The same behind pointers, with a register that is kept in that member meanwhile.
    Behind(&'static str, &'static str),
    /// The same, but not the number that stands for no queue.
    Queue,
    /// Of a socket that may be a smaller one.
    Full,
}

const fn row(at: u32, way: Way) -> Row {
    Row {
        at,
        size: 4,
        unit: 4,
        way,
        store: Store::No,
    }
}

const fn get(at: u32, path: &'static [Step]) -> Row {
    row(at, Way::Path(path))
}

impl Row {
    /// How far into the field a whole access begins; of one number only its beginning has code.
    pub fn within(&self, insn: &Insn) -> Option<u32> {
        let within = u32::try_from(insn.off).ok()?.checked_sub(self.at)?;
        (within == 0 || self.size > self.unit).then_some(within)
    }

    const fn bytes(self, size: u32) -> Row {
        Row {
            size,
            unit: size,
            ..self
        }
    }

    /// Several words.
    const fn words(self, count: u32) -> Row {
        Row {
            size: 4 * count,
            ..self
        }
    }

    /// Accesses of any width go through as they are.
    const fn any_width(self) -> Row {
        Row { unit: 1, ..self }
    }

    const fn writable(self) -> Row {
        Row {
            store: Store::There,
            ..self
        }
    }

    const fn stored(self, store: Store) -> Row {
        Row { store, ..self }
    }
}

macro_rules! path {
    ($($step:expr),+) => {
        &[$($step),+]
    };
}

/// The kernel's structure of a packet.
const SKB: &str = "sk_buff";
const XDP: &str = "xdp_buff";
const COMMON: &str = "sock_common";

const XDP_MD: &[Row] = &[
    get(0, path!(Field(XDP, "data"))),
    get(4, path!(Field(XDP, "data_end"))),
    get(8, path!(Field(XDP, "data_meta"))),
    get(
        12,
        path!(
            Follow(XDP, "rxq"),
            Follow("xdp_rxq_info", "dev"),
            Field("net_device", "ifindex")
        ),
    ),
    get(
        16,
        path!(Follow(XDP, "rxq"), Field("xdp_rxq_info", "queue_index")),
    ),
    get(
        20,
        path!(
            Follow(XDP, "txq"),
            Follow("xdp_txq_info", "dev"),
            Field("net_device", "ifindex")
        ),
    ),
];

/// Fields of `__sk_buff` that are the same in every program.
const PACKET: &[Row] = &[
    get(0, path!(Field(SKB, "len"))),
    row(4, Way::Bits("__pkt_type_offset", "pkt_type")),
    get(8, path!(Field(SKB, "mark"))).writable(),
    get(12, path!(Field(SKB, "queue_mapping"))).stored(Store::Queue),
    get(16, path!(Field(SKB, "protocol"))),
    row(20, Way::NotZero(path!(Field(SKB, "vlan_all")))),
    get(24, path!(Field(SKB, "vlan_tci"))),
    get(28, path!(Field(SKB, "vlan_proto"))),
    get(32, path!(Field(SKB, "priority"))).writable(),
    get(36, path!(Field(SKB, "skb_iif"))),
    row(
        40,
        Way::Device(path!(Follow(SKB, "dev"), Field("net_device", "ifindex"))),
    ),
    get(44, path!(Field(SKB, "tc_index"))).writable(),
    row(
        48,
        Way::Words(path!(Inside(SKB, "cb"), Field("qdisc_skb_cb", "data"))),
    )
    .words(5)
    .any_width()
    .writable(),
    get(68, path!(Field(SKB, "hash"))),
    get(
        72,
        path!(Inside(SKB, "cb"), Field("qdisc_skb_cb", "tc_classid")),
    )
    .writable(),
    get(76, path!(Field(SKB, "data"))),
    get(
        80,
        path!(Inside(SKB, "cb"), Field("bpf_skb_data_end", "data_end")),
    ),
    row(84, Way::Napi(path!(Field(SKB, "napi_id")))),
    get(88, path!(Follow(SKB, "sk"), Field(COMMON, "skc_family"))),
    get(92, path!(Follow(SKB, "sk"), Field(COMMON, "skc_daddr"))),
    get(96, path!(Follow(SKB, "sk"), Field(COMMON, "skc_rcv_saddr"))),
    row(
        100,
        Way::Words(path!(Follow(SKB, "sk"), Field(COMMON, "skc_v6_daddr"))),
    )
    .words(4),
    row(
        116,
        Way::Words(path!(Follow(SKB, "sk"), Field(COMMON, "skc_v6_rcv_saddr"))),
    )
    .words(4),
    row(
        132,
        Way::High(path!(Follow(SKB, "sk"), Field(COMMON, "skc_dport"))),
    ),
    get(136, path!(Follow(SKB, "sk"), Field(COMMON, "skc_num"))),
    get(
        140,
        path!(Inside(SKB, "cb"), Field("bpf_skb_data_end", "data_meta")),
    ),
    row(152, Way::Timestamp).bytes(8).writable(),
    get(
        160,
        path!(Inside(SKB, "cb"), Field("qdisc_skb_cb", "pkt_len")),
    ),
    row(164, Way::Shared("gso_segs")),
    get(168, path!(Field(SKB, "sk"))).bytes(8),
    row(176, Way::Shared("gso_size")),
    row(180, Way::Bits("__mono_tc_offset", "tstamp_type")).bytes(1),
    row(184, Way::Shared("hwtstamps")).bytes(8),
];

/// What is elsewhere in packets of streams: their room, and the end of data.
const STREAM: &[Row] = &[
    row(
        48,
        Way::Words(path!(Inside(SKB, "cb"), Field("sk_skb_cb", "data"))),
    )
    .words(5)
    .any_width()
    .writable(),
    row(80, Way::DataEnd),
];

const FLOW: &str = "bpf_flow_dissector";
const FLOW_DISSECTOR: &[Row] = &[
    get(76, path!(Field(FLOW, "data"))),
    get(80, path!(Field(FLOW, "data_end"))),
    get(144, path!(Field(FLOW, "flow_keys"))).bytes(8),
];

const BPF_SOCK: &[Row] = &[
    get(0, path!(Field(COMMON, "skc_bound_dev_if"))).writable(),
    get(4, path!(Field(COMMON, "skc_family"))),
    get(8, path!(Field("sock", "sk_type"))),
    get(12, path!(Field("sock", "sk_protocol"))),
    get(16, path!(Field("sock", "sk_mark"))).writable(),
    get(20, path!(Field("sock", "sk_priority"))).writable(),
    get(24, path!(Field(COMMON, "skc_rcv_saddr"))),
    row(28, Way::Words(path!(Field(COMMON, "skc_v6_rcv_saddr")))).words(4),
    get(44, path!(Field(COMMON, "skc_num"))),
    get(48, path!(Field(COMMON, "skc_dport"))).bytes(2),
    get(52, path!(Field(COMMON, "skc_daddr"))),
    row(56, Way::Words(path!(Field(COMMON, "skc_v6_daddr")))).words(4),
    get(72, path!(Field(COMMON, "skc_state"))),
    row(76, Way::Queue(path!(Field(COMMON, "skc_rx_queue_mapping")))),
];

const TCP: &str = "tcp_sock";
const BPF_TCP_SOCK: &[Row] = &[
    get(0, path!(Field(TCP, "snd_cwnd"))),
    get(4, path!(Field(TCP, "srtt_us"))),
    get(
        8,
        path!(Inside(TCP, "rtt_min"), Field("minmax_sample", "v")),
    ),
    get(12, path!(Field(TCP, "snd_ssthresh"))),
    get(16, path!(Field(TCP, "rcv_nxt"))),
    get(20, path!(Field(TCP, "snd_nxt"))),
    get(24, path!(Field(TCP, "snd_una"))),
    get(28, path!(Field(TCP, "mss_cache"))),
    get(32, path!(Field(TCP, "ecn_flags"))),
    get(36, path!(Field(TCP, "rate_delivered"))),
    get(40, path!(Field(TCP, "rate_interval_us"))),
    get(44, path!(Field(TCP, "packets_out"))),
    get(48, path!(Field(TCP, "retrans_out"))),
    get(52, path!(Field(TCP, "total_retrans"))),
    get(56, path!(Field(TCP, "segs_in"))),
    get(60, path!(Field(TCP, "data_segs_in"))),
    get(64, path!(Field(TCP, "segs_out"))),
    get(68, path!(Field(TCP, "data_segs_out"))),
    get(72, path!(Field(TCP, "lost_out"))),
    get(76, path!(Field(TCP, "sacked_out"))),
    get(80, path!(Field(TCP, "bytes_received"))).bytes(8),
    get(88, path!(Field(TCP, "bytes_acked"))).bytes(8),
    get(96, path!(Field(TCP, "dsack_dups"))),
    get(100, path!(Field(TCP, "delivered"))),
    get(104, path!(Field(TCP, "delivered_ce"))),
    get(
        108,
        path!(Field("inet_connection_sock", "icsk_retransmits")),
    ),
];

const BPF_XDP_SOCK: &[Row] = &[get(0, path!(Field("xdp_sock", "queue_id")))];

const ADDR: &str = "bpf_sock_addr_kern";
const BORROW_ADDR: Store = Store::Behind(ADDR, "tmp_reg");
const SOCK_ADDR: &[Row] = &[
    get(
        0,
        path!(Follow(ADDR, "uaddr"), Field("sockaddr", "sa_family")),
    ),
    get(
        4,
        path!(Follow(ADDR, "uaddr"), Field("sockaddr_in", "sin_addr")),
    )
    .stored(BORROW_ADDR),
    row(
        8,
        Way::Words(path!(
            Follow(ADDR, "uaddr"),
            Field("sockaddr_in6", "sin6_addr")
        )),
    )
    .words(4)
    .stored(BORROW_ADDR),
    get(
        24,
        path!(Follow(ADDR, "uaddr"), Field("sockaddr_in6", "sin6_port")),
    )
    .stored(BORROW_ADDR),
    get(28, path!(Follow(ADDR, "sk"), Field(COMMON, "skc_family"))),
    get(32, path!(Follow(ADDR, "sk"), Field("sock", "sk_type"))),
    get(36, path!(Follow(ADDR, "sk"), Field("sock", "sk_protocol"))),
    get(40, path!(Follow(ADDR, "t_ctx"), Field("in_addr", "s_addr"))).stored(BORROW_ADDR),
    row(
        44,
        Way::Words(path!(Follow(ADDR, "t_ctx"), Field("in6_addr", "in6_u"))),
    )
    .words(4)
    .stored(BORROW_ADDR),
    get(64, path!(Field(ADDR, "sk"))).bytes(8),
];

const OPS: &str = "bpf_sock_ops_kern";
const SOCK_OPS: &[Row] = &[
    get(0, path!(Field(OPS, "op"))),
    row(4, Way::Words(path!(Field(OPS, "replylong"))))
        .words(4)
        .writable(),
    get(20, path!(Follow(OPS, "sk"), Field(COMMON, "skc_family"))),
    get(24, path!(Follow(OPS, "sk"), Field(COMMON, "skc_daddr"))),
    get(28, path!(Follow(OPS, "sk"), Field(COMMON, "skc_rcv_saddr"))),
    row(
        32,
        Way::Words(path!(Follow(OPS, "sk"), Field(COMMON, "skc_v6_daddr"))),
    )
    .words(4),
    row(
        48,
        Way::Words(path!(Follow(OPS, "sk"), Field(COMMON, "skc_v6_rcv_saddr"))),
    )
    .words(4),
    row(
        64,
        Way::High(path!(Follow(OPS, "sk"), Field(COMMON, "skc_dport"))),
    ),
    get(68, path!(Follow(OPS, "sk"), Field(COMMON, "skc_num"))),
    get(72, path!(Field(OPS, "is_fullsock"))),
    row(76, Way::Full(path!(Field(TCP, "snd_cwnd")))),
    row(80, Way::Full(path!(Field(TCP, "srtt_us")))),
    row(84, Way::Full(path!(Field(TCP, "bpf_sock_ops_cb_flags")))),
    get(88, path!(Follow(OPS, "sk"), Field(COMMON, "skc_state"))),
    get(
        92,
        path!(
            Follow(OPS, "sk"),
            Inside(TCP, "rtt_min"),
            Field("minmax_sample", "v")
        ),
    ),
    row(96, Way::Full(path!(Field(TCP, "snd_ssthresh")))),
    row(100, Way::Full(path!(Field(TCP, "rcv_nxt")))),
    row(104, Way::Full(path!(Field(TCP, "snd_nxt")))),
    row(108, Way::Full(path!(Field(TCP, "snd_una")))),
    row(112, Way::Full(path!(Field(TCP, "mss_cache")))),
    row(116, Way::Full(path!(Field(TCP, "ecn_flags")))),
    row(120, Way::Full(path!(Field(TCP, "rate_delivered")))),
    row(124, Way::Full(path!(Field(TCP, "rate_interval_us")))),
    row(128, Way::Full(path!(Field(TCP, "packets_out")))),
    row(132, Way::Full(path!(Field(TCP, "retrans_out")))),
    row(136, Way::Full(path!(Field(TCP, "total_retrans")))),
    row(140, Way::Full(path!(Field(TCP, "segs_in")))),
    row(144, Way::Full(path!(Field(TCP, "data_segs_in")))),
    row(148, Way::Full(path!(Field(TCP, "segs_out")))),
    row(152, Way::Full(path!(Field(TCP, "data_segs_out")))),
    row(156, Way::Full(path!(Field(TCP, "lost_out")))),
    row(160, Way::Full(path!(Field(TCP, "sacked_out")))),
    row(164, Way::Full(path!(Field("sock", "sk_txhash")))).stored(Store::Full),
    row(168, Way::Full(path!(Field(TCP, "bytes_received")))).bytes(8),
    row(176, Way::Full(path!(Field(TCP, "bytes_acked")))).bytes(8),
    row(184, Way::FullSocket).bytes(8),
    row(
        192,
        Way::Guarded(path!(Follow(OPS, "skb"), Field(SKB, "data"))),
    )
    .bytes(8),
    get(200, path!(Field(OPS, "skb_data_end"))).bytes(8),
    row(
        208,
        Way::Guarded(path!(Follow(OPS, "skb"), Field(SKB, "len"))),
    ),
    row(
        212,
        Way::Guarded(path!(
            Follow(OPS, "skb"),
            Inside(SKB, "cb"),
            Field("tcp_skb_cb", "tcp_flags")
        )),
    ),
    row(216, Way::SharedOf(Follow(OPS, "skb"), "hwtstamps")).bytes(8),
];

const MSG: &str = "sk_msg";
const SK_MSG: &[Row] = &[
    get(0, path!(Field(MSG, "data"))).bytes(8),
    get(8, path!(Field(MSG, "data_end"))).bytes(8),
    get(16, path!(Follow(MSG, "sk"), Field(COMMON, "skc_family"))),
    get(20, path!(Follow(MSG, "sk"), Field(COMMON, "skc_daddr"))),
    get(24, path!(Follow(MSG, "sk"), Field(COMMON, "skc_rcv_saddr"))),
    row(
        28,
        Way::Words(path!(Follow(MSG, "sk"), Field(COMMON, "skc_v6_daddr"))),
    )
    .words(4),
    row(
        44,
        Way::Words(path!(Follow(MSG, "sk"), Field(COMMON, "skc_v6_rcv_saddr"))),
    )
    .words(4),
    row(
        60,
        Way::High(path!(Follow(MSG, "sk"), Field(COMMON, "skc_dport"))),
    ),
    get(64, path!(Follow(MSG, "sk"), Field(COMMON, "skc_num"))),
    get(68, path!(Inside(MSG, "sg"), Field("sk_msg_sg", "size"))),
    get(72, path!(Field(MSG, "sk"))).bytes(8),
];

const REUSEPORT: &str = "sk_reuseport_kern";
const SK_REUSEPORT: &[Row] = &[
    get(0, path!(Follow(REUSEPORT, "skb"), Field(SKB, "data"))).bytes(8),
    get(8, path!(Field(REUSEPORT, "data_end"))).bytes(8),
    get(16, path!(Follow(REUSEPORT, "skb"), Field(SKB, "len"))),
    get(20, path!(Follow(REUSEPORT, "skb"), Field(SKB, "protocol"))),
    get(
        24,
        path!(Follow(REUSEPORT, "sk"), Field("sock", "sk_protocol")),
    ),
    get(28, path!(Field(REUSEPORT, "bind_inany"))),
    get(32, path!(Field(REUSEPORT, "hash"))),
    get(40, path!(Field(REUSEPORT, "sk"))).bytes(8),
    get(48, path!(Field(REUSEPORT, "migrating_sk"))).bytes(8),
];

const LOOKUP: &str = "bpf_sk_lookup_kern";
const SK_LOOKUP: &[Row] = &[
    get(0, path!(Field(LOOKUP, "selected_sk"))).bytes(8),
    get(8, path!(Field(LOOKUP, "family"))),
    get(12, path!(Field(LOOKUP, "protocol"))),
    get(16, path!(Field(LOOKUP, "v4.saddr"))),
    row(
        20,
        Way::GuardedWords(path!(
            Follow(LOOKUP, "v6.saddr"),
            Field("in6_addr", "in6_u")
        )),
    )
    .words(4),
    get(36, path!(Field(LOOKUP, "sport"))).bytes(2),
    row(38, Way::Zero).bytes(2),
    get(40, path!(Field(LOOKUP, "v4.daddr"))),
    row(
        44,
        Way::GuardedWords(path!(
            Follow(LOOKUP, "v6.daddr"),
            Field("in6_addr", "in6_u")
        )),
    )
    .words(4),
    get(60, path!(Field(LOOKUP, "dport"))),
    get(64, path!(Field(LOOKUP, "ingress_ifindex"))),
];

const CTL: &str = "bpf_sysctl_kern";
const SYSCTL: &[Row] = &[
    get(0, path!(Field(CTL, "write"))),
    get(4, path!(Follow(CTL, "ppos"), Value(4))).stored(Store::Behind(CTL, "tmp_reg")),
];

const OPT: &str = "bpf_sockopt_kern";
const SOCKOPT: &[Row] = &[
    get(0, path!(Field(OPT, "sk"))).bytes(8),
    get(8, path!(Field(OPT, "optval"))).bytes(8),
    get(16, path!(Field(OPT, "optval_end"))).bytes(8),
    get(24, path!(Field(OPT, "level"))).writable(),
    get(28, path!(Field(OPT, "optname"))).writable(),
    get(32, path!(Field(OPT, "optlen"))).writable(),
    get(
        36,
        path!(
            Follow(OPT, "current_task"),
            Follow("task_struct", "bpf_ctx"),
            Field("bpf_cg_run_ctx", "retval")
        ),
    )
    .stored(Store::Behind(OPT, "tmp_reg")),
];

const PERF: &str = "bpf_perf_event_data_kern";
/// Bytes of the registers of x86-64 that come first.
const REGS: u32 = 21 * 8;
const PERF_EVENT: &[Row] = &[
    Row {
        size: REGS,
        ..get(0, path!(Follow(PERF, "regs"), Same)).bytes(8)
    },
    get(
        REGS,
        path!(Follow(PERF, "data"), Field("perf_sample_data", "period")),
    )
    .bytes(8),
    get(
        REGS + 8,
        path!(Follow(PERF, "data"), Field("perf_sample_data", "addr")),
    )
    .bytes(8),
];

/// Tables of a pointer, to be searched in that order: of a context by the program's type.
pub(super) fn of(pointer: RegType, prog_type: ProgType) -> &'static [&'static [Row]] {
    use ProgType as P;
    match pointer {
        RegType::SOCKET | RegType::SOCK_COMMON => return &[BPF_SOCK],
        RegType::TCP_SOCK => return &[BPF_TCP_SOCK],
        RegType::XDP_SOCK => return &[BPF_XDP_SOCK],
        _ => {}
    }
    match prog_type {
        P::Xdp => &[XDP_MD],
        P::SocketFilter
        | P::SchedCls
        | P::SchedAct
        | P::CgroupSkb
        | P::LwtIn
        | P::LwtOut
        | P::LwtXmit
        | P::LwtSeg6local => &[PACKET],
        P::SkSkb => &[STREAM, PACKET],
        P::FlowDissector => &[FLOW_DISSECTOR],
        P::CgroupSock => &[BPF_SOCK],
        P::CgroupSockAddr => &[SOCK_ADDR],
        P::SockOps => &[SOCK_OPS],
        P::SkMsg => &[SK_MSG],
        P::SkReuseport => &[SK_REUSEPORT],
        P::SkLookup => &[SK_LOOKUP],
        P::CgroupSysctl => &[SYSCTL],
        P::CgroupSockopt => &[SOCKOPT],
        P::PerfEvent => &[PERF_EVENT],
        _ => &[],
    }
}
