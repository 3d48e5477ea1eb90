/* Implementations of a kernel structure of functions. */
#include "bpf.h"

char _license[] SEC("license") = "GPL";

struct task;

struct ops___mine {
	int (*start)(struct task *task);
	void (*stop)(struct task *task);
	u32 flags;
	char name[16];
	int (*not_in_kernel)(void);
};

SEC("struct_ops/start")
int ops_start(u64 *ctx)
{
	return 1;
}

SEC("struct_ops.s/stop")
int ops_stop(u64 *ctx)
{
	return 0;
}

SEC("struct_ops")
int ops_unused(u64 *ctx)
{
	return 0;
}

struct ops___mine plain SEC(".struct_ops") = {
	.start = (void *)ops_start,
	.flags = 0x1234,
	.name = "plain",
};

struct ops___mine linked SEC(".struct_ops.link") = {
	.start = (void *)ops_start,
	.stop = (void *)ops_stop,
	.name = "linked",
};

struct ops___mine optional SEC("?.struct_ops") = {
	.not_in_kernel = (void *)ops_unused,
	.name = "optional",
};
