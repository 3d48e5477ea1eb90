//! What the kernel refuses to create, we refuse with the same error.

use std::collections::BTreeMap;

use bpfkit_maps::flags::*;
use bpfkit_maps::*;
use bpfkit_spec::MapType;

use crate::sys::KernelMap;
use crate::{in_child, permitted};

#[test]
fn creation_is_refused_alike() {
    in_child("creation::creation_is_refused_alike", || {
        if !permitted() {
            return;
        }
        use MapType::*;
        let types = [
            Hash,
            Array,
            ProgArray,
            PerfEventArray,
            PercpuHash,
            PercpuArray,
            StackTrace,
            CgroupArray,
            LruHash,
            LruPercpuHash,
            LpmTrie,
            Devmap,
            Sockmap,
            Cpumap,
            Xskmap,
            Sockhash,
            CgroupStorage,
            ReuseportSockarray,
            PercpuCgroupStorage,
            Queue,
            Stack,
            DevmapHash,
            Ringbuf,
            BloomFilter,
            UserRingbuf,
            Arena,
        ];
        let (mut compared, mut absent) = (0, BTreeMap::new());
        for t in types {
            let base = |key, value, entries| MapParams::new(t, key, value, entries);
            // Some attributes that the type accepts, if any do.
            let good = [
                base(4, 4, 4),
                base(4, 8, 4),
                base(0, 8, 4),
                base(0, 0, 4096),
                base(8, 8, 4),
                base(8, 4, 0),
                base(16, 4, 0),
            ];
            let good = good
                .iter()
                .flat_map(|p| {
                    [0, BPF_F_NO_PREALLOC, BPF_F_MMAPABLE].map(|f| p.clone().with_flags(f))
                })
                .find(|p| KernelMap::create(p, 0).is_ok());
            let Some(good) = good else {
                absent.insert(t as u32, t.name());
                continue;
            };
            let mut tries = vec![good.clone()];
            for key in [0, 1, 2, 4, 5, 8, 16, 20, 260, 261, 512, 513, 5000] {
                tries.push(MapParams {
                    key_size: key,
                    ..good.clone()
                });
            }
            for value in [
                0,
                1,
                2,
                3,
                4,
                7,
                8,
                9,
                12,
                16,
                32,
                64,
                1016,
                1017,
                1024,
                4064,
                4096,
                32760,
                32768,
                32769,
                65000,
                65407,
                65408,
                65440,
                65448,
                65456,
                65500,
                65535,
                65536,
                70000,
                (4 << 20) - 300,
                (4 << 20) - 298,
                (4 << 20) - 296,
                (4 << 20) - 292,
                (4 << 20) - 288,
                (4 << 20) - 281,
                (4 << 20) - 280,
                (4 << 20) - 279,
                (4 << 20) - 272,
                (4 << 20) - 60,
                (4 << 20) - 57,
                (4 << 20) - 56,
                (4 << 20) - 53,
                (4 << 20) - 52,
                (4 << 20) - 51,
                (4 << 20) - 50,
                (4 << 20) - 49,
                (4 << 20) - 48,
                (4 << 20) - 8,
                4 << 20,
                (4 << 20) + 1,
                i32::MAX as u32 + 1,
                u32::MAX,
            ] {
                // Not what takes gigabytes.
                if value > 5 << 20 && matches!(t, Array | PercpuArray) && value <= i32::MAX as u32 {
                    continue;
                }
                tries.push(MapParams {
                    value_size: value,
                    max_entries: good.max_entries.min(4),
                    ..good.clone()
                });
                tries.push(MapParams {
                    value_size: value,
                    ..good.clone()
                });
            }
            for entries in [
                0,
                1,
                2,
                3,
                5,
                100,
                4095,
                4096,
                4097,
                8192,
                12288,
                65536,
                1 << 20,
            ] {
                // How many CPUs a kernel is built for is its own affair.
                if t != Cpumap || entries <= 5 {
                    tries.push(MapParams {
                        max_entries: entries,
                        ..good.clone()
                    });
                }
            }
            if t == Arena {
                for entries in [1 << 20, (1 << 20) + 1, 1 << 25] {
                    tries.push(MapParams {
                        max_entries: entries,
                        ..good.clone()
                    });
                    for extra in [4096, 4097, 0xffff_f000, 0x1_0000_0000] {
                        tries.push(MapParams {
                            max_entries: entries,
                            extra,
                            ..good.clone()
                        });
                    }
                }
            }
            if matches!(
                t,
                Hash | PercpuHash | LruHash | StackTrace | LpmTrie | DevmapHash
            ) {
                for entries in [(1 << 27) + 1, (1 << 28) + 1, (1 << 31) + 1, u32::MAX] {
                    // LPM tries allocate nothing ahead; the others are refused.
                    if t != StackTrace && t != DevmapHash || entries > 1 << 31 {
                        tries.push(MapParams {
                            max_entries: entries,
                            ..good.clone()
                        });
                    }
                }
            }
            for bit in 0..20 {
                // Not those that need a token, a device or a BTF.
                if ![2, 15, 16].contains(&bit) {
                    tries.push(good.clone().with_flags(1 << bit));
                    tries.push(good.clone().with_flags(good.flags | 1 << bit));
                    tries.push(
                        good.clone()
                            .with_flags(good.flags ^ 1 << bit | BPF_F_RDONLY_PROG),
                    );
                }
            }
            for flags in [
                BPF_F_RDONLY | BPF_F_WRONLY,
                BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG,
                BPF_F_NO_PREALLOC | BPF_F_NO_COMMON_LRU,
                BPF_F_NUMA_NODE,
                BPF_F_NUMA_NODE | BPF_F_NO_COMMON_LRU,
                BPF_F_NUMA_NODE | good.flags,
            ] {
                tries.push(good.clone().with_flags(flags));
            }
            for extra in [1, 15, 16, 4096, 1 << 32] {
                tries.push(good.clone().with_extra(extra));
            }
            for p in tries {
                let expected = KernelMap::create(&p, 0).map(drop);
                assert_eq!(Map::create(p.clone()).map(drop), expected, "{p:?}");
                compared += 1;
            }
        }
        println!("compared {compared} creations");
        for name in absent.values() {
            println!("skipped: the kernel makes no {name} from sizes alone");
        }
    });
}
