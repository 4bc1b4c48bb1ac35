# SPDX-License-Identifier: Apache-2.0
"""Registered buffers, keys in several pieces: put together, taken apart, and transferred without a copy where they are aligned."""

import os
import random

import pytest

import harness
import kvwire
from buffers import assert_well, backend, both, bystander, GUARD, memory, ok, region_of
from harness import KIB, MIB, PAGE, key_of, value_of
from kvwire import Ack, Flag, Op, Status, Tier


def direct_bytes(daemon):
    metrics = daemon.metrics()
    return metrics["kvcache_put_direct_bytes_total"], metrics["kvcache_get_direct_bytes_total"]


def test_pieces_are_put_together_and_taken_apart(both):
    rng = random.Random(7)
    ns = both.namespace("n")
    both.staging(MIB)
    with region_of(both) as region, region_of(both, size=MIB) as other:
        for number, size in enumerate([1, 2, 4096, 70001, 300000, 2 * MIB - 3] * 3):
            key = key_of("pieces", number)
            value = value_of(key, size)

            def split():
                """Returns random pieces in order; their places lie apart from each other in two regions and the staging area."""
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


@pytest.mark.parametrize("apart", ["one region", "two regions"])
def test_aligned_pieces_travel_between_memory_and_disk_without_a_copy(backend, make_daemon, apart):
    """Pieces are transferred directly if each except the last consists of whole pages, such as a page of K and one of V."""
    daemon = make_daemon(backend).start()
    rng = random.Random(apart)
    with daemon.client() as c, region_of(c) as k, region_of(c) as other:
        v = other if apart == "two regions" else k
        ns = c.namespace("n")

        def places(sizes, start):
            """Returns a place for each piece, alternately in K's and V's memory, apart from each other."""
            at, found = [start, start + 4 * MIB], []
            for i, size in enumerate(sizes):
                found.append(((k, v)[i % 2], at[i % 2], size))
                at[i % 2] += size // PAGE * PAGE + PAGE * rng.randrange(1, 3)
            return found

        def trip(sizes, name, where=None):
            """Puts and gets a chunk and compares the bytes. Returns how many bytes were transferred directly in each direction."""
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
        # Unaligned pieces are copied, with the right bytes.
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

        # An invalid piece fails only its own key.
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
        # The invalid piece is a key's only one, its first, its last, or in between, with valid keys before and after it.
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

        # Gets the same bytes back into places that several keys share.
        region.clear()
        gets = [kvwire.GET_ENTRY.pack(k, 0, 0, first, 100 * n, n) for k, (first, n) in zip(keys, spans)]
        reply = both.wait(both.submit_batch(Op.GET, ns, gets, flags=Flag.INTO, pieces=packed))
        assert [r.status for r in both.get_results(reply, len(keys), [0] * len(keys))] == expected
        for k in range(30):
            assert k == 7 or region.map[5000 * k:5000 * k + 100] == value[100 * k:100 * (k + 1)]
        region.assert_guarded(*pieces[:7], *pieces[8:])


def pieced(op, first=0, n=2, length=30, pieces=((0, 10, 0), (10, 20, 0)), flags=None, claim=None):
    """Returns a PUT or GET of one key with pieces, valid or almost valid."""
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
    {"pieces": ((0, 30, 0), (10, 0, 0))}, {"pieces": ((0, 10, 0), (10, 20, 0), (30, 0, 0))},  # no entry names the third piece
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
