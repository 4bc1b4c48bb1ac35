# SPDX-License-Identifier: Apache-2.0
"""Leases on chunks that a request was promised; nothing of vLLM.

The engine's thread calls everything here. Nothing waits: a chunk that is wanted is asked for at the end of a step (flush()), and is
`None`, unknown, until the daemon has answered; one that lies on disk is read to memory meanwhile. A daemon that does not answer
within the timeout is ill: nothing is found until it has answered.

Leases end with the last reference to them (Held.leased): a request's, or that of a load under way, in whichever thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import PENDING, Client, Error, Leased, Namespace, status_ok
from .identity import group_of, parts_of

log = logging.getLogger("kvcache.vllm")

LOOKUP_S = 0.05  # of a lookup that the index does not answer
REST_S = 0.5     # without lookups, after one was not answered
HUNG_S = 5.0     # after leases were not given within the timeout


class Held(NamedTuple):
    """A chunk in the daemon's memory that stays there as long as `leased` lives."""

    address: int
    tiers: int
    leased: Leased


class _Request:
    def __init__(self) -> None:
        self.wanted: list[bytes] = []
        self.asked: dict[bytes, float] = {}  # when
        self.held: dict[bytes, Held | None] = {}  # None: it was refused


class Promises:
    def __init__(self, names: Mapping[int, str], fields: Mapping[str, str], chunk_bytes: Mapping[int, int], *, socket: str | None,
                 timeout_s: float) -> None:
        self._chunk_bytes, self._timeout_s = dict(chunk_bytes), timeout_s
        self._client = Client(socket, "vllm", timeout=timeout_s, connect_timeout=0.2)
        self._namespaces: dict[int, Namespace] = {g: self._client.namespace(n, fields, self._chunk_bytes.get(g, 0))
                                                  for g, n in names.items()}
        self._requests: dict[str, _Request] = {}
        self._ill = False
        self._rest_until = 0.0
        self._dropped = False
        self.asked_bytes = 0  # of leases that were not answered yet

    @property
    def well(self) -> bool:
        return self._client.connected and not self._ill

    @property
    def pending(self) -> bool:
        """Is there something to be reaped or sent?"""
        return any(r.wanted or r.asked for r in self._requests.values())

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
        if not self._client.connected:
            return None
        if 0 in found and time.monotonic() - started >= LOOKUP_S:  # no lookup in the index, and not answered
            self._rest_until = time.monotonic() + REST_S
            return None
        return found

    def want(self, request: str, keys: Sequence[bytes]) -> None:
        mine = self._requests.setdefault(request, _Request())
        mine.wanted += [k for k in keys if k not in mine.held and k not in mine.asked and k not in mine.wanted]

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

    def release(self, request: str) -> None:
        """What it holds, and what is on its way to it."""
        if self._requests.pop(request, None) is not None:
            self._dropped = True

    def flush(self) -> None:
        """At the end of a step."""
        self._reap()
        for name, mine in self._requests.items():
            if not mine.wanted:
                continue
            groups: dict[int, list[bytes]] = {}
            for key in mine.wanted:
                groups.setdefault(group_of(key), []).append(key)
            mine.wanted = []
            now = time.monotonic()
            for group, keys in groups.items():
                try:
                    self._namespaces[group].submit_get_map([parts_of(k, 1)[0] for k in keys], tag=(name, id(mine), tuple(keys)),
                                                           timeout=self._timeout_s)
                except Error as e:
                    log.warning("nothing is found now: %s", e)
                    mine.held.update(dict.fromkeys(keys))
                    continue
                mine.asked.update(dict.fromkeys(keys, now))
                self.asked_bytes += len(keys) * self._chunk_bytes.get(group, 0)
        if self._dropped:
            self._dropped = False
            self._client.flush()

    def _reap(self) -> None:
        if not self._client.inflight:
            if self._ill:
                self._ill = not self._client.connected
            return
        try:
            finished = self._client.reap()
        except Error as e:
            log.warning("nothing is found now: %s", e)
            return
        for done in finished:
            self._answered(done)

    def _answered(self, done: Any) -> None:
        name, identity, keys = done.tag
        length = self._chunk_bytes.get(group_of(keys[0]), 0)
        self.asked_bytes -= len(keys) * length
        if any(map(status_ok, done.status)):
            self._ill = False
        elif PENDING in done.status:  # it hangs: it is tried again, but not by every request
            self._rest_until = time.monotonic() + HUNG_S
        mine = self._requests.get(name)
        if mine is None or id(mine) != identity:
            self._dropped = True
            return  # the request has ended: the leases do with `done`
        for i, key in enumerate(keys):
            mine.asked.pop(key, None)
            view = done.leased[i] if done.leased is not None and status_ok(done.status[i]) else None
            good = view is not None and done.lengths[i] == length
            mine.held[key] = Held(done.leased._addresses[i], done.tiers[i], done.leased) if good else None

    def close(self) -> None:
        self._requests.clear()
        self._client.close()
