# SPDX-License-Identifier: Apache-2.0
"""The canary of the offloading spec: it compares chunks of other engines with computed ones before this engine loads them.

kvcache.engine.verification has the rules. The manager and the worker share one canary object, so both must be in one process, and engines
of several GPUs have no canary. The engine's thread asks which chunks may be loaded and chooses the chunk that is compared. The mover's thread
(mover.py) copies that chunk to host memory, compares it, and moves to the namespace's next variant.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence

from ..engine import verification
from ..engine.canary import Unit
from ..engine.verification import COUNTERS, LONGEST_NAME, MODES, OFF, State, named
from .identity import group_of

__all__ = ["COUNTERS", "Canary", "LONGEST_NAME", "MODES", "OFF", "State", "here", "named"]


class Canary(verification.Canary):
    """The canary of one engine, whose groups are vLLM's KV cache groups."""

    def __init__(self, mode: str, bound: float, names: Mapping[int, str], fingerprint: Mapping[str, str],
                 units: Mapping[int, Sequence[Unit]]) -> None:
        super().__init__(mode, bound, names, fingerprint, units, group_of, logging.getLogger("kvcache.vllm"))


here: weakref.WeakValueDictionary[str, Canary] = weakref.WeakValueDictionary()  # by engine id, the canaries of this process
