# SPDX-License-Identifier: Apache-2.0
"""The ledger of the LMCache adapter (adapter.py) records the objects that this server has stored or found and that the daemon has.

LMCache learns by notifications which keys its L2 has stored, accessed and deleted, and its quotas delete keys by these records. The daemon only
knows digests of the keys, evicts chunks on its own, and also serves other servers. So the ledger keeps LMCache's keys with the objects' lengths,
and the adapter's audit compares them with the daemon. Any thread may call the methods. The caller has the lock `changing` during a change and
its notification, so that LMCache gets notifications in the order of the changes.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Held(NamedTuple):
    """An object of the ledger: LMCache's key, its namespace (adapter._Space), the daemon's key, and its size in bytes. `serial`: position in the
    order in which objects were first seen. `stamp`: differs after each confirmation, so that an older answer of the daemon cannot remove the
    object."""

    key: Any
    space: Any
    name: bytes
    nbytes: int
    serial: int
    stamp: int


class Ledger:
    """The objects by key and namespace, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self._held: dict[tuple[Any, int], Held] = {}
        self._order: list[tuple[int, tuple[Any, int]]] = []  # serial, and (key, id(space)); entries of removed objects stay until compaction
        self._suspects: dict[tuple[Any, int], None] = {}  # (key, id(space)) of the objects with which the next audit begins
        self._serials, self._stamps = itertools.count(1), itertools.count(1)
        self._audited = 0  # serial after which the next audit continues

    def __len__(self) -> int:
        return len(self._held)

    def confirm(self, space: Any, objects: Iterable[tuple[Any, bytes]], nbytes: int) -> list[Any]:
        """Records that the daemon has these objects, pairs of LMCache's key and the daemon's. Returns the keys that were not in the ledger."""
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
        """Removes objects unless they were confirmed again since they were read from the ledger. Returns the removed objects."""
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
        """Makes the next audit begin with these objects. Returns whether the next audit will begin with any object, of this call or an
        earlier one."""
        with self.changing:
            self._suspects.update(((h.key, id(h.space)), None) for h in objects)
            return bool(self._suspects)

    def after(self, serial: int, count: int, model: str | None = None) -> tuple[list[Held], int | None]:
        """Returns at most `count` objects with a serial above `serial`, of one model or of all, and the serial after which to continue, or None
        after the last object."""
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
        """Returns the objects for an audit: first those that suspect() has named since the last audit, then at most `count` others, in the
        order in which objects were first seen. After the last object, the audits begin again with the first."""
        with self.changing:
            suspects, self._suspects = self._suspects, {}
            listed = [held for identity in suspects if (held := self._held.get(identity)) is not None]
            rotated, self._audited = self._rotation(count)
        return listed + [h for h in rotated if (h.key, id(h.space)) not in suspects]

    def _rotation(self, count: int) -> tuple[list[Held], int]:
        rotated, following = self.after(self._audited, count)
        return rotated, following or 0
