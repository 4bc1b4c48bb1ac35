#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One command: install what is missing, build, run every test, count. The last line is "N passed, N failed, N skipped";
# the exit status is 0 only if something ran and nothing failed.
set -u

usage() {
        cat <<'END'
usage: tests/run.sh [OPTIONS]

  --sanitize asan|tsan   build with AddressSanitizer and UBSan, or with ThreadSanitizer; the daemon's tests of which a sanitizer
                         sees nothing new (tests/left_out.py) do not run
  --all                  they do
  --delays               as on a machine that is slow at random: threads sleep for up to 40 ms where they begin, wake and make calls
                         (tests/lib/delays.c); half an hour, of which little is computing. Without what measures
  --long                 the long form of tests that have one, then every campaign with its long count: days
  --campaign NAME        run a campaign instead (tests/campaigns/run.sh lists them); its last line is
                         "campaign NAME: N runs, 0 wrong, 0 lost, 0 hung", or it says what failed
  --gpu                  instead, what only a GPU can show (tests/gpu/on-gpu.sh); skipped where there is none
  --engines              instead, the engines' own code (vLLM, SGLang, LMCache, llama.cpp) over a real daemon, on the CPU
                         (tests/engines/run.sh); skipped where there is no package index
  --containers           instead, the Containerfile in a chroot, and what it makes under runc as conf/kubernetes/ has it
                         (tests/containers/run.sh); needs root, debootstrap and a mirror of Debian, else it is skipped
  --packages             instead, Debian's packages: built, and installed, upgraded and removed in a root of their own (tests/packages/run.sh);
                         minutes, as root; skipped where debootstrap and debhelper cannot be had
  --fleet                instead, the shared tier over a small Ceph on this host, its gateway for S3, and a directory (tests/fleet/run.sh);
                         installs Ceph's packages as root; skipped where it cannot be had. --long: 100 rounds of kills, not 5
  --count N              so many runs of it; with --long: of every campaign
  --seed S               from this seed on
  --daemon-only          without the unit tests, which are not built where the folder is new
  --werror               a warning of the compiler is an error
  --build-dir DIR        build there (default: build-test, build-test-asan, build-test-tsan)
  --no-install           do not install anything
  -h, --help             print this

CC and CFLAGS are used as meson uses them, when the folder is new.
END
}

die() {
        echo "$*" >&2
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
}

wrong_usage() {
        echo "run.sh: $*" >&2
        usage >&2
        exit 2
}

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
sanitize='' delays=0 long=0 install=1 gpu=0 engines=0 containers=0 packages=0 fleet=0 unit=1 build='' setup='' campaign='' count='' seed=''
while [ $# -gt 0 ]; do
        case $1 in
        --sanitize) [ $# -gt 1 ] || wrong_usage "--sanitize needs asan or tsan"; sanitize=$2; shift ;;
        --sanitize=*) sanitize=${1#*=} ;;
        --all) export KVCACHE_TEST_ALL=1 ;;
        --delays) delays=1 ;;
        --long) long=1 ;;
        --gpu) gpu=1 ;;
        --engines) engines=1 ;;
        --containers) containers=1 ;;
        --packages) packages=1 ;;
        --fleet) fleet=1 ;;
        --campaign) [ $# -gt 1 ] || wrong_usage "--campaign needs a name"; campaign=$2; shift ;;
        --campaign=*) campaign=${1#*=} ;;
        --count) [ $# -gt 1 ] || wrong_usage "--count needs a number"; count=$2; shift ;;
        --count=*) count=${1#*=} ;;
        --seed) [ $# -gt 1 ] || wrong_usage "--seed needs a number"; seed=$2; shift ;;
        --seed=*) seed=${1#*=} ;;
        --daemon-only) unit=0 setup="$setup -Dtests=disabled" ;;
        --werror) setup="$setup --werror" ;;
        --build-dir) [ $# -gt 1 ] || wrong_usage "--build-dir needs a folder"; build=$2; shift ;;
        --no-install) install=0 ;;
        -h | --help) usage; exit 0 ;;
        *) wrong_usage "unknown option $1" ;;
        esac
        shift
done
case $sanitize in
'') : "${build:=$root/build-test}" ;;
asan) setup="$setup -Db_sanitize=address,undefined -Db_lundef=false"; : "${build:=$root/build-test-asan}" ;;
tsan) setup="$setup -Db_sanitize=thread -Db_lundef=false"; : "${build:=$root/build-test-tsan}" ;;
*) wrong_usage "--sanitize $sanitize: asan and tsan are known" ;;
esac
case $build in
/*) ;;
*) build=$PWD/$build ;;
esac
[ $delays = 0 ] || [ -z "$sanitize" ] || wrong_usage "--delays is for a build without a sanitizer"
[ -n "$campaign" ] || [ $long = 1 ] || [ -z "$count$seed" ] || wrong_usage "--count and --seed are for a campaign"

if [ $packages = 1 ]; then
        if [ $install = 1 ]; then
                sh "$root/daemon/build-deps.sh" || die "What the build needs could not be installed."
                if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
                        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
                                debhelper debootstrap dh-python dpkg-dev fakeroot lintian systemd-container >/dev/null 2>&1 </dev/null
                fi
        fi
        exec sh "$root/tests/packages/run.sh"
fi

if [ $install = 1 ]; then
        sh "$root/daemon/build-deps.sh" --tests || die "What the tests need could not be installed."
fi
for modules in pytest,xdist pytest; do
        for python in /usr/bin/python3 python3 ''; do
                [ -n "$python" ] && "$python" -c "import $modules" 2>/dev/null && break 2
        done
done

# It builds for itself, from the sources.
if [ $containers = 1 ]; then
        if [ $install = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
                env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap runc python3-yaml \
                        >/dev/null 2>&1 </dev/null
        fi
        sh "$root/tests/containers/run.sh" "$build/containers"
        case $? in
        0 | 77) exit 0 ;;
        *) exit 1 ;;
        esac
fi

# --- build ---

mkdir -p "$build" || die "$build cannot be made"
log=$build/run.log
: >"$log"
if [ ! -f "$build/build.ninja" ]; then
        # shellcheck disable=SC2086 # $setup is a list of options
        meson setup $setup "$build" "$root" >"$log" 2>&1 || { tail -n 30 "$log"; die "meson setup failed"; }
fi
echo "Building in ${build#"$root"/}"
ninja -C "$build" >"$log" 2>&1 || { grep -v '^\[' "$log" | tail -n 60; die "the build failed: $log"; }
grep -A 8 'warning:' "$log"

if [ $gpu = 1 ]; then
        sh "$root/tests/gpu/on-gpu.sh" "$build"
        case $? in
        0) echo "1 passed, 0 failed, 0 skipped" ;;
        77) echo "0 passed, 0 failed, 1 skipped" ;;
        *) die "the tests on the GPU failed" ;;
        esac
        exit 0
fi

if [ $engines = 1 ]; then
        sh "$root/tests/engines/run.sh" "$build"
        case $? in
        0 | 77) exit 0 ;;
        *) exit 1 ;;
        esac
fi

if [ $fleet = 1 ]; then
        set --
        [ $long = 1 ] && set -- --long
        [ $install = 1 ] || set -- "$@" --no-install
        sh "$root/tests/fleet/run.sh" "$build" "$@"
        case $? in
        0 | 77) exit 0 ;;
        *) exit 1 ;;
        esac
fi

if [ -n "$campaign" ]; then
        longer=''
        [ $long = 1 ] && longer=--long
        # shellcheck disable=SC2086 # one option or none
        export UBSAN_OPTIONS="${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}"
        export TSAN_OPTIONS="${TSAN_OPTIONS-halt_on_error=1}"
        exec sh "$root/tests/campaigns/run.sh" "$campaign" --build "$build" $longer ${count:+--count "$count"} ${seed:+--seed "$seed"}
fi

# Programs that some tests use when they are there. Prometheus and promtool are taken out of their package, which would
# bring a service along.
if [ $install = 1 ] && command -v apt-get >/dev/null 2>&1; then
        if ! command -v prometheus >/dev/null 2>&1 && [ ! -x "$build/tools/usr/bin/prometheus" ]; then
                mkdir -p "$build/tools"
                (cd "$build/tools" && apt-get download -q prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb |
                        tar -x ./usr/bin/promtool ./usr/bin/prometheus; rm -f prometheus_*.deb) >>"$log" 2>&1 </dev/null
        fi
        if ! command -v systemd-analyze >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
                env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends systemd >>"$log" 2>&1 </dev/null
        fi
fi
PATH=$PATH:$build/tools/usr/bin

# --- run ---

export KVCACHE_BUILD="$build"
[ $long = 1 ] && export KVCACHE_TEST_LONG=1
export UBSAN_OPTIONS="${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS-halt_on_error=1}"
rm -f "$build/meson-logs/testlog.json" "$build/pytest.xml" "$build/pytest-serial.xml"

# The folder's tests see neither the caller's daemon nor its settings.
unset KVCACHE_SOCKET

multiplier=1 left_out='' at_once=$(($(nproc) + 1)) preload=''
[ -n "$sanitize" ] && multiplier=4 left_out='--no-suite tree' # checks of the sources, whatever they are compiled with
if [ $delays = 1 ]; then
        multiplier=4 left_out='--suite unit --suite campaign-threads' at_once=$((3 * $(nproc)))
        preload=$build/tests/delays.so
        export KVCACHE_TEST_SLOW="${KVCACHE_TEST_SLOW-3}"
fi
[ $long = 1 ] && multiplier=20
unit_status=0
if [ $unit = 1 ]; then
        echo "Running the unit tests"
        # shellcheck disable=SC2086 # a list of options
        ${preload:+env LD_PRELOAD="$preload"} meson test -C "$build" --no-rebuild --num-processes $at_once --timeout-multiplier $multiplier $left_out >"$log" 2>&1 </dev/null
        unit_status=$?
fi

# daemon_tests RESULTS OPTIONS...: a test that hangs ends all of them, by an interrupt; what ran until then is still counted.
limit_s=1800
[ $delays = 1 ] && limit_s=7200
[ $long = 1 ] && limit_s=86400
daemon_tests() {
        results=$1
        shift
        (cd "$root" && ${preload:+env LD_PRELOAD="$preload"} timeout -s INT -k 60 $limit_s "$python" -m pytest -qq --tb=short --no-header --no-summary -p no:cacheprovider -o junit_logging=out-err \
                --junitxml="$build/$results" "$@" tests/python tests/kvbench tests/daemon) </dev/null
}

# They wait as much as they compute: two processes more than there are processors. A file is in one process, and the last files of tests/daemon
# are short, so that no process has a long one to itself at the end. What measures runs alone afterwards.
daemon_status=none
if [ -n "$python" ]; then
        processes=$(($(nproc) < 7 ? $(nproc) + 2 : 8))
        [ $delays = 1 ] && processes=$at_once
        in_parallel="-n $processes --dist loadfile"
        [ "$modules" = pytest ] && in_parallel=''
        export KVCACHE_TEST_MOVED="$build/moved-metrics"
        : >"$KVCACHE_TEST_MOVED"
        echo "Running the daemon tests"
        # shellcheck disable=SC2086 # a list of options
        daemon_tests pytest.xml $in_parallel -m 'not serial'
        daemon_status=$?
        if [ $delays = 0 ]; then
                daemon_tests pytest-serial.xml -m serial
                daemon_status=$daemon_status,$?
        fi
        echo
fi
if [ $long = 0 ]; then
        exec "${python:-python3}" "$root/tests/lib/sum-up.py" "$build" $unit_status $daemon_status
fi

# --- every campaign, one after the other: one that finds something does not keep the others from running ---

sums=$("${python:-python3}" "$root/tests/lib/sum-up.py" "$build" $unit_status $daemon_status)
echo "$sums"
sh "$root/tests/campaigns/run.sh" all --build "$build" ${count:+--count "$count"} ${seed:+--seed "$seed"} | tee "$build/campaigns.log"

# "N passed, N failed, N skipped", of the tests and of the campaigns, as one. What did not live to say it has failed.
add_up() {
        passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1})) skipped=$((skipped + ${3:-0}))
}
counts='s/^\(campaigns: \)\{0,1\}\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\2 \3 \4/p'
passed=0 failed=0 skipped=0
# shellcheck disable=SC2046 # three numbers, or none
add_up $(echo "$sums" | tail -n 1 | sed -n "$counts")
# shellcheck disable=SC2046
add_up $(tail -n 1 "$build/campaigns.log" | sed -n "$counts")
echo "$passed passed, $failed failed, $skipped skipped"
[ $passed -gt 0 ] && [ $failed -eq 0 ]
