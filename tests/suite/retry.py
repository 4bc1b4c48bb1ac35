# SPDX-License-Identifier: Apache-2.0
"""The second try: a failed test runs once more, alone, with limits five times as long. If it passes, it is reported as flaky."""

import datetime
import pathlib

import results

FACTOR = 5.0
MOST = 12          # a run with more failures than this is broken rather than unlucky
LIST = pathlib.Path(__file__).resolve().parents[1] / "flaky.txt"


def listed():
    """Returns {name: (date, issue)} of tests/flaky.txt: `DATE NAME ISSUE`, one per line, names without spaces."""
    known = {}
    for line in LIST.read_text().splitlines() if LIST.exists() else ():
        if line.strip() and not line.startswith("#"):
            date, name, issue = line.split(None, 2)
            known[name] = (datetime.date.fromisoformat(date), issue)
    return known


def again(sums, say=print):
    """Runs each failed test of `sums` again unless its failure is final, and moves those that pass to its flaky tests."""
    candidates = [result for result in sums.failures if not result.final and result.again]
    if len(candidates) > MOST:
        say(f"{len(candidates)} tests failed: none is run again.")
        return
    known = listed()
    for result in candidates:
        second = result.again(FACTOR)
        if second.outcome == "passed":
            since = f", listed since {known[result.name][0]}" if result.name in known else ""
            say(f"flaky: {result.name} ({results.first_line(result.text)}{since})")
            sums.recovered(result, second)
        elif second.final and not result.final:
            result.text += "\n--- the second try\n" + second.text
            result.final = True
