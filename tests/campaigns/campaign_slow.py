# SPDX-License-Identifier: Apache-2.0
"""slow: clients that never read, send a trickle, or send nothing, on the socket and over HTTP. A good client's p99 may be at most ALLOWED
times the value without them; they must use bounded memory, and all of it must be free after they have closed.

A run is a slow client; they come in crowds. The good client's wait is the daemon's own measurement, with one operation while they are
connected and another of equal cost while they are not, so that the daemon's histograms separate the two."""

import json
import random
import resource
import socket
import time

import campaign_clientkill
import harness
import kvwire
from campaign_clientkill import COMMON
from harness import slow
from kvwire import Ack, Op, Status
from oracle import Finding

ALLOWED = 1.2
NOISE = 0.0005     # seconds; smaller differences may be scheduling
FEW = 200          # runs; with fewer, a p99 depends on the machine, and more is allowed
MEMORY_EACH = 256 << 10  # permitted cost of such a client: the pending replies of one session, and sockets
CROWD = 20


# --- slow clients; each function gets the daemon and returns what stays open ---

def never_reads(daemon, rng):
    c = daemon.client(name="never reads")
    ns = c.namespace("common")
    c.timeout = 0.02 * slow()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    keys = [k for k, _ in COMMON] * 20
    try:
        for _ in range(500):
            c.submit_batch(Op.STAT, ns, keys)
    except kvwire.ReplyTimeout:
        pass
    return c


def never_reads_descriptors(daemon, rng):
    c = daemon.client(name="never reads")
    c.timeout = 0.02 * slow()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        for _ in range(200):
            c.submit(Op.REPORT, bytes(8))
    except kvwire.ReplyTimeout:
        pass
    return c


def never_says_a_word(daemon, rng):
    return daemon.raw()


def reads_one_reply_now_and_then(daemon, rng):
    c = never_reads(daemon, rng)
    for _ in range(rng.randint(1, 5)):
        c.receive(20 * slow())
    return c


def http_of(daemon):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(daemon.http_socket)
    return s


def http_trickles(daemon, rng):
    s = http_of(daemon)
    s.sendall(b"GET /metrics HT"[:rng.randint(1, 15)])
    return s


def http_header_for_ever(daemon, rng):
    s = http_of(daemon)
    s.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X-Much: more\r\n" * rng.randint(1, 50))
    return s


def http_never_reads(daemon, rng):
    s = http_of(daemon)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.setblocking(False)
    try:
        for _ in range(100):
            s.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    except (BlockingIOError, ConnectionError):
        pass
    return s


KINDS = [never_reads, never_reads_descriptors, never_says_a_word, reads_one_reply_now_and_then, http_trickles,
         http_header_for_ever, http_never_reads]


class Campaign(campaign_clientkill.Campaign):
    LIFE = 1000

    def __init__(self, directory, seed, facts):
        self.facts, self.number, self.monitor, self.children, self.memory = facts, 0, None, {}, None
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.daemon = harness.Daemon(directory, campaign_clientkill.LEG, settings={
            "memory.pool": "32MiB", "store.limit": "96MiB", "log.level": "error", "limits.http": "10min",
            "limits.handshake": "10min"})
        self.daemon.settings["listen.http"] = f"unix:{self.daemon.http_socket}"
        self.daemon.start()
        with self.daemon.client() as c:
            harness.put_all(c, c.namespace("common"), COMMON, ack=Ack.WRITTEN)
        self.daemon.populated_status()
        self.give_cpu()
        self.monitor = self.daemon.client(name="monitor", timeout=60 * slow())
        self.good = self.daemon.client(name="good", timeout=60 * slow())
        self.ns = self.good.namespace("common")
        self.good.staging(1 << 20)
        self.done = 0
        with_reports = [never_reads_descriptors(self.daemon, random)]  # lets the daemon grow its own buffers before measuring
        with_reports.pop().close()
        self.before = self.at_rest(2)

    def memory_kib(self):
        """Returns the daemon's private memory; pool and staging areas, which it shares with clients, are not counted."""
        with open(f"/proc/{self.daemon.pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f)
        return int(fields["RssAnon"].split()[0])

    def slice(self, op, seconds):
        rng, until = random.Random(1), time.monotonic() + seconds
        while time.monotonic() < until:
            if self.good.wait(self.good.submit_batch(op, self.ns, [k for k, _ in rng.sample(COMMON, 4)])).status != Status.OK:
                raise Finding("wrong", "the good client was refused")
            key, value = rng.choice(COMMON)
            result, = self.good.get_into(self.ns, [key], 32768)
            if result.status != Status.OK or result.data != value:
                raise Finding("wrong", f"the good client got {result}")
            time.sleep(0.0005)

    def run(self, rng, left):
        crowd = min(left, CROWD)
        seconds = 0.25
        self.slice(Op.EXISTS, seconds)
        memory, held = self.memory_kib(), []
        try:
            for i in range(crowd):
                kind = KINDS[(self.done + i) % len(KINDS)]
                held.append(kind(self.daemon, rng))
                self.facts.add(kind.__name__)
            self.slice(Op.MATCH, seconds)
            more = self.memory_kib() - memory
            self.facts.add("most_kib_a_client", more // crowd)
            if more * 1024 > (crowd * MEMORY_EACH + (8 << 20)) * slow():
                raise Finding("wrong", f"{crowd} slow clients cost {more} KiB of memory")
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"the good client, or one that would have read: {e}") from None
        except (kvwire.WireError, OSError) as e:
            raise Finding("wrong", f"{type(e).__name__}: {e}") from e
        finally:
            for c in held:
                c.close()
        try:
            harness.wait_until(self.is_back,
                               lambda: f"{self.before} again; it is {self.holdings()}", 20)
        except AssertionError as e:
            raise Finding("lost", str(e)) from None
        self.done += crowd
        return crowd

    def end(self):
        stats = json.loads(self.ask(kvwire.Report.STATS))["kvcache_request_duration_seconds"]
        without, amid = stats["EXISTS"], stats["MATCH"]
        self.facts.add("most_p99_wait_us_without", without["p99"] * 1e6)
        self.facts.add("most_p99_wait_us_amid", amid["p99"] * 1e6)
        allowed = (ALLOWED if self.done >= FEW else 10) * without["p99"] + NOISE * slow() * (1 if self.done >= FEW else 20)
        if amid["p99"] > allowed:
            raise Finding("hung", f"the good client's p99 wait is {amid['p99'] * 1e6:.0f} us amid slow ones, "
                          f"{without['p99'] * 1e6:.0f} us without")
        self.good.close()
        self.monitor.close()
        try:
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None
