# SPDX-License-Identifier: Apache-2.0
"""Random histories of engines with the spec (vllm_history_host.py): whatever happens to requests, engines and the daemon, each block has the
bytes of its tokens, and nothing is held at the end."""

import shutil

import pytest
from vllm_processes import ended, go_on, no_leases, start  # noqa: F401

pytestmark = pytest.mark.repeated
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))]


def empty(daemon):
    daemon.kill()
    shutil.rmtree(daemon.store)
    daemon.start()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["plain", "three", "hybrid"])
def test_blocks_have_the_bytes_of_their_tokens(layout, seed, start, make_daemon):  # noqa: F811
    daemon = make_daemon(settings={"memory.pool": "12MiB", "limits.leased_bytes": "6MiB"}).start()
    does = {"restart": lambda: (daemon.kill(), daemon.start()), "empty": lambda: empty(daemon), "kill": daemon.kill, "start": daemon.start,
            "stop": daemon.pause, "continue": daemon.resume, "leases": lambda: no_leases(daemon)}
    process = start(daemon, f"{layout}-{seed}", "vllm_history_host.py")
    said = ""
    while said != "leases" and (said := process.stdout.readline().strip()) in does:
        does[said]()
        go_on(process)
    ended(process)
