//! The same operations on our maps and on the running kernel's, answer by answer.
//!
//! Each test runs in a process of its own and only creates maps and uses them through
//! bpf(2); where that is not permitted, it says so and does nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

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
    assert!(output.status.success(), "{text}\n{errors}");
}

/// `union bpf_attr`, as far as maps use it.
#[derive(Clone)]
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Attr {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn call(&mut self, command: i32) -> Result<i32, Errno> {
        // SAFETY: the attribute is 128 bytes; its pointers are to live buffers.
        let got = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), 128) };
        if got < 0 {
            Err(Errno(
                std::io::Error::last_os_error().raw_os_error().unwrap(),
            ))
        } else {
            Ok(got as i32)
        }
    }

    fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }
}

struct KernelMap {
    fd: i32,
    key_size: usize,
    value_size: usize,
}

impl Drop for KernelMap {
    fn drop(&mut self) {
        // SAFETY: our descriptor.
        unsafe { libc::close(self.fd) };
    }
}

fn ptr(bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        0
    } else {
        bytes.as_ptr() as u64
    }
}

impl KernelMap {
    fn create(p: &MapParams, inner_fd: i32) -> Result<KernelMap, Errno> {
        let fd = Attr::new()
            .u32(0, p.map_type as u32)
            .u32(4, p.key_size)
            .u32(8, p.value_size)
            .u32(12, p.max_entries)
            .u32(16, p.flags)
            .u32(20, inner_fd as u32)
            .u64(64, p.extra)
            .call(0)?;
        let percpu = matches!(
            p.map_type,
            MapType::PercpuArray | MapType::PercpuHash | MapType::LruPercpuHash
        );
        let value_size = p.value_size as usize;
        Ok(KernelMap {
            fd,
            key_size: p.key_size as usize,
            value_size: if percpu {
                value_size.next_multiple_of(8) * p.cpus as usize
            } else {
                value_size
            },
        })
    }

    fn attr(&self, key: &[u8], value: &[u8], flags: u64) -> Attr {
        Attr::new()
            .u32(0, self.fd as u32)
            .u64(8, ptr(key))
            .u64(16, ptr(value))
            .u64(24, flags)
    }

    fn read(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        let value = vec![0; self.value_size];
        self.attr(key, &value, flags).call(1)?;
        Ok(value)
    }

    fn contains(&self, value: &[u8]) -> Result<(), Errno> {
        self.attr(&[], value, 0).call(1).map(drop)
    }

    fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.attr(key, value, flags).call(2).map(drop)
    }

    fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        self.attr(key, &[], 0).call(3).map(drop)
    }

    fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let next = vec![0; self.key_size];
        self.attr(key.unwrap_or(&[]), &next, 0).call(4)?;
        Ok(next)
    }

    fn take(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        let value = vec![0; self.value_size];
        self.attr(key, &value, flags).call(21)?;
        Ok(value)
    }

    fn freeze(&self) -> Result<(), Errno> {
        Attr::new().u32(0, self.fd as u32).call(22).map(drop)
    }

    /// A batch of all elements: keys, values and the error beside them.
    fn batch(&self, command: i32, max: u32) -> (Vec<u8>, Vec<u8>, Result<(), Errno>) {
        let token = [0u8; 512];
        let (keys, values) = (
            vec![0; max as usize * self.key_size],
            vec![0; max as usize * self.value_size],
        );
        let mut attr = Attr::new()
            .u64(8, ptr(&token))
            .u64(16, ptr(&keys))
            .u64(24, ptr(&values))
            .u32(32, max)
            .u32(36, self.fd as u32);
        let result = attr.call(command).map(drop);
        let n = attr.get_u32(32) as usize;
        (
            keys[..n * self.key_size].to_vec(),
            values[..n * self.value_size].to_vec(),
            result,
        )
    }
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
fn small_arrays_answer_alike() {
    in_child("small_arrays_answer_alike", || {
        if !permitted() {
            return;
        }
        // What needs no descriptors: errors, and maps that stay empty.
        for (t, value) in [
            (MapType::ProgArray, 4),
            (MapType::PerfEventArray, 4),
            (MapType::CgroupArray, 4),
            (MapType::StackTrace, 80),
            (MapType::Ringbuf, 0),
            (MapType::UserRingbuf, 0),
        ] {
            let rings = matches!(t, MapType::Ringbuf | MapType::UserRingbuf);
            let p = MapParams::new(
                t,
                if rings { 0 } else { 4 },
                value,
                if rings { 4096 } else { 4 },
            );
            let kernel = KernelMap::create(&p, 0).unwrap();
            let ours = Map::create(p.clone()).unwrap();
            let keys = if rings {
                vec![vec![]]
            } else {
                number_keys(4, 6)
            };
            for key in &keys {
                let what = |op: &str| format!("{op} {t:?} {key:?}");
                assert_eq!(ours.read(key), kernel.read(key, 0), "{}", what("read"));
                assert_eq!(ours.remove(key), kernel.remove(key), "{}", what("remove"));
                assert_eq!(ours.take(key, 0), kernel.take(key, 0), "{}", what("take"));
                let (a, b) = (ours.next_key(Some(key)), kernel.next_key(Some(key)));
                assert_eq!(a, b, "{}", what("next"));
            }
            assert_eq!(ours.next_key(None), kernel.next_key(None), "next {t:?}");
            let (_, _, result) = kernel.batch(24, 3);
            assert_eq!(ours.lookup_batch(None, 3, 0).map(drop), result, "{t:?}");
        }
        // Interfaces: the loopback device is everywhere.
        for (t, values) in [
            (MapType::Devmap, [1u32, 0]),
            (MapType::DevmapHash, [1, 0]),
            (MapType::Cpumap, [192, 0]),
        ] {
            let p = MapParams::new(t, 4, 4, 4);
            let Ok(kernel) = KernelMap::create(&p, 0) else {
                println!("skipped: the kernel has no {}", t.name());
                continue;
            };
            let ours = Map::create(p).unwrap();
            let mut rng = Random(7);
            for _ in 0..300 {
                // CPUs beyond the machine's are the kernel's own affair.
                let most = if t == MapType::Cpumap { 1 } else { 6 };
                let key = rng.below(most).to_ne_bytes();
                let value = rng.pick(&values).to_ne_bytes();
                let flags = rng.pick(&[0, 0, 0, 1, 2, 3]);
                let what = format!("{t:?} {key:?} {value:?} {flags}");
                match rng.below(4) {
                    0 | 1 => assert_eq!(
                        ours.write(&key, &value, flags),
                        kernel.write(&key, &value, flags),
                        "{what}"
                    ),
                    2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                    _ => assert_eq!(ours.read(&key), kernel.read(&key, 0), "{what}"),
                }
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

#[test]
fn creation_is_refused_alike() {
    in_child("creation_is_refused_alike", || {
        if !permitted() {
            return;
        }
        use MapType::*;
        let types = [
            Hash,
            Array,
            ProgArray,
            PerfEventArray,
            PercpuHash,
            PercpuArray,
            StackTrace,
            CgroupArray,
            LruHash,
            LruPercpuHash,
            LpmTrie,
            Devmap,
            Sockmap,
            Cpumap,
            Xskmap,
            Sockhash,
            CgroupStorage,
            ReuseportSockarray,
            PercpuCgroupStorage,
            Queue,
            Stack,
            DevmapHash,
            Ringbuf,
            BloomFilter,
            UserRingbuf,
            Arena,
        ];
        let (mut compared, mut absent) = (0, BTreeMap::new());
        for t in types {
            let base = |key, value, entries| MapParams::new(t, key, value, entries);
            // Some attributes that the type accepts, if any do.
            let good = [
                base(4, 4, 4),
                base(4, 8, 4),
                base(0, 8, 4),
                base(0, 0, 4096),
                base(8, 8, 4),
                base(8, 4, 0),
                base(16, 4, 0),
            ];
            let good = good
                .iter()
                .flat_map(|p| {
                    [0, BPF_F_NO_PREALLOC, BPF_F_MMAPABLE].map(|f| p.clone().with_flags(f))
                })
                .find(|p| KernelMap::create(p, 0).is_ok());
            let Some(good) = good else {
                absent.insert(t as u32, t.name());
                continue;
            };
            let mut tries = vec![good.clone()];
            for key in [0, 1, 2, 4, 5, 8, 16, 20, 260, 261, 512, 513, 5000] {
                tries.push(MapParams {
                    key_size: key,
                    ..good.clone()
                });
            }
            for value in [
                0,
                1,
                2,
                3,
                4,
                7,
                8,
                9,
                12,
                16,
                32,
                64,
                1016,
                1017,
                1024,
                4064,
                4096,
                32760,
                32768,
                32769,
                65000,
                65407,
                65408,
                65440,
                65448,
                65456,
                65500,
                65535,
                65536,
                70000,
                (4 << 20) - 300,
                (4 << 20) - 298,
                (4 << 20) - 296,
                (4 << 20) - 292,
                (4 << 20) - 288,
                (4 << 20) - 281,
                (4 << 20) - 280,
                (4 << 20) - 279,
                (4 << 20) - 272,
                (4 << 20) - 60,
                (4 << 20) - 57,
                (4 << 20) - 56,
                (4 << 20) - 53,
                (4 << 20) - 52,
                (4 << 20) - 51,
                (4 << 20) - 50,
                (4 << 20) - 49,
                (4 << 20) - 48,
                (4 << 20) - 8,
                4 << 20,
                (4 << 20) + 1,
                i32::MAX as u32 + 1,
                u32::MAX,
            ] {
                // Not what takes gigabytes.
                if value > 5 << 20 && matches!(t, Array | PercpuArray) && value <= i32::MAX as u32 {
                    continue;
                }
                tries.push(MapParams {
                    value_size: value,
                    max_entries: good.max_entries.min(4),
                    ..good.clone()
                });
                tries.push(MapParams {
                    value_size: value,
                    ..good.clone()
                });
            }
            for entries in [
                0,
                1,
                2,
                3,
                5,
                100,
                4095,
                4096,
                4097,
                8192,
                12288,
                65536,
                1 << 20,
            ] {
                // How many CPUs a kernel is built for is its own affair.
                if t != Cpumap || entries <= 5 {
                    tries.push(MapParams {
                        max_entries: entries,
                        ..good.clone()
                    });
                }
            }
            if t == Arena {
                for entries in [1 << 20, (1 << 20) + 1, 1 << 25] {
                    tries.push(MapParams {
                        max_entries: entries,
                        ..good.clone()
                    });
                    for extra in [4096, 4097, 0xffff_f000, 0x1_0000_0000] {
                        tries.push(MapParams {
                            max_entries: entries,
                            extra,
                            ..good.clone()
                        });
                    }
                }
            }
            if matches!(
                t,
                Hash | PercpuHash | LruHash | StackTrace | LpmTrie | DevmapHash
            ) {
                for entries in [(1 << 27) + 1, (1 << 28) + 1, (1 << 31) + 1, u32::MAX] {
                    // LPM tries allocate nothing ahead; the others are refused.
                    if t != StackTrace && t != DevmapHash || entries > 1 << 31 {
                        tries.push(MapParams {
                            max_entries: entries,
                            ..good.clone()
                        });
                    }
                }
            }
            for bit in 0..20 {
                // Not those that need a token, a device or a BTF.
                if ![2, 15, 16].contains(&bit) {
                    tries.push(good.clone().with_flags(1 << bit));
                    tries.push(good.clone().with_flags(good.flags | 1 << bit));
                    tries.push(
                        good.clone()
                            .with_flags(good.flags ^ 1 << bit | BPF_F_RDONLY_PROG),
                    );
                }
            }
            for flags in [
                BPF_F_RDONLY | BPF_F_WRONLY,
                BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG,
                BPF_F_NO_PREALLOC | BPF_F_NO_COMMON_LRU,
                BPF_F_NUMA_NODE,
                BPF_F_NUMA_NODE | BPF_F_NO_COMMON_LRU,
                BPF_F_NUMA_NODE | good.flags,
            ] {
                tries.push(good.clone().with_flags(flags));
            }
            for extra in [1, 15, 16, 4096, 1 << 32] {
                tries.push(good.clone().with_extra(extra));
            }
            for p in tries {
                let expected = KernelMap::create(&p, 0).map(drop);
                assert_eq!(Map::create(p.clone()).map(drop), expected, "{p:?}");
                compared += 1;
            }
        }
        println!("compared {compared} creations");
        for name in absent.values() {
            println!("skipped: the kernel makes no {name} from sizes alone");
        }
    });
}

/// A BTF with an `int` (type 1) and an array of `size` chars (type 3).
fn load_btf(size: u32) -> i32 {
    let types: [u32; 14] = [
        1,
        1 << 24,
        4,
        1 << 24 | 32, // int, signed, 32 bits
        5,
        1 << 24,
        1,
        8, // char
        0,
        3 << 24,
        0,
        2,
        1,
        size, // char[size]
    ];
    let strings = b"\0int\0char\0";
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [
        24,
        0,
        size_of_val(&types) as u32,
        size_of_val(&types) as u32,
        strings.len() as u32,
    ]
    .into_iter()
    .chain(types)
    {
        blob.extend_from_slice(&word.to_ne_bytes());
    }
    blob.extend_from_slice(strings);
    Attr::new()
        .u64(0, ptr(&blob))
        .u32(16, blob.len() as u32)
        .call(18)
        .unwrap()
}

#[test]
fn socket_storage_answers_alike() {
    in_child("socket_storage_answers_alike", || {
        use std::os::fd::AsRawFd;
        if !permitted() {
            return;
        }
        let create = |p: &MapParams| {
            let btf = load_btf(p.value_size.max(1));
            let fd = Attr::new()
                .u32(0, p.map_type as u32)
                .u32(4, p.key_size)
                .u32(8, p.value_size)
                .u32(12, p.max_entries)
                .u32(16, p.flags)
                .u32(48, btf as u32)
                .u32(52, 1)
                .u32(56, 3)
                .call(0);
            // SAFETY: our descriptor.
            unsafe { libc::close(btf) };
            let (key_size, value_size) = (p.key_size as usize, p.value_size as usize);
            fd.map(|fd| KernelMap {
                fd,
                key_size,
                value_size,
            })
        };
        let base = MapParams::new(MapType::SkStorage, 4, 12, 0).with_flags(BPF_F_NO_PREALLOC);
        for t in [
            MapType::SkStorage,
            MapType::TaskStorage,
            MapType::InodeStorage,
            MapType::CgrpStorage,
        ] {
            let base = MapParams {
                map_type: t,
                ..base.clone()
            };
            if let Err(e) = create(&base) {
                println!("skipped: the kernel makes no {} ({e})", t.name());
                continue;
            }
            let mut tries = vec![];
            for flags in [
                0,
                1,
                1 | BPF_F_CLONE,
                BPF_F_CLONE,
                1 | BPF_F_RDONLY,
                1 | BPF_F_ZERO_SEED,
            ] {
                tries.push(base.clone().with_flags(flags));
            }
            for value_size in [0, 1, 100, 65407, 65408, 65535, 65536] {
                tries.push(MapParams {
                    value_size,
                    ..base.clone()
                });
            }
            for key_size in [0, 8] {
                tries.push(MapParams {
                    key_size,
                    ..base.clone()
                });
            }
            tries.push(MapParams {
                max_entries: 1,
                ..base.clone()
            });
            for p in tries {
                assert_eq!(
                    Map::create(p.clone()).map(drop),
                    create(&p).map(drop),
                    "{p:?}"
                );
            }
        }
        let kernel = create(&base).unwrap();
        let ours = Map::create(base).unwrap();
        let sockets: Vec<_> = (0..4)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let mut rng = Random(5);
        for step in 0..1000 {
            let key = rng.pick(&sockets.iter().map(|s| s.as_raw_fd()).collect::<Vec<_>>());
            let key = key.to_ne_bytes();
            let value: Vec<u8> = (0..12).map(|_| rng.below(256) as u8).collect();
            let flags = rng.pick(&[0, 0, 0, 1, 2, 3, 4, 8]);
            let what = format!("{step} {key:?} {flags}");
            match rng.below(4) {
                0 | 1 => assert_eq!(
                    ours.write(&key, &value, flags),
                    kernel.write(&key, &value, flags),
                    "{what}"
                ),
                2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                _ => assert_eq!(ours.read(&key), kernel.read(&key, 0), "{what}"),
            }
        }
        let key = sockets[0].as_raw_fd().to_ne_bytes();
        assert_eq!(ours.take(&key, 0), kernel.take(&key, 0));
        assert_eq!(ours.next_key(None), kernel.next_key(None));
        assert_eq!(ours.next_key(Some(&key)), kernel.next_key(Some(&key)));
    });
}

#[test]
fn attached_storage_answers_alike() {
    in_child("attached_storage_answers_alike", || {
        if !permitted() {
            return;
        }
        for t in [MapType::CgroupStorage, MapType::PercpuCgroupStorage] {
            for size in [8u32, 16] {
                let p = MapParams::new(t, size, 8, 0).with_cpus(possible_cpus());
                let Ok(mut kernel) = KernelMap::create(&p, 0) else {
                    println!("skipped: the kernel makes no {}", t.name());
                    continue;
                };
                let ours = Map::create(p).unwrap();
                kernel.value_size = ours.host_value_size();
                let key = vec![1; size as usize];
                for flags in [0, 1, 2, 3, 4, 6, 8] {
                    let value = vec![0; kernel.value_size];
                    let (a, b) = (
                        ours.write(&key, &value, flags),
                        kernel.write(&key, &value, flags),
                    );
                    assert_eq!(a, b, "{t:?} {flags}");
                }
                assert_eq!(ours.read(&key), kernel.read(&key, 0), "{t:?}");
                assert_eq!(ours.remove(&key), kernel.remove(&key), "{t:?}");
                assert_eq!(ours.take(&key, 0), kernel.take(&key, 0), "{t:?}");
                assert_eq!(ours.next_key(None), kernel.next_key(None), "{t:?}");
                assert_eq!(
                    ours.next_key(Some(&key)),
                    kernel.next_key(Some(&key)),
                    "{t:?}"
                );
            }
        }
    });
}

#[test]
fn socket_maps_answer_alike() {
    in_child("socket_maps_answer_alike", || {
        use std::os::fd::AsRawFd;
        if !permitted() {
            return;
        }
        let sockets: Vec<_> = (0..3)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        for t in [MapType::Sockmap, MapType::Sockhash] {
            for value_size in [4, 8] {
                let p = MapParams::new(t, 4, value_size, 3);
                let Ok(kernel) = KernelMap::create(&p, 0) else {
                    println!("skipped: the kernel makes no {}", t.name());
                    continue;
                };
                let ours = Map::create(p).unwrap();
                let mut rng = Random(5);
                for step in 0..500 {
                    let key = rng.below(5).to_ne_bytes();
                    let fd = rng.pick(&sockets.iter().map(|s| s.as_raw_fd()).collect::<Vec<_>>());
                    let mut value = fd.to_ne_bytes().to_vec();
                    value.resize(value_size as usize, 0);
                    let flags = rng.pick(&[0, 0, 0, 1, 2, 3, 4, 8]);
                    let what = format!("{t:?} {step} {key:?} {flags}");
                    match rng.below(4) {
                        0 | 1 => assert_eq!(
                            ours.write(&key, &value, flags),
                            kernel.write(&key, &value, flags),
                            "{what}"
                        ),
                        2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                        // The kernel gives a cookie of its own.
                        _ => assert_eq!(
                            ours.read(&key).map(drop),
                            kernel.read(&key, 0).map(drop),
                            "{what}"
                        ),
                    }
                    if t == MapType::Sockmap {
                        assert_eq!(
                            ours.next_key(Some(&key)),
                            kernel.next_key(Some(&key)),
                            "{what}"
                        );
                    }
                }
                let key = [0; 4];
                assert_eq!(ours.take(&key, 0), kernel.take(&key, 0), "{t:?}");
                let (_, _, result) = kernel.batch(24, 3);
                match ours.lookup_batch(None, 3, 0) {
                    Ok(_) => assert!(matches!(result, Ok(()) | Err(Errno::ENOENT))),
                    Err(e) => assert_eq!(Err(e), result, "{t:?}"),
                }
            }
        }
    });
}
