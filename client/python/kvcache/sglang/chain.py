# SPDX-License-Identifier: Apache-2.0
"""Chain remembers which page precedes which in a prompt, so that the daemon can evict the ends of prompts before their beginnings.

SGLang passes the page before the first page of a call only with hicache_storage_pass_prefix_keys, and even then not for the second and later
calls of a prompt's first node. Lookups list the pages of a whole prompt in order. So the backend (storage.py) remembers the adjacent pages of
every call. A wrong or missing predecessor only changes the order of eviction.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence

MOST_PAGES = 1 << 16  # most pages whose predecessors are remembered


class Chain:
    """The predecessors of the pages that recent calls listed. Any thread may call the methods."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most, self._lock = most, threading.Lock()
        self._before: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._before)

    def learn(self, names: Sequence[bytes], parent: bytes | None = None) -> None:
        """Remembers that each page of `names` follows the page before it, and the first page follows `parent`."""
        pairs = list(itertools.pairwise([parent, *names] if parent is not None else names))
        with self._lock:
            for before, name in pairs[-self._most:]:
                self._before[name] = before
                self._before.move_to_end(name)
            while len(self._before) > self._most:
                self._before.popitem(last=False)

    def before(self, name: bytes) -> bytes | None:
        """Returns the key of the page before the page `name`, or None if no call among those remembered has listed that page after another
        one."""
        with self._lock:
            return self._before.get(name)
