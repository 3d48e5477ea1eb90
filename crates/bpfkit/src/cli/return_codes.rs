//! Names of return values by program type.

use bpfkit_spec::ProgType;

const XDP: &[&str] = &[
    "XDP_ABORTED",
    "XDP_DROP",
    "XDP_PASS",
    "XDP_TX",
    "XDP_REDIRECT",
];
const TC: &[&str] = &[
    "TC_ACT_OK",
    "TC_ACT_RECLASSIFY",
    "TC_ACT_SHOT",
    "TC_ACT_PIPE",
    "TC_ACT_STOLEN",
    "TC_ACT_QUEUED",
    "TC_ACT_REPEAT",
    "TC_ACT_REDIRECT",
    "TC_ACT_TRAP",
];
const CGROUP: &[&str] = &[
    "deny",
    "allow",
    "deny, congestion notified",
    "allow, congestion notified",
];
const NETFILTER: &[&str] = &["NF_DROP", "NF_ACCEPT"];
const VERDICT: &[&str] = &["SK_DROP", "SK_PASS"];

/// Name of a return value, or the number where it has none.
pub fn name(prog_type: ProgType, value: u32) -> String {
    let names = match prog_type {
        ProgType::Xdp => XDP,
        ProgType::SchedCls | ProgType::SchedAct => TC,
        ProgType::CgroupSkb => CGROUP,
        ProgType::Netfilter => NETFILTER,
        ProgType::SkLookup | ProgType::SkSkb | ProgType::SkMsg | ProgType::SkReuseport => VERDICT,
        ProgType::SocketFilter if value == 0 => return "drop".to_owned(),
        ProgType::SocketFilter => return "keep".to_owned(),
        ProgType::LwtIn | ProgType::LwtOut | ProgType::LwtXmit | ProgType::FlowDissector => {
            return lightweight_tunnel(value);
        }
        _ => &[],
    };
    let signed = value.cast_signed();
    match names.get(value as usize) {
        Some(name) => (*name).to_owned(),
        None if matches!(prog_type, ProgType::SchedCls | ProgType::SchedAct) && signed == -1 => {
            "TC_ACT_UNSPEC".to_owned()
        }
        None => signed.to_string(),
    }
}

/// `enum bpf_ret_code`.
fn lightweight_tunnel(value: u32) -> String {
    match value {
        0 => "BPF_OK".to_owned(),
        2 => "BPF_DROP".to_owned(),
        7 => "BPF_REDIRECT".to_owned(),
        128 => "BPF_LWT_REROUTE".to_owned(),
        129 => "BPF_FLOW_DISSECTOR_CONTINUE".to_owned(),
        other => other.cast_signed().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::name;
    use bpfkit_spec::ProgType;

    #[test]
    fn names_and_numbers() {
        assert_eq!(name(ProgType::Xdp, 2), "XDP_PASS");
        assert_eq!(name(ProgType::Xdp, 77), "77");
        assert_eq!(name(ProgType::SchedCls, u32::MAX), "TC_ACT_UNSPEC");
        assert_eq!(name(ProgType::SocketFilter, 65535), "keep");
        assert_eq!(name(ProgType::Kprobe, u32::MAX), "-1");
    }
}
