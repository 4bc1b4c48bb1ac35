# SPDX-License-Identifier: Apache-2.0
"""A seeded job of one client whose answers depend neither on the daemon's I/O method nor on its file system.

run() sends the same requests each time and returns the comparable parts of the answers. All chunks fit into the pool and the store, one
request is in flight at a time, and times are not compared. The daemon is stopped, or killed, in the middle: chunks answered `written` must
be there afterwards."""

import hashlib
import random

import kvwire
import marks
from harness import KIB, MIB
from kvwire import Ack, Status, Tier

SIZES = [1, 511, 4095, 4096, 4097, 20000, 64 * KIB, 200000, MIB - 1, MIB]
KEYS, STAGING = 40, 8 * MIB
SETTINGS = {"store.limit": "128MiB", "memory.pool": "64MiB"}


def digest(data):
    return None if data is None else (len(data), hashlib.sha256(data).hexdigest()[:16])


class Job:
    """`durable`: the file system keeps what is synced; otherwise DURABLE is answered NOT_DURABLE. `roomy`: there is room for everything;
    otherwise puts may fail and chunks be missing, and only bytes are checked."""

    def __init__(self, seed, durable=True, roomy=True):
        self.rng, self.durable, self.roomy = random.Random(f"job {seed}"), durable, roomy
        self.seen, self.bad = [], []

    def note(self, what, *answers):
        self.seen.append((what, *answers))

    def key(self, i):
        return marks.key_of("job", i)

    def value(self, i):
        return marks.value_of(self.key(i), SIZES[i % len(SIZES)])

    def keys(self):
        return [self.key(i) for i in range(KEYS)]

    def step(self, c, ns):
        rng = self.rng
        what = rng.choice(["put", "put", "put", "get", "get", "into", "evict", "drop", "exists", "stat", "match", "list",
                           "purge" if rng.random() < 0.1 else "get"])
        number = rng.randrange(len(ns))
        keys = rng.sample(range(KEYS), rng.randint(1, 6))
        n, names = ns[number], [self.key(i) for i in keys]
        if what == "put":
            ack = rng.choice(list(Ack))
            results = c.put(n, [(self.key(i), self.value(i)) for i in keys], ack=ack)
            wanted = Status.OK if self.durable else Status.NOT_DURABLE
            if ack == Ack.DURABLE and self.roomy and not all(
                    r.status in (wanted, Status.EXISTS, Status.OK) for r in results):
                self.bad.append(f"durable put: {results}")
            # On a file system without durability, a durable put reports that instead of whether the chunk existed.
            same = {Status.NOT_DURABLE: Status.OK, **({Status.EXISTS: Status.OK} if ack == Ack.DURABLE else {})}
            answers = [same.get(r.status, r.status) for r in results]
            # The time at which `accepted` chunks reach the disk varies, so wait until they are there.
            if ack == Ack.ACCEPTED:
                self.settle(c, n, keys)
            self.note(what, number, answers)
        elif what in ("get", "into"):
            if what == "get":
                results = c.get(n, names, timeout_ms=60000)
            else:
                results = c.get_into(n, names, MIB, at=MIB)
            values = [r.data for r in results]
            for i, data in zip(keys, values):
                if data is not None and data != self.value(i):
                    self.bad.append(f"key {i}: {len(data)} wrong bytes")
            c.release([r.lease for r in results if r.lease])
            self.note(what, number, [r.status for r in results], [digest(v) for v in values])
        elif what == "evict":
            self.settle(c, n, keys)
            self.note(what, number, c.evict(n, names, Tier.MEMORY))
        elif what == "drop":
            self.settle(c, n, keys)
            self.note(what, number, c.evict(n, names, Tier.ALL))
        elif what == "exists":
            self.note(what, number, [bool(t) for t in c.exists(n, names)])
        elif what == "stat":
            self.note(what, number, [(r.status, r.length, r.crc32c) for r in c.stat(n, names)])
        elif what == "match":
            self.note(what, number, c.match(n, names))
        elif what == "list":
            self.settle(c, n, range(KEYS))
            self.note(what, number, sorted((e.key.hex(), e.length) for e in c.list(n)))
        else:
            c.purge(n)
            self.note(what, number)

    def settle(self, c, n, keys):
        """Waits until the disk has its copies of the keys: a durable put of an existing chunk waits for that."""
        there = [i for i, t in zip(keys, c.exists(n, [self.key(i) for i in keys])) if t]
        if there:
            c.put(n, [(self.key(i), self.value(i)) for i in there], ack=Ack.WRITTEN)

    def run(self, daemon):
        kill = self.rng.random() < 0.5
        for part in range(2):
            with daemon.client(name="job") as c:
                c.staging(STAGING)
                ns = [c.namespace(f"job{i}") for i in range(3)]
                for _ in range(60):
                    self.step(c, ns)
                if part == 0:
                    for number, n in enumerate(ns):
                        self.settle(c, n, range(KEYS))
            if part == 0:
                daemon.restart(kill=kill)
        with daemon.client(name="job") as c:
            ns = [c.namespace(f"job{i}") for i in range(3)]
            for number, n in enumerate(ns):
                results = []
                for i in range(KEYS):
                    r, = c.get(n, [self.key(i)], timeout_ms=60000)
                    if r.data is not None and r.data != self.value(i):
                        self.bad.append(f"key {i}: wrong bytes at the end")
                    results.append((r.status, digest(r.data)))
                    if r.lease:
                        c.release([r.lease])
                self.note("end", number, results)
        return self.seen


def differences(a, b):
    """Returns the first request whose answers differ, or None."""
    for number, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return f"request {number}: {x} here, {y} there"
    return None if len(a) == len(b) else f"{len(a)} answers here, {len(b)} there"
