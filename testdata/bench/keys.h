/* Maps whose keys are the whole numbers below nr_entries, in turn or at random. */
#ifndef KEYS_H
#define KEYS_H

#include "bench.h"

const volatile u32 nr_entries = 1;
const volatile u32 random_keys;

/* The number that follows the last run's. */
u32 cursor;
/* How far filling or emptying is. */
u32 position;
/* What was found, so that no look-up is without use. */
u64 checksum;

struct turn {
	u64 sum;
	u32 next;
	u32 done;
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

/* Times NR_LOOPS operations on numbers that follow the last run's. */
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

/* Of a callback that goes through all numbers once: the next, or nr_entries at the end. */
INLINE u32 next_step(struct turn *turn)
{
	u32 n = turn->next;

	if (n != nr_entries) {
		turn->next = n + 1;
		turn->done++;
	}
	return n;
}

/* Up to NR_LOOPS steps from `position` on; gives the time, scaled to NR_LOOPS steps. */
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
	return scaled(ns, turn.done);
}

/* The steps, until all are done: then 0. */
INLINE u32 fill_by(long (*callback)(u32 index, struct turn *turn))
{
	if (position == nr_entries) {
		position = 0;
		return 0;
	}
	return steps(callback);
}

#endif
