# SPDX-License-Identifier: Apache-2.0
"""What came of a request, and what is reported."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from . import _library as c
from ._leases import Leased, statuses

LOST_RESULT = array("Q", [c.LOST] + [0] * (c.RESULT_WORDS - 1))


class Done:
    """What came of a request.

    tag       what was given to submit_put() or submit_get()
    error     0, or the errno of the request as a whole; `reason` says it in words. Never raised: its keys have statuses
    status    bytes, one status a key: OK, MISS, EXISTS, ... A key that is not status_ok() is to be recomputed, nothing more
    tiers     bytes, one a key: where it came from (get), TIER_MEMORY, TIER_DISK or TIER_REMOTE
    lengths   bytes of each chunk (get: as many as were got)
    leased    of submit_get_map(): the Leased, else None
    """

    __slots__ = ("tag", "error", "reason", "status", "tiers", "lengths", "value", "leased")

    def __init__(self, tag: Any, error: int, reason: str, words: array[int], value: int = 0) -> None:
        self.tag, self.error, self.reason, self.value = tag, error, reason, value
        self.status, self.tiers = statuses(words)
        self.lengths = words[1::c.RESULT_WORDS]
        self.leased: Leased | None = None

    @property
    def found(self) -> int:
        """How many keys are status_ok()."""
        status = self.status
        return status.count(c.OK) + status.count(c.EXISTS) + status.count(c.NOT_DURABLE)

    @property
    def ok(self) -> bool:
        """Is every key status_ok()?"""
        return self.found == len(self.status)

    def __repr__(self) -> str:
        return f"<Done tag={self.tag!r} {self.found} of {len(self.status)}{': ' + self.reason if self.error else ''}>"


class Flight(NamedTuple):
    """A request under way: what it names is kept from the collector, and where its results will lie."""

    tag: Any
    op: int
    words: array[int]
    keep: Any


class Info(NamedTuple):
    """What the daemon reported at connect, and what this client has done since; sizes in bytes."""

    protocol_version: int
    pool_bytes: int
    max_chunk_bytes: int
    staging_bytes: int
    reconnects: int
    instance: bytes
    lookup_bytes: int
    lookups_local: int
    pool_index_bytes: int
    gets_local: int


class NamespaceState(NamedTuple):
    """A namespace as the daemon knows it: chunks on disk, sessions that have it open, and its fingerprint."""

    chunks: int
    sessions: int
    fingerprint: str


def refuse(words: array[int] | None, r: int) -> None:
    """The results of a request that was not sent."""
    if words:
        words[::c.RESULT_WORDS] = array("Q", [c.status_of(-r)]) * (len(words) // c.RESULT_WORDS)
