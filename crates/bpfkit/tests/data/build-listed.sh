#!/bin/sh
# Rebuilds listed.bpf.o; it was made with clang and llvm-strip 19. CLANG and STRIP name others.
set -e
cd "$(dirname "$0")"
"${CLANG:-clang-19}" -g -O2 --target=bpfel -mcpu=v3 -Wall \
	-fdebug-compilation-dir=. -I../../../../examples/include -I"/usr/include/$(gcc -dumpmachine)" \
	-c listed.bpf.c -o listed.bpf.o
"${STRIP:-llvm-strip-19}" -g listed.bpf.o
