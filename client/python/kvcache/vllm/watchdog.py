# SPDX-License-Identifier: Apache-2.0
"""The watchdog measures the time that this cache costs its engine and saves it, and decides whether the engine stores chunks.

The spec's manager (manager.py) owns one Watchdog, reports to it, and asks it before each store; its decision (breakeven.py) applies to all ranks.
Costs are the seconds that the engine's threads spent in calls of this adapter, including waits for stores, and the seconds by which stores
prolonged steps (breakeven.StepTimes). The threads of the scheduler and of the ranks take turns in a step, so their costs are added; ranks
run concurrently, so their mean counts. Savings are the seconds that prefill of the loaded tokens would have taken, minus the seconds of the
copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import breakeven
from .breakeven import BreakEven, StepTimes

LOOK_S = 1.0          # least time between two decisions, each of which is made at the end of a step
LONGEST_STEP_S = 5.0  # longest interval between the ends of two schedules that counts as a step

COUNTERS = {
    "call_seconds": "Seconds that the engine's threads have spent in calls of this cache, including waits for stores.",
    "store_call_seconds": "Seconds that the engine's threads have spent in calls of this cache for stores.",
    "step_excess_seconds": "Seconds by which stores have prolonged steps, estimated from steps that only decode.",
    "saved_prefill_seconds": "Seconds that the loaded tokens would have taken to compute, at the rate of prefill.",
    "load_copy_seconds": "Seconds in which loads were copied.",
    "paused_chunks": "Chunks that were not stored because stores paused.",
}
GAUGES = {
    "stores_paused": "1 while nothing is stored because this cache costs more than it saves.",
    "balance_seconds": "Seconds that this cache saved minus seconds that it cost, in the last five minutes of work.",
    "step_seconds_with_stores": "The duration of steps that only decode while stores are under way; 0 if unknown.",
    "step_seconds_without_stores": "The duration of steps that only decode without stores, for the same numbers of requests; 0 if unknown.",
}


class Spent:
    """`calls_s`: the seconds that one thread of the engine has spent in calls of this adapter. `store_s`: the part of these seconds that
    was spent in calls for stores."""

    __slots__ = ("calls_s", "store_s")

    def __init__(self) -> None:
        self.calls_s = self.store_s = 0.0


def timed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method to add its duration to `self.spent.calls_s`. The method must not call another decorated method, because its duration
    would count twice."""
    return _measured(call, False)


def timed_store(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method as timed() does, and adds its duration to `self.spent.store_s`, too."""
    return _measured(call, True)


def _measured(call: Callable[..., Any], is_store: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def measured(self: Any, *arguments: Any, **options: Any) -> Any:
        began = breakeven.clock()
        try:
            return call(self, *arguments, **options)
        finally:
            took = breakeven.clock() - began
            self.spent.calls_s += took
            if is_store:
                self.spent.store_s += took

    return measured


class _Step:
    """A step of the engine, from the end of one schedule to the end of the next."""

    __slots__ = ("is_plain", "requests", "has_stores")

    def __init__(self) -> None:
        self.is_plain = True  # the step computes no prompt, and no request waits for a lookup's answer
        self.requests, self.has_stores = 0, False


class Watchdog:
    """The watchdog of one engine. `spent`: seconds of the scheduler's thread. `is_on`: if False, costs are measured, and stores never pause."""

    def __init__(self, is_on: bool = True) -> None:
        self.spent = Spent()
        self._break_even, self._steps = BreakEven(is_on), StepTimes()
        self._storing = 0  # number of chunks that are being stored
        self._step, self._last, self._ended_at = _Step(), _Step(), 0.0
        # The next five are sums since the last decision: seconds, and in _beside_stores the number of steps with stores under way.
        self._busy_s = 0.0
        self._beside_stores = 0
        self._saved_s = self._rank_s = self._rank_store_s = 0.0
        self._is_unknown = False  # tokens were loaded while the rate of prefill was unknown
        self._seen = Spent()  # `spent` at the last decision
        self._decide_at = 0.0
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._has_counted = False
        self._has_news = True

    @property
    def stores_pause(self) -> bool:
        return self._break_even.is_paused

    def _count(self, name: str, n: float) -> None:
        self._counts[name] += n
        self._has_counted = True

    # --- reports of the manager ---

    def waits(self) -> None:
        """Notes that a request waits for a lookup's answer in this step."""
        self._step.is_plain = False

    def offered(self, is_prompt: bool) -> None:
        """Notes that vLLM has offered chunks for storing. `is_prompt`: their number shows that the step computes a prompt."""
        if is_prompt:
            self._step.is_plain = False

    def left_out(self, chunks: int) -> None:
        self._count("paused_chunks", chunks)

    def begins_store(self, chunks: int) -> None:
        self._storing += chunks

    def ends_store(self, chunks: int) -> None:
        self._storing = max(0, self._storing - chunks)

    def loads(self, tokens: int, prefill_tokens_per_s: float) -> None:
        """Adds the seconds that a load of this number of tokens saves. `prefill_tokens_per_s`: the rate of prefill; 0 if unknown: the savings
        are then unknown, too."""
        if prefill_tokens_per_s <= 0:
            self._is_unknown = True
            return
        self._saved_s += tokens / prefill_tokens_per_s
        self._count("saved_prefill_seconds", tokens / prefill_tokens_per_s)

    def copied(self, seconds: float) -> None:
        """Subtracts the seconds of a load's copies from the savings."""
        self._saved_s -= seconds
        self._count("load_copy_seconds", seconds)

    def rank_spent(self, calls_s: float, store_s: float) -> None:
        """Adds the seconds that ranks have spent in calls of this adapter, and in those for stores, since the last report; means of all ranks."""
        self._rank_s += calls_s
        self._rank_store_s += store_s

    def reset(self) -> None:
        """Forgets the stores under way, because vLLM has reset its cache and does not report their end."""
        self._storing = 0

    # --- steps ---

    def end_step(self, requests: int) -> None:
        """Measures the step that ends now, and decides every LOOK_S seconds whether stores pause. Called at the end of each schedule. `requests`:
        number of unfinished requests."""
        now, step, last = breakeven.clock(), self._step, self._last
        step.requests, step.has_stores = requests, self._storing > 0
        if last.requests and 0 < now - self._ended_at <= LONGEST_STEP_S:
            seconds, has_stores = now - self._ended_at, step.has_stores or last.has_stores
            self._busy_s += seconds
            self._beside_stores += has_stores
            if step.is_plain and last.is_plain and step.has_stores == last.has_stores:
                self._steps.add(seconds, has_stores, last.requests)
        self._last, self._step, self._ended_at = step, _Step(), now
        if now >= self._decide_at:
            self._decide_at = now + LOOK_S
            self._decide()

    def _decide(self) -> None:
        self._steps.look()
        excess_s = self._beside_stores * self._steps.excess_s
        calls_s = self.spent.calls_s - self._seen.calls_s + self._rank_s
        store_s = self.spent.store_s - self._seen.store_s + self._rank_store_s
        self._seen.calls_s, self._seen.store_s = self.spent.calls_s, self.spent.store_s
        for name, seconds in (("call_seconds", calls_s), ("store_call_seconds", store_s), ("step_excess_seconds", excess_s)):
            self._count(name, seconds)
        if self._is_unknown and not self.stores_pause:  # reports count during a pause, which must end because stores teach the rate of prefill
            self._break_even.forget()
        else:
            self._break_even.add(self._busy_s, calls_s + excess_s, store_s + excess_s, self._saved_s)
        self._busy_s = self._saved_s = self._rank_s = self._rank_store_s = 0.0
        self._beside_stores, self._is_unknown, self._has_news = 0, False, True

    # --- metrics ---

    def take_counts(self) -> dict[str, float]:
        if not self._has_counted:
            return {}
        self._has_counted = False
        counts, self._counts = self._counts, dict.fromkeys(COUNTERS, 0.0)
        return counts

    def take_gauges(self) -> dict[str, float]:
        """Returns the gauges of the latest decision; an empty dict if there was no decision since the last call."""
        if not self._has_news:
            return {}
        self._has_news = False
        return {"stores_paused": float(self.stores_pause), "balance_seconds": self._break_even.balance_s,
                "step_seconds_with_stores": self._steps.with_s, "step_seconds_without_stores": self._steps.without_s}
