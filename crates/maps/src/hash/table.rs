//! The bucket table: readers take no lock, writers lock one bucket.
//!
//! A bucket is a cache line with eight slots: a byte of the hash for each (its tag)
//! and the index of an element. Full buckets chain to overflow lines. A reader loads
//! the line, compares eight tags at once, and goes to the element whose tag matches:
//! two cache misses, however large the map.
//!
//! An element that leaves the table may be reused at once. So every removal or
//! replacement bumps the bucket's version *before* the element is given back, and a
//! reader that sees another version at the end than at the start looks again. Slots
//! never move, so readers miss nothing that stays.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use super::hasher::Key;
use crate::Errno;
use crate::mem::{Commit, Region};
use crate::value::relax;

/// Slots of a line.
pub(crate) const SLOTS: usize = 8;
/// Elements a bucket is made for.
const LOAD: u32 = 4;
const LOCKED: u32 = 1;
const ONES: u64 = 0x0101_0101_0101_0101;
const LOWS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// One cache line: a bucket, or what overflows from it.
#[repr(C, align(64))]
pub(crate) struct Line {
    /// Bit 0 is the writers' lock, the rest the version. Of buckets only.
    control: AtomicU32,
    /// Index of the next line of the chain plus 1, in the overflow lines; 0 ends it.
    next: AtomicU32,
    /// A byte a slot: 0 is empty, else a part of the hash.
    tags: AtomicU64,
    slots: [AtomicU32; SLOTS],
}

impl Line {
    /// Slots with this tag, a bit at the top of each byte.
    #[inline(always)]
    fn matching(tags: u64, tag: u8) -> u64 {
        let x = tags ^ ONES.wrapping_mul(u64::from(tag));
        !(((x & LOWS) + LOWS) | x | LOWS)
    }
}

/// Where elements live: `matches` must be memory safe for any index below `limit`.
pub(crate) trait Elements {
    /// Address of an element's key, for an index that a slot held.
    fn key_at(&self, index: u32) -> *mut u8;
}

/// The place of an element: which line of which bucket, and the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) bucket: u32,
    /// Position in the chain times 8 plus slot.
    pub(crate) position: u32,
}

pub(crate) struct Table {
    buckets: Region,
    n: u32,
    overflow: Region,
    overflow_len: u32,
    spare: Mutex<Spare>,
}

/// Overflow lines that are not in use.
#[derive(Default)]
struct Spare {
    fresh: u32,
    free: Vec<u32>,
}

/// A bucket whose lock is held; dropping gives it back.
pub(crate) struct Locked<'a> {
    table: &'a Table,
    line: &'a Line,
    /// Whether something left the bucket, so readers must look again.
    bump: bool,
}

impl Table {
    /// A table for `entries` elements.
    pub(crate) fn new(entries: u32) -> Result<Table, Errno> {
        let n = entries.div_ceil(LOAD).max(1);
        // Chains beyond this many lines only come from keys chosen to collide.
        let overflow_len = n.saturating_add(entries / 4).saturating_add(64);
        let line = size_of::<Line>();
        Ok(Table {
            buckets: Region::array(n as usize, line, Commit::Touched)?
                .expect_use(n as usize * line),
            n,
            overflow: Region::array(overflow_len as usize, line, Commit::Touched)?,
            overflow_len,
            spare: Mutex::default(),
        })
    }

    pub(crate) fn buckets(&self) -> u32 {
        self.n
    }

    #[inline(always)]
    pub(crate) fn bucket_of(&self, hash: u32) -> u32 {
        ((u64::from(hash) * u64::from(self.n)) >> 32) as u32
    }

    #[inline(always)]
    fn tag_of(hash: u32) -> u8 {
        (hash as u8).max(1)
    }

    #[inline(always)]
    fn line(&self, bucket: u32) -> &Line {
        debug_assert!(bucket < self.n);
        // SAFETY: every caller gets `bucket` from `bucket_of`, which is below `n`, or
        // tests it against `n`; lines are zeroed memory of atomics.
        unsafe {
            self.buckets
                .base()
                .cast::<Line>()
                .add(bucket as usize)
                .as_ref()
        }
    }

    #[inline(always)]
    fn next_line(&self, line: &Line) -> Option<&Line> {
        let next = line.next.load(Acquire);
        if next == 0 {
            None
        } else {
            Some(self.overflow_line(next - 1))
        }
    }

    #[inline(always)]
    fn overflow_line(&self, i: u32) -> &Line {
        debug_assert!(i < self.overflow_len);
        // SAFETY: indexes in `next` come from `Spare`, which stays below the length.
        unsafe { self.overflow.base().cast::<Line>().add(i as usize).as_ref() }
    }

    /// Index of the element that holds `key`, for readers.
    #[inline(always)]
    pub(crate) fn find<K: Key>(&self, elements: &impl Elements, key: K, hash: u32) -> Option<u32> {
        let bucket = self.line(self.bucket_of(hash));
        let tag = Table::tag_of(hash);
        let mut spins = 0;
        loop {
            let version = bucket.control.load(Acquire) & !LOCKED;
            let found = self.find_in(elements, bucket, key, tag);
            fence(Acquire);
            if bucket.control.load(Relaxed) & !LOCKED == version {
                return found;
            }
            relax(&mut spins);
        }
    }

    #[inline(always)]
    fn find_in<K: Key>(
        &self,
        elements: &impl Elements,
        bucket: &Line,
        key: K,
        tag: u8,
    ) -> Option<u32> {
        let mut line = bucket;
        loop {
            let mut matching = Line::matching(line.tags.load(Acquire), tag);
            while matching != 0 {
                let slot = (matching.trailing_zeros() / 8) as usize & (SLOTS - 1);
                let index = line.slots[slot].load(Acquire);
                // SAFETY: an element's key area is whole and aligned.
                if unsafe { key.matches(elements.key_at(index)) } {
                    return Some(index);
                }
                matching &= matching - 1;
            }
            line = self.next_line(line)?;
        }
    }

    /// Locks a bucket for writing.
    pub(crate) fn lock(&self, bucket: u32) -> Locked<'_> {
        let line = self.line(bucket);
        let mut spins = 0;
        loop {
            let control = line.control.load(Relaxed);
            if control & LOCKED == 0
                && line
                    .control
                    .compare_exchange_weak(control, control | LOCKED, Acquire, Relaxed)
                    .is_ok()
            {
                return Locked {
                    table: self,
                    line,
                    bump: false,
                };
            }
            relax(&mut spins);
        }
    }

    /// Calls `visit` with place and element of each occupied slot from `from` on, until
    /// it says no. Elements may be on their way out: see [`Table::stable`].
    pub(crate) fn scan(&self, from: Place, mut visit: impl FnMut(Place, u32) -> bool) {
        let mut start = from.position;
        for bucket in from.bucket..self.n {
            let mut line = Some(self.line(bucket));
            let mut base = 0;
            while let Some(l) = line {
                let tags = l.tags.load(Acquire).to_le_bytes();
                for (slot, tag) in tags.iter().enumerate() {
                    let position = base + slot as u32;
                    if *tag != 0 && position >= start {
                        let index = l.slots[slot].load(Acquire);
                        if !visit(Place { bucket, position }, index) {
                            return;
                        }
                    }
                }
                base += SLOTS as u32;
                line = self.next_line(l);
            }
            start = 0;
        }
    }

    /// Runs `read` until nothing left the bucket meanwhile: what it read belongs together.
    pub(crate) fn stable<T>(&self, bucket: u32, mut read: impl FnMut() -> T) -> T {
        let line = self.line(bucket);
        let mut spins = 0;
        loop {
            let version = line.control.load(Acquire) & !LOCKED;
            let value = read();
            fence(Acquire);
            if line.control.load(Relaxed) & !LOCKED == version {
                return value;
            }
            relax(&mut spins);
        }
    }

    /// The element at a place, if the slot is occupied.
    pub(crate) fn at(&self, place: Place) -> Option<u32> {
        let mut line = self.line(place.bucket);
        for _ in 0..place.position as usize / SLOTS {
            line = self.next_line(line)?;
        }
        let slot = place.position as usize % SLOTS;
        let tag = line.tags.load(Acquire) >> (8 * slot) & 0xff;
        (tag != 0).then(|| line.slots[slot].load(Acquire))
    }

    /// Overflow lines that were ever used.
    #[cfg(test)]
    pub(crate) fn overflow_used(&self) -> u32 {
        self.spare.lock().unwrap_or_else(|e| e.into_inner()).fresh
    }

    fn spare_line(&self) -> Result<u32, Errno> {
        let mut spare = self.spare.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(i) = spare.free.pop() {
            return Ok(i);
        }
        if spare.fresh >= self.overflow_len {
            return Err(Errno::ENOMEM);
        }
        spare.fresh += 1;
        Ok(spare.fresh - 1)
    }
}

/// A slot of a locked bucket.
pub(crate) struct Slot<'a> {
    line: &'a Line,
    slot: usize,
    position: u32,
    /// The element it holds.
    pub(crate) index: u32,
}

impl<'a> Locked<'a> {
    /// The slot that holds `key`.
    pub(crate) fn find<K: Key>(
        &self,
        elements: &impl Elements,
        key: K,
        hash: u32,
    ) -> Option<Slot<'a>> {
        let tag = Table::tag_of(hash);
        // SAFETY: an element's key area is whole and aligned.
        self.search(tag, |index| unsafe { key.matches(elements.key_at(index)) })
    }

    /// The slot that holds the element `index`, whose key has this hash.
    pub(crate) fn find_index(&self, index: u32, hash: u32) -> Option<Slot<'a>> {
        self.search(Table::tag_of(hash), |i| i == index)
    }

    fn search(&self, tag: u8, is: impl Fn(u32) -> bool) -> Option<Slot<'a>> {
        let mut line = self.line;
        let mut base = 0;
        loop {
            let mut matching = Line::matching(line.tags.load(Relaxed), tag);
            while matching != 0 {
                let slot = (matching.trailing_zeros() / 8) as usize & (SLOTS - 1);
                let index = line.slots[slot].load(Relaxed);
                if is(index) {
                    return Some(Slot {
                        line,
                        slot,
                        position: base + slot as u32,
                        index,
                    });
                }
                matching &= matching - 1;
            }
            base += SLOTS as u32;
            line = self.table.next_line(line)?;
        }
    }

    /// Publishes a new element.
    ///
    /// # Errors
    /// `ENOMEM` when the chain cannot grow.
    pub(crate) fn insert(&mut self, index: u32, hash: u32) -> Result<(), Errno> {
        let mut line = self.line;
        let slot = loop {
            let empty = Line::matching(line.tags.load(Relaxed), 0);
            if empty != 0 {
                break (empty.trailing_zeros() / 8) as usize & (SLOTS - 1);
            }
            line = match self.table.next_line(line) {
                Some(next) => next,
                None => {
                    let i = self.table.spare_line()?;
                    let fresh = self.table.overflow_line(i);
                    fresh.next.store(0, Relaxed);
                    line.next.store(i + 1, Release);
                    fresh
                }
            };
        };
        line.slots[slot].store(index, Release);
        let tag = u64::from(Table::tag_of(hash)) << (8 * slot);
        line.tags.store(line.tags.load(Relaxed) | tag, Release);
        Ok(())
    }

    /// Puts the element `index` where another with the same key was.
    pub(crate) fn replace(&mut self, slot: &Slot<'_>, index: u32) {
        slot.line.slots[slot.slot].store(index, Release);
        self.bump = true;
    }

    /// Empties a slot.
    pub(crate) fn remove(&mut self, slot: &Slot<'_>) {
        let mask = !(0xffu64 << (8 * slot.slot));
        slot.line
            .tags
            .store(slot.line.tags.load(Relaxed) & mask, Release);
        self.bump = true;
        if slot.position as usize >= SLOTS {
            self.drop_empty_tail();
        }
    }

    /// Gives empty lines at the end of the chain back.
    fn drop_empty_tail(&mut self) {
        let mut last_used = self.line;
        let mut line = self.line;
        while let Some(next) = self.table.next_line(line) {
            if next.tags.load(Relaxed) != 0 {
                last_used = next;
            }
            line = next;
        }
        let mut next = last_used.next.load(Relaxed);
        if next == 0 {
            return;
        }
        last_used.next.store(0, Release);
        // A reader may still stand on these lines. They keep their `next` until they
        // are reused, and the version tells the reader to look again.
        let mut spare = self.table.spare.lock().unwrap_or_else(|e| e.into_inner());
        while next != 0 {
            spare.free.push(next - 1);
            next = self.table.overflow_line(next - 1).next.load(Relaxed);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let control = self.line.control.load(Relaxed) & !LOCKED;
        let step = if self.bump { 2 } else { 0 };
        self.line.control.store(control.wrapping_add(step), Release);
    }
}

impl Slot<'_> {
    /// Where the slot is, in bucket `bucket`.
    pub(crate) fn place(&self, bucket: u32) -> Place {
        Place {
            bucket,
            position: self.position,
        }
    }
}
