# SPDX-License-Identifier: Apache-2.0
"""Results of tests: the outcome of a program or a test function, whether a failure may be retried, and the closing lines.

A failure is *final* if chance cannot excuse it: a sanitizer's report, a death by signal, a failed assertion of the C code, wrong or lost
bytes, a compile error, a check of the tree. Every other failure is retried once (retry.py)."""

import dataclasses
import re

TAIL = 60         # lines of a failure that are printed
MOST_FLAKY = 5    # tests that may pass at the second try only; one more fails the run

CMOCKA = {word: re.compile(rf"^\[  {word} *\] (\d+) test\(s\)", re.M) for word in ("PASSED", "FAILED", "SKIPPED")}
CMOCKA_RAN = re.compile(r"^\[==========\] .*?(\d+) test\(s\) run", re.M)
CMOCKA_SKIPPED = re.compile(r"^\[  SKIPPED \] ([a-z_]\w*)\s*$", re.M)

FINAL = re.compile("|".join((
    r"(?:Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer",
    r": runtime error: ",
    r"Assertion .{0,2000} failed",                        # assert() of C, not of Python
    r"\bSIG(?:SEGV|ABRT|BUS|ILL|FPE|TRAP|SYS|XFSZ)\b|Segmentation fault|core dumped",
    r"ended (?:with|during the test, with) -(?:4|5|6|7|8|11|25|31)\b",
    r"At index \d+ diff: b['\"]",                         # pytest's comparison of bytes
    r"\bassert b['\"]",
    r"\bwrong byte|\blost (?:chunk|byte|key)|\b[1-9]\d* (?:wrong|lost)\b",
    r"SyntaxError|ImportError|ModuleNotFoundError")))


@dataclasses.dataclass
class Result:
    """One program, or one test function of pytest. A cmocka program counts as its test functions."""
    name: str
    outcome: str                    # "passed", "failed", "skipped"
    text: str = ""                  # the output of a failure, or the reason of a skip
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    final: bool = False
    again: object = None            # factor -> Result: runs it alone, with limits that many times as long

    def __post_init__(self):
        if not self.passed + self.failed + self.skipped:
            setattr(self, self.outcome, 1)
        if self.outcome == "failed":
            self.failed = max(self.failed, 1)
            self.final = self.final or bool(FINAL.search(self.text))


def tail(text, lines=TAIL):
    all_lines = text.strip().splitlines()
    cut = [f"... {len(all_lines) - lines} lines before these"] if len(all_lines) > lines else []
    return cut + all_lines[-lines:]


def first_line(text):
    """Returns the line that says why a test failed: pytest's first "E", cmocka's error, or the first of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark, kept in (("E  ", ""), ("[  ERROR   ] ---", ""), ("no end after", "no end after")):
        for line in lines:
            if line.startswith(mark):
                return (kept + line.removeprefix(mark)).strip()[:160]
    return lines[0][:160] if lines else "no output"


def of_program(name, status, text, **more):
    """Returns the Result of a program by its exit status (None: it was ended at its limit) and its output."""
    counts = {word: sum(map(int, pattern.findall(text))) for word, pattern in CMOCKA.items()}
    if not CMOCKA_RAN.search(text):
        counts = dict.fromkeys(CMOCKA, 0)  # not a cmocka program, or it died before it printed them
    if status == 77:
        reasons = [line for line in text.splitlines() if line.strip()]
        return Result(name, "skipped", reasons[-1].strip() if reasons else "no reason given", **more)
    if status == 0:
        names = list(dict.fromkeys(CMOCKA_SKIPPED.findall(text)))
        reason = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return Result(name, "passed", reason, counts["PASSED"], 0, counts["SKIPPED"], **more)
    if status is not None and status < 0:
        text, more["final"] = f"ended by signal {-status}\n{text}", True
    return Result(name, "failed", text, counts["PASSED"], max(counts["FAILED"], 1), counts["SKIPPED"], **more)


class Sum:
    """Counts of a leg, or of all legs."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures, self.skips, self.flaky, self.all = [], [], [], []

    def add(self, result):
        self.passed += result.passed
        self.failed += result.failed
        self.skipped += result.skipped
        self.all.append(result)
        if result.outcome == "failed":
            self.failures.append(result)
        elif result.skipped:
            self.skips.append(result)

    def recovered(self, result, again):
        """Replaces the counts of a failed test, which passed at its second try, by those of that try."""
        self.failures.remove(result)
        self.failed += again.failed - result.failed
        self.passed += again.passed - result.passed
        self.skipped += again.skipped - result.skipped
        self.flaky.append((result, again))

    def include(self, other):
        for name in ("passed", "failed", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("failures", "skips", "flaky", "all"):
            getattr(self, name).extend(getattr(other, name))

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def words(self):
        return f"{self.passed:,} passed, {self.failed:,} failed, {self.skipped:,} skipped"

    @property
    def too_many_flaky(self):
        return len(self.flaky) > MOST_FLAKY

    @property
    def good(self):
        return self.passed > 0 and self.failed == 0


def print_failure(result):
    print(f"\n--- FAILED: {result.name}")
    for line in tail(result.text):
        print("    " + line)


def print_skips(skips):
    if not skips:
        return
    grouped = {}
    for result in skips:
        grouped.setdefault(result.text, []).append(result.name)
    print("\nSkipped:")
    for reason, names in grouped.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"    {', '.join(names[:3])}{more}: {reason}")


def print_slowest(results, count=10):
    """Prints the tests that take the most CPU time and those that wait longest, which are the first to examine if a leg exceeds its budget."""
    for title, of in (("most CPU seconds", lambda r: r.cpu_s), ("longest waits in seconds", lambda r: r.seconds - r.cpu_s)):
        slowest = sorted(results, key=of, reverse=True)[:count]
        print(f"    {title}: " + ", ".join(f"{r.name} {of(r):.1f}" for r in slowest if of(r) >= 0.05))
