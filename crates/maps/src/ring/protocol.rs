//! Where records begin and end: what threads share without a lock.
//!
//! Producers take no lock: one moves the position forward, and writes the header then.
//! What nobody has reserved is zero, as no header is, so the consumer sees whether a
//! header is still missing; it leaves zeros behind.

use std::sync::atomic::Ordering::*;

use crossbeam_utils::CachePadded;

use crate::word::{Atomics, Real, Word};

/// Header of a record: it is being written.
pub const BPF_RINGBUF_BUSY_BIT: u32 = 1 << 31;
/// Header of a record: the consumer skips it.
pub const BPF_RINGBUF_DISCARD_BIT: u32 = 1 << 30;
/// Size of a record's header in bytes.
pub const BPF_RINGBUF_HDR_SZ: u32 = 8;
/// Unit of the distance in a header.
pub(super) const PAGE: usize = crate::check::PAGE as usize;

/// A header: the length with its flags in the low half, in the high half how many pages lie
/// between the ring's start and the record's, at least 1.
#[derive(Clone, Copy)]
pub(super) struct Header(pub(super) u64);

impl Header {
    /// Nobody has written it yet.
    const NONE: u64 = 0;

    pub(super) fn new(size: u64, pages: u64) -> Header {
        Header(pages << 32 | size | u64::from(BPF_RINGBUF_BUSY_BIT))
    }

    pub(super) fn committed(self, discard: bool) -> Header {
        let discarded = if discard { BPF_RINGBUF_DISCARD_BIT } else { 0 };
        Header(self.0 & !u64::from(BPF_RINGBUF_BUSY_BIT) | u64::from(discarded))
    }

    pub(super) fn is_ready(self) -> bool {
        self.0 != Header::NONE && !self.is_busy()
    }

    pub(super) fn is_busy(self) -> bool {
        self.0 as u32 & BPF_RINGBUF_BUSY_BIT != 0
    }

    pub(super) fn is_discarded(self) -> bool {
        self.0 as u32 & BPF_RINGBUF_DISCARD_BIT != 0
    }

    pub(super) fn len(self) -> u64 {
        u64::from(self.0 as u32 & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT))
    }

    pub(super) fn pages(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Bytes of the ring that a record of `size` bytes takes.
pub(super) fn room(size: u64) -> u64 {
    (size + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8)
}

/// How far producers and consumer are: positions only grow.
pub(super) struct Positions<A: Atomics = Real> {
    pub(super) producer: CachePadded<A::U64>,
    pub(super) consumer: CachePadded<A::U64>,
    pub(super) mask: u64,
}

/// The memory of a ring: the word that begins at a position, a multiple of eight.
pub(super) trait Words<A: Atomics> {
    fn word(&self, position: u64) -> &A::U64;
}

impl<A: Atomics> Positions<A> {
    /// Reserves a record of `size` bytes; gives the position of its header.
    #[inline(always)]
    pub(super) fn reserve(&self, words: &impl Words<A>, size: u64) -> Option<u64> {
        let len = room(size);
        let mut position = self.producer.load(Relaxed);
        let mut patience = 0;
        loop {
            let end = position.wrapping_add(len);
            // What the consumer has passed it has left as zeros.
            if end.wrapping_sub(self.consumer.load(Acquire)) > self.mask {
                let now = self.producer.load(Acquire);
                if now == position {
                    return None;
                }
                position = now;
                continue;
            }
            // In one order with the look at the consumer's position when the record is
            // committed, and with the fence of a consumer that goes to sleep.
            match self.producer.exchange(position, end, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => position = now,
            }
            // Another producer has the line: with some patience each gets on for a while.
            patience = (patience * 2 + 1).min(MOST_PATIENCE);
            for _ in 0..patience {
                std::hint::spin_loop();
            }
        }
        let pages = (position & self.mask) / PAGE as u64 + 1;
        let header = Header::new(size, pages);
        words.word(position).store(header.0, Relaxed);
        Some(position)
    }

    /// The record at a position up to which everything was consumed, if it is complete.
    #[inline(always)]
    pub(super) fn complete(&self, words: &impl Words<A>, position: u64) -> Option<Header> {
        if position == self.producer.load(Acquire) {
            return None;
        }
        let header = Header(words.word(position).load(Acquire));
        header.is_ready().then_some(header)
    }
}

/// Turns that a producer waits at most after another one was faster.
const MOST_PATIENCE: u32 = 63;

/// Gives a record to the consumer. `word` is its header.
#[inline(always)]
pub(super) fn commit<A: Atomics>(word: &A::U64, discard: bool) -> Header {
    let header = Header(word.load(Relaxed));
    word.store(header.committed(discard).0, Release);
    header
}

/// How far the consumer is. It tells the producers now and then, and when it stops, for
/// whatever reason: what is behind it has been zeroed.
pub(super) struct Passed<'a, A: Atomics = Real> {
    positions: &'a Positions<A>,
    pub(super) position: u64,
    told: u64,
}

impl<'a, A: Atomics> Passed<'a, A> {
    pub(super) fn new(positions: &'a Positions<A>) -> Passed<'a, A> {
        let position = positions.consumer.load(Relaxed);
        Passed {
            positions,
            position,
            told: position,
        }
    }

    /// Goes past a record, whose memory is zero now.
    pub(super) fn go_on(&mut self, step: u64) {
        self.position = self.position.wrapping_add(step);
        if self.position.wrapping_sub(self.told) > self.positions.mask / 8 {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = self.position;
        self.positions.consumer.store(self.position, Release);
    }
}

impl<A: Atomics> Drop for Passed<'_, A> {
    fn drop(&mut self) {
        if self.told != self.position {
            self.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;
    use crate::word::Model;

    const BYTES: u64 = 64;

    struct Ring {
        positions: Positions<Model>,
        words: Vec<AtomicU64>,
    }

    impl Words<Model> for Vec<AtomicU64> {
        fn word(&self, position: u64) -> &AtomicU64 {
            &self[(position % BYTES / 8) as usize]
        }
    }

    impl Ring {
        fn new() -> Ring {
            Ring {
                positions: Positions {
                    producer: CachePadded::new(AtomicU64::new(0)),
                    consumer: CachePadded::new(AtomicU64::new(0)),
                    mask: BYTES - 1,
                },
                words: (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        /// A record of eight bytes.
        fn produce(&self, value: u64, discard: bool) -> bool {
            let Some(at) = self.positions.reserve(&self.words, 8) else {
                return false;
            };
            self.words.word(at + 8).store(value, Relaxed);
            commit::<Model>(self.words.word(at), discard);
            true
        }

        fn consume(&self, seen: &mut Vec<u64>) {
            let mut passed = Passed::new(&self.positions);
            while let Some(header) = self.positions.complete(&self.words, passed.position) {
                let value = self.words.word(passed.position + 8);
                if !header.is_discarded() {
                    assert_eq!(header.len(), 8);
                    seen.push(value.load(Relaxed));
                }
                value.store(0, Relaxed);
                self.words.word(passed.position).store(0, Relaxed);
                passed.go_on(room(header.len()));
            }
        }
    }

    /// Two producers and the consumer, where the ring begins again: whatever order their steps
    /// have, each record arrives once and whole, and none is refused while there is room.
    #[test]
    fn what_is_accepted_arrives_once() {
        loom::model(|| {
            let ring = Arc::new(Ring::new());
            let mut seen = vec![];
            for value in [1, 2, 3] {
                assert!(ring.produce(value, false));
            }
            assert!(!ring.produce(4, false), "full");
            ring.consume(&mut seen);
            let producers = [vec![(10, false)], vec![(20, true), (30, false)]].map(|records| {
                let ring = ring.clone();
                loom::thread::spawn(move || {
                    for (value, discard) in records {
                        assert!(ring.produce(value, discard), "there is room");
                    }
                })
            });
            ring.consume(&mut seen);
            for producer in producers {
                producer.join().unwrap();
            }
            ring.consume(&mut seen);
            let late: &[u64] = match seen[3] {
                10 => &[1, 2, 3, 10, 30],
                _ => &[1, 2, 3, 30, 10],
            };
            assert_eq!(seen, late);
            let all = ring.positions.producer.load(Relaxed);
            assert_eq!(ring.positions.consumer.load(Relaxed), all);
        });
    }

    /// A producer that waits for room gets it once the consumer has passed, and never finds
    /// leftovers that the consumer takes for a header.
    #[test]
    fn room_comes_back_as_zeros() {
        loom::model(|| {
            let ring = Arc::new(Ring::new());
            for value in [1, 2, 3] {
                assert!(ring.produce(value, false));
            }
            let producer = {
                let ring = ring.clone();
                loom::thread::spawn(move || ring.produce(4, false))
            };
            let mut seen = vec![];
            ring.consume(&mut seen);
            let accepted = producer.join().unwrap();
            ring.consume(&mut seen);
            let expected: &[u64] = if accepted { &[1, 2, 3, 4] } else { &[1, 2, 3] };
            assert_eq!(seen, expected);
        });
    }
}
