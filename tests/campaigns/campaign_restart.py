# SPDX-License-Identifier: Apache-2.0
"""restart: a store of many entries, five million by default, must be ready two seconds after kill -9.

many-entries creates the store: its tables are real, its segments are sparse. Each of three lives has tables of another age: with the live
entries only, with as many superseded ones, and with twice as many, the most for which a table has room. One run kills the daemon during
gets and puts and starts it again. The output has the seconds until it answers, the maximum by age, the minimum of all, and the daemon's
memory per entry, excluding the pool. KVCACHE_RESTART_ENTRIES changes the number. The limit of two seconds is for five million entries on
two idle cores; five million superseded ones, 660 MB of table each, may take another second; KVCACHE_TEST_SLOW scales it. Fewer entries get
a proportional limit of processor time, which other programs hardly affect, plus the time of startup without entries."""

import json
import os
import struct
import subprocess
import threading
import time

import harness
import kvwire
from harness import BUILD, MIB, slow
from oracle import Finding

ENTRIES = int(os.environ.get("KVCACHE_RESTART_ENTRIES", "5000000"))
LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
LIMIT = 2.0
LIMIT_SUPERSEDED = 1.0
START_CPU = 0.3  # startup without entries
CORES = 2  # threads that read tables; their processor time is divided by this number
POOL = 64 * MIB


def key_number(i):
    return struct.pack("<Q", i) + b"\xa5" * 24


class Campaign:
    LIFE = 8  # creating the store takes long

    def __init__(self, directory, life, facts):
        self.facts, self.number, self.age = facts, 0, (life - 1) % 3
        self.limit = LIMIT + LIMIT_SUPERSEDED * self.age
        store = directory / "store"
        store.mkdir(mode=0o700)
        made = subprocess.run([BUILD / "tests/campaigns/many-entries", store, str(ENTRIES), "--history", str(self.age)],
                              capture_output=True, text=True, check=True)
        self.daemon = harness.Daemon(directory, LEG, {"store.limit": int(made.stdout), "store.prewrite": "off",
                                                      "memory.pool": POOL, "log.level": "info"}, store=store)
        self.start(first=True)

    def start(self, first=False):
        began = time.monotonic()
        self.daemon.spawn()
        harness.wait_until(self.daemon.answers, "the daemon answers", 60)
        seconds = time.monotonic() - began
        with self.daemon.client() as c:
            status = json.loads(c.report(kvwire.Report.STATUS))
        chunks = status["store"]["recovered_chunks"] if "recovered_chunks" in status["store"] else \
            status["store"]["chunks"]
        if chunks < ENTRIES:
            raise Finding("lost", f"{chunks} of {ENTRIES} chunks are there")
        with open(f"/proc/{self.daemon.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        cpu = self.cpu_seconds()
        memory = int(fields["RssAnon"].split()[0]) * 1024
        self.facts["bytes_per_entry"] = memory / ENTRIES
        if not first:
            self.facts.add(f"most_seconds_with_{self.age}_superseded_each", seconds)
            self.facts["least_seconds"] = min(self.facts.get("least_seconds", seconds), seconds)
            if seconds > self.limit * max(1.0, ENTRIES / 5000000) * slow():
                raise Finding("hung", f"ready after {seconds:.2f} s, {memory / ENTRIES:.0f} bytes an entry")
            self.facts["most_cpu_seconds"] = max(self.facts.get("most_cpu_seconds", cpu), cpu)
            if cpu > (START_CPU + CORES * self.limit * ENTRIES / 5000000) * slow():
                raise Finding("hung", f"ready with {cpu:.2f} s of processor time, more than {ENTRIES} entries may take")

    def cpu_seconds(self):
        """Returns the processor time of all threads of the daemon since it was started."""
        with open(f"/proc/{self.daemon.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, rng, left):
        stop = threading.Event()

        def work():
            try:
                with self.daemon.client() as c:
                    ns = c.namespace("many", attach=True)
                    n = 0
                    while not stop.is_set():
                        numbers = [rng.randrange(ENTRIES) for _ in range(4)]
                        for i, r in zip(numbers, c.get(ns, [key_number(i) for i in numbers], timeout_ms=20000)):
                            if r.status == kvwire.Status.MISS:
                                raise Finding("lost", f"key {i} is a miss")
                            if r.status == kvwire.Status.OK:
                                if r.data.count(0) != 2 * MIB:
                                    raise Finding("wrong", f"key {i}: wrong bytes")
                                c.release([r.lease])
                        n += 1
                    self.facts.add("gets", 4 * n)
            except (ConnectionError, kvwire.SessionEnded, OSError):
                pass
            except Finding as finding:
                problems.append(finding)

        problems = []
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2 + rng.random() * 0.5)
        self.daemon.kill()
        stop.set()
        thread.join()
        if problems:
            raise problems[0]
        self.start()
        return 1

    def end(self):
        self.daemon.stop()

    def stop(self):
        self.daemon.discard()
