//! Values that lie beside the numbers they belong to, so that finding one costs one cache
//! miss: the number says which cache line, and the line holds number and value.
//!
//! A line that is full takes no more: [`Slots`] is the fast part of a map that has another
//! place for the rest.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::hash::{Key, LongKey, random_seed};
use crate::mem::{Commit, Region, round8};
use crate::{Errno, ValueRegion};

/// Memory that the slots may take; only what is used is ever touched.
const BYTES: usize = 1 << 20;
const LINE: usize = 64;
/// Tag of a slot that nobody has. Tags are the numbers' complements: fresh memory is empty.
const EMPTY: u64 = 0;

pub(crate) struct Slots {
    region: Region,
    /// Bytes of a slot: the tag, then the value.
    stride: usize,
    /// Slots that share a line, of which a number may have any.
    ways: usize,
    /// Groups of as many slots, a power of two.
    groups: usize,
    seed: u64,
}

/// Bytes before the value.
const TAG: usize = 8;

impl Slots {
    /// Slots for values of `value_size` bytes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(value_size: usize) -> Result<Slots, Errno> {
        let size = TAG + round8(value_size);
        let stride = if size <= LINE {
            size.next_power_of_two()
        } else {
            size.next_multiple_of(LINE)
        };
        let ways = (LINE / stride).max(1);
        let groups = 1 << (BYTES / (ways * stride)).max(1).ilog2();
        Ok(Slots {
            region: Region::array(groups * ways, stride, Commit::Touched)?,
            stride,
            ways,
            groups,
            seed: random_seed(),
        })
    }

    #[inline(always)]
    fn tag(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: callers' slots are below the number that the region was made for; each
        // begins with eight aligned bytes that are only accessed as atomics.
        unsafe { AtomicU64::from_ptr(self.region.at(slot * self.stride).as_ptr().cast()) }
    }

    fn value(&self, slot: usize) -> NonNull<u8> {
        self.region.at(slot * self.stride + TAG)
    }

    /// The slots where a number may be.
    #[inline(always)]
    fn group(&self, number: u64) -> std::ops::Range<usize> {
        let first = (LongKey(number).hash(self.seed) as usize & (self.groups - 1)) * self.ways;
        first..first + self.ways
    }

    #[inline(always)]
    fn find(&self, number: u64) -> Option<usize> {
        let tag = !number;
        let mut group = self.group(number);
        group.find(|slot| self.tag(*slot).load(Acquire) == tag && tag != EMPTY)
    }

    /// Address of the value of a number that has a slot.
    #[inline(always)]
    pub(crate) fn get(&self, number: u64) -> Option<NonNull<u8>> {
        self.find(number).map(|slot| self.value(slot))
    }

    /// Gives a number that has none a slot, unless its line is full; `fill` makes the value
    /// before anybody finds it. Callers exclude each other.
    pub(crate) fn insert(
        &self,
        number: u64,
        fill: impl FnOnce(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        if !number == EMPTY {
            return None;
        }
        let mut group = self.group(number);
        let slot = group.find(|slot| self.tag(*slot).load(Relaxed) == EMPTY)?;
        fill(self.value(slot));
        self.tag(slot).store(!number, Release);
        Some(self.value(slot))
    }

    /// Takes a number's slot from it. Callers exclude each other.
    pub(crate) fn remove(&self, number: u64) -> Option<NonNull<u8>> {
        let slot = self.find(number)?;
        self.tag(slot).store(EMPTY, Release);
        Some(self.value(slot))
    }

    /// Every number that has a slot, and its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, NonNull<u8>)> {
        (0..self.groups * self.ways).filter_map(|slot| {
            let tag = self.tag(slot).load(Acquire);
            (tag != EMPTY).then(|| (!tag, self.value(slot)))
        })
    }

    pub(crate) fn region(&self, value_size: usize) -> ValueRegion {
        ValueRegion {
            base: self.region.base().as_ptr().expose_provenance() as u64,
            stride: self.stride as u64,
            offset: TAG as u64,
            size: value_size as u32,
            count: (self.groups * self.ways) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_refused_and_the_rest_is_found() {
        for size in [0, 1, 8, 24, 56, 57, 200, 1 << 20] {
            let slots = Slots::new(size).unwrap();
            let mut kept = vec![];
            for number in (0..3000u64).chain([u64::MAX, u64::MAX - 1]) {
                let mut filled = None;
                let value = slots.insert(number, |at| filled = Some(at));
                assert_eq!(value, filled, "{size} {number}");
                kept.extend(value.map(|value| (number, value)));
                assert_eq!(slots.get(number), value, "{size} {number}");
            }
            assert_eq!(slots.get(u64::MAX), None);
            assert!(size > 200 || kept.len() > 1500, "{size} {}", kept.len());
            let mut all: Vec<_> = slots.iter().collect();
            all.sort_unstable();
            assert_eq!(all, kept, "{size}");
            let region = slots.region(size);
            for (number, value) in kept {
                let at = value.addr().get() as u64;
                assert!(region.contains(at, size as u64), "{size} {number}");
                assert_eq!(slots.remove(number), Some(value));
                assert_eq!(slots.get(number), None);
            }
            assert_eq!(slots.iter().count(), 0);
        }
    }
}
