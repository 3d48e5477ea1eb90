//! Byte offsets in the structures of `linux/bpf.h` that programs and helpers share.

/// `struct xdp_md`.
#[allow(missing_docs)]
pub mod xdp_md {
    pub const DATA: usize = 0;
    pub const DATA_END: usize = 4;
    pub const DATA_META: usize = 8;
    pub const INGRESS_IFINDEX: usize = 12;
    pub const RX_QUEUE_INDEX: usize = 16;
    pub const EGRESS_IFINDEX: usize = 20;
    pub const SIZE: usize = 24;
}

/// `struct __sk_buff`.
#[allow(missing_docs)]
pub mod sk_buff {
    pub const LEN: usize = 0;
    pub const PKT_TYPE: usize = 4;
    pub const MARK: usize = 8;
    pub const QUEUE_MAPPING: usize = 12;
    pub const PROTOCOL: usize = 16;
    pub const VLAN_PRESENT: usize = 20;
    pub const VLAN_TCI: usize = 24;
    pub const VLAN_PROTO: usize = 28;
    pub const PRIORITY: usize = 32;
    pub const INGRESS_IFINDEX: usize = 36;
    pub const IFINDEX: usize = 40;
    pub const TC_INDEX: usize = 44;
    pub const CB: usize = 48;
    pub const HASH: usize = 68;
    pub const TC_CLASSID: usize = 72;
    pub const DATA: usize = 76;
    pub const DATA_END: usize = 80;
    pub const NAPI_ID: usize = 84;
    pub const FAMILY: usize = 88;
    pub const REMOTE_IP4: usize = 92;
    pub const LOCAL_IP4: usize = 96;
    pub const REMOTE_IP6: usize = 100;
    pub const LOCAL_IP6: usize = 116;
    pub const REMOTE_PORT: usize = 132;
    pub const LOCAL_PORT: usize = 136;
    pub const DATA_META: usize = 140;
    pub const FLOW_KEYS: usize = 144;
    pub const TSTAMP: usize = 152;
    pub const WIRE_LEN: usize = 160;
    pub const GSO_SEGS: usize = 164;
    pub const SK: usize = 168;
    pub const GSO_SIZE: usize = 176;
    pub const TSTAMP_TYPE: usize = 180;
    pub const HWTSTAMP: usize = 184;
    pub const SIZE: usize = 192;
}

/// `struct bpf_sock`.
#[allow(missing_docs)]
pub mod sock {
    pub const BOUND_DEV_IF: usize = 0;
    pub const FAMILY: usize = 4;
    pub const TYPE: usize = 8;
    pub const PROTOCOL: usize = 12;
    pub const MARK: usize = 16;
    pub const PRIORITY: usize = 20;
    pub const SRC_IP4: usize = 24;
    pub const SRC_IP6: usize = 28;
    pub const SRC_PORT: usize = 44;
    pub const DST_PORT: usize = 48;
    pub const DST_IP4: usize = 52;
    pub const DST_IP6: usize = 56;
    pub const STATE: usize = 72;
    pub const RX_QUEUE_MAPPING: usize = 76;
    pub const SIZE: usize = 80;
}

/// `struct bpf_flow_keys`.
#[allow(missing_docs)]
pub mod flow_keys {
    pub const NHOFF: usize = 0;
    pub const THOFF: usize = 2;
    pub const N_PROTO: usize = 10;
    pub const FLAGS: usize = 48;
    pub const SIZE: usize = 56;
}

/// `struct bpf_sk_lookup`.
#[allow(missing_docs)]
pub mod sk_lookup {
    pub const SK: usize = 0;
    pub const FAMILY: usize = 8;
    pub const LOCAL_PORT: usize = 60;
    pub const SIZE: usize = 72;
}

/// `struct sk_msg_md`.
#[allow(missing_docs)]
pub mod sk_msg {
    pub const DATA: usize = 0;
    pub const DATA_END: usize = 8;
    /// The field `size`.
    pub const SIZE_FIELD: usize = 68;
    pub const SK: usize = 72;
    pub const SIZE: usize = 80;
}

/// Size of the context structure of a program type; `None` where the caller decides.
pub fn context_size(prog_type: bpfkit_spec::ProgType) -> Option<usize> {
    use bpfkit_spec::ProgType as T;
    Some(match prog_type {
        T::Xdp => xdp_md::SIZE,
        T::SocketFilter
        | T::SchedCls
        | T::SchedAct
        | T::CgroupSkb
        | T::LwtIn
        | T::LwtOut
        | T::LwtXmit
        | T::LwtSeg6local
        | T::SkSkb
        | T::FlowDissector => sk_buff::SIZE,
        T::CgroupSock => sock::SIZE,
        T::CgroupDevice => 12,
        T::CgroupSysctl => 8,
        T::CgroupSockopt => 40,
        T::CgroupSockAddr => 72,
        T::SockOps => 224,
        T::SkMsg => sk_msg::SIZE,
        T::SkReuseport => 56,
        T::SkLookup => sk_lookup::SIZE,
        T::Netfilter => 16,
        T::LircMode2 => 4,
        _ => return None,
    })
}
