//! Map types.

use crate::uapi_enum::uapi_enum;

uapi_enum! {
    /// `enum bpf_map_type`. [`MapType::InsnArray`] is later than the target kernel; it is
    /// here because libbpf 1.7 makes such maps.
    pub enum MapType, prefix "BPF_MAP_TYPE_" {
        Unspec = 0, "unspec", (3, 18);
        Hash = 1, "hash", (3, 19);
        Array = 2, "array", (3, 19);
        ProgArray = 3, "prog_array", (4, 2);
        PerfEventArray = 4, "perf_event_array", (4, 3);
        PercpuHash = 5, "percpu_hash", (4, 6);
        PercpuArray = 6, "percpu_array", (4, 6);
        StackTrace = 7, "stack_trace", (4, 6);
        CgroupArray = 8, "cgroup_array", (4, 8);
        LruHash = 9, "lru_hash", (4, 10);
        LruPercpuHash = 10, "lru_percpu_hash", (4, 10);
        LpmTrie = 11, "lpm_trie", (4, 11);
        ArrayOfMaps = 12, "array_of_maps", (4, 12);
        HashOfMaps = 13, "hash_of_maps", (4, 12);
        Devmap = 14, "devmap", (4, 14);
        Sockmap = 15, "sockmap", (4, 14);
        Cpumap = 16, "cpumap", (4, 15);
        Xskmap = 17, "xskmap", (4, 18);
        Sockhash = 18, "sockhash", (4, 18);
        CgroupStorage = 19, "cgroup_storage", (4, 19);
        ReuseportSockarray = 20, "reuseport_sockarray", (4, 19);
        PercpuCgroupStorage = 21, "percpu_cgroup_storage", (4, 20);
        Queue = 22, "queue", (4, 20);
        Stack = 23, "stack", (4, 20);
        SkStorage = 24, "sk_storage", (5, 2);
        DevmapHash = 25, "devmap_hash", (5, 4);
        StructOps = 26, "struct_ops", (5, 6);
        Ringbuf = 27, "ringbuf", (5, 8);
        InodeStorage = 28, "inode_storage", (5, 10);
        TaskStorage = 29, "task_storage", (5, 11);
        BloomFilter = 30, "bloom_filter", (5, 16);
        UserRingbuf = 31, "user_ringbuf", (6, 1);
        CgrpStorage = 32, "cgrp_storage", (6, 2);
        Arena = 33, "arena", (6, 9);
        InsnArray = 34, "insn_array", (6, 19);
    }
}
