# SPDX-License-Identifier: Apache-2.0
"""BreakEven decides whether the stores of an engine pause, because this cache costs the engine more than it saves.

The class is arithmetic: no clock, no I/O, no thread. Its owner (watchdog.py) reports the seconds in which the engine had requests, the seconds that the cache
cost and the part of them that stores cost, and the seconds that loads saved. All of them fade: the balance is that of the last WINDOW_S of work.

- Stores pause once the balance is LOSS_S below zero after at least LEAST_S of work, which is a loss of LOSS_S / WINDOW_S of the engine's time
  that lasts, or a larger one for a shorter time. Less than that is an investment in later hits, also of other engines.
- While they pause, lookups and loads go on. Stores resume when hits would pay for them: when the balance would be as far above zero with
  the stores' cost, and MARGIN times all costs, as it was below.
- Otherwise stores are tried again after a pause, which doubles each time from FIRST_PAUSE_S to LONGEST_PAUSE_S, until they have paid
  after WINDOW_S. An engine in which stores never pay therefore spends at most a few per cent of its time on trying.

StepTimes tells what a step takes beside stores from what it takes without any. Steps that compute a prompt are left out, because stores follow
them; so are those in which a request waits for an answer, as they may compute nothing.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque

log = logging.getLogger("kvcache.vllm")

WINDOW_S = 300.0
LOSS_S = 6.0
LEAST_S = 60.0
MARGIN = 1.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 120.0, 1920.0

LATEST_STEPS, LEAST_STEPS = 512, 32
RECENT_STEPS = 1024  # number of latest steps that are compared, because older traffic may differ
LEAST_ALIKE = 8  # steps with and without stores of a number of requests
NOISE = 0.1  # part of a step by which medians may differ by chance

clock = time.perf_counter


class BreakEven:
    """Makes a decision from an empty window. With `is_on` False, stores never pause."""

    def __init__(self, is_on: bool = True) -> None:
        self._is_on = is_on
        self.is_paused = False
        self._pause_s = FIRST_PAUSE_S
        self._store_share = 0.0  # part of the engine's time that stores cost before the pause
        self._begin()

    def _begin(self) -> None:
        self._worked_s = 0.0  # since the last change
        self._busy_s = self._cost_s = self._store_s = self._saved_s = 0.0  # fading

    @property
    def balance_s(self) -> float:
        """Returns the seconds saved minus the seconds that the cache cost, in the last WINDOW_S of work."""
        return self._saved_s - self._cost_s

    def add(self, busy_s: float, cost_s: float, store_s: float, saved_s: float) -> bool:
        """Adds a report. Returns whether stores have paused or resumed because of it. `store_s`: the part of the costs that stores caused."""
        fade = math.exp(-busy_s / WINDOW_S)
        self._worked_s += busy_s
        self._busy_s = fade * self._busy_s + busy_s
        self._cost_s = fade * self._cost_s + cost_s
        self._store_s = fade * self._store_s + store_s
        self._saved_s = fade * self._saved_s + saved_s
        if not self._is_on:
            return False
        return self._resumes() if self.is_paused else self._pauses()

    def forget(self) -> None:
        """Empties the window, because the savings in it are not known."""
        self._begin()

    def _pauses(self) -> bool:
        if self._worked_s >= WINDOW_S and self.balance_s >= 0:
            self._pause_s = FIRST_PAUSE_S
        if self._worked_s < LEAST_S or self.balance_s > -LOSS_S:
            return False
        log.warning("stores pause for %.0f s of work: this cache has cost %.1f s of the last %.0f s, %.1f s of them for stores, and has "
                    "saved %.1f s. What is stored is still loaded", self._pause_s, self._cost_s, min(self._worked_s, WINDOW_S), self._store_s, self._saved_s)
        self._store_share = self._store_s / self._busy_s
        self.is_paused = True
        self._begin()
        return True

    def _resumes(self) -> bool:
        would_cost_s = MARGIN * (self._cost_s + self._store_share * self._busy_s)
        pays = self._worked_s >= LEAST_S and self._saved_s - would_cost_s >= LOSS_S
        if not pays and self._worked_s < self._pause_s:
            return False
        if pays:
            log.info("stores resume: hits have saved %.1f s of the last %.0f s of work, and cost %.1f s", self._saved_s,
                     min(self._worked_s, WINDOW_S), self._cost_s)
        else:
            log.info("stores are tried again after a pause of %.0f s of work", self._worked_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.is_paused = False
        self._begin()
        return True


class StepTimes:
    """The times of steps that only decode, with stores under way and without, for equal numbers of requests: stores are under way when more
    requests run, and a step of more requests is longer anyway. Each is a mean of the medians by number of requests; 0 until there are enough."""

    def __init__(self) -> None:
        self._steps: tuple[deque[tuple[int, int, float]], ...] = (deque(maxlen=LATEST_STEPS), deque(maxlen=LATEST_STEPS))
        self._number = 0
        self.without_s = self.with_s = 0.0

    def add(self, seconds: float, has_stores: bool, requests: int) -> None:
        self._number += 1
        self._steps[has_stores].append((self._number, requests, seconds))

    def _recent(self, has_stores: bool) -> dict[int, list[float]]:
        """Returns the times of recent steps by number of requests."""
        recent: dict[int, list[float]] = {}
        for number, requests, seconds in self._steps[has_stores]:
            if number > self._number - RECENT_STEPS:
                recent.setdefault(requests, []).append(seconds)
        return recent

    def look(self) -> None:
        """Computes the means."""
        without, beside = self._recent(False), self._recent(True)
        both = {n: min(len(without[n]), len(beside[n])) for n in without.keys() & beside.keys()}
        both = {n: weight for n, weight in both.items() if weight >= LEAST_ALIKE}
        total = sum(both.values())
        if total < LEAST_STEPS:
            self.without_s = self.with_s = 0.0
            return
        self.without_s, self.with_s = (sum(weight * statistics.median(times[n]) for n, weight in both.items()) / total
                                       for times in (without, beside))

    @property
    def excess_s(self) -> float:
        """Returns by how much stores prolong a step, beyond noise."""
        if not self.without_s or not self.with_s:
            return 0.0
        return max(0.0, self.with_s - (1 + NOISE) * self.without_s)
