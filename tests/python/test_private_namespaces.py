# SPDX-License-Identifier: Apache-2.0
"""Private namespaces end with the engine that made them; shared ones, and those that are in use elsewhere, stay."""

import errno

import fake_lmcache
import harness
import kvcache
import pytest
from kvcache.engine import private
from kvcache.sglang.link import Link

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated

KEY, PRIVATE, SHARED = bytes(31) + b"k", {"private": "start"}, {"model": "m"}


def names(daemon):
    with daemon.client() as c:
        return {n.name for n in c.namespaces()}


def test_remove_deletes_the_namespace_and_its_chunks(client, daemon):
    namespace = client.namespace("one", PRIVATE)
    assert namespace.put([KEY], [b"chunk"]).ok and names(daemon) == {"one"}
    assert namespace.remove() == 0 and names(daemon) == set()
    assert namespace.remove() == errno.ENOENT
    assert namespace.match([KEY]) == 0 and namespace.put([KEY], [b"again"]).ok and names(daemon) == {"one"}


def test_the_state_of_a_namespace_is_read_without_opening_it(client, daemon):
    assert client.namespace_state("one") == (0, 0, "") and names(daemon) == set()
    with kvcache.Client(daemon.socket, required=True) as other:
        assert other.namespace("one", SHARED).put([KEY], [b"chunk"]).ok
        assert client.namespace_state("one") == (1, 1, "model=m\n")
    harness.wait_until(lambda: client.namespace_state("one") == (1, 0, "model=m\n"), "its session ends")
    daemon.kill()
    assert client.namespace_state("one") is None


def test_a_namespace_that_another_client_has_open_stays(client, daemon, monkeypatch):
    monkeypatch.setattr(private, "BUSY_S", 0.0)
    with kvcache.Client(daemon.socket, required=True) as other:
        kept = other.namespace("one", PRIVATE)
        assert kept.put([KEY], [b"chunk"]).ok
        namespace = client.namespace("one", PRIVATE)
        assert namespace.remove() == errno.EBUSY
        private.remove([namespace], PRIVATE)
        assert kept.match([KEY]) == 1


@pytest.mark.parametrize("fields, left", [(PRIVATE, set()), (SHARED, {"one"})], ids=["private", "shared"])
def test_a_link_removes_what_is_private(daemon, monkeypatch, fields, left):
    monkeypatch.setattr(private, "BUSY_S", 60.0)  # on a busy machine
    link = Link(daemon.socket, 30.0)
    spaces = link.namespace("one", fields, 0)
    link.begin()
    assert link.well and spaces.stores.put([KEY], [b"chunk"]).ok
    link.close()
    assert names(daemon) == left


def test_a_daemon_that_is_gone_does_not_hold_up_the_end(daemon):
    link = Link(daemon.socket, 30.0)
    link.namespace("one", PRIVATE, 0)
    link.begin()
    daemon.kill()
    link.close()
    with kvcache.Client(daemon.socket) as lonely:
        private.remove([lonely.namespace("one", PRIVATE)], PRIVATE)


def test_lmcache_removes_its_private_namespaces(daemon, monkeypatch):
    monkeypatch.setattr(private, "BUSY_S", 60.0)  # on a busy machine
    try:
        adapter = fake_lmcache.install().KvcacheL2Adapter({"socket": daemon.socket, "weights": "tests"})
        layout = fake_lmcache.layout_of("plain")
        adapter._find([fake_lmcache.ObjectKey(bytes(32), "m", 0)], layout, None)
        assert len(names(daemon)) == 2
        adapter.close()
        assert names(daemon) == {"lmcache/probe"}
    finally:
        fake_lmcache.remove()
