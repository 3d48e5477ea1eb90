#include "bench.h"

/* Tail calls in a row: through a slot that is known where the program is compiled, and through
 * one that memory tells. */

/* Tail calls of one run, two less than there may be. */
#define NR_CALLS 31

struct xdp_md;
int known(struct xdp_md *ctx);
int told(struct xdp_md *ctx);

struct {
	__uint(type, PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	int (*values[])(struct xdp_md *ctx);
} programs SEC(".maps") = {
	.values = { (void *)&known, (void *)&told },
};

u64 started = 0;
u32 calls = 0;
u32 slot = 1;

SEC("xdp") int known(struct xdp_md *ctx)
{
	if (calls++ < NR_CALLS)
		tail_call(ctx, &programs, 0);
	return ktime_get_ns() - started;
}

SEC("xdp") int told(struct xdp_md *ctx)
{
	if (calls++ < NR_CALLS)
		tail_call(ctx, &programs, slot);
	return ktime_get_ns() - started;
}

SEC("xdp") int run_known(struct xdp_md *ctx)
{
	calls = 1;
	started = ktime_get_ns();
	tail_call(ctx, &programs, 0);
	return FAILED;
}

SEC("xdp") int run_told(struct xdp_md *ctx)
{
	calls = 1;
	started = ktime_get_ns();
	tail_call(ctx, &programs, slot);
	return FAILED;
}
