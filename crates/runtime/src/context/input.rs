//! The memory of one run: context, packet, and what hangs on them.

use std::any::Any;
use std::io;
use std::ops::Range;

use bpfkit_maps::Errno;
use bpfkit_spec::ProgType;
use smallvec::SmallVec;

use super::dissect;
use super::layout::{self, flow_keys, sk_buff, sk_lookup, sock, xdp_md};
use super::skb::SkbState;
use crate::engine::Context;
use crate::lowmem::LowMem;
use crate::memory::{Memory, Region, RegionKind};

/// Why an input cannot be made. [`InputError::errno`] is what `BPF_PROG_TEST_RUN` would say.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Shorter than an Ethernet header.
    #[error("a packet needs at least the 14 bytes of an Ethernet header, not {0}")]
    TooShort(usize),
    /// More than fits one frame and 17 fragments.
    #[error("a packet of {0} bytes; XDP takes at most {max}", max = MAX_XDP)]
    TooLong(usize),
    /// A context byte that must be zero, or has a value out of range.
    #[error("context bytes {at}..{end} of {prog_type} must {must}")]
    Field {
        /// Program type.
        prog_type: ProgType,
        /// First byte of the field.
        at: usize,
        /// Byte after the field.
        end: usize,
        /// What would be right.
        must: &'static str,
    },
    /// More context bytes than the structure has, not zero.
    #[error("{given} context bytes; {prog_type} takes {max}")]
    ContextSize {
        /// Program type.
        prog_type: ProgType,
        /// Bytes given.
        given: usize,
        /// Bytes the context has.
        max: usize,
    },
    /// A packet for a program type that takes none.
    #[error("programs of type {0} take no packet")]
    NoPacket(ProgType),
    /// No memory below 4 GiB.
    #[error("no memory below 4 GiB: {0}")]
    Memory(#[from] io::Error),
}

impl InputError {
    /// The error number of `BPF_PROG_TEST_RUN` in this case.
    pub fn errno(&self) -> Errno {
        match self {
            Self::TooLong(_) | Self::Memory(_) => Errno::ENOMEM,
            Self::ContextSize { .. } => Errno::E2BIG,
            _ => Errno::EINVAL,
        }
    }
}

/// Bytes in front of an XDP packet (`XDP_PACKET_HEADROOM`).
pub(crate) const XDP_HEADROOM: usize = 256;
/// Size of a frame and of a fragment.
pub(crate) const FRAME: usize = 4096;
/// Bytes at a frame's end that belong to the kernel (`struct skb_shared_info`, aligned).
pub(crate) const SHARED_INFO: usize = 320;
/// Fragments of one packet (`MAX_SKB_FRAGS`).
const MAX_FRAGS: usize = 17;
/// Largest first part of an XDP packet.
pub(crate) const XDP_LINEAR: usize = FRAME - XDP_HEADROOM - SHARED_INFO;
const MAX_XDP: usize = XDP_LINEAR + MAX_FRAGS * FRAME;
/// Length of an Ethernet header.
pub(crate) const ETH_HLEN: usize = 14;

/// Offsets in the pages, in front of the packet.
const SOCK_AT: usize = 0;
const FLOW_KEYS_AT: usize = 128;
const CTX_AT: usize = 512;
/// Room before and after a socket buffer's bytes, for helpers that push headers or grow it.
pub(super) const SKB_HEADROOM: usize = 16384;
pub(super) const SKB_TAILROOM: usize = 17408;
/// Largest argument array of a tracing program (`MAX_BPF_FUNC_ARGS`).
const MAX_FUNC_ARGS: usize = 12;

/// A fragment of an XDP packet, behind its first part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    /// Offset in the pages.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// How the program type sees its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// No packet.
    None,
    /// `struct xdp_md`.
    Xdp,
    /// `struct __sk_buff`; `l2` says whether `data` is at the Ethernet header, `direct`
    /// whether `data` and `data_end` are filled in.
    Skb { l2: bool, direct: bool },
    /// `struct __sk_buff` with `data`, `data_end` and `flow_keys` only.
    Flow,
    /// `struct sk_msg_md`: bytes of a message, of any length.
    Message,
}

impl Shape {
    fn of(prog_type: ProgType) -> Self {
        use ProgType as T;
        match prog_type {
            T::Xdp => Self::Xdp,
            T::SchedCls | T::SchedAct => Self::Skb {
                l2: true,
                direct: true,
            },
            T::LwtIn | T::LwtOut | T::LwtXmit | T::LwtSeg6local | T::CgroupSkb | T::SkSkb => {
                Self::Skb {
                    l2: false,
                    direct: true,
                }
            }
            T::SocketFilter => Self::Skb {
                l2: false,
                direct: false,
            },
            T::FlowDissector => Self::Flow,
            T::SkMsg => Self::Message,
            _ => Self::None,
        }
    }
}

/// Context and packet of one run; see the module.
#[derive(Debug)]
pub struct Input {
    pub(crate) prog_type: ProgType,
    pub(crate) shape: Shape,
    pub(crate) pages: LowMem,
    ctx_len: usize,
    /// The context as the host gave it, which every packet starts from.
    given: Vec<u8>,
    /// Offset of the packet's buffer (`data_hard_start`, `skb->head`) in the pages.
    pub(crate) head: usize,
    /// First byte of the metadata before an XDP packet, else `data`.
    pub(crate) meta: usize,
    /// First byte of the packet.
    pub(crate) data: usize,
    /// Byte after the packet's first part.
    pub(crate) end: usize,
    pub(crate) frags: SmallVec<[Fragment; MAX_FRAGS]>,
    pub(crate) skb: SkbState,
    /// The whole message, in the pages.
    pub(super) message: Range<usize>,
    pub(crate) call: TracedCall,
    pub(crate) sysctl: Sysctl,
    /// The packet behind a `struct sk_buff` of the kernel's own layout.
    pub(crate) kernel_packet: Option<KernelPacket>,
    blocks: Vec<Block>,
}

/// A packet that a program reaches through a `struct sk_buff` of the kernel's own layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelPacket {
    /// Address of the `struct sk_buff`.
    pub skb: u64,
    /// First byte, at the network header.
    pub data: u64,
    /// Bytes.
    pub len: u32,
}

/// What a tracing program learns about the call it is attached to, beside its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TracedCall {
    /// Address of the function (`bpf_get_func_ip`).
    pub ip: u64,
    /// Number of arguments; the value behind them in the context is the return value.
    pub args: u32,
    /// Whether there is a return value (`fexit`, `fmod_ret`).
    pub returned: bool,
    /// `bpf_get_attach_cookie`.
    pub cookie: u64,
}

/// What a program of type `cgroup_sysctl` can ask for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sysctl {
    /// Full name, with slashes (`net/ipv4/ip_forward`).
    pub name: Vec<u8>,
    /// Present value.
    pub value: Vec<u8>,
    /// The value being written, on a write; what the program leaves there is written.
    pub new_value: Option<Vec<u8>>,
}

/// Memory that a context's pointers lead to.
#[derive(Debug)]
struct Block {
    memory: LowMem,
    len: usize,
    writable: bool,
}

impl Input {
    /// An input for a program type that takes packets, holding `packet` (Ethernet header first).
    ///
    /// # Errors
    /// When the type takes none, or as [`Input::set_packet`].
    pub fn packet(prog_type: ProgType, packet: &[u8]) -> Result<Self, InputError> {
        let shape = Shape::of(prog_type);
        if shape == Shape::None {
            return Err(InputError::NoPacket(prog_type));
        }
        let len = layout::context_size(prog_type).unwrap_or(sk_buff::SIZE);
        let mut input = Self::bare(prog_type, shape, len, packet.len())?;
        input.set_packet(packet)?;
        Ok(input)
    }

    /// An input whose context is exactly these bytes (argument arrays, `struct pt_regs`,
    /// the arguments of a syscall program, any structure the program type reads). Bytes
    /// missing to the size of a known structure are zero.
    ///
    /// # Errors
    /// When a known structure is shorter than what is given and the rest is not zero;
    /// `bpf_sk_lookup` with a socket or a port beyond 16 bits.
    pub fn context(prog_type: ProgType, bytes: &[u8]) -> Result<Self, InputError> {
        use ProgType as T;
        let known = layout::context_size(prog_type);
        let max = known.unwrap_or(match prog_type {
            T::RawTracepoint => MAX_FUNC_ARGS * 8,
            _ => usize::from(u16::MAX),
        });
        if bytes.iter().skip(max).any(|&b| b != 0) {
            return Err(InputError::ContextSize {
                prog_type,
                given: bytes.len(),
                max,
            });
        }
        let bytes = &bytes[..bytes.len().min(max)];
        if prog_type == T::SkLookup {
            let word = |at: usize| bytes.get(at..at + 4).map_or(0, read_u32);
            for (at, end) in [
                (sk_lookup::SK, sk_lookup::FAMILY),
                (sk_lookup::LOCAL_PORT + 2, sk_lookup::LOCAL_PORT + 4),
            ] {
                if bytes
                    .get(at..end)
                    .is_some_and(|b| b.iter().any(|&b| b != 0))
                {
                    return Err(InputError::Field {
                        prog_type,
                        at,
                        end,
                        must: "be zero",
                    });
                }
            }
            if ![2, 10].contains(&word(sk_lookup::FAMILY)) {
                let (at, end) = (sk_lookup::FAMILY, sk_lookup::FAMILY + 4);
                return Err(InputError::Field {
                    prog_type,
                    at,
                    end,
                    must: "be AF_INET (2) or AF_INET6 (10)",
                });
            }
        }
        let mut input = Self::bare(prog_type, Shape::None, known.unwrap_or(bytes.len()), 0)?;
        input.pages.bytes_mut()[CTX_AT..CTX_AT + bytes.len()].copy_from_slice(bytes);
        input.given = bytes.to_vec();
        Ok(input)
    }

    /// An input as `Input::packet` or `Input::context`, whichever suits the type: what
    /// test_run's users pass when they have nothing particular in mind (64 zero bytes of
    /// packet, or a zeroed context).
    ///
    /// # Errors
    /// When there is no memory below 4 GiB.
    pub fn default_for(prog_type: ProgType) -> Result<Self, InputError> {
        if Shape::of(prog_type) != Shape::None {
            return Self::packet(prog_type, &[0; 64]);
        }
        if prog_type == ProgType::SkLookup {
            let mut bytes = [0; sk_lookup::SIZE];
            bytes[sk_lookup::FAMILY] = 2;
            return Self::context(prog_type, &bytes);
        }
        let len = layout::context_size(prog_type).unwrap_or(MAX_FUNC_ARGS * 8);
        Self::context(prog_type, &[0; 512][..len.min(512)])
    }

    fn bare(
        prog_type: ProgType,
        shape: Shape,
        ctx_len: usize,
        packet: usize,
    ) -> Result<Self, InputError> {
        let head = (CTX_AT + ctx_len).next_multiple_of(FRAME);
        let room = Self::room(shape, packet);
        Ok(Self {
            prog_type,
            shape,
            pages: LowMem::new(head + room)?,
            ctx_len,
            given: Vec::new(),
            head,
            meta: head,
            data: head,
            end: head,
            frags: SmallVec::new(),
            skb: SkbState::default(),
            message: 0..0,
            call: TracedCall::default(),
            sysctl: Sysctl::default(),
            kernel_packet: None,
            blocks: Vec::new(),
        })
    }

    /// Bytes of buffer for a packet of `len` bytes.
    fn room(shape: Shape, len: usize) -> usize {
        match shape {
            Shape::None => 0,
            Shape::Xdp => FRAME * (1 + MAX_FRAGS),
            Shape::Skb { .. } | Shape::Flow | Shape::Message => {
                SKB_HEADROOM + len.max(1 << 16) + SKB_TAILROOM
            }
        }
    }

    /// Gives the context fields that the host may choose, for this packet and those that
    /// follow, as `ctx_in` of `BPF_PROG_TEST_RUN`.
    ///
    /// For `struct __sk_buff` these are `mark`, `priority`, `ingress_ifindex`, `ifindex`,
    /// `cb`, `tstamp`, `wire_len`, `gso_segs`, `gso_size` and `hwtstamp`. For `struct xdp_md`,
    /// `data` is the length of the metadata in front of the packet bytes, `data_end` the
    /// number of packet bytes, and `ingress_ifindex` and `rx_queue_index` may be set. For
    /// the flow dissector the bytes are `struct bpf_flow_keys` with `flags` only.
    ///
    /// # Errors
    /// When another field is not zero, or a value is out of range.
    pub fn set_context(&mut self, bytes: &[u8]) -> Result<(), InputError> {
        let max = match self.shape {
            Shape::Flow => flow_keys::SIZE,
            _ => self.ctx_len,
        };
        if bytes.iter().skip(max).any(|&b| b != 0) {
            return Err(InputError::ContextSize {
                prog_type: self.prog_type,
                given: bytes.len(),
                max,
            });
        }
        let free: &[(usize, usize)] = match self.shape {
            Shape::None | Shape::Message => &[(0, usize::MAX)],
            Shape::Xdp => &[
                (xdp_md::DATA, 8),
                (xdp_md::INGRESS_IFINDEX, xdp_md::EGRESS_IFINDEX),
            ],
            Shape::Skb { .. } => &[
                (sk_buff::MARK, sk_buff::MARK + 4),
                (sk_buff::PRIORITY, sk_buff::TC_INDEX),
                (sk_buff::CB, sk_buff::HASH),
                (sk_buff::TSTAMP, sk_buff::SK),
                (sk_buff::GSO_SIZE, sk_buff::GSO_SIZE + 4),
                (sk_buff::HWTSTAMP, sk_buff::SIZE),
            ],
            Shape::Flow => &[(flow_keys::FLAGS, flow_keys::FLAGS + 4)],
        };
        let bytes = &bytes[..bytes.len().min(max)];
        for (at, &byte) in bytes.iter().enumerate() {
            if byte != 0 && !free.iter().any(|&(from, to)| (from..to).contains(&at)) {
                let (at, end) = (at & !3, (at & !3) + 4);
                return Err(InputError::Field {
                    prog_type: self.prog_type,
                    at,
                    end,
                    must: "be zero",
                });
            }
        }
        let previous = std::mem::replace(&mut self.given, bytes.to_vec());
        let mut packet = Vec::new();
        self.copy_original(&mut packet);
        let result = match self.shape {
            Shape::None => {
                let ctx = CTX_AT..CTX_AT + self.ctx_len;
                self.pages.bytes_mut()[ctx].fill(0);
                self.pages.bytes_mut()[CTX_AT..CTX_AT + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            _ => self.set_packet(&packet),
        };
        if result.is_err() {
            self.given = previous;
        }
        result
    }

    /// Puts the next packet in place, Ethernet header first. Context fields start anew.
    /// Allocates only when the packet is longer than 64 KiB and than any before.
    ///
    /// # Errors
    /// When shorter than an Ethernet header, too long for XDP, or not fitting the given context.
    pub fn set_packet(&mut self, packet: &[u8]) -> Result<(), InputError> {
        if packet.len() < ETH_HLEN && self.shape != Shape::Message {
            return Err(InputError::TooShort(packet.len()));
        }
        match self.shape {
            Shape::None => Err(InputError::NoPacket(self.prog_type)),
            Shape::Xdp => self.set_xdp(packet),
            Shape::Skb { l2, .. } => self.set_skb(packet, l2),
            Shape::Flow => self.set_flow(packet),
            Shape::Message => self.set_message(packet),
        }
    }

    fn set_xdp(&mut self, packet: &[u8]) -> Result<(), InputError> {
        let field = |at: usize, must| InputError::Field {
            prog_type: ProgType::Xdp,
            at,
            end: at + 4,
            must,
        };
        let mut meta_len = 0;
        let mut ifindex = 1;
        let mut queue = 0;
        if !self.given.is_empty() {
            meta_len = self.given(xdp_md::DATA) as usize;
            if self.given(xdp_md::DATA_END) as usize != packet.len() {
                return Err(field(xdp_md::DATA_END, "be the number of packet bytes"));
            }
            if meta_len + ETH_HLEN > packet.len() || meta_len > 255 || meta_len % 4 != 0 {
                return Err(field(
                    xdp_md::DATA,
                    "be a multiple of 4, at most 255 and the number of packet bytes",
                ));
            }
            queue = self.given(xdp_md::RX_QUEUE_INDEX);
            match self.given(xdp_md::INGRESS_IFINDEX) {
                0 if queue != 0 => {
                    return Err(field(
                        xdp_md::RX_QUEUE_INDEX,
                        "be zero without an ingress_ifindex",
                    ));
                }
                0 => {}
                index => ifindex = index,
            }
        }
        if packet.len() > MAX_XDP {
            return Err(InputError::TooLong(packet.len()));
        }
        let start = self.head + XDP_HEADROOM - meta_len;
        let linear = packet.len().min(XDP_LINEAR + meta_len);
        let (first, rest) = packet.split_at(linear);
        let bytes = self.pages.bytes_mut();
        bytes[start..start + linear].copy_from_slice(first);
        self.frags.clear();
        for (i, piece) in rest.chunks(FRAME).enumerate() {
            let at = self.head + FRAME * (i + 1);
            bytes[at..at + piece.len()].copy_from_slice(piece);
            self.frags.push(Fragment {
                at,
                len: piece.len(),
            });
        }
        self.meta = start;
        self.data = start + meta_len;
        self.end = start + linear;
        self.ctx_mut().fill(0);
        self.set_ctx_u32(xdp_md::INGRESS_IFINDEX, ifindex);
        self.set_ctx_u32(xdp_md::RX_QUEUE_INDEX, queue);
        self.sync();
        Ok(())
    }

    fn set_skb(&mut self, packet: &[u8], l2: bool) -> Result<(), InputError> {
        self.reserve(packet.len())?;
        let start = self.head + SKB_HEADROOM;
        self.pages.bytes_mut()[start..start + packet.len()].copy_from_slice(packet);
        let network = start + ETH_HLEN;
        self.data = if l2 { start } else { network };
        self.meta = self.data;
        self.end = start + packet.len();
        self.skb = SkbState::new(start, network);
        let protocol = dissect::ethernet_protocol(packet);
        self.fill_socket(protocol, &packet[ETH_HLEN..]);
        let len = self.end - self.data;
        self.ctx_mut().fill(0);
        for (field, value) in [
            (sk_buff::PKT_TYPE, dissect::packet_type(packet)),
            (sk_buff::PROTOCOL, u32::from(protocol.to_be())),
            (sk_buff::IFINDEX, 1),
        ] {
            self.set_ctx_u32(field, value);
        }
        let sock_addr = u64::from(self.pages.address()) + SOCK_AT as u64;
        self.set_ctx_u64(sk_buff::SK, sock_addr);
        for (field, from, words) in [
            (sk_buff::FAMILY, sock::FAMILY, 1),
            (sk_buff::REMOTE_IP4, sock::DST_IP4, 1),
            (sk_buff::LOCAL_IP4, sock::SRC_IP4, 1),
            (sk_buff::REMOTE_IP6, sock::DST_IP6, 4),
            (sk_buff::LOCAL_IP6, sock::SRC_IP6, 4),
        ] {
            self.pages
                .bytes_mut()
                .copy_within(SOCK_AT + from..SOCK_AT + from + 4 * words, CTX_AT + field);
        }
        self.take_given(len)?;
        self.sync();
        Ok(())
    }

    /// Copies what the host gave of `struct __sk_buff` into the context.
    fn take_given(&mut self, len: usize) -> Result<(), InputError> {
        /// `GSO_MAX_SEGS` and `GSO_LEGACY_MAX_SIZE`.
        const GSO_MAX_SEGS: u32 = 65535;
        const GSO_MAX_SIZE: usize = 65536;
        if self.given.is_empty() {
            return Ok(());
        }
        let prog_type = self.prog_type;
        let field = |at: usize, must| InputError::Field {
            prog_type,
            at,
            end: at + 4,
            must,
        };
        let wire_len = self.given(sk_buff::WIRE_LEN) as usize;
        if wire_len != 0 && (wire_len < len || wire_len > GSO_MAX_SIZE) {
            return Err(field(
                sk_buff::WIRE_LEN,
                "be 0 or between the packet's length and 65536",
            ));
        }
        if self.given(sk_buff::GSO_SEGS) > GSO_MAX_SEGS {
            return Err(field(sk_buff::GSO_SEGS, "be at most 65535"));
        }
        for field in [
            sk_buff::MARK,
            sk_buff::PRIORITY,
            sk_buff::INGRESS_IFINDEX,
            sk_buff::CB,
            sk_buff::CB + 4,
            sk_buff::CB + 8,
            sk_buff::CB + 12,
            sk_buff::CB + 16,
            sk_buff::TSTAMP,
            sk_buff::TSTAMP + 4,
            sk_buff::GSO_SEGS,
            sk_buff::HWTSTAMP,
            sk_buff::HWTSTAMP + 4,
        ] {
            let value = self.given(field);
            self.set_ctx_u32(field, value);
        }
        // The kernel keeps 16 bits of it.
        let size = self.given(sk_buff::GSO_SIZE) & 0xffff;
        self.set_ctx_u32(sk_buff::GSO_SIZE, size);
        if self.given(sk_buff::IFINDEX) > 1 {
            let value = self.given(sk_buff::IFINDEX);
            self.set_ctx_u32(sk_buff::IFINDEX, value);
        }
        self.set_ctx_u32(
            sk_buff::WIRE_LEN,
            if wire_len == 0 { len } else { wire_len } as u32,
        );
        Ok(())
    }

    /// The socket of a test run belongs to no protocol; only addresses are known.
    fn fill_socket(&mut self, protocol: u16, ip: &[u8]) {
        /// `TCP_CLOSE`, the state of a fresh socket.
        const CLOSED: u32 = 7;
        let socket = &mut self.pages.bytes_mut()[SOCK_AT..SOCK_AT + sock::SIZE];
        socket.fill(0);
        let mut put = |at: usize, bytes: &[u8]| socket[at..at + bytes.len()].copy_from_slice(bytes);
        put(sock::STATE, &CLOSED.to_ne_bytes());
        put(sock::RX_QUEUE_MAPPING, &u32::MAX.to_ne_bytes());
        match protocol {
            0x0800 => {
                put(sock::FAMILY, &2u32.to_ne_bytes());
                if let Some(ip) = ip.get(..20) {
                    put(sock::SRC_IP4, &ip[12..16]);
                    put(sock::DST_IP4, &ip[16..20]);
                }
            }
            0x86dd => {
                put(sock::FAMILY, &10u32.to_ne_bytes());
                if let Some(ip) = ip.get(..40) {
                    put(sock::SRC_IP6, &ip[8..24]);
                    put(sock::DST_IP6, &ip[24..40]);
                }
            }
            _ => {}
        }
    }

    fn set_flow(&mut self, packet: &[u8]) -> Result<(), InputError> {
        self.reserve(packet.len())?;
        let start = self.head + SKB_HEADROOM;
        self.pages.bytes_mut()[start..start + packet.len()].copy_from_slice(packet);
        (self.data, self.meta, self.end) = (start, start, start + packet.len());
        self.skb = SkbState::new(start, start + ETH_HLEN);
        let flags = self.given(flow_keys::FLAGS);
        let keys = &mut self.pages.bytes_mut()[FLOW_KEYS_AT..FLOW_KEYS_AT + flow_keys::SIZE];
        keys.fill(0);
        keys[flow_keys::NHOFF..flow_keys::NHOFF + 2]
            .copy_from_slice(&(ETH_HLEN as u16).to_ne_bytes());
        keys[flow_keys::THOFF..flow_keys::THOFF + 2]
            .copy_from_slice(&(ETH_HLEN as u16).to_ne_bytes());
        keys[flow_keys::N_PROTO..flow_keys::N_PROTO + 2].copy_from_slice(&packet[12..14]);
        keys[flow_keys::FLAGS..flow_keys::FLAGS + 4].copy_from_slice(&flags.to_ne_bytes());
        self.ctx_mut().fill(0);
        let keys_addr = u64::from(self.pages.address()) + FLOW_KEYS_AT as u64;
        self.set_ctx_u64(sk_buff::FLOW_KEYS, keys_addr);
        self.sync();
        Ok(())
    }

    /// Makes room for a longer packet than any before.
    pub(super) fn reserve(&mut self, len: usize) -> Result<(), InputError> {
        let needed = self.head + Self::room(self.shape, len);
        if needed > self.pages.len() {
            self.pages = LowMem::new(needed)?;
        }
        Ok(())
    }

    /// Adds memory for the context's pointers to lead to (a structure that a tracing program
    /// reads, the state of a `struct_ops` call). Returns its address; it lives with the input.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn add_memory(&mut self, bytes: &[u8], writable: bool) -> Result<u64, InputError> {
        let mut memory = LowMem::new(bytes.len())?;
        memory.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let address = u64::from(memory.address());
        self.blocks.push(Block {
            memory,
            len: bytes.len(),
            writable,
        });
        Ok(address)
    }

    /// The bytes of memory that [`Input::add_memory`] added at that address.
    pub fn memory(&self, address: u64) -> Option<&[u8]> {
        let block = self
            .blocks
            .iter()
            .find(|b| u64::from(b.memory.address()) == address)?;
        Some(&block.memory.bytes()[..block.len])
    }

    /// Describes the call that a tracing program is attached to.
    pub fn set_traced_call(&mut self, call: TracedCall) {
        self.call = call;
    }

    /// Describes the access that a `cgroup_sysctl` program judges.
    pub fn set_sysctl(&mut self, sysctl: Sysctl) {
        self.sysctl = sysctl;
    }

    /// The access that a `cgroup_sysctl` program judged, with the value it left.
    pub fn sysctl(&self) -> &Sysctl {
        &self.sysctl
    }

    /// Program type the input is for.
    pub fn prog_type(&self) -> ProgType {
        self.prog_type
    }

    /// The address for R1. It stays while the input lives, unless [`Input::set_packet`]
    /// had to take more memory.
    pub fn ctx_addr(&self) -> u64 {
        u64::from(self.pages.address()) + CTX_AT as u64
    }

    /// The context structure's bytes.
    pub fn ctx(&self) -> &[u8] {
        &self.pages.bytes()[CTX_AT..CTX_AT + self.ctx_len]
    }

    /// The context structure's bytes, to change before a run.
    pub fn ctx_mut(&mut self) -> &mut [u8] {
        &mut self.pages.bytes_mut()[CTX_AT..CTX_AT + self.ctx_len]
    }

    /// Whether the program has a packet at all.
    pub fn has_packet(&self) -> bool {
        self.shape != Shape::None
    }

    /// Grants the packet's bytes as they lie now.
    pub(crate) fn grant_packet(&self, memory: &mut Memory) {
        if self.shape == Shape::None {
            return;
        }
        let first = Fragment {
            at: self.meta,
            len: self.end - self.meta,
        };
        for piece in std::iter::once(&first).chain(&self.frags) {
            memory.grant(self.region(RegionKind::Packet, piece.at, piece.len, true));
        }
    }

    fn region(&self, kind: RegionKind, at: usize, len: usize, writable: bool) -> Region {
        Region {
            start: u64::from(self.pages.address()) + at as u64,
            len: len as u64,
            writable,
            kind,
        }
    }

    /// Packet bytes as a receiver would get them: from the Ethernet header, without the
    /// metadata of XDP, fragments included. Appends to `out`.
    pub fn copy_packet(&self, out: &mut Vec<u8>) {
        let bytes = self.pages.bytes();
        let start = match self.shape {
            Shape::None => return,
            Shape::Message => return out.extend_from_slice(&bytes[self.message.clone()]),
            Shape::Skb { l2: false, .. } if self.skb.mac < self.data => self.skb.mac,
            _ => self.data,
        };
        out.extend_from_slice(&bytes[start..self.end]);
        for f in &self.frags {
            out.extend_from_slice(&bytes[f.at..f.at + f.len]);
        }
    }

    /// The bytes that make the same packet when given again.
    fn copy_original(&self, out: &mut Vec<u8>) {
        match self.shape {
            Shape::Xdp => self.copy_data_out(out),
            _ => self.copy_packet(out),
        }
    }

    /// What `BPF_PROG_TEST_RUN` returns as `data_out`, appended to `out`: the packet with
    /// XDP's metadata in front; for types that see no Ethernet header, with 14 zero bytes
    /// in its place; for the flow dissector the flow keys, with offsets clamped to the packet.
    pub fn copy_data_out(&self, out: &mut Vec<u8>) {
        let bytes = self.pages.bytes();
        match self.shape {
            Shape::None => {}
            Shape::Message => out.extend_from_slice(&bytes[self.message.clone()]),
            Shape::Xdp => {
                out.extend_from_slice(&bytes[self.meta..self.end]);
                for f in &self.frags {
                    out.extend_from_slice(&bytes[f.at..f.at + f.len]);
                }
            }
            Shape::Skb { l2, .. } => {
                if !l2 {
                    out.extend_from_slice(&[0; ETH_HLEN]);
                }
                out.extend_from_slice(&bytes[self.data..self.end]);
            }
            Shape::Flow => {
                let mut keys = [0; flow_keys::SIZE];
                keys.copy_from_slice(&bytes[FLOW_KEYS_AT..FLOW_KEYS_AT + flow_keys::SIZE]);
                let len = u16::try_from(self.end - self.data).unwrap_or(u16::MAX);
                let word = |at: usize| u16::from_ne_bytes([keys[at], keys[at + 1]]);
                let nhoff = word(flow_keys::NHOFF).clamp(ETH_HLEN as u16, len);
                let thoff = word(flow_keys::THOFF).clamp(nhoff, len);
                keys[flow_keys::NHOFF..flow_keys::NHOFF + 2].copy_from_slice(&nhoff.to_ne_bytes());
                keys[flow_keys::THOFF..flow_keys::THOFF + 2].copy_from_slice(&thoff.to_ne_bytes());
                out.extend_from_slice(&keys);
            }
        }
    }

    /// What `BPF_PROG_TEST_RUN` returns as `ctx_out`, appended to `out`.
    pub fn copy_ctx_out(&self, out: &mut Vec<u8>) {
        match self.shape {
            Shape::None | Shape::Message => out.extend_from_slice(self.ctx()),
            Shape::Xdp => {
                let start = out.len();
                out.resize(start + xdp_md::SIZE, 0);
                out[start..start + self.given.len()].copy_from_slice(&self.given);
                let data = (self.data - self.meta) as u32;
                let end = (self.end - self.meta) as u32;
                for (at, value) in [(xdp_md::DATA, data), (xdp_md::DATA_END, end)] {
                    out[start + at..start + at + 4].copy_from_slice(&value.to_ne_bytes());
                }
            }
            Shape::Skb { .. } => {
                let start = out.len();
                out.resize(start + sk_buff::SIZE, 0);
                let ctx = self.ctx();
                for (from, to) in [
                    (sk_buff::MARK, sk_buff::MARK + 4),
                    (sk_buff::PRIORITY, sk_buff::TC_INDEX),
                    (sk_buff::CB, sk_buff::HASH),
                    (sk_buff::TSTAMP, sk_buff::SK),
                    (sk_buff::HWTSTAMP, sk_buff::SIZE),
                ] {
                    out[start + from..start + to].copy_from_slice(&ctx[from..to]);
                }
                // The kernel hands the segment size back as it was given.
                let size = self.given(sk_buff::GSO_SIZE).to_ne_bytes();
                out[start + sk_buff::GSO_SIZE..][..4].copy_from_slice(&size);
            }
            Shape::Flow => {}
        }
    }

    /// Bytes of the whole packet.
    pub fn packet_len(&self) -> usize {
        self.end - self.data + self.frags.iter().map(|f| f.len).sum::<usize>()
    }

    /// Starts a context from what the host gave.
    pub(super) fn start_context(&mut self) {
        let given = std::mem::take(&mut self.given);
        let ctx = self.ctx_mut();
        ctx.fill(0);
        ctx[..given.len()].copy_from_slice(&given);
        self.given = given;
    }

    fn given(&self, field: usize) -> u32 {
        self.given.get(field..field + 4).map_or(0, read_u32)
    }

    pub(crate) fn ctx_u32(&self, field: usize) -> u32 {
        self.ctx().get(field..field + 4).map_or(0, read_u32)
    }

    pub(crate) fn set_ctx_u32(&mut self, field: usize, value: u32) {
        if let Some(bytes) = self.ctx_mut().get_mut(field..field + 4) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    }

    pub(super) fn set_ctx_u64(&mut self, field: usize, value: u64) {
        if let Some(bytes) = self.ctx_mut().get_mut(field..field + 8) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Writes the packet's place and length into the context after they changed.
    pub(crate) fn sync(&mut self) {
        let base = self.pages.address();
        let addr = |at: usize| base.wrapping_add(at as u32);
        let (meta, data, end) = (addr(self.meta), addr(self.data), addr(self.end));
        let fields: &[(usize, u32)] = match self.shape {
            // A message's fields are wider, and written as it changes.
            Shape::None | Shape::Message => &[],
            Shape::Xdp => &[
                (xdp_md::DATA, data),
                (xdp_md::DATA_END, end),
                (xdp_md::DATA_META, meta),
            ],
            Shape::Skb { direct, .. } => {
                let len = (self.end - self.data) as u32;
                self.set_ctx_u32(sk_buff::LEN, len);
                if !direct {
                    return;
                }
                &[
                    (sk_buff::DATA, data),
                    (sk_buff::DATA_END, end),
                    (sk_buff::DATA_META, meta),
                ]
            }
            Shape::Flow => &[(sk_buff::DATA, data), (sk_buff::DATA_END, end)],
        };
        for &(field, value) in fields {
            self.set_ctx_u32(field, value);
        }
    }
}

// SAFETY: the structure is laid out for its own type, and its pointers lead into the packet and
// the blocks, which it owns. Only that type suits.
unsafe impl Context for Input {
    fn args(&self) -> [u64; 5] {
        [self.ctx_addr(), 0, 0, 0, 0]
    }

    fn grant(&self, memory: &mut Memory) {
        memory.grant(self.region(RegionKind::Context, CTX_AT, self.ctx_len, true));
        self.grant_packet(memory);
        for block in &self.blocks {
            memory.grant(Region {
                start: u64::from(block.memory.address()),
                len: block.len as u64,
                writable: block.writable,
                kind: RegionKind::Other("memory of the context"),
            });
        }
        match self.shape {
            Shape::Skb { .. } => {
                memory.grant(self.region(RegionKind::Other("socket"), SOCK_AT, sock::SIZE, false));
            }
            Shape::Flow => {
                let kind = RegionKind::Other("flow keys");
                memory.grant(self.region(kind, FLOW_KEYS_AT, flow_keys::SIZE, true));
            }
            _ => {}
        }
    }

    fn suits(&self, prog_type: ProgType) -> bool {
        self.prog_type == prog_type
    }

    fn load_packet(&self, offset: i32, size: bpfkit_isa::Size) -> Option<u32> {
        self.legacy_load(offset, size.bytes() as usize)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn read_u32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}
