# SPDX-License-Identifier: Apache-2.0
"""vLLM's spec of ours with KV caches that are not plain: padded and unequal pages, groups, windows, states, and chunks of several blocks.
The scenarios are in vllm_layouts_host.py."""

import functools
import random
import sys
import types

import pytest
from kvcache._gpu import NO_BLOCK
from kvcache.vllm import arrays, windows
from vllm_processes import ended, no_leases, on_two_hosts, start  # noqa: F401

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.fixture
def run(start):  # noqa: F811
    return functools.partial(start, program="vllm_layouts_host.py")


@pytest.mark.parametrize("scenario", ["chunk_of_three_blocks_from_the_middle", "regions_with_padding", "rescued_loads", "groups_of_unequal_pages",
                                      "window_tail_only", "window_behind_a_gap", "window_on_disk", "state_at_boundary",
                                      "chunk_without_its_first_blocks", "attached_whatever_the_size_of_a_chunk", "told_apart", "refused", "jobs_that_do_not_fit"])
def test_scenario(scenario, run, daemon):
    ended(run(daemon, scenario))
    no_leases(daemon)


def test_a_window_that_another_host_has_stored_is_loaded(run, make_daemon, directory):
    on_two_hosts(run, make_daemon, directory, "window_from_the_shared_tier", 21)


# --- which blocks belong to which chunk ---


@pytest.mark.parametrize("per_chunk", [1, 2, 3, 7])
def test_slots_are_those_of_the_request_s_blocks(per_chunk):
    for first in range(2 * per_chunk):
        for n in range(3 * per_chunk + 1):
            blocks = [100 + first + i for i in range(n)]
            slots = arrays.slots_of(blocks, first, per_chunk)
            assert [(s.block - 100) for s in slots] == [first // per_chunk * per_chunk + s.chunk * per_chunk + s.place for s in slots]
            assert arrays.chunks_of(n, first, per_chunk) == (slots[-1].chunk + 1 if slots else 0)


def test_the_null_block_is_loaded_into_by_nothing():
    assert arrays.slots_of([5, 0, 6], 1, 2) == [arrays.Slot(5, 0, 1), arrays.Slot(6, 1, 1)]


@pytest.mark.parametrize("blocks, chunks, first, said", [([1, 2, 3], 1, 0, [1, 2, 3]), ([1], 1, 2, [NO_BLOCK, NO_BLOCK, 1]),
                                                         ([1, 2, 3, 4], 2, 5, [NO_BLOCK, NO_BLOCK, 1, 2, 3, 4]),
                                                         ([1], 1, 1, None), ([1, 2], 1, 3, None), ([1, 2, 3, 4], 1, 0, None), ([], 1, 1, None),
                                                         ([1, 2, 3, 4], 2, 1, None)])
def test_blocks_that_were_left_out_are_the_first_of_the_first_chunk(blocks, chunks, first, said):
    assert arrays.filled(blocks, chunks, first, 3) == said


# --- windows ---


def vllm_finds(present, size, first_size):
    """Returns the end of the run, like vLLM's _sliding_window_lookup (0.33)."""
    run, need = 0, first_size
    for at in reversed(range(len(present))):
        run, need = (run + 1, need) if present[at] else (0, size)
        if run == need:
            return at + need
    return run


@pytest.mark.parametrize("seed", range(40))
def test_a_window_is_found_where_vllm_finds_it(seed):
    draw = random.Random(seed)
    for _ in range(50):
        n, size = draw.randint(0, 60), draw.randint(1, 6)
        first_size = size + draw.randint(0, 2)
        present = [draw.random() < draw.choice((0.5, 0.9)) for _ in range(n)]
        keys = [i.to_bytes(4, "big") for i in range(n)]
        answers = {k: p for k, p in zip(keys, present) if draw.random() < 0.3}
        asked = []

        def where(listed):
            asked.extend(listed)
            return bytes(present[int.from_bytes(k, "big")] for k in listed)

        found = windows.search(windows.Window(keys, size, first_size), answers, where)
        assert found.end == vllm_finds(present, size, first_size)
        assert all(present[found.first:found.end]) and len(asked) == len(set(asked)) and not answers.keys() & set(asked)
        assert found.tiers == {int.from_bytes(k, "big"): present[int.from_bytes(k, "big")] for k in asked}


def test_the_first_question_is_about_the_window_and_few_follow():
    asked = []
    keys = [i.to_bytes(4, "big") for i in range(100_000)]
    assert windows.search(windows.Window(keys, 8, 8), {}, lambda k: asked.append(len(k)) or b"\1" * len(k)).end == 100_000
    assert asked == [8]
    del asked[:]
    assert windows.search(windows.Window(keys, 8, 8), {}, lambda k: asked.append(len(k)) or bytes(len(k))).end == 0
    assert asked[0] == 8 and max(asked) == windows.MOST_KEYS and len(asked) < 40 and sum(asked) == 100_000


def test_an_unavailable_daemon_finds_no_window():
    assert windows.search(windows.Window([b"a"], 1, 1), {}, lambda _: None) is None


# --- zeros in the place of blocks ---


@pytest.mark.parametrize("has_mask, retention, is_safe", [(True, None, True), (True, 64, False), (False, None, False)])
def test_zeros_are_stored_where_vllm_knows_what_a_lookup_reaches(monkeypatch, has_mask, retention, is_safe):
    cls = type("OffloadingConnectorScheduler", (), {"_reachable_store_block_mask": lambda self: None} if has_mask else {})
    monkeypatch.setitem(sys.modules, arrays._SCHEDULER, types.SimpleNamespace(OffloadingConnectorScheduler=cls))
    ns = types.SimpleNamespace
    assert arrays.zeros_are_safe(ns(cache_config=ns(prefix_cache_retention_interval=retention))) == is_safe
    assert not arrays.zeros_are_safe(None)
