# SPDX-License-Identifier: Apache-2.0
"""Chunks on disk are read into memory before the announced return of their chain, for users whose announcements come true, and never at the
expense of others."""

import json
import os

import pytest

import kvwire
from harness import KIB, ctl, items, put_all, wait_until
from kvwire import Ack, Status, Tier
from test_advice import DEMOTE, announce, put
from test_hints import FINAL, RETURN, hint, hinted
from test_tenants import ALICE, BOB, ML, client_as, make  # noqa: F401: a fixture

SECONDS = 2


@pytest.fixture
def small(make_daemon):
    return make_daemon(settings={"store.limit": "256MiB", "memory.pool": "16MiB"}).start()


def ended(daemon, outcome):
    return daemon.metric(f'kvcache_return_prefetches_total{{outcome="{outcome}"}}')


def earn(c, ns):
    """Makes announcements that come true, so that the user is believed."""
    for i in range(4):
        announce(c, ns, f"credit-{i}", 1, then_use=True)


def in_memory(c, ns, keys):
    return sum(bool(t & Tier.MEMORY) for t in c.exists(ns, keys))


def leave(c, ns, name, seconds=SECONDS, **how):
    """Puts a chain, announces its return, and has it leave memory."""
    keys = announce(c, ns, name, seconds, then_use=False, **how)
    assert hint(c, ns, keys, DEMOTE) == [Status.OK] * len(keys)
    assert in_memory(c, ns, keys) == 0
    return keys


def test_a_chain_on_disk_is_in_memory_before_its_announced_return(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        before = small.metric("kvcache_prefetched_bytes_total")
        keys = leave(c, ns, "k", keys=32, bytes=32 * KIB)
        assert small.metric("kvcache_return_prefetches_scheduled") >= 1
        wait_until(lambda: in_memory(c, ns, keys) == 32, "the chain to be in memory")
        assert small.metric("kvcache_return_prefetched_chunks_total") == 32
        assert small.metric("kvcache_prefetched_bytes_total") - before == 32 * 32 * KIB
        assert small.metric("kvcache_prefetch_unused_bytes") >= 32 * 32 * KIB
        assert [bytes(r.data) for r in c.get(ns, keys)] == [v for _, v in items("k", 32, 32 * KIB)]
        assert small.metric("kvcache_prefetch_hits_total") == 32
        assert small.metric("kvcache_prefetch_unused_bytes") == 0
        assert ended(small, "read") == 1 and ended(small, "late") == 0
    said = json.loads(ctl("status", "--json", daemon=small, check=0).stdout)["eviction"]
    assert said["prefetched_returns"]["read"] == 1 and said["prefetched_returns"]["chunks"] == 32
    assert said["returns"]["prefetch_wasted"] == 0
    assert "read from disk for 1" in ctl("status", "eviction", daemon=small, check=0).stdout


def test_chunks_that_are_evicted_unused_are_counted(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        keys = leave(c, ns, "k", seconds=1)
        wait_until(lambda: in_memory(c, ns, keys) == 4, "the chain to be in memory")
        hint(c, ns, keys, FINAL)  # evicted first
        for i in range(200):
            put(c, ns, f"more-{i}", keys=16, bytes=64 * KIB)
            if in_memory(c, ns, keys) == 0:
                break
        assert small.metric("kvcache_prefetch_wasted_total") == 4
        assert small.metric("kvcache_prefetch_unused_bytes") == 0
        assert small.metric("kvcache_prefetch_hits_total") == 0


def test_a_put_that_announces_its_return_is_read_ahead(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        keys = put(c, ns, "k", keys=8, tiers=16 + 8)  # in 2 s
        assert hint(c, ns, keys, DEMOTE) == [Status.OK] * 8
        wait_until(lambda: in_memory(c, ns, keys) == 8, "the chain to be in memory")


def test_a_chain_in_memory_or_used_before_is_not_read(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        present = announce(c, ns, "present", SECONDS, then_use=False)
        used = leave(c, ns, "used")
        c.get(ns, used)
        wait_until(lambda: ended(small, "in_memory") >= 1 and small.metric("kvcache_return_prefetches_scheduled") == 0, "the schedule to be empty")
        assert small.metric("kvcache_return_prefetched_chunks_total") == 0
        assert ended(small, "ended") >= 1
        assert in_memory(c, ns, present) == 4


def test_a_user_without_true_announcements_gets_nothing(small):
    with small.client() as c:
        ns = c.namespace("n")
        keys = leave(c, ns, "k", seconds=1)
        wait_until(lambda: ended(small, "disbelieved") == 1, "the announced return to be judged")
        assert small.metric("kvcache_return_prefetched_chunks_total") == 0
        assert in_memory(c, ns, keys) == 0


def test_nothing_is_read_ahead_if_it_is_switched_off(make_daemon):
    daemon = make_daemon(settings={"store.limit": "256MiB", "memory.pool": "16MiB", "memory.prefetch": "0"}).start()
    with daemon.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        leave(c, ns, "k", seconds=1)
        assert daemon.metric("kvcache_return_prefetches_scheduled") == 0
        assert sum(ended(daemon, o) for o in ("read", "refused", "dropped")) == 0


def test_a_chain_announced_in_parts_is_read_as_one(small):
    """A client announces a chain longer than a message from its end to its root, each part with the key before it."""
    with small.client() as c:
        assert c.features & kvwire.FEATURE_HINT_PARENT
        ns = c.namespace("n")
        earn(c, ns)
        keys = put(c, ns, "k", keys=48, bytes=32 * KIB)
        assert hint(c, ns, keys, DEMOTE) == [Status.OK] * 48
        before, applied = small.metric("kvcache_return_prefetches_scheduled"), hinted(small, "return")
        measured = small.status()["eviction"]["announced_returns"]["open"]
        for first in (32, 16, 0):
            parent = dict(parent=keys[first - 1]) if first else {}
            assert hint(c, ns, keys[first:first + 16], RETURN, 4, **parent) == [Status.OK] * 16
        assert small.metric("kvcache_return_prefetches_scheduled") == before + 1
        assert small.status()["eviction"]["announced_returns"]["open"] == measured + 1, "the end of the chain alone is measured"
        assert hinted(small, "return") == applied + 48
        wait_until(lambda: in_memory(c, ns, keys) == 48, "the chain to be in memory")
        assert ended(small, "read") == 1 and small.metric("kvcache_return_prefetched_chunks_total") == 48


def test_a_purge_drops_what_is_scheduled(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        keys = leave(c, ns, "k", seconds=600)
        scheduled = small.metric("kvcache_return_prefetches_scheduled")
        assert scheduled >= 1
        ctl("purge", "n", "--yes", daemon=small, check=0)
        assert small.metric("kvcache_return_prefetches_scheduled") == 0
        assert ended(small, "dropped") == scheduled
        assert not any(c.exists(ns, keys))


def test_the_daemon_stops_with_scheduled_returns(small):
    with small.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        for i in range(8):
            leave(c, ns, f"k-{i}", seconds=1, keys=16, bytes=32 * KIB)
        leave(c, ns, "later", seconds=600)
    small.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_another_tenants_memory_and_reads_are_its_own(make):  # noqa: F811
    """A believed user of one tenant reads ahead as much as its pool holds; the other tenant keeps all that it has in memory."""
    daemon = make(settings={"store.limit": "512MiB"})
    daemon.populated_status()
    with client_as(daemon, ALICE, ML, groups=[ML]) as red, client_as(daemon, BOB) as blue:
        theirs = blue.namespace("n")
        kept = [k for k, _ in items("blue", 128, 64 * KIB)]
        put_all(blue, theirs, items("blue", 128, 64 * KIB), ack=Ack.WRITTEN)
        assert in_memory(blue, theirs, kept) == 128
        ns = red.namespace("n")
        earn(red, ns)
        chains = [leave(red, ns, f"red-{i}", keys=64, bytes=64 * KIB) for i in range(8)]
        wait_until(lambda: sum(in_memory(red, ns, keys) for keys in chains) >= 64, "a chain to be in memory")
        wait_until(lambda: daemon.metric("kvcache_return_prefetches_scheduled") == 0, "the schedule to be empty", timeout=30)
        assert in_memory(blue, theirs, kept) == 128


def test_a_reload_switches_it_off_and_drops_what_is_scheduled(make_daemon, directory):
    file = directory / "kvcache.yaml"
    file.write_text("memory:\n  prefetch: 64MiB\n")
    daemon = make_daemon(settings={"store.limit": "256MiB", "memory.pool": "16MiB"}, config=file).start()
    with daemon.client() as c:
        ns = c.namespace("n")
        earn(c, ns)
        leave(c, ns, "k", seconds=600)
        scheduled = daemon.metric("kvcache_return_prefetches_scheduled")
        assert scheduled >= 1
        file.write_text("memory:\n  prefetch: 0\n")
        ctl("reload", daemon=daemon, check=0)
        assert daemon.metric("kvcache_return_prefetches_scheduled") == 0
        assert ended(daemon, "dropped") == scheduled
