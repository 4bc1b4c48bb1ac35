# SPDX-License-Identifier: Apache-2.0
"""Runs the campaigns of tests/campaigns against the daemon briefly: they must run, and find nothing.

sh tests/run.sh --campaign kill --count 10000 runs more of them.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from harness import BUILD, SOURCE, is_sanitized, slow
from left_out import RUNS_ALL

LONG = os.environ.get("KVCACHE_TEST_LONG") == "1"
CAMPAIGNS = [("kill", 16, 200), ("admin", 30, 600), ("clientkill", 50, 2000), ("settled", 10, 100), ("hostile", 28, 2800), ("environment", 24, 10000), ("parity", 1, 20),
             ("restart", 2, 20), ("filesystems", 2, 70), ("events", 6, 1000)]
SHORTENED = ("kill", "admin", "settled", "cost")  # to a third with a sanitizer, where a run takes a second or more
MEASURING = [("flood", 64, 4000), ("fairness", 17, 170), ("slow", 20, 500), ("overload", 5, 60), ("cost", 30, 300), ("loop", 10, 40)]


@pytest.mark.parametrize("name, count, long_count", CAMPAIGNS +
                         [pytest.param(*row, marks=[pytest.mark.serial] + [pytest.mark.figures] * (row[0] == "fairness")) for row in MEASURING])
def test_campaign(directory, name, count, long_count):
    count = long_count if LONG else count // 3 if name in SHORTENED and is_sanitized() and not RUNS_ALL else count
    command = [sys.executable, SOURCE / "tests/campaigns/daemon_campaigns.py", name, "--count", str(count),
               "--build", BUILD]
    env = dict(os.environ, KVCACHE_TEST_DIR=str(directory))
    if not LONG:
        env["KVCACHE_RESTART_ENTRIES"] = "200000"  # the least whose tables are read by two threads
    result = subprocess.run(command, env=env, capture_output=True,
                            text=True, stdin=subprocess.DEVNULL, timeout=(120 + 3 * count) * slow())
    if result.returncode == 77:
        pytest.skip(result.stdout.rstrip().rpartition("\n")[2])
    last = result.stdout.rstrip().rpartition("\n")[2]
    assert re.fullmatch(rf"campaign {name}: {count} runs, 0 wrong, 0 lost, 0 hung", last), result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.documents
@pytest.mark.parametrize("statuses, failed, skipped, named", [
    ({"kill": 1, "powerloss": 1, "fuzz": 77}, 2, 1,
     ["Campaigns that failed: powerloss kill", "Campaigns that were skipped: fuzz"]),
    ({}, 0, 0, []),
])
def test_a_long_run_counts_its_campaigns(directory, statuses, failed, skipped, named):
    """tests/run.sh --long, with a build, tests and campaigns that do nothing but end with a status each."""
    def program(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    root, tools = directory / "tree", directory / "tools"
    each = "".join(f"{name}) exit {n} ;; " for name, n in statuses.items())
    ends = f'#!/bin/sh\necho "campaign $1: what it says"\ncase $1 in {each}*) exit 0 ;; esac\n'
    program(root / "tests/campaigns/daemon_campaigns.py", ends)
    program(root / "tests/campaigns/fuzz.sh", ends.replace("$1", "fuzz"))
    for name in ("store-campaigns", "store-campaigns-threads"):
        program(root / "build/tests/campaigns" / name, ends)
    program(root / "tests/suite/suite.py", 'print("unit tests\\n10 passed, 0 failed, 1 skipped")')
    for name in ("meson", "ninja"):
        program(tools / name, "#!/bin/sh\nexit 0\n")
    (root / "build/build.ninja").touch()
    for name in ("run.sh", "campaigns/run.sh"):
        shutil.copy(SOURCE / "tests" / name, root / "tests" / name)
    result = subprocess.run(["sh", root / "tests/run.sh", "--long", "--no-install", "--build-dir", root / "build"],
                            env=dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}"), capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=120 * slow())
    lines = result.stdout.rstrip().splitlines()
    passed = 10 + sum(line.startswith("=== ") for line in lines) - failed - skipped
    assert lines[-1] == f"{passed} passed, {failed} failed, {1 + skipped} skipped", result.stdout + result.stderr
    assert result.returncode == (1 if failed else 0) and passed > 20
    assert [line for line in lines if line.startswith("Campaigns that")] == named
