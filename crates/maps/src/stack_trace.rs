//! Stack traces by id.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::hash::hash_bytes;
use crate::ops::Ops;
use crate::{Errno, MapParams, array::index};

/// `bpf_get_stackid`: frames to skip.
pub const BPF_F_SKIP_FIELD_MASK: u64 = 0xff;
/// `bpf_get_stackid`: take the user's stack.
pub const BPF_F_USER_STACK: u64 = 1 << 8;
/// `bpf_get_stackid`: compare by hash only.
pub const BPF_F_FAST_STACK_CMP: u64 = 1 << 9;
/// `bpf_get_stackid`: a new trace replaces one with the same id.
pub const BPF_F_REUSE_STACKID: u64 = 1 << 10;

/// `BPF_MAP_TYPE_STACK_TRACE`.
pub struct StackTraces {
    traces: Mutex<BTreeMap<u32, Trace>>,
    ids: u32,
    capacity: usize,
    value_size: usize,
}

struct Trace {
    hash: u32,
    frames: Box<[u8]>,
}

impl StackTraces {
    pub(crate) fn new(p: &MapParams) -> Result<StackTraces, Errno> {
        Ok(StackTraces {
            traces: Mutex::default(),
            ids: p
                .max_entries
                .checked_next_power_of_two()
                .ok_or(Errno::E2BIG)?,
            capacity: p.max_entries as usize,
            value_size: p.value_size as usize,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Trace>> {
        self.traces.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Stores a trace, the innermost frame first, and gives its id: what
    /// `bpf_get_stackid` does once it has the trace (after skipping frames). Frames are
    /// addresses of eight bytes, or build ids and offsets of 32 bytes.
    ///
    /// # Errors
    /// `EEXIST` where another trace has the id and `flags` do not say to replace it,
    /// `EFAULT` for an empty trace, `ENOMEM` for a full map, `EINVAL` for unknown flags.
    pub fn add(&self, frames: &[u8], flags: u64) -> Result<u32, Errno> {
        let known =
            BPF_F_SKIP_FIELD_MASK | BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP | BPF_F_REUSE_STACKID;
        if flags & !known != 0 {
            return Err(Errno::EINVAL);
        }
        if frames.is_empty() {
            return Err(Errno::EFAULT);
        }
        let frames = &frames[..frames.len().min(self.value_size)];
        let hash = hash_bytes(frames, 0);
        let id = hash & (self.ids - 1);
        let mut traces = self.lock();
        if let Some(old) = traces.get(&id) {
            let by_hash = flags & BPF_F_FAST_STACK_CMP != 0;
            if old.hash == hash && (by_hash || *old.frames == *frames) {
                return Ok(id);
            }
            if flags & BPF_F_REUSE_STACKID == 0 {
                return Err(Errno::EEXIST);
            }
        }
        if traces.len() >= self.capacity {
            return Err(Errno::ENOMEM);
        }
        traces.insert(
            id,
            Trace {
                hash,
                frames: frames.into(),
            },
        );
        Ok(id)
    }
}

impl Ops for StackTraces {
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        let id = index(key).filter(|id| *id < self.ids).ok_or(Errno::E2BIG)?;
        self.lock().remove(&id).map(drop).ok_or(Errno::ENOENT)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        let traces = self.lock();
        let present = key.and_then(index).filter(|id| traces.contains_key(id));
        let from = present.map_or(0, |id| id + 1);
        let (id, _) = traces.range(from..).next().ok_or(Errno::ENOENT)?;
        next.get_mut(..4)
            .ok_or(Errno::EINVAL)?
            .copy_from_slice(&id.to_ne_bytes());
        Ok(())
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let id = index(key).ok_or(Errno::EINVAL)?;
        put(self.lock().get(&id), out)
    }

    fn take(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let id = index(key).ok_or(Errno::EINVAL)?;
        put(self.lock().remove(&id).as_ref(), out)
    }
}

/// Copies a trace out; zeros follow it.
fn put(trace: Option<&Trace>, out: &mut [u8]) -> Result<(), Errno> {
    let frames = &trace.ok_or(Errno::ENOENT)?.frames;
    out.fill(0);
    out.iter_mut().zip(frames).for_each(|(o, f)| *o = *f);
    Ok(())
}
