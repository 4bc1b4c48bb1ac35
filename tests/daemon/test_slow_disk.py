# SPDX-License-Identifier: Apache-2.0
"""A disk that is slower than the puts: engines store into memory, and load from it, as if the disk were quick."""

import signal

import pytest

from harness import KIB, MIB, ctl, items, preload, put_all, wait_until
from kvwire import Ack, Status, Tier

POOL = 16 * MIB


@pytest.fixture
def stuck(make_daemon, directory, request):
    """Provides a daemon whose writes wait while the switch exists."""
    switch = directory / "stuck"
    switch.touch()
    daemon = make_daemon(settings={"io.backend": "posix", "io.hang": "1h", "memory.pool": POOL, "store.prewrite": "off",
                                   **getattr(request, "param", {})},
                         env={"LD_PRELOAD": preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)})
    daemon.start().populated_status()  # until then the pool holds less
    yield daemon, switch
    switch.unlink(missing_ok=True)


def test_accepted_puts_and_loads_go_on_and_the_chunks_are_written_later(stuck):
    daemon, switch = stuck
    pairs = items("quick", 160, 64 * KIB)  # 10 MiB, of which a quarter of the pool may be unwritten
    with daemon.client() as c:
        ns = c.namespace("n")
        for pair in pairs:
            assert c.put(ns, [pair], ack=Ack.ACCEPTED, nowait=True)[0].status == Status.OK
        assert c.put(ns, items("slow", 1, 64 * KIB), ack=Ack.WRITTEN, nowait=True)[0].status == Status.BUSY
        for key, value in pairs:
            result = c.get(ns, [key])[0]
            assert result.status == Status.OK and result.tier == Tier.MEMORY and result.data == value
            c.release([result.lease])
        postponed = daemon.metric("kvcache_put_postponed_total")
        assert postponed >= 160 - 64 - 8 and daemon.metric("kvcache_pool_unwritten_bytes") <= POOL / 4 * 9 / 8 + 2 * MIB
        assert f"postponed         {int(postponed)} chunks: the disk was behind" in ctl("status", daemon=daemon).stdout
        switch.unlink()
        wait_until(lambda: daemon.metric("kvcache_put_caught_up_total") == postponed, "the disk has caught up")
        wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")
    daemon.restart(kill=True)
    with daemon.client() as c:
        for key, value in pairs:
            result = c.get(c.namespace("n"), [key])[0]
            assert result.status == Status.OK and result.tier == Tier.DISK and result.data == value
            c.release([result.lease])


def test_more_than_memory_holds_is_forgotten_and_never_wrong(stuck):
    daemon, switch = stuck
    pairs = items("many", 600, 64 * KIB)  # 37 MiB through a pool of 16
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.ACCEPTED, nowait=True)
        found = 0
        for key, value in pairs:
            result = c.get(ns, [key])[0]
            assert result.status in (Status.OK, Status.MISS)
            if result.status == Status.OK:
                assert result.data == value
                c.release([result.lease])
                found += 1
        assert 64 <= found < 600
        switch.unlink()
        wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")


def stop(daemon):
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "not on disk yet; writing" in daemon.log(), "it stops")


def test_a_stop_writes_postponed_chunks_while_it_waits_for_the_disk(stuck):
    daemon, switch = stuck
    pairs = items("quick", 160, 64 * KIB)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.ACCEPTED, nowait=True)
        assert daemon.metric("kvcache_put_postponed_total") > 0
    stop(daemon)
    assert "stopping: 160 chunks not on disk yet" in daemon.log()
    switch.unlink()
    assert daemon.wait_exit() == 0
    daemon.start()
    with daemon.client() as c:
        for key, value in pairs:
            result = c.get(c.namespace("n"), [key])[0]
            assert result.status == Status.OK and result.tier == Tier.DISK and result.data == value
            c.release([result.lease])


@pytest.mark.parametrize("stuck", [{"limits.drain": "100ms"}], indirect=True)
def test_a_stop_waits_for_postponed_chunks_no_longer_than_for_others(stuck):
    daemon, switch = stuck
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("quick", 160, 64 * KIB), ack=Ack.ACCEPTED, nowait=True)
    stop(daemon)
    wait_until(lambda: "limits.drain has passed; 160 chunks accepted, 10 MiB in all, will be lost" in daemon.log(), "it waits no longer")
    switch.unlink()
    assert daemon.wait_exit() == 0
