//! The LPM trie: longest prefix match at a cost near one or two cache misses.
//!
//! A trie of bytes (see `node`): paths with one way are skipped, subtrees of one
//! element are the element itself, so a look-up passes a node only where keys differ.
//! Prefixes that do not end at a byte's edge lie in the node of that byte, expanded to
//! runs of byte values. Readers take no lock; writers share one, as in the kernel.

mod find;
mod memory;
mod node;
mod order;
mod top;
mod write;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};

use crate::ops::{BatchOps, Ops};
use crate::value::load;
use crate::{Errno, MapParams, ValueRegion};
use memory::{Memory, Recycler};
use node::{Kind, Ref};

/// `BPF_MAP_TYPE_LPM_TRIE`.
///
/// A key is the prefix length in bits (four bytes) and the data, most significant bit
/// first. Look-ups are exact for threads that hold a guard ([`crate::pin`]).
pub struct LpmTrie {
    memory: Memory,
    root: AtomicU32,
    /// A [`top::Top`].
    top: AtomicU64,
    writer: Mutex<Writer>,
    max_entries: u32,
    #[cfg(target_arch = "x86_64")]
    has_popcnt: bool,
}

/// What writers share.
struct Writer {
    recycler: Recycler,
    entries: u32,
    children: Vec<(u8, Ref)>,
    path: Vec<Step>,
}

/// A node on the way down: the slot of its parent that refers to it, and the byte
/// that was taken in the node.
#[derive(Clone, Copy)]
struct Step {
    slot: *const AtomicU32,
    byte: u8,
}

// SAFETY: `path` is scratch: it is empty whenever the writers' lock is free.
unsafe impl Send for Writer {}

/// A key taken apart.
#[derive(Clone, Copy)]
struct Prefix<'a> {
    length: u32,
    data: &'a [u8],
}

impl Prefix<'_> {
    fn bytes(self) -> usize {
        self.length as usize / 8
    }
}

impl LpmTrie {
    pub(crate) fn new(p: &MapParams) -> Result<LpmTrie, Errno> {
        let data_size = p.key_size as usize - 4;
        let memory = Memory::new(p.max_entries, data_size, p.value_size as usize)?;
        let mut recycler = Recycler::new();
        let root = recycler.lines(&memory, 1)?;
        memory.node(root).init(0, &[], 0, 0);
        let root = Ref::new(Kind::Small, root).0;
        Ok(LpmTrie {
            memory,
            root: AtomicU32::new(root),
            top: AtomicU64::new(root.into()),
            writer: Mutex::new(Writer {
                recycler,
                entries: 0,
                children: Vec::new(),
                path: Vec::new(),
            }),
            max_entries: p.max_entries,
            #[cfg(target_arch = "x86_64")]
            has_popcnt: is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("lzcnt"),
        })
    }

    fn parse<'k>(&self, key: &'k [u8]) -> Option<Prefix<'k>> {
        let (length, data) = key.split_first_chunk()?;
        let length = u32::from_ne_bytes(*length);
        (data.len() == self.memory.data_size).then_some(Prefix { length, data })
    }

    fn max_length(&self) -> u32 {
        self.memory.data_size as u32 * 8
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Address of the value with the longest prefix that holds `key`, which is itself
    /// a prefix (only prefixes no longer than it are asked for).
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<NonNull<u8>> {
        let prefix = self.parse(key)?;
        let element = if prefix.length == self.max_length() {
            self.find(prefix.data)
        } else if prefix.length < self.max_length() {
            self.find_short(prefix)
        } else {
            0
        };
        (element != 0).then(|| self.memory.value(element))
    }

    /// As [`LpmTrie::get`], for keys of four bytes of data, where the processor can count bits.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn get_four(&self, length: u32, data: &[u8; 4]) -> Option<NonNull<u8>> {
        if length != 32 {
            let data = data.as_slice();
            let element = match length {
                0..32 => self.find_short(Prefix { length, data }),
                _ => 0,
            };
            return (element != 0).then(|| self.memory.value(element));
        }
        // SAFETY: `counts_bits` said so when this function was chosen.
        let element = unsafe { self.find_four_popcnt(u32::from_be_bytes(*data)) };
        (element != 0).then(|| self.memory.value(element))
    }

    /// Whether [`LpmTrie::get_four`] may be called.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn counts_bits(&self) -> bool {
        self.has_popcnt
    }

    /// Bytes of elements and nodes that were ever used.
    pub fn memory_used(&self) -> u64 {
        let (elements, lines) = self.lock().recycler.used();
        let (_, stride, ..) = self.memory.values();
        u64::from(elements) * stride as u64 + u64::from(lines) * node::LINE as u64
    }
}

impl Ops for LpmTrie {
    #[inline]
    fn lookup(&self, _cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.get(key)
    }

    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.set(key, value, flags)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.unset(key)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        let _writers_wait = self.lock();
        let present = key
            .and_then(|key| self.parse(key))
            .filter(|p| p.length <= self.max_length())
            .filter(|p| self.find_exact(*p).is_some());
        let element = match present {
            Some(prefix) => self.after(prefix),
            None => self.first(Ref(self.root.load(Relaxed))),
        };
        self.memory.read_key(element.ok_or(Errno::ENOENT)?, next);
        Ok(())
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let _guard = crate::pin();
        let value = self.get(key).ok_or(Errno::ENOENT)?;
        let len = out.len().min(self.memory.value_size);
        // SAFETY: an element has a whole value.
        unsafe { load(&mut out[..len], value.as_ptr()) };
        Ok(())
    }

    fn regions(&self) -> Vec<ValueRegion> {
        let (base, stride, offset, count) = self.memory.values();
        vec![ValueRegion {
            base: base.as_ptr().expose_provenance() as u64,
            stride: stride as u64,
            offset: offset as u64,
            size: self.memory.value_size as u32,
            count,
        }]
    }

    fn batch(&self) -> BatchOps {
        BatchOps::KEYED
    }
}
