#include "compute.h"

/* Copies the first half of the block to the second, a word at a time. */
KERNEL u64 copy(u64 *mem, u64 len)
{
	u64 words = len / 16;
	u64 *to = mem + words;

	ROLLED
	for (u64 i = 0; i < words; i++)
		*(volatile u64 *)&to[i] = mem[i];
	return words;
}
