# SPDX-License-Identifier: Apache-2.0
"""Leases on chunks that a request was promised; nothing of vLLM.

The engine's thread calls everything here. A chunk that is wanted is asked for at the end of a step (flush()), or at once where all
are in memory, for whose answer ask() waits GRACE_S at most. It is `None`, unknown, until the daemon has answered; one that lies on
disk is read to memory meanwhile. A daemon that does not answer within the timeout is ill: nothing is found until it has answered.

Leases end with the last reference to them (Held.leased): a request's, or that of a load under way, in whichever thread.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import PENDING, TIER_DISK, TIER_MEMORY, Client, Error, Leased, Namespace, status_ok
from ..engine import private
from .identity import group_of, parts_of

log = logging.getLogger("kvcache.vllm")

LOOKUP_S = 0.05  # of a lookup that the index does not answer
OPEN_S = 0.25    # of opening a namespace
REST_S = 0.5     # without lookups, after one was not answered; twice as long each time
LONGEST_REST_S = 8.0
HUNG_S = 5.0     # after leases were not given within the timeout
GRACE_S = 0.002  # that ask() waits for leases on memory
NO_GRACE_S = 1.0 # without that, after they came too late


class Held(NamedTuple):
    """A chunk in the daemon's memory that stays there as long as `leased` lives: its address in this process, and where it is for others."""

    address: int
    tiers: int
    leased: Leased
    pool: int
    offset: int


class Read(NamedTuple):
    """Chunks of a group that were read from disk, in a time between these."""

    group: int
    nbytes: int
    least_s: float
    most_s: float


class _Asked(NamedTuple):
    request: str
    asker: _Request
    keys: tuple[bytes, ...]
    at: float
    disk_bytes: int
    before: int  # bytes that were being read from disk then


class _Request:
    def __init__(self) -> None:
        self.wanted: dict[bytes, bool] = {}  # is it on disk?
        self.asked: dict[bytes, float] = {}  # when
        self.held: dict[bytes, Held | None] = {}  # None: it was refused


class Promises:
    """`serves`: can chunks of a pool be loaded? Those of another are not promised."""

    def __init__(self, names: Mapping[int, str], fields: Mapping[str, str], chunk_bytes: Mapping[int, int], *, socket: str | None,
                 timeout_s: float, serves: Callable[[int], bool]) -> None:
        self._chunk_bytes, self._timeout_s = dict(chunk_bytes), timeout_s
        self._client = Client(socket, "vllm", timeout=min(timeout_s, OPEN_S), connect_timeout=0.2)
        self._fields = fields
        self._namespaces: dict[int, Namespace] = {g: self._client.namespace(n, fields, self._chunk_bytes.get(g, 0))
                                                  for g, n in names.items()}
        self._requests: dict[str, _Request] = {}
        self._serves = serves
        self._leases: dict[int, weakref.WeakSet[Leased]] = {}  # by pool
        self._ill = False
        self._rest_until, self._rest_s = 0.0, REST_S
        self._no_grace_until = 0.0
        self._reaped = False  # in this step
        self._looked_at = 0.0  # for answers, the last time
        self.asked_bytes = self.asked_disk_bytes = 0  # of leases that were not answered yet
        self.reads: list[Read] = []  # since the owner took them

    @property
    def well(self) -> bool:
        return self._client.connected and not self._ill

    @property
    def pending(self) -> bool:
        """Is there something to be reaped or sent?"""
        return self._client.owes or any(r.wanted or r.asked for r in self._requests.values())

    def where(self, keys: Sequence[bytes]) -> bytes | None:
        """Of keys of one group, one byte a key: 0, or the tiers that have it. None: unknown now."""
        self._reap()
        namespace = self._namespaces.get(group_of(keys[0])) if keys else None
        if namespace is None or self._ill or time.monotonic() < self._rest_until:
            return None
        started = time.monotonic()
        try:
            found = namespace.tiers([parts_of(k, 1)[0] for k in keys], timeout=LOOKUP_S)
        except Error as e:
            log.warning("nothing is found now: %s", e)
            return None
        if time.monotonic() - started >= LOOKUP_S and (0 in found or not self._client.connected):  # not in the index, nor answered
            self._rest_until = time.monotonic() + self._rest_s
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
            return None
        if not self._client.connected:
            return None
        self._rest_s = REST_S
        return found

    def want(self, request: str, keys: Sequence[bytes], on_disk: Sequence[bool]) -> None:
        mine = self._requests.setdefault(request, _Request())
        mine.wanted.update((k, disk) for k, disk in zip(keys, on_disk) if k not in mine.held and k not in mine.asked)

    def state(self, request: str, key: bytes) -> bool | None:
        """True: held. False: refused, or never wanted. None: not known yet."""
        mine = self._requests.get(request)
        if mine is None:
            return False
        self._reap()
        if key in mine.held:
            return mine.held[key] is not None
        if key in mine.wanted:
            return None if self.well else False
        asked = mine.asked.get(key)
        if asked is None:
            return False
        if time.monotonic() - asked <= self._timeout_s and not self._ill:
            return None
        if not self._ill:
            log.warning("nothing is found now: the daemon has not answered for %.1f s", self._timeout_s)
            self._ill = True
        return False

    def held(self, request: str, key: bytes) -> Held:
        held = self._requests[request].held[key]
        assert held is not None, "a chunk was promised without a lease"
        return held

    def rename(self, names: Mapping[int, str]) -> None:
        """Goes on with other namespaces. What requests hold stays theirs until release()."""
        self._namespaces = {}
        try:
            self._namespaces = {g: self._client.namespace(n, self._fields, self._chunk_bytes.get(g, 0)) for g, n in names.items()}
        except Error as e:
            log.warning("nothing is found from now on: %s", e)

    def release(self, request: str) -> None:
        """What it holds, and what is on its way to it."""
        self._requests.pop(request, None)

    def ask(self, request: str) -> None:
        """For what it wants, now: chunks in memory. Waits for the answer, briefly."""
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
        """At the end of a step."""
        self._reaped = False
        self._reap()
        for name, mine in self._requests.items():
            if mine.wanted:
                self._submit(name, mine)
        if self._client.owes:
            self._client.flush()
        self._reaped = False

    def _submit(self, name: str, mine: _Request) -> None:
        groups: dict[int, list[bytes]] = {}
        for key in mine.wanted:
            groups.setdefault(group_of(key), []).append(key)
        wanted, mine.wanted = mine.wanted, {}
        now = time.monotonic()
        for group, keys in groups.items():
            length = self._chunk_bytes.get(group, 0)
            asked = _Asked(name, mine, tuple(keys), now, sum(wanted[k] for k in keys) * length, self.asked_disk_bytes)
            try:
                self._namespaces[group].submit_get_map([parts_of(k, 1)[0] for k in keys], tag=asked, timeout=self._timeout_s)
            except Error as e:
                log.warning("nothing is found now: %s", e)
                mine.held.update(dict.fromkeys(keys))
                continue
            mine.asked.update(dict.fromkeys(keys, now))
            self.asked_bytes += len(keys) * length
            self.asked_disk_bytes += asked.disk_bytes

    def _reap(self) -> None:
        """Once a step: a request has hundreds of chunks, each of which is asked about."""
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
            log.warning("nothing is found now: %s", e)
            return
        now = time.monotonic()
        for done in finished:
            self._answered(done, now)
        self._looked_at = now

    def _answered(self, done: Any, now: float) -> None:
        asked: _Asked = done.tag
        keys, length = asked.keys, self._chunk_bytes.get(group_of(asked.keys[0]), 0)
        self.asked_bytes -= len(keys) * length
        self.asked_disk_bytes -= asked.disk_bytes
        self._note_read(asked, done, length, now)
        if any(map(status_ok, done.status)):
            self._ill = False
        elif PENDING in done.status:  # it hangs: it is tried again, but not by every request
            self._rest_until = time.monotonic() + HUNG_S
        mine = asked.asker
        if self._requests.get(asked.request) is not mine:
            return  # the request has ended: the leases do with `done`
        pool, base = self._client.pool_of(done.leased) if done.leased is not None else (0, 0)
        addresses = done.leased._addresses if pool and self._serves(pool) else [0] * len(keys)
        if pool:
            self._leases.setdefault(pool, weakref.WeakSet()).add(done.leased)
        for key, address, status, tiers, nbytes in zip(keys, addresses, done.status, done.tiers, done.lengths):
            mine.asked.pop(key, None)
            good = address and status_ok(status) and nbytes == length
            mine.held[key] = Held(address, tiers, done.leased, pool, address - base) if good else None

    def pools(self) -> set[int]:
        """The pools in which chunks are leased, by requests or by loads under way."""
        self._leases = {pool: leased for pool, leased in self._leases.items() if len(leased)}
        return set(self._leases)

    def _note_read(self, asked: _Asked, done: Any, length: int, now: float) -> None:
        """It ended after the last look at answers and before this one. Of what was being read before it had its share."""
        nbytes = sum(status_ok(s) and t & TIER_DISK != 0 and not t & TIER_MEMORY for s, t in zip(done.status, done.tiers)) * length
        if not nbytes or not all(map(status_ok, done.status)):
            return
        share = nbytes / (nbytes + asked.before)
        self.reads.append(Read(group_of(asked.keys[0]), nbytes, max(0.0, self._looked_at - asked.at) * share, (now - asked.at) * share))

    def close(self) -> None:
        self._requests.clear()
        private.remove(self._namespaces.values(), self._fields)
        self._client.close()
