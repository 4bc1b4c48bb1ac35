# SPDX-License-Identifier: Apache-2.0
"""Namespaces: everything that is asked of keys."""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from . import _library as c
from ._arguments import ack_number, batch_of, fingerprint_text, return_seconds
from ._errors import ArgumentError
from ._leases import Leased, statuses
from ._memory import Batch, Keys
from ._results import LOST_RESULT, Done

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._client import Client
    from ._memory import KeysLike, PlacesLike


def reach_of(status: bytes, tiers: bytes) -> tuple[int, int, bool]:
    """Of the results of a match with the shared tier."""
    run = next((i for i, s in enumerate(status) if s != c.OK), len(status))
    here = next((i for i in range(run) if tiers[i] & c.TIER_REMOTE), run)
    return here, run, run == len(status) or status[run] not in (c.BUSY, c.PENDING)


class Namespace:
    """A name, and what its bytes depend on. Keys: a Keys, a buffer of 32 bytes a key, or a sequence of 32-byte objects. Places:
    a Places, (region, offsets, length), or a sequence of buffers; or a Batch in place of both. Keys of a request are a chain,
    root first, `parent` the key before them; keys that are none are served the same. `timeout` in seconds; None: the client's.

    What a submitted request names (places, a batch) belongs to it until its Done was reaped; after a status of PENDING or LOST,
    registered memory until Region.settled()."""

    def __init__(self, client: Client, name: str, fingerprint: Mapping[str, object], chunk_bytes: int,
                 lifetime_s: int = 0) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[ -~]{1,255}", name):
            raise ArgumentError(f"a namespace's name is 1 to 255 characters of printable ASCII, not {name!r}")
        if not isinstance(chunk_bytes, int) or not 0 <= chunk_bytes < 2**64:
            raise ArgumentError(f"chunk_bytes is a number of bytes, not {chunk_bytes!r}")
        if not isinstance(lifetime_s, int) or not 0 <= lifetime_s < 2**32:
            raise ArgumentError(f"lifetime_s is a number of seconds, not {lifetime_s!r}")
        self.name = name
        self._client = client
        self._id = 0
        self._name = name.encode() + b"\0"
        self._fingerprint = fingerprint_text(fingerprint)
        self._options = c.NAMESPACE_OPTIONS.pack(c.NAMESPACE_OPTIONS.size, 0, c.address_of(self._name),
                                                 c.address_of(self._fingerprint), chunk_bytes, lifetime_s, 0)

    def __repr__(self) -> str:
        return f"<Namespace {getattr(self, 'name', None)!r} of {getattr(self, '_client', None)!r}>"

    @property
    def client(self) -> Client:
        """The client whose connection the namespace uses."""
        return self._client

    def _open(self, kv: int) -> int:
        number = ctypes.c_uint32()
        r: int = c.namespace_open(kv, self._options, ctypes.byref(number))
        if r == 0:
            self._id = number.value
        return r

    def remove(self) -> int:
        """Removes the namespace with its chunks, for good. Returns 0, or an errno: ENOENT, it does not exist; EBUSY, other sessions have it
        open; EACCES, another user made it. The next call that names it makes it again."""
        return self._client._remove(self)

    # --- what is there ---

    def match(self, keys: KeysLike, timeout: float | None = None) -> int:
        """How many keys, from the first on, are there. From the lookup index: no message, a few microseconds."""
        keys = keys if type(keys) is Keys else Keys(keys)
        value = ctypes.c_uint64()
        self._client._call(self, c.OP_MATCH, keys.count, 0, keys.address(), None, value=ctypes.byref(value), timeout=timeout)
        return value.value

    def exists(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """One status a key: OK or MISS. From the lookup index, as match()."""
        return statuses(self._ask(c.OP_EXISTS, keys, timeout))[0]

    def stat(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Returns one status a key: OK or MISS. Asks the daemon, which counts no lookup and does not take it for a use."""
        return statuses(self._ask(c.OP_STAT, keys, timeout))[0]

    def tiers(self, keys: KeysLike, timeout: float | None = None, remote: bool = False) -> bytes:
        """One number a key: TIER_MEMORY, TIER_DISK, both (3), or 0. From the lookup index, as match(). `remote`: with TIER_REMOTE, where
        the daemon knows that the shared tier of several hosts has it; that asks the daemon."""
        return statuses(self._ask(c.OP_EXISTS, keys, timeout, c.TIER_REMOTE if remote else 0))[1]

    def reach(self, keys: KeysLike, timeout: float | None = None) -> tuple[int, int, bool]:
        """How many keys, from the first on, are here; how many with those behind them that the shared tier of several hosts has; and
        whether that is final: False, the daemon is still looking, and knows more when it is asked again, at the engine's next step
        (or has not answered within the timeout).
        As fast as match() where all are here; else a message, which does not wait for that tier. A get of what is there only waits for
        it, and prefetch() brings it here."""
        return reach_of(*statuses(self._ask(c.OP_MATCH, keys, timeout, c.TIER_REMOTE)))

    def _ask(self, op: int, keys: KeysLike, timeout: float | None, tiers: int = 0) -> array[int]:
        keys = keys if type(keys) is Keys else Keys(keys)
        words = LOST_RESULT * keys.count
        self._client._call(self, op, keys.count, 0, keys.address(), words, tiers=tiers, timeout=timeout)
        return words

    def touch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Marks them as used just now; one status a key."""
        return statuses(self._ask(c.OP_TOUCH, keys, timeout))[0]

    def prefetch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Has them read from disk, or from the shared tier, to memory, for a get that will come, and does not wait for that; one status
        a key. What only the shared tier may have is OK, and may yet turn out not to be there."""
        return statuses(self._ask(c.OP_PREFETCH, keys, timeout))[0]

    def hint(self, keys: KeysLike, return_s: int = 0, timeout: float | None = None) -> bytes:
        """Says when the chain, root first, will be used again: in about so many seconds, or, with 0, never: it is final, and is
        evicted first, but for what another chain goes on from. Advice, which the chain's next use ends; one status a key. Give it
        when the requests that use the chain are complete."""
        return statuses(self._ask(c.OP_HINT, keys, timeout, return_seconds(return_s)))[0]

    def pin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Has them kept on disk whatever is evicted, until unpin(); one status a key. BUSY: it is being written, ask again when its put
        is WRITTEN; QUOTA: the tenant has pinned as much as it may; MISS: it is not there, or in memory alone."""
        return statuses(self._ask(c.OP_PIN, keys, timeout))[0]

    def unpin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Lets them be evicted again; one status a key."""
        return statuses(self._ask(c.OP_UNPIN, keys, timeout))[0]

    def evict(self, keys: KeysLike, memory_only: bool = False, timeout: float | None = None) -> bytes:
        """Forgets them, or only their copies in memory; one status a key."""
        return statuses(self._ask(c.OP_EVICT, keys, timeout, c.TIER_MEMORY if memory_only else c.TIER_ALL))[0]

    def count_declined(self, count: int) -> bool:
        """Has the daemon report that so many more keys were found and are not loaded, since computing them is faster. False: there
        is no place to count them, as the lookup index was not asked yet or the daemon has none."""
        return self._client._count_declined(self, count)

    # --- blocking ---

    def put(self, keys: Batch | KeysLike, places: PlacesLike | None = None, ack: str = "written",
            parent: Buffer | None = None, timeout: float | None = None) -> Done:
        """Stores the bytes at each place. `ack`: "accepted" (visible; may be lost with the daemon), "written" (survives kill
        -9 of the daemon), "durable" (survives power loss)."""
        return self._move(c.OP_PUT, batch_of(keys, places, False), ack_number(ack), parent, timeout)

    def get(self, keys: Batch | KeysLike, places: PlacesLike | None = None, parent: Buffer | None = None,
            timeout: float | None = None) -> Done:
        """Copies each chunk to its place. TOO_LARGE: the chunk is longer than the place. Where the status is not OK, the place
        may hold anything."""
        return self._move(c.OP_GET_INTO, batch_of(keys, places, True), 0, parent, timeout)

    def _move(self, op: int, batch: Batch, ack: int, parent: Buffer | None, timeout: float | None) -> Done:
        words = LOST_RESULT * batch.count
        r, why = self._client._call(self, op, batch.count, batch.address(), 0, words, ack=ack, parent=parent, timeout=timeout)
        return Done(None, -r, why, words)

    def get_map(self, keys: KeysLike, timeout: float | None = None) -> Leased:
        """The chunks in place, in the daemon's memory: no copy."""
        with self._client._lock:  # so that no other thread closes the handle before the leases hold it
            return Leased(self._client, self._ask(c.OP_GET, keys, timeout))

    # --- submitted: Client.reap() returns their Done, each with its `tag` ---

    def submit_put(self, keys: Batch | KeysLike, places: PlacesLike | None = None, ack: str = "written",
                   parent: Buffer | None = None, tag: Hashable = 0, timeout: float | None = None) -> None:
        batch = batch_of(keys, places, False)
        self._client._submit(self, c.OP_PUT, batch.count, batch.address(), 0, batch, tag, ack_number(ack), parent, timeout)

    def submit_get(self, keys: Batch | KeysLike, places: PlacesLike | None = None, parent: Buffer | None = None,
                   tag: Hashable = 0, timeout: float | None = None) -> None:
        batch = batch_of(keys, places, True)
        self._client._submit(self, c.OP_GET_INTO, batch.count, batch.address(), 0, batch, tag, 0, parent, timeout)

    def submit_get_map(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        """Done.leased has the chunks."""
        self._submit_keys(c.OP_GET, keys, tag, timeout)

    def submit_prefetch(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_PREFETCH, keys, tag, timeout)

    def submit_hint(self, keys: KeysLike, return_s: int = 0, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_HINT, keys, tag, timeout, return_seconds(return_s))

    def submit_touch(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_TOUCH, keys, tag, timeout)

    def _submit_keys(self, op: int, keys: KeysLike, tag: Hashable, timeout: float | None, tiers: int = 0) -> None:
        keys = keys if type(keys) is Keys else Keys(keys)
        self._client._submit(self, op, keys.count, 0, keys.address(), keys, tag, 0, None, timeout, tiers)
