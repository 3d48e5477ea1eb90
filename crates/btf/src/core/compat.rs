//! When a target type can stand for a local one. Names have been compared before.

use super::{Budget, Errno};
use crate::index::essential_name;
use crate::kind::Kind;
use crate::types::Type;

/// Longest chain of pointers and arrays, and deepest nesting of prototypes.
const MAX_DEPTH: u32 = 32;

/// Both types without modifiers and typedefs.
pub(super) fn resolved<'l, 't>(
    local: Type<'l>,
    target: Type<'t>,
) -> Result<(Type<'l>, Type<'t>), Errno> {
    local.resolve().zip(target.resolve()).ok_or(Errno::EINVAL)
}

/// The types that two pointers, or two arrays, refer to.
pub(super) fn referred<'l, 't>(
    local: Type<'l>,
    target: Type<'t>,
) -> Result<(Type<'l>, Type<'t>), Errno> {
    referred_by(local)
        .zip(referred_by(target))
        .ok_or(Errno::EINVAL)
}

fn referred_by(t: Type<'_>) -> Option<Type<'_>> {
    match t.array() {
        Some(array) => t.btf().type_by_id(array.element),
        None => t.target(),
    }
}

/// Whether libbpf takes the kernel's `target` for the declaration `local` of a variable
/// or of a function's prototype (`bpf_core_types_are_compat`): the same kind, down
/// through pointers, arrays and prototypes. Types that cannot be compared are not.
pub fn compatible(local: Type<'_>, target: Type<'_>) -> bool {
    types_are_compatible(local, target, &mut { Budget::COMPARISON }).unwrap_or(false)
}

/// For type-based relocations: the same kind, down through pointers, arrays and
/// prototypes; sizes, names and members do not matter.
pub(super) fn types_are_compatible(
    local: Type<'_>,
    target: Type<'_>,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    if !local.kind().core_compatible(target.kind()) {
        return Ok(false);
    }
    compatible_at(local, target, MAX_DEPTH, budget)
}

fn compatible_at(
    mut local: Type<'_>,
    mut target: Type<'_>,
    level: u32,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    for _ in 0..MAX_DEPTH {
        budget.step()?;
        (local, target) = resolved(local, target)?;
        if !local.kind().core_compatible(target.kind()) {
            return Ok(false);
        }
        match local.kind() {
            Kind::Void | Kind::Struct | Kind::Union | Kind::Enum | Kind::Fwd | Kind::Enum64 => {
                return Ok(true);
            }
            Kind::Int => return Ok(plain_integers(local, target)),
            Kind::Ptr | Kind::Array => (local, target) = referred(local, target)?,
            Kind::FuncProto => {
                if local.vlen() != target.vlen() {
                    return Ok(false);
                }
                for (l, t) in local.params().zip(target.params()) {
                    let level = level.checked_sub(1).ok_or(Errno::EINVAL)?;
                    let (l, t) = l.type_in().zip(t.type_in()).ok_or(Errno::EINVAL)?;
                    let (l, t) = resolved(l, t)?;
                    if !l.kind().core_compatible(t.kind()) || !compatible_at(l, t, level, budget)? {
                        return Ok(false);
                    }
                }
                (local, target) = referred(local, target)?;
            }
            _ => return Ok(false),
        }
    }
    Err(Errno::EINVAL)
}

/// For a field found by name: any structure or union for another, any integer for
/// another, any pointer for another, enumerations by name, arrays by element.
pub(super) fn fields_are_compatible(
    mut local: Type<'_>,
    mut target: Type<'_>,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    for _ in 0..MAX_DEPTH {
        budget.step()?;
        (local, target) = resolved(local, target)?;
        if local.kind().is_composite() && target.kind().is_composite() {
            return Ok(true);
        }
        if !local.kind().core_compatible(target.kind()) {
            return Ok(false);
        }
        match local.kind() {
            Kind::Ptr | Kind::Float => return Ok(true),
            Kind::Fwd | Kind::Enum | Kind::Enum64 => {
                let (l, t) = (essential_name(local.name()), essential_name(target.name()));
                return Ok(l.is_empty() || t.is_empty() || l == t);
            }
            Kind::Int => return Ok(plain_integers(local, target)),
            Kind::Array => (local, target) = referred(local, target)?,
            _ => return Ok(false),
        }
    }
    Err(Errno::EINVAL)
}

/// Integers that begin at their first bit; others are the bit-fields of old compilers.
fn plain_integers(local: Type<'_>, target: Type<'_>) -> bool {
    let plain = |t: Type<'_>| t.int().is_some_and(|i| i.bit_offset == 0);
    plain(local) && plain(target)
}
