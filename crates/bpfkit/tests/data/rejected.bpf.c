/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Programs that the verifier refuses, one for each rule: `bpfkit verify` explains them.
 * build-rejected.sh compiles them; the line numbers stand in tests/cmd/explain.trycmd.
 */
#include <linux/bpf.h>

#include "bpfkit.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u64);
	__type(value, __u64);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[8]);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

const volatile __u64 limit = 10;

static long (*const bpf_get_current_comm)(void *buffer, __u32 size) = (void *)16;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 size) = (void *)26;
static long (*const bpf_skb_pull_data)(void *skb, __u32 size) = (void *)39;

static __always_inline void *data_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

SEC("xdp")
int null_check(struct xdp_md *ctx)
{
	__u64 key = ctx->rx_queue_index;
	__u64 *value = bpf_map_lookup_elem(&hash, &key);

	return *value;
}

SEC("xdp")
int packet_bounds(struct xdp_md *ctx)
{
	__u8 *data = data_of(ctx);
	void *end = (void *)(long)ctx->data_end;

	if ((void *)(data + 4) > end)
		return XDP_DROP;
	return data[6];
}

SEC("xdp")
int map_bounds(struct xdp_md *ctx)
{
	__u32 zero = 0, index = ctx->rx_queue_index;
	__u64 *values = bpf_map_lookup_elem(&array, &zero);

	if (!values)
		return XDP_DROP;
	if (index > 8)
		return XDP_PASS;
	return values[index];
}

SEC("xdp")
int map_unbounded(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *values = bpf_map_lookup_elem(&array, &zero);

	if (!values)
		return XDP_DROP;
	return values[ctx->rx_queue_index];
}

SEC("xdp")
int reference(struct xdp_md *ctx)
{
	__u64 *record = bpf_ringbuf_reserve(&ring, 8, 0);

	if (!record)
		return XDP_DROP;
	*record = 1;
	if (ctx->rx_queue_index == 3)
		return XDP_PASS;
	bpf_ringbuf_submit(record, 0);
	return XDP_PASS;
}

SEC("xdp")
int helper_type(struct xdp_md *ctx)
{
	__u8 name[16];

	return bpf_get_current_comm(name, sizeof(name)) + bpf_skb_pull_data((void *)ctx, 4);
}

SEC("xdp")
int read_only(struct xdp_md *ctx)
{
	__u64 *pointer = (__u64 *)&limit;

	/* Hidden from the compiler, which knows better. */
	asm volatile("" : "+r"(pointer));
	*pointer = ctx->rx_queue_index;
	return XDP_PASS;
}

SEC("xdp")
int uninitialised(struct xdp_md *ctx)
{
	__u64 key;

	asm volatile("%0 = r7" : "=r"(key));
	return key;
}

SEC("xdp")
int argument(struct xdp_md *ctx)
{
	__u64 *value = bpf_map_lookup_elem(&hash, ctx);

	return value ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int endless(struct xdp_md *ctx)
{
	__u64 i = 0;

	while (i != 1) {
		asm volatile("%0 = 0" : "+r"(i));
	}
	return XDP_PASS;
}

static __noinline int deeper(struct xdp_md *ctx)
{
	__u64 buffer[40];

	buffer[0] = ctx->rx_queue_index;
	asm volatile("" ::"r"(buffer) : "memory");
	return buffer[0];
}

SEC("xdp")
int stack(struct xdp_md *ctx)
{
	__u64 buffer[40];

	buffer[0] = deeper(ctx);
	asm volatile("" ::"r"(buffer) : "memory");
	return buffer[0] ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int too_complex(struct xdp_md *ctx)
{
	__u64 seen = 0, i = 0;

	for (; i < 2000000; i++) {
		asm volatile("" : "+r"(i));
		seen += i;
	}
	return seen ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int number(struct xdp_md *ctx)
{
	__u64 *pointer = (void *)(__u64)ctx->rx_queue_index;

	return *pointer;
}

SEC("tc")
int size(struct __sk_buff *skb)
{
	__u8 buffer[16];
	int length = skb->mark;

	if (length > (int)sizeof(buffer))
		return 0;
	return bpf_skb_load_bytes(skb, 0, buffer, length);
}

SEC("cgroup/sock_create")
int returned(struct bpf_sock *sk)
{
	return 5;
}
