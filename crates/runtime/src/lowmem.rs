//! Memory below 4 GiB, for packets.
//!
//! `struct xdp_md`, `struct __sk_buff` and `struct bpf_sk_lookup` hold packet addresses in
//! 32-bit fields. The kernel rewrites loads of those fields; here the packet simply lies
//! where 32 bits reach, so that programs run as they are.

use std::io;
use std::ptr::NonNull;
use std::slice;

/// Zeroed, page-aligned memory that lies below 4 GiB as a whole.
///
/// Programs reach it through plain addresses. The slices handed out here live only while
/// no program runs on it.
#[derive(Debug)]
pub struct LowMem {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: LowMem owns its mapping; nothing about it belongs to a thread.
unsafe impl Send for LowMem {}
// SAFETY: shared references only read.
unsafe impl Sync for LowMem {}

impl LowMem {
    /// Maps at least `len` bytes (rounded up to whole pages).
    ///
    /// # Errors
    /// What `mmap` says, or `OutOfMemory` where no space is left below 4 GiB.
    pub fn new(len: usize) -> io::Result<Self> {
        const PAGE: usize = 4096;
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .filter(|&len| len <= u32::MAX as usize / 2)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let start = map_low(len)?;
        // Programs' accesses are made from integers.
        start.as_ptr().expose_provenance();
        Ok(Self { start, len })
    }

    /// Address of the first byte; all of the memory has addresses that fit 32 bits.
    pub fn address(&self) -> u32 {
        self.start.as_ptr().addr() as u32
    }

    /// Bytes mapped.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` readable bytes and lives as long as self.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` writable bytes, borrowed with self.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for LowMem {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, and self held the only claim to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn try_map(hint: usize, len: usize, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh anonymous mapping; without MAP_FIXED nothing existing is replaced.
    let at = unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(hint),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let low = at
        .addr()
        .checked_add(len)
        .is_some_and(|end| end <= u32::MAX as usize);
    match NonNull::new(at.cast::<u8>()) {
        Some(start) if low => Ok(start),
        _ => {
            // SAFETY: unmaps what was just mapped.
            unsafe { libc::munmap(at, len) };
            Err(io::ErrorKind::OutOfMemory.into())
        }
    }
}

fn map_low(len: usize) -> io::Result<NonNull<u8>> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    if let Ok(start) = try_map(0, len, libc::MAP_32BIT) {
        return Ok(start);
    }
    // Elsewhere, and where the low 2 GiB are full: ask for places one after another. A
    // hint in use makes the system choose another place, mostly far above 4 GiB.
    let step = len.max(16 << 20);
    let mut hint = step;
    while hint + len <= u32::MAX as usize {
        if let Ok(start) = try_map(hint, len, 0) {
            return Ok(start);
        }
        hint += step;
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_below_4_gib_and_holds_what_is_written() {
        let mut blocks: Vec<LowMem> = (0..64).map(|_| LowMem::new(70_000).unwrap()).collect();
        for (i, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.len() % 4096, 0);
            assert!(u64::from(block.address()) + block.len() as u64 <= 1 << 32);
            block.bytes_mut().fill(i as u8);
        }
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.bytes().iter().all(|&b| b == i as u8));
        }
    }

    #[test]
    fn refuses_what_cannot_fit() {
        assert!(LowMem::new(1 << 32).is_err());
    }
}
