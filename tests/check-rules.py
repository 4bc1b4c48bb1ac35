#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md names tests for each of the rules R1 to R17: they must be there, and be run.

    check-rules.py [ROOT]
"""

import pathlib
import re
import sys

RULES = 17


def tests_of(root):
    """Names of all tests: of cmocka programs those in a list of tests, of pytest functions, and of campaigns."""
    names = set()
    for path in (root / "tests/unit").glob("*.c"):
        text = path.read_text()
        defined = set(re.findall(r"^static void\s+(\w+)\(void \*\*state\)", text, re.M))
        names |= {name for name in defined if len(re.findall(rf"\b{name}\b", text)) > 1}
    for path in (root / "tests/daemon").glob("test_*.py"):
        names |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.M))
    names |= set(re.search(r"^campaigns='([^']*)'", (root / "tests/campaigns/run.sh").read_text(), re.M)[1].split())
    return names


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    there, wrong, found = tests_of(root), 0, set()
    for line in (root / "SECURITY.md").read_text().splitlines():
        row = re.match(r"\| R(\d+) \|", line)
        if not row:
            continue
        rule, named = int(row[1]), re.findall(r"`([^`]+)`", line.rsplit("|", 2)[1])
        found.add(rule)
        if not named:
            print(f"SECURITY.md: R{rule} names no test")
            wrong += 1
        for name in named:
            if name not in there:
                print(f"SECURITY.md: R{rule} names {name}, which is no test")
                wrong += 1
    for rule in set(range(1, RULES + 1)) - found:
        print(f"SECURITY.md: R{rule} is missing")
        wrong += 1
    print(f"{len(found)} rules, {len(there)} tests, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
