#include "bench.h"

/* Storage of a socket: the look-up that finds it. */

struct {
	__uint(type, SK_STORAGE);
	__uint(map_flags, F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} storage SEC(".maps");

/* BPF_LOCAL_STORAGE_GET_F_CREATE */
#define CREATE 1

struct turn {
	void *sk;
	u64 sum;
};

static long do_socket(u32 index, struct turn *turn)
{
	turn->sum += turn->sk != 0;
	return 0;
}

static long do_get(u32 index, struct turn *turn)
{
	u64 *value = sk_storage_get(&storage, turn->sk, 0, 0);

	if (!value)
		return 1;
	turn->sum += *value;
	return 0;
}

INLINE u32 run(struct __sk_buff *skb, long (*callback)(u32 index, struct turn *turn))
{
	struct turn turn = { .sk = skb->sk };

	if (!turn.sk || !sk_storage_get(&storage, turn.sk, 0, CREATE))
		return FAILED;
	return timed((void *)callback, &turn);
}

SEC("tc") int baseline(struct __sk_buff *skb)
{
	return run(skb, do_socket);
}

SEC("tc") int get(struct __sk_buff *skb)
{
	return run(skb, do_get);
}
