# SPDX-License-Identifier: Apache-2.0
"""tests/lib/sum-up.py: what run.sh's last line says of results that are there, are missing, or contradict a status."""

import json
import subprocess
import sys

import pytest

from harness import SOURCE

PASSED = '<testcase classname="daemon.test_a" name="one"/>'
FAILED = '<testcase classname="daemon.test_a" name="two"><failure message="no">because</failure></testcase>'
SKIPPED = '<testcase classname="daemon.test_a" name="three"><skipped message="no GPU"/></testcase>'


def sum_up(directory, *statuses, parallel=None, serial=None):
    (directory / "meson-logs").mkdir()
    unit = {"name": "kvcache-daemon:unit / text", "result": "OK", "stdout": "[==========] 3 test(s) run.\n[  PASSED  ] 3 test(s).\n"}
    (directory / "meson-logs/testlog.json").write_text(json.dumps(unit) + "\n")
    for name, cases in (("pytest.xml", parallel), ("pytest-serial.xml", serial)):
        if cases is not None:
            (directory / name).write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    result = subprocess.run([sys.executable, SOURCE / "tests/lib/sum-up.py", directory, *statuses], capture_output=True, text=True)
    return result.stdout.rstrip().splitlines()[-1], result.returncode


@pytest.mark.parametrize("statuses, parallel, serial, line, status", [
    (("0",), None, None, "3 passed, 0 failed, 0 skipped", 0),
    (("0", "none"), None, None, "3 passed, 0 failed, 1 skipped", 0),
    (("0", "0,0"), [PASSED, SKIPPED], [PASSED], "5 passed, 0 failed, 1 skipped", 0),
    (("0", "1,0"), [PASSED, FAILED], [PASSED], "5 passed, 1 failed, 0 skipped", 1),
    (("0", "0,1"), [PASSED], [FAILED], "4 passed, 1 failed, 0 skipped", 1),
    # killed before they could write, or written and yet ended badly
    (("0", "137,0"), None, [PASSED], "4 passed, 1 failed, 0 skipped", 1),
    (("0", "0,124"), [PASSED], None, "4 passed, 1 failed, 0 skipped", 1),
    (("0", "2,0"), [PASSED], [PASSED], "5 passed, 1 failed, 0 skipped", 1),
    (("0", "1,3"), [FAILED], [PASSED], "4 passed, 2 failed, 0 skipped", 1),
    # ended well, and left nothing
    (("0", "0,0"), [PASSED], None, "4 passed, 1 failed, 0 skipped", 1),
    (("0", "0,0"), None, [PASSED], "4 passed, 1 failed, 0 skipped", 1),
])
def test_the_last_line(directory, statuses, parallel, serial, line, status):
    assert sum_up(directory, *statuses, parallel=parallel, serial=serial) == (line, status)
