//! A BTF section: checked and cut into types in one pass, decoded on demand.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use crate::error::{BtfError, BtfErrorKind as Why, Section};
use crate::header::{Header, serialize};
use crate::index::{NameIndex, TagIndex};
use crate::kind::{Kind, Shape};
use crate::types::Type;

const VOID: [u32; 3] = [0; 3];

/// The types of an object, of the kernel, or of a kernel module.
///
/// Parsing checks every offset and type id once, so that the views need not fail;
/// chains and nesting are bounded where they are walked. Ids and string offsets of
/// a split BTF (a module's) continue those of its base, and the base's own are
/// looked up there.
#[derive(Debug)]
pub struct Btf {
    /// Type section in the host's byte order.
    words: Box<[u32]>,
    /// First word of each own type, and the end.
    starts: Box<[u32]>,
    strings: Strings,
    first_id: u32,
    first_string: u32,
    base: Option<Arc<Btf>>,
    big_endian: bool,
    pub(crate) pointer_size: OnceLock<u32>,
    pub(crate) names: OnceLock<NameIndex>,
    pub(crate) tags: OnceLock<TagIndex>,
}

/// The string section. Names are UTF-8 (nearly always ASCII); a source line that is
/// not keeps its bytes apart, to be written back.
#[derive(Debug)]
pub(crate) struct Strings {
    text: Box<str>,
    original: Option<Box<[u8]>>,
}

impl Strings {
    pub fn new(bytes: &[u8]) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => Self {
                text: text.into(),
                original: None,
            },
            Err(_) => Self {
                text: bytes
                    .iter()
                    .map(|&b| if b.is_ascii() { char::from(b) } else { '?' })
                    .collect(),
                original: Some(bytes.into()),
            },
        }
    }

    fn bytes(&self) -> &[u8] {
        self.original.as_deref().unwrap_or(self.text.as_bytes())
    }

    /// The string at `offset`, up to its NUL.
    fn at(&self, offset: u32) -> Option<&str> {
        let rest = self.text.get(offset as usize..)?;
        let end = CStr::from_bytes_until_nul(rest.as_bytes())
            .ok()?
            .count_bytes();
        rest.get(..end)
    }
}

impl Btf {
    /// Reads a BTF section of either byte order.
    ///
    /// The bytes are copied once; names are not looked at until asked for.
    ///
    /// # Errors
    /// Where libbpf refuses the section: a wrong header, a record that is cut, an
    /// unknown kind, a string offset or type id that does not exist, a function
    /// whose type is no prototype. The error names the offset and the type.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        Self::parse_on(bytes, None)
    }

    /// Reads a split BTF, whose ids and string offsets continue those of `base`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_split(bytes: &[u8], base: Arc<Self>) -> Result<Self, BtfError> {
        Self::parse_on(bytes, Some(base))
    }

    fn parse_on(bytes: &[u8], base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let header = Header::parse(bytes)?;
        let strings = header.strings(bytes, base.is_some())?;
        let words = header.words(bytes)?;
        let at = header.types_at();
        let (first_id, first_string) = match &base {
            Some(base) => (base.type_count(), base.string_end()),
            None => (1, 0),
        };
        let too_large = || BtfError::new(Section::Btf, at, Why::TooLarge);
        let starts = cut(&words, first_id, at)?;
        // Leaves room for the end of either range in 32 bits.
        if starts.len() as u64 + u64::from(first_id) > u64::from(u32::MAX)
            || strings.text.len() as u64 + u64::from(first_string) > u64::from(u32::MAX)
        {
            return Err(too_large());
        }
        let btf = Self {
            words,
            starts,
            strings,
            first_id,
            first_string,
            base,
            big_endian: header.big_endian,
            pointer_size: OnceLock::new(),
            names: OnceLock::new(),
            tags: OnceLock::new(),
        };
        btf.check(at)?;
        Ok(btf)
    }

    /// Checks every name and reference of the own types.
    fn check(&self, at: usize) -> Result<(), BtfError> {
        let limits = Limits {
            ids: self.type_count(),
            strings: u64::from(self.first_string) + self.strings.text.len() as u64,
        };
        // Only where all strings are ASCII does every offset begin a character.
        let ascii = self.strings.text.is_ascii();
        for (id, bounds) in (self.first_id..).zip(self.starts.windows(2)) {
            let &[start, end] = bounds else { continue };
            let record = self.words.get(start as usize..end as usize).unwrap_or(&[]);
            let Some(kind) = record.get(1).and_then(|&info| Kind::of_info(info)) else {
                continue;
            };
            let at = at + 4 * start as usize;
            if !ascii || !limits.admit(record, kind.shape()) {
                self.find_fault(record, kind, &limits)
                    .map_err(|(word, why)| BtfError::of_type(at + 4 * word, id, why))?;
            }
            if kind == Kind::Func {
                let proto = record.get(2).copied().unwrap_or(0);
                if self.kind(proto) != Some(Kind::FuncProto) {
                    return Err(BtfError::of_type(at + 8, id, Why::NotProto(proto)));
                }
            }
        }
        Ok(())
    }

    /// Looks at each name and reference of a record: the word at fault and why.
    fn find_fault(&self, record: &[u32], kind: Kind, limits: &Limits) -> Result<(), (usize, Why)> {
        let shape = kind.shape();
        // `record[i]` exists for every i below: `cut` measured it by the same row.
        let word = |i: usize| record.get(i).copied().unwrap_or(0);
        let name = |i: usize, what: &'static str| {
            let offset = word(i);
            let sound = limits.has_string(offset) && self.string(offset).is_some();
            if sound {
                Ok(())
            } else {
                Err((i, Why::Name { what, offset }))
            }
        };
        let reference = |i: usize| {
            if word(i) < limits.ids {
                Ok(())
            } else {
                Err((i, Why::Reference(word(i))))
            }
        };
        name(0, "type")?;
        if shape.refers {
            reference(2)?;
        }
        for &i in shape.fixed_refs {
            reference(3 + i)?;
        }
        if shape.item > 0 {
            for item in (3 + shape.fixed..record.len()).step_by(shape.item) {
                if let Some(what) = shape.item_name {
                    name(item, what)?;
                }
                if let Some(i) = shape.item_ref {
                    reference(item + i)?;
                }
            }
        }
        Ok(())
    }

    fn own_record(&self, id: u32) -> &[u32] {
        let record = || {
            let i = id.checked_sub(self.first_id)? as usize;
            let (&start, &end) = (self.starts.get(i)?, self.starts.get(i + 1)?);
            self.words.get(start as usize..end as usize)
        };
        record().unwrap_or(&[])
    }

    /// Words of a type's record, in the host's byte order.
    pub(crate) fn record(&self, id: u32) -> Option<&[u32]> {
        if id == 0 {
            return Some(&VOID);
        }
        let mut btf = self;
        while id < btf.first_id {
            btf = btf.base.as_deref()?;
        }
        let record = btf.own_record(id);
        (!record.is_empty()).then_some(record)
    }

    /// Kind of a type.
    pub fn kind(&self, id: u32) -> Option<Kind> {
        self.record(id).and_then(|r| Kind::of_info(*r.get(1)?))
    }

    /// A view of a type; id 0 is void.
    pub fn type_by_id(&self, id: u32) -> Option<Type<'_>> {
        Some(Type::new(self, id, self.record(id)?))
    }

    /// One past the highest type id: the ids are `0..type_count()`, void and the base's
    /// included.
    pub fn type_count(&self) -> u32 {
        // `parse_on` checked that this fits.
        self.first_id + (self.starts.len() as u32).saturating_sub(1)
    }

    /// The lowest id that is this BTF's own: 1, or one past the base's.
    pub const fn first_id(&self) -> u32 {
        self.first_id
    }

    /// The types of this BTF itself, in order of id, without void and the base's.
    pub fn own_types(&self) -> impl Iterator<Item = Type<'_>> + Clone {
        (self.first_id..self.type_count()).filter_map(|id| self.type_by_id(id))
    }

    /// The BTF that this one is split from.
    pub const fn base(&self) -> Option<&Arc<Self>> {
        self.base.as_ref()
    }

    /// Whether the section was read in big-endian order (and is written so).
    pub const fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// The string at an offset of the string section, as `.BTF.ext` refers to names.
    ///
    /// Bytes that are not UTF-8 read as `?`.
    pub fn string(&self, offset: u32) -> Option<&str> {
        if offset == 0 {
            return Some("");
        }
        let mut btf = self;
        while offset < btf.first_string {
            btf = btf.base.as_deref()?;
        }
        btf.strings.at(offset - btf.first_string)
    }

    pub(crate) fn string_end(&self) -> u32 {
        self.first_string + self.strings.text.len() as u32
    }

    /// The string section as it was read, without the base's.
    pub(crate) fn own_strings(&self) -> &[u8] {
        self.strings.bytes()
    }

    pub(crate) const fn first_string(&self) -> u32 {
        self.first_string
    }

    /// The section's bytes in the byte order that it was read in.
    pub fn to_bytes(&self) -> Vec<u8> {
        serialize(&self.words, self.own_strings(), self.big_endian)
    }
}

/// What ids and string offsets stay below.
struct Limits {
    ids: u32,
    strings: u64,
}

impl Limits {
    /// Offset 0 is the empty name even where the string section is empty.
    fn has_string(&self, offset: u32) -> bool {
        u64::from(offset) < self.strings || offset == 0
    }

    /// Whether a record is within the limits, by its highest offset and its highest id.
    fn admit(&self, record: &[u32], shape: &Shape) -> bool {
        let &[name, _, word, ref rest @ ..] = record else {
            return false;
        };
        let (fixed, items) = rest.split_at_checked(shape.fixed).unwrap_or((rest, &[]));
        let mut highest_name = name;
        let mut highest_id = if shape.refers { word } else { 0 };
        for &i in shape.fixed_refs {
            highest_id = highest_id.max(fixed.get(i).copied().unwrap_or(0));
        }
        let mut item = |words: &[u32]| {
            if shape.item_name.is_some() {
                highest_name = highest_name.max(words.first().copied().unwrap_or(0));
            }
            if let Some(i) = shape.item_ref {
                highest_id = highest_id.max(words.get(i).copied().unwrap_or(0));
            }
        };
        match shape.item {
            2 => items.as_chunks::<2>().0.iter().for_each(|i| item(i)),
            _ => items.as_chunks::<3>().0.iter().for_each(|i| item(i)),
        }
        self.has_string(highest_name) && highest_id < self.ids
    }
}

/// Where each type begins, and the end of the last.
fn cut(words: &[u32], first_id: u32, at: usize) -> Result<Box<[u32]>, BtfError> {
    // vmlinux takes 7 words a type.
    let mut starts = Vec::with_capacity(words.len() / 6 + 2);
    let mut start = 0;
    while start < words.len() {
        let fault = |why| {
            BtfError::of_type(
                at + 4 * start,
                first_id.saturating_add(starts.len() as u32),
                why,
            )
        };
        let left = words.len() - start;
        let Some(&info) = words.get(start + 1) else {
            return Err(fault(Why::TypeCut {
                needed: 12,
                found: 4 * left,
            }));
        };
        let kind = match Kind::of_info(info) {
            Some(kind) if kind != Kind::Void => kind,
            _ => return Err(fault(Why::Kind(info >> 24 & 0x1f))),
        };
        let shape = kind.shape();
        let needed = 3 + shape.fixed + shape.item * (info & 0xffff) as usize;
        if needed > left {
            return Err(fault(Why::TypeCut {
                needed: 4 * needed,
                found: 4 * left,
            }));
        }
        starts.push(start as u32);
        start += needed;
    }
    starts.push(start as u32);
    Ok(starts.into())
}
