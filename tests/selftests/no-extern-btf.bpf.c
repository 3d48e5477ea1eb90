/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What compilers before clang 13 made of a call of a kernel function: an external symbol
 * that BTF does not describe. The loader says
 * "failed to find BTF for extern 'tcp_slow_start'".
 */
#include "bpfkit.h"

SEC("socket")
__attribute__((naked)) void calls_extern(void)
{
	asm volatile("call tcp_slow_start; exit;");
}

char LICENSE[] SEC("license") = "GPL";
