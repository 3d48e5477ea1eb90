//! The bucket table of a hash map: buckets and overflow lines in memory (see `bucket`).

use std::sync::Mutex;

use super::bucket::{self, Line, Lines, Locked, SLOTS};
use super::hasher::Key;
use crate::Errno;
use crate::mem::{Commit, Region};
use crate::word::Real;

/// Elements a bucket is made for.
const LOAD: u32 = 4;

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
    fn overflow_line(&self, i: u32) -> &Line {
        debug_assert!(i < self.overflow_len);
        // SAFETY: indexes in `next` come from `Spare`, which stays below the length.
        unsafe { self.overflow.base().cast::<Line>().add(i as usize).as_ref() }
    }

    /// Index of the element that holds `key`, for readers.
    #[inline(always)]
    pub(crate) fn find<K: Key>(&self, elements: &impl Elements, key: K, hash: u32) -> Option<u32> {
        let bucket = self.line(self.bucket_of(hash));
        // SAFETY: an element's key area is whole and aligned.
        let is = |index| unsafe { key.matches(elements.key_at(index)) };
        bucket::find(self, bucket, bucket::tag_of(hash), is)
    }

    /// Locks a bucket for writing.
    pub(crate) fn lock(&self, bucket: u32) -> Locked<'_, Real, Table> {
        Locked::new(self, self.line(bucket))
    }

    /// Calls `visit` with place and element of each occupied slot from `from` on, until
    /// it says no. Elements may be on their way out: see [`Table::stable`].
    pub(crate) fn scan(&self, from: Place, mut visit: impl FnMut(Place, u32) -> bool) {
        let mut start = from.position;
        for bucket in from.bucket..self.n {
            let mut line = Some(self.line(bucket));
            let mut base = 0;
            while let Some(l) = line {
                for slot in 0..SLOTS {
                    let position = base + slot as u32;
                    if let Some(index) = l.at(slot).filter(|_| position >= start)
                        && !visit(Place { bucket, position }, index)
                    {
                        return;
                    }
                }
                base += SLOTS as u32;
                line = bucket::next_line(self, l);
            }
            start = 0;
        }
    }

    /// Runs `read` until nothing left the bucket meanwhile: what it read belongs together.
    pub(crate) fn stable<T>(&self, bucket: u32, read: impl FnMut() -> T) -> T {
        bucket::stable(self.line(bucket), read)
    }

    /// The element at a place, if the slot is occupied.
    pub(crate) fn at(&self, place: Place) -> Option<u32> {
        let mut line = self.line(place.bucket);
        for _ in 0..place.position as usize / SLOTS {
            line = bucket::next_line(self, line)?;
        }
        line.at(place.position as usize % SLOTS)
    }

    /// Overflow lines that were ever used.
    #[cfg(test)]
    pub(crate) fn overflow_used(&self) -> u32 {
        self.spare.lock().unwrap_or_else(|e| e.into_inner()).fresh
    }
}

impl Lines<Real> for Table {
    #[inline(always)]
    fn overflow(&self, i: u32) -> &Line {
        self.overflow_line(i)
    }

    fn take(&self) -> Result<u32, Errno> {
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

    fn give(&self, i: u32) {
        let mut spare = self.spare.lock().unwrap_or_else(|e| e.into_inner());
        spare.free.push(i);
    }
}
