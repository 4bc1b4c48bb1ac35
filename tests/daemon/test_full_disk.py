# SPDX-License-Identifier: Apache-2.0
"""A file system with less room than store.limit: the store becomes smaller accordingly, and evicts as usual."""

import os
import subprocess

import pytest

import harness
from harness import KIB, MIB, get_all, items, put_all
from kvwire import Ack

COUNT, LENGTH = 1500, 64 * KIB
MOST_GIVEN_UP = 4  # data files that a store gives up in a part of the test in which it need not give up any; a new one for each 4 MiB would be 23


@pytest.fixture
def small(directory):
    """Provides a file system of 62 MiB."""
    path = directory / "small"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root for mounts")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=62m", "tmpfs", path], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount here: {done.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def put_and_get(daemon, name, count):
    """Checks that every put is acknowledged as written, and that the latest chunks are stored."""
    pairs = items(name, count, LENGTH)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        latest = get_all(c, ns, [key for key, _ in pairs[-50:]])
        assert latest == dict(pairs[-50:])


def test_a_store_larger_than_its_file_system_evicts(small, make_daemon):
    """The store gives up data files, as often as its last ones overflow, or stops growing; then it evicts. It is not made anew all the time."""
    daemon = make_daemon(store=small / "store", settings={
        "store.limit": "256MiB", "store.prewrite": "off", "memory.pool": "16MiB", "limits.wait": "60s"})
    daemon.start()
    put_and_get(daemon, "first", COUNT)
    given_up, evicted = daemon.metric("kvcache_store_files_given_up_total"), daemon.metric("kvcache_evictions_total")
    assert evicted > 0
    put_and_get(daemon, "second", COUNT)
    assert daemon.metric("kvcache_store_files_given_up_total") <= 2 * given_up + MOST_GIVEN_UP
    assert daemon.metric("kvcache_evictions_total") >= evicted + COUNT // 2
    with daemon.client() as c:
        c.namespace("another one")
    daemon.restart()
    put_and_get(daemon, "third", COUNT)
    daemon.restart(kill=True)
    put_and_get(daemon, "fourth", 100)


def test_a_neighbour_that_fills_the_file_system_does_not_stop_puts(small, make_daemon):
    daemon = make_daemon(store=small / "store", settings={
        "store.limit": "48MiB", "store.prewrite": "off", "memory.pool": "16MiB", "limits.wait": "60s"})
    daemon.start()
    put_and_get(daemon, "first", 200)
    with open(small / "neighbour", "wb") as f:
        with pytest.raises(OSError):
            while True:
                f.write(bytes(MIB))
                f.flush()
    put_and_get(daemon, "second", COUNT)
    daemon.restart()
    put_and_get(daemon, "third", 200)
