//! Maps of the older `maps` section: an array of `struct bpf_map_def`, or of iproute2's
//! longer `struct bpf_elf_map`. libbpf 1.x refuses them; older objects are full of them.

use bpfkit_btf::{Btf, Kind};

use super::{LEGACY_MAPS, Maps, Site, Source, fail, is_map_in_map, map_type, ring_buffer_size};
use crate::elf::{Symbol, SymbolKind};
use crate::error::ObjectError;
use crate::model::{MapDef, MapOrigin};

/// Bytes of the fields that both structures have: type, key size, value size, entries,
/// flags.
const KNOWN: usize = 20;

/// iproute2's `PIN_GLOBAL_NS`, which is pinning by name.
const PIN_GLOBAL: u32 = 2;

/// Reads the definitions of `maps`: one a symbol, all of the same size.
pub(super) fn collect(source: &Source<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let elf = source.elf;
    let Some(index) = elf.section_by_name(LEGACY_MAPS) else {
        return Ok(());
    };
    let Some(section) = elf.sections.get(index) else {
        return Ok(());
    };
    let mut symbols: Vec<&Symbol> = elf
        .symbols
        .iter()
        .filter(|s| s.section == index && !s.special)
        .filter(|s| matches!(s.kind, SymbolKind::Object | SymbolKind::NoType))
        .filter(|s| !elf.name(s).is_empty())
        .collect();
    symbols.sort_by_key(|s| s.value);
    symbols.dedup_by_key(|s| s.value);
    let data = elf.data(section);
    let Some(size) = data.len().checked_div(symbols.len()) else {
        return Ok(());
    };
    if size < KNOWN - 4 || !data.len().is_multiple_of(symbols.len()) {
        return Err(fail(format!(
            "unable to determine legacy map definition size: {} maps in {} bytes",
            symbols.len(),
            data.len()
        ))
        .in_section(LEGACY_MAPS));
    }
    let mut ids = Vec::new();
    for symbol in symbols {
        let name = elf.name(symbol);
        let at = |e: ObjectError| e.at(LEGACY_MAPS, symbol.value);
        let start = usize::try_from(symbol.value).unwrap_or(usize::MAX);
        let bytes = start.checked_add(size).and_then(|end| data.get(start..end));
        let Some(bytes) = bytes else {
            return Err(at(fail(format!(
                "corrupted maps section: last map \"{name}\" too small"
            ))));
        };
        let field = |i: usize| elf.u32_at(bytes, 4 * i).unwrap_or(0);
        let map_type = map_type(name, field(0)).map_err(at)?;
        let (key_type_id, value_type_id) = source
            .btf
            .and_then(|btf| annotated_types(btf, name))
            .unwrap_or((0, 0));
        let entries = ring_buffer_size(map_type, field(3));
        let def = MapDef {
            flags: field(4),
            pin_by_name: field(6) == PIN_GLOBAL,
            key_type_id,
            value_type_id,
            origin: MapOrigin::Legacy,
            ..MapDef::new(name, map_type, field(1), field(2), entries)
        };
        let site = Site {
            section: index,
            offset: symbol.value,
            size: size as u64,
            type_id: 0,
        };
        let map = maps.add(def, site);
        maps.by_place.insert((index, symbol.value), map);
        ids.push((map, field(5), field(7)));
    }
    inner_maps(maps, &ids);
    Ok(())
}

/// Gives maps of maps the definition that iproute2's `inner_id` names by its `id`.
fn inner_maps(maps: &mut Maps, ids: &[(usize, u32, u32)]) {
    for &(map, _, inner_id) in ids {
        let wants = maps
            .defs
            .get(map)
            .is_some_and(|def| is_map_in_map(def.map_type));
        if !wants || inner_id == 0 {
            continue;
        }
        let inner = ids
            .iter()
            .find(|&&(other, id, _)| id == inner_id && other != map);
        let inner = inner.and_then(|&(other, ..)| maps.defs.get(other)).cloned();
        if let (Some(def), Some(mut inner)) = (maps.defs.get_mut(map), inner) {
            inner.inner = None;
            def.inner = Some(Box::new(inner));
        }
    }
}

/// Key and value type by the `BPF_ANNOTATE_KV_PAIR` macro of the time: a structure
/// `____btf_map_<name>` with members `key` and `value`.
fn annotated_types(btf: &Btf, map: &str) -> Option<(u32, u32)> {
    let name = format!("____btf_map_{map}");
    let pair = btf.by_name(&name, Kind::Struct)?;
    Some((
        pair.member_by_name("key")?.type_id,
        pair.member_by_name("value")?.type_id,
    ))
}
