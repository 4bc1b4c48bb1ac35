#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared tier over engines as people run them: a small Ceph on this host (tests/fleet/ceph.sh), RGW on it, a directory.
#
#     run.sh BUILD [--long] [--no-install] [PYTEST-OPTIONS]
#
# --long: 100 rounds of kills, in the place of 5. Installs Ceph's packages (300 MB) where it may; what cannot be had is skipped, with
# its reason. The last line is "N passed, N failed, N skipped".
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$1
shift
install=1
while [ $# -gt 0 ]; do
        case $1 in
        --long) export KVCACHE_FLEET_ROUNDS="${KVCACHE_FLEET_ROUNDS-100}" ;;
        --no-install) install=0 ;;
        *) break ;;
        esac
        shift
done

if [ $install = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ceph-mon ceph-mgr ceph-osd ceph-common radosgw \
                librados2 libcurl4 curl fio iproute2 nftables >"$build/fleet-install.log" 2>&1 </dev/null
fi
for python in /usr/bin/python3 python3 ''; do
        [ -n "$python" ] && "$python" -c 'import pytest' 2>/dev/null && break
done
if [ -z "$python" ]; then
        echo "fleet: skipped, pytest is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 77
fi
unset KVCACHE_SOCKET
export KVCACHE_BUILD="$build"
rm -f "$build/pytest-fleet.xml"
(cd "$root" && "$python" -m pytest -q --tb=short --no-header -rs -p no:cacheprovider --junitxml="$build/pytest-fleet.xml" "$@" \
        tests/fleet) </dev/null
status=$?
exec "$python" - "$build/pytest-fleet.xml" $status <<'END'
import sys
import xml.etree.ElementTree as ElementTree

worst = {}  # of each test: its call and its teardown may both fail
try:
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        how = 2 if tags & {"failure", "error"} else 1 if "skipped" in tags else 0
        name = (case.get("classname"), case.get("name"))
        worst[name] = max(worst.get(name, 0), how)
except (OSError, ElementTree.ParseError):
    pass
passed, skipped, failed = (sum(how == kind for how in worst.values()) for kind in range(3))
if sys.argv[2] != "0" and failed == 0:
    failed = 1
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0 or passed == 0)
END
