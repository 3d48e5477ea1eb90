//! Memory of a trie: elements and nodes by index, and when they may be reused.
//!
//! Readers walk without locks, so what leaves the trie waits in limbo until every
//! thread that was pinned then has let go. A reader that is not pinned stays safe all
//! the same: indexes are masked to the regions, and regions live as long as the map.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::node::{LINE, Node, SPAN_MAX};
use crate::Errno;
use crate::mem::{Commit, Region, round8};
use crate::value::{load, store};

/// Addresses for spare elements, beyond `max_entries`: those in limbo while threads
/// that were pinned when they left are not through.
const SLACK_BYTES: usize = 1 << 30;
/// Indexes have 29 bits: the rest of a reference says what it refers to.
const INDEX_BITS: u32 = 29;
/// What leaves the trie is collected in batches of about this size.
const BATCH: usize = 64;

/// The two regions.
pub(super) struct Memory {
    elements: Region,
    stride: usize,
    value: usize,
    element_mask: u32,
    nodes: Region,
    line_mask: u32,
    pub(super) data_size: usize,
    pub(super) value_size: usize,
}

impl Memory {
    pub(super) fn new(entries: u32, data_size: usize, value_size: usize) -> Result<Memory, Errno> {
        let value = round8(4 + data_size);
        let stride = value + round8(value_size);
        let slack = (SLACK_BYTES / stride).clamp(1 << 10, 1 << 22);
        let limit = 1usize << INDEX_BITS;
        let count = (entries as usize + slack).next_power_of_two().min(limit);
        // One node an entry at most, and one more for each eight bytes of long keys.
        let per_entry = 2 + data_size / 8;
        let lines = (entries as usize)
            .saturating_mul(per_entry)
            .saturating_add(slack);
        let lines = lines.saturating_add(64).min(limit).next_power_of_two();
        let room = lines * LINE + SPAN_MAX;
        let expected = (entries as usize).saturating_mul(stride);
        let memory = Memory {
            elements: Region::array(count, stride, Commit::Touched)?.expect_use(expected),
            stride,
            value,
            element_mask: (count - 1) as u32,
            nodes: Region::zeroed(room, Commit::Touched)?.expect_use(expected),
            line_mask: (lines - 1) as u32,
            data_size,
            value_size,
        };
        // Element 0 stands for none: no key has as many bits.
        memory.length(0).store(u32::MAX, Relaxed);
        Ok(memory)
    }

    #[inline(always)]
    fn element(&self, index: u32) -> NonNull<u8> {
        self.elements
            .at((index & self.element_mask) as usize * self.stride)
    }

    /// Prefix length of an element, in bits.
    #[inline(always)]
    pub(super) fn length(&self, index: u32) -> &AtomicU32 {
        // SAFETY: elements start with four aligned bytes of length.
        unsafe { AtomicU32::from_ptr(self.element(index).as_ptr().cast()) }
    }

    /// First byte of an element's data.
    #[inline(always)]
    pub(super) fn data(&self, index: u32) -> *mut u8 {
        self.element(index).as_ptr().wrapping_add(4)
    }

    /// Byte `i` of an element's data.
    pub(super) fn byte(&self, index: u32, i: usize) -> u8 {
        let mut byte = [0];
        // SAFETY: callers ask for bytes below the data size.
        unsafe {
            load(
                &mut byte,
                self.data(index).wrapping_add(i.min(self.data_size - 1)),
            )
        };
        byte[0]
    }

    /// Value of an element.
    #[inline(always)]
    pub(super) fn value(&self, index: u32) -> NonNull<u8> {
        let at = (index & self.element_mask) as usize * self.stride + self.value;
        self.elements.at(at)
    }

    /// Fills an element that the trie does not hold yet.
    pub(super) fn fill(&self, index: u32, length: u32, data: &[u8], value: &[u8]) {
        self.length(index).store(length, Relaxed);
        let (data, value) = (
            &data[..data.len().min(self.data_size)],
            &value[..value.len().min(self.value_size)],
        );
        // SAFETY: an element has room for data and value of these sizes.
        unsafe {
            store(self.data(index), data);
            store(self.value(index).as_ptr(), value);
        }
    }

    /// Copies an element's key out: length, then data as it was given.
    pub(super) fn read_key(&self, index: u32, out: &mut [u8]) {
        let (length, data) = out.split_at_mut(out.len().min(4));
        length.copy_from_slice(&self.length(index).load(Relaxed).to_ne_bytes()[..length.len()]);
        let len = data.len().min(self.data_size);
        // SAFETY: an element has `data_size` bytes of data.
        unsafe { load(&mut data[..len], self.data(index)) };
    }

    #[inline(always)]
    pub(super) fn node(&self, index: u32) -> Node<'_> {
        let at = self.nodes.at((index & self.line_mask) as usize * LINE);
        // SAFETY: a masked index is a line of the region, which reaches `SPAN_MAX`
        // bytes further than its last line.
        unsafe { Node::at(at) }
    }

    /// Start and stride of the values, and the number of elements.
    pub(super) fn values(&self) -> (NonNull<u8>, usize, usize, u64) {
        let count = u64::from(self.element_mask) + 1;
        (self.elements.base(), self.stride, self.value, count)
    }
}

/// Something that left the trie: an element (no lines), or a node of some lines.
#[derive(Clone, Copy)]
struct Left {
    index: u32,
    lines: u8,
}

/// What is free and what waits; writers share it under their lock.
pub(super) struct Recycler {
    elements: Vec<u32>,
    fresh_element: u32,
    nodes: Vec<Vec<u32>>,
    fresh_line: u32,
    leaving: Vec<Left>,
    limbo: VecDeque<(u64, Vec<Left>)>,
    batches: u64,
    /// The last batch that nobody can see any more.
    settled: Arc<AtomicU64>,
}

impl Recycler {
    pub(super) fn new() -> Recycler {
        Recycler {
            elements: Vec::new(),
            // Element 0 stands for none, and so does line 0.
            fresh_element: 1,
            nodes: vec![Vec::new(); SPAN_MAX / LINE + 1],
            fresh_line: 1,
            leaving: Vec::with_capacity(BATCH),
            limbo: VecDeque::new(),
            batches: 0,
            settled: Arc::default(),
        }
    }

    /// A free element.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn element(&mut self, memory: &Memory) -> Result<u32, Errno> {
        if self.elements.is_empty() {
            self.reclaim();
        }
        if let Some(index) = self.elements.pop() {
            return Ok(index);
        }
        if self.fresh_element > memory.element_mask {
            return Err(Errno::ENOMEM);
        }
        self.fresh_element += 1;
        Ok(self.fresh_element - 1)
    }

    /// Free lines in a row, as one node.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn lines(&mut self, memory: &Memory, n: usize) -> Result<u32, Errno> {
        if self.nodes[n].is_empty() {
            self.reclaim();
        }
        if let Some(index) = self.nodes[n].pop() {
            return Ok(index);
        }
        let end = self.fresh_line as usize + n;
        if end > memory.line_mask as usize + 1 {
            return Err(Errno::ENOMEM);
        }
        self.fresh_line = end as u32;
        Ok(self.fresh_line - n as u32)
    }

    /// Gives an element back that no reader has seen.
    pub(super) fn unused_element(&mut self, index: u32) {
        self.elements.push(index);
    }

    pub(super) fn retire_element(&mut self, index: u32) {
        self.retire(Left { index, lines: 0 });
    }

    pub(super) fn retire_lines(&mut self, index: u32, n: usize) {
        self.retire(Left {
            index,
            lines: n as u8,
        });
    }

    fn retire(&mut self, left: Left) {
        self.leaving.push(left);
    }

    /// To be called after a change, once nothing leads to what left: sends a batch into limbo
    /// when it is full.
    pub(super) fn settle(&mut self) {
        if self.leaving.len() < BATCH {
            return;
        }
        self.batches += 1;
        let (batch, settled) = (self.batches, self.settled.clone());
        let full = std::mem::replace(&mut self.leaving, Vec::with_capacity(BATCH));
        self.limbo.push_back((batch, full));
        let guard = crate::pin();
        // Batches before this one left earlier, so they are settled as well.
        guard.defer(move || settled.fetch_max(batch, AcqRel));
        guard.flush();
    }

    fn reclaim(&mut self) {
        let settled = self.settled.load(Acquire);
        while self
            .limbo
            .front()
            .is_some_and(|(batch, _)| *batch <= settled)
        {
            let Some((_, batch)) = self.limbo.pop_front() else {
                break;
            };
            for left in batch {
                match left.lines {
                    0 => self.elements.push(left.index),
                    n => self.nodes[usize::from(n)].push(left.index),
                }
            }
        }
    }

    /// Elements and node lines that were ever used, for measuring memory.
    pub(super) fn used(&self) -> (u32, u32) {
        (self.fresh_element, self.fresh_line)
    }
}
