//! The same operations on our maps and on the running kernel's, answer by answer.
//!
//! Each test runs in a process of its own and only creates maps and uses them through
//! bpf(2); where that is not permitted, it says so and does nothing.

mod creation;
mod objects;
mod sys;

use std::sync::Arc;

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;
use sys::KernelMap;

const CHILD: &str = "BPFKIT_MAPS_KERNEL_CHILD";

/// Runs `body` in a process of its own.
fn in_child(test: &str, body: impl Fn()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let exe = std::env::current_exe().unwrap();
    let output = std::process::Command::new(exe)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|l| l.contains("skipped: ")) {
        println!("{line}");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("1 passed") || !output.status.success(),
        "no test {test}"
    );
    assert!(output.status.success(), "{text}\n{errors}");
}

fn permitted() -> bool {
    match KernelMap::create(&MapParams::new(MapType::Array, 4, 4, 1), 0) {
        Ok(_) => true,
        Err(e) => {
            println!("skipped: no bpf(2) ({e})");
            false
        }
    }
}

fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    text.trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|n| n.parse::<u32>().ok())
        .map_or(1, |n| n + 1)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (((self.0 >> 32) * u64::from(n)) >> 32) as u32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// All elements by walking over keys.
fn walk(
    next: impl Fn(Option<&[u8]>) -> Result<Vec<u8>, Errno>,
    read: impl Fn(&[u8]) -> Result<Vec<u8>, Errno>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut all, mut key) = (vec![], None::<Vec<u8>>);
    while let Ok(k) = next(key.as_deref()) {
        all.push((k.clone(), read(&k).unwrap()));
        key = Some(k);
    }
    all
}

/// The same random operations on both.
fn same_answers(p: MapParams, ordered: bool, keys: &[Vec<u8>], seed: u64, steps: u32) {
    let p = p.with_cpus(possible_cpus());
    let kernel = KernelMap::create(&p, 0).unwrap();
    let ours = Map::create(p.clone()).unwrap();
    let mut rng = Random(seed);
    let value_size = ours.host_value_size();
    for step in 0..steps {
        let key = &keys[rng.below(keys.len() as u32) as usize];
        let value: Vec<u8> = (0..value_size).map(|_| rng.below(256) as u8).collect();
        let flags = rng.pick(&[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 8]);
        match rng.below(8) {
            0..3 => {
                let expected = kernel.write(key, &value, flags);
                assert_eq!(
                    ours.write(key, &value, flags),
                    expected,
                    "{step} write {key:?} {flags} {p:?}"
                );
            }
            3 => {
                assert_eq!(
                    ours.remove(key),
                    kernel.remove(key),
                    "{step} remove {key:?} {p:?}"
                );
            }
            4 | 5 => {
                let flags = if flags < 3 { 0 } else { flags };
                let expected = kernel.read(key, flags);
                assert_eq!(
                    ours.read_with(key, flags),
                    expected,
                    "{step} read {key:?} {flags} {p:?}"
                );
            }
            6 => {
                let flags = if flags < 5 { 0 } else { flags };
                let expected = kernel.take(key, flags);
                assert_eq!(
                    ours.take(key, flags),
                    expected,
                    "{step} take {key:?} {flags} {p:?}"
                );
            }
            _ => {
                let key = if rng.below(10) == 0 {
                    None
                } else {
                    Some(&key[..])
                };
                let (a, b) = (ours.next_key(key), kernel.next_key(key));
                if ordered {
                    assert_eq!(a, b, "{step} next {key:?} {p:?}");
                } else if key.is_none() {
                    assert_eq!(a.map(drop), b.map(drop), "{step} next {key:?} {p:?}");
                }
            }
        }
    }
    let mut a = walk(|k| ours.next_key(k), |k| ours.read(k));
    let mut b = walk(|k| kernel.next_key(k), |k| kernel.read(k, 0));
    if !ordered {
        a.sort();
        b.sort();
    }
    assert_eq!(a, b, "{p:?}");
    // Batches: everything at once, then everything and delete.
    let most = p.max_entries.min(10_000) + 10;
    let (keys, values, result) = kernel.batch(24, most);
    match ours.lookup_batch(None, most, 0) {
        Ok(batch) => {
            let end = if batch.next.is_none() {
                Err(Errno::ENOENT)
            } else {
                Ok(())
            };
            assert_eq!(result.clone(), end, "{p:?}");
            assert_eq!(batch.keys.len(), keys.len());
            if ordered {
                assert_eq!((batch.keys, batch.values), (keys, values));
            }
        }
        Err(e) => assert_eq!(Err(e), result, "{p:?}"),
    }
    let (keys, _, result) = kernel.batch(25, most);
    match ours.take_batch(None, most, 0) {
        Ok(batch) => {
            assert_eq!(result, Err(Errno::ENOENT), "{p:?}");
            assert_eq!(batch.keys.len(), keys.len());
        }
        Err(e) => assert_eq!(Err(e), result, "{p:?}"),
    }
    assert_eq!(ours.freeze(), kernel.freeze());
    assert_eq!(ours.freeze(), kernel.freeze());
    if let Some(key) = keys.chunks(p.key_size.max(1) as usize).next() {
        let value = vec![0; value_size];
        assert_eq!(ours.write(key, &value, 0), kernel.write(key, &value, 0));
        assert_eq!(ours.remove(key), kernel.remove(key));
    }
}

fn number_keys(size: usize, n: u32) -> Vec<Vec<u8>> {
    let key = |i: u32| {
        let mut key = vec![0; size];
        key.iter_mut()
            .zip(i.to_ne_bytes())
            .for_each(|(k, b)| *k = b);
        key
    };
    (0..n).map(key).collect()
}

#[test]
fn arrays_answer_alike() {
    in_child("arrays_answer_alike", || {
        if !permitted() {
            return;
        }
        for (i, value) in [1, 4, 8, 12, 100].into_iter().enumerate() {
            for t in [MapType::Array, MapType::PercpuArray] {
                let p = MapParams::new(t, 4, value, 10);
                same_answers(p, true, &number_keys(4, 13), i as u64, 500);
            }
        }
    });
}

#[test]
fn hashes_answer_alike() {
    in_child("hashes_answer_alike", || {
        if !permitted() {
            return;
        }
        // A kernel whose work queues hang frees no elements, and says that maps are full.
        if let Err(error) = bpfkit_oracle::Kernel::start() {
            return println!("skipped: {error}");
        }
        for (i, (key, value)) in [(1, 1), (4, 8), (8, 8), (7, 3), (16, 40), (100, 20)]
            .into_iter()
            .enumerate()
        {
            for (t, flags) in [
                (MapType::Hash, 0),
                (MapType::Hash, BPF_F_NO_PREALLOC),
                (MapType::PercpuHash, 0),
                (MapType::PercpuHash, BPF_F_NO_PREALLOC),
            ] {
                let p = MapParams::new(t, key, value, 20).with_flags(flags);
                same_answers(p, false, &number_keys(key as usize, 30), i as u64, 2000);
            }
            // No more keys than fit anywhere: what an LRU map evicts is its own affair.
            for t in [MapType::LruHash, MapType::LruPercpuHash] {
                let p = MapParams::new(t, key, value, 2000);
                same_answers(p, false, &number_keys(key as usize, 30), i as u64, 2000);
            }
        }
    });
}

#[test]
fn tries_answer_alike() {
    in_child("tries_answer_alike", || {
        if !permitted() {
            return;
        }
        for size in [1usize, 2, 4, 5, 16, 64, 256] {
            for seed in 0..6 {
                let mut rng = Random(seed);
                let max = size as u32 * 8;
                let keys: Vec<_> = (0..60)
                    .map(|_| {
                        let length = rng.pick(&[max, max, max / 2, 0, 1, max + 1, u32::MAX]);
                        let length = if rng.below(2) == 0 {
                            rng.below(max + 1)
                        } else {
                            length
                        };
                        let byte = |rng: &mut Random| {
                            let any = rng.below(256) as u8;
                            rng.pick(&[0, 0, 0, 0, 0xff, 0x80, any])
                        };
                        let data: Vec<u8> = (0..size).map(|_| byte(&mut rng)).collect();
                        [&length.to_ne_bytes()[..], &data].concat()
                    })
                    .collect();
                let p = MapParams::new(MapType::LpmTrie, size as u32 + 4, 8, 30);
                same_answers(p.with_flags(BPF_F_NO_PREALLOC), true, &keys, seed, 1500);
            }
        }
    });
}

#[test]
fn queues_answer_alike() {
    in_child("queues_answer_alike", || {
        if !permitted() {
            return;
        }
        for t in [MapType::Queue, MapType::Stack] {
            for (seed, value) in [1, 4, 13].into_iter().enumerate() {
                let p = MapParams::new(t, 0, value, 7);
                same_answers(p, true, &[vec![]], seed as u64, 2000);
            }
        }
    });
}

#[test]
fn bloom_filters_answer_alike() {
    in_child("bloom_filters_answer_alike", || {
        if !permitted() {
            return;
        }
        for functions in [0, 1, 3, 15] {
            let p = MapParams::new(MapType::BloomFilter, 0, 12, 500).with_extra(functions);
            let kernel = KernelMap::create(&p, 0).unwrap();
            let ours = Map::create(p).unwrap();
            let value = |i: u32| [&i.to_ne_bytes()[..], &[7; 8]].concat();
            for i in 0..500 {
                assert_eq!(
                    ours.write(&[], &value(i), 0),
                    kernel.write(&[], &value(i), 0)
                );
            }
            let mut positives = (0, 0);
            for i in 0..5000 {
                let (a, b) = (ours.peek(&mut value(i)), kernel.contains(&value(i)));
                if i < 500 {
                    assert_eq!((a, b), (Ok(()), Ok(())));
                } else {
                    positives.0 += u32::from(a.is_ok());
                    positives.1 += u32::from(b.is_ok());
                }
            }
            // Not many more false positives than the kernel has.
            assert!(
                positives.0 < 2 * positives.1 + 50,
                "{functions}: {positives:?}"
            );
            for flags in [1, 2, 4] {
                assert_eq!(
                    ours.write(&[], &value(0), flags),
                    kernel.write(&[], &value(0), flags)
                );
            }
            assert_eq!(ours.remove(&[]), kernel.remove(&[]));
            assert_eq!(ours.next_key(None), kernel.next_key(None).map(|_| vec![]));
            assert_eq!(ours.take(&[], 0), kernel.take(&[], 0));
        }
    });
}

#[test]
fn maps_of_maps_answer_alike() {
    in_child("maps_of_maps_answer_alike", || {
        if !permitted() {
            return;
        }
        let template = MapParams::new(MapType::Hash, 4, 8, 5);
        let candidates = [
            template.clone(),
            MapParams::new(MapType::Hash, 4, 8, 50),
            MapParams::new(MapType::Hash, 4, 16, 5),
            MapParams::new(MapType::Hash, 8, 8, 5),
            MapParams::new(MapType::Array, 4, 8, 5),
            template.clone().with_flags(BPF_F_NO_PREALLOC),
        ];
        let kernel_inner: Vec<_> = candidates
            .iter()
            .map(|p| KernelMap::create(p, 0).unwrap())
            .collect();
        let our_inner: Vec<Arc<Map>> = candidates
            .iter()
            .map(|p| Map::create(p.clone()).unwrap())
            .collect();
        for t in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
            let p = MapParams::new(t, 4, 4, 4).with_inner(template.clone());
            let kernel = KernelMap::create(&p, kernel_inner[0].fd).unwrap();
            let ours = Map::create(p).unwrap();
            let mut rng = Random(3);
            for _ in 0..500 {
                let key = rng.below(6).to_ne_bytes();
                let which = rng.below(candidates.len() as u32) as usize;
                let flags = rng.pick(&[0, 0, 0, 1, 2, 3]);
                let what = format!("{t:?} {key:?} {which} {flags}");
                match rng.below(4) {
                    0 | 1 => assert_eq!(
                        ours.set_inner(&key, &our_inner[which], flags),
                        kernel.write(&key, &kernel_inner[which].fd.to_ne_bytes(), flags),
                        "{what}"
                    ),
                    2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                    _ => assert_eq!(
                        ours.read(&key).map(drop),
                        kernel.read(&key, 0).map(drop),
                        "{what}"
                    ),
                }
            }
        }
        // Arrays must have the template's length, unless they say otherwise.
        for flags in [0, BPF_F_INNER_MAP] {
            let inner = MapParams::new(MapType::Array, 4, 8, 5).with_flags(flags);
            let longer = MapParams::new(MapType::Array, 4, 8, 6).with_flags(flags);
            let fd = KernelMap::create(&inner, 0).unwrap();
            let longer_fd = KernelMap::create(&longer, 0).unwrap();
            let p = MapParams::new(MapType::ArrayOfMaps, 4, 4, 1).with_inner(inner);
            let kernel = KernelMap::create(&p, fd.fd).unwrap();
            let ours = Map::create(p).unwrap();
            let key = [0; 4];
            assert_eq!(
                ours.set_inner(&key, &Map::create(longer).unwrap(), 0),
                kernel.write(&key, &longer_fd.fd.to_ne_bytes(), 0)
            );
        }
    });
}
