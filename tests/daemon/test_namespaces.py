# SPDX-License-Identifier: Apache-2.0
"""The life of a namespace: how many a user may make, what others see of them, and their removal (R10, R16).

Limits belong to the user who made a namespace, not to its connection, and persist over restarts.
"""

import json
import os
import struct
import time

import pytest

import harness
import kvwire
from harness import ctl, wait_until
from kvwire import Op, Status
from test_tenants import ALICE, BOB, CAROL, TENANTS, make, usage  # noqa: F401 (make: a fixture)
from users import client_as

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


def make_many(daemon, uid, count, prefix="n", fingerprint=b"", full=False):
    """Opens namespaces as this user, over as many connections as necessary. Returns the replies. With `full`, puts a chunk into each, which
    keeps it."""
    replies = []
    for at in range(0, count, 200):
        with client_as(daemon, uid) as c:
            made = open_some(c, (f"{prefix}-{uid}-{i:05}".encode() for i in range(at, min(at + 200, count))), fingerprint)
            if full:
                c.staging()
                for r in made:
                    if r.status == Status.OK:
                        c.put(r.value, keys_of(1, 1), ack=kvwire.Ack.WRITTEN)
            replies += made
    return replies


def statuses(replies):
    counts = {}
    for r in replies:
        counts[r.status] = counts.get(r.status, 0) + 1
    return counts


# --- limits ---

def test_R10_a_users_namespaces_are_limited_over_reconnects_and_restarts(make):
    """The limit counts the names of all connections and of earlier starts of the daemon. It leaves another user's room alone."""
    daemon = make("", {"limits.uid_namespaces": 10})
    assert statuses(make_many(daemon, ALICE, 8, full=True)) == {Status.OK: 8}
    daemon.restart(kill=True)
    with client_as(daemon, ALICE) as c:
        last = [c.call(Op.NAMESPACE, message(b"more-%d" % i), check=False) for i in range(4)]
        assert [r.status for r in last] == [Status.OK] * 2 + [Status.QUOTA] * 2
        text = last[-1].body.decode()
        assert f"user {ALICE} has made 10 namespaces" in text and "limits.uid_namespaces" in text, text
        assert "may have 10" in text and "kvcachectl namespace rm" in text, text
        assert c.call(Op.NAMESPACE, message(b"more-0"), check=False).status == Status.OK, "an existing one is no new one"
        c.staging()
        for r in last[:2]:
            c.put(r.value, keys_of(1, 1), ack=kvwire.Ack.DURABLE)
    assert statuses(make_many(daemon, BOB, 10, full=True)) == {Status.OK: 10}
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
    """The default limit is 512 for each user, with and without tenants."""
    daemon = make("")
    counts = statuses(make_many(daemon, ALICE, 600, full=True))
    assert counts == {Status.OK: 512, Status.QUOTA: 88}
    assert statuses(make_many(daemon, BOB, 1)) == {Status.OK: 1}
    daemon.stop()
    many = "tenants:\n" + "".join(f"  - {{name: t{i}, users: [{ALICE if i == 0 else 21000 + i}{', ' + str(BOB) if i == 0 else ''}], "
                                  "pool: 8MiB}\n" for i in range(15))
    daemon = make(many)
    counts = statuses(make_many(daemon, ALICE, 300, full=True))
    assert 100 <= counts[Status.OK] <= 128, "half of a sixteenth of a store's"
    assert statuses(make_many(daemon, BOB, 1)) == {Status.OK: 1}


def test_R10_a_tenants_namespaces_are_limited(make):
    """A tenant has at most the configured number of namespaces, whichever of its users made them; without one, each tenant has a share."""
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
    """The daemon checks the session's limit before it makes a name, so a refused name does not exist afterwards."""
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
    """At 80 % of the limit there is one line in the log, one in the status, and a metric; below it there is none."""
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


# --- reports and metrics ---

@pytest.fixture
def crowded(make):
    return crowd(make, 2000)


def crowd(make, empty):
    """Returns a daemon with so many namespaces with long fingerprints, and 25 with chunks, more for higher numbers."""
    daemon = make("limits: {uid_namespaces: 4096}\n", {"listen.http": None, "store.limit": "512MiB"}, start=False)
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    assert statuses(make_many(daemon, ALICE, empty, fingerprint=LONG)) == {Status.OK: empty}
    with client_as(daemon, BOB) as c:
        c.staging()
        for i in range(25):
            ns = c.namespace(f"big-{i:02}")
            c.put(ns, [(bytes([i + 1, k]) + bytes(30), bytes(1000)) for k in range(i + 1)], ack=kvwire.Ack.WRITTEN)
    return daemon


def test_reports_are_bounded_however_many_namespaces_there_are(crowded):
    """The largest namespaces are shown by name, the others as sums; HTTP and metrics agree."""
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
    """Eight reports, which a PING may have to wait for, take some milliseconds."""
    with crowded.client() as asking, crowded.client() as c:
        for _ in range(3):
            asking.report()
        before = crowded.cpu_seconds()
        for _ in range(50):
            tags = [asking.submit(Op.REPORT, struct.pack("<II", 0, 0)) for _ in range(8)]
            c.ping()
            for tag in tags:
                for fd in asking.wait(tag).fds:
                    os.close(fd)
        used = (crowded.cpu_seconds() - before) / 50
    assert used < 0.05 * harness.slow(), f"eight reports take {used * 1e3:.0f} ms of processor time"


def test_labels_of_metrics_are_harmless_and_distinct(make):
    """Namespaces whose names have quotes, or equal the name of the rest, are shown correctly."""
    daemon = make("")
    names = ['a"b', "a\\b", "a%22b", "other", "plain"]
    with daemon.client() as c:
        c.staging()
        for i, name in enumerate(names):
            c.put(c.namespace(name), [(bytes([i + 1, k]) + bytes(30), bytes(100)) for k in range(i + 1)],
                  ack=kvwire.Ack.WRITTEN)
        page = c.report(kvwire.Report.METRICS)
        stats = json.loads(c.report(kvwire.Report.STATS))
    lines = [line for line in page.splitlines() if line.startswith("kvcache_namespace_chunks{")]
    assert len(lines) == len(set(line.split("}")[0] for line in lines)) == 6
    assert stats["kvcache_namespace_chunks"] == {'a%22b': 1, "a%5Cb": 2, "a%2522b": 3, "%6Fther": 4, "plain": 5,
                                                 "other": 0}


# --- the list ---

def test_the_list_goes_page_by_page_and_names_each_once(make):
    """The list is complete for every page size, also while other clients make and remove names."""
    daemon = make("")
    names = [f"n-{ALICE}-{i:05}" for i in range(300)]
    make_many(daemon, ALICE, 300)
    with daemon.client() as c, client_as(daemon, ALICE) as alice:
        for count in (1, 7, 128):
            assert [n.name for n in c.namespaces(count)] == names
        _, cursor, total = c.namespaces_page(0, 100)
        assert total == 300
        for i in (10, 99, 100, 150):
            alice.namespace_remove(names[i])
        alice.namespace("later")
        rest = []
        while cursor:
            page, cursor, total = c.namespaces_page(cursor, 100)
            rest += [n.name for n in page]
        assert rest == [n for i, n in enumerate(names) if i > 100 and i != 150] + ["later"]
        assert total == 297
        assert c.namespaces_page(2**64 - 1)[:2] == ([], 0)


def test_the_list_tells_what_is_known_of_each(make):
    daemon = make("")
    fingerprint = kvwire.fingerprint(model="m", dtype="bf16")
    before = time.time() * 1000 - 1000
    with client_as(daemon, ALICE) as c:
        c.staging()
        ns = c.namespace("mine", fingerprint, chunk_bytes=8192)
        c.put(ns, [(bytes([k]) * 32, bytes(5000)) for k in range(1, 4)], ack=kvwire.Ack.WRITTEN)
        one = c.namespace_stat("mine")
        assert one == (("mine", "default", fingerprint if isinstance(fingerprint, bytes) else fingerprint.encode(), True, ALICE,
                        1, 3, 15000, 8192, one.created_ms, one.last_used_ms, one.fingerprint_crc32c, 0))
        assert before < one.created_ms <= one.last_used_ms < before + 60000
        assert one.fingerprint_crc32c == kvwire.crc32c(one.fingerprint)
        listed, = c.namespaces()
        assert listed == one._replace(fingerprint=b"", last_used_ms=listed.last_used_ms)
        with client_as(daemon, BOB) as bob:
            assert not bob.namespace_stat("mine").may_remove
            bob.namespace("mine", attach=True)
            assert c.namespace_stat("mine").sessions == 2
    with daemon.client() as c:
        wait_until(lambda: c.namespace_stat("mine").sessions == 0, "both sessions are over")
        assert c.namespace_stat("mine").last_used_ms >= one.last_used_ms
    daemon.restart(kill=True)
    with daemon.client() as c:
        again = c.namespace_stat("mine")
        assert (again.owner, again.created_ms, again.chunks) == (ALICE, one.created_ms, 3)
        assert (again.sessions, again.last_used_ms, again.may_remove) == (0, 0, True)


def test_R9_the_list_and_removal_know_no_other_tenants_names(make):
    """Other tenants' namespaces do not exist for a client without admin rights. An admin sees them by the tenant's name, configured or not."""
    daemon = make()
    red, blue = client_as(daemon, ALICE), client_as(daemon, BOB)
    red.namespace("shared")
    red.namespace("secret")
    blue.namespace("shared")
    assert [(n.tenant, n.name) for n in blue.namespaces()] == [("blue", "shared")]
    assert blue.namespaces_page(0, 128, tenant="red") == ([], 0, 0)
    assert [n.name for n in blue.namespaces(tenant="blue")] == ["shared"]
    never = blue.namespace_stat("never", check=False)
    for tenant in ("", "red", "nobody"):
        for ask in (blue.namespace_stat, blue.namespace_remove):
            reply = ask("secret", tenant=tenant, check=False)
            assert (reply.status, reply.body) == (Status.NO_NAMESPACE, never.body)
    with daemon.client() as admin:
        assert {(n.tenant, n.name) for n in admin.namespaces()} == {
            ("red", "shared"), ("red", "secret"), ("blue", "shared")}
        assert [n.name for n in admin.namespaces(tenant="red")] == ["shared", "secret"]
        assert admin.namespace_stat("shared", check=False).status == Status.NO_NAMESPACE, "the own tenant is default"
        assert admin.namespace_stat("shared", tenant="blue").owner == BOB
    red.close()
    blue.close()
    daemon.stop()
    daemon.config.write_text("")
    daemon.start()
    with daemon.client() as admin:
        assert {n.tenant for n in admin.namespaces()} == {"red", "blue"}
        assert admin.namespace_remove("secret", tenant="red") == 0
        assert [n.name for n in admin.namespaces(tenant="red")] == ["shared"]


# --- the end of one ---

def keys_of(i, n):
    return [(bytes([1 + i % 250, i // 250, k]) + bytes(29), bytes([i % 251]) * 3000) for k in range(n)]


def test_an_emptied_namespace_is_removed_by_its_owner_or_an_admin(make):
    daemon = make("")
    with client_as(daemon, ALICE) as c, client_as(daemon, BOB) as bob, daemon.client() as admin:
        c.staging()
        for name in ("a", "b"):
            c.put(c.namespace(name), keys_of(1, 3), ack=kvwire.Ack.WRITTEN)
        denied = bob.namespace_remove("a", check=False)
        assert denied.status == Status.DENIED and b"user who made" in denied.body
        full = c.namespace_remove("a", check=False)
        assert (full.status, full.value64) == (Status.NOT_EMPTY, 3)
        assert c.evict(1, [k for k, _ in keys_of(1, 3)]) == [Status.OK] * 3
        assert c.namespace_remove("a") == 0
        assert c.namespace_remove("a", check=False).status == Status.NO_NAMESPACE
        with pytest.raises(kvwire.Refused) as e:
            c.get(1, [keys_of(1, 1)[0][0]])
        assert e.value.status == Status.NO_NAMESPACE, "its number is none any more"
        assert c.get(2, [keys_of(1, 1)[0][0]])[0].status == Status.OK
        busy = admin.namespace_remove("b", purge=True, check=False)
        assert (busy.status, busy.value) == (Status.BUSY, 1) and b"1 other session has the namespace open" in busy.body
        assert c.get(2, [keys_of(1, 1)[0][0]])[0].status == Status.OK, "what is refused purges nothing"
    with daemon.client() as admin:
        wait_until(lambda: admin.namespace_stat("b").sessions == 0, "no session has it open")
        assert admin.namespace_remove("b", purge=True) == 3
    assert daemon.metric("kvcache_namespaces") == 0 and daemon.metric("kvcache_namespaces_removed_total") == 2
    daemon.restart(kill=True)
    assert daemon.metric("kvcache_namespaces") == 0


def test_what_is_in_memory_alone_is_not_nothing(make):
    """An accepted chunk that is not on disk yet prevents a removal, except together with a purge."""
    daemon = make("")
    with client_as(daemon, ALICE) as c:
        c.staging()
        ns = c.namespace("a")
        for round in range(100):  # puts may be done before the daemon reads the removal
            puts = c.submit_batch(Op.PUT, ns, c.put_entries(keys_of(1, 20)), ack=kvwire.Ack.ACCEPTED)
            early = c.namespace_remove("a", check=False).status
            c.wait(puts)
            assert early in (Status.BUSY, Status.NOT_EMPTY)
            if early == Status.BUSY:
                break
            c.purge(ns)
        assert early == Status.BUSY, "its puts are under way"
        assert c.namespace_remove("a", check=False).status == Status.NOT_EMPTY
        assert all(r.status == Status.OK for r in c.get(ns, [k for k, _ in keys_of(1, 20)]))
        tags = [c.submit_batch(Op.PUT, ns, c.put_entries(keys_of(2, 20)), ack=kvwire.Ack.WRITTEN),
                c.submit(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 0) + b"a", 256)]
        removed = c.wait(tags[1], check=False)
        c.wait(tags[0], check=False)
        assert removed.status == Status.BUSY
        assert c.namespace_remove("a", purge=True) == 40
        assert [n.name for n in c.namespaces()] == []


@pytest.mark.parametrize("how", ["purge", "remove", "everything"])
def test_a_large_purge_takes_steps(make, how):
    """A step drops at most 512 chunks, for each of the three requests that purge. The reply counts the chunks of all steps."""
    daemon, count = make(""), 2000
    steps = 'kvcache_loop_duration_seconds_count{part="purge"}'
    keys = [struct.pack("<II", 7, i) + bytes(24) for i in range(count)]
    with daemon.client() as c:
        c.staging()
        ns = c.namespace("large")
        for at in range(0, count, 50):
            results = c.put(ns, [(k, k * 4) for k in keys[at:at + 50]], ack=kvwire.Ack.WRITTEN)
            assert all(r.status == Status.OK for r in results)
        before = daemon.metrics().get(steps, 0)
        dropped = {"purge": lambda: c.purge(ns), "everything": lambda: c.purge(everything=True),
                   "remove": lambda: c.namespace_remove("large", purge=True)}[how]()
        assert dropped == count
        assert daemon.metric(steps) - before >= count // 512
        ns = c.namespace("large")
        assert not any(any(c.exists(ns, keys[at:at + 50])) for at in range(0, count, 50))
    daemon.restart(kill=True)
    assert daemon.metric("kvcache_store_chunks") == 0


POOL_STEPS = 'kvcache_loop_duration_seconds_count{part="purge_memory"}'


def fill_pool(c, ns, count, first=0):
    """Puts `count` chunks with numbered keys and returns the keys."""
    keys = [struct.pack("<II", ns, first + i) + bytes(24) for i in range(count)]
    for at in range(0, count, 500):
        results = c.put(ns, [(k, k + b"old") for k in keys[at:at + 500]])
        assert all(r.status == Status.OK for r in results)
    return keys


def submit_purge(c, ns, everything=False):
    return c.submit(Op.PURGE, struct.pack("<II", ns, 0), kvwire.Flag.ALL if everything else 0)


@pytest.mark.parametrize("everything", [False, True])
def test_a_purge_of_what_is_in_memory_takes_steps_and_effect_at_once(make, everything):
    """A purge takes steps of at most 4,096 records. Requests after the purge in the socket find nothing of the namespace; chunks that are put
    after it stay, although it is unanswered, and so do the bytes that another user has leased."""
    daemon, count, again = make("", {"memory.pool": "128MiB"}), 10000, 500
    with daemon.client() as c, daemon.client() as other:
        c.staging()
        other.staging()
        ns, apart = c.namespace("large"), c.namespace("apart")
        keys = fill_pool(c, ns, count)
        kept = fill_pool(c, apart, 100)
        leased = other.get(other.namespace("large"), keys[-50:])
        before = daemon.metrics().get(POOL_STEPS, 0)
        puts = c.put_entries([(k, k + b"new") for k in keys[:again]])
        tags = [submit_purge(c, 0 if everything else ns, everything),
                c.submit_batch(Op.EXISTS, ns, keys[-1000:]),
                c.submit_batch(Op.PUT, ns, puts),
                submit_purge(c, apart),
                c.submit_batch(Op.PUT, apart, puts[:1])]
        found, stored = c.wait(tags[1]), c.wait(tags[2])
        assert found.body == bytes(1000)
        assert [r.status for r in c.put_results(stored, again)] == [Status.OK] * again
        for tag in tags:
            if tag not in (tags[1], tags[2]):
                c.wait(tag)
        steps = daemon.metric(POOL_STEPS) - before
        assert steps >= count * 2 // 4096, "each record is a visit at least, and a drop is four more"
        for at in range(0, count, 1000):
            there = c.exists(ns, keys[at:at + 1000])
            assert [bool(tiers) for tiers in there] == [i + at < again for i in range(1000)]
        assert not any(c.exists(apart, kept)) and all(c.exists(apart, keys[:1]))
        assert all(r.data == k + b"new" for k, r in zip(keys, c.get(ns, keys[:again])))
        assert all(r.data == k + b"old" for k, r in zip(keys[-50:], leased))
        c.purge(everything=True)
        other.release([r.lease for r in leased])
    with daemon.client() as c:
        assert daemon.metric("kvcache_pool_chunks") == 0
        c.purge(everything=True)
        assert daemon.metric(POOL_STEPS) - before < steps * 3, "what is empty is not walked"


@pytest.mark.parametrize("end", ["close", "stop"])
def test_a_purge_of_what_is_in_memory_outlives_its_session(make, end):
    """The session, or the daemon, ends while its purges are walked: nothing is found afterwards, and nothing is stuck."""
    daemon, count = make("", {"memory.pool": "128MiB"}), 8000
    with daemon.client() as c:
        c.staging()
        ns = c.namespace("large")
        keys = fill_pool(c, ns, count)
        for i in range(20):
            submit_purge(c, ns)
            submit_purge(c, 0, True)
        assert not any(c.exists(ns, keys[:1000])), "answered after the purges have taken effect"
        if end == "stop":
            daemon.restart()
    with daemon.client() as c:
        ns = c.namespace("large")
        assert not any(any(c.exists(ns, keys[at:at + 1000])) for at in range(0, count, 1000))
        c.purge(ns)
    assert daemon.metric("kvcache_pool_chunks") == 0


def test_a_removed_name_begins_anew(make):
    """A new namespace of the same name has nothing of the old one, in memory or on disk, after kills and restarts."""
    daemon = make("", {"limits.uid_namespaces": 4})
    pairs = keys_of(3, 5)
    keys = [k for k, _ in pairs]
    for round in range(4):
        with client_as(daemon, ALICE) as c:
            c.staging()
            ns = c.namespace("again", f"round={round}\n")
            assert [r.status for r in c.get(ns, keys)] == [Status.MISS] * 5
            assert not any(c.exists(ns, keys)) and not list(c.list(ns))
            c.put(ns, [(k, bytes([round]) * 3000) for k in keys], ack=kvwire.Ack.DURABLE)
            assert c.namespace_remove("again", purge=True) == 5
            other = c.namespace("other", f"round={round}\n")
            assert [r.status for r in c.get(other, keys)] == [Status.MISS] * 5
            c.namespace_remove("other")
        daemon.restart(kill=bool(round % 2))
    assert daemon.metric("kvcache_namespaces") == 0


def test_a_store_of_names_can_be_made_and_removed_again_and_again(make):
    """Makes twice as many namespaces as a store can have, with restarts in between: numbers and places are reused."""
    daemon = make("limits: {uid_namespaces: 4096}\n")
    for round in range(4):
        for part in range(0, 2048, 128):
            with client_as(daemon, ALICE) as c:
                names = [b"r%d-%05d" % (round, part + i) for i in range(128)]
                assert statuses(open_some(c, names)) == {Status.OK: 128}
                if part % 256 == 0:
                    continue
        assert daemon.metric("kvcache_namespaces") == 2048
        with client_as(daemon, ALICE) as c:
            wait_until(lambda: all(n.sessions == 0 for n in c.namespaces()), "the sessions are over")
            body = kvwire.NAMESPACE_REMOVE.pack
            for part in range(0, 2048, 32):
                tags = []
                for i in range(32):
                    name = b"r%d-%05d" % (round, part + i)
                    tags.append(c.submit(Op.NAMESPACE_REMOVE, body(len(name), 0, 0, 0) + name))
                assert {c.wait(t, check=False).status for t in tags} == {Status.OK}
            # A session may open and remove more namespaces than it may have open at a time.
            for i in range(300):
                c.namespace(f"one-{i}")
                c.namespace_remove(f"one-{i}")
        assert daemon.metric("kvcache_namespaces") == 0
        daemon.restart(kill=bool(round % 2))
    assert daemon.metric("kvcache_namespaces") == 0


def test_opens_and_removals_of_one_name_at_once(make):
    """Concurrent opens and removals from several sessions: each open that was answered OK has a working namespace, and the daemon knows which
    sessions have it."""
    daemon = make("limits: {uid_namespaces: 4096}\n")
    clients = [client_as(daemon, ALICE) for _ in range(4)]
    remove = kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 0) + b"x"
    seen = set()
    for round in range(60):
        tags = []
        for i, c in enumerate(clients):
            if (round + i) % 2:
                tags.append((c, c.submit(Op.NAMESPACE, message(b"x"))))
            tags.append((c, c.submit(Op.NAMESPACE_REMOVE, remove, 256 * (round % 3 == 0))))
            tags.append((c, c.submit(Op.NAMESPACE, message(b"x", b"round=%d\n" % (round % 2)))))
        for c, tag in tags:
            seen.add((lambda r: (r.op, r.status))(c.wait(tag, check=False)))
        assert len([n for n in clients[0].namespaces() if n.name == "x"]) <= 1
    assert (Op.NAMESPACE_REMOVE, Status.BUSY) in seen and (Op.NAMESPACE, Status.OK) in seen
    assert {s for o, s in seen if o == Op.NAMESPACE_REMOVE} <= {Status.OK, Status.BUSY, Status.NO_NAMESPACE}
    for c in clients:
        c.close()
    with client_as(daemon, ALICE) as c:
        wait_until(lambda: all(n.sessions == 0 for n in c.namespaces()), "the sessions are over")
        for n in list(c.namespaces()):
            assert c.namespace_remove(n.name) == 0
    daemon.restart()
    assert daemon.metric("kvcache_namespaces") == 0


def test_removal_on_several_volumes_one_of_them_away(make):
    """While a volume is suspended, a namespace can only be removed together with a purge, because the volume may hold its chunks. None of them
    returns with the volume, or in the next namespace with the same number."""
    daemon = make("", start=False)
    daemon.settings["store.path"] = f"{daemon.store}-0,{daemon.store}-1,{daemon.store}-2"
    daemon.start()
    pairs = [(bytes([7, i]) + bytes(30), bytes([i]) * 9000) for i in range(60)]
    keys = [k for k, _ in pairs]
    for round in range(3):
        with daemon.client() as c:
            c.staging()
            ns = c.namespace("v")
            for at in range(0, 60, 20):
                c.put(ns, pairs[at:at + 20], ack=kvwire.Ack.DURABLE)
            c.device("suspend", 1)
            c.evict(ns, keys)
            refused = c.namespace_remove("v", check=False)
            assert refused.status in (Status.BUSY, Status.NOT_EMPTY), refused
            assert refused.status != Status.BUSY or b"suspended" in refused.body
            c.namespace_remove("v", purge=True)
            again = c.namespace("v")
            assert [r.status for r in c.get(again, keys)] == [Status.MISS] * 60
            if round == 1:
                c.device("resume", 1)
                assert [r.status for r in c.get(again, keys)] == [Status.MISS] * 60
        daemon.restart(kill=round != 1)
        with daemon.client() as c:
            assert all(p["state"] == "up" for p in json.loads(c.report())["store"]["volumes"])
            ns = c.namespace("v", attach=True)
            assert [r.status for r in c.get(ns, keys)] == [Status.MISS] * 60 and not list(c.list(ns))
            c.namespace_remove("v")
    assert daemon.metric("kvcache_namespaces") == 0


# --- kvcachectl ---

OK, NOT_FOUND, USAGE, REFUSED = 0, 1, 2, 4


def test_kvcachectl_lists_shows_and_removes_namespaces(make):
    daemon = make("")
    with client_as(daemon, ALICE) as c:
        c.staging()
        c.put(c.namespace("large", "model=m\n", chunk_bytes=4096), keys_of(1, 3), ack=kvwire.Ack.WRITTEN)
        c.put(c.namespace("small"), keys_of(2, 1), ack=kvwire.Ack.WRITTEN)
        c.namespace("empty")
        said = json.loads(ctl("namespace", "ls", "--json", daemon=daemon, check=OK).stdout)
        assert [(n["name"], n["chunks"], n["bytes"], n["owner"], n["sessions"], n["may_remove"])
                for n in said["namespaces"]] == [("large", 3, 9000, ALICE, 1, True), ("small", 1, 3000, ALICE, 1, True),
                                                ("empty", 0, 0, ALICE, 1, True)]
        assert said["count"] == 3
        lines = ctl("namespace", "ls", "--limit", "2", daemon=daemon, check=OK).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["namespace", "large", "small", "..."] and "1 more" in lines[-1]
        assert str(ALICE) in lines[1] and lines[1].split()[-1] == "now"
        one = json.loads(ctl("namespace", "stat", "large", "--json", daemon=daemon, check=OK).stdout)
        assert (one["fingerprint"], one["chunk_bytes"]) == ("model=m\n", 4096)
        text = ctl("namespace", "stat", "large", daemon=daemon, check=OK).stdout
        assert "model=m" in text and str(ALICE) in text
        refused = ctl("namespace", "rm", "empty", daemon=daemon, check=REFUSED)
        assert "1 other session has the namespace open" in refused.stderr and not refused.stdout
    with daemon.client() as c:
        wait_until(lambda: all(n.sessions == 0 for n in c.namespaces()), "the session is over")
    assert "3 chunks" in ctl("namespace", "rm", "large", daemon=daemon, check=REFUSED).stderr
    assert ctl("namespace", "rm", "large", "--purge", daemon=daemon, check=OK).stdout == "large: removed, with 3 chunks\n"
    assert ctl("namespace", "rm", "empty", daemon=daemon, check=OK).stdout == "empty: removed\n"
    said = json.loads(ctl("namespace", "rm", "--json", "--purge", "small", daemon=daemon, check=OK).stdout)
    assert said == {"removed": "small", "dropped": 1}
    for action in ("rm", "stat"):
        assert "no namespace 'large'" in ctl("namespace", action, "large", daemon=daemon, check=NOT_FOUND).stderr
    assert json.loads(ctl("namespace", "ls", "--json", daemon=daemon, check=OK).stdout) == {"namespaces": [], "count": 0}


@pytest.mark.parametrize("arguments", [["gone"], ["rm"], ["stat"], ["rm", "a", "b"], ["ls", "a"], ["ls", "--purge"],
                                       ["stat", "--limit", "3", "a"]])
def test_kvcachectl_namespace_wrong_usage(make, arguments):
    assert ctl("namespace", *arguments, check=USAGE).stderr


def test_kvcachectl_namespace_of_other_users_and_tenants(make):
    daemon = make()
    with client_as(daemon, ALICE) as red:
        red.namespace("mine")
    with client_as(daemon, BOB) as blue:
        blue.namespace("mine")
    lines = ctl("namespace", "ls", daemon=daemon, check=OK).stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["blue:mine", "namespace", "red:mine"]
    assert "no namespace" in ctl("namespace", "rm", "mine", daemon=daemon, check=NOT_FOUND).stderr
    ctl("namespace", "rm", "--tenant", "red", "mine", daemon=daemon, check=OK)
    said = json.loads(ctl("namespace", "ls", "--json", daemon=daemon, check=OK).stdout)
    assert [(n["tenant"], n["name"]) for n in said["namespaces"]] == [("blue", "mine")]


def test_kvcachectl_status_stays_short_with_thousands_of_namespaces(crowded, make):
    out = ctl("status", daemon=crowded, check=OK).stdout
    assert len(out.splitlines()) <= 40
    assert "big-24" in out and "big-20" in out and "big-19" not in out and "... and 2,020 more: kvcachectl namespace ls" in out
    out = ctl("status", "--all", daemon=crowded, check=OK).stdout
    few = ctl("status", "--all", daemon=crowd(make, 1), check=OK).stdout
    # Other sections have lines that come and go with what the daemon does, and name no namespace.
    sections = [next(s for s in text.split("\n\n") if s.startswith("Namespaces:")) for text in (out, few)]
    assert len(sections[0].splitlines()) == len(sections[1].splitlines()), f"{out}\n{few}"
    assert out.count("big-") == sections[0].count("big-") == 20
    assert "Namespaces: 2,025 of at most 4,096" in out and "... and 2,005 more: kvcachectl namespace ls" in out, out
    assert "big-24" in out and "big-05" in out and "big-04" not in out
    assert len(ctl("namespace", "ls", daemon=crowded, check=OK).stdout.splitlines()) == 2026


def test_kvcachectl_status_warns_near_a_limit(make):
    daemon = make("", {"limits.uid_namespaces": 10})
    make_many(daemon, ALICE, 8)
    out = ctl("status", daemon=daemon, check=OK).stdout
    assert "WARNING: 1 user is at 80 % of its limit or more: remove some (kvcachectl namespace rm)" in out
