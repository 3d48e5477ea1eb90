/* Global variables, configuration, and relocations into data sections. */
#include "bpf.h"

char _license[] SEC("license") = "MIT";

const volatile u32 limit = 1000;
const volatile u8 table[3] = { 7, 8, 9 };
u64 counter = 5;
u16 zero;
static volatile u32 hidden_static = 9;
HIDDEN u32 hidden_global = 10;
u32 own_section SEC(".data.own") = 11;
static volatile u32 only_static SEC(".data.quiet") = 12;
const volatile u32 own_constant SEC(".rodata.own") = 13;
u64 own_zero SEC(".bss.own");

enum libbpf_tristate { TRI_NO, TRI_YES, TRI_MODULE };

extern int LINUX_KERNEL_VERSION KCONFIG;
extern _Bool LINUX_HAS_BPF_COOKIE KCONFIG WEAK;
extern enum libbpf_tristate CONFIG_MODULE_THING KCONFIG WEAK;
extern char CONFIG_NAME[8] KCONFIG WEAK;
extern u64 CONFIG_NUMBER KCONFIG;

SEC("socket")
int uses_data(u32 *ctx)
{
	counter += limit;
	zero += table[OPAQUE(ctx) ? 1 : 2];
	hidden_static += hidden_global;
	own_section += only_static + own_constant;
	own_zero++;
	return counter;
}

SEC("socket")
int uses_version(u32 *ctx)
{
	return LINUX_KERNEL_VERSION + LINUX_HAS_BPF_COOKIE;
}

SEC("socket")
int uses_config(u32 *ctx)
{
	return CONFIG_NUMBER + CONFIG_NAME[0] + CONFIG_MODULE_THING;
}
