//! Writing BTF.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::btf::Btf;
use crate::error::{BtfError, BtfErrorKind, Section};
use crate::header::serialize;
use crate::kind::Kind;
use crate::types::{IntEncoding, Linkage, Type, VarSecinfo};

/// Most members, parameters or values that a type can have.
const MAX_VLEN: usize = 0xffff;

/// Makes a BTF section type by type.
///
/// Each method that adds a type gives its id. A type may refer to ids that are added
/// later ([`next_id`](Self::next_id) tells them); [`build`](Self::build) checks that all
/// exist. A string is stored once.
#[derive(Debug)]
pub struct BtfBuilder {
    words: Vec<u32>,
    starts: Vec<usize>,
    strings: Vec<u8>,
    offsets: FxHashMap<Box<str>, u32>,
    base: Option<Arc<Btf>>,
    big_endian: bool,
    too_large: bool,
}

/// A member to be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberDef<'a> {
    /// Name; empty for an anonymous member.
    pub name: &'a str,
    /// Type.
    pub type_id: u32,
    /// Offset in bits.
    pub bit_offset: u32,
    /// Bits of a bit-field, 0 for any other member.
    pub bitfield_size: u32,
}

impl<'a> MemberDef<'a> {
    /// A member at a bit offset that is no bit-field.
    pub const fn new(name: &'a str, type_id: u32, bit_offset: u32) -> Self {
        Self {
            name,
            type_id,
            bit_offset,
            bitfield_size: 0,
        }
    }

    /// A bit-field.
    pub const fn bitfield(name: &'a str, type_id: u32, bit_offset: u32, bits: u32) -> Self {
        Self {
            name,
            type_id,
            bit_offset,
            bitfield_size: bits,
        }
    }
}

impl Default for BtfBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BtfBuilder {
    /// An empty section.
    pub fn new() -> Self {
        Self::with_strings(None, vec![0])
    }

    /// An empty section whose ids and strings continue those of `base`.
    pub fn split(base: Arc<Btf>) -> Self {
        Self::with_strings(Some(base), Vec::new())
    }

    fn with_strings(base: Option<Arc<Btf>>, strings: Vec<u8>) -> Self {
        Self {
            words: Vec::new(),
            starts: Vec::new(),
            strings,
            offsets: FxHashMap::default(),
            base,
            big_endian: false,
            too_large: false,
        }
    }

    /// The types and strings of `btf`, at the same ids and offsets, to be added to.
    pub fn from_btf(btf: &Btf) -> Self {
        let mut builder = Self::with_strings(btf.base().cloned(), btf.own_strings().to_vec());
        builder.big_endian = btf.is_big_endian();
        for t in btf.own_types() {
            builder.starts.push(builder.words.len());
            builder.words.extend(t.words());
        }
        let mut offset = btf.first_string();
        for string in btf.own_strings().split(|&b| b == 0) {
            if let Ok(text) = str::from_utf8(string) {
                builder.offsets.entry(text.into()).or_insert(offset);
            }
            offset = offset.saturating_add(string.len() as u32 + 1);
        }
        builder
    }

    /// Writes in big-endian order.
    #[must_use]
    pub const fn big_endian(mut self) -> Self {
        self.big_endian = true;
        self
    }

    /// The id that the next type gets.
    pub fn next_id(&self) -> u32 {
        self.base.as_ref().map_or(1, |b| b.type_count()) + self.starts.len() as u32
    }

    /// Offset of a string, which is added if it is new; it ends at its first NUL.
    pub fn string(&mut self, text: &str) -> u32 {
        let text = text.split('\0').next().unwrap_or("");
        if text.is_empty() {
            return 0;
        }
        if let Some(&offset) = self.offsets.get(text) {
            return offset;
        }
        let first = self.base.as_ref().map_or(0, |b| b.string_end());
        let Some(offset) = u32::try_from(self.strings.len())
            .ok()
            .and_then(|n| first.checked_add(n))
        else {
            self.too_large = true;
            return 0;
        };
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        self.offsets.insert(text.into(), offset);
        offset
    }

    fn add(&mut self, kind: Kind, name: &str, vlen: usize, flag: bool, word: u32) -> u32 {
        self.too_large |= vlen > MAX_VLEN;
        let id = self.next_id();
        let name = self.string(name);
        self.starts.push(self.words.len());
        let info = (kind as u32) << 24 | u32::from(flag) << 31 | (vlen.min(MAX_VLEN)) as u32;
        self.words.extend([name, info, word]);
        id
    }

    /// Adds an integer that fills its bytes.
    pub fn int(&mut self, name: &str, size: u32, encoding: IntEncoding) -> u32 {
        let id = self.add(Kind::Int, name, 0, false, size);
        self.words
            .push(u32::from(encoding.0) << 24 | (size.saturating_mul(8) & 0xff));
        id
    }

    /// Adds a floating-point type.
    pub fn float(&mut self, name: &str, size: u32) -> u32 {
        self.add(Kind::Float, name, 0, false, size)
    }

    /// Adds a pointer.
    pub fn ptr(&mut self, to: u32) -> u32 {
        self.add(Kind::Ptr, "", 0, false, to)
    }

    /// Adds an array.
    pub fn array(&mut self, element: u32, index: u32, count: u32) -> u32 {
        let id = self.add(Kind::Array, "", 0, false, 0);
        self.words.extend([element, index, count]);
        id
    }

    /// Adds a structure.
    pub fn structure(&mut self, name: &str, size: u32, members: &[MemberDef<'_>]) -> u32 {
        self.composite(Kind::Struct, name, size, members)
    }

    /// Adds a union.
    pub fn union(&mut self, name: &str, size: u32, members: &[MemberDef<'_>]) -> u32 {
        self.composite(Kind::Union, name, size, members)
    }

    fn composite(&mut self, kind: Kind, name: &str, size: u32, members: &[MemberDef<'_>]) -> u32 {
        let flag = members.iter().any(|m| m.bitfield_size != 0);
        let id = self.add(kind, name, members.len(), flag, size);
        for m in members.iter().take(MAX_VLEN) {
            self.too_large |= flag && (m.bit_offset > 0xff_ffff || m.bitfield_size > 0xff);
            let at = if flag {
                m.bitfield_size << 24 | m.bit_offset & 0xff_ffff
            } else {
                m.bit_offset
            };
            let name = self.string(m.name);
            self.words.extend([name, m.type_id, at]);
        }
        id
    }

    /// Adds an enumeration of 32-bit values.
    pub fn enumeration(&mut self, name: &str, size: u32, values: &[(&str, i32)]) -> u32 {
        let signed = values.iter().any(|v| v.1 < 0);
        let id = self.add(Kind::Enum, name, values.len(), signed, size);
        for &(name, value) in values.iter().take(MAX_VLEN) {
            let name = self.string(name);
            self.words.extend([name, value as u32]);
        }
        id
    }

    /// Adds an enumeration of 64-bit values.
    pub fn enumeration64(
        &mut self,
        name: &str,
        size: u32,
        signed: bool,
        values: &[(&str, u64)],
    ) -> u32 {
        let id = self.add(Kind::Enum64, name, values.len(), signed, size);
        for &(name, value) in values.iter().take(MAX_VLEN) {
            let name = self.string(name);
            self.words
                .extend([name, value as u32, (value >> 32) as u32]);
        }
        id
    }

    /// Adds a declaration of a structure or union that is not defined.
    pub fn fwd(&mut self, name: &str, union: bool) -> u32 {
        self.add(Kind::Fwd, name, 0, union, 0)
    }

    /// Adds a typedef.
    pub fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.add(Kind::Typedef, name, 0, false, of)
    }

    /// Adds `const`, `volatile` or `restrict` (`kind`; any other is taken as `const`).
    pub fn modifier(&mut self, kind: Kind, of: u32) -> u32 {
        let kind = if matches!(kind, Kind::Volatile | Kind::Restrict) {
            kind
        } else {
            Kind::Const
        };
        self.add(kind, "", 0, false, of)
    }

    /// Adds a prototype with named parameters; a last parameter of type 0 is `...`.
    pub fn func_proto(&mut self, returns: u32, params: &[(&str, u32)]) -> u32 {
        let id = self.add(Kind::FuncProto, "", params.len(), false, returns);
        for &(name, type_id) in params.iter().take(MAX_VLEN) {
            let name = self.string(name);
            self.words.extend([name, type_id]);
        }
        id
    }

    /// Adds a function.
    pub fn func(&mut self, name: &str, proto: u32, linkage: Linkage) -> u32 {
        self.add(Kind::Func, name, linkage.number() as usize, false, proto)
    }

    /// Adds a variable.
    pub fn var(&mut self, name: &str, type_id: u32, linkage: Linkage) -> u32 {
        let id = self.add(Kind::Var, name, 0, false, type_id);
        self.words.push(linkage.number());
        id
    }

    /// Adds a section of variables.
    pub fn datasec(&mut self, name: &str, size: u32, variables: &[VarSecinfo]) -> u32 {
        let id = self.add(Kind::Datasec, name, variables.len(), false, size);
        for v in variables.iter().take(MAX_VLEN) {
            self.words.extend([v.type_id, v.offset, v.size]);
        }
        id
    }

    /// Adds a declaration tag on a type, or on its member or parameter `component`.
    pub fn decl_tag(&mut self, text: &str, on: u32, component: Option<u32>) -> u32 {
        let id = self.add(Kind::DeclTag, text, 0, false, on);
        self.words.push(component.unwrap_or(u32::MAX));
        id
    }

    /// Adds a type tag, to stand between a pointer and `of`.
    pub fn type_tag(&mut self, text: &str, of: u32) -> u32 {
        self.add(Kind::TypeTag, text, 0, false, of)
    }

    /// Copies a type of another BTF; `map` gives the new id of each type it refers to.
    pub fn copy(&mut self, t: Type<'_>, mut map: impl FnMut(u32) -> u32) -> u32 {
        let id = self.next_id();
        let shape = t.kind().shape();
        let start = self.words.len();
        let name = self.string(t.name());
        self.starts.push(start);
        self.words.extend(t.words());
        let record = self.words.get_mut(start..).unwrap_or(&mut []);
        let mut references: Vec<usize> = shape.fixed_refs.iter().map(|r| 3 + r).collect();
        let mut names = Vec::new();
        if shape.refers {
            references.push(2);
        }
        if shape.item > 0 {
            for item in (3 + shape.fixed..record.len()).step_by(shape.item) {
                references.extend(shape.item_ref.map(|r| item + r));
                names.extend(shape.item_name.map(|_| item));
            }
        }
        for at in references {
            if let Some(word) = record.get_mut(at) {
                *word = map(*word);
            }
        }
        if let Some(word) = record.first_mut() {
            *word = name;
        }
        for at in names {
            let offset = t.words().get(at).copied().unwrap_or(0);
            let offset = self.string(t.btf().string(offset).unwrap_or(""));
            if let Some(word) = self.words.get_mut(start + at) {
                *word = offset;
            }
        }
        id
    }

    /// The words of an own type's record, to be changed: name, info, size or type, then
    /// what the kind adds (`include/uapi/linux/btf.h`). Its length stays, so the kind and
    /// the number of items must.
    pub fn record_mut(&mut self, id: u32) -> Option<&mut [u32]> {
        let first = self.next_id() - self.starts.len() as u32;
        let i = id.checked_sub(first)? as usize;
        let &start = self.starts.get(i)?;
        let end = self.starts.get(i + 1).copied().unwrap_or(self.words.len());
        self.words.get_mut(start..end)
    }

    /// The section.
    ///
    /// # Errors
    /// A type has more than 65,535 items, or something does not fit its field.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BtfError> {
        let large = self.too_large || self.words.len() > u32::MAX as usize / 8;
        if large {
            return Err(BtfError::new(Section::Btf, 0, BtfErrorKind::TooLarge));
        }
        Ok(serialize(&self.words, &self.strings, self.big_endian))
    }

    /// The section, read back.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and where a type refers to one that does not exist.
    pub fn build(&self) -> Result<Btf, BtfError> {
        let bytes = self.to_bytes()?;
        match &self.base {
            Some(base) => Btf::parse_split(&bytes, Arc::clone(base)),
            None => Btf::parse(&bytes),
        }
    }
}
