//! Map keys and values as JSON: by their BTF type where there is one, else as
//! integers (1, 2, 4, 8 bytes) or hex digits.

use std::net::{Ipv4Addr, Ipv6Addr};

use bpfkit_btf::{Btf, IntEncoding, Kind, Member, Type};
use serde_json::{Map as Object, Value};

use crate::cli::hex;

/// Nested types deeper than this are printed as hex digits; real maps have a handful.
const MAX_DEPTH: u32 = 32;

/// How one key or value of a map is laid out.
#[derive(Clone, Copy)]
pub struct Layout<'a> {
    /// Its type, if the object says.
    pub ty: Option<Type<'a>>,
    /// Bytes.
    pub size: usize,
    /// Whether it is the key of an LPM trie: 32 bits of prefix length, then an address.
    pub prefix: bool,
}

impl<'a> Layout<'a> {
    /// Layout of `size` bytes of that type (0: no type).
    pub fn new(btf: Option<&'a Btf>, type_id: u32, size: u32, prefix: bool) -> Self {
        let ty = btf
            .filter(|_| type_id != 0)
            .and_then(|btf| btf.resolve(type_id));
        Layout {
            ty,
            size: size as usize,
            prefix,
        }
    }

    /// Bytes as JSON.
    pub fn decode(&self, bytes: &[u8]) -> Value {
        if self.prefix
            && let Some(text) = decode_prefix(bytes)
        {
            return Value::String(text);
        }
        match self.ty {
            Some(ty) => decode(ty, bytes, 0),
            None => decode_integer(bytes, false),
        }
    }

    /// JSON as bytes.
    ///
    /// # Errors
    /// Says which part does not fit the type.
    pub fn encode(&self, value: &Value) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.size];
        if self.prefix
            && let Value::String(text) = value
            && let Some(encoded) = encode_prefix(text, self.size)?
        {
            return Ok(encoded);
        }
        match (self.ty, value) {
            (_, Value::String(text)) if text.starts_with("0x") && self.size > 8 => {
                encode_hex(text, &mut bytes)?;
            }
            (Some(ty), _) => encode(ty, value, &mut bytes, 0)?,
            (None, _) => encode_scalar(value, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// A word of the command line as bytes: a number, an address or prefix, hex digits, or JSON.
    ///
    /// # Errors
    /// Says what does not fit.
    pub fn encode_word(&self, word: &str) -> Result<Vec<u8>, String> {
        let word = word.trim();
        let value = match serde_json::from_str(word) {
            Ok(value) => value,
            Err(_) => Value::String(word.to_owned()),
        };
        self.encode(&value)
    }
}

fn decode_prefix(bytes: &[u8]) -> Option<String> {
    let (bits, address) = bytes.split_first_chunk::<4>()?;
    let bits = u32::from_ne_bytes(*bits);
    if let Ok(v4) = <[u8; 4]>::try_from(address) {
        return Some(format!("{}/{bits}", Ipv4Addr::from(v4)));
    }
    let v6 = <[u8; 16]>::try_from(address).ok()?;
    Some(format!("{}/{bits}", Ipv6Addr::from(v6)))
}

/// `None` where the text is no address with a prefix length.
fn encode_prefix(text: &str, size: usize) -> Result<Option<Vec<u8>>, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let (data, full) = if let Ok(v4) = address.parse::<Ipv4Addr>() {
        (v4.octets().to_vec(), 32)
    } else if let Ok(v6) = address.parse::<Ipv6Addr>() {
        (v6.octets().to_vec(), 128)
    } else {
        return Ok(None);
    };
    let bits: u32 = match bits {
        None => full,
        Some(bits) => bits
            .parse()
            .map_err(|_| format!("{bits:?} is not a prefix length"))?,
    };
    if bits > full {
        return Err(format!("a prefix of {bits} bits on an address of {full}"));
    }
    if data.len() + 4 != size {
        return Err(format!(
            "the key has {} address bytes, {text} has {}",
            size - 4,
            data.len()
        ));
    }
    let mut key = bits.to_ne_bytes().to_vec();
    key.extend(data);
    Ok(Some(key))
}

fn decode_integer(bytes: &[u8], signed: bool) -> Value {
    let mut wide = [0u8; 8];
    if !matches!(bytes.len(), 1 | 2 | 4 | 8) {
        return Value::String(format!("0x{}", hex::format(bytes)));
    }
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    let number = u64::from_le_bytes(wide);
    if signed {
        let unused = 64 - 8 * bytes.len() as u32;
        return Value::from((number << unused) as i64 >> unused);
    }
    Value::from(number)
}

fn is_char(ty: Type<'_>) -> bool {
    ty.int()
        .is_some_and(|int| int.encoding == IntEncoding::CHAR)
        || (ty.name() == "char" && ty.size() == Some(1))
}

fn decode(ty: Type<'_>, bytes: &[u8], depth: u32) -> Value {
    let raw = || Value::String(format!("0x{}", hex::format(bytes)));
    if depth > MAX_DEPTH {
        return raw();
    }
    match ty.kind() {
        Kind::Int => match ty.int() {
            Some(int) if int.encoding == IntEncoding::BOOL => {
                Value::Bool(bytes.iter().any(|&b| b != 0))
            }
            Some(int) => decode_integer(bytes, int.is_signed()),
            None => raw(),
        },
        Kind::Float => match *bytes {
            [a, b, c, d] => Value::from(f64::from(f32::from_le_bytes([a, b, c, d]))),
            [a, b, c, d, e, f, g, h] => Value::from(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
            _ => raw(),
        },
        Kind::Enum | Kind::Enum64 => {
            let number = decode_integer(bytes, ty.kind_flag());
            let value = number
                .as_i64()
                .map(i128::from)
                .or(number.as_u64().map(i128::from));
            let name = ty.enum_values().find(|item| Some(item.value()) == value);
            name.map_or(number, |item| Value::from(item.name()))
        }
        Kind::Array => decode_array(ty, bytes, depth).unwrap_or_else(raw),
        Kind::Struct | Kind::Union => {
            let mut fields = Object::new();
            decode_members(ty, bytes, depth, &mut fields);
            Value::Object(fields)
        }
        Kind::Datasec => {
            let variables = ty.variables().filter_map(|variable| {
                let declared = ty.btf().type_by_id(variable.type_id)?;
                let at = variable.offset as usize;
                let part = bytes.get(at..at.checked_add(variable.size as usize)?)?;
                let value = decode(declared.target()?.resolve()?, part, depth + 1);
                Some((declared.name().to_owned(), value))
            });
            Value::Object(variables.collect())
        }
        Kind::Ptr => match decode_integer(bytes, false).as_u64() {
            Some(address) => Value::String(format!("{address:#x}")),
            None => raw(),
        },
        _ => raw(),
    }
}

fn decode_array(ty: Type<'_>, bytes: &[u8], depth: u32) -> Option<Value> {
    let element = element_of(ty)?;
    let size = ty_size(element)?;
    if is_char(element) {
        let text = bytes.split(|&b| b == 0).next()?;
        let printable = text.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
        if printable && bytes[text.len()..].iter().all(|&b| b == 0) {
            return Some(Value::String(String::from_utf8_lossy(text).into_owned()));
        }
    }
    Some(
        bytes
            .chunks_exact(size.max(1))
            .map(|item| decode(element, item, depth + 1))
            .collect(),
    )
}

fn decode_members(ty: Type<'_>, bytes: &[u8], depth: u32, fields: &mut Object<String, Value>) {
    for member in ty.members() {
        let Some(inner) = member.type_in().and_then(Type::resolve) else {
            continue;
        };
        let value = match bitfield(&member, inner) {
            Some((at, width)) => decode_bits(bytes, at, width, inner),
            None => {
                let at = (member.bit_offset / 8) as usize;
                let end = ty_size(inner).and_then(|size| at.checked_add(size));
                let Some(part) = end.and_then(|end| bytes.get(at..end)) else {
                    continue;
                };
                if member.name().is_empty() && depth < MAX_DEPTH {
                    decode_members(inner, part, depth + 1, fields);
                    continue;
                }
                decode(inner, part, depth + 1)
            }
        };
        fields.insert(member.name().to_owned(), value);
    }
}

/// Bit offset and width of a member that is not whole bytes of its type.
fn bitfield(member: &Member<'_>, ty: Type<'_>) -> Option<(u32, u32)> {
    let width = member.bitfield_size;
    let whole =
        ty.size().is_some_and(|size| size * 8 == width) && member.bit_offset.is_multiple_of(8);
    (width != 0 && !whole).then_some((member.bit_offset, width))
}

fn decode_bits(bytes: &[u8], at: u32, width: u32, ty: Type<'_>) -> Value {
    let mut number = 0u64;
    for bit in 0..width.min(64) {
        let position = at + bit;
        let byte = bytes.get((position / 8) as usize).copied().unwrap_or(0);
        number |= u64::from(byte >> (position % 8) & 1) << bit;
    }
    let signed = ty.int().is_some_and(|int| int.is_signed());
    if signed && width > 0 && width < 64 {
        return Value::from((number << (64 - width)) as i64 >> (64 - width));
    }
    Value::from(number)
}

fn element_of(ty: Type<'_>) -> Option<Type<'_>> {
    ty.btf().resolve(ty.array()?.element)
}

fn ty_size(ty: Type<'_>) -> Option<usize> {
    ty.btf().size_of(ty.id()).map(|size| size as usize)
}

fn encode_hex(text: &str, bytes: &mut [u8]) -> Result<(), String> {
    let digits = hex::parse(text).map_err(|failure| failure.message)?;
    if digits.len() != bytes.len() {
        return Err(format!(
            "{} bytes of hex digits for {} bytes",
            digits.len(),
            bytes.len()
        ));
    }
    bytes.copy_from_slice(&digits);
    Ok(())
}

/// A number, an IPv4 or IPv6 address of the right size, or hex digits.
fn encode_scalar(value: &Value, bytes: &mut [u8]) -> Result<(), String> {
    if let Value::String(text) = value {
        if let (Ok(v4), 4) = (text.parse::<Ipv4Addr>(), bytes.len()) {
            bytes.copy_from_slice(&v4.octets());
            return Ok(());
        }
        if let (Ok(v6), 16) = (text.parse::<Ipv6Addr>(), bytes.len()) {
            bytes.copy_from_slice(&v6.octets());
            return Ok(());
        }
        if !text.starts_with("0x") || bytes.len() > 8 {
            return encode_hex(text, bytes).map_err(|error| format!("{text:?}: {error}"));
        }
    }
    encode_number(integer(value)?, bytes)
}

fn encode_number(number: i128, bytes: &mut [u8]) -> Result<(), String> {
    let bits = 8 * bytes.len().min(16) as u32;
    let fits = bits >= 128 || (-(1i128 << (bits - 1))..1i128 << bits).contains(&number);
    if bits == 0 || !fits {
        return Err(format!("{number} does not fit {} bytes", bytes.len()));
    }
    for (to, from) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *to = from;
    }
    Ok(())
}

fn integer(value: &Value) -> Result<i128, String> {
    let wrong = || format!("{value} is not a number");
    match value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
            .ok_or_else(wrong),
        Value::String(text) => {
            let (sign, digits) = match text.strip_prefix('-') {
                Some(digits) => (-1, digits),
                None => (1, text.as_str()),
            };
            let number = match digits.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => digits.parse(),
            };
            Ok(sign * i128::from(number.map_err(|_| wrong())?))
        }
        _ => Err(wrong()),
    }
}

fn encode(ty: Type<'_>, value: &Value, bytes: &mut [u8], depth: u32) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("the type is nested too deeply".to_owned());
    }
    match (ty.kind(), value) {
        (Kind::Enum | Kind::Enum64, Value::String(name)) => {
            let item = ty.enum_values().find(|item| item.name() == name);
            match item {
                Some(item) => encode_number(item.value(), bytes),
                None => encode_scalar(value, bytes),
            }
        }
        (Kind::Array, Value::Array(items)) => {
            let element = element_of(ty).ok_or("the array has no element type")?;
            let size = ty_size(element).unwrap_or(0).max(1);
            if items.len() > bytes.len() / size {
                return Err(format!(
                    "{} items for an array of {}",
                    items.len(),
                    bytes.len() / size
                ));
            }
            for (item, slot) in items.iter().zip(bytes.chunks_exact_mut(size)) {
                encode(element, item, slot, depth + 1)?;
            }
            Ok(())
        }
        (Kind::Array, Value::String(text))
            if !text.starts_with("0x") && element_of(ty).is_some_and(is_char) =>
        {
            if text.len() > bytes.len() {
                return Err(format!("{text:?} is longer than {} bytes", bytes.len()));
            }
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Ok(())
        }
        (Kind::Struct | Kind::Union, Value::Object(fields)) => {
            for (name, value) in fields {
                encode_member(ty, name, value, bytes, depth)?;
            }
            Ok(())
        }
        (Kind::Struct | Kind::Union | Kind::Array, Value::Array(_) | Value::Object(_)) => Err(
            format!("{value} does not fit {} {:?}", ty.kind().name(), ty.name()),
        ),
        _ => encode_scalar(value, bytes),
    }
}

fn encode_member(
    ty: Type<'_>,
    name: &str,
    value: &Value,
    bytes: &mut [u8],
    depth: u32,
) -> Result<(), String> {
    let (member, base) = find_member(ty, name, 0, depth)
        .ok_or_else(|| format!("{:?} has no member {name:?}", ty.name()))?;
    let inner = member
        .type_in()
        .and_then(Type::resolve)
        .ok_or("a member without a type")?;
    let at = base + member.bit_offset;
    if let Some((_, width)) = bitfield(&member, inner) {
        let number = integer(value).map_err(|error| format!("{name}: {error}"))?;
        for bit in 0..width.min(64) {
            let position = at + bit;
            if let Some(byte) = bytes.get_mut((position / 8) as usize) {
                let mask = 1 << (position % 8);
                *byte = *byte & !mask | if number >> bit & 1 == 1 { mask } else { 0 };
            }
        }
        return Ok(());
    }
    let at = (at / 8) as usize;
    let end = ty_size(inner).and_then(|size| at.checked_add(size));
    let part = end.and_then(|end| bytes.get_mut(at..end));
    let part = part.ok_or_else(|| format!("member {name:?} lies outside its type"))?;
    encode(inner, value, part, depth + 1).map_err(|error| format!("{name}: {error}"))
}

/// A member by name, through anonymous structs and unions, with the bit offset of what holds it.
pub fn find_member<'a>(
    ty: Type<'a>,
    name: &str,
    base: u32,
    depth: u32,
) -> Option<(Member<'a>, u32)> {
    if depth > MAX_DEPTH {
        return None;
    }
    for member in ty.members() {
        if member.name() == name {
            return Some((member, base));
        }
        if member.name().is_empty()
            && let Some(inner) = member.type_in().and_then(Type::resolve)
            && let Some(found) = find_member(inner, name, base + member.bit_offset, depth + 1)
        {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use serde_json::json;

    fn plain(size: usize) -> Layout<'static> {
        Layout {
            ty: None,
            size,
            prefix: false,
        }
    }

    #[test]
    fn untyped_values_are_integers_or_hex() {
        assert_eq!(plain(4).encode_word("258"), Ok(vec![2, 1, 0, 0]));
        assert_eq!(plain(2).encode_word("-1"), Ok(vec![255, 255]));
        assert_eq!(plain(2).encode_word("0x10"), Ok(vec![16, 0]));
        assert_eq!(plain(4).encode_word("192.0.2.1"), Ok(vec![192, 0, 2, 1]));
        assert_eq!(
            plain(12).encode_word("0x0102030405060708090a0b0c").unwrap()[11],
            12
        );
        assert_eq!(plain(4).decode(&[2, 1, 0, 0]), json!(258));
        assert_eq!(plain(3).decode(&[1, 2, 3]), json!("0x010203"));
        assert!(
            plain(1)
                .encode_word("256")
                .unwrap_err()
                .contains("does not fit 1 bytes")
        );
        assert!(plain(4).encode_word("ten").is_err());
    }

    #[test]
    fn prefixes_of_tries() {
        let v4 = Layout {
            ty: None,
            size: 8,
            prefix: true,
        };
        let key = v4.encode_word("203.0.113.0/24").unwrap();
        assert_eq!(key, [24, 0, 0, 0, 203, 0, 113, 0]);
        assert_eq!(v4.decode(&key), json!("203.0.113.0/24"));
        assert!(v4.encode_word("203.0.113.0/33").is_err());
        assert!(v4.encode_word("2001:db8::/32").is_err());
        let v6 = Layout {
            ty: None,
            size: 20,
            prefix: true,
        };
        assert_eq!(
            v6.decode(&v6.encode_word("2001:db8::/32").unwrap()),
            json!("2001:db8::/32")
        );
    }
}
