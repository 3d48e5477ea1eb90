#include "compute.h"

#define SWAP16(x) ((u16)((u16)(x) << 8 | (u16)(x) >> 8))

/* Parses Ethernet, up to two VLAN tags, IPv4 or IPv6, TCP or UDP, and mixes what names
 * the flow into a number; 0 for anything else or for what is cut short. */
static inline __attribute__((always_inline)) u64 flow(const u8 *data, const u8 *end)
{
	const u8 *at = data + 14;
	u16 proto;
	u8 l4;
	u64 key;

	if (at > end)
		return 0;
	proto = SWAP16(*(u16 *)(data + 12));
	ROLLED
	for (int tags = 0; tags < 2 && (proto == 0x8100 || proto == 0x88a8); tags++) {
		if (at + 4 > end)
			return 0;
		proto = SWAP16(*(u16 *)(at + 2));
		at += 4;
	}
	if (proto == 0x0800) {
		u32 words;

		if (at + 20 > end)
			return 0;
		words = at[0] & 15;
		if (at[0] >> 4 != 4 || words < 5)
			return 0;
		l4 = at[9];
		key = (u64)*(u32 *)(at + 12) << 32 | *(u32 *)(at + 16);
		at += words * 4;
	} else if (proto == 0x86dd) {
		if (at + 40 > end)
			return 0;
		l4 = at[6];
		key = *(u64 *)(at + 8) ^ *(u64 *)(at + 16) ^ *(u64 *)(at + 24) ^ *(u64 *)(at + 32);
		at += 40;
	} else {
		return 0;
	}
	if (l4 == 6) {
		if (at + 20 > end)
			return 0;
	} else if (l4 == 17) {
		if (at + 8 > end)
			return 0;
	} else {
		return 0;
	}
	key ^= (u64)*(u32 *)at << 16 ^ l4;
	return key | 1;
}

/* The block holds frames, each behind its length as 16 bits. */
KERNEL u64 parse(const u8 *mem, u64 len)
{
	const u8 *end = mem + len;
	u64 mix = 0;

	ROLLED
	while (mem + 2 <= end) {
		u64 frame = *(u16 *)mem;

		mem += 2;
		if (mem + frame > end)
			break;
		mix = (mix << 1 | mix >> 63) ^ flow(mem, mem + frame);
		mem += frame;
	}
	return mix;
}
