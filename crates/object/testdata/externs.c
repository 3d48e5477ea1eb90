/* Symbols of the kernel, CO-RE, attach targets. */
#include "bpf.h"

char _license[] SEC("license") = "GPL";

struct task {
	u32 pid;
	u64 gone;
} CORE;

struct task___old {
	u32 ancient;
} CORE;

struct task;

extern int do_something(struct task *task, u32 flags) KSYM;
extern int do_something___other(struct task *task, u32 flags) KSYM WEAK;
extern int missing_weak(struct task *task) KSYM WEAK;
extern int missing_strong(struct task *task) KSYM;
extern int changed(struct task *task, u32 flags) KSYM;
extern const int typed_variable KSYM;
extern const int missing_variable KSYM WEAK;
extern const void untyped_address KSYM;
extern const void untyped_weak KSYM WEAK;

SEC("fentry/do_something")
int calls(struct task *task)
{
	return do_something(task, 1) + do_something___other(task, 2);
}

SEC("tp_btf/sched")
int calls_weak(struct task *task)
{
	if (missing_weak)
		return missing_weak(task);
	return 0;
}

SEC("fexit/not_there")
int calls_strong(struct task *task)
{
	return missing_strong(task);
}

SEC("lsm.s/file_open")
int calls_changed(struct task *task)
{
	return changed(task, 1);
}

SEC("raw_tp")
int variables(struct task *task)
{
	const int *p = &typed_variable;
	const int *q = &missing_variable;

	return *p + (q ? *q : 0);
}

SEC("raw_tp")
int addresses(struct task *task)
{
	return (u64)&untyped_address + (u64)&untyped_weak;
}

SEC("raw_tp")
int relocated(struct task *task)
{
	return task->pid;
}

SEC("raw_tp")
int poisoned(struct task *task)
{
	if (__builtin_preserve_field_info(((struct task___old *)task)->ancient, 2))
		return ((struct task___old *)task)->ancient;
	return task->gone;
}

SEC("fentry")
int no_target(struct task *task)
{
	return 0;
}
