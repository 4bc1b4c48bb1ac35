# SPDX-License-Identifier: Apache-2.0
"""The arithmetic that decides whether loading is worthwhile; no daemon."""

import pytest
from kvcache.vllm.policy import (DISK, LEAST_FETCH_S, LEAST_SAMPLES, LONGEST_SEARCH_S, MEMORY, PROBE_BYTES, PROBE_SHARE, REMOTE,
                                 SEARCH_SHARE, LoadPolicy)

pytestmark = pytest.mark.deadlines

MIB = 1 << 20


def policy(**rates):
    return LoadPolicy(16, 2 * MIB, **{"prefill_tokens_per_s": 40e3, "memory_bytes_per_s": 10e9, "disk_bytes_per_s": 2e9,
                                   "remote_bytes_per_s": 1e9, **rates})


def test_memory_is_worth_it_and_a_slow_disk_is_not():
    assert policy().worth([MEMORY] * 512) == 512
    assert policy().worth([DISK] * 512) == 0


def test_a_quick_disk_is():
    assert policy(disk_bytes_per_s=8e9).worth([DISK] * 512) == 512


def test_the_tail_on_disk_is_declined():
    assert policy().worth([MEMORY] * 300 + [DISK] * 212) == 300
    assert policy().worth([DISK] + [MEMORY] * 511) == 512  # the 511 chunks in memory gain more than the one on disk loses
    assert policy().worth([DISK] * 500 + [MEMORY] * 2) == 0


def test_the_tail_on_the_shared_tier_is_declined_where_it_is_slow():
    """16 tokens take 0.4 ms to compute; 2 MiB take 0.2 ms to load from memory, 0.3 ms from this disk, and 2.3 ms from the shared tier, through
    memory."""
    p = policy(disk_bytes_per_s=7e9)
    assert p.worth([MEMORY] * 100 + [DISK] * 100 + [REMOTE] * 100) == 200
    assert p.worth([MEMORY] * 100 + [DISK] * 100 + [REMOTE] * 2 + [DISK] * 100) == 302  # the last 100 gain more than the 2 lose
    assert p.worth([REMOTE] * 100) == 0
    quick = policy(disk_bytes_per_s=7e9, remote_bytes_per_s=20e9)
    assert quick.worth([MEMORY] * 100 + [DISK] * 100 + [REMOTE] * 100) == 300 and quick.worth([REMOTE] * 100) == 100


def test_a_run_pays_the_latency_of_the_shared_tier_once():
    """0.1 ms a chunk are gained, and 20 lost."""
    p = policy(remote_bytes_per_s=20e9)
    p.expect_remote(0, 0.02)
    assert p.worth([MEMORY] * 100 + [REMOTE] * 150) == 100 and p.worth([MEMORY] * 100 + [REMOTE] * 250) == 350
    assert p.worth([MEMORY] * 100 + [REMOTE] * 250, 0, 0, 1 << 30) == 100  # behind what others fetch
    assert p.worth([MEMORY] * 100, 0, 0, 1 << 40) == 100


def test_the_rate_of_the_shared_tier_is_the_daemon_s_until_loads_were_seen():
    p = policy(remote_bytes_per_s=0.0)
    assert p.worth([REMOTE] * 100) == PROBE_BYTES // (2 * MIB) == 32 and p.worth([MEMORY] * 10 + [REMOTE] * 100) == 42
    p.expect_remote(0.0, 0.0)
    assert p.rates[REMOTE] == 0
    p.expect_remote(20e9, 0.01)
    assert (p.rates[REMOTE], p.latency_s) == (20e9, 0.01) and p.worth([REMOTE] * 400) == 400
    p.saw_fetch(1000 * MIB, 1.01)
    slower = 1 / (0.75 / 20e9 + 0.25 / (1000 * MIB))
    assert p.rates[REMOTE] == pytest.approx(slower)
    p.expect_remote(30e9, -1.0)
    assert p.rates[REMOTE] == pytest.approx(slower) and p.latency_s == 0
    for wrong in ((0, 1.0), (MIB, 0.0), (MIB, -1.0)):
        p.saw_fetch(*wrong)
    assert p.rates[REMOTE] == pytest.approx(slower)
    fixed = policy()
    fixed.expect_remote(5e9, 0.01)
    fixed.saw_fetch(MIB, 9.0)
    assert fixed.rates[REMOTE] == 1e9 and fixed.latency_s == 0.01


def test_a_search_takes_a_part_of_what_it_may_save():
    p = policy(remote_bytes_per_s=20e9)  # 0.09 ms a chunk
    p.expect_remote(0, 0.01)
    gain = 400 * (16 / 40e3 - 2 * MIB / 20e9 - 2 * MIB / 10e9) - 0.01
    assert p.longest_search(400) == pytest.approx(SEARCH_SHARE * gain)
    assert p.longest_search(10**6) == LONGEST_SEARCH_S
    assert p.longest_search(10) == 0 and p.longest_search(400, 1 << 30) == 0
    for unknown in (LoadPolicy(16, MIB), policy(prefill_tokens_per_s=0.0), policy(always=True)):
        assert unknown.longest_search(1) == LONGEST_SEARCH_S
    for unknown in (policy(remote_bytes_per_s=0.0), policy(memory_bytes_per_s=0.0)):
        assert unknown.longest_search(1) == pytest.approx(SEARCH_SHARE * 16 / 40e3)
        assert unknown.longest_search(10**6) == LONGEST_SEARCH_S


def test_a_fetch_takes_no_longer_than_computing():
    assert policy().longest_fetch(2500) == pytest.approx(1.0) and policy().longest_fetch(1) == LEAST_FETCH_S
    assert policy(always=True).longest_fetch(1) == policy(prefill_tokens_per_s=0.0).longest_fetch(1) == float("inf")


def test_a_shared_tier_that_is_too_slow_is_tried_at_a_small_part_of_what_computing_costs():
    p = policy()
    computed = tried = 0.0
    for _ in range(20000):
        loaded = p.worth([REMOTE] * 10) if p.longest_search(10) else 0
        computed += (10 - loaded) * 16 / 40e3
        tried += loaded * (2 * MIB / 1e9 + 2 * MIB / 10e9 - 16 / 40e3) + (0.002 if loaded else 0.0)
    assert PROBE_SHARE / 16 < tried / computed <= 1.1 * PROBE_SHARE


def test_overhead_makes_short_runs_not_worth_it():
    p = policy(overhead_s=0.01, disk_bytes_per_s=8e9)
    assert p.worth([DISK] * 20) == 0 and p.worth([DISK] * 100) == 100
    assert p.worth([MEMORY] * 20) == 20  # the bus is idle meanwhile, and the GPU has other requests


def test_a_queue_is_waited_for():
    p = policy(disk_bytes_per_s=8e9)
    assert p.worth([DISK] * 100, queued_memory=50 * MIB) == 100
    assert p.worth([DISK] * 100, queued_memory=1000 * MIB) == 0
    assert p.worth([DISK] * 100, queued_disk=200 * MIB) == 0
    assert p.worth([MEMORY] * 100, queued_memory=1000 * MIB, queued_disk=1000 * MIB) == 100


def test_memory_is_declined_only_after_enough_samples():
    """Below 5.2 GB/s computing is quicker."""
    p = policy(memory_bytes_per_s=0.0)
    for n in range(LEAST_SAMPLES):
        assert p.worth([MEMORY] * 100) == 100 and p.worth_next(MEMORY) and not p.is_hopeless(MEMORY), n
        p.saw_load(100 * 2 * MIB, 0, 100 * 2 * MIB / 4e9)
    assert p.worth([MEMORY] * 100) == 0 and p.is_hopeless(MEMORY)
    p = policy(memory_bytes_per_s=0.0)
    for _ in range(2 * LEAST_SAMPLES):
        p.saw_load(100 * 2 * MIB, 0, 100 * 2 * MIB / 6e9)
    assert p.worth([MEMORY] * 100, queued_memory=1 << 40, alone=True) == 100
    assert policy(memory_bytes_per_s=4e9).worth([MEMORY] * 100) == 0  # a rate that was given needs no samples


def test_short_loads_say_nothing_about_long_ones():
    """Four single chunks of 216 KiB, each copied by two ranks in 76 us, which is mostly overhead, had an engine compute all of 6,000 tokens."""
    chunk = 216 << 10
    p = LoadPolicy(16, chunk, prefill_tokens_per_s=210000)
    for _ in range(100):
        p.saw_load(chunk, 0, 77e-6)
    assert p.memory_samples == 100 and p.worth([MEMORY] * 375) == 375
    assert p.worth_of(1, [MEMORY], 0, 0, 0, alone=True) == 1 and not p.is_hopeless(MEMORY)
    for n in range(LEAST_SAMPLES):
        assert p.worth([MEMORY] * 375) == 375, n
        p.saw_load(375 * chunk, 0, 375 * 160e-6)
    assert p.worth([MEMORY] * 375) == 0


@pytest.mark.parametrize("step_s", [0.0, 0.05, 0.5])
def test_a_step_beside_a_load_teaches_nothing(step_s):
    """An engine asks once per step which loads have ended, so for a load of 10 ms it may measure up to 500 ms, or 0."""
    p = policy(memory_bytes_per_s=0.0)
    for _ in range(20):
        p.saw_load(256 * 2 * MIB, 0, 0.0107 + step_s, 0.0107 if step_s == 0.0 else 0.0)
    assert (p.rates[MEMORY] > 0) == (step_s == 0.0) and p.worth([MEMORY] * 128) == 128
    for _ in range(20):  # the time of a load of many steps is certain enough
        p.saw_load(256 * 2 * MIB, 0, 10.0 + step_s, 10.0)
    assert p.rates[MEMORY] == pytest.approx(256 * 2 * MIB / (9.998 + step_s), rel=0.01) and p.worth([MEMORY] * 128) == 0


def test_unknown_rates_load():
    assert LoadPolicy(16, MIB).worth([DISK] * 3) == 3 and LoadPolicy(16, MIB).worth_next(DISK)
    assert LoadPolicy(16, MIB, prefill_tokens_per_s=1e6).worth([MEMORY] * 100) == 100
    assert policy(always=True).worth([DISK] * 512) == 512 and policy(always=True).worth_next(DISK)
    assert policy().worth([]) == 0


def test_of_a_disk_whose_rate_is_unknown_a_little_is_read():
    p = LoadPolicy(16, MIB, prefill_tokens_per_s=1e6)
    assert p.worth([DISK] * 100) == PROBE_BYTES // MIB == 64
    assert p.worth([MEMORY] * 300 + [DISK] * 100) == 364
    assert LoadPolicy(16, 2 * PROBE_BYTES).worth([DISK] * 3) == 1


def test_chunk_by_chunk_it_decides_as_for_a_usual_run():
    p = policy()
    for _ in range(30):
        p.saw_load(512 * 2 * MIB, 0, 0.1)
    assert p.worth_next(MEMORY) and not p.worth_next(DISK)
    slow = policy(overhead_s=0.01, disk_bytes_per_s=8e9)
    assert not slow.worth_next(DISK) and slow.worth_next(MEMORY)  # no longer run has been seen, so a usual run is one chunk


def test_rates_are_learned_where_none_was_given():
    p = LoadPolicy(16, MIB, overhead_s=0.0)
    p.saw_load(1000 * MIB, 0, 0.1)
    p.saw_load(0, 1000 * MIB, 1.0)
    assert p.rates[:2] == pytest.approx([10000 * MIB, 1000 * MIB])
    p.saw_load(1000 * MIB, 1000 * MIB, 0.1 + 2.0)
    assert p.rates[:2] == pytest.approx([10000 * MIB, 1000 * MIB * 0.8])
    fixed = policy()
    fixed.saw_load(MIB, 0, 9.0)
    fixed.saw_prefill(16, 9.0)
    assert fixed.rates == [10e9, 2e9, 1e9] and fixed.prefill == 40e3


def test_a_load_from_both_teaches_nothing_while_memory_is_unknown():
    p = LoadPolicy(16, MIB)
    p.saw_load(MIB, MIB, 1.0)
    assert p.rates == [0, 0, 0]


def test_prefill_is_the_quick_samples():
    p = LoadPolicy(16, MIB)
    p.saw_prefill(4000, 0.1)
    p.saw_prefill(4000, 10.0)
    assert p.prefill > 37e3
    for wrong in ((0, 1.0), (10, 0.0), (10, -1.0)):
        p.saw_prefill(*wrong)
    assert 37e3 < p.prefill < 40e3


def test_what_is_declined_is_tried_at_a_small_part_of_what_computing_it_costs():
    for chunk_by_chunk in (False, True):
        p = policy()
        computed = tried = 0.0
        for _ in range(20000):
            count = 10
            if chunk_by_chunk:  # a request is declined with its first chunk that is
                loaded = next((n for n in range(count) if not p.worth_next(DISK)), count)
            else:
                loaded = p.worth([DISK] * count)
            computed += (count - loaded) * 16 / 40e3
            tried += loaded * (2 * MIB / 2e9 - 16 / 40e3) + (0.002 if loaded else 0.0)
        assert PROBE_SHARE / 16 < tried / computed <= 1.1 * PROBE_SHARE, chunk_by_chunk


def test_a_run_that_is_asked_about_before_it_is_known_is_tried_as_well():
    p = policy()
    for _ in range(20):
        p.saw_load(100 * 2 * MIB, 0, 0.02)
    chunks = [int(p.worth_next(DISK)) if p.is_hopeless(DISK) else p.worth([DISK] * 100) for _ in range(2000)]
    assert 5 < sum(chunks) / 32 < 100 and set(chunks) <= {0, 1, 32}


def test_a_loading_that_takes_no_time_is_no_division_by_zero():
    p = LoadPolicy(16, MIB, overhead_s=0.0)
    p.saw_load(MIB, 0, 0.0)
    p.saw_load(0, 0, 0.0)
    assert p.rates[MEMORY] > 0 and p.rates[DISK] == 0


def test_reads_from_disk_are_known_to_a_step_of_the_engine():
    p = LoadPolicy(16, MIB, prefill_tokens_per_s=40e3, memory_bytes_per_s=10e9, by_way_of_memory=True)
    p.saw_read(100 * MIB, 0.0, 0.1)
    assert p.rates[DISK] == pytest.approx(1000 * MIB)
    p.saw_read(100 * MIB, 0.05, 0.4)  # the read may have ended at any time from 0.05 s on, as expected
    assert p.rates[DISK] == pytest.approx(1000 * MIB)
    p.saw_read(100 * MIB, 0.3, 0.4)  # 3 times slower, at least
    assert p.rates[DISK] == pytest.approx(1000 * MIB / 1.5)
    p.saw_read(100 * MIB, 0.0, 0.05)  # 3 times quicker, at least
    assert p.rates[DISK] == pytest.approx(1000 * MIB / (0.75 * 1.5 + 0.25 * 0.5))
    for wrong in ((0, 0.0, 1.0), (MIB, 0.0, 0.0), (MIB, 0.0, -1.0)):
        p.saw_read(*wrong)
    assert p.rates[DISK] == pytest.approx(1000 * MIB / (0.75 * 1.5 + 0.25 * 0.5))
    fixed = policy(by_way_of_memory=True)
    fixed.saw_read(MIB, 0.0, 9.0)
    assert fixed.rates == [10e9, 2e9, 1e9]


def test_by_way_of_memory_costs_both():
    """Computing takes 10.5 us per token at 95,000 tokens a second; loading 100 KiB takes 9.8 us from disk, and 5.1 us more through memory."""
    fast = dict(prefill_tokens_per_s=95e3, memory_bytes_per_s=20e9, disk_bytes_per_s=10.5e9)
    assert LoadPolicy(16, 16 * 100 << 10, **fast).worth([DISK] * 1000) == 1000
    assert LoadPolicy(16, 16 * 100 << 10, by_way_of_memory=True, **fast).worth([DISK] * 1000) == 0


class Engine:
    """An engine with given rates of prefill and of its tiers. Computes the time of a request relative to the better one of computing and loading
    everything."""

    def __init__(self, prefill, memory, disk):
        self.prefill, self.memory, self.disk = prefill, memory, disk
        self.policy = LoadPolicy(16, 2 * MIB, by_way_of_memory=True)

    def loading(self, chunks, disk):
        return 0.004 + chunks * 2 * MIB / self.memory + disk * 2 * MIB / self.disk

    def request(self, tiers):
        chunks = self.policy.worth(tiers)
        disk = tiers[:chunks].count(DISK)
        took = (len(tiers) - chunks) * 16 / self.prefill
        if took > 256 / self.prefill:
            self.policy.saw_prefill((len(tiers) - chunks) * 16, took)
        if chunks:
            took += self.loading(chunks, disk)
            self.policy.saw_load(chunks * 2 * MIB, 0, self.loading(chunks, 0))
            self.policy.saw_read(disk * 2 * MIB, disk * 2 * MIB / self.disk * 0.9, disk * 2 * MIB / self.disk * 1.05)
        return took, min(len(tiers) * 16 / self.prefill, self.loading(len(tiers), tiers.count(DISK)))


# 35,000 tokens a second, 43 GB/s and 2 GB/s: an H200 with a model of 8 billion parameters, and its virtual disk
@pytest.mark.parametrize("prefill,memory,disk", [(35e3, 43e9, 2e9), (35e3, 43e9, 12e9), (8e3, 20e9, 6e9), (100e3, 6e9, 1e9)])
@pytest.mark.parametrize("tier", [DISK, MEMORY, None])
def test_auto_is_as_quick_as_the_better_one_after_a_few_requests(prefill, memory, disk, tier):
    engine = Engine(prefill, memory, disk)
    for n in range(3):
        engine.request([MEMORY if tier is None else tier] * 128 + [DISK] * 128)
    took = better = 0.0
    for n in range(700):
        chunks = 16 << n % 7
        tiers = [MEMORY] * (chunks // 2) + [DISK] * (chunks - chunks // 2) if tier is None else [tier] * chunks
        one, best = engine.request(tiers)
        took, better = took + one, better + best
    assert took <= 1.05 * better


def test_a_request_that_is_alone_has_a_step_in_any_case():
    """35 ms a step, as of an 8B model in eager mode: of 512 tokens loading saves nothing, of 8,192 all but that."""
    p = policy(prefill_tokens_per_s=0.0, disk_bytes_per_s=8e9)
    p.saw_prefill(8192, 0.205)
    for _ in range(10):
        p.saw_prefill(512, 0.035)
    assert p.step_s == pytest.approx(0.035) and p.prefill == pytest.approx(40e3, rel=0.01)
    assert p.worth([DISK] * 32, alone=True) == 0 and p.worth([DISK] * 32) == 32
    assert p.worth([DISK] * 512, alone=True) == 512 and p.worth([MEMORY] * 32, alone=True) == 32
    p.saw_prefill(512, 0.013)  # the model explains 12.8 ms of it, so it is no sample of a step
    assert p.step_s == pytest.approx(0.035)
    p.saw_prefill(256, 0.012)  # a quicker step counts in full
    assert p.step_s == pytest.approx(0.012)
    for _ in range(1000):
        p.saw_prefill(256, 0.045)  # beside others
    assert 0.04 < p.step_s <= 0.05 and p.prefill > 39e3
    p.saw_prefill(256, 0.5)
    assert p.step_s <= 0.05 and p.prefill < 39e3


def test_a_disk_that_changes_is_noticed():
    engine = Engine(35e3, 43e9, 12e9)
    for _ in range(20):
        engine.request([DISK] * 512)
    assert engine.policy.worth([DISK] * 512) == 512
    engine.disk = 0.5e9
    slow = [engine.request([DISK] * 512) for _ in range(10)]
    assert sum(took > 1.5 * better for took, better in slow) <= 3
    # The policy spends 1 % of the cost of computing on trying the disk. The first bound is wider, because after ten slow reads the
    # learned rate is still too high; the second allows for the 10 % by which the rate may be off.
    for most in (2 * PROBE_SHARE, 1.25 * PROBE_SHARE):
        both = [engine.request([DISK] * 512) for _ in range(300)]
        assert 0 < sum(took - better for took, better in both) <= most * sum(better for _, better in both)
    engine.disk = 12e9
    n = next(n for n in range(1000) if engine.request([DISK] * 512)[0] < 0.6 * 512 * 16 / engine.prefill)
    assert n < 200


def test_overhead_is_told_from_bytes():
    """Short loads do not lower the estimate of long ones, which would then be declined for good."""
    p = policy(memory_bytes_per_s=0.0)
    for chunks in (16, 512, 16, 16, 64, 16, 16, 16, 512, 16, 16):
        p.saw_load(chunks * 2 * MIB, 0, 0.008 + chunks * 2 * MIB / 40e9)
    assert p.times.slope == pytest.approx(1 / 40e9, rel=0.02) and p.overhead_s == pytest.approx(0.008, rel=0.02)
    best = 512 * 2 * MIB / (0.008 + 512 * 2 * MIB / 40e9)  # no more is claimed than a tenth above it
    assert p.rates[MEMORY] == pytest.approx(1.1 * best)
    for chunks in (16, 64, 512):
        assert p.times.seconds(chunks * 2 * MIB) == pytest.approx(0.008 + chunks * 2 * MIB / 40e9, rel=0.01)
    assert p.worth([MEMORY] * 1024) == 1024 and p.worth([MEMORY] * 512) == 512
    assert p.worth([MEMORY] * 16) == 16  # 8.8 ms of the bus instead of 6.4 of the GPU
    assert p.worth([MEMORY] * 64) == 64


@pytest.mark.parametrize("tokens", [256, 512, 1024, 4096, 8192, 16384])
@pytest.mark.parametrize("rate,overhead", [(50e9, 0.002), (20e9, 0.006), (4e9, 0.004), (2e9, 0.01)])
def test_what_is_chosen_is_not_slower_than_the_other(tokens, rate, overhead):
    """The policy decides correctly after loads of all sizes in any order, with noise of 3 %."""
    p = LoadPolicy(16, 2 * MIB, prefill_tokens_per_s=40e3)
    for i in range(40):
        nbytes = (256 << i % 7) // 16 * 2 * MIB
        p.saw_load(nbytes, 0, (overhead + nbytes / rate) * (1 + 0.03 * (-1) ** i))
    chunks = tokens // 16
    cost = {True: overhead + chunks * 2 * MIB / rate, False: tokens / 40e3}
    n = p.worth([MEMORY] * chunks)
    assert n in (0, chunks)
    if rate > 2 * MIB * 40e3 / 16:
        assert n == chunks  # the bus is faster than the GPU, and only this request pays the overhead
    else:
        assert cost[n > 0] <= 1.05 * min(cost.values()), (n, cost)


def test_a_fit_of_nonsense_is_none():
    p = policy(memory_bytes_per_s=0.0)
    for chunks, seconds in ((10, 1.0), (500, 0.1), (10, 1.0), (500, 0.1), (10, 1.0), (500, 0.1)):
        p.saw_load(chunks * 2 * MIB, 0, seconds)
    assert p.overhead_s == 0.002 and p.rates[MEMORY] > 0
