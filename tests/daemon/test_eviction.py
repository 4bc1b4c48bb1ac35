# SPDX-License-Identifier: Apache-2.0
"""eviction.policy changes while the daemon runs: under load, without a chunk lost, in every pool and volume."""

import os
import threading

import pytest

import kvwire
from harness import KIB, get_all, items, key_of, put_all, wait_until
from kvwire import Ack, Status, Tier
from test_hints import standing


def change(daemon, policy):
    reloads = daemon.metric("kvcache_config_reloads_total")
    daemon.config.write_text(f"eviction:\n  policy: {policy}\n")
    os.kill(daemon.pid, 1)
    wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == reloads + 1, "the reload")


@pytest.fixture
def make(make_daemon):
    def make(**settings):
        daemon = make_daemon(settings={"eviction.policy": None, **settings})
        daemon.config = daemon.directory / "kvcache.yaml"
        daemon.config.write_text("eviction:\n  policy: cq\n")
        return daemon
    return make


def class_of(daemon, key, tier):
    return standing(daemon, key, tier)["class"]


def test_a_reload_changes_the_policy_and_keeps_every_chunk_in_its_order(make):
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs = items("chain", 64, 32 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        for policy in ("lru", "cq", "lru"):
            change(daemon, policy)
            assert daemon.status()["eviction"]["policy"] == policy
            assert [int(t) for t in c.exists(ns, keys)] == [int(Tier.MEMORY | Tier.DISK)] * 64
            assert get_all(c, ns, keys) == dict(pairs)
            expected = "by recency" if policy == "lru" else "used"
            for tier in ("memory", "disk"):
                assert class_of(daemon, keys[0], tier).startswith(expected)
        assert "every chunk is in the lists of lru" in daemon.log()
        # A second reload of the same leaves it alone.
        said = daemon.log().count("every chunk is in the lists of")
        change(daemon, "lru")
        assert daemon.log().count("every chunk is in the lists of") == said
        # What was used last before the change is what stays longest after it.
        get_all(c, ns, keys[:8])
        change(daemon, "cq")
        for i in range(400):
            c.put(ns, items(f"more-{i}", 8, 32 * KIB), ack=Ack.WRITTEN)
            here = [bool(t) for t in c.exists(ns, keys)]
            if not all(here[8:]):
                break
        assert not all(here[8:]) and all(here[:8])


def test_an_unknown_policy_changes_nothing(make):
    daemon = make().start()
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("k", 1, KIB), ack=Ack.WRITTEN)
        daemon.config.write_text("eviction:\n  policy: arc\n")
        os.kill(daemon.pid, 1)
        wait_until(lambda: "is not one of cq, lru" in daemon.log(), "the refusal")
        assert class_of(daemon, key_of("k", 0), "disk") == "used once, end of a chain"


def test_the_policy_changes_under_load(make):
    """Clients put, get and keep leases meanwhile; a store of 32 MiB evicts all the time."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    stop = threading.Event()
    rounds, problems = [0, 0], []

    def work(number):
        try:
            with daemon.client() as c:
                ns = c.namespace("load")
                while not stop.is_set():
                    pairs = items((number, rounds[number] % 200), 8, 30000)
                    put = c.put(ns, pairs, ack=Ack.WRITTEN)
                    problems.extend(r.status for r in put if r.status not in (Status.OK, Status.EXISTS))
                    leased = c.get(ns, [k for k, _ in pairs])
                    for r, (_, value) in zip(leased, pairs):
                        if r.status == Status.OK and bytes(r.data) != value:
                            problems.append("a wrong byte")
                    c.release([r.lease for r in leased if r.status == Status.OK])
                    rounds[number] += 1
        except Exception as e:  # the other thread must end, too
            problems.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    try:
        for i in range(10):
            before = list(rounds)
            change(daemon, "lru" if i % 2 == 0 else "cq")
            wait_until(lambda: problems or all(r >= b + 20 for r, b in zip(rounds, before)), "the load to go on")
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert problems == []
    assert daemon.metric("kvcache_evictions_total") > 0 and daemon.metric("kvcache_pool_evictions_total") > 0
    daemon.stop()


def test_a_volume_that_is_resumed_has_the_policy_of_now(make):
    daemon = make(**{"store.limit": "64MiB"}).start()
    pairs = items("chain", 4, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.device("suspend", 0)
        change(daemon, "lru")
        assert c.device("resume", 0)
        assert [bool(t & Tier.DISK) for t in c.exists(ns, [k for k, _ in pairs])] == [True] * 4
        assert class_of(daemon, pairs[0][0], "disk") == "by recency"
        assert class_of(daemon, pairs[0][0], "memory") == "by recency"
