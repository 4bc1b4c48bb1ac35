# SPDX-License-Identifier: Apache-2.0
"""Namespace, the object through which a program looks up, stores and loads chunks by their keys."""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from . import _library as c
from ._arguments import ack_number, advice_number, batch_of, expected_number, fingerprint_text, return_seconds
from ._errors import ArgumentError
from ._leases import Leased, statuses
from ._memory import Batch, Keys
from ._results import LOST_RESULT, Done

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._client import Client
    from ._memory import KeysLike, PlacesLike


def reach_of(status: bytes, tiers: bytes) -> tuple[int, int, bool]:
    """Evaluates the results of a match that included the shared tier. Returns the values of Namespace.reach()."""
    run = next((i for i, s in enumerate(status) if s != c.OK), len(status))
    here = next((i for i in range(run) if tiers[i] & c.TIER_REMOTE), run)
    return here, run, run == len(status) or status[run] not in (c.BUSY, c.PENDING)


class Namespace:
    """A namespace: a set of keys with a name, bound to a fingerprint, which is the facts on which the bytes of its chunks depend.
    Client.namespace() makes the object.

    Parameters of its methods: keys are a Keys, a buffer of 32 bytes for each key, or a sequence of 32-byte objects. Places are a Places, a tuple
    (region, offsets, length), or a sequence of buffers. A Batch replaces keys and places. The keys of a request should form a chain, root
    first, and `parent` is the key before the first one; unrelated keys are accepted, too. `timeout` is in seconds; None stands for the
    client's timeout.

    The methods name the statuses that a key can get from a working daemon. If the daemon does not answer in time, is unreachable, stops, or
    refuses the request, the keys get others, such as PENDING, LOST, SHUTDOWN or DENIED.

    A submitted request uses its places or batch until its Done has been reaped. After a status of PENDING or LOST, it may use registered memory
    until Region.settled() returns True."""

    def __init__(self, client: Client, name: str, fingerprint: Mapping[str, object], chunk_bytes: int,
                 lifetime_s: int = 0) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[ -~]{1,255}", name):
            raise ArgumentError(f"a namespace's name must be 1 to 255 characters of printable ASCII, not {name!r}")
        if not isinstance(chunk_bytes, int) or not 0 <= chunk_bytes < 2**64:
            raise ArgumentError(f"chunk_bytes must be a number of bytes, 0 or more, not {chunk_bytes!r}")
        if not isinstance(lifetime_s, int) or not 0 <= lifetime_s < 2**32:
            raise ArgumentError(f"lifetime_s must be whole seconds from 0 to 2**32 - 1, not {lifetime_s!r}")
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
        """Returns the client whose connection the namespace uses."""
        return self._client

    @property
    def is_open(self) -> bool:
        """Returns whether a daemon has opened the namespace. If not, the next request tries again to open it."""
        return self._id != 0

    def _open(self, kv: int) -> int:
        number = ctypes.c_uint32()
        r: int = c.namespace_open(kv, self._options, ctypes.byref(number))
        if r == 0:
            self._id = number.value
        return r

    def remove(self) -> int:
        """Removes the namespace and all its chunks permanently, also those on the shared tier. Returns 0 or an errno: ENOENT if the
        namespace does not exist, EBUSY if other sessions have it open or the daemon is changing it, EACCES if another user made it, EIO if
        the shared tier did not confirm the removal, ENOTCONN if no daemon answers. The next request that uses the namespace creates it
        again."""
        return self._client._remove(self)

    # --- lookups ---

    def match(self, keys: KeysLike, timeout: float | None = None) -> int:
        """Returns how many keys are stored, counted from the first up to the first miss; 0 if no daemon answers. The lookup index usually
        answers in a few microseconds, without a message; if it cannot, the daemon is asked."""
        keys = keys if type(keys) is Keys else Keys(keys)
        value = ctypes.c_uint64()
        self._client._call(self, c.OP_MATCH, keys.count, 0, keys.address(), None, value=ctypes.byref(value), timeout=timeout)
        return value.value

    def exists(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Returns one status for each key, OK or MISS, from the lookup index like match()."""
        return statuses(self._ask(c.OP_EXISTS, keys, timeout))[0]

    def stat(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Returns one status for each key, OK or MISS. Asks the daemon, which counts neither a lookup nor a use of the chunks."""
        return statuses(self._ask(c.OP_STAT, keys, timeout))[0]

    def tiers(self, keys: KeysLike, timeout: float | None = None, remote: bool = False) -> bytes:
        """Returns the tiers of each key: TIER_MEMORY, TIER_DISK, their sum (3), or 0 if the key is not stored or no daemon answers. Reads the lookup
        index like match(). With `remote`, asks the daemon instead and adds TIER_REMOTE for keys that it knows to be on the shared tier."""
        return statuses(self._ask(c.OP_EXISTS, keys, timeout, c.TIER_REMOTE if remote else 0))[1]

    def reach(self, keys: KeysLike, timeout: float | None = None) -> tuple[int, int, bool]:
        """Returns three values: how many leading keys this host has, how many leading keys this host and the shared tier have together, and whether
        the second number is final.

        If the number is not final, the daemon is still searching or has not answered in time: call again, for example at the engine's next
        step. The call is as fast as match() if this host has all keys. Otherwise the call sends a message, but does not wait for the shared
        tier. A get of a chunk on the shared tier waits for that tier; prefetch() fetches the chunk to this host."""
        return reach_of(*statuses(self._ask(c.OP_MATCH, keys, timeout, c.TIER_REMOTE)))

    def _ask(self, op: int, keys: KeysLike, timeout: float | None, tiers: int = 0, parent: Buffer | None = None) -> array[int]:
        keys = keys if type(keys) is Keys else Keys(keys)
        words = LOST_RESULT * keys.count
        self._client._call(self, op, keys.count, 0, keys.address(), words, tiers=tiers, parent=parent, timeout=timeout)
        return words

    def touch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Marks the keys as used just now. Returns one status for each key, OK or MISS."""
        return statuses(self._ask(c.OP_TOUCH, keys, timeout))[0]

    def prefetch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Starts reading the chunks from disk or from the shared tier into memory, for a later get. Returns one status for each key,
        without waiting for the reads: OK if the chunk is in memory or its read has begun, MISS, BUSY if there is no room now or too many
        reads are pending, TOO_LARGE. A key that only the shared tier may have is OK, and may still be a miss."""
        return statuses(self._ask(c.OP_PREFETCH, keys, timeout))[0]

    def hint(self, keys: KeysLike, return_s: int = 0, timeout: float | None = None) -> bytes:
        """Announces when the chain, root first, will be used again: in about `return_s` seconds, or never if 0. Returns one status for each
        key, OK or MISS.

        A chain that will never be used again is evicted first, except chunks that another chain continues. The announcement ends with the chain's
        next use. Call this method when the requests that use the chain are complete."""
        return statuses(self._ask(c.OP_HINT, keys, timeout, return_seconds(return_s)))[0]

    def advise(self, keys: KeysLike, advice: str, return_s: int = 0, timeout: float | None = None, parent: Buffer | None = None) -> bytes:
        """Gives advice about a chain, root first. Returns one status for each key: for "pin", "unpin" and "prefetch" as those methods,
        otherwise OK or MISS, and BUSY for "demote" if the chunk is in use or not on disk. The advice is one of:

        "return": the chain will be used again in about `return_s` seconds, 1 or more. "final": the chain will never be used again. "tool_call":
        the engine stopped for a tool call, so the chain will be used again soon. "turn_end": the engine ended its turn, so the chain will be
        used again later. "pin", "unpin", "prefetch": as the methods of these names. "demote": drop the copies in memory of chunks that are on
        disk. "share": offer the chunks to the shared tier. The daemon believes a user's announcements to the extent that earlier ones came
        true. With "return", a chain may be announced in parts, its end first, each with the `parent` before it; the daemon then reads the whole
        chain from its beginning."""
        return statuses(self._ask(c.OP_ADVISE, keys, timeout, advice_number(advice, return_s), parent))[0]

    def pin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Exempts the chunks on disk from eviction until unpin(), as long as the tenant has other chunks to evict. Returns one status for
        each key: OK, BUSY if the chunk is still being written (retry after its put is written), QUOTA if the tenant has reached its limit
        of pinned bytes, MISS if the chunk is not stored, or only in memory and not about to be written."""
        return statuses(self._ask(c.OP_PIN, keys, timeout))[0]

    def unpin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        """Makes the chunks evictable again. Returns one status for each key: OK, also for a chunk that was not pinned, or MISS."""
        return statuses(self._ask(c.OP_UNPIN, keys, timeout))[0]

    def evict(self, keys: KeysLike, memory_only: bool = False, timeout: float | None = None) -> bytes:
        """Evicts the chunks, or only their copies in memory. Returns one status for each key: OK, MISS, BUSY with `memory_only` if the
        chunk is not on disk, FAILED if the chunk may be found again after a restart."""
        return statuses(self._ask(c.OP_EVICT, keys, timeout, c.TIER_MEMORY if memory_only else c.TIER_ALL))[0]

    def count_declined(self, count: int) -> bool:
        """Reports to the daemon that `count` more keys were found but not loaded, because computing them is faster. Returns False if the
        number cannot be reported now: this client has not opened the namespace or not used the lookup index yet, or the daemon has no such
        index."""
        return self._client._count_declined(self, count)

    # --- puts and gets that wait until they are complete ---

    def put(self, keys: Batch | KeysLike, places: PlacesLike | None = None, ack: str = "written",
            parent: Buffer | None = None, timeout: float | None = None, return_s: int | None = None, wait: bool = True) -> Done:
        """Stores the bytes at each place, and waits until the puts are complete.

        `ack`: when a put is complete: "accepted" (the chunk can be read, and may be lost with the daemon), "written" (it survives the death
        of the daemon), "durable" (it survives power loss). `return_s`: seconds until the chain is used again, 0 for never, or None if unknown;
        chunks that are needed late then do not displace chunks that are needed sooner. `wait`: whether to wait for room. If False, the status
        is BUSY if there is no room at once; and while the disk is behind, an accepted chunk may be evicted before it is written."""
        return self._move(c.OP_PUT, batch_of(keys, places, False), ack_number(ack), parent, timeout, expected_number(return_s), wait)

    def get(self, keys: Batch | KeysLike, places: PlacesLike | None = None, parent: Buffer | None = None,
            timeout: float | None = None) -> Done:
        """Copies each chunk to its place, and waits until the copies are complete. The status is TOO_LARGE if the chunk is longer than its
        place. If the status is not OK, the place may contain anything."""
        return self._move(c.OP_GET_INTO, batch_of(keys, places, True), 0, parent, timeout)

    def _move(self, op: int, batch: Batch, ack: int, parent: Buffer | None, timeout: float | None, advice: int = 0,
              wait: bool = True) -> Done:
        words = LOST_RESULT * batch.count
        r, why = self._client._call(self, op, batch.count, batch.address(), 0, words, ack=ack, tiers=advice, parent=parent, timeout=timeout,
                                   wait=wait)
        return Done(None, -r, why, words)

    def get_map(self, keys: KeysLike, timeout: float | None = None) -> Leased:
        """Leases the chunks in the daemon's memory, without a copy. Returns a Leased, which has None for each chunk that was not found."""
        with self._client._lock:  # until the Leased refers to the handle, no other thread may close it
            return Leased(self._client, self._ask(c.OP_GET, keys, timeout))

    # --- submitted requests: Client.reap() returns a Done for each, with its `tag` ---

    def submit_put(self, keys: Batch | KeysLike, places: PlacesLike | None = None, ack: str = "written",
                   parent: Buffer | None = None, tag: Hashable = 0, timeout: float | None = None, return_s: int | None = None,
                   wait: bool = True) -> None:
        batch = batch_of(keys, places, False)
        self._client._submit(self, c.OP_PUT, batch.count, batch.address(), 0, batch, tag, ack_number(ack), parent, timeout,
                             expected_number(return_s), wait)

    def submit_get(self, keys: Batch | KeysLike, places: PlacesLike | None = None, parent: Buffer | None = None,
                   tag: Hashable = 0, timeout: float | None = None) -> None:
        batch = batch_of(keys, places, True)
        self._client._submit(self, c.OP_GET_INTO, batch.count, batch.address(), 0, batch, tag, 0, parent, timeout)

    def submit_get_map(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        """Submits a get that leases the chunks in the daemon's memory. Done.leased has the chunks."""
        self._submit_keys(c.OP_GET, keys, tag, timeout)

    def submit_prefetch(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_PREFETCH, keys, tag, timeout)

    def submit_hint(self, keys: KeysLike, return_s: int = 0, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_HINT, keys, tag, timeout, return_seconds(return_s))

    def submit_advise(self, keys: KeysLike, advice: str, return_s: int = 0, tag: Hashable = 0, timeout: float | None = None,
                      parent: Buffer | None = None) -> None:
        self._submit_keys(c.OP_ADVISE, keys, tag, timeout, advice_number(advice, return_s), parent)

    def submit_touch(self, keys: KeysLike, tag: Hashable = 0, timeout: float | None = None) -> None:
        self._submit_keys(c.OP_TOUCH, keys, tag, timeout)

    def _submit_keys(self, op: int, keys: KeysLike, tag: Hashable, timeout: float | None, tiers: int = 0,
                     parent: Buffer | None = None) -> None:
        keys = keys if type(keys) is Keys else Keys(keys)
        self._client._submit(self, op, keys.count, 0, keys.address(), keys, tag, 0, parent, timeout, tiers)
