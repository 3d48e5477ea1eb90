#include "keys.h"

/* The LPM trie: keys are the numbers 0 to nr_entries - 1, in network byte order as prefixes of
 * addresses are written, all of one length. */

struct key {
	u32 prefix_len;
	u32 data;
};

struct {
	__uint(type, LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, F_NO_PREALLOC);
	__type(key, struct key);
	__type(value, u32);
} trie SEC(".maps");

const volatile u32 prefix_len = 32;

/* Of insert and delete: whether the trie is being put back. */
u32 restoring;

INLINE struct key key_of(u32 n)
{
	struct key key = { .prefix_len = prefix_len };

	key.data = __builtin_bswap32(prefix_len < 32 ? n << ((32 - prefix_len) & 31) : n);
	return key;
}

static long do_nothing(u32 index, void *ctx)
{
	return 0;
}

static long do_key(u32 index, struct turn *turn)
{
	struct key key = key_of(next_number(turn));

	turn->sum += key.data;
	return 0;
}

static long do_lookup(u32 index, struct turn *turn)
{
	struct key key = key_of(next_number(turn));
	u32 *value = map_lookup_elem(&trie, &key);

	if (!value)
		return 1;
	turn->sum += *value;
	return 0;
}

static long do_update(u32 index, struct turn *turn)
{
	struct key key = key_of(next_number(turn));

	return map_update_elem(&trie, &key, &index, EXIST) != 0;
}

static long do_insert(u32 index, struct turn *turn)
{
	u32 n = next_step(turn);
	struct key key = key_of(n);

	return n == nr_entries || map_update_elem(&trie, &key, &index, NOEXIST) != 0;
}

static long do_delete(u32 index, struct turn *turn)
{
	u32 n = next_step(turn);
	struct key key = key_of(n);

	return n == nr_entries || map_delete_elem(&trie, &key) != 0;
}

SEC("xdp") int noop(struct xdp_md *ctx)
{
	return timed(do_nothing, 0);
}

SEC("xdp") int baseline(struct xdp_md *ctx)
{
	return run(do_key);
}

SEC("xdp") int lookup(struct xdp_md *ctx)
{
	return run(do_lookup);
}

SEC("xdp") int update(struct xdp_md *ctx)
{
	return run(do_update);
}

/* One way timed, the other way not. */
INLINE u32 there_and_back(long (*timed_step)(u32 index, struct turn *turn),
			  long (*untimed_step)(u32 index, struct turn *turn))
{
	u32 ns;

	if (restoring)
		ns = steps(untimed_step) == FAILED ? FAILED : 0;
	else
		ns = steps(timed_step);
	if (position == nr_entries) {
		position = 0;
		restoring = !restoring;
	}
	return ns;
}

SEC("xdp") int insert(struct xdp_md *ctx)
{
	return there_and_back(do_insert, do_delete);
}

SEC("xdp") int delete(struct xdp_md *ctx)
{
	return there_and_back(do_delete, do_insert);
}

SEC("xdp") int fill(struct xdp_md *ctx)
{
	return fill_by(do_insert);
}
