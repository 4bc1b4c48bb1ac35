# SPDX-License-Identifier: Apache-2.0
"""Whether loading is worth it: arithmetic, no daemon."""

import pytest
from kvcache.vllm.policy import DISK, MEMORY, RETRY_AFTER, LoadPolicy

MIB = 1 << 20


def policy(**rates):
    return LoadPolicy(16, 2 * MIB, **{"prefill_tokens_per_s": 40e3, "memory_bytes_per_s": 10e9, "disk_bytes_per_s": 2e9, **rates})


def test_memory_is_worth_it_and_a_slow_disk_is_not():
    assert policy().worth([MEMORY] * 512) == 512
    assert policy().worth([DISK] * 512) == 0


def test_a_quick_disk_is():
    assert policy(disk_bytes_per_s=8e9).worth([DISK] * 512) == 512


def test_the_tail_on_disk_is_declined():
    assert policy().worth([MEMORY] * 300 + [DISK] * 212) == 300
    assert policy().worth([DISK] + [MEMORY] * 511) == 512  # what follows gains more than one chunk loses
    assert policy().worth([DISK] * 500 + [MEMORY] * 2) == 0


def test_overhead_makes_short_runs_not_worth_it():
    p = policy(overhead_s=0.01)
    assert p.worth([MEMORY] * 20) == 0 and p.worth([MEMORY] * 100) == 100


def test_a_queue_is_waited_for():
    assert policy().worth([MEMORY] * 100, queued_bytes=100 * MIB) == 100
    assert policy().worth([MEMORY] * 100, queued_bytes=1000 * MIB) == 0
    assert policy().worth([MEMORY] * 100, queued_bytes=100 * MIB, queued_tier=DISK) == 0


def test_unknown_rates_load():
    assert LoadPolicy(16, MIB).worth([DISK] * 3) == 3 and LoadPolicy(16, MIB).worth_next(DISK)
    assert LoadPolicy(16, MIB, prefill_tokens_per_s=1e6).worth([DISK] * 100) == 100
    assert policy(always=True).worth([DISK] * 512) == 512 and policy(always=True).worth_next(DISK)
    assert policy().worth([]) == 0


def test_chunk_by_chunk_it_decides_as_for_a_usual_run():
    p = policy()
    for _ in range(30):
        p.saw_load(512 * 2 * MIB, 0, 0.1)
    assert p.worth_next(MEMORY) and not p.worth_next(DISK)
    assert not policy(overhead_s=0.01).worth_next(MEMORY)  # it has only ever seen single chunks


def test_rates_are_learned_where_none_was_given():
    p = LoadPolicy(16, MIB, overhead_s=0.0)
    p.saw_load(1000 * MIB, 0, 0.1)
    p.saw_load(0, 1000 * MIB, 1.0)
    assert p.rates == pytest.approx([10000 * MIB, 1000 * MIB])
    p.saw_load(1000 * MIB, 1000 * MIB, 0.1 + 2.0)
    assert p.rates == pytest.approx([10000 * MIB, 1000 * MIB * 0.875])
    fixed = policy()
    fixed.saw_load(MIB, 0, 9.0)
    fixed.saw_prefill(16, 9.0)
    assert fixed.rates == [10e9, 2e9] and fixed.prefill == 40e3


def test_a_load_from_both_teaches_nothing_while_memory_is_unknown():
    p = LoadPolicy(16, MIB)
    p.saw_load(MIB, MIB, 1.0)
    assert p.rates == [0, 0]


def test_prefill_is_the_quick_samples():
    p = LoadPolicy(16, MIB)
    p.saw_prefill(4000, 0.1)
    p.saw_prefill(4000, 10.0)
    assert p.prefill > 37e3
    for wrong in ((0, 1.0), (10, 0.0), (10, -1.0)):
        p.saw_prefill(*wrong)
    assert 37e3 < p.prefill < 40e3


def test_what_is_always_declined_is_tried_now_and_then():
    p = policy()
    said = [p.worth([DISK] * 10) for _ in range(2 * RETRY_AFTER)]
    assert said.count(10) == 2 and said.count(0) == 2 * RETRY_AFTER - 2


def test_a_loading_that_takes_no_time_is_no_division_by_zero():
    p = LoadPolicy(16, MIB, overhead_s=0.0)
    p.saw_load(MIB, 0, 0.0)
    p.saw_load(0, 0, 0.0)
    assert p.rates[MEMORY] > 0 and p.rates[DISK] == 0


def test_overhead_is_told_from_bytes():
    """Short loads do not make long ones look slow, which would be declined from then on."""
    p = policy(memory_bytes_per_s=0.0)
    for chunks in (16, 512, 16, 16, 64, 16, 16, 16, 512, 16, 16):
        p.saw_load(chunks * 2 * MIB, 0, 0.008 + chunks * 2 * MIB / 40e9)
    assert p.rates[MEMORY] == pytest.approx(40e9, rel=0.02) and p.overhead_s == pytest.approx(0.008, rel=0.02)
    assert p.worth([MEMORY] * 1024) == 1024 and p.worth([MEMORY] * 512) == 512
    assert p.worth([MEMORY] * 16) == 0  # 8.8 ms, and computing them takes 6.4
    assert p.worth([MEMORY] * 64) == 64


@pytest.mark.parametrize("tokens", [256, 512, 1024, 4096, 8192, 16384])
@pytest.mark.parametrize("rate,overhead", [(50e9, 0.002), (20e9, 0.006), (4e9, 0.004), (2e9, 0.01)])
def test_what_is_chosen_is_not_slower_than_the_other(tokens, rate, overhead):
    """Once loads of all sizes were seen, in any order, noise of 3 % included."""
    p = LoadPolicy(16, 2 * MIB, prefill_tokens_per_s=40e3)
    for i in range(40):
        nbytes = (256 << i % 7) // 16 * 2 * MIB
        p.saw_load(nbytes, 0, (overhead + nbytes / rate) * (1 + 0.03 * (-1) ** i))
    chunks = tokens // 16
    cost = {True: overhead + chunks * 2 * MIB / rate, False: tokens / 40e3}
    n = p.worth([MEMORY] * chunks)
    assert n in (0, chunks)
    assert cost[n > 0] <= 1.05 * min(cost.values()), (n, cost)


def test_a_fit_of_nonsense_is_none():
    p = policy(memory_bytes_per_s=0.0)
    for chunks, seconds in ((10, 1.0), (500, 0.1), (10, 1.0), (500, 0.1), (10, 1.0), (500, 0.1)):
        p.saw_load(chunks * 2 * MIB, 0, seconds)
    assert p.overhead_s == 0.002 and p.rates[MEMORY] > 0
