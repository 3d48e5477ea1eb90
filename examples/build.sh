#!/usr/bin/env bash
# Rebuild the compiled example programs with clang (any from 17 on; the committed
# objects are clang 19's).  usage: examples/build.sh [OUTDIR]
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
clang=${CLANG:-$(command -v clang-19 || command -v clang)}
for source in *.bpf.c; do
    "$clang" -g -O2 --target=bpfel -mcpu=v3 -Wall -Werror \
        -fdebug-compilation-dir=. -Iinclude -I"/usr/include/$(gcc -dumpmachine)" \
        -c "$source" -o "$out/${source%.c}.o"
    # DWARF is not needed: BTF carries the types and lines.
    llvm-strip-19 -g "$out/${source%.c}.o" 2>/dev/null || true
done
