# SPDX-License-Identifier: Apache-2.0
"""Pages, which moves pages between the engine's memory and the daemon over a Link (link.py). Used by the adapters of SGLang and LMCache.

A page consists of pieces of memory, in order: K and V, or K and V of each layer. A page is stored as one chunk, or as several if it is
longer than `part_bytes`. A call moves its pages in rounds that fit into the daemon's pool. The link's timeout limits a whole load, but each
request of a store; a call waits longer only while the daemon may still access the engine's memory (Link.settle()). It returns False for
each page that was not moved, and raises no exception for a failure of the daemon.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .. import EXISTS, LOST, MISS, PENDING, TIER_REMOTE, Batch, Error, Namespace, Places, status_ok
from . import identity
from .link import LOOKUP_S, Link, Spaces

MOST_PIECES = 1024  # largest number of pieces of a chunk
MOST_KEYS = 1024    # most keys in a request, except those of match() and reach(); a page in more parts than this has a request of its own


class _Slice(NamedTuple):
    """A slice of a page: the number of its piece, and the range of bytes in that piece."""

    piece: int
    offset: int
    length: int


class _Addresses(Places):
    """Places from addresses. The engine, which owns the memory, must keep the memory during the request."""

    __slots__ = ()

    def __init__(self, addresses: array[int], lengths: array[int], pieces: int) -> None:
        self.addresses, self.lengths, self.pieces = addresses, lengths, pieces
        self.count, self.readonly, self._keep = len(addresses) // pieces, False, None


def parts_of(lengths: Sequence[int], part_bytes: int) -> list[list[_Slice]]:
    """Divides a page into chunks. Returns for each chunk the slices of the page that it contains. `lengths`: bytes of the page's pieces."""
    parts: list[list[_Slice]] = [[]]
    room = part_bytes
    for piece, length in enumerate(lengths):
        offset = 0
        while offset < length:
            if room == 0 or len(parts[-1]) == MOST_PIECES:
                parts.append([])
                room = part_bytes
            n = min(room, length - offset)
            parts[-1].append(_Slice(piece, offset, n))
            offset, room = offset + n, room - n
    return parts


class Pages:
    """The pages of one namespace. Keys are the daemon's keys of pages; `lengths` are the bytes of a page's pieces; `addresses` has the address of
    each piece of each page."""

    def __init__(self, link: Link, spaces: Spaces, part_bytes: int, ack: str) -> None:
        self._link, self._spaces, self._part_bytes, self._ack = link, spaces, part_bytes, ack

    # --- lookups ---

    def match(self, keys: Sequence[bytes], lengths: Sequence[int] = ()) -> int:
        """Returns how many leading pages are stored; 0 while the daemon does not work. Usually the lookup index answers, without a message.
        If this host lacks pages and the daemon has a shared tier, also counts the pages that a short search finds there (Link.reach_now()).
        Counts lookups and hits."""
        link = self._link
        if not keys:
            return 0
        if not link.well:
            link.count("unavailable", len(keys))
            return 0
        parts = len(parts_of(lengths, self._part_bytes)) if lengths else 1
        started = time.monotonic()
        names = [p for k in keys for p in identity.parts_of(k, parts)]
        try:
            run = self._spaces.lookups.match(names, timeout=LOOKUP_S) // parts
        except Error as e:  # another thread closes the link
            link.ail(str(e))
            return 0
        if not link.lookups.connected:
            link.ail(link.lookups.error)
            run = 0
        elif run < len(keys) and time.monotonic() - started >= LOOKUP_S:
            link.ail("the daemon does not answer a lookup")
        elif run < len(keys) and link.has_remote:
            reach = max(run, link.reach_now(self._spaces, names) // parts)
            link.count("remote_hits", reach - run)
            run = reach
        link.count("lookups", len(keys))
        link.count("hits", run)
        return run

    def exists(self, keys: Sequence[bytes], lengths: Sequence[int]) -> list[bool]:
        """Returns for each page whether all its chunks are stored on this host; False if the daemon does not answer. Unlike match(),
        does not count lookups and hits, and does not search the shared tier; reach() does."""
        link, found = self._link, [False] * len(keys)
        parts = len(parts_of(lengths, self._part_bytes))
        step = max(1, MOST_KEYS // parts)
        for first in range(0, len(keys), step):
            some = keys[first:first + step]
            if not link.well:
                link.count("unavailable", len(keys) - first)
                break
            started = time.monotonic()
            try:
                said = self._spaces.lookups.exists([p for k in some for p in identity.parts_of(k, parts)], timeout=LOOKUP_S)
            except Error as e:  # another thread closes the link
                link.ail(str(e))
                break
            if not link.lookups.connected:
                link.ail(link.lookups.error)
                break
            if PENDING in said or (time.monotonic() - started >= LOOKUP_S and not any(status_ok(s) for s in said)):
                link.ail("the daemon does not answer a lookup")
            found[first:first + step] = [all(status_ok(s) for s in said[i * parts:(i + 1) * parts]) for i in range(len(some))]
        return found

    def reach(self, keys: Sequence[bytes], lengths: Sequence[int], until: float) -> int:
        """Returns how many leading pages of a chain this host and the shared tier have together, as far as the daemon knows at the time `until`."""
        parts = len(parts_of(lengths, self._part_bytes))
        return self._link.reach(self._spaces, [p for k in keys for p in identity.parts_of(k, parts)], until) // parts

    def are_stored(self, keys: Sequence[bytes], lengths: Sequence[int]) -> list[bool | None]:
        """Returns for each page whether the daemon has all its chunks, or None if this is unknown, for example because the daemon does not
        answer. Does not count as a lookup or a use in the daemon."""
        return self._each_whole(self._spaces.searches.stat, keys, lengths, LOOKUP_S)

    def evict(self, keys: Sequence[bytes], lengths: Sequence[int]) -> list[bool | None]:
        """Evicts pages with all their chunks. Returns for each page whether the daemon had all its chunks, or None if they could not be
        evicted."""
        return self._each_whole(self._spaces.searches.evict, keys, lengths, self._link.timeout_s)

    def _each_whole(self, ask: Callable[..., bytes], keys: Sequence[bytes], lengths: Sequence[int],
                    timeout: float) -> list[bool | None]:
        """Calls `ask` for all chunks of the pages. `ask`: a method of the namespace over the connection for searches, so that no lookup
        waits for these requests. Returns for each page whether all its chunks were found, or None if that is unknown."""
        link = self._link
        found: list[bool | None] = [None] * len(keys)
        parts = len(parts_of(lengths, self._part_bytes))
        step = max(1, MOST_KEYS // parts)
        for first in range(0, len(keys), step):
            if not link.well:
                break
            some = keys[first:first + step]
            try:
                said = ask([p for k in some for p in identity.parts_of(k, parts)], timeout=timeout)
            except Error as e:  # another thread closes the link
                link.ail(str(e))
                break
            if LOST in said or PENDING in said:
                link.ail(link.searches.error or "the daemon does not answer")
                break
            for i in range(len(some)):
                status = said[i * parts:(i + 1) * parts]
                if all(status_ok(s) or s == MISS for s in status):
                    found[first + i] = all(status_ok(s) for s in status)
        return found

    # --- loads and stores ---

    def get(self, keys: Sequence[bytes], addresses: Sequence[int], lengths: Sequence[int], parent: bytes | None = None,
            loader: int = 0) -> list[bool]:
        """Loads pages over connection number `loader`. Returns for each page whether it was loaded. Stops after a round with a failure, because the
        engine only uses the pages before the failed one. The daemon does not access the memory after the return: if it writes directly to
        registered memory, a load that exceeds its deadline returns only when the daemon can no longer write."""
        into = self._link.into and self._are_shared(range(len(keys)), addresses, lengths)
        with self._link.moving() if into else contextlib.nullcontext():
            good = self._rounds(keys, addresses, lengths, parent, self._spaces.loaders[loader], into)
        found = sum(good)
        if not into:
            self._link.release(self._spaces.loaders[loader].client)
        self._link.count("loaded_pages", found)
        self._link.count("copied_loads", 0 if into else found)
        self._link.count("loaded_bytes", found * sum(lengths))
        self._link.count("failed_loads", len(keys) - found)
        return good

    def put(self, keys: Sequence[bytes], addresses: Sequence[int], lengths: Sequence[int], parent: bytes | None = None,
            earlier: set[bytes] | None = None) -> list[bool]:
        """Stores pages. Returns for each page whether it is stored, and adds to `earlier` the keys of pages of which the daemon already had a chunk.
        The daemon does not access the memory after the return."""
        with self._link.moving():
            good = self._rounds(keys, addresses, lengths, parent, None, earlier=earlier)
        stored = sum(good)
        self._link.count("copied_stores", sum(ok and not self._are_shared([i], addresses, lengths) for i, ok in enumerate(good)))
        self._link.count("stored_pages", stored)
        self._link.count("stored_bytes", stored * sum(lengths))
        self._link.count("failed_stores", len(keys) - stored)
        return good

    def _are_shared(self, pages: Iterable[int], addresses: Sequence[int], lengths: Sequence[int]) -> bool:
        n = len(lengths)
        return all(self._link.is_shared(addresses[i * n + j], lengths[j]) for i in pages for j in range(n) if i * n + j < len(addresses))

    def _rounds(self, keys: Sequence[bytes], addresses: Sequence[int], lengths: Sequence[int], parent: bytes | None,
                loads: Namespace | None, into: bool = False, earlier: set[bytes] | None = None) -> list[bool]:
        """Moves pages in rounds. Returns for each page whether it was moved. `loads`: the namespace to load from, or None to store. `into`: the
        daemon writes directly to the pages."""
        good, is_get = [False] * len(keys), loads is not None
        if len(addresses) != len(keys) * len(lengths) or not lengths or min(lengths) <= 0:
            raise ValueError(f"{len(addresses)} addresses and the lengths {list(lengths)[:4]} do not fit {len(keys)} pages: each piece of a page "
                             "needs an address and a length above 0")
        parts = parts_of(lengths, self._part_bytes)
        most = self._link.into_bytes if into else self._link.round_bytes
        step = max(1, min(most // sum(lengths), MOST_KEYS // len(parts)))
        deadline = time.monotonic() + self._link.timeout_s
        for first in range(0, len(keys), step):
            if not self._link.well:
                self._link.count("unavailable", len(keys) - first)
                break
            left = deadline - time.monotonic() if is_get else self._link.timeout_s
            if left <= 0:
                self._link.count("timeouts")
                break
            some = keys[first:first + step]
            if loads is not None and first + step < len(keys):  # the disk reads the next round while this one is copied
                ahead = keys[first + step:first + 2 * step]
                with contextlib.suppress(Error):  # the request of this round reports it
                    loads.prefetch([p for k in ahead for p in identity.parts_of(k, len(parts))], timeout=left)
            at = addresses[first * len(lengths):(first + step) * len(lengths)]
            said = self._round(some, at, len(lengths), parts, parent, loads, into, deadline if is_get else None, earlier)
            good[first:first + step] = said
            parent = some[-1]
            if is_get and not all(said):
                break
        return good

    def _round(self, keys: Sequence[bytes], addresses: Sequence[int], pieces: int, parts: list[list[_Slice]], parent: bytes | None,
               loads: Namespace | None, into: bool, deadline: float | None, earlier: set[bytes] | None) -> list[bool]:
        link, good, is_get = self._link, [True] * len(keys), loads is not None
        names = [identity.parts_of(k, len(parts)) for k in keys]
        for number, part in enumerate(parts):
            left = max(deadline - time.monotonic(), 0.001) if deadline is not None else link.timeout_s
            places = _Addresses(array("Q", [addresses[page * pieces + s.piece] + s.offset for page in range(len(keys)) for s in part]),
                                array("Q", [s.length for s in part]) * len(keys), len(part))
            batch = Batch([n[number] for n in names], places)
            above = parent if number == 0 else None
            try:
                if into:
                    done = link.get_into(self._spaces, batch, above, left)
                    link.heard(link.stores, done)
                    self._settle(done.status, places, True)
                elif loads is not None:
                    done = loads.get(batch, parent=above, timeout=left)
                    link.heard(loads.client, done)
                else:
                    done = link.put(self._spaces, batch, self._ack, above)
                    link.heard(link.stores, done)
                    self._settle(done.status, places)
            except Error as e:
                link.ail(str(e))
                if into or not is_get:  # the request may have been sent
                    self._settle(bytes([LOST]) * len(keys), places, is_get)
                return [False] * len(keys)
            whole = sum(s.length for s in part)
            for i, status in enumerate(done.status):
                if not status_ok(status):
                    good[i] = False
                elif is_get and done.lengths[i] != whole:
                    good[i] = False
                    link.count("wrong_lengths")
                elif is_get and done.tiers[i] & TIER_REMOTE:
                    link.count("loaded_remote_bytes", whole)
                elif status == EXISTS and earlier is not None:
                    earlier.add(keys[i])
            if not any(good) or not link.well and number + 1 < len(parts):
                return [False] * len(keys)
        return good

    def _settle(self, status: bytes, places: _Addresses, is_load: bool = False) -> None:
        n = places.pieces
        lost = [i for i, s in enumerate(status) if s in (PENDING, LOST)]
        if lost:
            self._link.settle([(places.addresses[j], places.lengths[j]) for i in lost for j in range(i * n, (i + 1) * n)], is_load)


def describe(tensor: Any) -> tuple[int, int]:
    """Returns the address and the size in bytes of a contiguous tensor in CPU memory. Raises ValueError for any other tensor."""
    if getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu" or not tensor.is_contiguous():
        raise ValueError("a page must lie in contiguous memory of the CPU")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
