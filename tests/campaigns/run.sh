#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one campaign on a build that is there: tests/campaigns/run.sh NAME --build DIR [--count N] [--seed S].
# The last line is the campaign's own: "campaign NAME: N runs, 0 wrong, 0 lost, 0 hung", or what failed and the
# seed that shows it again. tests/run.sh --campaign builds and comes here; each name is one line below.
set -u

campaigns='powerloss misdirect bitflip nth-failure kill clientkill settled'

usage() {
        echo "usage: tests/campaigns/run.sh NAME --build DIR [--count N] [--seed S]"
        echo "campaigns: $campaigns"
}

wrong_usage() {
        echo "campaign: $*" >&2
        usage >&2
        exit 2
}

here=$(cd "$(dirname "$0")" && pwd) || exit 1
name='' build='' count='' seed=''
while [ $# -gt 0 ]; do
        case $1 in
        --build) [ $# -gt 1 ] || wrong_usage "--build needs a folder"; build=$2; shift ;;
        --count) [ $# -gt 1 ] || wrong_usage "--count needs a number"; count=$2; shift ;;
        --seed) [ $# -gt 1 ] || wrong_usage "--seed needs a number"; seed=$2; shift ;;
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

# program PATH ARGUMENTS...: one of the build's, or of this folder's, with --count and --seed where given
program() {
        [ -x "$1" ] || { echo "campaign $name: $1 is not built"; exit 1; }
        exec "$@" ${count:+--count "$count"} ${seed:+--seed "$seed"}
}

case $name in
powerloss | misdirect | bitflip | nth-failure) program "$build/tests/campaigns/store-campaigns" "$name" ;;
kill | clientkill | settled) program "$here/daemon_campaigns.py" "$name" --build "$build" ;;
*) wrong_usage "there is no campaign \"$name\"" ;;
esac
