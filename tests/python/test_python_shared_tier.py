# SPDX-License-Identifier: Apache-2.0
"""The Python package with a tier that two daemons share: how many keys of a chain are found, and the tier of each chunk."""

import asyncio

import kvcache
import pytest
from harness import wait_until

LENGTH, TOKENS = 5000, {"model": "m"}


def pairs(n):
    return [bytes([1, i]) + bytes(30) for i in range(n)], [bytearray([i]) * LENGTH for i in range(n)]


@pytest.fixture
def hosts(make_daemon, directory):
    (directory / "shared").mkdir()
    made = [make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                  "remote.absence_lifetime": "100ms"}).start() for _ in range(2)]
    yield made


def test_how_far_a_chain_goes_on_in_the_shared_tier(hosts):
    a, b = hosts
    keys, values = pairs(20)
    with kvcache.Client(a.socket) as one, kvcache.Client(b.socket) as other:
        blocks, here = one.namespace("n", TOKENS), other.namespace("n", TOKENS)
        assert blocks.put(keys[:15], values[:15]).ok and here.put(keys[:4], values[:4]).ok
        wait_until(lambda: a.status()["remote"]["puts"] + b.status()["remote"]["puts"] >= 15, "they are there")
        wait_until(lambda: here.reach(keys) == (4, 15, True), lambda: f"it is found: {here.reach(keys)}")
        assert here.reach(keys[:4]) == (4, 4, True) and here.match(keys) == 4
        assert here.tiers(keys)[10] == 0 and here.tiers(keys, remote=True)[10] in (0, kvcache.TIER_REMOTE)
        room = [bytearray(LENGTH) for _ in range(15)]
        done = here.get(keys[:15], room)
        assert done.ok and room == values[:15]
        assert set(done.tiers[4:]) == {kvcache.TIER_REMOTE} and not set(done.tiers[:4]) & {kvcache.TIER_REMOTE}
        assert here.match(keys) == 15

        async def ask():
            client = kvcache.AsyncClient(b.socket)
            try:
                return await client.namespace("n", TOKENS).reach(keys[:15])
            finally:
                client.close()
        assert asyncio.run(ask()) == (15, 15, True)


def test_without_a_shared_tier_it_is_what_is_here(daemon):
    keys, values = pairs(5)
    with kvcache.Client(daemon.socket) as client:
        blocks = client.namespace("n", TOKENS)
        assert blocks.put(keys[:3], values[:3]).ok
        assert blocks.reach(keys) == (3, 3, True)
        assert blocks.tiers(keys, remote=True)[:3] == blocks.tiers(keys)[:3]


def test_the_status_names_it(hosts, daemon):
    with kvcache.Client(hosts[0].socket) as client:
        status = client.status()
        assert status["remote"]["backend"] == "directory" and status["remote"]["breaker"] == "closed"
    with kvcache.Client(daemon.socket) as client:
        assert client.status()["remote"] == {"backend": "off"}
        daemon.kill()
        assert client.status() is None


def test_what_was_not_answered_in_time_is_not_final():
    reach_of = kvcache._namespace.reach_of
    assert reach_of(bytes([kvcache.OK, kvcache.PENDING, kvcache.MISS]), bytes(3)) == (1, 1, False)
    assert reach_of(bytes([kvcache.LOST] * 2), bytes(2)) == (0, 0, True)
