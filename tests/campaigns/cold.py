# SPDX-License-Identifier: Apache-2.0
"""Reads from disk, for the campaign fairness: sixteen sessions of one user have far more of them under way than the device
is to be asked for at once; another user has one.

What the other user's get may take follows from the device: behind what the store was asked for before it, and that again,
as its turn comes when one of these ends; each is a window. With what the daemon reads a second, counted by the daemon
itself while the flood goes on, that is a time. The flood asks for sixteen windows at once.
"""

import fcntl
import os
import time

import harness
import kvwire
from harness import KIB, MIB, key_of, slow, value_of
from kvwire import Ack, Op, Status, Tier
from oracle import Finding

WINDOW = 16 * MIB     # of reads that the store is asked for at once
CHUNK, KEYS = 256 * KIB, 8
CHUNKS, GETS = 1200, 24   # of the flood, more than the pool has room for; of the other user, in turn
AT_ONCE = 12          # gets of the other user, of which half may be late
WINDOWS, NOISE = 3, 0.01
OPERATIONS = ["cold GET into lent memory", "cold GET into the staging area", "cold GET", "cold PREFETCH"]
# The room that others leave is not all taken, so that prefetches, which do not wait for any, are taken.
LEAVE_ROOM = ["cold GET into lent memory", "cold PREFETCH"]
SETTINGS = {"memory.pool": "128MiB", "store.limit": "640MiB", "memory.staging": "32MiB", "log.level": "error", "listen.mode": "0666",
            "limits.staging_bytes": "1GiB", "store.prewrite": "off"}


def flood_key(i):
    return key_of("cold", i % CHUNKS)


def other_key(i):
    return key_of("cold other", i % GETS)


def fill(daemon):
    with daemon.client(timeout=120 * slow()) as c:
        ns = c.namespace("cold", chunk_bytes=CHUNK)
        c.staging(8 * MIB)
        keys = [flood_key(i) for i in range(CHUNKS)] + [other_key(i) for i in range(GETS)]
        for i in range(0, len(keys), 16):
            harness.put_all(c, ns, [(k, value_of(k, CHUNK)) for k in keys[i:i + 16]], ack=Ack.WRITTEN)


class Flood:
    """A session that has so many requests of the operation under way all the time; step() goes on with the oldest."""

    def __init__(self, daemon, op, in_flight):
        self.op, self.in_flight, self.tags = op, in_flight, []
        self.c = daemon.client(name="flood", timeout=600)
        self.ns = self.c.namespace("cold", chunk_bytes=CHUNK)
        size = in_flight * KEYS * CHUNK
        if op == "cold GET into lent memory":
            fd = os.memfd_create("cold", os.MFD_ALLOW_SEALING)
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
            self.region = self.c.register(fd, size)
            os.close(fd)
        elif op == "cold GET into the staging area":
            self.c.staging(size)
            self.region = 0

    def step(self, i):
        while len(self.tags) < self.in_flight:
            keys = [flood_key(i * 37 + k) for k in range(KEYS)]
            place = (self.tags[-1][1] + 1) % self.in_flight if self.tags else 0
            if self.op == "cold PREFETCH":
                tag = self.c.submit_batch(Op.PREFETCH, self.ns, keys)
            elif self.op == "cold GET":
                tag = self.c.submit_batch(Op.GET, self.ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys])
            else:
                tag = self.c.submit_get_to(self.ns, [(k, ((place * KEYS + n) * CHUNK, CHUNK, self.region))
                                                     for n, k in enumerate(keys)])
            self.tags.append((tag, place))
            i += 1
        reply = self.c.wait(self.tags.pop(0)[0], check=False)
        if self.op == "cold PREFETCH":  # what has come is read anew the next time
            return
        results = self.c.get_results(reply, KEYS, None if self.op == "cold GET" else [0] * KEYS)
        if self.op == "cold GET":
            self.c.release([r.lease for r in results if r.leased])


class Other:
    def __init__(self, client):
        self.c, self.number = client, 0
        self.ns = client.namespace("cold", chunk_bytes=CHUNK)

    def gets(self, n):
        """Seconds that each of so many gets from disk took."""
        times = []
        for _ in range(n):
            self.number += 1
            key = other_key(self.number)
            status, = self.c.evict(self.ns, [key], tiers=Tier.MEMORY)
            if status not in (Status.OK, Status.BUSY):
                raise Finding("lost", f"a chunk of the other user is {status.name}")
            began = time.perf_counter()
            result = self.c.get(self.ns, [key])[0]
            if result.status != Status.OK:
                raise Finding("wrong", f"the other user's get is {result.status.name}")
            if result.tier == Tier.DISK:
                times.append(time.perf_counter() - began)
            self.c.release([result.lease])
        return times

    def prefetches(self, n):
        """How many of so many were taken."""
        taken = 0
        for _ in range(n):
            self.number += 1
            key = other_key(self.number)
            self.c.evict(self.ns, [key], tiers=Tier.MEMORY)
            taken += self.c.prefetch(self.ns, [key])[0] == Status.OK
        return taken
