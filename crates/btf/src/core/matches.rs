//! `TYPE_MATCHES`: whether a target type has everything that the local one has.

use super::compat::{referred, resolved};
use super::{Budget, Errno};
use crate::index::essential_name;
use crate::kind::Kind;
use crate::types::Type;

/// Longest chain of pointers and arrays, and deepest nesting of structures.
const MAX_DEPTH: u32 = 32;

/// Compares two types whose root names are already known to match.
///
/// Behind a pointer structures match by name and kind alone (or a forward
/// declaration of the right kind); elsewhere every local member needs one of the same
/// name and a matching type. Enumerations match by the names of their values, and by
/// size; integers by size and sign; arrays by length.
pub(super) fn types_match(
    local: Type<'_>,
    target: Type<'_>,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    match_at(local, target, false, MAX_DEPTH, budget)
}

fn match_at(
    mut local: Type<'_>,
    mut target: Type<'_>,
    mut behind_ptr: bool,
    level: u32,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    if level == 0 {
        return Err(Errno::EINVAL);
    }
    for _ in 0..MAX_DEPTH {
        budget.step()?;
        (local, target) = resolved(local, target)?;
        if !names_match(local.name(), target.name()) {
            return Ok(false);
        }
        let same_kind = local.kind() == target.kind();
        match local.kind() {
            Kind::Void => return Ok(same_kind),
            Kind::Fwd if same_kind => return Ok(local.kind_flag() == target.kind_flag()),
            Kind::Fwd => return Ok(behind_ptr && declares(local, target)),
            Kind::Enum | Kind::Enum64 => {
                return if target.kind().is_enum() {
                    enums_match(local, target, budget)
                } else {
                    Ok(false)
                };
            }
            Kind::Struct | Kind::Union if behind_ptr => {
                return Ok(same_kind || target.is(Kind::Fwd) && declares(target, local));
            }
            Kind::Struct | Kind::Union => {
                return if same_kind {
                    members_match(local, target, level, budget)
                } else {
                    Ok(false)
                };
            }
            _ if !same_kind => return Ok(false),
            Kind::Int => {
                let sign = |t: Type<'_>| t.int().is_some_and(|i| i.is_signed());
                return Ok(local.size() == target.size() && sign(local) == sign(target));
            }
            Kind::Ptr => {
                behind_ptr = true;
                (local, target) = referred(local, target)?;
            }
            Kind::Array => {
                if local.array().map(|a| a.count) != target.array().map(|a| a.count) {
                    return Ok(false);
                }
                (local, target) = referred(local, target)?;
            }
            Kind::FuncProto => {
                if local.vlen() != target.vlen() {
                    return Ok(false);
                }
                for (l, t) in local.params().zip(target.params()) {
                    let (l, t) = l.type_in().zip(t.type_in()).ok_or(Errno::EINVAL)?;
                    if !match_at(l, t, behind_ptr, level - 1, budget)? {
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

/// Names match up to their flavours, and an anonymous type only another.
fn names_match(local: &str, target: &str) -> bool {
    if target.is_empty() {
        local.is_empty()
    } else {
        essential_name(local) == essential_name(target)
    }
}

/// Whether the forward declaration `fwd` is one of `composite`'s kind.
fn declares(fwd: Type<'_>, composite: Type<'_>) -> bool {
    match composite.kind() {
        Kind::Struct => !fwd.kind_flag(),
        Kind::Union => fwd.kind_flag(),
        _ => false,
    }
}

fn enums_match(local: Type<'_>, target: Type<'_>, budget: &mut Budget) -> Result<bool, Errno> {
    if local.size() != target.size() || local.vlen() > target.vlen() {
        return Ok(false);
    }
    for value in local.enum_values() {
        let mut found = false;
        for candidate in target.enum_values() {
            budget.step()?;
            if names_match(value.name(), candidate.name()) {
                found = true;
                break;
            }
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}

fn members_match(
    local: Type<'_>,
    target: Type<'_>,
    level: u32,
    budget: &mut Budget,
) -> Result<bool, Errno> {
    if local.vlen() > target.vlen() {
        return Ok(false);
    }
    for member in local.members() {
        let mut found = false;
        for candidate in target.members() {
            budget.step()?;
            if !names_match(member.name(), candidate.name()) {
                continue;
            }
            let types = member.type_in().zip(candidate.type_in());
            let (l, t) = types.ok_or(Errno::EINVAL)?;
            if match_at(l, t, false, level - 1, budget)? {
                found = true;
                break;
            }
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}
