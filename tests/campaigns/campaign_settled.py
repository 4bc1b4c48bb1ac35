# SPDX-License-Identifier: Apache-2.0
"""settled: kills the daemon during gets into staging areas and registered buffers, and watches client memory afterwards (rule R17).

The store is larger than the pool, so the gets read the disk. The daemon is killed, or stopped and then killed, at any moment. Once
flock(LOCK_SH | LOCK_NB) on the liveness file succeeds, no byte of client memory may change:

answered      has the bytes of the answer, from its reply on
not answered  belongs to the client again: it is overwritten at once, as a client would reuse it, and must stay so
the rest      of staging area and region was never touched
pool          is mapped by clients and receives the disk's reads: it must stay as it was at the lock

Reads from disk go directly to a registered buffer if the places are whole pages, as most of them are here.

The store's own LOCK file gives the same guarantee to the next daemon (rule R3), so some of the sessions wait for that one instead. While
the daemon lives, stopped or not, the lock must not be available. The facts count how often memory changed between the end of the session
and the lock (`changed_after_the_end` for the pool, `lent_changed_after_the_end` for registered memory): without such runs the campaign
would prove little."""

import contextlib
import fcntl
import mmap
import os
import signal
import time

import harness
import kvwire
from harness import MIB, items, slow
from kvwire import Ack, Status
from oracle import Finding

LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
TIMEOUT_S = 10
WATCH = 0.3  # seconds for which settled memory is watched
POOL, STAGING = 32 * MIB, 24 * MIB
REST, REUSED = b"\xa5" * MIB, b"\x5a" * MIB  # bytes that the client itself writes to its memory


class Memory:
    """A staging area or a registered buffer, filled by gets from its start to its end."""

    def __init__(self, name, number, mapping, size):
        self.name, self.number, self.map, self.size = name, number, mapping, size
        self.at = 0
        self.taken = []  # (at, length), ascending
        self.fill(REST, 0, size)

    def fill(self, what, at, length):
        for i in range(at, at + length, len(what)):
            self.map[i:min(i + len(what), at + length)] = what[:at + length - i]

    def differs(self, what, at, end):
        """Returns the first range from `at` to `end` that does not hold this pattern, or None."""
        for i in range(at, end, len(what)):
            stop = min(i + len(what), end)
            if self.map[i:stop] != what[:stop - i]:
                return i
        return None

    def take(self, length, whole_pages):
        """Returns a place, or None if there is no room left."""
        at = (self.at + 4095) & ~4095 if whole_pages else self.at
        if at + length > self.size:
            return None
        self.at = at + length
        self.taken.append((at, length))
        return at

    def gaps(self):
        end = 0
        for at, length in self.taken:
            yield end, at
            end = at + length
        yield end, self.size


def lend(client, rng, size):
    """Registers a buffer: a sealed memfd, or a file in /dev/shm whose name has been removed."""
    if rng.random() < 0.7:
        fd = os.memfd_create("settled", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
        memory = Memory("region", 0, mmap.mmap(fd, size), size)
        memory.number = client.register(fd, size)
        return memory
    finally:
        os.close(fd)


def is_free(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class Session:
    """One client with its memory, filled with gets in flight."""

    def __init__(self, daemon, rng, chunks):
        self.rng, self.chunks = rng, chunks
        self.client = c = daemon.client(name="settled", timeout=TIMEOUT_S * slow())
        self.ns = c.namespace("settled")
        how = rng.choice(["staging", "region", "region", "both"])
        share = STAGING // 2 if how == "both" else STAGING
        self.memories = []
        if how != "region":
            c.staging(share)
            self.memories.append(Memory("staging", 0, c.staging_map, share))
        if how != "staging":
            self.memories.append(lend(c, rng, share))
        self.flight, self.done = {}, []  # tag -> keys; a key: (its value, [(memory, at, length)])
        self.tag = 0

    def places(self, length, pieces):
        """Returns room for `length` bytes, in one place or several pieces, or None if there is none left."""
        memory = self.rng.choice(self.memories)
        whole = memory.number != 0 and self.rng.random() < 0.8
        cuts = sorted(self.rng.sample(range(1, length), pieces - 1))
        found = []
        for start, end in zip([0] + cuts, cuts + [length]):
            at = memory.take(end - start, whole)
            if at is None:
                return None
            found.append((memory, at, end - start))
        return found

    def submit(self):
        """Sends gets for all of the memory; the daemon serves them in any order."""
        while len(self.flight) < 60:
            keys, items, in_pieces = [], [], self.rng.random() < 0.15
            for key, value in self.rng.sample(self.chunks, self.rng.randint(1, 6)):
                places = self.places(len(value), self.rng.randint(2, 9) if in_pieces else 1)
                if places is None:
                    break
                keys.append((value, places))
                wire = [(at, length, memory.number) for memory, at, length in places]
                items.append((key, wire if in_pieces else wire[0]))
            if not keys:
                return
            tag = self.client.submit_get_to(self.ns, items, timeout_ms=60000)
            self.flight[tag] = keys

    def close(self):
        self.client.close()
        for memory in self.memories:
            memory.map.close()

    def take(self, most):
        """Takes answers, up to a number or until there are no more; raises SessionEnded at the end."""
        while most > 0 and self.flight:
            try:
                reply = self.client.receive()
            except kvwire.ReplyTimeout:
                raise Finding("hung", "neither answers nor the end of the session") from None
            keys = self.flight.pop(reply.tag)
            for key, result in zip(keys, self.client.get_results(reply, len(keys), [0] * len(keys))):
                if result.status == Status.OK:
                    self.done.append(key)
                elif result.status != Status.BUSY:
                    raise Finding("lost" if result.status == Status.MISS else "wrong", f"a get into answered {result}")
            most -= 1

    def drain(self):
        """Takes all answers up to the end of the session, and copies the memory at once, because I/O may continue."""
        for _ in range(2):  # the first end may be a reset, with answers after it
            try:
                self.take(len(self.flight))
            except kvwire.SessionEnded:
                pass
        self.lent_at_end = [(m, m.map[:]) for m in self.memories if m.number]
        self.pool_at_end = self.client.pool[:]

    def check_done(self, when):
        for value, places in self.done:
            start = 0
            for memory, at, length in places:
                if memory.map[at:at + length] != value[start:start + length]:
                    raise Finding("wrong", f"{when}: an answered place of the {memory.name}, {length} bytes at {at}, does "
                                  "not hold its chunk")
                start += length

    def settle(self, lock):
        """Waits for the lock of the liveness file, or of `lock`. Returns (seconds, whether pool and registered memory changed meanwhile)."""
        self.waited_for = lock.name if lock else "liveness file"
        began = time.monotonic()
        while not (is_free(lock) if lock else self.client.settled()):
            if time.monotonic() - began > TIMEOUT_S * slow():
                raise Finding("hung", f"{self.waited_for}: still locked {TIMEOUT_S} s after the daemon's death")
            time.sleep(0.0002)
        took = time.monotonic() - began
        self.pool, self.settled_at = self.client.pool[:], time.monotonic()
        changed = self.pool != self.pool_at_end, any(m.map[:] != before for m, before in self.lent_at_end)
        self.pool_at_end = self.lent_at_end = None
        self.reused = [place for keys in self.flight.values() for _, places in keys for place in places]
        for memory, at, length in self.reused:
            memory.fill(REUSED, at, length)
        return took, *changed

    def look(self):
        """Checks that memory is unchanged since it was settled."""
        self.check_done("after it was settled")
        for memory, at, length in self.reused:
            where = memory.differs(REUSED, at, at + length)
            if where is not None:
                raise Finding("wrong", f"the {memory.name} changed after it was settled: at {where}")
        for memory in self.memories:
            for at, end in memory.gaps():
                where = memory.differs(REST, at, end)
                if where is not None:
                    raise Finding("wrong", f"a place of the {memory.name} that no request named changed: at {where}")
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
        for s in sessions:
            s.check_done("at the end")
        answered = sum(len(s.done) for s in sessions)
        under_way = sum(len(keys) for s in sessions for keys in s.flight.values())
        for s in sessions:
            took, pool_changed, lent_changed = s.settle(self.daemon.store / "LOCK" if rng.random() < 0.3 else None)
            self.facts.add("most_seconds_until_settled", took)
            self.facts.add("changed_after_the_end", int(pool_changed))
            self.facts.add("lent_changed_after_the_end", int(lent_changed))
            self.facts.add("sessions")
            self.facts.add("sessions_with_regions", int(any(m.number for m in s.memories)))
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
        """Checks sessions that have been settled for long enough; other daemons have run meanwhile."""
        while self.sessions:
            s = self.sessions[0]
            left = s.settled_at + WATCH * slow() - time.monotonic()
            if left > 0:
                if not all_of_them:
                    return
                time.sleep(left)
            s.look()
            s.close()
            self.sessions.pop(0)

    def end(self):
        self.look(True)

    def stop(self):
        for s in self.sessions:
            s.close()
        self.daemon.discard()
