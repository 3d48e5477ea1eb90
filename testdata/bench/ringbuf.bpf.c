#include "bench.h"

/* A ring buffer: records of eight bytes. Its consumer takes them between two runs. Where it is
 * full, because another producer stopped in the middle of a record, a run ends early. */

struct {
	__uint(type, RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

/* As BPF_RB_NO_WAKEUP says: nobody sleeps. */
#define NO_WAKEUP 1

static long do_output(u32 index, u32 *done)
{
	u64 sample = index;

	if (ringbuf_output(&ring, &sample, sizeof(sample), NO_WAKEUP))
		return 1;
	*done += 1;
	return 0;
}

static long do_reserve(u32 index, u32 *done)
{
	u64 *sample = ringbuf_reserve(&ring, sizeof(*sample), 0);

	if (!sample)
		return 1;
	*sample = index;
	ringbuf_submit(sample, NO_WAKEUP);
	*done += 1;
	return 0;
}

INLINE u32 produce(long (*callback)(u32 index, u32 *done))
{
	u64 start = ktime_get_ns();
	u32 done = 0;

	loop(NR_LOOPS, callback, &done, 0);
	return scaled(ktime_get_ns() - start, done);
}

SEC("xdp") int output(struct xdp_md *ctx)
{
	return produce(do_output);
}

SEC("xdp") int reserve(struct xdp_md *ctx)
{
	return produce(do_reserve);
}
