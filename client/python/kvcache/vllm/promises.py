# SPDX-License-Identifier: Apache-2.0
"""Leases on the chunks that the spec's manager (manager.py) may answer as hits. Imports nothing of vLLM.

vLLM cannot replace a hit: if its load were left out, the engine would compute with wrong KV. So a chunk is a hit only once it is leased.
Promises has the connection to the daemon, and is called on the engine's thread only. A request first wants a chunk (want()). Its lease is
requested at the end of the step (flush()), or at once if all wanted chunks are in memory (ask(), which waits for the answer for at most
GRACE_S). Until the daemon has answered, the chunk's state is None; if it is on disk, the daemon meanwhile reads it to memory. Then the request
holds the chunk, or the chunk was refused. A daemon that does not answer within the timeout counts as ill: no chunk is found until it answers
again, or until it is tried again after HUNG_S.

A chunk of an engine of several GPUs has shards in separate namespaces (shards.py). The chunk is stored if all its shards are, and in memory if
all its shards are. Either all shards are leased, or the chunk is refused. All chunks that a request holds lie in one pool.

The daemon refuses a lease if other leases use all the room (limits.leased_bytes). Loading the chunk a few steps later costs less than
computing it, so the lease is requested again when another request's lease has ended. A request waits for room for at most ROOM_S, and not
at all if only requests that wait for room themselves have leases.

A lease ends with the last reference to it (Held.leased), which a request or a load under way has (LoadsUnderWay).
"""

from __future__ import annotations

import functools
import logging
import operator
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import BUSY, LOST, PENDING, QUOTA, TIER_DISK, TIER_MEMORY, Client, Error, Keys, Leased, Namespace, status_ok
from ..engine import private
from .hints import USED, Piece
from .identity import by_group, group_of, names_of
from .shards import Shard

log = logging.getLogger("kvcache.vllm")

LOOKUP_S = 0.05  # timeout of a lookup that the lookup index does not answer
OPEN_S = 0.25    # timeout of opening a namespace
REST_S = 0.5     # first pause of lookups after an unanswered lookup; each further pause is twice as long, up to LONGEST_REST_S
LONGEST_REST_S = 8.0
HUNG_S = 5.0     # pause of lookups after the daemon did not answer a request for leases within the timeout
GRACE_S = 0.002  # longest time that ask() waits for leases on chunks in memory
NO_GRACE_S = 1.0 # time for which ask() does not wait after leases came later than GRACE_S
ROOM_S = 0.2     # longest time for which a request waits until leases of other requests end
PROBE_S = 0.4    # time without any answer, after a request for leases, before a probe is sent
SILENT_S = 1.2   # time without any answer, after a probe, before the daemon counts as hung
PROBE = "probe"    # tag of a probe's request
ADVICE = "advice"  # tag of a request with advice
ADVICE_S = 1.0   # timeout of a request with advice
NO_ADVICE_S = 5.0 # time for which no advice is sent after a request with advice failed or was not answered


class Held(NamedTuple):
    """A leased chunk, which stays in the daemon's memory as long as the objects `leased` live. `tiers`: the tiers that had the chunk
    before the lease. `leased` and `offsets` have one element for each shard. Offsets are in bytes, in the pool with the id `pool`."""

    tiers: int
    leased: tuple[Leased, ...]
    pool: int
    offsets: tuple[int, ...]


class Read(NamedTuple):
    """A read of a group's chunks from disk to memory, which took between `least_s` and `most_s` seconds."""

    group: int
    nbytes: int
    least_s: float
    most_s: float


class _Answer(NamedTuple):
    """The daemon's answer for one shard of the chunks that were requested together. `status`, `tiers` and `lengths` have one element for each key.
    `leased`: the leases on the chunks, or None."""

    status: bytes
    tiers: bytes
    lengths: Sequence[int]
    leased: Leased | None


class _Asked:
    """Keys of one group whose leases are requested together, at the time.monotonic() `at`. `answers`: one for each shard, None until the answer
    arrives. `disk_bytes`: bytes of the chunks that are on disk only. `before`: bytes of earlier requests that the daemon was reading from disk
    when these leases were requested."""

    def __init__(self, request: str, asker: _Request, keys: tuple[bytes, ...], at: float, disk_bytes: int, before: int, shards: int) -> None:
        self.request, self.asker, self.keys, self.at = request, asker, keys, at
        self.disk_bytes, self.before = disk_bytes, before
        self.answers: list[_Answer | None] = [None] * shards


class _Request:
    """A request of vLLM, with the chunks that it wants, has requested, and holds."""

    def __init__(self) -> None:
        self.wanted: dict[bytes, bool] = {}  # by key of a chunk whose lease is to be requested, whether the chunk is on disk only
        self.asked: dict[bytes, float] = {}  # by key of a chunk whose lease is requested, the time.monotonic() of the request
        self.held: dict[bytes, Held | None] = {}  # by key, the leased chunk, or None if the lease was refused
        self.pool = 0  # id of the pool of the held chunks; 0 if no chunk is held
        self.roomless: tuple[bytes, ...] = ()  # keys of chunks whose leases were refused for lack of room, and which wait for another lease to end
        self.roomless_at = 0.0  # time.monotonic() at which chunks first waited for room; 0: never
        self.others: weakref.WeakSet[Leased] = weakref.WeakSet()  # leases of other requests that used the room when the wait began
        self.others_then = 0  # number of these leases when the wait began


class _Load:
    """A load under way, with the leased chunks that it copies."""

    def __init__(self, request: str, held: list[Held], nbytes: int) -> None:
        self.request, self.held, self.nbytes = request, held, nbytes
        self.is_orphan = False  # vLLM has reset its cache since the load began, and does not report the load's end


class LoadsUnderWay:
    """The leases of loads, from the preparation of a load until all ranks have completed it. vLLM reports the completion, except for loads
    that were under way when vLLM reset its cache. sweep() finds the end of these loads from the ranks' reports in the engine's page."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self.next_number = 0

    def __bool__(self) -> bool:
        return bool(self._loads)

    @property
    def nbytes(self) -> int:
        return sum(load.nbytes for load in self._loads.values())

    def begin(self, request: str, held: list[Held], nbytes: int) -> int:
        """Keeps the leases of a new load. Returns the number of the load."""
        number = self.next_number
        self.next_number += 1
        self._loads[number] = _Load(request, held, nbytes)
        return number

    def complete(self, request: str) -> None:
        """Drops the leases of a request's load, which vLLM has reported as completed in all ranks. A request has one load at a time."""
        number = next((n for n, load in self._loads.items() if load.request == request and not load.is_orphan), None)
        if number is not None:
            del self._loads[number]

    def reset(self) -> None:
        """Notes that vLLM has reset its cache, and does not report the end of the loads under way."""
        for load in self._loads.values():
            load.is_orphan = True

    def sweep(self, ended_below: Callable[[int], int]) -> None:
        """Drops the leases of loads whose end vLLM does not report and that all ranks have ended. `ended_below`: given the number of the next
        load, returns a number below which all loads have ended in all ranks."""
        if any(load.is_orphan for load in self._loads.values()):
            end = ended_below(self.next_number)
            self._loads = {n: load for n, load in self._loads.items() if n >= end or not load.is_orphan}


class Promises:
    """The leases of all requests of an engine. `shards`: by group, the shards of its chunks. `serves`: returns whether all ranks can load from
    a pool; a lease in another pool counts as refused."""

    def __init__(self, shards: Mapping[int, Sequence[Shard]], *, socket: str | None, timeout_s: float, serves: Callable[[int], bool]) -> None:
        self._shards = {g: list(of_group) for g, of_group in shards.items()}
        self._chunk_bytes, self._timeout_s = {g: sum(s.chunk_bytes for s in of_group) for g, of_group in shards.items()}, timeout_s
        self._client = Client(socket, "vllm", timeout=min(timeout_s, OPEN_S), connect_timeout=0.2)
        self._namespaces: dict[int, list[Namespace]] = {}  # by group, the namespaces of its shards; empty if one of them cannot be opened
        self._open_at, self._open_pause_s = 0.0, REST_S  # time.monotonic() of the next attempt to open the namespaces, and the pause after it
        self._complaint = ""  # why the namespaces could not be opened last; empty if they are open
        self._open()
        self._requests: dict[str, _Request] = {}
        self._serves = serves
        self._leases: dict[int, weakref.WeakSet[Leased]] = {}  # by pool, the leases in it that have not ended
        self.salt = b""  # bytes that are hashed into the keys of all chunks (identity.Resets); empty: none
        self._ill = False
        self._rest_until, self._rest_s = 0.0, REST_S
        self._no_grace_until = 0.0
        self._reaped = False  # answers were reaped in this step
        self._looked_at = 0.0  # time.monotonic() at which answers were last reaped
        self._heard_at = self._probed_at = 0.0  # time.monotonic() of the last answer, and of the probe in flight; 0: none
        self._advising, self._no_advice_until = 0, 0.0  # requests with advice in flight; time.monotonic() until which no advice is sent
        self.asked_bytes = self.asked_disk_bytes = 0  # bytes of the chunks whose requested leases are not answered; of these, bytes on disk only
        self.partial_hits = 0  # chunks of which some shards, but not all, were found; the manager resets the number
        self.lease_waits = 0  # chunks that waited for room; the manager resets the number
        self.reads: list[Read] = []  # completed reads from disk, which the manager reports to the load policy and then removes

    def _open(self) -> None:
        """Opens the namespaces. After a failure no chunk is found, and flush() makes the next attempt: after REST_S at first, and then after
        twice as long each time, up to LONGEST_REST_S."""
        name = ""
        try:
            opened: dict[int, list[Namespace]] = {}
            for group, shards in self._shards.items():
                opened[group] = []
                for shard in shards:
                    name = shard.name
                    opened[group].append(self._client.namespace(name, shard.fields, shard.chunk_bytes))
            self._namespaces = opened
        except Error as e:
            self._open_at = time.monotonic() + self._open_pause_s
            self._open_pause_s = min(2 * self._open_pause_s, LONGEST_REST_S)
            if self._complaint != str(e):
                log.warning("the namespace %s cannot be opened, so prompts are computed until it can be: %s (see kvcachectl doctor)", name, e)
            self._complaint = str(e)
            return
        if self._complaint:
            log.warning("the namespace %s is open, so chunks are found again", name)
        self._complaint, self._open_pause_s = "", REST_S

    @property
    def well(self) -> bool:
        return self._client.connected and not self._ill and not self._complaint

    @property
    def pending(self) -> bool:
        """Returns whether answers with leases are outstanding, also for requests that have ended, chunks wait for room, or messages are
        still to be sent. Answers to advice and to probes do not count."""
        others = self._advising + (self._probed_at > 0)
        return self._client.owes or self._client.inflight > others or any(r.wanted or r.roomless for r in self._requests.values())

    def where(self, keys: Sequence[bytes]) -> bytes | None:
        """Looks up keys of one group. Returns one byte for each key: 0 if a shard is not stored, else the tiers of the chunk (_combined()).
        Returns None if the daemon does not answer now, or `keys` is empty."""
        found = self.where_by_shard(keys)
        if found is None:
            return None
        combined = _combined(found)
        if len(found) > 1:
            self.partial_hits += combined.count(0) - bytes(map(max, *found)).count(0)
        return combined

    def where_by_shard(self, keys: Sequence[bytes]) -> list[bytes] | None:
        """Looks up keys of one group. Returns for each shard one byte for each key: the shard's tiers, or 0 if the shard is not stored. Returns
        None if the daemon does not answer now, or `keys` is empty."""
        self._reap()
        namespaces = self._namespaces.get(group_of(keys[0])) if keys else None
        if namespaces is None or self._ill or time.monotonic() < self._rest_until:
            return None
        started, found = time.monotonic(), []
        names = Keys(names_of(keys, self.salt))
        try:
            for namespace in namespaces:
                found.append(namespace.tiers(names, timeout=LOOKUP_S))
                if time.monotonic() - started >= LOOKUP_S:
                    break
        except Error as e:
            log.warning("a lookup failed, so the prompt is computed: %s", e)
            return None
        late = time.monotonic() - started >= LOOKUP_S
        if late and (any(0 in f for f in found) or len(found) < len(namespaces) or not self._client.connected):  # no answer
            self._rest_until = time.monotonic() + self._rest_s
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
            return None
        if not self._client.connected:
            return None
        self._rest_s = REST_S
        return found

    @property
    def advising(self) -> bool:
        """Returns whether answers to advice are outstanding."""
        return self._advising > 0

    def advise(self, piece: Piece) -> bool:
        """Sends advice (see Namespace.advise(); hints.USED marks the chunks as used) for all shards of the piece's group. Returns whether the
        messages could be sent; does not wait for their answers."""
        now = time.monotonic()
        if not piece.keys or not self.well or now < max(self._no_advice_until, self._rest_until):
            return False
        names = Keys(names_of(piece.keys, self.salt))
        parent = names_of([piece.parent], self.salt)[0] if piece.parent else None
        try:
            for namespace in self._namespaces.get(piece.group, ()):
                if piece.advice == USED:
                    namespace.submit_touch(names, tag=ADVICE, timeout=ADVICE_S)
                else:
                    namespace.submit_advise(names, piece.advice, piece.return_s, tag=ADVICE, timeout=ADVICE_S, parent=parent)
                self._advising += 1
        except Error as e:
            log.warning("advice of requests could not be sent and is dropped for %.0f s, which may cost later hits: %s", NO_ADVICE_S, e)
            self._no_advice_until = now + NO_ADVICE_S
            return False
        return self._client.connected

    def want(self, request: str, keys: Sequence[bytes], on_disk: Sequence[bool]) -> None:
        """Notes chunks whose leases ask() or flush() requests. `on_disk`: whether each chunk is on disk only."""
        mine = self._requests.setdefault(request, _Request())
        mine.wanted.update((k, disk) for k, disk in zip(keys, on_disk) if k not in mine.held and k not in mine.asked)

    def state(self, request: str, key: bytes) -> bool | None:
        """Returns True if the request holds the chunk, and None while the daemon's answer is outstanding or the chunk waits for room.
        Returns False otherwise: the lease was refused or never requested, or the daemon is ill. Declares the daemon ill if it has not
        answered in time."""
        mine = self._requests.get(request)
        if mine is None:
            return False
        self._reap()
        if key in mine.held:
            return mine.held[key] is not None
        if key in mine.wanted or key in mine.roomless:
            return None if self.well else False
        asked = mine.asked.get(key)
        if asked is None:
            return False
        waited = time.monotonic() - asked
        if waited <= self._timeout_s and not self._ill and not self._is_silent(asked):
            return None
        if not self._ill:
            log.warning("the daemon has not answered for %.1f s, so prompts are computed until it does (see kvcachectl doctor)", waited)
            self._ill = True
        return False

    def _is_silent(self, asked: float) -> bool:
        """Returns whether the daemon hangs, so that a request for leases need not wait until its timeout. A long read from disk is not a
        hang. To tell the two apart, a probe is sent after PROBE_S without an answer: a request that a working daemon answers at once.
        `asked`: the time.monotonic() of the request for leases."""
        now = time.monotonic()
        if now - max(asked, self._heard_at) < PROBE_S:
            return False
        if self._probed_at:
            return now - max(self._probed_at, self._heard_at) >= SILENT_S
        namespace = next((n for of_group in self._namespaces.values() for n in of_group), None)
        if namespace is not None:
            try:
                namespace.submit_touch([os.urandom(32)], tag=PROBE, timeout=self._timeout_s)
                self._probed_at = now
            except Error as e:
                log.warning("the daemon could not be probed and counts as hung, so prompts are computed: %s", e)
                return True
        return False

    def leased(self, request: str) -> list[bytes]:
        """Returns the keys of the chunks that the request holds."""
        return [k for k, held in self._requests[request].held.items() if held is not None]

    def held(self, request: str, key: bytes) -> Held:
        """Returns a chunk that the request holds."""
        held = self._requests[request].held[key]
        assert held is not None, "a chunk was promised without a lease"
        return held

    def rename(self, shards: Mapping[int, Sequence[Shard]]) -> None:
        """Uses other namespaces from now on. A request keeps the chunks that it holds until release()."""
        self._namespaces, self._shards = {}, {g: list(of_group) for g, of_group in shards.items()}
        self._complaint, self._open_pause_s = "", REST_S
        self._open()

    def release(self, request: str) -> None:
        """Forgets a request, and releases the chunks that it holds or has requested."""
        self._requests.pop(request, None)

    def ask(self, request: str) -> None:
        """Requests the leases of the wanted chunks at once, and waits for the answers for at most GRACE_S. The caller has found all of these chunks
        in memory. Does nothing while the daemon is ill, and for NO_GRACE_S after answers came later: flush() then requests the leases."""
        mine = self._requests.get(request)
        if mine is None or not self.well or time.monotonic() < self._no_grace_until:
            return
        self._submit(request, mine)
        until = time.monotonic() + GRACE_S
        while mine.asked and time.monotonic() < until:
            self._answers(until - time.monotonic())
        if mine.asked:
            self._no_grace_until = time.monotonic() + NO_GRACE_S

    def flush(self) -> None:
        """Requests the leases of all chunks that are still wanted. Called at the end of each step. Tries again to open namespaces that could not
        be opened."""
        self._reaped = False
        self._reap()
        now = time.monotonic()
        if self._complaint and now >= self._open_at:
            self._open()
        for name, mine in self._requests.items():
            if mine.roomless:
                self._look_for_room(mine, now)
            if mine.wanted:
                self._submit(name, mine)
        if self._client.owes:
            self._client.flush()
        self._reaped = False

    def _submit(self, name: str, mine: _Request) -> None:
        wanted, mine.wanted = mine.wanted, {}
        now = time.monotonic()
        for group, keys in by_group(wanted).items():
            length = self._chunk_bytes.get(group, 0)
            namespaces = self._namespaces.get(group, [])
            asked = _Asked(name, mine, tuple(keys), now, sum(wanted[k] for k in keys) * length, self.asked_disk_bytes, len(namespaces))
            names = Keys(names_of(keys, self.salt))
            try:
                for shard, namespace in enumerate(namespaces):
                    namespace.submit_get_map(names, tag=(asked, shard), timeout=self._timeout_s)
            except Error as e:
                log.warning("leases could not be requested, so %d chunks that were found are computed: %s", len(keys), e)
                mine.held.update(dict.fromkeys(keys))
                continue
            mine.asked.update(dict.fromkeys(keys, now))
            self.asked_bytes += len(keys) * length
            self.asked_disk_bytes += asked.disk_bytes

    def _look_for_room(self, mine: _Request, now: float) -> None:
        """Requests the chunks that wait for room again if a lease of another request has ended. Treats these chunks as refused after ROOM_S."""
        if len(mine.others) < mine.others_then:
            mine.wanted.update(dict.fromkeys(mine.roomless, False))
        elif now - mine.roomless_at > ROOM_S:
            mine.held.update(dict.fromkeys(mine.roomless))
        else:
            return
        mine.roomless = ()

    def _wait_for_room(self, mine: _Request, keys: tuple[bytes, ...], theirs: set[Leased], now: float) -> None:
        """Lets chunks wait for room that were refused because other leases use it. Treats them as refused if the request has waited for ROOM_S, or
        if every lease belongs to this request or to another request that waits for room. `theirs`: leases that came with the refusal, on other
        shards of the same chunks."""
        mine.roomless_at = mine.roomless_at or now
        waiting = [r for r in self._requests.values() if r is mine or r.roomless]
        theirs = theirs.union(one for r in waiting for held in r.held.values() if held is not None for one in held.leased)
        others = [one for of_pool in self._leases.values() for one in of_pool if one not in theirs]
        if not others or now - mine.roomless_at > ROOM_S:
            mine.held.update(dict.fromkeys(keys))
            return
        self.lease_waits += len(keys)
        mine.roomless, mine.others, mine.others_then = mine.roomless + keys, weakref.WeakSet(others), len(others)

    def _reap(self) -> None:
        """Reaps answers, at most once in a step, because vLLM asks for each of the hundreds of chunks of a request separately."""
        if not self._reaped:
            self._reaped = True
            self._answers(0.0)

    def _answers(self, timeout: float) -> None:
        if not self._client.inflight:
            if self._ill:
                self._ill = not self._client.connected
            return
        try:
            finished = self._client.reap(timeout)
        except Error as e:
            log.warning("answers of the daemon could not be read, so found chunks may be computed: %s", e)
            return
        now = time.monotonic()
        for done in finished:
            self._answered(done, now)
        self._looked_at = now

    def _answered(self, done: Any, now: float) -> None:
        has_answered = PENDING not in done.status and LOST not in done.status
        if has_answered:
            self._heard_at = now
        if done.tag == ADVICE:
            self._advising -= 1
            if not has_answered:
                self._no_advice_until = now + NO_ADVICE_S
            return
        if done.tag == PROBE:
            self._probed_at, self._ill = 0.0, self._ill and not has_answered
            return
        asked, shard = done.tag
        if any(map(status_ok, done.status)):
            self._ill = False
        elif PENDING in done.status:  # the daemon has not answered within the timeout: without this pause every request would wait for it
            self._rest_until = time.monotonic() + HUNG_S
        asked.answers[shard] = _Answer(done.status, done.tiers, done.lengths, done.leased)
        answers = [a for a in asked.answers if a is not None]
        if len(answers) == len(asked.answers):
            self._settle(asked, answers, now)

    def _settle(self, asked: _Asked, answers: list[_Answer], now: float) -> None:
        """Evaluates the answers for chunks whose shards have all been answered: the request holds each chunk, waits for room, or is refused it."""
        keys, group = asked.keys, group_of(asked.keys[0])
        length = self._chunk_bytes.get(group, 0)
        self.asked_bytes -= len(keys) * length
        self.asked_disk_bytes -= asked.disk_bytes
        tiers = _combined([a.tiers for a in answers])
        by_shard = [[status_ok(status) and nbytes == s.chunk_bytes for status, nbytes in zip(a.status, a.lengths)]
                    for a, s in zip(answers, self._shards[group])]
        good = [all(of_key) for of_key in zip(*by_shard)] if len(by_shard) > 1 else by_shard[0]
        self._note_read(asked, group, tiers, good, now)
        mine = asked.asker
        if self._requests.get(asked.request) is not mine:
            return  # the request has ended, and its leases are released when `asked` and `answers` are freed
        places = [self._client.pool_of(a.leased) if a.leased is not None else (0, 0) for a in answers]
        for answer, (pool, _) in zip(answers, places):
            if answer.leased is not None and pool:
                self._leases.setdefault(pool, weakref.WeakSet()).add(answer.leased)
        pool = places[0][0]
        # _serves() lists the pool as in use in the engine's page before a hit is answered, so that no rank unregisters the pool.
        served = pool != 0 and all(p == pool for p, _ in places) and mine.pool in (0, pool) and self._serves(pool)
        for key in keys:
            mine.asked.pop(key, None)
        roomless = () if all(good) else tuple(
            key for key, *status in zip(keys, *(a.status for a in answers))
            if any(map(_lacks_room, status)) and all(status_ok(s) or _lacks_room(s) for s in status))
        if served:
            self._hold(mine, keys, answers, places, tiers, good)
        else:
            mine.held.update(dict.fromkeys(keys))
        if roomless:
            for key in roomless:
                del mine.held[key]
            self._wait_for_room(mine, roomless, {a.leased for a in answers if a.leased is not None}, now)

    @staticmethod
    def _hold(mine: _Request, keys: Sequence[bytes], answers: Sequence[_Answer], places: Sequence[tuple[int, int]], tiers: bytes,
              good: Sequence[bool]) -> None:
        leased = tuple(a.leased for a in answers if a.leased is not None)
        offsets = zip(*([address - base for address in one._addresses] for one, (_, base) in zip(leased, places)))
        pool = places[0][0]
        mine.held.update((key, Held(of_key, leased, pool, at) if is_good else None)
                         for key, is_good, of_key, at in zip(keys, good, tiers, offsets))
        mine.pool = pool if any(good) else mine.pool

    def pool(self, request: str) -> int:
        """Returns the id of the pool in which the chunks lie that the request holds; 0 if it holds none."""
        mine = self._requests.get(request)
        return mine.pool if mine is not None else 0

    def pools(self) -> set[int]:
        """Returns the ids of the pools in which requests or loads under way have leases. Forgets the other pools."""
        self._leases = {pool: leased for pool, leased in self._leases.items() if len(leased)}
        return set(self._leases)

    def _note_read(self, asked: _Asked, group: int, tiers: bytes, good: list[bool], now: float) -> None:
        """Records a read from disk as a sample for the load policy. The read ended between the last two times that answers were reaped, and shared
        the disk with earlier reads, so it counts with its share of the bytes."""
        nbytes = sum(t & TIER_DISK != 0 and not t & TIER_MEMORY for t in tiers) * self._chunk_bytes.get(group, 0)
        if not nbytes or not all(good):
            return
        share = nbytes / (nbytes + asked.before)
        self.reads.append(Read(group, nbytes, max(0.0, self._looked_at - asked.at) * share, (now - asked.at) * share))

    def close(self) -> None:
        self._requests.clear()
        for group, shards in self._shards.items():
            for shard, namespace in zip(shards, self._namespaces.get(group, [])):
                private.remove([namespace], shard.fields)
        self._client.close()


def _combined(found: Sequence[bytes]) -> bytes:
    """Combines the tiers of each shard. Returns for each key 0 if a shard is not stored; else all tiers of its shards, with memory only if all
    shards are in memory."""
    if len(found) == 1:
        return found[0]
    return bytes(0 if 0 in of_key else _or(of_key) & ~TIER_MEMORY | min(t & TIER_MEMORY for t in of_key) for of_key in zip(*found))


def _lacks_room(status: int) -> bool:
    return status in (BUSY, QUOTA)


def _or(numbers: Sequence[int]) -> int:
    return functools.reduce(operator.or_, numbers)
