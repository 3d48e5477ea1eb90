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
//! `unsafe` is confined to memory: regions (`mem`), value bytes (`value`), and the
//! structures that readers walk without locks.

mod array;
mod check;
mod errno;
pub mod flags;
mod hash;
mod host;
mod map;
mod map_in_map;
mod mem;
mod ops;
mod params;
mod value;

pub use array::{ArrayMap, PercpuArrayMap};
pub use check::check;
pub use crossbeam_epoch::{Guard, pin};
pub use errno::Errno;
pub use hash::HashMap;
pub use host::{Batch, BatchError, BatchToken};
pub use map::{Map, Object, Progress, ValueRegion};
pub use map_in_map::{ArrayOfMaps, HashOfMaps};
pub use params::{Field, FieldKind, MapParams};
pub use value::{FieldHooks, spin_lock, spin_unlock};
