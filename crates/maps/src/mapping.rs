//! Address ranges arranged page by page: memory that appears twice in a row, and
//! ranges that are reserved first and get their pages later.

use std::ptr::NonNull;

use crate::Errno;

/// A range of addresses, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: as `mem::Region`: plain memory that no thread owns.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of addresses without access, aligned to `align` (a power of
    /// two, at least a page).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn reserve(len: usize, align: usize) -> Result<Mapping, Errno> {
        let slack = len.checked_add(align).ok_or(Errno::ENOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                slack,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::ENOMEM);
        }
        let before = start.addr().next_multiple_of(align) - start.addr();
        let after = slack - before - len;
        // SAFETY: `before + len + after` is the whole mapping, of which the aligned
        // middle stays.
        let base = unsafe {
            let base = start.cast::<u8>().add(before);
            if before > 0 {
                libc::munmap(start, before);
            }
            if after > 0 {
                libc::munmap(base.add(len).cast(), after);
            }
            base
        };
        Ok(Mapping {
            base: NonNull::new(base).ok_or(Errno::ENOMEM)?,
            len,
        })
    }

    /// A page (of `head` bytes) and then `data` bytes of memory that appear twice in a
    /// row: what runs over the end of the first goes on at its start.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn ring(head: usize, data: usize) -> Result<Mapping, Errno> {
        let twice = data
            .checked_mul(2)
            .and_then(|n| n.checked_add(head))
            .ok_or(Errno::ENOMEM)?;
        let mapping = Mapping::reserve(twice, head)?;
        let file = MemFile::new(head + data)?;
        for (at, offset, len) in [(0, 0, head + data), (head + data, head, data)] {
            // SAFETY: replaces pages of the range reserved above, which nobody uses yet;
            // `at + len` is at most its length.
            let got = unsafe {
                libc::mmap(
                    mapping.base.as_ptr().add(at).cast(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    file.0,
                    offset as libc::off_t,
                )
            };
            if got == libc::MAP_FAILED {
                return Err(Errno::ENOMEM);
            }
        }
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives the bytes from `offset` on zeroed memory.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` outside the range.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.inside(offset, len)?;
        // SAFETY: pages of this range, which `inside` tested.
        let failed = unsafe {
            let at = self.base.as_ptr().add(offset).cast();
            libc::madvise(at, len, libc::MADV_DONTNEED);
            libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) != 0
        };
        if failed { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Takes the contents of these bytes back. They stay accessible and read as zero: a
    /// program on another thread may still hold an address there, and what it writes is
    /// dropped when the pages are populated again.
    pub(crate) fn depopulate(&self, offset: usize, len: usize) {
        if self.inside(offset, len).is_err() {
            return;
        }
        // SAFETY: pages of this range, which `inside` tested; their contents become zero.
        unsafe {
            let at = self.base.as_ptr().add(offset).cast();
            libc::madvise(at, len, libc::MADV_DONTNEED);
        }
    }

    fn inside(&self, offset: usize, len: usize) -> Result<(), Errno> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly this range, once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A file in memory, closed when dropped.
struct MemFile(libc::c_int);

impl MemFile {
    fn new(len: usize) -> Result<MemFile, Errno> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"bpf_ringbuf".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::ENOMEM);
        }
        let file = MemFile(fd);
        let len = libc::off_t::try_from(len).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: a file that was just made.
        if unsafe { libc::ftruncate(file.0, len) } != 0 {
            return Err(Errno::ENOMEM);
        }
        Ok(file)
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        // SAFETY: closes the descriptor that this value owns; mappings stay.
        unsafe { libc::close(self.0) };
    }
}
