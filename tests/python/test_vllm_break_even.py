# SPDX-License-Identifier: Apache-2.0
"""When stores pause because they cost an engine more than they save it: arithmetic with engines of known costs, no daemon. The scenarios
"stores_that_cost_too_much" and others of vllm_spec_host.py and vllm_ranks_host.py show the same in the spec."""

import random

import pytest
from kvcache.vllm import breakeven
from kvcache.vllm.breakeven import (FIRST_PAUSE_S, LATEST_STEPS, LEAST_S, LEAST_STEPS, LONGEST_PAUSE_S, LOSS_S, NOISE, RECENT_STEPS,
                                    WINDOW_S, BreakEven, StepTimes)
from kvcache.vllm.watchdog import LOOK_S, LONGEST_STEP_S, Watchdog, timed, timed_store

HOUR = 3600.0


def live(one, seconds, stores, other, saved, saved_in_pause, seed=0):
    """An engine that works for so long. Its stores, and all else of the cache, cost these parts of its time, and loads save the others;
    each varies by up to its own size. Returns the times of all changes, and the seconds in which it stored."""
    rng, changes, stored = random.Random(seed), [], 0.0
    for second in range(int(seconds)):
        vary = [2 * rng.random() for _ in range(3)]
        store_s = 0.0 if one.is_paused else stores * vary[0]
        stored += not one.is_paused
        if one.add(1.0, store_s + other * vary[1], store_s, (saved_in_pause if one.is_paused else saved) * vary[2]):
            changes.append(second)
    return changes, stored


@pytest.mark.parametrize("seed", range(10))
def test_an_engine_that_wins_or_loses_little_never_pauses(seed):
    rng = random.Random(seed)
    stores, other = rng.uniform(0, 0.2), rng.uniform(0, 0.02)
    saved = stores + other + rng.uniform(0.01, 0.2)
    assert live(BreakEven(), 4 * HOUR, stores, other, saved, saved, seed) == ([], int(4 * HOUR))
    most = 0.7 * LOSS_S / WINDOW_S  # nothing is saved by an engine of new prompts
    stores = rng.uniform(0, most)
    assert live(BreakEven(), 4 * HOUR, stores, most - stores, 0.0, 0.0, seed) == ([], int(4 * HOUR))


@pytest.mark.parametrize("seed", range(8))
def test_stores_that_do_not_pay_pause_and_are_tried_ever_less_often(seed):
    rng = random.Random(seed)
    stores, other = rng.uniform(0.05, 0.5), rng.uniform(0, 0.02)
    saved = rng.uniform(0, 0.3) * stores
    one = BreakEven()
    changes, stored = live(one, 20 * HOUR, stores, other, saved, rng.uniform(0, 1) * saved, seed)
    assert changes[0] >= LEAST_S - 1 and changes[0] <= 2 * WINDOW_S
    pauses = [b - a for a, b in zip(changes[::2], changes[1::2])]
    assert pauses[:5] == [min(FIRST_PAUSE_S * 2 ** n, LONGEST_PAUSE_S) for n in range(5)] and min(pauses[4:]) == LONGEST_PAUSE_S
    assert stored < 0.2 * 20 * HOUR and len(changes) <= 2 * (20 * HOUR / LONGEST_PAUSE_S + 5), "it flaps"


def test_stores_resume_when_hits_pay():
    one = BreakEven()
    while not one.is_paused:
        one.add(1.0, 0.1, 0.1, 0.0)
    assert live(one, LEAST_S + 1, 0.1, 0.0, 0.6, 0.6)[0] == [LEAST_S - 1] and not one.is_paused
    assert live(one, HOUR, 0.1, 0.0, 0.6, 0.6)[0] == []


def test_hits_that_would_not_pay_for_the_stores_do_not_have_them_resume():
    """Stores would cost 0.1 of the engine's time again, and 1.5 times that is more than hits save."""
    one = BreakEven()
    while not one.is_paused:
        one.add(1.0, 0.1, 0.1, 0.0)
    changes, _ = live(one, FIRST_PAUSE_S - 1, 0.1, 0.0, 0.12, 0.12)
    assert changes == [] and one.is_paused


def test_a_trial_that_pays_makes_the_next_pause_short_again():
    one = BreakEven()
    live(one, 4 * HOUR, 0.2, 0.0, 0.0, 0.0)
    while one.is_paused:
        one.add(1.0, 0.0, 0.0, 0.0)
    assert live(one, 2 * WINDOW_S, 0.01, 0.0, 0.1, 0.0)[0] == []
    changes, _ = live(one, HOUR, 0.5, 0.0, 0.0, 0.0)
    assert changes[1] - changes[0] == FIRST_PAUSE_S


def test_one_long_stall_at_the_beginning_is_no_evidence():
    one = BreakEven()
    assert not one.add(30.0, 30.0, 30.0, 0.0) and not one.is_paused


def test_idle_time_decides_nothing():
    one = BreakEven()
    for _ in range(100000):
        assert not one.add(0.0, 0.0, 0.0, 0.0)


def test_stores_that_are_always_wanted_never_pause():
    one = BreakEven(False)
    assert live(one, HOUR, 1.0, 0.1, 0.0, 0.0)[0] == [] and one.balance_s < -100


def test_each_change_is_logged_once(caplog):
    caplog.set_level("INFO")
    one = BreakEven()
    changes, _ = live(one, 2 * HOUR, 0.2, 0.0, 0.0, 0.0)
    assert len(caplog.records) == len(changes) > 4
    assert caplog.records[0].levelname == "WARNING" and caplog.records[0].message.startswith("no chunks are stored for at most the next 120 s of work")
    assert caplog.records[1].message == "chunks are stored again, as a trial, after a pause of 120 s of work"


# --- steps ---


def test_steps_beside_stores_are_compared_when_there_are_enough():
    steps = StepTimes()
    for n in range(LEAST_STEPS):
        assert steps.excess_s == 0.0
        steps.add(0.020, True, 4)
        steps.add(0.012, False, 4)
        steps.look()
    assert steps.excess_s == pytest.approx(0.020 - (1 + NOISE) * 0.012) and (steps.with_s, steps.without_s) == (0.020, 0.012)


def test_noise_is_no_excess():
    rng = random.Random(1)
    for _ in range(50):
        steps = StepTimes()
        for _ in range(200):
            steps.add(rng.uniform(0.010, 0.014), rng.random() < 0.3, rng.choice((3, 4)))
        steps.look()
        assert steps.excess_s == 0.0


def test_steps_of_earlier_traffic_are_not_compared():
    """Stores that never seem to end, or traffic that changes, are no reason to pause."""
    steps = StepTimes()
    for _ in range(LATEST_STEPS):
        steps.add(0.012, False, 4)
    for n in range(RECENT_STEPS):
        steps.add(0.030, True, 4)
    steps.look()
    assert (steps.with_s, steps.without_s, steps.excess_s) == (0.0, 0.0, 0.0)


def test_steps_of_more_requests_are_no_excess():
    """Stores are under way when a prompt has just joined, and then a step is longer whatever they cost."""
    steps = StepTimes()
    for _ in range(LATEST_STEPS):
        for requests in (2, 8):
            for has_stores in [requests == 8] * 5 + [requests != 8]:
                steps.add(0.010 + 0.001 * requests, has_stores, requests)
    steps.look()
    assert steps.with_s > 0 and steps.with_s == steps.without_s and steps.excess_s == 0.0


# --- the watchdog over a clock ---


class Engine:
    """A thread that steps, over a clock of its own."""

    def __init__(self, monkeypatch, is_on=True):
        self.now = 1000.0
        monkeypatch.setattr(breakeven, "clock", lambda: self.now)
        self.dog, self.spent = Watchdog(is_on), None
        self.spent = self.dog.spent
        self.counted = {}

    @timed
    def call(self, seconds):
        self.now += seconds

    @timed_store
    def store_call(self, seconds):
        self.now += seconds

    def step(self, seconds, *, store_s=0.0, stores=0, ended=0, prompt=False, waits=False, requests=True, loaded=0):
        self.dog.offered(prompt)
        if waits:
            self.dog.waits()
        self.dog.begins_store(stores)
        self.dog.ends_store(ended)
        if loaded:
            self.dog.loads(loaded, 40e3)
        self.store_call(store_s)
        self.dog.end_step(requests)
        self.now += seconds

    def counts(self):
        for name, value in self.dog.take_counts().items():
            self.counted[name] = self.counted.get(name, 0.0) + value
        return self.counted


def test_calls_are_counted_and_what_loads_save(monkeypatch):
    engine = Engine(monkeypatch)
    for _ in range(100):
        engine.step(0.1, store_s=0.002, loaded=400)
        engine.call(0.001)
        engine.dog.rank_spent(0.003, 0.001)
        engine.dog.copied(0.004)
    engine.now += LOOK_S
    engine.step(0.1)
    counts = engine.counts()
    assert counts["call_seconds"] == pytest.approx(0.6) and counts["store_call_seconds"] == pytest.approx(0.3)
    assert counts["saved_prefill_seconds"] == pytest.approx(1.0) and counts["load_copy_seconds"] == pytest.approx(0.4)
    gauges = engine.dog.take_gauges()
    assert gauges["stores_paused"] == 0.0 and gauges["balance_seconds"] == pytest.approx(1.0 - 0.4 - 0.6, abs=0.02)
    assert engine.dog.take_gauges() == {}, "gauges are given twice"


def test_an_exception_is_counted_too(monkeypatch):
    engine = Engine(monkeypatch)

    class Fails:
        spent = engine.spent

        @timed
        def call(self):
            engine.now += 1.0
            raise ValueError

    with pytest.raises(ValueError):
        Fails().call()
    assert engine.spent.calls_s == 1.0


def test_plain_steps_beside_stores_show_what_they_cost(monkeypatch):
    """Steps that compute a prompt take a hundred times as long, those that wait a hundredth, and none of them counts."""
    engine = Engine(monkeypatch)
    for _ in range(80):
        engine.step(2.0, prompt=True, stores=10)
        for _ in range(2):
            engine.step(0.020)
        engine.step(0.012, ended=10)
        for _ in range(3):
            engine.step(0.012)
        engine.step(0.0001, waits=True)
    engine.now += LOOK_S
    engine.step(0.012)
    gauges = engine.dog.take_gauges()
    assert gauges["step_seconds_with_stores"] == pytest.approx(0.020) and gauges["step_seconds_without_stores"] == pytest.approx(0.012)
    assert engine.counts()["step_excess_seconds"] > 0


def test_time_without_requests_is_no_work(monkeypatch):
    engine = Engine(monkeypatch)
    for _ in range(5000):
        engine.step(1.0, requests=False, store_s=0.001)
        engine.step(2 * LONGEST_STEP_S, store_s=0.001)
    assert not engine.dog.stores_pause and engine.dog._break_even._worked_s == 0.0
    gauges = engine.dog.take_gauges()
    assert gauges["step_seconds_with_stores"] == gauges["step_seconds_without_stores"] == 0.0


def test_an_unknown_rate_of_prefill_is_no_evidence_of_a_loss(monkeypatch):
    engine = Engine(monkeypatch)
    for _ in range(3000):
        engine.dog.loads(1000, 0.0)
        engine.step(0.1, store_s=0.05)
    assert not engine.dog.stores_pause
    for _ in range(3000):
        engine.step(0.1, store_s=0.05)
    assert engine.dog.stores_pause
    for _ in range(int(FIRST_PAUSE_S / 0.1) + 100):
        engine.dog.loads(1000, 0.0)
        engine.step(0.1)
    assert not engine.dog.stores_pause, "without stores the rate of prefill is never learned"


def test_stores_that_vllm_forgets_are_not_waited_for(monkeypatch):
    engine = Engine(monkeypatch)
    engine.dog.begins_store(5)
    engine.dog.reset()
    engine.dog.ends_store(5)
    for _ in range(40):
        for _ in range(3):
            engine.step(0.012)
        engine.step(0.020, stores=1)
        engine.step(0.020)
        engine.step(0.020, ended=1)
    engine.now += LOOK_S
    engine.step(0.012)
    assert engine.dog.take_gauges()["step_seconds_without_stores"] == pytest.approx(0.012)
