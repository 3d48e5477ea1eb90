//! Maps that hold global variables: one value that is a whole section.

use bpfkit_btf::{Btf, Kind, Linkage};
use bpfkit_spec::MapType;
use rustc_hash::FxHashMap;

use super::{F_MMAPABLE, F_RDONLY_PROG, Maps, Site, Source, single};
use crate::elf::{Section, SymbolKind};
use crate::error::{ErrorKind, ObjectError};
use crate::externs::KCONFIG;
use crate::model::{Global, MapOrigin};

/// Section of the variables that live in the arena.
pub(crate) const ARENA_SECTION: &str = ".addr_space.1";

/// Longest map name of the kernel (`BPF_OBJ_NAME_LEN` less the NUL).
const NAME_LEN: usize = 15;

/// What programs may do with a data section, `None` for any other section.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    ReadWrite,
}

fn access(section: &Section) -> Option<Access> {
    let is = |base: &str| {
        section
            .name
            .strip_prefix(base)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if section.size == 0 || section.is_exec() {
        return None;
    }
    if section.is_progbits() && is(".rodata") {
        return Some(Access::Read);
    }
    let writable = section.is_progbits() && is(".data") || section.is_nobits() && is(".bss");
    writable.then_some(Access::ReadWrite)
}

/// Whether the section becomes a map of global variables.
pub(crate) fn is_data_section(section: &Section) -> bool {
    access(section).is_some()
}

/// Makes a map of each data section, and one of the configuration variables.
pub(super) fn collect(source: &Source<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    for (index, section) in source.elf.sections.iter().enumerate() {
        let Some(access) = access(section) else {
            continue;
        };
        let bytes = if section.is_nobits() {
            // Bounded when the section was read.
            vec![0; section.size as usize]
        } else {
            source.elf.data(section).to_vec()
        };
        let flags = if access == Access::Read {
            F_RDONLY_PROG
        } else {
            0
        };
        let map = add(source, maps, &section.name, index, bytes, flags)?;
        maps.by_section.insert(index, map);
    }
    if source.externs.kconfig().next().is_some() {
        let bytes = vec![0; source.externs.kconfig_size as usize];
        maps.kconfig = Some(add(source, maps, KCONFIG, 0, bytes, F_RDONLY_PROG)?);
    }
    Ok(())
}

fn add(
    source: &Source<'_>,
    maps: &mut Maps,
    section: &str,
    index: usize,
    bytes: Vec<u8>,
    mut flags: u32,
) -> Result<usize, ObjectError> {
    let Ok(size) = u32::try_from(bytes.len()) else {
        let message = format!(
            "sec '{section}': too large for a map: {} bytes",
            bytes.len()
        );
        return Err(ObjectError::new(ErrorKind::Map, message).in_section(section));
    };
    // libbpf takes the first type of that name, of any kind.
    let type_id = source
        .btf
        .and_then(|btf| Some(btf.all_by_name(section).next()?.id()));
    if let (Some(btf), Some(id)) = (source.btf, type_id)
        && has_visible_variable(btf, id)
    {
        flags |= F_MMAPABLE;
    }
    let origin = MapOrigin::Data {
        section: section.to_owned(),
        bytes,
    };
    let mut def = single(map_name(source.name, section), MapType::Array, size, origin);
    def.flags = flags;
    def.value_type_id = type_id.unwrap_or(0);
    let type_id = def.value_type_id;
    Ok(maps.add(
        def,
        Site {
            section: index,
            offset: 0,
            size: u64::from(size),
            type_id,
        },
    ))
}

/// Whether user space may want to map the section: a variable in it is neither static nor
/// hidden.
fn has_visible_variable(btf: &Btf, id: u32) -> bool {
    btf.type_by_id(id).is_some_and(|section| {
        section.variables().any(|v| {
            btf.type_by_id(v.type_id)
                .is_some_and(|t| t.is(Kind::Var) && t.linkage() != Some(Linkage::Static))
        })
    })
}

/// The object's name as libbpf takes it from a path: up to the first dot, 15 bytes.
pub(crate) fn object_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split('.').next().unwrap_or(file);
    stem.get(..NAME_LEN).unwrap_or_else(|| {
        // Longer, or a character straddles the limit: cut before it.
        let end = (0..=NAME_LEN.min(stem.len()))
            .rev()
            .find(|&i| stem.is_char_boundary(i));
        stem.get(..end.unwrap_or(0)).unwrap_or("")
    })
}

/// libbpf's name for the map of a data section: the section's, after as much of the
/// object's as leaves room for 7 bytes of it or more. Sections with a name of their own
/// (`.data.x`) stand alone, and are cut only for the kernel; `.bss.x` is cut here too.
fn map_name(object: &str, section: &str) -> String {
    if section.starts_with(".data.") || section.starts_with(".rodata.") {
        return section.to_owned();
    }
    let suffix_len = section.len().clamp(7, NAME_LEN);
    let has_own_name = section.bytes().skip(1).any(|b| b == b'.');
    let prefix_len = if has_own_name {
        0
    } else {
        NAME_LEN - suffix_len
    };
    let bytes = object
        .bytes()
        .take(prefix_len)
        .chain(section.bytes().take(suffix_len));
    bytes
        .map(|b| match b {
            b'_' | b'.' => char::from(b),
            b if b.is_ascii_alphanumeric() => char::from(b),
            _ => '_',
        })
        .collect()
}

/// Lists the variables that the symbols of data sections name, and those of `.kconfig`.
pub(super) fn globals(source: &Source<'_>, maps: &mut Maps) {
    let elf = source.elf;
    let types = source.btf.map(types_of_variables).unwrap_or_default();
    let arena_section = elf.section_by_name(ARENA_SECTION);
    for symbol in elf
        .symbols
        .iter()
        .filter(|s| s.kind == SymbolKind::Object && !s.special)
    {
        let map = match maps.by_section.get(&symbol.section) {
            Some(&map) => Some(map),
            None if Some(symbol.section) == arena_section => maps.arena,
            None => None,
        };
        let Some(map) = map else { continue };
        let size = elf.sections.get(symbol.section).map_or(0, |s| s.size);
        let end = symbol
            .value
            .checked_add(symbol.size)
            .filter(|&end| end <= size);
        let range = end.and_then(|end| Some(symbol.value.try_into().ok()?..end.try_into().ok()?));
        let (Some(range), Some(section)) = (range, elf.sections.get(symbol.section)) else {
            continue;
        };
        let name = elf.name(symbol);
        let type_id = types
            .get(&(section.name.as_str(), name))
            .copied()
            .unwrap_or(0);
        maps.globals.push(Global {
            name: name.to_owned(),
            map: map as u32,
            range,
            type_id,
        });
    }
    if let Some(map) = maps.kconfig {
        for var in source.externs.kconfig() {
            let range = var.offset..var.offset.saturating_add(var.size);
            let type_id = types
                .get(&(KCONFIG, var.name.as_str()))
                .copied()
                .unwrap_or(0);
            let name = var.name.clone();
            maps.globals.push(Global {
                name,
                map: map as u32,
                range,
                type_id,
            });
        }
    }
}

/// Type of each variable, by section and name.
fn types_of_variables(btf: &Btf) -> FxHashMap<(&str, &str), u32> {
    let mut types = FxHashMap::default();
    for section in btf.own_types().filter(|t| t.is(Kind::Datasec)) {
        for v in section.variables() {
            let Some(var) = btf.type_by_id(v.type_id).filter(|t| t.is(Kind::Var)) else {
                continue;
            };
            types
                .entry((section.name(), var.name()))
                .or_insert(var.type_id());
        }
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_data_maps_are_libbpfs() {
        let name = |path, section| map_name(object_name(path), section);
        assert_eq!(
            name("dir/my_object_name.bpf.o", ".rodata"),
            "my_objec.rodata"
        );
        assert_eq!(name("my_object_name.o", ".bss"), "my_objec.bss");
        assert_eq!(name("my_object_name.o", ".kconfig"), "my_obje.kconfig");
        assert_eq!(name("x.o", ".data"), "x.data");
        assert_eq!(name("x.o", ".rodata.abracadabra"), ".rodata.abracadabra");
        assert_eq!(name("a-b.o", ".bss.counters.of.x"), ".bss.counters.o");
        assert_eq!(name("a-b.o", ".data"), "a_b.data");
    }
}
