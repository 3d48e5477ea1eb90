#!/bin/sh
# Rebuilds rejected.bpf.o; it was made with clang and llvm-strip 19. CLANG and STRIP name others.
set -e
cd "$(dirname "$0")"
"${CLANG:-clang-19}" -g -O2 --target=bpfel -mcpu=v3 -Wall -Wno-uninitialized \
	-fdebug-compilation-dir=. -I../../../../examples/include -I"/usr/include/$(gcc -dumpmachine)" \
	-c rejected.bpf.c -o rejected.bpf.o
"${STRIP:-llvm-strip-19}" -g rejected.bpf.o
