//! What is known of a pointer on all paths.

use crate::reg::{Base, BtfOf, Reg, RegType};

/// Whose stack a stack pointer points into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Home {
    /// The current function's.
    Own,
    /// A caller's.
    Caller,
    /// Either.
    Any,
}

/// A pointer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pointer {
    /// What it points into.
    pub ty: RegType,
    /// Bytes from the start of that (for the stack: from the frame pointer): least and greatest.
    offset: Option<(i64, i64)>,
    /// Index of the map, BTF type, or size of the memory.
    extra: Extra,
    home: Home,
}

/// What goes with the type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Extra {
    None,
    Map(u32),
    Btf(BtfOf, u32),
    Size(u32),
}

impl Pointer {
    /// The pointer that a register holds in frame `frame`; `None` if it holds no pointer.
    pub(crate) fn of(reg: &Reg, frame: usize) -> Option<Pointer> {
        if matches!(reg.ty.base(), Base::NotInit | Base::Scalar) {
            return None;
        }
        let extra = match reg.ty.base() {
            Base::MapValue | Base::MapKey | Base::ConstMapPtr => {
                reg.map().map_or(Extra::None, |m| Extra::Map(m as u32))
            }
            Base::BtfId => {
                let (of, id) = reg.btf();
                Extra::Btf(of, id)
            }
            Base::Mem => Extra::Size(reg.mem_size()),
            _ => Extra::None,
        };
        let off = i64::from(reg.off);
        let low = reg.range.smin.checked_add(off);
        let high = reg.range.smax.checked_add(off);
        Some(Pointer {
            ty: reg.ty,
            offset: low.zip(high),
            extra,
            home: match reg.frameno as usize == frame {
                true => Home::Own,
                false => Home::Caller,
            },
        })
    }

    /// The frame pointer.
    pub(crate) const FRAME: Pointer = Pointer {
        ty: RegType::STACK,
        offset: Some((0, 0)),
        extra: Extra::None,
        home: Home::Own,
    };

    /// Least and greatest distance in bytes from the start of what it points into, both
    /// included: of the map value, memory or object, of the frame pointer (for the stack, where
    /// it is negative), or of the packet. `None` if it is not bounded.
    pub const fn offset(&self) -> Option<(i64, i64)> {
        self.offset
    }

    /// Index of the map that it is or points into, in the object's list of maps.
    pub const fn map(&self) -> Option<u32> {
        match self.extra {
            Extra::Map(map) => Some(map),
            _ => None,
        }
    }

    /// BTF and type id of what it points to.
    pub const fn btf(&self) -> Option<(BtfOf, u32)> {
        match self.extra {
            Extra::Btf(of, id) => Some((of, id)),
            _ => None,
        }
    }

    /// Size in bytes of the memory that it points into, counted from offset 0.
    pub const fn mem_size(&self) -> Option<u32> {
        match self.extra {
            Extra::Size(size) => Some(size),
            _ => None,
        }
    }

    /// Of a stack pointer: whose stack.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// Whether it may be null.
    pub const fn may_be_null(&self) -> bool {
        self.ty.may_be_null()
    }

    /// Whether it may point into a stack.
    pub(crate) const fn is_stack(&self) -> bool {
        matches!(self.ty.base(), Base::Stack)
    }

    /// Fixed offset into the current function's frame.
    pub(crate) fn own_slot(&self) -> Option<i64> {
        let (low, high) = self.offset?;
        (self.is_stack() && self.home == Home::Own && low == high).then_some(low)
    }

    /// The pointer `by` bytes on.
    pub(crate) fn moved(self, by: i64) -> Pointer {
        let offset = self
            .offset
            .and_then(|(low, high)| low.checked_add(by).zip(high.checked_add(by)));
        Pointer { offset, ..self }
    }

    /// What holds for either; `None` if they are of different kinds.
    pub(crate) fn join(&self, other: &Pointer) -> Option<Pointer> {
        if self.ty != other.ty {
            return None;
        }
        Some(Pointer {
            ty: self.ty,
            offset: self
                .offset
                .zip(other.offset)
                .map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))),
            extra: match self.extra == other.extra {
                true => self.extra,
                false => Extra::None,
            },
            home: match self.home == other.home {
                true => self.home,
                false => Home::Any,
            },
        })
    }

    /// The same without offset, where a loop keeps moving it.
    pub(crate) fn unbounded(self) -> Pointer {
        Pointer {
            offset: None,
            ..self
        }
    }
}
