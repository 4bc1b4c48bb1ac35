#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one campaign on a build that is there: tests/campaigns/run.sh NAME --build DIR [--count N] [--seed S] [--long].
# --long is a count of its own for each; NAME "all" is every campaign, each with that count.
# The last line is the campaign's own: "campaign NAME: N runs, 0 wrong, 0 lost, 0 hung", or what failed and the
# seed that shows it again; of "all" it is "campaigns: N passed, N failed, N skipped". tests/run.sh --campaign builds and comes here; each name is one line below.
set -u

campaigns='powerloss succession succession-disk crashpoint misdirect bitflip nth-failure kill admin clientkill settled parity filesystems restart hostile flood fairness slow overload cost loop environment events fuzz'

# What the specification asks of a long run, or what takes a day.
long_count() {
        case $1 in
        powerloss | fuzz) echo 10000000 ;;
        crashpoint) echo 400000 ;;
        succession) echo 1000000 ;;
        succession-disk) echo 20000 ;;
        misdirect) echo 1000000 ;;
        bitflip) echo 8659209 ;; # all 8,388,608 bits of the data file, and those of the rest
        nth-failure) echo 100000 ;;
        kill) echo 10000 ;;
        admin) echo 4000 ;;
        clientkill) echo 100000 ;;
        settled) echo 2000 ;;
        parity) echo 200 ;;
        filesystems) echo 700 ;;
        restart) echo 50 ;;
        hostile) echo 2800 ;;
        flood) echo 4000 ;;
        fairness) echo 340 ;;
        slow) echo 500 ;;
        overload) echo 3600 ;;
        cost) echo 1000 ;;
        loop) echo 360 ;;
        environment) echo 10000 ;;
        events) echo 10000 ;;
        esac
}

usage() {
        echo "usage: tests/campaigns/run.sh NAME|all --build DIR [--count N] [--seed S] [--long]"
        echo "campaigns: $campaigns"
}

wrong_usage() {
        echo "campaign: $*" >&2
        usage >&2
        exit 2
}

here=$(cd "$(dirname "$0")" && pwd) || exit 1
name='' build='' count='' seed='' long=0
while [ $# -gt 0 ]; do
        case $1 in
        --build) [ $# -gt 1 ] || wrong_usage "--build needs a folder"; build=$2; shift ;;
        --count) [ $# -gt 1 ] || wrong_usage "--count needs a number"; count=$2; shift ;;
        --seed) [ $# -gt 1 ] || wrong_usage "--seed needs a number"; seed=$2; shift ;;
        --long) long=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) wrong_usage "unknown option $1" ;;
        *) [ -z "$name" ] || wrong_usage "one campaign at a time"; name=$1 ;;
        esac
        shift
done
[ -n "$name" ] || wrong_usage "which one?"
for number in "$count" "$seed"; do
        case $number in
        *[!0-9]*) wrong_usage "$number is not a number" ;;
        esac
done
[ -d "$build" ] || wrong_usage "--build \"$build\": there is no such folder"
build=$(cd "$build" && pwd) || exit 1

if [ "$name" = all ]; then
        passed=0 failed=0 skipped=0 failed_names='' skipped_names=''
        for each in $campaigns; do
                echo "=== $each"
                sh "$0" "$each" --build "$build" --long ${count:+--count "$count"} ${seed:+--seed "$seed"}
                case $? in
                0) passed=$((passed + 1)) ;;
                77) skipped=$((skipped + 1)) skipped_names="$skipped_names $each" ;;
                *) failed=$((failed + 1)) failed_names="$failed_names $each" ;;
                esac
        done
        echo
        [ $failed -eq 0 ] || echo "Campaigns that failed:$failed_names"
        [ $skipped -eq 0 ] || echo "Campaigns that were skipped:$skipped_names"
        echo "campaigns: $passed passed, $failed failed, $skipped skipped"
        [ $failed -eq 0 ]
        exit
fi
[ $long = 0 ] || [ -n "$count" ] || count=$(long_count "$name")

# program PATH ARGUMENTS...: one of the build's, or of this folder's, with --count and --seed where given
program() {
        [ -x "$1" ] || { echo "campaign $name: $1 is not built"; exit 1; }
        exec "$@" ${count:+--count "$count"} ${seed:+--seed "$seed"}
}

case $name in
powerloss | succession | crashpoint | misdirect | bitflip) program "$build/tests/campaigns/store-campaigns" "$name" ;;
nth-failure | succession-disk) program "$build/tests/campaigns/store-campaigns-threads" "$name" ;;
kill | admin | clientkill | settled | parity | filesystems | restart | hostile | flood | fairness | slow | overload | cost | loop | environment | events) program "$here/daemon_campaigns.py" "$name" --build "$build" ;;
fuzz) program "$here/fuzz.sh" --build "$build" ;;
*) wrong_usage "there is no campaign \"$name\"" ;;
esac
