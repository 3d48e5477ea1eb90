//! The host's side of a map: what `bpf(2)` does with it.

use crate::flags::*;
use crate::mem::round8;
use crate::{Errno, Map};
use bpfkit_spec::MapType;

/// Where a batch goes on; comes from the batch before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchToken(Token);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// After this key.
    Key(Vec<u8>),
    /// At this position.
    Position(u64),
}

/// What a batch of lookups found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Keys, one after the other.
    pub keys: Vec<u8>,
    /// Values in the host's form, one after the other.
    pub values: Vec<u8>,
    /// Number of elements.
    pub count: u32,
    /// Where the next batch goes on; `None`: this was the last (the kernel says
    /// `ENOENT` beside the elements).
    pub next: Option<BatchToken>,
}

/// A batch of updates or deletions that stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// Elements done before the error.
    pub done: u32,
    /// Why it stopped.
    pub errno: Errno,
}

impl Map {
    /// Size of a value in the host's form: per-CPU maps have every CPU's value, each
    /// rounded up to 8 bytes; maps of objects have an id of 4 bytes.
    pub fn host_value_size(&self) -> usize {
        use MapType::*;
        match self.map_type() {
            PercpuArray | PercpuHash | LruPercpuHash | PercpuCgroupStorage => {
                round8(self.value_size()) * self.params().cpus as usize
            }
            ProgArray | PerfEventArray | CgroupArray | ArrayOfMaps | HashOfMaps => 4,
            _ => self.value_size(),
        }
    }

    pub(crate) fn writable(&self) -> Result<(), Errno> {
        let denied = self.params().flags & BPF_F_RDONLY != 0 || self.is_frozen();
        if denied { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn readable(&self) -> Result<(), Errno> {
        let denied = self.params().flags & BPF_F_WRONLY != 0;
        if denied { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Errno> {
        if key.len() == self.key_size() {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn check_lock(&self, flags: u64) -> Result<(), Errno> {
        let has_lock = || {
            let mut kinds = self.params().fields.iter().map(|f| f.kind);
            kinds.any(|kind| kind == crate::FieldKind::SpinLock)
        };
        if flags & BPF_F_LOCK != 0 && !has_lock() {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        }
    }

    fn check_read_flags(&self, flags: u64) -> Result<(), Errno> {
        if flags & !BPF_F_LOCK != 0 {
            Err(Errno::EINVAL)
        } else {
            self.check_lock(flags)
        }
    }

    /// Reads a value (`BPF_MAP_LOOKUP_ELEM`). Maps of maps give the inner map's id;
    /// queues and stacks (empty key) their next element.
    ///
    /// # Errors
    /// `ENOENT` for an absent key, `EINVAL` for a key of another size, `EPERM`, and by
    /// map type.
    pub fn read(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        self.read_with(key, 0)
    }

    /// As [`Map::read`], with flags: [`BPF_F_LOCK`].
    ///
    /// # Errors
    /// As there.
    pub fn read_with(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        self.check_read_flags(flags)?;
        self.readable()?;
        self.check_key(key)?;
        let mut value = vec![0; self.host_value_size()];
        self.ops().read(key, &mut value, flags)?;
        Ok(value)
    }

    /// Writes a value (`BPF_MAP_UPDATE_ELEM`), in the host's form.
    ///
    /// # Errors
    /// `EINVAL` for sizes or flags that do not fit, `EPERM`, and by map type.
    pub fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.writable()?;
        self.check_lock(flags)?;
        self.check_key(key)?;
        if value.len() != self.host_value_size() {
            return Err(Errno::EINVAL);
        }
        self.ops().write(key, value, flags)
    }

    /// Deletes an element (`BPF_MAP_DELETE_ELEM`).
    ///
    /// # Errors
    /// `ENOENT` for an absent key, `EPERM`, and by map type.
    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        self.writable()?;
        self.check_key(key)?;
        self.ops().delete(0, key)
    }

    /// Reads a value and deletes the element (`BPF_MAP_LOOKUP_AND_DELETE_ELEM`).
    ///
    /// # Errors
    /// As [`Map::read`] and [`Map::remove`]; `ENOTSUPP` by map type.
    pub fn take(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        if flags & !BPF_F_LOCK != 0 {
            return Err(Errno::EINVAL);
        }
        self.readable()?;
        self.writable()?;
        use MapType::{Queue, Stack};
        if flags != 0 && matches!(self.map_type(), Queue | Stack) {
            return Err(Errno::EINVAL);
        }
        self.check_lock(flags)?;
        self.check_key(key)?;
        let mut value = vec![0; self.host_value_size()];
        self.ops().take(key, &mut value, flags)?;
        Ok(value)
    }

    /// The key after `key`, or the first key where there is none or it is not in the
    /// map (`BPF_MAP_GET_NEXT_KEY`).
    ///
    /// # Errors
    /// `ENOENT` after the last key, `EPERM`, and by map type.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        self.readable()?;
        if let Some(key) = key {
            self.check_key(key)?;
        }
        let mut next = vec![0; self.key_size()];
        self.ops().next_key(key, &mut next)?;
        Ok(next)
    }

    /// Calls `visit` with key and value of each element, as a loop over
    /// [`Map::next_key`] and [`Map::read`] would. Elements that come or go meanwhile may
    /// or may not be seen.
    ///
    /// # Errors
    /// As those.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), Errno> {
        let mut from = None;
        if self.ops().batch().by_position {
            loop {
                let batch = self.lookup_batch(from.as_ref(), 1024, 0)?;
                let keys = batch.keys.chunks_exact(self.key_size());
                let values = batch.values.chunks_exact(self.host_value_size().max(1));
                keys.zip(values).for_each(|(key, value)| visit(key, value));
                match batch.next {
                    Some(next) => from = Some(next),
                    None => return Ok(()),
                }
            }
        }
        let mut key = self.next_key(None);
        loop {
            match key {
                Ok(k) => {
                    if let Ok(value) = self.read(&k) {
                        visit(&k, &value);
                    }
                    key = self.next_key(Some(&k));
                }
                Err(Errno::ENOENT) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Number of elements that the host can walk over.
    ///
    /// # Errors
    /// As [`Map::for_each`].
    pub fn count(&self) -> Result<u64, Errno> {
        let mut n = 0;
        self.for_each(|_, _| n += 1)?;
        Ok(n)
    }

    /// Reads up to `max` elements (`BPF_MAP_LOOKUP_BATCH`).
    ///
    /// # Errors
    /// `ENOENT` if nothing is left at the start, `ENOTSUPP` by map type, `EINVAL`, `EPERM`.
    pub fn lookup_batch(
        &self,
        from: Option<&BatchToken>,
        max: u32,
        flags: u64,
    ) -> Result<Batch, Errno> {
        self.readable()?;
        let ops = self.ops().batch();
        if !ops.lookup {
            return Err(Errno::ENOTSUPP);
        }
        self.check_read_flags(flags)?;
        if ops.by_position {
            return self.batch_by_position(from, false, max, flags);
        }
        let mut batch = Batch {
            keys: vec![],
            values: vec![],
            count: 0,
            next: None,
        };
        let mut last = match from {
            Some(BatchToken(Token::Key(key))) => Some(key.clone()),
            Some(BatchToken(Token::Position(_))) => return Err(Errno::EINVAL),
            None => None,
        };
        if max == 0 {
            return Ok(batch);
        }
        let mut key = self.next_key(last.as_deref())?;
        loop {
            match self.read_with(&key, flags) {
                Ok(value) => {
                    batch.keys.extend_from_slice(&key);
                    batch.values.extend_from_slice(&value);
                    batch.count += 1;
                    last = Some(key.clone());
                }
                // Gone since: as if it had never been there.
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
            match self.next_key(Some(&key)) {
                Ok(_) if batch.count == max => {
                    batch.next = last.map(|key| BatchToken(Token::Key(key)));
                    return Ok(batch);
                }
                Ok(next) => key = next,
                Err(_) => return Ok(batch),
            }
        }
    }

    /// Reads and deletes up to `max` elements (`BPF_MAP_LOOKUP_AND_DELETE_BATCH`).
    ///
    /// # Errors
    /// As [`Map::lookup_batch`].
    pub fn take_batch(
        &self,
        from: Option<&BatchToken>,
        max: u32,
        flags: u64,
    ) -> Result<Batch, Errno> {
        self.readable()?;
        self.writable()?;
        if !self.ops().batch().take {
            return Err(Errno::ENOTSUPP);
        }
        self.check_read_flags(flags)?;
        self.batch_by_position(from, true, max, flags)
    }

    fn batch_by_position(
        &self,
        from: Option<&BatchToken>,
        remove: bool,
        max: u32,
        flags: u64,
    ) -> Result<Batch, Errno> {
        let start = match from {
            Some(BatchToken(Token::Position(position))) => *position,
            Some(BatchToken(Token::Key(_))) => return Err(Errno::EINVAL),
            None => 0,
        };
        let mut batch = Batch {
            keys: vec![],
            values: vec![],
            count: 0,
            next: None,
        };
        let (keys, values) = (&mut batch.keys, &mut batch.values);
        let next = self
            .ops()
            .read_batch(start, remove, max, flags, keys, values)?;
        batch.count = (batch.keys.len() / self.key_size().max(1)) as u32;
        batch.next = next.map(|position| BatchToken(Token::Position(position)));
        Ok(batch)
    }

    /// Writes elements, keys and values one after the other (`BPF_MAP_UPDATE_BATCH`).
    /// `flags` hold for each element.
    ///
    /// # Errors
    /// The first element's that failed, with the number done before; `ENOTSUPP` by map
    /// type; `EINVAL` for flags other than [`BPF_F_LOCK`] or sizes that do not fit.
    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u64) -> Result<u32, BatchError> {
        let fail = |errno| BatchError { done: 0, errno };
        self.writable().map_err(fail)?;
        if !self.ops().batch().update {
            return Err(fail(Errno::ENOTSUPP));
        }
        self.check_read_flags(flags).map_err(fail)?;
        let (key_size, value_size) = (self.key_size().max(1), self.host_value_size().max(1));
        let n = keys.len() / key_size;
        if !keys.len().is_multiple_of(key_size) || values.len() != n * value_size {
            return Err(fail(Errno::EINVAL));
        }
        let elements = keys
            .chunks_exact(key_size)
            .zip(values.chunks_exact(value_size));
        self.each(elements, |(key, value)| self.write(key, value, flags))
    }

    /// Deletes elements, keys one after the other (`BPF_MAP_DELETE_BATCH`).
    ///
    /// # Errors
    /// As [`Map::update_batch`].
    pub fn delete_batch(&self, keys: &[u8], flags: u64) -> Result<u32, BatchError> {
        let fail = |errno| BatchError { done: 0, errno };
        self.writable().map_err(fail)?;
        if !self.ops().batch().delete {
            return Err(fail(Errno::ENOTSUPP));
        }
        self.check_read_flags(flags).map_err(fail)?;
        let key_size = self.key_size().max(1);
        if !keys.len().is_multiple_of(key_size) {
            return Err(fail(Errno::EINVAL));
        }
        self.each(keys.chunks_exact(key_size), |key| self.remove(key))
    }

    fn each<T>(
        &self,
        elements: impl Iterator<Item = T>,
        mut work: impl FnMut(T) -> Result<(), Errno>,
    ) -> Result<u32, BatchError> {
        let mut done = 0;
        for element in elements {
            work(element).map_err(|errno| BatchError { done, errno })?;
            done += 1;
        }
        Ok(done)
    }
}
