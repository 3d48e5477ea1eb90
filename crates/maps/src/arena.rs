//! Arenas: sparse memory of up to 4 GiB that programs and host share.
//!
//! The arena starts at a multiple of 4 GiB. A program's arena pointer, or its lower
//! half alone, becomes an address by `base + (pointer as u32)`. Where `map_extra` gives
//! no other address for the host, the host's addresses are these very addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::check::PAGE;
use crate::flags::BPF_F_SEGV_ON_FAULT;
use crate::mapping::Mapping;
use crate::mem::{Commit, Region};
use crate::ops::Ops;
use crate::{Errno, MapParams};

/// Reach of an instruction's 16-bit offset on either side.
const GUARD: usize = 1 << 16;
const WINDOW: usize = 1 << 32;

/// `BPF_MAP_TYPE_ARENA`.
pub struct Arena {
    mapping: Mapping,
    user_start: u64,
    pages: u32,
    segv: bool,
    free: Mutex<FreeRanges>,
    /// A bit a page that has memory.
    present: Region,
}

/// Ranges of pages without memory.
struct FreeRanges {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl FreeRanges {
    fn insert(&mut self, start: u32, len: u32) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u32) -> u32 {
        let len = self.by_start.remove(&start).unwrap_or(0);
        self.by_len.remove(&(len, start));
        len
    }

    /// The smallest range that holds `len` pages, the lowest of these.
    fn find(&self, len: u32) -> Option<u32> {
        self.by_len
            .range((len, 0)..)
            .next()
            .map(|(_, start)| *start)
    }

    /// The range that holds all of these pages.
    fn around(&self, start: u32, len: u32) -> Option<u32> {
        let (at, size) = self.by_start.range(..=start).next_back()?;
        (start - at <= *size && len <= size - (start - at)).then_some(*at)
    }

    /// Takes pages out of the range that starts at `at`.
    fn take(&mut self, at: u32, start: u32, len: u32) {
        let size = self.remove(at);
        if start > at {
            self.insert(at, start - at);
        }
        if at + size > start + len {
            self.insert(start + len, at + size - start - len);
        }
    }

    /// Puts pages back, some of which may be there already.
    fn give(&mut self, mut start: u32, mut end: u32) {
        while let Some((at, len)) = self.by_start.range(..=end).next_back() {
            let (at, stop) = (*at, at + len);
            if stop < start {
                break;
            }
            self.remove(at);
            start = start.min(at);
            end = end.max(stop);
        }
        self.insert(start, end - start);
    }
}

impl Arena {
    pub(crate) fn new(p: &MapParams) -> Result<Arena, Errno> {
        // The range ends with a guard; the one before the base costs a second window.
        let mapping = Mapping::reserve(2 * WINDOW + GUARD, WINDOW)?;
        let base = mapping.base().addr().get() as u64 + WINDOW as u64;
        let mut free = FreeRanges {
            by_start: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        free.insert(0, p.max_entries);
        Ok(Arena {
            mapping,
            user_start: if p.extra != 0 { p.extra } else { base },
            pages: p.max_entries,
            segv: p.flags & BPF_F_SEGV_ON_FAULT != 0,
            free: Mutex::new(free),
            present: Region::zeroed(1 << 17, Commit::Touched)?,
        })
    }

    /// Address to which the lower half of an arena pointer is added. 64 KiB on either
    /// side of the 4 GiB from here are never mapped.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: the mapping is longer than one window.
        unsafe { self.mapping.base().add(WINDOW) }
    }

    /// First address of the arena as the host and `bpf_arena_alloc_pages` name it.
    pub fn user_start(&self) -> u64 {
        self.user_start
    }

    /// Number of pages that the arena may have.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    fn offset_of(&self, page: u32) -> usize {
        let low = (self.user_start as u32).wrapping_add(page.wrapping_mul(PAGE));
        WINDOW + low as usize
    }

    fn bit(&self, low: u32) -> (&AtomicU64, u64) {
        let page = low / PAGE;
        let word = self.present.at(page as usize / 64 * 8);
        // SAFETY: a window has 2^20 pages, for which there are 2^17 bytes of bits.
        (
            unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) },
            1 << (page % 64),
        )
    }

    fn mark(&self, page: u32, count: u32, present: bool) {
        for page in page..page + count {
            let (word, bit) = self.bit((self.offset_of(page) - WINDOW) as u32);
            if present {
                word.fetch_or(bit, AcqRel)
            } else {
                word.fetch_and(!bit, AcqRel)
            };
        }
    }

    /// Whether all of `len` bytes have memory, for the lower half of an arena pointer.
    pub fn is_present(&self, low: u32, len: u32) -> bool {
        let Some(last) = low.checked_add(len.saturating_sub(1)) else {
            return false;
        };
        (low / PAGE..=last / PAGE).all(|page| {
            let (word, bit) = self.bit(page * PAGE);
            word.load(Acquire) & bit != 0
        })
    }

    /// `bpf_arena_alloc_pages`: gives `count` pages memory, at `addr` or where there is
    /// room if that is 0. Returns the first one's address, 0 on failure.
    pub fn alloc_pages(&self, addr: u64, count: u32) -> u64 {
        self.try_alloc(addr, count).unwrap_or(0)
    }

    fn try_alloc(&self, addr: u64, count: u32) -> Option<u64> {
        if count == 0 || count > self.pages {
            return None;
        }
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        let (range, page) = if addr == 0 {
            let range = free.find(count)?;
            (range, range)
        } else {
            if !addr.is_multiple_of(u64::from(PAGE)) {
                return None;
            }
            let page = (addr as u32).wrapping_sub(self.user_start as u32) / PAGE;
            if page > self.pages - count {
                return None;
            }
            (free.around(page, count)?, page)
        };
        self.mapping
            .populate(self.offset_of(page), count as usize * PAGE as usize)
            .ok()?;
        free.take(range, page, count);
        self.mark(page, count, true);
        let high = self.user_start & !0xffff_ffff;
        Some(high | (self.offset_of(page) - WINDOW) as u64)
    }

    /// `bpf_arena_free_pages`: takes memory back; pages without any are passed over.
    pub fn free_pages(&self, addr: u64, count: u32) {
        let low = addr as u32 & !(PAGE - 1);
        let page = low.wrapping_sub(self.user_start as u32) / PAGE;
        if page >= self.pages {
            return;
        }
        let count = count.min(self.pages - page);
        if count == 0 {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        self.mark(page, count, false);
        self.mapping
            .depopulate(self.offset_of(page), count as usize * PAGE as usize);
        free.give(page, page + count);
    }

    /// Host: makes sure that a page has memory, as the host's first access to it does.
    ///
    /// # Errors
    /// `EFAULT` outside the arena, or where the map was made with
    /// `BPF_F_SEGV_ON_FAULT`; `ENOMEM`.
    pub fn touch(&self, addr: u64) -> Result<(), Errno> {
        let offset = addr.checked_sub(self.user_start).ok_or(Errno::EFAULT)?;
        let page = u32::try_from(offset / u64::from(PAGE)).map_err(|_| Errno::EFAULT)?;
        if page >= self.pages {
            return Err(Errno::EFAULT);
        }
        if self.is_present(addr as u32, 1) {
            return Ok(());
        }
        if self.segv {
            return Err(Errno::EFAULT);
        }
        let there = self.alloc_pages(addr & !u64::from(PAGE - 1), 1) != 0;
        if there || self.is_present(addr as u32, 1) {
            Ok(())
        } else {
            Err(Errno::ENOMEM)
        }
    }
}

impl Ops for Arena {
    fn read(&self, _key: &[u8], _out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}
