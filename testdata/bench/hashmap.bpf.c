#include "keys.h"

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
	u64 key = next_step(turn), value = key;

	return key == nr_entries || map_update_elem(&hash, &key, &value, NOEXIST) != 0;
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
	return fill_by(do_fill);
}
