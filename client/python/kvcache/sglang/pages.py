# SPDX-License-Identifier: Apache-2.0
"""Moves pages between memory of any layout and the daemon; independent of SGLang.

A page consists of pieces of memory, in order: K and V, or K and V of each layer. It is stored as one chunk, or as several if it is longer
than `part_bytes`. Calls wait for the daemon at most the link's timeout, in rounds that the daemon can hold at a time. They return False for
each page that was not moved, and raise nothing for a failure of the daemon.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .. import LOST, MISS, PENDING, TIER_REMOTE, Batch, Error, Namespace, Places, status_ok
from . import identity
from .link import LOOKUP_S, Link, Spaces

MOST_PIECES = 1024  # the pieces of a chunk
MOST_KEYS = 1024    # the keys of a lookup or a round


class _Slice(NamedTuple):
    """A slice of a page: the number of its piece, and the range in that piece."""

    piece: int
    offset: int
    length: int


class _Addresses(Places):
    """Places that are known by address; the pages' owner keeps the memory."""

    __slots__ = ()

    def __init__(self, addresses: array[int], lengths: array[int], pieces: int) -> None:
        self.addresses, self.lengths, self.pieces = addresses, lengths, pieces
        self.count, self.readonly, self._keep = len(addresses) // pieces, False, None


def parts_of(lengths: Sequence[int], part_bytes: int) -> list[list[_Slice]]:
    """Returns the slices of a page that each of its chunks holds."""
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
    """The pages of one namespace."""

    def __init__(self, link: Link, spaces: Spaces, part_bytes: int, ack: str) -> None:
        self._link, self._spaces, self._part_bytes, self._ack = link, spaces, part_bytes, ack

    # --- lookups ---

    def match(self, keys: Sequence[bytes], lengths: Sequence[int] = ()) -> int:
        """Returns how many leading keys are stored. Reads the lookup index without a message; keys that this host lacks are searched for in the
        shared tier, if there is one, for at most SEARCH_S. `lengths` are those of a page's pieces."""
        link = self._link
        if not keys:
            return 0
        if not link.well:
            link.count("unavailable", len(keys))
            return 0
        parts = len(parts_of(lengths, self._part_bytes)) if lengths else 1
        started = time.monotonic()
        names = [p for k in keys for p in identity.parts_of(k, parts)]
        run = self._spaces.lookups.match(names, timeout=LOOKUP_S) // parts
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
        """Returns which keys are stored, with all their parts. Differs from match() in that the caller counts, and that only reach() asks
        the tier that hosts share."""
        link, found = self._link, [False] * len(keys)
        parts = len(parts_of(lengths, self._part_bytes))
        step = max(1, MOST_KEYS // parts)
        for first in range(0, len(keys), step):
            some = keys[first:first + step]
            if not link.well:
                link.count("unavailable", len(keys) - first)
                break
            started = time.monotonic()
            said = self._spaces.lookups.exists([p for k in some for p in identity.parts_of(k, parts)], timeout=LOOKUP_S)
            if not link.lookups.connected:
                link.ail(link.lookups.error)
                break
            if PENDING in said or (time.monotonic() - started >= LOOKUP_S and not any(status_ok(s) for s in said)):
                link.ail("the daemon does not answer a lookup")
            found[first:first + step] = [all(status_ok(s) for s in said[i * parts:(i + 1) * parts]) for i in range(len(some))]
        return found

    def reach(self, keys: Sequence[bytes], lengths: Sequence[int], until: float) -> int:
        """Returns how many pages of a chain, root first, this host or the shared tier has, as far as is known at the time `until`."""
        parts = len(parts_of(lengths, self._part_bytes))
        return self._link.reach(self._spaces, [p for k in keys for p in identity.parts_of(k, parts)], until) // parts

    def are_stored(self, keys: Sequence[bytes], lengths: Sequence[int]) -> list[bool | None]:
        """Returns for each key whether the daemon holds all its parts; None where it does not say. Counts no lookup and is no use."""
        return self._each_whole(self._spaces.searches.stat, keys, lengths, LOOKUP_S)

    def evict(self, keys: Sequence[bytes], lengths: Sequence[int]) -> list[bool | None]:
        """Has the daemon forget keys with all their parts. Returns for each whether it held the key; None where it is not evicted."""
        return self._each_whole(self._spaces.searches.evict, keys, lengths, self._link.timeout_s)

    def _each_whole(self, ask: Callable[..., bytes], keys: Sequence[bytes], lengths: Sequence[int],
                    timeout: float) -> list[bool | None]:
        """Asks about all parts of keys over the connection that searches, which no lookup waits for."""
        link = self._link
        found: list[bool | None] = [None] * len(keys)
        parts = len(parts_of(lengths, self._part_bytes))
        step = max(1, MOST_KEYS // parts)
        for first in range(0, len(keys), step):
            if not link.well:
                break
            some = keys[first:first + step]
            said = ask([p for k in some for p in identity.parts_of(k, parts)], timeout=timeout)
            if LOST in said or PENDING in said:
                link.ail(link.searches.error or "the daemon does not answer")
                break
            for i in range(len(some)):
                status = said[i * parts:(i + 1) * parts]
                if all(status_ok(s) or s == MISS for s in status):
                    found[first + i] = all(status_ok(s) for s in status)
        return found

    # --- bytes ---

    def get(self, keys: Sequence[bytes], addresses: Sequence[int], lengths: Sequence[int], parent: bytes | None = None,
            loader: int = 0) -> list[bool]:
        """Loads pages into their pieces, of these lengths, over connection number `loader`. Stops after a round with a failure, because SGLang
        uses only the pages before it. The daemon does not touch the memory afterwards: if it writes registered pages itself, a load past its
        deadline returns only when it can no longer do so."""
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

    def put(self, keys: Sequence[bytes], addresses: Sequence[int], lengths: Sequence[int], parent: bytes | None = None) -> list[bool]:
        """Stores pages. Returns when the daemon reads the memory no more."""
        with self._link.moving():
            good = self._rounds(keys, addresses, lengths, parent, None)
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
                loads: Namespace | None, into: bool = False) -> list[bool]:
        """Moves pages in rounds; `loads` is the namespace to load from, or None to store; `into`: the daemon writes to the pages."""
        good, is_get = [False] * len(keys), loads is not None
        if len(addresses) != len(keys) * len(lengths) or not lengths or min(lengths) <= 0:
            raise ValueError(f"{len(keys)} pages of {len(lengths)} pieces, and {len(addresses)} addresses")
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
                loads.prefetch([p for k in ahead for p in identity.parts_of(k, len(parts))], timeout=left)
            at = addresses[first * len(lengths):(first + step) * len(lengths)]
            said = self._round(some, at, len(lengths), parts, parent, loads, into, deadline if is_get else None)
            good[first:first + step] = said
            parent = some[-1]
            if is_get and not all(said):
                break
        return good

    def _round(self, keys: Sequence[bytes], addresses: Sequence[int], pieces: int, parts: list[list[_Slice]], parent: bytes | None,
               loads: Namespace | None, into: bool, deadline: float | None) -> list[bool]:
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
                if into:  # the request may have been sent
                    self._settle(bytes([LOST]) * len(keys), places, True)
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
        raise ValueError("a page lies in contiguous memory of the CPU")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
