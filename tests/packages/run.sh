#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The packages as an administrator meets them: built, checked by lintian, then in a fresh root of this Debian installed, upgraded twice
# and killed under traffic, downgraded, removed and purged, with systemd as its init. Where systemd-nspawn cannot boot it, that part is
# skipped. Needs root, and minutes.
#
#   run.sh [--built DIR] [--root DIR]
#
# --built: the packages of this version and the next are there, and are not built. --root: a root that debootstrap has made with
# systemd and dbus in it is there, and is copied.
# The last line is "N passed, N failed, N skipped". Exit 77, with a reason: this cannot be done here.
# All of it is in a temporary folder, which is removed; KVCACHE_PACKAGES_KEEP=1 leaves it.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
given='' built=''
while [ $# -gt 0 ]; do
        case $1 in
        --root) given=${2:?--root needs a folder} ;;
        --built) built=${2:?--built needs a folder} ;;
        *) echo "usage: run.sh [--built DIR] [--root DIR]" >&2; exit 2 ;;
        esac
        shift 2
done

skip() {
        echo "packages: skipped: $*"
        echo "0 passed, 0 failed, 1 skipped"
        exit 77
}

[ "$(id -u)" = 0 ] || skip "only root can make a root of its own"
for tool in debootstrap dpkg-buildpackage dh dh_python3 git lintian nsenter; do
        command -v $tool >/dev/null 2>&1 || skip "there is no $tool: apt-get install debootstrap dpkg-dev debhelper dh-python git lintian util-linux"
done
# shellcheck disable=SC1091 # a file of this host
codename=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || skip "what is built here fits this Debian, and this is none"

work=$(mktemp -d /var/tmp/kvcache-packages.XXXXXX) || exit 1
root=$work/root
nspawn='' leader='' passed=0 failed=0 skipped=0

end() {
        [ -n "$leader" ] && nsenter -t "$leader" -a systemctl poweroff >/dev/null 2>&1
        [ -n "$nspawn" ] && { timeout 30 tail --pid="$nspawn" -f /dev/null || kill -9 "$nspawn"; } 2>/dev/null
        if [ -n "${KVCACHE_PACKAGES_KEEP-}" ]; then
                echo "kept: $work"
        else
                rm -rf --one-file-system "$work"
        fi
}
trap end EXIT
trap 'exit 130' INT TERM

# check WHAT COMMAND...: counts it; of one that fails, shows what it printed
check() {
        what=$1
        shift
        if "$@" >"$work/output" 2>&1 </dev/null; then
                passed=$((passed + 1))
                echo "ok      $what"
        else
                failed=$((failed + 1))
                echo "FAILED  $what"
                tail -n 25 "$work/output" | sed 's/^/        /'
                return 1
        fi
}
finish() {
        echo "$passed passed, $failed failed, $skipped skipped"
        [ $failed -eq 0 ] && [ $passed -gt 0 ]
        exit
}
need() { check "$@" || finish; }

# --- the packages ---

# As git has it, uncommitted changes included.
source_tree() {
        mkdir -p "$tree" && cd "$top" || return 1
        if git rev-parse --git-dir >/dev/null 2>&1; then
                git ls-files -co --exclude-standard | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
        else # a tarball
                find . -type f ! -path './build*' ! -name '*.pyc'
        fi | tar -cf - -T - | tar -xf - -C "$tree" && git --git-dir="$work/git" init -q && of_git add -A
}
of_git() {
        git --git-dir="$work/git" --work-tree="$tree" -C "$tree" "$@"
}
# Checks that a build in a checkout leaves only files that git ignores.
leaves_nothing_to_commit() {
        left=$(of_git ls-files -o --exclude-standard) || return 1
        [ -z "$left" ] || { echo "$left"; return 1; }
}

# The same under the next version, where the last build has left it.
next_version() {
        cd "$tree" || return 1
        sed -i "s/^\( *version : '\)$version'/\1$next'/" meson.build
        sed -i "0,/^## $version.*/s//## $next - unreleased\n\n## $version - 2026-01-01/" CHANGELOG.md
        # What the package brings differs as well: an edited file and a changed one are when dpkg has to decide.
        sed -i '1s/$/\n# A comment of the next version./' conf/kvcache.yaml
        { sed -n "1s/($version)/($next)/p" debian/changelog; printf '\n  * The next version.\n\n'; sed -n '/^ -- /{p;q}' debian/changelog; echo
                cat debian/changelog; } >debian/changelog.new && mv debian/changelog.new debian/changelog
        python3 tests/check-version.py .
}

# build OPTIONS...: the unit tests have run where this runs
build() {
        [ -d /usr/lib/ccache ] && PATH=/usr/lib/ccache:$PATH
        (cd "$tree" && DEB_BUILD_PROFILES=nocheck DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" dpkg-buildpackage -us -uc "$@")
}
build_next() {
        rm -f "$tree/debian/debhelper-build-stamp" # the one that keeps -nc from building at all
        build --build=binary -nc
}

clean_of_lintian() {
        lintian --allow-root --display-info "$built"/kvcache-daemon_"$version"_*.changes >"$work/lintian" 2>&1
        cat "$work/lintian"
        ! grep -q '^[EWI]:' "$work/lintian"
}

# A program that is compiled with what libkvcache-dev has, and links with the library of libkvcache1.
examples_compile() {
        mkdir -p "$work/dev" && for p in libkvcache-dev libkvcache1; do dpkg-deb -x "$built/${p}_${version}"_*.deb "$work/dev" || return 1; done
        flags=$(PKG_CONFIG_SYSROOT_DIR=$work/dev PKG_CONFIG_LIBDIR=$(echo "$work"/dev/usr/lib/*/pkgconfig) pkg-config --cflags --libs kvcache) || return 1
        for example in blocking async-epoll registered-memory; do
                # shellcheck disable=SC2086 # a list of options
                cc -o "$work/dev/$example" "$work/dev/usr/share/doc/libkvcache-dev/examples/$example.c" $flags -ldl || return 1
                readelf -d "$work/dev/$example" | grep -q 'NEEDED.*libkvcache\.so\.1' || return 1
        done
}

# The files below /usr/share that the maintainer scripts name, and the guides that other guides link to, on the same host.
documents_exist() (
        mkdir -p "$work/daemon" && dpkg-deb -R "$built"/kvcache-daemon_"$version"_*.deb "$work/daemon" || exit 1
        for file in $(grep -oh '/usr/share/[a-zA-Z0-9/._-]*[a-z]' "$work"/daemon/DEBIAN/p*); do
                [ -e "$work/daemon$file" ] || { echo "a maintainer script names $file"; exit 1; }
        done
        cd "$work/daemon/usr/share/doc/kvcache-daemon" && [ -s README.md ] && [ -s conf/operations.md ] || exit 1
        find . -name '*.md' | while read -r page; do
                grep -o '](\([a-zA-Z./][a-zA-Z0-9/._-]*\)[)#]' "$page" | sed 's/^](//; s/.$//' | while read -r target; do
                        [ -e "$(dirname "$page")/$target" ] || { echo "$page links to $target"; exit 1; }
                done || exit 1
        done
)

version=$(sed -n "s/^ *version : '\([^']*\)'.*/\1/p" "$top/meson.build" | head -n 1)
next=${version%.*}.$((${version##*.} + 1))
if [ -z "$built" ]; then
        tree=$work/source/kvcache-daemon built=$work/source
        need "the tree, copied" source_tree
        need "build $version" build --build=full
        check "the build leaves nothing that git would add" leaves_nothing_to_commit
        check "lintian has nothing to say" clean_of_lintian
        need "the tree as the next version" next_version
        need "build $next" build_next
fi
check "programs are built with libkvcache-dev" examples_compile
check "scripts and guides name files of the packages" documents_exist

# --- a root, and an init in it ---

bootstrap() {
        if [ -n "$given" ]; then
                cp -a "$given" "$root"
        else
                # The mirror that this host's apt uses for this release; debootstrap's own if it has none by that name.
                # shellcheck disable=SC2016 # apt-get fills these in
                mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
                        sed -n "s/^$codename //p" | head -n 1)
                # shellcheck disable=SC2086 # a mirror or none
                debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus "$codename" "$root" $mirror
        fi
        proxy=$(apt-config shell proxy Acquire::http::Proxy) && eval "$proxy"
        [ -z "${proxy-}" ] || echo "Acquire::http::Proxy \"$proxy\";" >"$root/etc/apt/apt.conf.d/00proxy"
        mkdir "$root/packages" && cp "$built"/*_"$version"_*.deb "$built"/*_"$next"_*.deb "$root/packages"
        chroot "$root" systemctl mask console-getty.service >/dev/null 2>&1
        cp /etc/resolv.conf "$root/etc/resolv.conf" && chroot "$root" apt-get update -q
}

boot() {
        command -v systemd-nspawn >/dev/null 2>&1 || { echo "there is no systemd-nspawn: apt-get install systemd-container"; return 1; }
        systemd-nspawn -b -q -D "$root" --keep-unit --register=no --resolv-conf=off --machine="kvcache-$$" >"$work/boot.log" 2>&1 </dev/null &
        nspawn=$!
        tries=300
        while [ $((tries -= 1)) -gt 0 ] && kill -0 $nspawn 2>/dev/null; do
                leader=$(pgrep -P $nspawn | head -n 1)
                case $([ -n "$leader" ] && nsenter -t "$leader" -a systemctl is-system-running 2>/dev/null) in
                running | degraded) return 0 ;;
                esac
                sleep 0.2
        done
        kill -9 $nspawn 2>/dev/null
        nspawn='' leader=''
        tail -n 5 "$work/boot.log"
        return 1
}

need "a root with Debian $codename" bootstrap
if boot >"$work/output" 2>&1; then
        echo "systemd is the init of that root, in systemd-nspawn"
else
        sed 's/^/        /' "$work/output"
        echo "skipped: systemd cannot be booted here, and without it nothing is installed"
        skipped=$((skipped + 1))
        finish
fi

# inside COMMAND: by a shell of that root
inside() {
        nsenter -t "$leader" -a env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive sh -c "$1"
}
same() { [ "$(inside "$1")" = "$2" ] || { echo "$1: $(inside "$1" 2>&1), not $2"; return 1; }; }
no() { ! inside "$1"; }

install_daemon() {
        inside "cd /packages && apt-get install -q -y --allow-downgrades -o Dpkg::Options::=--force-confold ./kvcache-daemon_$1_*.deb ${2-}"
}
install_version() { install_daemon "$1" "./libkvcache1_$1_*.deb"; }
daemon_is() { same "kvcachectl status --json | sed -n 's/.*\"version\": *\"\([0-9.]*\)\".*/\1/p' | head -n 1" "$1"; }

# --- install ---

need "install" install_version "$version"
check "the service runs" inside 'systemctl is-active kvcache.service && systemctl is-enabled kvcache.service kvcache.socket'
check "no unit has failed" no 'systemctl --failed --no-legend | grep kvcache'
# But for what is the container's: its limit of locked memory, and the host's addresses.
check "the log of a first start has no warning" no 'journalctl -q -o cat -u kvcache.service -p warning | grep -v -e RLIMIT_MEMLOCK -e "^listen.http: "'
check "the daemon is of this version" daemon_is "$version"
check "the store is the daemon's alone" same 'stat -c "%a %U %G" /var/lib/kvcache' '700 kvcache kvcache'
check "a chunk is put and got" inside 'head -c 100000 /dev/urandom >/root/chunk && kvcachectl put --ack durable first /root/chunk && kvcachectl get first | cmp - /root/chunk'
check "a user who is not in the group cannot connect" no 'useradd stranger && runuser -u stranger -- kvcachectl ping --count 1'
check "one who is in it can" inside 'useradd -G kvcache engine && runuser -u engine -- kvcachectl ping --count 1'
check "man pages, completion, alerts and guides" inside 'dpkg -L kvcache-daemon | grep -q completions/kvcachectl && [ -s /usr/share/kvcache/prometheus/alerts.yaml ] &&
        [ -s /usr/share/kvcache/grafana/kvcache.json ] && dpkg -L kvcache-daemon | grep -q man5/kvcache.yaml.5.gz'
check "the store is one that this version opens" inside 'kvcachectl store check'

# --- the administrator's configuration, and upgrades ---

check "an edited configuration is read" inside "printf 'store:\n  limit: 256MiB\nmemory:\n  pool: 64MiB\n' >/etc/kvcache/kvcache.yaml && kvcache-daemon --check-config"
# With an empty store: the data file that the automatic limit has made is as large as all of this one.
check "the service restarts with it" inside 'systemctl stop kvcache.service && rm -f /var/lib/kvcache/* && systemctl start kvcache.service'
check "another chunk is put" inside 'kvcachectl put --ack durable kept /root/chunk && kvcachectl get kept | cmp - /root/chunk'
before=$(inside 'sha256sum /etc/kvcache/kvcache.yaml')
socket=$(inside 'systemctl show -P InvocationID kvcache.socket 2>/dev/null')
process=$(inside 'systemctl show -P MainPID kvcache.service 2>/dev/null')

check "the next version says of the store that it opens it" inside "dpkg-deb -x /packages/kvcache-daemon_${next}_*.deb /root/next && /root/next/usr/bin/kvcachectl store check"
# A field of the status: status_of '["pool"]["chunks"]'
status_of() { inside 'kvcachectl status --json' | python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }
# wait_for CONDITION: 60 s for an expression of the status, "s"
wait_for() {
        tries=300
        until inside 'kvcachectl status --json' 2>/dev/null | python3 -c "import json, sys; s = json.load(sys.stdin); sys.exit(0 if $1 else 1)" 2>/dev/null; do
                [ $((tries -= 1)) -gt 0 ] || { echo "in vain: $1"; inside 'kvcachectl status --json'; return 1; }
                sleep 0.2
        done
}
# Clients replay traffic meanwhile, as fast as they can: more blocks than the memory pool has room for, and fewer than the store has.
clients() {
        inside 'rm -f /root/stop /root/replays
                more=1
                while [ $more = 1 ]; do # the last one begins after the stop
                        [ ! -e /root/stop ] || more=0
                        kvcache-bench replay --json --synthetic chat --requests 2500 --block-bytes 16KiB --clients 4 --reconnect 60 >>/root/replays 2>/root/replay.log
                        echo "exit status $?" >>/root/replay.log
                done' &
        clients=$!
}
# clients_end RECONNECTS: so many at least. A block that is being moved when its connection ends is lost; nothing else may fail.
clients_end() {
        inside 'touch /root/stop'
        wait "$clients"
        inside 'cat /root/replay.log /root/replays' | cut -c 1-1000 | tail -n 20
        inside 'cat /root/replays' | python3 -c '
import json, sys
said = [json.loads(line) for line in sys.stdin]
wrong, errors, lost, reconnects = (sum(r[k] for r in said) for k in ("wrong_bytes", "errors", "lost", "reconnects"))
print(f"{len(said)} replays: {wrong} wrong bytes, {errors} errors, of which {lost} lost with a connection, {reconnects} reconnects")
sys.exit(0 if said and wrong == 0 and errors == lost and reconnects >= '"$1"' and said[-1]["exit_status"] == 0 else 1)'
}
# upgrade_under_traffic VERSION: the pool, which is full, is the next daemon's
upgrade_under_traffic() {
        wait_for 's["pool"]["live_bytes"] >= 0.9 * s["pool"]["bytes"]' || return 1
        chunks=$(status_of '["pool"]["chunks"]')
        install_version "$1"
}
# At least 95 % of what was in memory is taken over, and as much of it served from there, but for what clients put, read or evicted before it was
# verified: clients do not wait for that.
is_warm() {
        wait_for 's["kept_memory"]["chunks"] > 0 and s["kept_memory"]["pending"] == 0' || return 1
        replaced=$(inside "kvcachectl stats --all | awk '\$1 == \"kvcache_kept_chunks_total\" && \$2 == \"replaced\" { gsub(\",\", \"\", \$NF); print \$NF }'")
        kept=$(status_of '["kept_memory"]') && echo "$chunks chunks before; $replaced replaced; $kept" &&
                echo "        of $chunks chunks, ${replaced:-?} replaced before they were verified: $kept" >&3
        python3 -c "k = $kept; import sys; sys.exit(0 if k['chunks'] >= 0.95 * $chunks and k['verified'] >= 0.95 * ($chunks - $replaced) and k['damaged'] == 0 else 1)"
}
# The next version once more, under another number. libkvcache1 and the daemon are what an upgrade restarts.
third_version() {
        for package in kvcache-daemon libkvcache1; do
                set -- "$built/${package}_${next}"_*.deb
                rm -rf "$work/third" && dpkg-deb -R "$1" "$work/third" && sed -i "s/^Version: .*/Version: $third/" "$work/third/DEBIAN/control" &&
                        dpkg-deb -b "$work/third" "$root/packages/$(basename "$1" | sed "s/_${next}_/_${third}_/")" || return 1
        done
}
exec 3>&1
third=$next.1
need "the next version under a third number" third_version
clients
need "upgrade to $next, while clients replay traffic" upgrade_under_traffic "$next"
check "memory is warm" is_warm
check "the daemon is of the next version" daemon_is "$next"
first=$(inside 'systemctl show -P MainPID kvcache.service')
check "the service was restarted" [ "$first" != "$process" ]
need "upgrade to $third, while clients replay traffic" upgrade_under_traffic "$third"
check "memory is warm" is_warm
second=$(inside 'systemctl show -P MainPID kvcache.service')
check "the service was restarted" [ "$second" != "$first" ]
check "no byte was wrong, and no call failed but for the two restarts" clients_end 2
is_there() { inside 'kvcachectl get kept | cmp - /root/chunk' || { status_of '["totals"]'; status_of '["store"]'; return 1; }; }
check "the chunk is there" is_there

# What is not on disk yet is lost by this; the rest is found there.
killed_under_traffic() {
        # In the middle of a replay, which takes less than a second: when its gets are seen.
        inside 'gets() { kvcachectl stats --all | awk "\$1 == \"kvcache_hits_total\" { gsub(\",\", \"\", \$NF); sum += \$NF } END { print sum + 0 }"; }
                before=$(gets)
                for try in $(seq 600); do
                        if [ "$(gets)" -gt $((before + 1000)) ]; then exec systemctl kill -s KILL kvcache.service; fi
                        sleep 0.05
                done
                echo "no client replays anything"; exit 1' || return 1
        wait_for "s['pid'] != $second and s['ready'] and s['totals']['hits_disk'] > 1000"
}
is_disk_warm() {
        wait_for 's["totals"]["hits_disk"] > 0.5 * s["pool"]["chunks"]' || return 1
        totals=$(status_of '["totals"]') && echo "$totals" && echo "        $totals" >&3
        [ "$(status_of '["kept_memory"]["chunks"]')" = 0 ] || { status_of '["kept_memory"]'; return 1; }
        python3 -c "t = $totals; import sys; sys.exit(0 if t['crc_failures'] == 0 and t['hit_ratio'] > 0.95 else 1)"
}
clients
need "kill -9, while clients replay traffic" killed_under_traffic
check "no byte was wrong, and no call failed but for the kill" clients_end 1
check "memory is cold, and the disk is warm" is_disk_warm
check "the socket was kept" same 'systemctl show -P InvocationID kvcache.socket' "$socket"
check "the edited configuration is kept" same 'sha256sum /etc/kvcache/kvcache.yaml' "$before"
check "and the package's is beside it" inside 'grep -q "comment of the next version" /etc/kvcache/kvcache.yaml.dpkg-dist && rm /etc/kvcache/kvcache.yaml.dpkg-dist'
check "the chunk is there" is_there

check "python3-kvcache" inside "cd /packages && apt-get install -q -y ./python3-kvcache_${next}_*.deb && python3 -c '
import importlib.metadata, kvcache
assert kvcache.__version__ == importlib.metadata.version(\"kvcache\") == \"$next\", kvcache.__version__
with kvcache.Client(required=True) as client:
    blocks = client.namespace(\"installed\", {})
    assert blocks.put([b\"k\" * 32], [b\"value\"]).ok
entry, = [e for e in importlib.metadata.entry_points(group=\"vllm.general_plugins\") if e.name == \"kvcache\"]
'"

check "kvcache-events" inside "cd /packages && apt-get install -q -y ./kvcache-events_${next}_*.deb && kvcache-events --version | grep -qF '$next' &&
        dpkg -L kvcache-events | grep -q man1/kvcache-events.1.gz &&
        dpkg -L kvcache-events | grep -c 'complet.*/_*kvcache-events' | grep -qx 3 && ! dpkg -L kvcache-daemon | grep kvcache-events"
events_are_published() {
        inside 'mkdir /etc/kvcache/kvcache.yaml.d && printf "events:\n  ring: 1MiB\n" >/etc/kvcache/kvcache.yaml.d/events.yaml &&
                systemctl restart kvcache.service' || return 1
        inside 'apt-get install -q -y python3-zmq >/dev/null && python3 - <<END
import subprocess, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
relay = subprocess.Popen(["kvcache-events", "--endpoint", "ipc:///root/events", "--replay", "off"])
try:
    socket.connect("ipc:///root/events")
    for attempt in range(60):
        subprocess.run(["kvcachectl", "put", f"event-{attempt}", "/root/chunk"], check=True, capture_output=True)
        if socket.poll(500):
            break
    parts = socket.recv_multipart(zmq.NOBLOCK)
    assert len(parts) == 3 and parts[2], parts
finally:
    relay.terminate()
    assert relay.wait(20) == 0
END'
}
check "a put is published" events_are_published
check "the daemon serves without that drop-in" inside 'rm -r /etc/kvcache/kvcache.yaml.d && systemctl restart kvcache.service && kvcachectl ping --count 1'

# The library and the Python package may be newer than the daemon.
check "downgrade of the daemon to $version" install_daemon "$version"
check "the daemon is of the older version" daemon_is "$version"
check "the chunk is there" is_there
check "the edited configuration is kept" same 'sha256sum /etc/kvcache/kvcache.yaml' "$before"

# As if the running daemon had a format that the one to be installed does not know; it writes its superblock anew when it ends.
refuses() {
        python3 - "$root/var/lib/kvcache/superblock" "$top/tests/daemon" <<'END' || return 1
import struct, sys
sys.path.insert(0, sys.argv[2])
import kvwire
data = bytearray(open(sys.argv[1], "rb").read())
for at in range(0, len(data), 4096):
    struct.pack_into("<Q", data, at + 32, 1 << 40)
    struct.pack_into("<I", data, at + 8, kvwire.crc32c(bytes(data[at + 12:at + 4096])))
open(sys.argv[1], "r+b").write(data)
END
        install_version "$next" 2>&1 | tee "$work/refused"
        grep -q 'this version would refuse the store' "$work/refused" && grep -q 'incompat 0x10000000000' "$work/refused"
}
check "a store that it would refuse is named by the package" refuses
check "and the service runs" daemon_is "$next"

# --- remove and purge ---

check "remove" inside 'apt-get remove -q -y kvcache-daemon'
check "nothing listens" no 'kvcachectl ping --count 1 || [ -S /run/kvcache/kvcache.sock ]'
check "the edited configuration is kept" same 'sha256sum /etc/kvcache/kvcache.yaml' "$before"
check "the store is kept" inside '[ -s /var/lib/kvcache/superblock ]'
check "install again" install_version "$next"
check "the chunk is there" is_there
check "purge" inside 'apt-get purge -q -y kvcache-daemon kvcache-events libkvcache1 python3-kvcache'
check "neither configuration nor store nor socket is left" inside '[ ! -e /etc/kvcache ] && [ ! -e /var/lib/kvcache ] && [ ! -S /run/kvcache/kvcache.sock ]'
check "nor any other file" no "find / -xdev -path /proc -prune -o -path /packages -prune -o -path /root/next -prune -o -path /var/log -prune -o -name '*kvcache*' ! -path '/var/cache/*' ! -path '/run/*' -print | grep ."
check "the user stays" inside 'id kvcache'
finish
