//! Hash, array and bloom filter with the whole numbers below `--nr_entries` as keys, and
//! the ring buffer.

use crate::cli::bench::Arguments;
use crate::cli::bench::machine::{Settings, Source};
use crate::cli::bench::throughput::Workload;
use crate::cli::failure::{Failure, Result};

/// Options of those with keys.
pub const OPTIONS: &[&str] = &["nr_entries", "random"];

const HASHMAP: Source = Source {
    name: "hashmap",
    bytes: include_bytes!("../../../../../testdata/bench/hashmap.bpf.o"),
};
const BLOOM: Source = Source {
    name: "bloom",
    bytes: include_bytes!("../../../../../testdata/bench/bloom.bpf.o"),
};
const RINGBUF: Source = Source {
    name: "ringbuf",
    bytes: include_bytes!("../../../../../testdata/bench/ringbuf.bpf.o"),
};
/// Its objects.
pub const SOURCES: &[Source] = &[HASHMAP, BLOOM, RINGBUF];

/// Entries unless `--nr_entries` says otherwise.
const ENTRIES: u32 = 1000;

fn keyed(
    arguments: &Arguments,
    source: Source,
    map: &'static str,
    program: &'static str,
) -> Result<Workload> {
    let entries = arguments.nr_entries.unwrap_or(ENTRIES);
    if entries == 0 {
        return Err(Failure::input("--nr_entries 0: no key to look up"));
    }
    let mut workload = Workload::new(source, program);
    workload.settings = Settings {
        entries: vec![(map, entries)],
        globals: vec![
            ("nr_entries", entries.into()),
            ("random_keys", arguments.random.into()),
        ],
    };
    workload.baseline = Some("baseline");
    Ok(workload)
}

pub fn hash_lookup(arguments: &Arguments) -> Result<Workload> {
    let mut workload = keyed(arguments, HASHMAP, "hash", "hash_lookup")?;
    workload.fill = Some("fill");
    Ok(workload)
}

pub fn hash_full_update(arguments: &Arguments) -> Result<Workload> {
    let mut workload = keyed(arguments, HASHMAP, "hash", "full_update")?;
    workload.fill = Some("fill");
    Ok(workload)
}

pub fn array_lookup(arguments: &Arguments) -> Result<Workload> {
    keyed(arguments, HASHMAP, "array", "array_lookup")
}

pub fn bloom(arguments: &Arguments) -> Result<Workload> {
    let mut workload = keyed(arguments, BLOOM, "bloom", "peek")?;
    workload.fill = Some("fill");
    Ok(workload)
}

pub fn ringbuf(arguments: &Arguments) -> Result<Workload> {
    let mut workload = Workload::new(RINGBUF, "reserve");
    workload.ring = Some("ring");
    // Room for two runs of each producer, of sixteen bytes a record.
    let bytes = (arguments.producers * 2 * 10_000 * 16).next_power_of_two();
    workload.settings.entries = vec![("ring", bytes)];
    Ok(workload)
}
