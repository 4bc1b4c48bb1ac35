# SPDX-License-Identifier: Apache-2.0
"""Random histories of engines with the spec (vllm_history_host.py): whatever happens to requests, engines and the daemon, each block has the
bytes of its tokens, and nothing is held at the end."""

import random

import pytest
from engine_history import Fate, daemon_of, histories
from vllm_processes import ended, go_on, no_leases, start  # noqa: F401

pytestmark = pytest.mark.repeated
FORMS = [(version, layout) for layout in ("plain", "three", "hybrid", "two", "hybrids", "latent") for version in ("0.26", "0.33")]


def in_submission(form, world):
    """Returns whether a submission plays the form. Each rank is a process, whose start takes longer than its part of the history."""
    return world == "roomy" and (form[1] in ("plain", "three", "hybrid") or form == ("0.33", "two"))


def played():
    for one in histories(FORMS, in_submission):
        (version, layout), world, seed = one.values
        yield pytest.param(version, layout, world, seed, marks=one.marks)


@pytest.mark.parametrize("start, layout, world, seed", played(), indirect=["start"])
def test_blocks_have_the_bytes_of_their_tokens(start, layout, world, seed, make_daemon, directory):  # noqa: F811
    # Engines stand still during a fault, and two of them may then have leased as much as they may: a third of the pool is left for puts.
    daemon, switches = daemon_of(make_daemon, directory, world, memory__pool="24MiB", limits__leased_bytes="8MiB")
    fate = Fate(daemon, random.Random(f"{layout} {world} {seed}"), switches)
    process = start(daemon, f"{layout}-{seed}", "vllm_history_host.py")
    said, answer = "", ""
    while said != "leases" and (said := process.stdout.readline().strip()) in ("fault", "heal", "leases"):
        if said == "fault":
            answer = "lasts" if fate.befall(fate.choose()) else "over"
        elif said == "heal":
            fate.heal()
        else:
            no_leases(daemon)
        go_on(process, answer)
    ended(process)
