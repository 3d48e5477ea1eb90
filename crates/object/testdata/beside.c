/* Static functions in the sections of programs, which libbpf refuses. */
#include "bpf.h"

char _license[] SEC("license") = "GPL";

static NOINLINE int leaf(int x)
{
	return OPAQUE(x) + 1;
}

static NOINLINE SEC("tc") int beside(int x)
{
	return leaf(x) + 100;
}

SEC("tc")
int entry(u32 *ctx)
{
	return beside(ctx[0]) + leaf(1);
}
