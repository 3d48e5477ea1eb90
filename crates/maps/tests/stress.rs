//! Eight threads on one map: nothing that stays is missed, nothing accepted is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

const THREADS: u32 = 8;
const STEPS: u32 = if cfg!(miri) {
    40
} else if cfg!(debug_assertions) {
    20_000
} else {
    500_000
};

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (((self.0 >> 32) * u64::from(n)) >> 32) as u32
    }
}

fn read(at: std::ptr::NonNull<u8>) -> u64 {
    // SAFETY: a value of eight bytes, which other threads write as one word.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.load(Relaxed)
}

fn run(work: impl Fn(u32, &mut Random) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread, &mut Random(u64::from(thread) + 1)));
        }
    });
}

fn value(key: u32, round: u32) -> [u8; 8] {
    (u64::from(round) << 32 | u64::from(key)).to_ne_bytes()
}

/// Keys below 64 stay and are never written, those below 128 are replaced all the
/// time, the rest comes and goes.
fn churn(m: &Map, exact: bool, key: impl Fn(u32) -> Vec<u8> + Sync) {
    for i in 0..128 {
        m.update(0, &key(i), &value(i, 0), 0).unwrap();
    }
    run(|cpu, rng| {
        let mut guard = pin();
        for step in 0..STEPS {
            if step % 64 == 0 {
                guard.repin();
            }
            let i = rng.below(64);
            let at = m.lookup(cpu, &key(i)).expect("a key that stays");
            assert_eq!(read(at), u64::from(i));
            let i = 64 + rng.below(64);
            let at = m.lookup(cpu, &key(i)).expect("a key that is only replaced");
            if exact {
                assert_eq!(read(at) as u32, i);
            }
            let done = m.update(cpu, &key(i), &value(i, step), BPF_EXIST);
            assert_eq!(
                done,
                Ok(()),
                "{step} {:?} {:?}",
                m.params(),
                m.as_lpm().map(LpmTrie::memory_used)
            );
            let i = 128 + rng.below(2000);
            match rng.below(3) {
                0 => {
                    let done = m.update(cpu, &key(i), &value(i, step), rng.below(3).into());
                    assert!(
                        matches!(
                            done,
                            Ok(())
                                | Err(Errno::EEXIST | Errno::ENOENT | Errno::E2BIG | Errno::ENOSPC)
                        ),
                        "{done:?}"
                    );
                }
                1 => {
                    let done = m.delete(cpu, &key(i));
                    assert!(matches!(done, Ok(()) | Err(Errno::ENOENT)), "{done:?}");
                }
                _ => {
                    if let (true, Some(at)) = (exact, m.lookup(cpu, &key(i))) {
                        assert_eq!(read(at) as u32, i);
                    }
                }
            }
        }
    });
    // Afterwards the map is whole: what a walk finds, a look-up finds.
    let mut n = 0;
    m.for_each(|k, v| {
        n += 1;
        assert_eq!(m.read(k).unwrap(), v);
        let i = u64::from_ne_bytes(v.try_into().unwrap()) as u32;
        assert_eq!(k, key(i));
    })
    .unwrap();
    assert!((128..=1000).contains(&n), "{n}");
    for i in 0..2128 {
        let there = m.read(&key(i)).is_ok();
        assert_eq!(m.remove(&key(i)).is_ok(), there);
    }
    assert_eq!(m.count(), Ok(0));
    // Every element is free again.
    for i in 0..1000 {
        m.update(i % THREADS, &key(i), &value(i, 0), BPF_NOEXIST)
            .unwrap();
    }
    let full = m.update(0, &key(5000), &[0; 8], 0);
    assert!(
        matches!(full, Err(Errno::E2BIG | Errno::ENOSPC)),
        "{full:?}"
    );
}

#[test]
fn hash_keeps_what_stays() {
    for flags in [0, BPF_F_NO_PREALLOC] {
        for size in [4u32, 8, 20] {
            let params = MapParams::new(MapType::Hash, size, 8, 1000).with_flags(flags);
            let m = Map::create(params.with_cpus(THREADS)).unwrap();
            churn(&m, false, |i| {
                let mut key = vec![0; size as usize];
                key[..4].copy_from_slice(&i.to_ne_bytes());
                key
            });
        }
    }
}

#[test]
fn hash_is_safe_where_threads_share_a_cpu() {
    let m = Map::create(MapParams::new(MapType::Hash, 4, 8, 64).with_cpus(1)).unwrap();
    for i in 0..64u32 {
        m.update(0, &i.to_ne_bytes(), &value(i, 0), 0).unwrap();
    }
    run(|_, rng| {
        for step in 0..STEPS / 4 {
            let i = rng.below(64);
            assert!(m.lookup(0, &i.to_ne_bytes()).is_some());
            assert_eq!(m.update(0, &i.to_ne_bytes(), &value(i, step), 0), Ok(()));
        }
    });
    assert_eq!(m.count(), Ok(64));
}

#[test]
fn trie_keeps_what_stays_and_its_values() {
    for (size, bits) in [(4usize, 32u32), (8, 40), (16, 127)] {
        let params = MapParams::new(MapType::LpmTrie, size as u32 + 4, 8, 1000);
        let params = params.with_flags(BPF_F_NO_PREALLOC).with_cpus(THREADS);
        let m = Map::create(params).unwrap();
        churn(&m, true, |i| {
            let mut key = vec![0; size + 4];
            key[..4].copy_from_slice(&bits.to_ne_bytes());
            // Spread over all bytes that count.
            let spread = u64::from(i)
                .wrapping_mul(0x0101_0001_0203_0507)
                .to_le_bytes();
            key[4..].iter_mut().zip(spread).for_each(|(k, b)| *k = b);
            key[4..8].copy_from_slice(&i.reverse_bits().to_be_bytes());
            key
        });
    }
}

#[test]
fn lru_always_takes_one_more() {
    for flags in [0, BPF_F_NO_COMMON_LRU] {
        let params = MapParams::new(MapType::LruHash, 4, 8, 2000).with_flags(flags);
        let m = Map::create(params.with_cpus(THREADS)).unwrap();
        run(|cpu, rng| {
            for step in 0..STEPS {
                let i = rng.below(20_000);
                let k = i.to_ne_bytes();
                match rng.below(4) {
                    0 => {
                        let _ = m.delete(cpu, &k);
                    }
                    1 => {
                        let _ = m.lookup(cpu, &k);
                    }
                    _ => assert_eq!(m.update(cpu, &k, &value(i, step), 0), Ok(())),
                }
            }
        });
        let mut n = 0;
        m.for_each(|k, v| {
            n += 1;
            assert_eq!(k, &v[..4]);
        })
        .unwrap();
        assert!((100..=2000).contains(&n), "{n}");
    }
}

#[test]
fn ring_loses_nothing_that_it_accepted() {
    for size in [4096, 1 << 16] {
        let m = Map::create(MapParams::new(MapType::Ringbuf, 0, 0, size)).unwrap();
        let (accepted, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let (mut seen, mut last) = (0u64, [0u64; THREADS as usize]);
        std::thread::scope(|scope| {
            let producers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (m, accepted) = (&m, &accepted);
                    scope.spawn(move || {
                        let ring = m.as_ring().unwrap();
                        let mut rng = Random(thread.into());
                        for i in 1..=u64::from(STEPS) {
                            let words = 2 + rng.below(20) as usize;
                            let Some(at) = ring.reserve(words as u64 * 8) else {
                                std::thread::yield_now();
                                continue;
                            };
                            assert!(ring.is_reserved(at.addr().get() as u64, words as u64 * 8));
                            for w in 0..words as u64 {
                                let word = if w == 0 { thread.into() } else { i };
                                // SAFETY: inside the record.
                                unsafe { at.cast::<u64>().add(w as usize).write(word) };
                            }
                            let discard = rng.below(8) == 0;
                            // SAFETY: reserved above.
                            unsafe { RingBuf::commit(at, 0, discard) };
                            accepted.fetch_add(u64::from(!discard), Relaxed);
                        }
                    })
                })
                .collect();
            let (m, done) = (&m, &done);
            let consumer = scope.spawn({
                let (seen, last) = (&mut seen, &mut last);
                move || {
                    let ring = m.as_ring().unwrap();
                    loop {
                        let end = done.load(Acquire);
                        *seen += ring.consume(|record| {
                            let words: Vec<u64> = record
                                .chunks(8)
                                .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
                                .collect();
                            let last = &mut last[words[0] as usize];
                            assert!(words[1] > *last, "order of a producer");
                            assert!(words[2..].iter().all(|w| *w == words[1]));
                            *last = words[1];
                            Progress::Go
                        });
                        if end {
                            break;
                        }
                        ring.wait(std::time::Duration::from_millis(1));
                    }
                }
            });
            producers.into_iter().for_each(|p| p.join().unwrap());
            done.store(true, Release);
            consumer.join().unwrap();
        });
        assert_eq!(seen, accepted.load(Relaxed));
        let ring = m.as_ring().unwrap();
        assert_eq!(ring.query(RingQuery::AvailData), 0);
        assert_eq!(
            ring.query(RingQuery::ConsPos),
            ring.query(RingQuery::ProdPos)
        );
    }
}

#[test]
fn inner_maps_live_as_long_as_guards() {
    let inner = MapParams::new(MapType::Array, 4, 8, 4);
    for t in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        // As in the kernel, an element on its way out may be missing for a moment.
        let params = MapParams::new(t, 4, 4, 64)
            .with_inner(inner.clone())
            .with_cpus(THREADS);
        let m = Map::create(params).unwrap();
        let fresh = |i: u32| -> Arc<Map> {
            let made = Map::create(inner.clone()).unwrap();
            made.write(&[0; 4], &value(i, 0), 0).unwrap();
            made
        };
        run(|_, rng| {
            for step in 0..STEPS / 40 {
                let k = rng.below(4).to_ne_bytes();
                let guard = pin();
                match rng.below(4) {
                    0 => m.set_inner(&k, &fresh(step), 0).unwrap(),
                    1 => {
                        let _ = m.remove(&k);
                    }
                    _ => {
                        if let Some(found) = m.lookup_inner(&k, &guard) {
                            let at = found.lookup(0, &[0; 4]).unwrap();
                            assert!(read(at) < u64::from(STEPS));
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn queue_loses_nothing() {
    for t in [MapType::Queue, MapType::Stack] {
        let m = Map::create(MapParams::new(t, 0, 8, 100)).unwrap();
        let (pushed, popped) = (AtomicU64::new(0), AtomicU64::new(0));
        run(|thread, rng| {
            for step in 0..STEPS / 4 {
                let v = u64::from(step) << 8 | u64::from(thread);
                if rng.below(2) == 0 {
                    if m.push(&v.to_ne_bytes(), 0).is_ok() {
                        pushed.fetch_add(v, Relaxed);
                    }
                } else {
                    let mut out = [0; 8];
                    if m.pop(&mut out).is_ok() {
                        popped.fetch_add(u64::from_ne_bytes(out), Relaxed);
                    }
                }
            }
        });
        let mut out = [0; 8];
        while m.pop(&mut out).is_ok() {
            popped.fetch_add(u64::from_ne_bytes(out), Relaxed);
        }
        assert_eq!(pushed.into_inner(), popped.into_inner());
    }
}
