# SPDX-License-Identifier: Apache-2.0
"""Puts from a client's file on a disk (REGISTER with FILE), which cuFile writes: the daemon stores the bytes that it has read, whatever the
client does to its file before, meanwhile or afterwards."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import struct
import threading
import time

import pytest

import harness
import kvwire
from harness import items, key_of, KIB, MIB, PAGE, value_of, wait_until
from kvwire import Ack, Status
from test_gds import forget, needs_users, STRANGER
from test_tenants import ALICE
from users import client_as


def needs_disk(directory):
    """Skips the test unless `directory` is on a disk with ext4 or XFS: puts do not use files of other file systems."""
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        if not any(m[2] == name and m[m.index("-") + 1] in ("ext4", "xfs") for m in map(str.split, mounts)):
            pytest.skip("the folder for tests is not on ext4 or XFS: set KVCACHE_TEST_DIR")


@pytest.fixture
def disk(directory):
    """Provides a folder on a disk for files of puts."""
    needs_disk(directory)
    return directory


class PutFile:
    """A file made as a client with cuFile makes it, written without the page cache."""

    def __init__(self, folder, size, flags=os.O_DIRECT):
        self.size = size
        self.fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | flags, 0o600)
        os.posix_fallocate(self.fd, 0, size)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)

    def register(self, client, **how):
        self.number = client.register(self.fd, self.size, on_disk=True, **how)
        return self.number

    def write(self, at, data):
        size = (len(data) + PAGE - 1) & ~(PAGE - 1)
        with mmap.mmap(-1, size) as room:
            room[:len(data)] = data
            assert os.pwritev(self.fd, [room], at) == size
        return (at, len(data), self.number)


def daemon_of(make_daemon, leg=None, policy="auto", **settings):
    settings = {"io.gds_puts": policy, "store.prewrite": "off", **{k.replace("__", "."): v for k, v in settings.items()}}
    return make_daemon(leg, settings=settings) if leg else make_daemon(settings=settings)


def file_puts(daemon):
    return daemon.metric("kvcache_file_puts_total"), daemon.metric("kvcache_file_put_failures_total")


def laid_out(file, pairs, step):
    return [(k, file.write(i * step, v)) for i, (k, v) in enumerate(pairs)]


@pytest.mark.parametrize("ack", list(Ack))
def test_bytes_written_to_the_file_are_put(make_daemon, disk, ack):
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as c, PutFile(disk, 8 * MIB) as file:
        assert c.features & kvwire.FEATURE_FILES
        ns = c.namespace("n")
        file.register(c)
        pairs = [(key_of(n), value_of(key_of(n), n)) for n in (1, 4095, 4096, 4097, 100000, 2 * MIB)]
        places = laid_out(file, pairs, MIB)
        places[-1] = (pairs[-1][0], file.write(6 * MIB, pairs[-1][1]))
        assert [c.value(ns, k) for k, _ in pairs] == [None] * 6, "it is there before the put"
        assert {r.status for r in c.put_from(ns, places, ack=ack)} <= {Status.OK, Status.NOT_DURABLE}
        for _ in range(2):
            assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]
            if ack == Ack.ACCEPTED:
                break
            forget(c, ns, [k for k, _ in pairs])
        assert file_puts(daemon) == (6, 0)
        assert daemon.metric("kvcache_registered_files") == 1
        assert [r.status for r in c.put_from(ns, places)] == [Status.EXISTS] * 6
        assert file_puts(daemon) == (6, 0), "what is there was read again"
        c.unregister(file.number)
        assert daemon.metric("kvcache_registered_files") == 0
        put, = c.put_from(ns, [(key_of("late"), (0, 100, file.number))])
        assert put.status == Status.INVALID


def test_places_that_are_none_cost_their_key_alone(make_daemon, disk):
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as c, PutFile(disk, MIB) as file:
        ns = c.namespace("n")
        n = file.register(c)
        c.staging()
        good = file.write(0, b"good" * 1000)
        for i, place in enumerate([(1, 100, n), (4095, 100, n), (MIB, 1, n), (MIB - PAGE, PAGE + 1, n), (2**64 - PAGE, 2 * PAGE, n),
                                   (0, 0, n), [(0, 100, n)], [(0, 100, 0), (0, 100, n)]]):
            put, = c.put_from(ns, [(key_of("bad", i), place)])
            assert put.status == Status.INVALID, (place, put)
        got, = c.get_to(ns, [(key_of("bad", 0), (0, PAGE, n))])
        assert got.status in (Status.INVALID, Status.MISS)
        results = c.put_from(ns, [(key_of("a"), good), (key_of("b"), (1, 1, n)), (key_of("c"), (MIB - PAGE, PAGE, n))])
        assert [r.status for r in results] == [Status.OK, Status.INVALID, Status.OK]
        assert c.value(ns, key_of("a")) == b"good" * 1000
        got, = c.get_to(ns, [(key_of("a"), (0, 2 * PAGE, n))])
        assert got.status == Status.INVALID


def test_files_other_than_on_a_disk_are_refused(make_daemon, disk):
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as c, contextlib.ExitStack() as files:
        def fd(path, flags, size=MIB):
            files.callback(os.close, f := os.open(path, flags, 0o600))
            if size:
                os.ftruncate(f, size)
            return f

        memory = os.memfd_create("no disk")
        files.callback(os.close, memory)
        os.ftruncate(memory, MIB)
        tmp = os.O_TMPFILE | os.O_RDWR
        path = disk / "f"
        path.write_bytes(bytes(MIB))
        ends = os.pipe()
        for end in ends:
            files.callback(os.close, end)
        direct = fd(disk, tmp | os.O_DIRECT)
        for what, size, offset in [(memory, MIB, 0), (fd("/dev/shm", tmp), MIB, 0), (fd(disk, tmp), MIB, 0),
                                   (fd(path, os.O_RDONLY | os.O_DIRECT, 0), MIB, 0), (fd(disk, os.O_RDONLY, 0), MIB, 0),
                                   (fd("/proc/self/status", os.O_RDONLY, 0), MIB, 0), (fd("/dev/null", os.O_RDWR, 0), MIB, 0),
                                   (ends[0], MIB, 0), (fd(path, os.O_PATH, 0), MIB, 0),
                                   (direct, 2 * MIB, 0), (direct, MIB, PAGE), (direct, 100, 0), (direct, PAGE, 1),
                                   (direct, 2**63, 2**62)]:
            reply = c.register(what, size, offset, check=False, on_disk=True)
            assert isinstance(reply, kvwire.Reply) and reply.status == Status.INVALID and reply.body, reply
        assert daemon.metric("kvcache_registered_files") == 0
        c.register(direct, MIB, on_disk=True)
        c.register(direct, PAGE, PAGE, on_disk=True)
        assert daemon.metric("kvcache_registered_files") == 2
    wait_until(lambda: daemon.metric("kvcache_registered_files") == 0, "the files of the session to be closed")


def test_changes_to_the_file_after_the_put_have_no_effect(make_daemon, disk):
    """The client keeps the descriptor and may continue to write, but only to its own file."""
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as c, PutFile(disk, 4 * MIB) as file:
        ns = c.namespace("n")
        file.register(c)
        pairs = items("kept", 30, 100 * KIB)
        places = laid_out(file, pairs, 128 * KIB)
        assert {r.status for r in c.put_from(ns, places, ack=Ack.WRITTEN)} == {Status.OK}
        file.write(0, b"\xbb" * (4 * MIB))
        assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]
        forget(c, ns, [k for k, _ in pairs])
        os.ftruncate(file.fd, 0)
        assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]
        forget(c, ns, [k for k, _ in pairs])
        results = c.borrow(ns, [k for k, _ in pairs])  # verified by now, and lent: not from this file
        for loan in [r.loan for r in results if r.loan]:
            with contextlib.closing(os.fdopen(c.lent_file(loan.file), "rb")) as lent:
                assert os.fstat(lent.fileno()).st_ino != os.fstat(file.fd).st_ino
                assert not fcntl.fcntl(lent.fileno(), fcntl.F_GETFL) & os.O_RDWR
        assert any(r.loan for r in results)
    daemon.restart()
    with daemon.client() as c:
        ns = c.namespace("n")
        assert [c.value(ns, k) for k, _ in pairs] == [v for _, v in pairs]


def test_a_file_that_changes_while_it_is_read_gives_chunks_that_match_their_checksum(make_daemon, disk):
    """Concurrent changes make the stored bytes undefined, but every get reads the same bytes."""
    daemon = daemon_of(make_daemon).start()
    stop = threading.Event()
    with daemon.client() as c, PutFile(disk, 4 * MIB) as file:
        ns = c.namespace("n")
        file.register(c)
        file.write(0, b"\x00" * (4 * MIB))

        def torment():
            rng = random.Random(1)
            while not stop.is_set():
                file.write(rng.randrange(1024) * PAGE, bytes([rng.randrange(256)]) * PAGE)

        thread = threading.Thread(target=torment)
        thread.start()
        try:
            keys = [key_of("moving", i) for i in range(60)]
            for i, k in enumerate(keys):
                put, = c.put_from(ns, [(k, (i % 8 * 512 * KIB, 512 * KIB, file.number))], ack=Ack.WRITTEN)
                assert put.status == Status.OK
                first = c.value(ns, k)
                forget(c, ns, [k])
                assert first is not None and c.value(ns, k) == first
        finally:
            stop.set()
            thread.join()
        assert daemon.metric("kvcache_store_crc_failures_total") == 0


@pytest.mark.parametrize("keep", [0, 100, PAGE, MIB + 512])
def test_a_file_that_was_cut_costs_its_owner_alone(make_daemon, disk, keep):
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as other, daemon.client() as c, PutFile(disk, 4 * MIB) as file:
        ns, other_ns = c.namespace("n"), other.namespace("other")
        pairs = items("bystander", 5, 40 * KIB)
        harness.put_all(other, other_ns, pairs, ack=Ack.WRITTEN)
        file.register(c)
        os.ftruncate(file.fd, keep)
        for ack in Ack:
            put, = c.put_from(ns, [(key_of("cut", ack), (MIB, 300000, file.number))], ack=ack)
            assert put.status == Status.FAILED
            assert c.value(ns, key_of("cut", ack)) is None
        assert file_puts(daemon) == (0, 3)
        os.ftruncate(file.fd, 4 * MIB)
        place = file.write(MIB, b"again" * 1000)
        put, = c.put_from(ns, [(key_of("cut", Ack.WRITTEN), place)], ack=Ack.WRITTEN)
        assert put.status == Status.OK and c.value(ns, key_of("cut", Ack.WRITTEN)) == b"again" * 1000
        assert [other.value(other_ns, k) for k, _ in pairs] == [v for _, v in pairs]


# --- a file whose owner holds its lock ---

UFFD_API, UFFDIO_API, UFFDIO_REGISTER = 0xAA, 0xC018AA3F, 0xC020AA00


@contextlib.contextmanager
def locked(fd):
    """Holds the lock of the file's inode: a write that never gets its bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    uffd = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
    if uffd < 0 or os.uname().machine != "x86_64":
        pytest.skip("no userfaultfd here")
    room = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    fcntl.ioctl(uffd, UFFDIO_API, struct.pack("<QQQ", UFFD_API, 0, 0))
    fcntl.ioctl(uffd, UFFDIO_REGISTER, struct.pack("<QQQQ", address, PAGE, 1, 0))
    buffered = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    thread = threading.Thread(target=lambda: libc.pwrite(buffered, address, PAGE, 0))
    thread.start()
    try:
        def is_waiting():  # waits for the page: there is a fault to be read
            try:
                return len(os.read(uffd, 32)) == 32
            except BlockingIOError:
                return False

        wait_until(is_waiting, "the write to take the lock")
        yield
    finally:
        os.close(uffd)  # the page is an ordinary one from now on
        thread.join()
        os.close(buffered)


def test_R2_a_file_locked_by_its_owner_delays_no_client_for_long(make_daemon, disk):
    daemon = daemon_of(make_daemon).start()
    with daemon.client() as other, daemon.client() as c, PutFile(disk, MIB) as file, PutFile(disk, MIB) as others:
        ns, other_ns = c.namespace("n"), other.namespace("other")
        file.register(c)
        others.register(other)
        place = others.write(0, b"other" * 1000)
        file.write(0, b"mine" * 1000)
        with locked(file.fd):
            begin = time.monotonic()
            results = c.put_from(ns, [(key_of(i), (0, 4000, file.number)) for i in range(50)])
            took = time.monotonic() - begin
            assert {r.status for r in results} == {Status.FAILED}
            assert took < 25, f"50 puts from a locked file took {took:.1f} s"
            put, = other.put_from(other_ns, [(key_of("other"), place)], ack=Ack.WRITTEN)
            assert put.status == Status.OK
        put, = c.put_from(ns, [(key_of(0), (0, 4000, file.number))])
        assert put.status == Status.FAILED, "it is usable again without having been registered anew"
        file.register(c)
        put, = c.put_from(ns, [(key_of(0), (0, 4000, file.number))])
        assert put.status == Status.OK


# --- to whom, and how many ---

@needs_users
@pytest.mark.parametrize("gds, policy, to_root, to_admins, to_all", [
    ("auto", "off", False, False, False), ("auto", "auto", True, True, False), ("auto", "on", True, True, True),
    ("off", "on", False, False, False)])
def test_R9_files_are_taken_of_whom_io_gds_puts_names(make_daemon, disk, gds, policy, to_root, to_admins, to_all):
    daemon = daemon_of(make_daemon, policy=policy, listen__mode="0666", io__gds=gds)
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(f"access:\n  admin_users: [{ALICE}]\n")
    daemon.start()
    with PutFile(disk, MIB) as file:
        for uid, may in ((0, to_root), (ALICE, to_admins), (STRANGER, to_all)):
            with client_as(daemon, uid) as c:
                assert bool(c.features & kvwire.FEATURE_FILES) == may
                reply = c.register(file.fd, MIB, check=False, on_disk=True)
                if may:
                    c.unregister(reply)
                else:
                    assert reply.status == Status.DENIED and b"io.gds_puts" in reply.body


def test_by_default_no_file_is_taken(make_daemon, disk):
    with make_daemon().start().client() as c, PutFile(disk, MIB) as file:
        assert not c.features & kvwire.FEATURE_FILES
        assert c.register(file.fd, MIB, check=False, on_disk=True).status == Status.DENIED


@needs_users
def test_R10_one_user_does_not_take_all_places_for_files(make_daemon, disk):
    daemon = daemon_of(make_daemon, policy="on", listen__mode="0666").start()
    with PutFile(disk, MIB) as file, client_as(daemon, ALICE) as c, client_as(daemon, STRANGER) as other:
        replies = [c.register(file.fd, MIB, check=False, on_disk=True) for _ in range(60)]
        taken = [r for r in replies if not isinstance(r, kvwire.Reply)]
        assert len(taken) == 48  # of 64
        assert {r.status for r in replies if isinstance(r, kvwire.Reply)} <= {Status.QUOTA, Status.BUSY}
        assert daemon.metric('kvcache_resource_used{resource="files"}') == 48
        assert not isinstance(other.register(file.fd, MIB, check=False, on_disk=True), kvwire.Reply)
    wait_until(lambda: daemon.metric('kvcache_resource_used{resource="files"}') == 0, "the files to be given back")


# --- the end of a client, and of the daemon ---

def test_a_client_that_dies_before_its_put_leaves_nothing(make_daemon, disk):
    daemon = daemon_of(make_daemon).start()
    keys = [key_of("dead", i) for i in range(20)]
    before = daemon.fd_count()
    for i in range(20):
        pid = os.fork()
        if pid == 0:
            try:
                c, file = daemon.client(), PutFile(disk, 4 * MIB)
                ns = c.namespace("n")
                file.register(c)
                place = file.write(0, value_of(keys[i], MIB))
                if i % 2:  # sent, and dead before it is answered
                    c.submit_put_from(ns, [(keys[i], place)])
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    wait_until(lambda: daemon.metric("kvcache_registered_files") == 0, "the files to be closed")
    wait_until(lambda: daemon.fd_count() <= before, "the descriptors to be closed")
    with daemon.client() as c:
        ns = c.namespace("n")
        for k in keys:
            assert c.value(ns, k) in (None, value_of(k, MIB))
        assert [c.value(ns, k) for k in keys[::2]] == [None] * 10


def test_a_killed_daemon_keeps_exactly_the_answered_puts(make_daemon, disk):
    daemon = daemon_of(make_daemon).start()
    with PutFile(disk, 8 * MIB) as file:
        for round_ in range(5):
            with daemon.client() as c:
                ns = c.namespace("n")
                file.register(c)
                pairs = items(f"round {round_}", 12, 300 * KIB)
                places = laid_out(file, pairs, 512 * KIB)
                assert {r.status for r in c.put_from(ns, places[:6], ack=Ack.WRITTEN)} == {Status.OK}
                daemon.kill()
                file.write(0, bytes(8 * MIB))  # the file is the client's, whatever becomes of the daemon
            daemon.start()
            with daemon.client() as c:
                ns = c.namespace("n")
                assert [c.value(ns, k) for k, _ in pairs[:6]] == [v for _, v in pairs[:6]]
                assert [c.value(ns, k) for k, _ in pairs[6:]] == [None] * 6


def test_a_full_store_takes_them_as_any_put(make_daemon, disk):
    daemon = daemon_of(make_daemon, store__limit="64MiB", memory__pool="32MiB").start()
    with daemon.client() as c, PutFile(disk, 8 * MIB) as file:
        ns = c.namespace("n")
        file.register(c)
        for round_ in range(20):
            pairs = items(f"full {round_}", 8, 900 * KIB)
            places = laid_out(file, pairs, MIB)
            assert {r.status for r in c.put_from(ns, places, ack=Ack.WRITTEN)} <= {Status.OK, Status.NO_SPACE}
            assert c.value(ns, pairs[-1][0]) == pairs[-1][1]
        assert file_puts(daemon) == (160, 0)
