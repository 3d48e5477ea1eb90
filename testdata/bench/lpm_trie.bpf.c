#include "bench.h"

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

const volatile u32 nr_entries = 1;
const volatile u32 prefix_len = 32;
const volatile u32 random_keys;

/* The key that follows the last run's. */
u32 cursor;
/* Of insert and delete: how far they are, and whether the trie is being put back. */
u32 position;
u32 restoring;
/* What was looked up, so that no look-up is without use. */
u64 checksum;

struct turn {
	struct key key;
	u32 next;
	u32 done;
	u64 sum;
};

INLINE void number(struct key *key, u32 n)
{
	key->prefix_len = prefix_len;
	key->data = __builtin_bswap32(prefix_len < 32 ? n << ((32 - prefix_len) & 31) : n);
}

INLINE void next_key(struct turn *turn)
{
	u32 n;

	if (random_keys) {
		n = get_prandom_u32() % nr_entries;
	} else {
		n = turn->next;
		turn->next = n + 1 == nr_entries ? 0 : n + 1;
	}
	number(&turn->key, n);
}

static long do_nothing(u32 index, void *ctx)
{
	return 0;
}

static long do_key(u32 index, struct turn *turn)
{
	next_key(turn);
	turn->sum += turn->key.data;
	return 0;
}

static long do_lookup(u32 index, struct turn *turn)
{
	u32 *value;

	next_key(turn);
	value = map_lookup_elem(&trie, &turn->key);
	if (!value)
		return 1;
	turn->sum += *value;
	return 0;
}

static long do_update(u32 index, struct turn *turn)
{
	next_key(turn);
	return map_update_elem(&trie, &turn->key, &index, EXIST) != 0;
}

static long do_insert(u32 index, struct turn *turn)
{
	if (turn->next == nr_entries)
		return 1;
	number(&turn->key, turn->next++);
	turn->done++;
	return map_update_elem(&trie, &turn->key, &index, NOEXIST) != 0;
}

static long do_delete(u32 index, struct turn *turn)
{
	if (turn->next == nr_entries)
		return 1;
	number(&turn->key, turn->next++);
	turn->done++;
	return map_delete_elem(&trie, &turn->key) != 0;
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

/* Does up to NR_LOOPS steps of filling or emptying; scales the time to NR_LOOPS steps. */
INLINE u32 steps(long (*callback)(u32 index, struct turn *turn))
{
	struct turn turn = {};
	u64 start, ns;

	turn.next = position;
	start = ktime_get_ns();
	loop(NR_LOOPS, callback, &turn, 0);
	ns = ktime_get_ns() - start;
	if (turn.next != nr_entries && turn.done != NR_LOOPS)
		return FAILED;
	position = turn.next;
	return turn.done ? ns * NR_LOOPS / turn.done : 0;
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

/* Fills the trie from where it is, NR_LOOPS keys a run; 0 once it is full. */
SEC("xdp") int fill(struct xdp_md *ctx)
{
	if (position == nr_entries) {
		position = 0;
		return 0;
	}
	return steps(do_insert);
}
