#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what events cost: puts, and gets of chunks in memory, on two daemons in slices that alternate. One has a ring of events, which
kvcache-events publishes to a subscriber. Then it measures the lag of events: the time from the answer to a put until the subscriber has read
its key, beside puts at full speed and without them.

    KVCACHE_BUILD=build python3 tests/bench/events.py [--pairs N] [--seconds S] [--size BYTES] [--lag-seconds S] [--dir DIRECTORY]

Prints each figure's median and quartiles, and percentiles of the lag."""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "daemon"))

import harness  # noqa: E402
from harness import BUILD, KIB, wait_until  # noqa: E402
from kvwire import Ack  # noqa: E402
from machine import Process, own_environment  # noqa: E402
from zmtp import Peer  # noqa: E402

POOL = 512 << 20
RING = 16 << 20
STAGED = 32 << 20  # most bytes of puts in progress
PORTS = 24650, 24651


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


class Subscriber(threading.Thread):
    """Reads all messages of the relay, and notes when the keys that are awaited came. It does not decode messages: as a process of another
    host it would not take a core of this one for that."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peer, self.awaited, self.messages = Peer(PORTS[0], "SUB"), {}, 0
        self.start()

    def run(self):
        try:
            while True:
                payload = self.peer.receive()[-1]
                now = time.monotonic()
                self.messages += 1
                for key, event in list(self.awaited.items()):
                    if key in payload:
                        event.at = now
                        event.set()
        except (OSError, ConnectionError):
            return


class Relay:
    """kvcache-events and a subscriber, in a `with` statement."""

    def __init__(self, daemon):
        self.command = [str(BUILD / "client/events/kvcache-events"), "-s", str(daemon.socket),
                        *(word for option, port in zip("er", PORTS) for word in (f"-{option}", f"tcp://127.0.0.1:{port}"))]

    def __enter__(self):
        self.process = harness.spawn(self.command)

        def connected():
            assert self.process.poll() is None, "kvcache-events ended"
            try:
                return Subscriber()
            except ConnectionRefusedError:
                return None
        self.subscriber = wait_until(connected, "kvcache-events listens")
        wait_until(lambda: self.subscriber.messages > 0, "a heartbeat or a snapshot comes")
        return self.subscriber

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait()
        self.subscriber.join()
        self.subscriber.peer.close()


class Side:
    """A daemon, with a ring for events or without, and its loads."""

    def __init__(self, name, directory, args, ring):
        self.directory, self.args = directory / name, args
        self.directory.mkdir(mode=0o755)
        settings = {"store.limit": "2GiB", "memory.pool": POOL, "events.ring": ring, "log.level": "warning"}
        self.daemon = harness.Daemon(self.directory, harness.DEFAULT_LEG, settings, store=self.directory / "store").start()
        self.loads = []

    def load(self, mode, namespace, *more):
        self.loads.append(Process([BUILD / "tests/bench/measure", mode, "--socket", self.daemon.socket, "--steps", "--namespace", namespace,
                                   "--size", self.args.size, "--batch", max(1, min(16, STAGED // 4 // self.args.size)),
                                   "--outstanding", max(1, min(64, STAGED // self.args.size)), *more], self.directory / "load.log",
                                  own_environment(BUILD)))
        return self.loads[-1]

    def settle(self):
        """Waits until all chunks are written and no I/O is in progress."""
        wait_until(lambda: not any(self.daemon.metric(f"kvcache_{name}") for name in ("pool_unwritten_bytes", "io_inflight", "io_queued")),
                   "the daemon rests", 60)

    def end(self):
        for load in self.loads:
            load.end()
        self.daemon.stop()


def alternate(name, sides, loads, seconds, pairs):
    """Prints the ratio of the bytes a second with events to those without, over pairs of slices that begin at rest. `loads`: with, without."""
    ratios = []
    for number in range(pairs):
        rates = {}
        for load in loads if number % 2 == 0 else loads[::-1]:
            for side in sides:
                side.settle()
            answer = load.run(seconds)
            rates[load] = (answer["bytes"] + answer["memory_bytes"]) / answer["seconds"]
        ratios.append(rates[loads[0]] / rates[loads[1]])
    quarters = statistics.quantiles(ratios, n=4)
    print(f"{name}: {statistics.median(ratios):.3f} of the rate without events (quartiles {quarters[0]:.3f} to {quarters[2]:.3f}); last pair: "
          f"{rates[loads[0]] / 2**30:.2f} and {rates[loads[1]] / 2**30:.2f} GiB/s", flush=True)


def lag(name, daemon, subscriber, seconds):
    """Prints percentiles of the time from a put's answer until its key has come. A put waits for the event of the one before it."""
    lags = []
    with daemon.client() as c:
        namespace = c.namespace("lag")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key, event = os.urandom(32), threading.Event()
            subscriber.awaited = {key: event}
            c.put(namespace, [(key, bytes(4 * KIB))], ack=Ack.ACCEPTED)
            answered = time.monotonic()
            assert event.wait(10), "an event did not come"
            lags.append(max(0.0, event.at - answered))
            time.sleep(0.002)
    print(f"lag {name}: p50 {quantile(lags, .5) * 1e3:.2f} ms, p99 {quantile(lags, .99) * 1e3:.2f} ms, most {max(lags) * 1e3:.2f} ms of {len(lags)}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1, help="of a slice")
    parser.add_argument("--size", type=int, default=64 * KIB, help="bytes of a chunk")
    parser.add_argument("--lag-seconds", type=float, default=20, help="how long the lag is measured, beside puts and at rest")
    parser.add_argument("--dir", default="/var/tmp", help="where the store is made: the disk that is measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        pathlib.Path(directory).chmod(0o755)
        sides = []
        try:
            for name, ring in ("with", RING), ("without", 0):
                sides.append(Side(name, pathlib.Path(directory), args, ring))
            daemon = sides[0].daemon
            with Relay(daemon) as subscriber:
                puts = [side.load("put", "puts") for side in sides]
                alternate("puts", sides, puts, args.seconds, args.pairs)
                puts[0].tell(f"run {args.lag_seconds + 1} 0")
                lag("beside puts at full speed", daemon, subscriber, args.lag_seconds)
                puts[0].answer()
                count = POOL // 4 // args.size
                for side in sides:
                    side.load("put", "gets").run(count=count * args.size)
                gets = [side.load("get", "gets", "--count", count, "--tier", "memory") for side in sides]
                for load in gets:
                    load.ask("warm")
                alternate("gets from memory", sides, gets, args.seconds, args.pairs)
                lag("of a daemon at rest", daemon, subscriber, args.lag_seconds)
        finally:
            for side in sides:
                side.end()


if __name__ == "__main__":
    main()
