# SPDX-License-Identifier: Apache-2.0
"""The campaigns of tests/campaigns against the daemon, small: that they run, and that they find nothing.

More of them: sh tests/run.sh --campaign kill --count 10000.
"""

import os
import re
import subprocess
import sys

import pytest

from harness import BUILD, SOURCE, slow

LONG = os.environ.get("KVCACHE_TEST_LONG") == "1"


@pytest.mark.parametrize("name, count, long_count", [("kill", 10, 200), ("clientkill", 50, 2000), ("settled", 10, 100),
                                                     ("hostile", 28, 2800), ("flood", 64, 4000), ("slow", 20, 500),
                                                     ("overload", 5, 60), ("parity", 1, 20),
                                                     ("restart", 2, 20), ("filesystems", 2, 70)])
def test_campaign(directory, name, count, long_count):
    count = long_count if LONG else count
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
