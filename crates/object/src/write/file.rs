//! An ELF file being put together anew from its sections.

use object::elf;

use super::fail;
use crate::elf::{Elf, Relocation};
use crate::error::{ErrorKind, ObjectError};

/// Bytes of `Elf64_Ehdr`.
const FILE_HEADER: usize = 64;
/// Bytes of `Elf64_Shdr`.
const SECTION_HEADER: usize = 64;
/// Bytes of `Elf64_Sym`.
const SYMBOL: usize = 24;
/// Bytes of `Elf64_Rel`.
const REL: usize = 16;

/// Offsets of the fields of `Elf64_Ehdr` that change.
mod ehdr {
    pub const SHOFF: usize = 40;
    pub const SHNUM: usize = 60;
    pub const SHSTRNDX: usize = 62;
}

/// Offsets of the fields of `Elf64_Shdr` that change.
mod shdr {
    pub const NAME: usize = 0;
    pub const TYPE: usize = 4;
    pub const FLAGS: usize = 8;
    pub const OFFSET: usize = 24;
    pub const SIZE: usize = 32;
    pub const LINK: usize = 40;
    pub const INFO: usize = 44;
    pub const ALIGN: usize = 48;
    pub const ENTSIZE: usize = 56;
}

/// A section header and its contents.
struct Section {
    header: [u8; SECTION_HEADER],
    data: Vec<u8>,
    /// Takes no room in the file.
    nobits: bool,
}

/// The file.
pub(super) struct File {
    header: [u8; FILE_HEADER],
    sections: Vec<Section>,
    big_endian: bool,
    symtab: usize,
    /// Strings of the symbols' names.
    strtab: usize,
    /// Strings of the sections' names.
    shstrtab: usize,
}

fn broken(what: &str) -> ObjectError {
    ObjectError::new(ErrorKind::Malformed, format!("elf: {what}"))
}

impl File {
    /// Takes the file apart.
    pub fn read(elf: &Elf) -> Result<Self, ObjectError> {
        let header = *elf.bytes.first_chunk().ok_or_else(|| broken("no header"))?;
        let mut file = Self {
            header,
            sections: Vec::new(),
            big_endian: elf.big_endian,
            symtab: 0,
            strtab: 0,
            shstrtab: 0,
        };
        let table = file.get(&header, ehdr::SHOFF, 8) as usize;
        let count = file.get(&header, ehdr::SHNUM, 2) as usize;
        file.shstrtab = file.get(&header, ehdr::SHSTRNDX, 2) as usize;
        if count != elf.sections.len() || file.shstrtab >= count {
            return Err(broken("more sections than can be written"));
        }
        for (index, section) in elf.sections.iter().enumerate() {
            let header = elf
                .bytes
                .get(table.saturating_add(SECTION_HEADER * index)..)
                .and_then(|b| b.first_chunk())
                .ok_or_else(|| broken("section headers"))?;
            if section.is_symtab() {
                file.symtab = index;
                file.strtab = file.get(header, shdr::LINK, 4) as usize;
            }
            file.sections.push(Section {
                header: *header,
                data: elf.data(section).to_vec(),
                nobits: section.is_nobits() || index == 0,
            });
        }
        Ok(file)
    }

    /// Reads a field of `len` bytes.
    fn get(&self, bytes: &[u8], at: usize, len: usize) -> u64 {
        let field = bytes.get(at..).and_then(|b| b.get(..len)).unwrap_or(&[]);
        let digit = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        if self.big_endian {
            field.iter().fold(0, digit)
        } else {
            field.iter().rev().fold(0, digit)
        }
    }

    /// Replaces the contents of a section.
    pub fn set_data(&mut self, section: usize, data: Vec<u8>) {
        if let Some(section) = self.sections.get_mut(section) {
            section.data = data;
        }
    }

    /// Appends a string to a string table and gives its offset.
    fn add_string(&mut self, table: usize, text: &str) -> Result<u64, ObjectError> {
        let table = self
            .sections
            .get_mut(table)
            .ok_or_else(|| broken("string table"))?;
        let offset = table.data.len() as u64;
        table.data.extend(text.bytes().chain([0]));
        Ok(offset)
    }

    /// Adds a global function symbol and gives its number.
    pub fn add_function(
        &mut self,
        name: &str,
        section: usize,
        slot: u64,
        slots: u64,
    ) -> Result<usize, ObjectError> {
        let name = self.add_string(self.strtab, name)?;
        let mut symbol = [0; SYMBOL];
        put(&mut symbol, 0, name, 4, self.big_endian);
        put(
            &mut symbol,
            4,
            u64::from(elf::STB_GLOBAL.0 << 4 | elf::STT_FUNC.0),
            1,
            false,
        );
        put(&mut symbol, 6, section as u64, 2, self.big_endian);
        put(&mut symbol, 8, slot * 8, 8, self.big_endian);
        put(&mut symbol, 16, slots * 8, 8, self.big_endian);
        let table = self
            .sections
            .get_mut(self.symtab)
            .ok_or_else(|| broken("symbols"))?;
        let number = table.data.len() / SYMBOL;
        table.data.truncate(number * SYMBOL);
        table.data.extend(symbol);
        Ok(number)
    }

    /// Changes the place of a symbol, and its size if one is given.
    pub fn set_symbol(&mut self, index: usize, value: u64, size: Option<u64>) {
        let Some(table) = self.sections.get_mut(self.symtab) else {
            return;
        };
        let Some(symbol) = table.data.get_mut(index * SYMBOL..) else {
            return;
        };
        put(symbol, 8, value, 8, self.big_endian);
        if let Some(size) = size {
            put(symbol, 16, size, 8, self.big_endian);
        }
    }

    /// Replaces the relocations of a section.
    pub fn set_relocations(
        &mut self,
        elf: &Elf,
        section: usize,
        relocations: &[Relocation],
    ) -> Result<(), ObjectError> {
        let mut data = vec![0; REL * relocations.len()];
        for (entry, r) in data.chunks_exact_mut(REL).zip(relocations) {
            put(entry, 0, r.offset, 8, self.big_endian);
            let info = (r.symbol as u64) << 32 | u64::from(r.kind);
            put(entry, 8, info, 8, self.big_endian);
        }
        let own = |s: &crate::elf::Section| s.is_rel() && s.info as usize == section;
        let mut found = (0..elf.sections.len()).filter(|&i| elf.sections.get(i).is_some_and(own));
        match found.next() {
            Some(index) => self.set_data(index, data),
            None if relocations.is_empty() => {}
            None => {
                let of = elf.sections.get(section).map_or("", |s| s.name.as_str());
                self.add_relocation_section(section, of, data)?;
            }
        }
        // All are in the first.
        found.for_each(|index| self.set_data(index, Vec::new()));
        Ok(())
    }

    fn add_relocation_section(
        &mut self,
        section: usize,
        name: &str,
        data: Vec<u8>,
    ) -> Result<(), ObjectError> {
        let name = self.add_string(self.shstrtab, &format!(".rel{name}"))?;
        let mut header = [0; SECTION_HEADER];
        let fields = [
            (shdr::NAME, name, 4),
            (shdr::TYPE, u64::from(elf::SHT_REL.0), 4),
            (shdr::FLAGS, elf::SHF_INFO_LINK.0, 8),
            (shdr::LINK, self.symtab as u64, 4),
            (shdr::INFO, section as u64, 4),
            (shdr::ALIGN, 8, 8),
            (shdr::ENTSIZE, REL as u64, 8),
        ];
        for (at, value, len) in fields {
            put(&mut header, at, value, len, self.big_endian);
        }
        self.sections.push(Section {
            header,
            data,
            nobits: false,
        });
        Ok(())
    }

    /// The bytes of the file: header, contents in order, section headers.
    pub fn assemble(self) -> Result<Vec<u8>, ObjectError> {
        if self.sections.len() >= usize::from(elf::SHN_LORESERVE) {
            return Err(fail("too many sections".to_owned()));
        }
        let mut out = self.header.to_vec();
        let mut headers = Vec::with_capacity(self.sections.len() * SECTION_HEADER);
        for section in &self.sections {
            let mut header = section.header;
            if !section.nobits {
                let align = self.get(&header, shdr::ALIGN, 8).clamp(1, 4096);
                let align = usize::try_from(align).unwrap_or(1).next_power_of_two();
                out.resize(out.len().next_multiple_of(align), 0);
                put(
                    &mut header,
                    shdr::OFFSET,
                    out.len() as u64,
                    8,
                    self.big_endian,
                );
                put(
                    &mut header,
                    shdr::SIZE,
                    section.data.len() as u64,
                    8,
                    self.big_endian,
                );
                out.extend(&section.data);
            }
            headers.extend(header);
        }
        out.resize(out.len().next_multiple_of(8), 0);
        let table = out.len() as u64;
        out.extend(headers);
        put(&mut out, ehdr::SHOFF, table, 8, self.big_endian);
        put(
            &mut out,
            ehdr::SHNUM,
            self.sections.len() as u64,
            2,
            self.big_endian,
        );
        Ok(out)
    }
}

/// Writes the low `len` bytes of a number.
fn put(bytes: &mut [u8], at: usize, value: u64, len: usize, big_endian: bool) {
    let Some(field) = bytes.get_mut(at..).and_then(|b| b.get_mut(..len)) else {
        return;
    };
    for (i, byte) in field.iter_mut().enumerate() {
        let shift = 8 * if big_endian { len - 1 - i } else { i };
        *byte = (value >> shift) as u8;
    }
}
