//! `-G`: values of global variables, set before verification.

use std::path::Path;

use bpfkit_btf::{Kind, Type};
use bpfkit_object::{MapOrigin, Object};

use crate::cli::failure::{Failure, Result};
use crate::cli::files;
use crate::cli::values::find_member;

/// Why a preset does not suit an object.
type Fits<T = ()> = std::result::Result<T, String>;

/// `variable.member[3] = value`.
pub struct Preset {
    /// As written, without the value.
    place: String,
    variable: String,
    steps: Vec<Step>,
    value: String,
}

enum Step {
    Member(String),
    /// A number or an enumerator.
    Element(String),
}

/// A scalar inside of a variable.
struct Scalar<'a> {
    ty: Type<'a>,
    offset: usize,
}

/// Reads the arguments of `-G`: an assignment each, or `@FILE` with one a line.
pub fn parse(arguments: &[String]) -> Result<Vec<Preset>> {
    let mut presets = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@') {
            Some(path) => {
                for line in files::read_list(Path::new(path))? {
                    presets.push(Preset::parse(&line)?);
                }
            }
            None => presets.push(Preset::parse(argument)?),
        }
    }
    Ok(presets)
}

/// Sets all of them in an object.
///
/// # Errors
/// A variable that the object does not have, or a value that does not fit.
pub fn apply(presets: &[Preset], object: &mut Object) -> Result {
    presets.iter().try_for_each(|preset| {
        preset.apply(object).map_err(|message| {
            let place = &preset.place;
            Failure::input(format!(
                "Global variable preset {place} has not been applied: {message}"
            ))
        })
    })
}

impl Preset {
    fn parse(text: &str) -> Result<Preset> {
        let wrong = || Failure::input(format!("Failed to parse expression '{text}'"));
        let (place, value) = text.split_once('=').ok_or_else(wrong)?;
        let (place, value) = (place.trim(), value.trim());
        let end = place.find(['.', '[']).unwrap_or(place.len());
        let (variable, mut rest) = place.split_at(end);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let (index, after) = inner.split_once(']').ok_or_else(wrong)?;
                steps.push(Step::Element(index.trim().to_owned()));
                rest = after;
            } else {
                let inner = rest.strip_prefix('.').ok_or_else(wrong)?;
                let end = inner.find(['.', '[']).unwrap_or(inner.len());
                let (name, after) = inner.split_at(end);
                if name.is_empty() {
                    return Err(wrong());
                }
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            }
        }
        if variable.is_empty() || value.is_empty() || variable.contains(char::is_whitespace) {
            return Err(wrong());
        }
        Ok(Preset {
            place: place.to_owned(),
            variable: variable.to_owned(),
            steps,
            value: value.to_owned(),
        })
    }

    fn apply(&self, object: &mut Object) -> Fits {
        let global = object.globals.iter().find(|g| g.name == self.variable);
        let global = global.ok_or("the object has no such variable")?;
        let btf = object.btf.as_deref().ok_or("the object has no BTF")?;
        let ty = btf
            .resolve(global.type_id)
            .ok_or("the variable has no type")?;
        let scalar = self.find(ty)?;
        let size = scalar.ty.size().unwrap_or(0) as usize;
        let value = integer(scalar.ty, &self.value)
            .ok_or_else(|| format!("no value {:?} for {:?}", self.value, scalar.ty.name()))?;
        let range = value_range(scalar.ty, size);
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            return Err(format!("value {value} is out of range [{low}; {high}]"));
        }
        let map = object.maps.get(global.map as usize);
        let (MapOrigin::Data { bytes, .. } | MapOrigin::Arena { bytes }) =
            &map.ok_or("the variable has no map")?.origin
        else {
            return Err("the variable cannot be set".to_owned());
        };
        let held = bytes.get(global.range.start as usize..global.range.end as usize);
        let mut held = held.ok_or("the variable lies outside its map")?.to_vec();
        let end = scalar.offset.checked_add(size);
        let slot = end.and_then(|end| held.get_mut(scalar.offset..end));
        let slot = slot.ok_or("the member lies outside the variable")?;
        let little = value.to_le_bytes();
        for (at, byte) in slot.iter_mut().enumerate() {
            let from = match object.big_endian {
                true => size - 1 - at,
                false => at,
            };
            *byte = little.get(from).copied().unwrap_or(0);
        }
        object
            .set_global(&self.variable, &held)
            .map_err(|error| error.to_string())
    }

    /// Follows members and elements to a scalar.
    fn find<'a>(&self, ty: Type<'a>) -> Fits<Scalar<'a>> {
        let btf = ty.btf();
        let (mut ty, mut offset) = (ty, 0usize);
        for step in &self.steps {
            let (next, skip) = match step {
                Step::Member(name) => {
                    let (member, base) = find_member(ty, name, 0, 0)
                        .ok_or_else(|| format!("{:?} has no member {name:?}", ty.name()))?;
                    let bits = base.checked_add(member.bit_offset);
                    let bits = bits.filter(|b| b % 8 == 0 && member.bitfield_size == 0);
                    let bits = bits.ok_or_else(|| format!("{name:?} is a bit field"))?;
                    (member.type_in(), (bits / 8) as usize)
                }
                Step::Element(word) => {
                    let array = ty.array().ok_or("only arrays have elements")?;
                    let index = number(word).or_else(|| enumerator(btf, word));
                    let index = index.and_then(|i| u32::try_from(i).ok());
                    let index = index.filter(|&i| i < array.count).ok_or_else(|| {
                        format!("{word} is no index of an array of {}", array.count)
                    })?;
                    let size = btf.size_of(array.element).unwrap_or(0);
                    let skip = (index as usize).checked_mul(size as usize);
                    (btf.type_by_id(array.element), skip.unwrap_or(usize::MAX))
                }
            };
            ty = next.and_then(Type::resolve).ok_or("a part has no type")?;
            offset = offset
                .checked_add(skip)
                .ok_or("the variable is too large")?;
        }
        match ty.kind() {
            Kind::Int | Kind::Enum | Kind::Enum64 => Ok(Scalar { ty, offset }),
            kind => Err(format!("setting a {} is not supported", kind.name())),
        }
    }
}

fn number(word: &str) -> Option<i128> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, word),
    };
    let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    Some(sign * i128::from(number.ok()?))
}

/// An enumerator of any enumeration.
fn enumerator(btf: &bpfkit_btf::Btf, word: &str) -> Option<i128> {
    let enums = btf.own_types();
    let mut enums = enums.filter(|t| matches!(t.kind(), Kind::Enum | Kind::Enum64));
    enums.find_map(|t| {
        t.enum_values()
            .find(|v| v.name() == word)
            .map(|v| v.value())
    })
}

/// A number, a truth value, or an enumerator of the type.
fn integer(ty: Type<'_>, word: &str) -> Option<i128> {
    match word {
        "true" => Some(1),
        "false" => Some(0),
        _ => number(word).or_else(|| {
            let mut values = ty.enum_values();
            values.find(|v| v.name() == word).map(|v| v.value())
        }),
    }
}

fn value_range(ty: Type<'_>, size: usize) -> std::ops::RangeInclusive<i128> {
    let bits = 8 * size.min(8) as u32;
    let signed = match ty.int() {
        Some(int) => int.is_signed(),
        None => ty.kind_flag(),
    };
    match signed && bits > 0 {
        true => -(1i128 << (bits - 1))..=(1i128 << (bits - 1)) - 1,
        false => 0..=(1i128 << bits) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;

    #[test]
    fn places() {
        let preset = Preset::parse(" a.b[ 3 ].c = -5 ").unwrap();
        assert_eq!((preset.variable.as_str(), preset.steps.len()), ("a", 3));
        assert_eq!(preset.value, "-5");
        for wrong in ["a", "=1", "a=", "a..b=1", "a[1=2", "a b=1", "a]=1"] {
            let parsed = Preset::parse(wrong);
            assert!(parsed.is_err() || wrong == "a]=1", "{wrong}");
        }
    }
}
