# SPDX-License-Identifier: Apache-2.0
"""The canary of an engine verifies that the chunks stored in its namespaces are those that this engine would compute.

A namespace's name contains a digest of all known facts, but two engines with the same facts may compute different bytes, for example with a
patched kernel. So an engine with a canary loads no chunk of another engine until it has compared one with its own. The first requests that
would load such chunks get misses. The engine then computes the chunks and offers them for storing, and the adapter compares one computed chunk
of each group of layers with the stored one (canary.py). The compared chunk is not the first of its prompt, because a later one depends on all of
the model and on positions. If a request ends without a comparison, the next request with such chunks provides it.

- Until a namespace is verified, the engine stores nothing in it if other engines have used it, because its chunks could be wrong for them. In a
  new namespace, the engine stores chunks, and loads the chunks that it has stored itself.
- If a chunk differs, the engine continues with the next variant of the namespaces, NAME/v2 to NAME/v8, and leaves the others unchanged. The same
  happens if more than MOST_UNSTORED chunks were not stored and no chunk could be compared, because the namespace then has no chunks of this
  engine's prompts.
- After the last variant, nothing is loaded or stored.
- If no chunk of a group could be compared while MOST_UNSTORED were not stored, the group counts as verified once another group is. A new
  namespace counts as verified once the engine has stored MOST_OWN chunks in it.

One thread of the engine asks which chunks may be loaded. Another thread stores, compares, and moves to the next variant. In the vLLM adapter
these are the engine's thread, which also chooses the chunk to compare, and the mover's. In the SGLang adapter they are the prefetch thread and
the backup thread, which also chooses the chunk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .canary import Unit, distance

MODES = OFF, FIRST, ALWAYS = "off", "first", "always"
MOST_VARIANTS = 8      # number of the last variant
LONGEST_NAME = 255 - len("/v8")  # most characters of a namespace's name without the suffix of a variant
MOST_OWN = 1 << 18     # chunks that this engine stores in a new namespace until the namespace counts as verified
MOST_UNSTORED = 4096   # chunks that are not stored before the engine stops waiting for a comparison
SAMPLE = 10_000        # with the mode "always", one of this number of hits is computed and compared
COUNTERS = {
    "canary_checks": "Chunks that were computed and compared with the stored ones.",
    "canary_mismatches": "Chunks that differed from what this engine computes.",
    "canary_withheld": "Chunks that were found and not loaded, because the canary had not verified their namespace.",
    "canary_unstored": "Chunks that were not stored, because the canary had not verified their namespace.",
}


def named(name: str, number: int) -> str:
    """Returns the name of variant `number` of a namespace."""
    return name if number == 1 else f"{name}/v{number}"


class State(NamedTuple):
    """The state of a namespace, as the daemon reports it."""

    is_unused: bool  # the namespace has no chunk on disk, and no session has it open
    fingerprint: str


class Canary:
    """The canary of one engine. `mode`: "first" compares until the namespaces are verified, "always" also compares a sample of later hits, and "off"
    verifies nothing. `bound`: the distance above which chunks differ. `names` and `units`: by group, the namespace, and the units of a chunk; a
    group without units counts as verified once any other group is. `group_of`: returns the group of a key."""

    def __init__(self, mode: str, bound: float, names: Mapping[int, str], fingerprint: Mapping[str, str],
                 units: Mapping[int, Sequence[Unit]], group_of: Callable[[bytes], int], log: logging.Logger) -> None:
        self._group_of, self._log = group_of, log
        self._bound, self._first_names, self._fingerprint, self._units = bound, dict(names), fingerprint, units
        if mode != OFF and any(len(n) > LONGEST_NAME for n in names.values()):
            raise ValueError(f"with a canary, a namespace's name may have {LONGEST_NAME} characters at most, but "
                             f"{max(names.values(), key=len)} has more: shorten kvcache_namespace (vLLM) or the option namespace (SGLang)")
        opaque = sorted(g for g in names if not units.get(g))
        if mode != OFF and "private" in fingerprint:  # no other engine finds a private namespace
            mode = OFF
        elif mode != OFF and len(opaque) == len(names):
            self._log.warning("the canary is off, so stored chunks are loaded without a comparison: the bytes of this engine's KV caches cannot be "
                              "decoded")
            mode = OFF
        elif mode != OFF and opaque:
            self._log.warning("the canary cannot compare the groups %s, whose bytes cannot be decoded; they count as verified once another group is",
                              opaque)
        self.mode, self.number = mode, 1
        self._lock = threading.Lock()
        self._verified = set(names) if mode == OFF else set()
        self._own: set[int] = set()  # hashes of the keys that this engine has stored in a new namespace
        self._unused: set[int] = set()  # groups whose namespaces had no chunks and no session when the daemon was last asked
        self._is_new = False     # the namespaces had no chunks when this engine opened them
        self._differs = False    # a compared chunk differs, and moves() has not changed to the next variant yet
        self._has_ended = False  # no variant is left
        self._unstored = self._hits = 0
        self._stored_fingerprint = ""
        self._counts = dict.fromkeys(COUNTERS, 0)

    @property
    def names(self) -> dict[int, str]:
        """Returns the names of the namespaces in use, by group."""
        return self._named(self.number)

    def _named(self, number: int) -> dict[int, str]:
        return {g: named(n, number) for g, n in self._first_names.items()}

    @property
    def has_decided(self) -> bool:
        """Returns whether the namespaces in use are verified, or no variant is left."""
        return self._has_ended or self._verified.issuperset(self._first_names)

    def turn_off(self, why: str) -> None:
        """Stops verifying: all namespaces count as verified from now on."""
        if self.mode != OFF:
            self._log.warning("the canary is off, so stored chunks are loaded without a comparison: %s", why)
            with self._lock:
                self.mode, self._verified = OFF, set(self._first_names)

    def take_counts(self) -> dict[str, int]:
        """Returns the counters since the last call, by the names of COUNTERS."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(COUNTERS, 0)
            return counts

    # --- which chunks may be loaded, and which chunk is compared ---

    def loadable(self, group: int, keys: Sequence[bytes], number: int) -> int:
        """Returns how many leading chunks of `keys` may be loaded, and counts the others as withheld. `number`: the variant of the
        namespaces in which they were found; no chunk may be loaded if another variant is in use now."""
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
        """Returns the key of the chunk to compare, or None. `keys`: keys of consecutive chunks of one group that the engine computes.
        `has_parents`: other chunks of the request precede these. `stored`: for each of these chunks a number, 0 if the chunk is not stored.
        `withheld`: keys of stored chunks that the request could not load because of the canary."""
        if not withheld or not keys or not self._compares(self._group_of(keys[0])):
            return None
        return next((keys[i] for i in reversed(range(min(len(keys), len(stored))))
                     if stored[i] and keys[i] in withheld and (i or has_parents) and hash(keys[i]) not in self._own), None)

    def _compares(self, group: int) -> bool:
        return not self._has_ended and bool(self._units.get(group)) and (self.mode == ALWAYS or group not in self._verified)

    # --- stores, comparisons and variants ---

    def enter(self, state_of: Callable[[str], State | None], opened: Collection[int] = ()) -> None:
        """Asks the daemon whether the namespaces in use are new. Must be called before they are opened, and again before each later attempt to open
        them, because other engines may have used them since. `state_of`: returns the state of a namespace, or None if the daemon does not
        answer. `opened`: groups whose namespaces an earlier attempt has opened, about which the daemon is not asked again."""
        if self.mode != OFF:
            self._enter(self.number, state_of, opened)

    def _enter(self, number: int, state_of: Callable[[str], State | None], opened: Collection[int] = ()) -> None:
        states = {group: state_of(name) for group, name in self._named(number).items() if group not in opened}
        with self._lock:
            self.number = number
            self._unused = self._unused.intersection(opened).union(g for g, s in states.items() if s is not None and s.is_unused)
            self._is_new = self._unused.issuperset(self._first_names)
            self._stored_fingerprint = next((s.fingerprint for s in states.values() if s is not None), "")
            self._verified, self._own, self._unstored, self._differs = set(), set(), 0, False

    def may_store(self, group: int, count: int) -> bool:
        """Returns whether `count` chunks may be stored in the group's namespace now. If not, counts them as not stored."""
        if self.mode == OFF:
            return True
        with self._lock:
            if not self._has_ended and not self._differs:
                if group in self._verified or (self._is_new and len(self._own) < MOST_OWN):
                    return True
                self._unstored += count
                if self._is_new or (self._verified and self._unstored > MOST_UNSTORED):
                    self._log.info("the namespace %s is used without a comparison, because no chunk of it could be compared", self.names[group])
                    self._verify(self._first_names)
                    return True
            self._counts["canary_unstored"] += count
            return False

    def _verify(self, groups: Iterable[int]) -> None:
        """Marks groups as verified. The caller holds the lock."""
        self._verified = self._verified.union(groups)
        if self._verified.issuperset(self._first_names):
            self._own = set()

    def stored(self, keys: Sequence[bytes]) -> None:
        """Notes chunks that this engine has stored and that were not stored before."""
        if self.mode != OFF and self._is_new:
            with self._lock:
                self._own.update(hash(k) for k in keys if self._group_of(k) not in self._verified)

    def compare(self, key: bytes, computed: bytes | memoryview, stored: bytes | memoryview | None) -> None:
        """Compares a computed chunk with the stored one, and verifies or rejects the namespaces. `stored`: None if the stored chunk could not be
        read; the next chunk that is chosen is then compared instead."""
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
                    self._log.info("the namespace %s is verified: a stored chunk has the distance %.4f from the computed one (%s), and the bound is "
                                   "%g", self.names[group], found.value, found.unit or "equal bytes", self._bound)
                return
            self._counts["canary_mismatches"] += 1
            self._differs, self._verified = True, set()
        self._log.error("the namespace %s has chunks that differ from what this engine computes: %s has the distance %.3f, and the bound is %g. The "
                  "engine uses another namespace, and removes nothing from this one. Compare its fingerprint: %s, with this engine's: %s",
                  self.names[group],
                  found.unit, found.value, self._bound, self._stored_fingerprint.replace("\n", " ") or "not known", dict(self._fingerprint))

    def moves(self, state_of: Callable[[str], State | None]) -> bool:
        """Changes to the next variant if a chunk differed, or no chunk could be compared. After the last variant, changes nothing: from then on
        nothing is loaded or stored. Returns whether `names` have changed."""
        without_overlap = not self._verified and not self._is_new and self._unstored > MOST_UNSTORED
        if self.mode == OFF or self._has_ended or not (self._differs or without_overlap):
            return False
        if self.number == MOST_VARIANTS:
            self._has_ended = True
            self._log.error("the canary has no variant of the namespace %s left: in each, a chunk differed or no chunk could be compared, so nothing is "
                      "loaded or stored. Remove unneeded ones with `kvcachectl namespace rm --purge NAME`, and start the engine again",
                            next(iter(self._first_names.values())))
            return False
        self._enter(self.number + 1, state_of)
        self._log.warning("the engine uses the namespace %s from now on, because %s", next(iter(self.names.values())),
                    f"in the one before none of {MOST_UNSTORED} chunks could be compared" if without_overlap else
                    "a chunk of the one before differed")
        return True
