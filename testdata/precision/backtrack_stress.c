// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A program that makes the verifier walk back often: one number comes out of a long chain of
 * arithmetic, is compared with constant after constant, and each comparison both ends in a
 * state of its own and changes the number in one of them. At the end the number decides
 * comparisons again, so that it counts as precise and is traced to where it came from.
 */

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name

static void *(*lookup)(void *map, const void *key) = (void *)1;

struct {
	UINT(type, 2); /* BPF_MAP_TYPE_ARRAY */
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} numbers SEC(".maps");

#define MIX(x, bits) \
	x += 1;      \
	x *= 2;      \
	x -= 1;      \
	x ^= bits;

/* Two comparisons that undo each other: what follows is walked with both outcomes. */
#define FORK(x, n)         \
	if (x == (n))      \
		x += 1;    \
	if (x == (n) + 1)  \
		x -= 1;

#define FORK10(x, n)                                                             \
	FORK(x, n) FORK(x, n + 2) FORK(x, n + 4) FORK(x, n + 6) FORK(x, n + 8)   \
	FORK(x, n + 10) FORK(x, n + 12) FORK(x, n + 14) FORK(x, n + 16) FORK(x, n + 18)

#define FORK100(x, n)                                                            \
	FORK10(x, n) FORK10(x, n + 20) FORK10(x, n + 40) FORK10(x, n + 60)       \
	FORK10(x, n + 80) FORK10(x, n + 100) FORK10(x, n + 120)                  \
	FORK10(x, n + 140) FORK10(x, n + 160) FORK10(x, n + 180)

SEC("tc")
int backtrack_stress(void *skb)
{
	u32 key = 0;
	u64 *value = lookup(&numbers, &key);

	if (!value)
		return 0;

	u64 x = *value;

	MIX(x, 0x55) MIX(x, 0xaa) MIX(x, 0x55) MIX(x, 0xaa)

	FORK100(x, 0) FORK100(x, 200) FORK100(x, 400)
	FORK100(x, 600) FORK100(x, 800) FORK100(x, 1000)

#pragma clang loop unroll(full)
	for (int i = 0; i < 500; i++)
		if (x == 2000 + i)
			x += 1;

	return x;
}

char _license[] SEC("license") = "Dual MIT/GPL";
