# SPDX-License-Identifier: Apache-2.0
"""Registered buffers (proto/README.md 6.18, 6.19): memory of the client's that the daemon moves bytes to and from by itself.

What is got is what was put, whatever the size, the place and the file; what is not as it must be is refused (rule R2);
and a client that cuts, punches or changes what it has lent harms only itself.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import random
import signal
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import harness
import kvwire
from harness import BUILD, KIB, MIB, PAGE, items, key_of, value_of, wait_until
from kvwire import Ack, Flag, Op, Status, Tier

SIZES = [1, 4095, 4096, 4097, 64 * KIB + 1, 2 * MIB - 3]
GUARD = b"\xee"
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
MFD_HUGETLB = 4
SHM = "/dev/shm"
_libc = ctypes.CDLL(None, use_errno=True)


def punch(fd, offset, length):
    if _libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def touch(fd, size):
    """All of it is there: what is only allocated is a hole to SEEK_HOLE."""
    for at in range(0, size, MIB):
        os.pwrite(fd, bytes(min(MIB, size - at)), at)


def sealed_memfd(size, seals=kvwire.F_SEAL_SHRINK, flags=0):
    fd = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    if flags & MFD_HUGETLB:
        os.posix_fallocate(fd, 0, size)
    else:
        touch(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def shm_file(size, unlink=True):
    """(descriptor, path) of a file in /dev/shm, all of it there."""
    if not os.access(SHM, os.W_OK) or harness.filesystem_of(SHM) != "tmpfs":
        pytest.skip(f"{SHM} is no tmpfs to write to")
    fd, path = tempfile.mkstemp(prefix="kvcache-test-", dir=SHM)
    if unlink:
        os.unlink(path)
    touch(fd, size)
    return fd, path


def free_huge_pages():
    meminfo = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    if meminfo.get("Hugepagesize", "").split() != ["2048", "kB"]:
        pytest.skip("huge pages are not of 2 MiB here")
    return int(meminfo["HugePages_Free"])


@contextlib.contextmanager
def huge_pages(count):
    """So many huge pages are free. Those that are not are reserved for as long, where we may."""
    reserved = pathlib.Path("/proc/sys/vm/nr_hugepages")
    before, missing = int(reserved.read_text()), count - free_huge_pages()
    try:
        if missing > 0:
            try:
                reserved.write_text(str(before + missing))
            except OSError as e:
                pytest.skip(f"no huge pages of the machine's are free: {e}")
            if free_huge_pages() < count:
                pytest.skip("the machine has no memory for huge pages")
        yield
    finally:
        if missing > 0:
            reserved.write_text(str(before))


@contextlib.contextmanager
def memory(kind, size):
    """A descriptor of memory of this kind that may be registered."""
    path = None
    if kind == "memfd":
        fd = sealed_memfd(size)
    elif kind == "unsealed":
        fd = sealed_memfd(size, seals=0)
    elif kind == "hugetlbfs":
        with huge_pages(size // (2 * MIB)):
            fd = sealed_memfd(size, flags=MFD_HUGETLB)
    else:
        fd, path = shm_file(size, unlink=kind == "unlinked")
    try:
        yield fd
    finally:
        os.close(fd)
        if kind == "shm":
            os.unlink(path)


class Region:
    """Memory, mapped here and registered by a session."""

    def __init__(self, client, fd, size, offset=0):
        self.client, self.size = client, size
        self.map = mmap.mmap(fd, size, offset=offset)
        self.map[:] = GUARD * size
        self.number = client.register(fd, size, offset)

    def write(self, at, data):
        self.map[at:at + len(data)] = data
        return (at, len(data), self.number)

    def room(self, at, length):
        self.map[at:at + length] = b"\xdd" * length
        return (at, length, self.number)

    def assert_guarded(self, *places):
        """Is all that lies in none of these (offset, length, ...) as it was?"""
        end = 0
        for at, length, *_ in sorted(places):
            assert self.map[end:at] == GUARD * max(at - end, 0), f"something was written before {at}"
            end = max(end, at + length)
        assert self.map[end:] == GUARD * (self.size - end), f"something was written after {end}"

    def clear(self):
        self.map[:] = GUARD * self.size


@contextlib.contextmanager
def region_of(client, kind="memfd", size=8 * MIB):
    with memory(kind, size) as fd:
        region = Region(client, fd, size)
        try:
            yield region
        finally:
            region.map.close()


@pytest.fixture(params=harness.LEGS[:2], ids=lambda leg: leg.name)
def backend(request):
    reason = request.param.why_not()
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.fixture
def both(backend, make_daemon):
    """A session with a daemon, with each I/O backend in turn."""
    with make_daemon(backend).start().client() as c:
        yield c


def registered(daemon):
    sessions = daemon.status()["sessions"]
    return sessions["registered_buffers"], sessions["registered_bytes"]


def ok(results):
    assert [r.status for r in results] == [Status.OK] * len(results), results
    return results


# --- what the rings do not register ---

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


# --- what is got is what was put ---

@pytest.mark.parametrize("kind", ["memfd", "unsealed", "shm", "unlinked", "hugetlbfs"])
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


def test_pieces_are_put_together_and_taken_apart(both):
    rng = random.Random(7)
    ns = both.namespace("n")
    both.staging(MIB)
    with region_of(both) as region, region_of(both, size=MIB) as other:
        for number, size in enumerate([1, 2, 4096, 70001, 300000, 2 * MIB - 3] * 3):
            key = key_of("pieces", number)
            value = value_of(key, size)

            def split():
                """Random pieces, in order; places apart from each other in two regions and the staging area."""
                cuts = sorted(rng.sample(range(1, size), min(size - 1, rng.choice([0, 1, 5, 40]))))
                next_free = [0, 0, 0]
                pieces = []
                for start, end in zip([0] + cuts, cuts + [size]):
                    which = rng.choice([0, 0, 1, 2] if end - start < 10000 else [0])
                    at = next_free[which] + rng.choice([0, 1, 63, 4096])
                    if which and at + end - start > MIB:
                        which, at = 0, next_free[0]
                    pieces.append((which, at, start, end))
                    next_free[which] = at + end - start
                return pieces

            numbers = [region.number, other.number, 0]
            maps = [region.map, other.map, both.staging_map]
            pieces = split()
            for which, at, start, end in pieces:
                maps[which][at:at + end - start] = value[start:end]
            wire = [(at, end - start, numbers[which]) for which, at, start, end in pieces]
            ok(both.put_from(ns, [(key, wire)], ack=rng.choice([Ack.ACCEPTED, Ack.WRITTEN])))
            assert both.value(ns, key) == value
            both.evict(ns, [key], Tier.MEMORY)
            for _ in range(2):  # from disk, then from memory
                region.clear()
                other.clear()
                pieces = split()
                wire = [(at, end - start, numbers[which]) for which, at, start, end in pieces]
                ok(both.get_to(ns, [(key, wire)]))
                for which, at, start, end in pieces:
                    assert maps[which][at:at + end - start] == value[start:end]
                region.assert_guarded(*[(at, end - start) for which, at, start, end in pieces if which == 0])
                other.assert_guarded(*[(at, end - start) for which, at, start, end in pieces if which == 1])


def direct_bytes(daemon):
    metrics = daemon.metrics()
    return metrics["kvcache_put_direct_bytes_total"], metrics["kvcache_get_direct_bytes_total"]


@pytest.mark.parametrize("apart", ["one region", "two regions"])
def test_aligned_pieces_travel_between_memory_and_disk_without_a_copy(backend, make_daemon, apart):
    """A page of K and one of V, and whatever else is aligned: each piece but the last in whole pages."""
    daemon = make_daemon(backend).start()
    rng = random.Random(apart)
    with daemon.client() as c, region_of(c) as k, region_of(c) as other:
        v = other if apart == "two regions" else k
        ns = c.namespace("n")

        def places(sizes, start):
            """One place for each piece, in K's memory and V's in turn, apart from each other."""
            at, found = [start, start + 4 * MIB], []
            for i, size in enumerate(sizes):
                found.append(((k, v)[i % 2], at[i % 2], size))
                at[i % 2] += size // PAGE * PAGE + PAGE * rng.randrange(1, 3)
            return found

        def trip(sizes, name, where=None):
            """How many bytes went direct, both ways; what is got is what was put."""
            where = where or (lambda start: places(sizes, start))
            key, length, before = key_of("kv", apart, name), sum(sizes), direct_bytes(daemon)
            value, wire = value_of(key, length), []
            for region, at, size in where(0):
                wire.append(region.write(at, value[:size]))
                value = value[size:]
            ok(c.put_from(ns, [(key, wire)], ack=Ack.WRITTEN))
            value = value_of(key, length)
            assert c.value(ns, key) == value
            c.evict(ns, [key], Tier.MEMORY)
            k.clear()
            v.clear()
            there = where(2 * MIB)
            ok(c.get_to(ns, [(key, [region.room(at, size) for region, at, size in there])]))
            assert b"".join(region.map[at:at + size] for region, at, size in there) == value, name
            for region in {k, v}:
                region.assert_guarded(*[(at, size) for r, at, size in there if r is region])
            return tuple(b - a for a, b in zip(before, direct_bytes(daemon)))

        for sizes in ([PAGE] * 2, [64 * KIB] * 2, [PAGE, 1], [64 * KIB, 5000], [128 * KIB, PAGE, 4095], [PAGE] * 64,
                      [300 * PAGE, 7 * PAGE, 3 * PAGE + 100], [70000 // PAGE * PAGE]):
            assert trip(sizes, repr(sizes)) == (sum(sizes),) * 2, f"{sizes} did not go direct"
        for n in range(20):
            sizes = [PAGE * rng.randrange(1, 40) for _ in range(rng.randrange(1, 12))] + [rng.randrange(1, 3 * PAGE)]
            assert trip(sizes, f"random {n}") == (sum(sizes),) * 2, f"{sizes} did not go direct"
        # What is not aligned is copied, and right all the same.
        assert trip([PAGE + 512, PAGE], "a piece that ends amid a page") == (0, 0)
        assert trip([PAGE] * 65, "more pieces than go at once") == (0, 0)
        assert trip([PAGE, PAGE], "a piece that begins amid a page",
                    lambda start: [(k, start, PAGE), (k, start + 3 * PAGE + 512, PAGE)]) == (0, 0)


def test_a_room_in_pieces_may_be_larger_than_the_chunk(daemon):
    with daemon.client() as c, region_of(c) as region:
        ns = c.namespace("n")
        for length in (1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 1, 3 * PAGE):
            key = key_of("larger", length)
            ok(c.put(ns, [(key, value_of(key, length))], ack=Ack.WRITTEN))
            c.evict(ns, [key], Tier.MEMORY)
            region.clear()
            before = direct_bytes(daemon)
            ok(c.get_to(ns, [(key, [(0, PAGE, region.number), (MIB, PAGE, region.number), (2 * MIB, 3 * PAGE, region.number)])]))
            got = region.map[:PAGE] + region.map[MIB:MIB + PAGE] + region.map[2 * MIB:2 * MIB + 3 * PAGE]
            assert got[:length] == value_of(key, length) and got[length:] == GUARD * (5 * PAGE - length)
            assert direct_bytes(daemon)[1] - before[1] == length


def test_pieces_in_the_staging_area_are_copied(daemon):
    with daemon.client() as c, region_of(c) as region:
        ns, key, before = c.namespace("n"), key_of("staged"), direct_bytes(daemon)
        c.staging(MIB)
        value = value_of(key, 2 * PAGE)
        c.staging_map[:PAGE] = value[:PAGE]
        wire = [(0, PAGE, 0), region.write(0, value[PAGE:])]
        ok(c.put_from(ns, [(key, wire), (key_of("again"), wire)], ack=Ack.WRITTEN))
        assert direct_bytes(daemon) == before and c.value(ns, key) == value


@pytest.mark.parametrize("kind", ["unsealed", "unlinked"])
def test_R2_pieces_of_a_file_that_was_cut_cost_their_owner_alone(backend, make_daemon, kind):
    daemon = make_daemon(backend).start()
    other, other_ns, pairs = bystander(daemon)
    with other, daemon.client() as c, memory(kind, 4 * MIB) as fd:
        ns, key = c.namespace("n"), key_of("before")
        number = c.register(fd, 4 * MIB)
        ok(c.put_from(ns, [(key, [(0, 64 * KIB, number), (MIB, 64 * KIB, number)])], ack=Ack.WRITTEN))
        os.ftruncate(fd, 2 * MIB)
        for n, pieces in enumerate(([(0, 64 * KIB, number), (3 * MIB, 64 * KIB, number)],
                                    [(3 * MIB, 64 * KIB, number), (0, 64 * KIB, number)],
                                    [(2 * MIB - 32 * KIB, 64 * KIB, number), (0, 64 * KIB, number)],
                                    [(0, 128 * KIB - PAGE, number), (3 * MIB, 4096, number)])):
            put, = c.put_from(ns, [(key_of("cut", n), pieces)], ack=Ack.WRITTEN)
            assert put.status in (Status.INVALID, Status.FAILED), put
            assert c.value(ns, key_of("cut", n)) is None
            c.evict(ns, [key], Tier.MEMORY)
            got, = c.get_to(ns, [(key, pieces)])
            assert got.status in (Status.INVALID, Status.FAILED), got
        assert c.value(ns, key) == bytes(128 * KIB)
        assert_well(other, other_ns, pairs)
        c.ping()


def test_many_keys_of_many_pieces_and_pieces_that_are_no_good(both):
    ns = both.namespace("n")
    with region_of(both) as region:
        groups = []
        for i in range(100):
            key = key_of("group", i)
            value = value_of(key, 3000)
            groups.append((key, [region.write(i * 30000 + 700 * k, value[100 * k:100 * (k + 1)]) for k in range(30)]))
        ok(both.put_from(ns, groups))
        assert all(both.value(ns, k) == value_of(k, 3000) for k, _ in groups)

        # One bad piece is its key's affair.
        key = groups[0][0]
        bad = [[(region.size - 10, 11, region.number)], [(0, 10, 63)], [(0, 10, 0)], [(0, 10, 0xffffffff)],
               [(0, 5, region.number), (1 << 63, 5, region.number)]]
        fresh = [(key_of("fresh", i), pieces) for i, pieces in enumerate(bad)] + [(key_of("good"), groups[0][1])]
        results = both.put_from(ns, fresh)
        assert [r.status for r in results] == [Status.INVALID] * len(bad) + [Status.OK]
        results = both.get_to(ns, [(key, [(region.size - 10, 3000, region.number)]), (key, groups[1][1]),
                                   (key, groups[1][1][:-1])])
        assert [r.status for r in results] == [Status.INVALID, Status.OK, Status.TOO_LARGE]


def test_keys_that_share_pieces_each_have_all_of_theirs(both):
    ns = both.namespace("n")
    with region_of(both) as region:
        value = value_of(key_of("shared"), 3000)
        pieces = [region.write(5000 * k, value[100 * k:100 * (k + 1)]) for k in range(30)]
        pieces[7] = (region.size - 10, 100, region.number)  # not the client's
        # The bad piece is a key's only one, its first, its last, and in between; before and after it come good keys.
        spans = [(0, 7), (8, 22), (0, 8), (7, 1), (0, 30), (6, 3), (7, 23), (0, 7), (3, 2), (20, 10), (6, 2), (29, 1),
                 (0, 1)]
        keys = [key_of("sharer", i) for i in range(len(spans))]
        good = [not first <= 7 < first + n for first, n in spans]
        expected = [Status.OK if g else Status.INVALID for g in good]
        packed = b"".join(kvwire.PIECE.pack(*p) for p in pieces)
        puts = [kvwire.PUT_ENTRY.pack(k, first, 100 * n, n, 0) for k, (first, n) in zip(keys, spans)]
        reply = both.wait(both.submit_batch(Op.PUT, ns, puts, pieces=packed))
        assert [r.status for r in both.put_results(reply, len(keys))] == expected
        for k, g, (first, n) in zip(keys, good, spans):
            assert both.value(ns, k) == (value[100 * first:100 * (first + n)] if g else None)

        # And back, to rooms that several keys share, with the same bytes for them.
        region.clear()
        gets = [kvwire.GET_ENTRY.pack(k, 0, 0, first, 100 * n, n) for k, (first, n) in zip(keys, spans)]
        reply = both.wait(both.submit_batch(Op.GET, ns, gets, flags=Flag.INTO, pieces=packed))
        assert [r.status for r in both.get_results(reply, len(keys), [0] * len(keys))] == expected
        for k in range(30):
            assert k == 7 or region.map[5000 * k:5000 * k + 100] == value[100 * k:100 * (k + 1)]
        region.assert_guarded(*pieces[:7], *pieces[8:])


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
            harness.MOVED.update(name for name, moved in daemon_metrics().items() if moved)
        ok(both.put_from(ns, [(key, region.write(PAGE, value))], ack=Ack.WRITTEN))
        assert daemon_metrics()["kvcache_put_direct_bytes_total"] == 64 * KIB
        both.evict(ns, [key], Tier.MEMORY)
        result, = ok(both.get_to(ns, [(key, region.room(MIB, 64 * KIB))]))
        assert region.map[MIB:MIB + 64 * KIB] == value and result.tier == Tier.DISK
        metrics = daemon_metrics()
        assert metrics["kvcache_get_direct_bytes_total"] == 64 * KIB
        harness.MOVED.update(name for name, moved in metrics.items() if moved)


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


# --- what is taken and what is not (rule R2) ---

def refused(client, fd, size=MIB, offset=0, other=()):
    reply = client.register(fd, size, offset, check=False)
    assert isinstance(reply, kvwire.Reply), f"it was taken, as region {reply}"
    assert reply.status in (Status.INVALID, *other) and reply.body, reply
    client.ping()
    return reply.body.decode()


def test_R2_a_file_with_a_hole_is_refused(client):
    fd = os.memfd_create("hole", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MIB)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
    assert "hole" in refused(client, fd)
    touch(fd, MIB - PAGE)
    assert "hole" in refused(client, fd)  # the last page
    touch(fd, MIB)
    client.unregister(client.register(fd, MIB))  # as long as it is registered the daemon may touch it
    punch(fd, 100 * PAGE, PAGE)
    assert "hole" in refused(client, fd)
    os.posix_fallocate(fd, 0, MIB)
    assert client.register(fd, 100 * PAGE) > 0
    os.close(fd)


@pytest.mark.parametrize("flags", [os.MFD_ALLOW_SEALING, 0])
def test_R2_a_memfd_need_not_be_sealed_and_is_judged_by_its_size_when_it_is_registered(client, flags):
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | flags)
    touch(fd, MIB)
    client.unregister(client.register(fd, MIB))  # as long as it is registered the daemon may touch it
    os.ftruncate(fd, MIB - PAGE)
    assert "ends before" in refused(client, fd)
    os.ftruncate(fd, MIB)
    assert "hole" in refused(client, fd)
    touch(fd, MIB)
    assert client.register(fd, MIB) > 0
    os.close(fd)


def test_R2_what_is_not_memory_is_refused(client, directory):
    with open(directory / "file", "w+b") as file:
        file.write(bytes(MIB))
        file.flush()
        if harness.filesystem_of(directory) != "tmpfs":
            refused(client, file.fileno())
    one, other = os.pipe()
    refused(client, one)
    refused(client, client.sock.fileno())
    for path in ("/dev/null", "/dev/zero", "/proc/self/status", "/proc/self/mem", str(directory)):
        fd = os.open(path, os.O_RDONLY if path in ("/proc/self/status", str(directory)) else os.O_RDWR)
        refused(client, fd)
        os.close(fd)
    fd = os.open(directory, os.O_PATH)
    refused(client, fd)
    for fd in (fd, one, other):
        os.close(fd)


def test_R2_memory_that_cannot_be_written_is_refused(client):
    fd = sealed_memfd(MIB)
    readonly = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    refused(client, readonly)
    writeonly = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
    refused(client, writeonly)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_FUTURE_WRITE)
    refused(client, fd)
    for fd in (fd, readonly, writeonly):
        os.close(fd)


def test_R2_a_stretch_that_is_not_in_the_file_is_refused(client):
    fd = sealed_memfd(MIB)
    for offset, size in ((0, MIB + PAGE), (MIB, PAGE), (MIB - PAGE, 2 * PAGE), (1 << 62, PAGE), (0, 1 << 62),
                         ((1 << 63) - PAGE, PAGE), (1, PAGE), (0, PAGE + 1), (512, PAGE)):
        refused(client, fd, size, offset, other=(Status.BUSY, Status.QUOTA))  # it is charged before it is looked at
    assert client.register(fd, PAGE, offset=MIB - PAGE) > 0
    os.close(fd)


@pytest.mark.parametrize("op, body, fds", [
    (Op.REGISTER, struct.pack("<QQ", 0, PAGE), 0), (Op.REGISTER, struct.pack("<QQ", 0, PAGE), 2),
    (Op.REGISTER, struct.pack("<QQ", 0, PAGE), 5), (Op.REGISTER, struct.pack("<QQ", 0, 0), 1),
    (Op.REGISTER, struct.pack("<QQ", (1 << 64) - 1, PAGE), 1), (Op.REGISTER, bytes(8), 1),
    (Op.UNREGISTER, struct.pack("<II", 1, 0), 1), (Op.UNREGISTER, struct.pack("<II", 1, 1), 0), (Op.UNREGISTER, b"", 0),
])
def test_R12_descriptors_come_as_they_must_or_the_session_ends(daemon, op, body, fds):
    before = daemon.fd_count()
    with daemon.client() as c:
        fd = sealed_memfd(PAGE)
        c.sock.setblocking(True)
        c.sock.sendmsg([kvwire.HEADER.pack(16 + len(body), op, 0, 1) + body],
                       [(kvwire.socket.SOL_SOCKET, kvwire.socket.SCM_RIGHTS, struct.pack(f"{fds}i", *[fd] * fds))]
                       if fds else [])
        c.sock.setblocking(False)
        os.close(fd)
        with pytest.raises(kvwire.SessionEnded):
            c.receive()
    wait_until(lambda: daemon.fd_count() == before, "what came is closed again")


def pieced(op, first=0, n=2, length=30, pieces=((0, 10, 0), (10, 20, 0)), flags=None, claim=None):
    """A PUT or GET of one key with pieces, or what is nearly one."""
    key = key_of("pieced")
    entry = kvwire.PUT_ENTRY.pack(key, first, length, n, 0) if op == Op.PUT else \
        kvwire.GET_ENTRY.pack(key, 0, 0, first, length, n)
    head = kvwire.BATCH.pack(1, 1, 0, 0, 0, 0, len(pieces) if claim is None else claim, kvwire.ROOT)
    if flags is None:
        flags = Flag.PIECES | (Flag.INTO if op == Op.GET else 0)
    return harness.frame(op, head + entry + b"".join(kvwire.PIECE.pack(*p) for p in pieces), flags)


NO_PIECES = [
    {"n": 3}, {"n": 0, "length": 0}, {"first": 1}, {"first": 2, "n": 1}, {"first": (1 << 64) - 1}, {"n": 0xffffffff},
    {"length": 29}, {"length": 31}, {"length": 0}, {"pieces": ()}, {"claim": 1}, {"claim": 3}, {"claim": 0},
    {"pieces": ((0, 30, 0), (10, 0, 0))}, {"pieces": ((0, 10, 0), (10, 20, 0), (30, 0, 0))},  # one that no entry names
    {"flags": 0}, {"flags": Flag.INTO}, {"flags": Flag.PIECES | 128},
    {"pieces": ((0, 0xffffffff, 0), (10, 31, 0)), "length": 30},
]


@pytest.mark.parametrize("op", [Op.PUT, Op.GET])
def test_R12_pieces_that_do_not_fit_their_message_end_the_session(daemon, client, op):
    for how in NO_PIECES + ([{"flags": Flag.PIECES}] if op == Op.GET else []):
        with daemon.client() as c:
            c.namespace("n")
            c.staging(PAGE)
            c.send(pieced(op))
            assert c.receive().status == Status.OK
            c.send(pieced(op, **how))
            with pytest.raises(kvwire.SessionEnded):
                pytest.fail(f"{how}: answered {c.receive()}")
        client.ping()


def test_a_region_is_its_sessions_alone(daemon, client):
    ns = client.namespace("n")
    with daemon.client() as other, region_of(client) as region:
        key = key_of("mine")
        ok(client.put_from(ns, [(key, region.write(0, b"x" * 5000))]))
        theirs = other.namespace("n")
        assert other.get_to(theirs, [(key, (0, 5000, region.number))])[0].status == Status.INVALID
        assert other.put_from(theirs, [(key_of("b"), (0, 5000, region.number))])[0].status == Status.INVALID
        assert other.unregister(region.number, check=False).status == Status.INVALID
        for number in (0, 65, 1 << 31, 0xffffffff):
            assert client.unregister(number, check=False).status == Status.INVALID
        ok(client.get_to(ns, [(key, (MIB, 5000, region.number))]))


def test_the_same_memory_may_be_lent_by_several_sessions(daemon):
    fd = sealed_memfd(MIB)
    key = key_of("twice")
    with daemon.client() as a, daemon.client() as b, mmap.mmap(fd, MIB) as shared:
        numbers = a.register(fd, MIB), a.register(fd, MIB), b.register(fd, MIB)
        assert numbers[0] != numbers[1]
        assert registered(daemon) == (3, MIB), "what is lent again is charged again"
        shared[:5000] = value_of(key, 5000)
        ok(a.put_from(a.namespace("n"), [(key, (0, 5000, numbers[0]))]))
        ok(b.get_to(b.namespace("n"), [(key, (10000, 5000, numbers[2]))]))
        assert shared[10000:15000] == value_of(key, 5000)
        a.unregister(numbers[0])
        ok(a.get_to(a.namespace("n"), [(key, (20000, 5000, numbers[1]))]))
    os.close(fd)
    wait_until(lambda: registered(daemon) == (0, 0), "regions end with their sessions")


# --- limits (rules R2, R10) ---

@pytest.mark.parametrize("setting", ["limits.registered", "limits.uid_registered"])
def test_R10_registered_memory_is_charged_in_full_and_given_back(make_daemon, setting):
    daemon = make_daemon(settings={setting: "2MiB"}).start()
    fd = sealed_memfd(4 * MIB)
    with daemon.client() as c:
        first = c.register(fd, MIB)
        second = c.register(fd, MIB, MIB)
        reply = c.register(fd, PAGE, 2 * MIB, check=False)
        assert isinstance(reply, kvwire.Reply) and reply.status in (Status.QUOTA, Status.BUSY), reply
        with daemon.client() as other:
            reply = other.register(fd, 4 * MIB, check=False)
            assert isinstance(reply, kvwire.Reply) and reply.status in (Status.QUOTA, Status.BUSY), reply
        c.unregister(first)
        third = c.register(fd, MIB, 3 * MIB)
        assert registered(daemon) == (2, 2 * MIB)
        c.unregister(second)
        c.unregister(third)
        assert registered(daemon) == (0, 0)
        assert c.register(fd, 2 * MIB) > 0
    wait_until(lambda: registered(daemon) == (0, 0), "regions end with their session")
    os.close(fd)


def test_a_session_has_64_regions_and_no_more(daemon, client):
    fd = sealed_memfd(MIB)
    numbers = [client.register(fd, PAGE, i * PAGE) for i in range(64)]
    assert len(set(numbers)) == 64 and 0 not in numbers
    refused(client, fd, PAGE)
    client.unregister(numbers[10])
    assert client.register(fd, PAGE) > 0
    os.close(fd)


def test_what_sessions_lend_comes_and_goes_without_a_trace(daemon):
    before = daemon.holdings_at_rest()
    for i in range(5):
        with daemon.client() as c:
            with region_of(c, size=MIB) as region:
                ok(c.put_from(c.namespace("n"), [(key_of("trace", i), region.write(0, b"t" * 9000))], ack=Ack.WRITTEN))
                if i % 2:
                    c.unregister(region.number)
    daemon.wait_for_holdings(before)


# --- a client that cuts, punches and changes what it has lent (rule R2) ---

def bystander(daemon):
    """A session, its namespace, and chunks that must stay what they are."""
    c = daemon.client(name="bystander")
    ns = c.namespace("bystander")
    pairs = items("bystander", 10, 40000)
    harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
    return c, ns, pairs


def assert_well(c, ns, pairs):
    assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]


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
    """What was punched out of a file on hugetlbfs is a page that another may have taken since."""
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
        lent(2 * MIB * free_huge_pages())
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
        # The page that is still there does as ever.
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
    """Whatever is stored under them: a hit is a hit again, and has the checksum that the daemon says it has."""
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
def test_R2_cutting_the_file_amid_it_ends_nobody(backend, make_daemon, kind):
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


def test_R2_holes_amid_it_harm_their_maker_alone(backend, make_daemon):
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
        # What the puncher gets is its own affair; others read what was right when it was put, or nothing.
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

        def harm(rng):
            for _ in range(100):
                region.map[rng.randrange(MIB)] = rng.randrange(256)

        def work(_):
            nonlocal fallbacks
            c.evict(ns, keys, Tier.MEMORY)
            ok(c.get_to(ns, rooms))
            metrics = harness.parse_metrics(c.report(kvwire.Report.METRICS))
            harness.MOVED.update(name for name, moved in metrics.items() if moved)
            fallbacks = metrics["kvcache_direct_fallbacks_total"]
            assert metrics["kvcache_store_crc_failures_total"] == 0

        until = time.monotonic() + 20 * harness.slow()
        while fallbacks == 0 and time.monotonic() < until:
            torment(random.Random(4), 0.2, harm, work)
        assert fallbacks > 0, "no read into memory that changes was done again"
        c.evict(ns, keys, Tier.MEMORY)
        ok(c.get_to(ns, rooms))
        assert region.map[:] == b"".join(v for _, v in pairs)


# --- ends ---

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


def test_a_daemon_that_is_stopped_answers_what_it_has_read_and_ends(daemon):
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


# --- the library, against a real daemon ---

CLIENT = BUILD / "tests" / "daemon" / "region-client"


def library(daemon, scenario):
    assert CLIENT.exists(), f"{CLIENT} is missing: build it"
    return subprocess.Popen([str(CLIENT), daemon.socket, scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
            os.kill(daemon.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
        daemon.kill()
        finish(process)
        daemon.start()
