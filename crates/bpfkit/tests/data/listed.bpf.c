/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A small program whose machine code `bpfkit jit` lists. build-listed.sh compiles it.
 */
#include <linux/bpf.h>

#include "bpfkit.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index;
	__u64 *count = bpf_map_lookup_elem(&counts, &key);

	if (!count)
		return XDP_DROP;
	*count += 1;
	return XDP_PASS;
}
