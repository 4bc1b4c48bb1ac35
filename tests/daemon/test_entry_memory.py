# SPDX-License-Identifier: Apache-2.0
"""Tests the memory of a running daemon that each entry of its store takes."""

import ctypes
import subprocess

import harness
import pytest
from harness import MIB

PR_SET_THP_DISABLE = 41
# The bytes with numbers of 21 bits. README.md states the sum of this, 1.2 for the numbers of a larger store, 4.3 for the lookup index, 0.4 for the
# pages of the table, and the rest of a daemon at five million entries.
ENTRY_BYTES = 98
PARTS = ("records", "hash_table", "slots", "table", "eviction", "forks", "ghosts")


def small_pages():
    """Runs in the daemon's process: without huge pages, memory in use is known to 4 KiB."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def daemon_with(make_daemon, directory, entries):
    store = directory / f"entries-{entries}"
    store.mkdir(mode=0o700)
    made = subprocess.run([harness.BUILD / "tests/campaigns/many-entries", store, str(entries), "--slot", "4096"],
                          capture_output=True, text=True, check=True)
    daemon = make_daemon(leg=harness.Leg("small pages", deprive=[small_pages]), store=store,
                         settings={"store.limit": int(made.stdout), "store.prewrite": "off", "memory.pool": 16 * MIB})
    daemon.start()
    assert daemon.status()["store"]["chunks"] == entries
    return daemon


def memory_of(daemon):
    with open(f"/proc/{daemon.pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["RssAnon"].split()[0]) * 1024


@pytest.mark.skipif(harness.is_sanitized(), reason="a sanitizer's own memory is counted")
def test_an_entry_takes_what_is_documented(make_daemon, directory):
    few, many = 30_000, 130_000
    memory = {n: memory_of(daemon_with(make_daemon, directory, n)) for n in (few, many)}
    taken = (memory[many] - memory[few]) / (many - few)
    print(f"{taken:.1f} bytes an entry")
    assert ENTRY_BYTES - 10 < taken < ENTRY_BYTES + 2, f"{taken:.1f} bytes an entry"


def test_status_shows_the_parts(make_daemon, directory):
    daemon = daemon_with(make_daemon, directory, 30_000)
    entries = daemon.status()["entries"]
    assert entries["chunks"] == 30_000
    assert entries["records_bytes"] == 60 * 30_000
    assert entries["eviction_bytes"] == 28 * 30_000

    def metrics_are_those_of_the_status():
        now = daemon.status()["entries"]
        parts = {part: now[f"{part}_bytes"] for part in PARTS}
        metrics = daemon.metrics()
        return metrics["kvcache_store_index_bytes"] == sum(parts.values()) and \
            {part: metrics[f'kvcache_store_memory_bytes{{part="{part}"}}'] for part in PARTS} == parts
    harness.wait_until(metrics_are_those_of_the_status, "the pages of the table have been written, and no figure changes")
    shown = harness.ctl("status", "memory", daemon=daemon, check=0).stdout
    assert "bytes a chunk" in shown and "records 60.0" in shown and "eviction 28.0" in shown
