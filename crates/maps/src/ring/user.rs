//! The user ring buffer: the host produces samples, a program drains them.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use crossbeam_utils::CachePadded;

use super::no_keys;
use super::protocol::{BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ, PAGE};
use crate::mapping::Mapping;
use crate::ops::Ops;
use crate::value::store;
use crate::{Errno, MapParams, ValueRegion};

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
