//! Free elements of a hash map: a lock-free stack for each CPU.
//!
//! An element is taken from the own stack, then from those never used, then from the
//! other CPUs' stacks; only when all are empty is the map full. One more element a CPU
//! is kept aside, so that replacing works in a full map.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crossbeam_utils::CachePadded;

use super::table::Elements;

const NONE: u32 = u32::MAX;

/// Free elements by index.
pub(crate) struct FreeElements {
    /// Top of each CPU's stack in the low half, and a count of changes in the high half.
    stacks: Box<[CachePadded<AtomicU64>]>,
    /// Elements set aside for replacing.
    aside: Box<[CachePadded<AtomicU32>]>,
    /// The first element that was never used.
    fresh: CachePadded<AtomicU32>,
    limit: u32,
}

/// An element taken for replacing, and whose it is.
pub(crate) struct Aside {
    pub(crate) index: u32,
    home: Option<usize>,
}

impl FreeElements {
    /// Elements `0 .. limit`, and one for each CPU beyond.
    pub(crate) fn new(limit: u32, cpus: u32) -> FreeElements {
        FreeElements {
            stacks: (0..cpus)
                .map(|_| CachePadded::new(AtomicU64::new(NONE.into())))
                .collect(),
            aside: (0..cpus)
                .map(|cpu| CachePadded::new(AtomicU32::new(limit + cpu)))
                .collect(),
            fresh: CachePadded::new(AtomicU32::new(0)),
            limit,
        }
    }

    fn link<E: Elements>(elements: &E, index: u32) -> &AtomicU64 {
        // SAFETY: a free element's key area has at least eight aligned bytes, which link
        // it; readers that still look at it compare them as a key's.
        unsafe { AtomicU64::from_ptr(elements.key_at(index).cast()) }
    }

    fn home(&self, cpu: u32) -> usize {
        (cpu as usize).min(self.stacks.len() - 1)
    }

    fn pop_from<E: Elements>(&self, elements: &E, stack: usize) -> Option<u32> {
        let top = &self.stacks[stack];
        let mut head = top.load(Acquire);
        loop {
            let index = head as u32;
            if index == NONE {
                return None;
            }
            let next = FreeElements::link(elements, index).load(Relaxed) as u32;
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            match top.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn take_fresh(&self) -> Option<u32> {
        if self.fresh.load(Relaxed) >= self.limit {
            return None;
        }
        let step = |n| (n < self.limit).then_some(n + 1);
        self.fresh.fetch_update(Relaxed, Relaxed, step).ok()
    }

    /// Takes a free element.
    pub(crate) fn pop<E: Elements>(&self, elements: &E, cpu: u32) -> Option<u32> {
        let home = self.home(cpu);
        let own = self.pop_from(elements, home).or_else(|| self.take_fresh());
        own.or_else(|| {
            let n = self.stacks.len();
            (1..n).find_map(|step| self.pop_from(elements, (home + step) % n))
        })
    }

    /// Gives an element back.
    pub(crate) fn push<E: Elements>(&self, elements: &E, cpu: u32, index: u32) {
        let top = &self.stacks[self.home(cpu)];
        let mut head = top.load(Relaxed);
        loop {
            FreeElements::link(elements, index).store(u64::from(head as u32), Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(index);
            match top.compare_exchange_weak(head, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the element set aside for replacing, or a free one if another thread of
    /// the same CPU has it. `None`: neither is there, try again soon.
    pub(crate) fn take_aside<E: Elements>(&self, elements: &E, cpu: u32) -> Option<Aside> {
        let home = self.home(cpu);
        match self.aside[home].swap(NONE, Acquire) {
            NONE => self
                .pop(elements, cpu)
                .map(|index| Aside { index, home: None }),
            index => Some(Aside {
                index,
                home: Some(home),
            }),
        }
    }

    /// Gives back the element that `taken` stood in for.
    pub(crate) fn put_aside<E: Elements>(&self, elements: &E, cpu: u32, taken: &Aside, old: u32) {
        match taken.home {
            Some(home) => self.aside[home].store(old, Release),
            None => self.push(elements, cpu, old),
        }
    }
}
