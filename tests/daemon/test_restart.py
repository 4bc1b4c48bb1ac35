# SPDX-License-Identifier: Apache-2.0
"""Data that survives a clean stop, kill -9, and kill -9 during traffic; and data that must not return."""

import threading

import pytest

import kvwire
from harness import KIB, MIB, get_all, items, key_of, put_all, slow, value_of
from kvwire import Ack, Status, Tier

MIXED = [1, 100, 4096, 5000, 64 * KIB, 300 * KIB]


def mixed(prefix, count):
    return [(k, value_of(k, MIXED[i % len(MIXED)])) for i, k in enumerate(key_of(prefix, i) for i in range(count))]


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_everything_written_is_there_after_a_restart(leg_daemon, kill):
    pairs = mixed("warm", 240)
    with leg_daemon.client() as c:
        ns = c.namespace("warm", kvwire.fingerprint(dtype="fp8"), chunk_bytes=64 * KIB)
        results = put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert {r.status for r in results.values()} == {Status.OK}
        created = {e.key: e.created_ms for e in c.list(ns)}
        instance = c.instance
        before = {k: s for k, s in zip((k for k, _ in pairs), c.stat(ns, [k for k, _ in pairs]))}
    leg_daemon.restart(kill)
    with leg_daemon.client() as c:
        assert c.instance != instance
        ns = c.namespace("warm", kvwire.fingerprint(dtype="fp8"))
        assert c.chunk_bytes == 64 * KIB
        keys = [k for k, _ in pairs]
        assert c.exists(ns, keys) == [Tier.DISK] * len(keys)
        for key, stat in zip(keys, c.stat(ns, keys)):
            assert (stat.length, stat.crc32c) == (before[key].length, before[key].crc32c)
        assert {e.key: e.created_ms for e in c.list(ns)} == created
        assert get_all(c, ns, keys) == dict(pairs)
        assert c.put(ns, pairs[:1], ack=Ack.WRITTEN)[0].status == Status.EXISTS
    store = leg_daemon.status()["store"]
    assert store["recovered_chunks"] == len(pairs) and store["clean_start"] is (not kill)
    assert leg_daemon.metric("kvcache_recovery_skipped_pages") == 0


def test_a_clean_stop_writes_accepted_chunks(leg_daemon):
    pairs = mixed("accepted", 120)
    with leg_daemon.client() as c:
        results = put_all(c, c.namespace("accepted"), pairs, ack=Ack.ACCEPTED)
        assert {r.status for r in results.values()} == {Status.OK}
    leg_daemon.restart()
    with leg_daemon.client() as c:
        assert get_all(c, c.namespace("accepted"), [k for k, _ in pairs]) == dict(pairs)


def test_kill_amid_traffic_loses_nothing_that_was_answered(leg_daemon):
    """Three clients put as fast as they can; each notes a key when it is answered. Then the daemon is killed."""
    answered = [[] for _ in range(3)]
    enough = threading.Event()

    def work(number):
        try:
            with leg_daemon.client() as c:
                ns = c.namespace("traffic")
                for round in range(100000):
                    pairs = mixed((number, round), 12)
                    for (key, value), result in zip(pairs, c.put(ns, pairs, ack=Ack.WRITTEN)):
                        if result.status == Status.OK:
                            answered[number].append((key, len(value)))
                    if sum(map(len, answered)) > 400:
                        enough.set()
        except kvwire.SessionEnded:
            pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    assert enough.wait(60 * slow())
    leg_daemon.kill()
    for t in threads:
        t.join()
    leg_daemon.start()
    with leg_daemon.client() as c:
        ns = c.namespace("traffic")
        acknowledged = [entry for part in answered for entry in part]
        if leg_daemon.metric("kvcache_evictions_total") == 0 and sum(n for _, n in acknowledged) < 90 * MIB:
            values = get_all(c, ns, [k for k, _ in acknowledged])
            lost = [k for k, _ in acknowledged if values[k] is None]
            assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged chunks are lost"
            assert all(values[k] == value_of(k, n) for k, n in acknowledged)
        # all other stored chunks are right as well
        for entry in c.list(ns):
            assert c.value(ns, entry.key) == value_of(entry.key, entry.length)


def test_kill_at_a_full_store_serves_no_wrong_byte(make_daemon):
    """Slots are being overwritten when the daemon is killed: chunks found afterwards are whole."""
    daemon = make_daemon(settings={"store.limit": 16 * MIB, "memory.pool": "8MiB"}).start()
    for round in range(3):
        enough = threading.Event()

        def work():
            try:
                with daemon.client() as c:
                    ns = c.namespace("full")
                    for i in range(100000):
                        put_all(c, ns, mixed(("full", round, i), 12), ack=Ack.WRITTEN)
                        if i == 30:
                            enough.set()
            except kvwire.SessionEnded:
                pass

        t = threading.Thread(target=work)
        t.start()
        assert enough.wait(60 * slow())
        daemon.kill()
        t.join()
        daemon.start()
        with daemon.client() as c:
            ns = c.namespace("full")
            listed = list(c.list(ns))
            assert listed
            values = get_all(c, ns, [e.key for e in listed], batch=8)
            wrong = [e for e in listed if values[e.key] is not None and values[e.key] != value_of(e.key, e.length)]
            assert not wrong
        assert daemon.disk_usage() <= 16 * MIB


def test_a_purge_does_not_come_back(leg_daemon):
    purged, kept = mixed("gone", 60), mixed("kept", 20)
    with leg_daemon.client() as c:
        a, b = c.namespace("gone"), c.namespace("kept")
        put_all(c, a, purged, ack=Ack.WRITTEN)
        put_all(c, b, kept, ack=Ack.WRITTEN)
        assert c.purge(a) == 60
    leg_daemon.restart(kill=True)
    with leg_daemon.client() as c:
        a, b = c.namespace("gone"), c.namespace("kept")
        assert not any(c.exists(a, [k for k, _ in purged]))
        assert list(c.list(a)) == []
        assert get_all(c, b, [k for k, _ in kept]) == dict(kept)
        # put again, then purge everything
        assert c.put(a, purged[:12], ack=Ack.WRITTEN)[0].status == Status.OK
        assert c.purge(everything=True) == 32
        again = purged[12:20]
        c.put(a, again, ack=Ack.WRITTEN)
    leg_daemon.restart(kill=True)
    with leg_daemon.client() as c:
        a, b = c.namespace("gone"), c.namespace("kept")
        assert not any(c.exists(a, [k for k, _ in purged[:12] + purged[20:]]))
        assert not any(c.exists(b, [k for k, _ in kept]))
        assert get_all(c, a, [k for k, _ in again]) == dict(again)


def test_a_purge_amid_puts_does_not_come_back(leg_daemon):
    """Puts are in flight when the purge comes: what was there before its answer is dropped for good."""
    with leg_daemon.client() as c:
        ns = c.namespace("amid")
        c.staging()
        pairs = mixed("amid", 200)
        entries = c.put_entries(pairs)
        tags = [c.submit_batch(kvwire.Op.PUT, ns, entries[i:i + 10], ack=Ack.ACCEPTED) for i in range(0, 200, 10)]
        for tag in tags:
            c.wait(tag)
        c.purge(ns)
        assert not any(c.exists(ns, [k for k, _ in pairs]))
    leg_daemon.restart(kill=True)
    with leg_daemon.client() as c:
        ns = c.namespace("amid")
        assert not any(c.exists(ns, [k for k, _ in pairs]))


def test_evicted_keys_do_not_come_back_after_a_kill(leg_daemon):
    pairs = mixed("evicted", 60)
    keys = [k for k, _ in pairs]
    with leg_daemon.client() as c:
        ns = c.namespace("evicted")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.evict(ns, keys[10:40]) == [Status.OK] * 30
        # Another value under an evicted key is the valid one.
        assert c.put(ns, [(keys[10], b"another value")], ack=Ack.WRITTEN)[0].status == Status.OK
    leg_daemon.restart(kill=True)
    with leg_daemon.client() as c:
        ns = c.namespace("evicted")
        assert not any(c.exists(ns, keys[11:40]))
        assert c.value(ns, keys[10]) == b"another value"
        assert get_all(c, ns, keys[:10] + keys[40:]) == dict(pairs[:10] + pairs[40:])


@pytest.mark.parametrize("ack", [Ack.ACCEPTED, Ack.WRITTEN])
def test_an_eviction_that_was_answered_holds_at_once(leg_daemon, ack):
    # No answer follows that of the evict, so nothing else makes its tombstones reach the disk. With `accepted`, the chunks are evicted while
    # they are being written.
    pairs = [(key_of("gone", i), value_of(key_of("gone", i), 4096)) for i in range(480)]
    keys = [k for k, _ in pairs]
    for _ in range(3):
        with leg_daemon.client() as c:
            ns = c.namespace("gone")
            put_all(c, ns, pairs, ack=ack)
            assert set(c.evict(ns, keys)) == {Status.OK}
            leg_daemon.kill()
        leg_daemon.start()
        with leg_daemon.client() as c:
            assert not any(c.exists(c.namespace("gone"), keys))


@pytest.mark.parametrize("policy", ["cq", "lru"])
def test_a_full_store_survives_several_restarts(make_daemon, policy):
    daemon = make_daemon(settings={"store.limit": 24 * MIB, "memory.pool": "8MiB", "eviction.policy": policy}).start()
    number = 0
    for round in range(4):
        with daemon.client() as c:
            ns = c.namespace("rounds")
            fresh = [(k, value_of(k, 50000)) for k in (key_of("rounds", number + i) for i in range(600))]
            number += 600
            results = put_all(c, ns, fresh, ack=Ack.WRITTEN)
            assert {r.status for r in results.values()} == {Status.OK}
            present = {e.key for e in c.list(ns)}
            # The last key of a request ends a chain, and cq may have learned that such chunks are worth less.
            assert {k for i, (k, _) in enumerate(fresh) if i >= 500 and (policy == "lru" or i % 32 != 31)} <= present
        daemon.restart(kill=round % 2 == 0)
        with daemon.client() as c:
            ns = c.namespace("rounds")
            after = {e.key for e in c.list(ns)}
            assert after == present
            sample = sorted(after)[::10]
            assert get_all(c, ns, sample, batch=8) == {k: value_of(k, 50000) for k in sample}


def test_start_is_quick_with_many_entries(make_daemon):
    daemon = make_daemon(settings={"store.limit": 256 * MIB}).start()
    with daemon.client() as c:
        ns = c.namespace("quick")
        put_all(c, ns, items("quick", 20000, 100), batch=1000, ack=Ack.WRITTEN)
    daemon.kill()
    daemon.start()
    used = daemon.cpu_seconds()
    assert used < 3 * slow(), f"{used:.1f} s of processor time until it answered"
    assert daemon.status()["store"]["recovered_chunks"] == 20000
