# SPDX-License-Identifier: Apache-2.0
"""Leased, the chunks that a program reads directly in the daemon's memory; and Handle, which owns libkvcache's handle.

The views of a Leased, and objects made from them (slices, NumPy arrays), keep one object alive, the span of their memory. When the span is
freed, its leases are released. Closing libkvcache's handle unmaps the daemon's memory, so a handle is closed only after its last span was
freed. Finalizers may run in a thread that holds any lock, so they take no lock.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _library as c
from ._errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._client import Client

forks = 0  # number of forks from which this process descends
in_use: weakref.WeakSet[Leased] = weakref.WeakSet()  # Leased objects that have chunks and are not released


def _after_fork_in_child() -> None:
    """Makes the clients of the parent refuse calls in the child, and invalidates views of the pool, which is not mapped in a child."""
    global forks
    forks += 1
    for one in list(in_use):
        one._invalidate()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Handle:
    """Owns libkvcache's handle `kv`, and keeps the leases that are to be released. libkvcache's handle is closed once the client is closed and no
    leased memory is in use."""

    def __init__(self, kv: int) -> None:
        self.kv = kv
        self.closing = False
        self.spans: set[int] = set()
        self.is_unsent = False  # libkvcache may have releases that it sends with its next message
        self.returned: deque[bytes] = deque()  # leases to be released, which finalizers append in any thread, without a lock
        self._open = {"kv": kv}

    def close_if_unused(self) -> None:
        if self.closing and not self.spans:
            kv = self._open.pop("kv", None)
            if kv is not None:
                c.close(kv)


def _span_died(span: Any) -> None:
    handle = span.handle
    handle.returned.append(span.leases)
    handle.spans.discard(span.number)
    handle.close_if_unused()


_span_numbers = itertools.count()
_span_types: dict[int, Any] = {}


def span_over(handle: Handle, address: int, nbytes: int, leases: bytes) -> Any:
    """Returns a ctypes object over at least `nbytes` of memory at `address`. When the object is freed, `leases` become ready to be released
    (Handle.returned). The object's size is a power of two, so that few types are needed."""
    bits = nbytes.bit_length()
    kind: Any = _span_types.get(bits)
    if kind is None:
        kind = _span_types[bits] = type(f"_Span{bits}", (ctypes.c_char * (1 << bits),), {"__del__": _span_died})
    span = kind.from_address(address)
    span.handle, span.leases, span.number = handle, leases, next(_span_numbers)
    handle.spans.add(span.number)
    return span


def statuses(words: array[int]) -> tuple[bytes, bytes]:
    """Returns the statuses and the tiers of all keys, one byte for each key, from an array of struct kvcache_result."""
    column = words[::c.RESULT_WORDS].tobytes()
    return column[::8], column[4::8]


class Leased:
    """Leased chunks in the daemon's memory. `leased[i]` is a read-only memoryview of the chunk of key `i`, or None if `status[i]` is not OK.
    `lengths[i]` is the chunk's size in bytes.

    The object is a context manager. At the end of `with`, or with release(), the views become invalid (their use raises ValueError), and
    the daemon may reuse the memory. A slice or a NumPy array that was made from a view stays valid, and keeps all chunks of this request
    leased until it is freed."""

    __slots__ = ("status", "tiers", "lengths", "_addresses", "_first", "_all", "_views", "_client", "__weakref__")

    def __init__(self, client: Client, words: array[int]) -> None:
        self.status, self.tiers = statuses(words)
        self.lengths = words[1::c.RESULT_WORDS]
        self._addresses = words[3::c.RESULT_WORDS].tolist()
        self._client = client
        self._views: dict[int, memoryview] = {}
        self._all: memoryview | None = None
        self._first = 0
        there = [a for a in self._addresses if a]
        if there and client._handle is not None:
            self._first = min(there)
            end = max(map(int.__add__, self._addresses, self.lengths))
            span = span_over(client._handle, self._first, end - self._first, words[4::c.RESULT_WORDS].tobytes())
            self._all = memoryview(span).cast("B").toreadonly()
            in_use.add(self)

    def __repr__(self) -> str:
        if not hasattr(self, "_all"):
            return "<Leased nothing>"
        there = [n for n, address in zip(self.lengths, self._addresses) if address]
        state = f"{sum(there)} bytes" if self._all is not None or not there else "released"
        return f"<Leased {len(there)} of {len(self.status)}: {state}>"

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, i: int) -> memoryview | None:
        address = self._addresses[i]
        if not address:
            return None
        i %= len(self._addresses)
        view = self._views.get(i)
        if view is None:
            if self._all is None:
                raise ClosedError("the leased chunks were released")
            at = address - self._first
            view = self._views[i] = self._all[at:at + self.lengths[i]]
        return view

    def __iter__(self) -> Iterator[memoryview | None]:
        return (self[i] for i in range(len(self)))

    def _invalidate(self) -> None:
        for view in [*self._views.values(), self._all]:
            try:
                if view is not None:
                    view.release()
            except BufferError:  # an array uses the view, and keeps its memory leased
                pass
        self._all = None

    def release(self) -> None:
        """Ends the leases. The release is sent to the daemon with the client's next request, or flush(). A second call does nothing."""
        if self._all is None:
            return
        self._invalidate()
        self._views = {}
        self._client._give_back_if_free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
