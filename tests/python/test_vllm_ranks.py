# SPDX-License-Identifier: Apache-2.0
"""The spec with engines of several GPUs: a process for the scheduler and one for each rank, with the driver without a GPU and a real daemon. The
scenarios are in vllm_ranks_host.py."""

import signal

import pytest
from vllm_processes import asked, ended, go_on, hangs, no_leases, restarted, restarted_at_once, start as started  # noqa: F401

pytestmark = pytest.mark.repeated


@pytest.fixture
def start(started):  # noqa: F811
    return lambda daemon, scenario: started(daemon, scenario, "vllm_ranks_host.py")


@pytest.mark.parametrize("scenario", ["two_ranks_stored_and_loaded", "chunks_of_three_blocks", "four_ranks_from_disk", "one_shard_missing",
                                      "one_shard_s_lease_refused",
                                      "rank_attaches_late", "rank_refuses", "rank_without_a_driver", "replicated_shard_written_once", "grouped_heads_in_two_shards",
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


@pytest.mark.parametrize("scenario, fails", [("rank_reconnects_between_lookup_and_load", restarted_at_once),
                                             ("daemon_killed_after_the_hit", restarted), ("daemon_hangs_before_the_load", hangs)])
def test_the_daemon_fails(scenario, fails, start, daemon):
    process = start(daemon, scenario)
    fails(process, daemon)
    ended(process)
