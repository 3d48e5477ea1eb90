//! Seeded hashing and comparing of keys, by key size.
//!
//! The hash is one folded 64×64-bit multiplication for keys up to eight bytes and one
//! more for each further eight; a seed per map makes collisions unpredictable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

/// How the keys of a map are read, chosen once from the key size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyKind {
    /// Four bytes.
    Word,
    /// Eight bytes.
    Long,
    /// Sixteen bytes.
    Pair,
    /// Any other size.
    Bytes,
}

impl KeyKind {
    pub(crate) fn of(size: usize) -> KeyKind {
        match size {
            4 => KeyKind::Word,
            8 => KeyKind::Long,
            16 => KeyKind::Pair,
            _ => KeyKind::Bytes,
        }
    }
}

/// A key held in registers where it is short.
pub(crate) trait Key: Copy {
    /// 32 well-mixed bits.
    fn hash(self, seed: u64) -> u32;
    /// Whether the element that starts at `at` holds this key.
    ///
    /// # Safety
    /// `at` is eight-byte aligned map memory of the key size rounded up to 8.
    unsafe fn matches(self, at: *mut u8) -> bool;
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}

#[inline(always)]
fn top(x: u64) -> u32 {
    (x >> 32) as u32
}

#[derive(Clone, Copy)]
pub(crate) struct WordKey(pub(crate) u32);
#[derive(Clone, Copy)]
pub(crate) struct LongKey(pub(crate) u64);
#[derive(Clone, Copy)]
pub(crate) struct PairKey(pub(crate) u64, pub(crate) u64);
#[derive(Clone, Copy)]
pub(crate) struct BytesKey<'a>(pub(crate) &'a [u8]);

impl Key for WordKey {
    #[inline(always)]
    fn hash(self, seed: u64) -> u32 {
        top(fold(u64::from(self.0) ^ seed, K0))
    }

    #[inline(always)]
    unsafe fn matches(self, at: *mut u8) -> bool {
        // SAFETY: by the contract four aligned bytes.
        unsafe { AtomicU32::from_ptr(at.cast()) }.load(Relaxed) == self.0
    }
}

impl Key for LongKey {
    #[inline(always)]
    fn hash(self, seed: u64) -> u32 {
        top(fold(self.0 ^ seed, K0))
    }

    #[inline(always)]
    unsafe fn matches(self, at: *mut u8) -> bool {
        // SAFETY: by the contract eight aligned bytes.
        unsafe { AtomicU64::from_ptr(at.cast()) }.load(Relaxed) == self.0
    }
}

impl Key for PairKey {
    #[inline(always)]
    fn hash(self, seed: u64) -> u32 {
        top(fold(fold(self.0 ^ seed, K0) ^ self.1, K1))
    }

    #[inline(always)]
    unsafe fn matches(self, at: *mut u8) -> bool {
        // SAFETY: by the contract sixteen aligned bytes.
        let (a, b) = unsafe {
            (
                AtomicU64::from_ptr(at.cast()),
                AtomicU64::from_ptr(at.add(8).cast()),
            )
        };
        a.load(Relaxed) == self.0 && b.load(Relaxed) == self.1
    }
}

#[inline(always)]
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let tail = (!rest.is_empty()).then_some(u64::from_ne_bytes(last));
    chunks
        .map(|c| u64::from_ne_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
        .chain(tail)
}

impl Key for BytesKey<'_> {
    #[inline]
    fn hash(self, seed: u64) -> u32 {
        let state = words(self.0).fold(seed, |state, word| fold(state ^ word, K0));
        top(fold(state, K1))
    }

    #[inline]
    unsafe fn matches(self, at: *mut u8) -> bool {
        let mut at = at.cast::<u64>();
        for word in words(self.0) {
            // SAFETY: one step a word of the rounded key size, by the contract. Keys
            // are stored with their last word padded with zeros.
            if unsafe { AtomicU64::from_ptr(at) }.load(Relaxed) != word {
                return false;
            }
            // SAFETY: as above, at most one past the key.
            at = unsafe { at.add(1) };
        }
        true
    }
}

/// A seed that differs from map to map.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}
