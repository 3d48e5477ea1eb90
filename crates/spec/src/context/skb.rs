//! `struct __sk_buff`.

use super::{ANY, Field, Kind, Layout, NARROW, Rule};
use crate::{Capability, ProgType as P, ProgTypes};

const FILTER: ProgTypes = ProgTypes::of(&[P::SocketFilter]);
const CGROUP: ProgTypes = ProgTypes::of(&[P::CgroupSkb]);
const TC: ProgTypes = ProgTypes::of(&[P::SchedCls, P::SchedAct]);
const LWT: ProgTypes = ProgTypes::of(&[P::LwtIn, P::LwtOut, P::LwtXmit, P::LwtSeg6local]);
const STREAM: ProgTypes = ProgTypes::of(&[P::SkSkb]);
/// Programs that read the packet itself through pointers.
const DIRECT: ProgTypes = TC.or(LWT).or(STREAM);
const SKB: ProgTypes = DIRECT.or(FILTER).or(CGROUP);
/// Programs with a socket known to the skb.
const WITH_SOCKET: ProgTypes = CGROUP.or(STREAM);

/// A word that all may read.
const fn word(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 4).read(Rule::inside(NARROW).by(SKB))
}

/// An address or port of the skb's socket.
const fn socket(name: &'static str, offset: u32, size: u32, sizes: u8) -> Field {
    Field::new(name, offset, size).read(Rule::inside(sizes).by(WITH_SOCKET))
}

const fn store(sizes: u8, types: ProgTypes) -> Rule {
    Rule::at_start(sizes).by(types)
}

/// A pointer in a 32-bit field, for those who read the packet directly.
const fn packet(name: &'static str, offset: u32, kind: Kind) -> [Field; 2] {
    let field = Field::new(name, offset, 4).kind(kind);
    [
        field.read(Rule::at_start(4).by(DIRECT)),
        field.read(Rule::at_start(4).by(CGROUP).needs(Capability::Bpf)),
    ]
}

const DATA: [Field; 2] = packet("data", 76, Kind::Packet);
const DATA_END: [Field; 2] = packet("data_end", 80, Kind::PacketEnd);
const TSTAMP: Field = Field::new("tstamp", 152, 8).read(Rule::at_start(8).by(TC.or(CGROUP)));

/// Context of all programs for a packet with its socket buffer.
pub static SK_BUFF: Layout = Layout::new(
    "__sk_buff",
    "sk_buff",
    192,
    &[
        word("len", 0),
        word("pkt_type", 4),
        Field::new("mark", 8, 4)
            .read(Rule::inside(NARROW).by(SKB.less(STREAM)))
            .write(store(4, CGROUP.or(TC).or(LWT))),
        word("queue_mapping", 12).write(store(4, TC)),
        word("protocol", 16),
        word("vlan_present", 20),
        word("vlan_tci", 24),
        word("vlan_proto", 28),
        word("priority", 32).write(store(4, SKB.less(FILTER))),
        word("ingress_ifindex", 36),
        word("ifindex", 40),
        word("tc_index", 44).write(store(4, TC.or(STREAM))),
        Field::new("cb", 48, 20)
            .read(Rule::inside(ANY).by(SKB))
            .write(Rule::inside(ANY).by(SKB.less(STREAM))),
        word("hash", 68),
        Field::new("tc_classid", 72, 4)
            .read(Rule::inside(NARROW).by(TC))
            .write(store(4, TC)),
        DATA[0],
        DATA[1],
        DATA_END[0],
        DATA_END[1],
        word("napi_id", 84),
        socket("family", 88, 4, NARROW),
        socket("remote_ip4", 92, 4, 4),
        socket("local_ip4", 96, 4, 4),
        socket("remote_ip6", 100, 16, 4),
        socket("local_ip6", 116, 16, 4),
        socket("remote_port", 132, 4, NARROW),
        socket("local_port", 136, 4, NARROW),
        Field::new("data_meta", 140, 4)
            .kind(Kind::PacketMeta)
            .read(Rule::at_start(4).by(TC)),
        TSTAMP.write(store(8, TC)),
        TSTAMP.write(store(8, CGROUP).needs(Capability::Bpf)),
        Field::new("wire_len", 160, 4).read(Rule::inside(NARROW).by(TC)),
        word("gso_segs", 164),
        Field::new("sk", 168, 8)
            .kind(Kind::SockCommonOrNull)
            .read(Rule::at_start(8).by(SKB)),
        word("gso_size", 176),
        Field::new("tstamp_type", 180, 1).read(Rule::at_start(1).by(TC)),
        Field::new("hwtstamp", 184, 8).read(Rule::at_start(8).by(TC.or(CGROUP))),
    ],
);

/// Context of flow dissectors: the same structure with three fields.
pub static FLOW_DISSECTOR: Layout = Layout::new(
    "__sk_buff",
    "bpf_flow_dissector",
    192,
    &[
        Field::new("data", 76, 4)
            .kind(Kind::Packet)
            .read(Rule::at_start(4)),
        Field::new("data_end", 80, 4)
            .kind(Kind::PacketEnd)
            .read(Rule::at_start(4)),
        Field::new("flow_keys", 144, 8)
            .kind(Kind::FlowKeys)
            .read(Rule::at_start(8)),
    ],
);
