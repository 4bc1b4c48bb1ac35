# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of namespaces: expired chunks are not found, are removed from memory and disk, and can be put again; and the right to set a
lifetime."""

import contextlib
import json
import os
import time

import pytest

from harness import KIB, ctl, items, key_of, wait_until
from kvwire import Ack, Flag, Op, Status, Tier
from kvwire_format import NAMESPACE, SessionEnded
from test_hints import PIN, hint
from test_lookup import read
from test_tenants import ALICE, BOB, CAROL, TENANTS, make  # noqa: F401 (make: a fixture)
from users import client_as

PAIRS = items("old", 8, 8 * KIB)
KEYS = [k for k, _ in PAIRS]
FEATURE_LIFETIME = 16384
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")


def expired(daemon, tier):
    return daemon.metric(f'kvcache_expired_chunks_total{{tier="{tier}"}}')


def put_old(c, ns, pairs=PAIRS):
    """Puts them, and waits until they are more than a second old."""
    c.put(ns, pairs, ack=Ack.WRITTEN)
    put_ms = max(s.created_ms for s in c.stat(ns, [k for k, _ in pairs]))
    wait_until(lambda: time.time() * 1000 > put_ms + 1001, "a second passes")


def found(c, ns, keys=KEYS):
    return sum(bool(t) for t in c.exists(ns, keys))


def lifetime(c, name, tenant=b""):
    return c.namespace_stat(name, tenant).lifetime_s


def test_expired_chunks_are_misses_for_every_request_and_can_be_put_again(daemon):
    with daemon.client() as c:
        assert c.features & FEATURE_LIFETIME
        ns = c.namespace("n")
        put_old(c, ns)
        # Requested chunks are checked immediately, before the background walk reaches them.
        assert c.match(ns, KEYS) == 8
        assert c.set_lifetime("n", 1) == 1
        assert [r.status for r in c.get(ns, KEYS[:2])] == [Status.MISS] * 2
        assert c.match(ns, KEYS[2:]) == 0
        assert [s.status for s in c.stat(ns, KEYS[3:4])] == [Status.MISS]
        assert c.touch(ns, KEYS[4:5]) == c.prefetch(ns, KEYS[5:6]) == hint(c, ns, KEYS[6:7]) == [Status.MISS]
        assert found(c, ns) == 0
        assert daemon.metric('kvcache_misses_total{reason="expired"}') == 2
        assert daemon.status()["totals"]["misses_by_reason"]["expired"] == 2
        assert (expired(daemon, "memory"), expired(daemon, "disk")) == (8, 8)
        assert "8 chunks in memory, 8 on disk" in ctl("status", daemon=daemon, check=0).stdout
        assert c.set_lifetime("n", 3600) == 3600
        assert [r.status for r in c.put(ns, PAIRS, ack=Ack.WRITTEN)] == [Status.OK] * 8, "not that they are there"
        assert [bytes(r.data) for r in c.get(ns, KEYS)] == [v for _, v in PAIRS]
    daemon.restart(kill=True)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert lifetime(c, "n") == 3600
        assert [bytes(r.data) for r in c.get(ns, KEYS)] == [v for _, v in PAIRS]


def test_the_first_put_replaces_an_expired_key(daemon):
    """The expired key is not looked up before the put."""
    with daemon.client() as c:
        ns = c.namespace("n")
        put_old(c, ns)
        first = c.stat(ns, KEYS)
        c.set_lifetime("n", 1)
        assert [r.status for r in c.put(ns, PAIRS, ack=Ack.ACCEPTED)] == [Status.OK] * 8
        c.set_lifetime("n", 0)
        c.put(ns, PAIRS, ack=Ack.WRITTEN)
        assert all(b.created_ms > a.created_ms + 1000 for a, b in zip(first, c.stat(ns, KEYS)))


def test_memory_and_disk_are_emptied_without_a_request(daemon):
    with daemon.client() as c:
        ns, kept = c.namespace("n", lifetime_s=1), c.namespace("kept")
        c.put(ns, PAIRS, ack=Ack.WRITTEN)
        c.put(kept, PAIRS, ack=Ack.WRITTEN)
        with contextlib.closing(c.lookup()) as index:
            assert all(t for name in ("n", "kept") for t in read(index, name, KEYS))
        wait_until(lambda: daemon.metric("kvcache_store_chunks") == 8 == daemon.metric("kvcache_pool_chunks"),
                   "the walk has dropped what has expired", 20)
        assert (expired(daemon, "memory"), expired(daemon, "disk")) == (8, 8)
        assert found(c, ns) == 0 and found(c, kept) == 8
        with contextlib.closing(c.lookup()) as index:
            assert not any(read(index, "n", KEYS)) and all(read(index, "kept", KEYS))
        assert daemon.metric("kvcache_drops_total") == 0, "nothing was written for it"


def test_a_chunk_read_back_from_disk_keeps_its_age(daemon):
    with daemon.client() as c:
        ns = c.namespace("n")
        put_old(c, ns)
    daemon.restart()
    with daemon.client() as c:
        ns = c.namespace("n")
        assert all(r.status == Status.OK for r in c.get(ns, KEYS))
        assert all(t == Tier.ALL for t in c.exists(ns, KEYS))
        c.set_lifetime("n", 1)
        assert found(c, ns) == 0


def test_a_lease_outlives_the_chunk_and_a_pin_does_not_keep_it(daemon):
    with daemon.client() as c:
        ns = c.namespace("n")
        put_old(c, ns)
        assert hint(c, ns, KEYS, PIN) == [Status.OK] * 8
        leased = c.get(ns, KEYS)
        c.set_lifetime("n", 1)
        assert found(c, ns) == 0
        assert [bytes(r.data) for r in leased] == [v for _, v in PAIRS]
        c.release([r.lease for r in leased])
        assert daemon.metric('kvcache_tenant_pinned_bytes{tenant="default"}') == 0


def test_expired_chunks_and_the_lifetime_survive_a_kill(make_daemon):
    daemon = make_daemon(settings={"store.limit": "64MiB"}).start()
    with daemon.client() as c:
        ns = c.namespace("n", lifetime_s=1)
        put_old(c, ns)
        wait_until(lambda: found(c, ns) == 0, "they have expired")
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert lifetime(c, "n") == 1
        assert found(c, c.namespace("n", attach=True)) == 0
        wait_until(lambda: daemon.metric("kvcache_store_chunks") == 0, "the walk goes on after a restart")


def test_an_existing_namespace_keeps_its_lifetime_until_it_is_set(daemon):
    with daemon.client() as c:
        c.namespace("n", lifetime_s=100)
        c.namespace("n", lifetime_s=5)
        assert lifetime(c, "n") == 100
        assert c.set_lifetime("n", 7 * 24 * 3600) == 605184, "rounded up, by less than a thousandth"
        assert c.set_lifetime("n", 2**32 - 1) == 2**32 - 1
        assert c.set_lifetime("n", 0) == 0
        assert c.set_lifetime("other", 1, check=False).status == Status.NO_NAMESPACE
        assert c.set_lifetime("n", 1, tenant="other", check=False).status == Status.NO_NAMESPACE
        assert [n.name for n in c.namespaces()] == ["n"], "to set it makes none"
        tags = [c.submit(Op.NAMESPACE, NAMESPACE.pack(0, 1, 0, i) + b"n", Flag.SET) for i in range(1, 200)]
        assert all(c.wait(t).value >= i for i, t in enumerate(tags, 1)), "what it is by the time of the answer"
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert lifetime(c, "n") == 199


@as_root
def test_only_its_owner_and_admins_set_it(make):  # noqa: F811
    daemon = make(TENANTS)
    with client_as(daemon, ALICE) as alice, client_as(daemon, BOB) as bob, daemon.client() as admin:
        alice.namespace("hers", lifetime_s=10)
        assert alice.set_lifetime("hers", 20) == 20
        assert bob.set_lifetime("hers", 1, check=False).status == Status.NO_NAMESPACE, "another tenant's are not known"
        assert bob.set_lifetime("hers", 1, tenant="red", check=False).status == Status.NO_NAMESPACE
        assert lifetime(admin, "hers", "red") == 20
        assert admin.set_lifetime("hers", 30, tenant="red") == 30
    with client_as(daemon, CAROL, gid=30001) as carol:
        refused = carol.set_lifetime("hers", 1, check=False)
        assert refused.status == Status.DENIED and b"made" in refused.body
        carol.namespace("hers", lifetime_s=1)
        assert lifetime(carol, "hers") == 30


MALFORMED = {
    "it opens as well": (NAMESPACE.pack(0, 1, 0, 1) + b"n", Flag.SET | Flag.ATTACH),
    "it declares a size": (NAMESPACE.pack(1, 1, 0, 1) + b"n", Flag.SET),
    "attaches with a lifetime": (NAMESPACE.pack(0, 1, 0, 1) + b"n", Flag.ATTACH),
    "too long a tenant": (NAMESPACE.pack(0, 1, 64, 1) + b"n" + b"t" * 64, Flag.SET),
    "cut off": (NAMESPACE.pack(0, 1, 2, 1) + b"nt", Flag.SET),
    "not printable": (NAMESPACE.pack(0, 1, 1, 1) + b"n\0", Flag.SET),
    "no name": (NAMESPACE.pack(0, 0, 0, 1), Flag.SET),
    "too long a name": (NAMESPACE.pack(0, 256, 0, 1) + b"n" * 256, Flag.SET),
}


def test_a_malformed_message_ends_its_session_alone(daemon):
    with daemon.client() as c:
        c.namespace("n")
        for what in MALFORMED:
            with daemon.client() as hostile:
                with pytest.raises(SessionEnded):
                    hostile.call(Op.NAMESPACE, *MALFORMED[what])
                    pytest.fail(f"{what}: it was answered")
        assert lifetime(c, "n") == 0


def test_kvcachectl_sets_and_shows_it(daemon):
    with daemon.client() as c:
        c.namespace("n")
    assert ctl("namespace", "lifetime", "n", "90m", daemon=daemon, check=0).stdout == "n: lifetime 1 h 30 min\n"
    assert json.loads(ctl("namespace", "stat", "n", "--json", daemon=daemon, check=0).stdout)["lifetime_s"] == 5400
    assert "1 h 30 min" in ctl("namespace", "ls", daemon=daemon, check=0).stdout
    said = ctl("namespace", "lifetime", "n", "none", "--json", daemon=daemon, check=0).stdout
    assert json.loads(said) == {"name": "n", "lifetime_s": 0}
    assert "no end" in ctl("namespace", "stat", "n", daemon=daemon, check=0).stdout
    for wrong in ("0", "-1", "0.5s", "5w", "49711d", ""):
        assert ctl("namespace", "lifetime", "n", "--", wrong, daemon=daemon).returncode == 2, wrong
    assert ctl("namespace", "lifetime", "n", daemon=daemon).returncode == 2
    assert ctl("namespace", "lifetime", "other", "1s", daemon=daemon).returncode == 1


def test_a_chunk_that_expired_on_one_volume_may_be_put_on_any(make_daemon):
    """All volumes have the lifetime, including one that was suspended when it was set."""
    daemon = make_daemon(settings={"store.limit": "64MiB"})
    paths = [daemon.directory / f"v{i}" for i in range(2)]
    for p in paths:
        p.mkdir()
    daemon.settings["store.path"] = ",".join(map(str, paths))
    daemon.start()
    many = items("many", 64, 8 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        c.put(ns, many, ack=Ack.WRITTEN)
        ctl("device", "suspend", str(paths[1]), daemon=daemon, check=0)
        assert c.set_lifetime("n", 1) == 1
        wait_until(lambda: found(c, ns, [k for k, _ in many]) == 0, "what is there has expired")
        ctl("device", "resume", str(paths[1]), daemon=daemon, check=0)
        wait_until(lambda: daemon.metric("kvcache_store_chunks") == 0, "what comes back has expired as well")
        assert found(c, ns, [k for k, _ in many] + [key_of("none")]) == 0
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert lifetime(c, "n") == 1
