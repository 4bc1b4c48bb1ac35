# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `daemon` is a running daemon, `make_daemon` makes more of them, `each_leg` runs a test on every leg.

A daemon that a test leaves running must end cleanly on SIGTERM, and none may print a sanitizer's report; their logs are shown if the test
fails. KVCACHE_BUILD is the build folder, KVCACHE_TEST_DIR a folder on a disk, and KVCACHE_TEST_KEEP=1 keeps the files of the tests there.
"""

import itertools
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

import harness
import processes
from left_out import first_of


def pytest_configure(config):
    if not harness.DAEMON.exists():
        pytest.exit(f"{harness.DAEMON} is missing: set KVCACHE_BUILD to a build folder", returncode=2)


@pytest.fixture(scope="session")
def base_directory():
    """Makes a folder on a disk, with a short name (a socket's path has 107 bytes), and open to any uid."""
    parent = os.environ.get("KVCACHE_TEST_DIR", "/var/tmp")
    path = tempfile.mkdtemp(prefix="kvcache-test-", dir=parent)
    os.chmod(path, 0o755)
    yield pathlib.Path(path)
    if not os.environ.get("KVCACHE_TEST_KEEP"):
        shutil.rmtree(path, ignore_errors=True)


_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def end_processes():
    """Kills all processes that the test has started and not ended. Processes of fixtures with a wider scope were started before, and stay."""
    before = processes.count()
    yield before
    processes.end_since(before)


@pytest.fixture
def directory(base_directory, end_processes):
    path = base_directory / f"t{next(_numbers)}"
    path.mkdir(mode=0o755)
    yield path
    processes.end_since(end_processes)  # before their files are removed
    if not os.environ.get("KVCACHE_TEST_KEEP"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_daemon(directory):
    """Provides make_daemon(leg=..., settings={...}, ...), which makes a Daemon that is not started yet."""
    made = []

    def make(leg=harness.DEFAULT_LEG, settings=None, **how):
        own = directory / f"d{len(made)}"
        own.mkdir(mode=0o755)
        daemon = harness.Daemon(own, leg, settings, **how)
        made.append(daemon)
        return daemon

    yield make
    problems = []
    for daemon in made:
        daemon.note_metrics()
        try:
            daemon.clean_up()
        except AssertionError as e:
            problems.append(str(e))
        if daemon.log():
            print(f"--- log of {daemon.directory.name} ---\n{daemon.log()[-20000:]}", file=sys.stderr)
    assert not problems, "\n".join(problems)


@pytest.fixture
def daemon(make_daemon):
    return make_daemon().start()


@pytest.fixture(params=first_of(harness.LEGS, 2), ids=lambda leg: leg.name)
def each_leg(request):
    reason = request.param.why_not()
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.fixture
def leg_daemon(each_leg, make_daemon):
    """Provides a running daemon, for each leg."""
    return make_daemon(each_leg).start()


@pytest.fixture
def client(daemon):
    with daemon.client() as c:
        yield c
