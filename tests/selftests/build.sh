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
