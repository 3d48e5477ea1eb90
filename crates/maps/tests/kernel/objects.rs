//! Maps of sockets, interfaces, events and other objects.

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

use crate::sys::{Attr, KernelMap, load_btf};
use crate::{Random, in_child, number_keys, permitted, possible_cpus};

#[test]
fn small_arrays_answer_alike() {
    in_child("objects::small_arrays_answer_alike", || {
        if !permitted() {
            return;
        }
        // What needs no descriptors: errors, and maps that stay empty.
        for (t, value) in [
            (MapType::ProgArray, 4),
            (MapType::PerfEventArray, 4),
            (MapType::CgroupArray, 4),
            (MapType::StackTrace, 80),
            (MapType::Ringbuf, 0),
            (MapType::UserRingbuf, 0),
        ] {
            let rings = matches!(t, MapType::Ringbuf | MapType::UserRingbuf);
            let p = MapParams::new(
                t,
                if rings { 0 } else { 4 },
                value,
                if rings { 4096 } else { 4 },
            );
            let kernel = KernelMap::create(&p, 0).unwrap();
            let ours = Map::create(p.clone()).unwrap();
            let keys = if rings {
                vec![vec![]]
            } else {
                number_keys(4, 6)
            };
            for key in &keys {
                let what = |op: &str| format!("{op} {t:?} {key:?}");
                assert_eq!(ours.read(key), kernel.read(key, 0), "{}", what("read"));
                assert_eq!(ours.remove(key), kernel.remove(key), "{}", what("remove"));
                assert_eq!(ours.take(key, 0), kernel.take(key, 0), "{}", what("take"));
                let (a, b) = (ours.next_key(Some(key)), kernel.next_key(Some(key)));
                assert_eq!(a, b, "{}", what("next"));
            }
            assert_eq!(ours.next_key(None), kernel.next_key(None), "next {t:?}");
            let (_, _, result) = kernel.batch(24, 3);
            assert_eq!(ours.lookup_batch(None, 3, 0).map(drop), result, "{t:?}");
        }
        // Interfaces: the loopback device is everywhere.
        for (t, values) in [
            (MapType::Devmap, [1u32, 0]),
            (MapType::DevmapHash, [1, 0]),
            (MapType::Cpumap, [192, 0]),
        ] {
            let p = MapParams::new(t, 4, 4, 4);
            let Ok(kernel) = KernelMap::create(&p, 0) else {
                println!("skipped: the kernel has no {}", t.name());
                continue;
            };
            let ours = Map::create(p).unwrap();
            let mut rng = Random(7);
            for _ in 0..300 {
                // CPUs beyond the machine's are the kernel's own affair.
                let most = if t == MapType::Cpumap { 1 } else { 6 };
                let key = rng.below(most).to_ne_bytes();
                let value = rng.pick(&values).to_ne_bytes();
                let flags = rng.pick(&[0, 0, 0, 1, 2, 3]);
                let what = format!("{t:?} {key:?} {value:?} {flags}");
                match rng.below(4) {
                    0 | 1 => assert_eq!(
                        ours.write(&key, &value, flags),
                        kernel.write(&key, &value, flags),
                        "{what}"
                    ),
                    2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                    _ => assert_eq!(ours.read(&key), kernel.read(&key, 0), "{what}"),
                }
            }
        }
    });
}

#[test]
fn socket_storage_answers_alike() {
    in_child("objects::socket_storage_answers_alike", || {
        use std::os::fd::AsRawFd;
        if !permitted() {
            return;
        }
        let create = |p: &MapParams| {
            let btf = load_btf(p.value_size.max(1));
            let fd = Attr::new()
                .u32(0, p.map_type as u32)
                .u32(4, p.key_size)
                .u32(8, p.value_size)
                .u32(12, p.max_entries)
                .u32(16, p.flags)
                .u32(48, btf as u32)
                .u32(52, 1)
                .u32(56, 3)
                .call(0);
            // SAFETY: our descriptor.
            unsafe { libc::close(btf) };
            let (key_size, value_size) = (p.key_size as usize, p.value_size as usize);
            fd.map(|fd| KernelMap {
                fd,
                key_size,
                value_size,
            })
        };
        let base = MapParams::new(MapType::SkStorage, 4, 12, 0).with_flags(BPF_F_NO_PREALLOC);
        for t in [
            MapType::SkStorage,
            MapType::TaskStorage,
            MapType::InodeStorage,
            MapType::CgrpStorage,
        ] {
            let base = MapParams {
                map_type: t,
                ..base.clone()
            };
            if let Err(e) = create(&base) {
                println!("skipped: the kernel makes no {} ({e})", t.name());
                continue;
            }
            let mut tries = vec![];
            for flags in [
                0,
                1,
                1 | BPF_F_CLONE,
                BPF_F_CLONE,
                1 | BPF_F_RDONLY,
                1 | BPF_F_ZERO_SEED,
            ] {
                tries.push(base.clone().with_flags(flags));
            }
            for value_size in [0, 1, 100, 65407, 65408, 65535, 65536] {
                tries.push(MapParams {
                    value_size,
                    ..base.clone()
                });
            }
            for key_size in [0, 8] {
                tries.push(MapParams {
                    key_size,
                    ..base.clone()
                });
            }
            tries.push(MapParams {
                max_entries: 1,
                ..base.clone()
            });
            for p in tries {
                assert_eq!(
                    Map::create(p.clone()).map(drop),
                    create(&p).map(drop),
                    "{p:?}"
                );
            }
        }
        let kernel = create(&base).unwrap();
        let ours = Map::create(base).unwrap();
        let sockets: Vec<_> = (0..4)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let mut rng = Random(5);
        for step in 0..1000 {
            let key = rng.pick(&sockets.iter().map(|s| s.as_raw_fd()).collect::<Vec<_>>());
            let key = key.to_ne_bytes();
            let value: Vec<u8> = (0..12).map(|_| rng.below(256) as u8).collect();
            let flags = rng.pick(&[0, 0, 0, 1, 2, 3, 4, 8]);
            let what = format!("{step} {key:?} {flags}");
            match rng.below(4) {
                0 | 1 => assert_eq!(
                    ours.write(&key, &value, flags),
                    kernel.write(&key, &value, flags),
                    "{what}"
                ),
                2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                _ => assert_eq!(ours.read(&key), kernel.read(&key, 0), "{what}"),
            }
        }
        let key = sockets[0].as_raw_fd().to_ne_bytes();
        assert_eq!(ours.take(&key, 0), kernel.take(&key, 0));
        assert_eq!(ours.next_key(None), kernel.next_key(None));
        assert_eq!(ours.next_key(Some(&key)), kernel.next_key(Some(&key)));
    });
}

#[test]
fn attached_storage_answers_alike() {
    in_child("objects::attached_storage_answers_alike", || {
        if !permitted() {
            return;
        }
        for t in [MapType::CgroupStorage, MapType::PercpuCgroupStorage] {
            for size in [8u32, 16] {
                let p = MapParams::new(t, size, 8, 0).with_cpus(possible_cpus());
                let Ok(mut kernel) = KernelMap::create(&p, 0) else {
                    println!("skipped: the kernel makes no {}", t.name());
                    continue;
                };
                let ours = Map::create(p).unwrap();
                kernel.value_size = ours.host_value_size();
                let key = vec![1; size as usize];
                for flags in [0, 1, 2, 3, 4, 6, 8] {
                    let value = vec![0; kernel.value_size];
                    let (a, b) = (
                        ours.write(&key, &value, flags),
                        kernel.write(&key, &value, flags),
                    );
                    assert_eq!(a, b, "{t:?} {flags}");
                }
                assert_eq!(ours.read(&key), kernel.read(&key, 0), "{t:?}");
                assert_eq!(ours.remove(&key), kernel.remove(&key), "{t:?}");
                assert_eq!(ours.take(&key, 0), kernel.take(&key, 0), "{t:?}");
                assert_eq!(ours.next_key(None), kernel.next_key(None), "{t:?}");
                assert_eq!(
                    ours.next_key(Some(&key)),
                    kernel.next_key(Some(&key)),
                    "{t:?}"
                );
            }
        }
    });
}

#[test]
fn socket_maps_answer_alike() {
    in_child("objects::socket_maps_answer_alike", || {
        use std::os::fd::AsRawFd;
        if !permitted() {
            return;
        }
        let sockets: Vec<_> = (0..3)
            .map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        for t in [MapType::Sockmap, MapType::Sockhash] {
            for value_size in [4, 8] {
                let p = MapParams::new(t, 4, value_size, 3);
                let Ok(kernel) = KernelMap::create(&p, 0) else {
                    println!("skipped: the kernel makes no {}", t.name());
                    continue;
                };
                let ours = Map::create(p).unwrap();
                let mut rng = Random(5);
                for step in 0..500 {
                    let key = rng.below(5).to_ne_bytes();
                    let fd = rng.pick(&sockets.iter().map(|s| s.as_raw_fd()).collect::<Vec<_>>());
                    let mut value = fd.to_ne_bytes().to_vec();
                    value.resize(value_size as usize, 0);
                    let flags = rng.pick(&[0, 0, 0, 1, 2, 3, 4, 8]);
                    let what = format!("{t:?} {step} {key:?} {flags}");
                    match rng.below(4) {
                        0 | 1 => assert_eq!(
                            ours.write(&key, &value, flags),
                            kernel.write(&key, &value, flags),
                            "{what}"
                        ),
                        2 => assert_eq!(ours.remove(&key), kernel.remove(&key), "{what}"),
                        // The kernel gives a cookie of its own.
                        _ => assert_eq!(
                            ours.read(&key).map(drop),
                            kernel.read(&key, 0).map(drop),
                            "{what}"
                        ),
                    }
                    if t == MapType::Sockmap {
                        assert_eq!(
                            ours.next_key(Some(&key)),
                            kernel.next_key(Some(&key)),
                            "{what}"
                        );
                    }
                }
                let key = [0; 4];
                assert_eq!(ours.take(&key, 0), kernel.take(&key, 0), "{t:?}");
                let (_, _, result) = kernel.batch(24, 3);
                match ours.lookup_batch(None, 3, 0) {
                    Ok(_) => assert!(matches!(result, Ok(()) | Err(Errno::ENOENT))),
                    Err(e) => assert_eq!(Err(e), result, "{t:?}"),
                }
            }
        }
    });
}
