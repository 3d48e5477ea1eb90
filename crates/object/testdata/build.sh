#!/bin/sh
# Rebuilds the objects of this folder. CLANG and STRIP name other tools; they were made with
# clang and llvm-strip 19.
set -e
cd "$(dirname "$0")"
compile() { # target, source, object
	"${CLANG:-clang-19}" -target "$1" -mcpu=v3 -O2 -g -Wall -Wno-unused-function \
		-Wno-unknown-attributes -ffile-prefix-map="$PWD"=. -c "$2" -o "$3"
	"${STRIP:-llvm-strip-19}" -g "$3"
}
for source in *.c; do
	compile bpfel "$source" "${source%.c}.bpf.o"
done
for name in functions globals maps; do
	compile bpfeb "$name.c" "$name.eb.bpf.o"
done
