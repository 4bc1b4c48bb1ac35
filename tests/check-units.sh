#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The units: systemd-analyze verify prints nothing (it exits 0 on keys it does not know), with and without the example of a
# drop-in; the service's exposure is at most 2.0; and sysusers and tmpfiles take their snippets. Exit 77 where there is no systemd-analyze.
#
#   check-units.sh SERVICE SOCKET SYSUSERS TMPFILES DROPIN DAEMON MOUNT...
#
# SERVICE names the daemon where it will be installed; DAEMON, the one that was built, stands in for it, and for kvcachectl.
set -u

service=$1 socket=$2 sysusers=$3 tmpfiles=$4 dropin=$5 daemon=$6
shift 6 # the mounts are left
limit=2.0
mounts=$*

command -v systemd-analyze >/dev/null 2>&1 || { echo "skipped: no systemd-analyze"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "FAILED: $*"; failed=1; }

# exec_start FILE: the path of the program that the unit starts
exec_start() { sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$1"; }

# verify NAME SERVICE [DROPIN]: what systemd says about the pair of units, in a folder of their own
verify() {
        mkdir -p "$work/$1/kvcache.service.d"
        [ -z "${3-}" ] || cp "$3" "$work/$1/kvcache.service.d/"
        sed "s|^\\(Exec[A-Z][a-z]*\\)=[^ ]*|\\1=$daemon|" "$2" >"$work/$1/kvcache.service"
        cp "$socket" "$work/$1/kvcache.socket"
        cp $mounts "$work/$1/"
        systemd-analyze verify --man=no "$work/$1/kvcache.service" "$work/$1/kvcache.socket" "$work/$1/"*.mount 2>&1
}

case $(exec_start "$service") in
*/kvcache-daemon) ;;
*) complain "ExecStart= does not name kvcache-daemon: $(exec_start "$service")" ;;
esac
grep -n '@[a-z]*@' "$service" && complain "a placeholder is left"

said=$(verify good "$service")
[ -z "$said" ] || complain "systemd-analyze verify: $said"

# The check itself must notice: a key that systemd does not know, and a value that it does not take.
{ cat "$service"; printf '\n[Service]\nNoSuchKey=yes\n'; } >"$work/bad.service"
[ -n "$(verify unknown "$work/bad.service")" ] || complain "verify does not notice an unknown key"

said=$(verify remote "$service" "$dropin")
[ -z "$said" ] || complain "systemd-analyze verify, with the drop-in: $said"
{ cat "$dropin"; printf 'NoSuchKey=yes\n'; } >"$work/bad.conf"
[ -n "$(verify unknown-in-dropin "$service" "$work/bad.conf")" ] || complain "verify does not see the drop-in"

grep -q '^PrivateUsers=' "$service" && complain "PrivateUsers= hides the uids of the clients"

# "→ Overall exposure level for kvcache.service: 1.1 OK"
exposure=$(systemd-analyze security --no-pager --offline=yes "$work/good/kvcache.service" 2>&1 |
        sed -n 's/.*exposure level for [^:]*: \([0-9.]*\).*/\1/p')
if [ -z "$exposure" ]; then
        if systemd-analyze --help 2>&1 | grep -q -- --offline; then
                complain "systemd-analyze security gave no level"
        else
                echo "exposure not checked: this systemd-analyze has no --offline"
        fi
elif awk "BEGIN { exit !($exposure > $limit) }"; then
        complain "exposure $exposure, at most $limit wanted"
else
        echo "exposure $exposure"
fi

# io_uring and the sealed memory must pass the filter, and the pipe by which libevent gets signals, without which it warns: the last word on
# each counts.
allowed=$(sed -n 's/^SystemCallFilter=\([^~]\)/\1/p' "$service" | tr ' ' '\n')
for call in io_uring_setup io_uring_enter io_uring_register memfd_create pipe pipe2; do
        echo "$allowed" | grep -qx "$call" || complain "$call is not allowed by name"
done
for mount in $mounts; do
        name=$(basename "$mount")
        where=$(sed -n 's/^Where=//p' "$mount")
        [ "$name" = "$(systemd-escape --path --suffix=mount "$where")" ] || complain "$name is not the mount of $where"
        grep -q "^Wants=.*\<$name\>" "$service" || complain "the service does not want $name"
done
grep -q '^FileDescriptorStoreMax=[1-9]' "$service" || complain "no memory is kept: FileDescriptorStoreMax="
grep -q '^LimitMEMLOCK=infinity' "$service" || complain "LimitMEMLOCK= is not infinity"

if command -v systemd-sysusers >/dev/null 2>&1; then
        mkdir -p "$work/root/etc"
        systemd-sysusers --root="$work/root" - <"$sysusers" >"$work/said" 2>&1 || complain "sysusers: $(cat "$work/said")"
        grep -q '^kvcache:' "$work/root/etc/passwd" || complain "sysusers made no user: $(cat "$work/said")"
        grep -q '^kvcache:' "$work/root/etc/group" || complain "sysusers made no group"
fi
if [ -f "$work/root/etc/passwd" ] && command -v systemd-tmpfiles >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        systemd-tmpfiles --root="$work/root" --create - <"$tmpfiles" >"$work/said" 2>&1 ||
                complain "tmpfiles: $(cat "$work/said")"
        for want in "run/kvcache 755" "var/lib/kvcache 700"; do
                is=$(stat -c '%a' "$work/root/${want% *}" 2>&1)
                [ "$is" = "${want#* }" ] || complain "/${want% *} has mode $is, not ${want#* }"
        done
fi
exit $failed
