//! The ring buffer: programs produce records, the host consumes them.
//!
//! A record is an eight-byte header (length with two flag bits, page distance to the
//! start of the ring) and the bytes, rounded up to eight. Memory appears twice in a
//! row, so every record is contiguous. Before the data lies a page with everything
//! that submitting needs, so a record's address alone leads to its ring.

mod protocol;
mod user;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::flags::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use crate::mapping::Mapping;
use crate::ops::Ops;
use crate::value::{store, zero};
use crate::word::Real;
use crate::{Errno, MapParams, Progress, ValueRegion};
pub use protocol::{BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ};
use protocol::{Header, PAGE, Passed, Positions, Words, commit, room};
pub use user::{BPF_MAX_USER_RINGBUF_SAMPLES, Drain, Sample, UserRingBuf};

/// Longest record that may be asked for.
const RECORD_MAX: u64 = (u32::MAX / 4) as u64;

/// The page before the data.
struct Head {
    positions: Positions,
    refused: CachePadded<AtomicU64>,
    wakeups: CachePadded<AtomicU64>,
    consuming: Mutex<()>,
    waiters: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

const _: () = assert!(size_of::<Head>() <= PAGE);

/// `BPF_MAP_TYPE_RINGBUF`.
pub struct RingBuf {
    mapping: Mapping,
}

/// What `bpf_ringbuf_query` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingQuery {
    /// `BPF_RB_AVAIL_DATA`: bytes not consumed yet.
    AvailData = 0,
    /// `BPF_RB_RING_SIZE`: bytes of the ring.
    RingSize = 1,
    /// `BPF_RB_CONS_POS`: bytes consumed so far.
    ConsPos = 2,
    /// `BPF_RB_PROD_POS`: bytes produced so far.
    ProdPos = 3,
}

impl Head {
    fn wakeup(&self) {
        self.wakeups.fetch_add(1, SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            // Under the lock, so that nobody falls asleep between test and wait.
            let _sleep = self.sleep.lock().unwrap_or_else(|e| e.into_inner());
            self.wake.notify_all();
        }
    }
}

impl RingBuf {
    pub(crate) fn new(p: &MapParams) -> Result<RingBuf, Errno> {
        let mapping = Mapping::ring(PAGE, p.max_entries as usize)?;
        let head = Head {
            positions: Positions {
                producer: CachePadded::default(),
                consumer: CachePadded::default(),
                mask: u64::from(p.max_entries) - 1,
            },
            refused: CachePadded::default(),
            wakeups: CachePadded::default(),
            consuming: Mutex::default(),
            waiters: AtomicU32::new(0),
            sleep: Mutex::default(),
            wake: Condvar::new(),
        };
        // SAFETY: the first page of the mapping, which nobody has seen yet, and which
        // is large and aligned enough.
        unsafe { mapping.base().cast::<Head>().write(head) };
        Ok(RingBuf { mapping })
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `new` put it there, and it stays until the mapping goes.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Address of the byte at a position.
    #[inline]
    fn data(&self, position: u64) -> NonNull<u8> {
        // SAFETY: masked, so inside the first copy of the data.
        unsafe {
            self.mapping
                .base()
                .add(PAGE + (position & self.head().positions.mask) as usize)
        }
    }

    /// Address of the data; it appears a second time right behind.
    pub fn base(&self) -> NonNull<u8> {
        self.data(0)
    }

    /// Size of the ring in bytes.
    pub fn size(&self) -> u64 {
        self.head().positions.mask + 1
    }

    /// `bpf_ringbuf_reserve`: address of a record of `size` bytes, to be given to
    /// [`RingBuf::commit`]. `None` if there is no room (which is counted), or for a
    /// size that never fits.
    pub fn reserve(&self, size: u64) -> Option<NonNull<u8>> {
        let head = self.head();
        let record = self.try_reserve(head, size);
        if record.is_none() {
            head.refused.fetch_add(1, Relaxed);
        }
        record
    }

    #[inline]
    fn try_reserve(&self, head: &Head, size: u64) -> Option<NonNull<u8>> {
        if size > RECORD_MAX {
            return None;
        }
        if room(size) > self.size() {
            return None;
        }
        let position = head.positions.reserve(self, size)?;
        // SAFETY: the record lies in the doubled data.
        Some(unsafe { self.data(position).add(BPF_RINGBUF_HDR_SZ as usize) })
    }

    /// `bpf_ringbuf_submit` and `bpf_ringbuf_discard`: gives a record to the consumer,
    /// who skips discarded ones. `flags` say whether to wake it: by default if it has
    /// consumed everything before.
    ///
    /// # Safety
    /// `record` came from [`RingBuf::reserve`] of a map that still lives, and was not
    /// committed since.
    pub unsafe fn commit(record: NonNull<u8>, flags: u64, discard: bool) {
        // SAFETY: the header before the record, by the contract.
        let at = unsafe { record.sub(BPF_RINGBUF_HDR_SZ as usize) };
        // SAFETY: as above; headers are aligned to their size.
        let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
        let header = commit::<Real>(word, discard);
        let distance = header.pages() * PAGE + at.addr().get() % PAGE;
        // SAFETY: `try_reserve` wrote how many pages lie between, and rings start at a
        // page, so this is the head of the record's ring.
        let head = unsafe { at.sub(distance).cast::<Head>().as_ref() };
        let caught_up = || {
            let consumed = head.positions.consumer.load(SeqCst) & head.positions.mask;
            consumed == (distance - PAGE) as u64
        };
        if flags & BPF_RB_FORCE_WAKEUP != 0 || flags & BPF_RB_NO_WAKEUP == 0 && caught_up() {
            head.wakeup();
        }
    }

    /// Whether a record that is being written starts at `addr` (checked mode).
    pub fn is_reserved(&self, addr: u64, size: u64) -> bool {
        let first = self.base().addr().get() as u64;
        let Some(offset) = addr.checked_sub(first + 8) else {
            return false;
        };
        if offset > self.head().positions.mask || !offset.is_multiple_of(8) {
            return false;
        }
        let header = Header(self.word(offset).load(Acquire));
        header.is_busy() && header.len() >= size
    }

    /// `bpf_ringbuf_output`.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EAGAIN` if there is no room.
    pub fn output(&self, data: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & !(BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let record = self.reserve(data.len() as u64).ok_or(Errno::EAGAIN)?;
        // SAFETY: a record of that size, which is committed once.
        unsafe {
            store(record.as_ptr(), data);
            RingBuf::commit(record, flags, false);
        }
        Ok(())
    }

    /// `bpf_ringbuf_query`.
    pub fn query(&self, what: RingQuery) -> u64 {
        let positions = &self.head().positions;
        let consumed = positions.consumer.load(Acquire);
        let produced = positions.producer.load(Acquire);
        match what {
            RingQuery::AvailData => produced.wrapping_sub(consumed),
            RingQuery::RingSize => positions.mask + 1,
            RingQuery::ConsPos => consumed,
            RingQuery::ProdPos => produced,
        }
    }

    /// How many reservations were refused so far.
    pub fn refused(&self) -> u64 {
        self.head().refused.load(Relaxed)
    }

    /// How many times a program woke the consumer so far.
    pub fn wakeups(&self) -> u64 {
        self.head().wakeups.load(Relaxed)
    }

    /// Host: calls `visit` with each record that is complete, up to the first that is
    /// still being written. Returns how many it saw. Producers get the room back by and by,
    /// an eighth of the ring at a time, and all of it at the end.
    pub fn consume(&self, mut visit: impl FnMut(&[u8]) -> Progress) -> u64 {
        let head = self.head();
        let _one = head.consuming.lock().unwrap_or_else(|e| e.into_inner());
        let mut passed = Passed::new(&head.positions);
        let mut seen = 0;
        while let Some(header) = head.positions.complete(self, passed.position) {
            let at = self.data(passed.position);
            let mut progress = Progress::Go;
            if !header.is_discarded() {
                // SAFETY: the record is complete: its producer let go of it, and its
                // room is not reserved again before the position moves on.
                let record = unsafe {
                    std::slice::from_raw_parts(
                        at.add(BPF_RINGBUF_HDR_SZ as usize).as_ptr(),
                        header.len() as usize,
                    )
                };
                progress = visit(record);
                seen += 1;
            }
            let step = room(header.len());
            // SAFETY: the record, which lies in the doubled data and is nobody else's.
            unsafe { zero(at.as_ptr(), step as usize) };
            passed.go_on(step);
            if progress == Progress::Stop {
                break;
            }
        }
        seen
    }

    /// Host: waits until a program wakes the consumer, if nothing is there yet.
    /// Returns whether there is anything.
    pub fn wait(&self, timeout: Duration) -> bool {
        let head = self.head();
        let before = head.wakeups.load(SeqCst);
        // Either this sees what a producer reserves, or the producer sees how far the
        // consumer is, and wakes it.
        fence(SeqCst);
        if self.query(RingQuery::AvailData) > 0 {
            return true;
        }
        head.waiters.fetch_add(1, SeqCst);
        let sleep = head.sleep.lock().unwrap_or_else(|e| e.into_inner());
        let woken = head
            .wake
            .wait_timeout_while(sleep, timeout, |()| head.wakeups.load(SeqCst) == before);
        drop(woken);
        head.waiters.fetch_sub(1, SeqCst);
        self.query(RingQuery::AvailData) > 0
    }
}

impl Words<Real> for RingBuf {
    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: callers' positions are multiples of eight bytes, in memory that lives as long
        // as the ring and is accessed through atomics where it holds headers.
        unsafe { AtomicU64::from_ptr(self.data(position).as_ptr().cast()) }
    }
}

impl Drop for RingBuf {
    fn drop(&mut self) {
        // SAFETY: `new` put it there, and nobody shares the map any more.
        unsafe { self.mapping.base().cast::<Head>().drop_in_place() };
    }
}

/// Operations that rings do not have.
macro_rules! no_keys {
    () => {
        fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
            Err(Errno::ENOTSUPP)
        }

        fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
            Err(Errno::ENOTSUPP)
        }

        fn next_key(&self, _key: Option<&[u8]>, _next: &mut [u8]) -> Result<(), Errno> {
            Err(Errno::ENOTSUPP)
        }
    };
}
use no_keys;

impl Ops for RingBuf {
    no_keys!();

    fn regions(&self) -> Vec<ValueRegion> {
        vec![ValueRegion {
            base: self.base().as_ptr().expose_provenance() as u64,
            stride: 2 * self.size(),
            offset: 0,
            size: u32::try_from(2 * self.size()).unwrap_or(u32::MAX),
            count: 1,
        }]
    }
}
