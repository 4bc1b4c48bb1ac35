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


@pytest.mark.parametrize("name, count, long_count", [("kill", 10, 200), ("clientkill", 50, 2000), ("settled", 10, 100)])
def test_campaign(directory, name, count, long_count):
    count = long_count if LONG else count
    command = [sys.executable, SOURCE / "tests/campaigns/daemon_campaigns.py", name, "--count", str(count),
               "--build", BUILD]
    result = subprocess.run(command, env=dict(os.environ, KVCACHE_TEST_DIR=str(directory)), capture_output=True,
                            text=True, stdin=subprocess.DEVNULL, timeout=(120 + 3 * count) * slow())
    last = result.stdout.rstrip().rpartition("\n")[2]
    assert re.fullmatch(rf"campaign {name}: {count} runs, 0 wrong, 0 lost, 0 hung", last), result.stdout + result.stderr
    assert result.returncode == 0
