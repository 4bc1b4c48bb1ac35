# SPDX-License-Identifier: Apache-2.0
"""Transfers moves rows of vLLM's CPU tier to the daemon and back, for the tier (tier.py). Imports nothing of vLLM.

The rows are a registered buffer, which the daemon reads and writes directly. One lock guards the connection. The engine's thread submits jobs,
looks up keys and polls; it tries the lock and never waits for it (except in drain() and close()), and sends nothing while the daemon is not
`well`. A second thread, the mender, connects, and probes a daemon that hung or disappeared until it answers again.

poll() reports every job once. The engine uses a job's rows again after the report. So a job with keys that were lost or timed out is reported
only when no I/O of the daemon can reach its rows any longer (Region.settled()). If the daemon hangs, the report waits until the daemon
continues or is ended; systemd's watchdog ends the daemon after 30 s.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import LOST, PENDING, TIER_DISK, TIER_MEMORY, TIER_REMOTE, Batch, Client, Error, Namespace, status_ok
from ..engine import private
from .hints import USED, Piece
from .identity import group_of, parts_of

log = logging.getLogger("kvcache.vllm")

STALL_S = 3.0        # time without any answer, while jobs are in flight, after which the daemon counts as hung
LOOKUP_S = 0.05      # timeout of a lookup that the lookup index does not answer
MEND_S = 0.25        # pause of the mender before each probe, unless it is woken, and pause after each probe
SETTLE_S = 0.02      # interval between two checks whether the daemon can still reach rows
COMPLAIN_S = 10.0    # interval between log messages of drain() while it waits


class Report(NamedTuple):
    """A job that has ended. `good`: the keys whose chunks were moved. The bytes are those of a load, by the tier that served them; bytes of a
    store count as disk bytes. `seconds` and `least_s`: the longest and the shortest time that a load can have taken, counted from its submission,
    or from the end of the load before if this was later; 0 for a store, and for a load that was not timed because it failed."""

    job: int
    is_load: bool
    keys: list[bytes]
    good: list[bytes]
    memory_bytes: int
    disk_bytes: int
    remote_bytes: int
    seconds: float
    least_s: float


class _Job:
    """A job of vLLM: the load or the store of some rows."""

    def __init__(self, number: int, is_load: bool, keys: list[bytes], rows: list[int], cost_us: int) -> None:
        self.number, self.is_load, self.keys, self.rows = number, is_load, keys, rows
        self.cost_us = cost_us            # microseconds of computing one chunk again; 0 if unknown
        self.bad: set[int] = set()        # indices of keys whose chunks were not moved
        self.unsettled: set[int] = set()  # indices of bad keys whose rows the daemon may still reach
        self.requests = 0                 # number of requests that are not answered yet
        self.memory_bytes = self.disk_bytes = self.remote_bytes = 0
        self.started = time.monotonic()


class Transfers:
    """The transfers of one engine. `memory`: all rows, of `row_bytes` each. A row longer than `part_bytes` is stored in parts. `names`: by group,
    the name of its namespace. `fields`: the fingerprint. `fd`: a descriptor of the memory's file; None: the client searches for it. Keys are
    vLLM's: block hash and group."""

    def __init__(self, memory: Any, rows: int, row_bytes: int, part_bytes: int, names: dict[int, str], fields: dict[str, str], *,
                 socket: str | None, ack: str, timeout_s: float, fd: int | None = None) -> None:
        self.rows, self.row_bytes, self.part_bytes, self.ack = rows, row_bytes, part_bytes, ack
        self.parts = -(-row_bytes // part_bytes)
        self.last_bytes = row_bytes - (self.parts - 1) * part_bytes
        self.salt = b""  # bytes that are hashed into the keys of all chunks (identity.Resets); set only while no job is in flight
        self._lock = threading.Lock()
        self._declined: dict[int, int] = {}  # by group, number of declined keys that are still to be reported to the daemon
        self._client = Client(socket, "vllm", timeout=timeout_s, connect_timeout=0.2)
        self._fields = fields
        self._namespaces: dict[int, Namespace] = {
            group: self._client.namespace(name, fields, min(row_bytes, part_bytes)) for group, name in names.items()}
        self._region: Any = self._client.register(memory, fd, copy=True)  # _probe() reports memory that cannot be shared
        self._events = select.poll()
        self._events.register(self._client.fileno(), select.POLLIN)
        self._jobs: dict[int, _Job] = {}
        self._settling: deque[_Job] = deque()
        self._reports: deque[Report] = deque()
        self._heard = self._load_ended = self._looked_at = time.monotonic()
        self._settle_at = 0.0
        self.queued_bytes = 0  # bytes of loads that have not ended
        self.queued_from_disk = False  # whether queued_bytes are assumed to come from disk: the last ended load read most of its bytes there
        self._well = False
        self._closing = threading.Event()
        self._kick = threading.Event()
        self._complaint, self._complain_at = "", 0.0
        with self._lock:
            self._probe()
        self._mender = threading.Thread(target=self._mend, name="kvcache-mender", daemon=True)
        self._mender.start()

    # --- the health of the daemon ---

    @property
    def well(self) -> bool:
        return self._well

    @property
    def pending(self) -> int:
        return len(self._jobs) + len(self._settling) + len(self._reports)

    def _ail(self, why: str) -> None:
        self._well = False
        self._complain(why)
        self._kick.set()

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if why != self._complaint or now >= self._complain_at:
            log.warning("nothing is loaded or stored until the daemon works again: %s (see kvcachectl doctor)", why)
            self._complaint, self._complain_at = why, now + 60.0

    def _probe(self) -> None:
        """Tests whether the daemon works, by a get of a random key to the first row, which a miss does not change, and sets `_well`. The
        get also registers the rows with a restarted daemon, off the engine's thread. Then waits for the lookup index, for at most 20
        lookups. The caller holds the lock."""
        place = (self._region, [0], 1)
        try:
            if self._region.refused:  # by this daemon or by an earlier one
                self._region.retry()
            done = next(iter(self._namespaces.values())).get([os.urandom(32)], place, timeout=2.0)
            info = self._client.info()
            for _ in range(20):  # until the lookup index exists, which answers the engine's thread without a message
                if info is None or info.lookup_bytes or done.status[0] in (PENDING, LOST):
                    break
                next(iter(self._namespaces.values())).tiers([os.urandom(32)], timeout=LOOKUP_S)
                self._closing.wait(0.005)
                info = self._client.info()
        except Error as e:
            self._complain(str(e))
            return
        if not self._client.connected or info is None:
            self._complain(self._client.error or "no daemon")
        elif done.error:
            self._complain(f"a get, by which the adapter tests the daemon, failed: {done.reason}")
        elif done.status[0] in (PENDING, LOST):
            self._complain("the daemon does not answer")
        elif not self._region.registered:
            self._complain(f"the daemon does not map vLLM's memory of {len(self._region)} bytes, which count against limits.registered "
                           f"and limits.uid_registered: {self._region.reason}")
        elif info.max_chunk_bytes < min(self.row_bytes, self.part_bytes):
            self._complain(f"a chunk has {min(self.row_bytes, self.part_bytes)} bytes, but the daemon accepts at most {info.max_chunk_bytes}: "
                           "set part_bytes to a multiple of 4096 that is not larger, or block_size to fewer tokens")
        else:
            if self._complaint:
                log.warning("the daemon answers: chunks are loaded and stored again")
            self._complaint, self._heard = "", time.monotonic()
            self._well = True

    def _mend(self) -> None:
        """Probes the daemon at intervals while the daemon does not work, and sleeps otherwise. Runs on the mender's thread."""
        while not self._closing.is_set():
            self._kick.wait(None if self._well else MEND_S)
            self._kick.clear()
            if self._closing.is_set() or self._well:
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._reap()
                    self._probe()
            self._closing.wait(MEND_S)

    # --- lookups ---

    def where(self, keys: Sequence[bytes]) -> bytes | None:
        """Looks up keys of one group. Usually the lookup index answers, without a message; else the daemon, within LOOKUP_S. Returns one byte
        for each key: 0 if the chunk is not stored, else TIER_MEMORY, TIER_DISK or both. Returns None if the daemon does not work, the mender has
        the lock, `keys` is empty, or their group has no namespace."""
        if not self._well or not keys or not self._lock.acquire(blocking=False):
            return None
        try:
            namespace = self._namespaces.get(group_of(keys[0]))
            if namespace is None:
                return None
            if not self._client.inflight and self._events.poll(0):  # an event without a request in flight: the daemon may have ended
                namespace.submit_touch(parts_of(keys[0], 1, self.salt), tag=None, timeout=5.0)
                if not self._client.connected:
                    self._ail(self._client.error)
                    return None
            started = time.monotonic()
            found = namespace.tiers([p for k in keys for p in parts_of(k, self.parts, self.salt)], timeout=LOOKUP_S)
            if not self._client.connected:
                self._ail(self._client.error)
                return None
            if 0 in found and time.monotonic() - started >= LOOKUP_S:  # neither the lookup index nor the daemon has answered
                self._ail("the daemon does not answer a lookup")
                return None
        except Error as e:
            self._ail(str(e))
            return None
        finally:
            self._lock.release()
        if self.parts == 1:
            return found
        groups = [found[i:i + self.parts] for i in range(0, len(found), self.parts)]
        return bytes(0 if 0 in g else TIER_MEMORY if all(t & TIER_MEMORY for t in g) else TIER_DISK for g in groups)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Marks keys of one group as used in the daemon. Does nothing while the daemon does not work or the mender has the lock. poll()
        does not report the answer."""
        if not self._well or not keys or not self._lock.acquire(blocking=False):
            return
        try:
            namespace = self._namespaces.get(group_of(keys[0]))
            if namespace is not None:
                namespace.submit_touch([p for k in keys for p in parts_of(k, self.parts, self.salt)], tag=None, timeout=5.0)
        except Error as e:
            self._ail(str(e))
        finally:
            self._lock.release()

    def advise(self, piece: Piece) -> bool:
        """Sends advice (see Namespace.advise(); hints.USED marks the chunks as used). Returns False if the daemon does not work, the mender has
        the lock, or the message could not be sent. poll() does not report the answer."""
        if not self._well or not piece.keys or not self._lock.acquire(blocking=False):
            return False
        try:
            namespace = self._namespaces.get(piece.group)
            if namespace is not None:
                parts = [p for k in piece.keys for p in parts_of(k, self.parts, self.salt)]
                parent = parts_of(piece.parent, self.parts, self.salt)[-1] if piece.parent else None
                if piece.advice == USED:
                    namespace.submit_touch(parts, tag=None, timeout=5.0)
                else:
                    namespace.submit_advise(parts, piece.advice, piece.return_s, tag=None, timeout=5.0, parent=parent)
        except Error as e:
            self._ail(str(e))
        finally:
            self._lock.release()
        return self._well

    def decline(self, group: int, count: int) -> None:
        """Reports to the daemon how many stored chunks are not loaded, because computing them is faster. A count that cannot be reported now is
        added to the count of the group's next call."""
        self._declined[group] = self._declined.get(group, 0) + count * self.parts
        if not self._lock.acquire(blocking=False):
            return
        try:
            namespace = self._namespaces.get(group)
            if namespace is not None and namespace.count_declined(self._declined[group]):
                self._declined[group] = 0
        except Error as e:
            self._ail(str(e))
        finally:
            self._lock.release()

    # --- jobs ---

    def submit(self, number: int, is_load: bool, keys: Sequence[bytes], rows: Sequence[int], cost_us: int = 0) -> None:
        """Submits a job. Never raises and never waits: poll() reports a job that could not be submitted as failed. `cost_us`: for a store, the
        microseconds of computing one of the chunks again; 0 if unknown."""
        job = _Job(number, is_load, list(keys), [int(r) for r in rows], cost_us)
        if not self._well or not self._lock.acquire(blocking=False):
            self._fail(job)
            return
        try:
            self._submit(job)
        except Exception as e:
            self._ail(str(e) or repr(e))
            job.bad.update(range(len(job.keys)))
            if job.requests == 0:
                self._fail(job)
        finally:
            self._lock.release()

    def _submit(self, job: _Job) -> None:
        """Sends the requests of a job, one for each group and part. Raises if a request cannot be sent; the job then ends with the answers to the
        requests that were sent before."""
        if len(job.keys) != len(job.rows) or any(not 0 <= r < self.rows for r in job.rows):
            raise IndexError(f"job {job.number}: {len(job.keys)} keys need as many rows below {self.rows}, not {len(job.rows)} rows {job.rows[:4]}...")
        groups: dict[int, list[int]] = {}
        for i, key in enumerate(job.keys):
            groups.setdefault(group_of(key), []).append(i)
        for group, indices in groups.items():
            for part in range(self.parts):
                length = self.last_bytes if part == self.parts - 1 else self.part_bytes
                if group not in self._namespaces:
                    job.bad.update(indices)
                    continue
                names = [parts_of(job.keys[i], self.parts, self.salt)[part] for i in indices]
                places = (self._region, [job.rows[i] * self.row_bytes + part * self.part_bytes for i in indices], length)
                tag = (job, indices, length)
                if job.is_load:
                    self._namespaces[group].submit_get(names, places, tag=tag)
                else:
                    costs = [job.cost_us * length // self.row_bytes] * len(names)
                    self._namespaces[group].submit_put(Batch(names, places, costs), None, self.ack, tag=tag,
                                                             wait=self.ack != "accepted")
                if job.requests == 0:
                    self._jobs[job.number] = job
                    self.queued_bytes += len(job.keys) * self.row_bytes if job.is_load else 0
                job.requests += 1
        if job.requests == 0:
            self._fail(job)

    def _fail(self, job: _Job) -> None:
        self._reports.append(Report(job.number, job.is_load, job.keys, [], 0, 0, 0, 0.0, 0.0))

    def _reap(self) -> None:
        """Evaluates the answers that have arrived, and detects a daemon that hangs or has ended. The caller holds the lock."""
        try:
            finished = self._client.reap()
        except Error as e:
            self._ail(str(e))
            return
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        for done in finished:
            if done.tag is None:
                if self._well and PENDING in done.status:
                    self._ail("the daemon has not answered within the timeout")
                continue
            job, indices, length = done.tag
            heard = False
            for at, (i, status) in enumerate(zip(indices, done.status)):
                if status in (PENDING, LOST):
                    job.unsettled.add(i)
                else:
                    heard = True
                if not status_ok(status) or (job.is_load and done.lengths[at] != length):
                    job.bad.add(i)
                elif job.is_load and done.tiers[at] & TIER_MEMORY:
                    job.memory_bytes += length
                elif job.is_load and done.tiers[at] & TIER_REMOTE:
                    job.remote_bytes += length
                else:
                    job.disk_bytes += length
            if heard:
                self._heard = now
            elif self._well and PENDING in done.status:
                self._ail("the daemon has not answered within the timeout")
            job.requests -= 1
            if job.requests == 0:
                del self._jobs[job.number]
                self._ended(job, now, before)
        if self._jobs and self._well:
            oldest = next(iter(self._jobs.values())).started
            if now - max(oldest, self._heard) > STALL_S:
                self._ail(f"the daemon has not answered for {STALL_S:.0f} s")
        if not self._client.connected and self._well:
            self._ail(self._client.error)
        if self._settling and now >= self._settle_at:
            self._settle_at = now + SETTLE_S
            for job in [j for j in self._settling if self._is_settled(j)]:
                self._settling.remove(job)
                self._report(job, 0.0, 0.0)

    def _ended(self, job: _Job, now: float, before: float) -> None:
        """Reports a job whose requests are all answered, or keeps it until the daemon cannot reach its rows. `before`: a time at which the job had
        not ended yet. The engine polls once in a step, which may be long after the bytes were moved."""
        seconds = least_s = 0.0
        if job.is_load:
            self.queued_bytes -= len(job.keys) * self.row_bytes
            self.queued_from_disk = job.disk_bytes > job.memory_bytes
            began = max(job.started, self._load_ended)
            seconds, least_s = now - began, max(0.0, before - began)
            self._load_ended = now
        if job.unsettled and not self._is_settled(job):
            self._settling.append(job)
        else:
            self._report(job, seconds, least_s)

    def _is_settled(self, job: _Job) -> bool:
        job.unsettled = {i for i in job.unsettled if not self._region.settled(job.rows[i] * self.row_bytes, self.row_bytes)}
        return not job.unsettled

    def _report(self, job: _Job, seconds: float, least_s: float) -> None:
        good = [k for i, k in enumerate(job.keys) if i not in job.bad]
        self._reports.append(Report(job.number, job.is_load, job.keys, good, job.memory_bytes, job.disk_bytes, job.remote_bytes, seconds,
                                    least_s))

    def poll(self) -> list[Report]:
        """Returns the jobs that have ended since the last call."""
        if (self._client.inflight or self._settling) and self._lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self._lock.release()
        reports = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    def drain(self, most_s: float | None = None) -> bool:
        """Waits until all jobs have ended and the daemon cannot reach their rows. Returns False if `most_s` seconds pass before, else True; None: no
        limit. poll() returns the reports."""
        started = time.monotonic()
        complain_at = started + COMPLAIN_S
        while self._jobs or self._settling:
            now = time.monotonic()
            if most_s is not None and now - started > most_s:
                return False
            if now > complain_at:
                log.warning("the engine waits for the daemon, which has not completed %d jobs for %.0f s (see kvcachectl doctor)", self.pending,
                            now - started)
                complain_at = now + COMPLAIN_S
            with self._lock:
                self._reap()
            self._closing.wait(0.001)
        return True

    def close(self) -> None:
        """Waits for the jobs in flight for at most 2 s, and closes the connection. vLLM unmaps the rows afterwards. The daemon completes remaining
        transfers in its own mapping of the memory's file."""
        if self._region is None:
            return
        self.drain(2.0)
        self._closing.set()
        self._kick.set()
        self._mender.join(5.0)
        with self._lock:
            if self._well:
                private.remove(self._namespaces.values(), self._fields)
            self._well = False
            self._client.close()
            self._jobs.clear()
            self._settling.clear()
            self._region = None  # vLLM releases the memory's view next, and no object may use the view then
