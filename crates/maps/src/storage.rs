//! Storage that belongs to an object of the host: a socket, task, inode or cgroup.

use std::ptr::NonNull;

use bpfkit_spec::MapType;

use crate::array::index;
use crate::flags::{BPF_EXIST, BPF_F_CLONE, BPF_F_LOCK, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use crate::hash::HashMap;
use crate::ops::Ops;
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
pub struct Storage {
    hash: HashMap,
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
        Ok(Storage {
            hash: HashMap::new(&hash, layout)?,
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
    pub fn get(&self, owner: u64, flags: u64, init: Option<&[u8]>) -> Option<NonNull<u8>> {
        if flags & !BPF_LOCAL_STORAGE_GET_F_CREATE != 0 {
            return None;
        }
        self.get_or_create(0, &owner.to_ne_bytes(), flags != 0, init)
    }

    /// `bpf_get_local_storage`: value of a cgroup for the programs of an attach type,
    /// made if there is none.
    pub fn attached(&self, cpu: u32, cgroup: u64, attach_type: u32) -> Option<NonNull<u8>> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&cgroup.to_ne_bytes());
        key[8..12].copy_from_slice(&attach_type.to_ne_bytes());
        self.get_or_create(cpu, key.get(..self.key_size)?, true, None)
    }

    fn get_or_create(
        &self,
        cpu: u32,
        key: &[u8],
        create: bool,
        init: Option<&[u8]>,
    ) -> Option<NonNull<u8>> {
        if let Some(value) = self.hash.get(cpu, key) {
            return Some(value);
        }
        if !create {
            return None;
        }
        let zeros;
        let init = match init {
            Some(init) => init,
            None => {
                zeros = vec![0; self.layout().size()];
                &zeros
            }
        };
        match self.hash.update(cpu, key, init, BPF_NOEXIST) {
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
        self.hash.delete(0, &owner.to_ne_bytes())
    }

    /// Gives `to` a copy of what `from` has, if the map was made with `BPF_F_CLONE`.
    ///
    /// # Errors
    /// `ENOMEM`, `EEXIST`.
    pub fn clone_owner(&self, from: u64, to: u64) -> Result<(), Errno> {
        let mut value = vec![0; self.layout().size()];
        match self.hash.read(&from.to_ne_bytes(), &mut value, 0) {
            Ok(()) if self.cloned => self.hash.update(0, &to.to_ne_bytes(), &value, BPF_NOEXIST),
            _ => Ok(()),
        }
    }

    /// Host: calls `visit` with each owner and the address of its value.
    pub fn for_each_owner(&self, mut visit: impl FnMut(u64, NonNull<u8>)) {
        let walked = self.hash.for_each(0, &mut |key, value| {
            // SAFETY: keys of the table are at least eight aligned bytes.
            let owner = unsafe { std::sync::atomic::AtomicU64::from_ptr(key.cast_mut().cast()) };
            visit(owner.load(std::sync::atomic::Ordering::Relaxed), value);
            Progress::Go
        });
        debug_assert!(walked.is_ok());
    }

    /// The table's key for a key of the host.
    fn with_key<T>(&self, key: &[u8], work: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
        if self.attached {
            return Ok(work(key));
        }
        let owner = u64::from(index(key).ok_or(Errno::EINVAL)?);
        Ok(work(&owner.to_ne_bytes()))
    }
}

impl Ops for Storage {
    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if !self.attached {
            return self.with_key(key, |key| self.hash.write(key, value, flags))?;
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

    fn delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        if self.attached {
            return Err(Errno::EINVAL);
        }
        self.with_key(key, |key| self.hash.delete(cpu, key))?
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        if self.attached {
            self.hash.next_key(key, next)
        } else {
            Err(Errno::ENOTSUPP)
        }
    }

    fn read(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        self.with_key(key, |key| self.hash.read(key, out, flags))?
    }

    fn regions(&self) -> Vec<ValueRegion> {
        self.hash.regions()
    }
}
