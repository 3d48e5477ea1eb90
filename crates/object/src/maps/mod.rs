//! The maps that an object defines, in libbpf's order: `.maps`, the older `maps`, data
//! sections, `.kconfig`, `.struct_ops`.

mod btf_defined;
mod data;
mod legacy;
mod slots;
mod struct_ops;

use bpfkit_btf::Btf;
use bpfkit_spec::MapType;
use rustc_hash::FxHashMap;

use crate::elf::Elf;
use crate::error::{ErrorKind, ObjectError};
use crate::externs::Externs;
use crate::functions::{Function, Functions, SLOT};
use crate::model::{Global, MapDef, MapOrigin, ProgramDecl};

pub(crate) use data::{ARENA_SECTION, is_data_section, object_name};
pub(crate) use struct_ops::KernelLayout;

/// Section of BTF-defined maps.
pub(crate) const MAPS: &str = ".maps";
/// Section of maps that the older `struct bpf_map_def` defines.
const LEGACY_MAPS: &str = "maps";

/// `BPF_F_RDONLY_PROG` of map creation.
const F_RDONLY_PROG: u32 = 1 << 7;
/// `BPF_F_MMAPABLE` of map creation.
const F_MMAPABLE: u32 = 1 << 10;
/// `BPF_F_LINK` of map creation.
const F_LINK: u32 = 1 << 13;

/// What the maps are found in.
pub(crate) struct Source<'a> {
    pub elf: &'a Elf,
    pub btf: Option<&'a Btf>,
    pub functions: &'a Functions,
    pub programs: &'a [ProgramDecl],
    /// Index in `programs` of each function that is a program.
    pub entries: &'a [Option<usize>],
    pub externs: &'a Externs,
    /// The object's name, as libbpf cuts it for the names of data maps.
    pub name: &'a str,
}

/// The maps of an object and where in it they stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    pub defs: Vec<MapDef>,
    /// For each map, where it is defined.
    pub sites: Vec<Site>,
    pub globals: Vec<Global>,
    /// Maps that relocations name by their place: section, offset.
    pub by_place: FxHashMap<(usize, u64), usize>,
    /// Data maps by their section.
    pub by_section: FxHashMap<usize, usize>,
    /// The map of `.kconfig`.
    pub kconfig: Option<usize>,
    /// The arena, which the variables of `.addr_space.1` live in.
    pub arena: Option<usize>,
}

/// Where a map is defined.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub section: usize,
    pub offset: u64,
    /// Bytes of the definition.
    pub size: u64,
    /// Type of the definition in the object's BTF, or 0.
    pub type_id: u32,
}

impl<'a> Source<'a> {
    /// The program that holds a place of a section, and its function.
    fn program_at(&self, section: usize, offset: u64) -> Option<(&'a ProgramDecl, &'a Function)> {
        let index = self.functions.at(section, offset / SLOT)?;
        let program = (*self.entries.get(index)?)?;
        Some((self.programs.get(program)?, self.functions.list.get(index)?))
    }
}

impl Maps {
    /// Reads every map definition.
    pub fn collect(source: &Source<'_>) -> Result<Self, ObjectError> {
        let mut maps = Self::default();
        btf_defined::collect(source, &mut maps)?;
        legacy::collect(source, &mut maps)?;
        data::collect(source, &mut maps)?;
        struct_ops::collect(source, &mut maps)?;
        slots::collect(source, &mut maps)?;
        data::globals(source, &mut maps);
        Ok(maps)
    }

    fn add(&mut self, def: MapDef, site: Site) -> usize {
        self.defs.push(def);
        self.sites.push(site);
        self.defs.len() - 1
    }
}

/// A map of one `u32` key and one value, which libbpf makes of a section or a variable.
fn single(name: String, map_type: MapType, value_size: u32, origin: MapOrigin) -> MapDef {
    MapDef {
        origin,
        ..MapDef::new(name, map_type, 4, value_size, 1)
    }
}

fn fail(message: String) -> ObjectError {
    ObjectError::new(ErrorKind::Map, message)
}

/// The type of that number, which the kernel would refuse otherwise.
fn map_type(map: &str, number: u32) -> Result<MapType, ObjectError> {
    match MapType::from_u32(number) {
        Some(MapType::Unspec) => Err(fail(format!("map '{map}': map type isn't specified."))),
        Some(map_type) => Ok(map_type),
        None => Err(fail(format!("map '{map}': unknown map type {number}."))),
    }
}

/// Whether values of the type are maps.
fn is_map_in_map(map_type: MapType) -> bool {
    matches!(map_type, MapType::ArrayOfMaps | MapType::HashOfMaps)
}

/// Ring buffers take a power of 2 of whole pages: the next such size, as libbpf rounds.
fn ring_buffer_size(map_type: MapType, bytes: u32) -> u32 {
    const PAGE: u32 = 4096;
    if !matches!(map_type, MapType::Ringbuf | MapType::UserRingbuf) || bytes == 0 {
        return bytes;
    }
    if bytes >= PAGE && bytes.is_power_of_two() {
        return bytes;
    }
    // Too large a size stays as it is, for the kernel to refuse.
    bytes.max(PAGE).checked_next_power_of_two().unwrap_or(bytes)
}
