//! An object of one program, made from its instructions.

use bpfkit_isa::Insn;
use object::write::{Object as Writer, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

use crate::error::{ErrorKind, ObjectError};

/// Bytes that sections of instructions are aligned to.
const ALIGN: u64 = 8;

/// An object file with one program, which refers to no maps and no other functions, in the
/// section that says its type (`socket`, `xdp`, `tc` …).
///
/// # Errors
/// When there is more than an object file can hold.
pub fn program_object(
    name: &str,
    section: &str,
    insns: &[Insn],
    license: &str,
) -> Result<Vec<u8>, ObjectError> {
    let mut file = Writer::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let mut section_with = |section: &str, kind, symbol: (&str, SymbolKind), data: &[u8], align| {
        let id = file.add_section(Vec::new(), section.as_bytes().to_vec(), kind);
        file.append_section_data(id, data, align);
        file.add_symbol(Symbol {
            name: symbol.0.as_bytes().to_vec(),
            value: 0,
            size: data.len() as u64,
            kind: symbol.1,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(id),
            flags: SymbolFlags::None,
        });
    };
    let code: Vec<u8> = insns.iter().flat_map(|insn| insn.to_le_bytes()).collect();
    section_with(
        section,
        SectionKind::Text,
        (name, SymbolKind::Text),
        &code,
        ALIGN,
    );
    let license: Vec<u8> = license.bytes().chain([0]).collect();
    let symbol = ("_license", SymbolKind::Data);
    section_with("license", SectionKind::Data, symbol, &license, 1);
    file.write()
        .map_err(|error| ObjectError::new(ErrorKind::Malformed, error.to_string()))
}
