//! Arrays: one block of values, and one block a CPU.

use std::ptr::NonNull;

use crate::flags::{BPF_EXIST, BPF_F_LOCK, BPF_F_MMAPABLE, BPF_NOEXIST};
use crate::mem::{Commit, Region, round8};
use crate::ops::{BatchOps, Ops};
use crate::value::{ValueLayout, load, store};
use crate::{Errno, MapParams, Progress, ValueRegion};

/// Index that a key of an array holds.
#[inline]
pub(crate) fn index(key: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(key.try_into().ok()?))
}

/// The key after `key` in a map of `max` indexes, as every array gives it.
pub(crate) fn next_index(key: Option<&[u8]>, max: u32, next: &mut [u8]) -> Result<(), Errno> {
    let after = match key.and_then(index) {
        Some(i) if i < max => i + 1,
        _ => 0,
    };
    if after >= max {
        return Err(Errno::ENOENT);
    }
    put_index(after, next)
}

fn put_index(index: u32, out: &mut [u8]) -> Result<(), Errno> {
    out.get_mut(..4)
        .ok_or(Errno::EINVAL)?
        .copy_from_slice(&index.to_ne_bytes());
    Ok(())
}

/// What an update of an array refuses before it looks at the value.
pub(crate) fn check_update(index: u32, max: u32, flags: u64) -> Result<(), Errno> {
    if flags & !BPF_F_LOCK > BPF_EXIST {
        return Err(Errno::EINVAL);
    }
    if index >= max {
        return Err(Errno::E2BIG);
    }
    if flags & BPF_NOEXIST != 0 {
        return Err(Errno::EEXIST);
    }
    Ok(())
}

/// `BPF_MAP_TYPE_ARRAY`.
pub struct ArrayMap {
    values: Region,
    stride: usize,
    len: u32,
    layout: ValueLayout,
}

impl ArrayMap {
    pub(crate) fn new(p: &MapParams, layout: ValueLayout) -> Result<ArrayMap, Errno> {
        let stride = round8(p.value_size as usize);
        let bytes = stride
            .checked_mul(p.max_entries as usize)
            .ok_or(Errno::ENOMEM)?;
        let values = if p.flags & BPF_F_MMAPABLE != 0 {
            Region::pages(bytes)?
        } else {
            Region::zeroed(bytes, Commit::Whole)?
        };
        Ok(ArrayMap {
            values,
            stride,
            len: p.max_entries,
            layout,
        })
    }

    /// Address of the first value; value `i` is `i * stride()` bytes further.
    pub fn base(&self) -> NonNull<u8> {
        self.values.base()
    }

    /// Distance of values in bytes: the value size rounded up to 8.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Number of values.
    pub fn entries(&self) -> u32 {
        self.len
    }

    /// Address of value `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<NonNull<u8>> {
        if index < self.len {
            Some(self.values.at(index as usize * self.stride))
        } else {
            None
        }
    }

    pub(crate) fn layout(&self) -> &ValueLayout {
        &self.layout
    }
}

impl Ops for ArrayMap {
    #[inline]
    fn lookup(&self, _cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.get(index(key)?)
    }

    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let i = index(key).ok_or(Errno::EINVAL)?;
        check_update(i, self.len, flags)?;
        self.layout.check_lock(flags)?;
        let at = self.get(i).ok_or(Errno::E2BIG)?;
        // SAFETY: `get` gives whole values.
        unsafe {
            self.layout.write(at, value, flags);
            self.layout.release(at);
        }
        Ok(())
    }

    fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let at = index(key).and_then(|i| self.get(i)).ok_or(Errno::ENOENT)?;
        // SAFETY: `get` gives whole values.
        unsafe { self.layout.read(out, at, flags) };
        Ok(())
    }

    fn for_each(
        &self,
        _cpu: u32,
        visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
    ) -> Result<u32, Errno> {
        visit_indexes(self.len, |i| self.get(i), visit)
    }

    fn regions(&self) -> Vec<ValueRegion> {
        vec![ValueRegion {
            base: self.values.base().as_ptr().expose_provenance() as u64,
            stride: self.stride as u64,
            offset: 0,
            size: self.layout.size() as u32,
            count: u64::from(self.len),
        }]
    }

    fn element_at(&self, addr: u64) -> Option<(Box<[u8]>, u64)> {
        let index = self.regions().first()?.index_of(addr)?;
        let start = self.base().addr().get() as u64 + index * self.stride as u64;
        Some(((index as u32).to_ne_bytes().into(), start))
    }

    fn batch(&self) -> BatchOps {
        BatchOps::ARRAY
    }
}

fn visit_indexes(
    len: u32,
    get: impl Fn(u32) -> Option<NonNull<u8>>,
    visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
) -> Result<u32, Errno> {
    let mut seen = 0;
    for i in 0..len {
        let Some(value) = get(i) else { break };
        seen += 1;
        if visit((&raw const i).cast(), value) == Progress::Stop {
            break;
        }
    }
    Ok(seen)
}

impl Drop for ArrayMap {
    fn drop(&mut self) {
        if self.layout.owns() {
            for i in 0..self.len {
                if let Some(at) = self.get(i) {
                    // SAFETY: `get` gives whole values.
                    unsafe { self.layout.release(at) };
                }
            }
        }
    }
}

/// Values that every CPU has of its own, element by element.
///
/// Each CPU's values form one block, so no two CPUs write to one cache line.
pub(crate) struct PerCpuValues {
    values: Region,
    stride: usize,
    block: usize,
    count: u32,
    cpus: u32,
    layout: ValueLayout,
}

impl PerCpuValues {
    pub(crate) fn new(
        value_size: u32,
        count: u32,
        cpus: u32,
        commit: Commit,
        layout: ValueLayout,
    ) -> Result<PerCpuValues, Errno> {
        let stride = round8(value_size as usize);
        let bytes = stride.checked_mul(count as usize).ok_or(Errno::ENOMEM)?;
        let block = bytes.checked_next_multiple_of(128).ok_or(Errno::ENOMEM)?;
        let values = Region::array(block, cpus as usize, commit)?;
        Ok(PerCpuValues {
            values,
            stride,
            block,
            count,
            cpus,
            layout,
        })
    }

    /// The value of element `i` on `cpu`.
    #[inline]
    pub(crate) fn get(&self, cpu: u32, i: u32) -> Option<NonNull<u8>> {
        if cpu < self.cpus && i < self.count {
            Some(
                self.values
                    .at(cpu as usize * self.block + i as usize * self.stride),
            )
        } else {
            None
        }
    }

    pub(crate) fn layout(&self) -> &ValueLayout {
        &self.layout
    }

    /// Bytes of every CPU's value together, as the host sees it.
    pub(crate) fn host_size(&self) -> usize {
        self.stride * self.cpus as usize
    }

    /// Copies every CPU's value out, each rounded up to 8 bytes.
    pub(crate) fn read_all(&self, i: u32, out: &mut [u8]) {
        for (cpu, part) in (0..self.cpus).zip(out.chunks_exact_mut(self.stride)) {
            if let Some(at) = self.get(cpu, i) {
                // SAFETY: values are `stride` bytes apart, so a whole part is there.
                unsafe { load(part, at.as_ptr()) };
                for f in self.layout.fields() {
                    let start = f.offset as usize;
                    part[start..start + f.size() as usize].fill(0);
                }
            }
        }
    }

    /// Copies every CPU's value in.
    pub(crate) fn write_all(&self, i: u32, value: &[u8]) {
        for (cpu, part) in (0..self.cpus).zip(value.chunks_exact(self.stride)) {
            self.write_one(cpu, i, part);
        }
    }

    /// Copies one CPU's value in.
    pub(crate) fn write_one(&self, cpu: u32, i: u32, value: &[u8]) {
        if let Some(at) = self.get(cpu, i) {
            if self.layout.fields().is_empty() {
                let len = value.len().min(self.stride);
                // SAFETY: values are `stride` bytes apart.
                unsafe { store(at.as_ptr(), &value[..len]) };
            } else {
                // SAFETY: `get` gives whole values.
                unsafe { self.layout.copy_in(at, value) };
            }
        }
    }

    /// Makes `value` the value of `cpu` and zeroes the other CPUs' values.
    pub(crate) fn write_first(&self, cpu: u32, i: u32, value: &[u8]) {
        for other in (0..self.cpus).filter(|c| *c != cpu) {
            if let Some(at) = self.get(other, i) {
                // SAFETY: values are `stride` bytes apart.
                unsafe { crate::value::zero(at.as_ptr(), self.stride) };
            }
        }
        self.write_one(cpu, i, value);
    }

    /// Gives up what the values of element `i` own.
    pub(crate) fn release(&self, i: u32) {
        if self.layout.owns() {
            for cpu in 0..self.cpus {
                if let Some(at) = self.get(cpu, i) {
                    // SAFETY: `get` gives whole values.
                    unsafe { self.layout.release(at) };
                }
            }
        }
    }

    pub(crate) fn regions(&self) -> Vec<ValueRegion> {
        (0..self.cpus)
            .filter_map(|cpu| self.get(cpu, 0))
            .map(|base| ValueRegion {
                base: base.as_ptr().expose_provenance() as u64,
                stride: self.stride as u64,
                offset: 0,
                size: self.layout.size() as u32,
                count: u64::from(self.count),
            })
            .collect()
    }
}

/// `BPF_MAP_TYPE_PERCPU_ARRAY`.
pub struct PercpuArrayMap {
    values: PerCpuValues,
    len: u32,
}

impl PercpuArrayMap {
    pub(crate) fn new(p: &MapParams, layout: ValueLayout) -> Result<PercpuArrayMap, Errno> {
        let values = PerCpuValues::new(p.value_size, p.max_entries, p.cpus, Commit::Whole, layout)?;
        Ok(PercpuArrayMap {
            values,
            len: p.max_entries,
        })
    }

    /// Address of value `index` of `cpu`.
    #[inline]
    pub fn get(&self, cpu: u32, index: u32) -> Option<NonNull<u8>> {
        self.values.get(cpu, index)
    }

    /// Address of the first value of CPU 0; value `i` of CPU `c` is
    /// `c * cpu_stride() + i * stride()` bytes further.
    pub fn base(&self) -> NonNull<u8> {
        self.values.values.base()
    }

    /// Distance of values in bytes: the value size rounded up to 8.
    pub fn stride(&self) -> usize {
        self.values.stride
    }

    /// Distance of the CPUs' blocks in bytes.
    pub fn cpu_stride(&self) -> usize {
        self.values.block
    }

    /// Number of values of each CPU.
    pub fn entries(&self) -> u32 {
        self.len
    }

    pub(crate) fn layout(&self) -> &ValueLayout {
        &self.values.layout
    }
}

impl Ops for PercpuArrayMap {
    #[inline]
    fn lookup(&self, cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.get(cpu, index(key)?)
    }

    fn update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let i = index(key).ok_or(Errno::EINVAL)?;
        if flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        check_update(i, self.len, flags)?;
        self.values.write_one(cpu, i, value);
        if let (true, Some(at)) = (self.layout().owns(), self.get(cpu, i)) {
            // SAFETY: `get` gives whole values.
            unsafe { self.layout().release(at) };
        }
        Ok(())
    }

    fn delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let i = index(key).filter(|i| *i < self.len).ok_or(Errno::ENOENT)?;
        self.values.read_all(i, out);
        Ok(())
    }

    fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let i = index(key).ok_or(Errno::EINVAL)?;
        if flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        check_update(i, self.len, flags)?;
        self.values.write_all(i, value);
        self.values.release(i);
        Ok(())
    }

    fn for_each(
        &self,
        cpu: u32,
        visit: &mut dyn FnMut(*const u8, NonNull<u8>) -> Progress,
    ) -> Result<u32, Errno> {
        visit_indexes(self.len, |i| self.get(cpu, i), visit)
    }

    fn regions(&self) -> Vec<ValueRegion> {
        self.values.regions()
    }

    fn batch(&self) -> BatchOps {
        BatchOps::ARRAY
    }
}

impl Drop for PercpuArrayMap {
    fn drop(&mut self) {
        if self.layout().owns() {
            for i in 0..self.len {
                self.values.release(i);
            }
        }
    }
}
