//! Queues and stacks.

use std::sync::Mutex;

use crate::flags::{BPF_EXIST, BPF_NOEXIST};
use crate::mem::{Commit, Region};
use crate::ops::Ops;
use crate::value::{load, store, zero};
use crate::{Errno, MapParams};

/// `BPF_MAP_TYPE_QUEUE` and `BPF_MAP_TYPE_STACK`: a ring of values under a lock.
pub(crate) struct QueueMap {
    values: Region,
    size: usize,
    capacity: usize,
    last_first: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Index of the oldest value.
    oldest: usize,
    len: usize,
}

impl QueueMap {
    pub(crate) fn new(p: &MapParams) -> Result<QueueMap, Errno> {
        let (size, capacity) = (p.value_size as usize, p.max_entries as usize);
        Ok(QueueMap {
            values: Region::array(capacity, size, Commit::Whole)?,
            size,
            capacity,
            last_first: p.map_type == bpfkit_spec::MapType::Stack,
            state: Mutex::default(),
        })
    }

    fn at(&self, index: usize) -> *mut u8 {
        self.values.at(index % self.capacity * self.size).as_ptr()
    }

    fn next(&self, out: &mut [u8], remove: bool) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.len == 0 {
            out.fill(0);
            return Err(Errno::ENOENT);
        }
        let index = if self.last_first {
            state.oldest + state.len - 1
        } else {
            state.oldest
        };
        let len = out.len().min(self.size);
        // SAFETY: `at` gives `size` bytes, which nobody else touches under the lock.
        unsafe { load(&mut out[..len], self.at(index)) };
        if remove {
            state.len -= 1;
            if !self.last_first {
                state.oldest = (state.oldest + 1) % self.capacity;
            }
        }
        Ok(())
    }
}

impl Ops for QueueMap {
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, _key: Option<&[u8]>, _next: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn read(&self, _key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        self.next(out, false)
    }

    fn write(&self, _key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.push(value, flags)
    }

    fn take(&self, _key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        self.next(out, true)
    }

    fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & BPF_NOEXIST != 0 || flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.len == self.capacity {
            if flags & BPF_EXIST == 0 {
                return Err(Errno::E2BIG);
            }
            state.oldest = (state.oldest + 1) % self.capacity;
            state.len -= 1;
        }
        let at = self.at(state.oldest + state.len);
        let len = value.len().min(self.size);
        // SAFETY: `at` gives `size` bytes, which nobody else touches under the lock.
        unsafe {
            store(at, &value[..len]);
            zero(at.add(len), self.size - len);
        }
        state.len += 1;
        Ok(())
    }

    fn pop(&self, out: &mut [u8]) -> Result<(), Errno> {
        self.next(out, true)
    }

    fn peek(&self, out: &mut [u8]) -> Result<(), Errno> {
        self.next(out, false)
    }
}
