//! `lpm-trie-*`: the operations of a trie whose keys are the whole numbers below
//! `--nr_entries`, without gaps, as prefixes of `--prefix_len` bits.

use crate::cli::bench::Arguments;
use crate::cli::bench::machine::{Settings, Source};
use crate::cli::bench::throughput::Workload;
use crate::cli::failure::{Failure, Result};

/// Options that all of them understand.
pub const OPTIONS: &[&str] = &["nr_entries", "prefix_len", "random"];

pub const SOURCE: Source = Source {
    name: "lpm_trie",
    bytes: include_bytes!("../../../../../testdata/bench/lpm_trie.bpf.o"),
};
/// Its objects.
pub const SOURCES: &[Source] = &[SOURCE];

/// The trie that the options ask for.
fn trie(arguments: &Arguments, program: &'static str) -> Result<Workload> {
    let entries = arguments.nr_entries.filter(|n| *n > 0).ok_or_else(|| {
        Failure::input("missing --nr_entries parameter: how many entries the trie has")
    })?;
    let prefix_len = arguments.prefix_len.unwrap_or(32);
    if prefix_len > 32 {
        return Err(Failure::input(
            "prefix_len value too large: keys have 32 bits",
        ));
    }
    if 1u64 << prefix_len < u64::from(entries) {
        return Err(Failure::input("prefix_len value too small for nr_entries"));
    }
    let mut workload = Workload::new(SOURCE, program);
    workload.settings = Settings {
        entries: vec![("trie", entries)],
        globals: vec![
            ("nr_entries", entries.into()),
            ("prefix_len", prefix_len.into()),
            ("random_keys", arguments.random.into()),
        ],
    };
    Ok(workload)
}

/// A trie that one producer changes from end to end.
fn swept(arguments: &Arguments, program: &'static str) -> Result<Workload> {
    let name = format!("lpm-trie-{program}");
    if arguments.producers != 1 {
        return Err(Failure::input(format!("{name} requires a single producer")));
    }
    if arguments.random {
        return Err(Failure::input(format!("{name} does not support --random")));
    }
    trie(arguments, program)
}

pub fn noop(arguments: &Arguments) -> Result<Workload> {
    trie(arguments, "noop")
}

pub fn baseline(arguments: &Arguments) -> Result<Workload> {
    trie(arguments, "baseline")
}

pub fn lookup(arguments: &Arguments) -> Result<Workload> {
    let mut workload = trie(arguments, "lookup")?;
    (workload.fill, workload.baseline) = (Some("fill"), Some("baseline"));
    Ok(workload)
}

pub fn update(arguments: &Arguments) -> Result<Workload> {
    let mut workload = trie(arguments, "update")?;
    (workload.fill, workload.baseline) = (Some("fill"), Some("baseline"));
    Ok(workload)
}

pub fn insert(arguments: &Arguments) -> Result<Workload> {
    let mut workload = swept(arguments, "insert")?;
    workload.baseline = Some("baseline");
    Ok(workload)
}

pub fn delete(arguments: &Arguments) -> Result<Workload> {
    let mut workload = swept(arguments, "delete")?;
    (workload.fill, workload.baseline) = (Some("fill"), Some("baseline"));
    Ok(workload)
}

/// Only the options are looked at: see `lpm_trie_free`.
pub fn free(arguments: &Arguments) -> Result<Workload> {
    swept(arguments, "free")
}
