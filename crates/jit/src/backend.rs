//! The architectures that code is made for.

use std::borrow::Cow;

use bpfkit_runtime::LoadError;
use bpfkit_runtime::native::Slot;

use crate::lower::Plan;
use crate::trampoline::Call;
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

/// Code that all programs of an architecture call. It lies at the beginning of each block of
/// code memory, and programs' code is made as if it lay right before it: its places have
/// negative offsets.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) code: Vec<u8>,
    /// What begins where.
    pub(crate) places: Vec<(i32, Cow<'static, str>)>,
}

/// That of an architecture.
pub(crate) fn shared(arch: Arch) -> &'static Shared {
    match arch {
        Arch::X86_64 => x86_64::shared_code(),
        Arch::Aarch64 => aarch64::shared_code(),
    }
}

/// Names of what programs call that lies before their code: offset, name.
pub fn shared_places(arch: Arch) -> impl Iterator<Item = (i32, &'static str)> {
    let places = shared(arch).places.iter();
    places.map(|(at, name)| (*at, &**name))
}

/// Moves what a call at an offset leads to: one of [`Compiled::links`].
pub(crate) fn relink(arch: Arch, code: &mut [u8], at: u32, by: i64) {
    match arch {
        Arch::X86_64 => x86_64::relink(code, at, by),
        // Nothing is linked.
        Arch::Aarch64 => {}
    }
}

/// Code, and where calls from outside enter.
pub(crate) struct Compiled {
    pub(crate) code: Vec<u8>,
    /// Where calls lead to shared code.
    pub(crate) links: Vec<u32>,
    /// Offset to enter main through; its code begins at 0.
    pub(crate) enter_main: Option<i32>,
    /// Offset to enter functions through.
    pub(crate) enter_function: i32,
    /// Offsets of the functions, in the order of the plan's.
    pub(crate) functions: Vec<u32>,
    /// Offsets that helpers return to, sorted, with the slots of their calls: what stands for
    /// the slot where code does not say it.
    pub(crate) returns: Vec<(u32, u32)>,
    /// Where the stretches of the code begin, sorted; empty unless it was asked for.
    pub(crate) parts: Vec<Part>,
}

/// What a stretch of machine code belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// The beginning of the function that starts at that slot.
    Prologue(u32),
    /// The instruction at that slot. What seldom happens may lie behind all functions.
    Insn(u32),
    /// The end of the function that starts at that slot.
    Epilogue(u32),
    /// Shared by instructions: how functions are called from outside, how code calls out.
    Shared(&'static str),
}

/// A stretch of machine code; it ends where the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Part {
    /// Bytes from the beginning of the code.
    pub offset: u32,
    /// What it belongs to.
    pub origin: Origin,
}

/// Where the stretches begin. `offset` gives the places of labels: slots', then functions'.
pub(crate) fn parts(
    plan: &Plan<'_>,
    marks: &[(u32, Origin)],
    offset: impl Fn(u32) -> Option<u32>,
) -> Vec<Part> {
    let slots = plan.slots();
    let functions = (slots.len() as u32 + 1..).zip(&plan.functions);
    let places = (0..slots.len() as u32)
        .filter(|slot| !matches!(slots[*slot as usize], Slot::Second))
        .map(|slot| (slot, Origin::Insn(slot)))
        .chain(functions.map(|(label, f)| (label, Origin::Prologue(f.start))))
        .chain(marks.iter().copied());
    let mut parts: Vec<Part> = places
        .filter_map(|(label, origin)| {
            let offset = offset(label)?;
            Some(Part { offset, origin })
        })
        .collect();
    parts.sort_by_key(|part| part.offset);
    parts
}

/// Compiles a plan. `pointer_base` is the address that stands for the first of its
/// function pointers; the others follow at a distance of one byte. `parts` asks where the
/// stretches of the code begin.
///
/// # Errors
/// The first instruction that the backend cannot do.
pub(crate) fn compile(
    arch: Arch,
    plan: &mut Plan<'_>,
    features: Features,
    pointer_base: u64,
    parts: bool,
) -> Result<Compiled, LoadError> {
    plan.find_spills(match arch {
        Arch::X86_64 => x86_64::free_registers,
        Arch::Aarch64 => aarch64::free_registers,
    });
    match arch {
        Arch::X86_64 => x86_64::compile(plan, features, pointer_base, parts),
        Arch::Aarch64 => aarch64::compile(plan, features, pointer_base, parts),
    }
}

/// The code of a trampoline: its entry at the beginning, and where it goes with programs
/// attached.
pub(crate) struct Shapes {
    pub(crate) code: Vec<u8>,
    /// Offset of the code that runs programs before the function only.
    pub(crate) before: usize,
    /// Offset of the code that calls the function.
    pub(crate) around: usize,
}

/// The code of a trampoline, if it can be made.
pub(crate) fn trampoline(arch: Arch, call: &Call) -> Option<Shapes> {
    match arch {
        Arch::X86_64 => Some(x86_64::trampoline(call)),
        Arch::Aarch64 => aarch64::trampoline(call),
    }
}
