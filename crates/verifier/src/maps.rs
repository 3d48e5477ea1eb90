//! What the verifier knows of a map.

use bpfkit_btf::{Btf, KernelBtf};
use bpfkit_object::{MapDef, MapOrigin};
use bpfkit_spec::{KernelVersion, MapType};

use crate::record::Record;

/// Map values cannot be written by programs.
const RDONLY_PROG: u32 = 1 << 7;
/// Map values cannot be read by programs.
const WRONLY_PROG: u32 = 1 << 8;

/// A map, or the template of the maps in a map of maps.
#[derive(Clone, Debug)]
pub(crate) struct MapInfo<'a> {
    /// As the kernel cuts it.
    pub name: String,
    pub map_type: MapType,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// Type ids of key and value were given.
    pub has_btf: bool,
    pub record: std::rc::Rc<Record>,
    /// Index of the template.
    pub inner: Option<usize>,
    /// Contents that never change.
    pub frozen: Option<&'a [u8]>,
}

impl<'a> MapInfo<'a> {
    /// All maps of an object, at their indices, then templates.
    pub fn list(
        defs: &'a [MapDef],
        btf: Option<&Btf>,
        kernel: KernelBtf<'_>,
        version: KernelVersion,
    ) -> Vec<MapInfo<'a>> {
        let mut all: Vec<MapInfo<'a>> = defs
            .iter()
            .map(|d| Self::one(d, btf, kernel, version))
            .collect();
        for (at, def) in defs.iter().enumerate() {
            if let Some(inner) = &def.inner {
                let mut info = Self::one(inner, btf, kernel, version);
                // The kernel keeps no name of a template.
                info.name.clear();
                all[at].inner = Some(all.len());
                all.push(info);
            }
        }
        all
    }

    fn one(
        def: &'a MapDef,
        btf: Option<&Btf>,
        kernel: KernelBtf<'_>,
        version: KernelVersion,
    ) -> MapInfo<'a> {
        // The loader gives no types for these.
        let untyped = matches!(
            def.map_type,
            MapType::PerfEventArray
                | MapType::CgroupArray
                | MapType::StackTrace
                | MapType::ArrayOfMaps
                | MapType::HashOfMaps
                | MapType::Devmap
                | MapType::DevmapHash
                | MapType::Cpumap
                | MapType::Xskmap
                | MapType::Sockmap
                | MapType::Sockhash
                | MapType::Queue
                | MapType::Stack
                | MapType::Arena
        );
        let value_type_id = if untyped { 0 } else { def.value_type_id };
        let frozen = match &def.origin {
            MapOrigin::Data { section, bytes }
                if section.starts_with(".rodata") || section == ".kconfig" =>
            {
                Some(bytes.as_slice())
            }
            _ => None,
        };
        let record = match btf {
            Some(btf) if value_type_id != 0 => {
                Record::of_map_value(btf, kernel, value_type_id, version)
            }
            _ => Record::default(),
        };
        MapInfo {
            name: def.name.chars().take(15).collect(),
            map_type: def.map_type,
            key_size: def.key_size,
            value_size: def.value_size,
            max_entries: def.max_entries.max(1),
            flags: if frozen.is_some() {
                def.flags | RDONLY_PROG
            } else {
                def.flags
            },
            has_btf: value_type_id != 0 && btf.is_some(),
            record: std::rc::Rc::new(record),
            inner: None,
            frozen,
        }
    }

    pub const fn readable(&self) -> bool {
        self.flags & WRONLY_PROG == 0
    }

    pub const fn writable(&self) -> bool {
        self.flags & RDONLY_PROG == 0
    }

    /// Whether a value is found at a fixed address: the only one of an array.
    pub fn has_direct_values(&self) -> bool {
        self.map_type == MapType::Array || self.map_type == MapType::Arena
    }

    /// The constant at an offset of a value that never changes.
    pub fn constant(&self, off: usize, size: usize, signed: bool) -> Option<u64> {
        let bytes = self.frozen?.get(off..off.checked_add(size)?)?;
        let mut word = [0; 8];
        word.get_mut(..size)?.copy_from_slice(bytes);
        let value = u64::from_le_bytes(word);
        Some(match (signed, size) {
            (true, 1) => value as i8 as u64,
            (true, 2) => value as i16 as u64,
            (true, 4) => value as i32 as u64,
            _ => value,
        })
    }

    /// Structure behind a pointer to the map.
    pub fn kernel_struct(&self) -> Option<&'static str> {
        Some(match self.map_type {
            MapType::Array
            | MapType::PercpuArray
            | MapType::ProgArray
            | MapType::PerfEventArray
            | MapType::CgroupArray
            | MapType::ArrayOfMaps => "bpf_array",
            MapType::Hash
            | MapType::PercpuHash
            | MapType::LruHash
            | MapType::LruPercpuHash
            | MapType::HashOfMaps => "bpf_htab",
            MapType::LpmTrie => "lpm_trie",
            MapType::StackTrace => "bpf_stack_map",
            MapType::Devmap | MapType::DevmapHash => "bpf_dtab",
            MapType::Cpumap => "bpf_cpu_map",
            MapType::Xskmap => "xsk_map",
            MapType::Sockmap => "bpf_stab",
            MapType::Sockhash => "bpf_shtab",
            MapType::Queue | MapType::Stack => "bpf_queue_stack",
            MapType::Ringbuf | MapType::UserRingbuf => "bpf_ringbuf_map",
            MapType::BloomFilter => "bpf_bloom_filter",
            MapType::SkStorage
            | MapType::InodeStorage
            | MapType::TaskStorage
            | MapType::CgrpStorage => "bpf_local_storage_map",
            MapType::StructOps => "bpf_struct_ops_map",
            MapType::ReuseportSockarray => "reuseport_array",
            MapType::CgroupStorage | MapType::PercpuCgroupStorage => "bpf_cgroup_storage_map",
            MapType::Arena => "bpf_arena",
            _ => return None,
        })
    }
}
