# SPDX-License-Identifier: Apache-2.0
"""CANCEL (proto/README.md, 6.24): waiting keys end at once, with a status of their own, and nothing else changes."""

import struct

import pytest

import kvwire
from harness import KIB, MIB, items, key_of, put_all, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from buffers import region_of
from test_disk_error import disk, disks  # noqa: F401 (fixtures)
from test_leases import pin_every_slab


def cancel(client, tag):
    """Cancels a request. Returns the number of cancelled keys."""
    return client.call(Op.CANCEL, struct.pack("<Q", tag)).value


def waiting_put(daemon, client, ns, name, count, length, ack=Ack.ACCEPTED):
    """Submits a put whose keys all wait for room. Returns its tag and its keys."""
    before = daemon.metric("kvcache_room_waits_total")
    pairs = items(name, count, length)
    tag = client.submit_batch(Op.PUT, ns, client.put_entries(pairs), timeout_ms=600000, ack=ack)
    wait_until(lambda: daemon.metric("kvcache_room_waits_total") >= before + count, "the put waits for room")
    return tag, [k for k, _ in pairs]


def test_puts_that_wait_for_room_end_at_once(leg_daemon):
    pins, length = pin_every_slab(leg_daemon)
    with leg_daemon.client() as c:
        assert c.features & kvwire.FEATURE_CANCEL
        ns = c.namespace("cancel")
        c.staging()
        rest = leg_daemon.holdings_at_rest()
        tag, keys = waiting_put(leg_daemon, c, ns, "cancel", 3, length)
        assert cancel(c, tag) == 3
        assert [r.status for r in c.put_results(c.wait(tag), 3)] == [Status.CANCELLED] * 3
        assert cancel(c, tag) == 0, "it was answered"
        leg_daemon.wait_for_holdings(rest)
        assert c.exists(ns, keys) == [0] * 3
        pins.close()
        assert all(r.status == Status.OK for r in c.put(ns, items("cancel", 3, length), ack=Ack.WRITTEN))


def test_a_get_that_waits_for_room_ends_at_once_and_can_be_repeated(leg_daemon):
    key = key_of("cold")
    with leg_daemon.client() as c:
        ns = c.namespace("cancel")
        pins, length = None, 1 << 20
        c.put(ns, [(key, value_of(key, length))], ack=Ack.WRITTEN)
        c.evict(ns, [key], Tier.MEMORY)
        pins, _ = pin_every_slab(leg_daemon)
        before = leg_daemon.metric("kvcache_room_waits_total")
        tag = c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, 0, 0, 0)], timeout_ms=600000)
        wait_until(lambda: leg_daemon.metric("kvcache_room_waits_total") > before, "the get waits for room")
        assert cancel(c, tag) == 1
        assert [r.status for r in c.get_results(c.wait(tag), 1)] == [Status.CANCELLED]
        pins.close()
        result, = c.get(ns, [key])
        assert result.status == Status.OK and result.data == value_of(key, length)


def test_a_window_full_of_waiting_puts_is_cancelled_one_by_one(daemon):
    pins, length = pin_every_slab(daemon)
    with daemon.client() as c:
        ns = c.namespace("cancel")
        c.staging()
        rest = daemon.holdings_at_rest()
        tags = [waiting_put(daemon, c, ns, ("cancel", i), 1, length)[0] for i in range(c.max_inflight - 1)]
        for tag in reversed(tags):
            assert cancel(c, tag) == 1
            assert c.put_results(c.wait(tag), 1)[0].status == Status.CANCELLED
        daemon.wait_for_holdings(rest)
    pins.close()


def test_a_tag_is_the_sessions_own(daemon):
    pins, length = pin_every_slab(daemon)
    with daemon.client() as c, daemon.client() as other:
        ns = c.namespace("cancel")
        c.staging()
        tag, _ = waiting_put(daemon, c, ns, "mine", 2, length)
        assert cancel(other, tag) == 0
        for unknown in (0, 1 << 63, (1 << 64) - 1, tag + 1):
            assert cancel(c, unknown) == 0
        assert cancel(c, tag) == 2
        assert {r.status for r in c.put_results(c.wait(tag), 2)} == {Status.CANCELLED}
        again, _ = waiting_put(daemon, c, ns, "again", 1, length)
        assert cancel(other, again) == 0
        pins.close()
        assert c.put_results(c.wait(again), 1)[0].status == Status.OK


def test_cancel_does_not_undo_completed_keys(daemon, client):
    ns = client.namespace("cancel")
    pairs = items("done", 4, 5000)
    client.staging()
    tag = client.submit_batch(Op.PUT, ns, client.put_entries(pairs), ack=Ack.WRITTEN)
    client.submit(Op.CANCEL, struct.pack("<Q", tag))
    results = client.put_results(client.wait(tag), 4)
    assert {r.status for r in results} <= {Status.OK, Status.CANCELLED}
    there = client.exists(ns, [k for k, _ in pairs])
    assert [bool(t) for t in there] == [r.status == Status.OK for r in results]


def test_R16_a_flood_of_cancels_costs_no_more_than_a_flood_of_pings(daemon):
    """Cancels tags that do not exist, tags of other sessions, and one that exists, with a thousand waiting keys."""
    pins, length = pin_every_slab(daemon)
    with daemon.client() as c, daemon.client() as other:
        ns = c.namespace("cancel")
        c.staging()
        c.staging_write(0, bytes(64))
        entries = [kvwire.PUT_ENTRY.pack(key_of(("many", i)), 0, length, 0, 0) for i in range(1000)]
        before = daemon.metric("kvcache_room_waits_total")
        many = c.submit_batch(Op.PUT, ns, entries, timeout_ms=600000)
        wait_until(lambda: daemon.metric("kvcache_room_waits_total") >= before + 1000, "the keys wait")
        rest = daemon.holdings_at_rest()
        for client in (c, other):
            for round in range(50):
                tags = [client.submit(Op.CANCEL, struct.pack("<Q", (1 << 40) + i)) for i in range(32)]
                assert all(client.wait(t).value == 0 for t in tags)
        assert daemon.holdings_at_rest() == rest
        assert daemon.metric('kvcache_requests_total{op="CANCEL"}') >= 3200
        assert cancel(c, many) == 1000
        assert {r.status for r in c.put_results(c.wait(many), 1000)} == {Status.CANCELLED}
    pins.close()


# --- reads that run, and gets that wait for their turn to be read ---

WINDOW, QUEUED = 1024, 200  # reads that a device is asked for at once; gets that wait behind them


@pytest.fixture
def slow_store(make_daemon, disk):  # noqa: F811
    """Makes a daemon with a store on a disk that does not answer until the test releases it."""
    daemon = make_daemon(settings={"store.path": str(disk.mount / "store"), "store.limit": "128MiB", "memory.pool": "32MiB",
                                   "store.prewrite": "off"})
    yield daemon
    disk.heal()
    if daemon.process is not None:
        daemon.stop()


def cold(client, ns, name, count, length):
    """Puts chunks and evicts them from memory, so that they are only on disk."""
    pairs = items(name, count, length)
    assert {r.status for r in put_all(client, ns, pairs, ack=Ack.DURABLE).values()} == {Status.OK}
    for i in range(0, count, client.max_keys):
        client.evict(ns, [k for k, _ in pairs[i:i + client.max_keys]], Tier.MEMORY)
    return pairs


@pytest.mark.parametrize("length", [4 * KIB, 5000], ids=["direct", "by way of the pool"])
def test_a_get_into_memory_that_is_cancelled_while_its_reads_run(slow_store, disk, length):  # noqa: F811
    daemon, stride = slow_store.start(), 8 * KIB
    with daemon.client() as c:
        ns = c.namespace("cancel")
        pairs = cold(c, ns, "into", WINDOW + QUEUED, length)
        with region_of(c, size=16 * MIB) as region:
            rest = daemon.holdings_at_rest()
            places = [region.room(i * stride, length) for i in range(len(pairs))]
            wanted = [(k, place) for (k, _), place in zip(pairs, places)]
            disk.fail("hang")
            # A request has at most 1,024 keys; some of the second one are being read, and some wait.
            first, second = c.submit_get_to(ns, wanted[:WINDOW // 2]), c.submit_get_to(ns, wanted[WINDOW // 2:])
            wait_until(lambda: daemon.metric("kvcache_queued_reads") == QUEUED, "all others are with the device")
            assert cancel(c, first) == 0, "what is read is not cancelled"
            assert cancel(c, second) == QUEUED
            assert cancel(c, second) == 0
            assert daemon.metric("kvcache_queued_reads") == 0
            assert not c.answered(first) and not c.answered(second), "reads run into the memory of both"
            disk.heal()
            results = c.get_results(c.wait(first), WINDOW // 2, [0] * len(pairs))
            results += c.get_results(c.wait(second), len(pairs) - WINDOW // 2, [0] * len(pairs))
            statuses = [r.status for r in results]
            assert statuses.count(Status.CANCELLED) == QUEUED and statuses.count(Status.OK) == WINDOW
            for result, (_, value), (at, _, _) in zip(results, pairs, places):
                untouched = b"\xdd" * length
                assert region.map[at:at + length] == (value if result.status == Status.OK else untouched)
            region.assert_guarded(*places)
            # After the answer, the daemon does not write to the client's memory, and holds nothing.
            region.clear()
            daemon.wait_for_holdings(rest)
            region.assert_guarded()
            # Later gets of cancelled keys work.
            wanted = [(k, region.room(*place[:2])) for (k, _), place in zip(pairs, places)]
            again = c.get_to(ns, wanted[:WINDOW]) + c.get_to(ns, wanted[WINDOW:])
            assert {r.status for r in again} == {Status.OK}
            assert all(region.map[i * stride:i * stride + length] == v for i, (_, v) in enumerate(pairs))


def test_a_get_that_waits_for_its_turn_at_the_disk_ends_at_once(slow_store, disk):  # noqa: F811
    """The keys of one session are all at the disk; those of another, which wait for it, are cancelled completely."""
    daemon = slow_store.start()
    with daemon.client() as c, daemon.client() as behind:
        ns, others = c.namespace("cancel"), behind.namespace("behind")
        pairs = cold(c, ns, "lease", WINDOW, 4 * KIB)
        waiting = cold(behind, others, "behind", QUEUED, 4 * KIB)
        rest = daemon.holdings_at_rest()
        entries = [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k, _ in pairs]
        disk.fail("hang")
        tag = c.submit_batch(Op.GET, ns, entries)
        assert not c.answered(tag), "and begun: requests are started in their order"
        later = behind.submit_batch(Op.GET, others, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k, _ in waiting])
        wait_until(lambda: daemon.metric("kvcache_queued_reads") == QUEUED, "the others wait")
        assert cancel(c, tag) == 0 and cancel(c, later) == 0, "all of the one is read; the other is not this session's"
        assert cancel(behind, later) == QUEUED
        # Answered while the disk still hangs.
        assert {r.status for r in behind.get_results(behind.wait(later), QUEUED)} == {Status.CANCELLED}
        assert not c.answered(tag)
        disk.heal()
        results = c.get_results(c.wait(tag), WINDOW)
        assert all(r.status == Status.OK and r.data == v for r, (_, v) in zip(results, pairs))
        assert c.release([r.lease for r in results]) == 0
        daemon.wait_for_holdings(rest)
        found = behind.get(others, [k for k, _ in waiting])
        assert all(r.status == Status.OK and r.data == v for r, (_, v) in zip(found, waiting))


def test_R15_memory_of_a_get_that_was_cancelled_on_a_disk_that_hangs_is_not_written_after_the_answer(make_daemon, disk):  # noqa: F811
    daemon = make_daemon(settings={"store.path": str(disk.mount / "store"), "store.limit": "128MiB", "memory.pool": "16MiB",
                                   "store.prewrite": "off", "io.hang": "1s"}).start()
    with daemon.client() as c:
        ns = c.namespace("cancel")
        pairs = cold(c, ns, "hung", 64, 4 * KIB)
        with region_of(c, size=1 * MIB) as region:
            disk.fail("hang")
            tag = c.submit_get_to(ns, [(k, region.room(i * 8 * KIB, 4 * KIB)) for i, (k, _) in enumerate(pairs)])
            wait_until(lambda: daemon.status()["store"]["volumes"][0]["pending"] > 0, "its reads run")
            assert cancel(c, tag) == 0
            wait_until(lambda: daemon.status()["store"]["volumes"][0]["state"] == "hung", "the volume is given up")
            answered = c.answered(tag)
            if not answered:  # the device still owns its memory
                disk.heal()
            statuses = [r.status for r in c.get_results(c.wait(tag), len(pairs), [0] * len(pairs))]
            region.clear()
            disk.heal()
            wait_until(lambda: daemon.status()["store"]["volumes"][0]["pending"] == 0, "what was at the device is back")
            region.assert_guarded()
            assert set(statuses) <= {Status.MISS, Status.OK}
    daemon.stop()
