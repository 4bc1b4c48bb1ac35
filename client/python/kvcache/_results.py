# SPDX-License-Identifier: Apache-2.0
"""Results of requests, and reports of the daemon."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from . import _library as c
from ._leases import Leased, statuses

LOST_RESULT = array("Q", [c.LOST] + [0] * (c.RESULT_WORDS - 1))


class Done:
    """The results of a request.

    tag       the tag given to submit_put() or submit_get()
    error     0, or the errno of the whole request, which `reason` explains; never raised, because the keys have statuses
    status    bytes, one status for each key: OK, MISS, EXISTS, ...; recompute a key whose status is not status_ok()
    tiers     bytes, one for each key: the tier that served a get, TIER_MEMORY, TIER_DISK or TIER_REMOTE
    lengths   bytes of each chunk (for a get, the bytes that were read)
    leased    the Leased of submit_get_map(), else None
    """

    __slots__ = ("tag", "error", "reason", "status", "tiers", "lengths", "value", "leased")

    def __init__(self, tag: Any, error: int, reason: str, words: array[int], value: int = 0) -> None:
        self.tag, self.error, self.reason, self.value = tag, error, reason, value
        self.status, self.tiers = statuses(words)
        self.lengths = words[1::c.RESULT_WORDS]
        self.leased: Leased | None = None

    @property
    def found(self) -> int:
        """Returns how many keys are status_ok()."""
        status = self.status
        return status.count(c.OK) + status.count(c.EXISTS) + status.count(c.NOT_DURABLE)

    @property
    def ok(self) -> bool:
        """Returns whether every key is status_ok()."""
        return self.found == len(self.status)

    def __repr__(self) -> str:
        return f"<Done tag={self.tag!r} {self.found} of {len(self.status)}{': ' + self.reason if self.error else ''}>"


class Flight(NamedTuple):
    """A request in flight: keeps its arguments alive, and receives its results."""

    tag: Any
    op: int
    words: array[int]
    keep: Any


class Info(NamedTuple):
    """The facts that the daemon reported at connect, and counters of this client; sizes in bytes."""

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
    """Returns the results of a request that was not sent."""
    if words:
        words[::c.RESULT_WORDS] = array("Q", [c.status_of(-r)]) * (len(words) // c.RESULT_WORDS)
