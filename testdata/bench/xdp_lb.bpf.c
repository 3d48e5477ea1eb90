#include "bench.h"

/* A layer-4 load balancer in the manner of Katran, and its timing. The packet goes through the
 * balancer `batch` times; what it was wrapped in is taken off after each time. */

#define NR_VIPS 64
#define NR_REALS 64
#define NR_TABLES 4
#define RING_SIZE 65537
#define NR_RINGS 8

/* Of struct vip. */
#define VIP_NO_LRU 1
/* Of struct real. */
#define REAL_V6 1

#define SECOND 1000000000ull
#define UDP_TIMEOUT (30 * SECOND)
/* Connections in a second of one CPU above which flows are not remembered. */
#define FLOOD 125000

enum { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX };
enum { TCP = 6, UDP = 17, IPIP = 4, IPV6 = 41, FRAGMENT = 44 };
enum { TCP_SYN = 2, TCP_RST = 4 };
/* Ethernet types as they lie in memory. */
enum { ETH_V4 = 0x0008, ETH_V6 = 0xdd86 };

struct eth {
	u8 to[6];
	u8 from[6];
	u16 type;
};

struct ipv4 {
	u8 version_ihl;
	u8 tos;
	u16 len;
	u16 id;
	u16 frag;
	u8 ttl;
	u8 protocol;
	u16 check;
	u32 from;
	u32 to;
};

struct ipv6 {
	u32 flow;
	u16 len;
	u8 next;
	u8 hops;
	u32 from[4];
	u32 to[4];
};

struct ports {
	u16 from;
	u16 to;
};

struct tcp {
	struct ports ports;
	u32 seq;
	u32 ack;
	u8 offset;
	u8 flags;
	u16 window;
	u16 check;
	u16 urgent;
};

struct vip_key {
	u32 to[4];
	u16 port;
	u16 protocol;
};

struct vip {
	u32 flags;
	/* Which part of the ring, and of the statistics. */
	u32 number;
};

struct flow {
	u32 from[4];
	u32 to[4];
	struct ports ports;
	u32 protocol;
};

struct connection {
	u32 real;
	u32 pad;
	u64 time;
};

struct real {
	u32 to[4];
	u32 flags;
};

struct stats {
	u64 packets;
	u64 bytes;
};

/* New connections of a second. */
struct rate {
	u64 since;
	u64 connections;
};

struct {
	__uint(type, HASH);
	__uint(max_entries, NR_VIPS);
	__type(key, struct vip_key);
	__type(value, struct vip);
} vips SEC(".maps");

struct table {
	__uint(type, LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct flow);
	__type(value, struct connection);
} table_0 SEC(".maps"), table_1 SEC(".maps"), table_2 SEC(".maps"), table_3 SEC(".maps");

struct {
	__uint(type, ARRAY_OF_MAPS);
	__uint(max_entries, NR_TABLES);
	__type(key, u32);
	typeof(struct table) *values[];
} tables SEC(".maps") = { .values = { &table_0, &table_1, &table_2, &table_3 } };

struct {
	__uint(type, ARRAY);
	__uint(max_entries, NR_RINGS * RING_SIZE);
	__type(key, u32);
	__type(value, u32);
} ring SEC(".maps");

struct {
	__uint(type, ARRAY);
	__uint(max_entries, NR_REALS);
	__type(key, u32);
	__type(value, struct real);
} reals SEC(".maps");

/* Packets that concern a VIP, and misses in the table of connections. */
enum { ALL, MISSES, NR_COUNTERS };

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, NR_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rate);
} rates SEC(".maps");

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, NR_VIPS);
	__type(key, u32);
	__type(value, struct stats);
} vip_stats SEC(".maps");

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, NR_REALS);
	__type(key, u32);
	__type(value, struct stats);
} real_stats SEC(".maps");

/* What the harness sets: packets of a batch, which bits of the number in the batch go into the
 * source address, what is added to it. */
u32 batch;
u32 source_mask;
u32 source_base;
/* Always 0, which the verifier does not know: a loop that starts here is the same each time. */
u32 zero;
/* What the batch took. */
u64 batch_ns;
/* How far the ring is filled. */
u32 position;

#define rotate(x, n) ((x) << (n) | (x) >> (32 - (n)))

/* Bob Jenkins' lookup3 for two words. */
INLINE u32 hash_words(u32 a, u32 b)
{
	u32 c = 0xdeadbeef + 8;

	a += c;
	b += c;
	c ^= b; c -= rotate(b, 14);
	a ^= c; a -= rotate(c, 11);
	b ^= a; b -= rotate(a, 25);
	c ^= b; c -= rotate(b, 16);
	a ^= c; a -= rotate(c, 4);
	b ^= a; b -= rotate(a, 14);
	c ^= b; c -= rotate(b, 24);
	return c;
}

INLINE void count(void *map, u32 key, u64 bytes)
{
	struct stats *stats = map_lookup_elem(map, &key);

	if (stats) {
		stats->packets++;
		stats->bytes += bytes;
	}
}

INLINE void tick(u32 key)
{
	u64 *value = map_lookup_elem(&counters, &key);

	if (value)
		*value += 1;
}

INLINE int is_flood(u64 now)
{
	u32 zero = 0;
	struct rate *rate = map_lookup_elem(&rates, &zero);

	if (!rate)
		return 1;
	if (now - rate->since > SECOND) {
		rate->since = now;
		rate->connections = 1;
		return 0;
	}
	return ++rate->connections > FLOOD;
}

/* The real server that the ring gives a flow. */
INLINE int choose(const struct flow *flow, const struct vip *vip, int v6, u32 *real)
{
	u32 from = v6 ? flow->from[0] ^ flow->from[1] ^ flow->from[2] ^ flow->from[3] : flow->from[0];
	u32 hash = hash_words(from, *(u32 *)&flow->ports);
	u32 key = vip->number * RING_SIZE + hash % RING_SIZE;
	u32 *found = map_lookup_elem(&ring, &key);

	if (!found)
		return 0;
	*real = *found;
	return 1;
}

INLINE u16 checksum(const struct ipv4 *ip)
{
	const u16 *words = (const u16 *)ip;
	u32 sum = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

INLINE void set_eth(struct eth *eth, u16 type)
{
	static const u8 gateway[6] = { 2, 0, 0, 0, 0, 1 }, own[6] = { 2, 0, 0, 0, 0, 2 };

	__builtin_memcpy(eth->to, gateway, 6);
	__builtin_memcpy(eth->from, own, 6);
	eth->type = type;
}

/* Where outer packets come from: a network of the balancer's, spread by flow. */
#define FROM_V4 0x000010ac
#define FROM_V6 0x64ff0000

INLINE u32 outer_word(const struct flow *flow, int v6)
{
	u32 from = v6 ? flow->from[3] : flow->from[0];

	return ((u32)flow->ports.from << 16 ^ from) & 0xffff0000;
}

INLINE int wrap_v4(struct xdp_md *ctx, const struct flow *flow, const struct real *real, u32 len)
{
	struct ipv4 *ip;
	void *data;

	if (xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + sizeof(struct eth) + sizeof(*ip) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	set_eth(data, ETH_V4);
	ip = data + sizeof(struct eth);
	ip->version_ihl = 0x45;
	ip->tos = 0;
	ip->len = __builtin_bswap16(len + sizeof(*ip));
	ip->id = 0;
	ip->frag = 0;
	ip->ttl = 64;
	ip->protocol = IPIP;
	ip->check = 0;
	ip->from = FROM_V4 | outer_word(flow, 0);
	ip->to = real->to[0];
	ip->check = checksum(ip);
	return XDP_TX;
}

INLINE int wrap_v6(struct xdp_md *ctx, const struct flow *flow, const struct real *real, u32 len, int v6)
{
	struct ipv6 *ip;
	void *data;

	if (xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	if (data + sizeof(struct eth) + sizeof(*ip) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	set_eth(data, ETH_V6);
	ip = data + sizeof(struct eth);
	ip->flow = 0x60;
	ip->len = __builtin_bswap16(len);
	ip->next = v6 ? IPV6 : IPIP;
	ip->hops = 64;
	ip->from[0] = FROM_V6;
	ip->from[1] = 0;
	ip->from[2] = 0;
	ip->from[3] = outer_word(flow, v6);
	__builtin_memcpy(ip->to, real->to, 16);
	return XDP_TX;
}

INLINE int balance(struct xdp_md *ctx, struct flow *flow, u8 tcp_flags, u32 len, int v6)
{
	struct vip_key key = {};
	struct connection *connection;
	struct real *real;
	struct vip *vip;
	void *table = 0;
	u32 cpu, number = 0;
	u64 now = 0;

	__builtin_memcpy(key.to, flow->to, 16);
	key.port = flow->ports.to;
	key.protocol = flow->protocol;
	vip = map_lookup_elem(&vips, &key);
	if (!vip)
		return XDP_PASS;
	tick(ALL);
	cpu = get_smp_processor_id() % NR_TABLES;
	if (!(vip->flags & VIP_NO_LRU)) {
		table = map_lookup_elem(&tables, &cpu);
		if (!table)
			return XDP_DROP;
	}
	if (flow->protocol == UDP)
		now = ktime_get_ns();
	if (table && !(tcp_flags & TCP_SYN)) {
		connection = map_lookup_elem(table, flow);
		if (connection && flow->protocol == UDP) {
			if (now - connection->time > UDP_TIMEOUT)
				connection = 0;
			else
				connection->time = now;
		}
		if (connection) {
			number = connection->real;
			goto chosen;
		}
	}
	tick(MISSES);
	if (!choose(flow, vip, v6, &number))
		return XDP_DROP;
	if (table && !(tcp_flags & TCP_RST)) {
		if (!now)
			now = ktime_get_ns();
		if (!is_flood(now)) {
			struct connection new = { .real = number, .time = flow->protocol == UDP ? now : 0 };

			map_update_elem(table, flow, &new, ANY);
		}
	}
chosen:
	real = map_lookup_elem(&reals, &number);
	if (!real)
		return XDP_DROP;
	count(&vip_stats, vip->number, len);
	count(&real_stats, number, len);
	if (v6 || real->flags & REAL_V6)
		return wrap_v6(ctx, flow, real, len, v6);
	return wrap_v4(ctx, flow, real, len);
}

INLINE int ports(void *l4, void *end, u8 protocol, struct flow *flow, u8 *tcp_flags)
{
	struct tcp *tcp = l4;

	if (protocol == TCP) {
		if ((void *)(tcp + 1) > end)
			return XDP_DROP;
		*tcp_flags = tcp->flags;
	} else if (protocol == UDP) {
		if (l4 + 8 > end)
			return XDP_DROP;
	} else {
		return XDP_PASS;
	}
	flow->ports = tcp->ports;
	flow->protocol = protocol;
	return XDP_TX;
}

INLINE int process(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow flow = {};
	struct eth *eth = data;
	u8 tcp_flags = 0;
	int action;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	if (eth->type == ETH_V4) {
		struct ipv4 *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->version_ihl != 0x45)
			return XDP_DROP;
		/* More fragments, or an offset. */
		if (ip->frag & 0xff3f)
			return XDP_DROP;
		flow.from[0] = ip->from;
		flow.to[0] = ip->to;
		action = ports(ip + 1, end, ip->protocol, &flow, &tcp_flags);
		if (action != XDP_TX)
			return action;
		return balance(ctx, &flow, tcp_flags, __builtin_bswap16(ip->len), 0);
	}
	if (eth->type == ETH_V6) {
		struct ipv6 *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->next == FRAGMENT)
			return XDP_DROP;
		__builtin_memcpy(flow.from, ip->from, 32);
		action = ports(ip + 1, end, ip->next, &flow, &tcp_flags);
		if (action != XDP_TX)
			return action;
		return balance(ctx, &flow, tcp_flags, __builtin_bswap16(ip->len) + sizeof(*ip), 1);
	}
	return XDP_PASS;
}

/* Gives the packet the source of its number in the batch. */
INLINE int set_source(struct xdp_md *ctx, u32 number)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	u32 source = __builtin_bswap32(source_base + (number & source_mask));

	if (data + sizeof(*eth) + sizeof(struct ipv6) > end)
		return 0;
	if (eth->type == ETH_V4)
		((struct ipv4 *)(eth + 1))->from = source;
	else
		((struct ipv6 *)(eth + 1))->from[3] = source;
	return 1;
}

/* Takes off what the balancer wrapped the packet in. */
INLINE int unwrap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	int outer = sizeof(struct ipv4);
	u16 type = ETH_V4;
	u8 inner = 0;

	if (data + sizeof(*eth) + sizeof(struct ipv4) > end)
		return 0;
	if (eth->type == ETH_V6) {
		outer = sizeof(struct ipv6);
		inner = ((struct ipv6 *)(eth + 1))->next;
	}
	if (xdp_adjust_head(ctx, outer))
		return 0;
	if (inner == IPV6)
		type = ETH_V6;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + sizeof(*eth) > end)
		return 0;
	set_eth(data, type);
	return 1;
}

#define can_loop                                                 \
	({                                                       \
		__label__ out, on;                               \
		int more = 1;                                    \
		asm volatile goto("may_goto %l[out]" :::: out);  \
		goto on;                                         \
	out:                                                     \
		more = 0;                                        \
	on:                                                      \
		more;                                            \
	})

/* The balancer, apart: the batch and the packet after it call the same code. */
static NOINLINE int balancer(struct xdp_md *ctx)
{
	return process(ctx);
}

SEC("xdp") int lb(struct xdp_md *ctx)
{
	u32 packets = batch, mask = source_mask, i;
	u64 start = ktime_get_ns();

	for (i = zero; i < packets && can_loop; i++) {
		if (mask && !set_source(ctx, i))
			return XDP_ABORTED;
		if (balancer(ctx) == XDP_TX && !unwrap(ctx))
			return XDP_ABORTED;
	}
	batch_ns = ktime_get_ns() - start;
	if (i != packets || (mask && !set_source(ctx, 0)))
		return XDP_ABORTED;
	/* Once more, untimed: what the caller sees. */
	return balancer(ctx);
}

static long fill_one(u32 index, void *ctx)
{
	u32 key = position, *value;

	value = map_lookup_elem(&ring, &key);
	if (!value)
		return 1;
	/* Sixteen real servers a VIP. */
	*value = key / RING_SIZE % 4 * 16 + key % RING_SIZE % 16;
	position = key + 1;
	return 0;
}

/* Fills the ring, NR_LOOPS slots a run; 0 once it is full. */
SEC("xdp") int fill(struct xdp_md *ctx)
{
	loop(NR_LOOPS, fill_one, 0, 0);
	return position == NR_RINGS * RING_SIZE ? 0 : 1;
}
