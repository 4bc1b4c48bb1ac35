#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a tier: builds, legs, second tries, counts. tests/run.sh starts it; the tiers are in tiers.py.

The output ends with `N passed, N failed, N skipped`. The exit status is 0 only if something ran and nothing failed."""

import argparse
import os
import pathlib
import signal
import sys
import time

import builds
import slowness
import children
import programs
import pytests
import results
import retry
import tiers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DELAYS_FACTOR = 3    # measured for tests that wait for threads


class Progress:
    """Shows progress on a terminal, on one line that is overwritten: `[212/860] NAME`. Otherwise shows nothing."""

    def __init__(self):
        self.total = self.done = 0
        self.tty = sys.stdout.isatty()

    def step(self, result):
        self.done += 1
        if self.tty:
            sys.stdout.write(f"\r\033[K[{self.done}/{max(self.total, self.done)}] {result.name[:100]}")
            sys.stdout.flush()

    def clear(self):
        if self.tty:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()


class Suite:
    """The state of a run: its builds, what the legs so far have counted, and how long they took."""

    def __init__(self, options):
        self.options = options
        self.sum = results.Sum()
        self.table = []          # (leg, CPU seconds, wall seconds, those without other programs, budget)
        self.cpus = len(os.sched_getaffinity(0))
        self.builder = None
        self.failed_builds = set()
        self.env = {}            # for all tests: a preloaded library

    def say(self, text=""):
        print(text, flush=True)

    def leg(self, name, work, budget_s=None):
        """Runs one leg. work(factor, done, progress) returns its CPU seconds and calls done(result) for each test."""
        factor = slowness.measure()
        if self.env.get("LD_PRELOAD"):    # delays.so: threads sleep besides
            factor = slowness.clamp(factor * DELAYS_FACTOR)
        self.say(f"\n=== {name}" + (f" (this machine is slow: limits are times {factor})" if factor >= 1.5 else ""))
        began, busy, progress, sums = time.monotonic(), slowness.busy_s(), Progress(), results.Sum()

        def done(result):
            sums.add(result)
            progress.step(result)
            if result.outcome == "failed":
                progress.clear()
                results.print_failure(result)
                sys.stdout.flush()

        try:
            cpu_s = work(factor, done, progress)
        finally:  # also at Ctrl-C: failures so far are counted
            progress.clear()
            self.sum.include(sums)
        seconds = time.monotonic() - began
        own_s = slowness.own_seconds(seconds, cpu_s, busy, slowness.busy_s(), self.cpus)
        self.account(name, sums.words(), cpu_s, seconds, budget_s and budget_s * factor, own_s)
        if self.options.budgets:
            results.print_slowest(sums.all)

    def account(self, name, words, cpu_s, seconds, budget_s, own_s=None):
        """Enters a leg in the table and prints its line. own_s, by default `seconds`, is compared with the budget: what the leg would have taken
        without other programs."""
        own_s = seconds if own_s is None else own_s
        self.table.append((name, cpu_s, seconds, own_s, budget_s))
        alone = f", {own_s:.0f} without other programs" if self.options.budgets and own_s < 0.9 * seconds else ""
        budget = f" (budget {budget_s:.0f})" if budget_s and self.options.budgets else ""
        self.say(f"{name}: {words}, {seconds:.0f} s{alone}{budget}")
        if not budget or own_s <= budget_s:
            return
        if own_s > 2 * budget_s:
            self.sum.add(results.Result(f"{name}: time", "failed", f"{own_s:.0f} s are more than twice the budget of {budget_s:.0f} s", final=True))
            results.print_failure(self.sum.failures[-1])
        else:
            self.say(f"warning: {name} is over its budget")

    def built(self, build, budget_s=None):
        """Waits for a build; returns whether its tests can run."""
        if build.name in self.failed_builds:
            return False
        began = time.monotonic()
        self.say(f"\n=== build {build.name}: {build.folder.name}")
        try:
            self.builder.wait(build)
        except builds.Failed as problem:
            self.failed_builds.add(build.name)
            self.sum.add(results.Result(f"build {build.name}", "failed", str(problem), final=True))
            results.print_failure(self.sum.failures[-1])
            return False
        for line in (build.folder / "build.log").read_text(errors="replace").splitlines():
            if "warning:" in line:
                self.say(line)
        waited = time.monotonic() - began
        self.account(f"build {build.name}", f"{build.cpu_s:.0f} CPU seconds, ready after {build.seconds:.0f} s, waited", build.cpu_s, waited, budget_s)
        return True

    def programs(self, name, chosen, budget_s=None, at_once=None, env=None):
        """Runs a leg of test programs."""
        def work(factor, done, progress):
            cpu = [0.0]
            progress.total = len(chosen)

            def count(result):
                cpu[0] += result.cpu_s
                done(result)

            programs.run_all(chosen, at_once or self.cpus + 1, factor, count, env={**self.env, **(env or {})})
            return cpu[0]

        if chosen:
            self.leg(name, work, budget_s)

    def pytest(self, name, build, paths, tier, budget_s=None, at_once=1, sanitized=False, env=None):
        """Runs a leg of tests by pytest."""
        def work(factor, done, progress):
            run = pytests.Run(build.folder, paths, tier, factor, sanitized=sanitized, at_once=at_once, env={**self.env, **(env or {})},
                              name="pytest-" + name.replace(" ", "-").replace(",", "").replace("'", ""))
            return run.run(done, lambda count: setattr(progress, "total", count))

        try:
            import pytest  # noqa: F401
        except ImportError:
            self.sum.add(results.Result(name, "skipped", "this Python has no pytest"))
            return
        self.leg(name, work, budget_s)

    def finish(self):
        """Runs failed steps a second time, and prints the closing lines. Returns the exit status."""
        if self.sum.failures:
            self.say("\n=== second tries")
            retry.again(self.sum, self.say)
        if self.sum.too_many_flaky:
            self.sum.add(results.Result("flaky tests", "failed", f"{len(self.sum.flaky)} tests passed at their second try only; "
                                        f"{results.MOST_FLAKY} may"))
        return self.closing()

    def closing(self):
        results.print_skips(self.sum.skips)
        if self.options.budgets and self.table:
            self.say("\nleg                                        CPU s   wall s    alone   budget")
            for name, cpu_s, seconds, own_s, budget_s in self.table:
                self.say(f"{name:40} {cpu_s:7.0f} {seconds:8.0f} {own_s:8.0f} {f'{budget_s:.0f}' if budget_s else '':>8}")
        if self.sum.failures:    # repeated: a viewer may keep no more than the end of a long output
            self.say("\nFailed:")
            for result in self.sum.failures:
                results.print_failure(result)
        self.say()
        if self.sum.flaky:
            self.say(f"{len(self.sum.flaky)} flaky")
        self.say(self.sum.line())
        return 0 if self.sum.good else 1


def interrupt(number, frame):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="tests/run.sh", description="Runs the tests of a tier.")
    parser.add_argument("--tier", choices=tiers.TIERS, default="default")
    parser.add_argument("--sanitize", choices=("asan", "tsan"))
    parser.add_argument("--delays", action="store_true")
    parser.add_argument("--daemon-only", action="store_true")
    parser.add_argument("--werror", action="store_true")
    parser.add_argument("--build-dir", type=pathlib.Path)
    options = parser.parse_args()
    options.budgets = options.tier == "submission" and not options.delays
    for name, value in (("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"), ("TSAN_OPTIONS", "halt_on_error=1:die_after_fork=0")):
        os.environ.setdefault(name, value)
    os.environ.pop("KVCACHE_SOCKET", None)    # tests see neither the caller's daemon nor its settings
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Handles SIGINT, which background jobs of a shell ignore. The tests do not inherit a handler, unlike SIG_IGN.
        signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)    # processes of the tests are in groups of their own: end them, too
    suite = Suite(options)
    began = time.monotonic()
    try:
        tiers.run(suite, ROOT)
        status = suite.finish()
    except KeyboardInterrupt:
        suite.say("\nInterrupted. Until then:")
        suite.closing()
        status = 130
    finally:
        children.end_all()
    if sys.stdout.isatty():
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
