//! Arrays and hashes of maps.
//!
//! A slot holds a counted reference to the inner map as a bare pointer, which programs
//! load without a lock. A reference that leaves a slot is dropped once every thread
//! that was pinned at that time has let go of its guard.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

use bpfkit_spec::MapType;

use crate::array::{check_update, index, next_index};
use crate::flags::{BPF_EXIST, BPF_F_INNER_MAP};
use crate::hash::HashMap;
use crate::mem::{Commit, Region};
use crate::ops::{BatchOps, Ops};
use crate::value::ValueLayout;
use crate::{Errno, Guard, Map, MapParams};

/// Drops the reference in the eight bytes at `at` and clears them.
///
/// # Safety
/// `at` is eight aligned bytes of map memory that hold 0 or a reference made by
/// [`Arc::into_raw`] of a [`Map`].
pub(crate) unsafe fn release(at: NonNull<u8>) {
    // SAFETY: by the contract.
    let slot = unsafe { slot(at) };
    drop_later(slot.swap(0, AcqRel));
}

/// The slot at `at`: an address, since hashes copy values as numbers.
///
/// # Safety
/// `at` is eight aligned bytes of map memory.
unsafe fn slot<'a>(at: NonNull<u8>) -> &'a AtomicUsize {
    // SAFETY: by the contract; addresses have eight bytes here.
    unsafe { AtomicUsize::from_ptr(at.as_ptr().cast()) }
}

/// The address of a map that a slot takes over.
fn address(map: &Arc<Map>) -> usize {
    Arc::into_raw(map.clone()).expose_provenance()
}

fn drop_later(address: usize) {
    if address != 0 {
        let map = std::ptr::with_exposed_provenance::<Map>(address);
        // SAFETY: the pointer came out of a slot by a swap, so this is the only owner
        // of the count that the slot held.
        let map = unsafe { Arc::from_raw(map) };
        crossbeam_epoch::pin().defer(move || drop(map));
    }
}

/// The map that a slot refers to.
fn load(at: NonNull<u8>, _guard: &Guard) -> Option<&Map> {
    // SAFETY: `at` is a slot of one of the maps below: eight aligned bytes.
    let slot = unsafe { slot(at) };
    let map = std::ptr::with_exposed_provenance::<Map>(slot.load(Acquire));
    // SAFETY: the slot's count keeps the map alive, and once it leaves the slot it is
    // dropped only after this guard is.
    unsafe { map.as_ref() }
}

fn load_arc(at: NonNull<u8>, guard: &Guard) -> Option<Arc<Map>> {
    let map: *const Map = load(at, guard)?;
    // SAFETY: alive as in `load`, and made by `Arc::into_raw`.
    unsafe {
        Arc::increment_strong_count(map);
        Some(Arc::from_raw(map))
    }
}

/// Tests that maps of type `inner` may be inside another.
fn check_template(inner: &MapParams) -> Result<(), Errno> {
    use MapType::*;
    match inner.map_type {
        ArrayOfMaps | HashOfMaps => Err(Errno::EINVAL),
        ProgArray | StructOps | CgroupStorage | PercpuCgroupStorage => Err(Errno::ENOTSUPP),
        _ => crate::check(inner),
    }
}

/// Whether a map fits the template (`bpf_map_meta_equal` and the array's variant).
fn fits(template: &MapParams, map: &MapParams) -> bool {
    let any_length = match template.map_type {
        MapType::Array => template.flags & BPF_F_INNER_MAP != 0,
        MapType::PercpuArray => false,
        _ => true,
    };
    template.map_type == map.map_type
        && template.key_size == map.key_size
        && template.value_size == map.value_size
        && template.flags == map.flags
        && template.fields == map.fields
        && (any_length || template.max_entries == map.max_entries)
}

fn template(p: &MapParams) -> Result<MapParams, Errno> {
    let inner = p.inner.as_deref().ok_or(Errno::EBADF)?;
    check_template(inner)?;
    Ok(inner.clone())
}

/// `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
pub struct ArrayOfMaps {
    slots: Region,
    len: u32,
    /// Slots from here on were never filled.
    filled: AtomicU32,
    template: MapParams,
}

impl ArrayOfMaps {
    pub(crate) fn new(p: &MapParams) -> Result<ArrayOfMaps, Errno> {
        let template = template(p)?;
        let slots = Region::array(p.max_entries as usize, 8, Commit::Whole)?;
        let (len, filled) = (p.max_entries, AtomicU32::new(0));
        Ok(ArrayOfMaps {
            slots,
            len,
            filled,
            template,
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<NonNull<u8>> {
        if index < self.len {
            Some(self.slots.at(index as usize * 8))
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Map> {
        load(self.slot(index(key)?)?, guard)
    }

    pub(crate) fn get_arc(&self, key: &[u8], guard: &Guard) -> Option<Arc<Map>> {
        load_arc(self.slot(index(key)?)?, guard)
    }

    pub(crate) fn set(&self, key: &[u8], inner: &Arc<Map>, flags: u64) -> Result<(), Errno> {
        let i = index(key).ok_or(Errno::EINVAL)?;
        // Unlike other arrays these admit no BPF_NOEXIST and BPF_EXIST at all.
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        check_update(i, self.len, flags)?;
        if !fits(&self.template, inner.params()) {
            return Err(Errno::EINVAL);
        }
        let slot = self.slot(i).ok_or(Errno::E2BIG)?;
        self.filled.fetch_max(i + 1, Relaxed);
        // SAFETY: a slot is eight aligned bytes.
        let slot = unsafe { self::slot(slot) };
        drop_later(slot.swap(address(inner), AcqRel));
        Ok(())
    }
}

impl Ops for ArrayOfMaps {
    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        let slot = index(key).and_then(|i| self.slot(i)).ok_or(Errno::E2BIG)?;
        let empty = load(slot, &crate::pin()).is_none();
        // SAFETY: a slot holds 0 or a reference.
        unsafe { release(slot) };
        if empty { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        read_id(self.get(key, &crate::pin()), out)
    }

    fn batch(&self) -> BatchOps {
        BatchOps::ARRAY
    }
}

fn read_id(map: Option<&Map>, out: &mut [u8]) -> Result<(), Errno> {
    let id = map.ok_or(Errno::ENOENT)?.id();
    out.get_mut(..4)
        .ok_or(Errno::EINVAL)?
        .copy_from_slice(&id.to_ne_bytes());
    Ok(())
}

impl Drop for ArrayOfMaps {
    fn drop(&mut self) {
        for i in 0..*self.filled.get_mut() {
            if let Some(slot) = self.slot(i) {
                // SAFETY: a slot holds 0 or a reference.
                unsafe { release(slot) };
            }
        }
    }
}

/// `BPF_MAP_TYPE_HASH_OF_MAPS`: a hash whose values are references.
pub struct HashOfMaps {
    hash: HashMap,
    template: MapParams,
}

impl HashOfMaps {
    pub(crate) fn new(p: &MapParams, id: u32) -> Result<HashOfMaps, Errno> {
        let hash = MapParams {
            value_size: 8,
            ..p.clone()
        };
        Ok(HashOfMaps {
            template: template(p)?,
            hash: HashMap::new(&hash, ValueLayout::inner_map(id))?,
        })
    }

    #[inline]
    pub(crate) fn get<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Map> {
        load(self.hash.get(0, key)?, guard)
    }

    pub(crate) fn get_arc(&self, key: &[u8], guard: &Guard) -> Option<Arc<Map>> {
        load_arc(self.hash.get(0, key)?, guard)
    }

    pub(crate) fn set(&self, key: &[u8], inner: &Arc<Map>, flags: u64) -> Result<(), Errno> {
        if flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        if !fits(&self.template, inner.params()) {
            return Err(Errno::EINVAL);
        }
        let raw = Arc::into_raw(inner.clone());
        let bytes = (raw.expose_provenance() as u64).to_ne_bytes();
        let done = self.hash.update(0, key, &bytes, flags);
        if done.is_err() {
            // SAFETY: the table did not take the count made above.
            drop(unsafe { Arc::from_raw(raw) });
        }
        done
    }
}

impl Ops for HashOfMaps {
    fn delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.hash.delete(cpu, key)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.hash.next_key(key, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        read_id(self.get(key, &crate::pin()), out)
    }

    fn batch(&self) -> BatchOps {
        BatchOps::KEYED
    }
}
