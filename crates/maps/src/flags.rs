//! Flags of `linux/bpf.h` that maps take.

/// Update: create or replace.
pub const BPF_ANY: u64 = 0;
/// Update: create only.
pub const BPF_NOEXIST: u64 = 1;
/// Update: replace only.
pub const BPF_EXIST: u64 = 2;
/// Read or write the value under its `bpf_spin_lock`.
pub const BPF_F_LOCK: u64 = 4;

/// Creation: allocate elements when they are inserted.
pub const BPF_F_NO_PREALLOC: u32 = 1 << 0;
/// Creation: every CPU evicts from its own part of an LRU map.
pub const BPF_F_NO_COMMON_LRU: u32 = 1 << 1;
/// Creation: `numa_node` is given.
pub const BPF_F_NUMA_NODE: u32 = 1 << 2;
/// Creation: the host may only read.
pub const BPF_F_RDONLY: u32 = 1 << 3;
/// Creation: the host may only write.
pub const BPF_F_WRONLY: u32 = 1 << 4;
/// Creation: a stack trace holds build ids and offsets instead of addresses.
pub const BPF_F_STACK_BUILD_ID: u32 = 1 << 5;
/// Creation: hash with seed 0, for tests.
pub const BPF_F_ZERO_SEED: u32 = 1 << 6;
/// Creation: programs may only read.
pub const BPF_F_RDONLY_PROG: u32 = 1 << 7;
/// Creation: programs may only write.
pub const BPF_F_WRONLY_PROG: u32 = 1 << 8;
/// Creation: a clone of a socket inherits its storage.
pub const BPF_F_CLONE: u32 = 1 << 9;
/// Creation: the values may be mapped into the host's memory.
pub const BPF_F_MMAPABLE: u32 = 1 << 10;
/// Creation: perf events stay after their file is closed.
pub const BPF_F_PRESERVE_ELEMS: u32 = 1 << 11;
/// Creation: an array that may be an inner map of any size.
pub const BPF_F_INNER_MAP: u32 = 1 << 12;
/// Creation: a struct_ops map that attaches through a link.
pub const BPF_F_LINK: u32 = 1 << 13;
/// Creation: the value type belongs to the module of `value_type_btf_obj_fd`.
pub const BPF_F_VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
/// Creation: a token of a BPF file system is given.
pub const BPF_F_TOKEN_FD: u32 = 1 << 16;
/// Creation: an access by the host to an unallocated arena page is an error.
pub const BPF_F_SEGV_ON_FAULT: u32 = 1 << 17;
/// Creation: arena pointers are not translated to the host's addresses.
pub const BPF_F_NO_USER_CONV: u32 = 1 << 18;

/// Ring buffer: do not wake the consumer.
pub const BPF_RB_NO_WAKEUP: u64 = 1;
/// Ring buffer: wake the consumer.
pub const BPF_RB_FORCE_WAKEUP: u64 = 2;

/// Flags that restrict who may do what.
pub(crate) const ACCESS_MASK: u32 =
    BPF_F_RDONLY | BPF_F_RDONLY_PROG | BPF_F_WRONLY | BPF_F_WRONLY_PROG;
