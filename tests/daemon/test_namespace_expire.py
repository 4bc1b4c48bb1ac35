# SPDX-License-Identifier: Apache-2.0
"""Namespaces without chunks and sessions are removed after namespaces.expire, or when a new one needs a place at a limit.

A removal is final: later nothing of the namespace is found under its name, also after a kill.
"""

import signal

import kvwire
from harness import wait_until
from kvwire import Op, Status


def message(name):
    return kvwire.NAMESPACE.pack(0, len(name), 0, 0) + name


def names(client):
    return {n.name for n in client.namespaces()}


def make_unused(daemon, name):
    """Makes it in a session that has ended for the daemon as well."""
    with daemon.client() as c:
        c.namespace(name)
    with daemon.client() as c:
        wait_until(lambda: not any(n.name == name and n.sessions for n in c.namespaces()), "its session has ended")


def keys(n):
    return [bytes([1, k]) + bytes(30) for k in range(n)]


def store(client, name, ack=kvwire.Ack.WRITTEN):
    client.staging()
    ns = client.namespace(name)
    assert [r.status for r in client.put(ns, [(k, b"x" * 3000) for k in keys(3)], ack=ack)] == [Status.OK] * 3
    return ns


def test_an_unused_namespace_expires_and_a_used_one_stays(make_daemon):
    daemon = make_daemon(settings={"namespaces.expire": "1s"}).start()
    with daemon.client() as c:
        store(c, "full")
    with daemon.client() as admin, daemon.client() as c:
        c.namespace("open")
        for round in range(3):  # "full" and "open" outlive each of these
            make_unused(daemon, f"unused-{round}")
            wait_until(lambda: f"unused-{round}" not in names(admin), "it expires")
        assert names(admin) == {"full", "open"}
        wait_until(lambda: daemon.metric("kvcache_namespaces_expired_total") == 3, "the removals are written and counted")
        assert daemon.metric("kvcache_namespaces_removed_total") == 3
        assert 'namespace "unused-0": removed; it had no chunks and no sessions for 1' in daemon.log()
        c.close()
        wait_until(lambda: names(admin) == {"full"}, "the one that was open expires")
        with daemon.client() as other:
            ns = other.namespace("full")
            assert other.evict(ns, keys(3)) == [Status.OK] * 3
        wait_until(lambda: not names(admin), "the one that is empty now expires")
        # A removal is counted after it is on disk, where the next daemon finds it.
        wait_until(lambda: daemon.metric("kvcache_namespaces_expired_total") == 5, "the removals are written and counted")
    daemon.restart(kill=True)
    assert daemon.metric("kvcache_namespaces") == 0


def test_a_name_that_expired_begins_empty(make_daemon):
    daemon = make_daemon(settings={"namespaces.expire": "1s"}).start()
    for round in range(2):
        with daemon.client() as c:
            ns = store(c, "again", kvwire.Ack.DURABLE)
            c.purge(ns)
        with daemon.client() as admin:
            wait_until(lambda: not names(admin), "it expires")
        daemon.restart(kill=True)
        with daemon.client() as c:
            ns = c.namespace("again")
            assert not any(c.exists(ns, keys(3)))
            assert [r.status for r in c.get(ns, keys(3))] == [Status.MISS] * 3


def test_a_reload_changes_when_namespaces_expire(make_daemon):
    daemon = make_daemon()
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("namespaces: {expire: 168h}\n")
    daemon.start()
    for i in range(40):  # more than one tick removes
        with daemon.client() as c:
            c.namespace(f"n{i}")
    assert daemon.metric("kvcache_namespaces") == 40
    daemon.config.write_text("namespaces: {expire: 1s}\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("kvcache_namespaces") == 0, "they expire", timeout=30)
    wait_until(lambda: daemon.metric("kvcache_namespaces_expired_total") == 40, "the removals are written and counted")


def test_a_new_namespace_at_the_users_limit_replaces_unused_ones_only(make_daemon):
    daemon = make_daemon(settings={"namespaces.expire": "off", "limits.uid_namespaces": 3}).start()
    for i in range(8):
        make_unused(daemon, f"n{i}")
    with daemon.client() as c:
        assert names(c) == {"n5", "n6", "n7"}, "the latest are kept"
        assert daemon.metric("kvcache_namespaces_expired_total") == 5
        assert 'namespace "n4": removed' in daemon.log()
        store(c, "n5")
        c.namespace("n6")
        c.namespace("n7")
        refused = c.call(Op.NAMESPACE, message(b"n8"), check=False)
        assert refused.status == Status.QUOTA
        assert b"is known to be unused; remove some (kvcachectl namespace rm)" in refused.body
    make_unused(daemon, "n8")
    with daemon.client() as c:
        assert {"n5", "n8"} < names(c) and len(names(c)) == 3
        assert [r.status for r in c.get(c.namespace("n5"), keys(3))] == [Status.OK] * 3


def test_many_opens_at_the_limit_at_once_are_all_made(make_daemon):
    """Each new namespace takes the place of another unused one, although the daemon starts the removals together."""
    daemon = make_daemon(settings={"namespaces.expire": "off", "limits.uid_namespaces": 20}).start()
    for i in range(20):
        make_unused(daemon, f"old{i}")
    with daemon.client() as c:
        tags = [c.submit(Op.NAMESPACE, message(b"new%d" % i)) for i in range(20)]
        assert [c.wait(t, check=False).status for t in tags] == [Status.OK] * 20
        assert names(c) == {f"new{i}" for i in range(20)}
