//! `enum bpf_type_flag`: what is known of a pointer beside its base type.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// Flags of `enum bpf_type_flag`, with the kernel's bit numbers (they start at bit 8,
/// above the base type).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TypeFlags(u32);

macro_rules! flags {
    ($($NAME:ident = $bit:literal, $doc:literal;)*) => {
        impl TypeFlags {
            $(#[doc = $doc] pub const $NAME: TypeFlags = TypeFlags(1 << $bit);)*
            const NAMES: &[(&str, TypeFlags)] = &[$((stringify!($NAME), TypeFlags::$NAME),)*];
        }
    };
}

flags! {
    PTR_MAYBE_NULL = 8, "May be null.";
    MEM_RDONLY = 9, "Memory may only be read; of an argument: the helper only reads it.";
    MEM_RINGBUF = 10, "Points to memory reserved in a ring buffer.";
    MEM_USER = 11, "Points to user memory (`__user` tag).";
    MEM_PERCPU = 12, "Points to a per-CPU variable (`__percpu` tag), to be turned into a pointer first.";
    OBJ_RELEASE = 13, "The argument is a reference that the call releases.";
    PTR_UNTRUSTED = 14, "May be stale or garbage: reads go through probing loads, helpers refuse it.";
    MEM_UNINIT = 15, "The argument need not be initialized.";
    DYNPTR_TYPE_LOCAL = 16, "Dynptr of memory the program can reach itself.";
    DYNPTR_TYPE_RINGBUF = 17, "Dynptr of a ring buffer record.";
    MEM_FIXED_SIZE = 18, "The size of the memory is fixed by the prototype.";
    MEM_ALLOC = 19, "Object allocated by the program (`bpf_obj_new`).";
    PTR_TRUSTED = 20, "Valid by the verifier's guarantee: from the kernel as an argument, or acquired.";
    MEM_RCU = 21, "Valid inside an RCU read-side section.";
    NON_OWN_REF = 22, "Non-owning reference to a node in a list or tree, valid while the lock is held.";
    DYNPTR_TYPE_SKB = 23, "Dynptr of an skb.";
    DYNPTR_TYPE_XDP = 24, "Dynptr of an XDP frame.";
    MEM_ALIGNED = 25, "The memory must be aligned to its size.";
    MEM_WRITE = 26, "The helper writes the memory.";
    DYNPTR_TYPE_SKB_META = 27, "Dynptr of the metadata of an skb.";
}

impl TypeFlags {
    /// No flag.
    pub const NONE: TypeFlags = TypeFlags(0);

    /// Every kind of dynptr.
    pub const DYNPTR_TYPES: TypeFlags = TypeFlags::DYNPTR_TYPE_LOCAL
        .or(TypeFlags::DYNPTR_TYPE_RINGBUF)
        .or(TypeFlags::DYNPTR_TYPE_SKB)
        .or(TypeFlags::DYNPTR_TYPE_XDP)
        .or(TypeFlags::DYNPTR_TYPE_SKB_META);

    /// The flags whose bits are set; others are dropped.
    pub const fn from_bits(bits: u32) -> TypeFlags {
        TypeFlags(bits & !0xff)
    }

    /// The bits, as in the kernel.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets together.
    pub const fn or(self, other: TypeFlags) -> TypeFlags {
        TypeFlags(self.0 | other.0)
    }

    /// This set less the other.
    pub const fn less(self, other: TypeFlags) -> TypeFlags {
        TypeFlags(self.0 & !other.0)
    }

    /// Whether it has every flag of `other`.
    pub const fn has(self, other: TypeFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has any flag of `other`.
    pub const fn has_any(self, other: TypeFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for TypeFlags {
    type Output = TypeFlags;
    fn bitor(self, other: TypeFlags) -> TypeFlags {
        self.or(other)
    }
}

impl BitOrAssign for TypeFlags {
    fn bitor_assign(&mut self, other: TypeFlags) {
        *self = self.or(other);
    }
}

impl BitAnd for TypeFlags {
    type Output = TypeFlags;
    fn bitand(self, other: TypeFlags) -> TypeFlags {
        TypeFlags(self.0 & other.0)
    }
}

impl Not for TypeFlags {
    type Output = TypeFlags;
    fn not(self) -> TypeFlags {
        TypeFlags(!self.0)
    }
}

impl fmt::Debug for TypeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (name, flag) in TypeFlags::NAMES {
            if self.has(*flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
                rest &= !flag.0;
            }
        }
        match (rest, separator) {
            (0, "") => f.write_str("0"),
            (0, _) => Ok(()),
            _ => write!(f, "{separator}{rest:#x}"),
        }
    }
}
