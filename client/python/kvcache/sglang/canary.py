# SPDX-License-Identifier: Apache-2.0
"""The canary of SGLang's pages (kvcache.engine.verification): a stored page is compared with a computed one before any is loaded.

A rank compares what it stores itself, so the backend has no canary where one rank stores for all (storage.py). The prefetch thread is given no page of another engine at first. SGLang computes these pages and hands them to the backup thread, which
compares one. Further host pools are verified with that of K and V, whose pieces are compared apart.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from ..engine import canary as distances
from ..engine.canary import Unit
from ..engine.verification import FIRST, OFF, Canary, State, named

log = logging.getLogger("kvcache.sglang")

MOST_WITHHELD = 1 << 16  # SGLang was not given these pages, and they may be compared


class PageCanary:
    """`dtype`: that of the elements of the pool of K and V. `lengths`: those of a page's pieces."""

    def __init__(self, bound: float, dtype: str, lengths: Sequence[int], name: str, fields: Mapping[str, str],
                 state_of: Callable[[str], State | None]) -> None:
        dtype, units, at = dtype.rpartition(".")[2], [], 0
        for i, length in enumerate(lengths):
            units.append(Unit(f"piece {i}", dtype, ((at, at + length),)))
            at += length
        self._canary = Canary(FIRST, bound, {0: name}, fields, {0: units if distances.can_decode(dtype) else []}, lambda _: 0, log)
        self._state_of = state_of
        self._withheld: dict[bytes, None] = {}
        self._lock = threading.Lock()
        self._canary.enter(state_of)

    @property
    def is_open(self) -> bool:
        """Returns whether the namespace is still to be verified."""
        return self._canary.mode != OFF and not self._canary.has_decided

    def named(self, name: str) -> str:
        """Returns the name of the variant in use of a namespace."""
        return named(name, self._canary.number)

    def loadable(self, names: Sequence[bytes]) -> int:
        """Returns how many of these stored pages SGLang may load, from the first on, and remembers the others."""
        n = self._canary.loadable(0, names, self._canary.number)
        with self._lock:
            self._withheld.update(dict.fromkeys(names[n:]))
            while len(self._withheld) > MOST_WITHHELD:
                del self._withheld[next(iter(self._withheld))]
        return n

    def compare(self, names: Sequence[bytes], there: Sequence[bool], addresses: Sequence[int], lengths: Sequence[int], has_parent: bool,
                stored_page: Callable[[bytes], bytes | None]) -> bool:
        """Compares one of these computed pages with the stored one, if there is one that may be compared. Returns whether the namespaces have
        other names from now on. `there`: which pages are stored."""
        if not self.is_open:
            return False
        with self._lock:
            withheld = {n for n in names if n in self._withheld}
        key = self._canary.choose(names, bytes(there), withheld, has_parent)
        if key is not None:
            at = names.index(key) * len(lengths)
            self._canary.compare(key, b"".join(map(ctypes.string_at, addresses[at:at + len(lengths)], lengths)), stored_page(key))
        if not self.is_open:
            with self._lock:
                self._withheld.clear()
        return self._canary.moves(self._state_of)

    def may_store(self, count: int) -> bool:
        return self._canary.may_store(0, count)

    def stored(self, names: Sequence[bytes]) -> None:
        """Notes pages of this engine that no other engine had stored before."""
        self._canary.stored(names)

    def take_counts(self) -> dict[str, int]:
        return self._canary.take_counts()
