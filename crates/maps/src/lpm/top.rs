//! Where look-ups of four bytes of data begin: past the nodes with one way that all keys of the
//! trie share, in one word.

use std::sync::atomic::Ordering::*;

use super::LpmTrie;
use super::node::Ref;

/// The first node that says something, and the bytes before it.
///
/// The low half is a [`Ref`]; of the high half the lowest byte counts the bytes before the
/// node, up to 3, which lie in the bytes above, the first one highest.
#[derive(Clone, Copy)]
pub(super) struct Top(pub(super) u64);

impl Top {
    fn new(at: Ref, before: u32, depth: u32) -> Top {
        Top(u64::from(before | depth) << 32 | u64::from(at.0))
    }

    #[inline(always)]
    pub(super) fn at(self) -> Ref {
        Ref(self.0 as u32)
    }

    /// Bytes before the node.
    #[inline(always)]
    pub(super) fn depth(self) -> u32 {
        (self.0 >> 32) as u32 & 3
    }

    /// Whether a key, as a big-endian number, begins with the bytes before the node.
    #[inline(always)]
    pub(super) fn leads(self, key: u32) -> bool {
        let differ = (key ^ (self.0 >> 32) as u32) & 0xffff_ff00;
        u64::from(differ) >> (32 - 8 * self.depth()) == 0
    }
}

impl LpmTrie {
    /// Finds the top anew after a change. What left the trie may be reused only afterwards.
    pub(super) fn set_top(&self) {
        if self.memory.data_size != 4 {
            return;
        }
        let (mut at, mut before, mut depth) = (Ref(self.root.load(Relaxed)), 0, 0);
        let mut pass = |byte: u8| {
            if depth < 3 {
                before |= u32::from(byte) << (24 - 8 * depth);
                depth += 1;
            }
        };
        while at.element().is_none() && !at.is_none() {
            let node = self.memory.node(at.index());
            // Prefixes that end here, or after the bytes that the node skips: readers look.
            if node.has_ends() {
                break;
            }
            let (skipped, len) = node.skipped_bytes();
            for byte in &skipped[..len] {
                pass(*byte);
            }
            at = at.with_rich(false);
            let only = match node.count().load(Relaxed) {
                1 => node.next_child(at.kind(), 0),
                _ => None,
            };
            // The last byte is left to the readers.
            let Some((byte, child)) = only.filter(|_| node.depth() < 3) else {
                break;
            };
            pass(byte);
            at = child;
        }
        let top = Top::new(at, before, depth).0;
        if self.top.load(Relaxed) != top {
            self.top.store(top, Release);
        }
    }
}
