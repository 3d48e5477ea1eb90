//! Whether a program is running already where it is about to run.
//!
//! A worker runs one thing at a time, but a signal handler may come in between, and a program
//! may call what it is attached to. A byte for each such context in one word of the worker's
//! own tells: entering counts the context's byte up, and any other word than that byte = 1 is
//! recursion. No atomic operation is needed, because a worker's word is changed by the worker
//! alone, and what interrupts it leaves it as it was.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Contexts that are told apart.
const CONTEXTS: usize = 4;

thread_local! {
    static CONTEXT: Cell<u8> = const { Cell::new(0) };
}

/// Runs what a signal handler does: a context of its own, so that a program which it
/// interrupted is known to be running.
pub fn in_signal_handler<R>(body: impl FnOnce() -> R) -> R {
    let outer = CONTEXT.get();
    CONTEXT.set((outer + 1).min(CONTEXTS as u8 - 1));
    let result = body();
    CONTEXT.set(outer);
    result
}

/// A worker's word of a program, a byte for each context.
#[derive(Default, Debug)]
#[repr(align(64))]
pub struct ByteCounter([AtomicU8; CONTEXTS]);

impl ByteCounter {
    /// Enters, unless the program runs already. Call [`leave`](Self::leave) after `true`.
    #[inline]
    pub fn enter(&self) -> bool {
        let context = usize::from(CONTEXT.get()) % CONTEXTS;
        let own = &self.0[context];
        own.store(own.load(Relaxed).wrapping_add(1), Relaxed);
        let word = u32::from_le_bytes([0, 1, 2, 3].map(|i| self.0[i].load(Relaxed)));
        if word == 1 << (8 * context) {
            return true;
        }
        self.leave();
        false
    }

    /// Leaves.
    #[inline]
    pub fn leave(&self) {
        let own = &self.0[usize::from(CONTEXT.get()) % CONTEXTS];
        own.store(own.load(Relaxed).wrapping_sub(1), Relaxed);
    }
}

/// The same by an atomic counter: what [`ByteCounter`] is measured against.
#[derive(Default, Debug)]
#[repr(align(64))]
pub struct AtomicCounter(AtomicU32);

impl AtomicCounter {
    /// Enters, unless the program runs already. Call [`leave`](Self::leave) after `true`.
    #[inline]
    pub fn enter(&self) -> bool {
        if self.0.fetch_add(1, Relaxed) == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Leaves.
    #[inline]
    pub fn leave(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
