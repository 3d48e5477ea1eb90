//! The context of netfilter programs: `struct bpf_nf_ctx`, two pointers to structures of
//! the kernel itself. Their layout is the kernel's BTF's, which programs were linked
//! against; the fields that a test run sets are set, all others are zero.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::ProgType;

use super::input::{ETH_HLEN, Input, InputError, KernelPacket};

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const PROTO_IPV4: u64 = 2;
const PROTO_IPV6: u64 = 10;
/// `NF_INET_LOCAL_OUT`, where `BPF_PROG_TEST_RUN` pretends to be.
const LOCAL_OUT: u64 = 3;
/// Ethernet types.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// Anonymous members of members looked into for a field.
const MAX_DEPTH: u32 = 8;

/// A structure of the kernel being filled in.
struct Structure<'a> {
    ty: Option<Type<'a>>,
    bytes: Vec<u8>,
}

impl<'a> Structure<'a> {
    /// A zeroed one; empty where the BTF lacks it.
    fn new(btf: &'a Btf, name: &str) -> Self {
        let ty = btf.by_name(name, Kind::Struct);
        let size = ty.and_then(Type::size).unwrap_or(0);
        Structure {
            ty,
            bytes: vec![0; size as usize],
        }
    }

    /// Sets a field by name, through anonymous members; one that this kernel lacks is left.
    fn set(&mut self, name: &str, value: u64) {
        let Some((at, size)) = self.ty.and_then(|ty| find(ty, name, 0)) else {
            return;
        };
        let range = at as usize..at.saturating_add(size) as usize;
        if let Some(field) = self.bytes.get_mut(range) {
            for (to, from) in field.iter_mut().zip(value.to_le_bytes()) {
                *to = from;
            }
        }
    }
}

/// Byte offset and size of a field.
fn find(ty: Type<'_>, name: &str, depth: u32) -> Option<(u32, u32)> {
    ty.members().find_map(|member| {
        let at = member.byte_offset()?;
        let inner = member.type_in()?.resolve()?;
        if member.name() == name {
            return Some((at, ty.btf().size_of(inner.id())?));
        }
        if !member.name().is_empty() || depth == MAX_DEPTH {
            return None;
        }
        let (inside, size) = find(inner, name, depth + 1)?;
        Some((at.checked_add(inside)?, size))
    })
}

impl Input {
    /// An input for netfilter programs, as `BPF_PROG_TEST_RUN` makes it: the packet (Ethernet
    /// header first) leaves this machine. `kernel` is the BTF that the program was linked
    /// against.
    ///
    /// # Errors
    /// When the packet has no network header, or is neither IPv4 nor IPv6.
    pub fn netfilter(packet: &[u8], kernel: &Btf) -> Result<Self, InputError> {
        let too_short = || InputError::TooShort(packet.len());
        let (ethernet, network) = packet.split_at_checked(ETH_HLEN).ok_or_else(too_short)?;
        let protocol = u16::from_be_bytes([ethernet[12], ethernet[13]]);
        let (family, header) = match protocol {
            ETH_P_IP => (PROTO_IPV4, 20),
            ETH_P_IPV6 => (PROTO_IPV6, 40),
            _ => {
                return Err(InputError::Field {
                    prog_type: ProgType::Netfilter,
                    at: 12,
                    end: 14,
                    must: "be IPv4 or IPv6 (bytes of the packet)",
                });
            }
        };
        if network.len() < header {
            return Err(too_short());
        }
        let mut input = Self::context(ProgType::Netfilter, &[0; 16])?;
        let data = input.add_memory(packet, true)?;
        let device = Structure::new(kernel, "net_device");
        let device = input.add_memory(&device.bytes, false)?;

        let mut skb = Structure::new(kernel, "sk_buff");
        let length = network.len() as u64;
        skb.set("len", length);
        skb.set("protocol", u64::from(protocol.to_be()));
        skb.set("dev", device);
        skb.set("head", data);
        skb.set("data", data + ETH_HLEN as u64);
        skb.set("network_header", ETH_HLEN as u64);
        skb.set("tail", packet.len() as u64);
        skb.set("end", packet.len() as u64);
        let skb = input.add_memory(&skb.bytes, false)?;

        let mut state = Structure::new(kernel, "nf_hook_state");
        state.set("hook", LOCAL_OUT);
        state.set("pf", family);
        state.set("in", device);
        state.set("out", device);
        let state = input.add_memory(&state.bytes, false)?;

        input.kernel_packet = Some(KernelPacket {
            skb,
            data: data + ETH_HLEN as u64,
            len: u32::try_from(length).map_err(|_| InputError::TooLong(packet.len()))?,
        });
        let (state_at, skb_at) = input.ctx_mut().split_at_mut(8);
        state_at.copy_from_slice(&state.to_ne_bytes());
        skb_at.copy_from_slice(&skb.to_ne_bytes());
        Ok(input)
    }
}
