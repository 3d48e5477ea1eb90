//! The LPM trie against a naive model: a list of prefixes.

use std::collections::BTreeMap;

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;
use proptest::prelude::*;

/// Bits of a prefix, masked: what two equal prefixes have in common.
type Bits = Vec<bool>;

#[derive(Default)]
struct Model {
    max: usize,
    /// By bits: the data as given, and the value.
    prefixes: BTreeMap<Bits, (Vec<u8>, u64)>,
}

fn bits(length: u32, data: &[u8]) -> Bits {
    (0..length as usize)
        .map(|i| data[i / 8] >> (7 - i % 8) & 1 == 1)
        .collect()
}

impl Model {
    fn update(&mut self, length: u32, data: &[u8], value: u64, flags: u64) -> Result<(), Errno> {
        if flags > 2 || length as usize > data.len() * 8 {
            return Err(Errno::EINVAL);
        }
        let key = bits(length, data);
        match (self.prefixes.contains_key(&key), flags) {
            (true, BPF_NOEXIST) => return Err(Errno::EEXIST),
            (false, BPF_EXIST) => return Err(Errno::ENOENT),
            (false, _) if self.prefixes.len() == self.max => return Err(Errno::ENOSPC),
            _ => {}
        }
        self.prefixes.insert(key, (data.to_vec(), value));
        Ok(())
    }

    fn delete(&mut self, length: u32, data: &[u8]) -> Result<(), Errno> {
        if length as usize > data.len() * 8 {
            return Err(Errno::EINVAL);
        }
        self.prefixes
            .remove(&bits(length, data))
            .map(drop)
            .ok_or(Errno::ENOENT)
    }

    fn lookup(&self, length: u32, data: &[u8]) -> Option<u64> {
        if length as usize > data.len() * 8 {
            return None;
        }
        let key = bits(length, data);
        let holding = self.prefixes.iter().filter(|(p, _)| key.starts_with(p));
        holding.max_by_key(|(p, _)| p.len()).map(|(_, (_, v))| *v)
    }

    /// Keys in the order of a walk: longer prefixes before those that hold them.
    fn order(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.prefixes.iter().collect();
        keys.sort_by(|(a, _), (b, _)| {
            if a.starts_with(b) || b.starts_with(a) {
                b.len().cmp(&a.len())
            } else {
                a.cmp(b)
            }
        });
        keys.iter()
            .map(|(p, (data, _))| key(p.len() as u32, data))
            .collect()
    }
}

fn key(length: u32, data: &[u8]) -> Vec<u8> {
    [&length.to_ne_bytes()[..], data].concat()
}

fn trie(data_size: usize, max: u32) -> std::sync::Arc<Map> {
    let params = MapParams::new(MapType::LpmTrie, data_size as u32 + 4, 8, max);
    Map::create(params.with_flags(BPF_F_NO_PREALLOC)).unwrap()
}

fn walk(m: &Map) -> Vec<Vec<u8>> {
    let (mut keys, mut key) = (vec![], None::<Vec<u8>>);
    while let Ok(next) = m.next_key(key.as_deref()) {
        keys.push(next.clone());
        key = Some(next);
        assert!(keys.len() < 100_000);
    }
    keys
}

#[derive(Clone, Debug)]
struct Op {
    what: u8,
    length: u32,
    data: Vec<u8>,
    flags: u64,
}

/// Data with few different bytes, so that prefixes nest and collide.
fn ops(size: usize) -> impl Strategy<Value = Vec<Op>> {
    let byte = prop_oneof![
        6 => Just(0u8),
        2 => Just(0xffu8),
        2 => any::<u8>(),
        2 => (0u32..8).prop_map(|i| 1u8 << i),
    ];
    let length = prop_oneof![
        4 => 0..=size as u32 * 8,
        4 => Just(size as u32 * 8),
        2 => (0..=size as u32).prop_map(|n| n * 8),
        1 => Just(size as u32 * 8 + 1),
    ];
    let op = (
        0u8..10,
        length,
        proptest::collection::vec(byte, size),
        0u64..4,
    )
        .prop_map(|(what, length, data, flags)| Op {
            what,
            length,
            data,
            flags,
        });
    proptest::collection::vec(op, 1..300)
}

fn check(size: usize, max: usize, ops: &[Op]) {
    let m = trie(size, max as u32);
    let mut model = Model {
        max,
        ..Model::default()
    };
    for (i, op) in ops.iter().enumerate() {
        let k = key(op.length, &op.data);
        let value = i as u64;
        match op.what {
            0..5 => {
                // Mostly plain updates.
                let flags = if op.what < 3 { 0 } else { op.flags };
                assert_eq!(
                    m.update(0, &k, &value.to_ne_bytes(), flags),
                    model.update(op.length, &op.data, value, flags),
                    "update {i} {op:?}"
                );
            }
            5..8 => {
                let expected = model.delete(op.length, &op.data);
                assert_eq!(m.delete(0, &k), expected, "delete {i} {op:?}");
            }
            _ => {}
        }
        let found = m.lookup(0, &k).map(|v| {
            // SAFETY: a value of eight bytes.
            unsafe { v.cast::<u64>().read() }
        });
        assert_eq!(
            found,
            model.lookup(op.length, &op.data),
            "lookup {i} {op:?}"
        );
    }
    assert_eq!(walk(&m), model.order());
    // Every key, whole, of what was ever touched.
    for op in ops {
        let whole = size as u32 * 8;
        let found = m.read(&key(whole, &op.data)).ok();
        let expected = model
            .lookup(whole, &op.data)
            .map(|v| v.to_ne_bytes().to_vec());
        assert_eq!(found, expected, "{op:?}");
    }
    for (p, (data, _)) in &model.prefixes {
        assert_eq!(m.remove(&key(p.len() as u32, data)), Ok(()));
    }
    assert_eq!(walk(&m), Vec::<Vec<u8>>::new());
}

/// Runs the comparison on `cases` random sequences of operations.
fn compare(size: usize, max: usize, cases: u32) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&ops(size), |ops| {
            check(size, max, &ops);
            Ok(())
        })
        .unwrap();
}

#[test]
fn short_keys_match_the_model() {
    compare(1, 20, 100);
    compare(5, 100, 40);
}

#[test]
fn addresses_match_the_model() {
    compare(4, 100, 100);
    compare(8, 100, 40);
    compare(16, 1000, 30);
}

#[test]
fn long_keys_match_the_model() {
    compare(40, 1000, 20);
    compare(256, 1000, 4);
}

/// Grows every node through all shapes and back.
#[test]
fn dense_nodes_grow_and_shrink() {
    let m = trie(4, 70_000);
    let mut model = Model {
        max: 70_000,
        ..Model::default()
    };
    let mut seed = 1u64;
    let mut next = move || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    let mut keys = vec![];
    for i in 0..3000u32 {
        let length = [32, 32, 32, 24, 20, 12, 9][next() as usize % 7];
        let data = [
            (next() % 3) as u8,
            next() as u8,
            (next() % 20) as u8,
            next() as u8,
        ];
        keys.push((length, data));
        assert_eq!(
            m.update(0, &key(length, &data), &u64::from(i).to_ne_bytes(), 0),
            model.update(length, &data, i.into(), 0)
        );
    }
    assert_eq!(walk(&m), model.order());
    for (i, (length, data)) in keys.iter().enumerate() {
        assert_eq!(
            m.delete(0, &key(*length, data)),
            model.delete(*length, data)
        );
        let probe = keys[next() as usize % keys.len()].1;
        let found = m.read(&key(32, &probe)).ok();
        assert_eq!(
            found,
            model.lookup(32, &probe).map(|v| v.to_ne_bytes().to_vec()),
            "{i}"
        );
        if i % 500 == 0 {
            assert_eq!(walk(&m), model.order());
        }
    }
}

#[test]
fn a_million_entries_take_under_64_bytes_each() {
    let n = 1_000_000u32;
    let params = MapParams::new(MapType::LpmTrie, 8, 4, n).with_flags(BPF_F_NO_PREALLOC);
    let m = Map::create(params).unwrap();
    for i in 0..n {
        let k = key(32, &i.to_ne_bytes());
        m.update(0, &k, &i.to_ne_bytes(), 0).unwrap();
    }
    assert_eq!(
        m.update(0, &key(32, &n.to_ne_bytes()), &[0; 4], 0),
        Err(Errno::ENOSPC)
    );
    let per_entry = m.as_lpm().unwrap().memory_used() as f64 / f64::from(n);
    assert!(per_entry < 64.0, "{per_entry}");
    for i in (0..n).step_by(97) {
        assert_eq!(m.read(&key(32, &i.to_ne_bytes())).unwrap(), i.to_ne_bytes());
    }
}
