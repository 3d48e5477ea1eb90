//! `.BTF.ext`: which function, source line and CO-RE relocation belongs to which
//! instruction, section by section.

use crate::btf::Btf;
use crate::error::{BtfError, BtfErrorKind as Why, Section};
use crate::header::{MAGIC, preamble, read_u32};

/// Bytes of the header before the CO-RE table was added.
const HEADER_V0: usize = 24;
/// Bytes of `struct btf_ext_header`.
const HEADER: usize = 32;

/// The tables of a `.BTF.ext` section, free to be changed and written back.
///
/// Instruction offsets count bytes from the start of the ELF section that the table's
/// section names; after linking they may count instructions of the program, which
/// is the caller's affair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BtfExt {
    /// Functions.
    pub func_info: Table<FuncInfo>,
    /// Source lines.
    pub line_info: Table<LineInfo>,
    /// CO-RE relocations.
    pub core_relo: Table<CoreRelo>,
    /// Written in big-endian order.
    pub big_endian: bool,
}

/// One table: records by ELF section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table<R> {
    /// Bytes of a record; the known fields come first.
    pub record_size: u32,
    /// Sections in file order.
    pub sections: Vec<TableSection<R>>,
}

/// The records of one ELF section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSection<R> {
    /// Name of the ELF section, in the string section of the BTF.
    pub name_off: u32,
    /// Records in file order (by instruction, as compilers write them).
    pub records: Vec<R>,
    /// What follows the known fields of each record, the same number of bytes for each;
    /// empty with today's compilers.
    pub extra: Vec<u8>,
}

/// A function begins here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncInfo {
    /// Byte offset of the instruction in its section.
    pub insn_off: u32,
    /// The FUNC.
    pub type_id: u32,
}

/// A source line begins here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// Byte offset of the instruction in its section.
    pub insn_off: u32,
    /// Name of the source file, in the string section of the BTF.
    pub file_name_off: u32,
    /// Text of the line, in the string section of the BTF.
    pub line_off: u32,
    /// Line in the upper 22 bits, column in the lower 10.
    pub line_col: u32,
}

impl LineInfo {
    /// 1-based line.
    pub const fn line(&self) -> u32 {
        self.line_col >> 10
    }

    /// 1-based column, 0 if unknown.
    pub const fn column(&self) -> u32 {
        self.line_col & 0x3ff
    }
}

/// An instruction to be changed by what the target kernel's types say
/// (`struct bpf_core_relo`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CoreRelo {
    /// Byte offset of the instruction in its section.
    pub insn_off: u32,
    /// Root type in the object's BTF.
    pub type_id: u32,
    /// The accessor string, such as `0:1:2`, in the string section of the BTF.
    pub access_str_off: u32,
    /// `enum bpf_core_relo_kind`; see [`ReloKind`](crate::core::ReloKind).
    pub kind: u32,
}

/// A record as words in file order.
pub trait Record: Copy {
    /// Name of the table, as in the header's fields.
    const TABLE: &'static str;
    /// Words of the known fields.
    const WORDS: usize;
    /// Reads the known fields; absent words read as 0.
    fn from_words(word: impl Fn(usize) -> u32) -> Self;
    /// The known fields.
    fn words(&self) -> impl Iterator<Item = u32>;
    /// Byte offset of the instruction.
    fn insn_off(&self) -> u32;
}

/// Says in which order a record's fields stand.
macro_rules! record {
    ($type:ident, $table:literal, $words:literal: $($field:ident $at:literal),*) => {
        impl Record for $type {
            const TABLE: &'static str = $table;
            const WORDS: usize = $words;
            fn from_words(word: impl Fn(usize) -> u32) -> Self {
                Self { $($field: word($at)),* }
            }
            fn words(&self) -> impl Iterator<Item = u32> {
                [$(self.$field),*].into_iter()
            }
            fn insn_off(&self) -> u32 {
                self.insn_off
            }
        }
    };
}

record!(FuncInfo, "func_info", 2: insn_off 0, type_id 1);
record!(LineInfo, "line_info", 4: insn_off 0, file_name_off 1, line_off 2, line_col 3);
record!(CoreRelo, "core_relo", 4: insn_off 0, type_id 1, access_str_off 2, kind 3);

impl<R: Record> Default for Table<R> {
    fn default() -> Self {
        Self {
            record_size: 4 * R::WORDS as u32,
            sections: Vec::new(),
        }
    }
}

impl<R: Record> Table<R> {
    /// The records of an ELF section; empty if the table has none. Where a section is
    /// listed twice, the first counts.
    pub fn section<'a>(&'a self, btf: &Btf, name: &str) -> &'a [R] {
        let found = self
            .sections
            .iter()
            .find(|s| btf.string(s.name_off) == Some(name));
        found.map_or(&[], |s| &s.records)
    }

    /// Number of records in all sections.
    pub fn len(&self) -> usize {
        self.sections.iter().map(|s| s.records.len()).sum()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the table at `start..start + len` of the section; `at` is where the header
    /// has those two fields.
    fn parse(bytes: &[u8], header: &Place, at: usize) -> Result<Self, BtfError> {
        let fault = |offset, why| BtfError::new(Section::BtfExt, offset, why);
        let field = |at| read_u32(bytes, at, header.big_endian).unwrap_or(0);
        let (start, len) = (field(at), field(at + 4));
        if len == 0 {
            return Ok(Self::default());
        }
        if start % 4 != 0 {
            return Err(fault(at, Why::Unaligned(R::TABLE)));
        }
        let begin = header.len.saturating_add(start as usize);
        let end = begin.saturating_add(len as usize);
        let Some(table) = bytes.get(..end).filter(|t| t.len() >= begin + 4) else {
            return Err(fault(
                at,
                Why::Layout {
                    part: R::TABLE,
                    start,
                    len,
                },
            ));
        };
        let word = |at| read_u32(table, at, header.big_endian);
        let record_size = word(begin).unwrap_or(0);
        if (record_size as usize) < 4 * R::WORDS || record_size % 4 != 0 {
            return Err(fault(
                begin,
                Why::RecordSize {
                    table: R::TABLE,
                    size: record_size,
                },
            ));
        }
        let mut sections = Vec::new();
        let mut at = begin + 4;
        if at == end {
            return Err(fault(begin, Why::NoRecords(R::TABLE)));
        }
        while at < end {
            let (Some(name_off), Some(count)) = (word(at), word(at + 4)) else {
                return Err(fault(
                    at,
                    Why::Layout {
                        part: R::TABLE,
                        start,
                        len,
                    },
                ));
            };
            if count == 0 {
                return Err(fault(at + 4, Why::NoRecords(R::TABLE)));
            }
            let records = (u64::from(count) * u64::from(record_size))
                .try_into()
                .ok()
                .and_then(|size: usize| table.get(at + 8..)?.get(..size))
                .ok_or_else(|| {
                    fault(
                        at + 4,
                        Why::RecordsCut {
                            table: R::TABLE,
                            records: count,
                        },
                    )
                })?;
            at += 8 + records.len();
            sections.push(TableSection::parse(
                name_off,
                records,
                record_size,
                header.big_endian,
            ));
        }
        Ok(Self {
            record_size,
            sections,
        })
    }

    fn write(&self, out: &mut Vec<u8>, word: impl Fn(u32) -> [u8; 4]) {
        if self.is_empty() {
            return;
        }
        let extra = (self.record_size as usize).saturating_sub(4 * R::WORDS);
        out.extend(word((4 * R::WORDS + extra) as u32));
        for section in self.sections.iter().filter(|s| !s.records.is_empty()) {
            out.extend(word(section.name_off));
            out.extend(word(section.records.len() as u32));
            for (i, record) in section.records.iter().enumerate() {
                record.words().for_each(|w| out.extend(word(w)));
                let known = section.extra.get(i * extra..(i + 1) * extra);
                match known {
                    Some(known) => out.extend(known),
                    None => out.resize(out.len() + extra, 0),
                }
            }
        }
    }
}

impl<R: Record> TableSection<R> {
    /// Reads `bytes`, a whole number of records.
    fn parse(name_off: u32, bytes: &[u8], record_size: u32, big_endian: bool) -> Self {
        let known = 4 * R::WORDS;
        let mut records = Vec::with_capacity(bytes.len() / record_size as usize);
        let mut extra = Vec::new();
        for record in bytes.chunks_exact(record_size as usize) {
            records.push(R::from_words(|i| {
                read_u32(record, 4 * i, big_endian).unwrap_or(0)
            }));
            extra.extend(record.get(known..).unwrap_or(&[]));
        }
        Self {
            name_off,
            records,
            extra,
        }
    }
}

/// What every table needs of the header.
struct Place {
    len: usize,
    big_endian: bool,
}

impl BtfExt {
    /// Reads a `.BTF.ext` section of either byte order. Headers without the CO-RE table
    /// and longer ones than known are taken; of longer records the rest is kept as it is.
    ///
    /// # Errors
    /// Where libbpf refuses the section: a wrong header, a table outside the section,
    /// records that are cut, and a table or section with no records.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let (big_endian, len) = preamble(bytes, Section::BtfExt, HEADER_V0)?;
        if bytes.len() == len {
            return Err(BtfError::new(
                Section::BtfExt,
                len,
                Why::NoRecords("the section"),
            ));
        }
        let header = Place { len, big_endian };
        Ok(Self {
            func_info: Table::parse(bytes, &header, 8)?,
            line_info: Table::parse(bytes, &header, 16)?,
            core_relo: if len < HEADER {
                Table::default()
            } else {
                Table::parse(bytes, &header, 24)?
            },
            big_endian,
        })
    }

    /// The section's bytes. Tables and sections without records are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let word = |v: u32| {
            if self.big_endian {
                v.to_be_bytes()
            } else {
                v.to_le_bytes()
            }
        };
        let mut tables = Vec::new();
        let mut places = Vec::new();
        let mut place = |tables: &Vec<u8>, start: usize| {
            places.extend(word(start as u32));
            places.extend(word((tables.len() - start) as u32));
        };
        self.func_info.write(&mut tables, word);
        place(&tables, 0);
        let start = tables.len();
        self.line_info.write(&mut tables, word);
        place(&tables, start);
        let start = tables.len();
        self.core_relo.write(&mut tables, word);
        place(&tables, start);

        let mut out = Vec::with_capacity(HEADER + tables.len());
        out.extend(if self.big_endian {
            MAGIC.to_be_bytes()
        } else {
            MAGIC.to_le_bytes()
        });
        out.extend([1, 0]);
        out.extend(word(HEADER as u32));
        out.extend(places);
        out.extend(tables);
        out
    }
}
