#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the missing packages of a build with apt-get, as root or through sudo; elsewhere names them. Prints nothing and exits 0
# if nothing is missing; exits 1 if something still is.
#
#   --tests            also the packages of the tests
#   --sanitizers       also clang with its runtime, clang-format, ccache and systemd-analyze
#   --package NAME     also this package of Debian; may be repeated
#   --list             only print the missing packages, on one line
set -u

tests=0 sanitizers=0 list=0 packages=''
while [ $# -gt 0 ]; do
        case $1 in
        --tests) tests=1 ;;
        --sanitizers) sanitizers=1 ;;
        --list) list=1 ;;
        --package) [ $# -gt 1 ] || exit 2; packages="$packages $2"; shift ;;
        *) echo "build-deps.sh: unknown option $1; the options are --tests, --sanitizers, --package NAME and --list" >&2; exit 2 ;;
        esac
        shift
done

for_build() {
        { command -v cc && echo 'int main(void) { return 0; }' | cc -x c -include stdio.h -o /dev/null -; } >/dev/null 2>&1 ||
                echo gcc libc6-dev
        command -v meson >/dev/null 2>&1 || echo meson
        command -v ninja >/dev/null 2>&1 || echo ninja-build
        command -v pkg-config >/dev/null 2>&1 || echo pkg-config
        for pair in libevent_core:libevent-dev liburing:liburing-dev yaml-0.1:libyaml-dev libsystemd:libsystemd-dev \
                libcjson:libcjson-dev libisal:libisal-dev libmd:libmd-dev; do
                pkg-config --exists "${pair%%:*}" 2>/dev/null || echo "${pair#*:}"
        done
}

for_tests() {
        pkg-config --exists cmocka 2>/dev/null || echo libcmocka-dev
        pkg-config --exists libzmq 2>/dev/null || echo libzmq3-dev
        # The package that depends on libcurl.so.4 has one name in all releases; the library's own package has several.
        PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libcurl\.so\.4' || echo curl
        /usr/bin/python3 -c 'import yaml' 2>/dev/null || echo python3-yaml
        for python in /usr/bin/python3 python3; do
                "$python" -c 'import pytest, xdist' 2>/dev/null && return
        done
        echo python3 python3-pytest python3-pytest-xdist
}

for_sanitizers() {
        echo 'int LLVMFuzzerTestOneInput(const char *d, long n); int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }' |
                clang -x c -fsanitize=fuzzer,address -o /dev/null - >/dev/null 2>&1 || echo clang libclang-rt-dev
        command -v clang-format >/dev/null 2>&1 || echo clang-format
        command -v ccache >/dev/null 2>&1 || echo ccache
        command -v systemd-analyze >/dev/null 2>&1 || echo systemd
}

# Prints Debian's name of each missing package.
missing() {
        for_build
        [ $tests = 0 ] || for_tests
        [ $sanitizers = 0 ] || for_sanitizers
        for package in $packages; do
                dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
        done
}

# Runs apt-get, and waits up to ten minutes for another process that holds one of its locks.
apt() {
        tries=0
        while :; do
                # shellcheck disable=SC2086 # $sudo is empty or a word
                $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@" >"$log" 2>&1 </dev/null && return 0
                tries=$((tries + 1))
                [ $tries -lt 120 ] && grep -q 'Could not get lock' "$log" || return 1
                sleep 5
        done
}

wanted=$(missing | tr '\n' ' ')
if [ $list = 1 ]; then
        [ -z "$wanted" ] || echo "${wanted% }"
        exit 0
fi
[ -n "$wanted" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
        echo "These packages are needed, by Debian's names; install them with the package manager of this system:" >&2
        echo "  $wanted" >&2
        exit 1
fi
if [ "$(id -u)" = 0 ]; then
        sudo=
elif command -v sudo >/dev/null 2>&1; then
        sudo=sudo
else
        echo "These packages are missing, and only root can install them: apt-get install $wanted" >&2
        exit 1
fi

echo "Installing $wanted"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # $wanted is a list
{ apt update -q && apt install -q -y --no-install-recommends $wanted; } || tail -n 20 "$log" >&2

wanted=$(missing | tr '\n' ' ')
[ -z "$wanted" ] && exit 0
echo "Still missing: $wanted" >&2
exit 1
