# SPDX-License-Identifier: Apache-2.0
"""BreakEven pauses the stores of an engine while this cache costs the engine more time than it saves.

The class is pure arithmetic, without a clock, I/O or threads. Its owner (watchdog.py) reports four times in seconds: the time in which the
engine had requests (its work), the time that the cache cost, the part of this cost that stores caused, and the time that loads saved. The
balance is the time saved minus the time cost. Older reports count less: the balance is that of about the last WINDOW_S of work.

- Stores pause once the balance is LOSS_S below zero after at least LEAST_S of work. A lasting loss of LOSS_S / WINDOW_S of the engine's time
  has this effect, and so has a larger loss in a shorter time. A smaller loss is an investment in later hits, also of other engines.
- Lookups and loads continue during a pause. Stores resume when hits would pay for them: when, after at least LEAST_S of work, the balance would
  be LOSS_S above zero if stores cost what they did before the pause and all costs were MARGIN times as high.
- Otherwise stores are tried again at the end of the pause. A pause after such a trial is twice as long as the one before, from FIRST_PAUSE_S to
  LONGEST_PAUSE_S. The first length applies again once the balance is not below zero after WINDOW_S of work. An engine in which stores never pay
  therefore spends at most a few per cent of its time on trying.

StepTimes compares the duration of steps with stores under way to that of steps without. It gets no steps that compute a prompt, because stores
follow these, and none in which a request waits for a lookup's answer, because such a step may compute nothing.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque

log = logging.getLogger("kvcache.vllm")

WINDOW_S = 300.0  # time of work in which the weight of a report falls to 1/e
LOSS_S = 6.0      # seconds below zero of the balance at which stores pause; seconds by which savings must exceed costs before stores resume
LEAST_S = 60.0    # least time of work before a decision
MARGIN = 1.5      # factor on the expected costs, when savings are compared with costs to resume stores
FIRST_PAUSE_S, LONGEST_PAUSE_S = 120.0, 1920.0  # lengths of pauses, in time of work

# LATEST_STEPS: how many of the latest steps with stores, and how many without, are kept. LEAST_STEPS: how many pairs of a step with stores
# and one without a result needs.
LATEST_STEPS, LEAST_STEPS = 512, 32
RECENT_STEPS = 1024  # number of the latest steps among which steps are compared, because older traffic may differ
LEAST_ALIKE = 8  # steps with the same number of requests are compared if at least this many have stores, and as many do not
NOISE = 0.1  # share of a step's time by which medians may differ by chance

clock = time.perf_counter


class BreakEven:
    """The decision whether stores pause. `is_on`: if False, only the balance is computed, and stores never pause."""

    def __init__(self, is_on: bool = True) -> None:
        self._is_on = is_on
        self.is_paused = False
        self._pause_s = FIRST_PAUSE_S
        self._store_share = 0.0  # share of the engine's time that stores cost before the pause
        self._begin()

    def _begin(self) -> None:
        self._worked_s = 0.0  # time of work since stores last paused or resumed, or forget()
        self._busy_s = self._cost_s = self._store_s = self._saved_s = 0.0  # sums of the reports' seconds, in which older reports count less

    @property
    def balance_s(self) -> float:
        """Returns the seconds saved minus the seconds cost, in about the last WINDOW_S of work."""
        return self._saved_s - self._cost_s

    def add(self, busy_s: float, cost_s: float, store_s: float, saved_s: float) -> bool:
        """Adds a report. Returns whether this report made stores pause or resume. All times are in seconds. `busy_s`: time in which the engine
        had requests. `cost_s`: time that the cache cost. `store_s`: the part of `cost_s` that stores caused. `saved_s`: time that loads
        saved."""
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
        """Forgets all reports. Called after a time whose savings are not known."""
        self._begin()

    def _pauses(self) -> bool:
        if self._worked_s >= WINDOW_S and self.balance_s >= 0:
            self._pause_s = FIRST_PAUSE_S
        if self._worked_s < LEAST_S or self.balance_s > -LOSS_S:
            return False
        log.warning("no chunks are stored for at most the next %.0f s of work: in the last %.0f s this cache cost the engine %.1f s, %.1f s of them for "
                    "stores, and saved %.1f s. Stored chunks are still loaded; store_policy 'always' prevents such pauses", self._pause_s,
                    min(self._worked_s, WINDOW_S), self._cost_s, self._store_s, self._saved_s)
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
            log.info("chunks are stored again: in the last %.0f s of work hits saved %.1f s and the cache cost %.1f s",
                     min(self._worked_s, WINDOW_S), self._saved_s, self._cost_s)
        else:
            log.info("chunks are stored again, as a trial, after a pause of %.0f s of work", self._worked_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.is_paused = False
        self._begin()
        return True


class StepTimes:
    """The durations of steps that only decode, with stores under way (`with_s`) and without (`without_s`).

    Only steps with the same number of requests are compared, because a step with more requests is longer and more often has stores under way.
    Each duration, in seconds, is the weighted mean of the medians for each number of requests, and 0 until there are enough steps."""

    def __init__(self) -> None:
        self._steps: tuple[deque[tuple[int, int, float]], ...] = (deque(maxlen=LATEST_STEPS), deque(maxlen=LATEST_STEPS))
        self._number = 0
        self.without_s = self.with_s = 0.0

    def add(self, seconds: float, has_stores: bool, requests: int) -> None:
        self._number += 1
        self._steps[has_stores].append((self._number, requests, seconds))

    def _recent(self, has_stores: bool) -> dict[int, list[float]]:
        """Returns the durations of recent steps by number of requests."""
        recent: dict[int, list[float]] = {}
        for number, requests, seconds in self._steps[has_stores]:
            if number > self._number - RECENT_STEPS:
                recent.setdefault(requests, []).append(seconds)
        return recent

    def look(self) -> None:
        """Computes `with_s` and `without_s` from the recent steps."""
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
        """Returns by how many seconds stores prolong a step, less the difference that may be chance (NOISE); 0 if unknown."""
        if not self.without_s or not self.with_s:
            return 0.0
        return max(0.0, self.with_s - (1 + NOISE) * self.without_s)
