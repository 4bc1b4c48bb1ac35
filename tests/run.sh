#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, runs the tests of a tier and counts them. The last line is "N passed, N failed, N skipped";
# the exit status is 0 only if something ran and nothing failed. tests/suite/ runs the tiers; tests/README.md describes them.
set -u

usage() {
        cat <<'END'
usage: tests/run.sh [OPTIONS]

Without options: a build, the unit tests, the checks of the tree and one test of the daemon per file, in three to five minutes on
four cores.

Tiers:
  --all                  every test, with and without ASan and UBSan: about an hour on two cores
  --submission           the tests that every change must pass, as CI runs them: about 20 minutes on two cores
  --nightly              everything, and what takes long: TSan on the daemon, delays, ten minutes of each fuzzer, an -O0 build,
                         campaigns, mutants: hours
  --long                 --all with the long form of tests that have one, then every campaign with its long count: days

How the tests are built and run:
  --sanitize asan|tsan   build with AddressSanitizer and UBSan, or with ThreadSanitizer
  --delays               simulate a machine that is slow at random: threads sleep for up to 40 ms where they begin, wake and make
                         calls (tests/lib/delays.c)
  --daemon-only          leave out the unit tests, and do not build them in a new folder
  --werror               treat compiler warnings as errors
  --build-dir DIR        build there (default: build-test, build-test-asan, build-test-tsan)
  --no-install           do not install anything

Other tests, each instead of a tier:
  --campaign NAME        run a campaign (tests/campaigns/run.sh lists them); its last line is "campaign NAME: N runs, 0 wrong,
                         0 lost, 0 hung", or it says what failed
  --count N, --seed S    number of runs and first seed of a campaign; with --long: of every campaign
  --gpu                  the tests that need a GPU (tests/gpu/on-gpu.sh); skipped where there is none
  --engines              the engines' own code (vLLM, SGLang, LMCache, llama.cpp) over a real daemon, on the CPU
                         (tests/engines/run.sh); skipped where there is no package index
  --containers           the Containerfile in a chroot and its image under runc as in conf/kubernetes/ (tests/containers/run.sh);
                         needs root, debootstrap and a mirror of Debian, else it is skipped
  --packages             Debian's packages, built, installed, upgraded and removed in a root of their own (tests/packages/run.sh);
                         minutes, as root; skipped without debootstrap and debhelper
  --fleet                the shared tier over a small Ceph on this host, its gateway for S3, and a directory (tests/fleet/run.sh);
                         installs Ceph's packages as root; skipped where it cannot be installed. --long: 100 rounds of kills, not 5

  -h, --help             print this

CC and CFLAGS are used as meson uses them when the folder is new.
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
tier=default sanitize='' delays=0 long=0 install=1 other='' build='' campaign='' count='' seed='' options='' setup=''
while [ $# -gt 0 ]; do
        case $1 in
        --all | --submission | --nightly) tier=${1#--} ;;
        --long) long=1 tier=all ;;
        --sanitize) [ $# -gt 1 ] || wrong_usage "--sanitize needs asan or tsan"; sanitize=$2; shift ;;
        --sanitize=*) sanitize=${1#*=} ;;
        --delays) delays=1; options="$options --delays" ;;
        --gpu | --engines | --containers | --packages | --fleet) other=${1#--} ;;
        --campaign) [ $# -gt 1 ] || wrong_usage "--campaign needs a name"; campaign=$2; shift ;;
        --campaign=*) campaign=${1#*=} ;;
        --count) [ $# -gt 1 ] || wrong_usage "--count needs a number"; count=$2; shift ;;
        --count=*) count=${1#*=} ;;
        --seed) [ $# -gt 1 ] || wrong_usage "--seed needs a number"; seed=$2; shift ;;
        --seed=*) seed=${1#*=} ;;
        --daemon-only) options="$options --daemon-only" setup="$setup -Dunit_tests=false" ;;
        --werror) options="$options --werror" setup="$setup --werror" ;;
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

# --- what is missing ---

wanted='--tests'
case $tier in
submission | all | nightly) wanted="$wanted --sanitizers" ;;
esac
case $other in
packages)
        wanted=''
        for package in debhelper debootstrap dh-python dpkg-dev fakeroot lintian systemd-container; do wanted="$wanted --package $package"; done
        ;;
containers) for package in debootstrap runc python3-yaml; do wanted="$wanted --package $package"; done ;;
esac
if [ -z "$other$campaign" ]; then
        case $tier in
        default) echo "This builds kvcache-daemon and runs its tests: three to five minutes on four cores." ;;
        submission) echo "This runs the tests that every change must pass: about 20 minutes on two cores." ;;
        all) [ $long = 1 ] || echo "This runs every test with and without a sanitizer: about an hour on two cores." ;;
        nightly) echo "This runs everything: hours." ;;
        esac
fi
if [ $install = 1 ]; then
        # shellcheck disable=SC2086 # a list of options
        if ! sh "$root/daemon/build-deps.sh" $wanted; then
                [ "$tier" = submission ] && die "A package of the submission tier could not be installed."
                echo "Some packages could not be installed. Tests that need them are skipped; --no-install does not try again."
        fi
fi
for modules in pytest,xdist pytest; do
        for python in /usr/bin/python3 python3 ''; do
                [ -n "$python" ] && "$python" -c "import $modules" 2>/dev/null && break 2
        done
done
: "${python:=python3}"

# Prometheus and promtool are taken out of their package, which would bring a service along.
if [ $install = 1 ] && [ "$tier" != default ] && command -v apt-get >/dev/null 2>&1 && ! command -v prometheus >/dev/null 2>&1 &&
        [ ! -x "$build/tools/usr/bin/prometheus" ]; then
        mkdir -p "$build/tools"
        (cd "$build/tools" && apt-get download -q prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb |
                tar -x ./usr/bin/promtool ./usr/bin/prometheus; rm -f prometheus_*.deb) >/dev/null 2>&1 </dev/null
fi
PATH=$PATH:$build/tools/usr/bin
export PATH

# Installs Python packages that Debian lacks, or has in another version, into a folder. Without them, their tests are skipped.
python_tools() {
        folder=$build/tools/$1
        shift
        [ ! -d "$folder" ] || return 0
        mkdir -p "$build/tools" && rm -rf "$folder.new" &&
                "$python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --target "$folder.new" "$@" \
                >/dev/null 2>&1 </dev/null && mv "$folder.new" "$folder"
}

# Helm's engine, the schemas of Kubernetes and Compose, the checker of types, the generator of the site, and what renders manual pages and
# tries completions.
if [ $install = 1 ] && [ "$tier" != default ] && [ -z "$other$campaign" ]; then
        python_tools python helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 check-jsonschema==0.39.0
        python_tools types mypy==2.4.1
        python_tools book mkdocs-material==9.8.2
        sh "$root/daemon/build-deps.sh" --package groff --package zsh --package fish ||
                echo "Tests of the types, of the site, or of completions in these shells, are skipped."
fi

# --- tests of other kinds ---

# Runs a script whose exit status is 0, or 77 if it was skipped.
other_tests() {
        "$@"
        case $? in
        0 | 77) exit 0 ;;
        *) exit 1 ;;
        esac
}

case $other in
packages) exec sh "$root/tests/packages/run.sh" ;;
containers) other_tests sh "$root/tests/containers/run.sh" "$build/containers" ;;
esac

export UBSAN_OPTIONS="${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS-halt_on_error=1:die_after_fork=0}"
unset KVCACHE_SOCKET # tests see neither the caller's daemon nor its settings
if [ -n "$other$campaign" ] || [ $long = 1 ]; then
        mkdir -p "$build" || die "$build cannot be made"
        log=$build/run.log
        if [ ! -f "$build/build.ninja" ]; then
                # shellcheck disable=SC2086 # $setup is a list of options
                meson setup $setup "$build" "$root" >"$log" 2>&1 || { tail -n 30 "$log"; die "meson setup failed"; }
        fi
        echo "Building in ${build#"$root"/}"
        ninja -C "$build" >"$log" 2>&1 || { grep -v '^\[' "$log" | tail -n 60; die "the build failed: $log"; }
        grep -A 8 'warning:' "$log"
fi
case $other in
gpu)
        sh "$root/tests/gpu/on-gpu.sh" "$build"
        case $? in
        0) echo "1 passed, 0 failed, 0 skipped" ;;
        77) echo "0 passed, 0 failed, 1 skipped" ;;
        *) die "the tests on the GPU failed" ;;
        esac
        exit 0
        ;;
engines) other_tests sh "$root/tests/engines/run.sh" "$build" ;;
fleet)
        set --
        [ $long = 1 ] && set -- --long
        [ $install = 1 ] || set -- "$@" --no-install
        other_tests sh "$root/tests/fleet/run.sh" "$build" "$@"
        ;;
esac
if [ -n "$campaign" ]; then
        longer=''
        [ $long = 1 ] && longer=--long
        # shellcheck disable=SC2086 # one option or none
        exec sh "$root/tests/campaigns/run.sh" "$campaign" --build "$build" $longer ${count:+--count "$count"} ${seed:+--seed "$seed"}
fi

# --- a tier ---

[ -n "$sanitize" ] && options="$options --sanitize $sanitize"
if [ $long = 0 ]; then
        # shellcheck disable=SC2086 # a list of options
        exec "$python" "$root/tests/suite/suite.py" --tier "$tier" --build-dir "$build" $options
fi

# Every campaign follows, one after the other; a failed campaign does not keep the others from running.
export KVCACHE_TEST_LONG=1
# shellcheck disable=SC2086 # a list of options
sums=$("$python" "$root/tests/suite/suite.py" --tier all --build-dir "$build" $options)
echo "$sums"
sh "$root/tests/campaigns/run.sh" all --build "$build" ${count:+--count "$count"} ${seed:+--seed "$seed"} | tee "$build/campaigns.log"

# Adds "N passed, N failed, N skipped", of the tests or of the campaigns. A run without such a line has failed.
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
