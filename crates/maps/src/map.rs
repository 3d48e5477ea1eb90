//! A map of any type: what programs do with it, and what it gives away about itself.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use bpfkit_spec::MapType;

use crate::arena::Arena;
use crate::array::{ArrayMap, PercpuArrayMap};
use crate::bloom::BloomMap;
use crate::hash::HashMap;
use crate::lpm::LpmTrie;
use crate::map_in_map::{ArrayOfMaps, HashOfMaps};
use crate::objects::{PerfEventArray, ProgArray};
use crate::ops::Ops;
use crate::queue::QueueMap;
use crate::ring::{RingBuf, UserRingBuf};
use crate::stack_trace::StackTraces;
use crate::storage::Storage;
use crate::struct_ops::StructOps;
use crate::value::{FieldHooks, ValueLayout};
use crate::word_array::{WordArray, WordHash};
use crate::{Errno, Guard, LookupFn, MapParams, check, direct};

/// A map. Shared by programs on any number of threads and by the host.
///
/// Values stay at their addresses as long as the map lives, so programs hold raw
/// pointers to them; an element that is deleted may be reused at once, as in the
/// kernel's preallocated maps. Programs pass their CPU, that is the index of their
/// worker thread, which is below [`MapParams::cpus`].
pub struct Map {
    id: u32,
    params: MapParams,
    frozen: AtomicBool,
    pub(crate) body: Body,
    /// What looks a key up, for compiled programs.
    pub(crate) direct: LookupFn,
}

/// The map itself, by type.
#[allow(
    clippy::large_enum_variant,
    reason = "maps are few, and look-ups save an indirection"
)]
pub(crate) enum Body {
    Array(ArrayMap),
    PercpuArray(PercpuArrayMap),
    Hash(HashMap),
    ArrayOfMaps(ArrayOfMaps),
    HashOfMaps(HashOfMaps),
    Lpm(LpmTrie),
    Queue(QueueMap),
    Bloom(BloomMap),
    StackTraces(StackTraces),
    ProgArray(ProgArray),
    PerfEventArray(PerfEventArray),
    Words(WordArray),
    WordHash(WordHash),
    Storage(Storage),
    StructOps(StructOps),
    Ring(RingBuf),
    UserRing(UserRingBuf),
    Arena(Arena),
}

/// Whether a walk over a map goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// With the next element.
    Go,
    /// Not further.
    Stop,
}

/// Addresses at which values lie: value `i` of `count` starts at
/// `base + offset + i * stride` and has `size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRegion {
    /// Host address.
    pub base: u64,
    /// Bytes from one value to the next.
    pub stride: u64,
    /// Bytes from `base` to the first value.
    pub offset: u64,
    /// Bytes of a value.
    pub size: u32,
    /// Number of values.
    pub count: u64,
}

impl ValueRegion {
    /// Index of the value that holds the byte at `addr`.
    pub fn index_of(&self, addr: u64) -> Option<u64> {
        let at = addr.checked_sub(self.base.wrapping_add(self.offset))?;
        self.contains(addr, 1)
            .then(|| at.checked_div(self.stride).unwrap_or(0))
    }

    /// Whether `len` bytes at `addr` lie inside one value.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        let Some(at) = addr.checked_sub(self.base.wrapping_add(self.offset)) else {
            return false;
        };
        let (index, inside) = match self.stride {
            0 => (0, at),
            stride => (at / stride, at % stride),
        };
        index < self.count
            && inside
                .checked_add(len)
                .is_some_and(|end| end <= self.size.into())
    }
}

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Map {
    /// Creates a map.
    ///
    /// # Errors
    /// As `BPF_MAP_CREATE`: what [`check`] finds, and `ENOMEM`.
    pub fn create(mut params: MapParams) -> Result<Arc<Map>, Errno> {
        params.cpus = params.cpus.max(1);
        check(&params)?;
        let p = &params;
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let layout = || ValueLayout::new(id, p.value_size, &p.fields);
        let body = match p.map_type {
            MapType::Array => Body::Array(ArrayMap::new(p, layout()?)?),
            MapType::PercpuArray => Body::PercpuArray(PercpuArrayMap::new(p, layout()?)?),
            MapType::Hash | MapType::PercpuHash | MapType::LruHash | MapType::LruPercpuHash => {
                Body::Hash(HashMap::new(p, layout()?)?)
            }
            MapType::ArrayOfMaps => Body::ArrayOfMaps(ArrayOfMaps::new(p)?),
            MapType::HashOfMaps => Body::HashOfMaps(HashOfMaps::new(p, id)?),
            MapType::LpmTrie => Body::Lpm(LpmTrie::new(p)?),
            MapType::Queue | MapType::Stack => Body::Queue(QueueMap::new(p)?),
            MapType::BloomFilter => Body::Bloom(BloomMap::new(p)?),
            MapType::StackTrace => Body::StackTraces(StackTraces::new(p)?),
            MapType::ProgArray => Body::ProgArray(ProgArray::new(p)?),
            MapType::PerfEventArray => Body::PerfEventArray(PerfEventArray::new(p)),
            MapType::CgroupArray
            | MapType::ReuseportSockarray
            | MapType::Sockmap
            | MapType::Xskmap
            | MapType::Cpumap
            | MapType::Devmap => Body::Words(WordArray::new(p)?),
            MapType::Sockhash | MapType::DevmapHash => Body::WordHash(WordHash::new(p, id)?),
            MapType::CgroupStorage
            | MapType::PercpuCgroupStorage
            | MapType::SkStorage
            | MapType::TaskStorage
            | MapType::InodeStorage
            | MapType::CgrpStorage => Body::Storage(Storage::new(p, layout()?)?),
            MapType::StructOps => Body::StructOps(StructOps::new(p)),
            MapType::Ringbuf => Body::Ring(RingBuf::new(p)?),
            MapType::UserRingbuf => Body::UserRing(UserRingBuf::new(p)?),
            MapType::Arena => Body::Arena(Arena::new(p)?),
            _ => return Err(Errno::EINVAL),
        };
        let mut map = Map {
            id,
            params,
            frozen: AtomicBool::new(false),
            body,
            direct: direct::lookup_any,
        };
        map.direct = direct::choose(&map);
        Ok(Arc::new(map))
    }

    /// A number that no other map of this process has.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the map was created from (`cpus` at least 1).
    pub fn params(&self) -> &MapParams {
        &self.params
    }

    /// Map type.
    pub fn map_type(&self) -> MapType {
        self.params.map_type
    }

    /// Key size in bytes.
    pub fn key_size(&self) -> usize {
        self.params.key_size as usize
    }

    /// Value size in bytes, as declared.
    pub fn value_size(&self) -> usize {
        self.params.value_size as usize
    }

    pub(crate) fn ops(&self) -> &dyn Ops {
        match &self.body {
            Body::Array(m) => m,
            Body::PercpuArray(m) => m,
            Body::Hash(m) => m,
            Body::ArrayOfMaps(m) => m,
            Body::HashOfMaps(m) => m,
            Body::Lpm(m) => m,
            Body::Queue(m) => m,
            Body::Bloom(m) => m,
            Body::StackTraces(m) => m,
            Body::ProgArray(m) => m,
            Body::PerfEventArray(m) => m,
            Body::Words(m) => m,
            Body::WordHash(m) => m,
            Body::Storage(m) => m,
            Body::StructOps(m) => m,
            Body::Ring(m) => m,
            Body::UserRing(m) => m,
            Body::Arena(m) => m,
        }
    }

    /// Tells the map whom to ask when special fields of its values are given up.
    ///
    /// # Errors
    /// `EBUSY` if it has been told already, `EINVAL` if its values have no such fields.
    pub fn set_hooks(&self, hooks: Arc<dyn FieldHooks>) -> Result<(), Errno> {
        let layout = match &self.body {
            Body::Array(m) => m.layout(),
            Body::PercpuArray(m) => m.layout(),
            Body::Hash(m) => m.layout(),
            Body::Storage(m) => m.layout(),
            _ => return Err(Errno::EINVAL),
        };
        layout.set_hooks(hooks)
    }

    /// `bpf_map_lookup_elem`: address of the value of `key` (of this CPU, in per-CPU
    /// maps). In maps of maps it is no value that a program may touch: use
    /// [`Map::lookup_inner`].
    #[inline]
    pub fn lookup(&self, cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        match &self.body {
            Body::Array(m) => m.lookup(cpu, key),
            Body::Hash(m) => m.get(cpu, key),
            Body::PercpuArray(m) => m.lookup(cpu, key),
            Body::Lpm(m) => m.get(key),
            _ => self.ops().lookup(cpu, key),
        }
    }

    /// `bpf_map_update_elem`.
    ///
    /// # Errors
    /// As the helper, by map type.
    pub fn update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.ops().update(cpu, key, value, flags)
    }

    /// `bpf_map_delete_elem`.
    ///
    /// # Errors
    /// As the helper, by map type: `ENOENT` for an absent key, `EINVAL` in arrays.
    pub fn delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.ops().delete(cpu, key)
    }

    /// `bpf_map_push_elem`.
    ///
    /// # Errors
    /// As the helper: `E2BIG` for a full queue or stack.
    pub fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        self.ops().push(value, flags)
    }

    /// `bpf_map_pop_elem`; fills `out` with zeros where there is nothing.
    ///
    /// # Errors
    /// As the helper: `ENOENT` for an empty queue or stack.
    pub fn pop(&self, out: &mut [u8]) -> Result<(), Errno> {
        self.ops().pop(out)
    }

    /// `bpf_map_peek_elem`. In a bloom filter `out` is the value that is asked for.
    ///
    /// # Errors
    /// As the helper: `ENOENT` for an empty queue or stack, or a value not in the filter.
    pub fn peek(&self, out: &mut [u8]) -> Result<(), Errno> {
        self.ops().peek(out)
    }

    /// `bpf_for_each_map_elem`: calls `visit` with the addresses of key and value of
    /// each element that is there from start to end; others may or may not be seen.
    /// Returns how many it visited.
    ///
    /// # Errors
    /// `EINVAL` for map types that programs cannot walk.
    pub fn for_each_value(
        &self,
        cpu: u32,
        visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
    ) -> Result<u32, Errno> {
        self.ops().for_each(cpu, visit)
    }

    /// Memory that programs may touch through pointers to values.
    pub fn value_regions(&self) -> Vec<ValueRegion> {
        self.ops().regions()
    }

    /// The element of an array or hash map whose value holds the byte at `addr`: its key
    /// and where its value starts. In hash maps of a deleted element too, until another
    /// takes its place.
    pub fn element_at(&self, addr: u64) -> Option<(Box<[u8]>, u64)> {
        self.ops().element_at(addr)
    }

    /// The inner map under `key` of a map of maps, as long as the guard is held.
    #[inline]
    pub fn lookup_inner<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Map> {
        match &self.body {
            Body::ArrayOfMaps(m) => m.get(key, guard),
            Body::HashOfMaps(m) => m.get(key, guard),
            _ => None,
        }
    }

    /// The inner map under `key` of a map of maps, to keep.
    pub fn inner(&self, key: &[u8]) -> Option<Arc<Map>> {
        let guard = crate::pin();
        match &self.body {
            Body::ArrayOfMaps(m) => m.get_arc(key, &guard),
            Body::HashOfMaps(m) => m.get_arc(key, &guard),
            _ => None,
        }
    }

    /// Host: puts a map into a map of maps.
    ///
    /// # Errors
    /// `EINVAL` if it differs from the template, and as an update of an array or hash.
    pub fn set_inner(&self, key: &[u8], inner: &Arc<Map>, flags: u64) -> Result<(), Errno> {
        self.writable()?;
        match &self.body {
            Body::ArrayOfMaps(m) => m.set(key, inner, flags),
            Body::HashOfMaps(m) => m.set(key, inner, flags),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The array behind an array map, for engines that inline its lookup.
    pub fn as_array(&self) -> Option<&ArrayMap> {
        if let Body::Array(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The array behind a per-CPU array map, for engines that inline its lookup.
    pub fn as_percpu_array(&self) -> Option<&PercpuArrayMap> {
        if let Body::PercpuArray(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The table behind hash maps of every kind except hashes of maps.
    pub fn as_hash(&self) -> Option<&HashMap> {
        if let Body::Hash(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The trie behind an LPM trie map.
    pub fn as_lpm(&self) -> Option<&LpmTrie> {
        if let Body::Lpm(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The programs of a program array.
    pub fn as_prog_array(&self) -> Option<&ProgArray> {
        if let Body::ProgArray(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The events of a perf event array.
    pub fn as_perf_events(&self) -> Option<&PerfEventArray> {
        if let Body::PerfEventArray(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The traces of a stack trace map.
    pub fn as_stack_traces(&self) -> Option<&StackTraces> {
        if let Body::StackTraces(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The storage of sockets, tasks, inodes or cgroups, the older one included.
    pub fn as_storage(&self) -> Option<&Storage> {
        if let Body::Storage(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The ring of a ring buffer.
    pub fn as_ring(&self) -> Option<&RingBuf> {
        if let Body::Ring(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The ring of a user ring buffer.
    pub fn as_user_ring(&self) -> Option<&UserRingBuf> {
        if let Body::UserRing(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The arena of an arena map.
    pub fn as_arena(&self) -> Option<&Arena> {
        if let Body::Arena(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// The structure of a struct_ops map.
    pub fn as_struct_ops(&self) -> Option<&StructOps> {
        if let Body::StructOps(m) = &self.body {
            Some(m)
        } else {
            None
        }
    }

    /// `BPF_MAP_FREEZE`: from now on the host may not write.
    ///
    /// # Errors
    /// `EPERM` if the host may not write already, `ENOTSUPP` where values have special fields.
    pub fn freeze(&self) -> Result<(), Errno> {
        if self.params.map_type == MapType::StructOps || !self.params.fields.is_empty() {
            return Err(Errno::ENOTSUPP);
        }
        self.writable()?;
        if self.frozen.swap(true, AcqRel) {
            Err(Errno::EPERM)
        } else {
            Ok(())
        }
    }

    /// Whether [`Map::freeze`] was called.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire)
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("id", &self.id)
            .field("params", &self.params)
            .finish()
    }
}

/// What a slot of a program array holds: the engine's form of a program.
pub type Object = Arc<dyn Any + Send + Sync>;
