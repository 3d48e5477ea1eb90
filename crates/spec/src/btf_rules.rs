//! Trust in pointers that programs load out of kernel structures.
//!
//! A kernel names most of these fields in its own BTF, as structures such as
//! `task_struct__safe_rcu`; those take precedence over [`SAFE_FIELDS`].

/// What a pointer loaded from a field is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Safety {
    /// Valid in an RCU read-side section.
    Rcu,
    /// The same, or null.
    RcuOrNull,
    /// Valid as long as the structure is.
    Trusted,
    /// The same, or null.
    TrustedOrNull,
}

impl Safety {
    /// What the names of structures in the kernel's BTF end with.
    pub const fn suffix(self) -> &'static str {
        match self {
            Safety::Rcu => "__safe_rcu",
            Safety::RcuOrNull => "__safe_rcu_or_null",
            Safety::Trusted => "__safe_trusted",
            Safety::TrustedOrNull => "__safe_trusted_or_null",
        }
    }

    /// Every kind.
    pub const ALL: &'static [Safety] = &[
        Safety::Rcu,
        Safety::RcuOrNull,
        Safety::Trusted,
        Safety::TrustedOrNull,
    ];
}

/// Pointer fields that are safe to load in Linux 6.18: structure, kind, fields.
#[rustfmt::skip]
pub static SAFE_FIELDS: &[(&str, Safety, &[&str])] = &[
    ("task_struct", Safety::Rcu, &["cpus_ptr", "cgroups", "real_parent", "group_leader"]),
    ("cgroup", Safety::Rcu, &["kn"]),
    ("css_set", Safety::Rcu, &["dfl_cgrp"]),
    ("cgroup_subsys_state", Safety::Rcu, &["cgroup"]),
    ("mm_struct", Safety::RcuOrNull, &["exe_file"]),
    ("sk_buff", Safety::RcuOrNull, &["sk"]),
    ("request_sock", Safety::RcuOrNull, &["sk"]),
    ("bpf_iter_meta", Safety::Trusted, &["seq"]),
    ("bpf_iter__task", Safety::Trusted, &["meta", "task"]),
    ("linux_binprm", Safety::Trusted, &["file"]),
    ("file", Safety::Trusted, &["f_inode"]),
    ("dentry", Safety::TrustedOrNull, &["d_inode"]),
    ("socket", Safety::TrustedOrNull, &["sk"]),
];

/// Kernel structures that are freed only after an RCU grace period, so that a kptr to one
/// may be used in an RCU read-side section without taking a reference.
pub const RCU_PROTECTED_TYPES: &[&str] = &[
    "bpf_cpumask",
    "bpf_crypto_ctx",
    "cgroup",
    "prog_test_ref_kfunc",
    "task_struct",
];
