# SPDX-License-Identifier: Apache-2.0
"""Lookups of sliding windows and of states (Mamba, linear attention), which are windows of one chunk; nothing of vLLM.

vLLM asks for such a group's chunks from the end of the prompt backwards and takes the last run as long as the window. A wrapper (hooks.py)
leaves the keys and the window's size in the request's context. So the first question is about the window's keys together, and a run that is
found is leased, and nothing else. Where the window is not there, further questions go backwards, each about more keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MOST_KEYS = 4096  # keys in one lookup
GROWTH = 4


class Window(NamedTuple):
    """A lookup of vLLM for a window of `size` chunks. `first_size`: the chunks that a run needs if it ends at the last key, which may be more."""

    keys: Sequence[bytes]
    size: int
    first_size: int


class Found(NamedTuple):
    """The range of the run among the keys, empty if there is none, and the tiers of the keys that were looked up; 0: absent."""

    first: int
    end: int
    tiers: dict[int, int]


def search(window: Window, answers: Mapping[bytes, bool], where: Callable[[Sequence[bytes]], bytes | None]) -> Found | None:
    """Returns the last run, or None if the daemon does not answer. `answers`: those given for earlier keys. `where` returns the tiers of keys."""
    tiers: dict[int, int] = {}
    run, need, at = 0, window.first_size, len(window.keys) - 1
    most = max(window.first_size, 1)
    while at >= 0:
        key = window.keys[at]
        if key in answers:
            is_here = answers[key]
        else:
            if at not in tiers:
                first = max(0, at + 1 - most)
                asked = [i for i in range(first, at + 1) if window.keys[i] not in answers]
                found = where([window.keys[i] for i in asked])
                if found is None:
                    return None
                tiers.update(zip(asked, found))
                most = min(GROWTH * most, MOST_KEYS)
            is_here = tiers[at] != 0
        run, need = (run + 1, need) if is_here else (0, window.size)
        if run == need:
            return Found(at, at + need, tiers)
        at -= 1
    return Found(0, run, tiers)  # a shorter run at the beginning will do, because the engine has what precedes it
