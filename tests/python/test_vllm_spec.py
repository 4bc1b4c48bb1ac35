# SPDX-License-Identifier: Apache-2.0
"""vLLM's spec of ours under the recorded contracts of vLLM 0.26 and 0.33, against a real daemon and over the driver without a GPU;
vLLM is not needed. The scenarios are in vllm_spec_host.py, each a process of its own, because a driver stays loaded."""

import signal

import pytest
from vllm_processes import asked, ended, go_on, hangs, no_leases, on_two_hosts, restarted, restarted_at_once, start  # noqa: F401

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.mark.parametrize("scenario", ["stored_and_loaded", "from_disk", "declined", "without_a_worker", "refused", "former_options",
                                      "loads_whatever_fails", "prefill_rate", "prefill_rate_beside_awaited_loads", "prefill_rate_of_chunks_that_others_computed", "groups_by_their_numbers", "asked_as_one",
                                      "preempted_and_declined", "forgotten_after_a_reset", "held_before_a_reset", "told_apart", "captures", "a_captured_stream_is_left_alone",
                                      "loads_in_the_engine_s_thread", "expedited", "waited_for_a_load", "awaited_loads_by_default", "beside_the_forward_pass", "a_step_that_did_not_say_that_it_began", "answered_at_once", "waited_for_first", "stores_while_it_attaches", "driver_refuses_the_memory",
                                      "small_stores_go_together", "gathered_and_waited_for", "closed_while_it_stores", "stores_that_cost_too_much",
                                      "stores_that_cost_little_or_are_always_wanted", "copied_in_each_way"])
def test_scenario(scenario, start, daemon):  # noqa: F811
    ended(start(daemon, scenario))
    no_leases(daemon)


@pytest.mark.parametrize("scenario", ["from_the_shared_tier", "first_chunks_from_elsewhere", "sliding_window_from_the_shared_tier"])
def test_what_another_host_has_stored_is_loaded(start, make_daemon, directory, scenario):  # noqa: F811
    on_two_hosts(start, make_daemon, directory, scenario, 21)


def test_the_next_engine_after_kill_9_finds_it(start, daemon):
    ended(start(daemon, "killed_after_a_store"), -signal.SIGKILL, "")
    ended(start(daemon, "next_engine"))


@pytest.mark.parametrize("scenario", ["ended_or_reset_before_the_load", "aborted_while_it_loads"])
def test_leases_end_with_the_request(scenario, start, daemon):  # noqa: F811
    process = start(daemon, scenario)
    asked(process, "leases")
    no_leases(daemon)
    ended(process)


def test_a_request_waits_for_room_that_leases_of_others_take(start, make_daemon):  # noqa: F811
    daemon = make_daemon(settings={"memory.pool": "16MiB", "limits.leased_bytes": "1MiB"}).start()
    ended(start(daemon, "waits_for_room"))
    no_leases(daemon)


def test_leases_that_arrive_for_an_ended_request_are_released(start, daemon):  # noqa: F811
    process = start(daemon, "ended_while_leases_are_asked_for")
    hangs(process, daemon)
    go_on(process)
    asked(process, "leases")
    no_leases(daemon)
    ended(process)


def test_the_daemon_ends_between_promise_and_load(start, daemon):  # noqa: F811
    process = start(daemon, "daemon_ends_before_the_load")
    restarted(process, daemon)
    ended(process)


def test_an_engine_that_only_loads_attaches_to_the_next_daemon(start, daemon):  # noqa: F811
    process = start(daemon, "only_loads_after_a_restart")
    restarted_at_once(process, daemon)
    ended(process)


def test_leases_in_the_memory_of_several_daemons_are_good(start, daemon):  # noqa: F811
    process = start(daemon, "leases_in_as_many_pools_as_are_kept")
    for _ in range(4):
        restarted_at_once(process, daemon)
        go_on(process)
    ended(process)
    no_leases(daemon)


@pytest.mark.parametrize("program", ["daemon_hangs_once_it_is_attached", "daemon_hangs_before_the_load", "hung_while_it_stores", "hung_while_it_is_asked"])
def test_the_daemon_hangs_while_the_engine_is_at_it(start, daemon, program):  # noqa: F811
    process = start(daemon, program)
    hangs(process, daemon)
    ended(process)
