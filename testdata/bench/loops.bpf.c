#include "bench.h"

/* Loops with an empty body: the helper with a callback, and the open-coded iterator. */

struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) SEC(".ksyms") __attribute__((weak));
extern int *bpf_iter_num_next(struct bpf_iter_num *it) SEC(".ksyms") __attribute__((weak));
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) SEC(".ksyms") __attribute__((weak));

static long do_nothing(u32 index, void *ctx)
{
	return 0;
}

SEC("xdp") int with_helper(struct xdp_md *ctx)
{
	return timed(do_nothing, 0);
}

SEC("xdp") int with_iterator(struct xdp_md *ctx)
{
	struct bpf_iter_num it;
	u64 start = ktime_get_ns();

	bpf_iter_num_new(&it, 0, NR_LOOPS);
	while (bpf_iter_num_next(&it))
		;
	bpf_iter_num_destroy(&it);
	return ktime_get_ns() - start;
}
