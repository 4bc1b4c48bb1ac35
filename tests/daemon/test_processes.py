# SPDX-License-Identifier: Apache-2.0
"""A test leaves no process behind, however it ends."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

import harness
from harness import spawn, wait_until

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent

CONFTEST = f"""
import importlib.util
import sys

sys.path[:0] = [{str(HERE)!r}, {str(TESTS)!r}]
spec = importlib.util.spec_from_file_location("daemon_fixtures", {str(HERE / "conftest.py")!r})
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
base_directory, directory, end_processes, make_daemon = (
    fixtures.base_directory, fixtures.directory, fixtures.end_processes, fixtures.make_daemon)
"""

# Starts a daemon, a process with a child, and one whose leader has ended, and writes their numbers to the file "numbers".
STARTS = """
import os
import pathlib
import signal
import subprocess

import pytest

from harness import spawn

NUMBERS = pathlib.Path(__file__).with_name("numbers")


def shell(script):
    process = spawn(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def start(make_daemon):
    daemon = make_daemon().start()
    parent, child = shell("sleep 1000 & echo $!; wait")
    leader, orphan = shell("sleep 1000 >/dev/null & echo $!")
    assert leader.wait() == 0
    for number in (daemon.pid, parent.pid, child, orphan):
        os.kill(number, 0)
    NUMBERS.write_text(f"{daemon.pid} {parent.pid} {child} {orphan}")
"""

# How the test ends, and the word of pytest's summary.
ENDINGS = {
    "passes": ("pass", "1 passed"),
    "fails": ("assert False", "1 failed"),
    "daemon_dies": ("os.kill(int(NUMBERS.read_text().split()[0]), signal.SIGKILL)", "1 error"),
    "is_skipped": ("pytest.skip('here')", "1 skipped"),
    "is_interrupted": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
}


def run(tmp_path, text):
    """Runs pytest on this text in a separate process."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(STARTS + text)
    return spawn([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", tmp_path, tmp_path], cwd=tmp_path,
                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def running(numbers):
    """Returns the running ones of these processes. A zombie, which its new parent has not reaped, does not count."""
    found = []
    for number in numbers:
        try:
            if pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(number)
        except OSError:
            pass
    return found


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_test_leaves_no_process(tmp_path, ending):
    statement, word = ENDINGS[ending]
    process = run(tmp_path, f"\n\ndef test_it(make_daemon):\n    start(make_daemon)\n    {statement}\n")
    said, _ = process.communicate(timeout=120 * harness.slow())
    assert word in said, said
    numbers = (tmp_path / "numbers").read_text().split()
    assert len(numbers) == 4
    wait_until(lambda: not running(numbers), lambda: f"no process of {numbers} runs, but {running(numbers)} do")


def test_a_killed_pytest_leaves_no_process(tmp_path):
    """The kernel kills the processes that pytest has started; their children are no longer known to anything."""
    process = run(tmp_path, "\n\ndef test_it(make_daemon):\n    start(make_daemon)\n    print('started', flush=True)\n    signal.pause()\n")
    wait_until(lambda: process.poll() is not None or (tmp_path / "numbers").exists() and (tmp_path / "numbers").read_text(), "it has started them", 60)
    daemon, parent, child, orphan = (tmp_path / "numbers").read_text().split()
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not running([daemon, parent]), "the processes that it started end")
    finally:
        for number in map(int, running([child, orphan])):
            os.kill(number, signal.SIGKILL)


def test_a_process_of_a_wider_fixture_lives_until_the_fixture_ends(tmp_path):
    process = run(tmp_path, """

@pytest.fixture(scope="module")
def shared():
    process, child = shell("sleep 1000 & echo $!; wait")
    yield process
    assert process.poll() is None
    process.kill()


@pytest.mark.parametrize("number", [1, 2])
def test_it(shared, number):
    assert shared.poll() is None
    own, child = shell("sleep 1000 & echo $!; wait")
""")
    said, _ = process.communicate(timeout=120 * harness.slow())
    assert "2 passed" in said, said


# Programs without the fixture, and two tests that end their processes themselves.
NOT_BY_SPAWN = {"processes.py", "vllm_spec_times.py", "test_alerts.py", "test_dashboard.py", "test_processes.py"}


def test_every_process_is_started_by_spawn():
    direct = [path.name for folder in ("daemon", "python", "kvbench", "fleet") for path in sorted((TESTS / folder).glob("*.py"))
              if path.name not in NOT_BY_SPAWN and re.search(r"\bPopen\(", path.read_text())]
    assert not direct, "start them by harness.spawn(), which has them killed when the test ends"
