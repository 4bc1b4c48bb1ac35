# SPDX-License-Identifier: Apache-2.0
"""overload: clients constantly demand ten times the capacity of the pool. The daemon's memory must stay bounded, every request must be
answered, BUSY answers must be counted, and reads must be right.

A run is a second of this; a life is a minute. Each of CLIENTS processes keeps puts of TEN / CLIENTS pools in flight and reads chunks back,
some without waiting for room, some waiting longer than the run."""

import hashlib
import json
import os
import random
import time

import campaign_clientkill
import harness
import kvwire
from harness import KIB, MIB, slow
from kvwire import Ack, Flag, Op, Status
from oracle import Finding

POOL, CLIENTS, TEN = 16 * MIB, 8, 10
CHUNK = 256 * KIB
MEMORY = 64 << 10  # KiB that the daemon may use beside pool, staging areas and its idle size
FINE = {Status.OK, Status.EXISTS, Status.BUSY, Status.QUOTA, Status.MISS, Status.NO_SPACE, Status.TOO_LARGE}


def value_of(key):
    return hashlib.sha256(key).digest() * (CHUNK // 32)


class Campaign(campaign_clientkill.Campaign):
    LIFE = 60

    def __init__(self, directory, seed, facts):
        self.facts, self.number, self.monitor, self.children, self.memory = facts, 0, None, {}, None
        self.directory = directory
        self.daemon = harness.Daemon(directory, campaign_clientkill.LEG, settings={
            "memory.pool": "16MiB", "store.limit": "64MiB", "log.level": "error", "limits.wait": "500ms",
            "io.backend": random.Random(seed).choice(["auto", "posix"])}).start()
        self.daemon.populated_status()
        self.monitor = self.daemon.client(name="monitor", timeout=120 * slow())
        with self.daemon.client() as c:
            c.namespace("n")
        self.before = self.at_rest(1)
        self.idle_kib = self.most_kib = self.memory_kib()
        self.seed = seed
        for i in range(CLIENTS):
            pid = self.fork(lambda: self.work(i), forever=True)
            self.wait_for(pid)

    def memory_kib(self):
        with open(f"/proc/{self.daemon.pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f)
        return int(fields["RssAnon"].split()[0])

    def work(self, who):
        """Runs a generator that makes one round of puts and gets each time, and writes the results of the keys to a file."""
        rng = random.Random(f"{self.seed}:{who}")
        c = self.daemon.client(name=f"worker {who}", timeout=120 * slow())
        ns, counts, number, own = c.namespace("n"), {}, 0, []
        c.staging(POOL * TEN // CLIENTS)
        while True:
            yield
            tags = []
            for batch in range(POOL * TEN // CLIENTS // CHUNK // 4):
                number += 4
                keys = [harness.key_of(f"{self.seed}:{who}", number + i) for i in range(4)]
                entries = c.put_entries([(k, value_of(k)) for k in keys], at=batch * 4 * CHUNK)
                how = {"flags": Flag.NOWAIT} if rng.random() < 0.2 else {"timeout_ms": rng.choice([1, 100, 2000])}
                tags.append((c.submit_batch(Op.PUT, ns, entries, ack=rng.choice(list(Ack)), **how), Op.PUT, keys))
                own += keys
                wanted = rng.sample(own, min(len(own), 6))
                gets = [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in wanted]
                tags.append((c.submit_batch(Op.GET, ns, gets, timeout_ms=rng.choice([1, 500])), Op.GET, wanted))
            self.settle(c, tags, counts)
            own = own[-400:]
            with open(self.directory / f"counts-{who}.new", "w") as f:
                json.dump(counts, f)
            os.rename(self.directory / f"counts-{who}.new", self.directory / f"counts-{who}")

    def settle(self, c, tags, counts):
        while tags:
            tag, op, what = tags.pop(0)
            reply = c.wait(tag, check=False)
            if reply.status != Status.OK:
                if reply.status not in FINE:
                    raise Finding("wrong", f"{op.name} was answered {reply.status.name}")
                counts[reply.status.name] = counts.get(reply.status.name, 0) + len(what)
                continue
            results = c.put_results(reply, len(what)) if op == Op.PUT else c.get_results(reply, len(what))
            for one, result in zip(what, results):
                if result.status not in FINE:
                    raise Finding("wrong", f"{op.name}: a key got {result.status.name}")
                counts[result.status.name] = counts.get(result.status.name, 0) + 1
                if op == Op.GET and result.status == Status.OK and result.data != value_of(one):
                    raise Finding("wrong", f"a get of {one.hex()} has wrong bytes")
            leases = [r.lease for r in results if r.leased]
            if leases and c.release(leases):
                raise Finding("wrong", "a lease that was held is stale")

    def run(self, rng, left):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            self.most_kib = max(self.most_kib, self.memory_kib())
            time.sleep(0.05)
        for pid in self.children:
            if said := self.says(pid, 0):
                raise Finding("wrong", f"a client: {said.decode()}")
        self.facts.add("most_mib_of_memory", (self.most_kib - self.idle_kib) / 1024)
        # The thread sanitizer uses several times the memory that is touched.
        if self.most_kib - self.idle_kib > MEMORY * slow() and not harness.is_thread_sanitized():
            raise Finding("wrong", f"{self.most_kib - self.idle_kib} KiB of memory more than an idle daemon has")
        self.ask(kvwire.Report.STATUS)
        return 1

    def end(self):
        harness.wait_until(lambda: len(list(self.directory.glob("counts-[0-9]*"))) >= CLIENTS,
                           "each client has gone one round", 60)
        metrics = harness.parse_metrics(self.ask(kvwire.Report.METRICS))
        counts = {}
        for path in self.directory.glob("counts-[0-9]*"):
            if not path.name.endswith(".new"):
                for name, n in json.loads(path.read_text()).items():
                    counts[name] = counts.get(name, 0) + n
        self.kill(list(self.children))
        for name, n in counts.items():
            self.facts.add(name.lower(), n)
        if not counts.get("BUSY"):
            raise Finding("wrong", f"nothing was answered BUSY: this is no overload: {counts}")
        if metrics["kvcache_busy_answers_total"] == 0 or metrics["kvcache_room_waits_total"] == 0:
            raise Finding("wrong", "busy answers, or waits for room, are not counted")
        try:
            harness.wait_until(self.is_back,
                               lambda: f"{self.before} again; it is {self.holdings()}", 30)
            self.monitor.close()
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("lost", str(e)) from None
