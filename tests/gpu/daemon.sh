# SPDX-License-Identifier: Apache-2.0
# For on-gpu.sh and on-gds.sh, which read this: a daemon of the build, on a socket and a store in a folder of the run's.
#
# Wants $build and $check, the program gpu-check. Sets $work, which is removed at the end, and $failed; skips, with 77 and a
# reason, where there is no GPU.
memory='' daemon='' failed=0
end() {
        [ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon"
        rm -rf "$work" ${memory:+"$memory"}
}
# FOLDER: $work is made there.
begin() {
        work=$(mktemp -d "$1/kvcache-gpu.XXXXXX") || exit 1
        trap end EXIT
        trap 'exit 1' INT TERM
        "$check" "$work/none" probe >"$work/probe" 2>&1
        if [ $? = 77 ]; then
                cat "$work/probe"
                exit 77
        fi
}
# FOLDER POOL LIMIT [--set KEY=VALUE]...: the store is in the folder.
start() {
        folder=$1 pool=$2 limit=$3
        shift 3
        LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
                "$build/daemon/kvcache-daemon" --set "listen.socket=$work/s" --set listen.http=off --set "store.path=$folder/store" \
                --set "store.limit=$limit" --set "memory.pool=$pool" --set io.workers=4 --set limits.registered=1GiB "$@" \
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
bench() {
        LD_LIBRARY_PATH="$build/client/lib:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout 120 "$build/client/bench/kvcache-bench" "$@"
}
# A benchmark session around what follows: its report says what moved, on which path, in which layout.
bench_session() {
        bench session --socket "$work/s" "$@" || failed=1
}
stop() {
        kill "$daemon" && wait "$daemon"
        daemon=''
        rm -rf "$folder/store"
}
