#!/usr/bin/env bash
# Rebuild the objects of this folder with clang (the committed ones are clang 19's).
#   usage: tests/selftests/build.sh [OUTDIR]
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
clang=${CLANG:-$(command -v clang-19 || command -v clang)}
for source in *.bpf.c; do
    "$clang" -g -O2 --target=bpfel -mcpu=v4 -Wall -Werror -fdebug-compilation-dir=. \
        -I../../examples/include -I"/usr/include/$(gcc -dumpmachine)" \
        -c "$source" -o "$out/${source%.c}.o"
    llvm-strip-19 -g "$out/${source%.c}.o" 2>/dev/null || true
done
# The first relocation of the code gets a type that nobody knows: r_info follows r_offset.
object="$out/relo-type.bpf.o"
table=$(llvm-readelf-19 -S --wide "$object" | sed -n 's/.*\.relsocket *REL *[0-9a-f]* \([0-9a-f]*\) .*/\1/p')
printf '\x07' | dd of="$object" bs=1 seek=$((0x$table + 8)) conv=notrunc status=none
