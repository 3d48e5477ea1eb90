//! Values: how bytes go in and out, and what their special fields need.
//!
//! Programs read and write values through raw pointers while the host and other
//! workers copy them: as in the kernel, whoever wants a whole value takes its lock.
//! All copies go through [`store`] and [`load`], which move relaxed atomic words, so
//! a race tears a value but is no undefined behaviour on this side.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, OnceLock};

use crate::{Errno, Field, FieldKind, flags::BPF_F_LOCK};

/// Copies `src` to map memory.
///
/// # Safety
/// `dst` is valid for `src.len()` bytes, as map memory that no `&mut` covers.
#[inline]
pub(crate) unsafe fn store(dst: *mut u8, src: &[u8]) {
    let mut at = 0;
    if dst.addr().is_multiple_of(8) {
        for word in src.chunks_exact(8) {
            let word = u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]);
            // SAFETY: `at + 8 <= src.len()`, aligned by the test above.
            unsafe { AtomicU64::from_ptr(dst.add(at).cast()) }.store(word, Relaxed);
            at += 8;
        }
    }
    if dst.addr().is_multiple_of(4) && src.len() - at >= 4 {
        let word = u32::from_ne_bytes([src[at], src[at + 1], src[at + 2], src[at + 3]]);
        // SAFETY: four bytes are left, aligned by the test above.
        unsafe { AtomicU32::from_ptr(dst.add(at).cast()) }.store(word, Relaxed);
        at += 4;
    }
    for (i, byte) in src.iter().enumerate().skip(at) {
        // SAFETY: `i < src.len()`.
        unsafe { AtomicU8::from_ptr(dst.add(i)) }.store(*byte, Relaxed);
    }
}

/// Copies map memory to `dst`.
///
/// # Safety
/// `src` is valid for `dst.len()` bytes, as map memory that no `&mut` covers.
#[inline]
pub(crate) unsafe fn load(dst: &mut [u8], src: *const u8) {
    let src = src.cast_mut();
    let mut at = 0;
    if src.addr().is_multiple_of(8) {
        for word in dst.chunks_exact_mut(8) {
            // SAFETY: `at + 8 <= dst.len()`, aligned by the test above.
            let bytes = unsafe { AtomicU64::from_ptr(src.add(at).cast()) }.load(Relaxed);
            word.copy_from_slice(&bytes.to_ne_bytes());
            at += 8;
        }
    }
    for (i, byte) in dst.iter_mut().enumerate().skip(at) {
        // SAFETY: `i < dst.len()`.
        *byte = unsafe { AtomicU8::from_ptr(src.add(i)) }.load(Relaxed);
    }
}

/// Sets `len` bytes of map memory to zero.
///
/// # Safety
/// As for [`store`].
#[inline]
pub(crate) unsafe fn zero(dst: *mut u8, len: usize) {
    const ZERO: [u8; 64] = [0; 64];
    let mut at = 0;
    while at < len {
        let n = (len - at).min(ZERO.len());
        // SAFETY: `at + n <= len`.
        unsafe { store(dst.add(at), &ZERO[..n]) };
        at += n;
    }
}

/// Takes the `bpf_spin_lock` at `lock`: 0 is free, 1 is held.
///
/// # Safety
/// `lock` points to four aligned bytes of map memory.
pub unsafe fn spin_lock(lock: NonNull<u8>) {
    // SAFETY: by this function's contract.
    let word = unsafe { AtomicU32::from_ptr(lock.as_ptr().cast()) };
    let mut spins = 0u32;
    while word.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
        relax(&mut spins);
    }
}

/// Gives the `bpf_spin_lock` at `lock` back.
///
/// # Safety
/// As for [`spin_lock`].
pub unsafe fn spin_unlock(lock: NonNull<u8>) {
    // SAFETY: by this function's contract.
    unsafe { AtomicU32::from_ptr(lock.as_ptr().cast()) }.store(0, Release);
}

/// One turn of a waiting loop: spins first, then lets other threads run.
pub(crate) fn relax(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Told when a value that has special fields goes away or is overwritten, so that
/// timers get cancelled and kernel pointers dropped.
pub trait FieldHooks: Send + Sync {
    /// The field `field` at address `at` is given up. The hook takes its contents
    /// (atomically, programs may still see the value); the map zeroes it afterwards.
    fn release(&self, map_id: u32, field: Field, at: NonNull<u8>);
}

/// What elements own besides their bytes.
enum Owned {
    /// Nothing, or special fields that [`FieldHooks`] releases.
    Fields,
    /// A reference to an inner map, in the first eight bytes.
    InnerMap,
}

/// Size and special fields of a map's value.
pub(crate) struct ValueLayout {
    size: usize,
    /// Byte ranges between the special fields.
    plain: Box<[(usize, usize)]>,
    fields: Box<[Field]>,
    lock: Option<usize>,
    owned: Owned,
    map_id: u32,
    hooks: OnceLock<Arc<dyn FieldHooks>>,
}

impl ValueLayout {
    /// A value of `size` bytes with these fields.
    ///
    /// # Errors
    /// `EINVAL` where fields overlap, are misaligned or lie outside.
    pub(crate) fn new(map_id: u32, size: u32, fields: &[Field]) -> Result<ValueLayout, Errno> {
        let mut fields: Box<[Field]> = fields.into();
        fields.sort_by_key(|f| f.offset);
        let (mut plain, mut at) = (Vec::new(), 0usize);
        for f in &fields {
            let (start, len) = (f.offset as usize, f.size() as usize);
            let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
            if start < at || end > size as usize || start % len.min(8) != 0 {
                return Err(Errno::EINVAL);
            }
            if start > at {
                plain.push((at, start));
            }
            at = end;
        }
        if at < size as usize {
            plain.push((at, size as usize));
        }
        let lock = fields.iter().find(|f| f.kind == FieldKind::SpinLock);
        Ok(ValueLayout {
            size: size as usize,
            plain: plain.into(),
            lock: lock.map(|f| f.offset as usize),
            fields,
            owned: Owned::Fields,
            map_id,
            hooks: OnceLock::new(),
        })
    }

    /// The value of a map of maps: a reference to a map.
    pub(crate) fn inner_map(map_id: u32) -> ValueLayout {
        ValueLayout {
            size: 8,
            plain: [(0, 8)].into(),
            fields: [].into(),
            lock: None,
            owned: Owned::InnerMap,
            map_id,
            hooks: OnceLock::new(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub(crate) fn set_hooks(&self, hooks: Arc<dyn FieldHooks>) -> Result<(), Errno> {
        self.hooks.set(hooks).map_err(|_| Errno::EBUSY)
    }

    /// Whether an element that goes away leaves work behind.
    pub(crate) fn owns(&self) -> bool {
        !self.fields.is_empty() || matches!(self.owned, Owned::InnerMap)
    }

    /// Tests that flags ask for the lock only where there is one.
    pub(crate) fn check_lock(&self, flags: u64) -> Result<(), Errno> {
        if flags & BPF_F_LOCK != 0 && self.lock.is_none() {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        }
    }

    /// Copies a value in, leaving special fields alone. Missing bytes stay.
    ///
    /// # Safety
    /// `dst` is valid for a whole value of map memory.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, dst: NonNull<u8>, src: &[u8]) {
        for &(start, end) in &self.plain {
            if let Some(part) = src.get(start..end) {
                // SAFETY: `end <= size`.
                unsafe { store(dst.as_ptr().add(start), part) };
            }
        }
    }

    /// Copies a value out; special fields read as zero.
    ///
    /// # Safety
    /// `src` is valid for a whole value of map memory.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, dst: &mut [u8], src: NonNull<u8>) {
        for &(start, end) in &self.plain {
            if let Some(part) = dst.get_mut(start..end) {
                // SAFETY: `end <= size`.
                unsafe { load(part, src.as_ptr().add(start)) };
            }
        }
        for f in &self.fields {
            let start = f.offset as usize;
            if let Some(part) = dst.get_mut(start..start + f.size() as usize) {
                part.fill(0);
            }
        }
    }

    /// As [`ValueLayout::copy_in`], under the value's lock if `flags` ask for it.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn write(&self, dst: NonNull<u8>, src: &[u8], flags: u64) {
        // SAFETY: `dst` is a whole value, and the lock's offset lies inside it.
        unsafe { self.locked(dst, flags, || self.copy_in(dst, src)) }
    }

    /// As [`ValueLayout::copy_out`], under the value's lock if `flags` ask for it.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn read(&self, dst: &mut [u8], src: NonNull<u8>, flags: u64) {
        // SAFETY: as in `write`.
        unsafe { self.locked(src, flags, || self.copy_out(dst, src)) }
    }

    unsafe fn locked(&self, value: NonNull<u8>, flags: u64, work: impl FnOnce()) {
        match self.lock {
            Some(offset) if flags & BPF_F_LOCK != 0 => {
                // SAFETY: `new` tested that the lock lies inside the value, aligned.
                let lock = unsafe { value.add(offset) };
                // SAFETY: as above.
                unsafe { spin_lock(lock) };
                work();
                // SAFETY: as above.
                unsafe { spin_unlock(lock) };
            }
            _ => work(),
        }
    }

    /// Gives up what the value at `at` owns and zeroes those bytes.
    ///
    /// # Safety
    /// `at` is valid for a whole value of map memory.
    pub(crate) unsafe fn release(&self, at: NonNull<u8>) {
        if let Owned::InnerMap = self.owned {
            // SAFETY: the first eight bytes of such a value are a map reference.
            unsafe { crate::map_in_map::release(at) };
        }
        for &field in &self.fields {
            // SAFETY: `new` tested that the field lies inside the value.
            let start = unsafe { at.add(field.offset as usize) };
            if matches!(field.kind, FieldKind::SpinLock | FieldKind::ResSpinLock) {
                continue;
            }
            if let Some(hooks) = self.hooks.get() {
                hooks.release(self.map_id, field, start);
            }
            // SAFETY: as above.
            unsafe { zero(start.as_ptr(), field.size() as usize) };
        }
        fence(Release);
    }
}
