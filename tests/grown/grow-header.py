#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public header as a later version may have it: grow-header.py HEADER OUT writes a copy of HEADER in which every
structure that may grow has additional members at its end. What is built with it stands for a later library, or for a
program that was built against a later header."""
import re
import sys

FIXED = {"kvcache_key", "kvcache_lease", "kvcache_loan", "kvcache_standing"}  # the header promises that these never change
STRUCT = re.compile(r"^struct (kvcache_\w+) \{$(.*?)^\};$", re.M | re.S)


def grow(text):
    grown = []

    def one(m):
        if m.group(1) in FIXED:
            return m.group(0)
        grown.append(m.group(1))
        return f"struct {m.group(1)} {{{m.group(2)}        uint64_t grown[3];\n}};"

    return STRUCT.sub(one, text), grown


def main():
    text, grown = grow(open(sys.argv[1]).read())
    if not grown:
        sys.exit(f"{sys.argv[1]}: no structure found that could grow")
    with open(sys.argv[2], "w") as f:
        f.write(text)


main()
