# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of registered buffers: memory of every kind that may be registered, and regions of it."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
import tempfile

import pytest

import harness
import kvwire
from harness import MIB, items
from kvwire import Ack, Status

GUARD = b"\xee"
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
MFD_HUGETLB = 4
SHM = "/dev/shm"
_libc = ctypes.CDLL(None, use_errno=True)


def punch(fd, offset, length):
    if _libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def touch(fd, size):
    """Writes to the whole file, because SEEK_HOLE treats bytes that are only allocated as a hole."""
    for at in range(0, size, MIB):
        os.pwrite(fd, bytes(min(MIB, size - at)), at)


def sealed_memfd(size, seals=kvwire.F_SEAL_SHRINK, flags=0):
    fd = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    if flags & MFD_HUGETLB:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:  # a program that takes no turns has taken them meanwhile
            os.close(fd)
            if e.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            pytest.skip(f"no huge pages of the machine's are free: {e}")
    else:
        touch(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def shm_file(size, unlink=True):
    """Makes a file without holes in /dev/shm. Returns (descriptor, path)."""
    if not os.access(SHM, os.W_OK) or harness.filesystem_of(SHM) != "tmpfs":
        pytest.skip(f"{SHM} is no tmpfs to write to")
    fd, path = tempfile.mkstemp(prefix="kvcache-test-", dir=SHM)
    if unlink:
        os.unlink(path)
    touch(fd, size)
    return fd, path


def huge_pages_now():
    """Returns (how many huge pages are in use, how many are free)."""
    meminfo = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    if meminfo.get("Hugepagesize", "").split() != ["2048", "kB"]:
        pytest.skip("huge pages are not of 2 MiB here")
    total, free = int(meminfo["HugePages_Total"]), int(meminfo["HugePages_Free"])
    return total - free, free


@contextlib.contextmanager
def huge_pages(count):
    """Makes a number of huge pages free, by reserving missing ones for the time if that is permitted.

    Huge pages belong to the machine. Tests that use them (also unit/test-region.c) take turns, with a lock on the file that has their
    number. A turn ends when all pages taken in it are free again, because a daemon releases a session's buffers a moment after the session
    has ended."""
    path = pathlib.Path("/proc/sys/vm/nr_hugepages")
    with open(path, encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        before, (used, free) = turn.read(), huge_pages_now()
        reserves = free < count
        if reserves:
            try:
                path.write_text(str(used + count))
            except OSError as e:
                pytest.skip(f"no huge pages of the machine's are free: {e}")
        try:
            if huge_pages_now()[1] < count:
                pytest.skip("the machine has no memory for huge pages")
            yield
            harness.wait_until(lambda: huge_pages_now()[0] <= used, what="huge pages are free again")
        finally:
            if reserves:
                path.write_text(before)


@contextlib.contextmanager
def memory(kind, size):
    """Makes memory of this kind, which may be registered. Returns its descriptor."""
    with contextlib.ExitStack() as turn:
        path = None
        if kind == "memfd":
            fd = sealed_memfd(size)
        elif kind == "unsealed":
            fd = sealed_memfd(size, seals=0)
        elif kind == "hugetlbfs":
            turn.enter_context(huge_pages(size // (2 * MIB)))
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
        """Checks that all bytes outside these (offset, length, ...) are unchanged."""
        end = 0
        for at, length, *_ in sorted(places):
            assert self.map[end:at] == GUARD * max(at - end, 0), f"something was written before {at}"
            end = max(end, at + length)
        assert self.map[end:] == GUARD * (self.size - end), f"something was written after {end}"

    def clear(self):
        self.map[:] = GUARD * self.size


def mapped_by_huge_pages(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("ShmemPmdMapped:"))


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
    """Provides a session with a daemon, for each I/O backend."""
    with make_daemon(backend).start().client() as c:
        yield c


def registered(daemon):
    sessions = daemon.status()["sessions"]
    return sessions["registered_buffers"], sessions["registered_bytes"]


def ok(results):
    assert [r.status for r in results] == [Status.OK] * len(results), results
    return results


def refused(client, fd, size=MIB, offset=0, other=()):
    reply = client.register(fd, size, offset, check=False)
    assert isinstance(reply, kvwire.Reply), f"it was taken, as region {reply}"
    assert reply.status in (Status.INVALID, *other) and reply.body, reply
    client.ping()
    return reply.body.decode()


def bystander(daemon):
    """Returns a session, its namespace, and chunks that must not change."""
    c = daemon.client(name="bystander")
    ns = c.namespace("bystander")
    pairs = items("bystander", 10, 40000)
    harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
    return c, ns, pairs


def assert_well(c, ns, pairs):
    assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]
