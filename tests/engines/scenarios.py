# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios of an engine's check, each with a daemon of its own, and has the parts that scenarios of several engines share."""

import contextlib
import shutil
import tempfile
import threading
import time
import traceback


def wait_for(what, condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.005)


def threads_beside_a_daemon_that_dies(daemon, host, acts, loaded, rounds):
    """Calls each of `acts` with 0, 1, 2, ... in a thread of its own, while the daemon is killed and stopped in turn, `rounds` times. Before
    each, loaded() must have grown. No call may raise an exception."""
    ended, failures = threading.Event(), []

    def run(act):
        n = 0
        try:
            while not ended.is_set():
                act(n)
                n += 1
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for n in range(rounds):
            before = loaded()
            wait_for("something is loaded", lambda: loaded() > before or failures)
            if n % 2:
                daemon.pause()
                wait_for("it is seen to hang", lambda: not host.link.well or failures)
                daemon.resume()
            else:
                daemon.kill()
                daemon.start()
            host.wait_well()
    finally:
        ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures
    host.wait_well()
    assert not host.counters["errors"], host.counters


def run_all(engine, version, scenarios, wanted, daemon_in, run):
    """Runs the scenarios, or those whose names are wanted, and prints how each ended. daemon_in(folder) makes a daemon.
    run(scenario, daemon, end) runs one; what it adds to the stack `end` is closed afterwards, while the daemon still runs. Returns the exit
    status."""
    failed = passed = 0
    for scenario in scenarios:
        if wanted and scenario.__name__ not in wanted:
            continue
        folder = tempfile.mkdtemp(prefix="kvcache-engines-")
        daemon = daemon_in(folder)
        started, said = time.monotonic(), "ok"
        try:
            daemon.start()
            with contextlib.ExitStack() as end:
                run(scenario, daemon, end)
            passed += 1
        except Exception as e:
            traceback.print_exc()
            failed += 1
            said = f"FAILED: {e}"
        finally:
            if daemon.process is not None:
                daemon.kill()
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{engine} {version}: {scenario.__name__} {time.monotonic() - started:.1f} s {said}", flush=True)
    print(f"{engine}: {passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0
