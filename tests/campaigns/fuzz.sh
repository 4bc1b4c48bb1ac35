#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz: each fuzzer, on its corpus and from there on its own, for COUNT executions: tests/campaigns/fuzz.sh --build DIR
# [--count N] [--seed S]. Needs clang with libFuzzer; builds them in DIR-fuzz, with ASan and UBSan. One run is one
# execution. KVCACHE_FUZZERS names some of them only ("wire http"). What fails is left in DIR-fuzz, and how to repeat it
# is said.
set -u

build='' count=20000 seed=1
while [ $# -gt 0 ]; do
        case $1 in
        --build) build=$2; shift ;;
        --count) count=$2; shift ;;
        --seed) seed=$2; shift ;;
        *) echo "fuzz.sh: unknown option $1" >&2; exit 2 ;;
        esac
        shift
done
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
[ -n "$build" ] || { echo "fuzz.sh: --build is missing" >&2; exit 2; }
build=$build-fuzz
command -v clang >/dev/null 2>&1 || { echo "campaign fuzz: skipped, there is no clang"; exit 77; }
mkdir -p "$build" || exit 1
if ! { [ -f "$build/build.ninja" ] || CC=clang meson setup -Dfuzzers=true -Dtests=disabled -Db_sanitize=address,undefined \
        -Db_lundef=false "$build" "$root"; } >"$build/run.log" 2>&1 || ! ninja -C "$build" >>"$build/run.log" 2>&1; then
        grep -v '^\[' "$build/run.log" | tail -n 30
        echo "campaign fuzz: 0 runs, 0 wrong, 0 lost, 1 hung"
        exit 1
fi
# Short stacks and little memory held back after free(): half of the time else.
ASAN_OPTIONS="malloc_context_size=3:quarantine_size_mb=16:thread_local_quarantine_size_kb=64${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export ASAN_OPTIONS UBSAN_OPTIONS
runs=0 wrong=0 hung=0
for fuzzer in "$build"/tests/fuzz/fuzz-*; do
        { [ -f "$fuzzer" ] && [ -x "$fuzzer" ]; } || continue
        name=${fuzzer##*/fuzz-}
        case " ${KVCACHE_FUZZERS-$name} " in *" $name "*) ;; *) continue ;; esac
        mkdir -p "$build/found/$name"
        # Reckoning how rare each of so many features is would take most of the time.
        case $name in session | store) schedule=-entropic=0 ;; *) schedule=-entropic=1 ;; esac
        began=$(date +%s)
        "$fuzzer" -runs="$count" -seed="$seed" "$schedule" -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$build/found/$name." \
                -print_final_stats=1 "$build/found/$name" "$root/tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1 </dev/null
        status=$?
        done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log" | tail -n 1)
        runs=$((runs + ${done:-0}))
        echo "fuzz-$name: ${done:-0} executions in $(($(date +%s) - began)) s"
        if [ $status -ne 0 ]; then
                if grep -q 'ERROR: libFuzzer: timeout' "$build/$name.log"; then hung=$((hung + 1)); else wrong=$((wrong + 1)); fi
                tail -n 25 "$build/$name.log"
                echo "again: $fuzzer $(ls -t "$build/found/$name."* 2>/dev/null | head -n 1)"
        fi
done
echo "campaign fuzz: $runs runs, $wrong wrong, 0 lost, $hung hung"
[ $runs -gt 0 ] && [ $((wrong + hung)) -eq 0 ]
