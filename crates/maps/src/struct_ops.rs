//! struct_ops: one value, a structure of the kernel's with programs behind its pointers.

use std::sync::Mutex;

use crate::array::index;
use crate::flags::{BPF_ANY, BPF_F_LINK};
use crate::ops::Ops;
use crate::{Errno, MapParams};

/// `BPF_MAP_TYPE_STRUCT_OPS`.
pub struct StructOps {
    value: Mutex<State>,
    linked: bool,
}

struct State {
    bytes: Box<[u8]>,
    registered: bool,
}

impl StructOps {
    pub(crate) fn new(p: &MapParams) -> StructOps {
        let bytes = vec![0; p.value_size as usize].into();
        StructOps {
            value: Mutex::new(State {
                bytes,
                registered: false,
            }),
            linked: p.flags & BPF_F_LINK != 0,
        }
    }

    /// Whether the structure is in force: written, and not deleted since.
    pub fn is_registered(&self) -> bool {
        self.value
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .registered
    }
}

impl Ops for StructOps {
    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != BPF_ANY {
            return Err(Errno::EINVAL);
        }
        if index(key) != Some(0) {
            return Err(Errno::E2BIG);
        }
        let mut state = self.value.lock().unwrap_or_else(|e| e.into_inner());
        if state.registered {
            return Err(Errno::EBUSY);
        }
        state.bytes.iter_mut().zip(value).for_each(|(b, v)| *b = *v);
        state.registered = true;
        Ok(())
    }

    fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        if self.linked {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.value.lock().unwrap_or_else(|e| e.into_inner());
        if std::mem::take(&mut state.registered) {
            Ok(())
        } else {
            Err(Errno::ENOENT)
        }
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        if key.and_then(index) == Some(0) {
            return Err(Errno::ENOENT);
        }
        next.fill(0);
        Ok(())
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        if index(key) != Some(0) {
            return Err(Errno::ENOENT);
        }
        let state = self.value.lock().unwrap_or_else(|e| e.into_inner());
        out.iter_mut().zip(&state.bytes).for_each(|(o, b)| *o = *b);
        Ok(())
    }
}
