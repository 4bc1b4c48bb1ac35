# SPDX-License-Identifier: Apache-2.0
"""The suite's part inside pytest: which tests a tier runs, a limit for each test, and a record of each.

Without the suite (a developer runs pytest on one file) all tests are selected and each has its limit."""

import faulthandler
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import pytest

import slowness
import children

LIMIT_S = 60.0


def pytest_of_tier(items, tier):
    """Splits items into those that a tier runs and the others.

    submission: neither `serial` nor `nightly`, and `repeated` in tests/python only, where nothing else tests the adapters.
    smoke: one test per file: those with the marker `smoke`, else the first that the submission tier runs. nightly: all, but
    `serial` apart; serial: these alone. all: all."""
    def marked(item, *names):
        return any(item.get_closest_marker(name) for name in names)

    def in_submission(item):
        return not marked(item, "serial", "nightly") and not (marked(item, "repeated") and "/tests/python/" not in str(item.fspath))

    if tier == "submission":
        chosen = [item for item in items if in_submission(item)]
    elif tier == "smoke":
        files = {}
        for item in items:
            files.setdefault(str(item.fspath), []).append(item)
        chosen = []
        for tests in files.values():
            chosen += [t for t in tests if marked(t, "smoke")] or [t for t in tests if in_submission(t) and not marked(t, "figures")][:1]
    elif tier == "nightly":
        chosen = [item for item in items if not marked(item, "serial")]
    elif tier == "serial":
        chosen = [item for item in items if marked(item, "serial")]
    else:
        return list(items), []
    kept = set(map(id, chosen))
    return [i for i in items if id(i) in kept], [i for i in items if id(i) not in kept]


class Late(Exception):
    """Reports a test that has exceeded its limit."""


class Plugin:
    def __init__(self, config):
        self.worker = hasattr(config, "workerinput")
        self.tier = os.environ.get("KVCACHE_TEST_TIER", "all")
        self.base_s = float(os.environ.get("KVCACHE_TEST_LIMIT_S", LIMIT_S)) * slowness.from_environment()
        path = os.environ.get("KVCACHE_TEST_RECORD")
        self.record = open(path, "a", encoding="utf-8") if path and not self.worker else None
        self.running = pathlib.Path(path + ".running") if path else None    # a file for each test that runs now
        self.reports = {}

    # --- selection ---

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        chosen, others = pytest_of_tier(items, self.tier)
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = chosen

    # --- a test that ends its process ---

    def mark_of(self, item):
        return self.running / hashlib.sha256(item.nodeid.encode()).hexdigest()[:32]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """Reports a test that has ended its process before as failed; pytest-xdist would run it again in each new process."""
        if self.running is None or not self.mark_of(item).exists():
            return None
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport(item.nodeid, item.location, {}, "failed", "the process ended during this test",
                                                                     "teardown"))
        return True

    # --- limits ---

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        if self.running is not None:
            self.mark_of(item).touch()
        yield

    @pytest.hookimpl(hookwrapper=True, specname="pytest_runtest_protocol")
    def pytest_limit_of_a_test(self, item):
        marker = item.get_closest_marker("limit")
        limit_s = max(self.base_s, marker.args[0] * slowness.from_environment() if marker else 0)

        def late(number, frame):
            print(f"The limit of {limit_s:.0f} s is over. Threads of this process and its children:", file=sys.stderr)
            print(children.stacks(os.getpid()), file=sys.stderr, flush=True)
            raise Late(f"no end after {limit_s:.0f} s")

        self.cpu_before = cpu_s()
        previous = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        # The signal's handler runs when the interpreter does. A call that never returns to it ends the process: one test is lost.
        faulthandler.dump_traceback_later(2 * limit_s + 60, exit=True, file=sys.__stderr__)
        yield
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if self.running is not None:
            self.mark_of(item).unlink(missing_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":    # before the last report is made, so that it has the figure
            item.user_properties.append(("cpu_s", round(cpu_s() - self.cpu_before, 2)))

    # --- records: one JSON object per line ---

    def write(self, **what):
        if self.record:
            self.record.write(json.dumps(what) + "\n")
            self.record.flush()

    def pytest_collection_finish(self, session):
        if not self.worker and session.config.pluginmanager.hasplugin("dsession") is False:
            self.write(total=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.write(total=len(ids))

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(name=f"{report.nodeid}: collection", outcome="failed", text=str(report.longrepr), seconds=0, cpu_s=0)

    def pytest_runtest_logreport(self, report):
        if self.record is None:
            return
        parts = self.reports.setdefault(report.nodeid, [])
        parts.append(report)
        if report.when in ("setup", "call"):
            return
        del self.reports[report.nodeid]    # teardown, or "???": the process that ran it has ended
        bad = [part for part in parts if part.failed]
        skips = [part for part in parts if part.skipped]
        if bad:
            outcome, text = "failed", "\n".join([part.longreprtext for part in bad] + [f"{title}\n{body}" for title, body in bad[-1].sections])
        elif skips:
            reason = skips[0].longrepr
            outcome, text = "skipped", reason[2].removeprefix("Skipped: ") if isinstance(reason, tuple) else skips[0].longreprtext
        else:
            outcome, text = "passed", ""
        self.write(name=report.nodeid, outcome=outcome, text=text, seconds=round(sum(part.duration for part in parts), 2),
                   cpu_s=dict(report.user_properties).get("cpu_s", 0))


def cpu_s():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
