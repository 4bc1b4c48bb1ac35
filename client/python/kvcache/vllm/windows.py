# SPDX-License-Identifier: Apache-2.0
"""Lookups of sliding windows, and of states (Mamba, linear attention), which are windows of one chunk. Imports nothing of vLLM.

vLLM asks for the chunks of such a group from the end of the prompt backwards, one by one, and uses the last run that is as long as the window.
A wrapper (hooks.py) leaves the keys and the window's size in the request's context, so that the manager (manager.py) can look up the window's
keys together and lease only the run that vLLM will use. If the daemon lacks a chunk of the window, further lookups go backwards, each with
more keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MOST_KEYS = 4096  # most keys in a lookup after the first one, which has as many keys as the run needs
GROWTH = 4        # factor by which each lookup has more keys than the one before, up to MOST_KEYS


class Window(NamedTuple):
    """vLLM's lookup for a window of `size` chunks. `first_size`: how many chunks a run that ends at the last key needs, which may exceed `size`."""

    keys: Sequence[bytes]
    size: int
    first_size: int


class Found(NamedTuple):
    """The run that was found: the range from `first` to before `end` among the keys, empty if there is no run. `tiers`: by position, the tiers of
    each key that was looked up; 0 if the chunk is absent."""

    first: int
    end: int
    tiers: dict[int, int]


def search(window: Window, answers: Mapping[bytes, bool], where: Callable[[Sequence[bytes]], bytes | None]) -> Found | None:
    """Returns the last run that is long enough, else the run at the first key, which may be empty. Returns None if the daemon does not answer.
    `answers`: by key, the answers that vLLM has been given already. `where`: looks up keys, and returns their tiers, or None without an answer."""
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
    return Found(0, run, tiers)  # a run at the first key may be shorter, because the engine has the chunks before it
