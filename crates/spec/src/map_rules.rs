//! What each map type may be used for.

use crate::helper;
use crate::{AttachType, Caller, MapType as M, ProgType as P, ProgTypes};

/// Flags of map creation (`BPF_F_*`).
pub mod flags {
    /// Elements of a hash table are allocated as they come.
    pub const NO_PREALLOC: u32 = 1;
    /// An LRU list per CPU.
    pub const NO_COMMON_LRU: u32 = 1 << 1;
    /// The attribute `numa_node` counts.
    pub const NUMA_NODE: u32 = 1 << 2;
    /// Read-only for system calls.
    pub const RDONLY: u32 = 1 << 3;
    /// Write-only for system calls.
    pub const WRONLY: u32 = 1 << 4;
    /// Stack traces as build ids and offsets.
    pub const STACK_BUILD_ID: u32 = 1 << 5;
    /// The hash is not seeded.
    pub const ZERO_SEED: u32 = 1 << 6;
    /// Read-only for programs.
    pub const RDONLY_PROG: u32 = 1 << 7;
    /// Write-only for programs.
    pub const WRONLY_PROG: u32 = 1 << 8;
    /// Storage is copied to a cloned socket.
    pub const CLONE: u32 = 1 << 9;
    /// May be mapped into memory.
    pub const MMAPABLE: u32 = 1 << 10;
    /// Perf events stay when their file is closed.
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    /// An array whose number of entries may differ between inner maps.
    pub const INNER_MAP: u32 = 1 << 12;
    /// The struct_ops map is attached through a link.
    pub const LINK: u32 = 1 << 13;
    /// The value type is in the BTF object of the attribute `value_type_btf_obj_fd`.
    pub const VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
    /// A token is given.
    pub const TOKEN_FD: u32 = 1 << 16;
    /// An arena access outside of its pages from user space raises a signal.
    pub const SEGV_ON_FAULT: u32 = 1 << 17;
    /// Pointers into the arena are not converted to user addresses.
    pub const NO_USER_CONV: u32 = 1 << 18;
}

use flags::{
    CLONE, INNER_MAP, LINK, MMAPABLE, NO_COMMON_LRU, NO_PREALLOC, NO_USER_CONV, NUMA_NODE,
    PRESERVE_ELEMS, RDONLY, RDONLY_PROG, SEGV_ON_FAULT, STACK_BUILD_ID, TOKEN_FD, VTYPE_BTF_OBJ_FD,
    WRONLY, WRONLY_PROG, ZERO_SEED,
};

/// Access flags for system calls.
const RW: u32 = RDONLY | WRONLY;
/// Access flags for system calls and programs.
const ACCESS: u32 = RW | RDONLY_PROG | WRONLY_PROG;

/// A map type's row.
#[derive(Clone, Copy, Debug)]
pub struct MapRules {
    /// Map type.
    pub map_type: M,
    /// `BPF_F_*` that creation takes.
    pub flags: u32,
    /// Helpers (without `bpf_`) that take such a map; none for those that any map may be
    /// passed to.
    pub helpers: Option<&'static [&'static str]>,
    /// Sleepable programs may use it.
    pub sleepable: bool,
    /// It may be the inner map of a map of maps.
    pub inner: bool,
    /// Programs may hold a pointer to a value in their instructions (`.rodata` and the like).
    pub direct_value: bool,
    /// Special fields that its values may have.
    pub fields: Fields,
    /// `BPF_F_*` that the kernel adds by itself.
    pub implied: u32,
}

/// Special fields in values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields(u8);

impl Fields {
    /// None.
    pub const NONE: Fields = Fields(0);
    /// `bpf_spin_lock`, `bpf_res_spin_lock`.
    pub const LOCK: Fields = Fields(1);
    /// `bpf_timer`, `bpf_wq`, `bpf_task_work`.
    pub const TIMER: Fields = Fields(1 << 1);
    /// Kernel pointers, and `bpf_refcount`.
    pub const KPTR: Fields = Fields(1 << 2);
    /// `bpf_list_head`, `bpf_rb_root`.
    pub const GRAPH: Fields = Fields(1 << 3);
    /// Pointers to user memory (`__uptr`).
    pub const UPTR: Fields = Fields(1 << 4);

    /// Both.
    pub const fn or(self, other: Fields) -> Fields {
        Fields(self.0 | other.0)
    }

    /// Whether it has all of `other`.
    pub const fn has(self, other: Fields) -> bool {
        self.0 & other.0 == other.0
    }
}

const LOCK: Fields = Fields::LOCK;
const TIMER: Fields = Fields::TIMER;
const KPTR: Fields = Fields::KPTR;
const GRAPH: Fields = Fields::GRAPH;

impl MapRules {
    const fn new(map_type: M, flags: u32) -> MapRules {
        MapRules {
            map_type,
            flags: flags | TOKEN_FD,
            helpers: None,
            sleepable: false,
            inner: true,
            direct_value: false,
            fields: Fields::NONE,
            implied: 0,
        }
    }

    const fn only(mut self, helpers: &'static [&'static str]) -> MapRules {
        self.helpers = Some(helpers);
        self
    }

    const fn sleepable(mut self) -> MapRules {
        self.sleepable = true;
        self
    }

    const fn not_inner(mut self) -> MapRules {
        self.inner = false;
        self
    }

    const fn direct(mut self) -> MapRules {
        self.direct_value = true;
        self
    }

    /// A lookup gives the kernel's own data, which programs may not change.
    const fn read_only(mut self) -> MapRules {
        self.implied = RDONLY_PROG;
        self
    }

    const fn fields(mut self, fields: Fields) -> MapRules {
        self.fields = fields;
        self
    }
}

const RINGBUF_HELPERS: &[&str] = &[
    "ringbuf_output",
    "ringbuf_reserve",
    "ringbuf_query",
    "ringbuf_reserve_dynptr",
    "ringbuf_submit_dynptr",
    "ringbuf_discard_dynptr",
];
const PERF_HELPERS: &[&str] = &[
    "perf_event_read",
    "perf_event_output",
    "skb_output",
    "perf_event_read_value",
    "xdp_output",
];
const QUEUE_HELPERS: &[&str] = &["map_peek_elem", "map_pop_elem", "map_push_elem"];
const LOCAL_STORAGE_HELPERS: &[&str] = &["get_local_storage"];
const REDIRECT_HELPERS: &[&str] = &["redirect_map", "map_lookup_elem"];

/// Every map type of the target kernel, in the order of its number.
#[rustfmt::skip]
pub static MAPS: &[MapRules] = &[
    MapRules::new(M::Hash, NO_PREALLOC | NUMA_NODE | ACCESS | ZERO_SEED)
        .sleepable().fields(LOCK.or(TIMER).or(KPTR).or(GRAPH)),
    MapRules::new(M::Array, NUMA_NODE | ACCESS | MMAPABLE | INNER_MAP)
        .sleepable().direct().fields(LOCK.or(TIMER).or(KPTR).or(GRAPH)),
    MapRules::new(M::ProgArray, NUMA_NODE | RW).only(&["tail_call"]).not_inner(),
    MapRules::new(M::PerfEventArray, NUMA_NODE | RW | PRESERVE_ELEMS).only(PERF_HELPERS),
    MapRules::new(M::PercpuHash, NO_PREALLOC | ACCESS | ZERO_SEED).sleepable().fields(KPTR),
    MapRules::new(M::PercpuArray, ACCESS).sleepable().fields(KPTR),
    MapRules::new(M::StackTrace, NUMA_NODE | RW | STACK_BUILD_ID).only(&["get_stackid"]),
    MapRules::new(M::CgroupArray, NUMA_NODE | RW)
        .only(&["skb_under_cgroup", "current_task_under_cgroup"]),
    MapRules::new(M::LruHash, NO_COMMON_LRU | NUMA_NODE | ACCESS | ZERO_SEED)
        .sleepable().fields(TIMER.or(KPTR).or(GRAPH)),
    MapRules::new(M::LruPercpuHash, NO_COMMON_LRU | ACCESS | ZERO_SEED)
        .sleepable().fields(KPTR),
    MapRules::new(M::LpmTrie, NO_PREALLOC | NUMA_NODE | ACCESS),
    MapRules::new(M::ArrayOfMaps, NUMA_NODE | RW).only(&["map_lookup_elem"]).sleepable().not_inner(),
    MapRules::new(M::HashOfMaps, NO_PREALLOC | NUMA_NODE | RW | ZERO_SEED)
        .only(&["map_lookup_elem"]).sleepable().not_inner(),
    MapRules::new(M::Devmap, NUMA_NODE | RW).only(REDIRECT_HELPERS).read_only(),
    MapRules::new(M::Sockmap, NUMA_NODE | RW).only(&[
        "sk_redirect_map", "sock_map_update", "msg_redirect_map", "sk_select_reuseport",
        "map_lookup_elem",
    ]),
    MapRules::new(M::Cpumap, NUMA_NODE).only(&["redirect_map"]),
    MapRules::new(M::Xskmap, NUMA_NODE | RW).only(REDIRECT_HELPERS),
    MapRules::new(M::Sockhash, NUMA_NODE | RW).only(&[
        "sk_redirect_hash", "sock_hash_update", "msg_redirect_hash", "sk_select_reuseport",
        "map_lookup_elem",
    ]),
    MapRules::new(M::CgroupStorage, NUMA_NODE | ACCESS)
        .only(LOCAL_STORAGE_HELPERS).not_inner().fields(LOCK),
    MapRules::new(M::ReuseportSockarray, NUMA_NODE | ACCESS).only(&["sk_select_reuseport"]),
    MapRules::new(M::PercpuCgroupStorage, NUMA_NODE | ACCESS)
        .only(LOCAL_STORAGE_HELPERS).not_inner(),
    MapRules::new(M::Queue, NUMA_NODE | ACCESS).only(QUEUE_HELPERS).sleepable(),
    MapRules::new(M::Stack, NUMA_NODE | ACCESS).only(QUEUE_HELPERS).sleepable(),
    MapRules::new(M::SkStorage, NO_PREALLOC | CLONE)
        .only(&["sk_storage_get", "sk_storage_delete", "kptr_xchg"]).sleepable()
        .fields(LOCK.or(KPTR)),
    MapRules::new(M::DevmapHash, NUMA_NODE | RW).only(REDIRECT_HELPERS).read_only(),
    MapRules::new(M::StructOps, LINK | VTYPE_BTF_OBJ_FD).not_inner(),
    MapRules::new(M::Ringbuf, NUMA_NODE).only(RINGBUF_HELPERS).sleepable(),
    MapRules::new(M::InodeStorage, NO_PREALLOC | CLONE)
        .only(&["inode_storage_get", "inode_storage_delete", "kptr_xchg"]).sleepable()
        .fields(LOCK.or(KPTR)),
    MapRules::new(M::TaskStorage, NO_PREALLOC | CLONE)
        .only(&["task_storage_get", "task_storage_delete", "kptr_xchg"]).sleepable()
        .fields(LOCK.or(KPTR).or(Fields::UPTR)),
    MapRules::new(M::BloomFilter, NUMA_NODE | ACCESS | ZERO_SEED)
        .only(&["map_peek_elem", "map_push_elem"]),
    MapRules::new(M::UserRingbuf, NUMA_NODE).only(&["user_ringbuf_drain"]).sleepable(),
    MapRules::new(M::CgrpStorage, NO_PREALLOC | CLONE)
        .only(&["cgrp_storage_get", "cgrp_storage_delete", "kptr_xchg"]).sleepable()
        .fields(LOCK.or(KPTR)),
    MapRules::new(M::Arena, MMAPABLE | SEGV_ON_FAULT | NO_USER_CONV).sleepable().direct(),
];

/// Helpers (without `bpf_`) that take maps of some types only.
#[rustfmt::skip]
pub static HELPER_MAPS: &[(&str, &[M])] = &[
    ("tail_call", &[M::ProgArray]),
    ("perf_event_read", &[M::PerfEventArray]),
    ("perf_event_output", &[M::PerfEventArray]),
    ("perf_event_read_value", &[M::PerfEventArray]),
    ("skb_output", &[M::PerfEventArray]),
    ("xdp_output", &[M::PerfEventArray]),
    ("ringbuf_output", &[M::Ringbuf]),
    ("ringbuf_reserve", &[M::Ringbuf]),
    ("ringbuf_query", &[M::Ringbuf]),
    ("ringbuf_reserve_dynptr", &[M::Ringbuf]),
    ("ringbuf_submit_dynptr", &[M::Ringbuf]),
    ("ringbuf_discard_dynptr", &[M::Ringbuf]),
    ("user_ringbuf_drain", &[M::UserRingbuf]),
    ("get_stackid", &[M::StackTrace]),
    ("current_task_under_cgroup", &[M::CgroupArray]),
    ("skb_under_cgroup", &[M::CgroupArray]),
    ("redirect_map", &[M::Devmap, M::DevmapHash, M::Cpumap, M::Xskmap]),
    ("sk_redirect_map", &[M::Sockmap]),
    ("msg_redirect_map", &[M::Sockmap]),
    ("sock_map_update", &[M::Sockmap]),
    ("sk_redirect_hash", &[M::Sockhash]),
    ("msg_redirect_hash", &[M::Sockhash]),
    ("sock_hash_update", &[M::Sockhash]),
    ("get_local_storage", &[M::CgroupStorage, M::PercpuCgroupStorage]),
    ("sk_select_reuseport", &[M::ReuseportSockarray, M::Sockmap, M::Sockhash]),
    ("map_pop_elem", &[M::Queue, M::Stack]),
    ("map_peek_elem", &[M::Queue, M::Stack, M::BloomFilter]),
    ("map_push_elem", &[M::Queue, M::Stack, M::BloomFilter]),
    ("map_lookup_percpu_elem", &[M::PercpuArray, M::PercpuHash, M::LruPercpuHash]),
    ("sk_storage_get", &[M::SkStorage]),
    ("sk_storage_delete", &[M::SkStorage]),
    ("inode_storage_get", &[M::InodeStorage]),
    ("inode_storage_delete", &[M::InodeStorage]),
    ("task_storage_get", &[M::TaskStorage]),
    ("task_storage_delete", &[M::TaskStorage]),
    ("cgrp_storage_get", &[M::CgrpStorage]),
    ("cgrp_storage_delete", &[M::CgrpStorage]),
];

/// Program types that may update and delete in sockmaps with the general helpers: nobody
/// can hold a locked socket there.
const SOCKMAP_UPDATERS: ProgTypes = ProgTypes::of(&[
    P::SocketFilter,
    P::SchedCls,
    P::SchedAct,
    P::Xdp,
    P::SkReuseport,
    P::FlowDissector,
    P::SkLookup,
]);

/// The row of that map type; none for [`M::Unspec`] and types later than the target kernel.
pub fn of(map_type: M) -> Option<&'static MapRules> {
    MAPS.iter().find(|rules| rules.map_type == map_type)
}

/// What a program does with a sockmap by a general helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SockmapChange {
    /// `bpf_map_update_elem`.
    Update,
    /// `bpf_map_delete_elem`.
    Delete,
}

/// Whether that program may change a sockmap or sockhash so; where not, the kernel says
/// `cannot update sockmap in this context`.
pub fn may_change_sockmap(change: SockmapChange, caller: &Caller<'_>) -> bool {
    match caller.prog_type {
        P::Tracing => caller.attach_type == AttachType::TraceIter,
        P::SockOps => change == SockmapChange::Delete,
        prog_type => SOCKMAP_UPDATERS.has(prog_type),
    }
}

/// Whether that program may pass a map of that type to the helper of that number; where
/// not, the kernel says `cannot pass map_type`.
pub fn may_call(map_type: M, helper_id: u32, caller: &Caller<'_>) -> bool {
    let Some(helper) = i32::try_from(helper_id).ok().and_then(helper::by_id) else {
        return false;
    };
    let sockmap = matches!(map_type, M::Sockmap | M::Sockhash);
    let change = match helper.name {
        "map_update_elem" => Some(SockmapChange::Update),
        "map_delete_elem" => Some(SockmapChange::Delete),
        _ => None,
    };
    let by_map = of(map_type).is_some_and(|rules| match (rules.helpers, change) {
        (_, Some(change)) if sockmap => may_change_sockmap(change, caller),
        (None, _) => true,
        (Some(helpers), _) => helpers.contains(&helper.name),
    });
    let by_helper = HELPER_MAPS
        .iter()
        .find(|(name, _)| *name == helper.name)
        .is_none_or(|(_, maps)| maps.contains(&map_type));
    by_map && by_helper
}
