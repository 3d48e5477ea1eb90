//! The 24 scenarios: which packet goes through the balancer, in which state, and what must
//! come of it.

/// Virtual services, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vip {
    TcpV4 = 0,
    TcpV6 = 1,
    /// Without the table of connections.
    TcpV4Bypass = 2,
    TcpV6Bypass = 3,
    UdpV4 = 4,
    UdpV6 = 5,
    /// IPv4 with IPv6 servers.
    TcpV4ToV6 = 7,
}

impl Vip {
    pub const ALL: [Vip; 7] = [
        Vip::TcpV4,
        Vip::TcpV6,
        Vip::TcpV4Bypass,
        Vip::TcpV6Bypass,
        Vip::UdpV4,
        Vip::UdpV6,
        Vip::TcpV4ToV6,
    ];

    pub fn is_v6(self) -> bool {
        matches!(self, Vip::TcpV6 | Vip::TcpV6Bypass | Vip::UdpV6)
    }

    pub fn is_udp(self) -> bool {
        matches!(self, Vip::UdpV4 | Vip::UdpV6)
    }

    pub fn bypasses(self) -> bool {
        matches!(self, Vip::TcpV4Bypass | Vip::TcpV6Bypass)
    }
}

/// What a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To a service, with those TCP flags.
    To(Vip, u8),
    /// To an address that is no service.
    Stranger {
        v6: bool,
    },
    Icmp,
    Arp,
    FragmentV4,
    OptionsV4,
    FragmentV6,
}

/// Misses in the table of connections that a batch must count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misses {
    None,
    All,
    First,
    /// The packet concerns no service.
    Nothing,
}

/// A scenario.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub kind: Kind,
    /// Bits of a packet's number that go into its source address.
    pub mask: u32,
    /// Whether the flows are in the table before.
    pub warm: bool,
    /// Packets of a batch, where it is not calibrated.
    pub batch: Option<u32>,
    pub misses: Misses,
}

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
/// 4,096 sources.
const DIVERSE: u32 = 0xfff;
/// 16 million sources.
const MANY: u32 = 0xff_ffff;

const fn row(
    name: &'static str,
    kind: Kind,
    mask: u32,
    misses: Misses,
    about: &'static str,
) -> Scenario {
    Scenario {
        name,
        about,
        kind,
        mask,
        warm: matches!(misses, Misses::None),
        batch: None,
        misses,
    }
}

/// All of them.
#[rustfmt::skip]
pub const SCENARIOS: &[Scenario] = &[
    row("tcp-v4-lru-hit", Kind::To(Vip::TcpV4, ACK), 0, Misses::None, "IPv4 TCP, flow in the LRU, IPIP"),
    row("tcp-v4-ch", Kind::To(Vip::TcpV4Bypass, ACK), 0, Misses::All, "IPv4 TCP, consistent hash, IPIP"),
    row("tcp-v6-lru-hit", Kind::To(Vip::TcpV6, ACK), 0, Misses::None, "IPv6 TCP, flow in the LRU, IP6IP6"),
    row("tcp-v6-ch", Kind::To(Vip::TcpV6Bypass, ACK), 0, Misses::All, "IPv6 TCP, consistent hash, IP6IP6"),
    row("udp-v4-lru-hit", Kind::To(Vip::UdpV4, 0), 0, Misses::None, "IPv4 UDP, flow in the LRU, IPIP"),
    row("udp-v6-lru-hit", Kind::To(Vip::UdpV6, 0), 0, Misses::None, "IPv6 UDP, flow in the LRU, IP6IP6"),
    row("tcp-v4v6-lru-hit", Kind::To(Vip::TcpV4ToV6, ACK), 0, Misses::None, "IPv4 TCP, flow in the LRU, IPv4 in IPv6"),
    row("tcp-v4-lru-diverse", Kind::To(Vip::TcpV4, ACK), DIVERSE, Misses::None, "IPv4 TCP, 4,096 sources, warm LRU"),
    row("tcp-v4-ch-diverse", Kind::To(Vip::TcpV4Bypass, ACK), DIVERSE, Misses::All, "IPv4 TCP, 4,096 sources, consistent hash"),
    row("tcp-v6-lru-diverse", Kind::To(Vip::TcpV6, ACK), DIVERSE, Misses::None, "IPv6 TCP, 4,096 sources, warm LRU"),
    row("tcp-v6-ch-diverse", Kind::To(Vip::TcpV6Bypass, ACK), DIVERSE, Misses::All, "IPv6 TCP, 4,096 sources, consistent hash"),
    row("udp-v4-lru-diverse", Kind::To(Vip::UdpV4, 0), DIVERSE, Misses::None, "IPv4 UDP, 4,096 sources, warm LRU"),
    row("tcp-v4-lru-miss", Kind::To(Vip::TcpV4, ACK), MANY, Misses::First, "IPv4 TCP, 16 million sources, cold LRU"),
    row("udp-v4-lru-miss", Kind::To(Vip::UdpV4, 0), MANY, Misses::First, "IPv4 UDP, 16 million sources, cold LRU"),
    Scenario {
        batch: Some(6500),
        ..row("tcp-v4-lru-warmup", Kind::To(Vip::TcpV4, ACK), DIVERSE, Misses::First, "IPv4 TCP, 4,096 sources, cold LRU, about half miss")
    },
    row("tcp-v4-syn", Kind::To(Vip::TcpV4, SYN), 0, Misses::All, "IPv4 TCP SYN, no look-up, insertion"),
    row("tcp-v4-rst-miss", Kind::To(Vip::TcpV4, RST), 0, Misses::All, "IPv4 TCP RST, cold LRU, no insertion"),
    row("pass-v4-no-vip", Kind::Stranger { v6: false }, 0, Misses::Nothing, "unknown IPv4 service"),
    row("pass-v6-no-vip", Kind::Stranger { v6: true }, 0, Misses::Nothing, "unknown IPv6 service"),
    row("pass-v4-icmp", Kind::Icmp, 0, Misses::Nothing, "IPv4 ICMP"),
    row("pass-non-ip", Kind::Arp, 0, Misses::Nothing, "ARP, the earliest exit"),
    row("drop-v4-frag", Kind::FragmentV4, 0, Misses::Nothing, "IPv4 fragment"),
    row("drop-v4-options", Kind::OptionsV4, 0, Misses::Nothing, "IPv4 with options"),
    row("drop-v6-frag", Kind::FragmentV6, 0, Misses::Nothing, "IPv6 fragment header"),
];
