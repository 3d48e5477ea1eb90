//! Storage that belongs to an object of the host: a socket, task, inode or cgroup.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use bpfkit_spec::MapType;

use crate::array::index;
use crate::flags::{BPF_EXIST, BPF_F_CLONE, BPF_F_LOCK, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use crate::hash::HashMap;
use crate::ops::Ops;
use crate::slots::Slots;
use crate::value::ValueLayout;
use crate::{Errno, MapParams, Progress, ValueRegion};

/// `bpf_*_storage_get`: make the storage if there is none.
pub const BPF_LOCAL_STORAGE_GET_F_CREATE: u64 = 1;

/// Owners that a map can serve at a time; memory is used only for those there are.
const OWNERS_MAX: u32 = 1 << 18;

/// Socket, task, inode and cgroup storage, and the older cgroup storage.
///
/// An owner is a number of the host's: an address, an inode, a process id. Host
/// operations by key take the number that the key holds (a file descriptor stands for
/// its object).
///
/// Owners and values lie side by side ([`Slots`]), so that a look-up costs one cache miss; a
/// hash map takes what finds no room there.
pub struct Storage {
    /// None for the older cgroup storage.
    slots: Option<Slots>,
    hash: HashMap,
    /// Held while owners come, change or go.
    writing: Mutex<()>,
    key_size: usize,
    /// The older cgroup storage, whose key is the owner itself.
    attached: bool,
    cloned: bool,
}

impl Storage {
    pub(crate) fn new(p: &MapParams, layout: ValueLayout) -> Result<Storage, Errno> {
        let attached = matches!(
            p.map_type,
            MapType::CgroupStorage | MapType::PercpuCgroupStorage
        );
        let percpu = p.map_type == MapType::PercpuCgroupStorage;
        let key_size = p.key_size as usize;
        let hash = MapParams {
            map_type: if percpu {
                MapType::PercpuHash
            } else {
                MapType::Hash
            },
            key_size: if attached { p.key_size } else { 8 },
            max_entries: if percpu { OWNERS_MAX / 64 } else { OWNERS_MAX },
            flags: BPF_F_NO_PREALLOC,
            ..p.clone()
        };
        let cloned = p.flags & BPF_F_CLONE != 0;
        let slots = match attached {
            true => None,
            false => Some(Slots::new(layout.size())?),
        };
        Ok(Storage {
            slots,
            hash: HashMap::new(&hash, layout)?,
            writing: Mutex::default(),
            key_size,
            attached,
            cloned,
        })
    }

    pub(crate) fn layout(&self) -> &ValueLayout {
        self.hash.layout()
    }

    /// `bpf_*_storage_get`: address of the owner's value; with
    /// [`BPF_LOCAL_STORAGE_GET_F_CREATE`] it is made from `init`, or zeroed.
    #[inline]
    pub fn get(&self, owner: u64, flags: u64, init: Option<&[u8]>) -> Option<NonNull<u8>> {
        if flags & !BPF_LOCAL_STORAGE_GET_F_CREATE != 0 {
            return None;
        }
        match self.beside(owner) {
            None => self.get_elsewhere(owner, flags != 0, init),
            found => found,
        }
    }

    #[inline(always)]
    fn beside(&self, owner: u64) -> Option<NonNull<u8>> {
        self.slots.as_ref().and_then(|slots| slots.get(owner))
    }

    fn find(&self, owner: u64) -> Option<NonNull<u8>> {
        let elsewhere = || self.hash.get(0, &owner.to_ne_bytes());
        self.beside(owner).or_else(elsewhere)
    }

    #[cold]
    fn get_elsewhere(&self, owner: u64, create: bool, init: Option<&[u8]>) -> Option<NonNull<u8>> {
        let key = owner.to_ne_bytes();
        if let Some(value) = self.hash.get(0, &key) {
            return Some(value);
        }
        if !create {
            return None;
        }
        let _one = self.write_lock();
        if let Some(value) = self.find(owner) {
            // Another thread was faster.
            return Some(value);
        }
        let zeros;
        let init = match init {
            Some(init) => init,
            None => {
                zeros = vec![0; self.layout().size()];
                &zeros
            }
        };
        self.insert(owner, init).ok()?;
        self.find(owner)
    }

    fn write_lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives an owner that has none a value. The caller holds the lock.
    fn insert(&self, owner: u64, value: &[u8]) -> Result<(), Errno> {
        // SAFETY: a slot has room for a whole value.
        let fill = |at| unsafe { self.layout().copy_in(at, value) };
        let slots = self.slots.as_ref();
        match slots.and_then(|slots| slots.insert(owner, fill)) {
            Some(_) => Ok(()),
            None => self
                .hash
                .update(0, &owner.to_ne_bytes(), value, BPF_NOEXIST),
        }
    }

    /// Host: stores an owner's value.
    fn set(&self, owner: u64, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & !BPF_F_LOCK > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        self.layout().check_lock(flags)?;
        let _one = self.write_lock();
        if let Some(at) = self.beside(owner) {
            if flags & !BPF_F_LOCK == BPF_NOEXIST {
                return Err(Errno::EEXIST);
            }
            // SAFETY: a slot has room for a whole value.
            unsafe {
                if flags & BPF_F_LOCK == 0 {
                    self.layout().release(at);
                }
                self.layout().write(at, value, flags);
            }
            return Ok(());
        }
        let absent = self.hash.get(0, &owner.to_ne_bytes()).is_none();
        if absent && flags & !BPF_F_LOCK != BPF_EXIST {
            return self.insert(owner, value);
        }
        self.hash.write(&owner.to_ne_bytes(), value, flags)
    }

    /// `bpf_get_local_storage`: value of a cgroup for the programs of an attach type,
    /// made if there is none.
    pub fn attached(&self, cpu: u32, cgroup: u64, attach_type: u32) -> Option<NonNull<u8>> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&cgroup.to_ne_bytes());
        key[8..12].copy_from_slice(&attach_type.to_ne_bytes());
        let key = key.get(..self.key_size)?;
        if let Some(value) = self.hash.get(cpu, key) {
            return Some(value);
        }
        let zeros = vec![0; self.layout().size()];
        match self.hash.update(cpu, key, &zeros, BPF_NOEXIST) {
            // Another thread was faster.
            Ok(()) | Err(Errno::EEXIST) => self.hash.get(cpu, key),
            Err(_) => None,
        }
    }

    /// `bpf_*_storage_delete`, also to be called when the owner ends.
    ///
    /// # Errors
    /// `ENOENT` if it has no storage here.
    pub fn delete_owner(&self, owner: u64) -> Result<(), Errno> {
        let _one = self.write_lock();
        match self.slots.as_ref().and_then(|slots| slots.remove(owner)) {
            Some(at) => {
                // SAFETY: a slot has room for a whole value.
                unsafe { self.layout().release(at) };
                Ok(())
            }
            None => self.hash.delete(0, &owner.to_ne_bytes()),
        }
    }

    /// Gives `to` a copy of what `from` has, if the map was made with `BPF_F_CLONE`.
    ///
    /// # Errors
    /// `ENOMEM`, `EEXIST`.
    pub fn clone_owner(&self, from: u64, to: u64) -> Result<(), Errno> {
        let Some(at) = self.find(from).filter(|_| self.cloned) else {
            return Ok(());
        };
        let mut value = vec![0; self.layout().size()];
        // SAFETY: what `find` gives is a whole value.
        unsafe { self.layout().read(&mut value, at, 0) };
        self.set(to, &value, BPF_NOEXIST)
    }

    /// Host: calls `visit` with each owner and the address of its value.
    pub fn for_each_owner(&self, mut visit: impl FnMut(u64, NonNull<u8>)) {
        for (owner, value) in self.slots.iter().flat_map(Slots::iter) {
            visit(owner, value);
        }
        let walked = self.hash.for_each(0, &mut |key, value| {
            // SAFETY: keys of the table are at least eight aligned bytes.
            let owner = unsafe { std::sync::atomic::AtomicU64::from_ptr(key.cast_mut().cast()) };
            visit(owner.load(std::sync::atomic::Ordering::Relaxed), value);
            Progress::Go
        });
        debug_assert!(walked.is_ok());
    }

    /// The owner that a key of the host stands for.
    fn owner(key: &[u8]) -> Result<u64, Errno> {
        Ok(u64::from(index(key).ok_or(Errno::EINVAL)?))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        for (_, value) in self.slots.iter().flat_map(Slots::iter) {
            // SAFETY: a slot has room for a whole value, and nobody shares the map any more.
            unsafe { self.layout().release(value) };
        }
    }
}

impl Ops for Storage {
    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if !self.attached {
            return self.set(Storage::owner(key)?, value, flags);
        }
        if flags & !(BPF_F_LOCK | BPF_EXIST) != 0 {
            return Err(Errno::EINVAL);
        }
        // Cgroup storage comes with attaching a program, never with a write.
        let exists = if flags & BPF_F_LOCK != 0 {
            BPF_EXIST | BPF_F_LOCK
        } else {
            BPF_EXIST
        };
        self.hash.write(key, value, exists)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        if self.attached {
            return Err(Errno::EINVAL);
        }
        self.delete_owner(Storage::owner(key)?)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        if self.attached {
            self.hash.next_key(key, next)
        } else {
            Err(Errno::ENOTSUPP)
        }
    }

    fn read(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        if self.attached {
            return self.hash.read(key, out, flags);
        }
        let at = self.find(Storage::owner(key)?).ok_or(Errno::ENOENT)?;
        // SAFETY: what `find` gives is a whole value.
        unsafe { self.layout().read(out, at, flags) };
        Ok(())
    }

    fn regions(&self) -> Vec<ValueRegion> {
        let size = self.layout().size();
        let slots = self.slots.iter().map(|slots| slots.region(size));
        slots.chain(self.hash.regions()).collect()
    }
}
