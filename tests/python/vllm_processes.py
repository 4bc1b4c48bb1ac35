# SPDX-License-Identifier: Apache-2.0
"""Starts the programs that play an engine's scheduler and workers (vllm_spec_host.py and others), and performs their requests on the daemon,
such as a restart."""

import os
import re
import subprocess
import sys

import harness
import pytest


@pytest.fixture(params=["0.26", "0.33"])
def start(request, source):
    library = harness.BUILD / "tests/gpu/cuda/libcuda.so.1"
    if re.search(rb"__asan_init|__tsan_init", library.read_bytes()):
        pytest.skip("the driver without a GPU is built with a sanitizer, and Python is not")
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent),
           "PYTHONPATH": f"{source}/client/python:{source}/tests/python"}
    processes = []

    def start(daemon, scenario, program="vllm_spec_host.py"):
        processes.append(harness.spawn([sys.executable, str(source / "tests/python" / program), str(daemon.socket),
                                        request.param, scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env=env))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process, status=0, said="right\n"):
    out, err = process.communicate("\n", timeout=120 * harness.slow())
    assert process.returncode == status and out == said, err


def asked(process, what):
    assert process.stdout.readline() == what + "\n", process.communicate()[1]


def go_on(process, answer=""):
    process.stdin.write(answer + "\n")
    process.stdin.flush()


def restarted(process, daemon):
    """Kills and starts the daemon when the process asks for it."""
    asked(process, "kill")
    daemon.kill()
    go_on(process)
    asked(process, "start")
    daemon.start()


def restarted_at_once(process, daemon):
    asked(process, "restart")
    daemon.kill()
    daemon.start()


def hangs(process, daemon):
    """Has the daemon hang while the process asks for it."""
    asked(process, "stop")
    daemon.pause()
    try:
        go_on(process)
        asked(process, "continue")
    finally:
        daemon.resume()


def no_leases(daemon):
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")


def on_two_hosts(start, make_daemon, directory, scenario, n_chunks):
    """Runs a scenario on one of two hosts that share a directory. The other one stores the chunks."""
    (directory / "shared").mkdir()
    one, other = (make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                        "remote.absence_lifetime": "100ms"}).start() for _ in range(2))
    ended(start(one, "stored_for_other_hosts"))
    harness.wait_until(lambda: one.status()["remote"]["puts"] >= n_chunks, "they are there")
    ended(start(other, scenario))
    no_leases(other)
