//! Contexts: what R1 points to when a program starts, and the sockets that hang off it.
//!
//! A load or store at a context is allowed when a field's rule has its size at its offset;
//! every access is aligned to its own size.

mod misc;
mod skb;
mod sock;
mod trace;

pub use sock::{SOCK_COMMON_OBJECT, SOCK_OBJECT, TCP_SOCK_OBJECT, XDP_SOCK_OBJECT};

use crate::{Caller, Capability, ProgType, ProgTypes, When};

/// Size of `struct bpf_flow_keys`, all of whose bytes a flow dissector may read and write.
pub const FLOW_KEYS_SIZE: u32 = 56;

/// A structure as programs see it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Structure of `linux/bpf.h`, or `pt_regs`; empty for a bare array of words.
    pub name: &'static str,
    /// What the kernel really passes: the structure that `bpf_cast_to_kern_ctx` gives.
    pub kernel_name: &'static str,
    /// Bytes that fields may span.
    pub size: u32,
    /// Fields in the order of their offsets. Fields that share an offset have different readers.
    pub fields: &'static [Field],
    /// Accesses are judged by the BTF of what the program attaches to, not by the fields.
    pub by_btf: bool,
}

/// A field, or an array of fields of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes, of the whole array if it is one.
    pub size: u32,
    /// What a load gives.
    pub kind: Kind,
    /// Who may load it, in which sizes.
    pub read: Rule,
    /// Who may store to it, in which sizes.
    pub write: Rule,
}

/// What a load of a field gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number.
    Scalar,
    /// First byte of the packet.
    Packet,
    /// End of the packet.
    PacketEnd,
    /// First byte of the metadata in front of the packet.
    PacketMeta,
    /// Common part of a socket, or null.
    SockCommonOrNull,
    /// A full socket.
    Socket,
    /// A full socket, or null.
    SocketOrNull,
    /// `struct bpf_flow_keys`.
    FlowKeys,
    /// Buffer of a writable tracepoint.
    TpBuffer,
    /// Trusted pointer to that kernel structure.
    TrustedBtf(&'static str),
}

/// Sizes in which a field may be accessed, and by whom. Sizes are bit sets of 1, 2, 4 and 8.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Sizes allowed anywhere within the field.
    pub inside: u8,
    /// Sizes allowed only at the field's offset, where they may reach past its end.
    pub at_start: u8,
    /// Program types.
    pub types: ProgTypes,
    /// Attach types.
    pub when: When,
    /// Capability of the loading process.
    pub capability: Capability,
}

/// 1, 2 or 4 bytes.
const NARROW: u8 = 1 | 2 | 4;
/// 1, 2, 4 or 8 bytes.
const ANY: u8 = 1 | 2 | 4 | 8;

impl Rule {
    /// Nobody.
    pub const NEVER: Rule = Rule::new(0, 0);

    const fn new(inside: u8, at_start: u8) -> Rule {
        Rule {
            inside,
            at_start,
            types: ProgTypes::ALL,
            when: When::Always,
            capability: Capability::None,
        }
    }

    const fn inside(sizes: u8) -> Rule {
        Rule::new(sizes, 0)
    }

    const fn at_start(sizes: u8) -> Rule {
        Rule::new(0, sizes)
    }

    const fn by(mut self, types: ProgTypes) -> Rule {
        self.types = types;
        self
    }

    const fn when(mut self, when: When) -> Rule {
        self.when = when;
        self
    }

    const fn needs(mut self, capability: Capability) -> Rule {
        self.capability = capability;
        self
    }

    /// Whether that program may access `size` bytes at `offset` from the start of a field
    /// of `field_size` bytes.
    fn allows(&self, caller: &Caller<'_>, field_size: u32, offset: u32, size: u32) -> bool {
        let inside = u32::from(self.inside) & size != 0 && offset + size <= field_size;
        let at_start = u32::from(self.at_start) & size != 0 && offset == 0;
        (inside || at_start)
            && self.types.has(caller.prog_type)
            && caller.capability >= self.capability
            && self.when.holds(caller)
    }
}

impl Field {
    const fn new(name: &'static str, offset: u32, size: u32) -> Field {
        Field {
            name,
            offset,
            size,
            kind: Kind::Scalar,
            read: Rule::NEVER,
            write: Rule::NEVER,
        }
    }

    const fn kind(mut self, kind: Kind) -> Field {
        self.kind = kind;
        self
    }

    const fn read(mut self, rule: Rule) -> Field {
        self.read = rule;
        self
    }

    const fn write(mut self, rule: Rule) -> Field {
        self.write = rule;
        self
    }
}

/// An access to a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Offset in bytes from the start of the context.
    pub offset: i32,
    /// 1, 2, 4 or 8 bytes.
    pub size: u32,
    /// A store, not a load.
    pub write: bool,
    /// A sign-extending load.
    pub sign_extend: bool,
}

impl Layout {
    const fn new(
        name: &'static str,
        kernel_name: &'static str,
        size: u32,
        fields: &'static [Field],
    ) -> Layout {
        Layout {
            name,
            kernel_name,
            size,
            fields,
            by_btf: false,
        }
    }

    /// The field that an access of that program hits; none where the kernel says
    /// `invalid bpf_context access`.
    pub fn field_at(&self, caller: &Caller<'_>, access: Access) -> Option<&'static Field> {
        let offset = u32::try_from(access.offset).ok()?;
        if offset >= self.size || offset.checked_rem(access.size)? != 0 {
            return None;
        }
        self.fields
            .iter()
            .take_while(|field| field.offset <= offset)
            .find(|field| {
                let rule = if access.write {
                    &field.write
                } else {
                    &field.read
                };
                rule.allows(caller, field.size, offset - field.offset, access.size)
                    && !(access.sign_extend && field.kind != Kind::Scalar)
            })
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The context of that program type; none for [`ProgType::Unspec`], and for extensions,
/// whose context is that of the program they replace.
pub fn of(prog_type: ProgType) -> Option<&'static Layout> {
    Some(match prog_type {
        ProgType::Unspec | ProgType::Ext => return None,
        ProgType::SocketFilter
        | ProgType::SchedCls
        | ProgType::SchedAct
        | ProgType::CgroupSkb
        | ProgType::LwtIn
        | ProgType::LwtOut
        | ProgType::LwtXmit
        | ProgType::LwtSeg6local
        | ProgType::SkSkb => &skb::SK_BUFF,
        ProgType::FlowDissector => &skb::FLOW_DISSECTOR,
        ProgType::Xdp => &misc::XDP_MD,
        ProgType::CgroupDevice => &misc::CGROUP_DEV_CTX,
        ProgType::CgroupSysctl => &misc::SYSCTL,
        ProgType::LircMode2 => &misc::LIRC_MODE2,
        ProgType::Netfilter => &misc::NF_CTX,
        ProgType::CgroupSock => &sock::SOCK,
        ProgType::CgroupSockAddr => &sock::SOCK_ADDR,
        ProgType::SockOps => &sock::SOCK_OPS,
        ProgType::SkMsg => &sock::SK_MSG_MD,
        ProgType::SkReuseport => &sock::SK_REUSEPORT_MD,
        ProgType::SkLookup => &sock::SK_LOOKUP,
        ProgType::CgroupSockopt => &sock::SOCKOPT,
        ProgType::Kprobe => &trace::PT_REGS,
        ProgType::PerfEvent => &trace::PERF_EVENT_DATA,
        ProgType::Tracepoint => &trace::TRACEPOINT,
        ProgType::RawTracepoint => &trace::RAW_TRACEPOINT,
        ProgType::RawTracepointWritable => &trace::RAW_TRACEPOINT_WRITABLE,
        ProgType::Syscall => &trace::SYSCALL,
        ProgType::Tracing | ProgType::StructOps | ProgType::Lsm => &trace::BTF_ARGS,
    })
}
