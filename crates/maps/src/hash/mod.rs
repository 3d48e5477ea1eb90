//! Hash maps: plain, per-CPU, LRU and both, and the table under maps of maps.

mod free;
mod hasher;
mod lru;
mod table;

use std::ptr::NonNull;
use std::sync::atomic::{Ordering::*, fence};

use crate::array::PerCpuValues;
use crate::flags::*;
use crate::mem::{Commit, Region, round8};
use crate::ops::{BatchOps, Ops};
use crate::value::{ValueLayout, load, store};
use crate::{Errno, MapParams, Progress, ValueRegion};
use free::{Aside, FreeElements};
pub(crate) use hasher::random_seed;
use hasher::{BytesKey, Key, KeyKind, LongKey, PairKey, WordKey};
use lru::{Lru, Node, Nodes};
use table::{Elements, Place, Table};

/// Hash of a value that is no key of a table.
pub(crate) fn hash_bytes(bytes: &[u8], seed: u64) -> u32 {
    BytesKey(bytes).hash(seed)
}

/// A hash map of any kind.
///
/// Elements live in one block: key (rounded up to 8), then value; an LRU map has
/// sixteen bytes of list links before. Elements of up to 64 bytes never straddle a
/// cache line.
pub struct HashMap {
    table: Table,
    elements: Block,
    kind: KeyKind,
    seed: u64,
    recycler: Recycler,
    layout: ValueLayout,
    /// Values of a per-CPU map; elements then hold keys only.
    percpu: Option<PerCpuValues>,
}

/// The elements' memory.
struct Block {
    region: Region,
    stride: usize,
    /// Bytes before the key.
    header: usize,
    key_size: usize,
    /// Offset of the value in the element.
    value: usize,
    count: u32,
}

/// Where free elements come from.
enum Recycler {
    Free(Box<FreeElements>),
    Lru(Lru),
}

impl Block {
    #[inline(always)]
    fn at(&self, index: u32, offset: usize) -> NonNull<u8> {
        self.region.at(index as usize * self.stride + offset)
    }

    #[inline(always)]
    fn key(&self, index: u32) -> *mut u8 {
        self.at(index, self.header).as_ptr()
    }

    #[inline(always)]
    fn value(&self, index: u32) -> NonNull<u8> {
        self.at(index, self.value)
    }

    /// Writes a key, its last word padded with zeros.
    fn write_key(&self, index: u32, key: &[u8]) {
        // What still reads the element's former key must see the former bucket's new
        // version once it sees these bytes.
        fence(Release);
        let at = self.key(index);
        let whole = key.len() & !7;
        // SAFETY: an element has room for the key rounded up to 8.
        unsafe { store(at, &key[..whole]) };
        if whole < key.len() {
            let mut last = [0; 8];
            last[..key.len() - whole].copy_from_slice(&key[whole..]);
            // SAFETY: as above.
            unsafe { store(at.add(whole), &last) };
        }
    }

    fn read_key(&self, index: u32, out: &mut [u8]) {
        let len = out.len().min(self.key_size);
        // SAFETY: `len` bytes of key are there.
        unsafe { load(&mut out[..len], self.key(index)) };
    }
}

impl Elements for Block {
    #[inline(always)]
    fn key_at(&self, index: u32) -> *mut u8 {
        self.key(index)
    }
}

impl Nodes for HashMap {
    fn node(&self, index: u32) -> &Node {
        debug_assert!(index < self.elements.count && self.elements.header == size_of::<Node>());
        // SAFETY: LRU elements start with a node of atomics, and list links are
        // indexes of elements.
        unsafe { self.elements.at(index, 0).cast().as_ref() }
    }

    fn evict(&self, index: u32) -> bool {
        let hash = self.node(index).hash.load(Relaxed);
        let mut bucket = self.table.lock(self.table.bucket_of(hash));
        let Some(slot) = bucket.find_index(index, hash) else {
            return false;
        };
        bucket.remove(&slot);
        drop(bucket);
        self.release(index);
        true
    }
}

/// Runs `$body` with `$k` bound to the key in its register form, `$miss` if the key does
/// not have the map's key size.
macro_rules! with_key {
    ($map:expr, $key:expr, $k:ident => $body:expr, else $miss:expr) => {
        if $key.len() != $map.elements.key_size {
            $miss
        } else {
            match $map.kind {
                KeyKind::Word => {
                    let $k = WordKey::load($key);
                    $body
                }
                KeyKind::Long => {
                    let $k = LongKey::load($key);
                    $body
                }
                KeyKind::Pair => {
                    let $k = PairKey::load($key);
                    $body
                }
                KeyKind::Bytes => {
                    let $k = BytesKey($key);
                    $body
                }
            }
        }
    };
}

/// How a value gets into the element.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// One value, of this CPU in a per-CPU map.
    Own(u32, &'a [u8]),
    /// Every CPU's value.
    All(&'a [u8]),
}

impl HashMap {
    pub(crate) fn new(p: &MapParams, layout: ValueLayout) -> Result<HashMap, Errno> {
        use bpfkit_spec::MapType::*;
        let lru = matches!(p.map_type, LruHash | LruPercpuHash);
        let percpu = matches!(p.map_type, PercpuHash | LruPercpuHash);
        let own_lists = p.flags & BPF_F_NO_COMMON_LRU != 0;
        let mut entries = p.max_entries;
        if lru && own_lists {
            let up = entries.checked_next_multiple_of(p.cpus);
            entries = up.unwrap_or(entries / p.cpus * p.cpus);
        }
        let count = if lru {
            entries
        } else {
            entries.checked_add(p.cpus).ok_or(Errno::E2BIG)?
        };
        let commit = if p.flags & BPF_F_NO_PREALLOC != 0 {
            Commit::Touched
        } else {
            Commit::Whole
        };
        let header = if lru { size_of::<Node>() } else { 0 };
        let key_size = p.key_size as usize;
        let value = header + round8(key_size);
        let size = value + if percpu { 0 } else { round8(layout.size()) };
        let stride = if size <= 64 {
            size.next_power_of_two().max(8)
        } else {
            size.next_multiple_of(16)
        };
        let region = Region::array(count as usize, stride, commit)?;
        let region = region.expect_use(stride.saturating_mul(count as usize));
        let (layout, percpu) = if percpu {
            let values = PerCpuValues::new(p.value_size, count, p.cpus, commit, layout)?;
            (ValueLayout::new(0, 0, &[])?, Some(values))
        } else {
            (layout, None)
        };
        Ok(HashMap {
            table: Table::new(entries)?,
            elements: Block {
                region,
                stride,
                header,
                key_size,
                value,
                count,
            },
            kind: KeyKind::of(key_size),
            seed: match p.seed {
                _ if p.flags & BPF_F_ZERO_SEED != 0 => 0,
                Some(seed) => seed,
                None => random_seed(),
            },
            recycler: if lru {
                Recycler::Lru(Lru::new(entries, p.cpus, own_lists))
            } else {
                Recycler::Free(Box::new(FreeElements::new(entries, p.cpus)))
            },
            layout,
            percpu,
        })
    }

    pub(crate) fn layout(&self) -> &ValueLayout {
        self.percpu
            .as_ref()
            .map_or(&self.layout, |values| values.layout())
    }

    #[inline(always)]
    fn find(&self, key: &[u8]) -> Option<u32> {
        with_key!(self, key, k => self.find_key(k), else None)
    }

    #[inline(always)]
    fn find_key<K: Key>(&self, key: K) -> Option<u32> {
        self.table.find(&self.elements, key, key.hash(self.seed))
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        with_key!(self, key, k => {
            let hash = k.hash(self.seed);
            let bucket = self.table.bucket_of(hash);
            let locked = self.table.lock(bucket);
            locked.find(&self.elements, k, hash).map(|slot| slot.place(bucket))
        }, else None)
    }

    #[inline(always)]
    fn value_of(&self, cpu: u32, index: u32) -> Option<NonNull<u8>> {
        match &self.percpu {
            None => Some(self.elements.value(index)),
            Some(values) => values.get(cpu, index),
        }
    }

    /// Address of the value of `key`, as a program finds it.
    #[inline]
    pub fn get(&self, cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        let index = self.find(key)?;
        if let Recycler::Lru(_) = self.recycler {
            self.node(index).touch();
        }
        self.value_of(cpu, index)
    }

    /// Gives up what a value owns; the element is out of the table.
    fn release(&self, index: u32) {
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

    fn set(&self, cpu: u32, key: &[u8], source: Source<'_>, flags: u64) -> Result<(), Errno> {
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
    fn unset(&self, cpu: u32, key: &[u8], last: impl FnOnce(u32)) -> Result<(), Errno> {
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

    /// Copies an element's value out as the host sees it.
    fn copy_out(&self, index: u32, out: &mut [u8], flags: u64) {
        match &self.percpu {
            Some(values) => values.read_all(index, out),
            // SAFETY: an element has room for a whole value.
            None => unsafe { self.layout.read(out, self.elements.value(index), flags) },
        }
    }

    fn host_value_size(&self) -> usize {
        self.percpu
            .as_ref()
            .map_or(self.layout.size(), |values| values.host_size())
    }
}

impl Ops for HashMap {
    #[inline]
    fn lookup(&self, cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.get(cpu, key)
    }

    fn update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.set(cpu, key, Source::Own(cpu, value), flags)
    }

    fn delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.unset(cpu, key, |_| {})
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        let start = match key.and_then(|key| self.place(key)) {
            Some(Place { bucket, position }) => Place {
                bucket,
                position: position + 1,
            },
            None => Place {
                bucket: 0,
                position: 0,
            },
        };
        let mut found = false;
        self.table.scan(start, |place, _| {
            found = self
                .table
                .stable(place.bucket, || match self.table.at(place) {
                    Some(index) => {
                        self.elements.read_key(index, next);
                        true
                    }
                    None => false,
                });
            !found
        });
        if found { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn read(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let index = self.find(key).ok_or(Errno::ENOENT)?;
        self.copy_out(index, out, flags);
        Ok(())
    }

    fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.set(0, key, Source::All(value), flags)
    }

    fn take(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        self.unset(0, key, |index| self.copy_out(index, out, flags))
    }

    fn for_each(
        &self,
        cpu: u32,
        visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
    ) -> Result<u32, Errno> {
        let mut seen = 0;
        self.table.scan(
            Place {
                bucket: 0,
                position: 0,
            },
            |_, index| {
                let Some(value) = self.value_of(cpu, index) else {
                    return false;
                };
                seen += 1;
                visit(self.elements.key(index), value) == Progress::Go
            },
        );
        Ok(seen)
    }

    fn regions(&self) -> Vec<ValueRegion> {
        match &self.percpu {
            Some(values) => values.regions(),
            None => vec![ValueRegion {
                base: self.elements.region.base().as_ptr().expose_provenance() as u64,
                stride: self.elements.stride as u64,
                offset: self.elements.value as u64,
                size: self.layout.size() as u32,
                count: u64::from(self.elements.count),
            }],
        }
    }

    fn element_at(&self, addr: u64) -> Option<(Box<[u8]>, u64)> {
        let region = *self.regions().first()?;
        let index = region.index_of(addr)?;
        let mut key = vec![0; self.elements.key_size];
        self.elements.read_key(index as u32, &mut key);
        Some((
            key.into(),
            region.base + region.offset + index * region.stride,
        ))
    }

    fn batch(&self) -> BatchOps {
        BatchOps::HASH
    }

    fn read_batch(
        &self,
        from: u64,
        remove: bool,
        max: u32,
        flags: u64,
        keys: &mut Vec<u8>,
        values: &mut Vec<u8>,
    ) -> Result<Option<u64>, Errno> {
        let start = Place {
            bucket: (from >> 32) as u32,
            position: from as u32,
        };
        if start.bucket >= self.table.buckets() {
            return Ok(None);
        }
        let (key_size, value_size) = (self.elements.key_size, self.host_value_size());
        let (mut key, mut value) = (vec![0; key_size], vec![0; value_size]);
        let (mut n, mut next) = (0, None);
        self.table.scan(start, |place, _| {
            if n == max {
                next = Some(u64::from(place.bucket) << 32 | u64::from(place.position));
                return false;
            }
            let there = self
                .table
                .stable(place.bucket, || match self.table.at(place) {
                    Some(index) => {
                        self.elements.read_key(index, &mut key);
                        self.copy_out(index, &mut value, flags);
                        true
                    }
                    None => false,
                });
            let there = there && (!remove || self.take(&key, &mut value, flags).is_ok());
            if there {
                keys.extend_from_slice(&key);
                values.extend_from_slice(&value);
                n += 1;
            }
            true
        });
        Ok(next)
    }
}

impl Drop for HashMap {
    fn drop(&mut self) {
        if self.layout().owns() {
            self.table.scan(
                Place {
                    bucket: 0,
                    position: 0,
                },
                |_, index| {
                    self.release(index);
                    true
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfkit_spec::MapType;

    /// Keys of every kind, in patterns that programs have, spread over the buckets: few
    /// overflow. Random keys would fill 1 to 2 % more lines than there are buckets.
    #[test]
    fn patterned_keys_spread() {
        let n = 20_000u32;
        for size in [4usize, 6, 8, 12, 13, 16, 20, 40] {
            for shift in [0, 8, 16] {
                for at in [0, size - 4] {
                    let p = MapParams::new(MapType::Hash, size as u32, 8, n);
                    let map = HashMap::new(&p, ValueLayout::new(1, 8, &[]).unwrap()).unwrap();
                    for i in 0..n {
                        let mut key = vec![0; size];
                        key[at..at + 4].copy_from_slice(&i.rotate_left(shift).to_ne_bytes());
                        map.update(0, &key, &[0; 8], 0).unwrap();
                    }
                    let (lines, buckets) = (map.table.overflow_used(), map.table.buckets());
                    assert!(
                        lines * 30 < buckets,
                        "{size} {shift} {at}: {lines} of {buckets}"
                    );
                }
            }
        }
    }
}
