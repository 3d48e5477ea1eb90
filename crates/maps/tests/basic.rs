//! Arrays and hashes: what programs and the host see.

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

fn map(t: MapType, key: u32, value: u32, max: u32) -> std::sync::Arc<Map> {
    Map::create(MapParams::new(t, key, value, max).with_cpus(4)).unwrap()
}

fn poke(at: std::ptr::NonNull<u8>, v: u64) {
    // SAFETY: a value of at least eight bytes, aligned.
    unsafe { at.cast::<u64>().write(v) }
}

#[test]
fn array_answers_as_the_kernel() {
    let m = map(MapType::Array, 4, 12, 3);
    let k = |i: u32| i.to_ne_bytes();
    assert_eq!(m.read(&k(0)).unwrap(), [0; 12]);
    assert_eq!(m.write(&k(3), &[1; 12], 0), Err(Errno::E2BIG));
    assert_eq!(m.write(&k(1), &[1; 12], BPF_NOEXIST), Err(Errno::EEXIST));
    assert_eq!(m.write(&k(1), &[1; 12], 3), Err(Errno::EINVAL));
    assert_eq!(m.write(&k(1), &[1; 12], BPF_EXIST), Ok(()));
    assert_eq!(m.remove(&k(1)), Err(Errno::EINVAL));
    assert_eq!(m.read(&k(7)), Err(Errno::ENOENT));
    assert_eq!(m.next_key(None).unwrap(), k(0));
    assert_eq!(m.next_key(Some(&k(1))).unwrap(), k(2));
    assert_eq!(m.next_key(Some(&k(2))), Err(Errno::ENOENT));
    assert_eq!(m.next_key(Some(&k(9))).unwrap(), k(0));
    let (a, b) = (m.lookup(0, &k(0)).unwrap(), m.lookup(0, &k(1)).unwrap());
    assert_eq!(b.addr().get() - a.addr().get(), 16);
    assert!(m.lookup(0, &k(3)).is_none());
    let region = m.value_regions()[0];
    assert!(region.contains(b.addr().get() as u64 + 4, 8));
    assert!(!region.contains(b.addr().get() as u64 + 5, 8));
    assert!(!region.contains(a.addr().get() as u64 + 48, 1));
}

#[test]
fn percpu_values_are_apart() {
    for t in [
        MapType::PercpuArray,
        MapType::PercpuHash,
        MapType::LruPercpuHash,
    ] {
        let m = map(t, 4, 8, 4);
        let k = 2u32.to_ne_bytes();
        m.update(1, &k, &7u64.to_ne_bytes(), 0).unwrap();
        poke(m.lookup(3, &k).unwrap(), 9);
        let all: Vec<u64> = m
            .read(&k)
            .unwrap()
            .chunks(8)
            .map(|c| u64::from_ne_bytes(c.try_into().unwrap()))
            .collect();
        assert_eq!(all, [0, 7, 0, 9], "{t:?}");
        assert!(m.lookup(4, &k).is_none());
    }
}

#[test]
fn hash_of_every_key_size() {
    for t in [MapType::Hash, MapType::LruHash, MapType::PercpuHash] {
        for size in [1u32, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 64, 100] {
            let m = map(t, size, 8, 500);
            let key = |i: u32| {
                let mut k = vec![0u8; size as usize];
                let b = i.to_le_bytes();
                let n = b.len().min(k.len());
                k[..n].copy_from_slice(&b[..n]);
                k
            };
            let n = if size == 1 { 200 } else { 400 };
            for i in 0..n {
                assert_eq!(
                    m.update(0, &key(i), &u64::from(i).to_ne_bytes(), BPF_NOEXIST),
                    Ok(())
                );
            }
            assert_eq!(
                m.update(0, &key(3), &[0; 8], BPF_NOEXIST),
                Err(Errno::EEXIST)
            );
            for i in 0..n {
                let at = m.lookup(0, &key(i)).expect("present");
                // SAFETY: a value of eight bytes.
                assert_eq!(unsafe { at.cast::<u64>().read() }, u64::from(i));
            }
            assert_eq!(m.count(), Ok(n.into()));
            for i in (0..n).step_by(2) {
                assert_eq!(m.delete(0, &key(i)), Ok(()));
                assert_eq!(m.delete(0, &key(i)), Err(Errno::ENOENT));
            }
            assert_eq!(m.count(), Ok((n / 2).into()));
            for i in 0..n {
                assert_eq!(
                    m.lookup(0, &key(i)).is_some(),
                    i % 2 == 1,
                    "{t:?} {size} {i}"
                );
            }
        }
    }
}

#[test]
fn full_hash_refuses_and_replaces() {
    for flags in [0, BPF_F_NO_PREALLOC] {
        let m = Map::create(
            MapParams::new(MapType::Hash, 4, 8, 3)
                .with_flags(flags)
                .with_cpus(2),
        )
        .unwrap();
        for i in 0..3u32 {
            m.update(i % 2, &i.to_ne_bytes(), &[1; 8], 0).unwrap();
        }
        let k = 9u32.to_ne_bytes();
        assert_eq!(m.update(0, &k, &[1; 8], 0), Err(Errno::E2BIG));
        assert_eq!(m.update(0, &k, &[1; 8], BPF_EXIST), Err(Errno::ENOENT));
        for round in 0..20u32 {
            for i in 0..3u32 {
                m.update(round % 2, &i.to_ne_bytes(), &[round as u8; 8], BPF_EXIST)
                    .unwrap();
            }
        }
        assert_eq!(m.read(&1u32.to_ne_bytes()).unwrap(), [19; 8]);
        m.delete(1, &1u32.to_ne_bytes()).unwrap();
        assert_eq!(m.update(0, &k, &[1; 8], 0), Ok(()));
        assert_eq!(
            m.update(0, &8u32.to_ne_bytes(), &[1; 8], 0),
            Err(Errno::E2BIG)
        );
    }
}

#[test]
fn lru_evicts_the_unused() {
    for flags in [0, BPF_F_NO_COMMON_LRU] {
        let m = Map::create(MapParams::new(MapType::LruHash, 4, 8, 100).with_flags(flags)).unwrap();
        for i in 0..10_000u32 {
            m.update(0, &i.to_ne_bytes(), &[0; 8], BPF_NOEXIST).unwrap();
            // Key 0 is used all the time.
            assert!(
                m.lookup(0, &0u32.to_ne_bytes()).is_some(),
                "evicted at {i}, {flags}"
            );
        }
        let n = m.count().unwrap();
        assert!((2..=100).contains(&n), "{n}");
    }
}

#[test]
fn batches_cover_everything_once() {
    let m = map(MapType::Hash, 4, 8, 1000);
    let keys: Vec<u8> = (0..1000u32).flat_map(|i| i.to_ne_bytes()).collect();
    let values: Vec<u8> = (0..1000u64).flat_map(|i| i.to_ne_bytes()).collect();
    assert_eq!(m.update_batch(&keys, &values, 0), Ok(1000));
    let (mut seen, mut from) = (std::collections::BTreeSet::new(), None);
    loop {
        let batch = m.lookup_batch(from.as_ref(), 7, 0).unwrap();
        for (k, v) in batch.keys.chunks(4).zip(batch.values.chunks(8)) {
            assert_eq!(k, &v[..4]);
            assert!(seen.insert(k.to_vec()));
        }
        match batch.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(m.delete_batch(&keys[..400], 0), Ok(100));
    assert_eq!(
        m.delete_batch(&keys[..400], 0),
        Err(BatchError {
            done: 0,
            errno: Errno::ENOENT
        })
    );
    let taken = m.take_batch(None, 2000, 0).unwrap();
    assert_eq!((taken.count, taken.next), (900, None));
    assert_eq!(m.count(), Ok(0));
    let a = map(MapType::Array, 4, 8, 10);
    assert_eq!(a.lookup_batch(None, 100, 0).unwrap().count, 10);
    assert_eq!(a.take_batch(None, 100, 0).unwrap_err(), Errno::ENOTSUPP);
    assert_eq!(
        a.delete_batch(&keys[..4], 0).unwrap_err().errno,
        Errno::ENOTSUPP
    );
}

#[test]
fn inner_maps_are_kept_and_dropped() {
    let inner = MapParams::new(MapType::Array, 4, 8, 2);
    for t in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        let m = Map::create(MapParams::new(t, 4, 4, 2).with_inner(inner.clone())).unwrap();
        let a = Map::create(inner.clone()).unwrap();
        let b = Map::create(inner.clone()).unwrap();
        let other = Map::create(MapParams::new(MapType::Array, 4, 8, 3)).unwrap();
        let k = 1u32.to_ne_bytes();
        assert_eq!(m.read(&k), Err(Errno::ENOENT));
        m.set_inner(&k, &a, 0).unwrap();
        assert_eq!(m.set_inner(&k, &other, 0), Err(Errno::EINVAL));
        assert_eq!(m.read(&k).unwrap(), a.id().to_ne_bytes());
        {
            let guard = pin();
            let seen = m.lookup_inner(&k, &guard).unwrap();
            m.set_inner(&k, &b, 0).unwrap();
            drop(a);
            assert!(seen.write(&k, &[5; 8], 0).is_ok());
        }
        assert_eq!(m.inner(&k).unwrap().id(), b.id());
        m.remove(&k).unwrap();
        assert_eq!(m.remove(&k), Err(Errno::ENOENT));
        assert!(m.inner(&k).is_none());
        m.set_inner(&k, &b, 0).unwrap();
    }
}

#[test]
fn locks_and_special_fields_stay() {
    use std::sync::atomic::{AtomicU32, Ordering};
    #[derive(Default)]
    struct Count(AtomicU32);
    impl FieldHooks for Count {
        fn release(&self, _map: u32, field: Field, _at: std::ptr::NonNull<u8>) {
            assert_eq!(field.kind, FieldKind::Timer);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let fields = vec![
        Field {
            kind: FieldKind::SpinLock,
            offset: 0,
        },
        Field {
            kind: FieldKind::Timer,
            offset: 8,
        },
    ];
    let params = MapParams::new(MapType::Hash, 4, 32, 4).with_fields(fields.clone());
    let m = Map::create(params).unwrap();
    let hooks = std::sync::Arc::new(Count::default());
    m.set_hooks(hooks.clone()).unwrap();
    let k = 1u32.to_ne_bytes();
    m.update(0, &k, &[0xff; 32], 0).unwrap();
    let mut expected = [0; 32];
    expected[4..8].fill(0xff);
    expected[24..].fill(0xff);
    assert_eq!(m.read_with(&k, BPF_F_LOCK).unwrap(), expected);
    m.update(0, &k, &[0xee; 32], BPF_F_LOCK).unwrap();
    assert_eq!(hooks.0.load(Ordering::Relaxed), 0);
    m.update(0, &k, &[0xee; 32], 0).unwrap();
    assert_eq!(hooks.0.load(Ordering::Relaxed), 1);
    m.delete(0, &k).unwrap();
    assert_eq!(hooks.0.load(Ordering::Relaxed), 2);
    m.update(0, &k, &[0xee; 32], 0).unwrap();
    drop(m);
    assert_eq!(hooks.0.load(Ordering::Relaxed), 3);
    let lru = MapParams::new(MapType::LruHash, 4, 32, 4).with_fields(fields);
    assert_eq!(Map::create(lru).err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn addresses_lead_back_to_elements() {
    for (t, size) in [
        (MapType::Array, 4),
        (MapType::Hash, 4),
        (MapType::LruHash, 4),
    ] {
        let m = map(t, size, 12, 50);
        for i in 0..40u32 {
            m.update(0, &i.to_ne_bytes(), &[1; 12], 0).unwrap();
        }
        for i in 0..40u32 {
            let at = m.lookup(0, &i.to_ne_bytes()).unwrap().addr().get() as u64;
            let found = (Box::from(i.to_ne_bytes()), at);
            assert_eq!(m.element_at(at + 11), Some(found));
            assert_eq!(m.element_at(at + 12), None);
        }
        assert_eq!(m.element_at(0), None);
    }
}
