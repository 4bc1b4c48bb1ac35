# SPDX-License-Identifier: Apache-2.0
"""Runs short measurements (slices) in pairs, one of the daemon and one of a yardstick such as fio, and counts CPU time and events meanwhile."""

from machine import cpu_seconds

GIB = 2**30


class Tally:
    """Counts the deviations in the slices of one figure."""

    WORDS = {"from_memory": "came from memory and do not count", "misses": "were missed", "exists": "were there already",
             "busy": "were answered BUSY", "failed": "failed"}

    def __init__(self, wanted="bytes"):
        self.sums, self.cpu, self.bytes, self.keys = dict.fromkeys(self.WORDS, 0), 0.0, 0, 0
        self.wanted = wanted

    def add(self, answer, cpu):
        for word in self.WORDS:
            self.sums[word] += answer[word]
        self.cpu, self.bytes, self.keys = self.cpu + cpu, self.bytes + answer[self.wanted], self.keys + answer["keys"]
        self.last_cpu_per_gib = cpu / answer[self.wanted] * GIB if answer[self.wanted] else None

    def notes(self):
        total = self.keys + sum(self.sums.values())
        if self.wanted == "memory_bytes":
            return [f"{n} of {total} chunks {what}" for what, n in
                    (("came from the disk and do not count", self.keys),
                     *((self.WORDS[word], n) for word, n in self.sums.items() if word != "from_memory")) if n]
        return [f"{n} of {total} chunks {self.WORDS[word]}" for word, n in self.sums.items() if n]

    def cpu_per_gib(self):
        return round(self.cpu / self.bytes * GIB, 4) if self.bytes else None


def our_slice(daemon, load, tally, seconds=0.0, count=0):
    """Runs one slice, before and after which the daemon is idle. Returns bytes per second."""
    before = daemon.cpu_seconds() + cpu_seconds(load.process.pid)
    answer = load.run(seconds, count)
    tally.add(answer, daemon.cpu_seconds() + cpu_seconds(load.process.pid) - before)
    daemon.settle()
    return answer[tally.wanted] / answer["seconds"]


def in_pairs(n, ours, theirs, before=lambda: None):
    """Returns n pairs of rates. The side that begins a pair alternates, and before() is called ahead of each slice."""
    pairs = []
    for i in range(n):
        rates = {}
        for side in (ours, theirs) if i % 2 == 0 else (theirs, ours):
            before()
            rates[side] = side()
        pairs.append((rates[ours], rates[theirs]))
    return pairs


def difference(after, before):
    """Returns the difference of two stats, where they are numbers."""
    if isinstance(after, dict):
        return {k: difference(v, before.get(k)) for k, v in after.items()}
    return after - before if isinstance(after, (int, float)) and isinstance(before, (int, float)) else after


def put_details(counted):
    """Returns the device's cost of puts, from counters of the daemon."""
    return {
        "puts": counted["kvcache_puts_total"],
        "put_bytes": counted["kvcache_put_bytes_total"],
        "evictions": counted["kvcache_evictions_total"],
        "writes": counted["kvcache_store_writes_total"],
        "written_bytes": counted["kvcache_store_written_bytes_total"],
        "mean_inflight": quotient(counted["kvcache_io_inflight_seconds_total"], counted["kvcache_io_busy_seconds_total"], 2),
    }


def quotient(a, b, digits=4):
    return round(a / b, digits) if b else None


class FioSide:
    """Runs fio's slices of one figure, and sums their CPU time."""

    def __init__(self, fio, rw, size):
        self.fio, self.rw, self.size, self.cpu = fio, rw, size, []

    def slice(self, seconds=0.0, count=0):
        rate, cpu = self.fio.slice(self.rw, self.size, seconds, count)
        self.cpu.append(cpu)
        return rate

    def huge_slice(self, seconds):
        return self.fio.slice(self.rw, self.size, seconds, huge=True)[0]

    def cpu_per_gib(self):
        return round(sum(self.cpu) / len(self.cpu) * GIB, 4) if self.cpu else None
