//! VLAN tags: the outermost one beside the packet (`vlan_tci`), others in its bytes.

use bpfkit_maps::Errno;

use super::input::{ETH_HLEN, Input};
use super::layout::sk_buff;

const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;
const TAG: usize = 4;
/// Both addresses of an Ethernet header.
const ADDRESSES: usize = 12;

fn is_vlan(protocol: u16) -> bool {
    matches!(protocol, ETH_P_8021Q | ETH_P_8021AD)
}

impl Input {
    fn tag(&self) -> Option<(u16, u16)> {
        (self.ctx_u32(sk_buff::VLAN_PRESENT) != 0).then(|| {
            let protocol = u16::from_be(self.ctx_u32(sk_buff::VLAN_PROTO) as u16);
            (protocol, self.ctx_u32(sk_buff::VLAN_TCI) as u16)
        })
    }

    fn set_tag(&mut self, tag: Option<(u16, u16)>) {
        let (protocol, tci) = tag.unwrap_or_default();
        self.set_ctx_u32(sk_buff::VLAN_PRESENT, u32::from(tag.is_some()));
        self.set_ctx_u32(sk_buff::VLAN_PROTO, u32::from(protocol.to_be()));
        self.set_ctx_u32(sk_buff::VLAN_TCI, u32::from(tci));
    }

    fn skb_protocol(&self) -> u16 {
        u16::from_be(self.ctx_u32(sk_buff::PROTOCOL) as u16)
    }

    /// `bpf_skb_vlan_push`: a tag already there moves into the packet's bytes.
    ///
    /// # Errors
    /// `EINVAL` when the packet does not start with its Ethernet header; `ENOMEM` without room.
    pub(crate) fn vlan_push(&mut self, protocol: u16, tci: u16) -> Result<(), Errno> {
        let result = self.push_tag(
            if is_vlan(protocol) {
                protocol
            } else {
                ETH_P_8021Q
            },
            tci,
        );
        self.sync();
        result
    }

    fn push_tag(&mut self, protocol: u16, tci: u16) -> Result<(), Errno> {
        if let Some((inner, inner_tci)) = self.tag() {
            if self.data != self.skb.mac {
                return Err(Errno::EINVAL);
            }
            self.open_gap(ADDRESSES, TAG)?;
            let at = self.data + ADDRESSES;
            let bytes = &mut self.pages.bytes_mut()[at..at + TAG];
            bytes[..2].copy_from_slice(&inner.to_be_bytes());
            bytes[2..].copy_from_slice(&inner_tci.to_be_bytes());
            self.skb.mac -= TAG;
            self.skb.network -= TAG;
            self.set_protocol(inner);
        }
        self.set_tag(Some((protocol, tci)));
        Ok(())
    }

    /// `bpf_skb_vlan_pop`: the next tag in the bytes takes the place of the one removed.
    ///
    /// # Errors
    /// `ENOMEM` when the packet is too short for the tag it announces.
    pub(crate) fn vlan_pop(&mut self) -> Result<(), Errno> {
        let result = self.pop_tag();
        self.sync();
        result
    }

    fn pop_tag(&mut self) -> Result<(), Errno> {
        if self.tag().is_some() {
            self.set_tag(None);
        } else if is_vlan(self.skb_protocol()) {
            self.strip_tag()?;
        } else {
            return Ok(());
        }
        let protocol = self.skb_protocol();
        if is_vlan(protocol) {
            let tci = self.strip_tag()?;
            self.set_tag(Some((protocol, tci)));
        }
        Ok(())
    }

    /// Removes the first tag from the bytes; the protocol becomes what follows it.
    fn strip_tag(&mut self) -> Result<u16, Errno> {
        self.skb_pull((ETH_HLEN + TAG) as u64)?;
        let at = self.data + ADDRESSES;
        let word =
            |at: usize| u16::from_be_bytes([self.pages.bytes()[at], self.pages.bytes()[at + 1]]);
        let (tci, next) = (word(at + 2), word(at + 4));
        self.close_gap(ADDRESSES, TAG)?;
        self.skb.mac += TAG;
        self.skb.network = self.skb.network.max(self.data + ETH_HLEN);
        self.set_protocol(next);
        Ok(tci)
    }
}
