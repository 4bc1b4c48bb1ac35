#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# copy.ptx is what make-ptx.sh makes of copy.cu: check-ptx.sh ROOT. Other versions of nvcc make other code, so it takes the
# one that copy.ptx names, and skips without it.
set -u
folder=$1/client/gpu
for nvcc in "${NVCC:-nvcc}" /usr/local/cuda/bin/nvcc ''; do
        command -v "$nvcc" >/dev/null 2>&1 && break
done
wanted=$(sed -n 's/.*with nvcc \([0-9.]*[0-9]\)\.$/\1/p' "$folder/copy.ptx")
if [ -z "$nvcc" ]; then
        echo "there is no nvcc"
        exit 77
fi
found=$("$nvcc" --version | sed -n 's/.*, V//p')
if [ "$found" != "$wanted" ]; then
        echo "nvcc is $found, copy.ptx was made with $wanted"
        exit 77
fi
NVCC=$nvcc sh "$folder/make-ptx.sh" | diff -u "$folder/copy.ptx" - || {
        echo "copy.ptx does not match its source: run client/gpu/make-ptx.sh >client/gpu/copy.ptx"
        exit 1
}
