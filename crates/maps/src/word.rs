//! The words that threads share, as the lock-free parts see them: atomics of the standard
//! library, or in tests those of a model checker, which tries what orders there are.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic number.
pub(crate) trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    /// Swaps `old` for `new`; may fail without a reason.
    fn exchange(&self, old: T, new: T, done: Ordering, failed: Ordering) -> Result<T, T>;
}

/// A kind of atomics.
pub(crate) trait Atomics {
    type U32: Word<u32>;
    type U64: Word<u64>;
    fn fence(order: Ordering);
    /// One turn of a waiting loop.
    fn relax(spins: &mut u32);
}

/// The processor's.
pub(crate) struct Real;

macro_rules! word {
    ($atomic:ty, $number:ty) => {
        impl Word<$number> for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $number {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $number, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn exchange(
                &self,
                old: $number,
                new: $number,
                done: Ordering,
                failed: Ordering,
            ) -> Result<$number, $number> {
                self.compare_exchange_weak(old, new, done, failed)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

impl Atomics for Real {
    type U32 = AtomicU32;
    type U64 = AtomicU64;

    #[inline(always)]
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }

    #[inline(always)]
    fn relax(spins: &mut u32) {
        crate::value::relax(spins);
    }
}

/// Loom's, for tests.
#[cfg(test)]
pub(crate) struct Model;

#[cfg(test)]
mod model {
    use super::*;

    word!(loom::sync::atomic::AtomicU32, u32);
    word!(loom::sync::atomic::AtomicU64, u64);

    impl Atomics for Model {
        type U32 = loom::sync::atomic::AtomicU32;
        type U64 = loom::sync::atomic::AtomicU64;

        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order);
        }

        fn relax(_: &mut u32) {
            loom::thread::yield_now();
        }
    }
}
