#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One command: install what the build needs, build, start a daemon of its own, and replay a workload against it, with every byte
# compared. Everything is in build-quickstart/: the programs, the store, the log. The next quickstart finds what the store holds.
#
#   sh daemon/quickstart.sh             replay synthetic chat sessions, then serve until Ctrl-C
#   sh daemon/quickstart.sh TRACE       replay a trace (JSON lines with "hash_ids") instead
#   sh daemon/quickstart.sh --once      stop the daemon after the replay; its last line is the replay's result
set -u

usage() {
        echo "usage: sh daemon/quickstart.sh [--once] [TRACE]"
        echo
        sed -n 's/^#  *sh daemon/  sh daemon/p' "$0"
}

once=0 trace=''
while [ $# -gt 0 ]; do
        case $1 in
        --once) once=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) echo "quickstart: unknown option $1" >&2; usage >&2; exit 2 ;;
        *) [ -z "$trace" ] || { usage >&2; exit 2; }
           trace=$1 ;;
        esac
        shift
done
if [ -n "$trace" ]; then
        [ -r "$trace" ] && [ ! -d "$trace" ] || { echo "quickstart: $trace: no such trace, or it cannot be read" >&2; exit 2; }
        trace=$(cd "$(dirname "$trace")" && pwd)/$(basename "$trace")
fi
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=$root/build-quickstart
log=$build/daemon.log
ctl=$build/client/ctl/kvcachectl
bench=$build/client/bench/kvcache-bench

if [ -t 1 ]; then
        bold=$(printf '\033[1m') dim=$(printf '\033[2m') plain=$(printf '\033[0m')
else
        bold='' dim='' plain=''
fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
note() { printf '%s%s%s\n' "$dim" "$1" "$plain"; }

daemon='' run=''
# Also when a signal ends this script: the daemon writes what is not on disk yet, and is waited for.
stop_daemon() {
        [ -n "$daemon" ] || return 0
        kill -TERM "$daemon" 2>/dev/null
        wait "$daemon"
        stopped=$?
        daemon=''
        return $stopped
}
finish() {
        stop_daemon
        [ -n "$run" ] && rm -rf "$run"
}
die() {
        echo "quickstart: $1" >&2
        finish
        [ -z "${2-}" ] || { echo "The end of $2:" >&2; tail -n 25 "$2" | sed 's/^/    /' >&2; }
        exit 1
}
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM HUP

# --- build ---

# Prints the steps of the build as they end: on a terminal in place, elsewhere about ten lines.
show_progress() {
        shown=0
        while IFS= read -r line; do
                case $line in
                "["*/*"] "*) ;;
                *) continue ;;
                esac
                counts=${line%%"]"*}
                done_steps=${counts#"["} done_steps=${done_steps%/*} all_steps=${counts#*/}
                case $done_steps/$all_steps in
                *[!0-9/]* | /* | */ | */0*) continue ;; # a message of the compiler
                esac
                file=${line##*[ /]}
                if [ -t 1 ]; then
                        printf '\r[%s/%s] %-50.50s' "$done_steps" "$all_steps" "$file"
                elif [ $((done_steps * 10 / all_steps)) -gt $shown ] || [ "$done_steps" = 1 ]; then
                        shown=$((done_steps * 10 / all_steps))
                        echo "[$done_steps/$all_steps] $file"
                fi
        done
        [ ! -t 1 ] || printf '\r%-72s\r' ''
}

# CPU seconds of the build, measured on an AMD EPYC of 2021 (45) and rounded up: enough for an estimate.
build_cpu_s=60
cores=$(nproc 2>/dev/null || echo 1)

step "Building"
began=$(date +%s)
sh "$root/daemon/build-deps.sh" || exit 1
mkdir -p "$build" || exit 1
if [ ! -f "$build/build.ninja" ]; then
        note "the first build takes about $(((build_cpu_s + cores - 1) / cores + 3)) s with $cores processors; later ones take what has changed"
        meson setup --buildtype=release -Dtests=disabled -Dprograms_only=true "$build" "$root" >"$build/setup.log" 2>&1 ||
                die "meson setup failed" "$build/setup.log"
fi
{ NINJA_STATUS='[%f/%t] ' ninja -C "$build" daemon/kvcache-daemon client/ctl/kvcachectl client/bench/kvcache-bench 2>&1
  echo $? >"$build/build.status"; } | tee "$build/build.log" | show_progress
[ "$(cat "$build/build.status")" = 0 ] || die "the build failed" "$build/build.log"
note "built in $(($(date +%s) - began)) s, in build-quickstart/: daemon/kvcache-daemon, client/ctl/kvcachectl, client/bench/kvcache-bench"

# --- start ---

step "Starting the daemon"
socket=$build/kvcache.sock
if [ ${#socket} -ge 100 ]; then # a socket's path has at most 107 bytes
        run=$(mktemp -d /tmp/kvcache-XXXXXX) || die "no folder could be made in /tmp"
        socket=$run/kvcache.sock
fi
"$ctl" --socket "$socket" ping >/dev/null 2>&1 && die "a daemon of an earlier quickstart still serves $socket; stop it first"

# Less memory than the workload has blocks, so that some come from disk. Neither the system's file nor the caller's variables have a say.
for name in $(env | sed -n 's/^\(KVCACHE_[A-Z0-9_]*\)=.*/\1/p'); do
        unset "$name"
done
echo '# The quickstart names its settings on the command line.' >"$build/kvcache.yaml"
# Without the right to lock the pool, the rings would refuse it. For a trial, that is no fault of the daemon.
registration=auto
[ "$(id -u)" = 0 ] || [ "$(ulimit -l)" = unlimited ] || registration=off
"$build/daemon/kvcache-daemon" --config "$build/kvcache.yaml" --set "io.registration=$registration" \
        --set "store.path=$build/store" --set "listen.socket=$socket" \
        --set store.limit=2GiB --set memory.pool=64MiB >"$log" 2>&1 </dev/null &
daemon=$!

tries=300
until "$ctl" --socket "$socket" ping >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || { wait "$daemon"; status=$?; daemon=''; die "the daemon ended with status $status" "$log"; }
        tries=$((tries - 1))
        [ $tries -gt 0 ] || die "the daemon was not ready within 30 s" "$log"
        sleep 0.1
done
note "2 GiB of disk in build-quickstart/store, 64 MiB of memory, log in build-quickstart/daemon.log"

# --- replay ---

if [ -n "$trace" ]; then
        step "Replaying $trace"
        set -- replay --namespace trace --block-bytes 16KiB "$trace"
else
        step "Replaying chat sessions"
        set -- replay --synthetic chat
fi
# What it prints is kept as well, and its progress bar is on stderr: a pipe, and the status around it. The replay gets a
# Ctrl-C itself, and reports as far as it came.
{ "$bench" --socket "$socket" "$@"; echo $? >"$build/replay.status"; } | tee -i "$build/replay.txt"
status=$(cat "$build/replay.status" 2>/dev/null || echo 1)
line=$(grep '^replay: ' "$build/replay.txt" | tail -n 1)
[ "$status" = 0 ] || die "the replay ended with status $status" "$log"
[ -n "$line" ] || die "the replay gave no result" "$log"

step "Status"
"$ctl" --socket "$socket" status || die "the daemon does not answer" "$log"
http=$("$ctl" --socket "$socket" --json status | sed -n 's/.*"http":[^"]*"\(http:[^"]*\)".*/\1/p' | tail -n 1)

if [ $once = 1 ]; then
        step "Stopping"
        stop_daemon
        status=$?
        [ $status = 0 ] || die "the daemon ended with status $status" "$log"
        [ -n "$run" ] && rm -rf "$run"
        echo "$line"
        exit 0
fi

step "The daemon is serving. Try"
cat <<END
  export PATH=$build/client/ctl:$build/client/bench:\$PATH KVCACHE_SOCKET=$socket
  kvcachectl ls replay | head              what is stored
  kvcache-bench replay --synthetic chat    again: now every block is a hit
  kvcachectl top                           what it does now; q quits
  kvcachectl stats | grep hits             every metric
  kvcachectl purge replay                  delete the chunks, for good
END
if [ -n "$http" ]; then
        echo "  $http/                   a page for people; $http/metrics for Prometheus"
else
        note "  (no HTTP: $(grep -i 'listen.http' "$log" | tail -n 1 | sed 's/^[^ ]* //'))"
fi
note "Ctrl-C stops the daemon. The next quickstart finds what it has stored."
trap 'echo; step Stopping; finish; exit 0' INT TERM HUP
wait "$daemon"
status=$?
daemon=''
finish
die "the daemon ended with status $status" "$log"
