//! Inserting, replacing and deleting prefixes, under the writers' lock.

use std::sync::atomic::{AtomicU32, Ordering::*};

use super::find::common;
use super::node::{BITMAP_MAX, Inner, Kind, Ref, Runs, SKIP_MAX, SMALL_MAX, lines, shape};
use super::{LpmTrie, Prefix, Step, Writer};
use crate::Errno;
use crate::flags::{BPF_EXIST, BPF_NOEXIST};

impl LpmTrie {
    pub(super) fn set(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
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
        self.set_top();
        writer.recycler.settle();
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

    pub(super) fn unset(&self, key: &[u8]) -> Result<(), Errno> {
        let prefix = self.parse(key).ok_or(Errno::EINVAL)?;
        if prefix.length > self.max_length() {
            return Err(Errno::EINVAL);
        }
        let mut guard = self.lock();
        let writer = &mut *guard;
        writer.path.clear();
        let done = self.remove(writer, prefix);
        writer.path.clear();
        self.set_top();
        writer.recycler.settle();
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
}
