# SPDX-License-Identifier: Apache-2.0
"""flood: opens very many connections at once, some of them busy. Only quotas may refuse requests. A polite client must wait little longer
in the daemon than beside equally many busy processes that never connect. After all are killed, all resources must be free.

A run is a connection; one life opens as many as requested, at most MOST. One in sixteen, at most 256, is busy: its process repeatedly sends
a batch and reads the reply. The wait is the daemon's own measurement, from when a request could be read to its reply. The polite client
uses one operation beside the flood and another of equal cost beside the processes that do not connect, in alternating slices, so that the
daemon's histograms separate the two."""

import json
import os
import random
import resource
import signal
import socket
import time

import campaign_clientkill
import harness
import kvwire
from campaign_clientkill import COMMON
from harness import slow
from kvwire import Ack, Op, Status
from oracle import Finding

MOST = 4096
BUSY_MOST, PROCESSES_MOST = 256, 16
ALLOWED = 1.5
NOISE = 0.001  # seconds; smaller differences may be scheduling
FEW = 1000     # connections; with fewer, the shares of a p99 depend on the machine, and only NOISE and TEN times count


class Campaign(campaign_clientkill.Campaign):
    LIFE = 1

    def __init__(self, directory, seed, facts):
        self.facts, self.number, self.monitor, self.children, self.memory = facts, 0, None, {}, None
        self.directory, self.daemon = directory, None

    def start(self, connections):
        """Sets the quotas to refuse the last sixteenth of the connections."""
        self.allowed = connections - connections // 16
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard < 4 * connections:
            raise Finding("wrong", f"this machine allows {hard} descriptors, which is too few for {connections} connections")
        self.daemon = harness.Daemon(self.directory, campaign_clientkill.LEG, settings={
            "memory.pool": "32MiB", "store.limit": "96MiB", "log.level": "error",
            "limits.connections": self.allowed + 2, "limits.uid_connections": self.allowed + 2,
            "limits.handshake": "60s"}).start()
        with self.daemon.client() as c:
            harness.put_all(c, c.namespace("common"), COMMON, ack=Ack.WRITTEN)
        self.daemon.populated_status()
        self.give_cpu()
        self.monitor = self.daemon.client(name="monitor", timeout=60 * slow())
        self.polite = self.daemon.client(name="polite", timeout=60 * slow())
        self.ns = self.polite.namespace("common")
        harness.wait_until(lambda: self.holdings()["connections"] == 2, "the first clients have closed", 20)
        self.before = self.holdings()

    # --- the processes ---

    def flood(self, connections, busy, seed):
        """Runs a generator that opens its share of connections, reports how many were refused, and then continues forever."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        rng = random.Random(seed)
        clients, refused = [], 0
        for _ in range(connections):
            try:
                c = self.daemon.client(name="flood", timeout=120 * slow())
            except (kvwire.SessionEnded, ConnectionResetError, BrokenPipeError):
                refused += 1
                continue
            clients.append(c)
        self.tell_refused(refused)
        active = [(c, c.namespace("common")) for c in clients[:busy]]
        while True:
            yield
            tags = []
            for c, ns in active:
                keys = [k for k, _ in rng.sample(COMMON, 16)]
                tags.append(c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys]))
            for (c, ns), tag in zip(active, tags):
                reply = c.wait(tag, check=False)
                if reply.status not in (Status.OK, Status.BUSY, Status.QUOTA):
                    raise Finding("wrong", f"a busy client got {reply.status.name}")
                results = c.get_results(reply, 16) if reply.status == Status.OK else []
                for r in results:
                    if r.status not in (Status.OK, Status.BUSY, Status.QUOTA):
                        raise Finding("wrong", f"a busy client's key got {r.status.name}")
                if leases := [r.lease for r in results if r.leased]:
                    c.release(leases)

    def tell_refused(self, refused):
        with open(self.directory / f"refused-{os.getpid()}", "w") as f:
            f.write(str(refused))

    def busy(self, seed):
        """Does the same work as a busy process of the flood, without the daemon: messages through a socket, packed and unpacked."""
        rng = random.Random(seed)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while True:
            yield
            for _ in range(16):
                keys = [k for k, _ in rng.sample(COMMON, 16)]
                here.send(b"".join(kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys))
                list(kvwire.GET_ENTRY.iter_unpack(there.recv(65536)))

    def signal_all(self, pids, number):
        for pid in pids:
            os.kill(pid, number)

    # --- the polite client ---

    def slice(self, op, seconds):
        """Sends requests at intervals, as an engine does. Returns how many."""
        rng, n, until = random.Random(n := 0), 0, time.monotonic() + seconds
        while time.monotonic() < until:
            keys = [k for k, _ in rng.sample(COMMON, 4)]
            tag = self.polite.submit_batch(op, self.ns, keys)
            if self.polite.wait(tag).status != Status.OK:
                raise Finding("wrong", "the polite client was refused")
            n += 1
            time.sleep(0.0005)
        return n

    def wait_of(self, op):
        stats = json.loads(self.ask(kvwire.Report.STATS))
        return stats["kvcache_request_duration_seconds"][op.name]

    def run(self, rng, left):
        connections = min(left, MOST)
        self.start(connections)
        n_busy = max(1, min(BUSY_MOST, connections // 16))
        processes = min(PROCESSES_MOST, n_busy)
        share = [connections // processes + (i < connections % processes) for i in range(processes)]
        quiet = [self.fork(lambda: self.busy(i), forever=True) for i in range(processes)]
        for pid in quiet:
            self.wait_for(pid)
        self.signal_all(quiet, signal.SIGSTOP)

        loud = [self.fork(lambda: self.flood(share[i], n_busy // processes, i), forever=True) for i in range(processes)]
        for pid in loud:
            if self.says(pid, (60 + connections * 0.05) * slow()) != b"!":
                raise Finding("wrong", f"a process of the flood did not get its connections: {self.says(pid, 1)}")
        refused = sum(int(p.read_text()) for p in self.directory.glob("refused-*"))
        held = self.holdings()
        if held["connections"] != self.before["connections"] + connections - refused:
            raise Finding("wrong", f"{connections} were opened, {refused} refused, and {held} are held")
        if refused != connections // 16:
            raise Finding("wrong", f"{refused} of {connections} connections were refused; {self.allowed} are allowed")

        seconds = 0.3 if connections < FEW else 2.0
        for _ in range(4 if connections < FEW else 10):
            self.signal_all(loud, signal.SIGSTOP)
            self.signal_all(quiet, signal.SIGCONT)
            time.sleep(0.05)
            self.slice(Op.EXISTS, seconds)
            self.signal_all(quiet, signal.SIGSTOP)
            self.signal_all(loud, signal.SIGCONT)
            time.sleep(0.05)
            self.slice(Op.MATCH, seconds)
        beside, amid = self.wait_of(Op.EXISTS), self.wait_of(Op.MATCH)
        for pid in loud:
            if said := self.says(pid, 0):
                raise Finding("wrong", f"in the flood: {said.decode()}")
        metrics = harness.parse_metrics(self.ask(kvwire.Report.METRICS))
        if metrics['kvcache_sessions_refused_total{reason="limit"}'] != refused or any(
                metrics[f'kvcache_sessions_ended_total{{reason="{why}"}}'] for why in ("bad_frame", "timeout")):
            raise Finding("wrong", "other than quotas ended connections")

        began = time.monotonic()
        self.kill(loud + quiet)
        while (now := self.holdings()) != self.before:
            if time.monotonic() - began > 20 * slow():
                raise Finding("lost", f"long after all were killed: {now}, before {self.before}")
            time.sleep(0.01)
        self.facts.add("connections_open", connections - refused)
        self.facts.add("refused", refused)
        self.facts.add("busy", n_busy)
        self.facts.add("most_seconds_until_all_was_back", time.monotonic() - began)
        self.facts.add("most_p99_wait_us_beside", beside["p99"] * 1e6)
        self.facts.add("most_p99_wait_us_amid", amid["p99"] * 1e6)
        self.facts.add("polite_requests", beside["count"] + amid["count"])
        allowed = ALLOWED * beside["p99"] + NOISE * slow() if connections >= FEW else 10 * beside["p99"] + 20 * NOISE * slow()
        if amid["p99"] > allowed:
            raise Finding("hung", f"the polite client's p99 wait is {amid['p99'] * 1e6:.0f} us amid the flood, "
                          f"{beside['p99'] * 1e6:.0f} us beside processes that never connect")
        return connections

    def end(self):
        self.polite.close()
        self.monitor.close()
        try:
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def stop(self):
        if self.daemon is not None:
            super().stop()
        else:
            self.kill(list(self.children))
