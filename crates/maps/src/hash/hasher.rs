//! Seeded hashing and comparing of keys, by key size.
//!
//! The hash is one folded 64×64-bit multiplication for keys up to eight bytes, two for keys
//! up to sixteen, and else one for each sixteen bytes, side by side, and one more; a seed per
//! map makes collisions unpredictable.
//!
//! Keys are read in halves of words: programs have often just written them with stores of
//! four bytes, and a load that spans two stores waits until both have left the processor's
//! store buffer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// Eight bytes as a word, from two loads.
#[inline(always)]
fn whole(bytes: &[u8; 8]) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (
        [bytes[0], bytes[1], bytes[2], bytes[3]],
        [bytes[4], bytes[5], bytes[6], bytes[7]],
    );
    let (first, second) = (
        u32::from_ne_bytes([a, b, c, d]),
        apart(u32::from_ne_bytes([e, f, g, h])),
    );
    if cfg!(target_endian = "little") {
        u64::from(second) << 32 | u64::from(first)
    } else {
        u64::from(first) << 32 | u64::from(second)
    }
}

/// The same number, of which the compiler does not know where it came from: it would make one
/// load of two.
#[inline(always)]
fn apart(x: u32) -> u32 {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let mut x = u64::from(x);
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) x, options(pure, nomem, nostack, preserves_flags));
        }
        x as u32
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    x
}

/// Up to eight bytes as a word, padded with zeros as elements store them.
#[inline(always)]
fn padded(bytes: &[u8]) -> u64 {
    if let Ok(bytes) = bytes.try_into() {
        return whole(bytes);
    }
    let mut word = 0;
    let mut rest = bytes;
    if let Some((first, others)) = bytes.split_first_chunk() {
        (word, rest) = (u64::from(u32::from_le_bytes(*first)), others);
    }
    let start = bytes.len() - rest.len();
    for (i, byte) in rest.iter().take(8 - start).enumerate() {
        word |= u64::from(*byte) << (8 * (start + i));
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
/// Words, the last one padded.
#[derive(Clone, Copy)]
pub(crate) struct WordsKey<const N: usize>(pub(crate) [u64; N]);
#[derive(Clone, Copy)]
pub(crate) struct BytesKey<'a>(pub(crate) &'a [u8]);

/// What two words of a long key, numbers 2 `i` and 2 `i` + 1, add to its hash: each goes
/// through a secret of its own, so no word that a program chooses makes the product zero.
#[inline(always)]
fn lane(seed: u64, i: u64, first: u64, second: u64) -> u64 {
    let odd = 2 * i + 1;
    fold(
        first ^ seed.wrapping_add(K0.wrapping_mul(odd)),
        second ^ seed.rotate_left(32).wrapping_add(K1.wrapping_mul(odd)),
    )
}

/// The hash of a long key from the sum of its lanes.
#[inline(always)]
fn finish(seed: u64, sum: u64) -> u32 {
    mixed(fold(sum ^ seed, K0))
}

impl Key for WordKey {
    #[inline(always)]
    fn hash(self, seed: u64) -> u32 {
        mixed(fold(u64::from(self.0) ^ seed, K0))
    }

    #[inline(always)]
    unsafe fn matches(self, at: *mut u8) -> bool {
        let stored = padded(&self.0.to_ne_bytes());
        // SAFETY: by the contract eight aligned bytes.
        unsafe { AtomicU64::from_ptr(at.cast()) }.load(Relaxed) == stored
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

impl<const N: usize> Key for WordsKey<N> {
    #[inline(always)]
    fn hash(self, seed: u64) -> u32 {
        let (pairs, rest) = self.0.as_chunks::<2>();
        let mut sum = 0u64;
        for (i, [first, second]) in pairs.iter().enumerate() {
            sum = sum.wrapping_add(lane(seed, i as u64, *first, *second));
        }
        if let [last] = rest {
            sum = sum.wrapping_add(lane(seed, pairs.len() as u64, *last, 0));
        }
        finish(seed, sum)
    }

    #[inline(always)]
    unsafe fn matches(self, at: *mut u8) -> bool {
        let at = at.cast::<u64>();
        let mut differ = 0;
        for (i, word) in self.0.iter().enumerate() {
            // SAFETY: by the contract `N` aligned words.
            differ |= unsafe { AtomicU64::from_ptr(at.add(i)) }.load(Relaxed) ^ word;
        }
        differ == 0
    }
}

impl<const N: usize> WordsKey<N> {
    /// Of a key of at most 8 `N` bytes.
    #[inline(always)]
    pub(crate) fn load(key: &[u8]) -> WordsKey<N> {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(key.chunks(8)) {
            *word = padded(bytes);
        }
        WordsKey(words)
    }
}

impl Key for BytesKey<'_> {
    #[inline]
    fn hash(self, seed: u64) -> u32 {
        let mut sum = 0u64;
        for (i, pair) in self.0.chunks(16).enumerate() {
            let (first, second) = pair.split_at(pair.len().min(8));
            let lane = lane(seed, i as u64, padded(first), padded(second));
            sum = sum.wrapping_add(lane);
        }
        finish(seed, sum)
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
