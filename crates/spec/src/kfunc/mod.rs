//! Kfuncs: kernel functions that programs call by BTF id.
//!
//! Arguments and results are read from the kernel's BTF; what BTF does not tell is here:
//! flags, who may call, and what the names of parameters mean.

mod set;
mod suffix;
mod table;

pub use set::{FMOD_RET_FUNCTIONS, Hook, Set};
pub use suffix::{SUFFIXES, Suffix, suffix_of};
pub use table::KFUNCS;

use crate::{Caller, KernelVersion};

/// A kfunc.
#[derive(Clone, Copy, Debug)]
pub struct Kfunc {
    /// Name.
    pub name: &'static str,
    /// Set it is registered in, which says who may call it.
    pub set: Set,
    /// Flags of its registration.
    pub flags: Flags,
    /// The release that brought it.
    pub since: KernelVersion,
}

/// Flags of a kfunc (`KF_*`), with the kernel's bit numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(u32);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// Returns a reference to be released.
    pub const ACQUIRE: Flags = Flags(1);
    /// Releases the reference that it is given.
    pub const RELEASE: Flags = Flags(1 << 1);
    /// May return null.
    pub const RET_NULL: Flags = Flags(1 << 2);
    /// Takes trusted pointers only.
    pub const TRUSTED_ARGS: Flags = Flags(1 << 4);
    /// May sleep.
    pub const SLEEPABLE: Flags = Flags(1 << 5);
    /// Does harm; needs `CAP_SYS_BOOT`.
    pub const DESTRUCTIVE: Flags = Flags(1 << 6);
    /// Takes trusted pointers and such as RCU protects.
    pub const RCU: Flags = Flags(1 << 7);
    /// Makes an open-coded iterator.
    pub const ITER_NEW: Flags = Flags(1 << 8);
    /// Advances an open-coded iterator.
    pub const ITER_NEXT: Flags = Flags(1 << 9);
    /// Ends an open-coded iterator.
    pub const ITER_DESTROY: Flags = Flags(1 << 10);
    /// Wants an RCU read-side section around it; its result is RCU protected.
    pub const RCU_PROTECTED: Flags = Flags(1 << 11);
    /// Clobbers only R0, by the `bpf_fastcall` convention.
    pub const FASTCALL: Flags = Flags(1 << 12);
    /// Returns a pointer into the arena.
    pub const ARENA_RET: Flags = Flags(1 << 13);
    /// The first argument is a pointer into the arena.
    pub const ARENA_ARG1: Flags = Flags(1 << 14);
    /// The second argument is a pointer into the arena.
    pub const ARENA_ARG2: Flags = Flags(1 << 15);

    /// Both together.
    pub const fn or(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether it has every flag of `other`.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has any flag of `other`.
    pub const fn has_any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits, as in the kernel.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Kfunc {
    /// Whether that program may call it; where not, the kernel says `calling kernel
    /// function X is not allowed`.
    pub fn is_for(&self, caller: &Caller<'_>) -> bool {
        self.set.is_for(caller, self.name) && caller.kernel >= self.since
    }
}

/// The kfunc of that name.
pub fn by_name(name: &str) -> Option<&'static Kfunc> {
    let index = KFUNCS.binary_search_by(|kfunc| kfunc.name.cmp(name)).ok()?;
    KFUNCS.get(index)
}
