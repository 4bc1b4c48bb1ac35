# SPDX-License-Identifier: Apache-2.0
"""A subscriber to a daemon's events: its index of what the daemon holds, by EVENTS (6.34) alone, and the truth to compare it with."""

import contextlib
import json

import kvwire
from harness import KIB, ctl, key_of, put_all, value_of, wait_until
from kvwire import Ack, EventKind, Tier

SMALL_STORE = {"store.limit": "16MiB", "memory.pool": "8MiB", "store.segment": "1MiB"}


class Follower:
    """Keeps an index. `client` connects to the daemon; the connection is made again when it ends."""

    def __init__(self, client, count=1024):
        self.connect, self.count = client, count
        self.client = None
        self.epoch = self.next = 0
        self.held = {}  # number of a namespace -> {key: tiers}
        self.lengths, self.names = {}, {}
        self.gaps = self.events = self.repeats = 0
        self.lags_ms = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        if self.client:
            self.client.close()
        self.client = None

    def ask(self, **how):
        if not self.client:
            self.client = self.connect()
        try:
            return self.client.events(count=self.count, **how)
        except kvwire.SessionEnded:
            self.close()
            raise

    def apply(self, event, names):
        self.names.update(names)
        if event.kind == EventKind.NAMESPACE_REMOVED:
            self.held.pop(event.namespace, None)
            self.names.pop(event.namespace, None)
            return
        chunks = self.held.setdefault(event.namespace, {})
        before = chunks.get(event.key, Tier(0))
        after = before | event.tier if event.kind == EventKind.STORED else before & ~event.tier
        self.repeats += before == after
        if after:
            chunks[event.key] = after
            if event.kind == EventKind.STORED:
                self.lengths[event.namespace, event.key] = event.length
        else:
            chunks.pop(event.key, None)

    def snapshot(self):
        """Replaces the index by a snapshot. False if the daemon has restarted meanwhile."""
        self.held, self.names, self.lengths, cursor = {}, {}, {}, 0
        while True:
            reply = self.ask(start=cursor, snapshot=True)
            if reply.epoch != self.epoch:
                self.epoch = 0
                return False
            for event in reply.events:
                self.apply(event, reply.names)
            cursor = reply.following
            if cursor == 0:
                return True

    def step(self, wait_ms=0):
        """One reply; True if there may be more."""
        reply = self.ask(epoch=self.epoch, start=self.next, wait_ms=wait_ms)
        if reply.gap:
            self.gaps += 1
            self.epoch, self.next = reply.epoch, reply.following
            self.snapshot()
            return True
        assert reply.following == self.next + len(reply.events) and reply.first <= self.next
        self.next = reply.following
        self.events += len(reply.events)
        for event in reply.events:
            self.apply(event, reply.names)
        return reply.following < reply.next

    def catch_up(self):
        """Reads all that there is."""
        while self.step():
            pass

    def by_name(self):
        """{name of a namespace: {key: tiers}} of the namespaces that have a chunk on disk, with these chunks."""
        named = {}
        for number, chunks in self.held.items():
            on_disk = {key: tiers for key, tiers in chunks.items() if tiers & Tier.DISK}
            if on_disk:
                assert self.names[number] not in named
                named[self.names[number]] = on_disk
        return named


def listed(daemon, connect=None):
    """Returns the list of `ls`: {name: {key: tiers}}."""
    with contextlib.closing((connect or daemon.client)()) as c:
        found = {}
        for info in c.namespaces():
            chunks = {e.key: Tier(e.tiers) for e in c.list(c.namespace(info.name, attach=True))}
            if chunks:
                found[info.name] = chunks
        return found


def at_rest(daemon):
    """Nothing is on its way to disk any more."""
    def written():
        return json.loads(ctl("stats", "--json", daemon=daemon, check=0).stdout)["kvcache_pool_unwritten_bytes"] == 0
    wait_until(written, "all is written")


def same(follower, daemon, connect=None):
    """Reads all events and compares the index with the list; memory-only chunks with STAT."""
    follower.catch_up()
    assert follower.by_name() == listed(daemon, connect)
    with contextlib.closing((connect or daemon.client)()) as c:
        existing = {info.name for info in c.namespaces()}
        for number, chunks in follower.held.items():
            if not chunks or follower.names.get(number) not in existing:
                continue
            ns = c.namespace(follower.names[number], attach=True)
            keys = list(chunks)
            for i in range(0, len(keys), 256):
                for key, stat in zip(keys[i:i + 256], c.stat(ns, keys[i:i + 256])):
                    assert Tier(stat.tiers) == chunks[key]
                    assert stat.length == follower.lengths[number, key]


class History:
    """Random requests of a client, restarts and kills, with a subscriber that reads now and then."""

    NAMES = "abc"

    def __init__(self, daemon, rng, follower, kills=True):
        self.daemon, self.rng, self.follower, self.kills = daemon, rng, follower, kills
        self.client = self.numbers = None
        self.connect()

    def connect(self):
        self.client = self.daemon.client()
        self.numbers = {}

    def number(self, name):
        if name not in self.numbers:
            self.numbers[name] = self.client.namespace(name)
        return self.numbers[name]

    def some(self):
        name = self.rng.choice(self.NAMES)
        first = self.rng.randrange(60)
        return self.number(name), [key_of(name, i) for i in range(first, first + self.rng.randrange(1, 9))]

    def step(self):
        roll, c = self.rng.random(), self.client
        ns, keys = self.some()
        if roll < 0.4:
            length = self.rng.choice((100, 5000, 70 * KIB, 300 * KIB))
            put_all(c, ns, [(k, value_of(k, length)) for k in keys], ack=self.rng.choice(list(Ack)))
        elif roll < 0.55:
            results = c.get(ns, keys, timeout_ms=20000)
            c.release([r.lease for r in results if r.lease] or [kvwire.Lease(0, 0)])
        elif roll < 0.75:
            c.evict(ns, keys, tiers=self.rng.choice((Tier.MEMORY, Tier.ALL)))
        elif roll < 0.8:
            c.purge(ns)
        elif roll < 0.83:
            name = self.rng.choice(self.NAMES)
            if isinstance(c.namespace_remove(name, purge=True, check=False), int):
                self.numbers.pop(name, None)
        elif roll < 0.98 or not self.kills:
            self.read()
        else:
            self.end_daemon(self.rng.random() < 0.7)

    def read(self):
        """The subscriber reads a little, or all, or loses its connection."""
        roll = self.rng.random()
        if roll < 0.2:
            self.follower.close()
        elif roll < 0.6:
            self.follower.step()
        else:
            self.follower.catch_up()

    def end_daemon(self, kill):
        self.client.close()
        self.follower.close()
        self.daemon.restart(kill=kill)
        self.connect()

    def end(self):
        at_rest(self.daemon)
        same(self.follower, self.daemon)
        self.client.close()
