#!/bin/sh
# Rebuilds the objects of this folder. CLANG, GCC and STRIP name other tools; they were made
# with clang and llvm-strip 19, and gcc.bpf.o with gcc 12 and binutils 2.40.
set -e
cd "$(dirname "$0")"
compile() { # target, source, object
	"${CLANG:-clang-19}" -target "$1" -mcpu=v3 -O2 -g -Wall -Wno-unused-function \
		-Wno-unknown-attributes -ffile-prefix-map="$PWD"=. -c "$2" -o "$3"
	"${STRIP:-llvm-strip-19}" -g "$3"
}
for source in *.c; do
	[ "$source" = gcc.c ] && continue
	compile bpfel "$source" "${source%.c}.bpf.o"
done
for name in functions globals maps; do
	compile bpfeb "$name.c" "$name.eb.bpf.o"
done
if command -v "${GCC:-bpf-gcc}" >/dev/null; then
	"${GCC:-bpf-gcc}" -O2 -gbtf -ffile-prefix-map="$PWD"=. -c gcc.c -o gcc.bpf.o
	"${STRIP:-llvm-strip-19}" -g gcc.bpf.o
fi
