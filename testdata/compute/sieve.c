#include "compute.h"

/* How many primes are below len: the sieve of Eratosthenes, a byte a number. */
KERNEL u64 sieve(u8 *mem, u64 len)
{
	u64 primes = 0;

	ROLLED
	for (u64 i = 0; i < len; i++)
		*(volatile u8 *)&mem[i] = 1;
	ROLLED
	for (u64 i = 2; i < len; i++) {
		if (!mem[i])
			continue;
		primes++;
		ROLLED
		for (u64 j = i * i; j < len; j += i)
			mem[j] = 0;
	}
	return primes;
}
