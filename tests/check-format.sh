#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every C file is as clang-format leaves it, every shell script is one, and no merge is unfinished: check-format.sh ROOT. Other
# versions of clang-format break lines elsewhere, so it takes version 14, Debian 12's, and skips without it.
set -u

cd "$1" || exit 1
# What a merge has left, and scripts that no test runs here.
if git grep -nE '^(<<<<<<<|>>>>>>>)( |$)' -- . ':!LICENSE' 2>/dev/null; then
        echo "These lines are of a merge that was not finished."
        exit 1
fi
for script in $(git ls-files '*.sh' 2>/dev/null); do
        sh -n "$script" || exit 1
done
for program in clang-format-14 clang-format ''; do
        "$program" --version 2>/dev/null | grep -q 'version 14\.' && break
done
if [ -z "$program" ]; then
        echo "there is no clang-format 14"
        exit 77
fi

find client daemon proto tests -name '*.[ch]' -print0 | xargs -0 "$program" --dry-run --Werror || {
        echo "These lines differ from .clang-format: run $program -i FILE."
        exit 1
}
