# SPDX-License-Identifier: Apache-2.0
"""The order of pages: which page precedes which in a prompt, so that the daemon evicts ends of prompts before their beginnings.

SGLang names the page before a call's first one only with hicache_storage_pass_prefix_keys, and even then not for the second and later
calls of a prompt's first node. Lookups name the pages of a whole prompt in order. So the adjacent pages of every call are remembered.
A wrong or missing predecessor changes only what is evicted first.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence

MOST_PAGES = 1 << 16


class Chain:
    """The page before each of the most recently named pages. Any thread may call it."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most, self._lock = most, threading.Lock()
        self._before: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._before)

    def learn(self, names: Sequence[bytes], parent: bytes | None = None) -> None:
        """Remembers that each of the names follows the one before it, and the first follows `parent`."""
        pairs = list(itertools.pairwise([parent, *names] if parent is not None else names))
        with self._lock:
            for before, name in pairs[-self._most:]:
                self._before[name] = before
                self._before.move_to_end(name)
            while len(self._before) > self._most:
                self._before.popitem(last=False)

    def before(self, name: bytes) -> bytes | None:
        """Returns the page before this one, or None if no call has named it."""
        with self._lock:
            return self._before.get(name)
