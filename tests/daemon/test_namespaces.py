# SPDX-License-Identifier: Apache-2.0
"""The life of a namespace: who may make how many, what is seen of them, and their end (R10, R16).

Limits belong to the user who made a namespace, not to its connection, and hold over restarts.
"""

import json
import os
import struct
import time

import pytest

import kvwire
from harness import MIB, wait_until
from kvwire import Op, Status
from test_tenants import ALICE, BOB, CAROL, TENANTS, client_as, make, usage  # noqa: F401 (make: a fixture)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")

LONG = b"a=" + b"y" * 4093 + b"\n"


def message(name, fingerprint=b"", chunk_bytes=0):
    return kvwire.NAMESPACE.pack(chunk_bytes, len(name), len(fingerprint), 0) + name + fingerprint


def open_some(client, names, fingerprint=b""):
    """Opens them, many at a time; the replies."""
    replies = []
    names = list(names)
    for at in range(0, len(names), 32):
        tags = [client.submit(Op.NAMESPACE, message(n, fingerprint)) for n in names[at:at + 32]]
        replies += [client.wait(t, check=False) for t in tags]
    return replies


def make_many(daemon, uid, count, prefix="n", fingerprint=b""):
    """As this user, over as many connections as it takes; the replies."""
    replies = []
    for at in range(0, count, 200):
        with client_as(daemon, uid) as c:
            replies += open_some(c, (f"{prefix}-{uid}-{i:05}".encode() for i in range(at, min(at + 200, count))),
                                 fingerprint)
    return replies


def statuses(replies):
    counts = {}
    for r in replies:
        counts[r.status] = counts.get(r.status, 0) + 1
    return counts


# --- limits ---

def test_R10_a_users_namespaces_are_limited_over_reconnects_and_restarts(make):
    """Whatever connection or start of the daemon it made them in; another user has room."""
    daemon = make("", {"limits.uid_namespaces": 10})
    assert statuses(make_many(daemon, ALICE, 8)) == {Status.OK: 8}
    daemon.restart(kill=True)
    with client_as(daemon, ALICE) as c:
        last = [c.call(Op.NAMESPACE, message(b"more-%d" % i), check=False) for i in range(4)]
        assert [r.status for r in last] == [Status.OK] * 2 + [Status.QUOTA] * 2
        text = last[-1].body.decode()
        assert f"user {ALICE} has made 10 namespaces" in text and "limits.uid_namespaces" in text, text
        assert "may have 10" in text and "kvcachectl namespace rm" in text, text
        assert c.call(Op.NAMESPACE, message(b"more-0"), check=False).status == Status.OK, "an existing one is no new one"
    assert statuses(make_many(daemon, BOB, 10)) == {Status.OK: 10}
    daemon.restart()
    assert statuses(make_many(daemon, ALICE, 1, "again")) == {Status.QUOTA: 1}
    assert statuses(make_many(daemon, BOB, 1, "again")) == {Status.QUOTA: 1}
    assert daemon.metric('kvcache_namespace_refusals_total{limit="user"}') == 2
    assert daemon.metric("kvcache_namespaces") == 20


def test_R10_a_users_limit_may_change_with_a_reload(make):
    daemon = make("limits: {uid_namespaces: 2}\n")
    with client_as(daemon, ALICE) as c:
        assert [r.status for r in open_some(c, (b"%d" % i for i in range(3)))] == [Status.OK] * 2 + [Status.QUOTA]
        daemon.config.write_text("limits: {uid_namespaces: 3}\n")
        daemon.process.send_signal(1)
        wait_until(lambda: c.call(Op.NAMESPACE, message(b"3"), check=False).status == Status.OK, "the new limit counts")
        assert c.call(Op.NAMESPACE, message(b"4"), check=False).status == Status.QUOTA


def test_R10_one_user_leaves_a_store_and_a_tenant_to_the_others(make):
    """By default, with and without tenants."""
    daemon = make("")
    counts = statuses(make_many(daemon, ALICE, 600))
    assert counts == {Status.OK: 512, Status.QUOTA: 88}
    assert statuses(make_many(daemon, BOB, 1)) == {Status.OK: 1}
    daemon.stop()
    many = "tenants:\n" + "".join(f"  - {{name: t{i}, users: [{ALICE if i == 0 else 21000 + i}{', ' + str(BOB) if i == 0 else ''}], "
                                  "pool: 8MiB}\n" for i in range(15))
    daemon = make(many)
    counts = statuses(make_many(daemon, ALICE, 300))
    assert 100 <= counts[Status.OK] <= 128, "half of a sixteenth of a store's"
    assert statuses(make_many(daemon, BOB, 1)) == {Status.OK: 1}


def test_R10_a_tenants_namespaces_are_limited(make):
    """To what the configuration says, whichever of its users made them; and each has a share without that."""
    daemon = make(TENANTS.replace("pool: 16MiB\n", "pool: 16MiB\n    namespaces: 5\n", 1),
                  {"limits.uid_namespaces": 60})
    assert statuses(make_many(daemon, ALICE, 3)) == {Status.OK: 3}
    with client_as(daemon, BOB) as blue:
        assert statuses(open_some(blue, (b"%d" % i for i in range(50)))) == {Status.OK: 50}
    with client_as(daemon, CAROL, gid=30001) as red:
        replies = open_some(red, (b"c%d" % i for i in range(3)))
        assert [r.status for r in replies] == [Status.OK] * 2 + [Status.QUOTA]
        assert 'tenant "red" has 5 namespaces' in replies[2].body.decode()
    assert usage(daemon, "red")["namespaces"] == {"used": 5, "limit": 5}
    assert daemon.metric('kvcache_tenant_max_namespaces{tenant="red"}') == 5
    assert daemon.metric('kvcache_tenant_namespaces{tenant="blue"}') == 50
    share = daemon.metric('kvcache_tenant_max_namespaces{tenant="blue"}')
    assert 4096 // 3 - 2 <= share <= 4096 // 3


def test_R10_a_session_that_is_full_makes_no_names(make):
    """Its limit is looked at before a name is made: what is refused does not exist."""
    daemon = make("limits: {uid_namespaces: 4096}\n")
    with client_as(daemon, ALICE) as c:
        replies = open_some(c, (b"n%04d" % i for i in range(400)))
        assert [r.status for r in replies[:256]] == [Status.OK] * 256
        assert {r.status for r in replies[256:]} <= {Status.QUOTA, Status.BUSY}
        assert replies[-1].status == Status.QUOTA and "this session has 256" in replies[-1].body.decode()
        assert c.call(Op.NAMESPACE, message(b"n0000")).value == 1, "those that it has open can be opened again"
        assert daemon.metric("kvcache_namespaces") == 256
        assert daemon.metric('kvcache_namespace_refusals_total{limit="session"}') == 144
        with client_as(daemon, ALICE) as another:
            with pytest.raises(kvwire.Refused) as e:
                another.namespace("n0256", attach=True)
            assert e.value.status == Status.NO_NAMESPACE


def test_near_a_limit_there_is_a_warning(make):
    """At 80 %: one line in the log, one in the status, and a metric; none before."""
    daemon = make("", {"limits.uid_namespaces": 10})
    warning = f"user {ALICE} has 8 of at most 10 namespaces"
    make_many(daemon, ALICE, 7)
    assert warning not in daemon.log() and daemon.metric('kvcache_namespaces_near_limit{limit="user"}') == 0
    assert daemon.status()["namespace_usage"]["warning"] == ""
    make_many(daemon, ALICE, 8)
    wait_until(lambda: warning in daemon.log(), "the warning")
    assert daemon.metric('kvcache_namespaces_near_limit{limit="user"}') == 1
    assert "1 user is at 80 %" in daemon.status()["namespace_usage"]["warning"]
    with client_as(daemon, ALICE) as c:
        said = json.loads(c.report())["namespace_usage"]
    assert (said["user_count"], said["user_limit"]) == (8, 10)
    assert "this user has made 8 of at most 10" in said["warning"]
    make_many(daemon, ALICE, 10)
    assert daemon.log().count("of at most 10 namespaces") == 1


# --- what is seen ---

@pytest.fixture
def crowded(make):
    """A store with 2,000 namespaces of long fingerprints, of which 25 have chunks, the more the higher their number."""
    daemon = make("limits: {uid_namespaces: 4096}\n", {"listen.http": None, "store.limit": "512MiB"}, start=False)
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    assert statuses(make_many(daemon, ALICE, 2000, fingerprint=LONG)) == {Status.OK: 2000}
    with client_as(daemon, BOB) as c:
        c.lane()
        for i in range(25):
            ns = c.namespace(f"big-{i:02}")
            c.put(ns, [(bytes([i + 1, k]) + bytes(30), bytes(1000)) for k in range(i + 1)], ack=kvwire.Ack.WRITTEN)
    return daemon


def test_reports_are_bounded_however_many_namespaces_there_are(crowded):
    """The largest by name, sums of all; HTTP and metrics alike."""
    shown = [f"big-{i:02}" for i in range(24, 4, -1)]
    total = sum(range(1, 26))
    with crowded.client() as c:
        text = c.report()
        metrics = c.report(kvwire.Report.METRICS)
    status = json.loads(text)
    assert len(text) < 64 << 10 and len(metrics) < 256 << 10
    assert [n["name"] for n in status["namespaces"]] == shown
    assert status["namespace_usage"]["count"] == 2025 and status["namespace_usage"]["shown"] == 20
    assert status["namespace_usage"]["chunks"] == total
    for path in ("/status", "/metrics"):
        code, _, body = crowded.http(path)
        assert code == 200 and len(body) < 256 << 10
    named = {n: crowded.metric(f'kvcache_namespace_chunks{{namespace="{n}"}}') for n in shown}
    assert named == {f"big-{i:02}": i + 1 for i in range(5, 25)}
    assert sum(named.values()) + crowded.metric('kvcache_namespace_chunks{namespace="other"}') == total


def test_a_report_takes_little_of_the_loop(crowded):
    """Beside one that asks for nothing else, a PING takes milliseconds at most."""
    with crowded.client() as asking, crowded.client() as c:
        for _ in range(3):
            asking.report()
        times = []
        for _ in range(50):
            tags = [asking.submit(Op.REPORT, struct.pack("<II", 0, 0)) for _ in range(8)]
            t = time.perf_counter()
            c.ping()
            times.append(time.perf_counter() - t)
            for tag in tags:
                for fd in asking.wait(tag).fds:
                    os.close(fd)
    assert sorted(times)[len(times) // 2] < 0.05


def test_labels_of_metrics_are_harmless_and_distinct(make):
    """Names with quotes, and one that is called as the rest is."""
    daemon = make("")
    names = ['a"b', "a\\b", "a%22b", "other", "plain"]
    with daemon.client() as c:
        c.lane()
        for i, name in enumerate(names):
            c.put(c.namespace(name), [(bytes([i + 1, k]) + bytes(30), bytes(100)) for k in range(i + 1)],
                  ack=kvwire.Ack.WRITTEN)
        page = c.report(kvwire.Report.METRICS)
        stats = json.loads(c.report(kvwire.Report.STATS))
    lines = [line for line in page.splitlines() if line.startswith("kvcache_namespace_chunks{")]
    assert len(lines) == len(set(line.split("}")[0] for line in lines)) == 6
    assert stats["kvcache_namespace_chunks"] == {'a%22b': 1, "a%5Cb": 2, "a%2522b": 3, "%6Fther": 4, "plain": 5,
                                                 "other": 0}
