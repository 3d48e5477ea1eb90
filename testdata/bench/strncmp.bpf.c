#include "bench.h"

/* Strings that are equal up to the end, compared by the helper. */

#define LENGTH 32

const char left[LENGTH + 1] = "0123456789abcdef0123456789abcdef";
char right[LENGTH + 1] = "0123456789abcdef0123456789abcdef";

static long do_nothing(u32 index, void *ctx)
{
	return 0;
}

static long do_compare(u32 index, void *ctx)
{
	return strncmp(right, LENGTH + 1, left) != 0;
}

SEC("xdp") int baseline(struct xdp_md *ctx)
{
	return timed(do_nothing, 0);
}

SEC("xdp") int compare(struct xdp_md *ctx)
{
	return timed(do_compare, 0);
}
