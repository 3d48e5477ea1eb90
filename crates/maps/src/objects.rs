//! Arrays of the host's objects: programs and perf events.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use crate::array::{index, next_index};
use crate::mem::{Commit, Region};
use crate::ops::Ops;
use crate::{Errno, Guard, MapParams, Object};

/// Where compiled code goes on that calls a program of a program array.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Direct {
    /// Address to jump to, 0 where the engine must be asked.
    pub code: u64,
    /// What a program must be to jump there, as engines number it.
    pub kind: u64,
}

/// A slot's contents: the object and the id that the host reads. Compiled code reads the
/// beginning.
#[repr(C)]
struct Entry {
    direct: Direct,
    object: Object,
    id: u32,
}

/// `BPF_MAP_TYPE_PROG_ARRAY`: programs for tail calls, in the engine's form.
pub struct ProgArray {
    slots: Region,
    len: u32,
    /// Slots from here on were never filled.
    filled: AtomicU32,
}

impl ProgArray {
    pub(crate) fn new(p: &MapParams) -> Result<ProgArray, Errno> {
        let len = p.max_entries;
        let slots = Region::array(len as usize, size_of::<usize>(), Commit::Whole)?;
        Ok(ProgArray {
            slots,
            len,
            filled: AtomicU32::new(0),
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&AtomicPtr<Entry>> {
        if index >= self.len {
            return None;
        }
        let at = self.slots.at(index as usize * size_of::<usize>());
        // SAFETY: one aligned pointer, as the index was tested; zeros are null.
        Some(unsafe { AtomicPtr::from_ptr(at.as_ptr().cast()) })
    }

    #[inline]
    fn entry<'g>(&self, index: u32, _guard: &'g Guard) -> Option<&'g Entry> {
        // SAFETY: slots hold null or a boxed entry, and an entry that leaves its slot is
        // destroyed only after this guard.
        unsafe { self.slot(index)?.load(Acquire).as_ref() }
    }

    /// Address of the first slot. A slot is the address of a [`Direct`], or null.
    pub fn slots(&self) -> u64 {
        self.slots.base().as_ptr().expose_provenance() as u64
    }

    /// The object behind a [`Direct`].
    ///
    /// # Safety
    /// `at` was read from a slot, and since before that until `'g` ends the thread holds a
    /// guard.
    pub unsafe fn object_at<'g>(at: usize) -> &'g Object {
        // SAFETY: by this function's contract an entry, which lives as long as the guard.
        unsafe { &(*std::ptr::with_exposed_provenance::<Entry>(at)).object }
    }

    /// The program in slot `index`, as long as the guard is held.
    #[inline]
    pub fn get<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Object> {
        self.entry(index, guard).map(|entry| &entry.object)
    }

    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.len
    }

    /// Puts a program into a slot; the host reads `id` back.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there.
    pub fn set(&self, index: u32, object: Object, id: u32) -> Result<(), Errno> {
        self.set_direct(index, object, Direct::default(), id)
    }

    /// As [`set`](Self::set), with what compiled code finds there.
    ///
    /// # Errors
    /// As `set`.
    pub fn set_direct(
        &self,
        index: u32,
        object: Object,
        direct: Direct,
        id: u32,
    ) -> Result<(), Errno> {
        let slot = self.slot(index).ok_or(Errno::E2BIG)?;
        self.filled.fetch_max(index + 1, Relaxed);
        let entry = Box::new(Entry { direct, object, id });
        let entry = Box::into_raw(entry);
        // Compiled code has only its address.
        entry.expose_provenance();
        drop_later(slot.swap(entry, AcqRel));
        Ok(())
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there, `ENOENT` for an empty one.
    pub fn clear(&self, index: u32) -> Result<(), Errno> {
        let slot = self.slot(index).ok_or(Errno::E2BIG)?;
        if drop_later(slot.swap(null_mut(), AcqRel)) {
            Ok(())
        } else {
            Err(Errno::ENOENT)
        }
    }
}

/// Destroys what came out of a slot once no thread can still look at it; says whether
/// there was anything.
fn drop_later(entry: *mut Entry) -> bool {
    if entry.is_null() {
        return false;
    }
    // SAFETY: `set` boxed it, and the swap that took it out made this the only owner.
    let entry = unsafe { Box::from_raw(entry) };
    crate::pin().defer(move || drop(entry));
    true
}

impl Ops for ProgArray {
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        // Bytes name no program: the host uses `ProgArray::set`.
        Err(Errno::EBADF)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.clear(index(key).ok_or(Errno::EINVAL)?)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.entries(), next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let guard = crate::pin();
        let entry = index(key)
            .and_then(|i| self.entry(i, &guard))
            .ok_or(Errno::ENOENT)?;
        out.get_mut(..4)
            .ok_or(Errno::EINVAL)?
            .copy_from_slice(&entry.id.to_ne_bytes());
        Ok(())
    }
}

impl Drop for ProgArray {
    fn drop(&mut self) {
        for index in 0..*self.filled.get_mut() {
            if let Some(slot) = self.slot(index) {
                drop_later(slot.swap(null_mut(), AcqRel));
            }
        }
    }
}

/// `bpf_perf_event_output`: the event of the CPU that runs the program.
pub const BPF_F_CURRENT_CPU: u64 = 0xffff_ffff;

/// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`: a buffer of samples for each CPU.
pub struct PerfEventArray {
    slots: Box<[Mutex<Option<PerfBuffer>>]>,
    counters: Box<[AtomicU64]>,
    len: u32,
}

struct PerfBuffer {
    samples: VecDeque<PerfSample>,
    bytes: usize,
    capacity: usize,
    lost: u64,
}

/// A sample that a program put out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfSample {
    /// Slot of the event.
    pub index: u32,
    /// CPU of the program.
    pub cpu: u32,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Most slots that may hold an event: as many CPUs as a cpumap admits.
const PERF_SLOTS_MAX: u32 = 8192;

impl PerfEventArray {
    pub(crate) fn new(p: &MapParams) -> PerfEventArray {
        // Slots beyond any CPU stay empty for ever, so they need no memory.
        let n = p.max_entries.min(PERF_SLOTS_MAX.max(p.cpus));
        PerfEventArray {
            slots: (0..n).map(|_| Mutex::default()).collect(),
            counters: (0..n).map(|_| AtomicU64::new(0)).collect(),
            len: p.max_entries,
        }
    }

    fn slot(&self, index: u32) -> Result<std::sync::MutexGuard<'_, Option<PerfBuffer>>, Errno> {
        let absent = if index < self.len {
            Errno::ENOENT
        } else {
            Errno::E2BIG
        };
        let slot = self.slots.get(index as usize).ok_or(absent)?;
        Ok(slot.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Opens an event in a slot, with a buffer of `capacity` bytes of samples.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there.
    pub fn open(&self, index: u32, capacity: usize) -> Result<(), Errno> {
        let fresh = PerfBuffer {
            samples: VecDeque::new(),
            bytes: 0,
            capacity,
            lost: 0,
        };
        *self.slot(index)? = Some(fresh);
        Ok(())
    }

    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.len
    }

    /// `bpf_perf_event_output`: puts a sample into the event that `flags` name.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `E2BIG` for a slot that is not there, `ENOENT` where
    /// no event is open, `ENOSPC` where its buffer is full (the sample counts as lost).
    pub fn output(&self, cpu: u32, flags: u64, data: &[&[u8]]) -> Result<(), Errno> {
        if flags & !BPF_F_CURRENT_CPU != 0 {
            return Err(Errno::EINVAL);
        }
        let index = if flags == BPF_F_CURRENT_CPU {
            cpu
        } else {
            flags as u32
        };
        let mut slot = self.slot(index)?;
        let buffer = slot.as_mut().ok_or(Errno::ENOENT)?;
        let len: usize = data.iter().map(|part| part.len()).sum();
        if buffer.bytes.saturating_add(len) > buffer.capacity {
            buffer.lost += 1;
            return Err(Errno::ENOSPC);
        }
        buffer.bytes += len;
        buffer.samples.push_back(PerfSample {
            index,
            cpu,
            data: data.concat(),
        });
        Ok(())
    }

    /// Sets the counter that `bpf_perf_event_read` gives for a slot.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there.
    pub fn set_counter(&self, index: u32, value: u64) -> Result<(), Errno> {
        let counter = self.counters.get(index as usize).ok_or(Errno::E2BIG)?;
        counter.store(value, Relaxed);
        Ok(())
    }

    /// `bpf_perf_event_read`.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there, `ENOENT` where no event is open.
    pub fn counter(&self, index: u32) -> Result<u64, Errno> {
        self.slot(index)?.as_ref().ok_or(Errno::ENOENT)?;
        Ok(self
            .counters
            .get(index as usize)
            .map_or(0, |c| c.load(Relaxed)))
    }

    /// Host: takes all samples of a slot, and the number lost since the last call.
    ///
    /// # Errors
    /// `E2BIG` for a slot that is not there, `ENOENT` where no event is open.
    pub fn drain(&self, index: u32) -> Result<(Vec<PerfSample>, u64), Errno> {
        let mut slot = self.slot(index)?;
        let buffer = slot.as_mut().ok_or(Errno::ENOENT)?;
        buffer.bytes = 0;
        Ok((
            buffer.samples.drain(..).collect(),
            std::mem::take(&mut buffer.lost),
        ))
    }
}

impl Ops for PerfEventArray {
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        // Bytes name no event: the host uses `PerfEventArray::open`.
        Err(Errno::EBADF)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        let mut slot = self.slot(index(key).ok_or(Errno::EINVAL)?)?;
        slot.take().map(drop).ok_or(Errno::ENOENT)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.entries(), next)
    }
}
