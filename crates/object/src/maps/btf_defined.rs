//! Maps that variables of `.maps` define: the variable's type is the definition.

use bpfkit_btf::{Btf, Kind, Linkage, Member, Type, VarSecinfo};
use bpfkit_spec::MapType;

use super::{MAPS, Maps, Site, Source, fail, is_map_in_map, map_type, ring_buffer_size};
use crate::elf::Elf;
use crate::error::{ErrorKind, ObjectError};
use crate::model::{MapDef, MapOrigin};

/// Reads the definitions of `.maps`.
pub(super) fn collect(source: &Source<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let elf = source.elf;
    let Some(index) = elf.sections.iter().rposition(|s| s.name == MAPS) else {
        return Ok(());
    };
    let Some(section) = elf.sections.get(index) else {
        return Ok(());
    };
    let btf = source.btf.ok_or_else(|| {
        ObjectError::new(
            ErrorKind::Btf,
            "BTF is required, but is missing or corrupted.",
        )
        .in_section(MAPS)
    })?;
    let datasec = btf
        .all_by_name(MAPS)
        .find(|t| t.is(Kind::Datasec))
        .ok_or_else(|| fail(format!("DATASEC '{MAPS}' not found.")).in_section(MAPS))?;
    for (number, variable) in datasec.variables().enumerate() {
        let at = |e: ObjectError| e.at(MAPS, u64::from(variable.offset));
        let (def, type_id) = define(btf, number, variable, section.size).map_err(at)?;
        let site = Site {
            section: index,
            offset: u64::from(variable.offset),
            size: u64::from(variable.size),
            type_id,
        };
        let place = (index, site.offset);
        let map = maps.add(def, site);
        maps.by_place.entry(place).or_insert(map);
    }
    find_arena(elf, maps)
}

/// The arena map and the variables that live in it.
fn find_arena(elf: &Elf, maps: &mut Maps) -> Result<(), ObjectError> {
    let data = elf
        .sections
        .iter()
        .find(|s| s.name == super::ARENA_SECTION && s.is_progbits() && s.size > 0 && !s.is_exec());
    let mut arena: Option<usize> = None;
    for (index, def) in maps.defs.iter_mut().enumerate() {
        if def.map_type != MapType::Arena {
            continue;
        }
        if arena.is_some() {
            return Err(fail(format!(
                "map '{}': only single ARENA map is supported",
                def.name
            ))
            .in_section(MAPS));
        }
        arena = Some(index);
        let Some(data) = data else { continue };
        let room = u64::from(def.max_entries) * 4096;
        if data.size.next_multiple_of(4096) > room {
            return Err(fail(format!(
                "elf: sec '{}': declared ARENA map size ({room}) is too small to hold global \
                 __arena variables of size {}",
                data.name, data.size
            ))
            .in_section(&data.name));
        }
        def.origin = MapOrigin::Arena {
            bytes: elf.data(data).to_vec(),
        };
    }
    if let (Some(data), None) = (data, arena) {
        return Err(fail(format!(
            "elf: sec '{}': to use global __arena variables the ARENA map should be explicitly \
             declared in SEC(\"{MAPS}\")",
            data.name
        ))
        .in_section(&data.name));
    }
    maps.arena = arena;
    Ok(())
}

/// The map that a variable defines, and the type of its definition.
fn define(
    btf: &Btf,
    number: usize,
    place: VarSecinfo,
    section_size: u64,
) -> Result<(MapDef, u32), ObjectError> {
    let missing = || fail(format!("map #{number}: no such type."));
    let var = btf.type_by_id(place.type_id).ok_or_else(missing)?;
    let name = var.name();
    if name.is_empty() {
        return Err(fail(format!("map #{number}: empty name.")));
    }
    if u64::from(place.offset) + u64::from(place.size) > section_size {
        return Err(fail(format!("map '{name}' BTF data is corrupted.")));
    }
    if !var.is(Kind::Var) {
        return Err(fail(format!(
            "map '{name}': unexpected var kind {}.",
            var.kind().name()
        )));
    }
    if var.linkage() != Some(Linkage::Global) {
        let linkage = match var.linkage() {
            Some(Linkage::Static) => "static",
            // To be linked with the object that defines it first.
            Some(Linkage::Extern) => {
                let message = format!("unrecognized extern section '{MAPS}'");
                return Err(ObjectError::new(ErrorKind::Extern, message));
            }
            _ => "unknown",
        };
        return Err(fail(format!(
            "map '{name}': unsupported map linkage {linkage}."
        )));
    }
    let def = btf.resolve(var.type_id()).ok_or_else(missing)?;
    if !def.is(Kind::Struct) {
        return Err(fail(format!(
            "map '{name}': unexpected def kind {}.",
            var.kind().name()
        )));
    }
    if def.size().is_none_or(|size| size > place.size) {
        return Err(fail(format!("map '{name}': invalid def size.")));
    }
    let mut fields = Fields::default();
    fields.read(btf, name, def, true)?;
    Ok((fields.into_map(name)?, def.id()))
}

/// The fields of a definition, 0 where absent.
#[derive(Default)]
struct Fields {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    numa_node: u32,
    key_type_id: u32,
    value_type_id: u32,
    pinning: u32,
    map_extra: u64,
    inner: Option<Box<Fields>>,
}

impl Fields {
    fn into_map(self, name: &str) -> Result<MapDef, ObjectError> {
        let map_type = map_type(name, self.map_type)?;
        let inner = match self.inner {
            Some(inner) => Some(Box::new(inner.into_map(&format!("{name}.inner"))?)),
            None => None,
        };
        let entries = ring_buffer_size(map_type, self.max_entries);
        Ok(MapDef {
            flags: self.map_flags,
            extra: self.map_extra,
            numa_node: self.numa_node,
            pin_by_name: self.pinning == 1,
            key_type_id: self.key_type_id,
            value_type_id: self.value_type_id,
            inner,
            ..MapDef::new(name, map_type, self.key_size, self.value_size, entries)
        })
    }

    /// Reads the members of a definition; `outer` ones may have values.
    fn read(
        &mut self,
        btf: &Btf,
        map: &str,
        def: Type<'_>,
        outer: bool,
    ) -> Result<(), ObjectError> {
        let count = def.members().len();
        for (i, member) in def.members().enumerate() {
            match member.name() {
                "type" => self.map_type = integer(btf, map, member)?,
                "max_entries" => self.max_entries = integer(btf, map, member)?,
                "map_flags" => self.map_flags = integer(btf, map, member)?,
                "numa_node" => self.numa_node = integer(btf, map, member)?,
                "key_size" => agree(map, "key", &mut self.key_size, integer(btf, map, member)?)?,
                "value_size" => {
                    agree(
                        map,
                        "value",
                        &mut self.value_size,
                        integer(btf, map, member)?,
                    )?;
                }
                "key" => {
                    let (size, id) = sized_type(btf, map, "key", member)?;
                    agree(map, "key", &mut self.key_size, size)?;
                    self.key_type_id = id;
                }
                "value" => {
                    let (size, id) = sized_type(btf, map, "value", member)?;
                    agree(map, "value", &mut self.value_size, size)?;
                    self.value_type_id = id;
                }
                "values" if !outer => {
                    return Err(fail(format!(
                        "map '{map}': multi-level inner maps not supported."
                    )));
                }
                "values" if i + 1 != count => {
                    return Err(fail(format!(
                        "map '{map}': 'values' member should be last."
                    )));
                }
                "values" => self.read_values(btf, map, member)?,
                "pinning" if !outer => {
                    return Err(fail(format!("map '{map}': inner def can't be pinned.")));
                }
                "pinning" => {
                    self.pinning = integer(btf, map, member)?;
                    if self.pinning > 1 {
                        let value = self.pinning;
                        return Err(fail(format!("map '{map}': invalid pinning value {value}.")));
                    }
                }
                "map_extra" => self.map_extra = long(btf, map, member)?,
                other => return Err(fail(format!("map '{map}': unknown field '{other}'."))),
            }
        }
        if self.map_type == 0 {
            return Err(fail(format!("map '{map}': map type isn't specified.")));
        }
        Ok(())
    }

    /// The member `values`: for maps of maps the inner definition; for both those and
    /// program arrays, relocations say what is in the slots.
    fn read_values(&mut self, btf: &Btf, map: &str, member: Member<'_>) -> Result<(), ObjectError> {
        let map_type = MapType::from_u32(self.map_type);
        let holds_maps = map_type.is_some_and(is_map_in_map);
        if !holds_maps && map_type != Some(MapType::ProgArray) {
            return Err(fail(format!(
                "map '{map}': should be map-in-map or prog-array."
            )));
        }
        let what = if holds_maps {
            "map-in-map inner"
        } else {
            "prog-array value"
        };
        agree(map, "value", &mut self.value_size, 4)?;
        let not_found = || {
            fail(format!(
                "map '{map}': {what} type [{}] not found.",
                member.type_id
            ))
        };
        let array = btf
            .type_by_id(member.type_id)
            .ok_or_else(not_found)?
            .array()
            .filter(|array| array.count == 0)
            .ok_or_else(|| {
                fail(format!(
                    "map '{map}': {what} spec is not a zero-sized array."
                ))
            })?;
        let pointer = btf.resolve(array.element).ok_or_else(not_found)?;
        if !pointer.is(Kind::Ptr) {
            let kind = pointer.kind().name();
            return Err(fail(format!(
                "map '{map}': {what} def is of unexpected kind {kind}."
            )));
        }
        let def = btf.resolve(pointer.type_id()).ok_or_else(not_found)?;
        let expected = if holds_maps {
            Kind::Struct
        } else {
            Kind::FuncProto
        };
        if !def.is(expected) {
            let kind = def.kind().name();
            return Err(fail(format!(
                "map '{map}': {what} def is of unexpected kind {kind}."
            )));
        }
        if holds_maps {
            let mut inner = Fields::default();
            inner.read(btf, &format!("{map}.inner"), def, false)?;
            self.inner = Some(Box::new(inner));
        }
        Ok(())
    }
}

/// Sets a size, which two fields may give if they agree.
fn agree(map: &str, what: &str, size: &mut u32, value: u32) -> Result<(), ObjectError> {
    if *size != 0 && *size != value {
        return Err(fail(format!(
            "map '{map}': conflicting {what} size {size} != {value}."
        )));
    }
    *size = value;
    Ok(())
}

/// A number, which a definition writes as the dimension of an array behind a pointer.
fn integer(btf: &Btf, map: &str, member: Member<'_>) -> Result<u32, ObjectError> {
    let name = member.name();
    let t = btf
        .resolve(member.type_id)
        .ok_or_else(|| fail(format!("map '{map}': attr '{name}': type loops.")))?;
    if !t.is(Kind::Ptr) {
        let kind = t.kind().name();
        return Err(fail(format!(
            "map '{map}': attr '{name}': expected PTR, got {kind}."
        )));
    }
    let Some(pointee) = t.target() else {
        let id = t.type_id();
        return Err(fail(format!(
            "map '{map}': attr '{name}': type [{id}] not found."
        )));
    };
    let Some(array) = pointee.array() else {
        let kind = pointee.kind().name();
        return Err(fail(format!(
            "map '{map}': attr '{name}': expected ARRAY, got {kind}."
        )));
    };
    Ok(array.count)
}

/// A number of 64 bits: as [`integer`], or as the only value of an enumeration.
fn long(btf: &Btf, map: &str, member: Member<'_>) -> Result<u64, ObjectError> {
    let name = member.name();
    let t = btf
        .resolve(member.type_id)
        .ok_or_else(|| fail(format!("map '{map}': attr '{name}': type loops.")))?;
    if t.is(Kind::Ptr) {
        return integer(btf, map, member).map(u64::from);
    }
    if !t.kind().is_enum() {
        let kind = t.kind().name();
        return Err(fail(format!(
            "map '{map}': attr '{name}': expected ENUM or ENUM64, got {kind}."
        )));
    }
    let mut values = t.enum_values();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value.bits),
        _ => Err(fail(format!("map '{map}': attr '{name}': invalid __ulong"))),
    }
}

/// Size and id of the type that a pointer names.
fn sized_type(
    btf: &Btf,
    map: &str,
    what: &str,
    member: Member<'_>,
) -> Result<(u32, u32), ObjectError> {
    let Some(t) = btf.type_by_id(member.type_id) else {
        let id = member.type_id;
        return Err(fail(format!("map '{map}': {what} type [{id}] not found.")));
    };
    if !t.is(Kind::Ptr) {
        let kind = t.kind().name();
        return Err(fail(format!(
            "map '{map}': {what} spec is not PTR: {kind}."
        )));
    }
    let id = t.type_id();
    // -22 is the errno that libbpf prints.
    let size = btf.size_of(id).ok_or_else(|| {
        fail(format!(
            "map '{map}': can't determine {what} size for type [{id}]: -22."
        ))
    })?;
    Ok((size, id))
}
