# SPDX-License-Identifier: Apache-2.0
"""Registered buffers that share a mapping: memory that several handles of one user register is mapped and charged once.

Each handle nevertheless has its own number, range and end, and different users share nothing.
"""

import mmap
import os
import pathlib
import random
import signal
import struct

import pytest

import harness
import kvwire
from buffers import assert_well, backend, bystander, memory, ok, refused, registered, sealed_memfd  # noqa: F401
from harness import KIB, MIB, PAGE, items, key_of, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from test_tenants import ALICE, BOB
from users import client_as


def mappings_of(daemon, fd):
    """Returns how often the daemon has mapped the file."""
    inode = str(os.fstat(fd).st_ino)
    return [line.split()[4] for line in pathlib.Path(f"/proc/{daemon.pid}/maps").read_text().splitlines()].count(inode)


def shared_buffers(daemon):
    return daemon.metric("kvcache_registered_shared_buffers")


def test_R17_of_two_handles_one_closes_while_the_other_does_io_in_the_same_memory(backend, make_daemon):
    daemon = make_daemon(backend).start()
    pairs, size = items("share", 16, MIB), 16 * MIB
    with memory("unsealed", size) as fd, mmap.mmap(fd, size) as shared, daemon.client() as b:
        ns = b.namespace("n", chunk_bytes=MIB)
        harness.put_all(b, ns, pairs, ack=Ack.WRITTEN)
        second = b.register(fd, size)
        for how in ("unregister", "close", "unregister", "close"):
            a = daemon.client()
            first = a.register(fd, size)
            assert mappings_of(daemon, fd) == 1 and registered(daemon) == (2, size) and shared_buffers(daemon) == 1
            b.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
            tags = [b.submit_get_to(ns, [(key, (i * MIB, MIB, second))], timeout_ms=20000)
                    for i, (key, _) in enumerate(pairs)]
            if how == "unregister":
                a.unregister(first)
            a.close()
            for tag, (_, value), i in zip(tags, pairs, range(16)):
                ok(b.get_results(b.wait(tag), 1, [0]))
                assert shared[i * MIB:(i + 1) * MIB] == value
            wait_until(lambda: registered(daemon) == (1, size), "the first handle's buffer ends")
            assert mappings_of(daemon, fd) == 1 and shared_buffers(daemon) == 0
        b.unregister(second)
        assert mappings_of(daemon, fd) == 0 and registered(daemon) == (0, 0)


def test_a_killed_client_leaves_regions_that_another_shares(backend, make_daemon):
    daemon = make_daemon(backend).start()
    with memory("unlinked", MIB) as fd, mmap.mmap(fd, MIB) as shared, daemon.client() as stays:
        ns, key = stays.namespace("n"), key_of("stays")
        child = os.fork()
        if child == 0:
            dies = kvwire.Client(daemon.socket)
            dies.register(fd, MIB)
            dies.sock.setblocking(True)
            signal.pause()
        try:
            wait_until(lambda: registered(daemon) == (1, MIB), "the child has registered it")
            number = stays.register(fd, 64 * KIB, 128 * KIB)
            assert registered(daemon) == (2, MIB) and shared_buffers(daemon) == 1
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        wait_until(lambda: registered(daemon) == (1, MIB), "the child's buffer ends, the charge stays")
        shared[128 * KIB:128 * KIB + 5000] = value_of(key, 5000)
        ok(stays.put_from(ns, [(key, (0, 5000, number))], ack=Ack.WRITTEN))
        ok(stays.get_to(ns, [(key, (8192, 5000, number))]))
        assert shared[136 * KIB:136 * KIB + 5000] == value_of(key, 5000)
        # A handle must not name parts of the mapping outside its registered range.
        for at in (64 * KIB, 64 * KIB - 4999, (1 << 64) - 128 * KIB):
            assert stays.get_to(ns, [(key, (at, 5000, number))])[0].status == Status.INVALID
    wait_until(lambda: registered(daemon) == (0, 0), "the last one takes the charge with it")


def test_R2_a_file_that_was_cut_is_no_more_to_a_second_handle_than_to_the_first(backend, make_daemon):
    daemon = make_daemon(backend).start()
    other, other_ns, pairs = bystander(daemon)
    with other, memory("unsealed", 4 * MIB) as fd, daemon.client() as a, daemon.client() as b:
        ns = {c: c.namespace("n") for c in (a, b)}
        first = a.register(fd, 4 * MIB)
        os.ftruncate(fd, MIB)
        assert "ends before" in refused(b, fd, 4 * MIB)
        second = b.register(fd, MIB)
        assert registered(daemon) == (2, 4 * MIB)
        for c, number in ((a, first), (b, second)):
            key = key_of("there", number, c is a)
            ok(c.put_from(ns[c], [(key, (0, 64 * KIB, number))], ack=Ack.WRITTEN))
            put, = c.put_from(ns[c], [(key_of("gone", c is a), (2 * MIB, 64 * KIB, number))], ack=Ack.WRITTEN)
            assert put.status in (Status.INVALID, Status.FAILED)
        os.ftruncate(fd, 4 * MIB)
        assert "hole" in refused(b, fd, MIB)
        os.posix_fallocate(fd, 0, 8 * MIB)
        grown = b.register(fd, 8 * MIB)  # larger than the mapping, so it gets a mapping and a charge of its own
        assert registered(daemon) == (3, 12 * MIB) and mappings_of(daemon, fd) == 2
        b.unregister(grown)
        assert_well(other, other_ns, pairs)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it acts as several users")
def test_R10_two_users_never_share_a_mapping_of_one_file(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"}).start()
    fd = sealed_memfd(MIB)
    users = [client_as(daemon, uid) for uid in (ALICE, BOB, ALICE)]
    try:
        numbers = [c.register(fd, MIB) for c in users]
        assert registered(daemon) == (3, 2 * MIB) and shared_buffers(daemon) == 1 and mappings_of(daemon, fd) == 2
        users[0].unregister(numbers[0])
        assert registered(daemon) == (2, 2 * MIB)
        users[2].unregister(numbers[2])
        assert registered(daemon) == (1, MIB) and mappings_of(daemon, fd) == 1
    finally:
        for c in users:
            c.close()
        os.close(fd)


def test_R10_thousands_of_registrations_of_the_same_memory_take_one_mapping(make_daemon):
    daemon = make_daemon(settings={"limits.registered": "2MiB"}).start()
    fd, other = sealed_memfd(MIB), sealed_memfd(2 * MIB)
    clients = [daemon.client() for _ in range(40)]
    for c in clients:
        tags = [c.submit(Op.REGISTER, struct.pack("<QQ", i * PAGE if i else 0, MIB if i == 0 else PAGE), fds=[fd])
                for i in range(64)]
        assert [c.wait(tag).status for tag in tags] == [Status.OK] * 64
    assert registered(daemon) == (2560, MIB) and shared_buffers(daemon) == 2559 and mappings_of(daemon, fd) == 1
    with daemon.client() as c:
        reply = c.register(other, 2 * MIB, check=False)
        assert reply.status in (Status.QUOTA, Status.BUSY), "what is shared makes no room"
    for c in clients:
        c.close()
    wait_until(lambda: registered(daemon) == (0, 0), "regions end with their sessions")
    assert mappings_of(daemon, fd) == 0 and shared_buffers(daemon) == 0
    os.close(fd)
    os.close(other)


def test_handles_that_register_and_unregister_the_same_memory_at_once(backend, make_daemon):
    daemon = make_daemon(backend).start()
    size = 4 * MIB
    with memory("unsealed", size) as fd, mmap.mmap(fd, size) as shared:
        def work(number):
            rng = random.Random(number)
            with daemon.client() as c:
                ns, at = c.namespace("n"), number * MIB
                for i in range(40):
                    whole = rng.random() < 0.5
                    region = c.register(fd, size if whole else MIB, 0 if whole else at)
                    place = rng.randrange(8) * PAGE + (at if whole else 0)
                    key = key_of("at once", number, i)
                    value = value_of(key, 70000)
                    there = place + (0 if whole else at)
                    shared[there:there + len(value)] = value
                    ok(c.put_from(ns, [(key, (place, len(value), region))], ack=Ack.WRITTEN))
                    c.evict(ns, [key], Tier.MEMORY)
                    shared[there:there + len(value)] = bytes(len(value))
                    ok(c.get_to(ns, [(key, (place, len(value), region))]))
                    assert shared[there:there + len(value)] == value
                    c.unregister(region)
        harness.in_threads(4, work)
        wait_until(lambda: registered(daemon) == (0, 0), "all is given back")
        assert mappings_of(daemon, fd) == 0 and shared_buffers(daemon) == 0


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
