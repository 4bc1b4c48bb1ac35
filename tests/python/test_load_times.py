# SPDX-License-Identifier: Apache-2.0
"""The learned time of a load from memory: properties on synthetic samples, and its evidence in the gauges. Arithmetic, no daemon."""

import random

import pytest
from kvcache.vllm.learned import GAUGES, REPEAT_S, Learned
from kvcache.vllm.policy import DISK, LATEST, MEMORY, LoadPolicy
from kvcache.vllm.times import BEST, FORGET, KEPT, LoadTimes

MIB = 1 << 20


class Bus:
    """Loads of a true rate and a fixed time, with noise. No more than one in three, and no two one after the other of a size, is disturbed: by
    a busy step beside it or as an outlier."""

    def __init__(self, seed, noise=0.08, disturbed=0.15):
        self.random = random.Random(seed)
        self.rate, self.fixed_s = self.random.uniform(2e9, 100e9), self.random.choice([0.0, 50e-6, 2e-3, 20e-3])
        self.sizes = [int(2 ** self.random.uniform(20, 32)) for _ in range(self.random.randint(1, 5))]
        self.noise, self.disturbed = noise, disturbed
        self.of_size = {}

    def true_s(self, nbytes):
        return self.fixed_s + nbytes / self.rate

    def load(self, nbytes):
        calm = self.of_size.get(nbytes, 0) >= 2  # the median of few must be one that was not disturbed
        seconds = self.true_s(nbytes) * (1 + self.random.uniform(-self.noise, self.noise))
        if calm and self.random.random() < self.disturbed:
            self.of_size[nbytes] = 0
            return seconds * self.random.uniform(2, 20) if self.random.random() < 0.5 else seconds + self.random.uniform(0.005, 0.5)
        self.of_size[nbytes] = self.of_size.get(nbytes, 0) + 1
        return seconds


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_learned_times_are_true_within_30_percent_and_no_rate_is_above_the_best_sample(seed):
    for bus in (Bus(seed + i) for i in range(50)):
        times, best = LoadTimes(0.002), 0.0
        loads = [size for size in bus.sizes for _ in range(bus.random.randint(3, 20))]
        bus.random.shuffle(loads)
        for nbytes in loads:
            seconds = bus.load(nbytes)
            best = max(best, nbytes / seconds)
            times.add(nbytes, seconds)
            assert 0 < times.rate <= 1.1 * best * (1 + 1e-9), (bus.__dict__, times.__dict__)
        for at in range(11):
            nbytes = min(bus.sizes) + at / 10 * (max(bus.sizes) - min(bus.sizes))
            assert times.seconds(nbytes) == pytest.approx(bus.true_s(nbytes), rel=0.3), (nbytes, bus.__dict__, times.__dict__)
        further = times.seconds(4 * max(bus.sizes)) - times.seconds(max(bus.sizes))
        assert further >= 3 * max(bus.sizes) / (1.1 * best) * (1 - 1e-9), "beyond the largest load bytes are quicker than any seen"


def test_a_bus_of_50_is_not_taken_for_one_of_75():
    """Short loads of an H100 take longer for each byte than a fixed time and the bus explain; a line through both is too flat."""
    times = LoadTimes(0.002)
    for nbytes, seconds in 12 * [(64e6, 4.2e-3), (128e6, 5.2e-3), (268e6, 7.4e-3), (640e6, 12.8e-3)]:
        times.add(int(nbytes), seconds)
    assert 1 / times.slope > 60e9 and times.rate == pytest.approx(1.1 * 640e6 / 12.8e-3)


def test_sizes_that_are_alike_tell_nothing_of_the_fixed_time():
    times = LoadTimes(0.002)
    for i in range(100):
        times.add((100 + i % 3 * 100) * MIB, 0.008 + (100 + i % 3 * 100) * MIB / 40e9)
    assert times.overhead_s == 0.002 and times.rate == pytest.approx(1.1 * 300 * MIB / (0.008 + 300 * MIB / 40e9))
    for _ in range(4):
        times.add(10 * MIB, 0.008 + 10 * MIB / 40e9)
    assert times.overhead_s == pytest.approx(0.008, rel=0.01)


def test_a_given_fixed_time_is_a_small_part_of_a_load():
    times = LoadTimes(0.002)
    times.add(20 * MIB, 0.0021)
    assert times.rate == pytest.approx(BEST * 20 * MIB / 0.0021) and times.seconds(20 * MIB) == pytest.approx(0.0021)


def test_a_bus_that_slows_down_is_noticed_in_every_size():
    times = LoadTimes(0.0)
    for rate in (40e9, 4e9, 20e9):
        for _ in range(KEPT // 2 + 1):
            for size in (10 * MIB, 100 * MIB, 1000 * MIB):
                times.add(size, size / rate)
        assert times.rate == pytest.approx(rate) and times.seconds(500 * MIB) == pytest.approx(500 * MIB / rate)


def test_a_size_that_no_load_has_any_more_is_forgotten():
    times = LoadTimes(0.0)
    times.add(1000 * MIB, 1.0)
    for _ in range(FORGET - 1):
        times.add(10 * MIB, 0.001)
    assert times.most == 1000 * MIB
    times.add(10 * MIB, 0.001)
    assert times.least == times.most == 10 * MIB and times.rate == pytest.approx(10 * MIB / 0.001)


@pytest.mark.parametrize("samples", [[(1, 0.0)], [(MIB, 0.0)] * 9, [(MIB, 1e9), (1 << 40, 0.0)], [(10 * MIB, 1.0), (500 * MIB, 0.1)] * 5])
def test_nonsense_gives_a_rate_that_a_sample_shows(samples):
    times = LoadTimes(0.002)
    for nbytes, seconds in samples:
        times.add(nbytes, seconds)
    assert 0 < times.rate <= BEST * max(n / max(s, 1e-6) for n, s in samples) and times.seconds(MIB) >= 0


def test_the_disk_s_rate_is_not_above_its_best_sample_either():
    for seconds in (0.0021, 0.001, 0.02):
        p = LoadPolicy(16, MIB)
        p.saw_load(0, 2 * MIB, seconds)
        assert p.rates[DISK] <= 1.1001 * 2 * MIB / seconds


# --- evidence ---



def test_gauges_say_what_a_rate_was_learned_from():
    now = [100.0]
    learned, p = Learned(lambda: now[0]), LoadPolicy(16, MIB)
    first = learned.gauges(p, 1.0)
    assert first["memory_samples"] == first["prefill_samples"] == first["disk_samples"] == 0 and "memory_sample_age_seconds" not in first
    p.saw_load(10 * MIB, 0, 0.001)
    p.saw_load(30 * MIB, 0, 0.002)
    p.saw_prefill(4000, 0.1)
    gauges = learned.gauges(p, 1.0)
    assert [gauges[f"memory_{n}"] for n in ("samples", "sample_least_bytes", "sample_most_bytes", "sample_age_seconds")] == [
        2, 10 * MIB, 30 * MIB, 0.0]
    assert gauges["memory_bytes_per_second"] == p.rates[MEMORY] > 0 and gauges["prefill_sample_most_tokens"] == 4000
    assert set(first) <= set(gauges) <= set(GAUGES)
    now[0] += 7.0
    p.saw_read(MIB, 0.0, 0.1)
    gauges = learned.gauges(p, 1.0)
    assert gauges["memory_sample_age_seconds"] == gauges["prefill_sample_age_seconds"] == 7.0 and gauges["disk_sample_age_seconds"] == 0.0
    assert gauges["disk_samples"] == 1 and gauges["disk_sample_least_bytes"] == MIB and gauges["remote_samples"] == 0


def test_gauges_are_given_when_they_change_and_once_a_second():
    now = [0.0]
    learned, p = Learned(lambda: now[0]), LoadPolicy(16, MIB)
    assert learned.gauges(p, 1.0) and not learned.gauges(p, 1.0)
    assert learned.gauges(p, 0.0)["up"] == 0.0 and not learned.gauges(p, 0.0)
    p.saw_load(MIB, 0, 0.001)
    assert learned.gauges(p, 0.0)["memory_samples"] == 1 and not learned.gauges(p, 0.0)
    now[0] += REPEAT_S
    assert learned.gauges(p, 0.0)["memory_sample_age_seconds"] == REPEAT_S
    assert Learned().gauges(None, 0.0) == {"up": 0.0, "prefill_tokens_per_second": 0.0, **dict.fromkeys(
        ("memory_bytes_per_second", "disk_bytes_per_second", "remote_bytes_per_second"), 0.0)}


def test_rates_that_are_given_have_no_evidence():
    p = LoadPolicy(16, MIB, prefill_tokens_per_s=1.0, memory_bytes_per_s=1.0, disk_bytes_per_s=1.0, remote_bytes_per_s=1.0)
    p.saw_load(MIB, 0, 1.0)
    p.saw_load(0, MIB, 1.0)
    p.saw_read(MIB, 0.0, 1.0)
    p.saw_fetch(MIB, 1.0)
    p.saw_prefill(1000, 1.0)
    assert p.samples == 0 and p.memory_samples == 1


def test_the_range_is_that_of_the_latest_samples():
    p = LoadPolicy(16, MIB)
    for size in (1, *[5] * LATEST):
        p.saw_read(size * MIB, 0.0, 1.0)
    assert p.evidence[DISK].samples == LATEST + 1 and p.evidence[DISK].least == p.evidence[DISK].most == 5 * MIB
