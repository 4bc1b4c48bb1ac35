# SPDX-License-Identifier: Apache-2.0
"""A client that truncates, punches or changes its registered buffers harms only itself (rule R2)."""

import contextlib
import ctypes
import mmap
import os
import random
import threading
import time

import pytest

import harness
import kvwire
from buffers import (assert_well, backend, bystander, huge_pages, huge_pages_now, memory, MFD_HUGETLB, ok, punch,
                     region_of, sealed_memfd)
from harness import KIB, MIB, PAGE, items, key_of, value_of, wait_until
from kvwire import Ack, Status, Tier


@pytest.mark.parametrize("kind", ["unsealed", "unlinked"])
def test_R2_a_file_that_was_cut_costs_its_owner_alone(backend, make_daemon, kind):
    daemon = make_daemon(backend).start()
    other, other_ns, pairs = bystander(daemon)
    with other, daemon.client() as c, memory(kind, 4 * MIB) as fd:
        ns = c.namespace("n")
        number = c.register(fd, 4 * MIB)
        key = key_of("before")
        ok(c.put_from(ns, [(key, (0, 100000, number))], ack=Ack.WRITTEN))
        for keep in (2 * MIB + 100, PAGE, 0):
            os.ftruncate(fd, keep)
            for at in (3 * MIB, 3 * MIB + 5):
                for ack in (Ack.ACCEPTED, Ack.WRITTEN):
                    for length in (5000, 64 * KIB, 300000):
                        put, = c.put_from(ns, [(key_of("cut", keep, at, ack, length), (at, length, number))], ack=ack)
                        assert put.status in (Status.INVALID, Status.FAILED), put
                        put, = c.put_from(ns, [(key_of("cut2", keep, at, ack, length),
                                                [(at, length - 10, number), (0, 10, number)])], ack=ack)
                        assert put.status in (Status.INVALID, Status.FAILED), put
                for tiers in (Tier.MEMORY, None):
                    if tiers:
                        c.evict(ns, [key], tiers)
                    got, = c.get_to(ns, [(key, (at, 100000, number))])
                    assert got.status in (Status.INVALID, Status.FAILED), got
                assert c.value(ns, key) == bytes(100000)
            for _, result in [(k, c.value(ns, key_of("cut", keep, at, a, n)))
                              for k in (0,) for at in (3 * MIB, 3 * MIB + 5) for a in (0, 1) for n in (5000, 64 * KIB)]:
                assert result is None, "bytes that were not there were stored"
        assert_well(other, other_ns, pairs)
        c.unregister(number)
        c.ping()


def test_R2_huge_pages_that_cannot_be_had_again_cost_their_owner_alone(backend, make_daemon):
    """A page punched out of a file on hugetlbfs may be unavailable later, because another process has taken it."""
    daemon = make_daemon(backend).start()
    other, other_ns, pairs = bystander(daemon)
    with huge_pages(4), other, daemon.client() as c, contextlib.ExitStack() as files:
        def lent(size):
            fd = sealed_memfd(size, flags=MFD_HUGETLB)
            files.callback(os.close, fd)
            return fd

        ns = c.namespace("n")
        fd = lent(6 * MIB)
        number = c.register(fd, 6 * MIB)
        key = key_of("before")
        value = value_of(key, 100000)
        page = files.enter_context(mmap.mmap(fd, 2 * MIB))
        page[:len(value)] = value
        ok(c.put_from(ns, [(key, (0, len(value), number))], ack=Ack.WRITTEN))
        punch(fd, 2 * MIB, 4 * MIB)
        lent(2 * MIB * huge_pages_now()[1])
        for at in (2 * MIB, 2 * MIB + 5, 5 * MIB):
            for ack in (Ack.ACCEPTED, Ack.WRITTEN):
                for length in (5000, 64 * KIB, 300000):
                    lost = key_of("lost", at, ack, length)
                    put, = c.put_from(ns, [(lost, (at, length, number))], ack=ack)
                    assert put.status in (Status.INVALID, Status.FAILED), put
                    assert c.value(ns, lost) is None, "bytes that were not there were stored"
            for tiers in (Tier.MEMORY, None):
                if tiers:
                    c.evict(ns, [key], tiers)
                got, = c.get_to(ns, [(key, (at, len(value), number))])
                assert got.status in (Status.INVALID, Status.FAILED), got
        # The page that is still there works as before.
        ok(c.get_to(ns, [(key, (MIB, len(value), number))]))
        assert page[MIB:MIB + len(value)] == value and c.value(ns, key) == value
        assert_well(other, other_ns, pairs)
        c.unregister(number)
        c.ping()


def torment(rng, seconds, harm, work):
    """Does `work` again and again while a thread does `harm`."""
    stop = threading.Event()
    failed = []

    def run():
        try:
            while not stop.is_set():
                harm(rng)
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + seconds
    rounds = 0
    try:
        while time.monotonic() < until or rounds < 5:
            work(rounds)
            rounds += 1
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    return rounds


def put_and_get(c, ns, number, prefix, allowed):
    """Requests of all kinds for the region; each has to be answered, and with one of these statuses."""
    def work(round_):
        rng = random.Random(f"{prefix}{round_}")
        tags = []
        for i in range(24):
            length = rng.choice([3000, 64 * KIB, 300000])
            at = rng.choice([0, PAGE, 77, MIB, 3 * MIB])
            key = key_of(prefix, rng.randrange(60), length)
            if rng.random() < 0.5:
                how = [(at, length, number)] if rng.random() < 0.3 else (at, length, number)
                tags.append((c.submit_put_from(ns, [(key, how)], ack=rng.choice(list(Ack)), timeout_ms=20000),
                             c.put_results))
            else:
                tags.append((c.submit_get_to(ns, [(key, (at, length, number))], timeout_ms=20000),
                             lambda reply, n: c.get_results(reply, n, [0])))
        for tag, results in tags:
            result, = results(c.wait(tag), 1)
            assert result.status in allowed, result
    return work


ANY = {Status.OK, Status.MISS, Status.EXISTS, Status.BUSY, Status.INVALID, Status.FAILED, Status.NO_SPACE,
       Status.NOT_DURABLE}


def assert_sound(c, ns, keys):
    """Checks that a hit is a hit again, and has the checksum that the daemon reports, whatever is stored under the keys."""
    hits = 0
    for key in keys:
        once = c.value(ns, key)
        c.evict(ns, [key], Tier.MEMORY)
        again = c.value(ns, key)
        if once is not None and again is not None:
            assert once == again, "the same chunk, two contents"
        if again is not None:
            hits += 1
            stat, = c.stat(ns, [key])
            if len(again) <= 64 * KIB and stat.status == Status.OK:
                assert kvwire.crc32c(again) == stat.crc32c
    return hits


@pytest.mark.parametrize("kind", ["unsealed", "unlinked"])
def test_R2_truncating_the_file_meanwhile_ends_no_other_session(backend, make_daemon, kind):
    daemon = make_daemon(backend, settings={"limits.wait": "10s"}).start()
    other, other_ns, pairs = bystander(daemon)
    size = 4 * MIB
    with other, daemon.client() as c, memory(kind, size) as fd:
        ns = c.namespace("n")
        number = c.register(fd, size)

        def harm(rng):
            os.ftruncate(fd, rng.choice([0, PAGE, MIB, 3 * MIB + 100]))
            os.ftruncate(fd, size)
            if rng.random() < 0.5:
                os.posix_fallocate(fd, 0, size)

        torment(random.Random(1), 2, harm, put_and_get(c, ns, number, "torn", ANY))
        assert_well(other, other_ns, pairs)
        assert_sound(c, ns, [key_of("torn", i, n) for i in range(60) for n in (3000, 64 * KIB)])
        c.unregister(number)


def test_R2_punching_holes_meanwhile_harms_only_the_puncher(backend, make_daemon):
    daemon = make_daemon(backend, settings={"limits.wait": "10s"}).start()
    other, other_ns, pairs = bystander(daemon)
    size = 4 * MIB
    with other, daemon.client() as c:
        ns = c.namespace("n")
        fd = sealed_memfd(size)
        number = c.register(fd, size)

        def harm(rng):
            punch(fd, rng.randrange(size // PAGE) * PAGE, rng.choice([PAGE, 64 * KIB, MIB]))
            if rng.random() < 0.3:
                os.posix_fallocate(fd, 0, size)
                os.pwrite(fd, rng.randbytes(PAGE), rng.randrange(size // PAGE) * PAGE)

        torment(random.Random(2), 2, harm, put_and_get(c, ns, number, "holes", ANY))
        assert_well(other, other_ns, pairs)
        assert_sound(c, ns, [key_of("holes", i, n) for i in range(60) for n in (3000, 64 * KIB)])
        # The puncher may get anything; other clients get bytes that were right when they were put, or nothing.
        with daemon.client() as late:
            assert_sound(late, late.namespace("n"), [key_of("holes", i, 300000) for i in range(60)])
        os.close(fd)


def test_R2_changing_bytes_during_a_direct_put_is_never_a_wrong_hit(backend, make_daemon):
    daemon = make_daemon(backend, settings={"limits.wait": "10s"}).start()
    size = MIB
    with daemon.client() as c:
        ns = c.namespace("n", chunk_bytes=64 * KIB)
        fd = sealed_memfd(size)
        number = c.register(fd, size)
        shared = mmap.mmap(fd, size)
        keys = []

        def harm(rng):
            for _ in range(100):
                shared[rng.randrange(16) * 64 * KIB + rng.randrange(64 * KIB)] = rng.randrange(256)

        def work(round_):
            mine = [key_of("changing", round_, i) for i in range(16)]
            keys.extend(mine)
            tags = [c.submit_put_from(ns, [(k, (i * 64 * KIB, 64 * KIB, number))], ack=Ack.WRITTEN, timeout_ms=20000)
                    for i, k in enumerate(mine)]
            for tag in tags:
                result, = c.put_results(c.wait(tag), 1)
                assert result.stored or result.status in (Status.BUSY, Status.NO_SPACE), result

        torment(random.Random(3), 1, harm, work)
        assert c.stat(ns, keys[:1])[0].status in (Status.OK, Status.MISS)
        assert_sound(c, ns, keys[:200])
        shared.close()
        os.close(fd)


def test_R2_changing_bytes_during_a_direct_get_is_no_evidence_against_the_chunk(backend, make_daemon):
    daemon = make_daemon(backend).start()
    pairs = items("innocent", 16, 64 * KIB)
    with daemon.client() as c, region_of(c, size=MIB) as region:
        ns = c.namespace("n", chunk_bytes=64 * KIB)
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
        keys = [k for k, _ in pairs]
        rooms = [(k, (i * 64 * KIB, 64 * KIB, region.number)) for i, k in enumerate(keys)]
        fallbacks = 0
        memory = ctypes.c_char.from_buffer(region.map)

        def harm(rng):
            """Changes the memory without the interpreter's lock, so that most bytes change while the daemon compares them."""
            ctypes.memset(ctypes.byref(memory), rng.randrange(256), MIB)

        def work(_):
            nonlocal fallbacks
            c.evict(ns, keys, Tier.MEMORY)
            ok(c.get_to(ns, rooms))
            metrics = harness.parse_metrics(c.report(kvwire.Report.METRICS))
            harness.remember_moved(metrics)
            fallbacks = metrics["kvcache_direct_fallbacks_total"]
            assert metrics["kvcache_store_crc_failures_total"] == 0

        wait_until(lambda: torment(random.Random(4), 0.2, harm, work) and fallbacks, "a read into memory that changes is done again", 60)
        del memory
        c.evict(ns, keys, Tier.MEMORY)
        ok(c.get_to(ns, rooms))
        assert region.map[:] == b"".join(v for _, v in pairs)
