#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a build needs, and with --tests what the tests need: installs what is missing with apt-get where that is to be
# had (as root, or through sudo), else names it. Prints nothing when all is there. Exit 1: something is still missing.
set -u

tests=0
[ "${1-}" = --tests ] && tests=1

# Debian's name of each thing that is missing.
missing() {
        { command -v cc && echo 'int main(void) { return 0; }' | cc -x c -include stdio.h -o /dev/null -; } >/dev/null 2>&1 ||
                echo gcc libc6-dev
        command -v meson >/dev/null 2>&1 || echo meson
        command -v ninja >/dev/null 2>&1 || echo ninja-build
        command -v pkg-config >/dev/null 2>&1 || echo pkg-config
        for pair in libevent_core:libevent-dev liburing:liburing-dev yaml-0.1:libyaml-dev libsystemd:libsystemd-dev \
                libcjson:libcjson-dev libisal:libisal-dev libmd:libmd-dev; do
                pkg-config --exists "${pair%%:*}" 2>/dev/null || echo "${pair#*:}"
        done
        [ $tests = 1 ] || return
        pkg-config --exists cmocka 2>/dev/null || echo libcmocka-dev
        # libcurl.so.4, by the package that depends on it under whatever name it has
        PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libcurl\.so\.4' || echo curl
        /usr/bin/python3 -c 'import yaml' 2>/dev/null || echo python3-yaml
        for python in /usr/bin/python3 python3; do
                "$python" -c 'import pytest, xdist' 2>/dev/null && return
        done
        echo python3 python3-pytest python3-pytest-xdist
}

wanted=$(missing | tr '\n' ' ')
[ -n "$wanted" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
        echo "These are needed, by Debian's names; please install them with this system's package manager:" >&2
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
# shellcheck disable=SC2086 # $sudo is empty or a word, $wanted a list
{
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $wanted
} >"$log" 2>&1 </dev/null || tail -n 20 "$log" >&2

wanted=$(missing | tr '\n' ' ')
[ -z "$wanted" ] && exit 0
echo "Still missing: $wanted" >&2
exit 1
