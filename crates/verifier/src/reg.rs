//! Register types, and what is known of one register or spilled value.

use bpfkit_spec::TypeFlags;

use crate::range::Range;

/// What a register holds, without its modifiers (`enum bpf_reg_type`).
#[allow(missing_docs, reason = "the names are the kernel's own, in words")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Base {
    NotInit,
    Scalar,
    Ctx,
    ConstMapPtr,
    MapValue,
    MapKey,
    Stack,
    PacketMeta,
    Packet,
    PacketEnd,
    FlowKeys,
    Socket,
    SockCommon,
    TcpSock,
    TpBuffer,
    XdpSock,
    BtfId,
    Mem,
    Arena,
    Buf,
    Func,
    ConstDynptr,
}

impl Base {
    const ALL: [Base; 22] = [
        Base::NotInit,
        Base::Scalar,
        Base::Ctx,
        Base::ConstMapPtr,
        Base::MapValue,
        Base::MapKey,
        Base::Stack,
        Base::PacketMeta,
        Base::Packet,
        Base::PacketEnd,
        Base::FlowKeys,
        Base::Socket,
        Base::SockCommon,
        Base::TcpSock,
        Base::TpBuffer,
        Base::XdpSock,
        Base::BtfId,
        Base::Mem,
        Base::Arena,
        Base::Buf,
        Base::Func,
        Base::ConstDynptr,
    ];

    /// Name in the log.
    const fn name(self) -> &'static str {
        match self {
            Base::NotInit => "?",
            Base::Scalar => "scalar",
            Base::Ctx => "ctx",
            Base::ConstMapPtr => "map_ptr",
            Base::MapValue => "map_value",
            Base::MapKey => "map_key",
            Base::Stack => "fp",
            Base::PacketMeta => "pkt_meta",
            Base::Packet => "pkt",
            Base::PacketEnd => "pkt_end",
            Base::FlowKeys => "flow_keys",
            Base::Socket => "sock",
            Base::SockCommon => "sock_common",
            Base::TcpSock => "tcp_sock",
            Base::TpBuffer => "tp_buffer",
            Base::XdpSock => "xdp_sock",
            Base::BtfId => "ptr_",
            Base::Mem => "mem",
            Base::Arena => "arena",
            Base::Buf => "buf",
            Base::Func => "func",
            Base::ConstDynptr => "dynptr_ptr",
        }
    }
}

/// A register type: base and modifiers in one word, the modifiers at the kernel's bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegType(u32);

impl RegType {
    /// Nothing was written to it.
    pub const NOT_INIT: RegType = RegType::plain(Base::NotInit);
    /// A number.
    pub const SCALAR: RegType = RegType::plain(Base::Scalar);
    /// The context.
    pub const CTX: RegType = RegType::plain(Base::Ctx);
    /// A map.
    pub const MAP_PTR: RegType = RegType::plain(Base::ConstMapPtr);
    /// Into a map value.
    pub const MAP_VALUE: RegType = RegType::plain(Base::MapValue);
    /// Into a map key.
    pub const MAP_KEY: RegType = RegType::plain(Base::MapKey);
    /// Into the stack.
    pub const STACK: RegType = RegType::plain(Base::Stack);
    /// Into a packet.
    pub const PACKET: RegType = RegType::plain(Base::Packet);
    /// Into the room before a packet.
    pub const PACKET_META: RegType = RegType::plain(Base::PacketMeta);
    /// End of a packet.
    pub const PACKET_END: RegType = RegType::plain(Base::PacketEnd);
    /// Flow dissector keys.
    pub const FLOW_KEYS: RegType = RegType::plain(Base::FlowKeys);
    /// A full socket.
    pub const SOCKET: RegType = RegType::plain(Base::Socket);
    /// The common part of a socket.
    pub const SOCK_COMMON: RegType = RegType::plain(Base::SockCommon);
    /// A TCP socket.
    pub const TCP_SOCK: RegType = RegType::plain(Base::TcpSock);
    /// An XDP socket.
    pub const XDP_SOCK: RegType = RegType::plain(Base::XdpSock);
    /// A kernel or allocated object by its BTF type.
    pub const BTF_ID: RegType = RegType::plain(Base::BtfId);
    /// An allocated object.
    pub const ALLOC_OBJ: RegType = RegType::plain(Base::BtfId).with(TypeFlags::MEM_ALLOC);
    /// Memory of a known size.
    pub const MEM: RegType = RegType::plain(Base::Mem);
    /// Into an arena.
    pub const ARENA: RegType = RegType::plain(Base::Arena);
    /// A buffer whose size is only known when attached.
    pub const BUF: RegType = RegType::plain(Base::Buf);
    /// The writable buffer of a raw tracepoint.
    pub const TP_BUFFER: RegType = RegType::plain(Base::TpBuffer);
    /// A subprogram.
    pub const FUNC: RegType = RegType::plain(Base::Func);
    /// A dynptr given to a callback.
    pub const CONST_DYNPTR: RegType = RegType::plain(Base::ConstDynptr);

    /// A base type without modifiers.
    pub const fn plain(base: Base) -> RegType {
        RegType(base as u32)
    }

    /// The base type.
    pub const fn base(self) -> Base {
        let number = (self.0 & 0xff) as usize;
        if number < Base::ALL.len() {
            Base::ALL[number]
        } else {
            Base::NotInit
        }
    }

    /// The modifiers.
    pub fn flags(self) -> TypeFlags {
        TypeFlags::from_bits(self.0 & !0xff)
    }

    /// With more modifiers.
    pub const fn with(self, flags: TypeFlags) -> RegType {
        RegType(self.0 | flags.bits())
    }

    /// Without modifiers of `flags`.
    pub const fn without(self, flags: TypeFlags) -> RegType {
        RegType(self.0 & !flags.bits())
    }

    /// Whether it has one of those modifiers.
    pub const fn has(self, flags: TypeFlags) -> bool {
        self.0 & flags.bits() != 0
    }

    /// Whether it may be null.
    pub const fn may_be_null(self) -> bool {
        self.has(TypeFlags::PTR_MAYBE_NULL)
    }

    /// Whether it is a pointer into a packet or the room before it.
    pub const fn is_packet(self) -> bool {
        matches!(self.base(), Base::Packet | Base::PacketMeta)
    }

    /// Whether it is one of the socket views that programs may read.
    pub fn is_socket(self) -> bool {
        [
            RegType::SOCKET,
            RegType::SOCK_COMMON,
            RegType::TCP_SOCK,
            RegType::XDP_SOCK,
        ]
        .contains(&self)
    }

    /// Whether it was allocated by the program.
    pub const fn is_alloc(self) -> bool {
        self.has(TypeFlags::MEM_ALLOC)
    }

    /// Whether it is an allocated object rather than allocated memory.
    pub const fn is_alloc_object(self) -> bool {
        matches!(self.base(), Base::BtfId) && self.is_alloc()
    }

    /// Whether it is a non-owning reference to a node.
    pub const fn is_non_owning(self) -> bool {
        self.is_alloc_object() && self.has(TypeFlags::NON_OWN_REF)
    }

    /// Whether a modifier beside those of trust makes it unsafe for kernel functions.
    pub const fn has_unsafe_modifiers(self) -> bool {
        self.0 & !0xff & !TRUSTED.bits() != 0
    }

    /// Whether a register of the type keeps its state when spilled.
    pub const fn spillable(self) -> bool {
        matches!(
            self.base(),
            Base::MapValue
                | Base::Stack
                | Base::Ctx
                | Base::Packet
                | Base::PacketMeta
                | Base::PacketEnd
                | Base::FlowKeys
                | Base::ConstMapPtr
                | Base::Socket
                | Base::SockCommon
                | Base::TcpSock
                | Base::XdpSock
                | Base::BtfId
                | Base::Buf
                | Base::Mem
                | Base::Func
                | Base::MapKey
                | Base::Arena
        )
    }
}

/// Modifiers that make a pointer trusted.
pub const TRUSTED: TypeFlags = TypeFlags::MEM_ALLOC
    .or(TypeFlags::PTR_TRUSTED)
    .or(TypeFlags::NON_OWN_REF);

impl std::fmt::Display for RegType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const PREFIXES: [(TypeFlags, &str); 7] = [
            (TypeFlags::MEM_RDONLY, "rdonly_"),
            (TypeFlags::MEM_RINGBUF, "ringbuf_"),
            (TypeFlags::MEM_USER, "user_"),
            (TypeFlags::MEM_PERCPU, "percpu_"),
            (TypeFlags::MEM_RCU, "rcu_"),
            (TypeFlags::PTR_UNTRUSTED, "untrusted_"),
            (TypeFlags::PTR_TRUSTED, "trusted_"),
        ];
        for (flag, prefix) in PREFIXES {
            if self.has(flag) {
                f.write_str(prefix)?;
            }
        }
        f.write_str(self.base().name())?;
        match (self.may_be_null(), self.base()) {
            (false, _) => Ok(()),
            (true, Base::BtfId) => f.write_str("or_null_"),
            (true, _) => f.write_str("_or_null"),
        }
    }
}

impl std::fmt::Debug for RegType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Which BTF a type id belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BtfOf {
    /// The kernel's.
    Kernel,
    /// The program's own.
    Program,
}

/// Kinds of dynptr.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DynptrKind {
    Invalid,
    Local,
    Ringbuf,
    Skb,
    Xdp,
    SkbMeta,
}

impl DynptrKind {
    /// By the modifier of an argument or of a slice.
    pub fn from_flags(flags: TypeFlags) -> DynptrKind {
        match flags & TypeFlags::DYNPTR_TYPES {
            f if f == TypeFlags::DYNPTR_TYPE_LOCAL => DynptrKind::Local,
            f if f == TypeFlags::DYNPTR_TYPE_RINGBUF => DynptrKind::Ringbuf,
            f if f == TypeFlags::DYNPTR_TYPE_SKB => DynptrKind::Skb,
            f if f == TypeFlags::DYNPTR_TYPE_XDP => DynptrKind::Xdp,
            f if f == TypeFlags::DYNPTR_TYPE_SKB_META => DynptrKind::SkbMeta,
            _ => DynptrKind::Invalid,
        }
    }

    /// The modifier that stands for the kind.
    pub const fn flag(self) -> TypeFlags {
        match self {
            DynptrKind::Invalid => TypeFlags::NONE,
            DynptrKind::Local => TypeFlags::DYNPTR_TYPE_LOCAL,
            DynptrKind::Ringbuf => TypeFlags::DYNPTR_TYPE_RINGBUF,
            DynptrKind::Skb => TypeFlags::DYNPTR_TYPE_SKB,
            DynptrKind::Xdp => TypeFlags::DYNPTR_TYPE_XDP,
            DynptrKind::SkbMeta => TypeFlags::DYNPTR_TYPE_SKB_META,
        }
    }

    /// Whether it holds a reference.
    pub const fn refcounted(self) -> bool {
        matches!(self, DynptrKind::Ringbuf)
    }

    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DynptrKind::Invalid => "<invalid>",
            DynptrKind::Local => "local",
            DynptrKind::Ringbuf => "ringbuf",
            DynptrKind::Skb => "skb",
            DynptrKind::Xdp => "xdp",
            DynptrKind::SkbMeta => "skb_meta",
        }
    }

    const fn from_number(number: u32) -> DynptrKind {
        match number {
            1 => DynptrKind::Local,
            2 => DynptrKind::Ringbuf,
            3 => DynptrKind::Skb,
            4 => DynptrKind::Xdp,
            5 => DynptrKind::SkbMeta,
            _ => DynptrKind::Invalid,
        }
    }
}

/// State of an open-coded iterator.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum IterState {
    Invalid,
    Active,
    Drained,
}

/// Flags in a scalar's id: the register is the one with that id plus the constant in `off`,
/// added in 32 or 64 bits.
pub const ADD_CONST: u32 = ADD_CONST32 | ADD_CONST64;
pub const ADD_CONST32: u32 = 1 << 30;
pub const ADD_CONST64: u32 = 1 << 31;
/// Packet range of a pointer known to be at the end of the packet.
pub const AT_PKT_END: i32 = -1;
/// Packet range of a pointer known to be past the end of the packet.
pub const BEYOND_PKT_END: i32 = -2;

/// What is known of one register, or of a value spilled to the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reg {
    /// The number, or the variable part of a pointer's offset.
    pub range: Range,
    /// Type.
    pub ty: RegType,
    /// Fixed part of a pointer's offset; of a scalar with [`ADD_CONST`], the constant.
    pub off: i32,
    /// What goes with the type: map, BTF type, size, packet range, dynptr, iterator.
    extra: [u32; 3],
    /// Names the value, where several registers may hold it.
    pub id: u32,
    /// Names the reference that the value belongs to.
    pub ref_obj_id: u32,
    /// Frame that a stack pointer points into.
    pub frameno: u8,
}

impl Reg {
    /// Nothing was written to it.
    pub const NOT_INIT: Reg = Reg {
        ty: RegType::NOT_INIT,
        ..Reg::UNKNOWN
    };

    /// Any number.
    pub const UNKNOWN: Reg = Reg {
        range: Range::UNKNOWN,
        ty: RegType::SCALAR,
        off: 0,
        extra: [0; 3],
        id: 0,
        ref_obj_id: 0,
        frameno: 0,
    };

    /// The number `value`.
    pub const fn scalar(value: u64) -> Reg {
        Reg {
            range: Range::known(value),
            ..Reg::UNKNOWN
        }
    }

    /// Sets value or variable offset to a constant and clears everything beside type,
    /// frame and precision.
    pub fn set_known(&mut self, value: u64) {
        self.range = Range::known(value);
        self.off = 0;
        self.extra = [0; 3];
        self.id = 0;
        self.ref_obj_id = 0;
    }

    /// Takes a scalar's name, and the constant by which it differed from others of that name:
    /// the constant must not go over to a name given later.
    pub const fn unname(&mut self) {
        self.id = 0;
        self.off = 0;
    }

    /// A pointer of that type with no offset, otherwise cleared.
    pub fn set_pointer(&mut self, ty: RegType) {
        self.set_known(0);
        self.ty = ty;
    }

    /// Whether it is the number 0.
    pub fn is_null(&self) -> bool {
        self.ty == RegType::SCALAR && self.range.bits.equals(0)
    }

    /// The number, if it is a known scalar (its lower half, if not `wide`).
    pub fn constant(&self, wide: bool) -> Option<u64> {
        let bits = if wide {
            self.range.bits
        } else {
            self.range.bits.low32()
        };
        (self.ty == RegType::SCALAR && bits.is_const()).then_some(bits.value)
    }

    /// Index of the map of a map pointer, key or value.
    pub const fn map(&self) -> Option<usize> {
        (self.extra[0] as usize).checked_sub(1)
    }

    /// Names the inner map that it came from.
    pub const fn map_uid(&self) -> u32 {
        self.extra[1]
    }

    /// Sets the map.
    pub fn set_map(&mut self, map: usize, uid: u32) {
        self.extra = [map as u32 + 1, uid, 0];
    }

    /// BTF and type id of a typed pointer; id 0 if none.
    pub const fn btf(&self) -> (BtfOf, u32) {
        let of = if self.extra[0] == 2 {
            BtfOf::Program
        } else {
            BtfOf::Kernel
        };
        (of, self.extra[1])
    }

    /// Sets BTF and type id.
    pub fn set_btf(&mut self, of: BtfOf, id: u32) {
        let of = match of {
            BtfOf::Kernel => 1,
            BtfOf::Program => 2,
        };
        self.extra = [of, id, 0];
    }

    /// Bytes known to be readable from a packet pointer without its fixed offset, or
    /// [`AT_PKT_END`], [`BEYOND_PKT_END`].
    pub const fn pkt_range(&self) -> i32 {
        self.extra[0] as i32
    }

    /// Sets the packet range.
    pub fn set_pkt_range(&mut self, range: i32) {
        self.extra[0] = range as u32;
    }

    /// Size of the memory.
    pub const fn mem_size(&self) -> u32 {
        self.extra[0]
    }

    /// Sets the size of the memory.
    pub fn set_mem_size(&mut self, size: u32) {
        self.extra[0] = size;
    }

    /// The dynptr that a slice belongs to.
    pub const fn dynptr_id(&self) -> u32 {
        self.extra[1]
    }

    /// Sets the dynptr that a slice belongs to.
    pub fn set_dynptr_id(&mut self, id: u32) {
        self.extra[1] = id;
    }

    /// Kind of a dynptr.
    pub const fn dynptr_kind(&self) -> DynptrKind {
        DynptrKind::from_number(self.extra[0])
    }

    /// Whether it is the first of the two slots of a dynptr.
    pub const fn dynptr_first(&self) -> bool {
        self.extra[1] != 0
    }

    /// Makes it a dynptr.
    pub fn set_dynptr(&mut self, kind: DynptrKind, first: bool, id: u32) {
        self.set_pointer(RegType::CONST_DYNPTR);
        self.id = id;
        self.extra = [kind as u32, u32::from(first), 0];
    }

    /// State of an iterator slot.
    pub const fn iter_state(&self) -> IterState {
        match self.extra[2] & 3 {
            1 => IterState::Active,
            2 => IterState::Drained,
            _ => IterState::Invalid,
        }
    }

    /// How often the iterator advanced.
    pub const fn iter_depth(&self) -> u32 {
        self.extra[2] >> 2
    }

    /// Sets state and depth of an iterator slot.
    pub fn set_iter(&mut self, state: IterState, depth: u32) {
        self.extra[2] = (depth << 2) | state as u32;
    }

    /// Family of functions that saved an interrupt flag (native or lock).
    pub const fn irq_class(&self) -> u32 {
        self.extra[0]
    }

    /// Sets that family.
    pub fn set_irq_class(&mut self, class: u32) {
        self.extra[0] = class;
    }

    /// Index of the subprogram that a function pointer points to.
    pub const fn subprog(&self) -> usize {
        self.extra[0] as usize
    }

    /// Sets the subprogram.
    pub fn set_subprog(&mut self, subprog: usize) {
        self.extra[0] = subprog as u32;
    }

    /// Everything that goes with the type, to copy or clear it.
    pub const fn extra(&self) -> [u32; 3] {
        self.extra
    }

    /// Copies or clears what goes with the type.
    pub fn set_extra(&mut self, extra: [u32; 3]) {
        self.extra = extra;
    }

    /// Same type, fixed offset and what goes with the type.
    pub fn same_kind(&self, other: &Reg) -> bool {
        self.ty == other.ty && self.off == other.off && self.extra == other.extra
    }

    /// Same in all but ids, frame and precision.
    pub fn same_value(&self, other: &Reg) -> bool {
        self.same_kind(other) && self.range == other.range
    }

    /// Fixed offset plus constant variable offset, as the kernel adds them.
    pub const fn const_off(&self) -> i64 {
        (self.off as i64).wrapping_add(self.range.bits.value as i64)
    }

    /// Whether it is an unmodified packet pointer from the context.
    pub fn is_initial_packet(&self, ty: RegType) -> bool {
        self.ty == ty && self.id == 0 && self.off == 0 && self.range.bits.equals(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_print_with_their_modifiers() {
        let t = RegType::BTF_ID
            .with(TypeFlags::PTR_TRUSTED)
            .with(TypeFlags::PTR_MAYBE_NULL);
        assert_eq!(t.to_string(), "trusted_ptr_or_null_");
        let t = RegType::MEM
            .with(TypeFlags::MEM_RDONLY)
            .with(TypeFlags::PTR_UNTRUSTED);
        assert_eq!(t.to_string(), "rdonly_untrusted_mem");
        assert_eq!(
            RegType::MAP_VALUE
                .with(TypeFlags::PTR_MAYBE_NULL)
                .to_string(),
            "map_value_or_null"
        );
        assert_eq!(t.base(), Base::Mem);
        assert_eq!(t.flags(), TypeFlags::MEM_RDONLY | TypeFlags::PTR_UNTRUSTED);
    }

    #[test]
    fn registers_stay_small() {
        assert!(std::mem::size_of::<Reg>() <= 96);
    }
}
