//! Prints nanoseconds a look-up, and an update, for arrays, hashes and LPM tries.
//!
//! `cargo run --release -p bpfkit-maps --example lookup_bench`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bpfkit_maps::flags::BPF_F_NO_PREALLOC;
use bpfkit_maps::{Map, MapParams, Progress, pin};
use bpfkit_spec::MapType;

const OPS: u32 = 2_000_000;
/// Operations under one guard, as in one run of a program.
const RUN: u32 = 10_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(n)) >> 32) as u32
    }
}

/// The key of number `i`: a prefix length first, for a trie.
fn key(map: &Map, i: u32) -> [u8; 16] {
    let first = if map.map_type() == MapType::LpmTrie {
        u64::from(i) << 32 | 32
    } else {
        u64::from(i)
    };
    u128::from(first).to_le_bytes()
}

/// Nanoseconds of one `work`, of which the keys are `0 .. n`: the median of the runs, so
/// that what else the machine does counts little.
fn time(n: u32, random: bool, mut work: impl FnMut(u32)) -> f64 {
    let mut rng = Random(0x9e37_79b9_7f4a_7c15);
    let mut next = 0;
    let mut runs = Vec::new();
    for _ in 0..OPS / RUN {
        let start = Instant::now();
        let _guard = pin();
        for _ in 0..RUN {
            let i = if random { rng.below(n) } else { next };
            next = if next + 1 == n { 0 } else { next + 1 };
            work(i);
        }
        runs.push(start.elapsed().as_nanos() as f64 / f64::from(RUN));
    }
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn create(map_type: MapType, key_size: u32, n: u32) -> Arc<Map> {
    let flags = if map_type == MapType::LpmTrie {
        BPF_F_NO_PREALLOC
    } else {
        0
    };
    let params = MapParams::new(map_type, key_size, 8, n)
        .with_flags(flags)
        .with_cpus(2);
    Map::create(params).expect("a map within the kernel's limits")
}

/// Rings, queues and filters: no keys.
fn keyless() {
    let ring = Map::create(MapParams::new(MapType::Ringbuf, 0, 0, 1 << 20)).expect("a ring");
    let ring = ring.as_ring().expect("a ring");
    let mut sent = 0u32;
    let output = time(1, false, |i| {
        ring.output(&u64::from(i).to_ne_bytes(), 0).expect("room");
        sent += 1;
        if sent.is_multiple_of(10_000) {
            ring.consume(|_| Progress::Go);
        }
    });
    println!("{:28} {:>9} {output:>10.1}", "ringbuf output, consumed", "");
    let queue = Map::create(MapParams::new(MapType::Queue, 0, 8, 100)).expect("a queue");
    let both = time(1, false, |i| {
        let mut value = u64::from(i).to_ne_bytes();
        queue.push(&value, 0).expect("room");
        queue.pop(&mut value).expect("a value");
    });
    println!("{:28} {:>9} {both:>10.1}", "queue push and pop", "");
    let bloom = MapParams::new(MapType::BloomFilter, 0, 8, 100_000).with_extra(3);
    let bloom = Map::create(bloom).expect("a filter");
    let peek = time(100_000, true, |i| {
        black_box(bloom.peek(&mut u64::from(i).to_ne_bytes())).ok();
    });
    println!("{:28} {:>9} {peek:>10.1}", "bloom_filter peek, absent", "");
}

fn main() {
    keyless();
    println!(
        "{:28} {:>9} {:>10} {:>10}",
        "ns per operation", "entries", "sequential", "random"
    );
    for n in [10_000, 1_000_000] {
        let empty = [false, true].map(|random| {
            time(n, random, |i| {
                black_box(i);
            })
        });
        println!(
            "{:28} {n:>9} {:>10.1} {:>10.1}",
            "(loop and key)", empty[0], empty[1]
        );
        let kinds = [
            (MapType::Array, 4),
            (MapType::PercpuArray, 4),
            (MapType::Hash, 4),
            (MapType::Hash, 8),
            (MapType::Hash, 16),
            (MapType::Hash, 13),
            (MapType::LruHash, 8),
            (MapType::LpmTrie, 8),
        ];
        for (map_type, key_size) in kinds {
            let m = create(map_type, key_size, n);
            let size = key_size as usize;
            let fill = || {
                for i in 0..n {
                    let done = m.update(0, &key(&m, i)[..size], &u64::from(i).to_ne_bytes(), 0);
                    done.expect("room for every key");
                }
            };
            fill();
            let name = format!("{} {key_size} ", map_type.name());
            let lookup = [false, true].map(|random| {
                time(n, random, |i| {
                    black_box(m.lookup(0, &key(&m, black_box(i))[..size]));
                })
            });
            println!(
                "{:28} {n:>9} {:>10.1} {:>10.1}",
                name.clone() + "lookup",
                lookup[0],
                lookup[1]
            );
            let update = [false, true].map(|random| {
                time(n, random, |i| {
                    let _ = m.update(0, &key(&m, i)[..size], &[0; 8], 0);
                })
            });
            println!(
                "{:28} {n:>9} {:>10.1} {:>10.1}",
                name.clone() + "update",
                update[0],
                update[1]
            );
            if !matches!(map_type, MapType::Array | MapType::PercpuArray) {
                // Empty and fill again, several times.
                let (mut delete, mut insert) = (f64::MAX, f64::MAX);
                for _ in 0..(OPS / n).clamp(3, 30) {
                    let start = Instant::now();
                    for i in 0..n {
                        let _ = m.delete(0, &key(&m, i)[..size]);
                    }
                    let middle = Instant::now();
                    fill();
                    let each = |span: std::time::Duration| span.as_nanos() as f64 / f64::from(n);
                    delete = delete.min(each(middle - start));
                    insert = insert.min(each(middle.elapsed()));
                }
                println!("{:28} {n:>9} {delete:>10.1}", name.clone() + "delete");
                println!("{:28} {n:>9} {insert:>10.1}", name.clone() + "insert");
            }
            let start = Instant::now();
            drop(m);
            println!(
                "{:28} {n:>9} {:>10.1} µs",
                name + "free",
                start.elapsed().as_nanos() as f64 / 1e3
            );
        }
    }
}
