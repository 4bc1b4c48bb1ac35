# SPDX-License-Identifier: Apache-2.0
"""The canary of SGLang's pages: it compares a stored page with a computed one before this engine loads any page of another engine.

kvcache.engine.verification has the rules. The backend (storage.py) finds no page of another engine at first. SGLang therefore computes these
pages and passes them to the backup thread, which compares one of them. A rank can only compare pages that it stores itself, so a backend whose
model has one rank store for all has no canary. The pieces of a page of K and V are compared separately; further host pools are not compared,
and count as verified together with the pool of K and V.
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

MOST_WITHHELD = 1 << 16  # how many keys of pages that the canary withheld from SGLang are kept, to compare one of these pages later


class PageCanary:
    """The canary of one backend. `dtype`: the dtype of the pool of K and V. `lengths`: the lengths in bytes of the pieces of a page. `state_of`:
    returns the state of a namespace, or None if the daemon does not answer."""

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

    def enter(self) -> None:
        """Asks the daemon whether the namespace in use is new. Must be called before each later attempt to open the namespace."""
        self._canary.enter(self._state_of)

    def named(self, name: str) -> str:
        """Returns the name of the variant in use of the namespace `name`."""
        return named(name, self._canary.number)

    def loadable(self, names: Sequence[bytes]) -> int:
        """Returns how many leading pages of `names`, which are all stored, SGLang may load. Remembers the other pages for the comparison."""
        n = self._canary.loadable(0, names, self._canary.number)
        with self._lock:
            self._withheld.update(dict.fromkeys(names[n:]))
            while len(self._withheld) > MOST_WITHHELD:
                del self._withheld[next(iter(self._withheld))]
        return n

    def compare(self, names: Sequence[bytes], there: Sequence[bool], addresses: Sequence[int], lengths: Sequence[int], has_parent: bool,
                stored_page: Callable[[bytes], bytes | None]) -> bool:
        """Compares one of these computed pages with the stored one, if a page is suitable. Returns whether the namespaces have other names
        from now on. `there`: for each page, whether it is stored. `has_parent`: another page of the prompt precedes `names`."""
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
        """Notes pages that this engine has stored and that were not stored before."""
        self._canary.stored(names)

    def take_counts(self) -> dict[str, int]:
        return self._canary.take_counts()
