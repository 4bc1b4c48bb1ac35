# SPDX-License-Identifier: Apache-2.0
"""cost: one user performs every operation at volume, with many sessions that leave their replies unread, are idle, close one side, or are
killed. The daemon's use of memory, descriptors and CPU time must be covered by what it has charged; no user may exceed its limits;
another user must be served meanwhile; and everything must be freed.

A run is one operation by one crowd of sessions. The limits are small, so that a crowd reaches them. The daemon's account is its metrics,
all from one REPORT, which its loop makes at once:

descriptors  kvcache_open_descriptors equals the kernel's count, kvcache_client_descriptors tells the purpose of each. The rest are
             the daemon's own, whose number does not change; during the flood its threads may have IN_THREADS more. Each kind is covered by
             a charge.
             Several times in a run the crowd is paused, and then every descriptor must be explained, so that leaks are found.
memory       The allocated heap (tests/lib/heap-count.c): during the flood at most what is charged for it; after the run everything is freed
             except HEAP_KEPT and objects kept for reuse (SLOTS_KEPT, STRETCHES_KEPT). Also the daemon's private memory (RssAnon), with the
             overhead of the allocator.
keys         These and all other resources: no user exceeds its limit."""

import contextlib
import fcntl
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import time

import campaign_clientkill
import harness
import kvwire
from harness import MIB, items, key_of, slow
from kvwire import Ack, Flag, Op, Status
from oracle import Finding

EVIL, GOOD = 20001, 20002
CROWD = 24
VOLUME = 200          # messages per session, if it can send that many
SETTINGS = {"limits.keys": 8192, "limits.request_memory": "8MiB", "limits.requests": 2048, "limits.unread_fds": 256,
            "limits.staging_bytes": "64MiB", "limits.registered": "64MiB", "limits.connections": 256}
# Bounds of RssAnon in terms of charged bytes: the allocator rounds up and keeps some memory.
A_CONNECTION = 24 << 10
FACTOR, SLACK = 1.5, 4 << 20
LENT_PLACES = 256
HEAP_COUNT = harness.BUILD / "tests" / "campaigns" / "heap-count.so"
# Heap bytes allowed for each connection, region and descriptor being closed; as a share of an unwritten chunk, which has a slot of 4 KiB or
# more; and beside everything that clients cause.
HEAP_OF = {"connections": 8 << 10, "stagings": 1 << 10, "regions": 1536, "descriptors_closing": 512, "pool_unwritten_bytes": 1 / 4}
# Memory that may be kept: libevent has a table of 8 bytes per descriptor number, which doubles when a connection's number exceeds it, and
# never shrinks. At the first measurement it has 256 places; while many descriptors are being closed (REGISTER), a connection gets a number
# from 512 to 1,023, and the table has 1,024 places, or 6,144 bytes more. The record of a tenant's lookup index has 1,976 bytes (LOOKUP),
# and a page of the report some hundreds.
HEAP_FACTOR, HEAP_SLACK, HEAP_KEPT = 1.125, 256 << 10, 8 << 10
# Pool and store keep 8 bytes per slot, and the sizes of slots depend on the chunks put and read.
SLOTS_KEPT = ((32 << 20) + (128 << 20)) // 4096 * 8
# A tenant keeps 16 range objects of chains for later ones.
STRETCHES_KEPT = 16 * (20 << 10)
MOVES_CHUNKS = ("PUT", "GET", "PREFETCH")
# Descriptors that other threads may have open during the flood without a metric: the memfd with which region_open() asks on which device
# memfds lie, for one REGISTER at a time; and a file of the store that its thread has created and the loop has not entered yet, for one
# segment at a time. The loop has none itself while it makes a report.
IN_THREADS = 2
# Bytes by which request_bytes may exceed a user's limit, for each session: a reply that the socket did not accept, or a deferred request.
ANYWAY = 65536
CPU_A_REQUEST, CPU_A_KEY, CPU_SLACK = 2e-3, 50e-6, 1.0
IDLE_SHARE = 0.2      # share of a CPU that idle sessions may use


def batch(op, ns, entries=(), pieces=b"", **how):
    """Returns the bytes of a batch message."""
    flags = how.pop("flags", 0) | (Flag.PIECES if pieces else 0)
    body = kvwire.BATCH.pack(ns, len(entries), len(how.get("releases", ())), how.get("timeout_ms", 0), how.get("ack", 0),
                             how.get("tiers", 0), len(pieces) // kvwire.PIECE.size, how.get("parent", kvwire.ROOT))
    return frame(op, body + b"".join(entries) + pieces + b"".join(kvwire.LEASE.pack(*r) for r in how.get("releases", ())),
                 flags)


def frame(op, body=b"", flags=0):
    return kvwire.HEADER.pack(kvwire.HEADER.size + len(body), op, flags, 7) + body


# Operations: (name, a function of (campaign, client, its namespace, rng) that yields the messages of a session, or pairs of a message and
# descriptors).
def pings(run, c, ns, rng):
    while True:
        yield frame(Op.PING, bytes(1024))


def opens(run, c, ns, rng):
    for i in range(1 << 30):
        text = kvwire.fingerprint(**{f"k{i:09}": "x" * rng.choice([0, 3000])})
        yield frame(Op.NAMESPACE, kvwire.NAMESPACE.pack(0, 6, len(text), 0) + b"common" + text)


def stagings(run, c, ns, rng):
    while True:
        yield frame(Op.STAGING, struct.pack("<Q", MIB))


def puts(ack, size=200, n=64, lease=False):
    def make(run, c, ns, rng):
        for i in range(1 << 30):
            keys = [key_of("put", id(c), ack, i, k) for k in range(n)]
            yield batch(Op.PUT, ns, [kvwire.PUT_ENTRY.pack(k, 0, size, 0, 0) for k in keys], ack=ack,
                        flags=Flag.LEASE if lease else 0, timeout_ms=600000)
    return make


def puts_of_what_is_there(run, c, ns, rng):
    while True:
        yield batch(Op.PUT, ns, [kvwire.PUT_ENTRY.pack(k, 0, 200, 0, 0) for k in run.keys], ack=Ack.DURABLE)


def puts_of_pieces(run, c, ns, rng):
    n = 4076
    pieces = kvwire.PIECE.pack(0, 256, 0) * n
    for i in range(1 << 30):
        yield batch(Op.PUT, ns, [kvwire.PUT_ENTRY.pack(key_of("pieces", id(c), i), 0, n * 256, n, 0)], pieces,
                    ack=rng.choice(list(Ack)), timeout_ms=600000)


def gets(run, c, ns, rng):
    while True:
        yield batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in run.keys])


def gets_into(run, c, ns, rng):
    while True:
        yield batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 4096, 0) for k in run.keys], flags=Flag.INTO)


def releases(run, c, ns, rng):
    while True:
        yield batch(Op.RELEASE, 0, releases=[(rng.getrandbits(32), 1)] * 1000)


def of_keys(op, n=1000, **how):
    def make(run, c, ns, rng):
        keys = [key_of("none", i) for i in range(n)] + run.keys[:24]
        while True:
            yield batch(op, ns, keys, **how)
    return make


def chains(run, c, ns, rng):
    parent, n = kvwire.ROOT, rng.choice([1, 30, 1000, 1000])
    for i in range(1 << 30):
        keys = [key_of("chain", id(c), i, k) for k in range(n)]
        yield batch(Op.TOUCH, ns, keys, flags=Flag.MORE, parent=parent)
        parent = keys[-1]


def lists(run, c, ns, rng):
    while True:
        yield frame(Op.LIST, kvwire.LIST.pack(ns, 1024, 0))


def namespaces(run, c, ns, rng):
    while True:
        yield frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 64, 0, 0, 0))


def removes(run, c, ns, rng):
    while True:
        yield frame(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(6, 0, 0, 0) + b"absent")


def purges(run, c, ns, rng):
    while True:
        yield frame(Op.PURGE, struct.pack("<II", run.empty(c), 0))


def reports(run, c, ns, rng):
    while True:
        yield frame(Op.REPORT, struct.pack("<II", rng.randrange(3), 0))


def lookups(run, c, ns, rng):
    while True:
        yield frame(Op.LOOKUP)


def a_stretch(rng):
    """Returns a range of memory to register: usually new, sometimes registered already."""
    return struct.pack("<QQ", 4096 * rng.randrange(LENT_PLACES), MIB)


def lends(run, c, ns, rng):
    while True:
        yield frame(Op.REGISTER, a_stretch(rng)), [run.memory_fd]


def takes_back(run, c, ns, rng):
    while True:
        yield frame(Op.REGISTER, a_stretch(rng)), [run.memory_fd]
        yield frame(Op.UNREGISTER, struct.pack("<II", 1, 0))


def puts_of_lent(run, c, ns, rng):
    """Puts small chunks, each from a page of its own and shorter than a block: none of their bytes is in the pool."""
    yield frame(Op.REGISTER, struct.pack("<QQ", 0, MIB)), [run.memory_fd]
    for i in range(1 << 30):
        yield batch(Op.PUT, ns, [kvwire.PUT_ENTRY.pack(key_of("lent", id(c), i, k), k << 12, 100, 1, 0) for k in range(64)],
                    ack=Ack.WRITTEN, timeout_ms=600000)


def gets_to_lent(run, c, ns, rng):
    yield frame(Op.REGISTER, struct.pack("<QQ", 0, MIB)), [run.memory_fd]
    while True:
        yield batch(Op.EVICT, ns, run.keys, tiers=1)
        yield batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, n << 12, 8192, 1) for n, k in enumerate(run.keys)],
                    flags=Flag.INTO, timeout_ms=600000)


def administers(run, c, ns, rng):
    while True:
        yield frame(Op.VERIFY, struct.pack("<IIIIQ", 0, 0, 0, 4096, MIB))
        yield frame(Op.DEVICE, struct.pack("<II", 0, 1))


OPERATIONS = {
    "PING": pings, "NAMESPACE": opens, "STAGING": stagings, "PUT accepted": puts(Ack.ACCEPTED), "PUT written": puts(Ack.WRITTEN),
    "PUT durable": puts(Ack.DURABLE), "PUT large": puts(Ack.WRITTEN, 1 << 18, 8), "PUT leased": puts(Ack.WRITTEN, lease=True),
    "PUT there": puts_of_what_is_there, "PUT pieces": puts_of_pieces, "GET": gets, "GET into": gets_into,
    "RELEASE": releases, "EXISTS": of_keys(Op.EXISTS), "MATCH": of_keys(Op.MATCH), "TOUCH": of_keys(Op.TOUCH),
    "chains": chains, "STAT": of_keys(Op.STAT), "EVICT": of_keys(Op.EVICT, 100, tiers=3), "PREFETCH": of_keys(Op.PREFETCH),
    "LIST": lists,
    "NAMESPACES": namespaces, "NAMESPACE_REMOVE": removes, "PURGE": purges, "REPORT": reports, "LOOKUP": lookups, "REGISTER": lends, "UNREGISTER": takes_back,
    "PUT lent": puts_of_lent, "GET to lent": gets_to_lent,
    "VERIFY, DEVICE": administers, "HELLO": None,
}
ENDINGS = ("read", "close", "shut down", "kill")


class Account:
    """The account in one REPORT. Two are equal if the daemon holds the same resources."""

    def __init__(self, stats, pid, heap):
        self.heap = heap  # 0: not counted
        self.used = dict(stats["kvcache_resource_used"], descriptors_closing=stats["kvcache_descriptors_closing"],
                         pool_unwritten_bytes=stats["kvcache_pool_unwritten_bytes"])
        self.largest_user, self.user_limit = stats["kvcache_resource_largest_user"], stats["kvcache_resource_user_limit"]
        self.requests = sum(stats["kvcache_requests_total"].values())
        self.results = sum(stats["kvcache_key_results_total"].values())
        self.fds = stats["kvcache_client_descriptors"]
        self.shared = {name: stats[f"kvcache_{name}"] for name in ("store_segments", "lookup_index_tables", "lookup_index_building")}
        open_fds = stats["kvcache_open_descriptors"]
        # If the kernel does not tell the daemon, count here, which is as good if nothing happens meanwhile.
        self.counted_by_loop = open_fds > 0
        open_fds = open_fds or len(os.listdir(f"/proc/{pid}/fd"))
        self.others = open_fds - sum(self.fds.values()) - sum(self.shared.values())

    def __eq__(self, other):
        return (self.used, self.fds, self.others) == (other.used, other.fds, other.others)

    def __str__(self):
        return f"charged {self.used}, for clients {self.fds}, shared {self.shared}, others {self.others:.0f}, heap {self.heap}"

    def heap_allowed(self):
        return self.used["request_bytes"] * HEAP_FACTOR + sum(self.used[name] * n for name, n in HEAP_OF.items())

    def differences(self, before):
        def of(a):
            return {**a.used, **{f"fds of {k}": n for k, n in a.fds.items()}, "other fds": a.others, "bytes of the heap": a.heap}
        was = of(before)
        return ", ".join(f"{what} {n:.0f}, not {was[what]:.0f}" for what, n in of(self).items() if n != was[what])

    def check_charges(self, what):
        """Checks descriptors against charged resources, and users against their limits."""
        used, fds = self.used, self.fds
        exact = {"connection": "connections", "staging": "stagings", "deferred_request": "deferred_fds", "closing": "descriptors_closing"}
        bounded = {"registration": "regions", "unsent_reply": "unread_fds"}
        if any(fds[kind] != used[name] for kind, name in exact.items()) or \
                any(fds[kind] > used[name] for kind, name in bounded.items()):
            raise Finding("wrong", f"{what}: what is open is not what is charged: {self}")
        for name, limit in self.user_limit.items():
            if isinstance(limit, (int, float)) and self.largest_user[name] > limit + ANYWAY * CROWD * (name == "request_bytes"):
                raise Finding("wrong", f"{what}: a user has {self.largest_user[name]:.0f} {name} of {limit:.0f}")


class Campaign(campaign_clientkill.Campaign):
    LIFE = len(OPERATIONS) * 4

    def __init__(self, directory, seed, facts):
        self.facts, self.number, self.monitor, self.children, self.memory = facts, 0, None, {}, None
        settings = {"memory.pool": "32MiB", "store.limit": "128MiB", "log.level": "error", "listen.mode": "0666",
                    "limits.handshake": "10min", **SETTINGS}
        # A sanitizer has its own allocator.
        env = {"LD_PRELOAD": str(HEAP_COUNT)} if HEAP_COUNT.exists() and slow() == 1 else {}
        # Makes the allocator return freed memory as soon as possible, so that only memory which the daemon keeps is counted.
        self.daemon = harness.Daemon(directory, campaign_clientkill.LEG, settings=known(settings),
                                     env={**env, "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "16384",
                                          "ASAN_OPTIONS": "exitcode=99:detect_leaks=1:quarantine_size_mb=1:"
                                                          "thread_local_quarantine_size_kb=64"})
        self.daemon.start()
        self.pairs = items("common", 64, 4096)
        self.keys = [k for k, _ in self.pairs]
        self.daemon.populated_status()
        self.monitor = self.daemon.client(name="monitor", timeout=60 * slow())
        self.fill()
        self.memory_fd = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.memory_fd, 0, MIB + 4096 * LENT_PLACES)
        fcntl.fcntl(self.memory_fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
        self.empties = {}
        self.checks = False
        for name in "STAT", "PUT written", "REPORT", "chains":  # allocates single and spare objects before measuring
            self.run_one(name, "read", random.Random(0))
        self.checks = True
        self.quiet()
        self.memory_before = self.own_memory()

    def fill(self):
        with self.daemon.client() as c:
            c.staging(MIB)
            harness.put_all(c, c.namespace("common"), self.pairs, ack=Ack.WRITTEN)

    # --- resources used, and resources charged ---

    def own_memory(self):
        with open(f"/proc/{self.daemon.pid}/status") as f:
            return int(dict(line.split(":", 1) for line in f)["RssAnon"].split()[0]) << 10

    def account(self):
        try:
            reply = self.monitor.call(Op.REPORT, struct.pack("<II", kvwire.Report.STATS, 0), n_fds=1)
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"the monitor: {e}") from None
        with open(reply.fds[0], "rb") as f:
            text = os.pread(f.fileno(), reply.value64, 0)
            name = os.readlink(f"/proc/self/fd/{f.fileno()}")
        return Account(json.loads(text), self.daemon.pid, int(re.search(r":kvcache-report(?::(\d+))?", name)[1] or 0))

    def wait_for_account(self, condition, wrong, timeout=20):
        """Returns the first account that fulfils the condition, which some values reach only after a while."""
        until = time.monotonic() + timeout * slow()
        while not condition(account := self.account()):
            if time.monotonic() > until:
                raise Finding("lost", wrong(account))
            time.sleep(0.005)
        return account

    def quiet(self):
        """Returns the account without the crowd, as soon as nothing changes."""
        last = self.account()
        for _ in range(400):
            time.sleep(0.02)
            now = self.account()
            if now == last:
                return now
            last = now
        raise Finding("hung", f"it never becomes quiet: {last}")

    def check(self, what, before):
        """Checks during the flood that charged resources cover used ones. `before`: (account, memory)."""
        if not self.checks:
            return
        account, memory = before
        first, spent, second = self.account(), self.own_memory() - memory, self.account()

        def most(name):
            return max(first.used[name], second.used[name]) - account.used[name]
        allowed = (most("request_bytes") * FACTOR + most("connections") * A_CONNECTION + SLACK) * (3 if slow() > 1 else 1)
        self.facts.add("most_kib_spent", spent >> 10)
        self.facts.add("most_kib_charged", int(most("request_bytes")) >> 10)
        if spent > allowed:
            raise Finding("wrong", f"{what}: {spent >> 10} KiB of memory more than before, {int(most('request_bytes')) >> 10} KiB "
                          f"are charged, and {most('connections'):.0f} connections")
        for now in first, second:
            allocated, allowed = now.heap - account.heap, now.heap_allowed() - account.heap_allowed() + HEAP_SLACK
            self.facts.add("most_percent_of_heap_allowed", 100 * allocated / allowed)
            if allocated > allowed:
                raise Finding("wrong", f"{what}: {allocated >> 10} KiB of the heap more than before, {int(allowed) >> 10} KiB are "
                              f"allowed: {now}")
            if now.counted_by_loop:
                self.facts.add("most_fds_in_threads", now.others - account.others)
                if now.others - account.others > IN_THREADS:
                    raise Finding("wrong", f"{what}: {now.others - account.others:.0f} descriptors more than before that no client "
                                  f"is charged for: {now}")
            now.check_charges(what)

    def check_paused(self, what, before):
        """Pauses the crowd in its present state, and checks that every descriptor is explained."""
        if self.checks:
            account = before[0]
            self.wait_for_account(lambda now: now.others == account.others,
                                  lambda now: f"{what}: {now.others - account.others:.0f} descriptors are not accounted for: {now}")
            self.facts.add("exact_counts")

    # --- the crowd ---

    def client(self, uid, **how):
        if os.geteuid() != 0:
            return self.daemon.client(**how)
        os.seteuid(uid)
        try:
            return self.daemon.client(**how)
        finally:
            os.seteuid(0)

    def raw(self):
        if os.geteuid() == 0:
            os.seteuid(EVIL)
        try:
            return self.daemon.raw()
        finally:
            if os.geteuid() != 0 and os.getuid() == 0:
                os.seteuid(0)

    def empty(self, c):
        return self.empties[id(c)]

    def gather(self, name):
        crowd = []
        for _ in range(CROWD):
            if name == "HELLO":
                s = self.raw()
                s.setblocking(False)
                crowd.append(s)
                continue
            c = self.client(EVIL, name="crowd", timeout=20 * slow())
            ns = c.namespace("common")
            self.empties[id(c)] = c.namespace("empty")
            if name not in ("STAGING",):
                with contextlib.suppress(kvwire.Refused):  # some sessions reach the limit
                    c.staging(MIB)
            crowd.append((c, ns))
        return crowd

    def pump(self, name, crowd, rng, checks):
        """Sends until the sockets accept no more, or VOLUME is reached. `checks` is called now and then."""
        hello = kvwire.HEADER.pack(64, Op.HELLO, 0, 1) + kvwire.HELLO.pack(kvwire.MAGIC, 1, 1, 0, b"crowd")
        if name == "HELLO":
            for s in crowd:
                with contextlib.suppress(OSError):
                    s.send(hello)
            checks()
            return
        sources = [[c.sock, OPERATIONS[name](self, c, ns, rng), 0, None] for c, ns in crowd]
        until = time.monotonic() + 1.5 * slow()
        checked = 0.0
        while sources and time.monotonic() < until:
            sent = 0
            for source in list(sources):
                message = source[3] or next(source[1])
                data, fds = message if isinstance(message, tuple) else (message, ())
                try:
                    if fds:
                        socket.send_fds(source[0], [data], fds)
                    else:
                        source[0].send(data)
                    source[2], source[3] = source[2] + 1, None
                    sent += 1
                except BlockingIOError:
                    source[3] = message
                except OSError:
                    sources.remove(source)
                    continue
                if source[2] >= VOLUME:
                    sources.remove(source)
            if time.monotonic() - checked > 0.2:  # the crowd is paused meanwhile
                checks()
                checked = time.monotonic()
            if not sent and sources:
                _, writable, _ = select.select([], [s[0] for s in sources], [], 0.05)
                if not writable and time.monotonic() > until - 1.2 * slow():
                    break
        checks()

    def another_is_served(self, what):
        if os.geteuid() != 0:
            return
        try:
            with self.client(GOOD, name="good", timeout=10 * slow()) as c:
                ns = c.namespace("good")
                c.staging(65536)
                c.report()
                key = key_of("good", self.number)
                result, = c.put(ns, [(key, b"good" * 100)], ack=Ack.WRITTEN, timeout_ms=int(8000 * slow()))
                if result.status not in (Status.OK, Status.EXISTS):
                    raise Finding("wrong", f"{what}: the put of another user is answered {result.status.name}")
                result, = c.get(ns, [key], timeout_ms=int(8000 * slow()))
                if result.status != Status.OK or result.data != b"good" * 100:
                    raise Finding("wrong", f"{what}: the get of another user is answered {result.status.name}")
                if not isinstance(c.register(self.memory_fd, 4096), int):
                    raise Finding("wrong", f"{what}: another user may not lend memory")
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"{what}: another user: {e}") from None
        except (kvwire.WireError, OSError) as e:
            raise Finding("wrong", f"{what}: another user: {type(e).__name__}: {e}") from None

    def end_crowd(self, crowd, ending):
        socks = [c if isinstance(c, socket.socket) else c[0].sock for c in crowd]
        if ending == "shut down":
            for s in socks:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_WR)
        while ending == "read":
            readable, _, _ = select.select(socks, [], [], 0.1)
            if not readable:
                break
            for s in readable:
                try:
                    data, fds, _, _ = socket.recv_fds(s, 65536, 8)
                except OSError:
                    data, fds = b"", []
                for fd in fds:
                    os.close(fd)
                if not data:
                    socks.remove(s)
        if ending == "shut down":  # sessions exist for a while, with unread data
            self.quiet()
        for c in crowd:
            c.close() if isinstance(c, socket.socket) else c[0].close()
        self.empties.clear()

    def state(self):
        """Returns (account, memory) before a crowd arrives."""
        return self.quiet(), self.own_memory()

    def run_one(self, name, ending, rng):
        what = f"{name}, then {ending}"
        before = self.state()
        cpu_before = self.daemon.cpu_seconds()

        def checks():
            self.check(what, before)
            self.check_paused(what, before)
        crowd = self.gather(name)
        try:
            self.pump(name, crowd, rng, checks)
            self.another_is_served(what)
            checks()
            now = self.account()
            spent, requests = self.daemon.cpu_seconds() - cpu_before, now.requests - before[0].requests
            results = now.results - before[0].results
            if spent > (requests * CPU_A_REQUEST + results * CPU_A_KEY + CPU_SLACK) * slow():
                raise Finding("wrong", f"{what}: {spent:.1f} s of CPU for {requests} requests and {results} keys")
            self.idle(what)
        finally:
            self.end_crowd(crowd, ending)
        return before

    def idle(self, what):
        """Checks that sessions which do not read cost no time."""
        for _ in range(40):
            cpu = self.daemon.cpu_seconds()
            time.sleep(0.2)
            if self.daemon.cpu_seconds() - cpu < 0.2 * IDLE_SHARE * slow() + 0.02:
                return
        raise Finding("hung", f"{what}: the daemon is busy although nothing is asked")

    def run(self, rng, left):
        names = list(OPERATIONS)
        name = names[self.number % len(names)]
        ending = ENDINGS[(self.number + self.number // len(names)) % len(ENDINGS)]
        self.facts.add(ending)
        before = self.run_killed(name, rng) if ending == "kill" else self.run_one(name, ending, rng)
        self.check_is_back(f"{name}, then {ending}", *before)
        if name.startswith("EVICT"):
            self.fill()
        return 1

    def check_is_back(self, what, account, memory):
        kept = HEAP_KEPT + SLOTS_KEPT * what.startswith(MOVES_CHUNKS) + STRETCHES_KEPT * what.startswith("chains")
        now = self.wait_for_account(lambda now: now == account and now.heap - account.heap <= kept,
                                    lambda now: f"{what}: it is not as before: {now.differences(account)}")
        self.facts.add("most_heap_kept_for_next" if kept > HEAP_KEPT else "most_heap_kept", now.heap - account.heap)
        if self.own_memory() - self.memory_before > (3 * SLACK) * (3 if slow() > 1 else 1):
            raise Finding("lost", f"{what}: {(self.own_memory() - self.memory_before) >> 10} KiB of memory do not come back")

    def run_killed(self, name, rng):
        """Runs the crowd in its own process, which is killed."""
        what, before = f"{name}, then kill", self.state()
        pid = os.fork()
        if pid == 0:
            try:
                self.monitor = None
                self.pump(name, self.gather(name), rng, lambda: None)
                while True:
                    time.sleep(60)
            finally:
                os._exit(0)
        try:
            until = time.monotonic() + rng.uniform(0.3, 1.5) * slow()
            while time.monotonic() < until:
                self.check(what, before)
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)
                self.check_paused(what, before)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.05)
            self.another_is_served(what)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return before

    def end(self):
        os.close(self.memory_fd)
        self.monitor.close()
        try:
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None


def known(settings):
    """Removes keys that this daemon does not know, so that an older daemon can be tested."""
    keys = subprocess.run([harness.DAEMON, "--help"], capture_output=True, text=True, check=True).stdout
    return {k: v for k, v in settings.items() if f"  {k}=" in keys}
