/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What the objects of this folder need of BPF; nothing from outside.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define NOINLINE __attribute__((noinline))
#define WEAK __attribute__((weak))
#define HIDDEN __attribute__((visibility("hidden")))
#define KSYM __attribute__((section(".ksyms")))
#define KCONFIG __attribute__((section(".kconfig")))
#define ARENA __attribute__((address_space(1)))
#define CORE __attribute__((preserve_access_index))
#define TAG(text) __attribute__((btf_decl_tag(text)))

#define UINT(name, value) int(*name)[value]
#define TYPE(name, value) typeof(value) *name
#define ARRAY(name, value) typeof(value) *name[]
#define ULONG(name, value) enum { name##_value = value } name

#define OPAQUE(value) ({ asm volatile("" : "+r"(value)); value; })

enum map_type {
	HASH = 1,
	BPF_ARRAY = 2,
	PROG_ARRAY = 3,
	PERF_EVENT_ARRAY = 4,
	ARRAY_OF_MAPS = 12,
	HASH_OF_MAPS = 13,
	RINGBUF = 27,
	BLOOM_FILTER = 30,
	BPF_ARENA = 33,
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*const loop)(u32 count, void *callback, void *ctx, u64 flags) = (void *)181;
