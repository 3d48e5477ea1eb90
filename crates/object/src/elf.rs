//! The ELF file as sections, symbols and relocations, all bounds checked once.

use std::ops::Range;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Rel as _, SectionHeader as _, Sym as _};
use object::{Endianness, SectionIndex};

use crate::error::{ErrorKind, ObjectError};

/// Larger zero-filled sections are refused, so that a few bytes of input cannot ask for
/// more memory than there is.
const LARGEST_NOBITS: u64 = 1 << 28;

/// Longer names are refused, so that many symbols that share one string cannot cost more
/// than the file is long; kernel and BTF take 511 bytes.
const LONGEST_NAME: usize = 1024;

/// A relocatable BPF object file.
#[derive(Clone, Debug)]
pub(crate) struct Elf {
    pub bytes: Vec<u8>,
    pub big_endian: bool,
    pub sections: Vec<Section>,
    pub symbols: Vec<Symbol>,
}

/// A section header with its name resolved and its extent checked.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub name: String,
    /// `sh_type`.
    pub kind: u32,
    pub flags: u64,
    /// Where its bytes are in the file; empty for `SHT_NOBITS`.
    pub range: Range<usize>,
    /// `sh_size`.
    pub size: u64,
    /// For `SHT_REL`, the section that the relocations belong to.
    pub info: u32,
    pub entry_size: u64,
}

/// A symbol; [`Elf::name`] reads its name.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    /// Where the name is in the file.
    name: Range<usize>,
    /// Section index; 0 is undefined, and see [`Symbol::special`].
    pub section: usize,
    /// `SHN_ABS`, `SHN_COMMON` and their like: not in a section.
    pub special: bool,
    pub kind: SymbolKind,
    pub bind: Bind,
    /// `STV_HIDDEN` or `STV_INTERNAL`.
    pub hidden: bool,
    pub value: u64,
    pub size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymbolKind {
    NoType,
    Object,
    Func,
    Section,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bind {
    Local,
    Global,
    Weak,
    Other,
}

/// An entry of a `SHT_REL` section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    /// Byte offset in the section that it belongs to.
    pub offset: u64,
    pub symbol: usize,
    /// `R_BPF_*`.
    pub kind: u32,
}

impl Section {
    pub fn is_exec(&self) -> bool {
        self.flags & elf::SHF_EXECINSTR.0 != 0
    }

    pub fn is_progbits(&self) -> bool {
        self.kind == elf::SHT_PROGBITS.0
    }

    pub fn is_nobits(&self) -> bool {
        self.kind == elf::SHT_NOBITS.0
    }

    pub fn is_rel(&self) -> bool {
        self.kind == elf::SHT_REL.0
    }

    pub fn is_symtab(&self) -> bool {
        self.kind == elf::SHT_SYMTAB.0
    }
}

impl Symbol {
    /// Undefined here: to be found in the kernel (libbpf's `sym_is_extern`).
    pub fn is_extern(&self) -> bool {
        self.section == 0
            && !self.special
            && matches!(self.bind, Bind::Global | Bind::Weak)
            && self.kind == SymbolKind::NoType
    }
}

impl Elf {
    /// Reads headers, names and symbols.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, ObjectError> {
        let header = check_ident(name, bytes)?;
        let endian = header.endian().map_err(|e| malformed("byte order", e, 5))?;
        let table_at = header.e_shoff(endian);
        let headers = header
            .section_headers(endian, bytes)
            .map_err(|e| malformed("section headers", e, table_at))?;
        if headers.is_empty() {
            return Err(malformed("section headers", "there are none", 40));
        }
        let table = header
            .sections(endian, bytes)
            .map_err(|e| malformed("section names", e, 62))?;
        let names = header
            .section_strings_index(endian, bytes)
            .and_then(|index| table.section(index))
            .map_err(|e| malformed("section names", e, 62))?;
        let names = extent(names, endian, bytes)
            .ok_or_else(|| malformed("section names", "outside the file", 62))?;

        let mut sections = Vec::with_capacity(headers.len());
        for (index, section) in headers.iter().enumerate() {
            let header_at = table_at.saturating_add(64 * index as u64);
            if index == 0 {
                sections.push(Section::null());
                continue;
            }
            let name = string_at(bytes, &names, section.sh_name(endian)).ok_or_else(|| {
                malformed(
                    &format!("name of section {index}"),
                    "not in its table",
                    header_at,
                )
            })?;
            let name = bytes
                .get(name)
                .map(String::from_utf8_lossy)
                .unwrap_or_default()
                .into_owned();
            sections.push(Section::read(
                section, endian, bytes, name, index, header_at,
            )?);
        }

        let mut symtabs = sections.iter().enumerate().filter(|(_, s)| s.is_symtab());
        let Some((symtab, _)) = symtabs.next() else {
            let message =
                format!("elf: couldn't find symbol table in {name}, stripped object file?");
            return Err(ObjectError::new(ErrorKind::Malformed, message));
        };
        if symtabs.next().is_some() {
            let message = format!("elf: multiple symbol tables in {name}");
            return Err(ObjectError::new(ErrorKind::Malformed, message));
        }
        let symbols = read_symbols(&table, endian, bytes, symtab, &sections)?;
        let big_endian = endian == Endianness::Big;
        Ok(Self {
            bytes: bytes.to_vec(),
            big_endian,
            sections,
            symbols,
        })
    }

    /// The bytes of a section; none for `SHT_NOBITS`.
    pub fn data(&self, section: &Section) -> &[u8] {
        self.bytes.get(section.range.clone()).unwrap_or(&[])
    }

    /// The first section of that name.
    pub fn section_by_name(&self, name: &str) -> Option<usize> {
        self.sections
            .iter()
            .skip(1)
            .position(|s| s.name == name)
            .map(|i| i + 1)
    }

    /// The entries of a `SHT_REL` section.
    pub fn relocations(&self, section: &Section) -> impl Iterator<Item = Relocation> {
        let endian = if self.big_endian {
            Endianness::Big
        } else {
            Endianness::Little
        };
        let data = self.data(section);
        let count = data.len() / size_of::<elf::Rel64<Endianness>>();
        let entries: &[elf::Rel64<Endianness>] =
            object::pod::slice_from_bytes(data, count).map_or(&[], |(entries, _)| entries);
        entries.iter().map(move |rel| Relocation {
            offset: rel.r_offset(endian),
            symbol: rel.r_sym(endian) as usize,
            kind: rel.r_type(endian).0,
        })
    }

    /// Name of a symbol.
    pub fn name(&self, symbol: &Symbol) -> &str {
        let bytes = self.bytes.get(symbol.name.clone()).unwrap_or(&[]);
        str::from_utf8(bytes).unwrap_or("<?>")
    }

    /// Name of a symbol in messages: for a section's symbol, the section's name.
    pub fn display_name<'a>(&'a self, symbol: &'a Symbol) -> &'a str {
        if symbol.kind == SymbolKind::Section && symbol.name.is_empty() {
            self.sections.get(symbol.section).map_or("<?", |s| &s.name)
        } else {
            self.name(symbol)
        }
    }

    /// Reads a 32-bit number in the object's byte order.
    pub fn u32_at(&self, data: &[u8], offset: usize) -> Option<u32> {
        let bytes = *data.get(offset..)?.first_chunk::<4>()?;
        Some(if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }
}

/// Magic, class, byte order, type and machine: what says that this is a BPF object at all.
fn check_ident<'a>(
    name: &str,
    bytes: &'a [u8],
) -> Result<&'a FileHeader64<Endianness>, ObjectError> {
    let not_elf =
        |message: String, at| Err(ObjectError::new(ErrorKind::NotElf, message).at_file_offset(at));
    let not_bpf =
        |message: String, at| Err(ObjectError::new(ErrorKind::NotBpf, message).at_file_offset(at));
    if !bytes.starts_with(&elf::ELFMAG) {
        return not_elf(format!("elf: '{name}' is not a proper ELF object"), 0);
    }
    match bytes.get(4) {
        Some(2) => {}
        Some(_) => return not_bpf(format!("elf: '{name}' is not a 64-bit ELF object"), 4),
        None => {
            return not_elf(
                format!("elf: '{name}' is cut after {} bytes", bytes.len()),
                4,
            );
        }
    }
    if !matches!(bytes.get(5), Some(1 | 2)) {
        return not_bpf(format!("elf: '{name}' has unknown byte order"), 5);
    }
    let header = match FileHeader64::<Endianness>::parse(bytes) {
        Ok(header) => header,
        Err(_) if bytes.len() < 64 => {
            let len = bytes.len();
            return not_elf(
                format!("elf: '{name}' is cut: the header takes 64 bytes, {len} are there"),
                0,
            );
        }
        Err(e) => return not_bpf(format!("elf: '{name}': {e}"), 6),
    };
    let Ok(endian) = header.endian() else {
        return not_bpf(format!("elf: '{name}' has unknown byte order"), 5);
    };
    if header.e_type(endian) != elf::ET_REL {
        let found = header.e_type(endian).0;
        return not_bpf(
            format!("elf: {name} is not a valid eBPF object file: type {found} is not ET_REL"),
            16,
        );
    }
    // Old LLVM leaves the machine 0.
    if !matches!(header.e_machine(endian), elf::EM_NONE | elf::EM_BPF) {
        let found = header.e_machine(endian).0;
        return not_bpf(
            format!("elf: {name} is not a valid eBPF object file: machine {found} is not BPF"),
            18,
        );
    }
    Ok(header)
}

fn malformed(what: &str, why: impl std::fmt::Display, offset: u64) -> ObjectError {
    ObjectError::new(ErrorKind::Malformed, format!("elf: {what}: {why}")).at_file_offset(offset)
}

impl Section {
    fn null() -> Self {
        Self {
            name: String::new(),
            kind: elf::SHT_NULL.0,
            flags: 0,
            range: 0..0,
            size: 0,
            info: 0,
            entry_size: 0,
        }
    }

    fn read(
        header: &elf::SectionHeader64<Endianness>,
        endian: Endianness,
        bytes: &[u8],
        name: String,
        index: usize,
        header_at: u64,
    ) -> Result<Self, ObjectError> {
        let size = header.sh_size(endian);
        let limit = if header.file_range(endian).is_none() {
            LARGEST_NOBITS
        } else {
            u64::MAX
        };
        let Some(range) = extent(header, endian, bytes) else {
            let start = header.sh_offset(endian);
            let why = format!(
                "offset {start:#x} and size {size:#x} reach past the end of the file ({:#x})",
                bytes.len()
            );
            return Err(malformed(
                &format!("section {index} '{name}'"),
                why,
                header_at,
            ));
        };
        if size > limit {
            let why = format!("size {size:#x} is more than {limit:#x}");
            return Err(malformed(
                &format!("section {index} '{name}'"),
                why,
                header_at,
            ));
        }
        Ok(Self {
            name,
            kind: header.sh_type(endian).0,
            flags: header.sh_flags(endian).0,
            range,
            size,
            info: header.sh_info(endian),
            entry_size: header.sh_entsize(endian),
        })
    }
}

/// Where a section's bytes are in the file, `None` if they are not all there.
fn extent(
    header: &elf::SectionHeader64<Endianness>,
    endian: Endianness,
    bytes: &[u8],
) -> Option<Range<usize>> {
    let Some((start, size)) = header.file_range(endian) else {
        return Some(0..0);
    };
    let end = start
        .checked_add(size)
        .filter(|&end| end <= bytes.len() as u64)?;
    // Both fit: they are no larger than the length of a slice.
    Some(start as usize..end as usize)
}

/// Where the string at `offset` of a string table is in the file, without its NUL.
fn string_at(bytes: &[u8], table: &Range<usize>, offset: u32) -> Option<Range<usize>> {
    let start = table.start.checked_add(offset as usize)?;
    let rest = bytes.get(start..table.end)?;
    let len = rest.iter().take(LONGEST_NAME).position(|&b| b == 0)?;
    Some(start..start + len)
}

fn read_symbols(
    table: &object::read::elf::SectionTable<'_, FileHeader64<Endianness>>,
    endian: Endianness,
    bytes: &[u8],
    symtab: usize,
    sections: &[Section],
) -> Result<Vec<Symbol>, ObjectError> {
    let section_name = sections.get(symtab).map_or("", |s| s.name.as_str());
    let entry = size_of::<elf::Sym64<Endianness>>() as u64;
    if sections.get(symtab).is_some_and(|s| s.entry_size != entry) {
        let message = format!("elf: symbols of another size than {entry} bytes");
        return Err(ObjectError::new(ErrorKind::Malformed, message).in_section(section_name));
    }
    let symbols = table
        .symbol_table_by_index(endian, bytes, SectionIndex(symtab))
        .map_err(|e| {
            let message = format!("elf: symbol strings section missing or invalid: {e}");
            ObjectError::new(ErrorKind::Malformed, message).in_section(section_name)
        })?;
    let mut out = Vec::with_capacity(symbols.len());
    let strings = sections
        .get(symbols.string_section().0)
        .map_or(0..0, |s| s.range.clone());
    for (index, symbol) in symbols.enumerate() {
        let fault = |why: String| {
            let message = format!("elf: symbol #{}: {why}", index.0);
            let offset = (index.0 as u64).saturating_mul(entry);
            ObjectError::new(ErrorKind::Malformed, message).at(section_name, offset)
        };
        let name = string_at(bytes, &strings, symbol.st_name(endian))
            .ok_or_else(|| fault("name is not in its table".into()))?;
        let place = symbol.st_shndx(endian);
        let section = symbols
            .symbol_section(endian, symbol, index)
            .map_err(|e| fault(format!("section: {e}")))?;
        let section_index = section.map_or(0, |s| s.0);
        let special = section.is_none() && place != elf::SHN_UNDEF;
        if section_index >= sections.len() {
            return Err(fault(format!(
                "pointing to invalid section #{section_index}"
            )));
        }
        out.push(Symbol {
            name,
            section: section_index,
            special,
            kind: match symbol.st_type() {
                elf::STT_NOTYPE => SymbolKind::NoType,
                elf::STT_OBJECT => SymbolKind::Object,
                elf::STT_FUNC => SymbolKind::Func,
                elf::STT_SECTION => SymbolKind::Section,
                _ => SymbolKind::Other,
            },
            bind: match symbol.st_bind() {
                elf::STB_LOCAL => Bind::Local,
                elf::STB_GLOBAL => Bind::Global,
                elf::STB_WEAK => Bind::Weak,
                _ => Bind::Other,
            },
            hidden: matches!(symbol.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL),
            value: symbol.st_value(endian),
            size: symbol.st_size(endian),
        });
    }
    Ok(out)
}
