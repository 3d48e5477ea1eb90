//! What a relocation of an instruction refers to.

use bpfkit_isa::{Insn, code};

use crate::elf::{Bind, Elf, Relocation, Symbol, SymbolKind};
use crate::error::{ErrorKind, ObjectError};
use crate::externs::Externs;
use crate::functions::{Functions, SLOT};
use crate::maps::{ARENA_SECTION, MAPS, Maps, is_data_section};

/// What an instruction refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reference {
    /// A map.
    Map(usize),
    /// A variable in a data map: the map, and the symbol's offset in the section.
    Variable { map: usize, offset: u64 },
    /// An external symbol.
    Extern(usize),
    /// A function: its section, and a slot of it.
    Function {
        section: usize,
        slot: i64,
        call: bool,
    },
}

/// Where references are looked up.
pub(crate) struct Scope<'a> {
    pub elf: &'a Elf,
    pub functions: &'a Functions,
    pub externs: &'a Externs,
    pub maps: &'a Maps,
}

/// The relocation types that BPF objects hold: `R_BPF_64_64`, `R_BPF_64_ABS64`,
/// `R_BPF_64_ABS32`, `R_BPF_64_NODYLD32`, `R_BPF_64_32`. LLVM before version 13 knew only
/// the first and the last and used them for data too. Like libbpf we go by the instruction.
const KNOWN: [u32; 5] = [1, 2, 3, 4, 10];

impl Scope<'_> {
    /// What a relocation makes an instruction refer to. For messages: `table` is the index
    /// of the section that holds it, `number` its place there, `index` the instruction's in
    /// its program.
    pub fn resolve(
        &self,
        program: &str,
        insn: Insn,
        index: u32,
        (table, number): (usize, usize),
        relocation: Relocation,
    ) -> Result<Reference, ObjectError> {
        let wrong = |message: String| ObjectError::new(ErrorKind::Relocation, message);
        if !KNOWN.contains(&relocation.kind) {
            let kind = relocation.kind;
            return Err(wrong(format!(
                "ELF relo #{number} in section #{table} has unexpected type {kind}"
            )));
        }
        let Some(symbol) = self.elf.symbols.get(relocation.symbol) else {
            let symbol = relocation.symbol;
            return Err(wrong(format!(
                "symbol #{symbol} not found for relo #{number}"
            )));
        };
        let name = self.elf.display_name(symbol);
        let is_call = insn.code == code::JMP | code::CALL;
        if !is_call && !insn.is_ld_imm64() {
            return Err(wrong(format!(
                "prog '{program}': invalid relo against '{name}' for insns[{index}].code {:#x}",
                insn.code
            )));
        }
        if symbol.is_extern() {
            return self
                .externs
                .by_symbol(relocation.symbol)
                .map(Reference::Extern)
                .ok_or_else(|| {
                    wrong(format!(
                        "prog '{program}': extern relo failed to find extern for '{name}' ({})",
                        relocation.symbol
                    ))
                });
        }
        if is_call {
            return self.called(program, insn, symbol, name);
        }
        if symbol.special || symbol.section == 0 {
            return Err(wrong(format!(
                "prog '{program}': invalid relo against '{name}' in special section; forgot to \
                 initialize global var?.."
            )));
        }
        if self.is_function_address(symbol) {
            if !symbol.value.is_multiple_of(SLOT) || i64::from(insn.imm) % 8 != 0 {
                return Err(wrong(format!(
                    "prog '{program}': bad subprog addr relo against '{name}' at offset {}+{}",
                    symbol.value, insn.imm
                )));
            }
            // A static function's symbol is its section's, and the instruction says where
            // in it the function is.
            let offset = (symbol.value as i64).wrapping_add(i64::from(insn.imm));
            let (section, slot) = (symbol.section, offset.div_euclid(SLOT as i64));
            return Ok(Reference::Function {
                section,
                slot,
                call: false,
            });
        }
        self.data(program, symbol, name)
    }

    fn called(
        &self,
        program: &str,
        insn: Insn,
        symbol: &Symbol,
        name: &str,
    ) -> Result<Reference, ObjectError> {
        let wrong = |message: String| ObjectError::new(ErrorKind::Relocation, message);
        if insn.src != code::PSEUDO_CALL {
            return Err(wrong(format!(
                "prog '{program}': incorrect bpf_call opcode"
            )));
        }
        let section = symbol.section;
        if symbol.special || !self.holds_subprograms(section) {
            let section_name = self
                .elf
                .sections
                .get(section)
                .map_or("", |s| s.name.as_str());
            return Err(wrong(format!(
                "prog '{program}': bad call relo against '{name}' in section '{section_name}'"
            )));
        }
        if !symbol.value.is_multiple_of(SLOT) {
            return Err(wrong(format!(
                "prog '{program}': bad call relo against '{name}' at offset {}",
                symbol.value
            )));
        }
        // A static function's symbol is its section's, and the instruction says which slot
        // comes before it; with a global function's symbol it says -1. Binutils 2.40 adds
        // a global function's place in bytes.
        let value = symbol.value as i64;
        let own = i64::from(insn.imm);
        let by_gnu = symbol.kind == SymbolKind::Func && own == value - 1;
        let slot = value / SLOT as i64 + if by_gnu { 0 } else { own + 1 };
        Ok(Reference::Function {
            section,
            slot,
            call: true,
        })
    }

    /// `.text`, and a section with static functions beside its programs.
    fn holds_subprograms(&self, section: usize) -> bool {
        Some(section) == self.functions.text
            || self
                .elf
                .sections
                .get(section)
                .is_some_and(|s| s.is_exec() && s.is_progbits())
    }

    /// The address of a static function is taken relative to its section, that of a
    /// global one by its own symbol.
    fn is_function_address(&self, symbol: &Symbol) -> bool {
        let global = matches!(symbol.bind, Bind::Global | Bind::Weak);
        let named = match symbol.kind {
            SymbolKind::Section => symbol.bind == Bind::Local,
            SymbolKind::Func => global,
            _ => false,
        };
        named && self.holds_subprograms(symbol.section)
    }

    fn data(&self, program: &str, symbol: &Symbol, name: &str) -> Result<Reference, ObjectError> {
        let wrong = |message: String| ObjectError::new(ErrorKind::Relocation, message);
        let (section, offset) = (symbol.section, symbol.value);
        let found = self.elf.sections.get(section);
        let section_name = found.map_or("", |s| s.name.as_str());
        if section_name == ARENA_SECTION {
            return self
                .maps
                .arena
                .map(|map| Reference::Variable { map, offset })
                .ok_or_else(|| {
                    wrong(format!(
                        "prog '{program}': bad arena data relocation, no arena maps defined"
                    ))
                });
        }
        if let Some(&map) = self.maps.by_section.get(&section) {
            return Ok(Reference::Variable { map, offset });
        }
        if found.is_some_and(is_data_section) {
            return Err(wrong(format!(
                "prog '{program}': data relo failed to find map for section '{section_name}'"
            )));
        }
        if section_name != MAPS && section_name != "maps" {
            return Err(wrong(format!(
                "prog '{program}': bad map relo against '{name}' in section '{section_name}'"
            )));
        }
        self.maps.by_place.get(&(section, offset)).map(|&map| Reference::Map(map)).ok_or_else(|| {
            wrong(format!(
                "prog '{program}': map relo failed to find map for section '{section_name}', off \
                 {offset}"
            ))
        })
    }
}
