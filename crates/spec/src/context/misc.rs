//! Small contexts.

use super::{Field, Kind, Layout, NARROW, Rule};
use crate::{AttachType, When};

const fn word(name: &'static str, offset: u32) -> Field {
    Field::new(name, offset, 4).read(Rule::at_start(4))
}

/// Context of XDP programs.
pub static XDP_MD: Layout = Layout::new(
    "xdp_md",
    "xdp_buff",
    24,
    &[
        word("data", 0).kind(Kind::Packet),
        word("data_end", 4).kind(Kind::PacketEnd),
        word("data_meta", 8).kind(Kind::PacketMeta),
        word("ingress_ifindex", 12),
        word("rx_queue_index", 16),
        Field::new("egress_ifindex", 20, 4)
            .read(Rule::at_start(4).when(When::AttachIn(&[AttachType::XdpDevmap]))),
    ],
);

/// Context of `cgroup_device` programs.
pub static CGROUP_DEV_CTX: Layout = Layout::new(
    "bpf_cgroup_dev_ctx",
    "bpf_cgroup_dev_ctx",
    12,
    &[
        Field::new("access_type", 0, 4).read(Rule::inside(NARROW)),
        word("major", 4),
        word("minor", 8),
    ],
);

/// Context of `cgroup_sysctl` programs.
pub static SYSCTL: Layout = Layout::new(
    "bpf_sysctl",
    "bpf_sysctl_kern",
    8,
    &[
        Field::new("write", 0, 4).read(Rule::inside(NARROW)),
        Field::new("file_pos", 4, 4)
            .read(Rule::inside(NARROW))
            .write(Rule::at_start(4)),
    ],
);

/// Context of infrared decoders: one scan code word.
pub static LIRC_MODE2: Layout = Layout::new("", "", 4, &[word("sample", 0)]);

/// Context of netfilter hooks.
pub static NF_CTX: Layout = Layout::new(
    "bpf_nf_ctx",
    "bpf_nf_ctx",
    16,
    &[
        Field::new("state", 0, 8)
            .kind(Kind::TrustedBtf("nf_hook_state"))
            .read(Rule::at_start(8)),
        Field::new("skb", 8, 8)
            .kind(Kind::TrustedBtf("sk_buff"))
            .read(Rule::at_start(8)),
    ],
);
