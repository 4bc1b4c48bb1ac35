#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a GPU and cuFile can show: blocks on disk by cuFile, with every stage broken on purpose, and the rate beside
# cuFile alone.
#
#     on-gds.sh BUILD [check|bench]
#
# The store is in $KVCACHE_GDS_DIR, else $TMPDIR or /tmp; another in /dev/shm. libcufile.so.0 is looked for as the dynamic
# linker does, then in /usr/local/cuda*. Skips, with 77 and a reason, where there is no GPU or no cuFile.
set -u
build=$(cd "$1" && pwd) what=${2:-check}
check=$build/tests/gpu/gpu-check
work=$(mktemp -d "${KVCACHE_GDS_DIR:-${TMPDIR:-/tmp}}/kvcache-gds.XXXXXX") || exit 1
memory='' daemon='' failed=0
end() {
        [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon"
        rm -rf "$work" ${memory:+"$memory"}
}
trap end EXIT
trap 'exit 1' INT TERM

"$check" "$work/none" probe >"$work/probe" 2>&1
if [ $? = 77 ]; then
        cat "$work/probe"
        exit 77
fi
real=''
for folder in $(echo "${LD_LIBRARY_PATH:-}" | tr : ' ') $(ldconfig -p 2>/dev/null | sed -n 's,.*libcufile\.so\.0 .*=> \(.*\)/libcufile.*,\1,p') \
        /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib; do
        [ -e "$folder/libcufile.so.0" ] && real=$folder/libcufile.so.0 && break
done
if [ -z "$real" ]; then
        echo "cuFile: skipped, there is no libcufile.so.0 here"
        exit 77
fi
echo "cuFile: $real; nvidia-fs: $(cat /proc/driver/nvidia-fs/version 2>/dev/null || echo none); the store: $(stat -f -c %T "$work")"
export CUFILE_LOGFILE_PATH="$work/cufile.log"

start() {
        LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                "$build/daemon/kvcache-daemon" --set "listen.socket=$work/s" --set listen.http=off --set "store.path=$1/store" \
                --set "store.limit=$3" --set "memory.pool=$2" --set io.workers=4 --set limits.registered=1GiB --set io.gds=on \
                >"$work/log" 2>&1 &
        daemon=$!
        tries=0
        until [ -S "$work/s" ]; do
                tries=$((tries + 1))
                if [ $tries -gt 600 ] || ! kill -0 "$daemon" 2>/dev/null; then
                        cat "$work/log"
                        exit 1
                fi
                sleep 0.1
        done
}
stop() {
        kill "$daemon" && wait "$daemon"
        daemon=''
        rm -rf "$1/store"
}
# WITH_PATH COMMAND...: the folder that libcufile.so.0 is in goes first.
with() {
        path=$1
        shift
        LD_LIBRARY_PATH="$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout 120 "$@"
}
# TITLE FOLDER FAILURE REASON
one() {
        printf '%-34s' "$1"
        CUFILE_REAL=$real CUFILE_FAIL=$3 with "$2" "$check" "$work/s" gds ${4:+"$4"} >"$work/said" 2>&1 || failed=1
        tr '\n' ' ' <"$work/said"
        echo
}

mkdir "$work/nothing"
touch "$work/nothing/libcufile.so.0"
folder=$(dirname "$real")
shim=$build/tests/gpu/cufile-shim
# cuFile looks the store's device up in udev's database, and refuses each file with 5027 if it is not there: reason enough to
# say so, and to go on without a figure.
start "$work" 256MiB 2GiB
one 'as it is' "$folder" '' any
if grep -q '5027' "$work/said"; then
        echo "cuFile: $(stat -c 'device %Hd:%Ld' "$work") is not in /run/udev/data; the rest of the checks are skipped"
        exit 77
fi
grep -q ' 1024 blocks by cuFile\|^1024 blocks by cuFile' "$work/said" || failed=1
one 'without libcufile' "$work/nothing" '' 'no libcufile.so.0'
one 'its driver does not open' "$shim" 'cuFileDriverOpen 1 5001' "cuFile's driver does not open"
one 'no file is registered (5027)' "$shim" 'cuFileHandleRegister 1 5027' 'cuFile does not register the file'
one 'one read in a hundred fails' "$shim" 'cuFileRead 100 -1' 'the read failed'
one 'all reads are short' "$shim" 'cuFileRead 1 512' any
one 'no handle is left (5031)' "$shim" 'cuFileHandleRegister 1 5031' 'cuFile does not register the file'
one 'no memory is registered (5036)' "$shim" 'cuFileBufRegister 1 5036' any
stop "$work"
if [ -w /dev/shm ]; then
        memory=$(mktemp -d /dev/shm/kvcache-gds.XXXXXX)
        start "$memory" 256MiB 2GiB
        one 'a store on tmpfs' "$folder" '' any
        stop "$memory"
fi
if [ "$what" = bench ]; then
        start "$work" 2GiB 8GiB
        with "$folder" "$check" "$work/s" gds-bench || failed=1
        stop "$work"
fi
exit $failed
