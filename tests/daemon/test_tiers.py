# SPDX-License-Identifier: Apache-2.0
"""Memory before disk, the disk's limit, and eviction from the pool and from the store."""

import os
import random

import pytest

import harness
import kvwire
from buffers import mapped_by_huge_pages
from harness import KIB, MIB, get_all, items, key_of, put_all, value_of, wait_until
from kvwire import Ack, Status, Tier


def test_chunks_evicted_from_the_pool_are_got_from_disk(leg_daemon):
    with leg_daemon.client() as c:
        ns = c.namespace("tiers")
        pairs = items("tiers", 3 * c.pool_bytes // (512 * KIB), 512 * KIB)
        results = put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert {r.status for r in results.values()} == {Status.OK}
        keys = [k for k, _ in pairs]
        tiers = c.exists(ns, keys)
        assert all(t & Tier.DISK for t in tiers)
        in_memory = sum(bool(t & Tier.MEMORY) for t in tiers)
        assert 0 < in_memory <= c.pool_bytes // (512 * KIB)
        wrong = []
        for (key, value), tier in zip(pairs, tiers):
            got, = c.get(ns, [key])
            if got.status != Status.OK or got.data != value:
                wrong.append((got, tier))
            c.release([got.lease])
        assert not wrong
    metrics = leg_daemon.metrics()
    assert metrics['kvcache_hits_total{tier="disk"}'] >= len(pairs) - in_memory
    assert metrics['kvcache_hits_total{tier="memory"}'] + metrics['kvcache_hits_total{tier="disk"}'] == len(pairs)
    assert metrics["kvcache_pool_evictions_total"] > 0
    assert metrics["kvcache_evictions_total"] == 0


def test_disk_usage_never_exceeds_the_limit(each_leg, make_daemon):
    limit = 64 * MIB
    daemon = make_daemon(each_leg, {"store.limit": limit}).start()
    sizes = [200 * KIB, 64 * KIB, 5000, 700 * KIB, 16 * KIB]
    rng = random.Random(1)
    put, held = 0, {}
    with harness.DiskWatch(daemon) as watch, daemon.client() as c:
        ns = c.namespace("limit")
        number = 0
        while put < 3 * limit:
            pairs = []
            for _ in range(24):
                key = key_of("limit", number)
                pairs.append((key, value_of(key, rng.choice(sizes))))
                number += 1
            for (key, value), result in zip(pairs, c.put(ns, pairs, ack=Ack.WRITTEN)):
                assert result.status == Status.OK, (result, number)
                held[key] = len(value)
                put += len(value)
    assert watch.most <= limit, f"{watch.most - limit} bytes over the limit"
    assert watch.looks > 10
    assert daemon.status()["store"]["used_bytes"] <= limit
    wait_until(lambda: abs(daemon.status()["store"]["used_bytes"] - daemon.disk_usage()) <= 2 * MIB, "the figures agree")
    assert daemon.metric("kvcache_evictions_total") > 0
    # Most of what fits is stored, and all stored chunks are right.
    with daemon.client() as c:
        ns = c.namespace("limit")
        keys = list(held)
        values = get_all(c, ns, keys, batch=4)
        found = {k: v for k, v in values.items() if v is not None}
        assert all(v == value_of(k, held[k]) for k, v in found.items())
        assert sum(len(v) for v in found.values()) >= 0.7 * limit


def test_used_bytes_of_the_status_equals_du(daemon, client):
    ns = client.namespace("du")
    put_all(client, ns, items("du", 100, 256 * KIB), ack=Ack.WRITTEN)
    # The daemon preformats segments while the store rests, so the two figures belong to two moments.
    wait_until(lambda: abs(daemon.status()["store"]["used_bytes"] - daemon.disk_usage()) <= 2 * MIB, "the figures agree")


def is_prefix(present):
    return all(present[:sum(present)])


def test_the_end_of_a_chain_leaves_the_store_first(make_daemon):
    """A chain of several messages is touched once, as a whole, so that its beginning remains."""
    daemon = make_daemon(settings={"store.limit": 32 * MIB, "memory.pool": "16MiB"}).start()
    with daemon.client() as c:
        ns = c.namespace("chain")
        chain = items("chain", 200, 64 * KIB)
        results = []
        parent = kvwire.ROOT
        for i in range(0, 200, 50):
            part = chain[i:i + 50]
            results += c.put(ns, part, parent=parent, more=i + 50 < 200, ack=Ack.WRITTEN)
            parent = part[-1][0]
        assert {r.status for r in results} == {Status.OK}
        keys = [k for k, _ in chain]
        assert c.match(ns, keys) == 200
        seen = set()
        for round in range(60):
            put_all(c, ns, items(("filler", round), 16, 64 * KIB), ack=Ack.WRITTEN)
            present = [bool(t & Tier.DISK) for t in c.exists(ns, keys)]
            assert is_prefix(present), f"{present.count(True)} left, but not the first ones"
            seen.add(sum(present))
            if sum(present) == 0:
                break
        assert len(seen) > 3, "the chain went at once"


def test_a_chain_that_was_got_outlives_one_that_was_not(make_daemon):
    daemon = make_daemon(settings={"store.limit": 32 * MIB, "memory.pool": "16MiB"}).start()
    with daemon.client() as c:
        ns = c.namespace("recency")
        old, used = items("old", 80, 64 * KIB), items("used", 80, 64 * KIB)
        put_all(c, ns, used, batch=80, ack=Ack.WRITTEN)
        put_all(c, ns, old, batch=80, ack=Ack.WRITTEN)
        results = c.get(ns, [k for k, _ in used[:40]], more=True)
        c.release([r.lease for r in results])
        results = c.get(ns, [k for k, _ in used[40:]], parent=used[39][0])
        c.release([r.lease for r in results])
        assert c.touch(ns, [k for k, _ in used]) == [Status.OK] * 80
        for round in range(40):
            put_all(c, ns, items(("filler", round), 16, 64 * KIB), ack=Ack.WRITTEN)
            left_old = c.match(ns, [k for k, _ in old])
            left_used = c.match(ns, [k for k, _ in used])
            assert left_used == 80 or left_old == 0, (left_old, left_used)
            if left_used < 80:
                break
        assert left_old == 0


def test_other_sizes_take_over_a_full_store(make_daemon):
    """A class without a slab takes one of another class, so that no size is excluded."""
    daemon = make_daemon(settings={"store.limit": 32 * MIB, "memory.pool": "16MiB"}).start()
    with daemon.client() as c:
        ns = c.namespace("classes")
        for size in (4 * KIB, 100 * KIB, c.max_chunk, 20 * KIB, 1):
            count = min(40 * MIB // max(size, 4 * KIB), 3000)
            pairs = items(("classes", size), count, size)
            results = put_all(c, ns, pairs, batch=256, ack=Ack.WRITTEN)
            assert {r.status for r in results.values()} == {Status.OK}, size
            last, value = pairs[-1]
            assert c.value(ns, last) == value
    assert daemon.disk_usage() <= 32 * MIB


def test_the_index_is_bounded(make_daemon):
    daemon = make_daemon(settings={"store.entries": 1024}).start()
    with daemon.client() as c:
        ns = c.namespace("entries")
        pairs = items("entries", 3000, 100)
        results = put_all(c, ns, pairs, batch=500, ack=Ack.WRITTEN)
        assert {r.status for r in results.values()} == {Status.OK}
        assert len(list(c.list(ns))) <= 1024
        assert all(c.exists(ns, [k for k, _ in pairs[-100:]]))
    assert daemon.status()["store"]["chunks"] <= 1024


def test_a_lowered_limit_holds_before_the_daemon_is_ready(make_daemon):
    daemon = make_daemon(settings={"store.limit": 96 * MIB}).start()
    pairs = items("lowered", 300, 256 * KIB)
    with daemon.client() as c:
        put_all(c, c.namespace("lowered"), pairs, ack=Ack.WRITTEN)
    daemon.stop()
    daemon.settings["store.limit"] = 32 * MIB
    daemon.start()
    assert daemon.disk_usage() <= 32 * MIB
    with daemon.client() as c:
        values = get_all(c, c.namespace("lowered"), [k for k, _ in pairs])
        left = {k: v for k, v in values.items() if v is not None}
        assert left and all(v == value_of(k, 256 * KIB) for k, v in left.items())
        put_all(c, c.namespace("lowered"), items("more", 200, 256 * KIB), ack=Ack.WRITTEN)
    assert daemon.disk_usage() <= 32 * MIB


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_flipped_byte_on_disk_is_a_miss_and_counted(each_leg, make_daemon, restart):
    daemon = make_daemon(each_leg).start()
    pairs = items("flip", 8, 50000)
    key, value = pairs[3]
    with daemon.client() as c:
        c.put(c.namespace("flip"), pairs, ack=Ack.DURABLE)
        if restart:
            c.close()
            daemon.stop()
            flip_byte(daemon.store, value, 40000)
            daemon.start()
    with daemon.client() as c:
        ns = c.namespace("flip")
        if not restart:
            flip_byte(daemon.store, value, 40000)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        # A get of only an undamaged part fails as well.
        got, = c.get(ns, [key], ranges=[(0, 100)])
        assert got.status == Status.MISS and got.lease is None
        assert c.exists(ns, [key]) == [Tier(0)]
        for other, right in pairs[:3] + pairs[4:]:
            assert c.value(ns, other) == right
        assert c.put(ns, [(key, value)], ack=Ack.WRITTEN)[0].status == Status.OK
        assert c.value(ns, key) == value
    assert daemon.metric("kvcache_store_crc_failures_total") == 1
    assert daemon.status()["totals"]["crc_failures"] == 1
    # The chunk was read twice, and neither read counts as bytes moved.
    moved = {name: value for name, value in daemon.metrics().items() if 'path="disk_to_host"' in name}
    assert [v for n, v in moved.items() if 'result="checksum"' in n] == [2]
    assert [v for n, v in moved.items() if "transfer_bytes" in n] == [7 * len(value)]


def flip_byte(store, value, at):
    """Flips a bit in the one file of the store that has these bytes."""
    for path in sorted(store.iterdir()):
        data = path.read_bytes() if path.is_file() else b""
        where = data.find(value[:4096])
        if where >= 0 and data[where:where + len(value)] == value:
            with open(path, "r+b") as f:
                f.seek(where + at)
                f.write(bytes([value[at] ^ 0x40]))
                f.flush()
                os.fsync(f.fileno())
            return
    raise AssertionError("the chunk is in no file of the store")


def test_pool_lies_in_huge_pages_where_the_system_has_them(make_daemon):
    daemon = make_daemon(settings={"memory.pool": 64 * MIB}).start()
    pool = daemon.populated_status()["pool"]
    assert pool["huge_bytes"] == mapped_by_huge_pages(daemon.pid)
    assert daemon.metrics()["kvcache_pool_huge_bytes"] == pool["huge_bytes"]
    if pool["huge_bytes"] == 0:
        assert pool["huge_pages"] == "none"
        pytest.skip("the system gives no huge pages for shared memory")
    assert pool["huge_pages"] == ("all" if pool["huge_bytes"] == pool["bytes"] else "some")
    with daemon.client() as c:
        ns = c.namespace("huge")
        pairs = items("huge", 16, 500 * KIB)
        put_all(c, ns, pairs)
        assert get_all(c, ns, [k for k, _ in pairs]) == dict(pairs)


def test_the_pool_uses_small_pages_if_configured(make_daemon):
    daemon = make_daemon(settings={"memory.huge_pages": "off", "memory.pool": 64 * MIB}).start()
    pool = daemon.populated_status()["pool"]
    assert (pool["huge_pages"], pool["huge_bytes"], mapped_by_huge_pages(daemon.pid)) == ("off", 0, 0)
