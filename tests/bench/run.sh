#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark: builds a release, then measures. Options are those of bench.py: --json, --quick, --only, --scaling,
# --dir, --help.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build-bench

case " $* " in
*" --help "* | *" -h "*) exec python3 "$root/tests/bench/bench.py" --build "$build" --help ;;
esac

for tool in meson ninja python3; do
        if ! command -v "$tool" >/dev/null 2>&1; then
                echo "run.sh: $tool is missing" >&2
                exit 1
        fi
done

if [ ! -f "$build/build.ninja" ]; then
        meson setup "$build" "$root" --buildtype=release >&2
fi
ninja -C "$build" daemon/kvcache-daemon client/bench/kvcache-bench tests/bench/measure tests/bench/measure-echo \
        tests/campaigns/many-entries >&2

exec python3 "$root/tests/bench/bench.py" --build "$build" "$@"
