# SPDX-License-Identifier: Apache-2.0
"""The canary of an engine: whether stored chunks are what this engine computes.

A namespace's name has all facts that are known, and may yet be wrong: a patched kernel, a change of a backend that no fact shows. So an
engine loads no chunk of another engine until it has compared one with its own. The first requests that would load such chunks get misses.
The engine computes the chunks and offers them to be stored; the adapter compares one of each group with the stored one. It is not
the first of its request: a chunk behind others depends on all of the model and on positions. If a request ends without a
comparison, the next one with such chunks has it.

- Until then the engine stores nothing in a namespace that others have used, since its chunks could be wrong for them. It stores in
  a new one, and loads from there what it has stored itself.
- Where a chunk differs, the engine goes on to the next variant, NAME/v2 to NAME/v8, and touches nothing in the others. The same happens
  where MOST_UNSTORED chunks had to be left out and none could be compared: the namespace has nothing for this traffic.
- Past the last variant nothing is loaded or stored.
- A group of which no chunk could be compared while MOST_UNSTORED were left out is verified by the others. So is a new namespace in which
  the engine has stored MOST_OWN chunks and met none of another engine.

One thread of the engine asks what may be loaded and chooses what is compared. Another one stores, compares, and moves to the next variant.
In the vLLM adapter these are the engine's thread and the mover's; in the SGLang adapter the prefetch and the backup thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .canary import Unit, distance

MODES = OFF, FIRST, ALWAYS = "off", "first", "always"
MOST_VARIANTS = 8
LONGEST_NAME = 255 - len("/v8")
MOST_OWN = 1 << 18     # chunks of this engine in a new namespace
MOST_UNSTORED = 4096   # chunks that are not stored while none can be compared
SAMPLE = 10_000        # hits, one of which is computed and compared with "always"
COUNTERS = {
    "canary_checks": "Chunks that were computed and compared with the stored ones.",
    "canary_mismatches": "Chunks that differed from what this engine computes.",
    "canary_withheld": "Chunks that were found and not loaded, because the canary had not verified their namespace.",
    "canary_unstored": "Chunks that were not stored, because the canary had not verified their namespace.",
}


def named(name: str, number: int) -> str:
    """Returns the name of a variant of a namespace."""
    return name if number == 1 else f"{name}/v{number}"


class State(NamedTuple):
    """A namespace as the daemon knows it."""

    is_unused: bool  # no chunk on disk, and no session has it open
    fingerprint: str


class Canary:
    """`names` and `units`: by group. `bound`: chunks that are further apart differ. A group without units is verified with the others.
    `group_of` returns the group of a key."""

    def __init__(self, mode: str, bound: float, names: Mapping[int, str], fingerprint: Mapping[str, str],
                 units: Mapping[int, Sequence[Unit]], group_of: Callable[[bytes], int], log: logging.Logger) -> None:
        self._group_of, self._log = group_of, log
        self._bound, self._first_names, self._fingerprint, self._units = bound, dict(names), fingerprint, units
        if mode != OFF and any(len(n) > LONGEST_NAME for n in names.values()):
            raise ValueError(f"with a canary a namespace's name has at most {LONGEST_NAME} characters, and "
                             f"{max(names.values(), key=len)} has more: shorten kvcache_namespace, or SGLang's namespace")
        opaque = sorted(g for g in names if not units.get(g))
        if mode != OFF and "private" in fingerprint:  # no other engine finds it
            mode = OFF
        elif mode != OFF and len(opaque) == len(names):
            self._log.warning("the canary is off: the bytes of the engine's KV caches cannot be decoded")
            mode = OFF
        elif mode != OFF and opaque:
            self._log.warning("the canary does not compare the groups %s, whose bytes cannot be decoded, and verifies them by the others", opaque)
        self.mode, self.number = mode, 1
        self._lock = threading.Lock()
        self._verified = set(names) if mode == OFF else set()
        self._own: set[int] = set()  # hashes of the keys that this engine has stored in a new namespace
        self._is_new = False     # the namespaces had no chunks when this engine opened them
        self._differs = False    # a chunk did, and the mover has not moved yet
        self._has_ended = False  # there is no variant left
        self._unstored = self._hits = 0
        self._stored_fingerprint = ""
        self._counts = dict.fromkeys(COUNTERS, 0)

    @property
    def names(self) -> dict[int, str]:
        """The namespaces in use, by group."""
        return self._named(self.number)

    def _named(self, number: int) -> dict[int, str]:
        return {g: named(n, number) for g, n in self._first_names.items()}

    @property
    def has_decided(self) -> bool:
        """Returns whether the namespaces in use are verified, or none is left."""
        return self._has_ended or self._verified.issuperset(self._first_names)

    def turn_off(self, why: str) -> None:
        """Believes the names from here on."""
        if self.mode != OFF:
            self._log.warning("the canary is off: %s", why)
            with self._lock:
                self.mode, self._verified = OFF, set(self._first_names)

    def take_counts(self) -> dict[str, int]:
        """Returns what was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(COUNTERS, 0)
            return counts

    # --- the engine's thread ---

    def loadable(self, group: int, keys: Sequence[bytes], number: int) -> int:
        """Returns how many of these chunks may be loaded, from the first on. They are stored in the variant of this number."""
        if self.mode == OFF or not keys:
            return len(keys)
        with self._lock:
            n = self._loadable(group, keys) if number == self.number and not self._differs else 0
            self._counts["canary_withheld"] += len(keys) - n
            return n

    def _loadable(self, group: int, keys: Sequence[bytes]) -> int:
        if self._has_ended or group not in self._verified:
            return next((i for i, k in enumerate(keys) if self._has_ended or hash(k) not in self._own), len(keys))
        if self.mode == ALWAYS and self._units.get(group) and len(keys) > 1:
            self._hits += len(keys)
            if self._hits >= SAMPLE:
                self._hits = 0
                return len(keys) - 1
        return len(keys)

    def choose(self, keys: Sequence[bytes], stored: bytes, withheld: set[bytes], has_parents: bool) -> bytes | None:
        """Returns the chunk to be compared. `keys`: of a group, computed one after the other, behind others of the request if it
        `has_parents`. `stored`: a number each, 0: it is not stored. `withheld`: keys of stored chunks that the request was not given."""
        if not withheld or not keys or not self._compares(self._group_of(keys[0])):
            return None
        return next((keys[i] for i in reversed(range(min(len(keys), len(stored))))
                     if stored[i] and keys[i] in withheld and (i or has_parents) and hash(keys[i]) not in self._own), None)

    def _compares(self, group: int) -> bool:
        return not self._has_ended and bool(self._units.get(group)) and (self.mode == ALWAYS or group not in self._verified)

    # --- the mover's thread ---

    def enter(self, state_of: Callable[[str], State | None]) -> None:
        """Learns whether the namespaces are new. Called before they are opened."""
        if self.mode != OFF:
            self._enter(1, state_of)

    def _enter(self, number: int, state_of: Callable[[str], State | None]) -> None:
        states = [state_of(name) for name in self._named(number).values()]
        with self._lock:
            self.number = number
            self._is_new = all(s is not None and s.is_unused for s in states)
            self._stored_fingerprint = next((s.fingerprint for s in states if s is not None), "")
            self._verified, self._own, self._unstored, self._differs = set(), set(), 0, False

    def may_store(self, group: int, count: int) -> bool:
        """Returns whether so many chunks may be stored in the group's namespace now."""
        if self.mode == OFF:
            return True
        with self._lock:
            if not self._has_ended and not self._differs:
                if group in self._verified or (self._is_new and len(self._own) < MOST_OWN):
                    return True
                self._unstored += count
                if self._is_new or (self._verified and self._unstored > MOST_UNSTORED):
                    self._log.info("%s: no chunk of it could be compared, and the engine uses it all the same", self.names[group])
                    self._verify(self._first_names)
                    return True
            self._counts["canary_unstored"] += count
            return False

    def _verify(self, groups: Iterable[int]) -> None:
        """In the lock."""
        self._verified = self._verified.union(groups)
        if self._verified.issuperset(self._first_names):
            self._own = set()

    def stored(self, keys: Sequence[bytes]) -> None:
        """Notes chunks of this engine that no other engine had stored before."""
        if self.mode != OFF and self._is_new:
            with self._lock:
                self._own.update(hash(k) for k in keys if self._group_of(k) not in self._verified)

    def compare(self, key: bytes, computed: bytes | memoryview, stored: bytes | memoryview | None) -> None:
        """`stored`: None where it could not be got. The next chunk is then compared instead."""
        group = self._group_of(key)
        if stored is None or self._differs or not self._compares(group) or hash(key) in self._own:
            return
        found = distance(self._units[group], computed, stored)
        with self._lock:
            self._counts["canary_checks"] += 1
            if found.value <= self._bound:
                is_first = group not in self._verified
                self._verify([group, *(g for g in self._first_names if not self._units.get(g))])
                if is_first:
                    self._log.info("%s is verified: a stored chunk is %.4f from the computed one (%s); the bound is %g", self.names[group],
                             found.value, found.unit or "equal bytes", self._bound)
                return
            self._counts["canary_mismatches"] += 1
            self._differs, self._verified = True, set()
        self._log.error("%s has chunks that this engine does not compute: %s is %.3f from the computed one, and the bound is %g. The engine "
                  "loads none of them from now on, and removes none. The namespace's fingerprint: %s. This engine's: %s", self.names[group],
                  found.unit, found.value, self._bound, self._stored_fingerprint.replace("\n", " ") or "not known", dict(self._fingerprint))

    def moves(self, state_of: Callable[[str], State | None]) -> bool:
        """Goes on to the next variant where it has to. Returns whether `names` have changed."""
        without_overlap = not self._verified and not self._is_new and self._unstored > MOST_UNSTORED
        if self.mode == OFF or self._has_ended or not (self._differs or without_overlap):
            return False
        if self.number == MOST_VARIANTS:
            self._has_ended = True
            self._log.error("no variant of %s is left: nothing is loaded or stored. Remove namespaces with `kvcachectl namespace rm --purge` "
                      "and start the engine again", next(iter(self._first_names.values())))
            return False
        self._enter(self.number + 1, state_of)
        self._log.warning("the namespace is %s from now on%s", next(iter(self.names.values())),
                    "" if not without_overlap else f": the one before has nothing that could be compared in {MOST_UNSTORED} chunks")
        return True
