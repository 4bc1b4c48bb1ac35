# SPDX-License-Identifier: Apache-2.0
"""Registered buffers: which memory may be registered (rules R2, R12), by which session, and how much of it (R10)."""

import fcntl
import os
import struct

import pytest

import harness
import kvwire
from buffers import ok, punch, refused, region_of, registered, sealed_memfd, touch
from harness import MIB, PAGE, key_of, wait_until
from kvwire import Ack, Op, Status


def test_R2_a_file_with_a_hole_is_refused(client):
    fd = os.memfd_create("hole", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MIB)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
    assert "hole" in refused(client, fd)
    touch(fd, MIB - PAGE)
    assert "hole" in refused(client, fd)  # the last page
    touch(fd, MIB)
    client.unregister(client.register(fd, MIB))  # the daemon may touch memory while it is registered
    punch(fd, 100 * PAGE, PAGE)
    assert "hole" in refused(client, fd)
    os.posix_fallocate(fd, 0, MIB)
    assert client.register(fd, 100 * PAGE) > 0
    os.close(fd)


@pytest.mark.parametrize("flags", [os.MFD_ALLOW_SEALING, 0])
def test_R2_a_memfd_need_not_be_sealed_and_is_judged_by_its_size_when_it_is_registered(client, flags):
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | flags)
    touch(fd, MIB)
    client.unregister(client.register(fd, MIB))  # the daemon may touch memory while it is registered
    os.ftruncate(fd, MIB - PAGE)
    assert "ends before" in refused(client, fd)
    os.ftruncate(fd, MIB)
    assert "hole" in refused(client, fd)
    touch(fd, MIB)
    assert client.register(fd, MIB) > 0
    os.close(fd)


def test_R2_descriptors_other_than_memory_are_refused(client, directory):
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
        refused(client, fd, size, offset, other=(Status.BUSY, Status.QUOTA))  # memory is charged before it is checked
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


def test_registered_memory_of_ended_sessions_leaves_no_trace(daemon):
    before = daemon.holdings_at_rest()
    for i in range(5):
        with daemon.client() as c:
            with region_of(c, size=MIB) as region:
                ok(c.put_from(c.namespace("n"), [(key_of("trace", i), region.write(0, b"t" * 9000))], ack=Ack.WRITTEN))
                if i % 2:
                    c.unregister(region.number)
    daemon.wait_for_holdings(before)
