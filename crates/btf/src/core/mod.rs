//! CO-RE: rewriting the instructions of an object for the types of another kernel.
//!
//! A [`Relocator`] finds for each record of `.BTF.ext` the field, type or enumerator
//! of the target that the object's own type stands for, and gives a [`Resolution`];
//! [`Resolution::patch`] puts it into the instruction. The rules, the order of the
//! checks, the poison and the messages are those of libbpf 1.7
//! (`relo_core.c`, `libbpf.c`).

mod compat;
mod error;
mod matches;
mod patch;
mod relocate;
mod spec;
mod value;

pub use compat::compatible;
pub use error::CoreError;
pub use patch::{POISON, Patch, Poison, RawInsn};
pub use relocate::Relocator;
pub use value::Resolution;

/// What a relocation asks for (`enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum ReloKind {
    /// Byte offset of a field.
    FieldByteOffset,
    /// Bytes of a field.
    FieldByteSize,
    /// Whether the field exists.
    FieldExists,
    /// Whether the field has a sign.
    FieldSigned,
    /// Left shift that brings a bit-field to the top of 64 bits.
    FieldLshiftU64,
    /// Right shift that brings it down again.
    FieldRshiftU64,
    /// Id of the type in the object's own BTF.
    TypeIdLocal,
    /// Id of the type in the target's BTF.
    TypeIdTarget,
    /// Whether the type exists.
    TypeExists,
    /// Bytes of the type.
    TypeSize,
    /// Whether the enumerator exists.
    EnumvalExists,
    /// Value of the enumerator.
    EnumvalValue,
    /// Whether a type exists that has all that the local one has.
    TypeMatches,
}

/// The three families of relocations, which read their accessor strings differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    Field,
    Type,
    Enumval,
}

/// One row a kind, at the place of its number: kind, libbpf's name, family.
const KINDS: [(ReloKind, &str, Family); 13] = [
    (ReloKind::FieldByteOffset, "byte_off", Family::Field),
    (ReloKind::FieldByteSize, "byte_sz", Family::Field),
    (ReloKind::FieldExists, "field_exists", Family::Field),
    (ReloKind::FieldSigned, "signed", Family::Field),
    (ReloKind::FieldLshiftU64, "lshift_u64", Family::Field),
    (ReloKind::FieldRshiftU64, "rshift_u64", Family::Field),
    (ReloKind::TypeIdLocal, "local_type_id", Family::Type),
    (ReloKind::TypeIdTarget, "target_type_id", Family::Type),
    (ReloKind::TypeExists, "type_exists", Family::Type),
    (ReloKind::TypeSize, "type_size", Family::Type),
    (ReloKind::EnumvalExists, "enumval_exists", Family::Enumval),
    (ReloKind::EnumvalValue, "enumval_value", Family::Enumval),
    (ReloKind::TypeMatches, "type_matches", Family::Type),
];

impl ReloKind {
    /// The kind with that number.
    pub fn from_u32(number: u32) -> Option<Self> {
        KINDS.get(number as usize).map(|row| row.0)
    }

    /// libbpf's name: `byte_off`, `type_exists`.
    pub fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    pub(crate) fn family(self) -> Family {
        KINDS[self as usize].2
    }
}

/// Work that a relocator may still do. The rules themselves are not bounded on types
/// made to be slow: nested anonymous structures double the search at each level.
#[derive(Debug)]
pub(crate) struct Budget(u64);

impl Budget {
    /// For all relocations of an object: about a second. A real one takes a thousandth.
    pub const OBJECT: Self = Self(1 << 25);
    /// For one candidate of one of them.
    const CANDIDATE: u64 = 1 << 22;
    /// For one comparison of two types.
    pub const COMPARISON: Self = Self(1 << 16);

    /// Does the work on one candidate, as long as there are steps for it.
    pub fn candidate<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let granted = self.0.min(Self::CANDIDATE);
        let mut own = Self(granted);
        let result = work(&mut own);
        self.0 -= granted - own.0;
        result
    }

    /// Takes a step.
    ///
    /// # Errors
    /// When no steps are left.
    pub fn step(&mut self) -> Result<(), Errno> {
        self.0 = self.0.checked_sub(1).ok_or(Errno::E2BIG)?;
        Ok(())
    }
}

/// An error number of libbpf, negative as it prints it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub i32);

impl Errno {
    pub const E2BIG: Self = Self(-7);
    pub const EINVAL: Self = Self(-22);
    pub const ERANGE: Self = Self(-34);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_numbers() {
        for (number, row) in KINDS.iter().enumerate() {
            assert_eq!(row.0 as usize, number);
        }
        assert_eq!(ReloKind::from_u32(13), None);
    }
}
