#include "keys.h"

/* A bloom filter that is asked for values that it holds. */

struct {
	__uint(type, BLOOM_FILTER);
	__uint(max_entries, 1);
	__uint(map_extra, 3);
	__type(value, u64);
} bloom SEC(".maps");

static long do_value(u32 index, struct turn *turn)
{
	turn->sum += next_number(turn);
	return 0;
}

static long do_peek(u32 index, struct turn *turn)
{
	u64 value = next_number(turn);

	return map_peek_elem(&bloom, &value) != 0;
}

static long do_push(u32 index, struct turn *turn)
{
	u64 value = next_step(turn);

	return value == nr_entries || map_push_elem(&bloom, &value, 0) != 0;
}

SEC("xdp") int baseline(struct xdp_md *ctx)
{
	return run(do_value);
}

SEC("xdp") int peek(struct xdp_md *ctx)
{
	return run(do_peek);
}

SEC("xdp") int fill(struct xdp_md *ctx)
{
	return fill_by(do_push);
}
