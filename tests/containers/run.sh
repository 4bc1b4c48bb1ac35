#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Containerfile and conf/kubernetes/, without a builder and without a cluster: the lines of the one are run in a chroot, and what
# they make is run under runc as the others say. The Debian root comes from debootstrap, by the mirror that this host's apt uses.
#
#     run.sh FOLDER
#
# FOLDER keeps the Debian root for the next run; 1.2 GB, and four minutes at first. Skips, with 77 and a reason, where something is
# missing. The last line is "N passed, N failed, N skipped".
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$1

skip() {
        echo "containers: skipped, $1"
        echo "0 passed, 0 failed, 1 skipped"
        exit 77
}
fail() {
        echo "containers: $1"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
}
[ "$(id -u)" = 0 ] || skip "only root can chroot"
command -v debootstrap >/dev/null 2>&1 || skip "debootstrap is not installed"
for python in /usr/bin/python3 python3 ''; do
        [ -n "$python" ] && "$python" -c 'import yaml' 2>/dev/null && break
done
[ -n "$python" ] || skip "python3-yaml is not installed"
unshare --mount --pid --fork true 2>/dev/null || skip "this container may not make namespaces"
mkdir -p "$folder/image" || fail "$folder cannot be made"
folder=$(cd "$folder" && pwd) || exit 1

base=$folder/bookworm
if [ ! -f "$base/etc/debian_version" ]; then
        # shellcheck disable=SC2016 # apt replaces these
        mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
                sed -n 's/^Debian main //p' | grep -v security | head -n 1)
        [ -n "$mirror" ] || skip "this host's apt has no mirror of Debian"
        echo "Making a Debian root"
        rm -rf "$base.new"
        timeout 900 debootstrap --variant=minbase bookworm "$base.new" "$mirror" >"$folder/log" 2>&1 </dev/null || {
                tail -n 5 "$folder/log"
                skip "debootstrap did not succeed: $folder/log"
        }
        # As in the images of Debian: apt keeps neither packages nor caches.
        cat >"$base.new/etc/apt/apt.conf.d/keep-nothing" <<'END'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
        rm -f "$base.new"/var/cache/apt/archives/*.deb "$base.new"/var/cache/apt/*.bin "$base.new"/var/lib/apt/lists/*_*
        mv "$base.new" "$base" || fail "$base cannot be made"
fi
cp -L /etc/resolv.conf "$base/etc/resolv.conf" 2>/dev/null

echo "Running the Containerfile"
timeout 1800 "$python" "$here/build.py" "$root/Containerfile" "$root" "$base" "$folder/image" >"$folder/log" 2>&1 || {
        tail -n 40 "$folder/log"
        fail "the Containerfile does not build"
}
exec "$python" "$here/try.py" "$folder/image" "$root" "$base"
