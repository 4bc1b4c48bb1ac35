# SPDX-License-Identifier: Apache-2.0
"""Tests the Python package of the tree with the library of the build folder and real daemons. `daemon`, `make_daemon` and `directory` are the
fixtures of tests/daemon. Python cannot load a library with a sanitizer; the package then compiles its own."""

import importlib.util
import os
import pathlib
import re
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "client" / "python"
sys.path[:0] = [str(SOURCE / "tests" / "daemon"), str(PACKAGE)]

import harness  # noqa: E402
import pytest  # noqa: E402

_spec = importlib.util.spec_from_file_location("daemon_fixtures", SOURCE / "tests" / "daemon" / "conftest.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
base_directory, directory, end_processes, make_daemon, daemon = (
    _fixtures.base_directory, _fixtures.directory, _fixtures.end_processes, _fixtures.make_daemon, _fixtures.daemon)


def pytest_configure(config):
    _fixtures.pytest_configure(config)
    config.addinivalue_line("markers", "deadlines: is about the deadlines of an engine's adapter, and has its own ones (deadlines.py)")


_scratch = tempfile.TemporaryDirectory()


def _library():
    if "PYTEST_XDIST_WORKER" in os.environ:  # the process that has started this one has found it, or made it
        return os.environ["KVCACHE_LIBRARY"]
    built = harness.BUILD / "client" / "lib" / "libkvcache.so"
    if built.exists() and not re.search(rb"__asan_init|__tsan_init", built.read_bytes()):
        return built
    import build_backend
    own = pathlib.Path(_scratch.name, "libkvcache.so")
    build_backend.compile_library(own)
    return own


os.environ["KVCACHE_LIBRARY"] = str(_library())
os.environ.pop("KVCACHE_SOCKET", None)
os.environ["PYTHONHASHSEED"] = "0"  # vLLM before 0.29 has random block hashes without it, which make a namespace private

import deadlines  # noqa: E402
import kvcache  # noqa: E402


@pytest.fixture(autouse=True)
def long_deadlines(request, monkeypatch):
    """Lengthens the deadlines of the adapters, except in the tests that are about them."""
    if not request.node.get_closest_marker("deadlines"):
        deadlines.lengthen(monkeypatch.setattr)


@pytest.fixture
def client(daemon):
    with kvcache.Client(daemon.socket, timeout=30 * harness.slow(), connect_timeout=5 * harness.slow(), required=True) as c:
        yield c


@pytest.fixture
def blocks(client):
    return client.namespace("test", {"model": "m", "dtype": "bf16"})


@pytest.fixture
def source():
    return SOURCE
