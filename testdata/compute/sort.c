#include "compute.h"

#define N 64

/* Sorts the first 64 words of the block on the stack by insertion and mixes them. */
KERNEL u64 sort(const u32 *mem, u64 len)
{
	u32 a[N];
	u64 mix = 0;

	if (len < N * 4)
		return 0;
	ROLLED
	for (u32 i = 0; i < N; i++) {
		u32 x = mem[i];
		u32 j = i;

		ROLLED
		while (j > 0 && a[j - 1] > x) {
			a[j] = a[j - 1];
			j--;
		}
		a[j] = x;
	}
	ROLLED
	for (u32 i = 0; i < N; i++)
		mix = mix * 31 + a[i];
	return mix;
}
