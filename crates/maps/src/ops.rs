//! What a map type does for each operation. Defaults are the kernel's answers of
//! types that lack an operation.

use std::ptr::NonNull;

use crate::{Errno, Progress, ValueRegion};

/// Operations of one map type. Keys and values have the sizes the map was made with:
/// [`Map`](crate::Map) tests them for the host and the verifier for programs; where
/// they do not, an operation answers as for an absent key.
pub(crate) trait Ops: Send + Sync {
    /// Program: address of the value, for this CPU where it has one per CPU.
    fn lookup(&self, _cpu: u32, _key: &[u8]) -> Option<NonNull<u8>> {
        None
    }

    /// Program: `bpf_map_update_elem`.
    fn update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Program and host: `bpf_map_delete_elem`.
    fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Host: the key after `key`, or the first.
    fn next_key(&self, _key: Option<&[u8]>, _next: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Host: copies the value out, every CPU's where there is one per CPU.
    fn read(&self, _key: &[u8], _out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    /// Host: `BPF_MAP_UPDATE_ELEM`, every CPU's value where there is one per CPU.
    fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.update(0, key, value, flags)
    }

    /// Host: `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    fn take(&self, _key: &[u8], _out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    /// `bpf_map_push_elem`.
    fn push(&self, _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// `bpf_map_pop_elem`.
    fn pop(&self, _out: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// `bpf_map_peek_elem`.
    fn peek(&self, _out: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// `bpf_for_each_map_elem`: calls `visit` with the addresses of key and value.
    fn for_each(
        &self,
        _cpu: u32,
        _visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
    ) -> Result<u32, Errno> {
        Err(Errno::EINVAL)
    }

    /// Memory that programs may touch through pointers to values.
    fn regions(&self) -> Vec<ValueRegion> {
        Vec::new()
    }

    /// Key of the element, and start of its value, that holds the byte at `addr`.
    fn element_at(&self, _addr: u64) -> Option<(Box<[u8]>, u64)> {
        None
    }

    /// Which batch operations there are.
    fn batch(&self) -> BatchOps {
        BatchOps::NONE
    }

    /// Host: reads a batch by position, where keys are no good positions.
    /// `from` is where to go on; returns where the next batch goes on, `None` at the end.
    fn read_batch(
        &self,
        _from: u64,
        _remove: bool,
        _max: u32,
        _flags: u64,
        _keys: &mut Vec<u8>,
        _values: &mut Vec<u8>,
    ) -> Result<Option<u64>, Errno> {
        Err(Errno::ENOTSUPP)
    }
}

/// Batch operations of a map type.
#[derive(Clone, Copy, Default)]
pub(crate) struct BatchOps {
    pub(crate) lookup: bool,
    pub(crate) take: bool,
    pub(crate) update: bool,
    pub(crate) delete: bool,
    /// Lookups go by position ([`Ops::read_batch`]) instead of by key.
    pub(crate) by_position: bool,
}

impl BatchOps {
    pub(crate) const NONE: BatchOps = BatchOps {
        lookup: false,
        take: false,
        update: false,
        delete: false,
        by_position: false,
    };
    pub(crate) const ARRAY: BatchOps = BatchOps {
        lookup: true,
        update: true,
        ..BatchOps::NONE
    };
    pub(crate) const KEYED: BatchOps = BatchOps {
        delete: true,
        ..BatchOps::ARRAY
    };
    pub(crate) const HASH: BatchOps = BatchOps {
        take: true,
        by_position: true,
        ..BatchOps::KEYED
    };
}
