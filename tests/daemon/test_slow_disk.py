# SPDX-License-Identifier: Apache-2.0
"""A disk that is slower than the puts: engines store into memory, and load from it, as if the disk were quick."""

import pytest

from harness import KIB, MIB, ctl, items, preload, put_all, wait_until
from kvwire import Ack, Status, Tier

POOL = 16 * MIB


@pytest.fixture
def stuck(make_daemon, directory):
    """Provides a daemon whose writes wait while the switch exists."""
    switch = directory / "stuck"
    switch.touch()
    daemon = make_daemon(settings={"io.backend": "posix", "io.hang": "1h", "memory.pool": POOL, "store.prewrite": "off"},
                         env={"LD_PRELOAD": preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)})
    yield daemon.start(), switch
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
