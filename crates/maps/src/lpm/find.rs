//! Looking prefixes up, without a lock.

use std::sync::atomic::{AtomicU32, Ordering::*};

use super::node::{Inner, Kind, Ref};
use super::top::Top;
use super::{LpmTrie, Prefix};
use crate::value::load;

/// Bits that `a` and `b` have in common, at most `limit`.
pub(super) fn common(a: &[u8], b: &[u8], limit: usize) -> usize {
    let mut bits = 0;
    for (x, y) in a.iter().zip(b) {
        let differ = x ^ y;
        if differ != 0 || bits >= limit {
            bits += differ.leading_zeros() as usize;
            break;
        }
        bits += 8;
    }
    bits.min(limit)
}

impl LpmTrie {
    #[inline]
    pub(super) fn find(&self, data: &[u8]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.has_popcnt {
            // SAFETY: tested when the map was made.
            return unsafe { self.find_popcnt(data) };
        }
        self.find_any(data)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,lzcnt")]
    fn find_popcnt(&self, data: &[u8]) -> u32 {
        self.find_any(data)
    }

    /// As [`LpmTrie::find`], for data of four bytes, as a big-endian number.
    ///
    /// # Safety
    /// The processor has these instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,lzcnt")]
    pub(super) unsafe fn find_four_popcnt(&self, key: u32) -> u32 {
        self.find_four(key)
    }

    /// Begins at the top, and takes the bytes from a register.
    #[inline(always)]
    fn find_four(&self, key: u32) -> u32 {
        let top = Top(self.top.load(Acquire));
        if !top.leads(key) {
            return self.walk::<4>(&key.to_be_bytes(), Ref(self.root.load(Acquire)), 0);
        }
        let (mut at, mut depth) = (top.at(), top.depth());
        while at.is_plain_dense() && depth < 4 {
            let byte = (key >> (24 - 8 * depth)) as u8;
            at = self.memory.node(at.index()).dense_child(byte);
            depth += 1;
        }
        if depth == 4 && at.kind() == Kind::Element {
            return at.index();
        }
        self.walk::<4>(&key.to_be_bytes(), at, depth as usize)
    }

    #[inline(always)]
    fn find_any(&self, data: &[u8]) -> u32 {
        if let Ok(four) = data.try_into() {
            return self.find_four(u32::from_be_bytes(four));
        }
        let root = Ref(self.root.load(Acquire));
        match data.len() {
            8 => self.walk::<8>(data, root, 0),
            16 => self.walk::<16>(data, root, 0),
            _ => self.walk::<0>(data, root, 0),
        }
    }

    /// The element with the longest prefix of whole keys; 0 if none. `SIZE` is the
    /// data size, 0 for any. Begins at `at`, with `depth` bytes behind it.
    #[inline(always)]
    fn walk<const SIZE: usize>(&self, data: &[u8], mut at: Ref, mut depth: usize) -> u32 {
        let mut best = 0;
        loop {
            // Large nodes that say no more than their children: most steps in full tries.
            while at.is_plain_dense() {
                let Some(byte) = data.get(depth) else {
                    return best;
                };
                at = self.memory.node(at.index()).dense_child(*byte);
                depth += 1;
            }
            let kind = at.kind();
            if kind == Kind::Element {
                let element = at.index();
                // Where no byte is left, all were compared on the way: the element need
                // not be touched.
                let found = if depth == data.len() {
                    element != 0
                } else {
                    self.holds::<SIZE>(element, data)
                };
                return if found { element } else { best };
            }
            let node = self.memory.node(at.index());
            if kind == Kind::Bitmap {
                node.prefetch();
            }
            if at.is_rich() {
                let (at_depth, skip) = node.depth_and_skip();
                // Depths grow on the way down; the test ends a walk over lines that
                // were reused under a thread that is not pinned.
                if at_depth < depth || at_depth >= data.len() || skip > at_depth {
                    return best;
                }
                depth = at_depth;
                let mut skipped = node.skipped();
                for byte in &data[depth - skip..depth] {
                    if skipped as u8 != *byte {
                        return best;
                    }
                    skipped >>= 8;
                }
                let own = node.own().load(Acquire);
                if own != 0 {
                    best = own;
                }
                let inner = node.inner().load(Acquire);
                if inner != 0 {
                    let found = Inner(self.memory.node(inner)).find(data[depth]);
                    if found != 0 {
                        best = found;
                    }
                }
            }
            let Some(byte) = data.get(depth) else {
                return best;
            };
            depth += 1;
            at = node.child(kind, *byte);
        }
    }

    /// Whether a whole key lies in an element's prefix.
    #[inline(always)]
    fn holds<const SIZE: usize>(&self, element: u32, data: &[u8]) -> bool {
        let length = self.memory.length(element).load(Relaxed);
        let at = self.memory.data(element).cast::<u32>();
        if SIZE == 4 || SIZE == 8 || SIZE == 16 {
            let mut same = 0;
            for (i, word) in data.chunks_exact(4).take(SIZE / 4).enumerate() {
                let key = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                // SAFETY: `SIZE` is the data size, and data starts at a multiple of 4.
                let stored = unsafe { AtomicU32::from_ptr(at.add(i)) }
                    .load(Relaxed)
                    .to_be();
                let zeros = (key ^ stored).leading_zeros();
                same += zeros;
                if zeros < 32 {
                    break;
                }
            }
            return same >= length;
        }
        length <= self.max_length()
            && self.common_with(element, data, length as usize) >= length as usize
    }

    /// Bits that `data` and an element have in common, at most `limit`.
    pub(super) fn common_with(&self, element: u32, data: &[u8], limit: usize) -> usize {
        let mut stored = [0; crate::check::LPM_DATA_MAX as usize];
        let len = data
            .len()
            .min(self.memory.data_size)
            .min(limit.div_ceil(8))
            .min(stored.len());
        // SAFETY: an element has `data_size` bytes of data.
        unsafe { load(&mut stored[..len], self.memory.data(element)) };
        common(&data[..len], &stored[..len], limit)
    }

    /// As [`LpmTrie::find`], for prefixes no longer than the one asked for.
    pub(super) fn find_short(&self, prefix: Prefix<'_>) -> u32 {
        let mut at = Ref(self.root.load(Acquire));
        let (mut depth, mut best, limit) = (0, 0, prefix.length as usize);
        let matches = |element: u32| {
            let length = self.memory.length(element).load(Relaxed) as usize;
            length <= limit && self.common_with(element, prefix.data, length) >= length
        };
        loop {
            let kind = at.kind();
            if kind == Kind::Element {
                return if !at.is_none() && matches(at.index()) {
                    at.index()
                } else {
                    best
                };
            }
            let node = self.memory.node(at.index());
            let (at_depth, skip) = node.depth_and_skip();
            if at_depth < depth || at_depth * 8 > limit || skip > at_depth {
                return best;
            }
            depth = at_depth;
            let skipped = node.skipped().to_le_bytes();
            if prefix.data[depth - skip..depth] != skipped[..skip] {
                return best;
            }
            let own = node.own().load(Acquire);
            if own != 0 {
                best = own;
            }
            let inner = node.inner().load(Acquire);
            if inner != 0 {
                let longest = Inner(self.memory.node(inner))
                    .elements()
                    .filter(|e| matches(*e))
                    .max_by_key(|e| self.memory.length(*e).load(Relaxed));
                best = longest.unwrap_or(best);
            }
            if (depth + 1) * 8 > limit {
                return best;
            }
            at = node.child(kind, prefix.data[depth]);
            depth += 1;
        }
    }

    /// Where writers go: the element that has exactly this prefix.
    pub(super) fn find_exact(&self, prefix: Prefix<'_>) -> Option<u32> {
        let element = if prefix.length == self.max_length() {
            self.find(prefix.data)
        } else {
            self.find_short(prefix)
        };
        let same = self.memory.length(element).load(Relaxed) == prefix.length;
        (element != 0 && same).then_some(element)
    }
}
