# SPDX-License-Identifier: Apache-2.0
"""The ledger: records which of LMCache's objects the daemon holds, among those that this server stored or found.

LMCache accounts for its L2 by notifications of stored, accessed and deleted keys, and its quotas delete keys by these records. The daemon
knows only digests, evicts on its own, and also serves other servers. Therefore the ledger keeps LMCache's keys with their lengths, and the
adapter's audit compares them with the daemon. Every method may be called from any thread. The caller's lock `changing` covers a change and
its notification, so that LMCache sees both in one order.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Held(NamedTuple):
    """An object of the ledger. `stamp` differs after each confirmation, so that an older observation cannot remove the object."""

    key: Any
    space: Any
    name: bytes
    nbytes: int
    serial: int
    stamp: int


class Ledger:
    """Objects by key and namespace, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self._held: dict[tuple[Any, int], Held] = {}
        self._order: list[tuple[int, tuple[Any, int]]] = []  # serial, identity; entries of removed objects stay until compaction
        self._suspects: dict[tuple[Any, int], None] = {}
        self._serials, self._stamps = itertools.count(1), itertools.count(1)
        self._audited = 0  # serial at which the rotation continues

    def __len__(self) -> int:
        return len(self._held)

    def confirm(self, space: Any, objects: Iterable[tuple[Any, bytes]], nbytes: int) -> list[Any]:
        """Records that the daemon holds these objects (key, name). Returns the keys that were not in the ledger."""
        new = []
        with self.changing:
            for key, name in objects:
                identity = (key, id(space))
                old = self._held.get(identity)
                serial = old.serial if old is not None else next(self._serials)
                self._held[identity] = Held(key, space, name, nbytes, serial, next(self._stamps))
                if old is None:
                    self._order.append((serial, identity))
                    new.append(key)
        return new

    def remove(self, objects: Sequence[Held]) -> list[Held]:
        """Removes objects that were not confirmed since they were read. Returns the removed ones."""
        removed = []
        with self.changing:
            for held in objects:
                identity = (held.key, id(held.space))
                if self._held.get(identity, held).stamp == held.stamp and self._held.pop(identity, None) is not None:
                    removed.append(held)
            if len(self._order) > 2 * len(self._held) + 64:
                self._order = [(h.serial, i) for i, h in self._held.items()]
                self._order.sort(key=lambda entry: entry[0])
        return removed

    def of_key(self, key: Any, spaces: Iterable[Any]) -> list[Held]:
        """Returns the objects under this key in these namespaces."""
        return [held for space in spaces if (held := self._held.get((key, id(space)))) is not None]

    def suspect(self, objects: Iterable[Held]) -> bool:
        """Has the next audit begin with these. Returns whether there are any."""
        with self.changing:
            self._suspects.update(((h.key, id(h.space)), None) for h in objects)
            return bool(self._suspects)

    def after(self, serial: int, count: int, model: str | None = None) -> tuple[list[Held], int | None]:
        """Returns at most `count` objects first seen after `serial`, and the serial to continue from; None after the last object."""
        found: list[Held] = []
        with self.changing:
            start = bisect.bisect_right(self._order, serial, key=lambda entry: entry[0])
            for at in range(start, len(self._order)):
                position, identity = self._order[at]
                held = self._held.get(identity)
                if held is None or held.serial != position or (model is not None and held.key.model_name != model):
                    continue
                if len(found) == count:
                    return found, found[-1].serial
                found.append(held)
        return found, None

    def to_audit(self, count: int) -> list[Held]:
        """Returns the suspects and the next `count` objects of the rotation."""
        with self.changing:
            suspects, self._suspects = self._suspects, {}
            listed = [held for identity in suspects if (held := self._held.get(identity)) is not None]
            rotated, self._audited = self._rotation(count)
        return listed + [h for h in rotated if (h.key, id(h.space)) not in suspects]

    def _rotation(self, count: int) -> tuple[list[Held], int]:
        rotated, following = self.after(self._audited, count)
        return rotated, following or 0
