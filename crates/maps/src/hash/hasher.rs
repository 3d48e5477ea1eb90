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
    /// Up to four bytes.
    Word,
    /// Up to eight bytes.
    Long,
    /// Up to sixteen bytes.
    Pair,
    /// More.
    Bytes,
}

impl KeyKind {
    pub(crate) fn of(size: usize) -> KeyKind {
        match size {
            0..=4 => KeyKind::Word,
            5..=8 => KeyKind::Long,
            9..=16 => KeyKind::Pair,
            _ => KeyKind::Bytes,
        }
    }
}

/// Up to eight bytes as a word, padded with zeros as elements store them.
#[inline(always)]
fn padded(bytes: &[u8]) -> u64 {
    if let Ok(bytes) = bytes.try_into() {
        return u64::from_ne_bytes(bytes);
    }
    let mut word = 0;
    for (i, byte) in bytes.iter().take(8).enumerate() {
        word |= u64::from(*byte) << (8 * i);
    }
    u64::from_ne_bytes(word.to_le_bytes())
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
fn mixed(x: u64) -> u32 {
    (x >> 32) as u32 ^ x as u32
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
        mixed(fold(u64::from(self.0) ^ seed, K0))
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
        mixed(fold(self.0 ^ seed, K0))
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
        mixed(fold(fold(self.0 ^ seed, K0) ^ self.1, K1))
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

impl WordKey {
    #[inline(always)]
    pub(crate) fn load(key: &[u8]) -> WordKey {
        match key.try_into() {
            Ok(bytes) => WordKey(u32::from_ne_bytes(bytes)),
            Err(_) => WordKey(u32::from_ne_bytes(first_half(padded(key)))),
        }
    }
}

fn first_half(word: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    [a, b, c, d]
}

impl LongKey {
    #[inline(always)]
    pub(crate) fn load(key: &[u8]) -> LongKey {
        LongKey(padded(key))
    }
}

impl PairKey {
    #[inline(always)]
    pub(crate) fn load(key: &[u8]) -> PairKey {
        let (first, second) = key.split_at(key.len().min(8));
        PairKey(padded(first), padded(second))
    }
}

impl Key for BytesKey<'_> {
    #[inline]
    fn hash(self, seed: u64) -> u32 {
        let chunks = self.0.chunks_exact(8);
        let mut state = fold(seed ^ padded(chunks.remainder()), K0);
        for chunk in chunks {
            state = fold(state ^ padded(chunk), K1);
        }
        mixed(fold(state, K0))
    }

    #[inline]
    unsafe fn matches(self, at: *mut u8) -> bool {
        let mut at = at.cast::<u64>();
        for chunk in self.0.chunks(8) {
            // SAFETY: one step a word of the rounded key size, by the contract. Keys
            // are stored with their last word padded with zeros.
            if unsafe { AtomicU64::from_ptr(at) }.load(Relaxed) != padded(chunk) {
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
