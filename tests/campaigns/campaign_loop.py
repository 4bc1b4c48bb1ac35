# SPDX-License-Identifier: Apache-2.0
"""loop: one user attacks the event loop with a pool of 64 MiB to 4 GiB; within a PING of another tenant's user the loop may use at most 1 ms of
CPU time (p99), whatever the size of the pool.

A run is one attack of ATTACKS. A life has one pool, whose size depends on the seed, and is full of chunks: first of 4 KiB, which the attacks
lease and hold, then of 256 KiB. A pool for which the machine lacks memory is skipped, and the output says so.

The CPU time is that of the loop's thread, from a perf event, which is exact at any moment; /proc has it in steps of a timer tick. The thread
that sends the PINGs has a real-time priority, if it may have one, so that it reads a reply as soon as it is there."""

import ctypes
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import time

import harness
import kvwire
from harness import KIB, MIB, key_of, slow
from kvwire import Ack, Op, Status, Tier, WireError
from oracle import Finding
from users import user

ATTACKER, VICTIM = 20001, 20002
POOLS = [64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB]
BOUND_MS = 1.0
SECONDS, PAUSE = 4.0, 0.001  # length of a measurement; time between two PINGs
SMALL, LARGE = 4 * KIB, 256 * KIB
TENANTS = f"tenants:\n  - name: victims\n    users: [{VICTIM}]\n    pool: 16MiB\n"
RING_FIRST, RING_WORDS = 9728, 8192  # words of a session's page
HOLDS_FIRST, USED_FIRST, HOLDS = 1536, 272, 1024


class ThreadClock:
    """The CPU time of one thread of any process, in nanoseconds."""

    SYS_PERF_EVENT_OPEN, SOFTWARE, TASK_CLOCK = 298, 1, 1

    def __init__(self, tid):
        attributes = struct.pack("<IIQ", self.SOFTWARE, 112, self.TASK_CLOCK).ljust(112, b"\0")
        self.fd = ctypes.CDLL(None, use_errno=True).syscall(self.SYS_PERF_EVENT_OPEN, attributes, tid, -1, -1, 8)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")

    def ns(self):
        return int.from_bytes(os.read(self.fd, 8), sys.byteorder)

    def close(self):
        os.close(self.fd)


def at(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def free_memory():
    with open("/proc/meminfo") as f:
        return int(next(line for line in f if line.startswith("MemAvailable")).split()[1]) << 10


class Attacker:
    """A process of the attacking user; attack functions use its sessions."""

    def __init__(self, run):
        self.run, self.daemon, self.body = run, run.daemon, os.urandom(LARGE)
        self.fresh = 0

    def session(self, staging=True):
        c = self.daemon.client(name="attack", timeout=600)
        if staging:
            c.staging(MIB)
        return c, c.namespace("attack")

    def items(self, n, size):
        self.fresh += n
        return [(key_of("fresh", os.getpid(), self.fresh - i), self.body[:size]) for i in range(n)]

    def small_keys(self, first=0):
        return [key_of("small", i) for i in range(self.run.n_small - 1, first, -1)]

    def lease(self, sessions, most=1 << 30):
        """Leases chunks of 4 KiB until the daemon refuses more. Returns the number."""
        leased, keys = 0, self.small_keys()
        for c, ns in sessions:
            refusals = 0
            while keys and leased < most and refusals < 4:
                part, keys = keys[:256], keys[256:]
                got = sum(r.leased for r in c.get(ns, part, nowait=True))
                leased, refusals = leased + got, refusals + (got == 0)
        return leased

    def lease_in_each_slab(self, c, ns):
        """Leases one small chunk in each slab."""
        slab = min(64 * MIB, max(2 * MIB, self.run.pool // 8))
        slabs, keys = set(), self.small_keys()
        for i in range(0, min(len(keys), 65536), 64):
            for r in c.get(ns, keys[i:i + 64], nowait=True):
                if r.leased and r.offset // slab in slabs:
                    c.release([r.lease])
                elif r.leased:
                    slabs.add(r.offset // slab)

    # --- the attacks; each prepares, then yields repeatedly ---

    def small_leases(self):
        """Row 2 of the review: a leased chunk of 4 KiB in each slab, and puts of 64 KiB."""
        self.lease_in_each_slab(*self.session())
        c, ns = self.session()
        while True:
            yield
            c.put(ns, self.items(16, 64 * KIB), nowait=True)

    def holds_in_turn(self):
        """Row 3: three sessions hold all chunks by their pages in turn, and puts look for room."""
        sessions = [self.session() for _ in range(3)]
        indexes = [c.pool_index() for c, _ in sessions]
        putter, ns = self.session()
        turn, until = 0, 0
        while True:
            if time.monotonic() > until:
                for w in range(16):
                    indexes[turn].page[USED_FIRST + w] = 0
                turn, until = (turn + 1) % 3, time.monotonic() + 0.5
                index = indexes[turn]
                first = index._records // 8
                for i in range(min(index.n_records, HOLDS)):
                    index.page[HOLDS_FIRST + 8 * i] = (i + 1) << 32 | (index.words[first + 8 * i + 6] & 0xFFFFFFFF)
                for w in range(16):
                    index.page[USED_FIRST + w] = (1 << 64) - 1
            yield
            try:
                putter.put(ns, self.items(8, 128 * KIB), nowait=True)
            except WireError:
                putter, ns = self.session()
            for i, (c, _) in enumerate(sessions):
                try:
                    c.ping()
                except (WireError, OSError):
                    indexes[i].close()
                    sessions[i] = self.session()
                    indexes[i] = sessions[i][0].pool_index()

    def search(self):
        """Row 4: all leases that the user may have, a lease in each other slab, and puts that find no room."""
        sessions = [self.session() for _ in range(4)]
        self.lease(sessions)
        self.lease_in_each_slab(*sessions[0])
        putters = [self.session() for _ in range(2)]
        while True:
            yield
            tags = [(c, c.submit_batch(Op.PUT, ns, c.put_entries(self.items(64, SMALL)), flags=kvwire.Flag.NOWAIT)) for c, ns in putters]
            for c, tag in tags:
                c.wait(tag, check=False)

    def purges(self):
        """Rows 5 and 9: namespaces are filled, purged and removed; keys are evicted."""
        sessions = [self.session()[0] for _ in range(4)]
        while True:
            for n, c in enumerate(sessions):
                ns = c.namespace(f"purged-{n}")
                for _ in range(4):
                    items = self.items(128, SMALL)
                    c.put(ns, items, nowait=True)
                    yield
                c.evict(ns, [key for key, _ in items])
                c.purge(ns)
                c.namespace_remove(f"purged-{n}", check=False)

    def purge_of_all(self):
        """Rows 5 and 9: all chunks of the pool are purged at once; then the pool is filled again."""
        c, _ = self.session()
        all_of = c.namespace("attack")
        while True:
            c.purge(all_of)
            for _ in range(200):
                c.put(all_of, self.items(256, SMALL), nowait=True)
                yield

    def ends(self):
        """Row 6: sessions whose rings are full of touches end, all at once."""
        rng = random.Random(1)
        c, ns = self.session()
        index = c.pool_index()
        found = [f for f in (index.find(ns, key) for key in self.small_keys(max(0, self.run.n_small - 8000))) if f]
        ring = []
        while len(ring) < RING_WORDS:
            m = min(1024, RING_WORDS - len(ring) - 1)
            ring.append(0xFFFFFFFF << 32 | m)
            ring += [f[0] << 32 | f[3] for f in (rng.choice(found or [(0, 0, 0, 0)]) for _ in range(m))]
        ring = struct.pack(f"<{RING_WORDS}Q", *ring)
        while True:
            yield
            sessions = []
            for _ in range(40):
                c, _ = self.session(staging=False)
                index = c.pool_index(check=False)
                if not isinstance(index, kvwire.PoolIndex):
                    c.close()
                    break
                index.page_map[RING_FIRST * 8:RING_FIRST * 8 + len(ring)] = ring
                index.written = index.taken + RING_WORDS & (1 << 64) - 1
                sessions.append((c, index))
            for c, index in sessions:
                c.close()
                index.close()

    def pages(self):
        """Row 7: sessions get the pages of transfers and counters, and end all at once."""
        while True:
            yield
            sessions = []
            for _ in range(200):
                c, _ = self.session(staging=False)
                os.close(c.transfers())
                os.close(c.tally())
                c.lookup().close()
                sessions.append(c)
            for c in sessions:
                c.close()

    def crowd(self):
        """Many sessions send messages of as many keys as one may have, all at once: puts, then touches."""
        sessions = [self.session(staging=False) for _ in range(128)]
        for c, _ in sessions:
            c.staging(64 * KIB)
        keys = self.small_keys()
        puts = [[kvwire.PUT_ENTRY.pack(key, 0, 16, 0, 0) for key, _ in self.items(1000, 0)] for _ in range(4)]
        while True:
            for op in (Op.PUT, Op.TOUCH):
                yield
                tags = []
                for n, (c, ns) in enumerate(sessions):
                    entries = puts[n % len(puts)] if op == Op.PUT else keys[n * 64:n * 64 + 1000]
                    tags.append((c, c.submit_batch(op, ns, entries, flags=kvwire.Flag.NOWAIT if op == Op.PUT else 0)))
                for c, tag in tags:
                    c.wait(tag, check=False)

    def http(self):
        """Row 7: requests for the largest page over HTTP, from many connections."""
        for i in range(200):
            self.session(staging=False)[0].namespace(f"http-{i}")
        while True:
            poll, connections = select.poll(), []
            for _ in range(16):
                s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                s.connect(self.daemon.http_socket)
                s.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)
                connections.append(s)
                poll.register(s)
            yield
            for s in connections:
                s.settimeout(0.02)
                try:
                    while s.recv(1 << 16):
                        pass
                except OSError:
                    pass
                s.close()

    def wrong_bytes(self):
        """Row 8: gets of chunks whose bytes on disk were overwritten."""
        c, ns = self.session()
        damaged = self.run.damaged
        for i in range(0, len(damaged), 1000):
            c.evict(ns, damaged[i:i + 1000], tiers=Tier.MEMORY)
        while True:
            for i in range(0, len(damaged), 128):
                yield
                results = c.get(ns, damaged[i:i + 128], nowait=True)
                c.release([r.lease for r in results if r.leased])
                time.sleep(SECONDS / (len(damaged) / 128))  # each is dropped at its first get


# wrong_bytes comes first, because its chunks are in the first data files then; purge_of_all leaves little for others.
ATTACKS = ["wrong_bytes", "small_leases", "holds_in_turn", "search", "purges", "ends", "pages", "crowd", "http", "purge_of_all"]


class Campaign:
    LIFE = len(ATTACKS)

    def __init__(self, directory, seed, facts):
        self.directory, self.facts, self.number, self.pids, self.daemon = directory, facts, 0, [], None
        self.pool = POOLS[(seed - 1) % len(POOLS)]
        self.seen = {}
        if os.geteuid() != 0:
            print("campaign loop: needs root: it acts as two users")
            sys.exit(77)
        try:
            ThreadClock(os.getpid()).close()
        except OSError as e:
            print(f"campaign loop: the CPU time of another process's thread cannot be read here: {e}")
            sys.exit(77)

    def start(self):
        config = self.directory / "kvcache.yaml"
        config.write_text(TENANTS)
        self.daemon = harness.Daemon(self.directory, config=config, settings={
            "memory.pool": self.pool, "store.limit": 2 * self.pool + 512 * MIB, "store.prewrite": "off", "log.level": "error", "listen.mode": "0666",
            "listen.http": f"unix:{self.directory}/h", "store.error_budget": 1000000, "limits.http_rate": 100000})
        self.daemon.start()
        os.chmod(self.daemon.http_socket, 0o666)
        with user(VICTIM):
            self.victim = self.daemon.client(name="victim", timeout=60 * slow())
        with user(ATTACKER), self.daemon.client(timeout=600) as c:
            self.fill(c, c.namespace("attack"))
        self.monitor = self.daemon.client(name="monitor", timeout=60 * slow())
        self.results()
        self.clock = ThreadClock(self.daemon.pid)

    def fill(self, c, ns):
        """Fills three quarters of the pool with small chunks, the rest with large ones."""
        c.staging(8 * MIB)
        body = os.urandom(LARGE)
        c.staging_write(0, body)
        self.n_small = self.pool * 3 // 4 // SMALL
        for name, n, size, batch in (("small", self.n_small, SMALL, 1000), ("large", self.pool // 4 // LARGE, LARGE, 64)):
            tags = []
            for i in range(0, n, batch):
                entries = [kvwire.PUT_ENTRY.pack(key_of(name, j), 0, size, 0, 0) for j in range(i, min(n, i + batch))]
                tags.append(c.submit_batch(Op.PUT, ns, entries, ack=Ack.WRITTEN, timeout_ms=600000))
                if len(tags) >= 2:
                    c.wait(tags.pop(0))
            for tag in tags:
                c.wait(tag)
        self.damaged = [key_of("small", i) for i in range(min(self.n_small, 16384))]

    def damage(self):
        """Overwrites the first bytes of each page of the first data files, 64 MiB in all."""
        left = 64 * MIB
        for path in sorted(self.daemon.store.glob("segment-*")):
            with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as data:
                for page in range(0, min(len(data), left), 4096):
                    data[page:page + 8] = b"damaged!"
            left -= min(left, path.stat().st_size)

    # --- one attack ---

    def begin(self, name):
        """Starts the attack in a process of its own, and returns once it has prepared."""
        said, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                harness.die_with_parent()
                os.setgroups([])
                os.setgid(ATTACKER)
                os.setuid(ATTACKER)
                attack = getattr(Attacker(self), name)()
                next(attack)
                os.write(ready, b".")
                for _ in attack:
                    pass
            except BaseException as e:
                os.write(ready, repr(e).encode())
                print(f"the attack {name} ended: {e!r}", flush=True)
            finally:
                os._exit(1)
        self.pids.append(pid)
        os.close(ready)
        heard = os.read(said, 4096)
        os.close(said)
        if heard != b".":
            raise Finding("wrong", f"the attack {name} did not begin: {heard.decode(errors='replace')}")

    def pings(self, seconds):
        """Returns the loop's CPU time within each PING, in ms."""
        times, end = [], time.monotonic() + seconds
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except OSError:
            pass
        try:
            while time.monotonic() < end or len(times) < 200:
                before = self.clock.ns()
                self.victim.ping()
                times.append((self.clock.ns() - before) / 1e6)
                time.sleep(PAUSE)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return times

    def run(self, rng, left):
        if free_memory() < self.pool * 5 // 4 + 1024 * MIB:
            print(f"a pool of {self.pool // MIB} MiB is skipped: {free_memory() // MIB} MiB of memory are available", flush=True)
            return 1
        if self.daemon is None:
            self.start()
        name = ATTACKS[self.number % len(ATTACKS)]
        if name == "wrong_bytes":
            self.damage()
        alone = self.pings(1)
        self.begin(name)
        time.sleep(0.2)
        times = self.pings(SECONDS)
        results, errors = self.results()
        pid, = self.pids
        if os.waitpid(pid, os.WNOHANG)[0]:
            self.pids = []
            raise Finding("wrong", f"the process of the attack {name} has ended")
        self.end_processes()
        p99, what = at(times, 0.99), f"{name}_{self.pool // MIB}MiB"
        self.facts.add(f"most_p99_ms_{what}", p99)
        self.facts.add(f"most_ms_{what}", max(times))
        self.facts.add("most_p99_ms_alone", at(alone, 0.99))
        print(f"{what}: alone p99 {at(alone, 0.99):.3f} ms; median {at(times, 0.5):.3f}, p90 {at(times, 0.9):.3f}, p99 {p99:.3f}, "
              f"longest {max(times):.3f} ms of {len(times)}; keys of the attack: {results}", flush=True)
        if name == "wrong_bytes" and errors == 0:
            raise Finding("wrong", "no get has met a wrong byte: the attack has no effect")
        if p99 > BOUND_MS * slow():
            raise Finding("hung", f"beside {name} of another tenant's user, with a pool of {self.pool // MIB} MiB, the loop uses {p99:.2f} ms of CPU "
                          f"time within a PING (p99), of at most {BOUND_MS * slow():.1f} ms")
        return 1

    def results(self):
        """Returns the results of keys since the last call, by status, and the checksum errors of all time."""
        stats = json.loads(self.monitor.report(kvwire.Report.STATS))
        now, before = stats["kvcache_key_results_total"], self.seen
        self.seen = now
        grown = {status: int(n - before.get(status, 0)) for status, n in now.items()}
        return {status: n for status, n in grown.items() if n}, stats["kvcache_store_crc_failures_total"]

    def end_processes(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = []

    def end(self):
        if self.daemon is None:
            return
        self.victim.close()
        self.monitor.close()
        self.clock.close()
        try:
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def stop(self):
        self.end_processes()
        if self.daemon is not None:
            self.daemon.clean_up()
