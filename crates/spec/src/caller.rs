//! A program that asks, and conditions on it.

use crate::struct_ops;
use crate::{AttachType, KernelVersion, ProgType};

/// Condition on a program beside its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// None.
    Always,
    /// Expected attach type is one of these.
    AttachIn(&'static [AttachType]),
    /// Expected attach type is none of these.
    AttachNotIn(&'static [AttachType]),
    /// The program is sleepable.
    Sleepable,
    /// The program is an iterator over one of these targets.
    IterOver(&'static [&'static str]),
    /// The program is attached to one of these LSM hooks (names without `bpf_lsm_`) per cgroup.
    CgroupLsmHook(&'static [&'static str]),
    /// The program implements that structure, though not that member.
    StructOpsNot {
        /// Structure.
        ops: &'static str,
        /// Member that may not call; empty for none.
        member: &'static str,
    },
}

/// A capability of the loading process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Capability {
    /// None: an unprivileged process too.
    None,
    /// `CAP_BPF`.
    Bpf,
    /// `CAP_BPF` and `CAP_PERFMON`.
    Perfmon,
    /// `CAP_SYS_ADMIN`.
    SysAdmin,
}

/// A program, as far as it decides what the tables give it.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Program type; of an extension, the type of the program it replaces.
    pub prog_type: ProgType,
    /// Expected attach type.
    pub attach_type: AttachType,
    /// Loaded with `BPF_F_SLEEPABLE`.
    pub sleepable: bool,
    /// Greatest capability of the loading process.
    pub capability: Capability,
    /// What it attaches to: the function (`bpf_lsm_file_open`, `bpf_iter_task`) or, for
    /// struct_ops, the structure.
    pub target: &'a str,
    /// Member of the structure that a struct_ops program implements, else empty.
    pub member: &'a str,
    /// Kernel to judge by.
    pub kernel: KernelVersion,
}

impl<'a> Caller<'a> {
    /// A privileged, not sleepable program for the target kernel without attach target.
    pub const fn new(prog_type: ProgType, attach_type: AttachType) -> Caller<'a> {
        Caller {
            prog_type,
            attach_type,
            sleepable: false,
            capability: Capability::SysAdmin,
            target: "",
            member: "",
            kernel: KernelVersion::TARGET,
        }
    }

    /// False for struct_ops programs of a structure that gives them no helpers.
    pub(crate) fn has_helpers(&self) -> bool {
        self.prog_type != ProgType::StructOps
            || struct_ops::by_name(self.target).is_none_or(|ops| ops.helpers)
    }
}

impl When {
    /// Whether the condition holds for that program.
    pub fn holds(self, caller: &Caller<'_>) -> bool {
        match self {
            When::Always => true,
            When::AttachIn(types) => types.contains(&caller.attach_type),
            When::AttachNotIn(types) => !types.contains(&caller.attach_type),
            When::Sleepable => caller.sleepable,
            When::IterOver(targets) => {
                caller.attach_type == AttachType::TraceIter
                    && caller
                        .target
                        .strip_prefix("bpf_iter_")
                        .is_some_and(|target| targets.contains(&target))
            }
            When::CgroupLsmHook(hooks) => {
                caller.attach_type == AttachType::LsmCgroup
                    && caller
                        .target
                        .strip_prefix("bpf_lsm_")
                        .is_some_and(|hook| hooks.contains(&hook))
            }
            When::StructOpsNot { ops, member } => caller.target == ops && caller.member != member,
        }
    }
}
