//! What a checked run found valid is good for the next one of the same worker, unless what it
//! may touch has changed in between.

mod common;

use std::sync::Arc;

use bpfkit_jit::Rules;
use bpfkit_object::MapDef;
use bpfkit_runtime::{
    Engine, Executable, FaultKind, Interpreter, MapOptions, MapSet, Outcome, RawMemory, Vm,
};
use bpfkit_spec::MapType;

use common::{jit, map, program};

fn engines() -> [Box<dyn Engine>; 3] {
    [
        Box::<Interpreter>::default(),
        Box::new(jit(Rules::default())),
        Box::new(jit(Rules::NONE)),
    ]
}

fn load(engine: &dyn Engine, text: &str, maps: &Arc<MapSet>) -> Arc<dyn Executable> {
    common::load(engine, &Arc::new(program("p", text)), false, maps)
}

fn faults(outcome: &Outcome) -> bool {
    let kind = outcome.fault.as_ref().map(|fault| &fault.kind);
    assert!(matches!(kind, None | Some(FaultKind::Access { .. })));
    kind.is_some()
}

#[test]
fn a_shorter_packet_is_shorter() {
    for engine in engines() {
        let exec = load(&*engine, "r0 = *(u8 *)(r1 + 60)\n exit", &MapSet::empty());
        let (mut vm, mut memory) = (Vm::default(), RawMemory::new(vec![5; 64]));
        for len in [64, 64, 61, 60, 60, 20, 0] {
            memory.bytes.truncate(len);
            let outcome = exec.run(&mut vm, &mut memory);
            assert_eq!(faults(&outcome), len <= 60, "{len}");
        }
    }
}

#[test]
fn the_memory_of_another_run_is_out_of_reach() {
    // The address of the first run's memory comes in the second one's.
    let text = "r2 = *(u64 *)(r1 + 0)\n if r2 == 0 goto own\n r0 = *(u8 *)(r2 + 8)\n exit
        own:\n r0 = *(u8 *)(r1 + 8)\n exit";
    for engine in engines() {
        let exec = load(&*engine, text, &MapSet::empty());
        let mut vm = Vm::default();
        let mut first = RawMemory::new(vec![0; 16]);
        let address = first.bytes.as_ptr().expose_provenance() as u64;
        let mut second = RawMemory::new([address.to_ne_bytes(), [0; 8]].concat());
        for _ in 0..3 {
            assert!(!faults(&exec.run(&mut vm, &mut first)));
            assert!(faults(&exec.run(&mut vm, &mut second)));
        }
    }
}

#[test]
fn frames_of_functions_are_gone() {
    // The function writes to its own frame, then main to where that was.
    let text = "r6 = r1
        r2 = r10
        if r6 != 0 goto above
        call f_inner
        exit
        above:
        r2 += 512
        *(u64 *)(r2 - 8) = 1
        r0 = 0
        exit
        f_inner:
        r2 = r10
        *(u64 *)(r2 - 8) = 1
        r0 = 0
        exit";
    for engine in engines() {
        let exec = load(&*engine, text, &MapSet::empty());
        let mut vm = Vm::default();
        for _ in 0..3 {
            assert!(!faults(&exec.run(&mut vm, &mut RawMemory::default())));
            assert!(faults(&exec.run(&mut vm, &mut RawMemory::new([0]))));
        }
    }
}

/// A pointer into an inner map is kept in an array; by the next run the inner map is gone.
#[test]
fn values_of_a_map_that_is_gone_are_gone() {
    let text = "*(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = map[m1] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r7 = r0
        r8 = *(u64 *)(r7 + 0)
        if r8 != 0 goto again
        r2 = r10
        r2 += -4
        r1 = map[m0] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r2 = r10
        r2 += -4
        r1 = r0
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r8 = r0
        r0 = *(u64 *)(r8 + 0)
        *(u64 *)(r7 + 0) = r8
        exit
        again:
        r0 = *(u64 *)(r8 + 0)
        exit
        out:
        r0 = 99
        exit";
    let inner = map(MapType::Array, 8);
    let outer = MapDef {
        inner: Some(Box::new(inner.clone())),
        ..map(MapType::ArrayOfMaps, 4)
    };
    for engine in engines() {
        let maps = [outer.clone(), map(MapType::Array, 8)];
        let maps = MapSet::new(&maps, &MapOptions::default()).unwrap();
        let exec = load(&*engine, text, &maps);
        let inside = MapSet::new(std::slice::from_ref(&inner), &MapOptions::default()).unwrap();
        let (key, mut vm) = (0_u32.to_ne_bytes(), Vm::default());
        let held = maps.get(0).unwrap();
        held.set_inner(&key, inside.get(0).unwrap(), 0).unwrap();
        drop(inside);
        let outcome = exec.run(&mut vm, &mut RawMemory::default());
        assert_eq!((outcome.ret, faults(&outcome)), (0, false));
        let other = MapSet::new(std::slice::from_ref(&inner), &MapOptions::default()).unwrap();
        held.set_inner(&key, other.get(0).unwrap(), 0).unwrap();
        assert!(faults(&exec.run(&mut vm, &mut RawMemory::default())));
    }
}

#[test]
fn a_record_that_was_submitted_is_gone() {
    let text = "*(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = map[m1] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r7 = r0
        r8 = *(u64 *)(r7 + 0)
        if r8 != 0 goto again
        r1 = map[m0] ll
        r2 = 8
        r3 = 0
        call bpf_ringbuf_reserve
        if r0 == 0 goto out
        *(u64 *)(r0 + 0) = 1
        *(u64 *)(r7 + 0) = r0
        r1 = r0
        r2 = 0
        call bpf_ringbuf_submit
        r0 = 0
        exit
        again:
        *(u64 *)(r8 + 0) = 2
        r0 = 0
        exit
        out:
        r0 = 99
        exit";
    let ring = MapDef {
        key_size: 0,
        max_entries: 4096,
        ..map(MapType::Ringbuf, 0)
    };
    for engine in engines() {
        let maps = [ring.clone(), map(MapType::Array, 8)];
        let maps = MapSet::new(&maps, &MapOptions::default()).unwrap();
        let exec = load(&*engine, text, &maps);
        let mut vm = Vm::default();
        let outcome = exec.run(&mut vm, &mut RawMemory::default());
        assert_eq!((outcome.ret, faults(&outcome)), (0, false));
        assert!(faults(&exec.run(&mut vm, &mut RawMemory::default())));
    }
}
