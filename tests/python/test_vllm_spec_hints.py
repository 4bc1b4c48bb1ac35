# SPDX-License-Identifier: Apache-2.0
"""Advice of requests that the spec passes to a real daemon, under the recorded contracts of vLLM 0.26 and 0.33. The scenarios are in
vllm_hints_host.py. test_vllm_hints.py tests what is advice, and how it is kept."""

import harness
import pytest
from vllm_processes import asked, ended, go_on, hangs, no_leases, restarted, start as started  # noqa: F401

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated
KINDS = ("final", "return", "shared", "tool_call", "turn_end", "pinned", "pin_early", "pin_refused", "unpinned", "disbelieved")


@pytest.fixture
def start(started):  # noqa: F811
    return lambda daemon, scenario: started(daemon, scenario, "vllm_hints_host.py")


def hinted(daemon):
    """Returns how many chunks of hints the daemon has found, by the effect of the hint."""
    counts = {kind: daemon.metric(f'kvcache_hints_total{{hint="{kind}"}}') for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.smoke
def test_advice_is_given_when_all_is_stored(start, daemon, request):
    ended(start(daemon, "given_when_all_is_stored"))
    found, new = hinted(daemon), "0.33" in request.node.name
    assert found.pop("pinned", 0) + found.pop("pin_early", 0) == 12 and found.pop("unpinned", 0) == (12 if new else 0)
    stops = [found.pop(kind, 0) for kind in ("turn_end", "tool_call", "disbelieved")]  # the scenario returns earlier than it announced
    assert sum(stops) == (24 if new else 12) and found == {"return": 12, "final": 12}, (stops, found)
    no_leases(daemon)


@pytest.mark.parametrize("scenario, found", [
    ("chunks_of_the_engines_own_cache", {"return": 10}), ("groups_have_their_namespaces", {"final": 16}),
    ("shards_all_have_advice", {"return": 33}), ("stores_that_are_reset", {"return": 5}), ("hostile", {"return": 3}),
    ("many_keys_take_many_steps", {}), ("without_a_worker", {})])
def test_advice_reaches_the_daemon(scenario, found, start, daemon):
    ended(start(daemon, scenario))
    harness.wait_until(lambda: hinted(daemon) == found, f"the daemon has {found}")
    no_leases(daemon)


def test_a_return_counts_though_its_chunks_are_not_loaded(start, daemon):
    def outcomes():
        return sum(daemon.metric(f'kvcache_hint_announcements_total{{outcome="{o}"}}') for o in ("true", "early"))

    process = start(daemon, "returns_without_a_load")
    asked(process, "announced")
    assert outcomes() == 0
    go_on(process)
    ended(process)
    assert outcomes() == 2


@pytest.mark.parametrize("scenario, fails", [("daemon_is_killed", restarted), ("daemon_hangs", hangs)])
def test_the_daemon_fails(scenario, fails, start, daemon):
    process = start(daemon, scenario)
    fails(process, daemon)
    ended(process)
