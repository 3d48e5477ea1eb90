//! Objects that programs allocate (`bpf_obj_new`) or that helpers hand out (sockets).
//!
//! They belong to the program's object, since maps may keep them between runs, and are
//! freed with it at the latest.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::env::Env;
use crate::memory::{Memory, Region, RegionKind};

/// Live objects by address.
#[derive(Default)]
pub(crate) struct Heap {
    blocks: Mutex<BTreeMap<u64, Block>>,
    count: AtomicUsize,
}

struct Block {
    memory: Box<[u64]>,
    len: u64,
    writable: bool,
    /// References that programs hold (`struct bpf_refcount`).
    references: u32,
    /// Bytes of one CPU's instance, 0 for a plain object.
    stride: u64,
}

impl Block {
    fn region(&self, start: u64) -> Region {
        Region {
            start,
            len: self.len,
            writable: self.writable,
            kind: RegionKind::Other("object"),
        }
    }
}

impl Heap {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Block>> {
        self.blocks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Grants every live object, at the start of a run.
    pub(crate) fn grant(&self, memory: &mut Memory) {
        if self.count.load(Ordering::Acquire) != 0 {
            for (&start, block) in self.lock().iter() {
                memory.grant(block.region(start));
            }
        }
    }
}

/// A new object of `len` zero bytes with the bytes of `init` at its start.
pub(crate) fn alloc(env: &mut Env<'_>, len: usize, init: &[u8], writable: bool) -> u64 {
    insert(env, len, init, writable, 0)
}

/// A new object of `len` zero bytes for each CPU.
pub(crate) fn alloc_percpu(env: &mut Env<'_>, len: usize) -> u64 {
    let cpus = env
        .maps()
        .iter()
        .map(|m| m.params().cpus)
        .max()
        .unwrap_or(1)
        .max(env.cpu() + 1);
    let stride = len.next_multiple_of(8);
    insert(env, stride * cpus as usize, &[], true, stride as u64)
}

fn insert(env: &mut Env<'_>, len: usize, init: &[u8], writable: bool, stride: u64) -> u64 {
    let mut memory = vec![0u64; len.div_ceil(8).max(1)].into_boxed_slice();
    for (word, bytes) in memory.iter_mut().zip(init.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    let addr = memory.as_mut_ptr().expose_provenance() as u64;
    let block = Block {
        memory,
        len: len as u64,
        writable,
        references: 1,
        stride,
    };
    if env.checked() || env.state.probed {
        env.memory.grant(block.region(addr));
    }
    let heap = &env.maps().shared.heap;
    heap.lock().insert(addr, block);
    heap.count.fetch_add(1, Ordering::Release);
    addr
}

impl Heap {
    /// One reference less, of an object that no run at hand knows of.
    pub(crate) fn release(&self, addr: u64) {
        let mut blocks = self.lock();
        let Some(block) = blocks.get_mut(&addr) else {
            return;
        };
        block.references -= 1;
        if block.references == 0 {
            blocks.remove(&addr);
            self.count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Frees the object at `addr`; `false` if there is none.
pub(crate) fn free(env: &mut Env<'_>, addr: u64) -> bool {
    let heap = &env.maps().shared.heap;
    let block = heap.lock().remove(&addr);
    if let Some(block) = block {
        heap.count.fetch_sub(1, Ordering::Release);
        if env.checked() || env.state.probed {
            env.memory.revoke(addr);
        }
        drop(block.memory);
        return true;
    }
    false
}

/// Whether `len` bytes at `addr` lie in one live object.
pub(crate) fn holds(env: &Env<'_>, addr: u64, len: u64) -> bool {
    size_of(env, addr).is_some_and(|left| len <= left)
}

/// Bytes from `addr` to the end of the object that holds it.
pub(crate) fn size_of(env: &Env<'_>, addr: u64) -> Option<u64> {
    let heap = &env.maps().shared.heap;
    if heap.count.load(Ordering::Acquire) == 0 {
        return None;
    }
    let blocks = heap.lock();
    let (&start, block) = blocks.range(..=addr).next_back()?;
    (addr - start <= block.len).then(|| block.len - (addr - start))
}

/// One more reference to the object at `addr`; `false` if there is none.
pub(crate) fn acquire(env: &Env<'_>, addr: u64) -> bool {
    match env.maps().shared.heap.lock().get_mut(&addr) {
        Some(block) => {
            block.references = block.references.saturating_add(1);
            true
        }
        None => false,
    }
}

/// One reference less; the last one frees the object.
pub(crate) fn release(env: &mut Env<'_>, addr: u64) {
    let last = match env.maps().shared.heap.lock().get_mut(&addr) {
        Some(block) => {
            block.references -= 1;
            block.references == 0
        }
        None => false,
    };
    if last {
        free(env, addr);
    }
}

/// The instance of a CPU of the object at `addr`: `None` for anything but a per-CPU
/// object, `Some(0)` for a CPU that there is not.
pub(crate) fn instance(env: &Env<'_>, addr: u64, cpu: u32) -> Option<u64> {
    let heap = &env.maps().shared.heap;
    if heap.count.load(Ordering::Acquire) == 0 {
        return None;
    }
    let blocks = heap.lock();
    let block = blocks.get(&addr).filter(|b| b.stride != 0)?;
    let offset = block.stride * u64::from(cpu);
    Some(if offset < block.len { addr + offset } else { 0 })
}
