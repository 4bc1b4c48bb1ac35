#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the PTX of copy.cu. The kernel needs nothing of a newer PTX, so the header asks for what drivers have had since
# CUDA 11.0: 7.0, and Turing; ptxas, where it is there, checks that this holds.
set -eu
nvcc=${NVCC:-nvcc}
folder=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$nvcc" -ptx -arch=compute_75 -O3 -o "$out/full.ptx" "$folder/copy.cu"
# The compiler's own remarks hold names of files that differ from one run to the next.
{
        echo '// SPDX-License-Identifier: Apache-2.0'
        echo "// Made by make-ptx.sh from copy.cu, with nvcc $("$nvcc" --version | sed -n 's/.*, V//p')."
        sed -e '/^\/\//d' -e '/^$/d' -e 's/^\.version .*/.version 7.0/' "$out/full.ptx"
} >"$out/copy.ptx"
ptxas=$(dirname "$(command -v "$nvcc")")/ptxas
[ ! -x "$ptxas" ] || "$ptxas" -arch=sm_75 -o "$out/copy.cubin" "$out/copy.ptx"
cat "$out/copy.ptx"
