//! Sets of program types.

use crate::ProgType;

/// A set of program types.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgTypes(u64);

impl ProgTypes {
    /// No type.
    pub const NONE: ProgTypes = ProgTypes(0);

    /// Every type that can be loaded: all but [`ProgType::Unspec`].
    pub const ALL: ProgTypes = ProgTypes::of(ProgType::ALL).without(&[ProgType::Unspec]);

    /// The set of those types.
    pub const fn of(types: &[ProgType]) -> ProgTypes {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i] as u32;
            i += 1;
        }
        ProgTypes(bits)
    }

    /// This set and `types`.
    pub const fn with(self, types: &[ProgType]) -> ProgTypes {
        self.or(ProgTypes::of(types))
    }

    /// This set less `types`.
    pub const fn without(self, types: &[ProgType]) -> ProgTypes {
        self.less(ProgTypes::of(types))
    }

    /// What is in this set or in the other.
    pub const fn or(self, other: ProgTypes) -> ProgTypes {
        ProgTypes(self.0 | other.0)
    }

    /// What is in this set and not in the other.
    pub const fn less(self, other: ProgTypes) -> ProgTypes {
        ProgTypes(self.0 & !other.0)
    }

    /// Whether it has that type.
    pub const fn has(self, prog_type: ProgType) -> bool {
        self.0 >> prog_type as u32 & 1 == 1
    }

    /// Its types, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = ProgType> {
        ProgType::ALL
            .iter()
            .copied()
            .filter(move |&prog_type| self.has(prog_type))
    }
}
