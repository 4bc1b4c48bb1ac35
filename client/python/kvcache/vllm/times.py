# SPDX-License-Identifier: Apache-2.0
"""LoadTimes learns how long a load from memory takes, by its size, from measured loads. Used by the load policy (policy.py).

The module is pure arithmetic. A load takes a fixed time and a time in proportion to its bytes. A line through noisy samples separates the two
badly: its slope may be smaller than any bus permits. So the samples bound the result.

- Samples of about one size are represented by their median, because a load during other copies takes several times as long as a single one.
- Up to the largest size of a kept sample, the learned time is the line through these medians that minimizes the relative differences, so
  that a short load counts as much as a long one. Neither the line's fixed time nor its slope is negative.
- Beyond that size the line is not extrapolated: further bytes take their time at `rate`. This is the rate of the line, but at most BEST times
  the bytes per second of the fastest size.
- If there are fewer than LEAST_LOADS samples, the largest size is less than SPREAD times the smallest, or the line has no slope,
  `overhead_s` stays as it was, and `rate` is that of the fastest size without `overhead_s`, with the same limit.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

KEPT = 7          # number of latest samples of a size that are kept
FORGET = 256      # a size is forgotten after this number of loads of other sizes
PER_OCTAVE = 4    # number of distinguished sizes from one power of two to the next
SPREAD = 4.0      # least ratio of the largest to the smallest size at which `overhead_s` is learned
BEST = 1.1        # largest ratio of `rate` to the bytes per second of the fastest size
LEAST_LOADS = 4   # number of samples that are needed to separate the fixed time from the rate
LEAST_S = 1e-6    # seconds to which a shorter time of a sample is raised


class _Median(NamedTuple):
    """The median of a size's samples, ordered by seconds per byte; the slower one of two middle samples."""

    nbytes: int
    seconds: float
    samples: int

    @classmethod
    def of(cls, samples: deque[tuple[int, float]]) -> _Median:
        nbytes, seconds = sorted(samples, key=lambda s: s[1] / s[0])[len(samples) // 2]
        return cls(nbytes, seconds, len(samples))


class LoadTimes:
    """The learned times of loads. `overhead_s`: the fixed time in seconds, as it was given until one is learned. `rate`: bytes per second; 0 before
    the first sample."""

    def __init__(self, overhead_s: float) -> None:
        self.overhead_s, self.rate = overhead_s, 0.0
        self.samples = 0
        self.least = self.most = 0  # bytes of the smallest and of the largest kept sample; 0: no sample
        self.fixed_s, self.slope = overhead_s, 0.0  # the line: its value at 0, and seconds per byte
        self._samples: dict[int, deque[tuple[int, float]]] = {}  # by size, PER_OCTAVE times log2 of the bytes: bytes and seconds
        self._medians: dict[int, _Median] = {}
        self._seen: dict[int, int] = {}  # by size, the value that `samples` had after the latest sample of this size

    def add(self, nbytes: int, seconds: float) -> None:
        self.samples += 1
        size = int(PER_OCTAVE * math.log2(nbytes))
        of_size = self._samples.setdefault(size, deque(maxlen=KEPT))
        of_size.append((nbytes, max(seconds, LEAST_S)))
        self._medians[size] = _Median.of(of_size)
        self._seen[size] = self.samples
        for old in [s for s, seen in self._seen.items() if seen <= self.samples - FORGET]:
            del self._samples[old], self._medians[old], self._seen[old]
        self._learn()

    def seconds(self, nbytes: float) -> float:
        """Returns the learned time, in seconds, of a load of this many bytes."""
        within = min(nbytes, self.most)
        return self.fixed_s + within * self.slope + ((nbytes - within) / self.rate if self.rate else 0.0)

    def _learn(self) -> None:
        medians = list(self._medians.values())
        self.least = min(s[0] for of_size in self._samples.values() for s in of_size)
        self.most = max(s[0] for of_size in self._samples.values() for s in of_size)
        best = max(medians, key=lambda m: m.nbytes / m.seconds)
        at_most = BEST * best.nbytes / best.seconds
        if len(medians) > 1:
            self.fixed_s, self.slope = _line(medians)
        else:
            self.fixed_s = min(self.overhead_s, best.seconds * (1 - 1 / BEST))
            self.slope = (best.seconds - self.fixed_s) / best.nbytes
        if self.slope > 0 and sum(m.samples for m in medians) >= LEAST_LOADS and self.most >= SPREAD * self.least:
            self.overhead_s, self.rate = self.fixed_s, min(1 / self.slope, at_most)
        else:
            self.rate = min(best.nbytes / max(best.seconds - self.overhead_s, LEAST_S), at_most)


def _line(medians: list[_Median]) -> tuple[float, float]:
    """Returns the fixed time and the slope, neither below 0, of the line with the least sum of squares of relative differences."""
    uu = uv = vv = u1 = v1 = 0.0
    for nbytes, seconds, count in medians:
        u, v = 1 / seconds, nbytes / seconds
        uu, uv, vv, u1, v1 = uu + count * u * u, uv + count * u * v, vv + count * v * v, u1 + count * u, v1 + count * v
    determinant = uu * vv - uv * uv
    if determinant > 1e-9 * uu * vv:
        fixed, slope = (u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant
        if fixed >= 0 and slope >= 0:
            return fixed, slope
    only_fixed, only_slope = u1 / uu, v1 / vv
    # If the best line has a negative coefficient, the minimum with both at least 0 has one of them at 0.
    return (0.0, only_slope) if v1 * v1 * uu >= u1 * u1 * vv else (only_fixed, 0.0)
