//! Packets of the scenarios, and what the balancer must make of them, said a second time.

use super::scenario::{Kind, Vip};

/// `enum xdp_action`.
pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const TX: u32 = 3;

/// Slots of the consistent-hash ring of a service.
const RING_SIZE: u32 = 65537;
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOURCE_PORT: u16 = 12345;
const PORT: u16 = 80;
const PAYLOAD: usize = 16;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Address of a service: IPv4 in the first four bytes.
pub fn vip_address(vip: Vip) -> [u8; 16] {
    let mut address = [0; 16];
    if vip.is_v6() {
        address[0] = 0xfd;
        address[15] = vip as u8 + 1;
    } else {
        address[..4].copy_from_slice(&[10, 200, 1, vip as u8 + 1]);
    }
    address
}

/// Key of the service's map: address, port, protocol.
pub fn vip_key(vip: Vip) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&vip_address(vip));
    key[16..18].copy_from_slice(&PORT.to_be_bytes());
    key[18] = if vip.is_udp() { UDP } else { TCP };
    key
}

/// Whether a real server has an IPv6 address: every other group of sixteen.
pub fn real_is_v6(real: u32) -> bool {
    real / 16 % 2 == 1
}

/// Address of a real server.
pub fn real_address(real: u32) -> [u8; 16] {
    let mut address = [0; 16];
    if real_is_v6(real) {
        address[..2].copy_from_slice(&[0xfd, 1]);
        address[15] = real as u8 + 1;
    } else {
        address[..4].copy_from_slice(&[10, 201, 0, real as u8 + 1]);
    }
    address
}

fn eth(out: &mut Vec<u8>, kind: u16) {
    out.extend(GATEWAY);
    out.extend(OWN);
    out.extend(kind.to_be_bytes());
}

fn ipv4(out: &mut Vec<u8>, len: usize, protocol: u8, from: [u8; 4], to: &[u8], frag: u16) {
    out.extend([0x45, 0]);
    out.extend((len as u16 + 20).to_be_bytes());
    out.extend([0, 0]);
    out.extend(frag.to_be_bytes());
    out.extend([64, protocol, 0, 0]);
    out.extend(from);
    out.extend(to);
}

fn ipv6(out: &mut Vec<u8>, len: usize, next: u8, from: [u8; 16], to: &[u8]) {
    out.extend([0x60, 0, 0, 0]);
    out.extend((len as u16).to_be_bytes());
    out.extend([next, 64]);
    out.extend(from);
    out.extend(to);
}

fn source_v6(source: u32) -> [u8; 16] {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfd, 2]);
    address[12..].copy_from_slice(&source.to_be_bytes());
    address
}

fn tcp_or_udp(out: &mut Vec<u8>, udp: bool, flags: u8) {
    out.extend(SOURCE_PORT.to_be_bytes());
    out.extend(PORT.to_be_bytes());
    if udp {
        out.extend((PAYLOAD as u16 + 8).to_be_bytes());
        out.extend([0, 0]);
    } else {
        out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    }
    out.extend([0xaa; PAYLOAD]);
}

/// The packet of a scenario, from that source address (its last four bytes).
pub fn build(kind: Kind, source: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let from = source.to_be_bytes();
    let tcp_len = 20 + PAYLOAD;
    match kind {
        Kind::To(vip, flags) => {
            let (to, udp) = (vip_address(vip), vip.is_udp());
            let (protocol, len) = if udp {
                (UDP, 8 + PAYLOAD)
            } else {
                (TCP, tcp_len)
            };
            if vip.is_v6() {
                eth(&mut out, 0x86dd);
                ipv6(&mut out, len, protocol, source_v6(source), &to);
            } else {
                eth(&mut out, 0x0800);
                ipv4(&mut out, len, protocol, from, &to[..4], 0);
            }
            tcp_or_udp(&mut out, udp, flags);
        }
        Kind::Stranger { v6: false } => {
            eth(&mut out, 0x0800);
            ipv4(&mut out, tcp_len, TCP, from, &[10, 250, 0, 1], 0);
            tcp_or_udp(&mut out, false, 0x10);
        }
        Kind::Stranger { v6: true } => {
            eth(&mut out, 0x86dd);
            ipv6(&mut out, tcp_len, TCP, source_v6(source), &[0xfe; 16]);
            tcp_or_udp(&mut out, false, 0x10);
        }
        Kind::Icmp => {
            eth(&mut out, 0x0800);
            ipv4(&mut out, 8 + PAYLOAD, ICMP, from, &[10, 200, 1, 1], 0);
            out.extend([8, 0, 0, 0, 0, 1, 0, 1]);
            out.extend([0xaa; PAYLOAD]);
        }
        Kind::Arp => {
            eth(&mut out, 0x0806);
            out.extend([0, 1, 8, 0, 6, 4, 0, 1]);
            out.resize(60, 0);
        }
        Kind::FragmentV4 => {
            eth(&mut out, 0x0800);
            // More fragments follow.
            ipv4(&mut out, tcp_len, TCP, from, &[10, 200, 1, 1], 0x2000);
            tcp_or_udp(&mut out, false, 0x10);
        }
        Kind::OptionsV4 => {
            eth(&mut out, 0x0800);
            let at = out.len();
            ipv4(&mut out, tcp_len + 4, TCP, from, &[10, 200, 1, 1], 0);
            out[at] = 0x46;
            out.extend([1, 1, 1, 0]);
            tcp_or_udp(&mut out, false, 0x10);
        }
        Kind::FragmentV6 => {
            eth(&mut out, 0x86dd);
            let to = vip_address(Vip::TcpV6);
            ipv6(&mut out, tcp_len + 8, 44, source_v6(source), &to);
            out.extend([TCP, 0, 0, 1, 0, 0, 0, 1]);
            tcp_or_udp(&mut out, false, 0x10);
        }
    }
    out
}

/// Bob Jenkins' lookup3 of two words.
fn hash_words(a: u32, b: u32) -> u32 {
    let mut c = 0xdead_beef_u32.wrapping_add(8);
    let (mut a, mut b) = (a.wrapping_add(c), b.wrapping_add(c));
    let mix = |x: &mut u32, y: u32, by| *x = (*x ^ y).wrapping_sub(y.rotate_left(by));
    mix(&mut c, b, 14);
    mix(&mut a, c, 11);
    mix(&mut b, a, 25);
    mix(&mut c, b, 16);
    mix(&mut a, c, 4);
    mix(&mut b, a, 14);
    mix(&mut c, b, 24);
    c
}

/// The real server of a flow, by the ring that the program fills.
fn real_of(vip: Vip, source: u32) -> u32 {
    let words = if vip.is_v6() {
        let address = source_v6(source);
        let (words, _) = address.as_chunks::<4>();
        words
            .iter()
            .fold(0, |all, word| all ^ u32::from_le_bytes(*word))
    } else {
        source.swap_bytes()
    };
    let ports = u32::from(SOURCE_PORT.swap_bytes()) | u32::from(PORT.swap_bytes()) << 16;
    let slot = hash_words(words, ports) % RING_SIZE;
    vip as u32 % 4 * 16 + slot % 16
}

fn checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let mut sum: u32 = words
        .iter()
        .map(|w| u32::from(u16::from_be_bytes(*w)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What must come of a packet: the action, and the packet afterwards.
pub fn expected(kind: Kind, source: u32) -> (u32, Vec<u8>) {
    let packet = build(kind, source);
    let vip = match kind {
        Kind::To(vip, _) => vip,
        Kind::FragmentV4 | Kind::OptionsV4 | Kind::FragmentV6 => return (DROP, packet),
        _ => return (PASS, packet),
    };
    let inner = &packet[14..];
    let real = real_of(vip, source);
    // Of the source address and port, what the outer address takes over: two bytes.
    let low = if vip.is_v6() {
        source_v6(source)[14..].to_vec()
    } else {
        source.to_be_bytes()[2..].to_vec()
    };
    let port = SOURCE_PORT.to_be_bytes();
    let spread = [low[0] ^ port[0], low[1] ^ port[1]];
    let mut out = Vec::new();
    if real_is_v6(real) {
        eth(&mut out, 0x86dd);
        let mut from = [0; 16];
        from[2..4].copy_from_slice(&[0xff, 0x64]);
        from[14..].copy_from_slice(&spread);
        let next = if vip.is_v6() { 41 } else { 4 };
        ipv6(&mut out, inner.len(), next, from, &real_address(real));
    } else {
        eth(&mut out, 0x0800);
        let from = [172, 16, spread[0], spread[1]];
        ipv4(&mut out, inner.len(), 4, from, &real_address(real)[..4], 0);
        let sum = checksum(&out[14..34]);
        out[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    out.extend(inner);
    (TX, out)
}
