//! Helpers that become code: the same results as with the call, and no call.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bpfkit_jit::{Arch, Origin, Rule, Rules, shared_places};
use bpfkit_maps::Errno;
use bpfkit_object::MapDef;
use bpfkit_runtime::{
    Engine, FixedHost, Interpreter, LoadOptions, MapOptions, MapSet, RawMemory, Vm,
};
use bpfkit_spec::MapType;

use common::{assemble, jit, load, map};

const CPUS: u32 = 3;

/// Loads the first four bytes of the value, 0xdead where there is none, and tells that R6–R9
/// and the stack are as they were.
fn look_up(key: &str) -> String {
    format!(
        "r6 = 6
        r7 = r1
        r8 = 8
        {key}
        r2 = r10
        r2 += -4
        r1 = map[m0] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto none
        w0 = *(u32 *)(r0 + 0)
        goto out
    none:
        r0 = 0xdead
    out:
        r0 <<= 8
        r6 += r8
        r0 += r6
        exit"
    )
}

fn set(def: &MapDef) -> Arc<MapSet> {
    let maps = MapSet::new(std::slice::from_ref(def), &MapOptions { cpus: CPUS }).unwrap();
    let map = maps.get(0).unwrap();
    for key in 0..8_u32 {
        for cpu in 0..CPUS {
            let mut value = vec![0; def.value_size as usize];
            value[..4].copy_from_slice(&(100 * (cpu + 1) + key).to_ne_bytes());
            match map.update(cpu, &key.to_ne_bytes(), &value, 0) {
                Ok(()) | Err(Errno::E2BIG) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    maps
}

#[test]
fn look_ups_come_to_the_same() {
    use MapType::{Array, Hash, LruHash, LruPercpuHash, PercpuArray, PercpuHash};
    let keys = [
        ("a known key", "*(u32 *)(r10 - 4) = 5".to_owned()),
        ("a known key outside", "*(u32 *)(r10 - 4) = 8".to_owned()),
        ("a negative key", "*(u32 *)(r10 - 4) = -1".to_owned()),
        ("a register", "w1 = 7\n*(u32 *)(r10 - 4) = r1".to_owned()),
        (
            "a key that is computed",
            "w1 = 7\nw1 &= w8\nw1 += 3\n*(u32 *)(r10 - 4) = r1".to_owned(),
        ),
        (
            "a key that is too large",
            "w1 = 7\nw1 |= w8\n*(u32 *)(r10 - 4) = r1".to_owned(),
        ),
        (
            "a key that is changed by its bytes",
            "*(u32 *)(r10 - 4) = 5\nr1 = r10\nr1 += -4\n*(u8 *)(r1 + 0) = 2".to_owned(),
        ),
        (
            "a key behind a jump",
            "*(u32 *)(r10 - 4) = 5\nif r8 == 9 goto +1\n*(u32 *)(r10 - 4) = 6".to_owned(),
        ),
    ];
    let plain = Rules::default()
        .without(Rule::InlineLookup)
        .without(Rule::DirectLookup);
    let mut runs = 0;
    for map_type in [Array, PercpuArray, Hash, LruHash, PercpuHash, LruPercpuHash] {
        // 12 bytes take 16, 20 take 24: a shift and a product.
        for value_size in [8, 12, 20, 64] {
            let def = map(map_type, value_size);
            let maps = set(&def);
            for (what, key) in &keys {
                let program = Arc::new(assemble(what, &look_up(key)));
                for cpu in 0..CPUS {
                    for trusted in [false, true] {
                        let run = |engine: &dyn Engine| {
                            let exec = load(engine, &program, trusted, &maps);
                            let mut vm = Vm::new(cpu, Arc::new(FixedHost::default()));
                            let outcome = exec.run(&mut vm, &mut RawMemory::default());
                            (outcome.ret, outcome.fault, outcome.steps)
                        };
                        let expected = run(&Interpreter::default());
                        let without = run(&jit(plain));
                        let with = run(&jit(Rules::default()));
                        let steps = if trusted { 0 } else { expected.2 };
                        let expected = (expected.0, expected.1, steps);
                        assert_eq!(without, expected, "{map_type:?} {value_size} {what} {cpu}");
                        assert_eq!(with, expected, "{map_type:?} {value_size} {what} {cpu}");
                        runs += 1;
                    }
                }
            }
        }
    }
    assert_eq!(runs, 6 * 4 * 8 * 3 * 2);
}

/// The stubs that a program's code has.
fn shared(arch: Arch, rules: Rules, checked: bool, text: &str, maps: &MapSet) -> Vec<&'static str> {
    let program = assemble("p", text);
    let listing = jit(rules).listing(arch, &program, checked, maps, &LoadOptions::default());
    let listing = listing.unwrap();
    let parts = listing.parts.iter().filter_map(|part| match part.origin {
        Origin::Shared(name) => Some(name),
        _ => None,
    });
    // On x86-64 programs share it with others, and each helper has its own way in.
    let decoder = iced_x86::Decoder::with_ip(64, &listing.code, 0, 0);
    let calls = decoder.into_iter().filter(|_| arch == Arch::X86_64);
    let called = calls.filter_map(|call| {
        let to = call.near_branch_target() as i64;
        let (_, name) = shared_places(arch).find(|(at, _)| i64::from(*at) == to)?;
        let helper = name.starts_with("bpf_") || name == "call of a helper";
        helper.then_some("call of a helper")
    });
    parts.chain(called).collect()
}

#[test]
fn inlined_helpers_call_no_helper() {
    let array = set(&map(MapType::Array, 8));
    let hash = set(&map(MapType::Hash, 8));
    let computed = look_up("w1 = 7\nw1 &= w8\n*(u32 *)(r10 - 4) = r1");
    let ask = "call bpf_ktime_get_ns\nr6 = r0\ncall bpf_get_smp_processor_id\nr0 += r6\nexit";
    for arch in [Arch::X86_64, Arch::Aarch64] {
        for (rule, text, maps) in [
            (Rule::InlineLookup, &*computed, &array),
            (Rule::DirectLookup, &*computed, &hash),
            (Rule::InlineHelper, ask, &array),
        ] {
            let all = Rules::default();
            let with = shared(arch, all, false, text, maps);
            assert!(!with.contains(&"call of a helper"), "{rule:?}: {with:?}");
            let without = match rule {
                Rule::InlineLookup => all.without(rule).without(Rule::DirectLookup),
                _ => all.without(rule),
            };
            let without = shared(arch, without, false, text, maps);
            assert!(
                without.contains(&"call of a helper"),
                "{rule:?}: {without:?}"
            );
            // What is checked is inlined where the key lies in the frame.
            let checked = shared(arch, all, true, text, maps);
            assert!(
                !checked.contains(&"call of a helper"),
                "{rule:?}: {checked:?}"
            );
        }
    }
    // Nobody knows whether this key may be read.
    let foreign = "r2 = r1\nr1 = map[m0] ll\ncall bpf_map_lookup_elem\nexit";
    let checked = shared(Arch::X86_64, Rules::default(), true, foreign, &array);
    assert!(checked.contains(&"call of a helper"), "{checked:?}");
}

#[test]
fn questions_are_answered() {
    let host = Arc::new(FixedHost::default());
    host.time.store(0x1_2345_6789, Ordering::Relaxed);
    let text = "r6 = r1
        call bpf_ktime_get_ns
        r7 = r0
        call bpf_get_smp_processor_id
        r7 += r0
        call bpf_get_current_pid_tgid
        r7 ^= r0
        call bpf_get_current_uid_gid
        r7 += r0
        call bpf_get_numa_node_id
        r7 += r0
        call bpf_jiffies64
        r7 ^= r0
        r0 = r7
        exit";
    let program = Arc::new(assemble("p", text));
    for trusted in [false, true] {
        let run = |engine: &dyn Engine| {
            let exec = load(engine, &program, trusted, &MapSet::empty());
            let mut vm = Vm::new(2, host.clone());
            exec.run(&mut vm, &mut RawMemory::default()).ret
        };
        let expected = run(&Interpreter::default());
        assert_ne!(expected, 0);
        assert_eq!(run(&jit(Rules::default())), expected);
        assert_eq!(run(&jit(Rules::NONE)), expected);
    }
}

#[test]
fn a_load_may_overwrite_a_part_of_its_address() {
    // R1 comes from memory, so that its sum with R0 is made of two registers.
    let text = "r6 = r10
        *(u64 *)(r10 - 8) = 7
        *(u64 *)(r10 - 16) = 5
        *(u64 *)(r10 - 24) = r6
        r0 = -8
        r1 = *(u64 *)(r10 - 24)
        r1 += r0
        r0 = *(u64 *)(r1 + 0)
        r2 = -16
        r1 = *(u64 *)(r10 - 24)
        r1 += r2
        r2 = *(u64 *)(r1 + 0)
        r3 = *(u64 *)(r1 + 8)
        r0 <<= 16
        r2 <<= 8
        r0 += r2
        r0 += r3
        exit";
    let program = Arc::new(assemble("p", text));
    for trusted in [false, true] {
        for rules in [Rules::default(), Rules::NONE] {
            let exec = load(&jit(rules), &program, trusted, &MapSet::empty());
            let outcome = exec.run(&mut Vm::default(), &mut RawMemory::default());
            assert_eq!((outcome.ret, outcome.fault), (7 << 16 | 5 << 8 | 7, None));
        }
    }
}
