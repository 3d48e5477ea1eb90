/* Programs that compute, without packets and helpers: what compiled code is worth.
 *
 * Each works on `memory`, which holds bytes that look like nothing in particular, and adds its
 * result to `results`. Those that change what they work on leave it as they found it, or make it
 * anew. `-DNATIVE` makes the same a program for this machine: it reads names from its input and
 * answers the nanoseconds that NR_LOOPS turns took and the sum of their results. */
#ifdef NATIVE
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define INLINE static inline __attribute__((always_inline))
#else
#include "bench.h"
#undef NR_LOOPS
#endif

/* Turns of one run. */
#define NR_LOOPS 200
#define ROLLED _Pragma("clang loop unroll(disable) vectorize(disable)")

#define BYTES 4096
u8 memory[BYTES] __attribute__((aligned(64)));
u8 scratch[BYTES] __attribute__((aligned(64)));
u64 results = 0;

/* A hundred Ethernet frames in slots of 40 bytes: VLAN tags, IPv4 and others, TCP and UDP. */
INLINE u64 parse(void)
{
	u64 mix = 0;

	ROLLED
	for (u32 i = 0; i < 100; i++) {
		const u8 *frame = &memory[i * 40];
		u32 at = 14, tag = frame[12] & 3;
		u64 key;

		/* What stands for the protocol comes from the noise: a tag in a quarter of the frames. */
		if (tag == 0)
			at = 18;
		if (tag == 3) {
			mix = mix << 1 | mix >> 63;
			continue;
		}
		if ((frame[at] & 15) < 5)
			continue;
		key = (u64)*(u32 *)(frame + at + 2) << 32;
		key |= *(u32 *)(frame + 24);
		key ^= (u16)(frame[34] << 8 | frame[35]);
		mix = (mix << 1 | mix >> 63) ^ key;
	}
	return mix;
}

/* Copies the first half of the block to the scratch, a word at a time. */
INLINE u64 copy(void)
{
	ROLLED
	for (u32 i = 0; i < BYTES / 16; i++)
		*(volatile u64 *)&scratch[i * 8] = *(u64 *)&memory[i * 8];
	return scratch[8];
}

/* Four lanes of multiplications and rotations over the block, as xxHash has them. */
INLINE u64 hash64(void)
{
	const u64 p1 = 0x9e3779b185ebca87ull, p2 = 0xc2b2ae3d27d4eb4full;
	u64 a = p1 + p2, b = p2, c = 0, d = -p1;

#define ROUND(lane, at) \
	lane += *(u64 *)&memory[at] * p2, lane = (lane << 31 | lane >> 33) * p1
	ROLLED
	for (u32 i = 0; i < BYTES; i += 32) {
		ROUND(a, i);
		ROUND(b, i + 8);
		ROUND(c, i + 16);
		ROUND(d, i + 24);
	}
#undef ROUND
	a = (a << 1 | a >> 63) + (b << 7 | b >> 57) + (c << 12 | c >> 52) + (d << 18 | d >> 46);
	a ^= a >> 33;
	a *= p2;
	a ^= a >> 29;
	return a;
}

/* The product of two matrices of 8 by 8 words. */
INLINE u64 matrix(void)
{
	const u64 *a = (u64 *)memory, *b = (u64 *)&memory[512];
	u64 *c = (u64 *)scratch;

	ROLLED
	for (u32 i = 0; i < 8; i++) {
		ROLLED
		for (u32 j = 0; j < 8; j++) {
			u64 sum = 0;

			ROLLED
			for (u32 k = 0; k < 8; k++)
				sum += a[i * 8 + k] * b[k * 8 + j];
			c[i * 8 + j] = sum;
		}
	}
	return c[9] ^ c[62];
}

/* Sorts 32 words by exchanging neighbours, without jumps on what they hold. */
INLINE u64 sort(void)
{
	u32 *words = (u32 *)scratch;

	ROLLED
	for (u32 i = 0; i < 32; i++)
		words[i] = ((u32 *)memory)[i];
	ROLLED
	for (u32 end = 31; end > 0; end--) {
		ROLLED
		for (u32 i = 0; i < end; i++) {
			u32 a = words[i], b = words[i + 1], less = -(u32)(b < a);
			u32 swap = (a ^ b) & less;

			words[i] = a ^ swap;
			words[i + 1] = b ^ swap;
		}
	}
	return words[3] ^ (u64)words[30] << 32;
}

/* The sieve of Eratosthenes up to 1024, without jumps on what it finds. */
INLINE u64 sieve(void)
{
	u64 count = 0;

	ROLLED
	for (u32 i = 0; i < 1024; i += 8)
		*(u64 *)&scratch[i] = 0;
	ROLLED
	for (u32 i = 2; i < 32; i++) {
		u8 prime = scratch[i] ^ 1;

		ROLLED
		for (u32 j = i * i; j < 1024; j += i)
			scratch[j] |= prime;
	}
	ROLLED
	for (u32 i = 2; i < 1024; i++)
		count += scratch[i] ^ 1;
	return count;
}

/* FNV-1a over half a block, which waits for its multiplications. */
INLINE u64 fnv(void)
{
	u64 hash = 0xcbf29ce484222325ull;

	ROLLED
	for (u32 i = 0; i < BYTES / 2; i++)
		hash = (hash ^ memory[i]) * 0x100000001b3ull;
	return hash;
}

/* CRC-32 of a quarter of a block, a bit at a time. */
INLINE u64 crc32(void)
{
	u32 crc = ~0u;

	ROLLED
	for (u32 i = 0; i < BYTES / 4; i++) {
		crc ^= memory[i];
#pragma clang loop unroll(full)
		for (u32 bit = 0; bit < 8; bit++) {
			u32 last = crc & 1;

			/* No jump in place of the product. */
			asm volatile("" : "+r"(last));
			crc = crc >> 1 ^ 0xedb88320u * last;
		}
	}
	return ~crc;
}

/* Fills the block (a linear congruential generator). */
INLINE u64 prepare(void)
{
	u64 state = 0x2545f4914f6cdd1dull;

	ROLLED
	for (u32 i = 0; i < BYTES; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		memory[i] = state >> 56;
	}
	return 0;
}

#define EACH(use) \
	use(parse) use(copy) use(hash64) use(matrix) use(sort) use(sieve) use(fnv) use(crc32)

#ifdef NATIVE
#define TURN(kernel) \
	static __attribute__((noinline)) void turn_##kernel(void) \
	{ \
		results += kernel(); \
	}
EACH(TURN)

int main(void)
{
	char name[32];

	prepare();
	while (scanf("%31s", name) == 1) {
		void (*volatile turn)(void) = 0;
		struct timespec from, to;

#define PICK(kernel) \
		if (!strcmp(name, #kernel)) \
			turn = turn_##kernel;
		EACH(PICK)
		if (!turn)
			return 1;
		results = 0;
		clock_gettime(CLOCK_MONOTONIC, &from);
		for (u32 i = 0; i < NR_LOOPS; i++)
			turn();
		clock_gettime(CLOCK_MONOTONIC, &to);
		printf("%lld %llu\n",
		       (to.tv_sec - from.tv_sec) * 1000000000ll + to.tv_nsec - from.tv_nsec, results);
		fflush(stdout);
	}
	return 0;
}
#else
#define PROGRAM(kernel) \
	static long turn_##kernel(u32 index, void *ctx) \
	{ \
		results += kernel(); \
		return 0; \
	} \
	SEC("xdp") int run_##kernel(struct xdp_md *ctx) \
	{ \
		u64 start = ktime_get_ns(); \
\
		results = 0; \
		if (loop(NR_LOOPS, turn_##kernel, 0, 0) != NR_LOOPS) \
			return FAILED; \
		return ktime_get_ns() - start; \
	}
EACH(PROGRAM)

SEC("xdp") int fill(struct xdp_md *ctx)
{
	prepare();
	return 0;
}
#endif
