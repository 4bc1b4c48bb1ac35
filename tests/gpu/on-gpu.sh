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
. "$here/daemon.sh"
begin "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)"

start "$work" 256MiB 1GiB --set store.prewrite=off
"$check" "$work/s" check && "$check" "$work/s" regions
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
        start "$work" 256MiB 1GiB --set store.prewrite=off
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
start "$work" 8GiB 16GiB --set store.prewrite=off
bench_session init sweep >"$work/said" || cat "$work/said"
timeout 240 "$check" "$work/s" bench || failed=1
bench_session report sweep >"${OUT:-$work}/sweep.report"
stop
# The sweep of kvcache-bench with the GPU as source, in each layout, likewise.
start "$work" 8GiB 16GiB --set store.prewrite=off
for layout in contiguous block-first outer-first; do
        bench_session init "gpu-$layout" >"$work/said" || cat "$work/said"
        bench profile --socket "$work/s" --model llama_3_1_8b --model_config "$here/../../conf/deployments/block-tp1-pp1.yaml" \
                --isl 8192 --num_requests 4 --source gpu --layout $layout --no_raw || failed=1
        bench_session report "gpu-$layout" >"${OUT:-$work}/gpu-$layout.report"
done
stop
start "$work" 8GiB 16GiB --set store.prewrite=off
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
