//! Maps, ring buffers, perf events, storage, timers.

use super::*;
use crate::helpers::{next_due, run_due};
use std::sync::atomic::Ordering;

#[test]
fn elements() {
    let mut rig = Rig::bare(&[map(MapType::Hash, 4, 8, 2), map(MapType::Array, 4, 8, 3)]);
    rig.run(|p| {
        let (hash, array) = (p.map(0), p.map(1));
        let key = p.put(0, &5u32.to_ne_bytes());
        let value = p.put(8, &77u64.to_ne_bytes());
        assert_eq!(p.call("map_lookup_elem", &[hash, key]), 0);
        assert_eq!(p.call("map_delete_elem", &[hash, key]), err(Errno::ENOENT));
        assert_eq!(
            p.call("map_update_elem", &[hash, key, value, 2]),
            err(Errno::ENOENT)
        );
        assert_eq!(p.call("map_update_elem", &[hash, key, value, 0]), 0);
        assert_eq!(
            p.call("map_update_elem", &[hash, key, value, 1]),
            err(Errno::EEXIST)
        );
        assert_eq!(
            p.call("map_update_elem", &[hash, key, value, 9]),
            err(Errno::EINVAL)
        );
        let found = p.call("map_lookup_elem", &[hash, key]) as u64;
        assert_eq!(p.u64_at(found), 77);
        assert!(p.env.read(found, 9).is_err(), "no further than the value");
        assert_eq!(p.call("map_delete_elem", &[hash, key]), 0);
        assert_eq!(p.call("map_lookup_elem", &[array, key]), 0, "past the end");
        assert_eq!(
            p.call("map_update_elem", &[array, key, value, 0]),
            err(Errno::E2BIG)
        );
        assert_eq!(p.call("map_delete_elem", &[array, key]), err(Errno::EINVAL));
        p.faults("map_lookup_elem", &[hash, p.stack + 510]);
        p.faults("map_update_elem", &[hash, key, p.stack + 508, 0]);
        assert!(
            p.try_call("map_lookup_elem", &[key, key]).is_err(),
            "no map"
        );
    });
}

#[test]
fn per_cpu_elements() {
    let mut rig = Rig::bare(&[
        map(MapType::PercpuArray, 4, 8, 1),
        map(MapType::Array, 4, 8, 1),
    ]);
    rig.run(|p| {
        let key = p.put(0, &[0; 4]);
        let percpu = p.map(0);
        let mine = p.call("map_lookup_elem", &[percpu, key]) as u64;
        let other = p.call("map_lookup_percpu_elem", &[percpu, key, 1]) as u64;
        assert_eq!(
            p.call("map_lookup_percpu_elem", &[percpu, key, 0]) as u64,
            mine
        );
        assert_ne!(mine, other);
        p.env.store(other, 3u64.to_ne_bytes()).unwrap();
        assert_eq!(p.call("map_lookup_percpu_elem", &[percpu, key, 2]), 0);
        assert_eq!(
            p.call("map_lookup_percpu_elem", &[p.map(1), key, 0]),
            0,
            "not per CPU"
        );
    });
    let value = rig.maps.get(0).unwrap().read(&[0; 4]).unwrap();
    assert_eq!(value, [0u64.to_ne_bytes(), 3u64.to_ne_bytes()].concat());
}

#[test]
fn queues() {
    let mut rig = Rig::bare(&[map(MapType::Queue, 0, 4, 2), map(MapType::Stack, 0, 4, 2)]);
    rig.run(|p| {
        for (index, order) in [(0, [1, 2]), (1, [2, 1])] {
            let map = p.map(index);
            let value = p.stack;
            for n in [1u32, 2] {
                p.put(0, &n.to_ne_bytes());
                assert_eq!(p.call("map_push_elem", &[map, value, 0]), 0);
            }
            assert_eq!(p.call("map_push_elem", &[map, value, 0]), err(Errno::E2BIG));
            assert_eq!(
                p.call("map_push_elem", &[map, value, 1]),
                err(Errno::EINVAL)
            );
            for n in order {
                assert_eq!(p.call("map_peek_elem", &[map, value]), 0);
                assert_eq!(p.u32_at(value), n);
                assert_eq!(p.call("map_pop_elem", &[map, value]), 0);
                assert_eq!(p.u32_at(value), n);
            }
            assert_eq!(p.call("map_pop_elem", &[map, value]), err(Errno::ENOENT));
            assert_eq!(p.u32_at(value), 0);
        }
    });
}

#[test]
fn callbacks_walk_maps_and_loops() {
    let mut rig = Rig::bare(&[map(MapType::Hash, 4, 8, 8), map(MapType::Array, 4, 8, 3)]);
    rig.run(|p| {
        let (go, stop, add) = (
            p.function("f_go"),
            p.function("f_stop"),
            p.function("f_add_value"),
        );
        let sum = p.put(64, &0u64.to_ne_bytes());
        for index in 0..2 {
            for key in 0..3u32 {
                let key_at = p.put(0, &key.to_ne_bytes());
                let value = p.put(8, &(u64::from(key) * 10).to_ne_bytes());
                assert_eq!(
                    p.call("map_update_elem", &[p.map(index), key_at, value, 0]),
                    0
                );
            }
            p.put(64, &0u64.to_ne_bytes());
            assert_eq!(p.call("for_each_map_elem", &[p.map(index), add, sum, 0]), 3);
            assert_eq!(p.u64_at(sum), 33, "values and keys");
            assert_eq!(p.call("for_each_map_elem", &[p.map(index), stop, 0, 0]), 1);
            assert_eq!(
                p.call("for_each_map_elem", &[p.map(index), go, 0, 1]),
                err(Errno::EINVAL)
            );
        }
        let turns = p.function("f_add_index");
        p.put(64, &0u64.to_ne_bytes());
        assert_eq!(p.call("loop", &[5, turns, sum, 0]), 5);
        assert_eq!(p.u64_at(sum), 10);
        assert_eq!(
            p.call("loop", &[100, turns, sum, 0]),
            7,
            "stopped in turn 6"
        );
        assert_eq!(p.call("loop", &[0, turns, sum, 0]), 0);
        assert_eq!(p.call("loop", &[1, turns, sum, 1]), err(Errno::EINVAL));
        assert_eq!(
            p.call("loop", &[(8 << 20) + 1, turns, sum, 0]),
            err(Errno::E2BIG)
        );
        assert!(
            p.try_call("loop", &[1, 0x1234, sum, 0]).is_err(),
            "not a function"
        );
    });
}

#[test]
fn ring_buffers() {
    let mut rig = Rig::bare(&[map(MapType::Ringbuf, 0, 0, 4096)]);
    rig.run(|p| {
        let ring = p.map(0);
        let data = p.put(0, b"first record");
        assert_eq!(p.call("ringbuf_output", &[ring, data, 12, 0]), 0);
        assert_eq!(
            p.call("ringbuf_output", &[ring, data, 12, 4]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("ringbuf_query", &[ring, 1]), 4096);
        assert_eq!(p.call("ringbuf_query", &[ring, 0]), 24);
        assert_eq!(p.call("ringbuf_query", &[ring, 9]), 0);
        assert_eq!(p.call("ringbuf_reserve", &[ring, 8, 1]), 0);
        assert_eq!(p.call("ringbuf_reserve", &[ring, 4090, 0]), 0, "no room");
        let record = p.call("ringbuf_reserve", &[ring, 8, 0]) as u64;
        p.env.store(record, *b"reserved").unwrap();
        assert!(p.env.read(record, 9).is_err());
        assert_eq!(p.call("ringbuf_submit", &[record, 0]), 0);
        assert!(p.env.read(record, 8).is_err(), "given away");
        assert!(p.try_call("ringbuf_submit", &[record, 0]).is_err());
        let dropped = p.call("ringbuf_reserve", &[ring, 8, 0]) as u64;
        assert_eq!(p.call("ringbuf_discard", &[dropped, 0]), 0);
        let d = p.stack + 64;
        assert_eq!(
            p.call("ringbuf_reserve_dynptr", &[ring, 8, 1, d]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("ringbuf_submit_dynptr", &[d, 0]), 0, "a null one");
        assert_eq!(p.call("ringbuf_reserve_dynptr", &[ring, 6, 0, d]), 0);
        assert_eq!(p.call("dynptr_write", &[d, 0, data, 6, 0]), 0);
        assert_eq!(p.call("ringbuf_submit_dynptr", &[d, 0]), 0);
        assert_eq!(p.call("bpf_dynptr_is_null", &[d]), 1);
        // Left behind: it must not block the ring.
        assert_ne!(p.call("ringbuf_reserve", &[ring, 8, 0]), 0);
    });
    rig.run(|p| {
        let data = p.put(0, b"next run");
        p.call("ringbuf_output", &[p.map(0), data, 8, 0]);
    });
    let mut records = Vec::new();
    rig.maps.get(0).unwrap().as_ring().unwrap().consume(|r| {
        records.push(r.to_vec());
        bpfkit_maps::Progress::Go
    });
    assert_eq!(
        records,
        [&b"first record"[..], b"reserved", b"first ", b"next run"]
    );
}

#[test]
fn user_ring_buffers() {
    let mut rig = Rig::bare(&[map(MapType::UserRingbuf, 0, 0, 4096)]);
    for sample in [&b"one"[..], b"two", b"three"] {
        rig.maps
            .get(0)
            .unwrap()
            .as_user_ring()
            .unwrap()
            .produce(sample)
            .unwrap();
    }
    rig.run(|p| {
        let (ring, go, stop) = (p.map(0), p.function("f_go"), p.function("f_stop"));
        assert_eq!(
            p.call("user_ringbuf_drain", &[ring, go, 0, 4]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("user_ringbuf_drain", &[ring, stop, 0, 0]), 1);
        assert_eq!(p.call("user_ringbuf_drain", &[ring, go, 0, 0]), 2);
        assert_eq!(p.call("user_ringbuf_drain", &[ring, go, 0, 0]), 0);
    });
}

#[test]
fn perf_events() {
    let packet: Vec<u8> = (0..64).collect();
    let defs = [map(MapType::PerfEventArray, 4, 4, 2)];
    for prog_type in [ProgType::SchedCls, ProgType::Xdp] {
        let mut rig = Rig::new(prog_type, &defs, Input::packet(prog_type, &packet).unwrap());
        let maps = rig.maps.clone();
        let events = maps.get(0).unwrap().as_perf_events().unwrap();
        rig.run(|p| {
            let data = p.put(0, b"event");
            let current = 0xffff_ffff;
            let mut out =
                |flags: u64, len| p.call("perf_event_output", &[p.ctx, p.map(0), flags, data, len]);
            assert_eq!(out(current, 5), err(Errno::ENOENT), "nobody listens");
            events.open(0, 4096).unwrap();
            assert_eq!(out(current, 5), 0);
            assert_eq!(out(3, 5), err(Errno::E2BIG));
            assert_eq!(out(current | 16 << 32, 5), 0);
            assert_eq!(out(current | 65 << 32, 5), err(Errno::EFAULT));
            assert_eq!(out(1 << 52, 5), err(Errno::EINVAL));
        });
        let (samples, lost) = events.drain(0).unwrap();
        assert_eq!((samples.len(), lost), (2, 0));
        assert_eq!(samples[0].data, b"event");
        assert_eq!(samples[1].data[..5], *b"event");
        assert_eq!(samples[1].data[5..21], packet[..16]);
    }
}

#[test]
fn storage_belongs_to_its_owner() {
    let mut def = map(MapType::SkStorage, 4, 8, 0);
    def.flags = 1;
    let packet = [0; 64];
    let input = Input::packet(ProgType::CgroupSkb, &packet).unwrap();
    let mut rig = Rig::new(ProgType::CgroupSkb, &[def], input);
    rig.run(|p| {
        let (map, init) = (p.map(0), p.put(0, &9u64.to_ne_bytes()));
        let sk = p.u64_at(p.ctx + 168);
        assert_eq!(p.call("sk_storage_get", &[map, sk, 0, 0]), 0);
        assert_eq!(p.call("sk_storage_get", &[map, 0, 0, 1]), 0);
        assert_eq!(p.call("sk_storage_get", &[map, sk, 0, 2]), 0);
        let value = p.call("sk_storage_get", &[map, sk, init, 1]) as u64;
        assert_eq!(p.u64_at(value), 9);
        assert_eq!(p.call("sk_storage_get", &[map, sk, 0, 0]) as u64, value);
        assert_eq!(p.call("sk_storage_delete", &[map, sk]), 0);
        assert_eq!(p.call("sk_storage_delete", &[map, sk]), err(Errno::ENOENT));
        assert_eq!(p.call("sk_storage_delete", &[map, 0]), err(Errno::EINVAL));
    });
}

#[test]
fn timers_fire_when_asked() {
    let mut rig = Rig::bare(&[map(MapType::Hash, 4, 32, 4), map(MapType::Array, 4, 32, 4)]);
    rig.host.time.store(1000, Ordering::Relaxed);
    for index in 0..2 {
        let mut value = 0;
        rig.run(|p| {
            let (map, callback) = (p.map(index), p.function("f_mark_value"));
            let key = p.put(0, &3u32.to_ne_bytes());
            let zeros = p.put(16, &[0; 32]);
            p.call("map_update_elem", &[map, key, zeros, 0]);
            value = p.call("map_lookup_elem", &[map, key]) as u64;
            let timer = value + 16;
            assert_eq!(p.call("timer_start", &[timer, 10, 0]), err(Errno::EINVAL));
            assert_eq!(p.call("timer_cancel", &[timer]), err(Errno::EINVAL));
            assert_eq!(
                p.call("timer_init", &[timer, map, 2]),
                err(Errno::EINVAL),
                "no such clock"
            );
            assert_eq!(p.call("timer_init", &[timer, map, 1]), 0);
            assert_eq!(p.call("timer_init", &[timer, map, 1]), err(Errno::EBUSY));
            assert_eq!(
                p.call("timer_start", &[timer, 10, 0]),
                err(Errno::EINVAL),
                "no callback"
            );
            assert_eq!(p.call("timer_set_callback", &[timer, callback]), 0);
            assert_eq!(p.call("timer_start", &[timer, 10, 4]), err(Errno::EINVAL));
            assert_eq!(p.call("timer_start", &[timer, 10, 0]), 0);
            assert_eq!(p.call("timer_cancel", &[timer]), 1);
            assert_eq!(p.call("timer_cancel", &[timer]), 0);
            assert_eq!(p.call("timer_set_callback", &[timer, callback]), 0);
            assert_eq!(p.call("timer_start", &[timer, 10, 0]), 0);
        });
        assert_eq!(next_due(&rig.maps), Some(1010));
        assert!(run_due(&rig.maps, &mut rig.vm, 1009).is_empty());
        let outcomes = run_due(&rig.maps, &mut rig.vm, 1010);
        assert_eq!((outcomes.len(), &outcomes[0].fault), (1, &None));
        assert_eq!(next_due(&rig.maps), None);
        rig.run(|p| assert_eq!(p.u64_at(value), 1003, "the callback saw key and value"));
    }
}

#[test]
fn work_queues() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 32, 4)]);
    rig.run(|p| {
        let (map, callback) = (p.map(0), p.function("f_mark_value"));
        let key = p.put(0, &2u32.to_ne_bytes());
        let wq = p.call("map_lookup_elem", &[map, key]) as u64 + 16;
        assert_eq!(p.call("bpf_wq_init", &[wq, map, 1]), err(Errno::EINVAL));
        assert_eq!(p.call("bpf_wq_init", &[wq, map, 0]), 0);
        assert_eq!(p.call("bpf_wq_start", &[wq, 0]), err(Errno::EINVAL));
        assert_eq!(p.call("bpf_wq_set_callback_impl", &[wq, callback, 0, 0]), 0);
        assert_eq!(p.call("bpf_wq_start", &[wq, 0]), 0);
    });
    assert_eq!(run_due(&rig.maps, &mut rig.vm, 0).len(), 1);
    let value = rig.maps.get(0).unwrap().read(&2u32.to_ne_bytes()).unwrap();
    assert_eq!(value[..8], 1002u64.to_ne_bytes());
}
