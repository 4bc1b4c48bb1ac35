# SPDX-License-Identifier: Apache-2.0
"""The spec with engines of several GPUs: a process for the scheduler and one for each rank, with the driver without a GPU and a real daemon. The
scenarios are in vllm_ranks_host.py."""

import importlib
import signal
import types

import fake_vllm
import pytest
from kvcache.vllm.promises import Held
from kvcache.vllm.shards import Shard
from vllm_processes import asked, ended, go_on, hangs, no_leases, restarted, restarted_at_once, start as started  # noqa: F401

pytestmark = pytest.mark.repeated


@pytest.fixture
def start(started):  # noqa: F811
    return lambda daemon, scenario: started(daemon, scenario, "vllm_ranks_host.py")


@pytest.mark.parametrize("scenario", ["two_ranks_stored_and_loaded", "chunks_of_three_blocks", "four_ranks_from_disk", "one_shard_missing",
                                      "one_shard_s_lease_refused",
                                      "rank_attaches_late", "rank_refuses", "rank_without_a_driver", "rank_stops", "rank_stops_while_another_loads", "replicated_shard_written_once", "grouped_heads_in_two_shards",
                                      "reset_while_it_loads", "forgotten_after_a_reset", "rank_killed", "ranks_of_different_configurations", "stores_that_cost_ranks_too_much",
                                      pytest.param("one_rank_of_four_killed", marks=pytest.mark.nightly)])
def test_scenario(scenario, start, daemon):
    ended(start(daemon, scenario))
    no_leases(daemon)


def test_the_next_engine_after_kill_9_finds_it(start, daemon):
    ended(start(daemon, "killed_after_a_store"), -signal.SIGKILL, "")
    ended(start(daemon, "next_engine"))


@pytest.mark.parametrize("started", ["0.33"], indirect=True)
def test_kill_9_of_one_engine_of_four(start, daemon):
    engines = [start(daemon, f"engine_{n}_of_four") for n in range(1, 5)]
    for engine in engines:
        asked(engine, "stored")
    engines[3].kill()
    ended(engines.pop(), -signal.SIGKILL, "")
    for engine in engines:
        go_on(engine)
    for engine in engines:
        ended(engine)
    no_leases(daemon)
    ended(start(daemon, "engine_after_the_killed_one"))


@pytest.fixture
def manager():
    """A manager without a daemon."""
    fake_vllm.install((0, 33))
    yield object.__new__(importlib.import_module("kvcache.vllm.manager").KvcacheManager)
    fake_vllm.remove()


def test_each_group_has_its_own_shards(manager):
    """Ranks may have the same bytes in one group and different bytes in another, such as grouped heads beside states."""
    manager._ranks = types.SimpleNamespace(world_size=4, owned={0: [0, 1, 2, 3], 2: [0, 0, 1, 1]})
    keys = [b"a" * 32 + bytes(4), b"b" * 32 + (2).to_bytes(4, "big")]
    held = [Held(1, (), 5, (10, 11, 12, 13)), Held(1, (), 5, (20, 21))]
    assert manager._offsets(keys, held) == [[10, 20], [11, 20], [12, 21], [13, 21]]
    missing = {keys[0]: bytes([1, 0, 1, 1]), keys[1]: bytes([0, 1])}
    assert manager._present(keys, missing) == [[True, False], [False, False], [True, True], [True, True]]
    assert manager._present(keys, dict.fromkeys(keys, bytes(4))) == []


@pytest.mark.parametrize("has_room, is_there", [(True, True), (True, False), (False, True)])
def test_the_ranks_keep_a_pool_before_a_hit_in_it_is_answered(manager, has_room, is_there):
    calls = []
    manager._promises = types.SimpleNamespace(pools=lambda: {3})
    manager._ranks = types.SimpleNamespace(use=lambda pools: (calls.append(pools), has_room)[1], serves=lambda pool: (calls.append(pool), is_there)[1])
    assert manager._serves(5) == (has_room and is_there)
    assert calls[0] == {3, 5}, "a rank may release the pool"


def test_after_a_reset_that_forgets_no_other_host_is_asked(manager):
    """Other hosts have stored chunks of earlier weights, under keys without the salt."""
    manager._shared, request = types.SimpleNamespace(on=True), types.SimpleNamespace(declined=set(), search_untils={})
    for salt in (b"", b"salt"):
        manager._resets = types.SimpleNamespace(salt=salt)
        assert manager._may_seek(0, request) == (not salt)


def test_answers_end_with_the_variant_in_which_they_were_found(manager):
    """The canary has rejected the variant, so no chunk of it may be loaded, also not by requests that hold it already."""
    from kvcache.vllm.manager import _Request

    request, calls = _Request(), []
    request.answers, request.ready = {b"k": True}, {b"k"}
    quiet = types.SimpleNamespace(reset=lambda: None)
    manager._loads = manager._watchdog = manager._hints = quiet
    manager._requests, manager._variant = {"a": request}, 1
    manager._ranks = types.SimpleNamespace(variant=2, shards={0: [Shard("n", {}, 5)]})
    manager._promises = types.SimpleNamespace(release=lambda name: calls.append(name), rename=lambda shards: calls.append(shards[0][0].name))
    manager._shared = types.SimpleNamespace(rename=lambda names: calls.append(names))
    manager._follow()
    assert not request.answers and not request.ready and calls == ["a", "n/v2", {0: "n/v2"}]
    manager._follow()
    assert len(calls) == 3, "it moves again"


def test_the_canary_compares_no_chunk_that_is_filled_in_part(manager):
    """A block at the end of a prefix has bytes of no token, which differ between engines."""
    from kvcache.vllm.manager import _Request

    keys = [b"a" * 32 + bytes(4), b"b" * 32 + bytes(4)]
    manager._spec, manager._resets = types.SimpleNamespace(tokens={0: 16}), types.SimpleNamespace(salt=b"")
    manager._canary = types.SimpleNamespace(mode="first", choose=lambda keys, *a: keys[-1])
    for last, chosen in ((32, keys[1]), (24, None)):
        context = types.SimpleNamespace(_offload_key_positions={keys[0]: 16, keys[1]: last})
        assert manager._choose(keys, b"\1\1", _Request(), context) == chosen
    manager._resets.salt = b"salt"
    assert manager._choose(keys, b"\1\1", _Request(), types.SimpleNamespace()) is None


@pytest.mark.parametrize("scenario, fails", [("rank_reconnects_between_lookup_and_load", restarted_at_once),
                                             ("daemon_killed_after_the_hit", restarted), ("daemon_hangs_before_the_load", hangs)])
def test_the_daemon_fails(scenario, fails, start, daemon):
    process = start(daemon, scenario)
    fails(process, daemon)
    ended(process)
