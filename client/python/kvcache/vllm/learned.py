# SPDX-License-Identifier: Apache-2.0
"""Gauges of the rates that a load policy (policy.py) has learned, and of their samples, for the vLLM metrics of the tier and of the spec."""

from __future__ import annotations

import time
from collections.abc import Callable

from .policy import DISK, MEMORY, REMOTE, Evidence, LoadPolicy
from .times import LoadTimes

_TIERS = {"memory": MEMORY, "disk": DISK, "remote": REMOTE}
_FROM = {"memory": "the daemon's memory", "disk": "the daemon's disk", "remote": "the shared tier"}
REPEAT_S = 1.0  # interval after which gauges are published again although only the samples' ages have changed

GAUGES = {
    "up": "1 while kvcache-daemon answers.",
    "prefill_tokens_per_second": "The rate of prefill with which the load policy compares loading.",
    "prefill_samples": "Prefills from which the rate of prefill was learned.",
    "prefill_sample_least_tokens": "Tokens of the shortest of the latest prefills from which the rate was learned.",
    "prefill_sample_most_tokens": "Tokens of the longest of the latest prefills from which the rate was learned.",
    "prefill_sample_age_seconds": "Seconds since the latest prefill from which the rate was learned.",
    "load_overhead_seconds": "The time of a load that does not depend on its bytes.",
}
for _name, _source in _FROM.items():
    GAUGES[f"{_name}_bytes_per_second"] = f"The rate of loads from {_source}."
    GAUGES[f"{_name}_samples"] = f"Loads from which the rate of {_source} was learned."
    GAUGES[f"{_name}_sample_least_bytes"] = f"Bytes of the smallest of the latest loads from {_source}."
    GAUGES[f"{_name}_sample_most_bytes"] = f"Bytes of the largest of the latest loads from {_source}."
    GAUGES[f"{_name}_sample_age_seconds"] = f"Seconds since the latest load from {_source}."


class Learned:
    """Computes the gauges, and remembers when the latest sample of each rate was first seen, because a policy has no clock. A sample's age is
    therefore exact to the interval between two calls of gauges(). `clock`: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: dict[str, tuple[int, float]] = {}  # by rate, the number of its samples, and the time at which it last changed
        self._said: tuple[float, int] = (-1.0, -1)
        self._say_at = 0.0

    def gauges(self, policy: LoadPolicy | None, up: float) -> dict[str, float]:
        """Returns the gauges to publish in this step; an empty dict if neither `up` nor the number of samples has changed and REPEAT_S has not
        passed. `up`: 1 if the daemon answers. For a rate without samples, such as a configured rate, the only gauge of its samples is their
        number."""
        now = self._clock()
        said = (up, policy.samples if policy is not None else 0)
        if said == self._said and now < self._say_at:
            return {}
        self._said, self._say_at = said, now + REPEAT_S
        gauges = {"up": up, "prefill_tokens_per_second": policy.prefill if policy is not None else 0.0}
        for name, tier in _TIERS.items():
            gauges[f"{name}_bytes_per_second"] = policy.rates[tier] if policy is not None else 0.0
        if policy is not None:
            gauges["load_overhead_seconds"] = policy.overhead_s
            self._add(gauges, "prefill", "tokens", policy.prefill_evidence, now)
            for name, tier in _TIERS.items():
                self._add(gauges, name, "bytes", policy.evidence[tier], now)
        return gauges

    def _add(self, gauges: dict[str, float], name: str, unit: str, evidence: Evidence | LoadTimes, now: float) -> None:
        gauges[f"{name}_samples"] = evidence.samples
        if not evidence.samples:
            return
        if self._newest.get(name, (0, 0.0))[0] != evidence.samples:
            self._newest[name] = (evidence.samples, now)
        gauges[f"{name}_sample_least_{unit}"] = evidence.least
        gauges[f"{name}_sample_most_{unit}"] = evidence.most
        gauges[f"{name}_sample_age_seconds"] = now - self._newest[name][1]
