//! Inserting, replacing and deleting elements.

use super::free::{Aside, FreeElements};
use super::hasher::{BytesKey, Key, KeyKind, LongKey, PairKey, WordKey};
use super::lru::{Lru, Nodes};
use super::{HashMap, Recycler, with_key};
use crate::Errno;
use crate::flags::*;

/// How a value gets into the element.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// One value, of this CPU in a per-CPU map.
    Own(u32, &'a [u8]),
    /// Every CPU's value.
    All(&'a [u8]),
}

impl HashMap {
    /// Gives up what a value owns; the element is out of the table.
    pub(super) fn release(&self, index: u32) {
        match &self.percpu {
            Some(values) => values.release(index),
            None if self.layout.owns() => {
                // SAFETY: an element has room for a whole value.
                unsafe { self.layout.release(self.elements.value(index)) };
            }
            None => {}
        }
    }

    /// Fills a new element that is not in the table yet.
    fn fill(&self, index: u32, key: &[u8], source: Source<'_>) {
        self.elements.write_key(index, key);
        match (&self.percpu, source) {
            (Some(values), Source::Own(cpu, value)) => values.write_first(cpu, index, value),
            (Some(values), Source::All(value)) => values.write_all(index, value),
            (None, Source::Own(_, value) | Source::All(value)) => {
                // SAFETY: an element has room for a whole value.
                unsafe { self.layout.copy_in(self.elements.value(index), value) };
            }
        }
    }

    /// Overwrites the value of an element in place.
    fn overwrite(&self, index: u32, source: Source<'_>, flags: u64) {
        match (&self.percpu, source) {
            (Some(values), Source::Own(cpu, value)) => values.write_one(cpu, index, value),
            (Some(values), Source::All(value)) => values.write_all(index, value),
            (None, Source::Own(_, value) | Source::All(value)) => {
                // SAFETY: an element has room for a whole value.
                unsafe { self.layout.write(self.elements.value(index), value, flags) };
            }
        }
    }

    pub(super) fn set(
        &self,
        cpu: u32,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
    ) -> Result<(), Errno> {
        let locking = flags & BPF_F_LOCK != 0;
        if flags & !BPF_F_LOCK > BPF_EXIST || locking && self.percpu.is_some() {
            return Err(Errno::EINVAL);
        }
        let is_lru = matches!(self.recycler, Recycler::Lru(_));
        if locking && is_lru && self.percpu.is_none() {
            return Err(Errno::EINVAL);
        }
        self.layout.check_lock(flags)?;
        with_key!(self, key, k => {
            let hash = k.hash(self.seed);
            match &self.recycler {
                Recycler::Free(free) => self.set_plain(free, cpu, k, hash, key, source, flags),
                Recycler::Lru(lru) => self.set_lru(lru, cpu, k, hash, key, source, flags),
            }
        }, else Err(Errno::EINVAL))
    }

    fn admit(exists: bool, flags: u64) -> Result<(), Errno> {
        match (flags & !BPF_F_LOCK, exists) {
            (BPF_NOEXIST, true) => Err(Errno::EEXIST),
            (BPF_EXIST, false) => Err(Errno::ENOENT),
            _ => Ok(()),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, all of it the key's forms"
    )]
    fn set_plain<K: Key>(
        &self,
        free: &FreeElements,
        cpu: u32,
        k: K,
        hash: u32,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
    ) -> Result<(), Errno> {
        let elements = &self.elements;
        loop {
            let mut bucket = self.table.lock(self.table.bucket_of(hash));
            let Some(slot) = bucket.find(elements, k, hash) else {
                HashMap::admit(false, flags)?;
                let index = free.pop(elements, cpu).ok_or(Errno::E2BIG)?;
                self.fill(index, key, source);
                let done = bucket.insert(index, hash);
                if done.is_err() {
                    drop(bucket);
                    free.push(elements, cpu, index);
                }
                return done;
            };
            HashMap::admit(true, flags)?;
            if flags & BPF_F_LOCK != 0 || self.percpu.is_some() {
                self.overwrite(slot.index, source, flags);
                return Ok(());
            }
            let Some(aside) = free.take_aside(elements, cpu) else {
                // Another thread with this CPU's number is in the middle of a replacement.
                drop(bucket);
                std::thread::yield_now();
                continue;
            };
            let Aside { index, .. } = aside;
            self.fill(index, key, source);
            bucket.replace(&slot, index);
            drop(bucket);
            self.release(slot.index);
            free.put_aside(elements, cpu, &aside, slot.index);
            return Ok(());
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, all of it the key's forms"
    )]
    fn set_lru<K: Key>(
        &self,
        lru: &Lru,
        cpu: u32,
        k: K,
        hash: u32,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
    ) -> Result<(), Errno> {
        let elements = &self.elements;
        if self.percpu.is_some() {
            let bucket = self.table.lock(self.table.bucket_of(hash));
            let slot = bucket.find(elements, k, hash);
            HashMap::admit(slot.is_some(), flags)?;
            if let Some(slot) = slot {
                self.node(slot.index).touch();
                self.overwrite(slot.index, source, flags);
                return Ok(());
            }
        }
        // The element comes first: getting one may evict another from any bucket.
        let index = lru.pop(self, cpu, hash).ok_or(Errno::ENOMEM)?;
        self.fill(index, key, source);
        let mut bucket = self.table.lock(self.table.bucket_of(hash));
        let slot = bucket.find(elements, k, hash);
        let done = match (HashMap::admit(slot.is_some(), flags), &slot) {
            (Err(e), _) => Err(e),
            (Ok(()), None) => bucket.insert(index, hash),
            (Ok(()), Some(slot)) => {
                bucket.replace(slot, index);
                // Replacing counts as a use.
                self.node(index).touch();
                Ok(())
            }
        };
        drop(bucket);
        match (done, slot) {
            (Err(_), _) => lru.push(self, index),
            (Ok(()), Some(slot)) => {
                self.release(slot.index);
                lru.push(self, slot.index);
            }
            (Ok(()), None) => {}
        }
        done
    }

    /// Takes the element of `key` out and hands it to `last` before it is reused.
    pub(super) fn unset(&self, cpu: u32, key: &[u8], last: impl FnOnce(u32)) -> Result<(), Errno> {
        let slot_index = with_key!(self, key, k => {
            let hash = k.hash(self.seed);
            let mut bucket = self.table.lock(self.table.bucket_of(hash));
            bucket.find(&self.elements, k, hash).map(|slot| {
                bucket.remove(&slot);
                slot.index
            })
        }, else None);
        let index = slot_index.ok_or(Errno::ENOENT)?;
        last(index);
        self.give_back(cpu, index);
        Ok(())
    }

    fn give_back(&self, cpu: u32, index: u32) {
        self.release(index);
        match &self.recycler {
            Recycler::Free(free) => free.push(&self.elements, cpu, index),
            Recycler::Lru(lru) => lru.push(self, index),
        }
    }
}
