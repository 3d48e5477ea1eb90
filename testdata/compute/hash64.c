#include "compute.h"

/* A 64-bit hash of the block: multiply, rotate and xor a word at a time, then a byte at a
 * time, then a final avalanche. */
KERNEL u64 hash64(const u8 *mem, u64 len)
{
	const u64 k1 = 0x9e3779b185ebca87ull, k2 = 0xc2b2ae3d27d4eb4full;
	const u8 *end = mem + len;
	u64 h = len * k1;

	ROLLED
	for (; mem + 8 <= end; mem += 8) {
		u64 w = *(u64 *)mem * k2;

		w = (w << 31 | w >> 33) * k1;
		h ^= w;
		h = (h << 27 | h >> 37) * k1 + k2;
	}
	ROLLED
	for (; mem < end; mem++) {
		h ^= *mem * k2;
		h = (h << 11 | h >> 53) * k1;
	}
	h ^= h >> 33;
	h *= k2;
	h ^= h >> 29;
	h *= k1;
	return h ^ h >> 32;
}
