//! Hashes, LRU hashes, queues and stacks against naive models.

use std::collections::{BTreeMap, VecDeque};

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Update(u32, u64),
    Delete(u32),
    Lookup(u32),
    Take(u32),
}

fn op(keys: u32) -> impl Strategy<Value = Op> {
    let key = 0..keys;
    prop_oneof![
        4 => (key.clone(), prop_oneof![4 => Just(0u64), 1 => 1u64..4]).prop_map(|(k, f)| Op::Update(k, f)),
        2 => key.clone().prop_map(Op::Delete),
        3 => key.clone().prop_map(Op::Lookup),
        1 => key.prop_map(Op::Take),
    ]
}

fn run<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, check: impl Fn(T)) {
    let config = ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&strategy, |input| {
            check(input);
            Ok(())
        })
        .unwrap();
}

fn read(m: &Map, key: &[u8]) -> Option<u64> {
    // SAFETY: a value of eight bytes, which no other thread writes.
    m.lookup(0, key)
        .map(|at| unsafe { at.cast::<u64>().read() })
}

#[test]
fn hash_matches_the_model() {
    for (max, size, flags) in [(10u32, 4usize, 0), (10, 9, BPF_F_NO_PREALLOC), (60, 24, 0)] {
        run(proptest::collection::vec(op(30), 1..400), |ops| {
            let params = MapParams::new(MapType::Hash, size as u32, 8, max);
            let m = Map::create(params.with_flags(flags).with_cpus(3)).unwrap();
            let mut model = BTreeMap::new();
            for (i, op) in ops.into_iter().enumerate() {
                let key = |k: u32| {
                    let mut key = vec![0; size];
                    key[size - 4..].copy_from_slice(&k.to_ne_bytes());
                    key
                };
                let cpu = i as u32 % 3;
                match op {
                    Op::Update(k, flags) => {
                        let expected = match (model.contains_key(&k), flags) {
                            (_, 3..) => Err(Errno::EINVAL),
                            (true, BPF_NOEXIST) => Err(Errno::EEXIST),
                            (false, BPF_EXIST) => Err(Errno::ENOENT),
                            (false, _) if model.len() == max as usize => Err(Errno::E2BIG),
                            _ => {
                                model.insert(k, i as u64);
                                Ok(())
                            }
                        };
                        let value = (i as u64).to_ne_bytes();
                        assert_eq!(m.update(cpu, &key(k), &value, flags), expected);
                    }
                    Op::Delete(k) => {
                        let expected = model.remove(&k).map(drop).ok_or(Errno::ENOENT);
                        assert_eq!(m.delete(cpu, &key(k)), expected);
                    }
                    Op::Lookup(k) => assert_eq!(read(&m, &key(k)), model.get(&k).copied()),
                    Op::Take(k) => {
                        let expected = model.remove(&k).map(|v| v.to_ne_bytes().to_vec());
                        assert_eq!(m.take(&key(k), 0).ok(), expected);
                    }
                }
            }
            let mut found = BTreeMap::new();
            m.for_each(|k, v| {
                let k = u32::from_ne_bytes(k[size - 4..].try_into().unwrap());
                found.insert(k, u64::from_ne_bytes(v.try_into().unwrap()));
            })
            .unwrap();
            assert_eq!(found, model);
        });
    }
}

#[test]
fn lru_forgets_but_never_errs() {
    for (max, keys, flags) in [
        (8u32, 40u32, 0),
        (8, 40, BPF_F_NO_COMMON_LRU),
        (2000, 40, 0),
    ] {
        for t in [MapType::LruHash, MapType::LruPercpuHash] {
            run(proptest::collection::vec(op(keys), 1..400), |ops| {
                let m = Map::create(MapParams::new(t, 4, 8, max).with_flags(flags)).unwrap();
                let mut model = BTreeMap::new();
                for (i, op) in ops.into_iter().enumerate() {
                    match op {
                        Op::Update(k, flags) => {
                            let there = read(&m, &k.to_ne_bytes()).is_some();
                            let expected = match (there, flags) {
                                (_, 3..) => Err(Errno::EINVAL),
                                (true, BPF_NOEXIST) => Err(Errno::EEXIST),
                                (false, BPF_EXIST) => Err(Errno::ENOENT),
                                _ => {
                                    model.insert(k, i as u64);
                                    Ok(())
                                }
                            };
                            // Getting an element may evict the very key that is asked for.
                            let value = (i as u64).to_ne_bytes();
                            let done = m.update(0, &k.to_ne_bytes(), &value, flags);
                            let evicted = there && read(&m, &k.to_ne_bytes()).is_none();
                            assert!(
                                done == expected || evicted || flags != 0,
                                "{done:?} {expected:?}"
                            );
                            if done.is_ok() {
                                model.insert(k, i as u64);
                                assert_eq!(read(&m, &k.to_ne_bytes()), Some(i as u64));
                            }
                        }
                        Op::Delete(k) => {
                            let there = read(&m, &k.to_ne_bytes()).is_some();
                            assert_eq!(m.delete(0, &k.to_ne_bytes()).is_ok(), there);
                            model.remove(&k);
                        }
                        Op::Lookup(k) | Op::Take(k) => {
                            let found = read(&m, &k.to_ne_bytes());
                            // What is there is right; with ample room, all is there.
                            assert!(found.is_none() || found == model.get(&k).copied());
                            if max > keys {
                                assert_eq!(found, model.get(&k).copied());
                            }
                        }
                    }
                }
                assert!(m.count().unwrap() <= u64::from(max));
            });
        }
    }
}

#[test]
fn queues_and_stacks_match_the_model() {
    for t in [MapType::Queue, MapType::Stack] {
        let op = prop_oneof![
            3 => (0u64..4).prop_map(Some),
            2 => Just(None),
        ];
        run(proptest::collection::vec(op, 1..200), |ops| {
            let m = Map::create(MapParams::new(t, 0, 8, 5)).unwrap();
            let mut model = VecDeque::new();
            for (i, op) in ops.into_iter().enumerate() {
                let next = |model: &VecDeque<u64>| match t {
                    MapType::Queue => model.front().copied(),
                    _ => model.back().copied(),
                };
                match op {
                    Some(flags) => {
                        let expected = match flags {
                            1 | 3 => Err(Errno::EINVAL),
                            0 if model.len() == 5 => Err(Errno::E2BIG),
                            _ => {
                                if model.len() == 5 {
                                    model.pop_front();
                                }
                                model.push_back(i as u64);
                                Ok(())
                            }
                        };
                        assert_eq!(m.push(&(i as u64).to_ne_bytes(), flags), expected);
                    }
                    None => {
                        let expected = next(&model);
                        let mut out = [7; 8];
                        assert_eq!(m.peek(&mut out).is_ok(), expected.is_some());
                        assert_eq!(u64::from_ne_bytes(out), expected.unwrap_or(0));
                        assert_eq!(m.pop(&mut out).is_ok(), expected.is_some());
                        assert_eq!(u64::from_ne_bytes(out), expected.unwrap_or(0));
                        match t {
                            MapType::Queue => model.pop_front(),
                            _ => model.pop_back(),
                        };
                    }
                }
            }
        });
    }
}
