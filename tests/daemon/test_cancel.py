# SPDX-License-Identifier: Apache-2.0
"""CANCEL (proto/README.md, 6.24): what waits ends at once, with a status of its own, and nothing else changes."""

import struct

import kvwire
from harness import items, key_of, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from test_leases import pin_every_slab


def cancel(client, tag):
    """How many keys it has cancelled."""
    return client.call(Op.CANCEL, struct.pack("<Q", tag)).value


def waiting_put(daemon, client, ns, name, count, length, ack=Ack.ACCEPTED):
    """A put of which every key waits for room; its tag and its keys."""
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


def test_what_is_done_already_stays_done(daemon, client):
    ns = client.namespace("cancel")
    pairs = items("done", 4, 5000)
    client.staging()
    tag = client.submit_batch(Op.PUT, ns, client.put_entries(pairs), ack=Ack.WRITTEN)
    client.submit(Op.CANCEL, struct.pack("<Q", tag))
    results = client.put_results(client.wait(tag), 4)
    assert {r.status for r in results} <= {Status.OK, Status.CANCELLED}
    there = client.exists(ns, [k for k, _ in pairs])
    assert [bool(t) for t in there] == [r.status == Status.OK for r in results]


def test_R16_a_flood_of_cancels_costs_what_a_flood_of_pings_does(daemon):
    """Of tags that are not there, of others' and of one that is, with a thousand keys that wait."""
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
