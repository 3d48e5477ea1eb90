/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a BPF program in C needs besides the kernel's UAPI headers: section and map
 * macros with the names that BPF developers know, and the helpers used by our own
 * examples and tests. The numbers are the kernel's (enum bpf_func_id, linux/bpf.h).
 */
#ifndef BPFKIT_H
#define BPFKIT_H

#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#undef __always_inline /* linux/stddef.h has a weaker one */
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __weak __attribute__((weak))
#define __ksym __attribute__((section(".ksyms")))
#define __kconfig __attribute__((section(".kconfig")))

/* Attributes of a map defined through BTF. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

#define bpf_htons(x) ((__u16)__builtin_bswap16(x))
#define bpf_ntohs(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) ((__u32)__builtin_bswap32(x))
#define bpf_ntohl(x) ((__u32)__builtin_bswap32(x))

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_trace_printk)(const char *fmt, __u32 fmt_size, ...) = (void *)6;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_tail_call)(void *ctx, void *prog_array, __u32 index) = (void *)12;
static long (*const bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;
static long (*const bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size,
					__u64 flags) = (void *)130;
static void *(*const bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*const bpf_loop)(__u32 nr_loops, void *callback, void *ctx, __u64 flags) = (void *)181;

#define bpf_printk(fmt, args...)                                            \
	({                                                                  \
		static const char text[] = fmt;                             \
		bpf_trace_printk(text, sizeof(text), ##args);               \
	})

#endif
