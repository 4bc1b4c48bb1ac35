# SPDX-License-Identifier: Apache-2.0
"""Fixtures: those of tests/daemon, and the back ends.

    KVCACHE_FLEET_DIR      folder of Ceph's data (default: a new folder in /var/tmp, removed at the end); use a folder in memory to
                           measure, because a slow disk hides the rest
    KVCACHE_FLEET_ROUNDS   rounds of the test that kills processes (default: 5)
    KVCACHE_FLEET_SEED     seed of its choices (default: 1)
"""

import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "daemon")]

import engines  # noqa: E402 - these are found by the path above

_spec = importlib.util.spec_from_file_location("daemon_conftest", HERE.parent / "daemon" / "conftest.py")
_daemon = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_daemon)
pytest_configure, base_directory, directory, end_processes, make_daemon = (
    _daemon.pytest_configure, _daemon.base_directory, _daemon.directory, _daemon.end_processes, _daemon.make_daemon)


@pytest.fixture(scope="session")
def cluster():
    """Provides a running Ceph, or skips the test."""
    reason = engines.why_no_ceph()
    if reason:
        pytest.skip(reason)
    kept = os.environ.get("KVCACHE_FLEET_DIR")
    folder = kept or tempfile.mkdtemp(prefix="kvcache-ceph-", dir="/var/tmp")
    made = engines.Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.run("stop" if kept else "destroy")
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine_of(request, directory):
    """Provides engine_of("rados"), which starts a back end and gives the test a prefix of its own."""
    def make(name):
        return engines.ENGINES[name](directory, None if name == "directory" else request.getfixturevalue("cluster"))
    return make


@pytest.fixture(params=list(engines.ENGINES))
def engine(request, engine_of):
    return engine_of(request.param)


@pytest.fixture(params=["rados", "s3"])
def ceph_engine(request, engine_of):
    return engine_of(request.param)


@pytest.fixture
def make_host(make_daemon):
    """Provides make_host(engine, ...), which starts a daemon on a back end."""
    def make(engine, start=True, env=None, **settings):
        daemon = make_daemon(env=env, settings={
            **engine.settings(), "remote.write": "all", "remote.write_rate": "0", "remote.generation_interval": "1s",
            "remote.absence_lifetime": "100ms", "remote.timeout": "2s", "store.limit": "1GiB", "memory.pool": "64MiB",
            **{k.replace("__", "."): v for k, v in settings.items()}})
        return daemon.start() if start else daemon
    return make


def pytest_terminal_summary(terminalreporter):
    """Prints the measured figures, and the last line."""
    for line in engines.FIGURES:
        terminalreporter.write_line(line)
