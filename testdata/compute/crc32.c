#include "compute.h"

/* CRC-32 (IEEE 802.3, reflected) of the block, by nibbles with a table on the stack. */
KERNEL u64 crc32(const u8 *mem, u64 len)
{
	u32 table[16];
	u32 crc = ~0u;

	ROLLED
	for (u32 i = 0; i < 16; i++) {
		u32 c = i;

		ROLLED
		for (u32 bit = 0; bit < 4; bit++)
			c = c & 1 ? (c >> 1) ^ 0xedb88320u : c >> 1;
		*(volatile u32 *)&table[i] = c;
	}
	ROLLED
	for (u64 i = 0; i < len; i++) {
		crc ^= mem[i];
		crc = (crc >> 4) ^ table[crc & 15];
		crc = (crc >> 4) ^ table[crc & 15];
	}
	return ~crc;
}
