# SPDX-License-Identifier: Apache-2.0
"""A client with a descriptor of a data file holds the lock of its inode, by a direct read into memory that it does not fill when the kernel
requests that. Here a userfaultfd delays it; a file system in user space could, too.

The kernel makes the daemon's writes to new places of the file wait for that read (SECURITY.md, "What is not promised").
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import struct
import threading

import pytest

from harness import KIB, get_all, items, put_all, wait_until
from kvwire import Ack, Status
from test_gds import STRANGER, needs_users, verified
from users import client_as

USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
API, REGISTER = 0xc018aa3f, 0xc020aa00


class Unfilled:
    """Memory whose pages never come, until it is released."""

    def __init__(self, size):
        if USERFAULTFD is None:
            pytest.skip("no number of userfaultfd for this machine")
        self.fd = ctypes.CDLL(None, use_errno=True).syscall(USERFAULTFD, os.O_CLOEXEC)
        if self.fd < 0:
            pytest.skip(f"no userfaultfd: {os.strerror(ctypes.get_errno())}")
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        fcntl.ioctl(self.fd, API, bytearray(struct.pack("<QQQ", 0xaa, 0, 0)))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        fcntl.ioctl(self.fd, REGISTER, bytearray(struct.pack("<QQQQ", address, size, 1, 0)))

    def release(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


@contextlib.contextmanager
def held(fd, offset):
    """Keeps a read of the file in flight until the block ends."""
    memory, ended = Unfilled(64 * KIB), []
    reader = threading.Thread(target=lambda: ended.append(os.preadv(fd, [memory.memory], offset)), daemon=True)
    reader.start()
    wait_until(lambda: open(f"/proc/self/task/{reader.native_id}/wchan").read().find("userfault") >= 0, "the read waits for its memory")
    try:
        yield memory
    finally:
        memory.release()
        reader.join(10)
        assert ended


def state(daemon):
    return daemon.status()["store"]["volumes"][0]


@needs_users
def test_R15_a_client_that_locks_a_data_file_costs_only_its_volume(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666", "io.gds": "on", "store.prewrite": "off", "io.hang": "1s"}).start()
    before, after = items("before", 4, 20 * KIB), items("after", 40, 20 * KIB)
    with daemon.client() as c, client_as(daemon, STRANGER) as stranger:
        ns = c.namespace("n")
        verified(c, ns, before)
        loan = stranger.borrow(stranger.namespace("n"), [before[0][0]])[0].loan
        fd = stranger.lent_file(loan.file)
        with held(fd, loan.offset) as memory:
            assert {r.status for r in put_all(c, ns, after, ack=Ack.ACCEPTED).values()} == {Status.OK}
            wait_until(lambda: state(daemon)["pending"] > 0 or state(daemon)["state"] != "up", "it is written to")
            wait_until(lambda: state(daemon)["state"] in ("hung", "up") and (state(daemon)["state"] == "hung" or
                       state(daemon)["pending"] == 0), "the volume is given up, or nothing waits for the lock")
            was = state(daemon)["state"]
            assert get_all(c, ns, [k for k, _ in after]) == dict(after)  # from memory
            memory.release()
        os.close(fd)
        wait_until(lambda: state(daemon)["pending"] == 0, "what waited for the lock is back")
        if was == "up":
            pytest.skip("this file system lets them write side by side")
        assert get_all(c, ns, [k for k, _ in after]) == dict(after)
        assert {r.status for r in c.get(ns, [before[1][0]])} == {Status.MISS}  # the chunk's volume is bypassed
    daemon.stop()
    daemon.start()
    with daemon.client() as c:
        found = get_all(c, c.namespace("n"), [k for k, _ in before + after])
        assert [found[k] for k, _ in before] == [v for _, v in before]
        assert all(found[k] in (None, v) for k, v in after)  # accepted, and perhaps not written
