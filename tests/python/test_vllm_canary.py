# SPDX-License-Identifier: Apache-2.0
"""The canary of vLLM's spec: chunks of other engines are loaded once one of them was compared. The scenarios are in
vllm_canary_host.py."""

import functools

import pytest
from vllm_processes import ended, no_leases, on_two_hosts, restarted, start  # noqa: F401

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.fixture
def run(start):  # noqa: F811
    return functools.partial(start, program="vllm_canary_host.py")


@pytest.mark.parametrize("scenario", ["equal_chunk", "rounding_noise", "another_layout", "another_model", "swapped", "other_values",
                                      "ends_without_a_comparison", "evicted_before_it_is_compared", "nothing_in_common",
                                      "after_the_last_variant", "always_compares", "own_chunks_prove_nothing", "sliding_window",
                                      "copy_takes_long", "groups_apart", "next_variant_cannot_be_opened",
                                      "next_variant_is_used_before_it_is_opened",
                                      "next_variant_of_one_group_cannot_be_opened", "opaque_bytes", "off", "refused"])
def test_scenario(scenario, run, daemon):
    ended(run(daemon, scenario))
    no_leases(daemon)


@pytest.mark.parametrize("scenario", ["from_the_shared_tier", "another_model_from_the_shared_tier"])
def test_chunks_of_another_host_are_compared(run, make_daemon, directory, scenario):
    on_two_hosts(run, make_daemon, directory, scenario, 6)


def test_the_daemon_ends_before_the_comparison(run, daemon):
    process = run(daemon, "daemon_goes")
    restarted(process, daemon)
    ended(process)
