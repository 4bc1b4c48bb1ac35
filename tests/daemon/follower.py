# SPDX-License-Identifier: Apache-2.0
"""A subscriber to a daemon's events: its index of what the daemon holds, by EVENTS (6.34) alone, and the truth to compare it with."""

import contextlib

import kvwire
from kvwire import EventKind, Tier


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
