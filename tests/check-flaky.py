#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks tests/flaky.txt: each line is `DATE NAME ISSUE`, and no entry is older than 14 days.

    check-flaky.py [ROOT]
    check-flaky.py --self-test
"""

import datetime
import pathlib
import sys

OLDEST_DAYS = 14


def problems(text, today):
    """Returns what is wrong with the list, a message each."""
    found, names = [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(None, 2)
        try:
            date = datetime.date.fromisoformat(words[0])
            name, issue = words[1], words[2]
        except (ValueError, IndexError):
            found.append(f"tests/flaky.txt:{number}: {line!r} is not DATE NAME ISSUE, with a date like 2026-11-28")
            continue
        if name in names:
            found.append(f"tests/flaky.txt:{number}: {name} is listed twice")
        names.add(name)
        age = (today - date).days
        if age > OLDEST_DAYS:
            found.append(f"tests/flaky.txt:{number}: {name} has been flaky for {age} days ({issue}); repair it, {OLDEST_DAYS} days are allowed")
        elif age < -1:
            found.append(f"tests/flaky.txt:{number}: {date} has not come yet")
    return found


def self_test():
    today = datetime.date(2026, 11, 28)
    for text, count in (("", 0), ("# a comment\n\n", 0), ("2026-11-28 test-a 30\n", 0), ("2026-11-14 tests/daemon/test_a.py::b issue 30\n", 0),
                        ("2026-11-13 test-a 30\n", 1), ("2026-12-01 test-a 30\n", 1), ("28.11.2026 test-a 30\n", 1), ("2026-11-28 test-a\n", 1),
                        ("2026-11-28 a 30\n2026-11-27 a 30\n", 1)):
        assert len(problems(text, today)) == count, (text, problems(text, today))
    print("self-test passed")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1]) if sys.argv[1:] else pathlib.Path(__file__).resolve().parents[1]
    found = problems((root / "tests/flaky.txt").read_text(), datetime.date.today())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
