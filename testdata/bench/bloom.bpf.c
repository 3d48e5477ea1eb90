#include "bench.h"

/* A bloom filter that is asked for values that it holds. */

struct {
	__uint(type, BLOOM_FILTER);
	__uint(max_entries, 1);
	__uint(map_extra, 3);
	__type(value, u64);
} bloom SEC(".maps");

const volatile u32 nr_entries = 1;
const volatile u32 random_keys;

u32 cursor;
u32 position;

struct turn {
	u64 sum;
	u32 next;
};

INLINE u64 next_value(struct turn *turn)
{
	u32 n;

	if (random_keys)
		return get_prandom_u32() % nr_entries;
	n = turn->next;
	turn->next = n + 1 == nr_entries ? 0 : n + 1;
	return n;
}

static long do_value(u32 index, struct turn *turn)
{
	turn->sum += next_value(turn);
	return 0;
}

static long do_peek(u32 index, struct turn *turn)
{
	u64 value = next_value(turn);

	return map_peek_elem(&bloom, &value) != 0;
}

static long do_push(u32 index, struct turn *turn)
{
	u64 value = turn->next;

	if (value == nr_entries)
		return 1;
	turn->next++;
	return map_push_elem(&bloom, &value, 0) != 0;
}

INLINE u32 run(long (*callback)(u32 index, struct turn *turn))
{
	struct turn turn = {};
	u32 ns;

	turn.next = cursor;
	ns = timed((void *)callback, &turn);
	cursor = turn.next;
	return ns;
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
	struct turn turn = {};

	turn.next = position;
	if (position == nr_entries)
		return 0;
	loop(NR_LOOPS, do_push, &turn, 0);
	if (turn.next != nr_entries && turn.next != position + NR_LOOPS)
		return FAILED;
	position = turn.next;
	return 1;
}
