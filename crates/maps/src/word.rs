//! The words that threads share, as the lock-free parts see them: atomics of the standard
//! library, or in tests those of a model checker, which tries what orders there are.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic number of 64 bits.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Swaps `old` for `new`; may fail without a reason.
    fn exchange(&self, old: u64, new: u64, done: Ordering, failed: Ordering) -> Result<u64, u64>;
}

/// A kind of atomics.
pub(crate) trait Atomics {
    type U64: Word;
}

/// The processor's.
pub(crate) struct Real;

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn exchange(
                &self,
                old: u64,
                new: u64,
                done: Ordering,
                failed: Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange_weak(old, new, done, failed)
            }
        }
    };
}

word!(AtomicU64);

impl Atomics for Real {
    type U64 = AtomicU64;
}

/// Loom's, for tests.
#[cfg(test)]
pub(crate) struct Model;

#[cfg(test)]
mod model {
    use super::*;

    word!(loom::sync::atomic::AtomicU64);

    impl Atomics for Model {
        type U64 = loom::sync::atomic::AtomicU64;
    }
}
