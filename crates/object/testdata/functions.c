/* Programs and subprograms: order, calls, function pointers, visibility, section names. */
#include "bpf.h"

char _license[] SEC("license") = "Dual MIT/GPL";
u32 _version SEC("version") = 0x060102;

static NOINLINE int leaf(int x)
{
	return OPAQUE(x) + 1;
}

NOINLINE int global_leaf(int x)
{
	return OPAQUE(x) * 3;
}

WEAK NOINLINE int weak_leaf(int x)
{
	return OPAQUE(x) - 7;
}

HIDDEN NOINLINE int hidden_leaf(int x)
{
	return OPAQUE(x) ^ 5;
}

static NOINLINE int middle(int x)
{
	return leaf(x) + global_leaf(x);
}

static long callback(u32 index, void *ctx)
{
	return leaf(index) > 4;
}

NOINLINE long global_callback(u32 index, u64 *ctx)
{
	return index > 4;
}

SEC("tc")
int first(u32 *ctx)
{
	return middle(ctx[0]) + hidden_leaf(ctx[1]);
}

SEC("tc")
int second(u32 *ctx)
{
	return leaf(ctx[0]) + weak_leaf(ctx[1]) + middle(ctx[2]);
}

SEC("?xdp.frags")
int loops(u32 *ctx)
{
	u64 sum = 0;

	loop(10, callback, &sum, 0);
	loop(10, global_callback, &sum, 0);
	return sum;
}

NOINLINE int on_throw(u64 cookie)
{
	return cookie + leaf(2);
}

SEC("syscall") TAG("exception_callback:on_throw")
int throws(u32 *ctx)
{
	return global_leaf(ctx[0]);
}

SEC("unknown/name")
int unknown(u32 *ctx)
{
	return 0;
}

SEC("kprobe.multi/vfs_*")
int probe(u32 *ctx)
{
	return 0;
}
