/* Maps defined through BTF. */
#include "bpf.h"

char _license[] SEC("license") = "GPL";

struct key {
	u32 a;
	u16 b;
};

struct {
	UINT(type, HASH);
	UINT(max_entries, 77);
	TYPE(key, struct key);
	TYPE(value, u64);
	UINT(map_flags, 1);
	UINT(numa_node, 3);
	UINT(pinning, 1);
} typed SEC(".maps");

struct {
	UINT(type, BPF_ARRAY);
	UINT(key_size, 4);
	UINT(value_size, 24);
	UINT(max_entries, 5);
} sized SEC(".maps");

struct {
	UINT(type, RINGBUF);
	UINT(max_entries, 5000);
} ring SEC(".maps");

struct {
	UINT(type, BLOOM_FILTER);
	TYPE(value, u32);
	UINT(max_entries, 100);
	UINT(map_extra, 4);
} bloom SEC(".maps");

struct {
	UINT(type, BPF_ARENA);
	UINT(map_flags, 1024);
	UINT(max_entries, 2);
	ULONG(map_extra, 0x1ull << 44);
} arena SEC(".maps");

u64 ARENA in_arena = 0x1122334455667788;
u64 ARENA also_in_arena = 42;

int entry(u32 *ctx);
int other_entry(u32 *ctx);

struct {
	UINT(type, PROG_ARRAY);
	UINT(max_entries, 4);
	UINT(key_size, 4);
	ARRAY(values, int(void *));
} jumps SEC(".maps") = {
	.values = {
		[1] = (void *)&entry,
		[3] = (void *)&other_entry,
	},
};

struct inner {
	UINT(type, BPF_ARRAY);
	UINT(max_entries, 2);
	TYPE(key, u32);
	TYPE(value, u64);
} inner_a SEC(".maps"), inner_b SEC(".maps");

struct {
	UINT(type, HASH_OF_MAPS);
	UINT(max_entries, 8);
	TYPE(key, u32);
	ARRAY(values, struct inner);
} outer SEC(".maps") = {
	.values = {
		[0] = &inner_b,
		[5] = &inner_a,
	},
};

SEC("xdp")
int entry(u32 *ctx)
{
	struct key key = {};
	u64 *value = map_lookup(&typed, &key);

	tail_call(ctx, &jumps, 3);
	return value ? *value : 0;
}

SEC("xdp")
int other_entry(u32 *ctx)
{
	u32 key = 5;
	void *map = map_lookup(&outer, &key);

	if (map)
		map_lookup(map, &key);
	map_lookup(&sized, &key);
	in_arena += also_in_arena;
	return 0;
}
