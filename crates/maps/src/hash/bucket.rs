//! Buckets: readers take no lock, writers lock one bucket.
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

use std::sync::atomic::Ordering::*;

use super::hasher::Key;
use super::table::{Elements, Place};
use crate::Errno;
use crate::word::{Atomics, Real, Word};

/// Slots of a line.
pub(crate) const SLOTS: usize = 8;
const LOCKED: u32 = 1;
const ONES: u64 = 0x0101_0101_0101_0101;
const LOWS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// One cache line: a bucket, or what overflows from it. Zeroed memory is an empty one.
#[repr(C, align(64))]
pub(crate) struct Line<A: Atomics = Real> {
    /// Bit 0 is the writers' lock, the rest the version. Of buckets only.
    control: A::U32,
    /// Index of the next line of the chain plus 1, in the overflow lines; 0 ends it.
    next: A::U32,
    /// A byte a slot: 0 is empty, else a part of the hash.
    tags: A::U64,
    slots: [A::U32; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// The overflow lines of a table.
pub(crate) trait Lines<A: Atomics> {
    /// A line, by an index that `take` gave.
    fn overflow(&self, i: u32) -> &Line<A>;
    /// A line that nobody uses.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn take(&self) -> Result<u32, Errno>;
    /// Gives one back.
    fn give(&self, i: u32);
}

impl<A: Atomics> Line<A> {
    /// The element in a slot below [`SLOTS`], if there is one.
    pub(crate) fn at(&self, slot: usize) -> Option<u32> {
        let tag = self.tags.load(Acquire) >> (8 * slot) & 0xff;
        (tag != 0).then(|| self.slots[slot].load(Acquire))
    }
}

/// Slots with this tag, a bit at the top of each byte.
#[inline(always)]
fn matching(tags: u64, tag: u8) -> u64 {
    let x = tags ^ ONES.wrapping_mul(u64::from(tag));
    !(((x & LOWS) + LOWS) | x | LOWS)
}

/// The tag of a hash.
#[inline(always)]
pub(crate) fn tag_of(hash: u32) -> u8 {
    (hash as u8).max(1)
}

/// The line after a line of a chain.
#[inline(always)]
pub(crate) fn next_line<'a, A: Atomics>(
    lines: &'a impl Lines<A>,
    line: &Line<A>,
) -> Option<&'a Line<A>> {
    match line.next.load(Acquire) {
        0 => None,
        next => Some(lines.overflow(next - 1)),
    }
}

/// Index of an element with this tag that is the one, for readers.
#[inline(always)]
pub(crate) fn find<A: Atomics>(
    lines: &impl Lines<A>,
    bucket: &Line<A>,
    tag: u8,
    is: impl Fn(u32) -> bool,
) -> Option<u32> {
    stable(bucket, || {
        let mut line = bucket;
        loop {
            let mut matching = matching(line.tags.load(Acquire), tag);
            while matching != 0 {
                let slot = (matching.trailing_zeros() / 8) as usize & (SLOTS - 1);
                let index = line.slots[slot].load(Acquire);
                if is(index) {
                    return Some(index);
                }
                matching &= matching - 1;
            }
            line = next_line(lines, line)?;
        }
    })
}

/// Runs `read` until nothing left the bucket meanwhile: what it read belongs together.
#[inline(always)]
pub(crate) fn stable<A: Atomics, T>(bucket: &Line<A>, mut read: impl FnMut() -> T) -> T {
    let mut spins = 0;
    loop {
        let version = bucket.control.load(Acquire) & !LOCKED;
        let value = read();
        A::fence(Acquire);
        if bucket.control.load(Relaxed) & !LOCKED == version {
            return value;
        }
        A::relax(&mut spins);
    }
}

/// A bucket whose lock is held; dropping gives it back.
pub(crate) struct Locked<'a, A: Atomics, L: Lines<A>> {
    lines: &'a L,
    line: &'a Line<A>,
    /// Whether something left the bucket, so readers must look again.
    bump: bool,
}

/// A slot of a locked bucket.
pub(crate) struct Slot<'a, A: Atomics> {
    line: &'a Line<A>,
    slot: usize,
    position: u32,
    /// The element it holds.
    pub(crate) index: u32,
}

impl<'a, A: Atomics, L: Lines<A>> Locked<'a, A, L> {
    pub(crate) fn new(lines: &'a L, line: &'a Line<A>) -> Self {
        let mut spins = 0;
        loop {
            let control = line.control.load(Relaxed);
            if control & LOCKED == 0
                && line
                    .control
                    .exchange(control, control | LOCKED, Acquire, Relaxed)
                    .is_ok()
            {
                return Locked {
                    lines,
                    line,
                    bump: false,
                };
            }
            A::relax(&mut spins);
        }
    }

    /// The slot that holds `key`.
    pub(crate) fn find<K: Key>(
        &self,
        elements: &impl Elements,
        key: K,
        hash: u32,
    ) -> Option<Slot<'a, A>> {
        let tag = tag_of(hash);
        // SAFETY: an element's key area is whole and aligned.
        self.search(tag, |index| unsafe { key.matches(elements.key_at(index)) })
    }

    /// The slot that holds the element `index`, whose key has this hash.
    pub(crate) fn find_index(&self, index: u32, hash: u32) -> Option<Slot<'a, A>> {
        self.search(tag_of(hash), |i| i == index)
    }

    fn search(&self, tag: u8, is: impl Fn(u32) -> bool) -> Option<Slot<'a, A>> {
        let mut line = self.line;
        let mut base = 0;
        loop {
            let mut matching = matching(line.tags.load(Relaxed), tag);
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
            line = next_line(self.lines, line)?;
        }
    }

    /// Publishes a new element.
    ///
    /// # Errors
    /// `ENOMEM` when the chain cannot grow.
    pub(crate) fn insert(&mut self, index: u32, hash: u32) -> Result<(), Errno> {
        let mut line = self.line;
        let slot = loop {
            let empty = matching(line.tags.load(Relaxed), 0);
            if empty != 0 {
                break (empty.trailing_zeros() / 8) as usize & (SLOTS - 1);
            }
            line = match next_line(self.lines, line) {
                Some(next) => next,
                None => {
                    let i = self.lines.take()?;
                    let fresh = self.lines.overflow(i);
                    fresh.next.store(0, Relaxed);
                    line.next.store(i + 1, Release);
                    fresh
                }
            };
        };
        line.slots[slot].store(index, Release);
        let tag = u64::from(tag_of(hash)) << (8 * slot);
        line.tags.store(line.tags.load(Relaxed) | tag, Release);
        Ok(())
    }

    /// Puts the element `index` where another with the same key was.
    pub(crate) fn replace(&mut self, slot: &Slot<'_, A>, index: u32) {
        slot.line.slots[slot.slot].store(index, Release);
        self.bump = true;
    }

    /// Empties a slot.
    pub(crate) fn remove(&mut self, slot: &Slot<'_, A>) {
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
        while let Some(next) = next_line(self.lines, line) {
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
        while next != 0 {
            let after = self.lines.overflow(next - 1).next.load(Relaxed);
            self.lines.give(next - 1);
            next = after;
        }
    }
}

impl<A: Atomics, L: Lines<A>> Drop for Locked<'_, A, L> {
    fn drop(&mut self) {
        let control = self.line.control.load(Relaxed) & !LOCKED;
        let step = if self.bump { 2 } else { 0 };
        self.line.control.store(control.wrapping_add(step), Release);
    }
}

impl<A: Atomics> Slot<'_, A> {
    /// Where the slot is, in bucket `bucket`.
    pub(crate) fn place(&self, bucket: u32) -> Place {
        Place {
            bucket,
            position: self.position,
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;
    use crate::word::Model;

    /// A bucket without overflow, and the keys of its elements.
    struct Few {
        bucket: Line<Model>,
        keys: Vec<AtomicU64>,
    }

    impl Lines<Model> for Few {
        fn overflow(&self, _: u32) -> &Line<Model> {
            unreachable!("nothing overflows")
        }

        fn take(&self) -> Result<u32, Errno> {
            Err(Errno::ENOMEM)
        }

        fn give(&self, _: u32) {}
    }

    /// All keys have it.
    const TAG: u32 = 7;

    impl Few {
        fn new(keys: [u64; 3]) -> Few {
            let few = Few {
                bucket: Line {
                    control: AtomicU32::new(0),
                    next: AtomicU32::new(0),
                    tags: AtomicU64::new(0),
                    slots: [0; SLOTS].map(AtomicU32::new),
                },
                keys: keys.map(AtomicU64::new).into(),
            };
            for index in 0..2 {
                few.lock().insert(index, TAG).unwrap();
            }
            few
        }

        fn lock(&self) -> Locked<'_, Model, Few> {
            Locked::new(self, &self.bucket)
        }

        fn find(&self, key: u64) -> Option<u32> {
            let is = |index| self.keys[index as usize].load(Relaxed) == key;
            find(self, &self.bucket, tag_of(TAG), is)
        }

        /// What a map does with an element that left: another key comes in.
        fn reuse(&self, index: u32, key: u64) {
            loom::sync::atomic::fence(Release);
            self.keys[index as usize].store(key, Relaxed);
        }
    }

    /// A key whose element is replaced is there at all times, though the old element holds
    /// another key at once.
    #[test]
    fn a_key_that_is_replaced_is_not_missed() {
        loom::model(|| {
            let few = Arc::new(Few::new([10, 20, 10]));
            let writer = {
                let few = few.clone();
                loom::thread::spawn(move || {
                    let mut bucket = few.lock();
                    let slot = bucket.find_index(0, TAG).unwrap();
                    bucket.replace(&slot, 2);
                    drop(bucket);
                    few.reuse(0, 30);
                })
            };
            let found = few.find(10);
            assert!(matches!(found, Some(0 | 2)), "{found:?}");
            writer.join().unwrap();
            assert_eq!(few.find(10), Some(2));
        });
    }

    /// A key that stays is there at all times, and one that never was is not, while its
    /// neighbour leaves and the element comes back with another key.
    #[test]
    fn a_key_that_stays_is_not_missed() {
        // All orders with up to three switches that nobody asked for: more take minutes.
        let mut orders = loom::model::Builder::new();
        orders.preemption_bound = Some(3);
        orders.check(|| {
            let few = Arc::new(Few::new([10, 20, 0]));
            let writer = {
                let few = few.clone();
                loom::thread::spawn(move || {
                    let mut bucket = few.lock();
                    let slot = bucket.find_index(0, TAG).unwrap();
                    bucket.remove(&slot);
                    drop(bucket);
                    few.reuse(0, 30);
                    few.lock().insert(0, TAG).unwrap();
                })
            };
            assert_eq!(few.find(20), Some(1));
            assert_eq!(few.find(40), None);
            writer.join().unwrap();
            assert_eq!(few.find(10), None);
            assert_eq!(few.find(30), Some(0));
        });
    }
}
