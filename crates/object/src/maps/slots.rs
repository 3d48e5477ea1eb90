//! Declared contents of maps of maps and program arrays: relocations in `.maps` that name
//! a map or a program for each element of the member `values`.

use bpfkit_btf::Kind;
use bpfkit_spec::MapType;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{MAPS, Maps, Source, fail, is_map_in_map};
use crate::elf::{Relocation, Symbol};
use crate::error::{ErrorKind, ObjectError};
use crate::functions::SLOT;
use crate::model::SlotValue;

/// Bytes of a pointer in an object.
const POINTER: u64 = 8;

/// More slots than this are refused; the kernel has no memory for them either.
const MOST_SLOTS: u64 = 1 << 24;

/// Fills in `slots` of all maps.
pub(super) fn collect(source: &Source<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let elf = source.elf;
    let Some(target) = elf.sections.iter().rposition(|s| s.name == MAPS) else {
        return Ok(());
    };
    let mut by_offset: Vec<(u64, usize)> = maps
        .sites
        .iter()
        .enumerate()
        .filter(|(_, site)| site.section == target)
        .map(|(map, site)| (site.offset, map))
        .collect();
    by_offset.sort_unstable();
    let by_name = maps
        .defs
        .iter()
        .enumerate()
        .rev()
        .map(|(i, def)| (def.name.clone(), i as u32));
    let lookup = Lookup {
        source,
        by_offset,
        maps: by_name.collect(),
        programs: source.programs.iter().map(|p| p.name.as_str()).collect(),
    };
    let mut slots = Vec::new();
    for section in elf
        .sections
        .iter()
        .filter(|s| s.is_rel() && s.info as usize == target)
    {
        for (number, relocation) in elf.relocations(section).enumerate() {
            let slot = lookup.slot(maps, number, relocation);
            slots.push(slot.map_err(|e| e.at(MAPS, relocation.offset))?);
        }
    }
    // The last relocation of a slot counts.
    slots.reverse();
    slots.sort_by_key(|&(map, slot, _)| (map, slot));
    slots.dedup_by_key(|(map, slot, _)| (*map, *slot));
    for (map, slot, value) in slots {
        if let Some(def) = maps.defs.get_mut(map) {
            def.slots.push((slot, value));
        }
    }
    Ok(())
}

/// What relocations are looked up in.
struct Lookup<'a> {
    source: &'a Source<'a>,
    /// Maps by the offset of their definition, in order.
    by_offset: Vec<(u64, usize)>,
    maps: FxHashMap<String, u32>,
    programs: FxHashSet<&'a str>,
}

impl Lookup<'_> {
    /// The map and slot that a relocation belongs to, and what it puts there.
    fn slot(
        &self,
        maps: &Maps,
        number: usize,
        relocation: Relocation,
    ) -> Result<(usize, u32, SlotValue), ObjectError> {
        let elf = self.source.elf;
        let Some(symbol) = elf.symbols.get(relocation.symbol) else {
            let message = format!(
                ".maps relo #{number}: symbol {:x} not found",
                relocation.symbol
            );
            return Err(ObjectError::new(ErrorKind::Malformed, message));
        };
        let name = elf.name(symbol);
        let index = self
            .by_offset
            .partition_point(|&(start, _)| start <= relocation.offset);
        let found = index
            .checked_sub(1)
            .and_then(|i| self.by_offset.get(i))
            .map(|&(_, map)| map);
        let found = found.and_then(|map| Some((map, maps.sites.get(map)?.clone())));
        let found = found.filter(|(_, site)| {
            relocation.offset.saturating_add(POINTER) <= site.offset.saturating_add(site.size)
        });
        let Some((map, site)) = found else {
            let offset = relocation.offset;
            return Err(fail(format!(
                ".maps relo #{number}: cannot find map '{name}' at rel->r_offset {offset}"
            )));
        };
        let value = self.value(maps, map, number, symbol)?;
        let values = self
            .source
            .btf
            .and_then(|btf| btf.type_by_id(site.type_id))
            .filter(|def| def.is(Kind::Struct))
            .and_then(|def| def.members().next_back())
            .filter(|member| member.name() == "values");
        let slot = values
            .and_then(|member| {
                (relocation.offset - site.offset).checked_sub(u64::from(member.bit_offset / 8))
            })
            .filter(|offset| offset.is_multiple_of(POINTER))
            .map(|offset| offset / POINTER)
            .filter(|&slot| slot < MOST_SLOTS);
        let Some(slot) = slot else {
            return Err(fail(format!(
                ".maps relo #{number}: '{name}' is not in 'values'"
            )));
        };
        // No more than MOST_SLOTS.
        Ok((map, slot as u32, value))
    }

    /// What a slot of that map holds, by the symbol that is put into it.
    fn value(
        &self,
        maps: &Maps,
        map: usize,
        number: usize,
        symbol: &Symbol,
    ) -> Result<SlotValue, ObjectError> {
        let source = self.source;
        let name = source.elf.name(symbol);
        let Some(def) = maps.defs.get(map) else {
            return Err(fail(String::new()));
        };
        let section = source
            .elf
            .sections
            .get(symbol.section)
            .map_or("", |s| s.name.as_str());
        if is_map_in_map(def.map_type) {
            if section != MAPS {
                return Err(fail(format!(
                    ".maps relo #{number}: '{name}' isn't a BTF-defined map"
                )));
            }
            if def.map_type == MapType::HashOfMaps && def.key_size != 4 {
                return Err(fail(format!(
                    ".maps relo #{number}: hash-of-maps '{}' should have key size 4.",
                    def.name
                )));
            }
            return self
                .maps
                .get(name)
                .copied()
                .map(SlotValue::Map)
                .ok_or_else(|| {
                    fail(format!(
                        ".maps relo #{number}: '{name}' isn't a valid map reference"
                    ))
                });
        }
        if def.map_type != MapType::ProgArray {
            return Err(fail(format!(
                ".maps relo #{number}: '{}' should be map-in-map or prog-array.",
                def.name
            )));
        }
        if !self.programs.contains(name) {
            return Err(fail(format!(
                ".maps relo #{number}: '{name}' isn't a valid program reference"
            )));
        }
        let entry = source.program_at(symbol.section, symbol.value);
        if entry.is_none_or(|(_, f)| u64::from(f.start) * SLOT != symbol.value) {
            return Err(fail(format!(
                ".maps relo #{number}: '{name}' isn't an entry-point program"
            )));
        }
        Ok(SlotValue::Program(name.to_owned()))
    }
}
