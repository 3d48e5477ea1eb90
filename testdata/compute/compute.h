/* The compute kernels run on a block of memory: R1 its address, R2 its length in bytes. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define KERNEL __attribute__((section("compute"), used))
#define ROLLED _Pragma("clang loop unroll(disable) vectorize(disable)")
