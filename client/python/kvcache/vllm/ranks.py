# SPDX-License-Identifier: Apache-2.0
"""The ranks of an engine as its scheduler's side knows them, by the engine's page (page.py); nothing of vLLM.

All ranks or none: while one has not attached, refuses or does not fit the others, nothing is loaded or stored. The log has each reason once,
and the engine serves without a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from .page import ATTACHED, COUNTERS, NAME_S, NONE, REFUSES, EnginePage, PageError
from .shards import Shard, shards_of

log = logging.getLogger("kvcache.vllm")

LATE_S = 2.0   # time after which the log reports that ranks have not attached
LEAVE_S = 1.0   # time that the scheduler's side waits for ranks to leave when it ends


class Ranks:
    """The ranks of an engine. `shards`: those of each group. `owned`: by group, the shard that each rank loads. Both are set when join() has
    returned True."""

    def __init__(self, engine_id: object, world_size: int, digest: int) -> None:
        self.world_size = world_size
        self.shards: dict[int, list[Shard]] = {}
        self.owned: dict[int, list[int]] = {}
        self._said: set[object] = set()
        self._has_failed = self._is_joined = False
        self._seen = dict.fromkeys(COUNTERS, 0)
        self._counted: list[list[int]] = []  # by rank, as they were read
        self._page: EnginePage | None = None
        try:
            self._page = EnginePage(engine_id, world_size, digest)
        except (OSError, ValueError, IndexError, PageError) as e:
            self._fail(f"the engine's page is not made: {e}")

    def _fail(self, why: str) -> None:
        self._has_failed = True
        log.error("nothing is loaded or stored: %s", why)

    def _say(self, about: object, text: str, *arguments: object, level: int = logging.WARNING) -> None:
        if about not in self._said:
            self._said.add(about)
            log.log(level, text, *arguments)

    def join(self) -> bool:
        """Returns whether all ranks take part, as the last look() saw it; looks itself where they did not."""
        return self._is_joined or self.look()

    def look(self) -> bool:
        """Looks at the page, once a step."""
        self._is_joined = not self._has_failed and self._take_part()
        return self._is_joined

    def _take_part(self) -> bool:
        assert self._page is not None
        self._page.tick()
        states = self._page.states()
        for rank, state in enumerate(states):
            if state == REFUSES:
                self._say(rank, "nothing is loaded or stored, since rank %d of %d does not take part: %s", rank, self.world_size,
                          self._page.reason(rank), level=logging.ERROR)
        absent = [r for r, state in enumerate(states) if state == NONE]
        if absent and self._page.age_s > LATE_S:
            self._say("absent", "nothing is loaded or stored until all ranks have attached; of %d the ranks %s have not yet", self.world_size, absent)
            if self._page.age_s > NAME_S:
                self._say("late", "the ranks %s have not attached within %.0f s, and may never: nothing is loaded or stored until then", absent,
                          NAME_S, level=logging.ERROR)
        if any(state != ATTACHED for state in states):
            return False
        if not self.shards:
            try:
                self.shards, self.owned = shards_of([self._page.description(r) for r in range(self.world_size)])
            except (PageError, ValueError) as e:
                self._fail(str(e))
        return bool(self.shards)

    @property
    def has_scheduler(self) -> bool:
        """Whether the only rank is in this process."""
        return self._page is not None and self.world_size == 1 and self._page.is_here(0)

    def serves(self, pool: int) -> bool:
        """Returns whether all ranks can copy chunks of this pool. Has them attach where they cannot."""
        if self._page is None or not pool:
            return False
        if self._page.serves(pool):
            return True
        self._page.want(pool)
        return False

    def use(self, pools: Iterable[int]) -> bool:
        """Makes the ranks keep these pools registered. Returns False if they are too many."""
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
        """Gives what all ranks together have counted since the last time, by the names of COUNTERS. Two threads of a rank write its counters, so
        that one may step back for a moment."""
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
        """Returns bytes in all shards, and seconds, of loads since the last time: all ranks load at once, each its part."""
        if self._page is None:
            return []
        whole, samples = sum(self.chunk_bytes().values()), []
        for rank in range(self.world_size):
            own = sum(self.shards[g][owned[rank]].chunk_bytes for g, owned in self.owned.items())
            samples += [(nbytes * whole // own, seconds) for nbytes, seconds in self._page.loads(rank)]
        return samples

    def prefills(self) -> list[tuple[int, float]]:
        """Returns tokens and seconds since the last time, of one rank: all compute the same tokens."""
        if self._page is None:
            return []
        return next((s for s in [self._page.prefills(r) for r in range(self.world_size)] if s), [])

    def close(self) -> None:
        if self._page is not None:
            self._page.close(LEAVE_S)
