# SPDX-License-Identifier: Apache-2.0
"""Registered buffers (proto/README.md 6.18, 6.19): the client's memory, which the daemon reads and writes directly.

A get returns the bytes that were put, for any size, place and file, and requests in flight are settled when a session or daemon ends.
"""

import contextlib
import json
import mmap
import os
import random
import struct
import subprocess
import time

import pytest

import harness
import kvwire
from buffers import backend, both, GUARD, mapped_by_huge_pages, memory, ok, Region, region_of, registered, sealed_memfd
from harness import BUILD, KIB, MIB, PAGE, items, key_of, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from left_out import first_of

SIZES = [1, 4095, 4096, 4097, 64 * KIB + 1, 2 * MIB - 3]


def test_a_region_that_is_not_registered_is_logged_and_counted(make_daemon):
    leg = next(leg for leg in harness.LEGS if leg.name == "memlock")
    if leg.why_not():
        pytest.skip(leg.why_not())
    daemon = make_daemon(leg).start()
    io = daemon.populated_status()["io"]
    if io["backend"] == "posix":
        pytest.skip("another daemon of this user has taken all of RLIMIT_MEMLOCK")

    def told():
        return [line for line in daemon.log().splitlines() if " warning: " in line and "registered memory" in line]

    with daemon.client() as c, region_of(c, size=2 * MIB):
        wait_until(told, "the refusal is logged")
        line, = told()
        assert "registered 0 B of a client's 2 MiB of registered memory" in line
        assert "RLIMIT_MEMLOCK is too small" in line and "ulimit -l" in line and "LimitMEMLOCK=" in line
        assert daemon.metric('kvcache_io_registrations_refused_total{memory="region"}') == 1


def test_chunks_in_memory_may_be_leased_instead_of_copied(make_daemon):
    daemon = make_daemon(settings={"limits.leases": 3}).start()
    keys, leases = [key_of("leased", i) for i in range(6)], "kvcache_leases"
    data = [(key, value_of(key, 50_000)) for key in keys]
    with daemon.client() as c, region_of(c, size=2 * MIB) as region:
        assert c.features & kvwire.FEATURE_LEASE_INTO
        ns = c.namespace("n")
        ok(c.put(ns, data, ack=Ack.WRITTEN))
        c.evict(ns, keys[:1], tiers=Tier.MEMORY)
        rooms = [(i * 60_000, 50_000, region.number) for i in range(6)]
        region.clear()
        refused = daemon.metric('kvcache_resource_refusals_total{resource="leases"}')
        got = c.get_to(ns, zip(keys, rooms), lease=True)
        assert [r.status for r in got] == [Status.OK] * 6
        # A chunk from disk is copied. So is one for which there is no lease, which does not count as a refusal.
        assert [r.leased for r in got] == [False, True, True, True, False, False]
        assert daemon.metric(leases) == 3
        assert daemon.metric('kvcache_resource_refusals_total{resource="leases"}') == refused
        for (key, value), r, room in zip(data, got, rooms):
            assert r.length == 50_000
            if r.leased:
                assert bytes(c.pool[r.offset:r.offset + r.length]) == value and r.tier == 1
                assert region.map[room[0]:room[0] + 50_000] == GUARD * 50_000
            else:
                assert r.offset == 0 and region.map[room[0]:room[0] + 50_000] == value
        assert c.release([r.lease for r in got if r.leased]) == 0 and daemon.metric(leases) == 0
        # Ranges work as well. A lease is refused for too little room, an invalid range, or a place outside the client's memory.
        got = c.get_to(ns, [(keys[1], (0, 100, region.number)), (keys[2], (0, 99, region.number)), (keys[3], (0, 99, region.number))],
                       ranges=[(7, 100), (7, 100), (49_999, 2)], lease=True)
        assert [(r.status, r.leased) for r in got] == [(Status.OK, True), (Status.TOO_LARGE, False), (Status.INVALID, False)]
        assert bytes(c.pool[got[0].offset:got[0].offset + 100]) == data[1][1][7:107]
        assert c.release([got[0].lease]) == 0
        wrong, = c.get_to(ns, [(keys[1], (2 * MIB - 10, 50_000, region.number))], lease=True)
        assert (wrong.status, wrong.leased) == (Status.INVALID, False) and daemon.metric(leases) == 0


@pytest.mark.parametrize("kind", first_of(["memfd", "hugetlbfs", "unsealed", "shm", "unlinked"], 2))
def test_bytes_go_and_come_back_whatever_the_size_and_the_place(both, kind):
    ns = both.namespace("n")
    with region_of(both, kind, size=6 * MIB if kind == "hugetlbfs" else 5 * MIB) as region:
        for ack in (Ack.ACCEPTED, Ack.WRITTEN, Ack.DURABLE):
            for size in SIZES:
                for at, back in ((0, 3 * MIB), (4096, 2 * MIB + 4096), (1, 2 * MIB + 1), (8192 - 3, 3 * MIB - 4096),
                                 (64, region.size - size)):
                    key = key_of("round", ack, size, at)
                    value = value_of(key, size)
                    region.clear()
                    source = region.write(at, value)
                    assert both.put_from(ns, [(key, source)], ack=ack)[0].stored
                    region.assert_guarded(source)
                    assert region.map[at:at + size] == value
                    for tiers in (None, Tier.MEMORY):
                        if tiers and ack != Ack.ACCEPTED:
                            both.evict(ns, [key], tiers)
                        region.clear()
                        room = region.room(back, size)
                        result, = ok(both.get_to(ns, [(key, room)]))
                        assert (result.length, result.chunk_length) == (size, size)
                        assert region.map[back:back + size] == value
                        region.assert_guarded(room)
                    assert both.value(ns, key) == value
        both.unregister(region.number)


def test_a_whole_request_of_many_keys(both):
    ns = both.namespace("n", chunk_bytes=64 * KIB)
    pairs = items("many", 60, 64 * KIB)
    with region_of(both) as region:
        sources = [(k, region.write(i * 64 * KIB, v)) for i, (k, v) in enumerate(pairs)]
        ok(both.put_from(ns, sources, ack=Ack.WRITTEN))
        both.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        region.clear()
        rooms = [(k, region.room((len(pairs) - i) * 64 * KIB, 64 * KIB)) for i, (k, _) in enumerate(pairs)]
        ok(both.get_to(ns, rooms))
        for (_, value), (_, (at, length, _)) in zip(pairs, rooms):
            assert region.map[at:at + length] == value
        region.assert_guarded(*[room for _, room in rooms])


def test_a_part_of_a_file_is_a_region_of_its_own(both):
    ns = both.namespace("n")
    fd = sealed_memfd(1 * MIB)
    try:
        whole = mmap.mmap(fd, MIB)
        whole[:] = GUARD * MIB
        number = both.register(fd, 16 * PAGE, offset=32 * PAGE)
        key = key_of("part")
        value = value_of(key, 5000)
        whole[33 * PAGE:33 * PAGE + 5000] = value
        ok(both.put_from(ns, [(key, (PAGE, 5000, number))], ack=Ack.WRITTEN))
        ok(both.get_to(ns, [(key, (2 * PAGE + 4096, 5000, number))]))
        assert whole[35 * PAGE:35 * PAGE + 5000] == value
        for at, length in ((16 * PAGE, 1), (16 * PAGE - 4999, 5000), (1 << 63, 5000), ((1 << 64) - 1, 2)):
            result, = both.get_to(ns, [(key, (at, length, number))])
            assert result.status in (Status.INVALID, Status.TOO_LARGE)
            result, = both.put_from(ns, [(key_of("no", at), (at, length, number))])
            assert result.status == Status.INVALID
        assert whole[48 * PAGE:] == GUARD * (MIB - 48 * PAGE)
        whole.close()
    finally:
        os.close(fd)


def test_ranges_of_chunks_land_where_they_are_wanted(both):
    ns = both.namespace("n")
    key = key_of("ranges")
    value = value_of(key, 200000)
    with region_of(both) as region:
        ok(both.put_from(ns, [(key, region.write(0, value))], ack=Ack.WRITTEN))
        for at, length in ((0, 1), (199999, 1), (4096, 4096), (1, 4095), (4097, 100000), (8192, 0), (0, 200000)):
            for back in (MIB, MIB + 77):
                for tiers in (Tier.MEMORY, None):
                    if tiers:
                        both.evict(ns, [key], tiers)
                    region.clear()
                    wanted = value[at:at + length] if length else value[at:]
                    room = region.room(back, len(wanted))
                    result, = ok(both.get_to(ns, [(key, room)], ranges=[(at, length)]))
                    assert result.length == len(wanted) and result.chunk_length == len(value)
                    assert region.map[back:back + len(wanted)] == wanted
                    region.assert_guarded(room)
        result, = both.get_to(ns, [(key, region.room(0, 199999))])
        assert (result.status, result.length) == (Status.TOO_LARGE, 200000)
        result, = both.get_to(ns, [(key_of("nobody"), region.room(0, 10))])
        assert result.status == Status.MISS


def test_whole_pages_travel_without_a_copy_and_are_counted(both):
    def daemon_metrics():
        return harness.parse_metrics(both.report(kvwire.Report.METRICS))

    ns = both.namespace("n", chunk_bytes=64 * KIB)
    key = key_of("direct")
    value = value_of(key, 64 * KIB)
    with region_of(both) as region:
        metrics = daemon_metrics()
        assert metrics["kvcache_registered_buffers"] == 1 and metrics["kvcache_registered_bytes"] == region.size
        if json.loads(both.report(kvwire.Report.STATUS))["io"]["registered"]:
            wait_until(lambda: daemon_metrics()["kvcache_registered_in_rings_bytes"] == region.size,
                       "the region is registered with the rings")
            harness.remember_moved(daemon_metrics())
        ok(both.put_from(ns, [(key, region.write(PAGE, value))], ack=Ack.WRITTEN))
        assert daemon_metrics()["kvcache_put_direct_bytes_total"] == 64 * KIB
        both.evict(ns, [key], Tier.MEMORY)
        result, = ok(both.get_to(ns, [(key, region.room(MIB, 64 * KIB))]))
        assert region.map[MIB:MIB + 64 * KIB] == value and result.tier == Tier.DISK
        metrics = daemon_metrics()
        assert metrics["kvcache_get_direct_bytes_total"] == 64 * KIB
        harness.remember_moved(metrics)


@pytest.mark.parametrize("setting", ["all", "auto"])
def test_registered_memory_moves_to_huge_pages_and_is_counted(make_daemon, setting):
    daemon = make_daemon(settings={"memory.huge_pages": setting, "memory.pool": 64 * MIB}).start()
    pool = daemon.populated_status()["pool"]
    with daemon.client() as c:
        ns = c.namespace("huge", chunk_bytes=64 * KIB)
        with region_of(c, size=24 * MIB) as region:
            first, last = (key_of("first"), value_of(key_of("first"), 64 * KIB)), (key_of("last"), value_of(key_of("last"), 64 * KIB))
            ok(c.put_from(ns, [(first[0], region.write(0, first[1])), (last[0], region.write(23 * MIB, last[1]))], ack=Ack.WRITTEN))
            if daemon.populated_status()["io"]["registered"]:
                wait_until(lambda: daemon.metrics()["kvcache_registered_in_rings_bytes"] == region.size, "the region is registered")
                huge = daemon.metrics()["kvcache_registered_huge_bytes"]
                assert huge == daemon.populated_status()["sessions"]["registered_huge_bytes"]
                assert huge in (0, 8 * MIB, 16 * MIB, 24 * MIB), "steps that a put had pinned stay as they were"
                assert huge <= mapped_by_huge_pages(daemon.pid) - pool["huge_bytes"]
                assert setting == "all" or huge == 0
            assert region.map[:64 * KIB] == first[1] and region.map[23 * MIB:23 * MIB + 64 * KIB] == last[1]
            c.evict(ns, [first[0]], Tier.MEMORY)
            ok(c.get_to(ns, [(first[0], region.room(MIB, 64 * KIB))]))
            assert region.map[MIB:MIB + 64 * KIB] == first[1]
    wait_until(lambda: daemon.metrics()["kvcache_registered_huge_bytes"] == 0, "what is unregistered does not count")


def test_puts_and_gets_of_several_at_once_find_their_own(daemon):
    def work(number):
        rng = random.Random(number)
        with daemon.client() as c, region_of(c) as region:
            ns = c.namespace("n")
            for _ in range(60):
                key = key_of("several", rng.randrange(40))
                value = value_of(key, 20000 + 4096 * (key[0] % 50))
                at = rng.choice([0, PAGE, 12345])
                put, = c.put_from(ns, [(key, region.write(at, value))], ack=Ack.WRITTEN)
                assert put.stored, put
                if rng.random() < 0.5:
                    c.evict(ns, [key], Tier.MEMORY)
                got, = c.get_to(ns, [(key, region.room(4 * MIB, len(value)))])
                assert got.status == Status.OK and region.map[4 * MIB:4 * MIB + len(value)] == value
    harness.in_threads(4, work)


def test_R11_a_client_that_dies_with_io_in_flight_gives_everything_back(backend, make_daemon):
    daemon = make_daemon(backend).start()
    with daemon.client() as c:
        pairs = items("dies", 20, MIB)
        ns = c.namespace("n", chunk_bytes=MIB)
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
    before = daemon.holdings_at_rest()
    for i in range(6):
        c = daemon.client()
        with memory("memfd", 24 * MIB) as fd:
            region = Region(c, fd, 24 * MIB)
            ns = c.namespace("n")
            c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
            for k, (key, _) in enumerate(pairs):
                c.submit_get_to(ns, [(key, (k * MIB, MIB, region.number))])
            for k in range(4):
                c.submit_put_from(ns, [(key_of("dying", i, k), (k * MIB, MIB, region.number))],
                                  ack=Ack.WRITTEN)
            c.close()
            region.map.close()
        daemon.wait_for_holdings(before)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert all(c.value(ns, k) == v for k, v in pairs)


def test_a_unregistration_is_answered_after_all_that_named_the_region(backend, make_daemon):
    daemon = make_daemon(backend).start()
    pairs = items("unregister", 16, MIB)
    with daemon.client() as c:
        ns = c.namespace("n", chunk_bytes=MIB)
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
        with region_of(c, size=16 * MIB) as region:
            for _ in range(5):
                c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
                number = region.number
                tags = [c.submit_get_to(ns, [(key, (i * MIB, MIB, number))], timeout_ms=20000)
                        for i, (key, _) in enumerate(pairs)]
                last = c.submit(Op.UNREGISTER, struct.pack("<II", number, 0))
                late = c.submit_get_to(ns, [(pairs[0][0], (0, MIB, number))])
                again = c.submit(Op.UNREGISTER, struct.pack("<II", number, 0))
                c.wait(last)
                assert all(tag in c._replies for tag in tags), "a get that names the region was answered later"
                for tag, (key, value), i in zip(tags, pairs, range(16)):
                    result, = c.get_results(c.wait(tag), 1, [0])
                    assert result.status == Status.OK
                    assert region.map[i * MIB:(i + 1) * MIB] == value
                assert c.get_results(c.wait(late), 1, [0])[0].status == Status.INVALID
                assert c.wait(again, check=False).status == Status.INVALID
                region.map[:] = GUARD * region.size
                result, = c.get_to(ns, [(pairs[0][0], (0, MIB, number))])
                assert result.status == Status.INVALID
                region.assert_guarded()
                fd = sealed_memfd(16 * MIB)
                region.map.close()
                region.map = mmap.mmap(fd, 16 * MIB)
                region.number = c.register(fd, 16 * MIB)
                os.close(fd)
        assert registered(daemon)[0] == 1


def test_a_stopping_daemon_answers_the_requests_it_has_read(daemon):
    pairs = items("stop", 8, MIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
        with region_of(c) as region:
            c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
            tags = [c.submit_get_to(ns, [(key, (i * MIB, MIB, region.number))])
                    for i, (key, _) in enumerate(pairs)]
            daemon.stop()
            with contextlib.suppress(kvwire.SessionEnded):
                for tag, (_, value), i in zip(tags, pairs, range(8)):
                    result, = c.get_results(c.wait(tag), 1, [0])
                    if result.status == Status.OK:
                        assert region.map[i * MIB:(i + 1) * MIB] == value
            wait_until(c.settled, "the memory of a daemon that has ended is settled")
    daemon.start()


CLIENT = BUILD / "tests" / "daemon" / "region-client"


def library(daemon, scenario):
    assert CLIENT.exists(), f"{CLIENT} is missing: build it"
    return harness.spawn([str(CLIENT), daemon.socket, scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate(timeout=120 * harness.slow())
    assert process.returncode == 0, f"exit status {process.returncode}: {out}"
    assert out.splitlines()[-1:] == ["ok"], out


def test_the_library_puts_and_gets_through_regions(backend, make_daemon):
    daemon = make_daemon(backend).start()
    finish(library(daemon, "roundtrip"))
    assert registered(daemon) == (0, 0)


def test_the_library_registers_again_after_a_restart(backend, make_daemon):
    daemon = make_daemon(backend).start()
    process = library(daemon, "restart")
    for kill in (False, True, True):
        assert process.stdout.readline() == "ready\n"
        assert registered(daemon) == (2, 3 * MIB)
        daemon.restart(kill=kill)
        process.stdin.write("go\n")
        process.stdin.flush()
    finish(process)


@pytest.mark.parametrize("how", ["kill", "stop-and-kill"])
def test_R17_the_library_says_when_lent_memory_is_settled(backend, make_daemon, how):
    daemon = make_daemon(backend, settings={"limits.wait": "60s"}).start()
    for round_ in range(4):
        process = library(daemon, "settled")
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(random.Random(round_).uniform(0, 0.05))  # any moment
        if how == "stop-and-kill":
            daemon.pause()
        daemon.kill()
        finish(process)
        daemon.start()
