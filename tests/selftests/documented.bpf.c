/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The failures that the notes on running the kernel's selftests document, each in a program
 * of its own with the message word for word. tests/selftests/build.sh rebuilds the object.
 */
#include "bpfkit.h"
#include "bpfkit_test.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[8]);
} values SEC(".maps");

SEC("socket")
__description("profiler: a sum is made before its bound is checked")
__failure
__msg("math between map_value pointer and register with unbounded min value is not allowed")
__naked void unbounded(void)
{
	asm volatile("*(u32 *)(r10 - 4) = 0;"
		     "r2 = r10;"
		     "r2 += -4;"
		     "r1 = %[values] ll;"
		     "call %[lookup];"
		     "if r0 == 0 goto 1f;"
		     "r9 = r0;"
		     "r7 = *(u64 *)(r0 + 0);"
		     "r6 = r9;"
		     "r6 += r7;"
		     "if r7 < 257 goto 1f;"
		     "r6 = r9;"
		     "1: r0 = 0;"
		     "exit;" ::[values] "i"(&values),
		     [lookup] "i"(BPF_FUNC_map_lookup_elem)
		     : __clobber_all);
}

SEC("tp_btf/task_newtask")
__description("bpf_iter: a compiler's bug writes to an object of the kernel")
__failure __msg("only read is supported")
__naked void write_to_object(void)
{
	asm volatile("r7 = *(u64 *)(r1 + 0);"
		     "*(u64 *)(r7 + 64) = r7;"
		     "r0 = 0;"
		     "exit;" ::: __clobber_all);
}

SEC("socket")
__description("loop6: a context stands where a pointer to the stack is wanted")
__failure __msg("type=ctx expected=fp")
__naked void context_for_stack(void)
{
	asm volatile("r3 = r1;"
		     "r1 = 1;"
		     "r2 = nothing ll;"
		     "r4 = 0;"
		     "call %[loop];"
		     "r0 = 0;"
		     "exit;" ::[loop] "i"(BPF_FUNC_loop)
		     : __clobber_all);
}

static __attribute__((used)) long nothing(__u32 index, void *ctx)
{
	return 0;
}

SEC("socket")
__description("loop6: more branches wait than the verifier keeps")
__failure __msg("The sequence of 8193 jumps is too complex.")
__naked void jumps(void)
{
	asm volatile("r6 = *(u32 *)(r1 + 0);"
		     "r7 = *(u32 *)(r1 + 4);"
		     ".rept 8200;"
		     "if r6 > r7 goto 1f;"
		     "r6 += r7;"
		     ".endr;"
		     "1: r0 = 0;"
		     "exit;" ::: __clobber_all);
}

char LICENSE[] SEC("license") = "GPL";
