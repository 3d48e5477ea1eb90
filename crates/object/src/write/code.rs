//! Instructions on their way back into a section: references become relocations.

use bpfkit_isa::{Insn, code};
use rustc_hash::FxHashMap;

use super::{fail, len_of};
use crate::elf::{Relocation, SymbolKind};
use crate::error::ObjectError;
use crate::externs::ExternKind;
use crate::functions::SLOT;
use crate::maps::ARENA_SECTION;
use crate::model::{MapOrigin, Program, RefTarget};
use crate::object::Object;

/// `R_BPF_64_64`: an `ld_imm64`.
const R_64_64: u32 = 1;
/// `R_BPF_64_32`: a call.
const R_64_32: u32 = 10;

/// A function as bytes, with relocations by its own offsets (in `.text`, by the
/// section's).
pub(super) struct Emitted {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

/// The symbols that relocations may name.
pub(super) struct Symbols<'a> {
    object: &'a Object,
    /// Symbols of maps by section and offset.
    by_place: FxHashMap<(usize, u64), usize>,
    /// A symbol of each section, and its offset in it.
    of_section: FxHashMap<usize, (usize, u64)>,
    /// New symbols of a program's subprograms.
    pub subprograms: FxHashMap<(&'a str, usize), usize>,
}

impl<'a> Symbols<'a> {
    pub fn new(object: &'a Object) -> Self {
        let mut by_place = FxHashMap::default();
        let mut of_section: FxHashMap<usize, (usize, u64)> = FxHashMap::default();
        for (index, symbol) in object.elf.symbols.iter().enumerate() {
            if symbol.special || symbol.section == 0 {
                continue;
            }
            match symbol.kind {
                SymbolKind::Section => {
                    of_section.insert(symbol.section, (index, symbol.value));
                }
                SymbolKind::Object | SymbolKind::NoType => {
                    by_place
                        .entry((symbol.section, symbol.value))
                        .or_insert(index);
                    of_section
                        .entry(symbol.section)
                        .or_insert((index, symbol.value));
                }
                _ => {}
            }
        }
        Self {
            object,
            by_place,
            of_section,
            subprograms: FxHashMap::default(),
        }
    }

    /// Subprogram `index` of a program as bytes. `place` is its first slot in `.text`, if
    /// it goes there; `places` are those of all subprograms.
    pub fn emit(
        &self,
        program: &Program,
        index: usize,
        place: Option<u32>,
        places: &[Option<u32>],
    ) -> Result<Emitted, ObjectError> {
        let start = program.subprograms.get(index).map_or(0, |s| s.start);
        let len = len_of(program, index);
        let insns = program
            .insns
            .get(start as usize..)
            .and_then(|i| i.get(..len as usize));
        let Some(insns) = insns else {
            return Err(self.wrong(program, start, "is outside the program"));
        };
        let mut insns = insns.to_vec();
        let mut relocations = Vec::new();
        let first = program.refs.partition_point(|r| r.insn < start);
        let mut refs = program.refs.get(first..).unwrap_or(&[]).iter().peekable();
        let mut slot = 0;
        while let Some(&insn) = insns.get(slot as usize) {
            let wide = insn.is_ld_imm64();
            let at = start + slot;
            while refs.peek().is_some_and(|r| r.insn < at) {
                refs.next();
            }
            let target = refs.peek().filter(|r| r.insn == at).map(|r| &r.target);
            let mut pair = [
                insn,
                insns.get(slot as usize + 1).copied().unwrap_or_default(),
            ];
            let here = place.map(|place| i64::from(place) + i64::from(slot));
            let symbol = self.restore(program, at, &mut pair, target, here, places)?;
            for (to, from) in insns
                .iter_mut()
                .skip(slot as usize)
                .zip(pair)
                .take(1 + usize::from(wide))
            {
                *to = from;
            }
            if let Some(symbol) = symbol {
                let base = u64::from(place.unwrap_or(0));
                relocations.push(Relocation {
                    offset: (base + u64::from(slot)) * SLOT,
                    symbol,
                    kind: if wide { R_64_64 } else { R_64_32 },
                });
            }
            slot += 1 + u32::from(wide);
        }
        let big_endian = self.object.big_endian;
        let bytes = insns
            .iter()
            .flat_map(|i| {
                if big_endian {
                    i.to_be_bytes()
                } else {
                    i.to_le_bytes()
                }
            })
            .collect();
        Ok(Emitted { bytes, relocations })
    }

    fn wrong(&self, program: &Program, at: u32, what: &str) -> ObjectError {
        fail(format!(
            "prog '{}': instruction {at} {what}",
            program.decl.name
        ))
    }

    /// Takes back what linking did to an instruction, and gives the symbol that it is to
    /// be linked with again.
    fn restore(
        &self,
        program: &Program,
        at: u32,
        [first, second]: &mut [Insn; 2],
        target: Option<&RefTarget>,
        here: Option<i64>,
        places: &[Option<u32>],
    ) -> Result<Option<usize>, ObjectError> {
        let wide = first.is_ld_imm64();
        let is_call = first.code == code::JMP | code::CALL;
        let plain = |first: &mut Insn, second: &mut Insn, value: i32| {
            first.src = 0;
            first.imm = value;
            second.imm = 0;
        };
        let externs = &self.object.externs.list;
        match target {
            None => {
                let named_only = match first.src {
                    code::PSEUDO_CALL | code::PSEUDO_KFUNC_CALL if is_call => true,
                    code::PSEUDO_FUNC | code::PSEUDO_MAP_IDX | code::PSEUDO_MAP_IDX_VALUE => wide,
                    _ => false,
                };
                if named_only {
                    return Err(self.wrong(program, at, "refers to something that has no name"));
                }
                Ok(None)
            }
            Some(RefTarget::Poison { .. } | RefTarget::Core { .. }) => Ok(None),
            Some(RefTarget::Map(map)) if wide => {
                let (symbol, offset) = self
                    .map(*map as usize, first.src, second.imm)
                    .ok_or_else(|| self.wrong(program, at, "refers to a map without symbol"))?;
                plain(first, second, offset);
                Ok(Some(symbol))
            }
            Some(RefTarget::Kfunc { type_id, .. }) if wide || is_call => {
                let ext = externs.iter().find(
                    |e| matches!(e.kind, ExternKind::Function { type_id: t, .. } if t == *type_id),
                );
                let ext = ext.ok_or_else(|| {
                    self.wrong(program, at, "refers to a kernel function without symbol")
                })?;
                if wide {
                    plain(first, second, 0);
                } else {
                    (first.src, first.off, first.imm) = (code::PSEUDO_CALL, 0, -1);
                }
                Ok(Some(ext.symbol))
            }
            Some(RefTarget::Ksym { name, .. }) if wide => {
                let ext = externs.iter().find(|e| e.name == *name).ok_or_else(|| {
                    self.wrong(program, at, "refers to a kernel variable without symbol")
                })?;
                plain(first, second, 0);
                Ok(Some(ext.symbol))
            }
            Some(RefTarget::Subprogram(index)) if wide || is_call => {
                let index = *index as usize;
                let place = places.get(index).copied().flatten();
                let symbol = self.subprograms.get(&(program.decl.name.as_str(), index));
                let (Some(place), Some(&symbol)) = (place, symbol) else {
                    return Err(self.wrong(program, at, "calls what cannot be called"));
                };
                if wide {
                    plain(first, second, 0);
                    return Ok(Some(symbol));
                }
                match here {
                    // Inside `.text` calls are relative.
                    Some(here) => {
                        let distance = i64::from(place) - here - 1;
                        first.imm = i32::try_from(distance)
                            .map_err(|_| self.wrong(program, at, "calls too far"))?;
                        Ok(None)
                    }
                    None => {
                        first.imm = -1;
                        Ok(Some(symbol))
                    }
                }
            }
            Some(_) => Err(self.wrong(program, at, "cannot refer to anything")),
        }
    }

    /// The symbol that an instruction names a map, or a variable in it, by; and what is
    /// to be added to the symbol's place.
    fn map(&self, map: usize, src: u8, offset: i32) -> Option<(usize, i32)> {
        let object = self.object;
        let (def, site) = (object.maps.get(map)?, object.places.sites.get(map)?);
        if src == code::PSEUDO_MAP_IDX {
            return Some((*self.by_place.get(&(site.section, site.offset))?, 0));
        }
        if Some(map) == object.places.kconfig {
            let ext = object.externs.list.iter().find(|e| {
                matches!(&e.kind, ExternKind::Kconfig(var) if i64::from(var.offset) == i64::from(offset))
            });
            return Some((ext?.symbol, 0));
        }
        let section = match def.origin {
            MapOrigin::Data { .. } => site.section,
            MapOrigin::Arena { .. } => object.elf.section_by_name(ARENA_SECTION)?,
            _ => return None,
        };
        let &(symbol, value) = self.of_section.get(&section)?;
        Some((symbol, offset.wrapping_sub(value as u32 as i32)))
    }
}
