#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# vLLM's tiers and ours on a machine with a GPU and no network, as a table.
#
#     vllm_gpu.sh FOLDER
#
# KINDS: what to run, in order: those of vllm_gpu.py, and of vllm_traffic.py with "traffic-" before them; TRACE: its trace.
#
# FOLDER holds site.tar.xz (vLLM and what it needs, this package's wheel included), daemon/kvcache-daemon, lib/ with the shared
# libraries that it needs, and, for the report of a benchmark session of each engine, client/bench/kvcache-bench and
# client/lib/libkvcache.so.1. Logs go to $OUT, else to a scratch folder.
set -u
folder=$(cd "$1" && pwd) here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
logs=${OUT:-$work}
daemon=''
end() {
        if [ -n "$daemon" ]; then
                pid=$(cat "$work/pid")
                kill "$daemon" "$pid"
                wait "$daemon"
                while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done # it still closes its store
        fi
        rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM
mkdir "$work/site" "$work/fs"
tar -xJf "$folder/site.tar.xz" -C "$work/site" || exit 1
export PYTHONPATH="$work/site" PYTHONUNBUFFERED=1 FSDIR="$work/fs" KVSOCK="$work/s" PYTHONHASHSEED=0
for wheel in "$folder"/*.whl; do
        [ -f "$wheel" ] && python3 -m zipfile -e "$wheel" "$work/site"
done
# Started again when it has been killed, as systemd would: its process number is in $DAEMON_PID.
serve() {
        while [ -d "$work/site" ]; do
                LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$folder/daemon/kvcache-daemon" --set "listen.socket=$KVSOCK" \
                        --set listen.http=off --set "store.path=$work/store" --set "store.limit=${STORE_LIMIT:-16GiB}" --set memory.pool=12GiB \
                        --set limits.registered=16GiB --set limits.uid_registered=16GiB >>"$logs/daemon.log" 2>&1 &
                echo $! >"$DAEMON_PID"
                wait $!
        done
}
export DAEMON_PID="$work/pid"
serve &
daemon=$!
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
# A benchmark session around what each engine does: what moved, on which path, in which layout. The report is among the logs.
session() {
        [ -x "$folder/client/bench/kvcache-bench" ] || return 0
        LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$folder/client/bench/kvcache-bench" session --socket "$KVSOCK" "$@"
}
engine() {
        program=vllm_gpu.py
        case $1 in traffic-*) program=vllm_traffic.py ;; esac
        case $1 in *-second) ;; *) session init --force "$1" >>"$logs/session.log" 2>&1 ;; esac
        timeout "${LIMIT:-150}" python3 "$here/$program" "${1#traffic-}" >"$logs/$1.log" 2>&1
        echo "$1: status $?, $(cut -d' ' -f1 /proc/uptime) s up"
        grep -E '^(figure|tokens|disk only)|kvcache.*(WARN|INFO)|Error|assert' "$logs/$1.log" | tail -n 16 | cut -c1-240
        case $1 in *-second | *fs | *cpu | *none) ;; *) session report "$1" >"$logs/$1.report" ;; esac
}
for kind in ${KINDS:-cpu spec spec-restart kvcache restart fs}; do
        if [ $kind = spec ]; then # and a second engine, while the first is there
                export BESIDE="$work/beside"
                : >"$BESIDE"
                engine spec &
                first=$!
                while kill -0 $first 2>/dev/null && [ "$(cat "$BESIDE")" != ready ]; do sleep 0.2; done
                kill -0 $first 2>/dev/null && engine spec-second
                rm -f "$BESIDE"
                wait $first
        else
                engine $kind
        fi
done
echo "answers: $(grep -h '^tokens' "$logs"/*.log | cut -d' ' -f3- | sort -u | wc -l) different answer(s)"
tail -n 4 "$logs/daemon.log"
