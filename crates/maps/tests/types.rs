//! The types that hold no plain values: rings, arenas, storage, objects, redirects.

use std::sync::Arc;

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

fn create(t: MapType, key: u32, value: u32, max: u32, flags: u32) -> Arc<Map> {
    Map::create(
        MapParams::new(t, key, value, max)
            .with_flags(flags)
            .with_cpus(2),
    )
    .unwrap()
}

#[test]
fn ring_gives_back_what_was_submitted() {
    let m = create(MapType::Ringbuf, 0, 0, 4096, 0);
    let ring = m.as_ring().unwrap();
    let (mut seen, mut sent) = (vec![], vec![]);
    // Many times around, with records that run over the end.
    for i in 0..2000u32 {
        let data: Vec<u8> = (0..1 + i % 700).map(|b| (b ^ i) as u8).collect();
        match ring.output(&data, 0) {
            Ok(()) => sent.push(data),
            Err(e) => assert_eq!(e, Errno::EAGAIN),
        }
        if i % 3 == 0 {
            ring.consume(|record| {
                seen.push(record.to_vec());
                Progress::Go
            });
        }
    }
    ring.consume(|record| {
        seen.push(record.to_vec());
        Progress::Go
    });
    assert_eq!(seen, sent);
    assert!(sent.len() > 1000 && ring.refused() == 2000 - sent.len() as u64);
}

#[test]
fn ring_counts_as_the_kernel() {
    let m = create(MapType::Ringbuf, 0, 0, 4096, 0);
    let ring = m.as_ring().unwrap();
    assert!(
        ring.reserve(4096 - 8).is_none(),
        "never more than the size less one"
    );
    assert!(ring.reserve(4096 - 7).is_none());
    assert!(ring.reserve(u64::MAX).is_none());
    assert_eq!(ring.output(&[1], 4), Err(Errno::EINVAL));
    let a = ring.reserve(10).unwrap();
    let b = ring.reserve(0).unwrap();
    assert_eq!(b.addr().get() - a.addr().get(), 24);
    assert_eq!(ring.query(RingQuery::AvailData), 32);
    assert_eq!(ring.query(RingQuery::RingSize), 4096);
    // SAFETY: reserved above, committed once.
    unsafe { RingBuf::commit(b, 0, false) };
    // The first record is still being written.
    assert_eq!(ring.consume(|_| Progress::Go), 0);
    assert_eq!(ring.wakeups(), 0);
    // SAFETY: as above.
    unsafe { RingBuf::commit(a, 0, true) };
    assert_eq!(ring.wakeups(), 1);
    let mut sizes = vec![];
    assert_eq!(
        ring.consume(|r| {
            sizes.push(r.len());
            Progress::Go
        }),
        1
    );
    assert_eq!(sizes, [0]);
    assert_eq!(ring.query(RingQuery::ConsPos), 32);
    ring.output(&[1], BPF_RB_NO_WAKEUP).unwrap();
    assert_eq!(ring.wakeups(), 1);
    ring.output(&[1], BPF_RB_FORCE_WAKEUP).unwrap();
    assert_eq!(ring.wakeups(), 2);
}

#[test]
fn user_ring_drains_in_order() {
    let m = create(MapType::UserRingbuf, 0, 0, 4096, 0);
    let ring = m.as_user_ring().unwrap();
    assert_eq!(ring.produce(&[0; 5000]), Err(Errno::E2BIG));
    for round in 0..50u8 {
        let mut n = 0u8;
        while ring
            .produce(&[round, n, 3, 4, 5, 6, 7, 8, 9, 10][..2 + usize::from(n % 9)])
            .is_ok()
        {
            n = n.wrapping_add(1);
        }
        let mut drain = ring.drain().unwrap();
        assert_eq!(ring.drain().err(), Some(Errno::EBUSY));
        let mut i = 0u8;
        for sample in &mut drain {
            assert_eq!(sample.len, 2 + u32::from(i % 9));
            // SAFETY: the sample's bytes, until the next is asked for.
            let data = unsafe { std::slice::from_raw_parts(sample.data.as_ptr(), 2) };
            assert_eq!(data, [round, i]);
            i = i.wrapping_add(1);
        }
        assert_eq!(i, n);
        assert!(drain.taken() >= 170);
        drop(drain);
        assert_eq!(ring.pending(), 0);
    }
}

#[test]
fn arena_gives_and_takes_pages() {
    let m = create(MapType::Arena, 0, 0, 100, BPF_F_MMAPABLE);
    let arena = m.as_arena().unwrap();
    let base = arena.base().addr().get() as u64;
    assert_eq!((arena.user_start(), base % (1 << 32)), (base, 0));
    let a = arena.alloc_pages(0, 3);
    assert_eq!(a, base);
    // SAFETY: three pages were just given.
    unsafe { arena.base().add(3 * 4096 - 8).cast::<u64>().write(7) };
    assert!(arena.is_present(3 * 4096 - 8, 8) && !arena.is_present(3 * 4096 - 8, 9));
    let b = arena.alloc_pages(0, 90);
    assert_eq!(b, base + 3 * 4096);
    assert_eq!(arena.alloc_pages(0, 8), 0, "seven are left");
    arena.free_pages(a + 4096, 2);
    assert!(!arena.is_present(4096, 1));
    // The smallest range that does.
    assert_eq!(arena.alloc_pages(0, 2), a + 4096);
    // SAFETY: given again, zeroed.
    let word = unsafe { arena.base().add(3 * 4096 - 8).cast::<u64>().read() };
    assert_eq!(word, 0);
    assert_eq!(arena.alloc_pages(a, 1), 0, "taken");
    assert_eq!(arena.alloc_pages(a + 5, 1), 0, "no page address");
    assert_eq!(arena.alloc_pages(base + 99 * 4096, 1), base + 99 * 4096);
    assert_eq!(arena.alloc_pages(base + 99 * 4096, 2), 0, "outside");
    arena.free_pages(base, 1000);
    assert_eq!(arena.alloc_pages(0, 100), base);
    assert_eq!(arena.alloc_pages(0, 101), 0);
    assert_eq!(arena.touch(base + 100 * 4096), Err(Errno::EFAULT));
    arena.free_pages(base, 1);
    assert_eq!(arena.touch(base + 5), Ok(()));
    assert!(arena.is_present(0, 1));
    assert_eq!(m.read(&[]), Err(Errno::EINVAL));
    assert_eq!(m.write(&[], &[], 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(m.next_key(None), Err(Errno::EOPNOTSUPP));
}

#[test]
fn arena_keeps_the_address_it_is_given() {
    let params = MapParams::new(MapType::Arena, 0, 0, 16).with_flags(BPF_F_MMAPABLE);
    let user = 0x7000_1234_0000;
    let m = Map::create(params.with_extra(user)).unwrap();
    let arena = m.as_arena().unwrap();
    assert_eq!(arena.alloc_pages(0, 1), user);
    let low = user as u32;
    assert!(arena.is_present(low, 4096) && !arena.is_present(0, 1));
    // SAFETY: the page that was just given.
    unsafe { arena.base().add(low as usize).write(1) };
}

#[test]
fn storage_belongs_to_its_owner() {
    for t in [
        MapType::SkStorage,
        MapType::TaskStorage,
        MapType::InodeStorage,
        MapType::CgrpStorage,
    ] {
        let m = create(t, 4, 12, 0, BPF_F_NO_PREALLOC | BPF_F_CLONE);
        let storage = m.as_storage().unwrap();
        assert!(storage.get(7, 0, None).is_none());
        assert!(storage.get(7, 2, None).is_none());
        let a = storage
            .get(7, BPF_LOCAL_STORAGE_GET_F_CREATE, Some(&[3; 12]))
            .unwrap();
        assert_eq!(storage.get(7, 0, None), Some(a));
        let b = storage
            .get(8, BPF_LOCAL_STORAGE_GET_F_CREATE, None)
            .unwrap();
        assert_ne!(a, b);
        assert_eq!(m.read(&7u32.to_ne_bytes()).unwrap(), [3; 12]);
        assert_eq!(m.read(&8u32.to_ne_bytes()).unwrap(), [0; 12]);
        storage.clone_owner(7, 9).unwrap();
        assert_eq!(m.read(&9u32.to_ne_bytes()).unwrap(), [3; 12]);
        let mut owners = vec![];
        storage.for_each_owner(|owner, _| owners.push(owner));
        owners.sort_unstable();
        assert_eq!(owners, [7, 8, 9]);
        assert_eq!(storage.delete_owner(7), Ok(()));
        assert_eq!(storage.delete_owner(7), Err(Errno::ENOENT));
        assert_eq!(m.remove(&8u32.to_ne_bytes()), Ok(()));
        assert!(storage.get(8, 0, None).is_none());
        assert_eq!(m.next_key(None), Err(Errno::ENOTSUPP));
        assert!(m.value_regions()[0].contains(b.addr().get() as u64, 12));
    }
}

#[test]
fn attached_cgroup_storage_is_made_by_attaching() {
    for (t, size) in [
        (MapType::CgroupStorage, 16),
        (MapType::PercpuCgroupStorage, 8),
    ] {
        let m = create(t, size, 8, 0, 0);
        let mut key = [0; 16];
        key[..8].copy_from_slice(&5u64.to_ne_bytes());
        let key = &key[..size as usize];
        let value = vec![1; m.host_value_size()];
        assert_eq!(m.write(key, &value, 0), Err(Errno::ENOENT));
        assert!(m.as_storage().unwrap().attached(1, 5, 0).is_some());
        assert_eq!(m.write(key, &value, 0), Ok(()));
        assert_eq!(m.write(key, &value, BPF_NOEXIST), Err(Errno::EINVAL));
        assert_eq!(m.read(key).unwrap(), value);
        assert_eq!(m.next_key(None).unwrap(), key);
        assert_eq!(m.remove(key), Err(Errno::EINVAL));
    }
}

#[test]
fn programs_and_events_have_slots() {
    let m = create(MapType::ProgArray, 4, 4, 3, 0);
    let programs = m.as_prog_array().unwrap();
    programs.set(1, Arc::new("first"), 11).unwrap();
    assert_eq!(programs.set(3, Arc::new("none"), 12), Err(Errno::E2BIG));
    let guard = pin();
    let seen = programs.get(1, &guard).unwrap();
    programs.set(1, Arc::new("second"), 12).unwrap();
    assert_eq!(seen.downcast_ref::<&str>(), Some(&"first"));
    assert_eq!(m.read(&1u32.to_ne_bytes()).unwrap(), 12u32.to_ne_bytes());
    assert_eq!(m.remove(&1u32.to_ne_bytes()), Ok(()));
    assert_eq!(m.remove(&1u32.to_ne_bytes()), Err(Errno::ENOENT));
    assert!(programs.get(1, &guard).is_none() && programs.get(9, &guard).is_none());
    assert!(m.lookup(0, &1u32.to_ne_bytes()).is_none());

    let m = create(MapType::PerfEventArray, 4, 4, 4, 0);
    let events = m.as_perf_events().unwrap();
    assert_eq!(
        events.output(1, BPF_F_CURRENT_CPU, &[b"x"]),
        Err(Errno::ENOENT)
    );
    events.open(1, 5).unwrap();
    assert_eq!(events.output(1, BPF_F_CURRENT_CPU, &[b"ab", b"c"]), Ok(()));
    assert_eq!(events.output(0, 1, &[b"abc"]), Err(Errno::ENOSPC));
    assert_eq!(events.output(0, 4, &[b"abc"]), Err(Errno::E2BIG));
    assert_eq!(events.output(0, 1 << 40, &[b"abc"]), Err(Errno::EINVAL));
    let (samples, lost) = events.drain(1).unwrap();
    assert_eq!(
        (samples[0].data.as_slice(), samples[0].cpu, lost),
        (&b"abc"[..], 1, 1)
    );
}

#[test]
fn traces_have_ids() {
    let m = create(MapType::StackTrace, 4, 80, 16, 0);
    let traces = m.as_stack_traces().unwrap();
    let frames = |n: u64| (n..n + 3).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
    let id = traces.add(&frames(1), 0).unwrap();
    assert_eq!(traces.add(&frames(1), BPF_F_FAST_STACK_CMP), Ok(id));
    assert_eq!(traces.add(&frames(1), 1 << 20), Err(Errno::EINVAL));
    assert_eq!(traces.add(&[], 0), Err(Errno::EFAULT));
    let value = m.read(&id.to_ne_bytes()).unwrap();
    assert_eq!((&value[..24], value.len()), (&frames(1)[..], 80));
    assert!(value[24..].iter().all(|b| *b == 0));
    // Another trace with the same id.
    let other = (2..10_000)
        .find(|n| traces.add(&frames(*n), 0) == Err(Errno::EEXIST))
        .unwrap();
    let replaced = traces.add(&frames(other), BPF_F_REUSE_STACKID).unwrap();
    assert_eq!(
        m.read(&replaced.to_ne_bytes()).unwrap()[..24],
        frames(other)
    );
    assert_eq!(m.next_key(None).map(|k| k.len()), Ok(4));
    assert_eq!(m.remove(&replaced.to_ne_bytes()), Ok(()));
    assert_eq!(m.read(&replaced.to_ne_bytes()), Err(Errno::ENOENT));
    assert_eq!(m.remove(&99u32.to_ne_bytes()), Err(Errno::E2BIG));
}

#[test]
fn sockets_are_words() {
    let key = |i: u32| i.to_ne_bytes();
    let cookie = 0x1_0000_0007u64.to_ne_bytes();
    let m = create(MapType::Sockmap, 4, 8, 4, 0);
    assert_eq!(m.write(&key(1), &cookie, BPF_EXIST), Err(Errno::ENOENT));
    assert_eq!(m.write(&key(1), &cookie, BPF_NOEXIST), Ok(()));
    assert_eq!(m.write(&key(1), &cookie, BPF_NOEXIST), Err(Errno::EEXIST));
    assert_eq!(m.write(&key(4), &cookie, 0), Err(Errno::E2BIG));
    assert_eq!(m.read(&key(1)).unwrap(), cookie);
    assert!(m.lookup(0, &key(1)).is_some() && m.lookup(0, &key(2)).is_none());
    assert_eq!(m.remove(&key(1)), Ok(()));
    assert_eq!(m.remove(&key(1)), Err(Errno::EINVAL));
    let m = create(MapType::Sockhash, 6, 8, 2, 0);
    for i in 0..2u8 {
        assert_eq!(m.write(&[i; 6], &cookie, BPF_NOEXIST), Ok(()));
    }
    assert_eq!(m.write(&[9; 6], &cookie, 0), Err(Errno::E2BIG));
    assert_eq!(m.remove(&[9; 6]), Err(Errno::ENOENT));
    let m = create(MapType::ReuseportSockarray, 4, 4, 2, 0);
    assert_eq!(m.write(&key(1), &[1, 0, 0, 0], 0), Ok(()));
    assert_eq!(m.read(&key(1)), Err(Errno::ENOSPC));
    assert_eq!(m.remove(&key(0)), Err(Errno::ENOENT));
    let m = create(MapType::Xskmap, 4, 4, 2, 0);
    assert_eq!(m.write(&key(1), &[1, 0, 0, 0], 0), Ok(()));
    assert_eq!(m.remove(&key(0)), Ok(()));
    assert_eq!(m.remove(&key(2)), Err(Errno::EINVAL));
}

#[test]
fn redirect_maps_hold_their_values() {
    let m = create(MapType::Devmap, 4, 8, 4, 0);
    let value = [3, 0, 0, 0, 9, 0, 0, 0];
    m.write(&1u32.to_ne_bytes(), &value, 0).unwrap();
    let at = m.lookup(0, &1u32.to_ne_bytes()).unwrap();
    // SAFETY: a value of eight bytes.
    assert_eq!(unsafe { at.cast::<[u8; 8]>().read() }, value);
    assert_eq!(
        m.write(&1u32.to_ne_bytes(), &[0, 0, 0, 0, 9, 0, 0, 0], 0),
        Err(Errno::EINVAL)
    );
    m.write(&1u32.to_ne_bytes(), &[0; 8], 0).unwrap();
    assert!(m.lookup(0, &1u32.to_ne_bytes()).is_none());
    let m = create(MapType::Cpumap, 4, 4, 4, 0);
    assert_eq!(
        m.write(&[0; 4], &16385u32.to_ne_bytes(), 0),
        Err(Errno::EOVERFLOW)
    );
    assert_eq!(m.write(&[0; 4], &16384u32.to_ne_bytes(), 0), Ok(()));
    let m = create(MapType::DevmapHash, 4, 4, 2, 0);
    assert_eq!(
        m.write(&77u32.to_ne_bytes(), &[0; 4], 0),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        m.write(&77u32.to_ne_bytes(), &[5, 0, 0, 0], BPF_EXIST),
        Ok(())
    );
    assert_eq!(m.read(&77u32.to_ne_bytes()).unwrap(), [5, 0, 0, 0]);
}

#[test]
fn struct_ops_register_and_unregister() {
    let m = create(MapType::StructOps, 4, 24, 1, 0);
    let ops = m.as_struct_ops().unwrap();
    assert_eq!(m.remove(&[0; 4]), Err(Errno::ENOENT));
    assert_eq!(m.write(&[0; 4], &[2; 24], 0), Ok(()));
    assert!(ops.is_registered());
    assert_eq!(m.write(&[0; 4], &[2; 24], 0), Err(Errno::EBUSY));
    assert_eq!(m.read(&[0; 4]).unwrap(), [2; 24]);
    assert_eq!(m.remove(&[0; 4]), Ok(()));
    assert!(!ops.is_registered());
}

#[test]
fn too_much_memory_is_refused() {
    for params in [
        MapParams::new(MapType::Array, 4, i32::MAX as u32, u32::MAX),
        MapParams::new(MapType::PercpuArray, 4, 32768, u32::MAX).with_cpus(64),
        MapParams::new(MapType::Queue, 0, 4 << 20, u32::MAX),
        MapParams::new(MapType::Hash, 4, 4 << 19, 1 << 27),
    ] {
        assert_eq!(Map::create(params).err(), Some(Errno::ENOMEM));
    }
    // Elements that are made when they are inserted cost nothing yet.
    let sparse = MapParams::new(MapType::Hash, 4, 64, 1 << 27).with_flags(BPF_F_NO_PREALLOC);
    let m = Map::create(sparse).unwrap();
    assert_eq!(m.update(0, &[1; 4], &[1; 64], 0), Ok(()));
    let trie = MapParams::new(MapType::LpmTrie, 8, 8, u32::MAX).with_flags(BPF_F_NO_PREALLOC);
    let m = Map::create(trie).unwrap();
    assert_eq!(m.update(0, &[0; 8], &[1; 8], 0), Ok(()));
}

#[test]
fn who_may_do_what() {
    let key = [0; 4];
    let m = create(MapType::Array, 4, 4, 1, BPF_F_RDONLY);
    assert_eq!(m.write(&key, &[0; 4], 0), Err(Errno::EPERM));
    assert_eq!(m.read(&key).unwrap(), [0; 4]);
    assert_eq!(m.freeze(), Err(Errno::EPERM));
    let m = create(MapType::Array, 4, 4, 1, BPF_F_WRONLY);
    assert_eq!(m.read(&key), Err(Errno::EPERM));
    assert_eq!(m.next_key(None), Err(Errno::EPERM));
    assert_eq!(m.write(&key, &[0; 4], 0), Ok(()));
    let m = create(MapType::Array, 4, 4, 1, 0);
    assert_eq!(m.read(&[0; 3]), Err(Errno::EINVAL));
    assert_eq!(m.write(&key, &[0; 5], 0), Err(Errno::EINVAL));
    m.freeze().unwrap();
    assert_eq!(m.write(&key, &[0; 4], 0), Err(Errno::EPERM));
    // Programs go on writing, unless the map says otherwise to the verifier.
    assert_eq!(m.update(0, &key, &[1; 4], 0), Ok(()));
    // Keys of another size are absent, whatever the program passes.
    let m = create(MapType::Hash, 6, 8, 10, 0);
    assert!(m.lookup(0, &[0; 4]).is_none() && m.lookup(0, &[0; 64]).is_none());
    assert_eq!(m.update(0, &[0; 64], &[0; 8], 0), Err(Errno::EINVAL));
}
