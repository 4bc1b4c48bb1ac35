# SPDX-License-Identifier: Apache-2.0
"""Random operations at the same time, with too little memory and disk, and with kills.

A key has either the bytes that belong to it, which follow from the key, or none. The seed is in the test's name; KVCACHE_TEST_SECONDS makes
each run longer.
"""

import os
import random
import threading
import time

import pytest

import kvwire
from harness import KIB, LEGS, DiskWatch, get_all, in_threads, key_of, slow, value_of, wait_until
from kvwire import Ack, Status, Tier

SECONDS = float(os.environ.get("KVCACHE_TEST_SECONDS", "1"))
SIZES = [1, 700, 4096, 4097, 20000, 64 * KIB, 200000, 700 * KIB]
KEYS = [key_of("stress", i) for i in range(400)]
SMALL = {"store.limit": "24MiB", "memory.pool": "8MiB", "limits.wait": "50ms"}


def size_of(key):
    return SIZES[key[0] % len(SIZES)]


def value(key, _made={}):
    if key not in _made:
        _made[key] = value_of(key, size_of(key))
    return _made[key]


class Actor:
    """One client that performs random operations and checks every byte."""

    NAMESPACES = ["one", "two"]

    def __init__(self, daemon, seed, purges=True):
        self.daemon, self.rng, self.purges = daemon, random.Random(seed), purges
        self.leases, self.done = [], 0
        self.connect()

    def connect(self):
        self.client = self.daemon.client(name="actor")
        self.ns = [self.client.namespace(n) for n in self.NAMESPACES]
        self.leases = []
        self.client.staging(4096 * KIB)

    def some(self, most=12):
        start, count = self.rng.randrange(len(KEYS)), self.rng.randint(1, most)
        return [KEYS[(start + i) % len(KEYS)] for i in range(count)]

    def put(self, ns):
        keys, room = [], 4000 * KIB
        for key in self.some():
            room -= size_of(key)
            if room > 0:
                keys.append(key)
        lease = self.rng.random() < 0.3
        results = self.client.put(ns, [(k, value(k)) for k in keys], ack=self.rng.choice(list(Ack)), lease=lease,
                                  more=self.rng.random() < 0.2, nowait=self.rng.random() < 0.2)
        for key, result in zip(keys, results):
            assert result.status in (Status.OK, Status.EXISTS, Status.BUSY, Status.NO_SPACE, Status.NOT_DURABLE), result
            if result.leased:
                assert result.data == value(key), f"put: wrong bytes under {key.hex()}"
                self.leases.append((key, result.lease, result.offset))

    def get(self, ns):
        keys = self.some()
        nowait = self.rng.random() < 0.2
        releases = []
        while self.leases and (len(self.leases) > 10 or self.rng.random() < 0.5):
            key, lease, offset = self.leases.pop(self.rng.randrange(len(self.leases)))
            assert self.client.pool_read(offset, size_of(key)) == value(key), "leased bytes changed"
            releases.append(lease)
        for key, r in zip(keys, self.client.get(ns, keys, nowait=nowait, releases=releases)):
            assert r.status in (Status.OK, Status.MISS, Status.BUSY, Status.QUOTA), r
            if r.status == Status.OK:
                assert r.chunk_length == size_of(key) and r.data == value(key), f"get: wrong bytes under {key.hex()}"
                self.leases.append((key, r.lease, r.offset))

    def get_into(self, ns):
        keys = self.some(5)
        for key, r in zip(keys, self.client.get_into(ns, keys, max(SIZES), nowait=self.rng.random() < 0.2)):
            assert r.status in (Status.OK, Status.MISS, Status.BUSY), r
            if r.status == Status.OK:
                assert r.data == value(key), f"get into: wrong bytes under {key.hex()}"

    def ranged(self, ns):
        key, = self.some(1)
        offset = self.rng.randrange(size_of(key))
        length = self.rng.randint(1, size_of(key) - offset)
        r, = self.client.get(ns, [key], ranges=[(offset, length)])
        if r.status == Status.OK:
            assert r.data == value(key)[offset:offset + length], "ranged get: wrong bytes"
            self.client.release([r.lease])

    def look(self, ns):
        keys = self.some(50)
        self.client.match(ns, keys)
        self.client.exists(ns, keys)
        self.client.touch(ns, keys, more=self.rng.random() < 0.3)
        assert set(self.client.prefetch(ns, self.some(50))) <= {Status.OK, Status.MISS, Status.BUSY}
        for key, s in zip(keys, self.client.stat(ns, keys)):
            assert s.status == Status.MISS or s.length == size_of(key)

    def list(self, ns):
        for e in self.client.list(ns, self.rng.choice([5, 50, 1000])):
            assert e.length == size_of(e.key)

    def evict(self, ns):
        self.client.evict(ns, self.some(), self.rng.choice([Tier.MEMORY, Tier.ALL]))

    def purge(self, ns):
        if self.purges and self.rng.random() < 0.2:
            self.client.purge(ns)

    def leave(self, ns):
        """Closes the socket while leases, and perhaps requests, are outstanding."""
        if self.rng.random() < 0.3:
            keys = self.some()
            entries = [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys]
            for _ in range(self.rng.randint(1, 10)):
                self.client.submit_batch(kvwire.Op.GET, ns, entries)
            self.client.submit_batch(kvwire.Op.PUT, ns, self.client.put_entries([(keys[0], value(keys[0]))]))
        if self.rng.random() < 0.3:
            self.client.send(b"bad")
        self.client.close()
        self.connect()

    def act(self):
        what = self.rng.choices([self.put, self.get, self.get_into, self.ranged, self.look, self.list, self.evict, self.purge,
                                 self.leave], [30, 30, 15, 5, 5, 2, 5, 1, 3])[0]
        what(self.rng.choice(self.ns))
        self.done += 1


@pytest.mark.parametrize("each_leg", LEGS, ids=lambda leg: leg.name, indirect=True)  # with a sanitizer, too
@pytest.mark.parametrize("seed", [1])
def test_everything_at_once(each_leg, make_daemon, seed):
    daemon = make_daemon(each_leg, SMALL).start()
    before = daemon.holdings_at_rest()
    ends = time.monotonic() + SECONDS * min(slow(), 2)

    def work(number):
        actor = Actor(daemon, (seed, number).__repr__())
        # On a busy disk the first answers alone may take the whole time.
        while time.monotonic() < ends or (actor.done < 20 and time.monotonic() < ends + 60):
            actor.act()
        actor.client.close()
        return actor.done

    with DiskWatch(daemon) as watch:
        done = in_threads(5, work)
    assert sum(done) > 50
    assert watch.most <= 24 * 1024 * KIB
    daemon.wait_for_holdings(before)
    wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")
    wait_until(lambda: daemon.metric("kvcache_io_inflight") == 0, "nothing is preformatted any more")
    metrics = daemon.metrics()
    assert metrics["kvcache_store_crc_failures_total"] == 0
    assert metrics["kvcache_pool_leased_bytes"] == 0
    daemon.restart()
    missing = 0
    with daemon.client() as c:
        for name in Actor.NAMESPACES:
            ns = c.namespace(name)
            keys = [e.key for e in c.list(ns)]
            got = get_all(c, ns, keys, batch=2)
            assert {k: v for k, v in got.items() if v is not None} == {k: value(k) for k in keys if got[k] is not None}
            missing += sum(v is None for v in got.values())
    # An entry outlives the eviction of its chunk until its slot has a new entry. If the put that took the slot was purged after its bytes were
    # written, the old entry has the wrong bytes, which is a miss and is counted.
    assert missing == daemon.metric("kvcache_store_crc_failures_total")


@pytest.mark.parametrize("seed", [1])
def test_killed_amid_everything(each_leg, make_daemon, seed):
    """Several rounds on one store: after each kill, all chunks that are found are right."""
    daemon = make_daemon(each_leg, SMALL).start()
    for round in range(4):
        stop = threading.Event()

        def work(number):
            done = 0
            try:
                actor = Actor(daemon, (seed, round, number).__repr__())
                while not stop.is_set():
                    actor.act()
                    done = actor.done
            except (kvwire.SessionEnded, ConnectionError, FileNotFoundError):
                pass
            return done

        killer = threading.Timer((0.1 + 0.2 * SECONDS * random.Random((seed, round).__repr__()).random()) * slow(), daemon.kill)
        killer.start()
        try:
            in_threads(4, work)
        finally:
            stop.set()
            killer.join()
        daemon.start()
        with daemon.client() as c:
            for name in Actor.NAMESPACES:
                ns = c.namespace(name)
                keys = [e.key for e in c.list(ns)]
                found = get_all(c, ns, keys, batch=2)
                assert all(v in (None, value(k)) for k, v in found.items())
        assert daemon.metric("kvcache_recovery_skipped_pages") <= 1  # the page whose write was cut off


def test_stop_during_traffic_keeps_answered_puts(leg_daemon):
    """Clients put with ack `accepted` until SIGTERM; chunks that were answered OK are on disk afterwards."""
    answered = [[] for _ in range(4)]
    enough = threading.Event()

    def work(number):
        try:
            with leg_daemon.client() as c:
                ns = c.namespace("stop")
                for i in range(10000):
                    keys = [key_of("stop", number, i, j) for j in range(4)]
                    for key, r in zip(keys, c.put(ns, [(k, value_of(k, 50000)) for k in keys])):
                        assert r.status in (Status.OK, Status.BUSY, Status.SHUTDOWN), r
                        if r.status == Status.OK:
                            answered[number].append(key)
                    if i == 25:
                        enough.set()
        except (kvwire.SessionEnded, FileNotFoundError, ConnectionError):
            return
        except kvwire.Refused as e:
            assert e.status == Status.SHUTDOWN

    def stop(number):
        if number < 4:
            return work(number)
        assert enough.wait(60 * slow())
        leg_daemon.stop()

    in_threads(5, stop)
    leg_daemon.start()
    assert leg_daemon.status()["store"]["clean_start"] is True
    with leg_daemon.client() as c:
        ns = c.namespace("stop")
        keys = [k for part in answered for k in part]
        assert len(keys) > 50
        room = 110 * 1024 * KIB // 52 // KIB  # capacity of the store; older chunks may have been evicted
        if len(keys) < room:
            found = get_all(c, ns, keys)
            assert [k for k in keys if found[k] is None] == [], "accepted, and lost by a clean stop"
            assert all(found[k] == value_of(k, 50000) for k in keys)
