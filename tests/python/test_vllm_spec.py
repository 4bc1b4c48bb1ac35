# SPDX-License-Identifier: Apache-2.0
"""vLLM's spec of ours under the recorded contracts of vLLM 0.26 and 0.33, against a real daemon and over the driver without a GPU;
vLLM is not needed. The scenarios are in vllm_spec_host.py, each a process of its own, because a driver stays loaded."""

import os
import re
import signal
import subprocess
import sys

import harness
import pytest

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


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


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def restarted(process, daemon):
    """Kills and starts the daemon when the process asks for it."""
    asked(process, "kill")
    daemon.kill()
    go_on(process)
    asked(process, "start")
    daemon.start()


def on_two_hosts(start, make_daemon, directory, scenario, n_chunks):
    """One host stores chunks in a directory that both share; the scenario runs on the other."""
    (directory / "shared").mkdir()
    one, other = (make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                        "remote.absence_lifetime": "100ms"}).start() for _ in range(2))
    ended(start(one, "stored_for_other_hosts"))
    harness.wait_until(lambda: one.status()["remote"]["puts"] >= n_chunks, "they are there")
    ended(start(other, scenario))
    harness.wait_until(lambda: other.status()["sessions"]["leases"] == 0, "no leases")


@pytest.mark.parametrize("scenario", ["stored_and_loaded", "from_disk", "declined", "without_a_worker", "refused",
                                      "loads_whatever_fails", "prefill_rate", "groups_by_their_numbers", "asked_as_one",
                                      "preempted_and_declined", "told_apart", "captures", "a_captured_stream_is_left_alone",
                                      "loads_in_the_engine_s_thread", "expedited", "beside_the_forward_pass", "answered_at_once", "waited_for_first",
                                      "small_stores_go_together", "gathered_and_waited_for", "closed_while_it_stores"])
def test_scenario(scenario, start, daemon):
    ended(start(daemon, scenario))
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")


@pytest.mark.parametrize("scenario", ["from_the_shared_tier", "first_chunks_from_elsewhere", "sliding_window_from_the_shared_tier"])
def test_what_another_host_has_stored_is_loaded(start, make_daemon, directory, scenario):
    on_two_hosts(start, make_daemon, directory, scenario, 21)


def test_the_next_engine_after_kill_9_finds_it(start, daemon):
    ended(start(daemon, "killed_after_a_store"), -signal.SIGKILL, "")
    ended(start(daemon, "next_engine"))


@pytest.mark.parametrize("scenario", ["ended_or_reset_before_the_load", "aborted_while_it_loads"])
def test_leases_end_with_the_request(scenario, start, daemon):
    process = start(daemon, scenario)
    asked(process, "leases")
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")
    ended(process)


def test_the_daemon_ends_between_promise_and_load(start, daemon):
    process = start(daemon, "daemon_ends_before_the_load")
    restarted(process, daemon)
    ended(process)


def test_an_engine_that_only_loads_attaches_to_the_next_daemon(start, daemon):
    process = start(daemon, "only_loads_after_a_restart")
    asked(process, "restart")
    daemon.kill()
    daemon.start()
    ended(process)


@pytest.mark.parametrize("program", ["daemon_hangs_before_the_load", "hung_while_it_stores"])
def test_the_daemon_hangs_while_the_engine_is_at_it(start, daemon, program):
    process = start(daemon, program)
    asked(process, "stop")
    daemon.pause()
    try:
        go_on(process)
        asked(process, "continue")
    finally:
        daemon.resume()
    ended(process)
