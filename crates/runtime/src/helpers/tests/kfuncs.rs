//! Iterators, objects, lists, trees, locks, strings.

use super::*;

#[test]
fn numbers_iterate() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let it = p.stack;
        let int = |v: i32| u64::from(v as u32);
        assert_eq!(
            p.call("bpf_iter_num_new", &[it, int(5), int(4)]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("bpf_iter_num_next", &[it]), 0);
        assert_eq!(
            p.call("bpf_iter_num_new", &[it, 0, (8 << 20) + 1]),
            err(Errno::E2BIG)
        );
        assert_eq!(
            p.call("bpf_iter_num_new", &[it, int(i32::MIN), int(i32::MAX)]),
            err(Errno::E2BIG)
        );
        assert_eq!(p.call("bpf_iter_num_new", &[it, int(-2), int(2)]), 0);
        let mut seen = Vec::new();
        loop {
            let at = p.call("bpf_iter_num_next", &[it]) as u64;
            if at == 0 {
                break;
            }
            seen.push(p.u32_at(at) as i32);
        }
        assert_eq!(seen, [-2, -1, 0, 1]);
        assert_eq!(p.call("bpf_iter_num_next", &[it]), 0);
        p.call("bpf_iter_num_destroy", &[it]);
        p.faults("bpf_iter_num_new", &[it + 508, 0, 1]);
    });
}

#[test]
fn bits_iterate() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let it = p.stack;
        let words = p.put(
            64,
            &[0x8000_0000_0000_0005u64.to_ne_bytes(), 2u64.to_ne_bytes()].concat(),
        );
        assert_eq!(p.call("bpf_iter_bits_new", &[it, 0, 1]), err(Errno::EINVAL));
        assert_eq!(
            p.call("bpf_iter_bits_new", &[it, words, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("bpf_iter_bits_new", &[it, words, 512]),
            err(Errno::E2BIG)
        );
        assert_eq!(p.call("bpf_iter_bits_new", &[it, 8, 1]), err(Errno::EFAULT));
        for (count, expected) in [(1, vec![0, 2, 63]), (2, vec![0, 2, 63, 65])] {
            assert_eq!(p.call("bpf_iter_bits_new", &[it, words, count]), 0);
            let mut seen = Vec::new();
            loop {
                let at = p.call("bpf_iter_bits_next", &[it]) as u64;
                if at == 0 {
                    break;
                }
                seen.push(p.u32_at(at));
            }
            assert_eq!(seen, expected);
            p.call("bpf_iter_bits_destroy", &[it]);
        }
    });
}

/// Objects of 48 bytes: a key, a node behind it.
fn object(p: &mut Play<'_, '_>, key: u64) -> u64 {
    let at = super::super::heap::alloc(p.env, 48, &[], true);
    p.env.store(at, key.to_ne_bytes()).unwrap();
    at
}

#[test]
fn lists() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let head = p.put(0, &[0; 16]);
        assert_eq!(p.call("bpf_list_pop_front", &[head]), 0);
        let nodes: Vec<u64> = (0..3).map(|key| object(p, key) + 8).collect();
        assert_eq!(
            p.call("bpf_list_push_back_impl", &[head, nodes[0], 0, 8]),
            0
        );
        assert_eq!(
            p.call("bpf_list_push_back_impl", &[head, nodes[1], 0, 8]),
            0
        );
        assert_eq!(
            p.call("bpf_list_push_front_impl", &[head, nodes[2], 0, 8]),
            0
        );
        assert_eq!(p.call("bpf_list_front", &[head]) as u64, nodes[2]);
        assert_eq!(p.call("bpf_list_back", &[head]) as u64, nodes[1]);
        assert_eq!(p.call("bpf_list_pop_front", &[head]) as u64, nodes[2]);
        assert_eq!(p.call("bpf_list_pop_back", &[head]) as u64, nodes[1]);
        assert_eq!(p.call("bpf_list_pop_back", &[head]) as u64, nodes[0]);
        assert_eq!(p.call("bpf_list_pop_back", &[head]), 0);
        // A node that hangs somewhere already is dropped.
        assert_eq!(
            p.call("bpf_list_push_back_impl", &[head, nodes[0], 0, 8]),
            0
        );
        assert_eq!(
            p.call("bpf_refcount_acquire_impl", &[nodes[0] - 8, 0]) as u64,
            nodes[0] - 8
        );
        assert_eq!(
            p.call("bpf_list_push_back_impl", &[head, nodes[0], 0, 8]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.u64_at(nodes[0] - 8), 0, "one reference is left");
        p.call("bpf_obj_drop_impl", &[nodes[1] - 8, 0]);
        assert!(p.env.read(nodes[1] - 8, 8).is_err(), "freed");
        assert_eq!(p.call("bpf_refcount_acquire_impl", &[nodes[1] - 8, 0]), 0);
    });
}

#[test]
fn trees_are_sorted() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let (root, less) = (p.put(0, &[0; 16]), p.function("f_less"));
        assert_eq!(p.call("bpf_rbtree_first", &[root]), 0);
        let keys = [50, 20, 80, 10, 30, 70, 90, 25, 35, 75, 5];
        let nodes: Vec<u64> = keys.iter().map(|&key| object(p, key) + 8).collect();
        for &node in &nodes {
            assert_eq!(p.call("bpf_rbtree_add_impl", &[root, node, less, 0, 8]), 0);
        }
        let top = p.call("bpf_rbtree_root", &[root]) as u64;
        let left = p.call("bpf_rbtree_left", &[root, top]) as u64;
        assert!(p.u64_at(left - 8) < p.u64_at(top - 8));
        let right = p.call("bpf_rbtree_right", &[root, top]) as u64;
        assert!(p.u64_at(right - 8) > p.u64_at(top - 8));
        // Out of the middle: with two children, with one, without.
        for key in [20, 80, 5] {
            let node = nodes[keys.iter().position(|&k| k == key).unwrap()];
            assert_eq!(p.call("bpf_rbtree_remove", &[root, node]) as u64, node);
            assert_eq!(
                p.call("bpf_rbtree_remove", &[root, node]),
                0,
                "not in the tree any more"
            );
        }
        let mut sorted = Vec::new();
        loop {
            let first = p.call("bpf_rbtree_first", &[root]) as u64;
            if first == 0 {
                break;
            }
            sorted.push(p.u64_at(first - 8));
            assert_eq!(p.call("bpf_rbtree_remove", &[root, first]) as u64, first);
        }
        assert_eq!(sorted, [10, 25, 30, 35, 50, 70, 75, 90]);
    });
}

#[test]
fn pointers_swap_in_and_out() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 16, 1)]);
    let place = |p: &mut Play<'_, '_>| {
        let key = p.put(0, &[0; 4]);
        p.call("map_lookup_elem", &[p.map(0), key]) as u64
    };
    let mut kept = 0;
    rig.run(|p| {
        kept = object(p, 77);
        let slot = place(p);
        assert_eq!(p.call("kptr_xchg", &[slot, kept]), 0);
    });
    // The next run finds the object where the last one left it, and may read it.
    rig.run(|p| {
        let slot = place(p);
        let object = p.call("kptr_xchg", &[slot, 0]) as u64;
        assert_eq!(object, kept);
        assert_eq!(p.u64_at(object), 77);
        p.call("bpf_obj_drop_impl", &[object, 0]);
        assert!(
            p.try_call("kptr_xchg", &[slot + 4, 0]).is_err(),
            "not aligned"
        );
        p.faults("kptr_xchg", &[slot + 16, 0]);
    });
}

#[test]
fn per_cpu_objects() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 8, 1)]);
    rig.run(|p| {
        let object = super::super::heap::alloc_percpu(p.env, 12);
        let this = p.call("this_cpu_ptr", &[object]) as u64;
        assert_eq!(this, object);
        let other = p.call("per_cpu_ptr", &[object, 1]) as u64;
        assert_eq!(other, object + 16);
        p.env.store(other, 5u64.to_ne_bytes()).unwrap();
        assert_eq!(p.u64_at(this), 0);
        assert_eq!(p.call("per_cpu_ptr", &[object, 2]), 0);
        assert_eq!(p.call("bpf_percpu_obj_drop_impl", &[object, 0]), 0);
    });
}

#[test]
fn locks_are_given_back() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 8, 1)]);
    let mut lock = 0;
    rig.run(|p| {
        let key = p.put(0, &[0; 4]);
        lock = p.call("map_lookup_elem", &[p.map(0), key]) as u64;
        p.call("spin_lock", &[lock]);
        assert_eq!(p.u32_at(lock), 1);
        p.call("spin_unlock", &[lock]);
        assert_eq!(p.u32_at(lock), 0);
        assert_eq!(p.call("bpf_res_spin_lock", &[lock]), 0);
        assert_eq!(p.call("bpf_res_spin_lock", &[lock]), err(Errno::EDEADLK));
        p.call("bpf_res_spin_unlock", &[lock]);
        p.call("spin_lock", &[lock]);
        assert!(
            p.try_call("spin_lock", &[lock]).is_err(),
            "it would wait for itself"
        );
        p.faults("spin_lock", &[lock + 8]);
    });
    rig.run(|p| assert_eq!(p.u32_at(lock), 0, "the run that ended holds nothing"));
}

#[test]
fn strings() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let s = p.put(0, b"Hello, world\0");
        let t = p.put(32, b"hello, world\0");
        let o = u64::from(b'o');
        let mut is = |name: &str, args: &[u64], expected: i64| {
            assert_eq!(p.call(name, args), expected, "{name} {args:x?}");
        };
        is("bpf_strcmp", &[s, s], 0);
        is("bpf_strcmp", &[s, t], -1);
        is("bpf_strcmp", &[t, s], 1);
        is("bpf_strcasecmp", &[s, t], 0);
        is("bpf_strchr", &[s, o], 4);
        is("bpf_strchr", &[s, u64::from(b'z')], -2);
        is("bpf_strchr", &[s, 0], 12);
        is("bpf_strrchr", &[s, o], 8);
        is("bpf_strchrnul", &[s, u64::from(b'z')], 12);
        is("bpf_strnchr", &[s, 4, o], -2);
        is("bpf_strnchr", &[s, 5, o], 4);
        is("bpf_strlen", &[s], 12);
        is("bpf_strnlen", &[s, 5], 5);
        is("bpf_strspn", &[s, s], 12);
        is("bpf_strspn", &[s, s + 1], 0);
        is("bpf_strcspn", &[s, s + 7], 2);
        is("bpf_strstr", &[s, s + 7], 7);
        is("bpf_strstr", &[s, s + 12], 0);
        is("bpf_strstr", &[s + 7, s], -2);
        is("bpf_strnstr", &[s, s + 7, 11], -2);
        is("bpf_strnstr", &[s, s + 7, 12], 7);
        is("bpf_strlen", &[0], -34);
        is("bpf_strlen", &[0x1_0000_0000_0000], -14);
        is("bpf_strcmp", &[s, 0], -34);
    });
}

#[test]
fn exceptions_carry_their_cookie() {
    let mut rig = Rig::bare(&[]);
    rig.run(
        |p| match p.try_call("bpf_throw", &[9]).map_err(Trap::into_kind) {
            Err(TrapKind::Throw(9)) => {}
            other => panic!("{other:?}"),
        },
    );
}

#[test]
fn arena_pages() {
    let mut def = map(MapType::Arena, 0, 0, 4);
    def.flags = 1 << 10;
    let mut rig = Rig::bare(&[def]);
    rig.run(|p| {
        let arena = p.map(0);
        let first = p.call("bpf_arena_alloc_pages", &[arena, 0, 2, u64::MAX, 0]) as u64;
        assert_ne!(first, 0);
        assert_eq!(
            p.call("bpf_arena_alloc_pages", &[arena, 0, 3, u64::MAX, 0]),
            0,
            "two are left"
        );
        assert_eq!(
            p.call("bpf_arena_alloc_pages", &[arena, 0, 1, u64::MAX, 1]),
            0,
            "unknown flag"
        );
        assert_eq!(
            p.call("bpf_arena_alloc_pages", &[arena, 0, 0, u64::MAX, 0]),
            0
        );
        assert_eq!(p.call("bpf_arena_free_pages", &[arena, first, 2]), 0);
        assert_eq!(
            p.call("bpf_arena_alloc_pages", &[arena, 0, 4, u64::MAX, 0]) as u64,
            first
        );
    });
}

#[test]
fn cpu_sets() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 8, 1)]);
    rig.run(|p| {
        let (a, b) = (
            p.call("bpf_cpumask_create", &[]) as u64,
            p.call("bpf_cpumask_create", &[]) as u64,
        );
        let mut is = |name: &str, args: &[u64], expected: i64| {
            assert_eq!(
                p.call(&format!("bpf_cpumask_{name}"), args),
                expected,
                "{name} {args:x?}"
            );
        };
        is("empty", &[a], 1);
        is("first", &[a], 2);
        is("set_cpu", &[1, a], 0);
        is("set_cpu", &[2, a], 0);
        is("test_cpu", &[2, a], 0);
        is("test_and_set_cpu", &[1, a], 1);
        is("first", &[a], 1);
        is("first_zero", &[a], 0);
        is("weight", &[a], 1);
        is("setall", &[b], 0);
        is("full", &[b], 1);
        is("subset", &[a, b], 1);
        is("subset", &[b, a], 0);
        is("intersects", &[a, b], 1);
        is("xor", &[b, a, b], 1);
        is("equal", &[a, b], 0);
        is("first", &[b], 0);
        is("and", &[b, a, b], 0);
        is("copy", &[b, a], 0);
        is("equal", &[a, b], 1);
        is("release", &[b], 0);
        p.faults("bpf_cpumask_empty", &[b]);
    });
}
