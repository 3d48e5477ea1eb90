//! What a map is created from.

use bpfkit_spec::MapType;

/// Parameters of a new map, as `BPF_MAP_CREATE` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapParams {
    /// Map type.
    pub map_type: MapType,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes.
    pub value_size: u32,
    /// Entries; bytes of a ring buffer; pages of an arena.
    pub max_entries: u32,
    /// `BPF_F_*` creation flags.
    pub flags: u32,
    /// `map_extra`: hash functions of a bloom filter, host address of an arena.
    pub extra: u64,
    /// Name, for people.
    pub name: String,
    /// Template of the maps inside a map of maps.
    pub inner: Option<Box<MapParams>>,
    /// Special fields of the value, from its BTF.
    pub fields: Vec<Field>,
    /// Number of CPUs, that is of worker threads; 0 counts as 1.
    pub cpus: u32,
    /// Seed of the hash function; `None` draws one. Ignored with `BPF_F_ZERO_SEED`.
    pub seed: Option<u64>,
}

impl MapParams {
    /// Parameters without flags, name, inner map and special fields, for one CPU.
    pub fn new(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        MapParams {
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            extra: 0,
            name: String::new(),
            inner: None,
            fields: Vec::new(),
            cpus: 1,
            seed: None,
        }
    }

    /// The same with these creation flags.
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// The same with this many CPUs.
    pub fn with_cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// The same with this `map_extra`.
    pub fn with_extra(mut self, extra: u64) -> Self {
        self.extra = extra;
        self
    }

    /// The same with this template for inner maps.
    pub fn with_inner(mut self, inner: MapParams) -> Self {
        self.inner = Some(Box::new(inner));
        self
    }

    /// The same with these special fields.
    pub fn with_fields(mut self, fields: Vec<Field>) -> Self {
        self.fields = fields;
        self
    }
}

/// A field of a value that the kernel manages: copies of the value leave it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Kind, which gives its size.
    pub kind: FieldKind,
    /// Offset in the value, in bytes.
    pub offset: u32,
}

impl Field {
    /// Size in bytes.
    pub fn size(self) -> u32 {
        self.kind.size()
    }
}

/// Kinds of special fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// `struct bpf_spin_lock`.
    SpinLock,
    /// `struct bpf_res_spin_lock`.
    ResSpinLock,
    /// `struct bpf_timer`.
    Timer,
    /// `struct bpf_wq`.
    Workqueue,
    /// `struct bpf_task_work`.
    TaskWork,
    /// `__kptr_untrusted` pointer.
    KptrUnref,
    /// `__kptr` pointer.
    KptrRef,
    /// `__percpu_kptr` pointer.
    KptrPercpu,
    /// `__uptr` pointer.
    Uptr,
    /// `struct bpf_list_head`.
    ListHead,
    /// `struct bpf_rb_root`.
    RbRoot,
    /// `struct bpf_refcount`.
    Refcount,
}

impl FieldKind {
    /// Size in bytes, as `linux/bpf.h` declares the structures.
    pub fn size(self) -> u32 {
        match self {
            FieldKind::SpinLock | FieldKind::ResSpinLock | FieldKind::Refcount => 4,
            FieldKind::TaskWork
            | FieldKind::KptrUnref
            | FieldKind::KptrRef
            | FieldKind::KptrPercpu
            | FieldKind::Uptr => 8,
            FieldKind::Timer | FieldKind::Workqueue | FieldKind::ListHead | FieldKind::RbRoot => 16,
        }
    }
}
