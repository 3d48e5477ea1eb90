//! Which programs may call a helper.

use super::Proto;
use crate::{Caller, Capability, KernelVersion, ProgTypes, When};

/// One way to call a helper: for whom, and with which prototype.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Program types.
    pub types: ProgTypes,
    /// Further condition.
    pub when: When,
    /// Capability that the loading process needs.
    pub capability: Capability,
    /// The release since which these types may call it, where that is later than the helper.
    pub since: Option<KernelVersion>,
    /// Prototype.
    pub proto: Proto,
}

impl Offer {
    /// For those types, always, without capability.
    pub(super) const fn new(types: ProgTypes, proto: Proto) -> Offer {
        Offer {
            types,
            when: When::Always,
            capability: Capability::None,
            since: None,
            proto,
        }
    }

    pub(super) const fn when(mut self, when: When) -> Offer {
        self.when = when;
        self
    }

    pub(super) const fn needs(mut self, capability: Capability) -> Offer {
        self.capability = capability;
        self
    }

    pub(super) const fn since(mut self, major: u8, minor: u8) -> Offer {
        self.since = Some(KernelVersion(major, minor));
        self
    }

    /// Whether that program may call by this offer.
    pub fn is_for(&self, caller: &Caller<'_>) -> bool {
        self.types.has(caller.prog_type)
            && caller.capability >= self.capability
            && self.since.is_none_or(|since| caller.kernel >= since)
            && self.when.holds(caller)
    }
}
