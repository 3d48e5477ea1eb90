#include "bench.h"

/* Hash and array: look-ups of keys that are there, and updates that find no room. */

struct {
	__uint(type, HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u64);
} hash SEC(".maps");

struct {
	__uint(type, ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} array SEC(".maps");

const volatile u32 nr_entries = 1;
const volatile u32 random_keys;

u32 cursor;
u32 position;
u64 checksum;

struct turn {
	u64 sum;
	u32 next;
};

INLINE u32 next_number(struct turn *turn)
{
	u32 n;

	if (random_keys)
		return get_prandom_u32() % nr_entries;
	n = turn->next;
	turn->next = n + 1 == nr_entries ? 0 : n + 1;
	return n;
}

static long do_key(u32 index, struct turn *turn)
{
	turn->sum += next_number(turn);
	return 0;
}

static long do_hash_lookup(u32 index, struct turn *turn)
{
	u64 key = next_number(turn);
	u64 *value = map_lookup_elem(&hash, &key);

	if (!value)
		return 1;
	turn->sum += *value;
	return 0;
}

static long do_array_lookup(u32 index, struct turn *turn)
{
	u32 key = next_number(turn);
	u64 *value = map_lookup_elem(&array, &key);

	if (!value)
		return 1;
	turn->sum += *value;
	return 0;
}

/* The map is full: no key that is new gets in. */
static long do_full_update(u32 index, struct turn *turn)
{
	u64 key = nr_entries + get_smp_processor_id(), value = index;

	return map_update_elem(&hash, &key, &value, ANY) == 0;
}

static long do_fill(u32 index, struct turn *turn)
{
	u64 key = turn->next, value = key;

	if (key == nr_entries)
		return 1;
	turn->next++;
	return map_update_elem(&hash, &key, &value, NOEXIST) != 0;
}

INLINE u32 run(long (*callback)(u32 index, struct turn *turn))
{
	struct turn turn = {};
	u32 ns;

	turn.next = cursor;
	ns = timed((void *)callback, &turn);
	cursor = turn.next;
	checksum += turn.sum;
	return ns;
}

SEC("xdp") int baseline(struct xdp_md *ctx)
{
	return run(do_key);
}

SEC("xdp") int hash_lookup(struct xdp_md *ctx)
{
	return run(do_hash_lookup);
}

SEC("xdp") int array_lookup(struct xdp_md *ctx)
{
	return run(do_array_lookup);
}

SEC("xdp") int full_update(struct xdp_md *ctx)
{
	return run(do_full_update);
}

SEC("xdp") int fill(struct xdp_md *ctx)
{
	struct turn turn = {};

	turn.next = position;
	if (position == nr_entries)
		return 0;
	loop(NR_LOOPS, do_fill, &turn, 0);
	if (turn.next != nr_entries && turn.next != position + NR_LOOPS)
		return FAILED;
	position = turn.next;
	return 1;
}
