# SPDX-License-Identifier: Apache-2.0
"""The ranks of an engine, as the spec's manager (manager.py) knows them from the engine's page (page.py). Imports nothing of vLLM.

The cache is used by all ranks or by none. While a rank has not attached, refuses to take part or contradicts the others, nothing is loaded or
stored, and the engine serves without a cache. Each reason is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from .page import ATTACHED, COUNTERS, NAME_S, NONE, REFUSES, EnginePage, PageError
from .shards import Shard, shards_of

log = logging.getLogger("kvcache.vllm")

LATE_S = 2.0   # seconds from the making of the page until missing ranks are logged
LEAVE_S = 1.0  # longest time in seconds that close() waits until all ranks have left the page


class Ranks:
    """The ranks of an engine. `shards`: by group, the shards of a chunk. `owned`: by group, the number of the shard that each rank loads. These
    two are set once join() has returned True."""

    def __init__(self, engine_id: object, world_size: int, digest: int) -> None:
        self.world_size = world_size
        self.shards: dict[int, list[Shard]] = {}
        self.owned: dict[int, list[int]] = {}
        self._said: set[object] = set()
        self._has_failed = self._is_joined = False
        self._seen = dict.fromkeys(COUNTERS, 0)
        self._counted: list[list[int]] = []  # by rank, its counters as they were last read, in the order of COUNTERS
        self._page: EnginePage | None = None
        try:
            self._page = EnginePage(engine_id, world_size, digest)
        except (OSError, ValueError, IndexError, PageError) as e:
            self._fail(f"the engine's page in /dev/shm cannot be made: {e}")

    def _fail(self, why: str) -> None:
        self._has_failed = True
        log.error("this engine runs without a cache: %s", why)

    def _say(self, about: object, text: str, *arguments: object, level: int = logging.WARNING) -> None:
        if about not in self._said:
            self._said.add(about)
            log.log(level, text, *arguments)

    def join(self) -> bool:
        """Returns whether all ranks take part. Reads the page only if a rank took no part at the last look()."""
        return self._is_joined or self.look()

    def look(self) -> bool:
        """Reads the page, and returns whether all ranks take part. Called once in a step."""
        self._is_joined = not self._has_failed and self._take_part()
        return self._is_joined

    def _take_part(self) -> bool:
        assert self._page is not None
        self._page.tick()
        states = self._page.states()
        for rank, state in enumerate(states):
            if state == REFUSES:
                self._say(rank, "nothing is loaded or stored, because rank %d of %d does not take part: %s", rank, self.world_size,
                          self._page.reason(rank), level=logging.ERROR)
        absent = [r for r, state in enumerate(states) if state == NONE]
        if absent and self._page.age_s > LATE_S:
            self._say("absent", "nothing is loaded or stored until all %d ranks have attached to the engine's page in /dev/shm; the ranks %s "
                      "have not yet", self.world_size, absent)
            if self._page.age_s > NAME_S:
                self._say("late", "the ranks %s have not attached to the engine's page within %.0f s and cannot find it any longer, so this engine "
                          "runs without a cache: look at the logs of these ranks, and restart the engine", absent, NAME_S, level=logging.ERROR)
        if any(state != ATTACHED for state in states):
            return False
        if not self.shards:
            try:
                self.shards, self.owned = shards_of([self._page.description(r) for r in range(self.world_size)])
            except (PageError, ValueError) as e:
                self._fail(f"the ranks of the engine do not fit together: {e}")
        return bool(self.shards)

    @property
    def has_scheduler(self) -> bool:
        """Returns whether the engine has one rank, and it is in this process."""
        return self._page is not None and self.world_size == 1 and self._page.is_here(0)

    def serves(self, pool: int) -> bool:
        """Returns whether all ranks can copy chunks of this pool. If a rank cannot, asks the ranks to attach to the pool."""
        if self._page is None or not pool:
            return False
        if self._page.serves(pool):
            return True
        self._page.want(pool)
        return False

    def has(self, pool: int) -> bool:
        """Returns whether all ranks can copy chunks of this pool."""
        return self._page is not None and self._page.serves(pool)

    def use(self, pools: Iterable[int]) -> bool:
        """Makes the ranks keep these pools registered. Returns False if there are too many pools, or the engine has no page."""
        return self._page is not None and self._page.use(pools)

    @property
    def variant(self) -> int:
        return self._page.variant() if self._page is not None else 1

    def chunk_bytes(self) -> dict[int, int]:
        """Returns the bytes of a chunk of each group, in all its shards."""
        return {g: sum(s.chunk_bytes for s in shards) for g, shards in self.shards.items()}

    def ended_below(self, most: int) -> int:
        return self._page.ended_below(most) if self._page is not None else 0

    def counted(self) -> Iterator[tuple[str, int]]:
        """Yields for each name of COUNTERS by how much the sum of all ranks' counters has grown since the last call. A counter may decrease for a
        moment, because two threads of a rank write it; a decrease counts as no growth."""
        if self._page is None:
            return
        now = self._page.all_counted()
        if now == self._counted:
            return
        self._counted = now
        for at, (name, seen) in enumerate(self._seen.items()):
            self._seen[name] = max(seen, sum(of_rank[at] for of_rank in now))
            yield name, self._seen[name] - seen

    def loads(self) -> list[tuple[int, float]]:
        """Returns the samples of loads since the last call: bytes in all shards, and seconds. All ranks load their shards at the same time, so the
        bytes of one rank's sample are extrapolated to all shards."""
        if self._page is None:
            return []
        whole, samples = sum(self.chunk_bytes().values()), []
        for rank in range(self.world_size):
            own = sum(self.shards[g][owned[rank]].chunk_bytes for g, owned in self.owned.items())
            samples += [(nbytes * whole // own, seconds) for nbytes, seconds in self._page.loads(rank)]
        return samples

    def prefills(self) -> list[tuple[int, float]]:
        """Returns one rank's samples of prefills since the last call: tokens and seconds. Drops the samples of other ranks, because all ranks compute
        the same tokens."""
        if self._page is None:
            return []
        return next((s for s in [self._page.prefills(r) for r in range(self.world_size)] if s), [])

    def close(self) -> None:
        if self._page is not None:
            self._page.close(LEAVE_S)
