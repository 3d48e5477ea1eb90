//! The number that a relocation puts into an instruction.

use super::spec::Spec;
use super::{CoreError, Family, ReloKind};
use crate::ext::CoreRelo;
use crate::kind::Kind;
use crate::types::{IntEncoding, Type};

/// The result of a relocation, ready to be put into its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// Value that the compiler put into the instruction.
    pub original: u64,
    /// Value for the target.
    pub value: u64,
    /// Nothing in the target fits: the instruction must not be reached.
    pub poison: bool,
    /// Whether the instruction must hold [`original`](Self::original).
    pub validate: bool,
    /// A load or store of the field would be wrong on the target: it has another
    /// size, and is neither a pointer nor an unsigned integer on both sides.
    pub unsafe_resize: bool,
    /// Bytes of the local field, 0 where loads and stores keep their size.
    pub original_size: u32,
    /// Bytes of the target field.
    pub size: u32,
}

/// What one side, local or target, makes of a relocation.
#[derive(Clone, Copy, Default)]
struct Value<'a> {
    value: u64,
    /// Field that a load or store would move, for byte offsets.
    field: Option<(Type<'a>, u32)>,
    validate: bool,
}

impl Resolution {
    /// Works out both sides; `target` is `None` where no candidate fits.
    pub(super) fn compute(
        relo: &CoreRelo,
        local: &Spec<'_>,
        target: Option<&Spec<'_>>,
    ) -> Result<Self, CoreError> {
        let kind = local.kind;
        let original = Value::of(relo, local)?;
        let plain = Self {
            original: original.value,
            validate: original.validate,
            original_size: original.field.map_or(0, |f| f.1),
            ..Self::default()
        };
        let Some(target) = target else {
            // Questions have the answer 0, everything else has none.
            use ReloKind::{EnumvalExists, FieldExists};
            let answered =
                kind.family() == Family::Type || matches!(kind, FieldExists | EnumvalExists);
            return Ok(Self {
                poison: !answered,
                ..plain
            });
        };
        let new = Value::of(relo, target)?;
        let size = new.field.map_or(0, |f| f.1);
        let unsafe_resize = plain.original_size != size
            && !original
                .field
                .zip(new.field)
                .is_some_and(|(l, t)| resizable(l.0, t.0));
        Ok(Self {
            value: new.value,
            size,
            unsafe_resize,
            ..plain
        })
    }
}

/// Whether a load of another size gives the same value: pointers and unsigned
/// integers are extended with zeroes.
fn resizable(local: Type<'_>, target: Type<'_>) -> bool {
    let pointer = |t: Type<'_>| t.is(Kind::Ptr);
    let unsigned = |t: Type<'_>| t.int().is_some_and(|i| i.encoding != IntEncoding::SIGNED);
    pointer(local) && pointer(target) || unsigned(local) && unsigned(target)
}

impl<'a> Value<'a> {
    fn of(relo: &CoreRelo, spec: &Spec<'a>) -> Result<Self, CoreError> {
        let simple = |value| Self {
            value,
            field: None,
            validate: true,
        };
        Ok(match spec.kind {
            ReloKind::FieldExists
            | ReloKind::TypeExists
            | ReloKind::TypeMatches
            | ReloKind::EnumvalExists => simple(1),
            // The id in the instruction may be out of date after linking.
            ReloKind::TypeIdLocal | ReloKind::TypeIdTarget => Self {
                validate: false,
                ..simple(spec.root.into())
            },
            ReloKind::TypeSize => {
                simple(spec.btf.size_of(spec.root).ok_or(CoreError::NoSize)?.into())
            }
            ReloKind::EnumvalValue => simple(spec.enumerator().ok_or(CoreError::NoType)?.bits),
            _ => return Self::of_field(relo, spec),
        })
    }

    fn of_field(relo: &CoreRelo, spec: &Spec<'a>) -> Result<Self, CoreError> {
        let (kind, insn) = (relo.kind, relo.insn_off / 8);
        let last = spec.accessors.last().ok_or(CoreError::NoType)?;
        if last.name.is_none() {
            let element = spec.btf.type_by_id(last.type_id).ok_or(CoreError::NoType)?;
            let size = spec.btf.size_of(last.type_id).ok_or(CoreError::NoSize);
            return match spec.kind {
                ReloKind::FieldByteOffset => Ok(Self {
                    value: (spec.bit_offset / 8).into(),
                    field: Some((element, size?)),
                    validate: true,
                }),
                ReloKind::FieldByteSize => Ok(Self {
                    value: size?.into(),
                    field: None,
                    validate: true,
                }),
                _ => Err(CoreError::ArrayAccess { kind, insn }),
            };
        }
        let member = spec.member(last).ok_or(CoreError::NoType)?;
        let field = spec.btf.resolve(member.type_id).ok_or(CoreError::NoType)?;
        let bitfield = member.bitfield_size > 0;
        let unit = if bitfield {
            Unit::of_bitfield(spec.bit_offset, member.bitfield_size, field)
                .ok_or(CoreError::Bitfield { kind, insn })?
        } else {
            let bytes = spec.btf.size_of(field.id()).ok_or(CoreError::NoSize)?;
            let bits = u64::from(bytes) * 8;
            Unit {
                start: u64::from(spec.bit_offset / 8),
                bytes: bytes.into(),
                bits,
                skip: 0,
            }
        };
        // Compilers cut bit-fields in ways of their own: only what does not depend on
        // the cut is held against the instruction.
        Ok(match spec.kind {
            ReloKind::FieldByteOffset => Self {
                value: unit.start,
                field: (!bitfield).then_some((field, unit.bytes as u32)),
                validate: !bitfield,
            },
            ReloKind::FieldByteSize => Self {
                value: unit.bytes,
                field: None,
                validate: !bitfield,
            },
            ReloKind::FieldSigned => {
                let signed = field.kind().is_enum() && field.kind_flag()
                    || field.int().is_some_and(|i| i.is_signed());
                Self {
                    value: signed.into(),
                    field: None,
                    validate: true,
                }
            }
            ReloKind::FieldLshiftU64 => {
                let shift = if cfg!(target_endian = "little") {
                    64u64.wrapping_sub(unit.skip + unit.bits)
                } else {
                    8u64.wrapping_sub(unit.bytes)
                        .wrapping_mul(8)
                        .wrapping_add(unit.skip)
                };
                // libbpf counts in 32 bits.
                Self {
                    value: (shift as u32).into(),
                    field: None,
                    validate: !bitfield,
                }
            }
            _ => {
                let shift = 64u64.wrapping_sub(unit.bits) as u32;
                Self {
                    value: shift.into(),
                    field: None,
                    validate: true,
                }
            }
        })
    }
}

/// The bytes that a load takes to get at a field.
struct Unit {
    /// First byte.
    start: u64,
    bytes: u64,
    /// Bits of the field, and bits before it in the bytes loaded.
    bits: u64,
    skip: u64,
}

impl Unit {
    /// The smallest aligned load, from the declared type's size up, that covers the
    /// bit-field; `None` where 64 bits do not.
    fn of_bitfield(bit_offset: u32, bits: u32, declared: Type<'_>) -> Option<Self> {
        let (offset, bits) = (u64::from(bit_offset), u64::from(bits));
        let mut bytes = u64::from(declared.size().filter(|&s| s > 0)?);
        loop {
            let start = offset / 8 / bytes * bytes;
            let skip = offset - start * 8;
            if skip + bits <= bytes * 8 {
                return Some(Self {
                    start,
                    bytes,
                    bits,
                    skip,
                });
            }
            if bytes >= 8 {
                return None;
            }
            bytes *= 2;
        }
    }
}
