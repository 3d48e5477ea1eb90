//! The functions of the object's executable sections: which are programs, which are
//! subprograms, and where each lies.

use rustc_hash::FxHashMap;

use crate::elf::{Bind, Elf, Symbol, SymbolKind};
use crate::error::{ErrorKind, ObjectError};

/// Bytes of an instruction slot.
pub(crate) const SLOT: u64 = 8;

/// A function as it lies in its section.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub symbol: usize,
    pub section: usize,
    /// First slot, from the start of the section.
    pub start: u32,
    /// Number of slots.
    pub len: u32,
    /// Not static.
    pub global: bool,
    /// Global, but verified as a static function: hidden or internal visibility.
    pub hidden: bool,
    /// Linked into the programs that call it instead of being one.
    pub subprogram: bool,
}

impl Function {
    fn contains(&self, slot: u64) -> bool {
        let start = u64::from(self.start);
        start <= slot && slot < start + u64::from(self.len)
    }

    /// Byte range in the section.
    pub fn bytes(&self) -> std::ops::Range<usize> {
        let at = |slot: u32| slot as usize * SLOT as usize;
        at(self.start)..at(self.start) + at(self.len)
    }
}

/// All functions, in order of section and place (the order in which libbpf lists
/// programs).
#[derive(Clone, Debug)]
pub(crate) struct Functions {
    pub list: Vec<Function>,
    /// Section `.text`.
    pub text: Option<usize>,
}

impl Functions {
    /// Finds the functions by their symbols.
    pub fn collect(elf: &Elf) -> Result<Self, ObjectError> {
        let text = elf
            .sections
            .iter()
            .rposition(|s| s.is_progbits() && s.is_exec() && s.size > 0 && s.name == ".text");
        let mut list = Vec::new();
        let mut found = vec![false; elf.sections.len()];
        for (index, symbol) in elf.symbols.iter().enumerate() {
            if symbol.kind == SymbolKind::Func && holds_code(elf, symbol) {
                if let Some(found) = found.get_mut(symbol.section) {
                    *found = true;
                }
                list.push(function(elf, index, symbol, symbol.size, text)?);
            }
        }
        untyped_functions(elf, &found, text, &mut list)?;
        list.sort_by_key(|f| (f.section, f.start));
        Ok(Self { list, text })
    }

    /// The function of that section that holds a slot.
    pub fn at(&self, section: usize, slot: u64) -> Option<usize> {
        let after = self
            .list
            .partition_point(|f| (f.section, u64::from(f.start)) <= (section, slot));
        let index = after.checked_sub(1)?;
        let f = self.list.get(index)?;
        (f.section == section && f.contains(slot)).then_some(index)
    }
}

fn holds_code(elf: &Elf, symbol: &Symbol) -> bool {
    !symbol.special
        && elf
            .sections
            .get(symbol.section)
            .is_some_and(|s| s.is_progbits() && s.is_exec() && s.size > 0)
}

fn function(
    elf: &Elf,
    index: usize,
    symbol: &Symbol,
    size: u64,
    text: Option<usize>,
) -> Result<Function, ObjectError> {
    let section = elf.sections.get(symbol.section);
    let (section_name, section_size) = section.map_or(("", 0), |s| (s.name.as_str(), s.size));
    let name = elf.name(symbol);
    let fault =
        |message| ObjectError::new(ErrorKind::Malformed, message).at(section_name, symbol.value);
    if symbol
        .value
        .checked_add(size)
        .is_none_or(|end| end > section_size)
    {
        return Err(fault(format!(
            "sec '{section_name}': program at offset {} crosses section boundary",
            symbol.value
        )));
    }
    let slots = (
        u32::try_from(symbol.value / SLOT),
        u32::try_from(size / SLOT),
    );
    let (Ok(start), Ok(len @ 1..)) = slots else {
        return Err(fault(corrupted(section_name, name, symbol.value, size)));
    };
    if !size.is_multiple_of(SLOT) || !symbol.value.is_multiple_of(SLOT) {
        return Err(fault(corrupted(section_name, name, symbol.value, size)));
    }
    let global = symbol.bind != Bind::Local;
    Ok(Function {
        symbol: index,
        section: symbol.section,
        start,
        len,
        global,
        hidden: global && symbol.hidden,
        subprogram: Some(symbol.section) == text || !global,
    })
}

fn corrupted(section: &str, name: &str, offset: u64, size: u64) -> String {
    format!("sec '{section}': corrupted program '{name}', offset {offset}, size {size}")
}

/// LLVM before version 8 gives functions neither type nor size: in a section without
/// functions, the global symbols begin them, and each reaches to the next.
fn untyped_functions(
    elf: &Elf,
    found: &[bool],
    text: Option<usize>,
    list: &mut Vec<Function>,
) -> Result<(), ObjectError> {
    let mut starts: FxHashMap<usize, Vec<(u64, usize)>> = FxHashMap::default();
    for (index, symbol) in elf.symbols.iter().enumerate() {
        let untyped = symbol.kind == SymbolKind::NoType && symbol.bind == Bind::Global;
        if untyped && !found.get(symbol.section).copied().unwrap_or(true) && holds_code(elf, symbol)
        {
            starts
                .entry(symbol.section)
                .or_default()
                .push((symbol.value, index));
        }
    }
    for (section, mut symbols) in starts {
        symbols.sort_unstable();
        symbols.dedup_by_key(|(value, _)| *value);
        let section_end = elf.sections.get(section).map_or(0, |s| s.size);
        for (i, &(value, index)) in symbols.iter().enumerate() {
            let end = symbols.get(i + 1).map_or(section_end, |(next, _)| *next);
            let Some(symbol) = elf.symbols.get(index) else {
                continue;
            };
            list.push(function(
                elf,
                index,
                symbol,
                end.saturating_sub(value),
                text,
            )?);
        }
    }
    Ok(())
}
