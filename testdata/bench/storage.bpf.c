#include "bench.h"

/* Storage of the current task: the look-up that finds it, and a hash map by task beside it. */

struct {
	__uint(type, TASK_STORAGE);
	__uint(map_flags, F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} storage SEC(".maps");

/* BPF_LOCAL_STORAGE_GET_F_CREATE */
#define CREATE 1

static long do_task(u32 index, u64 *sum)
{
	*sum += get_current_task_btf() != 0;
	return 0;
}

static long do_get(u32 index, u64 *sum)
{
	u64 *value = task_storage_get(&storage, get_current_task_btf(), 0, 0);

	if (!value)
		return 1;
	*sum += *value;
	return 0;
}

INLINE u32 run(long (*callback)(u32 index, u64 *sum))
{
	u64 sum = 0;

	if (!task_storage_get(&storage, get_current_task_btf(), 0, CREATE))
		return FAILED;
	return timed((void *)callback, &sum);
}

SEC("raw_tp/sys_enter") int baseline(void *ctx)
{
	return run(do_task);
}

SEC("raw_tp/sys_enter") int get(void *ctx)
{
	return run(do_get);
}
