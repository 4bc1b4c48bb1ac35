#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tests that SECURITY.md names for the rules R1 to R17 exist and are run. Its table of charges names each charged resource with
its limits, metrics and tests, and proto/README.md the costs of each operation: the named things must exist, and no resource, operation or key of
`limits` may be missing.

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


def section(text, title):
    return re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def keys_of(root):
    """Returns the keys of the configuration, including those of an entry of `tenants`."""
    rows = (root / "daemon/config/config.def").read_text() + (root / "daemon/config/tenant.def").read_text()
    return {f"{a}.{b}" for a, b in re.findall(r"^ROW\(\w+, (\w+), (\w+),", rows, re.M)}


def metrics_of(root):
    """Returns the metrics' names from metrics.def, without "_total"."""
    text = (root / "daemon/report/metrics.def").read_text()
    return {f"kvcache_{name}" for name in re.findall(r'^METRICS_\w+\(\w+, "(\w+)"', text, re.M)}


def costs(root, text, tests):
    """Yields the faults in the tables of charged resources."""
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    names = [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]
    keys, metrics = keys_of(root), metrics_of(root)
    resources = set(re.findall(r'"(\w+)"', re.search(r"VALUES\(resource_value,(.*?)\);", (root / "daemon/report/metrics.c").read_text(),
                                                     re.S)[1]))
    ops = set(re.findall(r"^\s+WIRE_(\w+) = \d+,", re.search(r"^enum wire_op \{(.*?)^\};", (root / "proto/wire.h").read_text(),
                                                              re.M | re.S)[1], re.M))
    named, limited, charged = set(), set(), set()
    for row, cells in zip(rows, names):
        if len(row) == 5 and row[0] != "resource":
            charged |= set(cells[0])
            limited |= set(cells[2])
            yield from (f"{row[0]}: {key} is no key of the configuration" for key in cells[2] if key not in keys)
            yield from (f"{row[0]}: {m} is no metric" for m in cells[3] if m not in metrics)
            yield from (f"{row[0]}: {test} is no test" for test in cells[4] if test not in tests)
            if not (cells[3] and cells[4]):
                yield f"{row[0]}: has no metric, or no test"
        elif len(row) == 3 and row[0] != "operation":
            named |= set(row[0].split(", "))
            yield from (f"{row[0]}: {r} is no resource" for r in cells[2] if r not in resources)
    yield from (f"{r} is charged, and in no row" for r in sorted(resources - charged))
    yield from (f"{op} is in no row" for op in sorted(ops - named))
    yield from (f"{op} is no operation" for op in sorted(named - ops))
    yield from (f"{key} is in no row" for key in sorted(keys - limited) if key.startswith("limits."))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    there, wrong, found = tests_of(root), 0, set()
    security = (root / "SECURITY.md").read_text()
    for line in security.splitlines():
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
    charges = section(security, "Who pays for what") + section((root / "proto/README.md").read_text(), "11 Limits")
    for complaint in costs(root, charges, there):
        print(f"the tables of charges: {complaint}")
        wrong += 1
    print(f"{len(found)} rules, {len(there)} tests, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
