//! Contexts at sockets, and the socket structures that programs get pointers to.

use super::{ANY, Field, Kind, Layout, NARROW, Rule};
use crate::{AttachType as At, When};

const fn word(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 4).read(Rule::at_start(4))
}

const fn narrow(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 4).read(Rule::inside(NARROW))
}

/// A word read in part, though only from its start.
const fn prefix(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 4).read(Rule::at_start(NARROW))
}

const fn words(name: &'static str, offset: u32, size: u32) -> Field {
    Field::new(name, offset, size).read(Rule::inside(4))
}

const fn long(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 8).read(Rule::at_start(8))
}

const fn pointer(name: &'static str, offset: u32, kind: Kind) -> Field {
    long(name, offset).kind(kind)
}

const DST_PORT: Field = Field {
    read: Rule {
        inside: 1 | 2,
        ..Rule::at_start(4)
    },
    ..Field::new("dst_port", 48, 2)
};

const SOCK_IN: When = When::AttachIn(&[At::CgroupInetSockCreate, At::CgroupInetSockRelease]);
const POST_BIND4: When = When::AttachIn(&[At::CgroupInet4PostBind]);
const POST_BIND6: When = When::AttachIn(&[At::CgroupInet6PostBind]);
const POST_BIND: When = When::AttachIn(&[At::CgroupInet4PostBind, At::CgroupInet6PostBind]);

/// Settable while the socket is created or released.
const fn setting(name: &'static str, offset: u32) -> Field {
    let rule = Rule::at_start(4).when(SOCK_IN);
    Field::new(name, offset, 4).read(rule).write(rule)
}

/// Context of `cgroup_sock` programs.
pub static SOCK: Layout = Layout::new(
    "bpf_sock",
    "sock",
    80,
    &[
        setting("bound_dev_if", 0),
        prefix("family", 4),
        prefix("type", 8),
        prefix("protocol", 12),
        setting("mark", 16),
        setting("priority", 20),
        Field::new("src_ip4", 24, 4).read(Rule::inside(NARROW).when(POST_BIND4)),
        Field::new("src_ip6", 28, 16).read(Rule::inside(NARROW).when(POST_BIND6)),
        Field::new("src_port", 44, 4).read(Rule::at_start(NARROW).when(POST_BIND)),
        DST_PORT,
        narrow("dst_ip4", 52),
        Field::new("dst_ip6", 56, 16).read(Rule::inside(NARROW)),
        prefix("state", 72),
        prefix("rx_queue_mapping", 76),
    ],
);

/// What a pointer to a full socket reads.
pub static SOCK_OBJECT: Layout = Layout::new(
    "bpf_sock",
    "sock",
    80,
    &[
        word("bound_dev_if", 0),
        prefix("family", 4),
        prefix("type", 8),
        prefix("protocol", 12),
        word("mark", 16),
        word("priority", 20),
        narrow("src_ip4", 24),
        Field::new("src_ip6", 28, 16).read(Rule::inside(NARROW)),
        prefix("src_port", 44),
        DST_PORT,
        narrow("dst_ip4", 52),
        Field::new("dst_ip6", 56, 16).read(Rule::inside(NARROW)),
        prefix("state", 72),
        prefix("rx_queue_mapping", 76),
    ],
);

/// What a pointer to the common part of a socket reads.
pub static SOCK_COMMON_OBJECT: Layout = Layout::new(
    "bpf_sock",
    "sock_common",
    80,
    &[
        word("bound_dev_if", 0),
        prefix("family", 4),
        narrow("src_ip4", 24),
        Field::new("src_ip6", 28, 16).read(Rule::inside(NARROW)),
        prefix("src_port", 44),
        DST_PORT,
        narrow("dst_ip4", 52),
        Field::new("dst_ip6", 56, 16).read(Rule::inside(NARROW)),
        prefix("state", 72),
        prefix("rx_queue_mapping", 76),
    ],
);

/// What a pointer to a TCP socket reads.
pub static TCP_SOCK_OBJECT: Layout = Layout::new(
    "bpf_tcp_sock",
    "tcp_sock",
    112,
    &[
        word("snd_cwnd", 0),
        word("srtt_us", 4),
        word("rtt_min", 8),
        word("snd_ssthresh", 12),
        word("rcv_nxt", 16),
        word("snd_nxt", 20),
        word("snd_una", 24),
        word("mss_cache", 28),
        word("ecn_flags", 32),
        word("rate_delivered", 36),
        word("rate_interval_us", 40),
        word("packets_out", 44),
        word("retrans_out", 48),
        word("total_retrans", 52),
        word("segs_in", 56),
        word("data_segs_in", 60),
        word("segs_out", 64),
        word("data_segs_out", 68),
        word("lost_out", 72),
        word("sacked_out", 76),
        long("bytes_received", 80),
        // The kernel asks for 8 bytes only at the start of a counter.
        word("bytes_received (upper half)", 84),
        long("bytes_acked", 88),
        word("bytes_acked (upper half)", 92),
        word("dsack_dups", 96),
        word("delivered", 100),
        word("delivered_ce", 104),
        word("icsk_retransmits", 108),
    ],
);

/// What a pointer to an AF_XDP socket reads.
pub static XDP_SOCK_OBJECT: Layout =
    Layout::new("bpf_xdp_sock", "xdp_sock", 4, &[word("queue_id", 0)]);

const INET4: When = When::AttachIn(&[
    At::CgroupInet4Bind,
    At::CgroupInet4Connect,
    At::CgroupInet4Getpeername,
    At::CgroupInet4Getsockname,
    At::CgroupUdp4Sendmsg,
    At::CgroupUdp4Recvmsg,
]);
const INET6: When = When::AttachIn(&[
    At::CgroupInet6Bind,
    At::CgroupInet6Connect,
    At::CgroupInet6Getpeername,
    At::CgroupInet6Getsockname,
    At::CgroupUdp6Sendmsg,
    At::CgroupUdp6Recvmsg,
]);
const UDP4_SENDMSG: When = When::AttachIn(&[At::CgroupUdp4Sendmsg]);
const UDP6_SENDMSG: When = When::AttachIn(&[At::CgroupUdp6Sendmsg]);

const fn address4(name: &'static str, offset: u32, when: When) -> Field {
    Field::new(name, offset, 4)
        .read(Rule::inside(NARROW).when(when))
        .write(Rule::at_start(4).when(when))
}

const fn address6(name: &'static str, offset: u32, when: When) -> Field {
    Field::new(name, offset, 16)
        .read(Rule::inside(ANY).when(when))
        .write(Rule::inside(4 | 8).when(when))
}

/// Context of `cgroup_sock_addr` programs.
pub static SOCK_ADDR: Layout = Layout::new(
    "bpf_sock_addr",
    "bpf_sock_addr_kern",
    72,
    &[
        word("user_family", 0),
        address4("user_ip4", 4, INET4),
        address6("user_ip6", 8, INET6),
        narrow("user_port", 24).write(Rule::at_start(4)),
        word("family", 28),
        word("type", 32),
        word("protocol", 36),
        address4("msg_src_ip4", 40, UDP4_SENDMSG),
        address6("msg_src_ip6", 44, UDP6_SENDMSG),
        pointer("sk", 64, Kind::Socket),
    ],
);

/// Context of `sock_ops` programs.
pub static SOCK_OPS: Layout = Layout::new(
    "bpf_sock_ops",
    "bpf_sock_ops_kern",
    224,
    &[
        word("op", 0),
        word("reply", 4).write(Rule::at_start(4)),
        words("args", 4, 16),
        word("family", 20),
        word("remote_ip4", 24),
        word("local_ip4", 28),
        words("remote_ip6", 32, 16),
        words("local_ip6", 48, 16),
        word("remote_port", 64),
        word("local_port", 68),
        word("is_fullsock", 72),
        word("snd_cwnd", 76),
        word("srtt_us", 80),
        word("bpf_sock_ops_cb_flags", 84),
        word("state", 88),
        word("rtt_min", 92),
        word("snd_ssthresh", 96),
        word("rcv_nxt", 100),
        word("snd_nxt", 104),
        word("snd_una", 108),
        word("mss_cache", 112),
        word("ecn_flags", 116),
        word("rate_delivered", 120),
        word("rate_interval_us", 124),
        word("packets_out", 128),
        word("retrans_out", 132),
        word("total_retrans", 136),
        word("segs_in", 140),
        word("data_segs_in", 144),
        word("segs_out", 148),
        word("data_segs_out", 152),
        word("lost_out", 156),
        word("sacked_out", 160),
        word("sk_txhash", 164).write(Rule::at_start(4)),
        long("bytes_received", 168),
        long("bytes_acked", 176),
        pointer("sk", 184, Kind::SocketOrNull),
        pointer("skb_data", 192, Kind::Packet),
        pointer("skb_data_end", 200, Kind::PacketEnd),
        word("skb_len", 208),
        prefix("skb_tcp_flags", 212),
        long("skb_hwtstamp", 216),
    ],
);

/// Context of `sk_msg` programs.
pub static SK_MSG_MD: Layout = Layout::new(
    "sk_msg_md",
    "sk_msg",
    80,
    &[
        pointer("data", 0, Kind::Packet),
        pointer("data_end", 8, Kind::PacketEnd),
        word("family", 16),
        word("remote_ip4", 20),
        word("local_ip4", 24),
        words("remote_ip6", 28, 16),
        words("local_ip6", 44, 16),
        word("remote_port", 60),
        word("local_port", 64),
        word("size", 68),
        pointer("sk", 72, Kind::Socket),
    ],
);

/// Context of `sk_reuseport` programs.
pub static SK_REUSEPORT_MD: Layout = Layout::new(
    "sk_reuseport_md",
    "sk_reuseport_kern",
    56,
    &[
        pointer("data", 0, Kind::Packet),
        pointer("data_end", 8, Kind::PacketEnd),
        narrow("len", 16),
        Field::new("eth_protocol", 20, 4).read(Rule::inside(2 | 4)),
        narrow("ip_protocol", 24),
        narrow("bind_inany", 28),
        word("hash", 32),
        pointer("sk", 40, Kind::Socket),
        pointer("migrating_sk", 48, Kind::SockCommonOrNull),
    ],
);

/// Context of `sk_lookup` programs.
pub static SK_LOOKUP: Layout = Layout::new(
    "bpf_sk_lookup",
    "bpf_sk_lookup_kern",
    72,
    &[
        pointer("sk", 0, Kind::SocketOrNull),
        narrow("family", 8),
        narrow("protocol", 12),
        narrow("remote_ip4", 16),
        Field::new("remote_ip6", 20, 16).read(Rule::inside(NARROW)),
        // Two bytes and padding that reads as zero.
        narrow("remote_port", 36),
        narrow("local_ip4", 40),
        Field::new("local_ip6", 44, 16).read(Rule::inside(NARROW)),
        narrow("local_port", 60),
        narrow("ingress_ifindex", 64),
    ],
);

const GETSOCKOPT: When = When::AttachIn(&[At::CgroupGetsockopt]);
const SETSOCKOPT: When = When::AttachIn(&[At::CgroupSetsockopt]);

/// Context of `cgroup_sockopt` programs.
pub static SOCKOPT: Layout = Layout::new(
    "bpf_sockopt",
    "bpf_sockopt_kern",
    40,
    &[
        pointer("sk", 0, Kind::Socket),
        pointer("optval", 8, Kind::Packet),
        pointer("optval_end", 16, Kind::PacketEnd),
        word("level", 24).write(Rule::at_start(4).when(SETSOCKOPT)),
        word("optname", 28).write(Rule::at_start(4).when(SETSOCKOPT)),
        word("optlen", 32).write(Rule::at_start(4)),
        Field::new("retval", 36, 4)
            .read(Rule::at_start(4).when(GETSOCKOPT))
            .write(Rule::at_start(4).when(GETSOCKOPT)),
    ],
);
