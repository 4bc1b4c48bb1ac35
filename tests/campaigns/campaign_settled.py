# SPDX-License-Identifier: Apache-2.0
"""settled: the daemon is killed amid gets into lanes, and client memory is watched afterwards (rule R17).

The store holds more than the pool, so the gets read the disk. The daemon is killed, or stopped and then killed, at any
moment. From when flock(LOCK_SH | LOCK_NB) on the liveness file succeeds, not one byte of client memory may change:

    lane, answered      holds what was answered, from its reply on
    lane, not answered  is the client's again: it is overwritten at once, as a client would reuse it, and must stay so
    lane, the rest      was never touched
    pool                is mapped by clients too and is what the disk's reads land in: it stays as it was at the lock

The store's own LOCK file promises the same to the next daemon (rule R3), so a part of the sessions waits for that one
instead. While the daemon lives, stopped or not, the lock must not be had. How often memory did change between the end of the
session and the lock is among the facts (`changed_after_the_end`): without such runs the campaign would prove little.
"""

import fcntl
import os
import signal
import time

import harness
import kvwire
from harness import MIB, items, slow
from kvwire import Ack, Flag, Op, Status
from oracle import Finding

LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
PATIENCE = 10
WATCH = 0.3  # seconds for which settled memory is looked at
POOL, LANE = 32 * MIB, 24 * MIB
REST, REUSED = b"\xa5" * MIB, b"\x5a" * MIB  # what the client itself writes to its lane


def fill(lane, what, at, length):
    for i in range(at, at + length, len(what)):
        lane[i:min(i + len(what), at + length)] = what[:at + length - i]


def is_free(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class Session:
    """One client with its lane, full of gets in flight."""

    def __init__(self, daemon, rng, chunks):
        self.rng, self.chunks = rng, chunks
        self.client = c = daemon.client(name="settled", timeout=PATIENCE * slow())
        self.ns = c.namespace("settled")
        c.lane(LANE)
        fill(c.lane_map, REST, 0, LANE)
        self.flight, self.done = {}, []  # tag -> places; places: (at, room, value)
        self.tag = self.at = 0

    def submit(self):
        """Gets for the whole lane: the daemon takes them as it likes."""
        while len(self.flight) < 60:
            places, entries = [], []
            for key, value in self.rng.sample(self.chunks, self.rng.randint(1, 6)):
                if self.at + len(value) > LANE:
                    break
                places.append((self.at, len(value), value))
                entries.append(kvwire.GET_ENTRY.pack(key, 0, 0, self.at, len(value), 0))
                self.at += len(value)
            if not entries:
                return
            self.tag += 1
            self.flight[self.tag] = places
            body = kvwire.BATCH.pack(self.ns, len(entries), 0, 60000, 0, 0, 0, kvwire.ROOT) + b"".join(entries)
            self.client.send(kvwire.HEADER.pack(16 + len(body), Op.GET, Flag.INTO, self.tag) + body)

    def take(self, most):
        """Takes answers, until there are enough or no more are to come; SessionEnded at the end."""
        while most > 0 and self.flight:
            try:
                reply = self.client.receive()
            except kvwire.ReplyTimeout:
                raise Finding("hung", "neither answers nor the end of the session") from None
            places = self.flight.pop(reply.tag)
            for place, result in zip(places, self.client.get_results(reply, len(places), places)):
                if result.status == Status.OK:
                    self.done.append(place)
                elif result.status != Status.BUSY:
                    raise Finding("lost" if result.status == Status.MISS else "wrong", f"a get into answered {result}")
            most -= 1

    def drain(self):
        """All that was answered, up to the end of the session."""
        for _ in range(2):  # the first end may be a reset, with answers behind it
            try:
                self.take(len(self.flight))
            except kvwire.SessionEnded:
                pass
        self.check_done("at the end")

    def check_done(self, when):
        for at, room, value in self.done:
            if self.client.lane_map[at:at + room] != value:
                raise Finding("wrong", f"{when}: an answered place of the lane, {room} bytes at {at}, does not hold its "
                              "chunk")

    def settle(self, lock):
        """Waits for the lock: of the liveness file, or of this file. (Seconds, did the pool change on the way?)"""
        self.waited_for = lock.name if lock else "liveness file"
        before, began = self.client.pool[:], time.monotonic()
        while not (is_free(lock) if lock else self.client.settled()):
            if time.monotonic() - began > PATIENCE * slow():
                raise Finding("hung", f"{self.waited_for}: still locked {PATIENCE} s after the daemon's death")
            time.sleep(0.0002)
        took = time.monotonic() - began
        self.pool, self.settled_at = self.client.pool[:], time.monotonic()
        self.reused = [(at, room) for places in self.flight.values() for at, room, _ in places]
        for at, room in self.reused:
            fill(self.client.lane_map, REUSED, at, room)
        return took, self.pool != before

    def look(self):
        """Is everything as it was when it was settled?"""
        lane = self.client.lane_map
        self.check_done("after it was settled")
        for at, room in self.reused:
            for i in range(at, at + room, len(REUSED)):
                end = min(i + len(REUSED), at + room)
                if lane[i:end] != REUSED[:end - i]:
                    raise Finding("wrong", f"the lane changed after it was settled: in {end - i} bytes at {i}")
        for i in range(self.at, LANE, len(REST)):
            end = min(i + len(REST), LANE)
            if lane[i:end] != REST[:end - i]:
                raise Finding("wrong", f"a place of the lane that no request named changed: in {end - i} bytes at {i}")
        if self.client.pool[:] != self.pool:
            now = self.client.pool[:]
            page = next(i for i in range(0, len(now), 4096) if now[i:i + 4096] != self.pool[i:i + 4096])
            raise Finding("wrong", f"the pool changed after it was settled ({self.waited_for}): at {page}")


class Campaign:
    LIFE = 500

    def __init__(self, directory, seed, facts):
        self.facts, self.number, self.sessions = facts, 0, []
        self.daemon = harness.Daemon(directory, LEG, settings={
            "memory.pool": POOL, "store.limit": "256MiB", "log.level": "error", "io.workers": 2,
            "limits.wait": "60s"}).start()
        self.chunks = items("settled", 96, MIB) + items("small", 400, 20000)
        with self.daemon.client(timeout=60 * slow()) as c:
            harness.put_all(c, c.namespace("settled", chunk_bytes=MIB), self.chunks, ack=Ack.WRITTEN, timeout_ms=60000)
        self.daemon.stop()

    def run(self, rng, left):
        self.daemon.settings["io.depth"] = rng.choice([32, 256, 1024])
        self.daemon.settings["io.backend"] = rng.choice(["auto", "auto", "auto", "posix"])
        try:
            self.daemon.start()
        except AssertionError as e:
            raise Finding("hung", f"the next daemon: {e}") from None
        if rng.random() < 0.5:
            self.daemon.populated_status()
        sessions = [Session(self.daemon, rng, self.chunks) for _ in range(rng.randint(1, 2))]
        self.sessions += sessions
        for s in sessions:
            s.submit()
        if rng.random() < 0.4:
            sessions[0].take(rng.randint(1, 5))
        time.sleep(rng.choice([0, rng.uniform(0, 0.01), rng.uniform(0, 0.06)]))
        stopped = rng.random() < 0.4
        if stopped:
            os.kill(self.daemon.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.daemon.pid, os.WSTOPPED)
            time.sleep(rng.choice([0, rng.uniform(0, 0.05)]))
            if any(s.client.settled() for s in sessions):
                raise Finding("wrong", "the liveness file could be locked while the daemon was only stopped")
        self.daemon.process.kill()
        for s in sessions:
            s.drain()
        answered = sum(len(s.done) for s in sessions)
        under_way = sum(len(places) for s in sessions for places in s.flight.values())
        for s in sessions:
            took, pool_changed = s.settle(self.daemon.store / "LOCK" if rng.random() < 0.3 else None)
            self.facts.add("most_seconds_until_settled", took)
            self.facts.add("changed_after_the_end", int(pool_changed))
            self.facts.add("sessions")
        self.facts.add("answered", answered)
        self.facts.add("not_answered", under_way)
        self.facts.add("stopped", int(stopped))
        self.reap()
        self.look(False)
        return 1

    def reap(self):
        process = self.daemon.process
        self.daemon._reap()
        if process.returncode != -signal.SIGKILL:
            raise Finding("wrong", f"the daemon ended by itself, with {process.returncode}:\n{self.daemon.log()[-3000:]}")
        try:
            self.daemon.check_log()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def look(self, all_of_them):
        """At those that have been settled for long enough: meanwhile other daemons come and go."""
        while self.sessions:
            s = self.sessions[0]
            left = s.settled_at + WATCH * slow() - time.monotonic()
            if left > 0:
                if not all_of_them:
                    return
                time.sleep(left)
            s.look()
            s.client.close()
            self.sessions.pop(0)

    def end(self):
        self.look(True)

    def stop(self):
        for s in self.sessions:
            s.client.close()
        if self.daemon.process is not None:
            self.daemon.process.kill()
            self.daemon.process.wait()
            self.daemon.process = None
