//! `lpm-trie-free`: giving a full trie back.
//!
//! A map is given back by whoever drops it last, so that no program can time it. Here it is
//! the time of the drop. The kernel frees in a worker thread some time after the last
//! descriptor is closed: what is taken is the processor time of all its workers
//! (`/proc/PID/schedstat`, in ns) from the close until they rest, which leaves out what it
//! frees in softirqs and counts what else the workers do meanwhile.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bpfkit_maps::{Map, MapParams};
use bpfkit_object::Object;
use bpfkit_oracle::Kernel;

use crate::cli::bench::lpm_trie::{self, SOURCE};
use crate::cli::bench::report::{Report, Unit};
use crate::cli::bench::throughput::{Iteration, Measured};
use crate::cli::bench::{Arguments, Skipped, engine_name};
use crate::cli::failure::{Failure, Result};
use crate::cli::run::EngineName;

/// Between two looks at the kernel's workers.
const LOOK: Duration = Duration::from_millis(20);
/// Looks without work after which the workers rest.
const QUIET: u32 = 10;
/// Longest wait for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures and gives the report.
pub fn run(arguments: &Arguments, name: &str) -> Result<Report> {
    lpm_trie::free(arguments)?;
    let entries = arguments.nr_entries.unwrap_or(1);
    let prefix_len = arguments.prefix_len.unwrap_or(32);
    let span = arguments.span()?;
    let mut report = Report {
        benchmark: name.to_owned(),
        options: arguments.given(),
        producers: 1,
        engines: Vec::new(),
        skipped: Skipped::new(),
        unit: Unit::Kilo,
    };
    let mut freers: Vec<(EngineName, Option<Kernel>)> = Vec::new();
    for engine in arguments.engines() {
        let kernel = match engine {
            EngineName::Kernel => match Kernel::start() {
                Ok(kernel) => Some(kernel),
                Err(error) if error.is_absence() => {
                    report
                        .skipped
                        .push((engine_name(*engine), error.to_string()));
                    continue;
                }
                Err(error) => return Err(Failure::machine(error)),
            },
            // Both engines of this process have the same maps.
            EngineName::Interp | EngineName::Jit => None,
        };
        freers.push((*engine, kernel));
        report.engines.push(Measured {
            engine: engine_name(*engine),
            iterations: Vec::new(),
            baseline: Vec::new(),
        });
    }
    for _ in 0..span.iterations {
        for ((_, kernel), measured) in freers.iter_mut().zip(&mut report.engines) {
            let ns = match kernel {
                Some(kernel) => free_in_kernel(kernel, entries, prefix_len)?,
                None => free_here(entries, prefix_len)?,
            };
            measured.iterations.push(Iteration {
                hits: 1,
                busy_ns: ns,
                over_ns: 0,
                p50_ns: ns as f64,
            });
        }
    }
    Ok(report)
}

/// The keys of the benchmark, as bytes.
fn keys(entries: u32, prefix_len: u32) -> impl Iterator<Item = [u8; 8]> {
    (0..entries).map(move |n| {
        let data = n.checked_shl(32 - prefix_len).unwrap_or(0);
        let mut key = [0; 8];
        key[..4].copy_from_slice(&prefix_len.to_ne_bytes());
        key[4..].copy_from_slice(&data.to_be_bytes());
        key
    })
}

fn free_here(entries: u32, prefix_len: u32) -> Result<u64> {
    let object = Object::open(SOURCE.name, SOURCE.bytes).map_err(Failure::input)?;
    let def = object.maps.iter().find(|map| map.name == "trie");
    let def = def.ok_or_else(|| Failure::input("no trie"))?;
    let params = MapParams::new(def.map_type, def.key_size, def.value_size, entries);
    let map: Arc<Map> = Map::create(params.with_flags(def.flags)).map_err(Failure::machine)?;
    for key in keys(entries, prefix_len) {
        map.update(0, &key, &[0; 4], 0).map_err(Failure::machine)?;
    }
    let start = Instant::now();
    drop(map);
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn free_in_kernel(kernel: &mut Kernel, entries: u32, prefix_len: u32) -> Result<u64> {
    let object = Object::open(SOURCE.name, SOURCE.bytes).map_err(Failure::input)?;
    let def = object.maps.iter().find(|map| map.name == "trie");
    let mut def = def.ok_or_else(|| Failure::input("no trie"))?.clone();
    def.max_entries = entries;
    let map = kernel.create_map(&def, None).map_err(Failure::machine)?;
    let keys: Vec<u8> = keys(entries, prefix_len).flatten().collect();
    let values = vec![0; 4 * entries as usize];
    kernel
        .update_batch(map, &keys, &values)
        .map_err(Failure::machine)?;
    rest(None)?;
    let before = worked()?;
    kernel.drop_map(map);
    rest(Some(before))
}

/// Waits until the kernel's workers do nothing any more; gives what they have done since.
fn rest(before: Option<u64>) -> Result<u64> {
    let end = Instant::now() + PATIENCE;
    let (mut last, mut quiet) = (worked()?, 0);
    // A pause of less than this part of a look is rest.
    let little = LOOK.as_nanos() as u64 / 20;
    let start = before.unwrap_or(last);
    let mut done = last;
    while quiet < QUIET && Instant::now() < end {
        thread::sleep(LOOK);
        let now = worked()?;
        if now.saturating_sub(last) < little {
            quiet += 1;
        } else {
            (quiet, done) = (0, now);
        }
        last = now;
    }
    Ok(done.saturating_sub(start))
}

/// Nanoseconds that the kernel's workers have run so far.
fn worked() -> Result<u64> {
    let missing = |error| Failure::machine(format!("/proc: {error}"));
    let mut sum = 0;
    for entry in fs::read_dir("/proc").map_err(missing)?.flatten() {
        let path = entry.path();
        let is_worker =
            fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with("kworker/"));
        if !is_worker {
            continue;
        }
        let ran = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let ran = ran.split_whitespace().next().and_then(|ns| ns.parse().ok());
        sum += ran.unwrap_or(0u64);
    }
    Ok(sum)
}
