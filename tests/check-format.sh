#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every C file is as clang-format leaves it: check-format.sh ROOT. Other versions of clang-format break lines elsewhere, so it
# takes version 14, Debian 12's, and skips without it.
set -u

cd "$1" || exit 1
for program in clang-format-14 clang-format ''; do
        "$program" --version 2>/dev/null | grep -q 'version 14\.' && break
done
if [ -z "$program" ]; then
        echo "there is no clang-format 14"
        exit 77
fi

find client daemon proto tests -name '*.[ch]' -print0 | xargs -0 "$program" --dry-run --Werror || {
        echo "These lines are not as .clang-format has them: $program -i FILE mends them."
        exit 1
}
