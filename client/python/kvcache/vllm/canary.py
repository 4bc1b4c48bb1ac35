# SPDX-License-Identifier: Apache-2.0
"""The canary of the offloading spec (kvcache.engine.verification).

The scheduler's side and the worker have one canary, and must be in one process: engines of several GPUs have none. The engine's thread asks
what may be loaded and chooses what is compared. The mover's thread takes the chunk to host memory, compares, and moves to the next variant.
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
    def __init__(self, mode: str, bound: float, names: Mapping[int, str], fingerprint: Mapping[str, str],
                 units: Mapping[int, Sequence[Unit]]) -> None:
        super().__init__(mode, bound, names, fingerprint, units, group_of, logging.getLogger("kvcache.vllm"))


here: weakref.WeakValueDictionary[str, Canary] = weakref.WeakValueDictionary()  # engines of this process, by id
