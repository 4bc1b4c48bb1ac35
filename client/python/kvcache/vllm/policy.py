# SPDX-License-Identifier: Apache-2.0
"""The load policy decides how many stored chunks of a prefix an engine loads, because computing them can be faster.

Computing is faster if the disk is slow or its queue is long. The tier (tier.py) and the spec's manager (manager.py) ask the policy for each
group of layers, and report the loads and prefills that they have measured. The policy is pure arithmetic, without a clock, I/O or threads.

The time of loading n chunks is a fixed overhead, the time of the bytes that are queued before them, and their own bytes at the rate of their
tier. The time of computing them is their tokens at the rate of prefill. The policy loads the leading part of a run that saves the most time,
and declines the rest. If no part saves time, it declines the whole run.

Chunks in memory are loaded, whatever the queue: a load uses the bus, which the engine does not need, whereas computing uses the GPU, which all
requests need. They are declined only if computing is faster than the rate of memory, which must be configured, or learned from LEAST_SAMPLES
loads of at least TELLING_BYTES each. A smaller load is mostly overhead, and shows little about the rate of a large one.

Loads of several sizes from memory teach the overhead and the rate separately (times.py). A learned rate is at most BEST times the bytes per
second of the fastest size.

A step of the engine takes a minimal time even if it computes little, and a loaded prefix is followed by a step, too. For a request that is
alone, loading therefore saves only the computing time beyond one minimal step. With other requests all computing time counts, because
computing delays them.

While the rate of the disk or of the shared tier is unknown, at most PROBE_BYTES, but at least one chunk, are loaded beyond the chunks before the
first one of that tier; chunks that are looked up one at a time are all loaded. Otherwise, while the rate of memory or of prefill is unknown, all chunks are loaded. A tier that is declined yields no
samples. So once PROBE_SHARE of the time spent on computing declined chunks covers the cost of a probe, PROBE_BYTES are loaded from that tier.

The shared tier (REMOTE) has a latency, which a run pays once, and its chunks are fetched to the daemon's memory and loaded from there. The
latency is always the daemon's measurement; the rate is the daemon's until this engine has measured fetches. A search for a chain's chunks in
the shared tier takes time, too: a request waits for a search for at most SEARCH_SHARE of the time that loading could save, and for at most
LONGEST_SEARCH_S. The latter is the only limit if the policy always loads, while the rate of prefill is unknown, and for a search that is a
probe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .times import BEST, LoadTimes

MEMORY, DISK, REMOTE = 0, 1, 2  # tiers from which a chunk is loaded; REMOTE is the shared tier
WEIGHT = 0.25  # weight of a new sample in the mean time per byte of the disk or the shared tier, and in the mean number of chunks of a load
PROBE_BYTES, PROBE_SHARE = 64 << 20, 0.01  # bytes of a probe; share of the declined chunks' computing time that probes may cost
LONGEST_SEARCH_S, SEARCH_SHARE = 0.5, 0.25  # longest search in seconds; share of the time saved by loading that a search may take
LEAST_FETCH_S = 0.25  # seconds: shortest time limit of a fetch from the shared tier
LITTLE, LONGEST_STEP_S = 0.6, 0.05  # a step of at most 0.05 s computes little if the rate of prefill explains less than 0.6 of its time
LEAST_SAMPLES, TELLING_BYTES = 8, 16 << 20  # number, and least bytes, of the loads from memory after which chunks in memory may be declined
SHARP = 0.25       # largest uncertainty of a sample's time, as a share of that time
LATEST = 16        # number of the latest samples whose sizes are kept for the metrics


class Evidence:
    """Statistics of the samples from which a rate was learned: their number, and the sizes of the latest samples."""

    def __init__(self) -> None:
        self.samples = 0
        self._sizes: deque[int] = deque(maxlen=LATEST)

    def add(self, size: int) -> None:
        self.samples += 1
        self._sizes.append(size)

    @property
    def least(self) -> int:
        return min(self._sizes, default=0)

    @property
    def most(self) -> int:
        return max(self._sizes, default=0)


class LoadPolicy:
    """The load policy of one group of layers.

    `tokens` and `chunk_bytes`: the number of tokens and the bytes of one chunk. `always`: load every stored chunk. A rate that is not 0 is
    fixed and not learned. `overhead_s`: the fixed time of a load, until it is learned. `by_way_of_memory`: a chunk on disk is read to the
    daemon's memory and then loaded from there, which takes the time of both."""

    def __init__(self, tokens: int, chunk_bytes: int, *, always: bool = False, prefill_tokens_per_s: float = 0.0,
                 memory_bytes_per_s: float = 0.0, disk_bytes_per_s: float = 0.0, remote_bytes_per_s: float = 0.0,
                 overhead_s: float = 0.002, by_way_of_memory: bool = False) -> None:
        self.tokens, self.chunk_bytes, self.always = tokens, chunk_bytes, always
        self.prefill = prefill_tokens_per_s  # tokens that the engine computes in a second; 0 if unknown
        self.rates = [memory_bytes_per_s, disk_bytes_per_s, remote_bytes_per_s]  # by tier, bytes per second; 0 if unknown
        self.latency_s = 0.0  # seconds of the shared tier's latency; 0 if unknown
        self._by_way_of_memory = by_way_of_memory
        self.step_s = 0.0  # duration of a step that computes little; 0 if unknown
        self._learn_prefill = prefill_tokens_per_s == 0.0
        self._learn_rate = [rate == 0.0 for rate in self.rates]
        self.memory_samples = self._telling_samples = 0
        self.times = LoadTimes(overhead_s)  # times of loads from memory
        self.prefill_evidence = Evidence()  # samples of prefill, with sizes in tokens
        self._disk, self._remote = Evidence(), Evidence()
        self.evidence: tuple[LoadTimes | Evidence, ...] = (self.times, self._disk, self._remote)  # by tier, samples with sizes in bytes
        self._run = 1.0  # mean number of chunks of a load
        self._probe = max(1, PROBE_BYTES // chunk_bytes)  # chunks of a probe
        self._probing = 0  # chunks of the present probe that worth_next() is still to load, even if loading saves no time
        self._declined_s = 0.0  # time of computing the chunks that were declined since the last probe
        self._unsearched_s = 0.0  # time of computing the chunks for which the shared tier was not searched, since the last probe

    @property
    def samples(self) -> int:
        """Returns the number of samples from which the rates were learned."""
        return self.prefill_evidence.samples + sum(e.samples for e in self.evidence)

    @property
    def overhead_s(self) -> float:
        """Returns the fixed time of a load in seconds."""
        return self.times.overhead_s

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Adds a sample of prefill. A faster sample replaces the rate, and a slower one changes it little, because a prefill that shares steps
        with other requests is slower. A short sample of whose time the known rate explains little (LITTLE) teaches the duration of a minimal
        step instead."""
        if not self._learn_prefill or seconds <= 0 or tokens <= 0:
            return
        rate = tokens / seconds
        if self.prefill and tokens / self.prefill < LITTLE * seconds <= LITTLE * LONGEST_STEP_S:
            slower = seconds - self.step_s
            self.step_s += slower if slower < 0 or not self.step_s else 0.05 * slower
            return
        self.prefill_evidence.add(tokens)
        self.prefill = rate if rate > self.prefill else self.prefill + 0.05 * (rate - self.prefill)

    def saw_load(self, memory_bytes: int, disk_bytes: int, seconds: float, least_s: float | None = None) -> None:
        """Adds a sample of a load during which nothing else was loaded. If the load read both tiers, the time that the rate of memory does
        not explain is attributed to the disk. The load took between `least_s` and `seconds`, or exactly `seconds` if `least_s` is None; a
        load whose time is less certain than SHARP permits is ignored."""
        if least_s is not None and seconds - least_s > SHARP * seconds:
            return
        if memory_bytes > 0 and not disk_bytes:
            self.memory_samples += 1
            self._telling_samples += memory_bytes >= TELLING_BYTES
        self._run += WEIGHT * (max(1.0, (memory_bytes + disk_bytes) / self.chunk_bytes) - self._run)
        if not disk_bytes:
            if memory_bytes > 0 and self._learn_rate[MEMORY]:
                self.times.add(memory_bytes, seconds)
                self.rates[MEMORY] = self.times.rate
            return
        if memory_bytes and not self.rates[MEMORY] or not self._learn_rate[DISK]:
            return
        explained = self._memory_s(memory_bytes) if memory_bytes else self.overhead_s
        self._sample(DISK, disk_bytes, max(seconds - explained, seconds / BEST * disk_bytes / (memory_bytes + disk_bytes), 1e-6))

    def saw_read(self, disk_bytes: int, least_s: float, most_s: float) -> None:
        """Adds a sample of a read from disk to memory, which took between `least_s` and `most_s`. Ignores the sample if the known rate of the disk
        explains a time in this range."""
        if not self._learn_rate[DISK] or disk_bytes <= 0 or most_s <= 0:
            return
        expected = self._seconds(DISK, disk_bytes)
        if not expected or not least_s <= expected <= most_s:
            self._sample(DISK, disk_bytes, most_s if not expected else min(max(expected, least_s), most_s))

    def saw_fetch(self, remote_bytes: int, seconds: float) -> None:
        """Adds a sample of a fetch from the shared tier to the daemon's memory. `seconds` includes the latency."""
        if self._learn_rate[REMOTE] and remote_bytes > 0 and seconds > 0:
            self._sample(REMOTE, remote_bytes, max(seconds - self.latency_s, seconds / 10))

    def expect_remote(self, bytes_per_s: float, latency_s: float) -> None:
        """Sets the shared tier's latency to the daemon's measurement, and the rate of that tier, too, if this engine knows none. A
        measurement that the daemon does not have yet is 0."""
        self.latency_s = max(0.0, latency_s)
        if not self.rates[REMOTE] and bytes_per_s > 0:
            self.rates[REMOTE] = bytes_per_s

    def _sample(self, tier: int, nbytes: int, seconds: float) -> None:
        """Adds a sample to a tier's mean time per byte. A mean of rates would hide the cost of a slow sample among fast ones."""
        (self._disk if tier == DISK else self._remote).add(nbytes)
        new, rate = seconds / nbytes, self.rates[tier]
        self.rates[tier] = 1 / (new if not rate else 1 / rate + WEIGHT * (new - 1 / rate))

    def _memory_s(self, nbytes: int) -> float:
        """Returns the time of a load from memory, including its overhead."""
        return self.times.seconds(nbytes) if self.times.samples else self.overhead_s + self._seconds(MEMORY, nbytes)

    def _seconds(self, tier: int, nbytes: float) -> float:
        return nbytes / self.rates[tier] if self.rates[tier] else 0.0

    def _cost(self, tier: int) -> float:
        """Returns the seconds that loading one chunk takes, without the fixed time of a load."""
        by_way = self._seconds(MEMORY, self.chunk_bytes) if tier == REMOTE or (tier == DISK and self._by_way_of_memory) else 0.0
        return self._seconds(tier, self.chunk_bytes) + by_way

    def _memory_line(self) -> tuple[float, float, float, float]:
        """Returns the time of a load from memory as a line: the fixed time, the time of each chunk, the time of each further chunk beyond the
        largest load that was measured, and the number of chunks of this largest load, infinite if none was measured."""
        beyond_s = self._seconds(MEMORY, self.chunk_bytes)
        if not self.times.samples:
            return self.overhead_s, beyond_s, beyond_s, math.inf
        return self.times.fixed_s, self.times.slope * self.chunk_bytes, beyond_s, self.times.most / self.chunk_bytes

    def _queue(self, memory_bytes: int, disk_bytes: int) -> float:
        return self._seconds(MEMORY, memory_bytes) + self._seconds(DISK, disk_bytes)

    def worth(self, tiers: Sequence[int], queued_memory: int = 0, queued_disk: int = 0, queued_remote: int = 0, *,
              alone: bool = False) -> int:
        """Returns how many leading chunks of a run to load. `tiers`: the tier of each chunk. The queued bytes are those of earlier loads
        from each tier, for which this run must wait; `queued_remote` delays only chunks of the shared tier. `alone`: the engine has no
        other request."""
        if self.always or not tiers:
            return len(tiers)
        unknown = [tiers.index(t) for t in (DISK, REMOTE) if t in tiers and not self.rates[t]]
        if unknown:
            return min(len(tiers), min(unknown) + self._probe)
        if not self.prefill or any(not self.rates[t] for t in set(tiers)):
            return len(tiers)
        compute = self.tokens / self.prefill
        in_memory = 0 if self._memory_is_slower(compute) else next((i for i, t in enumerate(tiers) if t != MEMORY), len(tiers))
        if in_memory == len(tiers):
            return in_memory
        alone_s = [0.0, *(self.chunk_bytes / rate if rate else 0.0 for rate in self.rates[DISK:])]
        fixed_s, within_s, beyond_s, within = self._memory_line()
        loading = fixed_s + self._queue(queued_memory, queued_disk)
        first_remote = tiers.index(REMOTE) if REMOTE in tiers else -1
        best, most, took, by_memory = 0, 0.0, 0.0, 0
        for n, tier in enumerate(tiers, 1):
            loading += alone_s[tier]
            if tier != DISK or self._by_way_of_memory:
                by_memory += 1
                loading += within_s if by_memory <= within else beyond_s
            if n - 1 == first_remote:
                loading += self.latency_s + self._seconds(REMOTE, queued_remote)
            if n * compute - loading > most:
                best, most, took = n, n * compute - loading, loading
        if alone and max(self.step_s, (len(tiers) - best) * compute) + took >= max(self.step_s, len(tiers) * compute):
            best = 0
        best = max(best, in_memory)
        if best == len(tiers):
            return best
        self._declined_s += (len(tiers) - best) * compute
        if not self._may_probe(tiers[best]):
            return best
        self._declined_s = 0.0
        return min(len(tiers), best + self._probe)

    def worth_of(self, asked: int, tiers: Sequence[int], queued_memory: int, queued_disk: int, queued_remote: int, *, alone: bool) -> int:
        """Returns how many leading chunks to load, for a lookup of `asked` chunks. The length of the run is unknown if a single chunk was looked
        up: worth_next() then decides, unless the chunk is in the shared tier."""
        if asked == 1 and tiers and tiers[0] != REMOTE:
            return int(self.worth_next(tiers[0], queued_memory, queued_disk))
        return self.worth(tiers, queued_memory, queued_disk, queued_remote, alone=alone)

    def worth_next(self, tier: int, queued_memory: int = 0, queued_disk: int = 0) -> bool:
        """Returns whether to load one chunk of a run whose length is unknown. The run is assumed to be as long as the mean load."""
        if self.always or not self.prefill or not self.rates[tier]:
            return True
        if self._probing > 0:
            self._probing -= 1
            return True
        if tier == MEMORY and not self._memory_is_slower(self.tokens / self.prefill):
            return True
        compute = self._run * self.tokens / self.prefill
        if self.overhead_s + self._queue(queued_memory, queued_disk) + self._run * self._cost(tier) < compute:
            return True
        self._declined_s += compute
        if not self._may_probe(tier):
            return False
        self._declined_s, self._probing = 0.0, self._probe - 1
        return True

    def longest_search(self, missing: int, queued_remote: int = 0) -> float:
        """Returns how many seconds a request may wait for a search of the shared tier for the `missing` chunks; 0 if loading would save no time and
        no probe is due."""
        if self.always or not self.prefill:
            return LONGEST_SEARCH_S
        compute = missing * self.tokens / self.prefill
        if not (self.rates[MEMORY] and self.rates[REMOTE]):  # loading saves at most the time of computing
            return min(LONGEST_SEARCH_S, SEARCH_SHARE * compute)
        gain = compute - missing * self._cost(REMOTE) - self.latency_s - self._seconds(REMOTE, queued_remote)
        if gain > 0:
            return min(LONGEST_SEARCH_S, SEARCH_SHARE * gain)
        self._unsearched_s += compute
        loss = self._probe_loss(REMOTE)
        if self._unsearched_s * PROBE_SHARE < loss:
            return 0.0
        self._unsearched_s = 0.0
        self._declined_s = max(self._declined_s, loss / PROBE_SHARE)  # the search is a probe, so worth() must load the chunks it finds
        return LONGEST_SEARCH_S

    def longest_fetch(self, chunks: int) -> float:
        """Returns how many seconds a fetch of `chunks` from the shared tier may take: the time of computing them, at least LEAST_FETCH_S.
        Returns infinity if the rate of prefill is unknown or the policy always loads."""
        return max(LEAST_FETCH_S, chunks * self.tokens / self.prefill) if self.prefill and not self.always else math.inf

    def is_hopeless(self, tier: int) -> bool:
        """Returns whether loading from a tier is slower than computing for runs of any length. Returns False while a rate is unknown, and when a
        probe of the tier is due."""
        if self.always or not self.prefill or not self.rates[tier]:
            return False
        if tier == MEMORY and not self._memory_is_slower(self.tokens / self.prefill):
            return False
        return self._cost(tier) >= self.tokens / self.prefill and not self._may_probe(tier)

    def _memory_is_slower(self, compute: float) -> bool:
        """Returns whether loading a chunk from memory is known to take longer than computing it, which takes `compute` seconds."""
        is_known = self._telling_samples >= LEAST_SAMPLES or not self._learn_rate[MEMORY]
        return is_known and self._cost(MEMORY) >= compute

    def _may_probe(self, tier: int) -> bool:
        return self._declined_s * PROBE_SHARE >= self._probe_loss(tier)

    def _probe_loss(self, tier: int) -> float:
        latency = self.latency_s if tier == REMOTE else 0.0
        return self.overhead_s + latency + self._probe * max(0.0, self._cost(tier) - self.tokens / self.prefill)
