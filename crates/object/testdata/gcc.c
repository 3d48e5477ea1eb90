/* For gcc, whose binutils 2.40 count the place of a global function in bytes. */
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define NOINLINE __attribute__((noinline))

char _license[] SEC("license") = "GPL";

struct {
	int (*type)[1];
	int (*max_entries)[10];
	u32 *key;
	u64 *value;
} counters SEC(".maps");

extern void *map_lookup(void *map, const void *key) __attribute__((kernel_helper(1)));

u64 total = 5;

static NOINLINE int first_static(int x)
{
	asm volatile("" : "+r"(x));
	return x * 7;
}

static NOINLINE int second_static(int x)
{
	asm volatile("" : "+r"(x));
	return x + 1;
}

NOINLINE int first_global(int x)
{
	asm volatile("" : "+r"(x));
	return x + second_static(x);
}

SEC("xdp")
int entry(u32 *ctx)
{
	u32 key = 1;
	u64 *value = map_lookup(&counters, &key);

	total += second_static(ctx[0]) + first_static(ctx[1]) + first_global(ctx[2]);
	return value ? *value : total;
}
