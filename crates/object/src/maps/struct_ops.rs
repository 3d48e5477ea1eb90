//! Maps of `.struct_ops` sections: each variable is an implementation of a kernel
//! structure of functions.

use std::sync::Arc;

use bpfkit_btf::{Btf, Kind, Member, Type, essential_name};
use bpfkit_spec::{MapType, ProgType};
use rustc_hash::FxHashMap;

use super::{F_LINK, Maps, Site, Source, fail, single};
use crate::elf::{Relocation, Section};
use crate::error::{ErrorKind, ObjectError};
use crate::functions::SLOT;
use crate::model::{MapDef, MapOrigin};
use crate::target::Target;

/// Section of structures attached without a link.
const PLAIN: &str = ".struct_ops";
/// Section of structures attached through a link.
const LINK: &str = ".struct_ops.link";

fn is_struct_ops(section: &Section) -> bool {
    let name = section.name.strip_prefix('?').unwrap_or(&section.name);
    section.is_progbits() && section.size > 0 && !section.is_exec() && matches!(name, PLAIN | LINK)
}

/// Reads the variables of all `.struct_ops` sections.
pub(super) fn collect(source: &Source<'_>, maps: &mut Maps) -> Result<(), ObjectError> {
    let elf = source.elf;
    let found: Vec<usize> = (0..elf.sections.len())
        .filter(|&i| elf.sections.get(i).is_some_and(is_struct_ops))
        .collect();
    for index in found {
        let Some(section) = elf.sections.get(index) else {
            continue;
        };
        let at = |e: ObjectError| e.in_section(&section.name);
        let btf = source.btf.ok_or_else(|| {
            at(ObjectError::new(
                ErrorKind::Btf,
                "BTF is required, but is missing or corrupted.",
            ))
        })?;
        let first = maps.defs.len();
        variables(btf, section, index, elf.data(section), maps).map_err(at)?;
        let members = members_of(btf, maps.sites.get(first..).unwrap_or(&[]));
        for relocs in elf
            .sections
            .iter()
            .filter(|s| s.is_rel() && s.info as usize == index)
        {
            for relocation in elf.relocations(relocs) {
                program(source, btf, maps, first, &members, relocation)
                    .map_err(|e| e.at(&section.name, relocation.offset))?;
            }
        }
    }
    Ok(())
}

/// The members of all structures, by type and byte offset.
fn members_of<'a>(btf: &'a Btf, sites: &[Site]) -> FxHashMap<(u32, u32), Member<'a>> {
    let mut members = FxHashMap::default();
    let mut types: Vec<u32> = sites.iter().map(|site| site.type_id).collect();
    types.sort_unstable();
    types.dedup();
    for t in types.into_iter().filter_map(|id| btf.type_by_id(id)) {
        for member in t.members() {
            if let Some(offset) = member.byte_offset() {
                members.entry((t.id(), offset)).or_insert(member);
            }
        }
    }
    members
}

fn variables(
    btf: &Btf,
    section: &Section,
    index: usize,
    data: &[u8],
    maps: &mut Maps,
) -> Result<(), ObjectError> {
    let name = &section.name;
    let datasec = btf
        .by_name(name, Kind::Datasec)
        .ok_or_else(|| fail(format!("struct_ops init: DATASEC {name} not found")))?;
    for v in datasec.variables() {
        let var_name = btf.type_by_id(v.type_id).map_or("", Type::name);
        let t = btf
            .type_by_id(v.type_id)
            .and_then(|var| btf.resolve(var.type_id()))
            .ok_or_else(|| {
                fail(format!(
                    "struct_ops init: Cannot resolve var type_id {} in DATASEC {name}",
                    v.type_id
                ))
            })?;
        let type_name = t.name();
        if type_name.is_empty() {
            return Err(fail(
                "struct_ops init: anonymous type is not supported".into(),
            ));
        }
        let Some(size) = t.size().filter(|_| t.is(Kind::Struct)) else {
            return Err(fail(format!(
                "struct_ops init: {type_name} is not a struct"
            )));
        };
        let start = v.offset as usize;
        let bytes = start
            .checked_add(size as usize)
            .and_then(|end| data.get(start..end));
        let Some(bytes) = bytes else {
            return Err(fail(format!(
                "struct_ops init: var {var_name} is beyond the end of DATASEC {name}"
            )));
        };
        let origin = MapOrigin::StructOps {
            kernel_type: type_name.to_owned(),
            bytes: bytes.to_vec(),
            programs: Vec::new(),
        };
        let mut def = single(var_name.to_owned(), MapType::StructOps, size, origin);
        def.value_type_id = t.id();
        def.autocreate = !name.starts_with('?');
        if name.ends_with(LINK) {
            def.flags = F_LINK;
        }
        let site = Site {
            section: index,
            offset: u64::from(v.offset),
            size: u64::from(size),
            type_id: t.id(),
        };
        maps.add(def, site);
    }
    Ok(())
}

/// Notes the program that a relocation puts behind a function pointer.
fn program(
    source: &Source<'_>,
    btf: &Btf,
    maps: &mut Maps,
    first: usize,
    members: &FxHashMap<(u32, u32), Member<'_>>,
    relocation: Relocation,
) -> Result<(), ObjectError> {
    let elf = source.elf;
    let Some(symbol) = elf.symbols.get(relocation.symbol) else {
        let message = format!("struct_ops reloc: symbol {:x} not found", relocation.symbol);
        return Err(ObjectError::new(ErrorKind::Malformed, message));
    };
    let sites = maps.sites.get(first..).unwrap_or(&[]);
    // Sorted: BTF lists the variables of a section by their offset.
    let after = sites.partition_point(|site| site.offset <= relocation.offset);
    let found = after
        .checked_sub(1)
        .and_then(|i| Some((first + i, sites.get(i)?)));
    let found = found.filter(|(_, site)| relocation.offset - site.offset < site.size);
    let Some((map, site)) = found else {
        return Err(fail(format!(
            "struct_ops reloc: cannot find map at rel->r_offset {}",
            relocation.offset
        )));
    };
    // Less than the site's size, which is 32 bits.
    let member_offset = (relocation.offset - site.offset) as u32;
    let type_id = site.type_id;
    let Some(def) = maps.defs.get_mut(map) else {
        return Ok(());
    };
    let name = &def.name;
    let wrong = |message: String| ObjectError::new(ErrorKind::Relocation, message);
    if symbol.special {
        return Err(wrong(format!(
            "struct_ops reloc {name}: rel->r_offset {} shdr_idx unsupported non-static function",
            relocation.offset
        )));
    }
    if !symbol.value.is_multiple_of(SLOT) {
        return Err(wrong(format!(
            "struct_ops reloc {name}: invalid target program offset {}",
            symbol.value
        )));
    }
    let member = members.get(&(type_id, member_offset)).ok_or_else(|| {
        fail(format!(
            "struct_ops reloc {name}: cannot find member at moff {member_offset}"
        ))
    })?;
    if function_pointer(btf, member.type_id).is_none() {
        let member = member.name();
        return Err(fail(format!(
            "struct_ops reloc {name}: cannot relocate non func ptr {member}"
        )));
    }
    let program = source
        .program_at(symbol.section, symbol.value)
        .map(|(program, _)| program);
    let Some(program) = program else {
        return Err(fail(format!(
            "struct_ops reloc {name}: cannot find prog at shdr_idx {} to relocate func ptr {}",
            symbol.section,
            member.name()
        )));
    };
    if program.prog_type != ProgType::StructOps {
        return Err(fail(format!(
            "struct_ops reloc {name}: prog {} is not struct_ops BPF program",
            program.name
        )));
    }
    if let MapOrigin::StructOps { programs, .. } = &mut def.origin {
        programs.push((member_offset, program.name.clone()));
    }
    Ok(())
}

/// The prototype behind a function pointer.
fn function_pointer(btf: &Btf, id: u32) -> Option<Type<'_>> {
    let pointer = btf.resolve(id).filter(|t| t.is(Kind::Ptr))?;
    btf.resolve(pointer.type_id())
        .filter(|t| t.is(Kind::FuncProto))
}

/// The kernel's side of a struct_ops map: where each member of the object's structure
/// goes.
pub(crate) struct KernelLayout<'a> {
    /// The kernel's structure, for instance `tcp_congestion_ops`.
    pub kernel_type: Type<'a>,
    /// What the map's value is: `bpf_struct_ops_` and that name.
    pub value_type: Type<'a>,
    /// Index in [`Target::modules`] of the BTF of both.
    pub module: Option<u32>,
    /// Byte offset of the structure in the value.
    data_offset: u32,
}

impl<'a> KernelLayout<'a> {
    /// Finds the kernel's types for a structure of that name.
    pub fn find(kernel: &'a Btf, target: &Target<'a>, name: &str) -> Result<Self, ObjectError> {
        let fail = |message: String| ObjectError::new(ErrorKind::Attach, message);
        let name = essential_name(name);
        let value_name = format!("bpf_struct_ops_{name}");
        let in_kernel = kernel
            .by_name(&value_name, Kind::Struct)
            .map(|t| (None, kernel, t));
        let found = in_kernel.or_else(|| {
            target.modules.iter().enumerate().find_map(|(i, module)| {
                let btf: &'a Btf = Arc::as_ref(&module.btf);
                let t = btf.by_name(&value_name, Kind::Struct)?;
                Some((u32::try_from(i).ok(), btf, t))
            })
        });
        let Some((module, btf, value_type)) = found else {
            return Err(fail(format!(
                "struct_ops init_kern: struct {value_name} is not found in kernel BTF"
            )));
        };
        let Some(kernel_type) = btf.by_name(name, Kind::Struct) else {
            return Err(fail(format!(
                "struct_ops init_kern: struct {name} is not found in kernel BTF"
            )));
        };
        let data = value_type.members().find(|m| m.type_id == kernel_type.id());
        let Some(data) = data else {
            return Err(fail(format!(
                "struct_ops init_kern: struct {name} data is not found in struct {value_name}"
            )));
        };
        Ok(Self {
            kernel_type,
            value_type,
            module,
            data_offset: data.bit_offset / 8,
        })
    }

    /// Copies a map's initial contents into the kernel's layout, and gives for each of
    /// its programs the index of the member in the kernel's structure.
    pub fn convert(
        &self,
        local: &Btf,
        def: &MapDef,
    ) -> Result<(MapDef, Vec<(String, u32)>), ObjectError> {
        let MapOrigin::StructOps {
            kernel_type,
            bytes,
            programs,
        } = &def.origin
        else {
            return Ok((def.clone(), Vec::new()));
        };
        let map = &def.name;
        let fail = |what: String| {
            ObjectError::new(
                ErrorKind::Map,
                format!("struct_ops init_kern {map}: {what}"),
            )
        };
        let size = self
            .value_type
            .size()
            .filter(|&size| size <= 1 << 24)
            .unwrap_or(0);
        let mut value = vec![0; size as usize];
        let (mut kernel_programs, mut members) = (Vec::new(), Vec::new());
        let Some(local_type) = local.type_by_id(def.value_type_id) else {
            return Err(fail(format!("no type [{}]", def.value_type_id)));
        };
        let kernel = self.kernel_type.btf();
        let programs: FxHashMap<u32, &String> = programs.iter().map(|(at, p)| (*at, p)).collect();
        for member in local_type.members() {
            let name = member.name();
            let offset = member.bit_offset / 8;
            let Some(size) = local.size_of(member.type_id) else {
                return Err(fail(format!("failed to resolve the size of member {name}")));
            };
            let data = bytes
                .get(offset as usize..)
                .and_then(|b| b.get(..size as usize));
            let data = data.unwrap_or(&[]);
            let program = programs.get(&offset);
            let found = self
                .kernel_type
                .members()
                .enumerate()
                .find(|(_, m)| m.name() == name);
            let Some((kernel_index, kernel_member)) = found else {
                if data.iter().any(|&b| b != 0) || program.is_some() {
                    return Err(fail(format!("Cannot find member {name} in kernel BTF")));
                }
                continue;
            };
            if member.bitfield_size != 0 || kernel_member.bitfield_size != 0 {
                return Err(fail(format!("bitfield {name} is not supported")));
            }
            let (here, there) = (
                local.resolve(member.type_id),
                kernel.resolve(kernel_member.type_id),
            );
            let (Some(here), Some(there)) = (here, there) else {
                return Err(fail(format!("failed to resolve member {name}")));
            };
            if here.kind() != there.kind() {
                return Err(fail(format!(
                    "Unmatched member type {name} {} != {}(kernel)",
                    here.kind() as u8,
                    there.kind() as u8
                )));
            }
            let to = self
                .data_offset
                .saturating_add(kernel_member.bit_offset / 8);
            if here.is(Kind::Ptr) {
                let Some(&program) = program else { continue };
                if function_pointer(kernel, kernel_member.type_id).is_none() {
                    return Err(fail(format!("kernel member {name} is not a func ptr")));
                }
                kernel_programs.push((to, program.clone()));
                members.push((program.clone(), kernel_index as u32));
                continue;
            }
            let kernel_size = kernel.size_of(there.id());
            if kernel_size != Some(size) {
                let kernel_size = kernel_size.map_or(-1, i64::from);
                return Err(fail(format!(
                    "Error in size of member {name}: {size} != {kernel_size}(kernel)"
                )));
            }
            let to = value
                .get_mut(to as usize..)
                .and_then(|v| v.get_mut(..data.len()));
            if let Some(to) = to {
                to.copy_from_slice(data);
            }
        }
        let origin = MapOrigin::StructOps {
            kernel_type: kernel_type.clone(),
            bytes: value,
            programs: kernel_programs,
        };
        Ok((
            MapDef {
                value_size: size,
                origin,
                ..def.clone()
            },
            members,
        ))
    }
}
