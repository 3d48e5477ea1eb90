/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program with its tests beside it. Run them with
 *
 *	bpfkit selftest examples/tested.bpf.o
 *
 * docs/testing-guide.md goes through this file.
 */
#include "bpfkit.h"
#include "bpfkit_test.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

/* The code under test: counts packets, lets the first `limit` pass. */
static __noinline int admit(__u64 limit)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&packets, &key);

	if (!count)
		return XDP_ABORTED;
	*count += 1;
	return *count <= limit ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
__description("the first packet passes")
__success __retval(2)
int first_passes(struct xdp_md *ctx)
{
	return admit(1);
}

SEC("xdp")
__description("the second packet is dropped")
__success __retval(1)
int second_is_dropped(struct xdp_md *ctx)
{
	admit(1);
	return admit(1);
}

SEC("xdp")
__description("a packet of 64 bytes has room for a header of 14")
__success __retval(14)
int header(struct xdp_md *ctx)
{
	char *data = (char *)(long)ctx->data;
	char *end = (char *)(long)ctx->data_end;

	return data + 14 <= end ? 14 : 0;
}

SEC("xdp")
__description("reading the packet needs a comparison with its end")
__failure __msg("invalid access to packet, off=0 size=1, R{{[0-9]+}}(id=0,off=0,r=0)")
__msg("R{{[0-9]+}} offset is outside of the packet")
int unchecked(struct xdp_md *ctx)
{
	return *(char *)(long)ctx->data;
}

SEC("socket")
__description("only privileged processes add a register to the stack's address")
__success __failure_unpriv
__msg_unpriv("R{{[0-9]}} variable stack access prohibited for !root")
__naked void stack_by_register(void)
{
	asm volatile("r1 = *(u32 *)(r1 + 0);"
		     "r1 &= 4;"
		     "r1 += -8;"
		     "r2 = r10;"
		     "r2 += r1;"
		     "r0 = 0;"
		     "exit;" ::: __clobber_all);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
