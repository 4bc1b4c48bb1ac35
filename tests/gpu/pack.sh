#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts what on-gpu.sh needs of a build into a folder that can be carried to another machine: programs, and the shared
# libraries that they need but for libc's.
#
#     pack.sh BUILD FOLDER
set -eu
build=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder/daemon" "$folder/client/lib" "$folder/tests/gpu/cufile-shim" "$folder/lib"
cp "$build/daemon/kvcache-daemon" "$folder/daemon/"
cp "$build/client/lib/libkvcache.so.1" "$folder/client/lib/"
cp "$build/tests/gpu/gpu-check" "$build/tests/gpu/libgpu-check.so" "$folder/tests/gpu/"
cp "$build/tests/gpu/cufile-shim/libcufile.so.0" "$folder/tests/gpu/cufile-shim/"
cp "$(dirname "$0")/on-gpu.sh" "$(dirname "$0")/on-gds.sh" "$(dirname "$0")/interference.py" "$folder/tests/gpu/"
for f in "$folder/daemon/kvcache-daemon" "$folder/client/lib/libkvcache.so.1" "$folder/tests/gpu/gpu-check" \
        "$folder/tests/gpu/libgpu-check.so"; do
        strip --strip-debug "$f"
done
ldd "$folder/daemon/kvcache-daemon" "$folder/client/lib/libkvcache.so.1" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
        grep -v -e '/libc\.so' -e '/libm\.so' -e '/libpthread' -e '/libdl\.so' -e '/libkvcache' -e '/libcuda' | sort -u |
        while read -r f; do cp -L "$f" "$folder/lib/"; done
du -sh "$folder"
