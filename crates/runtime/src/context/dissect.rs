//! The little that contexts need to know about packet headers.

/// Protocol of an Ethernet frame as `eth_type_trans` decides it, in host order.
pub(crate) fn ethernet_protocol(packet: &[u8]) -> u16 {
    /// Values below are lengths (IEEE 802.3).
    const FIRST_TYPE: u16 = 0x0600;
    const ETH_P_802_3: u16 = 0x0001;
    const ETH_P_802_2: u16 = 0x0004;
    let word = |at: usize| {
        packet
            .get(at..at + 2)
            .map(|b| u16::from_be_bytes([b[0], b[1]]))
    };
    match word(12) {
        Some(protocol) if protocol >= FIRST_TYPE => protocol,
        _ if word(14) == Some(0xffff) => ETH_P_802_3,
        _ => ETH_P_802_2,
    }
}

/// `PACKET_HOST` (0), `_MULTICAST` (2) or `_OTHERHOST` (3), seen from the loopback device,
/// whose address is zeros and which has no broadcast address.
pub(crate) fn packet_type(packet: &[u8]) -> u32 {
    match packet.get(..6) {
        Some([first, ..]) if first & 1 == 1 => 2,
        Some([0, 0, 0, 0, 0, 0]) | None => 0,
        Some(_) => 3,
    }
}

/// A flow's addresses, ports and protocol, of a packet that starts at its network header.
/// Zero where the protocol is not known; never fails.
pub(crate) fn flow_words(protocol: u16, mut ip: &[u8]) -> [u32; 10] {
    let mut words = [0; 10];
    let mut protocol = protocol;
    while matches!(protocol, 0x8100 | 0x88a8) && ip.len() >= 4 {
        protocol = u16::from_be_bytes([ip[2], ip[3]]);
        ip = &ip[4..];
    }
    let mut put = |at: usize, bytes: &[u8]| {
        for (word, chunk) in words[at..].iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
    };
    let (next, payload) = match protocol {
        0x0800 if ip.len() >= 20 => {
            put(0, &ip[12..16]);
            put(4, &ip[16..20]);
            let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
            let header = usize::from(ip[0] & 15) * 4;
            (
                ip[9],
                if fragment {
                    None
                } else {
                    ip.get(header.max(20)..)
                },
            )
        }
        0x86dd if ip.len() >= 40 => {
            put(0, &ip[8..24]);
            put(4, &ip[24..40]);
            (ip[6], ip.get(40..))
        }
        _ => return words,
    };
    if let (6 | 17 | 132 | 33, Some(ports)) = (next, payload.and_then(|p| p.get(..4))) {
        put(8, ports);
    }
    words[9] = u32::from(next);
    words
}

/// A hash of the flow, never 0 (the kernel's is keyed at boot; ours is the same everywhere).
pub(crate) fn flow_hash(protocol: u16, ip: &[u8]) -> u32 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(protocol);
    for word in flow_words(protocol, ip) {
        state = (state ^ u64::from(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
    }
    (state as u32).max(1)
}
