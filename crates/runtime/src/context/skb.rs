//! What the kernel does to a `struct sk_buff` when helpers read, write and reshape it.

use bpfkit_maps::Errno;

use super::dissect;
use super::input::{ETH_HLEN, Input, Shape};
use super::layout::sk_buff;
use crate::helpers::checksum;

/// Longest packet that helpers let grow (`BPF_SKB_MAX_LEN`).
const MAX_LEN: usize = (4096 << 2) - 320;
/// Highest nesting of checksums known to be right (`SKB_MAX_CSUM_LEVEL`).
const MAX_CSUM_LEVEL: u8 = 3;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// What is known about the packet's checksums (`skb->ip_summed`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// Nothing.
    #[default]
    None,
    /// Checked by the device, this many levels deep beside the first.
    Unnecessary(u8),
    /// The sum of all bytes from the network header on.
    Complete(u32),
}

/// Where `bpf_skb_load_bytes_relative` counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderStart {
    /// Ethernet header.
    Mac,
    /// Network header.
    Network,
}

/// What a socket buffer knows beside its bytes and the fields of `struct __sk_buff`.
/// Places are offsets in the input's pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct SkbState {
    pub mac: usize,
    pub network: usize,
    pub transport: Option<usize>,
    pub checksum: Checksum,
    /// A helper put another header around the packet.
    pub encapsulated: bool,
    /// The hash covers ports, or a program set it: it is not computed again.
    pub hash_known: bool,
    pub tunnel: Option<TunnelKey>,
}

/// What `bpf_skb_set_tunnel_key` and `_opt` leave for the tunnel device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TunnelKey {
    /// `struct bpf_tunnel_key`.
    pub key: Vec<u8>,
    /// Flags of the call.
    pub flags: u64,
    /// Tunnel options.
    pub options: Vec<u8>,
}

impl SkbState {
    pub fn new(mac: usize, network: usize) -> Self {
        Self {
            mac,
            network,
            ..Self::default()
        }
    }
}

impl Input {
    /// Tells what is known about the packet's checksums, as a driver would.
    pub fn set_checksum(&mut self, checksum: Checksum) {
        self.skb.checksum = checksum;
    }

    /// What is known about the packet's checksums now.
    pub fn checksum(&self) -> Checksum {
        self.skb.checksum
    }

    fn skb_len(&self) -> usize {
        self.end - self.data
    }

    fn protocol(&self) -> u16 {
        u16::from_be(self.ctx_u32(sk_buff::PROTOCOL) as u16)
    }

    pub(crate) fn set_protocol(&mut self, protocol: u16) {
        self.set_ctx_u32(sk_buff::PROTOCOL, u32::from(protocol.to_be()));
    }

    fn is_gso(&self) -> bool {
        self.ctx_u32(sk_buff::GSO_SIZE) != 0
    }

    /// Bytes `offset .. offset + len` of the packet, in the pages.
    fn range(&self, offset: u64, len: u64) -> Option<std::ops::Range<usize>> {
        let end = offset.checked_add(len)?;
        (end <= self.skb_len() as u64)
            .then(|| self.data + offset as usize..self.data + end as usize)
    }

    /// `skb_ensure_writable`: the first `len` bytes must exist. All of ours are linear and our own.
    pub(crate) fn skb_pull(&self, len: u64) -> Result<(), Errno> {
        if len > self.skb_len() as u64 {
            Err(Errno::ENOMEM)
        } else {
            Ok(())
        }
    }

    /// Packet bytes at `offset`, `EFAULT` when the packet is shorter.
    pub(crate) fn skb_bytes(&self, offset: u64, len: u64) -> Result<&[u8], Errno> {
        if offset > i32::MAX as u64 {
            return Err(Errno::EFAULT);
        }
        self.range(offset, len)
            .map(|r| &self.pages.bytes()[r])
            .ok_or(Errno::EFAULT)
    }

    /// Address of packet bytes, if the packet has them.
    pub(crate) fn skb_pointer(&self, offset: u64, len: u64) -> Option<u64> {
        self.range(offset, len)
            .map(|r| u64::from(self.pages.address()) + r.start as u64)
    }

    /// Packet bytes counted from a header, which may lie in front of `data`.
    pub(crate) fn skb_bytes_from(
        &self,
        start: HeaderStart,
        offset: u64,
        len: u64,
    ) -> Result<&[u8], Errno> {
        if offset > 0xffff {
            return Err(Errno::EFAULT);
        }
        let header = match start {
            HeaderStart::Mac => self.skb.mac,
            HeaderStart::Network => self.skb.network,
        };
        let from = header + offset as usize;
        let to = usize::try_from(len)
            .ok()
            .and_then(|len| from.checked_add(len))
            .ok_or(Errno::EFAULT)?;
        if to <= self.end {
            Ok(&self.pages.bytes()[from..to])
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// `bpf_skb_store_bytes`.
    pub(crate) fn skb_store(
        &mut self,
        offset: u64,
        from: &[u8],
        recompute: bool,
        clear_hash: bool,
    ) -> Result<(), Errno> {
        if offset > i32::MAX as u64 {
            return Err(Errno::EFAULT);
        }
        let range = self.range(offset, from.len() as u64).ok_or(Errno::EFAULT)?;
        if recompute && let Checksum::Complete(sum) = self.skb.checksum {
            let old = checksum::partial(&self.pages.bytes()[range.clone()], 0);
            let new = checksum::partial(from, 0);
            // Bytes at an odd place count in the other half of their words.
            let at = |sum: u32| {
                if offset & 1 == 1 {
                    sum.rotate_right(8)
                } else {
                    sum
                }
            };
            let sum = checksum::add(checksum::sub(sum, at(old)), at(new));
            self.skb.checksum = Checksum::Complete(sum);
        }
        self.pages.bytes_mut()[range].copy_from_slice(from);
        if clear_hash {
            self.clear_hash();
        }
        Ok(())
    }

    pub(crate) fn clear_hash(&mut self) {
        self.skb.hash_known = false;
        self.set_ctx_u32(sk_buff::HASH, 0);
    }

    /// `bpf_set_hash`: the program's own hash, which stays.
    pub(crate) fn set_hash(&mut self, hash: u32) {
        self.set_ctx_u32(sk_buff::HASH, hash);
        self.skb.hash_known = true;
    }

    /// `bpf_get_hash_recalc`.
    pub(crate) fn flow_hash(&mut self) -> u32 {
        if !self.skb.hash_known {
            let from = self.skb.network.min(self.end);
            let hash = dissect::flow_hash(self.protocol(), &self.pages.bytes()[from..self.end]);
            self.set_hash(hash);
        }
        self.ctx_u32(sk_buff::HASH)
    }

    /// The 16 bits of a checksum field at `offset`, after the checks that
    /// `bpf_l3_csum_replace` and `bpf_l4_csum_replace` share.
    fn checksum_field(&self, offset: u64) -> Result<(usize, u16), Errno> {
        if offset > 0xffff || offset & 1 == 1 {
            return Err(Errno::EFAULT);
        }
        let range = self.range(offset, 2).ok_or(Errno::EFAULT)?;
        let bytes = &self.pages.bytes()[range.clone()];
        Ok((range.start, u16::from_ne_bytes([bytes[0], bytes[1]])))
    }

    fn put_checksum(&mut self, at: usize, check: u16) {
        self.pages.bytes_mut()[at..at + 2].copy_from_slice(&check.to_ne_bytes());
    }

    /// `bpf_l3_csum_replace`; `size` is 0, 2 or 4.
    pub(crate) fn l3_csum_replace(
        &mut self,
        offset: u64,
        from: u64,
        to: u64,
        size: u64,
    ) -> Result<(), Errno> {
        let (at, check) = self.checksum_field(offset)?;
        let check = match size {
            0 if from != 0 => return Err(Errno::EINVAL),
            0 => checksum::replace_by_diff(check, to as u32),
            2 => checksum::replace2(check, from as u16, to as u16),
            4 => checksum::replace4(check, from as u32, to as u32),
            _ => return Err(Errno::EINVAL),
        };
        self.put_checksum(at, check);
        Ok(())
    }

    /// `bpf_l4_csum_replace` with its flags.
    pub(crate) fn l4_csum_replace(
        &mut self,
        offset: u64,
        from: u64,
        to: u64,
        flags: u64,
    ) -> Result<(), Errno> {
        const FIELD_MASK: u64 = 0xf;
        const PSEUDO_HDR: u64 = 1 << 4;
        const MARK_MANGLED_0: u64 = 1 << 5;
        const MARK_ENFORCE: u64 = 1 << 6;
        const IPV6: u64 = 1 << 7;
        /// A UDP checksum of 0 means none; this is the same sum.
        const MANGLED_0: u16 = 0xffff;
        if flags & !(FIELD_MASK | PSEUDO_HDR | MARK_MANGLED_0 | MARK_ENFORCE | IPV6) != 0 {
            return Err(Errno::EINVAL);
        }
        let (at, check) = self.checksum_field(offset)?;
        let mangled = flags & MARK_MANGLED_0 != 0;
        if mangled && flags & MARK_ENFORCE == 0 && check == 0 {
            return Ok(());
        }
        let pseudo = flags & PSEUDO_HDR != 0;
        let complete = match self.skb.checksum {
            Checksum::Complete(sum) if pseudo => Some(sum),
            _ => None,
        };
        let size = flags & FIELD_MASK;
        let (check, sum) = match size {
            0 if from != 0 => return Err(Errno::EINVAL),
            0 => {
                let to = to as u32;
                let sum = complete
                    .filter(|_| flags & IPV6 == 0)
                    .map(|sum| !checksum::sub(to, sum));
                (checksum::replace_by_diff(check, to), sum)
            }
            2 | 4 => {
                let cut = |v: u64| {
                    if size == 2 {
                        u32::from(v as u16)
                    } else {
                        v as u32
                    }
                };
                let (from, to) = (cut(from), cut(to));
                let sum = complete.map(|sum| !checksum::add(checksum::sub(!sum, from), to));
                (checksum::replace4(check, from, to), sum)
            }
            _ => return Err(Errno::EINVAL),
        };
        if let Some(sum) = sum {
            self.skb.checksum = Checksum::Complete(sum);
        }
        self.put_checksum(
            at,
            if mangled && check == 0 {
                MANGLED_0
            } else {
                check
            },
        );
        Ok(())
    }

    /// `bpf_csum_update`: the new sum, where one is kept.
    pub(crate) fn csum_update(&mut self, add: u32) -> Result<u32, Errno> {
        let Checksum::Complete(sum) = self.skb.checksum else {
            return Err(Errno::ENOTSUPP);
        };
        let sum = checksum::add(sum, add);
        self.skb.checksum = Checksum::Complete(sum);
        Ok(sum)
    }

    /// `bpf_csum_level`: 0 query, 1 one more level, 2 one less, 3 reset.
    pub(crate) fn csum_level(&mut self, action: u64) -> Result<u64, Errno> {
        use Checksum::{None, Unnecessary};
        self.skb.checksum = match (action, self.skb.checksum) {
            (0, Unnecessary(level)) => return Ok(u64::from(level)),
            (0, _) => return Err(Errno::EACCES),
            (1, Unnecessary(level)) => Unnecessary((level + 1).min(MAX_CSUM_LEVEL)),
            (1, None) => Unnecessary(0),
            (2, Unnecessary(0)) => None,
            (2, Unnecessary(level)) => Unnecessary(level - 1),
            (3, Unnecessary(_)) => None,
            (1..=3, other) => other,
            _ => return Err(Errno::EINVAL),
        };
        Ok(0)
    }

    fn reset_unnecessary(&mut self) {
        if matches!(self.skb.checksum, Checksum::Unnecessary(_)) {
            self.skb.checksum = Checksum::None;
        }
    }

    /// Takes `bytes` that leave the packet out of a complete sum.
    fn pull_checksum(&mut self, range: std::ops::Range<usize>) {
        if let Checksum::Complete(sum) = self.skb.checksum {
            let pulled = checksum::partial(&self.pages.bytes()[range], !sum);
            self.skb.checksum = Checksum::Complete(!pulled);
        }
    }

    /// Opens `len` zero bytes at `offset`, moving what is in front to the left.
    pub(crate) fn open_gap(&mut self, offset: usize, len: usize) -> Result<(), Errno> {
        let data = self
            .data
            .checked_sub(len)
            .filter(|&d| d >= self.head)
            .ok_or(Errno::ENOMEM)?;
        if offset > self.skb_len() {
            return Err(Errno::ENOMEM);
        }
        let old = self.data;
        let bytes = self.pages.bytes_mut();
        bytes.copy_within(old..old + offset, data);
        bytes[data + offset..old + offset].fill(0);
        self.data = data;
        self.meta = data;
        Ok(())
    }

    /// Removes `len` bytes at `offset`, moving what is in front to the right.
    pub(crate) fn close_gap(&mut self, offset: usize, len: usize) -> Result<(), Errno> {
        if offset + len > self.skb_len() {
            return Err(Errno::ENOMEM);
        }
        self.pull_checksum(self.data + offset..self.data + offset + len);
        let data = self.data + len;
        let old = self.data;
        self.pages.bytes_mut().copy_within(old..old + offset, data);
        self.data = data;
        self.meta = data;
        Ok(())
    }

    /// `bpf_skb_net_hdr_push` and `_pop`: a gap behind the link-layer header, which moves.
    fn net_header_gap(&mut self, offset: usize, delta: isize) -> Result<(), Errno> {
        let same = self.skb.transport == Some(self.skb.network);
        if delta >= 0 {
            self.open_gap(offset, delta.unsigned_abs())?;
        } else {
            self.close_gap(offset, delta.unsigned_abs())?;
        }
        self.skb.mac = self.skb.mac.wrapping_add_signed(-delta);
        self.skb.network = self.skb.network.wrapping_add_signed(-delta);
        if same {
            self.skb.transport = Some(self.skb.network);
        }
        Ok(())
    }

    fn mac_header_len(&self) -> usize {
        self.skb.network.saturating_sub(self.skb.mac)
    }

    /// `bpf_skb_change_proto`: makes room for an IPv6 header in place of an IPv4 one, or takes it away.
    pub(crate) fn skb_change_proto(&mut self, to: u16, flags: u64) -> Result<(), Errno> {
        /// Difference of the two headers' lengths.
        const LEN_DIFF: isize = 20;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let delta = match (self.protocol(), to) {
            (ETH_P_IP, ETH_P_IPV6) => LEN_DIFF,
            (ETH_P_IPV6, ETH_P_IP) => -LEN_DIFF,
            _ => return Err(Errno::ENOTSUPP),
        };
        let result = self.net_header_gap(self.mac_header_len(), delta);
        if result.is_ok() {
            self.set_protocol(to);
            self.clear_hash();
        }
        self.sync();
        result
    }

    /// `bpf_skb_change_type`: only between host, broadcast, multicast and other host.
    pub(crate) fn skb_change_type(&mut self, to: u64) -> Result<(), Errno> {
        const OTHERHOST: u64 = 3;
        let now = u64::from(self.ctx_u32(sk_buff::PKT_TYPE));
        if now > OTHERHOST || to > OTHERHOST {
            return Err(Errno::EINVAL);
        }
        self.set_ctx_u32(sk_buff::PKT_TYPE, to as u32);
        Ok(())
    }

    /// `bpf_skb_adjust_room`: `delta` bytes more or fewer behind the network header
    /// (mode 0) or in front of it (mode 1).
    pub(crate) fn skb_adjust_room(
        &mut self,
        delta: i32,
        mode: u64,
        flags: u64,
    ) -> Result<(), Errno> {
        let result = self.adjust_room(delta, mode, flags);
        self.sync();
        result
    }

    fn adjust_room(&mut self, delta: i32, mode: u64, flags: u64) -> Result<(), Errno> {
        use room::*;
        if flags & !(GROW | DECAP_L3 | NO_CSUM_RESET) != 0 {
            return Err(Errno::EINVAL);
        }
        let by = delta.unsigned_abs() as usize;
        if by > 0xfff {
            return Err(Errno::EFAULT);
        }
        let base_len = match self.protocol() {
            ETH_P_IP => 20,
            ETH_P_IPV6 => 40,
            _ => return Err(Errno::ENOTSUPP),
        };
        let mut offset = self.mac_header_len();
        match mode {
            0 => offset += base_len,
            1 => {}
            _ => return Err(Errno::ENOTSUPP),
        }
        let shrink = delta < 0;
        let mut min = base_len;
        if flags & DECAP_L3 != 0 {
            if !shrink {
                return Err(Errno::EINVAL);
            }
            min = match flags & DECAP_L3 {
                DECAP_L3_IPV4 => 20,
                DECAP_L3_IPV6 => 40,
                _ => return Err(Errno::EINVAL),
            };
        }
        let network_len = self.end.saturating_sub(self.skb.network);
        let too_short = shrink && (by >= network_len || network_len - by < min);
        let too_long = !shrink && self.skb_len() + by > MAX_LEN && !self.is_gso();
        if too_short || too_long {
            return Err(Errno::ENOTSUPP);
        }
        if shrink {
            self.shrink_room(offset, by, flags)
        } else {
            self.grow_room(offset, by, flags)
        }?;
        if flags & NO_CSUM_RESET == 0 {
            self.reset_unnecessary();
        }
        Ok(())
    }

    fn shrink_room(&mut self, offset: usize, by: usize, flags: u64) -> Result<(), Errno> {
        use room::*;
        if flags & !(FIXED_GSO | DECAP_L3 | NO_CSUM_RESET) != 0 {
            return Err(Errno::EINVAL);
        }
        if self.is_gso() {
            return Err(Errno::ENOTSUPP);
        }
        self.net_header_gap(offset, -(by as isize))?;
        match (self.protocol(), flags & DECAP_L3) {
            (ETH_P_IP, DECAP_L3_IPV6) => self.set_protocol(ETH_P_IPV6),
            (ETH_P_IPV6, DECAP_L3_IPV4) => self.set_protocol(ETH_P_IP),
            _ => {}
        }
        Ok(())
    }

    fn grow_room(&mut self, offset: usize, by: usize, flags: u64) -> Result<(), Errno> {
        use room::*;
        // A segmented packet of a test run has no protocol of segmentation.
        if self.is_gso() {
            return Err(Errno::ENOTSUPP);
        }
        let encap = flags & ENCAP_L3;
        let inner_mac_len = (flags >> ENCAP_L2_SHIFT) as u8 as usize;
        if encap != 0 {
            let conflict = encap == ENCAP_L3
                || flags & (ENCAP_L4_GRE | ENCAP_L4_UDP) == ENCAP_L4_GRE | ENCAP_L4_UDP
                || (flags & ENCAP_L2_ETH != 0 && inner_mac_len < ETH_HLEN);
            if conflict {
                return Err(Errno::EINVAL);
            }
            if self.skb.encapsulated {
                return Err(crate::helpers::EALREADY);
            }
            if inner_mac_len > by {
                return Err(Errno::EINVAL);
            }
        }
        let mac_len = self.mac_header_len();
        self.net_header_gap(offset, by as isize)?;
        if encap != 0 {
            self.skb.encapsulated = true;
            self.skb.network = self.data + mac_len;
            if flags & (ENCAP_L4_GRE | ENCAP_L4_UDP) != 0 {
                let header = if encap == ENCAP_L3_IPV6 { 40 } else { 20 };
                self.skb.transport = Some(self.skb.network + header);
            }
            match (self.protocol(), encap) {
                (ETH_P_IP, ENCAP_L3_IPV6) => self.set_protocol(ETH_P_IPV6),
                (ETH_P_IPV6, ENCAP_L3_IPV4) => self.set_protocol(ETH_P_IP),
                _ => {}
            }
        }
        Ok(())
    }

    /// `bpf_skb_adjust_room` of stream parsers: bytes more or fewer at the front.
    pub(crate) fn sk_skb_adjust_room(
        &mut self,
        delta: i32,
        mode: u64,
        flags: u64,
    ) -> Result<(), Errno> {
        if flags != 0 || mode != 0 {
            return Err(Errno::EINVAL);
        }
        let by = delta.unsigned_abs() as usize;
        if by > 0xfff {
            return Err(Errno::EFAULT);
        }
        let result = if delta >= 0 {
            self.open_gap(0, by)
        } else {
            self.close_gap(0, by)
        };
        self.sync();
        result
    }

    /// `bpf_skb_change_tail`: cuts the packet, or lengthens it with zeros.
    pub(crate) fn skb_change_tail(&mut self, new_len: u64, flags: u64) -> Result<(), Errno> {
        let headers = self
            .skb
            .transport
            .unwrap_or(self.skb.network)
            .saturating_sub(self.data);
        let network = self.skb.network.saturating_sub(self.data);
        let min = if headers > 0 { headers } else { network } as u64;
        let result = if flags != 0 || new_len > MAX_LEN as u64 || new_len < min {
            Err(Errno::EINVAL)
        } else if self.skb.encapsulated {
            Err(Errno::ENOTSUPP)
        } else {
            self.resize_tail(new_len as usize)
        };
        self.sync();
        result
    }

    fn resize_tail(&mut self, len: usize) -> Result<(), Errno> {
        let (old, end) = (self.end, self.data + len);
        if end > self.pages.len() {
            return Err(Errno::ENOMEM);
        }
        if end > old {
            self.pages.bytes_mut()[old..end].fill(0);
        } else if let Checksum::Complete(sum) = self.skb.checksum {
            let cut = checksum::partial(&self.pages.bytes()[end..old], 0);
            let cut = if len & 1 == 1 {
                cut.rotate_right(8)
            } else {
                cut
            };
            self.skb.checksum = Checksum::Complete(checksum::sub(sum, cut));
        }
        self.end = end;
        if self.is_gso() {
            self.set_ctx_u32(sk_buff::GSO_SIZE, 0);
            self.set_ctx_u32(sk_buff::GSO_SEGS, 0);
        }
        Ok(())
    }

    /// `bpf_skb_change_head`: zero bytes in front, for a link-layer header.
    pub(crate) fn skb_change_head(&mut self, by: u64, flags: u64) -> Result<(), Errno> {
        let by = by as u32 as usize;
        let len = self.skb_len() + by;
        let result = if flags != 0 || (!self.is_gso() && len > MAX_LEN) || len > u32::MAX as usize {
            Err(Errno::EINVAL)
        } else {
            self.open_gap(0, by).map(|()| self.skb.mac = self.data)
        };
        self.sync();
        result
    }

    /// Legacy packet load. Negative offsets count from the network header
    /// (`SKF_NET_OFF`) or from the link-layer header (`SKF_LL_OFF`).
    pub(crate) fn legacy_load(&self, offset: i32, size: usize) -> Option<u32> {
        const SKF_NET_OFF: i32 = -0x10_0000;
        const SKF_LL_OFF: i32 = -0x20_0000;
        if !matches!(self.shape, Shape::Skb { .. } | Shape::Flow) {
            return None;
        }
        let (base, offset) = match offset {
            0.. => (self.data, offset),
            SKF_NET_OFF.. => (self.skb.network, offset - SKF_NET_OFF),
            SKF_LL_OFF.. => (self.skb.mac, offset - SKF_LL_OFF),
            _ => return None,
        };
        let from = base.checked_add(offset as usize)?;
        let to = from.checked_add(size)?;
        if to > self.end {
            return None;
        }
        let bytes = self.pages.bytes().get(from..to)?;
        Some(bytes.iter().fold(0, |value, &b| value << 8 | u32::from(b)))
    }

    /// The protocol behind VLAN tags in the bytes.
    fn inner_protocol(&self) -> u16 {
        let mut protocol = self.protocol();
        let mut at = self.skb.network + 2;
        while matches!(protocol, 0x8100 | 0x88a8) && at + 2 <= self.end {
            let bytes = &self.pages.bytes()[at..at + 2];
            protocol = u16::from_be_bytes([bytes[0], bytes[1]]);
            at += 4;
        }
        protocol
    }

    /// `bpf_skb_ecn_set_ce`: marks an IP packet that can carry the mark; says whether it is marked.
    pub(crate) fn set_congestion_experienced(&mut self) -> bool {
        const CE: u8 = 3;
        let at = self.skb.network;
        let protocol = self.inner_protocol();
        let needed = match protocol {
            ETH_P_IP => 20,
            ETH_P_IPV6 => 40,
            _ => return false,
        };
        if at + needed > self.end {
            return false;
        }
        let v6 = protocol == ETH_P_IPV6;
        let header = &mut self.pages.bytes_mut()[at..at + needed];
        let ecn = if v6 {
            header[1] >> 4 & CE
        } else {
            header[1] & CE
        };
        if ecn == 0 || ecn == CE {
            return ecn == CE;
        }
        if v6 {
            header[1] |= CE << 4;
        } else {
            let word = |h: &[u8]| u16::from_ne_bytes([h[0], h[1]]);
            let old = word(header);
            header[1] |= CE;
            let check = checksum::replace2(
                u16::from_ne_bytes([header[10], header[11]]),
                old,
                word(header),
            );
            header[10..12].copy_from_slice(&check.to_ne_bytes());
        }
        true
    }

    /// Whether the packet carries a link-layer header in front of its network header.
    pub(crate) fn has_mac_header(&self) -> bool {
        self.skb.mac < self.skb.network && self.skb_len() > 0
    }
}

/// Flags of `bpf_skb_adjust_room`.
mod room {
    pub const FIXED_GSO: u64 = 1;
    pub const ENCAP_L3_IPV4: u64 = 1 << 1;
    pub const ENCAP_L3_IPV6: u64 = 1 << 2;
    pub const ENCAP_L3: u64 = ENCAP_L3_IPV4 | ENCAP_L3_IPV6;
    pub const ENCAP_L4_GRE: u64 = 1 << 3;
    pub const ENCAP_L4_UDP: u64 = 1 << 4;
    pub const NO_CSUM_RESET: u64 = 1 << 5;
    pub const ENCAP_L2_ETH: u64 = 1 << 6;
    pub const DECAP_L3_IPV4: u64 = 1 << 7;
    pub const DECAP_L3_IPV6: u64 = 1 << 8;
    pub const DECAP_L3: u64 = DECAP_L3_IPV4 | DECAP_L3_IPV6;
    pub const ENCAP_L2_SHIFT: u32 = 56;
    pub const ENCAP_L2: u64 = 0xff << ENCAP_L2_SHIFT;
    /// What growing takes.
    pub const GROW: u64 =
        FIXED_GSO | ENCAP_L3 | ENCAP_L4_GRE | ENCAP_L4_UDP | ENCAP_L2_ETH | ENCAP_L2;
}
