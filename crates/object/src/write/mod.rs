//! Writing an object back with other instructions for some of its programs.
//!
//! A program's own instructions take the place of those in its section. Its subprograms
//! become functions of their own at the end of `.text`, named after the program, since
//! other programs may go on calling the original ones. References become relocations
//! again, so that the result is linked like any other object. CO-RE relocations are kept
//! where the program was linked without a target; else they have been applied and are
//! gone.

mod code;
mod file;
mod program;

use bpfkit_btf::ext::{BtfExt, CoreRelo, FuncInfo, LineInfo, Table, TableSection};
use rustc_hash::FxHashMap;

use crate::elf::Relocation;
use crate::error::{ErrorKind, ObjectError};
use crate::functions::{Function, SLOT};
use crate::model::{Program, RefTarget};
use crate::object::Object;
use code::Symbols;
use file::File;
pub use program::program_object;

/// Section of functions that several programs may call.
const TEXT: &str = ".text";

impl Object {
    /// The object file with each of `programs` in place of the program of its name.
    ///
    /// They are what [`link`](Object::link) made of this object, with instructions, lines
    /// and [`refs`](Program::refs) changed alike; every reference to a map, a function or
    /// a symbol has to be in `refs`. Nothing else of the file changes, but for the
    /// debugging information in `.debug_*`, which is left as it is.
    ///
    /// # Errors
    /// A program is not of this object, an instruction refers to something that `refs`
    /// does not name or the object has no symbol for, or the section of a program holds
    /// static functions.
    pub fn write(&self, programs: &[Program]) -> Result<Vec<u8>, ObjectError> {
        let mut writer = Writer::new(self)?;
        for program in programs {
            writer.replace(program)?;
        }
        writer.finish()
    }
}

fn fail(message: String) -> ObjectError {
    ObjectError::new(ErrorKind::Relocation, message)
}

/// A piece of a section and where it goes.
struct Move {
    /// Byte range in the old section.
    old: std::ops::Range<u64>,
    /// Byte offset in the new one.
    new: u64,
    /// The piece is another now.
    replaced: bool,
}

/// A program that replaces a function.
struct Replacement<'a> {
    function: &'a Function,
    program: &'a Program,
    /// For each of its subprograms, the slot of `.text` where it now begins.
    places: Vec<Option<u32>>,
}

struct Writer<'a> {
    object: &'a Object,
    file: File,
    symbols: Symbols<'a>,
    replacements: Vec<Replacement<'a>>,
    /// New contents of `.text`, which only grows.
    text: Vec<u8>,
    /// New relocations by the section that they belong to.
    relocations: FxHashMap<usize, Vec<Relocation>>,
    /// For each section that changes, where its pieces go.
    moves: FxHashMap<usize, Vec<Move>>,
}

impl<'a> Writer<'a> {
    fn new(object: &'a Object) -> Result<Self, ObjectError> {
        let text = object
            .functions
            .text
            .and_then(|i| object.elf.sections.get(i));
        Ok(Self {
            object,
            file: File::read(&object.elf)?,
            symbols: Symbols::new(object),
            replacements: Vec::new(),
            text: text.map_or_else(Vec::new, |s| object.elf.data(s).to_vec()),
            relocations: FxHashMap::default(),
            moves: FxHashMap::default(),
        })
    }

    /// Appends the subprograms to `.text` and notes the program.
    fn replace(&mut self, program: &'a Program) -> Result<(), ObjectError> {
        let object = self.object;
        let name = &program.decl.name;
        let index = object.program_index(name);
        let function = object
            .entries
            .iter()
            .position(|&entry| entry.is_some() && entry == index);
        let Some(function) = function.and_then(|i| object.functions.list.get(i)) else {
            let message = format!("no program '{name}'");
            return Err(ObjectError::new(ErrorKind::NotFound, message));
        };
        if self
            .replacements
            .iter()
            .any(|r| r.program.decl.name == *name)
        {
            return Err(fail(format!("prog '{name}' is given twice")));
        }
        let mut places = vec![None; program.subprograms.len()];
        let mut end = self.text.len() as u64 / SLOT;
        for (i, sub) in program.subprograms.iter().enumerate().skip(1) {
            // The exception callback is found by its name, and so stays what it is.
            if program.exception_callback == Some(i as u32) {
                continue;
            }
            let Some(text) = object.functions.text else {
                return Err(fail(format!(
                    "prog '{name}': no {TEXT} for its subprograms"
                )));
            };
            let start = u32::try_from(end).ok();
            let (Some(start), len) = (start, u64::from(len_of(program, i))) else {
                return Err(fail(format!("{TEXT} grows too large")));
            };
            if let Some(place) = places.get_mut(i) {
                *place = Some(start);
            }
            end += len;
            let symbol = format!("{}.{name}", sub.name);
            let number = self.file.add_function(&symbol, text, end - len, len)?;
            self.symbols.subprograms.insert((name.as_str(), i), number);
        }
        for (i, place) in places.iter().enumerate() {
            let Some(place) = *place else { continue };
            let emitted = self.symbols.emit(program, i, Some(place), &places)?;
            self.text.extend(emitted.bytes);
            if let Some(text) = object.functions.text {
                self.relocations
                    .entry(text)
                    .or_default()
                    .extend(emitted.relocations);
            }
        }
        self.replacements.push(Replacement {
            function,
            program,
            places,
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, ObjectError> {
        let mut sections: Vec<usize> = self
            .replacements
            .iter()
            .map(|r| r.function.section)
            .collect();
        sections.sort_unstable();
        sections.dedup();
        for section in sections {
            self.rebuild(section)?;
        }
        if let Some(text) = self.object.functions.text {
            let data = std::mem::take(&mut self.text);
            self.file.set_data(text, data);
        }
        self.write_relocations()?;
        self.write_ext()?;
        self.move_symbols();
        self.file.assemble()
    }

    /// Puts the new programs into their section.
    fn rebuild(&mut self, section: usize) -> Result<(), ObjectError> {
        let object = self.object;
        let Some(header) = object.elf.sections.get(section) else {
            return Ok(());
        };
        let data = object.elf.data(header);
        let here: Vec<&Function> = object
            .functions
            .list
            .iter()
            .filter(|f| f.section == section)
            .collect();
        if here.iter().any(|f| f.subprogram) {
            return Err(
                fail(format!("section '{}' holds static functions", header.name))
                    .in_section(&header.name),
            );
        }
        if here
            .windows(2)
            .any(|w| matches!(w, [a, b] if a.bytes().end > b.bytes().start))
        {
            return Err(
                fail(format!("programs of section '{}' overlap", header.name))
                    .in_section(&header.name),
            );
        }
        let mut replaced: Vec<&Replacement<'_>> = self
            .replacements
            .iter()
            .filter(|r| r.function.section == section)
            .collect();
        replaced.sort_by_key(|r| r.function.start);
        let (mut new, mut moves, mut relocations) = (Vec::new(), Vec::new(), Vec::new());
        let mut old = 0;
        for r in replaced {
            let bytes = r.function.bytes();
            keep(data, old..bytes.start, &mut new, &mut moves);
            moves.push(Move {
                old: bytes.start as u64..bytes.end as u64,
                new: new.len() as u64,
                replaced: true,
            });
            let emitted = self.symbols.emit(r.program, 0, None, &r.places)?;
            let at = new.len() as u64;
            relocations.extend(emitted.relocations.into_iter().map(|rel| Relocation {
                offset: rel.offset + at,
                ..rel
            }));
            new.extend(emitted.bytes);
            old = bytes.end;
        }
        keep(data, old..data.len(), &mut new, &mut moves);
        self.file.set_data(section, new);
        self.relocations
            .entry(section)
            .or_default()
            .extend(relocations);
        self.moves.insert(section, moves);
        Ok(())
    }

    /// Where a byte of a section is now; `None` if it has been replaced.
    fn moved(&self, section: usize, offset: u64) -> Option<u64> {
        let Some(moves) = self.moves.get(&section) else {
            return Some(offset);
        };
        let piece = piece_at(moves, offset)?;
        (!piece.replaced).then(|| piece.new + (offset - piece.old.start))
    }

    fn write_relocations(&mut self) -> Result<(), ObjectError> {
        let object = self.object;
        let mut changed: Vec<usize> = self.relocations.keys().copied().collect();
        changed.sort_unstable();
        for section in changed {
            let mut all = self.relocations.remove(&section).unwrap_or_default();
            for rel in object.elf.sections.iter().filter(|s| s.is_rel()) {
                if rel.info as usize == section {
                    all.extend(object.elf.relocations(rel).filter_map(|r| {
                        Some(Relocation {
                            offset: self.moved(section, r.offset)?,
                            ..r
                        })
                    }));
                }
            }
            all.sort_by_key(|r| r.offset);
            self.file.set_relocations(&object.elf, section, &all)?;
        }
        Ok(())
    }

    /// Moves the records of `.BTF.ext` with their instructions.
    fn write_ext(&mut self) -> Result<(), ObjectError> {
        let object = self.object;
        let elf = &object.elf;
        let index = elf.sections.iter().rposition(|s| s.name == ".BTF.ext");
        let (Some(index), Some(btf)) = (index, &object.btf) else {
            return Ok(());
        };
        let Some(header) = elf.sections.get(index) else {
            return Ok(());
        };
        let Ok(mut ext) = BtfExt::parse(elf.data(header)) else {
            return Ok(());
        };
        if self.replacements.is_empty() || ext.func_info.is_empty() && ext.line_info.is_empty() {
            return Ok(());
        }
        let section_of = |name_off: u32| btf.string(name_off).and_then(|n| elf.section_by_name(n));
        let mut strings: FxHashMap<&str, u32> = FxHashMap::default();
        for record in ext.line_info.sections.iter().flat_map(|s| &s.records) {
            for offset in [record.file_name_off, record.line_off] {
                strings
                    .entry(btf.string(offset).unwrap_or(""))
                    .or_insert(offset);
            }
        }
        let names: FxHashMap<usize, u32> = (ext.func_info.sections.iter().map(|s| s.name_off))
            .chain(ext.line_info.sections.iter().map(|s| s.name_off))
            .filter_map(|name_off| Some((section_of(name_off)?, name_off)))
            .collect();
        let new_offset = |section: usize, offset: u32| {
            u32::try_from(self.moved(section, u64::from(offset))?).ok()
        };
        // Records of replaced functions go, but for the one that gives the function its
        // type.
        move_records(&mut ext.line_info, section_of, |s, r: LineInfo| {
            Some(LineInfo {
                insn_off: new_offset(s, r.insn_off)?,
                ..r
            })
        });
        move_records(&mut ext.core_relo, section_of, |s, r: CoreRelo| {
            Some(CoreRelo {
                insn_off: new_offset(s, r.insn_off)?,
                ..r
            })
        });
        move_records(&mut ext.func_info, section_of, |s, r: FuncInfo| {
            let offset = u64::from(r.insn_off);
            let piece = self.moves.get(&s).and_then(|moves| piece_at(moves, offset));
            let at = match piece.filter(|piece| piece.old.start == offset) {
                Some(piece) => u32::try_from(piece.new).ok()?,
                None => new_offset(s, r.insn_off)?,
            };
            Some(FuncInfo { insn_off: at, ..r })
        });
        for r in &self.replacements {
            for (i, sub) in r.program.subprograms.iter().enumerate() {
                let place = match r.places.get(i).copied().flatten() {
                    Some(slot) => object.functions.text.map(|s| (s, slot.saturating_mul(8))),
                    None if i == 0 => self.own_place(r.function),
                    None => None,
                };
                let Some((section, at)) = place else { continue };
                let name_off = names.get(&section).copied();
                let mut add = Adder {
                    section,
                    name_off,
                    section_of: &section_of,
                };
                if i > 0 && sub.type_id != 0 {
                    let record = FuncInfo {
                        insn_off: at,
                        type_id: sub.type_id,
                    };
                    add.to(&mut ext.func_info, [record]);
                }
                let range = sub.start..sub.start.saturating_add(len_of(r.program, i));
                let offset = |insn: u32| at.saturating_add((insn - sub.start).saturating_mul(8));
                let lines = r.program.lines.iter().filter(|l| range.contains(&l.insn));
                let lines = lines.map(|l| LineInfo {
                    insn_off: offset(l.insn),
                    file_name_off: strings.get(&*l.file).copied().unwrap_or(0),
                    line_off: strings.get(&*l.text).copied().unwrap_or(0),
                    line_col: l.line << 10 | l.column & 0x3ff,
                });
                add.to(&mut ext.line_info, lines);
                let core = r.program.refs.iter().filter(|r| range.contains(&r.insn));
                let core = core.filter_map(|r| match r.target {
                    RefTarget::Core {
                        type_id,
                        access_str_off,
                        kind,
                    } => Some(CoreRelo {
                        insn_off: offset(r.insn),
                        type_id,
                        access_str_off,
                        kind,
                    }),
                    _ => None,
                });
                add.to(&mut ext.core_relo, core);
            }
        }
        sort_records(&mut ext.func_info, |r| r.insn_off);
        sort_records(&mut ext.line_info, |r| r.insn_off);
        sort_records(&mut ext.core_relo, |r| r.insn_off);
        self.file.set_data(index, ext.to_bytes());
        // Places in strings and code that nobody reads from there.
        for (i, s) in elf.sections.iter().enumerate() {
            if s.is_rel() && s.info as usize == index {
                self.file.set_data(i, Vec::new());
            }
        }
        Ok(())
    }

    /// Section and new byte offset of a program's own instructions.
    fn own_place(&self, function: &Function) -> Option<(usize, u32)> {
        let start = function.bytes().start as u64;
        let moves = self.moves.get(&function.section)?;
        let piece = piece_at(moves, start).filter(|m| m.replaced && m.old.start == start)?;
        Some((function.section, u32::try_from(piece.new).ok()?))
    }

    /// Moves the symbols of changed sections, and gives programs their new size.
    fn move_symbols(&mut self) {
        let elf = &self.object.elf;
        let programs: FxHashMap<usize, &Replacement<'_>> = self
            .replacements
            .iter()
            .map(|r| (r.function.symbol, r))
            .collect();
        for (index, symbol) in elf.symbols.iter().enumerate() {
            let Some(moves) = self.moves.get(&symbol.section) else {
                continue;
            };
            let piece = piece_at(moves, symbol.value);
            let value = match piece {
                Some(piece) if piece.replaced => piece.new,
                Some(piece) => piece.new + (symbol.value - piece.old.start),
                // At the end of the section.
                None => moves
                    .last()
                    .map_or(symbol.value, |m| m.new + (m.old.end - m.old.start)),
            };
            let size = programs
                .get(&index)
                .map(|r| u64::from(len_of(r.program, 0)) * SLOT);
            self.file.set_symbol(index, value, size);
        }
    }
}

/// The piece that holds a byte of the old section; pieces are in order.
fn piece_at(moves: &[Move], offset: u64) -> Option<&Move> {
    let after = moves.partition_point(|m| m.old.start <= offset);
    let piece = moves.get(after.checked_sub(1)?)?;
    piece.old.contains(&offset).then_some(piece)
}

/// Copies a range of a section as it is.
fn keep(data: &[u8], old: std::ops::Range<usize>, new: &mut Vec<u8>, moves: &mut Vec<Move>) {
    if old.is_empty() {
        return;
    }
    moves.push(Move {
        old: old.start as u64..old.end as u64,
        new: new.len() as u64,
        replaced: false,
    });
    new.extend(data.get(old).unwrap_or(&[]));
}

/// Slots of a subprogram.
fn len_of(program: &Program, index: usize) -> u32 {
    let start = program.subprograms.get(index).map_or(0, |s| s.start);
    let end = match program.subprograms.get(index + 1) {
        Some(next) => next.start,
        None => program.insns.len() as u32,
    };
    end.saturating_sub(start)
}

/// Changes every record of a table, or drops it.
fn move_records<R: Copy>(
    table: &mut Table<R>,
    section_of: impl Fn(u32) -> Option<usize>,
    change: impl Fn(usize, R) -> Option<R>,
) {
    for section in &mut table.sections {
        let Some(index) = section_of(section.name_off) else {
            continue;
        };
        // What follows the known fields is dropped with the records that it belongs to.
        section.extra.clear();
        section.records = section
            .records
            .iter()
            .filter_map(|r| change(index, *r))
            .collect();
    }
}

/// Puts the records of each section in order of their instructions.
fn sort_records<R>(table: &mut Table<R>, offset: impl Fn(&R) -> u32) {
    for section in &mut table.sections {
        section.records.sort_by_key(&offset);
    }
}

/// Adds records to those of a section.
struct Adder<'a, F> {
    section: usize,
    /// The section's name in the string section of the BTF.
    name_off: Option<u32>,
    section_of: &'a F,
}

impl<F: Fn(u32) -> Option<usize>> Adder<'_, F> {
    fn to<R>(&mut self, table: &mut Table<R>, records: impl IntoIterator<Item = R>) {
        let mut records = records.into_iter().peekable();
        if records.peek().is_none() {
            return;
        }
        let own = |s: &&mut TableSection<R>| (self.section_of)(s.name_off) == Some(self.section);
        match (table.sections.iter_mut().find(own), self.name_off) {
            (Some(section), _) => section.records.extend(records),
            (None, Some(name_off)) => table.sections.push(TableSection {
                name_off,
                records: records.collect(),
                extra: Vec::new(),
            }),
            // No table knows the section: it had no information before.
            (None, None) => {}
        }
    }
}
