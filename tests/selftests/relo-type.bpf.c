/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A reference to a map whose relocation build.sh gives a type that BPF does not have, as a
 * compiler newer than its loader might.
 */
#include "bpfkit.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} values SEC(".maps");

SEC("socket")
int refers_to_map(void *ctx)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&values, &key) != 0;
}
