//! The ring buffer: programs produce records, the host consumes them.
//!
//! A record is an eight-byte header (length with two flag bits, page distance to the
//! start of the ring) and the bytes, rounded up to eight. Memory appears twice in a
//! row, so every record is contiguous. Before the data lies a page with everything
//! that submitting needs, so a record's address alone leads to its ring.
//!
//! Producers take no lock: one moves the position forward, and writes the header then.
//! What nobody has reserved is zero, as no header is, so the consumer sees whether a
//! header is still missing; it leaves zeros behind.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crossbeam_utils::{Backoff, CachePadded};

use crate::flags::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use crate::mapping::Mapping;
use crate::ops::Ops;
use crate::value::{store, zero};
use crate::{Errno, MapParams, Progress, ValueRegion};

/// Header of a record: it is being written.
pub const BPF_RINGBUF_BUSY_BIT: u32 = 1 << 31;
/// Header of a record: the consumer skips it.
pub const BPF_RINGBUF_DISCARD_BIT: u32 = 1 << 30;
/// Size of a record's header in bytes.
pub const BPF_RINGBUF_HDR_SZ: u32 = 8;

const PAGE: usize = crate::check::PAGE as usize;
/// Longest record that may be asked for.
const RECORD_MAX: u64 = (u32::MAX / 4) as u64;

/// The page before the data.
struct Head {
    producer: CachePadded<AtomicU64>,
    consumer: CachePadded<AtomicU64>,
    refused: CachePadded<AtomicU64>,
    wakeups: CachePadded<AtomicU64>,
    consuming: Mutex<()>,
    waiters: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
    mask: u64,
}

/// A header: the length with its flags in the low half, in the high half how many pages lie
/// between the ring's start and the record's, at least 1.
#[derive(Clone, Copy)]
struct Header(u64);

impl Header {
    /// Nobody has written it yet.
    const NONE: u64 = 0;

    fn new(size: u64, pages: u64) -> Header {
        Header(pages << 32 | size | u64::from(BPF_RINGBUF_BUSY_BIT))
    }

    fn committed(self, discard: bool) -> Header {
        let discarded = if discard { BPF_RINGBUF_DISCARD_BIT } else { 0 };
        Header(self.0 & !u64::from(BPF_RINGBUF_BUSY_BIT) | u64::from(discarded))
    }

    fn is_ready(self) -> bool {
        self.0 != Header::NONE && !self.is_busy()
    }

    fn is_busy(self) -> bool {
        self.0 as u32 & BPF_RINGBUF_BUSY_BIT != 0
    }

    fn is_discarded(self) -> bool {
        self.0 as u32 & BPF_RINGBUF_DISCARD_BIT != 0
    }

    fn len(self) -> u64 {
        u64::from(self.0 as u32 & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT))
    }

    fn pages(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Bytes of the ring that a record of `size` bytes takes.
fn room(size: u64) -> u64 {
    (size + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8)
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
            producer: CachePadded::default(),
            consumer: CachePadded::default(),
            refused: CachePadded::default(),
            wakeups: CachePadded::default(),
            consuming: Mutex::default(),
            waiters: AtomicU32::new(0),
            sleep: Mutex::default(),
            wake: Condvar::new(),
            mask: u64::from(p.max_entries) - 1,
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
                .add(PAGE + (position & self.head().mask) as usize)
        }
    }

    /// The header that begins at a position.
    #[inline]
    fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: records begin at multiples of eight bytes, of memory that lives as long as
        // the ring and is accessed through atomics where it holds headers.
        unsafe { AtomicU64::from_ptr(self.data(position).as_ptr().cast()) }
    }

    /// Address of the data; it appears a second time right behind.
    pub fn base(&self) -> NonNull<u8> {
        self.data(0)
    }

    /// Size of the ring in bytes.
    pub fn size(&self) -> u64 {
        self.head().mask + 1
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
        let len = room(size);
        if len > head.mask + 1 {
            return None;
        }
        let mut position = head.producer.load(Relaxed);
        let backoff = Backoff::new();
        loop {
            let end = position.wrapping_add(len);
            // What the consumer has passed it has left as zeros.
            if end.wrapping_sub(head.consumer.load(Acquire)) > head.mask {
                return None;
            }
            // In one order with the look at the consumer's position when the record is
            // committed, and with the fence of a consumer that goes to sleep.
            match head
                .producer
                .compare_exchange_weak(position, end, SeqCst, Relaxed)
            {
                Ok(_) => break,
                Err(now) => position = now,
            }
            // Another producer has the line: with some patience each gets on for a while.
            backoff.spin();
        }
        let pages = ((position & head.mask) as usize + PAGE) / PAGE;
        let header = Header::new(size, pages as u64);
        self.header(position).store(header.0, Relaxed);
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
        let header = Header(word.load(Relaxed));
        let distance = header.pages() * PAGE + at.addr().get() % PAGE;
        // SAFETY: `try_reserve` wrote how many pages lie between, and rings start at a
        // page, so this is the head of the record's ring.
        let head = unsafe { at.sub(distance).cast::<Head>().as_ref() };
        word.store(header.committed(discard).0, Release);
        let caught_up = || {
            let consumed = head.consumer.load(SeqCst) & head.mask;
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
        if offset > self.head().mask || !offset.is_multiple_of(8) {
            return false;
        }
        let header = Header(self.header(offset).load(Acquire));
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
        let head = self.head();
        let consumed = head.consumer.load(Acquire);
        let produced = head.producer.load(Acquire);
        match what {
            RingQuery::AvailData => produced.wrapping_sub(consumed),
            RingQuery::RingSize => head.mask + 1,
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
        let mut passed = Passed::new(head);
        let mut seen = 0;
        while passed.position != head.producer.load(Acquire) {
            let header = Header(self.header(passed.position).load(Acquire));
            if !header.is_ready() {
                break;
            }
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

/// How far the consumer is. It tells the producers now and then, and when it stops, for
/// whatever reason: what is behind it has been zeroed.
struct Passed<'a> {
    head: &'a Head,
    position: u64,
    told: u64,
}

impl<'a> Passed<'a> {
    fn new(head: &'a Head) -> Passed<'a> {
        let position = head.consumer.load(Relaxed);
        Passed {
            head,
            position,
            told: position,
        }
    }

    fn go_on(&mut self, step: u64) {
        self.position = self.position.wrapping_add(step);
        if self.position.wrapping_sub(self.told) > self.head.mask / 8 {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = self.position;
        self.head.consumer.store(self.position, Release);
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        if self.told != self.position {
            self.tell();
        }
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

/// `BPF_MAP_TYPE_USER_RINGBUF`: the host produces, a program drains.
pub struct UserRingBuf {
    mapping: Mapping,
    mask: u64,
    producer: CachePadded<AtomicU64>,
    consumer: CachePadded<AtomicU64>,
    producing: Mutex<()>,
    busy: AtomicBool,
}

/// A sample for a program to read, until the next is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Address.
    pub data: NonNull<u8>,
    /// Bytes.
    pub len: u32,
}

/// Most samples that one call of `bpf_user_ringbuf_drain` takes.
pub const BPF_MAX_USER_RINGBUF_SAMPLES: u32 = 128 * 1024;

impl UserRingBuf {
    pub(crate) fn new(p: &MapParams) -> Result<UserRingBuf, Errno> {
        Ok(UserRingBuf {
            mapping: Mapping::ring(PAGE, p.max_entries as usize)?,
            mask: u64::from(p.max_entries) - 1,
            producer: CachePadded::default(),
            consumer: CachePadded::default(),
            producing: Mutex::default(),
            busy: AtomicBool::new(false),
        })
    }

    fn data(&self, position: u64) -> NonNull<u8> {
        // SAFETY: masked, so inside the first copy of the data.
        unsafe {
            self.mapping
                .base()
                .add(PAGE + (position & self.mask) as usize)
        }
    }

    /// Host: appends a sample.
    ///
    /// # Errors
    /// `E2BIG` for one that never fits, `ENOSPC` if there is no room now.
    pub fn produce(&self, sample: &[u8]) -> Result<(), Errno> {
        let _one = self.producing.lock().unwrap_or_else(|e| e.into_inner());
        let size = u32::try_from(sample.len()).map_err(|_| Errno::E2BIG)?;
        let len = (u64::from(size) + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8);
        if len > self.mask + 1 || size >= BPF_RINGBUF_DISCARD_BIT {
            return Err(Errno::E2BIG);
        }
        let position = self.producer.load(Relaxed);
        if position
            .wrapping_add(len)
            .wrapping_sub(self.consumer.load(Acquire))
            > self.mask + 1
        {
            return Err(Errno::ENOSPC);
        }
        let at = self.data(position).as_ptr();
        // SAFETY: `len` bytes of the doubled data, free for this sample.
        unsafe {
            AtomicU32::from_ptr(at.cast()).store(size, Relaxed);
            store(at.add(BPF_RINGBUF_HDR_SZ as usize), sample);
        }
        self.producer.store(position.wrapping_add(len), Release);
        Ok(())
    }

    /// Bytes that no program has drained yet.
    pub fn pending(&self) -> u64 {
        self.producer
            .load(Acquire)
            .wrapping_sub(self.consumer.load(Acquire))
    }

    /// `bpf_user_ringbuf_drain`: gives the samples one by one; the caller runs the
    /// program's callback on each.
    ///
    /// # Errors
    /// `EBUSY` while another program drains.
    pub fn drain(&self) -> Result<Drain<'_>, Errno> {
        if self.busy.swap(true, Acquire) {
            return Err(Errno::EBUSY);
        }
        Ok(Drain {
            ring: self,
            position: self.consumer.load(Relaxed),
            taken: 0,
        })
    }
}

/// A draining that is under way; ends when dropped.
pub struct Drain<'a> {
    ring: &'a UserRingBuf,
    position: u64,
    taken: u32,
}

impl Drain<'_> {
    /// Samples given so far: what the helper returns.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

impl Iterator for Drain<'_> {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        let ring = self.ring;
        // The sample before is done with.
        ring.consumer.store(self.position, Release);
        let end = self.taken >= BPF_MAX_USER_RINGBUF_SAMPLES;
        if end || self.position == ring.producer.load(Acquire) {
            return None;
        }
        let at = ring.data(self.position);
        // SAFETY: four aligned bytes of the ring.
        let len = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }.load(Acquire);
        let step = (u64::from(len) + u64::from(BPF_RINGBUF_HDR_SZ)).next_multiple_of(8);
        self.position = self.position.wrapping_add(step);
        self.taken += 1;
        // SAFETY: the sample lies in the doubled data.
        let data = unsafe { at.add(BPF_RINGBUF_HDR_SZ as usize) };
        Some(Sample { data, len })
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.ring.consumer.store(self.position, Release);
        self.ring.busy.store(false, Release);
    }
}

impl Ops for UserRingBuf {
    no_keys!();

    fn regions(&self) -> Vec<ValueRegion> {
        let size = 2 * (self.mask + 1);
        vec![ValueRegion {
            base: self.data(0).as_ptr().expose_provenance() as u64,
            stride: size,
            offset: 0,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            count: 1,
        }]
    }
}
