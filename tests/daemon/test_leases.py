# SPDX-License-Identifier: Apache-2.0
"""A lease keeps bytes at their place until it is released or its client has closed, and no longer. The leases of one client are limited."""

import fcntl
import mmap
import os
import time

import pytest

import kvwire
from harness import KIB, MIB, items, key_of, put_all, slow, value_of, wait_until
from kvwire import Ack, Flag, Op, Status, Tier


def leases_of(daemon):
    return daemon.status()["sessions"]["leases"]


def test_put_can_keep_a_lease(daemon, client):
    pairs = items("keep", 4, 9000)
    ns = client.namespace("keep")
    results = client.put(ns, pairs, lease=True, ack=Ack.WRITTEN)
    assert all(r.status == Status.OK and r.leased and r.data == v for r, (_, v) in zip(results, pairs))
    assert leases_of(daemon) == 4
    again = client.put(ns, pairs, lease=True)
    assert all(r.status == Status.EXISTS and r.leased and r.data == v for r, (_, v) in zip(again, pairs))
    assert leases_of(daemon) == 8
    assert client.release([r.lease for r in results + again]) == 0
    assert leases_of(daemon) == 0


def test_releases_ride_on_any_batch(daemon, client):
    pairs = items("ride", 6, 1000)
    keys = [k for k, _ in pairs]
    ns = client.namespace("ride")
    results = client.put(ns, pairs, lease=True)
    leases = [r.lease for r in results]
    assert all(client.exists(ns, keys[:1], releases=leases[:1]))
    assert leases_of(daemon) == 5
    got = client.get(ns, keys[:1], releases=leases[1:2])
    assert leases_of(daemon) == 5 and got[0].data == pairs[0][1]
    client.put(ns, items("ride2", 1, 10), releases=leases[2:3])
    assert leases_of(daemon) == 4
    # Releases take effect even if the rest of the message is refused.
    with pytest.raises(kvwire.Refused) as refused:
        client.exists(4711, keys[:1], releases=leases[3:5])
    assert refused.value.status == Status.NO_NAMESPACE
    assert leases_of(daemon) == 2
    client.release([got[0].lease, leases[5]])
    assert leases_of(daemon) == 0


def test_a_release_without_a_reply_ends_leases_and_nothing_comes_back(daemon, client):
    assert client.features & kvwire.FEATURE_NO_REPLY
    pairs = items("silent", 4, 1000)
    ns = client.namespace("silent")
    leases = [r.lease for r in client.put(ns, pairs, lease=True)]
    # Sends more releases than a session may have unanswered requests; most are stale.
    tags = [client.submit_batch(Op.RELEASE, 0, releases=leases[i % 4:i % 4 + 1], flags=Flag.NO_REPLY) for i in range(200)]
    client.ping()
    assert not any(client.answered(tag) for tag in (tags[0], tags[4], tags[199]))
    assert leases_of(daemon) == 0
    assert client.release(leases) == 4


def test_a_client_with_a_request_at_a_time_takes_an_iteration_of_the_loop_for_each(daemon, client):
    (key, value), = items("turns", 1, 1000)
    ns = client.namespace("turns")
    client.put(ns, [(key, value)], ack=Ack.WRITTEN)
    turns, requests, releases = 'kvcache_loop_duration_seconds_count{part="iteration"}', 500, []
    before = daemon.metric(turns)
    for _ in range(requests):
        result, = client.get(ns, [key], releases=releases)
        assert result.data == value
        releases = [result.lease]
    assert daemon.metric(turns) - before < 1.5 * requests


def test_a_stale_lease_is_counted_and_does_nothing(daemon, client):
    (key, value), = items("stale", 1, 5000)
    ns = client.namespace("stale")
    client.put(ns, [(key, value)])
    lease = client.get(ns, [key])[0].lease
    assert client.release([lease]) == 0
    assert client.release([lease]) == 1
    held = client.get(ns, [key])[0].lease
    assert client.release([lease, (held.id, held.generation + 1), (2**32 - 1, 1), (held.id, 0)]) == 4
    with daemon.client() as other:
        assert other.release([held]) == 1, "a lease of another session was released"
    assert leases_of(daemon) == 1
    assert client.release([held]) == 0


def test_a_lease_keeps_its_bytes_through_eviction_and_purge(leg_daemon):
    key, length = key_of("keeps"), 100000
    value = value_of(key, length)
    with leg_daemon.client() as c:
        ns = c.namespace("keeps")
        held, = c.put(ns, [(key, value)], lease=True, ack=Ack.WRITTEN)
        assert c.evict(ns, [key]) == [Status.OK]
        assert c.exists(ns, [key]) == [Tier(0)]
        again, = c.put(ns, [(key, value_of(key_of("other"), length))], ack=Ack.WRITTEN)
        assert again.status == Status.OK
        c.purge(ns)
        # twice the capacity of the pool
        put_all(c, ns, items("flood", 256, 256 * KIB), ack=Ack.WRITTEN)
        assert held.data == value
        assert c.release([held.lease]) == 0


def test_lease_quota_of_a_connection_in_bytes(daemon, client):
    ns = client.namespace("quota")
    quota = client.pool_bytes // 8 * 3  # by default as much as one user
    pairs = items("quota", quota // MIB + 2, MIB)
    put_all(client, ns, pairs, batch=4, ack=Ack.WRITTEN)
    held = []
    for key, _ in pairs:
        result, = client.get(ns, [key])
        if result.status != Status.OK:
            break
        held.append(result.lease)
    assert result.status == Status.QUOTA and result.lease is None
    assert len(held) == quota // MIB
    with daemon.client(name="other") as other:
        other.namespace("quota")
        assert all(r.status == Status.OK for key, _ in pairs[:8] for r in other.get(ns, [key])), "others have the rest of the half"
    # into the staging area needs no lease
    into, = client.get_into(ns, [key], MIB)
    assert into.status == Status.OK and into.data == value_of(key, MIB)
    # A put succeeds even if it gets no lease.
    result, = client.put(ns, items("unleased", 1, 100), lease=True)
    assert result.status == Status.OK and not result.leased
    assert client.release(held[:1]) == 0
    assert client.get(ns, [key])[0].status == Status.OK


def test_lease_quota_of_a_connection_in_number(make_daemon):
    daemon = make_daemon(settings={"limits.leases": 10}).start()
    with daemon.client() as a, daemon.client() as b:
        ns = a.namespace("quota")
        keys = [k for k, _ in items("n", 12, 100)]
        a.put(ns, items("n", 12, 100))
        assert [r.status for r in a.get(ns, keys)] == [Status.OK] * 10 + [Status.QUOTA] * 2
        assert b.get(b.namespace("quota"), keys[:1])[0].status == Status.OK


def test_all_clients_together_lease_at_most_half_of_the_pool(daemon):
    clients = [daemon.client() for _ in range(4)]
    try:
        pairs = items("all", clients[0].pool_bytes // MIB, MIB)
        ns = clients[0].namespace("all")
        put_all(clients[0], ns, pairs, batch=4, ack=Ack.WRITTEN)
        statuses = []
        for i, c in enumerate(clients):
            ns = c.namespace("all")
            part = [k for k, _ in pairs[i * 6:(i + 1) * 6]]
            statuses += [r.status for r in c.get(ns, part, nowait=True)]
        most = clients[0].pool_bytes // 2 // MIB
        assert statuses.count(Status.OK) == most and statuses.count(Status.BUSY) == len(statuses) - most
        # Leased chunks leave room for other requests.
        fresh = items("fresh", 8, MIB)
        results = put_all(clients[0], clients[0].namespace("all"), fresh, batch=2, ack=Ack.WRITTEN)
        assert {r.status for r in results.values()} == {Status.OK}
    finally:
        for c in clients:
            c.close()
    wait_until(lambda: leases_of(daemon) == 0, "all leases are given back")


def test_leases_end_when_the_client_closes_or_shuts_down(daemon):
    pairs = items("close", 5, 1000)
    for end in ("close", "shutdown"):
        c = daemon.client()
        ns = c.namespace("close")
        c.put(ns, pairs)
        c.get(ns, [k for k, _ in pairs])
        assert leases_of(daemon) == 5
        getattr(c, end)()
        wait_until(lambda: leases_of(daemon) == 0, f"leases end with {end}")
        c.close()


@pytest.mark.parametrize("stop", [False, True])
def test_tens_of_thousands_of_leases_end_with_their_sessions_while_others_go_on(make_daemon, stop):
    """Leases are released in steps; each counts for its user until then, and the chunk stays in place."""
    daemon = make_daemon(settings={"limits.uid_leases": 60000, "limits.leases": 30000, "limits.uid_leased_bytes": "4GiB",
                                   "limits.leased_bytes": "128MiB", "memory.pool": "128MiB"}).start()
    holders = [daemon.client(name=f"holder {i}") for i in range(2)]
    key, value = key_of("held"), value_of(key_of("held"), 4 * KIB)
    with daemon.client(name="other") as other:
        ns = other.namespace("held")
        put_all(other, ns, [(key, value)], ack=Ack.WRITTEN)
        for c in holders:
            c.namespace("held")
            for _ in range(20):
                assert all(r.status == Status.OK for r in c.get(ns, [key] * 1000))
        assert leases_of(daemon) == 40000
        for c in holders:
            c.close()
        if stop:
            return
        while left := leases_of(daemon):
            assert left <= 40000
            assert other.value(ns, key) == value
        with daemon.client(name="again") as c:
            c.namespace("held")
            for _ in range(30):
                assert all(r.status == Status.OK for r in c.get(ns, [key] * 1000))
        wait_until(lambda: leases_of(daemon) == 0, "these end as well")
    daemon.stop()


def test_session_ended_by_the_daemon_keeps_its_leases_until_the_client_closes(daemon):
    key = key_of("ended")
    value = value_of(key, 200000)
    c = daemon.client()
    ns = c.namespace("ended")
    held, = c.put(ns, [(key, value)], lease=True, ack=Ack.WRITTEN)
    c.send(b"rubbish")
    with pytest.raises(kvwire.SessionEnded):
        c.receive()
    with daemon.client() as other:
        ns = other.namespace("ended")
        assert leases_of(daemon) == 1
        other.evict(ns, [key])
        put_all(other, ns, items("flood", 128, 512 * KIB), ack=Ack.WRITTEN)
        assert held.data == value, "leased bytes changed after the daemon ended the session"
        assert leases_of(daemon) == 1
    c.close()
    wait_until(lambda: leases_of(daemon) == 0, "the lease ends with the client's end")


def test_ended_session_ends_with_a_client_that_left_replies_unread(daemon):
    """The kernel reports such an end as an error as well, and again and again."""
    before = daemon.holdings_at_rest()
    c = daemon.client()
    ns = c.namespace("unread")
    c.put(ns, items("unread", 3, 1000), lease=True)
    for _ in range(5):
        c.submit(Op.PING, b"this stays unread")
    c.send(b"bad")
    wait_until(lambda: daemon.metric('kvcache_sessions_ended_total{reason="bad_frame"}') == 1, "the session is ended")
    c.close()
    daemon.wait_for_holdings(before)
    daemon.assert_idle()


def pin_every_slab(daemon):
    """Returns a client whose small leases, each of another size, leave no slab of the pool free, and a length for which there is then no room."""
    slabs = daemon.populated_status()["pool"]
    c = daemon.client()
    ns = c.namespace("pins")
    for i in range(slabs["bytes"] // slabs["slab_bytes"]):
        (pair,) = items(("pins", i), 1, 4096 << i)
        assert c.put(ns, [pair], lease=True, ack=Ack.WRITTEN)[0].leased
    return c, MIB


def test_a_put_without_room_is_answered_when_its_time_is_up(leg_daemon):
    """Nothing else happens in the daemon that would wake it at the deadline."""
    pins, length = pin_every_slab(leg_daemon)
    with leg_daemon.client() as c:
        ns = c.namespace("late")
        c.timeout = 10 * slow()
        began = time.monotonic()
        result, = c.put(ns, items("late", 1, length), timeout_ms=200)
        assert result.status == Status.BUSY and time.monotonic() - began >= 0.19
        tag = c.submit_batch(Op.PUT, ns, c.put_entries(items("later", 1, length)), timeout_ms=60000)
        pins.close()
        result, = c.put_results(c.wait(tag), 1)
        assert result.status == Status.OK, "room was made, and the put that waited for it did not get it"


def test_a_client_that_dies_while_it_waits_for_room(daemon):
    """A client dies with the maximum number of requests in flight, so that nothing more is read, and with an unread reply."""
    pins, length = pin_every_slab(daemon)
    before = daemon.holdings_at_rest()
    c = daemon.client()
    ns = c.namespace("waits")
    c.staging()
    c.submit(Op.PING, b"this stays unread")
    for i in range(64):
        c.submit_batch(Op.PUT, ns, c.put_entries(items(("waits", i), 1, length)), timeout_ms=600000)
    wait_until(lambda: daemon.metric("kvcache_room_waits_total") >= 60, "it waits")
    daemon.assert_idle()
    c.close()
    daemon.wait_for_holdings(before)
    daemon.assert_idle()
    pins.close()


def test_pool_is_sealed_and_read_only(daemon, client):
    wanted = kvwire.F_SEAL_SEAL | kvwire.F_SEAL_SHRINK | kvwire.F_SEAL_GROW | kvwire.F_SEAL_FUTURE_WRITE
    fd = client.pool_fd
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted == wanted
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)
    try:  # root may open it again for writing, but the seal must hold
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    except PermissionError:
        return
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.write(again, b"x")
        with pytest.raises(OSError):
            os.ftruncate(again, 0)
        with pytest.raises(OSError):  # a hole would read as zeros
            libc_fallocate(again, 0x01 | 0x02, 0, 4096)
    finally:
        os.close(again)


def libc_fallocate(fd, mode, offset, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_staging_is_sealed_against_shrinking(daemon, client):
    fd, = client.call(Op.STAGING, (65536).to_bytes(8, "little"), n_fds=1).fds
    try:
        wanted = kvwire.F_SEAL_SEAL | kvwire.F_SEAL_SHRINK | kvwire.F_SEAL_GROW
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted == wanted
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def test_liveness_is_locked_as_long_as_the_daemon_lives(leg_daemon):
    c = leg_daemon.client()
    assert not c.settled()
    assert fcntl.fcntl(c.liveness_fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    leg_daemon.kill()
    with pytest.raises(kvwire.SessionEnded):
        c.receive()
    wait_until(c.settled, "the liveness file is unlocked after the daemon's death")
    c.close()


def test_a_client_of_a_dead_daemon_may_read_its_leased_chunks(leg_daemon):
    key = key_of("dead")
    value = value_of(key, 500000)
    c = leg_daemon.client()
    ns = c.namespace("dead")
    held, = c.put(ns, [(key, value)], lease=True)
    leg_daemon.kill()
    assert held.data == value
    c.close()


def test_gets_of_more_than_the_pool_holds_wait_for_room(leg_daemon):
    """Half of the pool is leased, and twice the rest is requested at once. Each key waits until there is room."""
    holders = [leg_daemon.client() for _ in range(2)]
    try:
        with leg_daemon.client() as c:
            ns = c.namespace("room")
            pairs = items("room", 60, MIB)
            keys = [k for k, _ in pairs]
            put_all(c, ns, pairs, batch=8, ack=Ack.WRITTEN)
            for holder, part in zip(holders, (keys[44:52], keys[52:60])):
                assert {r.status for r in holder.get(holder.namespace("room"), part)} == {Status.OK}
            c.evict(ns, keys[:44], Tier.MEMORY)
            results = c.get_into(ns, keys[:44], MIB, timeout_ms=60000)
            for (_, value), result in zip(pairs, results):
                assert result.status == Status.OK and result.data == value
            assert leg_daemon.metric("kvcache_room_waits_total") > 0
            # A request that does not wait is answered at once.
            c.evict(ns, keys[:44], Tier.MEMORY)
            results = c.get_into(ns, keys[:44], MIB, nowait=True)
            assert {r.status for r in results} == {Status.OK, Status.BUSY}
            assert all(r.data == v for (_, v), r in zip(pairs, results) if r.status == Status.OK)
    finally:
        for holder in holders:
            holder.close()


def test_puts_wait_while_too_much_is_not_written_yet(leg_daemon):
    with leg_daemon.client() as c:
        ns = c.namespace("unwritten")
        pairs = items("unwritten", 48, MIB)
        results = c.put(ns, pairs, ack=Ack.ACCEPTED, timeout_ms=60000)
        assert {r.status for r in results} == {Status.OK}
        for key, value in pairs:
            assert c.value(ns, key) == value
        results = c.put(ns, items("unwilling", 48, MIB), ack=Ack.ACCEPTED, nowait=True)
        assert {r.status for r in results} == {Status.OK, Status.BUSY}


def test_nowait_is_answered_at_once(daemon, client):
    ns = client.namespace("nowait")
    result, = client.put(ns, items("nowait", 1, 1000), nowait=True)
    assert result.status in (Status.OK, Status.BUSY)
    entry = kvwire.GET_ENTRY.pack(key_of("nobody"), 0, 0, 0, 0, 0)
    reply = client.wait(client.submit_batch(Op.GET, ns, [entry], flags=Flag.NOWAIT))
    assert client.get_results(reply, 1)[0].status == Status.MISS
