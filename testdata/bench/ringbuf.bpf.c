#include "bench.h"

/* A ring buffer: records of eight bytes. Its consumer takes them between two runs. */

struct {
	__uint(type, RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

/* As BPF_RB_NO_WAKEUP says: nobody sleeps. */
#define NO_WAKEUP 1

static long do_output(u32 index, void *ctx)
{
	u64 sample = index;

	return ringbuf_output(&ring, &sample, sizeof(sample), NO_WAKEUP) != 0;
}

static long do_reserve(u32 index, void *ctx)
{
	u64 *sample = ringbuf_reserve(&ring, sizeof(*sample), 0);

	if (!sample)
		return 1;
	*sample = index;
	ringbuf_submit(sample, NO_WAKEUP);
	return 0;
}

SEC("xdp") int output(struct xdp_md *ctx)
{
	return timed(do_output, 0);
}

SEC("xdp") int reserve(struct xdp_md *ctx)
{
	return timed(do_reserve, 0);
}
