//! What the kernel refuses when a map is created, a row a map type.
//!
//! Rules are those of `map_create` and of each type's `map_alloc_check` (Linux 6.18).

use bpfkit_spec::MapType;

use crate::flags::*;
use crate::mem::round8;
use crate::{Errno, FieldKind, MapParams};

/// Largest allocation of the kernel's slab allocator on 64-bit machines.
pub(crate) const KMALLOC_MAX: u64 = 4 << 20;
/// Largest value of a per-CPU map (`PCPU_MIN_UNIT_SIZE`).
const PERCPU_VALUE_MAX: usize = 32 << 10;
/// Largest value of a local storage map.
const STORAGE_VALUE_MAX: u64 = 0xffff - 128;
/// Bookkeeping that the kernel puts before key and value of a hash element.
const HASH_ELEM: u64 = 48;
/// Bookkeeping of the kernel's trie node, and its longest key data.
const LPM_NODE: u64 = 24;
/// Longest key data of an LPM trie, in bytes.
pub(crate) const LPM_DATA_MAX: u32 = 256;
/// Depth limit of `perf_event_max_stack`.
const STACK_DEPTH_MAX: u32 = 127;
/// Most buckets of a hash map: their array must stay below 4 GiB.
const HASH_BUCKETS_MAX: u32 = 1 << 27;
/// Most CPUs of a cpumap (`NR_CPUS` of distribution kernels).
const CPUMAP_MAX: u32 = 8192;
/// Stack of a program, which keys of a sockhash must fit.
const STACK_MAX: u32 = 512;
/// Page size of the contract (ring buffers, arenas), whatever the host has.
pub(crate) const PAGE: u32 = 4096;

const NUMA: u32 = BPF_F_NUMA_NODE;
const ACCESS: u32 = ACCESS_MASK;
const HOST_ACCESS: u32 = BPF_F_RDONLY | BPF_F_WRONLY;
const HASH_FLAGS: u32 = BPF_F_NO_PREALLOC | NUMA | ACCESS | BPF_F_ZERO_SEED;

/// A condition on a size or a count.
#[derive(Clone, Copy)]
enum Size {
    Zero,
    Positive,
    Any,
    Is(u32),
    Either(u32, u32),
}

impl Size {
    fn admits(self, n: u32) -> bool {
        match self {
            Size::Zero => n == 0,
            Size::Positive => n > 0,
            Size::Any => true,
            Size::Is(a) => n == a,
            Size::Either(a, b) => n == a || n == b,
        }
    }
}

/// What one map type admits. Everything in a row is `EINVAL`; `more` says the rest.
struct Rule {
    types: &'static [MapType],
    flags: u32,
    required: u32,
    key: Size,
    value: Size,
    entries: Size,
    more: fn(&MapParams) -> Result<(), Errno>,
}

use MapType::*;
use Size::*;

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { types: &[Array], flags: NUMA | ACCESS | BPF_F_MMAPABLE | BPF_F_INNER_MAP, required: 0,
        key: Is(4), value: Positive, entries: Positive, more: array },
    Rule { types: &[PercpuArray], flags: ACCESS, required: 0,
        key: Is(4), value: Positive, entries: Positive, more: percpu_array },
    Rule { types: &[ProgArray, CgroupArray, ArrayOfMaps], flags: NUMA | HOST_ACCESS, required: 0,
        key: Is(4), value: Is(4), entries: Positive, more: array },
    Rule { types: &[PerfEventArray], flags: NUMA | HOST_ACCESS | BPF_F_PRESERVE_ELEMS, required: 0,
        key: Is(4), value: Is(4), entries: Positive, more: array },
    Rule { types: &[ReuseportSockarray], flags: NUMA | ACCESS, required: 0,
        key: Is(4), value: Either(4, 8), entries: Positive, more: array },
    Rule { types: &[Hash], flags: HASH_FLAGS, required: 0,
        key: Positive, value: Positive, entries: Positive, more: hash },
    Rule { types: &[PercpuHash], flags: HASH_FLAGS & !NUMA, required: 0,
        key: Positive, value: Positive, entries: Positive, more: percpu_hash },
    Rule { types: &[HashOfMaps], flags: HASH_FLAGS, required: 0,
        key: Positive, value: Is(4), entries: Positive, more: hash },
    Rule { types: &[LruHash], flags: HASH_FLAGS | BPF_F_NO_COMMON_LRU, required: 0,
        key: Positive, value: Positive, entries: Positive, more: lru_hash },
    Rule { types: &[LruPercpuHash], flags: (HASH_FLAGS & !NUMA) | BPF_F_NO_COMMON_LRU, required: 0,
        key: Positive, value: Positive, entries: Positive, more: lru_percpu_hash },
    Rule { types: &[LpmTrie], flags: BPF_F_NO_PREALLOC | NUMA | ACCESS, required: BPF_F_NO_PREALLOC,
        key: Positive, value: Positive, entries: Positive, more: lpm },
    Rule { types: &[Queue, Stack], flags: NUMA | ACCESS, required: 0,
        key: Zero, value: Positive, entries: Positive, more: queue },
    Rule { types: &[BloomFilter], flags: NUMA | ACCESS | BPF_F_ZERO_SEED, required: 0,
        key: Zero, value: Positive, entries: Positive, more: bloom },
    Rule { types: &[StackTrace], flags: NUMA | HOST_ACCESS | BPF_F_STACK_BUILD_ID, required: 0,
        key: Is(4), value: Positive, entries: Positive, more: stack_trace },
    Rule { types: &[CgroupStorage, PercpuCgroupStorage], flags: NUMA | ACCESS, required: 0,
        key: Either(16, 8), value: Positive, entries: Zero, more: cgroup_storage },
    Rule { types: &[SkStorage, InodeStorage, TaskStorage, CgrpStorage],
        flags: BPF_F_NO_PREALLOC | BPF_F_CLONE, required: BPF_F_NO_PREALLOC,
        key: Is(4), value: Positive, entries: Zero, more: storage },
    Rule { types: &[Sockmap], flags: NUMA | HOST_ACCESS, required: 0,
        key: Is(4), value: Either(4, 8), entries: Positive, more: pass },
    Rule { types: &[Sockhash], flags: NUMA | HOST_ACCESS, required: 0,
        key: Positive, value: Either(4, 8), entries: Positive, more: sockhash },
    Rule { types: &[Devmap, DevmapHash], flags: NUMA | HOST_ACCESS, required: 0,
        key: Is(4), value: Either(4, 8), entries: Positive, more: devmap },
    Rule { types: &[Cpumap], flags: NUMA, required: 0,
        key: Is(4), value: Either(4, 8), entries: Positive, more: cpumap },
    Rule { types: &[Xskmap], flags: NUMA | HOST_ACCESS, required: 0,
        key: Is(4), value: Is(4), entries: Positive, more: pass },
    Rule { types: &[Ringbuf, UserRingbuf], flags: NUMA, required: 0,
        key: Zero, value: Zero, entries: Positive, more: ring },
    Rule { types: &[StructOps], flags: BPF_F_LINK | BPF_F_VTYPE_BTF_OBJ_FD, required: 0,
        key: Is(4), value: Positive, entries: Is(1), more: pass },
    Rule { types: &[Arena], flags: BPF_F_SEGV_ON_FAULT | BPF_F_MMAPABLE | BPF_F_NO_USER_CONV,
        required: BPF_F_MMAPABLE, key: Zero, value: Zero, entries: Positive, more: arena },
    Rule { types: &[Unspec, InsnArray], flags: 0, required: 0,
        key: Any, value: Any, entries: Any, more: no_such_type },
];

/// Whether the kernel would create this map, and with which error it would not.
///
/// # Errors
/// What `BPF_MAP_CREATE` returns for the attributes.
pub fn check(p: &MapParams) -> Result<(), Errno> {
    if p.extra != 0 && !matches!(p.map_type, BloomFilter | Arena) {
        return Err(Errno::EINVAL);
    }
    let host = BPF_F_RDONLY | BPF_F_WRONLY;
    let prog = BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG;
    let flags = p.flags & !BPF_F_TOKEN_FD;
    if flags & host == host || flags & prog == prog {
        return Err(Errno::EINVAL);
    }
    let rule = RULES
        .iter()
        .find(|r| r.types.contains(&p.map_type))
        .ok_or(Errno::EINVAL)?;
    if flags & !rule.flags != 0 || flags & rule.required != rule.required {
        return Err(Errno::EINVAL);
    }
    let sizes = [
        (rule.key, p.key_size),
        (rule.value, p.value_size),
        (rule.entries, p.max_entries),
    ];
    if sizes.iter().any(|(size, n)| !size.admits(*n)) {
        return Err(Errno::EINVAL);
    }
    (rule.more)(p)?;
    fields(p)
}

fn fail_if(condition: bool, errno: Errno) -> Result<(), Errno> {
    if condition { Err(errno) } else { Ok(()) }
}

fn pass(_: &MapParams) -> Result<(), Errno> {
    Ok(())
}

fn no_such_type(_: &MapParams) -> Result<(), Errno> {
    Err(Errno::EINVAL)
}

fn array(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.value_size > i32::MAX as u32, Errno::E2BIG)
}

fn percpu_value(p: &MapParams) -> Result<(), Errno> {
    fail_if(
        round8(p.value_size as usize) > PERCPU_VALUE_MAX,
        Errno::E2BIG,
    )
}

fn percpu_array(p: &MapParams) -> Result<(), Errno> {
    array(p)?;
    percpu_value(p)
}

fn hash_sizes(p: &MapParams) -> Result<(), Errno> {
    let element = u64::from(p.key_size) + u64::from(p.value_size);
    fail_if(element >= KMALLOC_MAX - HASH_ELEM, Errno::E2BIG)
}

fn hash_buckets(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.max_entries > HASH_BUCKETS_MAX, Errno::E2BIG)
}

fn hash(p: &MapParams) -> Result<(), Errno> {
    hash_sizes(p)?;
    hash_buckets(p)
}

fn percpu_hash(p: &MapParams) -> Result<(), Errno> {
    hash_sizes(p)?;
    percpu_value(p)?;
    hash_buckets(p)
}

fn lru(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.flags & BPF_F_NO_PREALLOC != 0, Errno::ENOTSUPP)?;
    let own_lists = p.flags & BPF_F_NO_COMMON_LRU != 0;
    fail_if(own_lists && p.flags & NUMA != 0, Errno::EINVAL)
}

fn lru_hash(p: &MapParams) -> Result<(), Errno> {
    lru(p)?;
    hash(p)
}

fn lru_percpu_hash(p: &MapParams) -> Result<(), Errno> {
    lru(p)?;
    percpu_hash(p)
}

fn lpm(p: &MapParams) -> Result<(), Errno> {
    let key = 5..=4 + LPM_DATA_MAX;
    let value_max = KMALLOC_MAX - u64::from(LPM_DATA_MAX) - LPM_NODE;
    fail_if(
        !key.contains(&p.key_size) || u64::from(p.value_size) > value_max,
        Errno::EINVAL,
    )
}

fn queue(p: &MapParams) -> Result<(), Errno> {
    fail_if(u64::from(p.value_size) > KMALLOC_MAX, Errno::E2BIG)
}

fn bloom(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.extra & !0xf != 0, Errno::EINVAL)?;
    queue(p)
}

fn stack_trace(p: &MapParams) -> Result<(), Errno> {
    let entry = if p.flags & BPF_F_STACK_BUILD_ID != 0 {
        32
    } else {
        8
    };
    let odd = !p.value_size.is_multiple_of(entry) || p.value_size / entry > STACK_DEPTH_MAX;
    fail_if(odd, Errno::EINVAL)?;
    fail_if(p.max_entries > 1 << 31, Errno::E2BIG)
}

fn storage(p: &MapParams) -> Result<(), Errno> {
    fail_if(u64::from(p.value_size) > STORAGE_VALUE_MAX, Errno::E2BIG)
}

fn cgroup_storage(p: &MapParams) -> Result<(), Errno> {
    storage(p)?;
    let percpu = p.map_type == PercpuCgroupStorage;
    fail_if(
        percpu && p.value_size as usize > PERCPU_VALUE_MAX,
        Errno::E2BIG,
    )
}

fn sockhash(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.key_size > STACK_MAX, Errno::E2BIG)
}

fn devmap(p: &MapParams) -> Result<(), Errno> {
    fail_if(
        p.map_type == DevmapHash && p.max_entries > 1 << 31,
        Errno::EINVAL,
    )
}

fn cpumap(p: &MapParams) -> Result<(), Errno> {
    fail_if(p.max_entries > CPUMAP_MAX, Errno::E2BIG)
}

fn ring(p: &MapParams) -> Result<(), Errno> {
    let size = p.max_entries;
    fail_if(
        !size.is_power_of_two() || !size.is_multiple_of(PAGE),
        Errno::EINVAL,
    )
}

fn arena(p: &MapParams) -> Result<(), Errno> {
    fail_if(!p.extra.is_multiple_of(u64::from(PAGE)), Errno::EINVAL)?;
    let bytes = u64::from(p.max_entries) * u64::from(PAGE);
    fail_if(bytes > 1 << 32, Errno::E2BIG)?;
    let last = p.extra.wrapping_add(bytes - 1);
    fail_if(p.extra >> 32 != last >> 32, Errno::ERANGE)
}

/// Which map types admit a special field (`map_check_btf`).
fn fields(p: &MapParams) -> Result<(), Errno> {
    if p.fields.is_empty() {
        return Ok(());
    }
    fail_if(
        p.flags & (BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG) != 0,
        Errno::EACCES,
    )?;
    for field in &p.fields {
        let admitted: &[MapType] = match field.kind {
            FieldKind::SpinLock | FieldKind::ResSpinLock => &[
                Hash,
                Array,
                CgroupStorage,
                SkStorage,
                InodeStorage,
                TaskStorage,
                CgrpStorage,
            ],
            FieldKind::Timer | FieldKind::Workqueue | FieldKind::TaskWork => {
                &[Hash, LruHash, Array]
            }
            FieldKind::KptrUnref
            | FieldKind::KptrRef
            | FieldKind::KptrPercpu
            | FieldKind::Refcount => &[
                Hash,
                PercpuHash,
                LruHash,
                LruPercpuHash,
                Array,
                PercpuArray,
                SkStorage,
                InodeStorage,
                TaskStorage,
                CgrpStorage,
            ],
            FieldKind::Uptr => &[TaskStorage],
            FieldKind::ListHead | FieldKind::RbRoot => &[Hash, LruHash, Array],
        };
        fail_if(!admitted.contains(&p.map_type), Errno::EOPNOTSUPP)?;
    }
    Ok(())
}
