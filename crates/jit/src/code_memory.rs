//! Memory for code, mapped twice: where it is written it is not executable, and where it
//! is executed it is not writable. Programs share pages; freed space is used again. Each block
//! begins with the code that programs share, so that they reach it by short calls.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{self, Arch};

/// Bytes of the blocks that programs share.
const CHUNK: usize = 1 << 18;
/// Programs begin at multiples of this.
const ALIGN: usize = 32;
/// What free space holds: a breakpoint on x86, an undefined instruction elsewhere.
const FILLER: u8 = if cfg!(target_arch = "x86_64") {
    0xcc
} else {
    0
};

/// What each block begins with.
fn shared() -> &'static [u8] {
    Arch::HOST.map_or(&[], |arch| &backend::shared(arch).code)
}

/// Bytes of it, and of what aligns what follows.
fn reserved() -> usize {
    shared().len().next_multiple_of(ALIGN)
}

/// A pool of code memory.
#[derive(Default)]
pub struct CodeMemory {
    chunks: Mutex<Vec<Option<Chunk>>>,
}

/// A block of memory with two views.
struct Chunk {
    write: NonNull<u8>,
    execute: NonNull<u8>,
    len: usize,
    /// Free stretches (offset, bytes), sorted, none touching the next.
    free: Vec<(usize, usize)>,
}

// SAFETY: the two mappings belong to the chunk alone and do not move.
unsafe impl Send for Chunk {}

impl Chunk {
    fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a constant name with its NUL; the descriptor is checked.
        let fd = unsafe { libc::memfd_create(c"bpfkit-jit".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = Self::map(fd, len);
        // SAFETY: opened above and used by nobody else; mappings outlive it.
        unsafe { libc::close(fd) };
        let (write, execute) = mapped?;
        // SAFETY: the view was just made with `len` bytes.
        unsafe { write.as_ptr().write_bytes(FILLER, len) };
        let (shared, from) = (shared(), reserved());
        if from > len {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the view has at least as many bytes.
        unsafe { ptr::copy_nonoverlapping(shared.as_ptr(), write.as_ptr(), shared.len()) };
        make_visible(execute, shared.len());
        Ok(Self {
            write,
            execute,
            len,
            free: vec![(from, len - from)],
        })
    }

    fn map(fd: libc::c_int, len: usize) -> io::Result<(NonNull<u8>, NonNull<u8>)> {
        let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
        // SAFETY: a descriptor of our own.
        if unsafe { libc::ftruncate(fd, size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let view = |protection| {
            // SAFETY: a fresh mapping at a place that the kernel chooses.
            let at =
                unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
            match NonNull::new(at.cast::<u8>()) {
                Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(at),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let write = view(libc::PROT_READ | libc::PROT_WRITE)?;
        match view(libc::PROT_READ | libc::PROT_EXEC) {
            Ok(execute) => Ok((write, execute)),
            Err(error) => {
                // SAFETY: mapped above with this length, and handed to nobody.
                unsafe { libc::munmap(write.as_ptr().cast(), len) };
                Err(error)
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        let at = self.free.iter().position(|&(_, len)| len >= bytes)?;
        let (offset, len) = self.free[at];
        if len == bytes {
            self.free.remove(at);
        } else {
            self.free[at] = (offset + bytes, len - bytes);
        }
        Some(offset)
    }

    fn give_back(&mut self, offset: usize, bytes: usize) {
        let at = self.free.partition_point(|&(other, _)| other < offset);
        self.free.insert(at, (offset, bytes));
        let joins = |a: (usize, usize), b: (usize, usize)| a.0 + a.1 == b.0;
        if at + 1 < self.free.len() && joins(self.free[at], self.free[at + 1]) {
            self.free[at].1 += self.free.remove(at + 1).1;
        }
        if at > 0 && joins(self.free[at - 1], self.free[at]) {
            self.free[at - 1].1 += self.free.remove(at).1;
        }
    }

    fn is_free(&self) -> bool {
        self.free == [(reserved(), self.len - reserved())]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: both were mapped with this length; a chunk is dropped when no code is in it.
        unsafe {
            libc::munmap(self.write.as_ptr().cast(), self.len);
            libc::munmap(self.execute.as_ptr().cast(), self.len);
        }
    }
}

impl CodeMemory {
    /// An empty pool.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Bytes mapped, and bytes of them in use, without what programs share.
    pub fn usage(&self) -> (usize, usize) {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = chunks.iter().flatten().map(|c| c.len).sum();
        let free: usize = chunks
            .iter()
            .flatten()
            .flat_map(|c| &c.free)
            .map(|f| f.1)
            .sum();
        let shared = chunks.iter().flatten().count() * reserved();
        (mapped, mapped - free - shared)
    }

    /// Puts code into the pool.
    ///
    /// # Errors
    /// What the system answers where it gives no (executable) memory.
    pub fn install(self: &Arc<Self>, code: &[u8]) -> io::Result<Code> {
        self.install_linked(code, &[])
    }

    /// The same for code that calls shared code, at those offsets.
    pub(crate) fn install_linked(self: &Arc<Self>, code: &[u8], links: &[u32]) -> io::Result<Code> {
        let bytes = code.len().max(1).next_multiple_of(ALIGN);
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = chunks
            .iter_mut()
            .enumerate()
            .find_map(|(index, chunk)| Some((index, chunk.as_mut()?.take(bytes)?)));
        let (index, offset) = match fit {
            Some(fit) => fit,
            None => {
                let mut chunk = Chunk::new((bytes + reserved()).next_multiple_of(CHUNK))?;
                let offset = chunk.take(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
                let index = chunks
                    .iter()
                    .position(Option::is_none)
                    .unwrap_or(chunks.len());
                if index == chunks.len() {
                    chunks.push(Some(chunk));
                } else {
                    chunks[index] = Some(chunk);
                }
                (index, offset)
            }
        };
        let chunk = chunks[index].as_ref().ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: `take` gave `bytes` bytes at `offset`, at least as many as the code has, to
        // this call alone, and they were initialized with the block.
        let start = unsafe {
            let to = chunk.write.add(offset);
            ptr::copy_nonoverlapping(code.as_ptr(), to.as_ptr(), code.len());
            if let Some(arch) = Arch::HOST {
                // The code is made as if it lay behind what is shared.
                let by = shared().len() as i64 - offset as i64;
                let code = std::slice::from_raw_parts_mut(to.as_ptr(), code.len());
                for &at in links {
                    backend::relink(arch, code, at, by);
                }
            }
            chunk.execute.add(offset)
        };
        make_visible(start, code.len());
        Ok(Code {
            memory: Arc::clone(self),
            chunk: index,
            offset,
            bytes,
            start,
            len: code.len(),
        })
    }
}

/// Makes processors fetch what was written.
#[cfg(target_arch = "aarch64")]
fn make_visible(start: NonNull<u8>, len: usize) {
    unsafe extern "C" {
        fn __clear_cache(start: *mut core::ffi::c_char, end: *mut core::ffi::c_char);
    }
    let start = start.as_ptr().cast::<core::ffi::c_char>();
    // SAFETY: the range is mapped.
    unsafe { __clear_cache(start, start.wrapping_add(len)) }
}

/// Processors of this architecture keep their instruction caches coherent.
#[cfg(not(target_arch = "aarch64"))]
fn make_visible(_start: NonNull<u8>, _len: usize) {}

/// Code in a pool; dropping it frees its space.
pub struct Code {
    memory: Arc<CodeMemory>,
    chunk: usize,
    offset: usize,
    bytes: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the code is only read and executed; freeing it takes the pool's lock.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Address of the first instruction.
    pub fn start(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Address of a place in the code or, at a negative offset, in the shared code, that is
    /// given as if that lay right before it.
    pub(crate) fn place(&self, offset: i32) -> usize {
        let from = match offset {
            0.. => self.start(),
            _ => self.start() - self.offset + shared().len(),
        };
        from.wrapping_add_signed(offset as isize)
    }

    /// The code.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable as long as the code is in the pool, and not written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let mut chunks = self
            .memory
            .chunks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let others = chunks.iter().flatten().count() > 1;
        let Some(slot) = chunks.get_mut(self.chunk) else {
            return;
        };
        let Some(chunk) = slot else { return };
        // SAFETY: these bytes belong to this code until it is given back below.
        unsafe { chunk.write.add(self.offset).write_bytes(FILLER, self.bytes) };
        chunk.give_back(self.offset, self.bytes);
        if chunk.is_free() && (others || chunk.len > CHUNK) {
            *slot = None;
        }
    }
}
