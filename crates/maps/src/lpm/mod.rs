//! The LPM trie: longest prefix match at a cost near one or two cache misses.
//!
//! A trie of bytes (see `node`): paths with one way are skipped, subtrees of one
//! element are the element itself, so a look-up passes a node only where keys differ.
//! Prefixes that do not end at a byte's edge lie in the node of that byte, expanded to
//! runs of byte values. Readers take no lock; writers share one, as in the kernel.

mod memory;
mod node;
mod order;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};

use crate::flags::{BPF_EXIST, BPF_NOEXIST};
use crate::ops::{BatchOps, Ops};
use crate::value::load;
use crate::{Errno, MapParams, ValueRegion};
use memory::{Memory, Recycler};
use node::{BITMAP_MAX, Inner, Kind, Ref, Runs, SKIP_MAX, SMALL_MAX, lines, shape};

/// `BPF_MAP_TYPE_LPM_TRIE`.
///
/// A key is the prefix length in bits (four bytes) and the data, most significant bit
/// first. Look-ups are exact for threads that hold a guard ([`crate::pin`]).
pub struct LpmTrie {
    memory: Memory,
    root: AtomicU32,
    writer: Mutex<Writer>,
    max_entries: u32,
    #[cfg(target_arch = "x86_64")]
    has_popcnt: bool,
}

/// What writers share.
struct Writer {
    recycler: Recycler,
    entries: u32,
    children: Vec<(u8, Ref)>,
    path: Vec<Step>,
}

/// A node on the way down: the slot of its parent that refers to it, and the byte
/// that was taken in the node.
#[derive(Clone, Copy)]
struct Step {
    slot: *const AtomicU32,
    byte: u8,
}

// SAFETY: `path` is scratch: it is empty whenever the writers' lock is free.
unsafe impl Send for Writer {}

/// A key taken apart.
#[derive(Clone, Copy)]
struct Prefix<'a> {
    length: u32,
    data: &'a [u8],
}

impl Prefix<'_> {
    fn bytes(self) -> usize {
        self.length as usize / 8
    }
}

/// Bits that `a` and `b` have in common, at most `limit`.
fn common(a: &[u8], b: &[u8], limit: usize) -> usize {
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
    pub(crate) fn new(p: &MapParams) -> Result<LpmTrie, Errno> {
        let data_size = p.key_size as usize - 4;
        let memory = Memory::new(p.max_entries, data_size, p.value_size as usize)?;
        let mut recycler = Recycler::new();
        let root = recycler.lines(&memory, 1)?;
        memory.node(root).init(0, &[], 0, 0);
        Ok(LpmTrie {
            memory,
            root: AtomicU32::new(Ref::new(Kind::Small, root).0),
            writer: Mutex::new(Writer {
                recycler,
                entries: 0,
                children: Vec::new(),
                path: Vec::new(),
            }),
            max_entries: p.max_entries,
            #[cfg(target_arch = "x86_64")]
            has_popcnt: is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("lzcnt"),
        })
    }

    fn parse<'k>(&self, key: &'k [u8]) -> Option<Prefix<'k>> {
        let (length, data) = key.split_first_chunk()?;
        let length = u32::from_ne_bytes(*length);
        (data.len() == self.memory.data_size).then_some(Prefix { length, data })
    }

    fn max_length(&self) -> u32 {
        self.memory.data_size as u32 * 8
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Address of the value with the longest prefix that holds `key`, which is itself
    /// a prefix (only prefixes no longer than it are asked for).
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<NonNull<u8>> {
        let prefix = self.parse(key)?;
        let element = if prefix.length == self.max_length() {
            self.find(prefix.data)
        } else if prefix.length < self.max_length() {
            self.find_short(prefix)
        } else {
            0
        };
        (element != 0).then(|| self.memory.value(element))
    }

    #[inline]
    fn find(&self, data: &[u8]) -> u32 {
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

    #[inline(always)]
    fn find_any(&self, data: &[u8]) -> u32 {
        match data.len() {
            4 => self.walk::<4>(data),
            8 => self.walk::<8>(data),
            16 => self.walk::<16>(data),
            _ => self.walk::<0>(data),
        }
    }

    /// The element with the longest prefix of whole keys; 0 if none. `SIZE` is the
    /// data size, 0 for any.
    #[inline(always)]
    fn walk<const SIZE: usize>(&self, data: &[u8]) -> u32 {
        let mut at = Ref(self.root.load(Acquire));
        let (mut depth, mut best) = (0usize, 0u32);
        loop {
            let kind = at.kind();
            if kind == Kind::Element {
                let element = at.index();
                return if self.holds::<SIZE>(element, data) {
                    element
                } else {
                    best
                };
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
    fn common_with(&self, element: u32, data: &[u8], limit: usize) -> usize {
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
    fn find_short(&self, prefix: Prefix<'_>) -> u32 {
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
    fn find_exact(&self, prefix: Prefix<'_>) -> Option<u32> {
        let element = if prefix.length == self.max_length() {
            self.find(prefix.data)
        } else {
            self.find_short(prefix)
        };
        let same = self.memory.length(element).load(Relaxed) == prefix.length;
        (element != 0 && same).then_some(element)
    }

    fn set(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let prefix = self.parse(key).ok_or(Errno::EINVAL)?;
        if flags > BPF_EXIST || prefix.length > self.max_length() {
            return Err(Errno::EINVAL);
        }
        let mut guard = self.lock();
        let writer = &mut *guard;
        let element = writer.recycler.element(&self.memory)?;
        self.memory.fill(element, prefix.length, prefix.data, value);
        let done = self.put(writer, prefix, element, flags);
        if done.is_err() {
            writer.recycler.unused_element(element);
        }
        done
    }

    /// What the flags and the number of entries say about one more.
    fn admit(&self, writer: &Writer, flags: u64) -> Result<(), Errno> {
        if flags == BPF_EXIST {
            Err(Errno::ENOENT)
        } else if writer.entries >= self.max_entries {
            Err(Errno::ENOSPC)
        } else {
            Ok(())
        }
    }

    /// Puts a filled element where it belongs.
    fn put(&self, w: &mut Writer, p: Prefix<'_>, new: u32, flags: u64) -> Result<(), Errno> {
        let mut slot = &self.root;
        loop {
            let at = Ref(slot.load(Relaxed));
            let node = self.memory.node(at.index());
            let depth = node.depth();
            if p.length as usize == depth * 8 {
                let old = node.own().load(Relaxed);
                if old == 0 {
                    self.admit(w, flags)?;
                    w.entries += 1;
                } else if flags == BPF_NOEXIST {
                    return Err(Errno::EEXIST);
                }
                node.own().store(new, Release);
                slot.store(at.with_rich(true).0, Release);
                if old != 0 {
                    w.recycler.retire_element(old);
                }
                return Ok(());
            }
            if p.bytes() == depth {
                return self.put_inner(w, slot, p, new, flags);
            }
            let byte = p.data[depth];
            let Some(child) = node.slot(at.kind(), byte) else {
                self.admit(w, flags)?;
                self.add_child(w, slot, byte, Ref::new(Kind::Element, new))?;
                w.entries += 1;
                return Ok(());
            };
            let below = Ref(child.load(Relaxed));
            if below.is_none() {
                // A free slot of a dense node.
                self.admit(w, flags)?;
                child.store(Ref::new(Kind::Element, new).0, Release);
                node.count().fetch_add(1, Relaxed);
                w.entries += 1;
                return Ok(());
            }
            if let Some(old) = below.element() {
                return self.put_beside(w, child, depth, old, p, new, flags);
            }
            let under = self.memory.node(below.index());
            let (skipped, len) = under.skipped_bytes();
            let wanted = (p.length as usize - (depth + 1) * 8).min(len * 8);
            let same = common(&p.data[depth + 1..], &skipped[..len], wanted);
            if same == len * 8 {
                slot = child;
                continue;
            }
            self.admit(w, flags)?;
            self.split(w, child, depth, same / 8, p, new)?;
            w.entries += 1;
            return Ok(());
        }
    }

    /// Puts an element into a slot that holds another one.
    #[expect(
        clippy::too_many_arguments,
        reason = "one step of `put`, with all it knows"
    )]
    fn put_beside(
        &self,
        w: &mut Writer,
        slot: &AtomicU32,
        depth: usize,
        old: u32,
        p: Prefix<'_>,
        new: u32,
        flags: u64,
    ) -> Result<(), Errno> {
        let length = self.memory.length(old).load(Relaxed);
        let limit = length.min(p.length) as usize;
        let same = self.common_with(old, p.data, limit);
        if length == p.length && same == limit {
            if flags == BPF_NOEXIST {
                return Err(Errno::EEXIST);
            }
            slot.store(Ref::new(Kind::Element, new).0, Release);
            w.recycler.retire_element(old);
            return Ok(());
        }
        self.admit(w, flags)?;
        let fork = same / 8;
        let mut elements = [old, new];
        if length > p.length {
            elements.reverse();
        }
        let node = self.fork(w, fork, &p.data[depth + 1..fork], elements, None)?;
        slot.store(node.0, Release);
        w.entries += 1;
        Ok(())
    }

    /// Puts a new node before the one in `slot`, which skips bytes that the new
    /// element does not have: `keep` of them stay before the new node.
    fn split(
        &self,
        w: &mut Writer,
        slot: &AtomicU32,
        depth: usize,
        keep: usize,
        p: Prefix<'_>,
        new: u32,
    ) -> Result<(), Errno> {
        let at = Ref(slot.load(Relaxed));
        let node = self.memory.node(at.index());
        let (skipped, len) = node.skipped_bytes();
        let tail = self.copy(w, at, &skipped[keep + 1..len], None, None)?;
        let fork = depth + 1 + keep;
        let made = self.fork(
            w,
            fork,
            &skipped[..keep],
            [new, 0],
            Some((skipped[keep], tail)),
        );
        match made {
            Ok(made) => {
                debug_assert_eq!(&p.data[depth + 1..fork], &skipped[..keep]);
                slot.store(made.0, Release);
                self.retire(w, at);
                Ok(())
            }
            Err(e) => {
                self.retire(w, tail);
                Err(e)
            }
        }
    }

    /// A node at `depth` with some elements (0 for none) and a child, and before it as
    /// many nodes as the skipped bytes need. Nothing refers to it yet.
    fn fork(
        &self,
        w: &mut Writer,
        depth: usize,
        skipped: &[u8],
        elements: [u32; 2],
        child: Option<(u8, Ref)>,
    ) -> Result<Ref, Errno> {
        let (mut own, mut inner) = (0, Vec::new());
        let mut children: Vec<(u8, Ref)> = child.into_iter().collect();
        for element in elements.into_iter().filter(|e| *e != 0) {
            let length = self.memory.length(element).load(Relaxed) as usize;
            if length == depth * 8 {
                own = element;
            } else if length < depth * 8 + 8 {
                inner.push(element);
            } else {
                let byte = self.memory.byte(element, depth);
                children.push((byte, Ref::new(Kind::Element, element)));
            }
        }
        let near = skipped.len().min(SKIP_MAX);
        let (far, near) = skipped.split_at(skipped.len() - near);
        let block = if inner.is_empty() {
            0
        } else {
            self.inner_block(w, depth, &inner)?
        };
        let index = w.recycler.lines(&self.memory, 1)?;
        let node = self.memory.node(index);
        node.init(depth, near, own, block);
        node.set_children(Kind::Small, &children);
        let mut made = Ref::new(Kind::Small, index).with_rich(node.is_rich());
        // Longer ways get nodes with one child.
        let mut end = depth - near.len();
        let mut far = far;
        while let Some((byte, before)) = far.split_last() {
            let near = before.len().min(SKIP_MAX);
            let (rest, near) = before.split_at(before.len() - near);
            let index = w.recycler.lines(&self.memory, 1)?;
            let node = self.memory.node(index);
            node.init(end - 1, near, 0, 0);
            node.set_children(Kind::Small, &[(*byte, made)]);
            made = Ref::new(Kind::Small, index).with_rich(node.is_rich());
            end -= 1 + near.len();
            far = rest;
        }
        Ok(made)
    }

    /// A copy of a node with other skipped bytes, and with a child more or less.
    fn copy(
        &self,
        w: &mut Writer,
        at: Ref,
        skipped: &[u8],
        add: Option<(u8, Ref)>,
        remove: Option<u8>,
    ) -> Result<Ref, Errno> {
        let node = self.memory.node(at.index());
        let mut children = std::mem::take(&mut w.children);
        node.children(at.kind(), &mut children);
        children.retain(|(byte, _)| Some(*byte) != remove);
        if let Some(child) = add {
            let before = children.partition_point(|(byte, _)| *byte < child.0);
            children.insert(before, child);
        }
        let kind = shape(children.len());
        let copied = w
            .recycler
            .lines(&self.memory, lines(kind, children.len()))
            .map(|index| {
                let copy = self.memory.node(index);
                let (own, inner) = (node.own().load(Relaxed), node.inner().load(Relaxed));
                copy.init(node.depth(), skipped, own, inner);
                copy.set_children(kind, &children);
                Ref::new(kind, index).with_rich(copy.is_rich())
            });
        w.children = children;
        copied
    }

    fn retire(&self, w: &mut Writer, at: Ref) {
        let children = self.memory.node(at.index()).count().load(Relaxed) as usize;
        w.recycler
            .retire_lines(at.index(), lines(at.kind(), children));
    }

    /// Adds a child to the node in `slot`, which has no slot for the byte.
    fn add_child(
        &self,
        w: &mut Writer,
        slot: &AtomicU32,
        byte: u8,
        child: Ref,
    ) -> Result<(), Errno> {
        let at = Ref(slot.load(Relaxed));
        let node = self.memory.node(at.index());
        let room = (node.count().load(Relaxed) as usize) < SMALL_MAX;
        if at.kind() == Kind::Small && room {
            node.append(byte, child);
            return Ok(());
        }
        let (skipped, len) = node.skipped_bytes();
        let copy = self.copy(w, at, &skipped[..len], Some((byte, child)), None)?;
        slot.store(copy.0, Release);
        self.retire(w, at);
        Ok(())
    }

    /// A block of inner prefixes of a node at `depth`.
    fn inner_block(&self, w: &mut Writer, depth: usize, elements: &[u32]) -> Result<u32, Errno> {
        let mut prefixes: Vec<_> = elements
            .iter()
            .map(|e| {
                let bits = self
                    .memory
                    .length(*e)
                    .load(Relaxed)
                    .saturating_sub(depth as u32 * 8);
                (bits, self.memory.byte(*e, depth), *e)
            })
            .collect();
        let runs = Runs::new(&mut prefixes);
        let index = w.recycler.lines(
            &self.memory,
            Inner::lines(runs.elements.len(), elements.len()),
        )?;
        Inner(self.memory.node(index)).init(&runs, elements);
        Ok(index)
    }

    /// Replaces the inner prefixes of the node in `slot`.
    fn set_inner(&self, w: &mut Writer, slot: &AtomicU32, elements: &[u32]) -> Result<(), Errno> {
        let at = Ref(slot.load(Relaxed));
        let node = self.memory.node(at.index());
        let block = if elements.is_empty() {
            0
        } else {
            self.inner_block(w, node.depth(), elements)?
        };
        let old = node.inner().swap(block, AcqRel);
        slot.store(at.with_rich(node.is_rich()).0, Release);
        if old != 0 {
            let lines = Inner(self.memory.node(old)).size();
            w.recycler.retire_lines(old, lines);
        }
        Ok(())
    }

    fn inner_elements(&self, at: Ref) -> Vec<u32> {
        match self.memory.node(at.index()).inner().load(Relaxed) {
            0 => Vec::new(),
            block => Inner(self.memory.node(block)).elements().collect(),
        }
    }

    fn put_inner(
        &self,
        w: &mut Writer,
        slot: &AtomicU32,
        p: Prefix<'_>,
        new: u32,
        flags: u64,
    ) -> Result<(), Errno> {
        let mut elements = self.inner_elements(Ref(slot.load(Relaxed)));
        let same = elements.iter_mut().find(|e| self.is_exactly(**e, p));
        let old = match same {
            Some(_) if flags == BPF_NOEXIST => return Err(Errno::EEXIST),
            Some(element) => Some(std::mem::replace(element, new)),
            None => {
                self.admit(w, flags)?;
                elements.push(new);
                None
            }
        };
        self.set_inner(w, slot, &elements)?;
        match old {
            Some(old) => w.recycler.retire_element(old),
            None => w.entries += 1,
        }
        Ok(())
    }

    fn is_exactly(&self, element: u32, p: Prefix<'_>) -> bool {
        let limit = p.length as usize;
        self.memory.length(element).load(Relaxed) == p.length
            && self.common_with(element, p.data, limit) == limit
    }

    fn unset(&self, key: &[u8]) -> Result<(), Errno> {
        let prefix = self.parse(key).ok_or(Errno::EINVAL)?;
        if prefix.length > self.max_length() {
            return Err(Errno::EINVAL);
        }
        let mut guard = self.lock();
        let writer = &mut *guard;
        writer.path.clear();
        let done = self.remove(writer, prefix);
        writer.path.clear();
        done
    }

    fn remove(&self, w: &mut Writer, p: Prefix<'_>) -> Result<(), Errno> {
        let mut slot = &self.root;
        loop {
            let at = Ref(slot.load(Relaxed));
            let node = self.memory.node(at.index());
            let depth = node.depth();
            if p.length as usize <= depth * 8 + 7 {
                let old = if p.length as usize == depth * 8 {
                    let old = node.own().swap(0, AcqRel);
                    slot.store(at.with_rich(node.is_rich()).0, Release);
                    old
                } else if p.bytes() == depth {
                    let mut elements = self.inner_elements(at);
                    let at = elements.iter().position(|e| self.is_exactly(*e, p));
                    let old = elements.swap_remove(at.ok_or(Errno::ENOENT)?);
                    self.set_inner(w, slot, &elements)?;
                    old
                } else {
                    0
                };
                if old == 0 {
                    return Err(Errno::ENOENT);
                }
                w.recycler.retire_element(old);
                w.entries -= 1;
                self.shrink(w, slot);
                return Ok(());
            }
            let byte = p.data[depth];
            let child = node.slot(at.kind(), byte).ok_or(Errno::ENOENT)?;
            let below = Ref(child.load(Relaxed));
            if below.is_none() {
                return Err(Errno::ENOENT);
            }
            if let Some(element) = below.element() {
                if !self.is_exactly(element, p) {
                    return Err(Errno::ENOENT);
                }
                self.remove_child(w, slot, byte)?;
                w.recycler.retire_element(element);
                w.entries -= 1;
                self.shrink(w, slot);
                return Ok(());
            }
            let (skipped, len) = self.memory.node(below.index()).skipped_bytes();
            let end = depth + 1 + len;
            if p.bytes() < end || p.data[depth + 1..end] != skipped[..len] {
                return Err(Errno::ENOENT);
            }
            w.path.push(Step { slot, byte });
            slot = child;
        }
    }

    /// Takes a child out of the node in `slot`.
    fn remove_child(&self, w: &mut Writer, slot: &AtomicU32, byte: u8) -> Result<(), Errno> {
        let at = Ref(slot.load(Relaxed));
        let node = self.memory.node(at.index());
        let left = (node.count().load(Relaxed) as usize).saturating_sub(1);
        // A node changes its shape only when it is well below the limit.
        if at.kind() == Kind::Dense && left > BITMAP_MAX / 2 {
            if let Some(child) = node.slot(Kind::Dense, byte) {
                child.store(0, Release);
                node.count().store(left as u32, Relaxed);
            }
            return Ok(());
        }
        let (skipped, len) = node.skipped_bytes();
        let copy = self.copy(w, at, &skipped[..len], None, Some(byte))?;
        slot.store(copy.0, Release);
        self.retire(w, at);
        Ok(())
    }

    /// Replaces a node that holds one thing by that thing, and so on upwards. The root
    /// stays, whatever it holds.
    fn shrink(&self, w: &mut Writer, mut slot: &AtomicU32) {
        while let Some(step) = w.path.pop() {
            // SAFETY: a slot in a node above, which stays in place: the lock is held,
            // and only the node in `slot` and those below it were replaced.
            let parent = unsafe { &*step.slot };
            let at = Ref(slot.load(Relaxed));
            let node = self.memory.node(at.index());
            let child = match node.count().load(Relaxed) {
                0 => None,
                1 => node.next_child(at.kind(), 0),
                _ => return,
            };
            let own = node.own().load(Relaxed);
            let inner = self.inner_elements(at);
            match (child, own, inner.as_slice()) {
                (None, 0, []) => {
                    if self.remove_child(w, parent, step.byte).is_err() {
                        // An empty node misleads nobody.
                        return;
                    }
                    self.retire(w, at);
                }
                (None, element, []) | (None, 0, &[element]) => {
                    slot.store(Ref::new(Kind::Element, element).0, Release);
                    let block = node.inner().load(Relaxed);
                    if block != 0 {
                        let lines = Inner(self.memory.node(block)).size();
                        w.recycler.retire_lines(block, lines);
                    }
                    self.retire(w, at);
                }
                (Some((byte, child)), 0, []) => {
                    if let Some(replacement) = self.joined(w, at, byte, child) {
                        slot.store(replacement.0, Release);
                        self.retire(w, at);
                    }
                    if child.element().is_none() {
                        return;
                    }
                }
                _ => return,
            }
            slot = parent;
        }
    }

    /// What stands for a node whose only content is a child: the child, skipping the
    /// node's bytes as well. `None` where these are too many.
    fn joined(&self, w: &mut Writer, at: Ref, byte: u8, child: Ref) -> Option<Ref> {
        if child.element().is_some() {
            return Some(child);
        }
        let (mut skipped, len) = self.memory.node(at.index()).skipped_bytes();
        let (more, more_len) = self.memory.node(child.index()).skipped_bytes();
        let all = len + 1 + more_len;
        if all > SKIP_MAX {
            return None;
        }
        skipped[len] = byte;
        skipped[len + 1..all].copy_from_slice(&more[..more_len]);
        let joined = self.copy(w, child, &skipped[..all], None, None).ok()?;
        self.retire(w, child);
        Some(joined)
    }

    /// Bytes of elements and nodes that were ever used.
    pub fn memory_used(&self) -> u64 {
        let (elements, lines) = self.lock().recycler.used();
        let (_, stride, ..) = self.memory.values();
        u64::from(elements) * stride as u64 + u64::from(lines) * node::LINE as u64
    }
}

impl Ops for LpmTrie {
    #[inline]
    fn lookup(&self, _cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.get(key)
    }

    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.set(key, value, flags)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.unset(key)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        let _writers_wait = self.lock();
        let present = key
            .and_then(|key| self.parse(key))
            .filter(|p| p.length <= self.max_length())
            .filter(|p| self.find_exact(*p).is_some());
        let element = match present {
            Some(prefix) => self.after(prefix),
            None => self.first(Ref(self.root.load(Relaxed))),
        };
        self.memory.read_key(element.ok_or(Errno::ENOENT)?, next);
        Ok(())
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let _guard = crate::pin();
        let value = self.get(key).ok_or(Errno::ENOENT)?;
        let len = out.len().min(self.memory.value_size);
        // SAFETY: an element has a whole value.
        unsafe { load(&mut out[..len], value.as_ptr()) };
        Ok(())
    }

    fn regions(&self) -> Vec<ValueRegion> {
        let (base, stride, offset, count) = self.memory.values();
        vec![ValueRegion {
            base: base.as_ptr().expose_provenance() as u64,
            stride: stride as u64,
            offset: offset as u64,
            size: self.memory.value_size as u32,
            count,
        }]
    }

    fn batch(&self) -> BatchOps {
        BatchOps::KEYED
    }
}
