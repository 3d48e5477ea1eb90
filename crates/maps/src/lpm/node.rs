//! Nodes of the trie, one byte of the key each, in three shapes.
//!
//! Every node starts with a line of 64 bytes:
//!
//! | offset | what |
//! | --- | --- |
//! | 0 | element whose prefix ends exactly at the node, 0 if none |
//! | 4 | line of the node's inner prefixes (those that end inside its byte), 0 if none |
//! | 8 | depth: index of the node's byte in the key (16 bits); skipped bytes (8 bits) |
//! | 12 | number of children |
//! | 16 | the key bytes between the parent's byte and this one's, at most eight |
//! | 24 | by shape |
//!
//! | shape | children | at 24 | after the line |
//! | --- | --- | --- | --- |
//! | small | 1–8 | eight key bytes, then eight references | – |
//! | bitmap | 9–32 | 256 bits, then for each 64 of them how many come before | references |
//! | dense | 33–256 | – | 256 references |
//!
//! Readers see children appear by one store: small nodes append, dense ones fill a
//! slot, and anything else is done on a copy that replaces the node.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Size of a line in bytes.
pub(super) const LINE: usize = 64;
/// No node, and no block of inner prefixes, is longer than this, and no offset that a
/// reader can compute from a line's bytes lies further.
pub(super) const SPAN_MAX: usize = 40 * LINE;
/// Most children of each shape.
pub(super) const SMALL_MAX: usize = 8;
pub(super) const BITMAP_MAX: usize = 32;
/// Most key bytes that a node skips.
pub(super) const SKIP_MAX: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;
const LOWS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// What a slot holds: nothing, an element, or a node of some shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ref(pub(super) u32);

/// What a [`Ref`] refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Element = 0,
    Small = 1,
    Bitmap = 2,
    Dense = 3,
}

impl Ref {
    pub(super) const NONE: Ref = Ref(0);
    /// The node skips bytes, or prefixes end in it: readers must look at its line.
    pub(super) const RICH: u32 = 4;

    pub(super) fn new(kind: Kind, index: u32) -> Ref {
        Ref(index << 3 | kind as u32)
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Element,
            1 => Kind::Small,
            2 => Kind::Bitmap,
            _ => Kind::Dense,
        }
    }

    #[inline(always)]
    pub(super) fn index(self) -> u32 {
        self.0 >> 3
    }

    #[inline(always)]
    pub(super) fn is_rich(self) -> bool {
        self.0 & Ref::RICH != 0
    }

    /// A dense node whose line need not be looked at.
    #[inline(always)]
    pub(super) fn is_plain_dense(self) -> bool {
        self.0 & (Ref::RICH | 3) == Kind::Dense as u32
    }

    pub(super) fn is_none(self) -> bool {
        self == Ref::NONE
    }

    /// The element, if it is one.
    pub(super) fn element(self) -> Option<u32> {
        (self.kind() == Kind::Element && !self.is_none()).then(|| self.index())
    }

    pub(super) fn with_rich(self, rich: bool) -> Ref {
        Ref(self.0 & !Ref::RICH | if rich { Ref::RICH } else { 0 })
    }
}

/// A node, or a block of inner prefixes: at least `SPAN_MAX` bytes of atomics.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    at: NonNull<u8>,
    memory: PhantomData<&'a AtomicU64>,
}

impl<'a> Node<'a> {
    /// # Safety
    /// `at` is a line's address, with `SPAN_MAX` bytes of memory that outlives `'a` and
    /// is only accessed through atomics.
    #[inline(always)]
    pub(super) unsafe fn at(at: NonNull<u8>) -> Node<'a> {
        Node {
            at,
            memory: PhantomData,
        }
    }

    #[inline(always)]
    fn w32(self, offset: usize) -> &'a AtomicU32 {
        debug_assert!(offset + 4 <= SPAN_MAX && offset.is_multiple_of(4));
        // SAFETY: by the contract of `at`; offsets are multiples of 4 below `SPAN_MAX`.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    #[inline(always)]
    fn w64(self, offset: usize) -> &'a AtomicU64 {
        debug_assert!(offset + 8 <= SPAN_MAX && offset.is_multiple_of(8));
        // SAFETY: by the contract of `at`; offsets are multiples of 8 below `SPAN_MAX`.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Begins to load the lines of a bitmap's references while its bits are looked at.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which any address admits.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.at.as_ptr().add(LINE).cast());
        }
    }

    /// Element whose prefix ends at the node.
    #[inline(always)]
    pub(super) fn own(self) -> &'a AtomicU32 {
        self.w32(0)
    }

    /// Line of the inner prefixes.
    #[inline(always)]
    pub(super) fn inner(self) -> &'a AtomicU32 {
        self.w32(4)
    }

    /// Depth and number of skipped bytes.
    #[inline(always)]
    pub(super) fn depth_and_skip(self) -> (usize, usize) {
        let word = self.w32(8).load(Relaxed);
        (
            (word & 0xffff) as usize,
            ((word >> 16 & 0xff) as usize).min(SKIP_MAX),
        )
    }

    pub(super) fn depth(self) -> usize {
        self.depth_and_skip().0
    }

    #[inline(always)]
    pub(super) fn count(self) -> &'a AtomicU32 {
        self.w32(12)
    }

    /// The skipped bytes, the first in the lowest byte.
    #[inline(always)]
    pub(super) fn skipped(self) -> u64 {
        self.w64(16).load(Relaxed)
    }

    pub(super) fn skipped_bytes(self) -> ([u8; SKIP_MAX], usize) {
        (self.skipped().to_le_bytes(), self.depth_and_skip().1)
    }

    /// Makes a line the start of a node without children.
    pub(super) fn init(self, depth: usize, skipped: &[u8], own: u32, inner: u32) {
        let mut bytes = [0; SKIP_MAX];
        bytes.iter_mut().zip(skipped).for_each(|(b, s)| *b = *s);
        let len = skipped.len().min(SKIP_MAX);
        self.own().store(own, Relaxed);
        self.inner().store(inner, Relaxed);
        self.w32(8)
            .store(depth as u32 & 0xffff | (len as u32) << 16, Relaxed);
        self.count().store(0, Relaxed);
        self.w64(16).store(u64::from_le_bytes(bytes), Relaxed);
        for offset in (24..LINE).step_by(8) {
            self.w64(offset).store(0, Relaxed);
        }
    }

    /// Whether the node's line says more than its children.
    pub(super) fn is_rich(self) -> bool {
        self.has_ends() || self.depth_and_skip().1 != 0
    }

    /// Whether prefixes end at the node or inside its byte.
    pub(super) fn has_ends(self) -> bool {
        self.own().load(Relaxed) | self.inner().load(Relaxed) != 0
    }

    /// The slot of child `byte`, if there is one: a reference to load, or to store to.
    #[inline(always)]
    pub(super) fn slot(self, kind: Kind, byte: u8) -> Option<&'a AtomicU32> {
        match kind {
            Kind::Dense => Some(self.dense_slot(byte)),
            Kind::Bitmap => self.bitmap_slot(byte),
            Kind::Small => self.small_slot(byte),
            Kind::Element => None,
        }
    }

    #[inline(always)]
    pub(super) fn child(self, kind: Kind, byte: u8) -> Ref {
        match self.slot(kind, byte) {
            Some(slot) => Ref(slot.load(Acquire)),
            None => Ref::NONE,
        }
    }

    /// Child `byte` of a dense node.
    #[inline(always)]
    pub(super) fn dense_child(self, byte: u8) -> Ref {
        Ref(self.dense_slot(byte).load(Acquire))
    }

    #[inline(always)]
    fn dense_slot(self, byte: u8) -> &'a AtomicU32 {
        self.w32(LINE + usize::from(byte) * 4)
    }

    #[inline(always)]
    fn small_slot(self, byte: u8) -> Option<&'a AtomicU32> {
        let count = self.count().load(Acquire).min(SMALL_MAX as u32);
        let x = self.w64(24).load(Relaxed) ^ ONES.wrapping_mul(u64::from(byte));
        let same = !(((x & LOWS) + LOWS) | x | LOWS);
        let at = same.trailing_zeros() / 8;
        (at < count).then(|| self.w32(32 + at as usize * 4))
    }

    #[inline(always)]
    fn bitmap_slot(self, byte: u8) -> Option<&'a AtomicU32> {
        let (word, bit) = (usize::from(byte >> 6), 1u64 << (byte & 63));
        let bits = self.w64(24 + word * 8).load(Relaxed);
        if bits & bit == 0 {
            return None;
        }
        let before = self.w32(56).load(Relaxed) >> (8 * word) & 0xff;
        let at = before + (bits & (bit - 1)).count_ones();
        Some(self.w32(LINE + at as usize * 4))
    }

    /// Appends a child to a small node that has room; readers see it at once.
    pub(super) fn append(self, byte: u8, child: Ref) {
        let count = self.count().load(Relaxed);
        let keys = self.w64(24).load(Relaxed) | u64::from(byte) << (8 * count);
        self.w32(32 + count as usize * 4).store(child.0, Relaxed);
        self.w64(24).store(keys, Relaxed);
        self.count().store(count + 1, Release);
    }

    /// Fills the children of a node that readers do not see yet.
    pub(super) fn set_children(self, kind: Kind, children: &[(u8, Ref)]) {
        match kind {
            Kind::Element => {}
            Kind::Small => {
                for (byte, child) in children {
                    self.append(*byte, *child);
                }
            }
            Kind::Bitmap => {
                let mut bits = [0u64; 4];
                for (at, (byte, child)) in children.iter().enumerate() {
                    bits[usize::from(byte >> 6)] |= 1 << (byte & 63);
                    self.w32(LINE + at * 4).store(child.0, Relaxed);
                }
                self.set_bits(24, bits);
            }
            Kind::Dense => {
                for byte in 0..=255 {
                    self.dense_slot(byte).store(0, Relaxed);
                }
                for (byte, child) in children {
                    self.dense_slot(*byte).store(child.0, Relaxed);
                }
            }
        }
        self.count().store(children.len() as u32, Relaxed);
    }

    /// Stores 256 bits and how many come before each 64 of them.
    fn set_bits(self, offset: usize, bits: [u64; 4]) {
        let (mut before, mut total) = (0u32, 0u32);
        for (i, word) in bits.iter().enumerate() {
            self.w64(offset + i * 8).store(*word, Relaxed);
            before |= total << (8 * i);
            total += word.count_ones();
        }
        self.w32(offset + 32).store(before, Relaxed);
    }

    /// The first child whose byte is at least `from`.
    pub(super) fn next_child(self, kind: Kind, from: u16) -> Option<(u8, Ref)> {
        if kind == Kind::Small {
            let keys = self.w64(24).load(Relaxed).to_le_bytes();
            let count = self.count().load(Relaxed) as usize;
            let keys = keys.iter().take(count).enumerate();
            let (at, byte) = keys
                .filter(|(_, k)| u16::from(**k) >= from)
                .min_by_key(|(_, k)| **k)?;
            return Some((*byte, Ref(self.w32(32 + at * 4).load(Relaxed))));
        }
        (from..256).find_map(|byte| {
            let child = self.child(kind, byte as u8);
            (!child.is_none()).then_some((byte as u8, child))
        })
    }

    /// All children in order of their bytes.
    pub(super) fn children(self, kind: Kind, out: &mut Vec<(u8, Ref)>) {
        out.clear();
        let load = |offset: usize| Ref(self.w32(offset).load(Relaxed));
        match kind {
            Kind::Element => {}
            Kind::Small => {
                let keys = self.w64(24).load(Relaxed).to_le_bytes();
                let count = self.count().load(Relaxed) as usize;
                let keys = keys.iter().take(count).enumerate();
                out.extend(keys.map(|(at, byte)| (*byte, load(32 + at * 4))));
                out.sort_unstable_by_key(|(byte, _)| *byte);
            }
            Kind::Bitmap => {
                let mut at = LINE;
                for word in 0..4u8 {
                    let mut bits = self.w64(24 + usize::from(word) * 8).load(Relaxed);
                    while bits != 0 {
                        out.push((word << 6 | bits.trailing_zeros() as u8, load(at)));
                        at += 4;
                        bits &= bits - 1;
                    }
                }
            }
            Kind::Dense => {
                let all = (0..=255u8).map(|byte| (byte, load(LINE + usize::from(byte) * 4)));
                out.extend(all.filter(|(_, child)| !child.is_none()));
            }
        }
    }
}

/// Shape and size in lines of a node with this many children.
pub(super) fn shape(children: usize) -> Kind {
    if children <= SMALL_MAX {
        Kind::Small
    } else if children <= BITMAP_MAX {
        Kind::Bitmap
    } else {
        Kind::Dense
    }
}

/// Lines of a node of this shape with this many children.
pub(super) fn lines(kind: Kind, children: usize) -> usize {
    match kind {
        Kind::Element => 0,
        Kind::Small => 1,
        Kind::Bitmap => 1 + if children <= 16 { 1 } else { 2 },
        Kind::Dense => 1 + 256 * 4 / LINE,
    }
}

/// Inner prefixes of a node: those longer than its depth that end inside its byte.
///
/// For readers the byte's 256 values are cut into runs that share their longest prefix:
/// at 0 a bit for each value that starts a run, at 32 how many start before each 64, at
/// 40 the number of runs and of prefixes, from 48 on the runs' elements, and then, for
/// writers, all elements.
#[derive(Clone, Copy)]
pub(super) struct Inner<'a>(pub(super) Node<'a>);

const RUNS: usize = 48;

impl<'a> Inner<'a> {
    /// Lines that the prefixes of a node with `n` inner prefixes need.
    pub(super) fn lines(runs: usize, n: usize) -> usize {
        (RUNS + 4 * (runs + n)).div_ceil(LINE)
    }

    /// The longest prefix that holds `byte`; 0 if none.
    #[inline(always)]
    pub(super) fn find(self, byte: u8) -> u32 {
        let (word, upto) = (usize::from(byte >> 6), u64::MAX >> (63 - (byte & 63)));
        let bits = self.0.w64(word * 8).load(Relaxed);
        let before = self.0.w32(32).load(Relaxed) >> (8 * word) & 0xff;
        // The run that value 0 starts counts in every sum, so the sum is at least 1.
        let run = (before + (bits & upto).count_ones()).max(1) - 1;
        self.0.w32(RUNS + run as usize * 4).load(Relaxed)
    }

    fn counts(self) -> (usize, usize) {
        let word = self.0.w32(40).load(Relaxed);
        ((word & 0xffff) as usize, (word >> 16) as usize)
    }

    /// Lines that this block has.
    pub(super) fn size(self) -> usize {
        let (runs, n) = self.counts();
        Inner::lines(runs, n)
    }

    /// All elements.
    pub(super) fn elements(self) -> impl Iterator<Item = u32> + 'a {
        let (runs, n) = self.counts();
        let (runs, n) = (runs.min(256), n.min(254));
        (0..n).map(move |i| self.0.w32(RUNS + 4 * (runs + i)).load(Relaxed))
    }

    /// Fills a block that readers do not see yet.
    pub(super) fn init(self, runs: &Runs, elements: &[u32]) {
        self.0.set_bits(0, runs.starts);
        self.0.w32(40).store(
            runs.elements.len() as u32 | (elements.len() as u32) << 16,
            Relaxed,
        );
        for (i, element) in runs.elements.iter().chain(elements).enumerate() {
            self.0.w32(RUNS + i * 4).store(*element, Relaxed);
        }
    }
}

/// Runs of byte values that share their longest prefix.
pub(super) struct Runs {
    starts: [u64; 4],
    pub(super) elements: Vec<u32>,
}

impl Runs {
    /// From prefixes of a byte: number of bits (1 to 7), byte, element.
    pub(super) fn new(prefixes: &mut [(u32, u8, u32)]) -> Runs {
        prefixes.sort_unstable();
        let mut best = [0u32; 256];
        for (bits, byte, element) in prefixes.iter() {
            let low = 0xffu8.checked_shr(*bits).unwrap_or(0);
            let first = usize::from(byte & !low);
            best[first..=usize::from(byte | low)].fill(*element);
        }
        let mut runs = Runs {
            starts: [0; 4],
            elements: Vec::new(),
        };
        for (value, element) in best.iter().enumerate() {
            if value == 0 || best[value - 1] != *element {
                runs.starts[value / 64] |= 1 << (value % 64);
                runs.elements.push(*element);
            }
        }
        runs
    }
}
