/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A small firewall: drops packets from addresses on a block list and TCP or UDP
 * packets to closed ports, and counts what it saw by protocol and by blocked prefix.
 */
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "bpfkit.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Ports above this one are closed to the outside; the host may set it. */
const volatile __u16 highest_open_port = 1024;

/* Packets and bytes, counted per CPU. */
struct counter {
	__u64 packets;
	__u64 bytes;
};

enum protocol { PROTO_OTHER, PROTO_ARP, PROTO_ICMP, PROTO_TCP, PROTO_UDP, PROTO_MAX };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PROTO_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} seen SEC(".maps");

struct prefix {
	__u32 bits;
	__u8 address[4];
};

/* Blocked IPv4 prefixes, each with the number of packets it stopped. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct prefix);
	__type(value, __u64);
} blocklist SEC(".maps");

/* Packets by source address, the busiest remembered. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} talkers SEC(".maps");

static __always_inline void count(enum protocol protocol, __u64 bytes)
{
	__u32 key = protocol;
	struct counter *counter = bpf_map_lookup_elem(&seen, &key);

	if (counter) {
		counter->packets++;
		counter->bytes += bytes;
	}
}

/* Whether the transport header at `l4` asks for a port that is closed. */
static __noinline int closed_port(void *l4, void *end, __u8 protocol)
{
	/* Ports stand first in TCP and in UDP. */
	struct udphdr *ports = l4;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	if ((void *)(ports + 1) > end)
		return 1;
	if (bpf_ntohs(ports->source) <= highest_open_port)
		return 0; /* an answer to one of our own requests */
	return bpf_ntohs(ports->dest) > highest_open_port;
}

static __always_inline enum protocol classify(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return PROTO_ICMP;
	case IPPROTO_TCP:
		return PROTO_TCP;
	case IPPROTO_UDP:
		return PROTO_UDP;
	default:
		return PROTO_OTHER;
	}
}

static __always_inline int ipv4(void *data, void *end, __u64 bytes)
{
	struct iphdr *ip = data;
	struct prefix prefix = { .bits = 32 };
	__u64 *blocked, *packets, one = 1;
	__u32 source;

	if ((void *)(ip + 1) > end || ip->ihl < 5)
		return XDP_DROP;
	count(classify(ip->protocol), bytes);

	source = ip->saddr;
	__builtin_memcpy(prefix.address, &source, sizeof(source));
	blocked = bpf_map_lookup_elem(&blocklist, &prefix);
	if (blocked) {
		if (__sync_fetch_and_add(blocked, 1) == 0)
			bpf_printk("first packet from blocked %pI4", &source);
		return XDP_DROP;
	}

	packets = bpf_map_lookup_elem(&talkers, &source);
	if (packets)
		__sync_fetch_and_add(packets, 1);
	else
		bpf_map_update_elem(&talkers, &source, &one, BPF_ANY);

	if (closed_port(data + ip->ihl * 4, end, ip->protocol))
		return XDP_DROP;
	return XDP_PASS;
}

static __always_inline int ipv6(void *data, void *end, __u64 bytes)
{
	struct ipv6hdr *ip = data;

	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	count(classify(ip->nexthdr), bytes);
	return closed_port(ip + 1, end, ip->nexthdr) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u64 bytes = end - data;

	if ((void *)(eth + 1) > end)
		return XDP_ABORTED;

	switch (bpf_ntohs(eth->h_proto)) {
	case ETH_P_IP:
		return ipv4(eth + 1, end, bytes);
	case ETH_P_IPV6:
		return ipv6(eth + 1, end, bytes);
	case ETH_P_ARP:
		count(PROTO_ARP, bytes);
		return XDP_PASS;
	default:
		count(PROTO_OTHER, bytes);
		return XDP_PASS;
	}
}
