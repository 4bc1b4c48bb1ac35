#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a GPU can show: bytes compared over the real driver, the kernel under compute-sanitizer, rates, interference.
#
#     on-gpu.sh BUILD [check|all]
#
# BUILD is a build folder, or what pack.sh has made of one. Skips, with 77 and a reason, where there is no GPU.
set -u
build=$(cd "$1" && pwd) what=${2:-all}
here=$(cd "$(dirname "$0")" && pwd)
check=$build/tests/gpu/gpu-check
work=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/kvcache-gpu.XXXXXX") || exit 1
daemon='' failed=0
end() {
        [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon"
        rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

"$check" "$work/none" probe >"$work/probe" 2>&1
if [ $? = 77 ]; then
        cat "$work/probe"
        exit 77
fi
start() {
        LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                "$build/daemon/kvcache-daemon" --set "listen.socket=$work/s" --set listen.http=off --set "store.path=$work/store" \
                --set "store.limit=$2" --set store.prewrite=off --set "memory.pool=$1" --set io.workers=4 \
                --set limits.registered=1GiB >"$work/log" 2>&1 &
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
        rm -rf "$work/store"
}

start 256MiB 1GiB
"$check" "$work/s" check
status=$?
stop
if [ "$what" = check ]; then
        [ $status = 0 ] || exit $status
        sh "$here/on-gds.sh" "$build" check
        gds=$?
        [ $gds = 77 ] || exit $gds
        exit 0
fi
[ $status = 0 ] || failed=1

if command -v compute-sanitizer >/dev/null 2>&1; then
        start 256MiB 1GiB
        for tool in memcheck racecheck; do
                timeout 120 compute-sanitizer --error-exitcode 9 --tool $tool "$check" "$work/s" check >"$work/said" 2>&1 || {
                        failed=1
                        grep -v 'layouts right' "$work/said" | tail -n 40
                }
                echo "compute-sanitizer $tool: $(grep SUMMARY "$work/said")"
        done
        stop
fi
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
start 8GiB 16GiB
timeout 240 "$check" "$work/s" bench || failed=1
stop
start 8GiB 16GiB
if python3 -c 'import torch' 2>/dev/null; then
        timeout 120 python3 "$here/interference.py" "$build" "$work/s" || failed=1
else
        echo "interference: skipped, python3 has no torch"
fi
stop
sh "$here/on-gds.sh" "$build" bench
status=$?
[ $status = 0 ] || [ $status = 77 ] || failed=1
exit $failed
