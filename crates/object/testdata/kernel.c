/* Stands for a kernel: its BTF is what the other objects are linked against. */
#include "bpf.h"

struct task {
	u64 added_since;
	u32 state;
	u32 pid;
};

struct ops {
	int (*added_since)(int x);
	u32 flags;
	int (*start)(struct task *task);
	void (*stop)(struct task *task);
	char name[16];
};

struct bpf_struct_ops_ops {
	u32 refcount;
	struct ops data __attribute__((aligned(64)));
};

typedef void (*btf_trace_sched)(void *data, struct task *task);

struct task *current_task = (void *)1;
int typed_variable = 4;

NOINLINE int do_something(struct task *task, u32 flags)
{
	return OPAQUE(flags);
}

NOINLINE int changed(struct task *task, u32 *flags, int more)
{
	return OPAQUE(more);
}

NOINLINE int bpf_lsm_file_open(struct task *task)
{
	return 0;
}

struct bpf_struct_ops_ops instance = { .refcount = 1 };

SEC("syscall")
int keep(btf_trace_sched *trace, struct task *task)
{
	return do_something(task, 1) + changed(task, 0, 2) + bpf_lsm_file_open(task) +
	       typed_variable + !!current_task;
}
