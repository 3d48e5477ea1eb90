//! The architectures that code is made for.

use bpfkit_runtime::LoadError;

use crate::lower::Plan;
use crate::{aarch64, x86_64};

/// An architecture to make code for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
}

impl Arch {
    /// That of this machine, if there is a backend for it.
    pub const HOST: Option<Arch> = if cfg!(target_arch = "x86_64") {
        Some(Arch::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Aarch64)
    } else {
        None
    };
}

/// What a processor offers beyond the baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// x86-64: shifts by any register, rotations into another one.
    pub bmi2: bool,
    /// AArch64: atomic instructions. Without them programs with atomics do not load.
    pub lse: bool,
}

impl Features {
    /// Everything that code is made of.
    pub const ALL: Features = Features {
        bmi2: true,
        lse: true,
    };

    /// Those of this machine.
    pub fn host() -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self {
            bmi2: std::arch::is_x86_feature_detected!("bmi2"),
            lse: false,
        };
        #[cfg(target_arch = "aarch64")]
        return Self {
            bmi2: false,
            lse: std::arch::is_aarch64_feature_detected!("lse"),
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return Self {
            bmi2: false,
            lse: false,
        };
    }

    /// What both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bmi2: self.bmi2 && other.bmi2,
            lse: self.lse && other.lse,
        }
    }
}

/// Code, and where calls from outside enter. Main is entered at its beginning.
pub(crate) struct Compiled {
    pub(crate) code: Vec<u8>,
    /// Offset to enter functions through, if there are any besides main.
    pub(crate) enter_function: Option<u32>,
    /// Offsets of the functions, in the order of the plan's.
    pub(crate) functions: Vec<u32>,
}

/// Compiles a plan. `pointer_base` is the address that stands for the first of its
/// function pointers; the others follow at a distance of one byte.
///
/// # Errors
/// The first instruction that the backend cannot do.
pub(crate) fn compile(
    arch: Arch,
    plan: &Plan<'_>,
    features: Features,
    pointer_base: u64,
) -> Result<Compiled, LoadError> {
    match arch {
        Arch::X86_64 => x86_64::compile(plan, features, pointer_base),
        Arch::Aarch64 => aarch64::compile(plan, features, pointer_base),
    }
}
