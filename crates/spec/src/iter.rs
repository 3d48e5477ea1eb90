//! Iterators over kernel objects (`bpf_iter`), and the arguments of their programs.

use crate::{KernelVersion, TypeFlags as F};

/// Something that iterator programs walk over.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name; the program attaches to `bpf_iter_` and this name.
    pub name: &'static str,
    /// The release that brought it.
    pub since: KernelVersion,
    /// Arguments of the program that are pointers with rules of their own. The argument
    /// `meta` comes first with every target and is a trusted pointer.
    pub args: &'static [Arg],
}

/// An argument of an iterator program.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Offset in the context in bytes.
    pub offset: u32,
    /// Name of the field of `struct bpf_iter__TARGET`.
    pub name: &'static str,
    /// What it points to.
    pub kind: ArgKind,
    /// Modifiers.
    pub flags: F,
}

/// What an iterator argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKind {
    /// That kernel structure.
    BtfId(&'static str),
    /// A buffer of the map's key or value size.
    Buffer,
}

const OR_NULL: F = F::PTR_MAYBE_NULL;
const TRUSTED_OR_NULL: F = F::PTR_TRUSTED.or(F::PTR_MAYBE_NULL);
const READ_ONLY_OR_NULL: F = F::MEM_RDONLY.or(F::PTR_MAYBE_NULL);

const fn object(offset: u32, name: &'static str, of: &'static str, flags: F) -> Arg {
    Arg {
        offset,
        name,
        kind: ArgKind::BtfId(of),
        flags,
    }
}

const fn buffer(offset: u32, name: &'static str, flags: F) -> Arg {
    Arg {
        offset,
        name,
        kind: ArgKind::Buffer,
        flags,
    }
}

const fn target(name: &'static str, (major, minor): (u8, u8), args: &'static [Arg]) -> Target {
    Target {
        name,
        since: KernelVersion(major, minor),
        args,
    }
}

/// Every target of the target kernel.
#[rustfmt::skip]
pub static TARGETS: &[Target] = &[
    target("bpf_link", (5, 19), &[object(8, "link", "bpf_link", OR_NULL)]),
    target("bpf_map", (5, 8), &[object(8, "map", "bpf_map", TRUSTED_OR_NULL)]),
    target("bpf_map_elem", (5, 9), &[
        buffer(16, "key", READ_ONLY_OR_NULL),
        buffer(24, "value", OR_NULL),
    ]),
    target("bpf_prog", (5, 9), &[object(8, "prog", "bpf_prog", OR_NULL)]),
    target("bpf_sk_storage_map", (5, 9), &[
        object(16, "sk", "sock", OR_NULL),
        buffer(24, "value", OR_NULL),
    ]),
    target("cgroup", (6, 1), &[object(8, "cgroup", "cgroup", TRUSTED_OR_NULL)]),
    target("dmabuf", (6, 16), &[object(8, "dmabuf", "dma_buf", OR_NULL)]),
    target("ipv6_route", (5, 8), &[object(8, "rt", "fib6_info", OR_NULL)]),
    target("kmem_cache", (6, 13), &[object(8, "s", "kmem_cache", TRUSTED_OR_NULL)]),
    target("ksym", (6, 0), &[object(8, "ksym", "kallsym_iter", OR_NULL)]),
    target("netlink", (5, 8), &[object(8, "sk", "netlink_sock", OR_NULL)]),
    target("sockmap", (5, 10), &[
        buffer(16, "key", READ_ONLY_OR_NULL),
        object(24, "sk", "sock", OR_NULL),
    ]),
    target("task", (5, 8), &[object(8, "task", "task_struct", TRUSTED_OR_NULL)]),
    target("task_file", (5, 8), &[
        object(8, "task", "task_struct", OR_NULL),
        object(24, "file", "file", OR_NULL),
    ]),
    target("task_vma", (5, 13), &[
        object(8, "task", "task_struct", OR_NULL),
        object(16, "vma", "vm_area_struct", OR_NULL),
    ]),
    target("tcp", (5, 9), &[object(8, "sk_common", "sock_common", TRUSTED_OR_NULL)]),
    target("udp", (5, 9), &[object(8, "udp_sk", "udp_sock", TRUSTED_OR_NULL)]),
    target("unix", (5, 16), &[object(8, "unix_sk", "unix_sock", OR_NULL)]),
];

/// The target of that name.
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
