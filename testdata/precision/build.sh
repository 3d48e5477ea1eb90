#!/bin/sh
# Rebuilds the objects of this folder. CLANG names another clang; they were made with clang 19.
set -e
cd "$(dirname "$0")"
for source in *.c; do
	"${CLANG:-clang-19}" -target bpf -mcpu=v3 -O2 -g -fno-builtin -Wall \
		-ffile-prefix-map="$PWD"=. -c "$source" -o "${source%.c}.bpf.o"
done
