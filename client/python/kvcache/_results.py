# SPDX-License-Identifier: Apache-2.0
"""The results of requests (Done), and what the daemon reports about itself (Info) and about namespaces (NamespaceState)."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from . import _library as c
from ._leases import Leased, statuses

# One struct kvcache_result whose status is LOST, with which results are initialized.
LOST_RESULT = array("Q", [c.LOST] + [0] * (c.RESULT_WORDS - 1))


class Done:
    """The results of a request.

    tag       the tag that was given to the call that submitted the request
    error     0, or the errno of the whole request, which `reason` explains; never raised, because the keys have statuses
    status    bytes, one status for each key: OK, MISS, EXISTS, ...; the chunk must be computed again unless status_ok() is True for it
    tiers     bytes, one for each key: the tier that served a get, TIER_MEMORY, TIER_DISK or TIER_REMOTE; not meaningful for other requests
    lengths   bytes of each chunk; for a get, the bytes that were read
    value     the number that a match returns; 0 for other requests
    leased    the Leased of a submit_get_map(), else None
    """

    __slots__ = ("tag", "error", "reason", "status", "tiers", "lengths", "value", "leased")

    def __init__(self, tag: Any, error: int, reason: str, words: array[int], value: int = 0) -> None:
        self.tag, self.error, self.reason, self.value = tag, error, reason, value
        self.status, self.tiers = statuses(words)
        self.lengths = words[1::c.RESULT_WORDS]
        self.leased: Leased | None = None

    @property
    def found(self) -> int:
        """Returns for how many keys status_ok() of the status is True."""
        status = self.status
        return status.count(c.OK) + status.count(c.EXISTS) + status.count(c.NOT_DURABLE)

    @property
    def ok(self) -> bool:
        """Returns whether status_ok() of the status is True for every key."""
        return self.found == len(self.status)

    def __repr__(self) -> str:
        return f"<Done tag={self.tag!r} {self.found} of {len(self.status)}{': ' + self.reason if self.error else ''}>"


class Flight(NamedTuple):
    """A request in flight. `words` receives its results, and `keep` keeps its arguments alive until then."""

    tag: Any
    op: int
    words: array[int]
    keep: Any


class Info(NamedTuple):
    """Facts that the daemon reported at connect, and counters of this client. Sizes are in bytes.

    reconnects        how often this client has connected again
    instance          identifies the daemon's process, and changes with a restart
    lookup_bytes      size of the mapped lookup index; 0 if none is mapped
    lookups_local     keys that were answered from the lookup index, without a message
    pool_index_bytes  size of the mapped pool index; 0 if none is mapped
    gets_local        keys that were got through the pool index, without a message"""

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
    """The state of a namespace: the number of its chunks on disk, the number of sessions that have it open, and its fingerprint."""

    chunks: int
    sessions: int
    fingerprint: str


def refuse(words: array[int] | None, r: int) -> None:
    """Fills in the results of a request that was not sent. `words`: the results, or None; `r`: the negative errno of the refusal."""
    if words:
        words[::c.RESULT_WORDS] = array("Q", [c.status_of(-r)]) * (len(words) // c.RESULT_WORDS)
