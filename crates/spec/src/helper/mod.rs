//! Helpers: `bpf_*` functions of the kernel that programs call by number.

mod offers;
mod proto;
mod table;

pub use offers::Offer;
pub use proto::{Arg, ArgKind, Proto, Ret, RetKind, TargetRule};
pub use table::HELPERS;

use crate::{Caller, KernelVersion};

/// A helper.
#[derive(Clone, Copy, Debug)]
pub struct Helper {
    /// Number (`enum bpf_func_id`), which a call instruction carries.
    pub id: u32,
    /// Name without the prefix `bpf_`.
    pub name: &'static str,
    /// The release that brought it.
    pub since: KernelVersion,
    /// What the call does beside what its prototype says.
    pub effects: Effects,
    /// Who may call it, with which prototype; the first that fits counts.
    pub offers: &'static [Offer],
}

/// What the verifier does at a call beside checking the prototype.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects(u16);

impl Effects {
    /// Nothing.
    pub const NONE: Effects = Effects(0);
    /// May move or resize the packet: packet pointers are gone after it.
    pub const CHANGES_PACKET: Effects = Effects(1);
    /// The result is a reference to be released.
    pub const ACQUIRES: Effects = Effects(1 << 1);
    /// The result is the argument seen as another type, with the argument's reference.
    pub const CASTS: Effects = Effects(1 << 2);
    /// Runs its callback before it returns.
    pub const SYNC_CALLBACK: Effects = Effects(1 << 3);
    /// Runs its callback at some later time.
    pub const ASYNC_CALLBACK: Effects = Effects(1 << 4);
    /// The result lies between a negative errno and the size argument.
    pub const RETURNS_UP_TO_SIZE: Effects = Effects(1 << 5);
    /// The result is a CPU number.
    pub const RETURNS_CPU: Effects = Effects(1 << 6);
    /// Finds local storage; allocates with the flags of the last argument.
    pub const STORAGE_GET: Effects = Effects(1 << 7);
    /// The result points into the dynptr argument.
    pub const DYNPTR_DATA: Effects = Effects(1 << 8);

    /// Both together.
    pub const fn or(self, other: Effects) -> Effects {
        Effects(self.0 | other.0)
    }

    /// Whether it has every effect of `other`.
    pub const fn has(self, other: Effects) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Helper {
    /// The prototype under which that program may call it; none if it may not.
    pub fn proto_for(&self, caller: &Caller<'_>) -> Option<&'static Proto> {
        if !caller.has_helpers() {
            return None;
        }
        self.offers
            .iter()
            .find(|offer| offer.is_for(caller))
            .map(|offer| &offer.proto)
    }

    /// Name as in the kernel's sources and messages, with its prefix.
    pub fn full_name(&self) -> String {
        format!("bpf_{}", self.name)
    }
}

/// The helper of that number.
pub fn by_id(id: i32) -> Option<&'static Helper> {
    let index = usize::try_from(id).ok()?.checked_sub(1)?;
    HELPERS.get(index)
}

/// The helper of that name, with or without `bpf_`.
pub fn by_name(name: &str) -> Option<&'static Helper> {
    let name = name.strip_prefix("bpf_").unwrap_or(name);
    HELPERS.iter().find(|helper| helper.name == name)
}
