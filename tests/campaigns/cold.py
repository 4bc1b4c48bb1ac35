# SPDX-License-Identifier: Apache-2.0
"""Reads from disk, for the campaign fairness: sixteen sessions of one user have far more reads in flight than the device may have; another
user has one.

The time allowed for the other user's get follows from the device: the reads submitted before it, and as many again, because its turn comes
when one of these ends; each is a window. The daemon's own count of bytes read per second during the flood turns windows into a time. The
flood requests sixteen windows at once."""

import fcntl
import os
import time

import harness
import kvwire
from harness import KIB, MIB, key_of, slow, value_of
from kvwire import Ack, Op, Status, Tier
from oracle import Finding

WINDOW = 16 * MIB     # size of the reads submitted to the store at once
CHUNK, KEYS = 256 * KIB, 8
CHUNKS, GETS = 1200, 24   # chunks of the flood, more than the pool holds; gets of the other user, one after the other
AT_ONCE = 12          # gets of the other user, half of which may be late
WINDOWS, NOISE = 3, 0.01
OPERATIONS = ["cold GET into lent memory", "cold GET into the staging area", "cold GET", "cold PREFETCH"]
# In these floods others leave some room free, so that prefetches, which do not wait for room, are accepted.
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
    """A session that always has this number of requests of the operation in flight; step() completes the oldest and sends another."""

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
        if self.op == "cold PREFETCH":  # the prefetched chunk is read again next time
            return
        results = self.c.get_results(reply, KEYS, None if self.op == "cold GET" else [0] * KEYS)
        if self.op == "cold GET":
            self.c.release([r.lease for r in results if r.leased])


class Other:
    def __init__(self, client):
        self.c, self.number = client, 0
        self.ns = client.namespace("cold", chunk_bytes=CHUNK)

    def gets(self, n):
        """Returns the seconds of each of `n` gets from disk."""
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
        """Returns how many of `n` prefetches were accepted."""
        taken = 0
        for _ in range(n):
            self.number += 1
            key = other_key(self.number)
            self.c.evict(self.ns, [key], tiers=Tier.MEMORY)
            taken += self.c.prefetch(self.ns, [key])[0] == Status.OK
        return taken
