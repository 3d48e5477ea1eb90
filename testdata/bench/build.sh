#!/bin/sh
# Rebuilds the objects of this folder. CLANG names another clang; they were made with clang 19.
set -e
cd "$(dirname "$0")"
for source in *.bpf.c; do
	"${CLANG:-clang-19}" -target bpf -mcpu=v3 -O2 -g -fno-builtin -Wall -Wno-unused-variable \
		-ffile-prefix-map="$PWD"=. -c "$source" -o "${source%.c}.o"
done
