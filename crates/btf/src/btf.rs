//! A BTF section: checked and cut into types in one pass, decoded on demand.

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::error::{BtfError, BtfErrorKind as Why, Section};
use crate::header::{Header, serialize};
use crate::index::{NameIndex, TagIndex};
use crate::kind::Kind;
use crate::survey::Survey;
use crate::types::Type;

const VOID: [u32; 3] = [0; 3];

/// The types of an object, of the kernel, or of a kernel module.
///
/// Parsing checks every offset and type id once, so that the views need not fail;
/// chains and nesting are bounded where they are walked. Ids and string offsets of
/// a split BTF (a module's) continue those of its base, and the base's own are
/// looked up there.
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

impl fmt::Debug for Btf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.first_id..self.type_count();
        f.debug_struct("Btf")
            .field("ids", &ids)
            .finish_non_exhaustive()
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
    /// whose type is no prototype; and, as the kernel does, on another version than 1, on
    /// flags, and on a prototype that returns a type that does not exist. The error names
    /// the offset and the type.
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
        let mut survey = Survey::new(&words, first_id, at)?;
        let starts = std::mem::take(&mut survey.starts).into_boxed_slice();
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
        btf.check(&survey, at)?;
        Ok(btf)
    }

    /// Checks that every name and type that the own types refer to exists.
    fn check(&self, survey: &Survey, at: usize) -> Result<(), BtfError> {
        // Only where all strings are ASCII does every offset begin a character.
        let sound = self.strings.text.is_ascii()
            && self.has_string(survey.highest_name)
            && survey.highest_id < self.type_count();
        if sound && !survey.functions {
            return Ok(());
        }
        for (id, bounds) in (self.first_id..).zip(self.starts.windows(2)) {
            let &[start, end] = bounds else { continue };
            let record = self.words.get(start as usize..end as usize).unwrap_or(&[]);
            let &[_, info, word, ..] = record else {
                continue;
            };
            let Some(kind) = Kind::of_info(info) else {
                continue;
            };
            let at = at + 4 * start as usize;
            if !sound {
                self.find_fault(record, kind)
                    .map_err(|(word, why)| BtfError::of_type(at + 4 * word, id, why))?;
            }
            if kind == Kind::Func && self.kind(word) != Some(Kind::FuncProto) {
                return Err(BtfError::of_type(at + 8, id, Why::NotProto(word)));
            }
        }
        Ok(())
    }

    /// Offset 0 is the empty name even where the string section is empty.
    fn has_string(&self, offset: u32) -> bool {
        offset < self.string_end() || offset == 0
    }

    /// Looks at each name and reference of a record for the one at fault: its word and why.
    fn find_fault(&self, record: &[u32], kind: Kind) -> Result<(), (usize, Why)> {
        let shape = kind.shape();
        // `record[i]` exists for every i below: the survey measured it by the same row.
        let word = |i: usize| record.get(i).copied().unwrap_or(0);
        let name = |i: usize, what: &'static str| {
            let offset = word(i);
            let sound = self.has_string(offset) && self.string(offset).is_some();
            if sound {
                Ok(())
            } else {
                Err((i, Why::Name { what, offset }))
            }
        };
        let reference = |i: usize| {
            if word(i) < self.type_count() {
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
