//! What helpers keep between runs for all programs of an object.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::heap::Heap;
use super::timer::Timers;

/// Allocated objects, timers, socket options.
#[derive(Default)]
pub struct Shared {
    pub(crate) heap: Heap,
    pub(crate) timers: Timers,
    options: Mutex<HashMap<(i32, i32), Vec<u8>>>,
}

impl Shared {
    /// Socket options by level and name.
    pub(crate) fn options(&self) -> MutexGuard<'_, HashMap<(i32, i32), Vec<u8>>> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
