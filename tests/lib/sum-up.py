#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what tests/run.sh ran, and shows what failed and why something was skipped.

    sum-up.py BUILD UNIT-STATUS [DAEMON-STATUS]

Reads meson's testlog.json and pytest's pytest.xml and pytest-serial.xml in the build folder. A cmocka program counts as its
test cases, any other program as one. The statuses are the runners' own: one that complains while no test did counts as a
failure, so that nothing gets lost between the two. pytest's are two, with a comma between them, "none" without pytest; none
is given if these tests were not asked for. The last line is "N passed, N failed, N skipped".
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

TAIL = 60  # lines of the log of a test that failed
PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) test\(s\)", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) test\(s\)", re.M)
SKIPPED_NAME = re.compile(r"^\[  SKIPPED \] ([a-z_]\w*)\s*$", re.M)
RAN = re.compile(r"^\[==========\] .*?(\d+) test\(s\) run", re.M)


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.reasons = []

    def failure(self, name, text, counts=1):
        self.failed += counts
        lines = text.strip().splitlines()
        print(f"\n--- FAILED: {name}")
        if len(lines) > TAIL:
            print(f"    ... {len(lines) - TAIL} lines before these")
        for line in lines[-TAIL:]:
            print("    " + line)

    def skip(self, name, reason, counts=1):
        self.skipped += counts
        self.reasons.append((name, reason))


def last_line(text, default):
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else default


def count_unit(path, count):
    """One JSON object a line, one line a program."""
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8", errors="replace") as f:
        results = [json.loads(line) for line in f if line.strip()]
    for result in results:
        name, verdict = result["name"].removeprefix("kvcache-daemon:"), result["result"]
        text = (result.get("stdout") or "") + "\n" + (result.get("stderr") or "")

        def total(pattern):
            return sum(int(n) for n in pattern.findall(text))

        passed, failed, skipped = total(PASSED), total(FAILED), total(SKIPPED)
        if not RAN.search(text):  # not cmocka's, or it did not live to tell
            passed = failed = skipped = 0
        count.passed += passed
        if skipped:
            names = list(dict.fromkeys(SKIPPED_NAME.findall(text)))
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            count.skip(name, ", ".join(names[:3]) + more, skipped)
        if verdict == "SKIP":
            if not skipped:
                count.skip(name, last_line(text, "no reason given"))
        elif verdict in ("OK", "EXPECTEDFAIL"):
            count.passed += passed + skipped == 0
        else:
            count.failure(f"{name} ({verdict.lower()})", text, max(failed, 1))


def count_daemon(path, status, count):
    before = count.failed
    if os.path.exists(path):
        count_cases(path, count)
    elif status == "0":
        count.failure("pytest", f"it ended well, but left no {path}")
    if status == "5":
        count.skip("tests/daemon", "there are no tests")
    elif status != "0" and count.failed == before:
        count.failure(f"pytest ended with {status}", "its own words are above")


def count_cases(path, count):
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("classname", "").replace("tests.daemon.", "") + "." + case.get("name", "?")
        bad = [x for x in case if x.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if bad:
            logs = [x.text or "" for x in case if x.tag in ("system-out", "system-err")]
            count.failure(name, "\n".join([x.text or x.get("message", "") for x in bad] + logs))
        elif skipped is not None:
            count.skip(name, skipped.get("message", "no reason given"))
        else:
            count.passed += 1


def main():
    build, unit_status = sys.argv[1:3]
    daemon_status = sys.argv[3] if len(sys.argv) > 3 else None
    count = Count()

    count_unit(os.path.join(build, "meson-logs", "testlog.json"), count)
    if unit_status != "0" and count.failed == 0:
        with open(os.path.join(build, "run.log"), encoding="utf-8", errors="replace") as f:
            count.failure(f"meson test ended with {unit_status}", f.read())
    if daemon_status == "none":
        count.skip("tests/daemon", "no python3 with pytest")
    elif daemon_status:
        for results, status in zip(("pytest.xml", "pytest-serial.xml"), daemon_status.split(",")):
            count_daemon(os.path.join(build, results), status, count)

    if count.reasons:
        print("\nSkipped:")
        grouped = {}
        for name, reason in count.reasons:
            grouped.setdefault(reason, []).append(name)
        for reason, names in grouped.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            print(f"    {', '.join(names[:3])}{more}: {reason}")
    print(f"\n{count.passed} passed, {count.failed} failed, {count.skipped} skipped")
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
