//! Bloom filters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::flags::{BPF_ANY, BPF_F_ZERO_SEED};
use crate::hash::hash_bytes;
use crate::mem::{Commit, Region};
use crate::ops::Ops;
use crate::{Errno, MapParams};

/// Hash functions where the map asks for none.
const DEFAULT_FUNCTIONS: u32 = 5;

/// `BPF_MAP_TYPE_BLOOM_FILTER`.
pub(crate) struct BloomMap {
    words: Region,
    mask: u32,
    functions: u32,
    seed: u64,
}

impl BloomMap {
    pub(crate) fn new(p: &MapParams) -> Result<BloomMap, Errno> {
        let functions = if p.extra == 0 {
            DEFAULT_FUNCTIONS
        } else {
            p.extra as u32
        };
        // The best number of bits is entries times functions / ln 2, about 7 / 5.
        let bits = p
            .max_entries
            .checked_mul(functions)
            .and_then(|n| (n / 5).checked_mul(7));
        let mask = match bits {
            Some(n) if n <= 1 << 31 => n.max(64).next_power_of_two() - 1,
            _ => u32::MAX,
        };
        let words = (mask as usize + 1) / 64;
        Ok(BloomMap {
            words: Region::array(words, 8, Commit::Whole)?,
            mask,
            functions,
            seed: match p.seed {
                _ if p.flags & BPF_F_ZERO_SEED != 0 => 0,
                Some(seed) => seed,
                None => crate::hash::random_seed(),
            },
        })
    }

    /// Word and bit of each hash function.
    fn bits(&self, value: &[u8]) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let first = hash_bytes(value, self.seed);
        let step = hash_bytes(value, !self.seed) | 1;
        (0..self.functions).map(move |i| {
            let bit = first.wrapping_add(step.wrapping_mul(i)) & self.mask;
            let word = self.words.at(bit as usize / 64 * 8);
            // SAFETY: the bit is at most the mask, for which the words were made.
            (
                unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) },
                1 << (bit % 64),
            )
        })
    }
}

impl Ops for BloomMap {
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.push(value, flags)
    }

    fn read(&self, _key: &[u8], _out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != BPF_ANY {
            return Err(Errno::EINVAL);
        }
        for (word, bit) in self.bits(value) {
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
        Ok(())
    }

    fn peek(&self, out: &mut [u8]) -> Result<(), Errno> {
        let there = self
            .bits(out)
            .all(|(word, bit)| word.load(Relaxed) & bit != 0);
        if there { Ok(()) } else { Err(Errno::ENOENT) }
    }
}
