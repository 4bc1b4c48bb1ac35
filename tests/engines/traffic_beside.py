# SPDX-License-Identifier: Apache-2.0
"""A process that uses a daemon concurrently with the engines of the traffic benchmark, until it is killed.

    traffic_beside.py store SOCKET BYTES_PER_S    stores chunks of 1 MiB
    traffic_beside.py fill SOCKET                 leases as much as the daemon allows, and stores as fast as it can

Prints "stored N bytes, leased N bytes, refused N chunks" four times a second, and "full: ..." once no client gets another lease.
"""

import os
import sys
import time

import kvcache

CHUNK, BATCH, CLIENTS = 1 << 20, 8, 8


class Storing:
    def __init__(self, socket):
        self.clients = [kvcache.Client(socket, timeout=1, connect_timeout=1) for _ in range(CLIENTS)]
        self.spaces = [client.namespace("traffic/beside", {}) for client in self.clients]
        self.bytes = bytearray(os.urandom(CHUNK))
        self.count = self.stored = self.leased = self.refused = 0
        self.leases, self.printed_at = [], 0.0

    def put(self, space, count=BATCH):
        """Stores new chunks. Returns the keys that are stored."""
        keys = [os.urandom(32) for _ in range(count)]
        done = space.put(keys, [self.bytes] * count, ack="accepted")
        taken = [key for key, status in zip(keys, done.status) if kvcache.status_ok(status)]
        self.stored += len(taken) * CHUNK
        self.refused += count - len(taken)
        self.say()
        return taken

    def say(self):
        if time.monotonic() - self.printed_at > 0.25:
            print(f"stored {self.stored} bytes, leased {self.leased} bytes, refused {self.refused} chunks", flush=True)
            self.printed_at = time.monotonic()

    def lease(self, space, keys):
        """Leases chunks for as long as this process lives. Returns whether the daemon granted all of them."""
        leased = space.get_map(keys)
        granted = sum(kvcache.status_ok(status) for status in leased.status)
        self.leased += granted * CHUNK
        self.leases.append(leased)
        return granted == len(keys)


def store(socket, bytes_per_s):
    it, began = Storing(socket), time.monotonic()
    while True:
        taken = it.put(it.spaces[0])
        time.sleep(max(0.0 if taken else 0.05, it.stored / bytes_per_s - (time.monotonic() - began)))


def fill(socket):
    it = Storing(socket)
    for space in it.spaces:
        while (taken := it.put(space)) and it.lease(space, taken):
            pass
    print(f"full: {it.leased} bytes are leased", flush=True)
    while True:
        for space in it.spaces:
            it.put(space)


if __name__ == "__main__":
    store(sys.argv[2], float(sys.argv[3])) if sys.argv[1] == "store" else fill(sys.argv[2])
