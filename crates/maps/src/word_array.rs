//! Arrays whose slots are empty or hold one word: sockets, interfaces, CPUs, cgroups.
//!
//! A slot is one atomic word, 0 when empty. Sockets and cgroups are the host's
//! cookies; `struct bpf_devmap_val` and `struct bpf_cpumap_val` fit a word as they are.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

use bpfkit_spec::MapType;

use crate::array::{index, next_index};
use crate::flags::{BPF_ANY, BPF_EXIST, BPF_NOEXIST};
use crate::hash::HashMap;
use crate::mem::{Commit, Region};
use crate::ops::Ops;
use crate::value::ValueLayout;
use crate::{Errno, MapParams, ValueRegion};

/// Longest queue of a CPU in a cpumap.
const CPUMAP_QUEUE_MAX: u32 = 16384;

/// What an update asks of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    /// Nothing but `BPF_ANY` is a flag.
    AnyOnly,
    /// Slots count as there, whether empty or not.
    Always,
    /// `BPF_NOEXIST` and `BPF_EXIST` look at the slot.
    Slot,
}

/// How a map type differs from the others.
struct Rules {
    existing: Existing,
    /// Of a deletion outside the array.
    outside: Errno,
    /// Of a deletion of an empty slot.
    empty: Option<Errno>,
    /// Whether programs get the address of the word.
    readable: bool,
    /// What the host's read gives.
    host: HostRead,
}

enum HostRead {
    Word,
    /// Socket cookies need eight bytes.
    Cookie,
    Refused(Errno),
}

fn rules(map_type: MapType) -> Rules {
    use Existing::*;
    match map_type {
        MapType::Devmap | MapType::Cpumap => Rules {
            existing: Always,
            outside: Errno::EINVAL,
            empty: None,
            readable: true,
            host: HostRead::Word,
        },
        MapType::Xskmap => Rules {
            existing: Slot,
            outside: Errno::EINVAL,
            empty: None,
            readable: true,
            host: HostRead::Refused(Errno::EOPNOTSUPP),
        },
        MapType::Sockmap => Rules {
            existing: Slot,
            outside: Errno::EINVAL,
            empty: Some(Errno::EINVAL),
            readable: true,
            host: HostRead::Cookie,
        },
        MapType::ReuseportSockarray => Rules {
            existing: Slot,
            outside: Errno::E2BIG,
            empty: Some(Errno::ENOENT),
            readable: true,
            host: HostRead::Cookie,
        },
        _ => Rules {
            existing: AnyOnly,
            outside: Errno::E2BIG,
            empty: Some(Errno::ENOENT),
            readable: false,
            host: HostRead::Refused(Errno::ENOTSUPP),
        },
    }
}

/// Devmap, cpumap, xskmap, sockmap, reuseport socket array, cgroup array.
pub(crate) struct WordArray {
    words: Region,
    len: u32,
    map_type: MapType,
    value_size: usize,
    rules: Rules,
}

fn word(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(value).for_each(|(b, v)| *b = *v);
    u64::from_ne_bytes(bytes)
}

fn first_half(value: &[u8]) -> u32 {
    value
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn put(word: u64, out: &mut [u8]) {
    out.iter_mut()
        .zip(word.to_ne_bytes())
        .for_each(|(o, b)| *o = b);
}

/// What a devmap or cpumap refuses to hold.
fn check_value(map_type: MapType, value: &[u8]) -> Result<(), Errno> {
    let second = value.get(4..).map_or(0, first_half) as i32;
    match map_type {
        MapType::Cpumap if first_half(value) > CPUMAP_QUEUE_MAX => Err(Errno::EOVERFLOW),
        // A program without an interface to run it on.
        MapType::Devmap if first_half(value) == 0 && second > 0 => Err(Errno::EINVAL),
        MapType::DevmapHash if first_half(value) == 0 => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

impl WordArray {
    pub(crate) fn new(p: &MapParams) -> Result<WordArray, Errno> {
        Ok(WordArray {
            words: Region::array(p.max_entries as usize, 8, Commit::Whole)?,
            len: p.max_entries,
            map_type: p.map_type,
            value_size: p.value_size as usize,
            rules: rules(p.map_type),
        })
    }

    fn slot(&self, index: u32) -> Option<&AtomicU64> {
        if index >= self.len {
            return None;
        }
        // SAFETY: eight aligned bytes, as the index was tested.
        Some(unsafe { AtomicU64::from_ptr(self.words.at(index as usize * 8).as_ptr().cast()) })
    }
}

impl Ops for WordArray {
    fn lookup(&self, _cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        let slot = self.slot(index(key)?)?;
        let there = self.rules.readable && slot.load(Acquire) != 0;
        if there {
            NonNull::new(slot.as_ptr().cast())
        } else {
            None
        }
    }

    fn update(&self, _cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let most = if self.rules.existing == Existing::AnyOnly {
            BPF_ANY
        } else {
            BPF_EXIST
        };
        if flags > most {
            return Err(Errno::EINVAL);
        }
        let slot = index(key).and_then(|i| self.slot(i)).ok_or(Errno::E2BIG)?;
        if self.rules.existing == Existing::Always && flags == BPF_NOEXIST {
            return Err(Errno::EEXIST);
        }
        check_value(self.map_type, value)?;
        // Without an interface or a queue the slot is emptied.
        let cleared =
            matches!(self.map_type, MapType::Devmap | MapType::Cpumap) && first_half(value) == 0;
        let new = if cleared { 0 } else { word(value) };
        if self.rules.existing != Existing::Slot {
            slot.store(new, Release);
            return Ok(());
        }
        let admit = |old: u64| match (flags, old != 0) {
            (BPF_NOEXIST, true) => Err(Errno::EEXIST),
            (BPF_EXIST, false) => Err(Errno::ENOENT),
            _ => Ok(()),
        };
        match slot.fetch_update(AcqRel, Acquire, |old| admit(old).is_ok().then_some(new)) {
            Ok(_) => Ok(()),
            Err(old) => admit(old),
        }
    }

    fn delete(&self, _cpu: u32, key: &[u8]) -> Result<(), Errno> {
        let slot = index(key)
            .and_then(|i| self.slot(i))
            .ok_or(self.rules.outside)?;
        match (slot.swap(0, AcqRel), self.rules.empty) {
            (0, Some(errno)) => Err(errno),
            _ => Ok(()),
        }
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let there = || {
            let word = index(key)
                .and_then(|i| self.slot(i))
                .map_or(0, |slot| slot.load(Acquire));
            if word == 0 {
                Err(Errno::ENOENT)
            } else {
                Ok(word)
            }
        };
        match self.rules.host {
            HostRead::Refused(errno) => return Err(errno),
            HostRead::Cookie if self.value_size != 8 => return Err(Errno::ENOSPC),
            HostRead::Cookie | HostRead::Word => put(there()?, out),
        }
        Ok(())
    }

    fn regions(&self) -> Vec<ValueRegion> {
        if !self.rules.readable {
            return Vec::new();
        }
        vec![ValueRegion {
            base: self.words.base().as_ptr().expose_provenance() as u64,
            stride: 8,
            offset: 0,
            size: self.value_size as u32,
            count: u64::from(self.len),
        }]
    }
}

/// Sockhash and devmap hash: words by key.
pub(crate) struct WordHash {
    hash: HashMap,
    map_type: MapType,
    value_size: usize,
}

impl WordHash {
    pub(crate) fn new(p: &MapParams, id: u32) -> Result<WordHash, Errno> {
        let params = MapParams {
            map_type: MapType::Hash,
            value_size: 8,
            flags: 0,
            ..p.clone()
        };
        Ok(WordHash {
            hash: HashMap::new(&params, ValueLayout::new(id, 8, &[])?)?,
            map_type: p.map_type,
            value_size: p.value_size as usize,
        })
    }
}

impl Ops for WordHash {
    fn lookup(&self, cpu: u32, key: &[u8]) -> Option<NonNull<u8>> {
        self.hash.get(cpu, key)
    }

    fn update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags > BPF_EXIST {
            return Err(Errno::EINVAL);
        }
        check_value(self.map_type, value)?;
        // A devmap hash does not know BPF_EXIST.
        let create = self.map_type == MapType::DevmapHash && flags == BPF_EXIST;
        let flags = if create { BPF_ANY } else { flags };
        self.hash
            .update(cpu, key, &word(value).to_ne_bytes(), flags)
    }

    fn delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.hash.delete(cpu, key)
    }

    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.hash.next_key(key, next)
    }

    fn read(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), Errno> {
        let socket = self.map_type == MapType::Sockhash;
        if socket && self.value_size != 8 {
            return Err(Errno::ENOSPC);
        }
        let mut word = [0; 8];
        self.hash.read(key, &mut word, 0)?;
        out.iter_mut().zip(word).for_each(|(o, b)| *o = b);
        Ok(())
    }

    fn regions(&self) -> Vec<ValueRegion> {
        let regions = self.hash.regions().into_iter();
        regions
            .map(|r| ValueRegion {
                size: self.value_size as u32,
                ..r
            })
            .collect()
    }
}
