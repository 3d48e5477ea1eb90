//! What is wrong with a BTF or BTF.ext section, and where.

use std::fmt;

use thiserror::Error;

/// Section that an error's offset counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// `.BTF`, or a file that holds only that.
    Btf,
    /// `.BTF.ext`.
    BtfExt,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Btf => ".BTF",
            Self::BtfExt => ".BTF.ext",
        })
    }
}

/// A section that cannot be read.
///
/// Prints as `.BTF+0x40: type [7]: …`: the section, the byte offset in it, the type
/// where there is one, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub struct BtfError {
    section: Section,
    offset: usize,
    type_id: Option<u32>,
    kind: BtfErrorKind,
}

impl BtfError {
    pub(crate) const fn new(section: Section, offset: usize, kind: BtfErrorKind) -> Self {
        Self {
            section,
            offset,
            type_id: None,
            kind,
        }
    }

    pub(crate) const fn of_type(offset: usize, type_id: u32, kind: BtfErrorKind) -> Self {
        Self {
            section: Section::Btf,
            offset,
            type_id: Some(type_id),
            kind,
        }
    }

    /// Section that [`offset`](Self::offset) counts in.
    pub const fn section(&self) -> Section {
        self.section
    }

    /// Byte offset of the field at fault from the start of the section.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Type that the field belongs to.
    pub const fn type_id(&self) -> Option<u32> {
        self.type_id
    }

    /// The reason.
    pub const fn kind(&self) -> &BtfErrorKind {
        &self.kind
    }
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}: ", self.section, self.offset)?;
        if let Some(id) = self.type_id {
            write!(f, "type [{id}]: ")?;
        }
        write!(f, "{}", self.kind)
    }
}

/// Why a section cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BtfErrorKind {
    /// Fewer bytes than the header takes.
    #[error("the header takes {needed} bytes, {found} are there")]
    HeaderCut {
        /// Bytes that the header takes.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// Not BTF.
    #[error("magic {0:#06x} is not 0xeb9f")]
    Magic(u16),
    /// Only version 1 exists.
    #[error("version {0} is not supported")]
    Version(u8),
    /// No flags are defined.
    #[error("flags {0:#x} are not supported")]
    Flags(u8),
    /// A part of the section lies outside it, or over another part.
    #[error("{part} (offset {start}, {len} bytes) does not fit its place")]
    Layout {
        /// Name of the part.
        part: &'static str,
        /// Offset as in the header.
        start: u32,
        /// Length as in the header.
        len: u32,
    },
    /// Parts are made of 32-bit words.
    #[error("{0} is not aligned to 4 bytes")]
    Unaligned(&'static str),
    /// Strings must begin with an empty string and end with a NUL.
    #[error("the string section does not begin or does not end with a NUL")]
    Strings,
    /// A kind that Linux 6.18 does not have.
    #[error("kind {0} is unknown")]
    Kind(u32),
    /// The record of a type runs past the type section.
    #[error("the type takes {needed} bytes, {found} are left in the type section")]
    TypeCut {
        /// Bytes that the record takes.
        needed: usize,
        /// Bytes that are left.
        found: usize,
    },
    /// A string offset outside the string section.
    #[error("{what} has string offset {offset}, which is outside the string section")]
    Name {
        /// What the name belongs to.
        what: &'static str,
        /// The offset.
        offset: u32,
    },
    /// A type id that does not exist.
    #[error("type [{0}] does not exist")]
    Reference(u32),
    /// A `FUNC` whose type is something else than a `FUNC_PROTO`.
    #[error("type [{0}] of a function is not a FUNC_PROTO")]
    NotProto(u32),
    /// More types or strings than 32-bit numbers can name.
    #[error("more types or strings than ids can name")]
    TooLarge,
    /// A record size below that of the known fields, or not a multiple of 4.
    #[error("{table} has invalid record size {size}")]
    RecordSize {
        /// `func_info`, `line_info` or `core_relo`.
        table: &'static str,
        /// The size.
        size: u32,
    },
    /// A table with no records in it.
    #[error("{0} has no records")]
    NoRecords(&'static str),
    /// The records of a section run past the table.
    #[error("{table} announces {records} records, which do not fit")]
    RecordsCut {
        /// `func_info`, `line_info` or `core_relo`.
        table: &'static str,
        /// Number of records announced.
        records: u32,
    },
}
