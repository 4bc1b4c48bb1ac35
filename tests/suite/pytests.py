# SPDX-License-Identifier: Apache-2.0
"""Runs pytest over folders or files of tests, in several processes, and reads the record that plugin.py writes."""

import json
import os
import pathlib
import shutil
import sys

import children
import programs
import results
import slowness

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTECODE = ROOT / "build-bytecode"    # compiled Python code, for all builds
LIMIT_S = 60.0
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


class Run:
    """Describes one run of pytest: the tests, the build and the limits."""

    def __init__(self, build, paths, tier, factor, *, sanitized=False, at_once=1, env=None, name="pytest", root=ROOT):
        self.build, self.paths, self.tier, self.factor = pathlib.Path(build), [str(path) for path in paths], tier, factor
        self.sanitized, self.at_once, self.name = sanitized, at_once, name
        self.env, self.root = env or {}, root
        self.limit_s = LIMIT_S * (5 if sanitized else 1)

    def environment(self, times, record):
        return dict(self.with_bytecode(), **self.env, KVCACHE_TEST_RECORD=str(record), KVCACHE_TEST_SLOW=str(self.factor * times),
                    KVCACHE_TEST_LIMIT_S=str(self.limit_s))

    def with_bytecode(self):
        """Returns the environment in which Python keeps compiled code, even if the caller's environment forbids that. Each process of pytest
        imports all tests, and hundreds of tests start processes of Python."""
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "KVCACHE_TEST_RECORD")}
        return dict(env, PYTHONPYCACHEPREFIX=str(BYTECODE), KVCACHE_BUILD=str(self.build), KVCACHE_TEST_TIER=self.tier)

    def compile(self):
        """Compiles the tests once, before several processes import them. Returns the processor time. A failure appears in the run itself."""
        if self.at_once == 1 or BYTECODE.joinpath(*ROOT.parts[1:], "tests").exists():
            return 0.0
        child = children.Child([*PYTEST, f"--rootdir={self.root}", "--collect-only", *self.paths], self.build / f"{self.name}.log",
                               env=self.with_bytecode(), cwd=self.root)
        child.wait()
        return child.cpu_s

    def run(self, done, total=lambda count: None):
        """Runs pytest; done(result) is called for each test as it ends. Returns the processor time."""
        record, log = self.build / f"{self.name}.record", self.build / f"{self.name}.log"
        for path in (record, log):
            path.unlink(missing_ok=True)
            path.touch()
        running = pathlib.Path(f"{record}.running")
        shutil.rmtree(running, ignore_errors=True)
        running.mkdir()
        compile_s = self.compile()
        in_parallel = ["-n", str(self.at_once), "--dist", "loadfile"] if self.at_once > 1 and has_xdist() else []
        command = [*PYTEST, "--tb=short", "--no-header", "--no-summary", f"--rootdir={self.root}", *in_parallel, *self.paths]
        counts, seen = {"failed": 0, "any": 0}, set()
        with open(record, encoding="utf-8") as lines:
            rest = [""]

            def read():
                for line in iter(lines.readline, ""):
                    rest[0] += line
                    if not rest[0].endswith("\n"):
                        return
                    entry, rest[0] = json.loads(rest[0]), ""
                    if "total" in entry:
                        total(entry["total"])
                        continue
                    if entry["name"] in seen:    # reported by each process: a collection that fails, a test that ended its process
                        continue
                    seen.add(entry["name"])
                    result = results.Result(**entry)
                    result.again = lambda times, name=result.name: self.again(name, times)
                    counts["any"] += 1
                    counts["failed"] += result.outcome == "failed"
                    done(result)

            child = children.Child(command, log, env=self.environment(1, record), cwd=self.root)
            status = child.wait(every_s=0.2, meanwhile=read)
            read()
        if status == 5 and not counts["any"]:
            done(results.Result(self.name, "skipped", "no test is selected"))
        elif (status != 0 and not counts["failed"]) or not counts["any"]:
            done(results.Result(f"{self.name} ended with {status}", "failed", log.read_text(errors="replace"), final=True))
        return compile_s + child.cpu_s

    def again(self, name, times):
        """Runs one test alone; it passes only if it is found and passes."""
        found = []
        alone = Run(self.build, [name], "all", self.factor * times, sanitized=self.sanitized, env=self.env, name=f"{self.name}-again",
                    root=self.root)
        alone.limit_s = programs.MOST_AGAIN_S / slowness.clamp(self.factor * times)
        alone.run(found.append)
        return found[0] if len(found) == 1 else results.Result(name, "failed", "the second try ran no such test")


def has_xdist():
    try:
        import xdist  # noqa: F401
    except ImportError:
        return False
    return True
