//! What a filter can load besides the packet: a table of the `SKF_AD_*` offsets.

use crate::insn::code;
use crate::op::Size;

/// Something that an absolute load from `SKF_AD_OFF + n` reads instead of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the table below says what each is")]
pub enum Ancillary {
    Protocol,
    PktType,
    IfIndex,
    NlAttr,
    NlAttrNest,
    Mark,
    Queue,
    HaType,
    RxHash,
    Cpu,
    AluXorX,
    VlanTag,
    VlanTagPresent,
    PayOffset,
    Random,
    VlanTpid,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct AncillaryRow {
    /// What it is.
    pub what: Ancillary,
    /// Distance from `SKF_AD_OFF`.
    pub offset: u32,
    /// Name as libpcap prints it.
    pub tcpdump: &'static str,
    /// Name as bpf_asm reads it; none if it has none.
    pub bpf_asm: Option<&'static str>,
    /// One line for people.
    pub meaning: &'static str,
}

const fn row(
    what: Ancillary,
    offset: u32,
    tcpdump: &'static str,
    bpf_asm: Option<&'static str>,
    meaning: &'static str,
) -> AncillaryRow {
    AncillaryRow {
        what,
        offset,
        tcpdump,
        bpf_asm,
        meaning,
    }
}

/// Every ancillary load (`SKF_AD_*` in `linux/filter.h`).
#[rustfmt::skip]
pub static ANCILLARY: [AncillaryRow; 16] = [
    row(Ancillary::Protocol, 0, "proto", Some("proto"), "Ethernet protocol of the packet"),
    row(Ancillary::PktType, 4, "type", Some("type"), "packet type: to us, broadcast, outgoing, …"),
    row(Ancillary::IfIndex, 8, "ifidx", Some("ifidx"), "index of the network device"),
    row(Ancillary::NlAttr, 12, "nla", Some("nla"), "offset of the netlink attribute of type X at or after offset A, 0 if there is none"),
    row(Ancillary::NlAttrNest, 16, "nlan", Some("nlan"), "the same inside the attribute at offset A"),
    row(Ancillary::Mark, 20, "mark", Some("mark"), "packet mark"),
    row(Ancillary::Queue, 24, "queue", Some("queue"), "queue number"),
    row(Ancillary::HaType, 28, "hatype", Some("hatype"), "hardware type of the device (ARPHRD_*)"),
    row(Ancillary::RxHash, 32, "rxhash", Some("rxhash"), "flow hash of the packet"),
    row(Ancillary::Cpu, 36, "cpu", Some("cpu"), "number of the CPU"),
    row(Ancillary::AluXorX, 40, "xor_x", None, "A ^ X: an older way to write it"),
    row(Ancillary::VlanTag, 44, "vlan_tci", Some("vlan_tci"), "VLAN tag control information"),
    row(Ancillary::VlanTagPresent, 48, "vlanp", Some("vlan_avail"), "1 if there is a VLAN tag, else 0"),
    row(Ancillary::PayOffset, 52, "poff", Some("poff"), "offset of the transport payload"),
    row(Ancillary::Random, 56, "random", Some("rand"), "a random number"),
    row(Ancillary::VlanTpid, 60, "vlan_tpid", Some("vlan_tpid"), "VLAN protocol identifier"),
];

impl Ancillary {
    /// The one that an absolute load from `k` reads, if it reads one.
    pub fn at(k: u32) -> Option<Ancillary> {
        let offset = k.checked_sub(code::AD_OFF)?;
        ANCILLARY
            .iter()
            .find(|row| row.offset == offset)
            .map(|row| row.what)
    }

    /// Its row in the table.
    pub fn row(self) -> &'static AncillaryRow {
        // The rows stand in the order of the variants, as a test checks.
        &ANCILLARY[self as usize]
    }

    /// Whether libpcap's `bpf_filter` knows it, which it does at one size only.
    pub(crate) fn in_libpcap(self, size: Size) -> bool {
        size == Size::B && matches!(self, Ancillary::VlanTag | Ancillary::VlanTagPresent)
    }

    /// Its offset as `k` of an absolute load.
    pub fn k(self) -> u32 {
        code::AD_OFF + self.row().offset
    }
}
