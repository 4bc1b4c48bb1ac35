# SPDX-License-Identifier: Apache-2.0
"""io.spin: threads that poll for a moment before they sleep."""

import itertools
import os
import time

import pytest

import harness
from harness import MIB, items, key_of, wait_until
from kvwire import Ack, Status, Tier


def spun(daemon):
    samples = daemon.metrics()
    return {thread: samples[f'kvcache_spin_seconds_total{{thread="{thread}"}}'] for thread in ("loop", "workers")}


def traffic(c, ns, name):
    """Performs everything that a worker does, and compares the bytes."""
    pairs = items(name, 24, 70000)
    harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
    keys = [k for k, _ in pairs]
    for tier in (None, Tier.MEMORY):
        if tier:
            c.evict(ns, keys, tier)
        for result, (_, value) in zip(c.get_into(ns, keys[:8], 70000), pairs):
            assert result.status == Status.OK and result.data == value
        for key, value in pairs:
            result = c.get(ns, [key])[0]
            assert result.status == Status.OK and result.data == value
            c.release([result.lease])
    assert c.get(ns, [key_of("none")])[0].status == Status.MISS


@pytest.mark.parametrize("spin, spin_us", [("on", 50), ("long", 2000)])
@pytest.mark.parametrize("backend", ["io_uring", "posix"])
def test_threads_that_poll_serve_the_same_and_rest_when_idle(make_daemon, backend, spin, spin_us):
    if backend == "io_uring" and not harness.has_io_uring():
        pytest.skip("this host refuses io_uring")
    daemon = make_daemon(settings={"io.spin": spin, "io.backend": backend}).start()
    with daemon.client() as c:
        assert c.spin_us == spin_us
        ns = c.namespace("spin")
        rounds = itertools.count()

        def have_polled():
            traffic(c, ns, f"{spin}{next(rounds)}")
            after = spun(daemon)
            return after["loop"] > 0 and (after["workers"] > 0 or backend == "posix")  # POSIX workers sleep in system calls
        if spin == "long":
            wait_until(have_polled, "its threads have polled", 30)
        else:  # polling helps only if answers and clients take less than 50 us
            for _ in range(5):
                have_polled()
    daemon.assert_idle()
    assert backend == "io_uring" or spun(daemon)["workers"] == 0


def test_a_pause_between_requests_is_no_time_of_theirs(make_daemon):
    """The time at which an unsuccessful poll began must not count as the time at which the next request could be read."""
    daemon = make_daemon(settings={"io.spin": "long"}).start()
    pause_s = 0.1

    def slow():
        """Returns the number of pings that took about as long as the pause, or longer."""
        name, samples = "kvcache_request_duration_seconds", daemon.metrics()
        return samples[f'{name}_count{{op="PING"}}'] - samples[f'{name}_bucket{{op="PING",le="0.05"}}']
    with daemon.client() as c:
        before, waited = slow(), []
        for _ in range(15):
            for _ in range(4):
                began = time.monotonic()
                c.ping()
                waited.append(time.monotonic() - began)
            time.sleep(pause_s)
        assert slow() - before <= sum(seconds >= pause_s / 4 for seconds in waited)


@pytest.mark.parametrize("spin", ["off", "auto"])
def test_threads_that_are_not_to_poll_do_not(make_daemon, spin):
    """With auto, nothing polls on fewer than four processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        daemon = make_daemon(settings={"io.spin": spin}).start()
    finally:
        os.sched_setaffinity(0, before)
    with daemon.client() as c:
        assert c.spin_us == 0
        traffic(c, c.namespace("spin"), spin)
    assert spun(daemon) == {"loop": 0, "workers": 0}


@pytest.mark.parametrize("spin", ["on", "long"])
def test_a_stop_ends_threads_that_poll(make_daemon, spin):
    daemon = make_daemon(settings={"io.spin": spin}).start()
    with daemon.client() as c:
        harness.put_all(c, c.namespace("spin"), items("stop", 8, MIB // 4), ack=Ack.ACCEPTED)
    daemon.stop()
    daemon.start()
    with daemon.client() as c:
        ns = c.namespace("spin")
        assert all(c.get(ns, [k])[0].status == Status.OK for k, _ in items("stop", 8, MIB // 4))


@pytest.mark.skipif(not harness.has_io_uring(), reason="this host refuses io_uring")
def test_threads_do_not_poll_for_background_work(make_daemon):
    daemon = make_daemon(settings={"io.spin": "long", "io.backend": "io_uring", "store.scrub_rate": "1GiB", "store.scrub_interval": "1s"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"  # HTTP requests are not requests of a client
    daemon.start()

    def read():
        samples = harness.parse_metrics(daemon.http("/metrics")[2].decode())
        passes = sum(value for name, value in samples.items() if name.startswith("kvcache_scrub_passes_total"))
        return passes, [value for name, value in samples.items() if name.startswith("kvcache_spin_seconds_total")]
    with daemon.client() as c:
        harness.put_all(c, c.namespace("spin"), items("scrub", 40, MIB), ack=Ack.WRITTEN)
        begun, _ = read()
        wait_until(lambda: read()[0] > begun, "a pass, which began beside the puts perhaps", 30)
        begun, before = read()
        wait_until(lambda: read()[0] > begun + 1, "two more passes", 30)
        assert read()[1] == before and len(before) == 2
