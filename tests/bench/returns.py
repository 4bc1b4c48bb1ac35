#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures gets of sessions that return after a pause, with and without memory.prefetch: the same sessions against two daemons, in rounds that
alternate. Each session announces its return (HINT), pauses, and gets its chain. Only returns that were announced count.

    KVCACHE_BUILD=build python3 tests/bench/returns.py [--rounds N] [--seconds S] [--sessions N] [--keys N] [--pool SIZE] [--error SHARE] [--dir DIRECTORY]

Prints the latency of the gets, the chunks by tier, the bytes read from disk, and what became of the announced returns, for each daemon."""

import argparse
import heapq
import os
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "daemon"))

import harness  # noqa: E402
from harness import KIB  # noqa: E402
from kvwire import Ack, Op, Status, Tier  # noqa: E402

RETURN = 2
CHUNK = 256 * KIB
PAUSE_S = 2, 8
OUTCOMES = "read", "in_memory", "ended", "disbelieved", "worth_less", "late", "refused", "dropped"


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] * 1e3 if values else float("nan")


class Side:
    def __init__(self, name, directory, args, rate):
        self.name, self.args = name, args
        own = directory / name
        own.mkdir(mode=0o755)
        settings = {"store.limit": "2GiB", "memory.pool": args.pool, "memory.prefetch": rate, "log.level": "warning"}
        self.daemon = harness.Daemon(own, harness.DEFAULT_LEG, settings, store=own / "store").start()
        self.client = self.daemon.client()
        self.namespace = self.client.namespace("n")
        self.chains = [[os.urandom(32) for _ in range(args.keys)] for _ in range(args.sessions)]
        self.latency, self.tiers = [], {Tier.MEMORY: 0, Tier.DISK: 0}
        value = os.urandom(CHUNK)
        for chain in self.chains:
            self.client.put_chain(self.namespace, [(key, value) for key in chain], size=8, ack=Ack.WRITTEN)

    def get(self, session, measured):
        began = time.monotonic()
        got = self.client.get(self.namespace, self.chains[session])
        took = time.monotonic() - began
        assert all(r.status == Status.OK and r.length == CHUNK for r in got)
        self.client.release([r.lease for r in got])
        if measured:
            self.latency.append(took)
            for r in got:
                self.tiers[r.tier] += 1

    def announce(self, session, seconds):
        self.client.wait(self.client.submit_batch(Op.HINT, self.namespace, self.chains[session], ack=RETURN, timeout_ms=seconds))

    def play(self, seed, measured=True):
        """Plays the sessions for a while; returns that would be after its end are not announced."""
        numbers, announced = random.Random(seed), set()
        now = time.monotonic()
        end = now + self.args.seconds
        due = [(now + numbers.uniform(0, PAUSE_S[1]), session) for session in range(self.args.sessions)]
        heapq.heapify(due)
        while due[0][0] < end:
            at, session = heapq.heappop(due)
            time.sleep(max(0, at - time.monotonic()))
            self.get(session, measured and session in announced)
            announced.discard(session)
            said = numbers.randint(*PAUSE_S)
            pause = said * numbers.uniform(1 - self.args.error, 1 + self.args.error)
            if time.monotonic() + pause < end:
                self.announce(session, said)
                announced.add(session)
            heapq.heappush(due, (time.monotonic() + pause, session))

    def print(self):
        metric = self.daemon.metric
        print(f"{self.name}: {len(self.latency)} returns, p50 {quantile(self.latency, .5):.2f} ms, p90 {quantile(self.latency, .9):.2f} ms, "
              f"p99 {quantile(self.latency, .99):.2f} ms; chunks from memory {self.tiers[Tier.MEMORY]}, from disk {self.tiers[Tier.DISK]}")
        print(f"    {metric('kvcache_store_read_bytes_total') / 2**20:.0f} MiB read; prefetched {metric('kvcache_prefetched_chunks_total'):.0f}, "
              f"used {metric('kvcache_prefetch_hits_total'):.0f}, wasted {metric('kvcache_prefetch_wasted_total'):.0f}")
        returns = {o: metric(f'kvcache_return_prefetches_total{{outcome="{o}"}}') for o in OUTCOMES}
        print("    announced returns:", ", ".join(f"{o} {n:.0f}" for o, n in returns.items() if n) or "none read ahead")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20, help="of a round")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--keys", type=int, default=24, help="chunks of 256 KiB of a session")
    parser.add_argument("--pool", default="64MiB")
    parser.add_argument("--error", type=float, default=0, help="largest error of an announced time, as a share of it")
    parser.add_argument("--dir", default="/var/tmp", help="where the stores are made: the disk that is measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        sides = []
        try:
            for name, rate in ("without", "0"), ("with", "1GiB"):
                sides.append(Side(name, pathlib.Path(directory), args, rate))
            for side in sides:
                side.play(-1, measured=False)
            for number in range(args.rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    side.play(number)
            for side in sides:
                side.print()
        finally:
            for side in sides:
                side.client.close()
                side.daemon.stop()


if __name__ == "__main__":
    main()
