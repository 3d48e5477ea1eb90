//! Prints nanoseconds of a look-up of local storage among many owners, in three layouts: each
//! owner's value says who is next, so that nothing overlaps.
//!
//! `cargo run --release -p bpfkit-maps --example storage_layouts`

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use bpfkit_maps::flags::BPF_F_NO_PREALLOC;
use bpfkit_maps::{BPF_LOCAL_STORAGE_GET_F_CREATE, Map, MapParams, pin};
use bpfkit_spec::MapType;

const STEPS: u32 = 200_000;
const TURNS: usize = 15;

/// A cycle through `0 .. n` in random order (Sattolo): who comes after each.
fn cycle(n: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..n).collect();
    let mut seed = 1u64;
    for i in (1..order.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (seed >> 33) as usize % i);
    }
    order
}

/// Owners are addresses in programs: numbers far apart.
fn owner(i: u64) -> u64 {
    0x7f00_0000_0000 + i * 1088
}

/// A value by its address, with what else the kernel keeps beside it.
type Value = Box<(u64, [u64; 6])>;

/// Storage of an owner as the kernel lays it out: a small table of maps and values.
struct ByPointer {
    maps: [(u64, Option<Value>); 16],
}

/// Nanoseconds a step.
fn time(next: &dyn Fn(u64) -> u64) -> f64 {
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..STEPS {
        at = next(at);
    }
    std::hint::black_box(at);
    start.elapsed().as_nanos() as f64 / f64::from(STEPS)
}

fn main() {
    println!("ns a look-up   owners  storage, then map  hash  beside the owner");
    for n in [100, 1_000, 10_000, 50_000] {
        let after = cycle(n);
        let create = |map_type, key, entries| {
            let params = MapParams::new(map_type, key, 8, entries).with_flags(BPF_F_NO_PREALLOC);
            Map::create(params).expect("a map within the kernel's limits")
        };
        let beside = create(MapType::SkStorage, 4, 0);
        let hash = create(MapType::Hash, 8, 1 << 18);
        let mut by_pointer: Vec<Option<Box<ByPointer>>> = (0..n).map(|_| None).collect();
        let storage = beside.as_storage().expect("storage");
        for i in after.iter().copied() {
            let next = after[i as usize];
            let value = next.to_ne_bytes();
            let flags = BPF_LOCAL_STORAGE_GET_F_CREATE;
            storage
                .get(owner(i), flags, Some(&value))
                .expect("room for every owner");
            hash.update(0, &owner(i).to_ne_bytes(), &value, 0)
                .expect("room for every owner");
            let mut maps = [const { (0, None) }; 16];
            maps[3] = (7, Some(Box::new((next, [0; 6]))));
            by_pointer[i as usize] = Some(Box::new(ByPointer { maps }));
        }
        let read = |at: Option<std::ptr::NonNull<u8>>| {
            let at = at.expect("an owner with storage");
            // SAFETY: a value of eight bytes, which nobody writes.
            unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.load(Relaxed)
        };
        let pointers = |i: u64| {
            let storage = by_pointer[i as usize].as_ref().expect("storage");
            let (map, value) = &storage.maps[3];
            assert_eq!(*map, 7);
            value.as_ref().expect("a value").0
        };
        let hashed = |i: u64| read(hash.lookup(0, &owner(i).to_ne_bytes()));
        let inline = |i: u64| read(storage.get(owner(i), 0, None));
        let _guard = pin();
        // The layouts take turns; each one's median counts.
        let mut turns = [const { Vec::new() }; 3];
        for _ in 0..TURNS {
            let all: [&dyn Fn(u64) -> u64; 3] = [&pointers, &hashed, &inline];
            for (layout, turns) in all.into_iter().zip(&mut turns) {
                turns.push(time(layout));
            }
        }
        let [pointers, hashed, inline] = turns.map(|mut turns| {
            turns.sort_by(f64::total_cmp);
            turns[TURNS / 2]
        });
        println!("{n:>21}  {pointers:>17.1} {hashed:>5.1} {inline:>17.1}");
    }
}
