// Types of every BTF kind, and CO-RE relocations of every family.
//
// types.bpf.o is made by
//   clang-19 -g -O2 -target bpf -mcpu=v3 -ffile-prefix-map="$PWD"=. -c types.c -o types.bpf.o
//   llvm-strip-19 -g types.bpf.o
// of which the second drops DWARF and keeps BTF.

#define SEC(name) __attribute__((section(name), used))
#define core __attribute__((preserve_access_index))
#define tag(text) __attribute__((btf_decl_tag(text)))
#define ptr_tag(text) __attribute__((btf_type_tag(text)))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum colour { RED, GREEN = 5, BLUE = -1 };
enum wide { SMALL = 1, HUGE = 0x123456789abcdef0ull };

struct later;
union either {
	u64 number;
	double real;
	const volatile char *text;
} core;

struct node {
	struct node *next;
	struct later ptr_tag("kptr") * owner;
	union either value;
	struct {
		u8 flag : 1;
		u8 mode : 3;
		int depth : 12;
	};
	u16 ports[2][3];
	int (*visit)(struct node *self, const void *context, ...);
	enum colour colour;
	enum wide wide;
	u32 trailing[];
} core;

int counter tag("shared");
static volatile u32 hidden SEC(".data.own");
const u64 limit SEC(".rodata") = 7;
extern int elsewhere __attribute__((section(".kconfig"), weak));

static __attribute__((noinline)) long depth_of(struct node *restrict node tag("arg"))
{
	return node->depth + node->ports[1][2];
}

SEC("socket") int entry(struct node *node)
{
	long sum = depth_of(node);

	if (!node)
		return 0;
	sum += (long)node->next;
	if (__builtin_preserve_field_info(node->colour, 2))
		sum += node->colour;
	sum += __builtin_preserve_field_info(node->mode, 0);
	sum += __builtin_preserve_field_info(node->mode, 1);
	sum += __builtin_preserve_field_info(node->depth, 3);
	sum += __builtin_preserve_field_info(node->mode, 4);
	sum += __builtin_preserve_field_info(node->mode, 5);
	sum += __builtin_preserve_type_info(*(struct node *)0, 0);
	sum += __builtin_preserve_type_info(*(union either *)0, 1);
	sum += __builtin_preserve_type_info(*(struct node *)0, 2);
	sum += __builtin_btf_type_id(*(struct node *)0, 0);
	sum += __builtin_btf_type_id(*(struct node *)0, 1);
	sum += __builtin_preserve_enum_value(*(enum wide *)HUGE, 0);
	sum += __builtin_preserve_enum_value(*(enum wide *)HUGE, 1);
	sum += __builtin_preserve_enum_value(*(enum colour *)BLUE, 1);
	hidden += 1;
	counter += sum;
	return counter + limit + (&elsewhere ? elsewhere : 0);
}

char terms[] SEC("license") = "Dual MIT/GPL";
