/* Maps of the older `maps` section, with iproute2's longer definition. */
#include "bpf.h"

char _license[] SEC("license") = "GPL";

struct bpf_elf_map {
	u32 type;
	u32 size_key;
	u32 size_value;
	u32 max_elem;
	u32 flags;
	u32 id;
	u32 pinning;
	u32 inner_id;
	u32 inner_idx;
};

struct bpf_elf_map SEC("maps") counters = {
	.type = HASH,
	.size_key = 4,
	.size_value = 8,
	.max_elem = 100,
	.pinning = 2,
	.id = 1,
};

struct bpf_elf_map SEC("maps") outer = {
	.type = ARRAY_OF_MAPS,
	.size_key = 4,
	.size_value = 4,
	.max_elem = 3,
	.inner_id = 1,
};

struct ____btf_map_counters {
	u32 key;
	u64 value;
};
struct ____btf_map_counters SEC(".maps.counters") ____btf_map_counters = {};

SEC("classifier")
int count(u32 *ctx)
{
	u32 key = 1;
	u64 *value = map_lookup(&counters, &key);

	map_lookup(&outer, &key);
	return value ? *value : 0;
}
