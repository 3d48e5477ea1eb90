//! Zeroed memory at a fixed address, paid for when it is touched.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::Errno;

/// Below this size the allocator serves a region; from it on the kernel's pages do.
const MMAP_FROM: usize = 32 << 10;
/// From this size on a region is worth huge pages.
const HUGE_FROM: usize = 4 << 20;
/// Alignment of every region: a cache line (mapped ones are page aligned).
const ALIGN: usize = 64;

/// How much of a region's memory must exist when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// All of it: fails where the machine's memory cannot hold it.
    Whole,
    /// What gets touched.
    Touched,
}

/// Zeroed memory of one address range, freed when dropped.
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    mapped: bool,
}

// SAFETY: a region is plain memory that no thread owns; whoever shares it arranges
// its accesses through atomics (see `value`).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zero bytes, aligned to 64.
    ///
    /// # Errors
    /// `ENOMEM` if the memory is not to be had.
    pub(crate) fn zeroed(len: usize, commit: Commit) -> Result<Region, Errno> {
        let len = len.max(1);
        if len >= MMAP_FROM && !cfg!(miri) {
            let region = Region::mapped(len, commit)?;
            return Ok(if commit == Commit::Whole {
                region.expect_use(len)
            } else {
                region
            });
        }
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        Ok(Region {
            base,
            len,
            mapped: false,
        })
    }

    /// `count` times `size` bytes.
    ///
    /// # Errors
    /// `ENOMEM`, also where the product overflows.
    pub(crate) fn array(count: usize, size: usize, commit: Commit) -> Result<Region, Errno> {
        Region::zeroed(count.checked_mul(size).ok_or(Errno::ENOMEM)?, commit)
    }

    /// Page-aligned memory of at least one page.
    pub(crate) fn pages(len: usize) -> Result<Region, Errno> {
        Region::mapped(len.max(1), Commit::Whole)
    }

    fn mapped(len: usize, commit: Commit) -> Result<Region, Errno> {
        if len > isize::MAX as usize {
            return Err(Errno::ENOMEM);
        }
        let reserve = match commit {
            Commit::Whole => 0,
            Commit::Touched => libc::MAP_NORESERVE,
        };
        // SAFETY: a new private mapping at an address of the kernel's choice touches
        // no memory that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::ENOMEM);
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Region {
            base,
            len,
            mapped: true,
        })
    }

    /// Asks for huge pages if that many bytes, of all that are reserved, are going to be
    /// used: random accesses to small pages miss the translation cache as well.
    pub(crate) fn expect_use(self, bytes: usize) -> Region {
        if self.mapped && bytes >= HUGE_FROM {
            // SAFETY: advice about this mapping; failure changes nothing.
            unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
        }
        self
    }

    /// First byte.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The byte at `offset`.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.len);
        // SAFETY: every caller computes `offset` from an index that it tested against
        // the count the region was made for, so it stays inside the allocation.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: unmaps exactly the mapping made in `mapped`, once.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        } else if let Ok(layout) = Layout::from_size_align(self.len, ALIGN) {
            // SAFETY: the layout is the one of the allocation in `zeroed`.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// `n` rounded up to a multiple of 8.
pub(crate) const fn round8(n: usize) -> usize {
    n.next_multiple_of(8)
}
