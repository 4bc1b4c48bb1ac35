# SPDX-License-Identifier: Apache-2.0
"""A disk that fails on command: a FUSE file system with one file, "disk", which backs a loop device.

    python3 fusedisk.py MOUNT-POINT BACKING-FILE SWITCH

Passes reads and writes to the backing file. While the file SWITCH exists, the operations that it names ("read", "write", or both) fail with
EIO. If it names "hang", reads and writes wait until it is removed. If it names "flush", a process that closes the file waits until this
program ends.

The program implements the kernel's protocol over /dev/fuse, so it needs no library, but root. It runs in a process of its own, because a user
of the file system waits for it in the kernel. Prints "ready" when mounted; SIGTERM unmounts and ends it.
"""

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 1, 2, 3, 4, 14, 15, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 27, 28, 29, 34, 36, 38, 42
ROOT, DISK = 1, 2
LATER = "later"
MAX_WRITE = 1 << 20
DIRECT_IO = 1                     # flag of an open file: no page cache between the loop device and us
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22


def attributes(node, size):
    mode = stat.S_IFDIR | 0o700 if node == ROOT else stat.S_IFREG | 0o600
    return struct.pack("<6Q10I", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Disk:
    def __init__(self, backing, switch):
        self.fd = os.open(backing, os.O_RDWR)
        self.size = os.fstat(self.fd).st_size
        self.switch = switch

    def fails(self, what):
        try:
            with open(self.switch) as f:
                return what in f.read().split()
        except FileNotFoundError:
            return False

    def answer(self, op, node, body):
        """Returns the reply; an int is an errno, None means no reply."""
        size = self.size if node == DISK else 0
        if op == INIT:
            return struct.pack("<IIIIHHIIHHIIHHHHHHHHHHHH", 7, 31, 1 << 20, BIG_WRITES | MAX_PAGES, 16, 12, MAX_WRITE, 1,
                               MAX_WRITE // 4096, 0, 0, *([0] * 13))[:64]
        if op == LOOKUP:
            if node != ROOT or body.rstrip(b"\0") != b"disk":
                return errno.ENOENT
            return struct.pack("<QQQQII", DISK, 0, 3600, 3600, 0, 0) + attributes(DISK, self.size)
        if op in (GETATTR, SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + attributes(node, size)
        if op in (OPEN, OPENDIR):
            return struct.pack("<QIi", 0, DIRECT_IO if op == OPEN else 0, 0)
        if op in (READ, WRITE, FSYNC) and self.fails("hang"):
            return LATER
        if op == READ:
            offset, count = struct.unpack_from("<QI", body, 8)
            return errno.EIO if self.fails("read") else os.pread(self.fd, count, offset)
        if op == WRITE:
            offset, count = struct.unpack_from("<QI", body, 8)
            if self.fails("write"):
                return errno.EIO
            return struct.pack("<II", os.pwrite(self.fd, body[40:40 + count], offset), 0)
        if op == FSYNC:
            return errno.EIO if self.fails("write") else b""
        if op == FLUSH and self.fails("flush"):
            return None
        if op == STATFS:
            return struct.pack("<5Q4I24x", self.size // 4096, 0, 0, 2, 0, 4096, 255, 4096, 0)
        if op in (FLUSH, RELEASE, RELEASEDIR, READDIR, ACCESS, DESTROY):
            return b""
        if op in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        return errno.ENOSYS


def reply(fd, disk, request):
    """Answers a request. Returns False if the disk answers it later."""
    _, op, unique, node = struct.unpack_from("<IIQQ", request)
    answer = disk.answer(op, node, request[40:])
    if answer is LATER:
        return False
    if answer is None:
        return True
    error, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
    try:
        os.write(fd, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
    except OSError as e:
        if e.errno != errno.ENOENT:  # the asking process has ended
            raise
    return True


def main(mount_point, backing, switch):
    disk = Disk(backing, switch)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"fusedisk", os.fsencode(mount_point), b"fuse", ctypes.c_ulong(0), options.encode()) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")

    def end(*_):
        libc.umount2(os.fsencode(mount_point), 2)  # lazily: a process that still uses it gets errors
        os._exit(0)

    # A signal that arrives just before select() must end it, too.
    signalled, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    waiting = []
    while True:
        if not select.select([fd, signalled], [], [], 0.05 if waiting else None)[0]:
            waiting = [request for request in waiting if not reply(fd, disk, request)]
            continue
        try:
            request = os.read(fd, MAX_WRITE + 65536)
        except OSError as e:
            if e.errno == errno.ENODEV:  # the file system was unmounted
                return
            if e.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                continue
            raise
        if not reply(fd, disk, request):
            waiting.append(request)


if __name__ == "__main__":
    main(*sys.argv[1:])
