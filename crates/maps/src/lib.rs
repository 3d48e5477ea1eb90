//! Every BPF map type, for programs on many threads and for their host.
//!
//! [`Map::create`] takes what `BPF_MAP_CREATE` takes and refuses what it refuses.
//! Programs ([`Map::lookup`], [`Map::update`], …) get addresses of values, as in the
//! kernel; the host ([`Map::read`], [`Map::write`], …) gets copies, as through
//! `bpf(2)`. A CPU is the index of a worker thread.
//!
//! Whoever runs programs holds a guard ([`pin`]) over each run or batch of runs: what
//! programs may still look at is not given back before.
//!
//! ```
//! use bpfkit_maps::{Map, MapParams};
//! use bpfkit_spec::MapType;
//!
//! let counts = Map::create(MapParams::new(MapType::Hash, 4, 8, 1024)).unwrap();
//! let key = 7u32.to_ne_bytes();
//! counts.write(&key, &1u64.to_ne_bytes(), 0).unwrap();
//! // What a program on CPU 0 gets: an address.
//! let value = counts.lookup(0, &key).unwrap();
//! assert!(counts.value_regions()[0].contains(value.addr().get() as u64, 8));
//! assert_eq!(counts.read(&key).unwrap(), 1u64.to_ne_bytes());
//! ```
//!
//! `unsafe` is confined to memory: regions (`mem`), value bytes (`value`), and the
//! structures that readers walk without locks.

mod arena;
mod array;
mod bloom;
mod check;
mod direct;
mod errno;
pub mod flags;
mod hash;
mod host;
mod lpm;
mod map;
mod map_in_map;
mod mapping;
mod mem;
mod objects;
mod ops;
mod params;
mod queue;
mod ring;
mod slots;
mod stack_trace;
mod storage;
mod struct_ops;
mod value;
mod word;
mod word_array;

pub use arena::Arena;
pub use array::{ArrayMap, PercpuArrayMap};
pub use check::check;
pub use crossbeam_epoch::{Guard, pin};
pub use direct::{LookupFn, lookup_any, lookup_fns};
pub use errno::Errno;
pub use hash::HashMap;
pub use host::{Batch, BatchError, BatchToken};
pub use lpm::LpmTrie;
pub use map::{Map, Object, Progress, ValueRegion};
pub use map_in_map::{ArrayOfMaps, HashOfMaps};
pub use objects::{BPF_F_CURRENT_CPU, Direct, PerfEventArray, PerfSample, ProgArray};
pub use params::{Field, FieldKind, MapParams};
pub use ring::{
    BPF_MAX_USER_RINGBUF_SAMPLES, BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT,
    BPF_RINGBUF_HDR_SZ, Drain, RingBuf, RingQuery, Sample, UserRingBuf,
};
pub use stack_trace::{
    BPF_F_FAST_STACK_CMP, BPF_F_REUSE_STACKID, BPF_F_SKIP_FIELD_MASK, BPF_F_USER_STACK, StackTraces,
};
pub use storage::{BPF_LOCAL_STORAGE_GET_F_CREATE, Storage};
pub use struct_ops::StructOps;
pub use value::{FieldHooks, spin_lock, spin_unlock};
