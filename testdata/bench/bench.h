/* What the programs of this folder share: types, the helpers they call, and how they are timed.
 *
 * A benchmark's program does a fixed number of operations and returns how many nanoseconds they
 * took, 0 where it had something to prepare instead, or -1 (all bits set) where an operation
 * did not do what it should. The harness repeats it on every engine. */
#ifndef BENCH_H
#define BENCH_H

typedef signed int s32;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef signed long long s64;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define NOINLINE __attribute__((noinline))
#define INLINE static inline __attribute__((always_inline))
#define FAILED 0xffffffffu

/* Operations of one run. */
#define NR_LOOPS 10000

/* Members of a map's definition. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

enum {
	HASH = 1,
	ARRAY = 2,
	PROG_ARRAY = 3,
	PERCPU_HASH = 5,
	PERCPU_ARRAY = 6,
	LRU_HASH = 9,
	LPM_TRIE = 11,
	ARRAY_OF_MAPS = 12,
	SK_STORAGE = 24,
	RINGBUF = 27,
	BLOOM_FILTER = 30,
};
#define F_NO_PREALLOC 1
#define F_NO_COMMON_LRU 2
enum { ANY, NOEXIST, EXIST };

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

struct __sk_buff {
	u8 other_fields[168];
	void *sk;
};

static void *(*map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*map_update_elem)(void *map, const void *key, const void *value,
			       u64 flags) = (void *)2;
static long (*map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*ktime_get_ns)(void) = (void *)5;
static u32 (*get_prandom_u32)(void) = (void *)7;
static u32 (*get_smp_processor_id)(void) = (void *)8;
static long (*tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*map_push_elem)(void *map, const void *value, u64 flags) = (void *)87;
static long (*map_peek_elem)(void *map, void *value) = (void *)89;
static void *(*sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *record, u64 flags) = (void *)132;
static long (*loop)(u32 turns, void *callback, void *ctx, u64 flags) = (void *)181;
static long (*strncmp)(const char *a, u32 size, const char *b) = (void *)182;

/* Runs a callback NR_LOOPS times and gives the time that it took. */
INLINE u32 timed(long (*callback)(u32 index, void *ctx), void *ctx)
{
	u64 start = ktime_get_ns();

	if (loop(NR_LOOPS, callback, ctx, 0) != NR_LOOPS)
		return FAILED;
	return ktime_get_ns() - start;
}

/* What NR_LOOPS operations take, where `done` took that long; 0 where nothing was done. */
INLINE u32 scaled(u64 ns, u32 done)
{
	return done ? ns * NR_LOOPS / done : 0;
}

char LICENSE[] SEC("license") = "GPL";

#endif
