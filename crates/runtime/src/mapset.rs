//! The maps of an object, made and filled as its loader would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpfkit_btf::Btf;
use bpfkit_maps::flags::BPF_F_RDONLY_PROG;
use bpfkit_maps::{Direct, Errno, Map, MapParams};
use bpfkit_object::{MapDef, MapOrigin, SlotValue};
use bpfkit_spec::MapType;

use crate::engine::{Local, ProgramSlot};
use crate::helpers;
use crate::memory::Strided;

/// How to make the maps of an object.
#[derive(Clone, Copy, Debug)]
pub struct MapOptions {
    /// Worker threads that stand for CPUs: instances of per-CPU values.
    pub cpus: u32,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self { cpus: 1 }
    }
}

/// A map that could not be made or filled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("map {name}: {errno}")]
pub struct MapSetError {
    /// Name of the map.
    pub name: String,
    /// What the kernel would answer.
    pub errno: Errno,
}

/// The maps of an object, shared by its programs.
pub struct MapSet {
    id: u64,
    defs: Vec<MapDef>,
    maps: Vec<Arc<Map>>,
    arena: Option<Arc<Map>>,
    /// What helpers share between runs: pending timers and the like.
    pub(crate) shared: Arc<helpers::Shared>,
}

impl MapSet {
    /// Makes every map of the list: data sections get their initial bytes, maps of maps
    /// their declared inner maps. Program slots wait for [`set_programs`](Self::set_programs).
    ///
    /// # Errors
    /// The first map that cannot be made.
    pub fn new(defs: &[MapDef], options: &MapOptions) -> Result<Arc<Self>, MapSetError> {
        Self::with_types(defs, None, options)
    }

    /// The same, with the object's BTF: it says where values have fields of their own kind
    /// (locks, timers, kernel pointers), which updates leave alone.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_types(
        defs: &[MapDef],
        btf: Option<&Btf>,
        options: &MapOptions,
    ) -> Result<Arc<Self>, MapSetError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut maps = Vec::with_capacity(defs.len());
        let shared = Arc::<helpers::Shared>::default();
        for def in defs {
            let failed = |errno| MapSetError {
                name: def.name.clone(),
                errno,
            };
            let map = Map::create(params(def, btf, options)).map_err(failed)?;
            helpers::hook(&map, &shared);
            maps.push(map);
        }
        let arena = maps.iter().find(|m| m.as_arena().is_some()).cloned();
        let set = Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            defs: defs.to_vec(),
            maps,
            arena,
            shared,
        };
        for (def, map) in defs.iter().zip(&set.maps) {
            set.fill(def, map).map_err(|errno| MapSetError {
                name: def.name.clone(),
                errno,
            })?;
        }
        Ok(Arc::new(set))
    }

    /// A set without maps.
    pub fn empty() -> Arc<Self> {
        Arc::new(Self {
            id: 0,
            defs: Vec::new(),
            maps: Vec::new(),
            arena: None,
            shared: Arc::default(),
        })
    }

    fn fill(&self, def: &MapDef, map: &Map) -> Result<(), Errno> {
        match &def.origin {
            MapOrigin::Data { bytes, .. } | MapOrigin::StructOps { bytes, .. } => {
                map.write(&0u32.to_ne_bytes(), bytes, 0)?;
            }
            MapOrigin::Arena { bytes } => fill_arena(map, bytes)?,
            MapOrigin::Btf | MapOrigin::Legacy => {}
        }
        for (slot, value) in &def.slots {
            if let SlotValue::Map(index) = value {
                let inner = self.maps.get(*index as usize).ok_or(Errno::EBADF)?;
                map.set_inner(&slot.to_ne_bytes(), inner, 0)?;
            }
        }
        Ok(())
    }

    /// Fills the declared slots of program arrays; `find` gives the loaded program of a name.
    /// Slots whose program it does not know stay empty.
    ///
    /// # Errors
    /// The first map that refuses.
    pub fn set_programs(
        &self,
        mut find: impl FnMut(&str) -> Option<Arc<dyn Local>>,
    ) -> Result<(), MapSetError> {
        for (def, map) in self.defs.iter().zip(&self.maps) {
            for (slot, value) in &def.slots {
                let SlotValue::Program(name) = value else {
                    continue;
                };
                let Some(program) = find(name) else { continue };
                set_program(map, *slot, program, *slot + 1).map_err(|errno| MapSetError {
                    name: def.name.clone(),
                    errno,
                })?;
            }
        }
        Ok(())
    }

    /// Distinguishes sets.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The arena map; an object has at most one.
    pub fn arena(&self) -> Option<&Arc<Map>> {
        self.arena.as_ref()
    }

    pub(crate) fn value_regions(&self) -> impl Iterator<Item = Strided> + '_ {
        value_regions(&self.maps)
    }

    /// The map at that index of the object's list.
    pub fn get(&self, index: u32) -> Option<&Arc<Map>> {
        self.maps.get(index as usize)
    }

    /// The index of the map of that name.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        self.defs
            .iter()
            .position(|d| d.name == name)
            .map(|i| i as u32)
    }

    /// The map of that name.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Map>> {
        self.get(self.index_of(name)?)
    }

    /// As declared, in the same order as the maps.
    pub fn defs(&self) -> &[MapDef] {
        &self.defs
    }

    /// Every map, in the order of the object's list.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Map>> {
        self.maps.iter()
    }
}

/// Puts a program into a slot of a program array; the host reads `id` back from there.
///
/// # Errors
/// What the map says.
pub fn set_program(map: &Map, slot: u32, program: Arc<dyn Local>, id: u32) -> Result<(), Errno> {
    let array = map.as_prog_array().ok_or(Errno::EINVAL)?;
    let direct = Direct {
        code: program.direct(),
        kind: program.program().decl.prog_type as u64,
    };
    array.set_direct(slot, Arc::new(ProgramSlot(program)), direct, id)
}

/// The values of maps, as regions.
pub(crate) fn value_regions(maps: &[Arc<Map>]) -> impl Iterator<Item = Strided> + '_ {
    // Records of a ring are granted one by one: their headers are not the program's.
    let ring = |map: &Map| matches!(map.map_type(), MapType::Ringbuf | MapType::UserRingbuf);
    maps.iter().filter(move |map| !ring(map)).flat_map(|map| {
        let writable = map.params().flags & BPF_F_RDONLY_PROG == 0;
        map.value_regions().into_iter().map(move |r| Strided {
            base: r.base,
            stride: r.stride,
            offset: r.offset,
            size: r.size.into(),
            count: r.count,
            writable,
        })
    })
}

/// Puts global variables into the first pages of an arena, as the host's first writes there.
fn fill_arena(map: &Map, bytes: &[u8]) -> Result<(), Errno> {
    let arena = map.as_arena().ok_or(Errno::EINVAL)?;
    let start = arena.user_start();
    for at in (0..bytes.len() as u64).step_by(4096) {
        arena.touch(start + at)?;
    }
    // SAFETY: the arena's memory starts at its base plus the lower half of the first address;
    // `touch` made these pages present, and no program runs yet.
    unsafe {
        let to = arena.base().as_ptr().add(start as u32 as usize);
        to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
    Ok(())
}

/// The address of a byte of the value of an array with one element or of an arena, which instructions
/// may hold (`BPF_PSEUDO_MAP_VALUE`).
pub(crate) fn direct_value(map: &Map, off: u32) -> Option<u64> {
    if let Some(arena) = map.as_arena() {
        let inside = u64::from(off) < u64::from(arena.pages()) * 4096;
        return inside.then(|| arena.user_start() + u64::from(off));
    }
    let single = map.map_type() == MapType::Array && map.params().max_entries == 1;
    let value = map.lookup(0, &0u32.to_ne_bytes())?;
    let inside = (off as usize) < map.value_size();
    (single && inside).then(|| value.as_ptr().expose_provenance() as u64 + u64::from(off))
}

/// What libbpf passes to `BPF_MAP_CREATE` for a map as declared.
fn params(def: &MapDef, btf: Option<&Btf>, options: &MapOptions) -> MapParams {
    let max_entries = match (def.map_type, def.max_entries) {
        (MapType::PerfEventArray, 0) => options.cpus,
        // As veristat does for maps that the application is to size.
        (_, 0) if wants_entries(def.map_type) => 1,
        (_, given) => given,
    };
    MapParams {
        map_type: def.map_type,
        key_size: def.key_size,
        value_size: def.value_size,
        max_entries,
        flags: def.flags,
        extra: def.extra,
        name: def.name.clone(),
        inner: def
            .inner
            .as_ref()
            .map(|inner| Box::new(params(inner, btf, options))),
        fields: btf
            .map(|btf| helpers::special_fields(btf, def))
            .unwrap_or_default(),
        cpus: options.cpus,
        seed: None,
    }
}

/// Storage maps and bloom filters apart, a map without entries makes no sense.
fn wants_entries(map_type: MapType) -> bool {
    !matches!(
        map_type,
        MapType::SkStorage
            | MapType::InodeStorage
            | MapType::TaskStorage
            | MapType::CgrpStorage
            | MapType::CgroupStorage
            | MapType::PercpuCgroupStorage
    )
}
