# SPDX-License-Identifier: Apache-2.0
"""A client of kvcache-daemon in plain Python, written from proto/README.md alone.

The client uses nothing of the project's C code, and thus proves that the page is sufficient. Section numbers refer to that page. It is
strict, because it is for tests: it checks every reply against the tables, and raises ProtocolError for anything else.

One Client is one session. Blocking calls (put, get, ...) send one request and wait for its reply. submit() and wait(), on which they are
built, allow several requests in flight; send() sends any bytes, for tests of invalid messages.

This file has the session: the socket, messages, the handshake. The other parts of a Client are in kvwire_messages.py (one message each) and
kvwire_batches.py (keys), its formats in kvwire_format.py, the lookup index in kvwire_lookup.py, and the pool index in kvwire_pool_index.py.
"""

import array
import fcntl
import itertools
import mmap
import os
import select
import socket
import time

from kvwire_batches import Batches
from kvwire_format import *  # noqa: F403 - these are names of kvwire
from kvwire_lookup import *  # noqa: F403
from kvwire_messages import Messages
from kvwire_pool_index import *  # noqa: F403


class Client(Messages, Batches):
    """One session, over the socket at `path` or the connected socket `sock`. Sends HELLO unless `greet` is false."""

    def __init__(self, path=None, *, sock=None, name="kvwire", timeout=30.0, greet=True):
        self.timeout = timeout
        self.pool = self.staging_map = None
        self.pool_fd = self.liveness_fd = -1
        self.staging_bytes = 0
        self.version = self.instance = None
        self._tags = itertools.count(1)
        self._waiting = {}  # tag -> op
        self._replies = {}  # tag -> Reply that was not taken yet
        if sock is None:
            path = path or os.environ.get("KVCACHE_SOCKET") or DEFAULT_SOCKET
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            try:
                sock.connect(path)
            except OSError:
                sock.close()
                raise
        sock.setblocking(False)
        self.sock = sock
        if greet:
            try:
                self.hello(name)
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Ends the session, all leases with it. Unmaps the staging area: always safe (section 10)."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        for mapping in (self.pool, self.staging_map):
            if mapping is not None:
                mapping.close()
        self.pool = self.staging_map = None
        for fd in (self.pool_fd, self.liveness_fd):
            if fd >= 0:
                os.close(fd)
        self.pool_fd = self.liveness_fd = -1
        for reply in self._replies.values():
            close_all(reply.fds)
        self._replies.clear()

    def shutdown(self):
        """Closes the writing side: the same as closing, as far as the daemon is concerned (section 9)."""
        self.sock.shutdown(socket.SHUT_WR)

    # --- messages (section 3) ---

    def _wait_for(self, readable, deadline):
        events = select.POLLIN if readable else select.POLLOUT
        poll = select.poll()
        poll.register(self.sock, events)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                if time.monotonic() >= deadline:
                    raise ReplyTimeout(f"nothing for {self.timeout} s")
                continue
            return

    def send(self, message, fds=()):
        """Sends any bytes as one message. Checks nothing and expects no reply."""
        deadline = time.monotonic() + self.timeout
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                sent = self.sock.sendmsg([message], control, socket.MSG_NOSIGNAL)
                break
            except BlockingIOError:
                self._wait_for(False, deadline)
            except (BrokenPipeError, ConnectionResetError) as e:
                raise SessionEnded(str(e)) from e
        if sent != len(message):
            raise ProtocolError(f"sent {sent} of {len(message)} bytes")

    def receive(self, timeout=None):
        """Returns the next reply to any request. Raises SessionEnded at the end of the stream."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                data, control, flags, _ = self.sock.recvmsg(
                    MAX_MESSAGE, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                self._wait_for(True, deadline)
            except ConnectionResetError as e:
                raise SessionEnded(str(e)) from e
        fds = array.array("i")
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
        try:
            if not data:
                raise SessionEnded("the daemon closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("a message longer, or with more descriptors, than allowed")
            return self._parse(data, list(fds))
        except WireError:
            close_all(fds)
            raise

    def _parse(self, data, fds):
        if len(data) < REPLY_HEAD.size:
            raise ProtocolError(f"a reply of {len(data)} bytes")
        length, op, flags, tag, status, count, value, value64 = REPLY_HEAD.unpack_from(data)
        if length != len(data) or flags != 0 or not op & REPLY:
            raise ProtocolError(f"a reply with len {length} of {len(data)}, flags {flags:#x}, op {op:#x}")
        try:
            op = Op(op & ~REPLY)
        except ValueError as e:
            raise ProtocolError(f"a reply to an op {op:#x}") from e
        status = Status(status)
        body = data[REPLY_HEAD.size:]
        if status != Status.OK and (count != 0 or fds or len(body) > 1024 or b"\0" in body):
            raise ProtocolError(f"{op.name}: {status.name} with results, descriptors or a bad text")
        return Reply(op, tag, status, count, value, value64, body, fds)

    def submit(self, op, body=b"", flags=0, tag=None, fds=()):
        """Sends one request. Returns its tag, for wait()."""
        if tag is None:
            tag = next(self._tags)
        self._waiting.setdefault(tag, []).append(op)
        try:
            self.send(HEADER.pack(HEADER.size + len(body), op, flags, tag) + body, fds)
        except WireError:
            self._waiting[tag].remove(op)
            raise
        return tag

    def wait(self, tag, check=True):
        """Returns the reply to this request, and keeps others that arrive before it. Raises Refused if its status is not OK."""
        deadline = time.monotonic() + self.timeout
        while tag not in self._replies:
            reply = self.receive(max(deadline - time.monotonic(), 0.001))
            if reply.op == Op.HELLO and reply.tag == REFUSAL_TAG and reply.tag not in self._waiting:
                raise SessionEnded(f"refused: {reply.status.name}: {reply.body.decode()}")
            ops = self._waiting.get(reply.tag)
            if not ops or reply.op not in ops or reply.tag in self._replies:
                close_all(reply.fds)
                raise ProtocolError(f"an unexpected reply: {reply.op.name}, tag {reply.tag}")
            ops.remove(reply.op)
            self._replies[reply.tag] = reply
        reply = self._replies.pop(tag)
        if not self._waiting[tag]:
            del self._waiting[tag]
        if check and reply.status != Status.OK:
            raise Refused(reply.op, reply.status, reply.body.decode("utf-8", "replace"))
        return reply

    def answered(self, tag):
        """Returns whether its reply arrives before that to a PING sent now."""
        self.ping()
        return tag in self._replies

    def call(self, op, body=b"", flags=0, check=True, n_fds=0, fds=()):
        reply = self.wait(self.submit(op, body, flags, fds=fds), check)
        if reply.status == Status.OK and len(reply.fds) != n_fds:
            close_all(reply.fds)
            raise ProtocolError(f"{op.name}: {len(reply.fds)} descriptors instead of {n_fds}")
        return reply

    # --- handshake (section 4) ---

    def hello(self, name="kvwire", versions=(1, 1)):
        reply = self.call(Op.HELLO, HELLO.pack(MAGIC, *versions, 0, name.encode("ascii")), n_fds=2)
        self.pool_fd, self.liveness_fd = reply.fds
        if reply.count != 1 or len(reply.body) < HELLO_RESULT.size:
            raise ProtocolError("HELLO: a reply without its result")
        (self.version, self.max_keys, self.max_inflight, self.max_message, self.spin_us, self.pool_bytes, self.max_chunk,
         self.staging_max, self.features, self.instance) = HELLO_RESULT.unpack_from(reply.body)
        if not versions[0] <= self.version <= versions[1]:
            raise ProtocolError(f"HELLO: version {self.version} is none of {versions}")
        self._map_pool()

    def _map_pool(self):
        seals = fcntl.fcntl(self.pool_fd, fcntl.F_GET_SEALS)
        wanted = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE
        kept = os.fstatvfs(self.pool_fd).f_flag & os.ST_RDONLY and os.fstat(self.pool_fd).st_nlink == 0
        if seals & wanted != wanted and not kept:
            raise ProtocolError(f"the pool's seals are {seals:#x}, and it is not on a read-only mount")
        if os.fstat(self.pool_fd).st_size < self.pool_bytes:
            raise ProtocolError("the pool is smaller than it is said to be")
        self.pool = mmap.mmap(self.pool_fd, self.pool_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def pool_read(self, offset, length):
        if offset + length > self.pool_bytes:
            raise ProtocolError(f"{length} bytes at {offset} are not within the pool")
        return self.pool[offset:offset + length]

    # --- the end (section 10) ---

    def settled(self):
        """Returns whether, after SessionEnded, all I/O of that daemon is over, so that staging memory may be reused."""
        try:
            fcntl.flock(self.liveness_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.liveness_fd, fcntl.LOCK_UN)
        return True

    # Earlier names, which older programs use.
    lane = lambda self, size=0: self.staging(size)
    lane_write = lambda self, offset, data: self.staging_write(offset, data)
    lane_read = lambda self, offset, length: self.staging_read(offset, length)
    donate = lambda self, *args, **how: self.register(*args, **how)
    withdraw = lambda self, *args, **how: self.unregister(*args, **how)
    lane_bytes = property(lambda self: self.staging_bytes)
    lane_map = property(lambda self: self.staging_map)
    lane_max = property(lambda self: self.staging_max)
