#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts what on-gpu.sh, disk.py, written.py and the benchmark (tests/bench) need of a build into a folder that can be carried to another machine: programs,
# fio if there is one here, and the shared libraries that they need but for libc's.
#
#     pack.sh [--bench] BUILD FOLDER
#
# With --bench, the folder has the benchmark alone, without fio, in less than 20 MiB.
set -eu
only_bench=
if [ "${1:-}" = --bench ]; then
        only_bench=1
        shift
fi
build=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$folder"
mkdir -p "$folder/daemon" "$folder/client/lib" "$folder/client/bench" "$folder/tests/gpu/cufile-shim" "$folder/tests/bench" \
        "$folder/tests/campaigns" \
        "$folder/lib" "$folder/bin"
cp "$build/daemon/kvcache-daemon" "$folder/daemon/"
cp "$build/client/bench/kvcache-bench" "$folder/client/bench/"
cp "$build/tests/bench/measure" "$build/tests/bench/measure-echo" "$folder/tests/bench/"
cp "$build/tests/campaigns/many-entries" "$folder/tests/campaigns/"

# needed LIBRARIES FILE...: copies the libraries of the files there
needed() {
        libraries=$1
        shift
        ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
                grep -v -e '/libc\.so' -e '/libm\.so' -e '/libpthread' -e '/libdl\.so' -e '/libkvcache' -e '/libcuda' | sort -u |
                while read -r f; do cp -L "$f" "$libraries/"; done
}
cp "$build/client/lib/libkvcache.so.1" "$folder/client/lib/"
cp "$here"/../bench/*.py "$here/../bench/figures.json" "$folder/tests/bench/"
programs="$folder/daemon/kvcache-daemon $folder/client/lib/libkvcache.so.1 $folder/client/bench/kvcache-bench $folder/tests/bench/measure
$folder/tests/bench/measure-echo $folder/tests/campaigns/many-entries"
# finish FILE...: strips the programs, and copies their libraries.
finish() {
        strip --strip-debug "$@"
        needed "$folder/lib" "$@"
        du -sh "$folder"
}
if [ -n "$only_bench" ]; then
        rmdir "$folder/tests/gpu/cufile-shim" "$folder/tests/gpu" "$folder/bin"
        finish $programs
        exit
fi
if fio=$(command -v fio); then # with its own libraries, which are many
        mkdir -p "$folder/fio"
        cp "$fio" "$folder/fio/fio"
        needed "$folder/fio" "$fio"
        tar -C "$folder" -czf "$folder/fio.tar.gz" fio # 80 MiB otherwise
        rm -rf "$folder/fio"
        cat >"$folder/bin/fio" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
[ -d "$here/fio" ] || { mkdir "$here/fio.$$" && tar -C "$here/fio.$$" -xzf "$here/fio.tar.gz" && mv "$here/fio.$$/fio" "$here" && rmdir "$here/fio.$$"; }
LD_LIBRARY_PATH=$here/fio exec "$here/fio/fio" "$@"
END
        chmod +x "$folder/bin/fio"
fi
cp "$build/tests/gpu/gpu-check" "$build/tests/gpu/libgpu-check.so" "$folder/tests/gpu/"
cp "$build/tests/gpu/cufile-shim/libcufile.so.0" "$folder/tests/gpu/cufile-shim/"
cp "$here/on-gpu.sh" "$here/on-gds.sh" "$here/daemon.sh" "$here/interference.py" "$here/written.py" "$here/disk.py" "$folder/tests/gpu/"
mkdir "$folder/conf"
cp -r "$here/../../conf/models" "$here/../../conf/deployments" "$folder/conf/"
finish $programs "$folder/tests/gpu/gpu-check" "$folder/tests/gpu/libgpu-check.so"
