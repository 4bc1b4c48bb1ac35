# SPDX-License-Identifier: Apache-2.0
"""Is loading worth it? Computing a prefix again can be faster than reading it, from a slow disk or behind a long queue.

Pure arithmetic over rates that its owner reports: no clock, no I/O, no thread. Loading n chunks takes a fixed overhead, the time of
the bytes that wait already, and the chunks' bytes at the rate of the tier they lie in; computing them takes their tokens at the
rate of prefill. Of a run the leading part that gains most is loaded: the rest, or all of it, is declined.

Loads of several sizes from memory say how much of their time is the overhead and how much the bytes', by least squares over the
latest of them; of loads of one size the overhead is what it was given as, and the rest is the rate.

A rate that was never seen counts as infinite for loading and as 0 for prefill, so that chunks are loaded until both are known. A
tier that is always declined is not measured any more, so every RETRY_AFTER-th run that it would decline is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

MEMORY, DISK = 0, 1
WEIGHT = 0.25  # of a new sample
RETRY_AFTER = 64
KEEP, LEAST_LOADS, SPREAD = 0.9, 3.5, 0.25  # of the fit: decay a sample, samples, deviation as part of the mean
LEAST_OVERHEAD_S, MOST_OVERHEAD_S = 0.0005, 0.05


class LoadPolicy:
    """What loading and computing cost. `always`: everything is loaded. Rates that are given are not learned."""

    def __init__(self, tokens: int, chunk_bytes: int, *, always: bool = False, prefill_tokens_per_s: float = 0.0,
                 memory_bytes_per_s: float = 0.0, disk_bytes_per_s: float = 0.0, overhead_s: float = 0.002) -> None:
        self.tokens, self.chunk_bytes, self.always, self.overhead_s = tokens, chunk_bytes, always, overhead_s
        self.prefill = prefill_tokens_per_s
        self.rates = [memory_bytes_per_s, disk_bytes_per_s]
        self._learn_prefill = prefill_tokens_per_s == 0.0
        self._learn_rate = [memory_bytes_per_s == 0.0, disk_bytes_per_s == 0.0]
        self._sums = [0.0] * 5  # of loads from memory: how many, MB, seconds, MB * MB, MB * seconds; older ones count less
        self._run = 1.0  # chunks of a usual load
        self._declined = 0

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Prefill in which other requests took part is slower than it can be: a faster sample counts in full, a slower one little."""
        if not self._learn_prefill or seconds <= 0 or tokens <= 0:
            return
        rate = tokens / seconds
        self.prefill = rate if rate > self.prefill else self.prefill + 0.05 * (rate - self.prefill)

    def saw_load(self, memory_bytes: int, disk_bytes: int, seconds: float) -> None:
        """`seconds`: in which nothing else was loaded. Of a load from both, what memory does not explain was the disk's."""
        self._run += WEIGHT * (max(1.0, (memory_bytes + disk_bytes) / self.chunk_bytes) - self._run)
        if memory_bytes and not disk_bytes and self._learn_rate[MEMORY] and self._fit(memory_bytes, seconds):
            return
        seconds -= self.overhead_s
        if memory_bytes and disk_bytes:
            if not self.rates[MEMORY]:
                return
            seconds -= memory_bytes / self.rates[MEMORY]
            tier, nbytes = DISK, disk_bytes
        else:
            tier, nbytes = (MEMORY, memory_bytes) if memory_bytes else (DISK, disk_bytes)
        if not self._learn_rate[tier] or nbytes <= 0:
            return
        rate = nbytes / max(seconds, self.overhead_s / 10, 1e-6)
        self.rates[tier] = rate if not self.rates[tier] else self.rates[tier] + WEIGHT * (rate - self.rates[tier])

    def _fit(self, nbytes: int, seconds: float) -> bool:
        """False: these loads are too much alike, or too few, to tell overhead from bytes."""
        x = nbytes / 1e6
        self._sums = [KEEP * s + new for s, new in zip(self._sums, (1.0, x, seconds, x * x, x * seconds))]
        n, sum_x, sum_y, sum_xx, sum_xy = self._sums
        spread = sum_xx - sum_x * sum_x / n
        if n < LEAST_LOADS or spread < n * (SPREAD * sum_x / n) ** 2:
            return False
        slope = (sum_xy - sum_x * sum_y / n) / spread
        overhead = (sum_y - slope * sum_x) / n
        if slope <= 0 or overhead < 0:
            return False
        self.rates[MEMORY], self.overhead_s = 1e6 / slope, min(max(overhead, LEAST_OVERHEAD_S), MOST_OVERHEAD_S)
        return True

    def _seconds(self, tier: int, nbytes: float) -> float:
        return nbytes / self.rates[tier] if self.rates[tier] else 0.0

    def worth(self, tiers: Sequence[int], queued_bytes: int = 0, queued_tier: int = MEMORY) -> int:
        """How many leading chunks of a run to load; `tiers`: where each lies. `queued_bytes` are loaded before, from
        `queued_tier`."""
        if self.always or not self.prefill or any(not self.rates[t] for t in set(tiers)):
            return len(tiers)
        compute = self.tokens / self.prefill
        gain = -self.overhead_s - self._seconds(queued_tier, queued_bytes)
        best, most = 0, 0.0
        for n, tier in enumerate(tiers, 1):
            gain += compute - self._seconds(tier, self.chunk_bytes)
            if gain > most:
                best, most = n, gain
        return self._or_retry(best, len(tiers))

    def worth_next(self, tier: int, queued_bytes: int = 0, queued_tier: int = MEMORY) -> bool:
        """The same for one chunk of a run whose length is unknown: it is taken to be as long as loads are usually."""
        if self.always or not self.prefill or not self.rates[tier]:
            return True
        loading = self.overhead_s + self._seconds(queued_tier, queued_bytes) + self._run * self._seconds(tier, self.chunk_bytes)
        return self._or_retry(int(loading < self._run * self.tokens / self.prefill), 1) == 1

    def is_hopeless(self, tier: int) -> bool:
        """Is loading slower however long the run is? No, before both rates are known; and it is tried now and then."""
        if self.always or not self.prefill or not self.rates[tier]:
            return False
        return self._or_retry(int(self._seconds(tier, self.chunk_bytes) < self.tokens / self.prefill), 1) == 0

    def _or_retry(self, best: int, count: int) -> int:
        if best < count:
            self._declined += 1
            if self._declined % RETRY_AFTER == 0:
                return count
        return best
