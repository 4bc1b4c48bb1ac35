# SPDX-License-Identifier: Apache-2.0
"""A client of kvcache-daemon in plain Python, written from proto/README.md alone.

It uses nothing of the project's C code: that it works proves that the page is enough. Section numbers are that page's.
For tests, so it is strict: every reply is checked against the tables, and what does not fit raises ProtocolError.

One Client is one session. Blocking calls (put, get, ...) send one request and wait for its reply; submit() and wait()
are underneath, for several requests in flight; send() sends any bytes, for tests of what a daemon refuses.
"""

import array
import collections
import enum
import fcntl
import itertools
import mmap
import os
import select
import socket
import struct
import time

MAGIC = 0x3143564B
REPLY = 0x8000
MAX_MESSAGE = 65536
MAX_FDS = 4
ROOT = bytes(32)
DEFAULT_SOCKET = "/run/kvcache/kvcache.sock"

FEATURE_LOOKUP = 1
FEATURE_PREFETCH = 2
FEATURE_TALLY = 4
FEATURE_NAMESPACES = 8
FEATURE_CANCEL = 16
FEATURE_LEND = 32
FEATURE_LENDS = 64

TALLY = struct.Struct("<QQ")  # of a namespace: keys found, keys missing
TALLY_BYTES = 256 * TALLY.size

F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16


class Op(enum.IntEnum):
    HELLO = 1
    PING = 2
    NAMESPACE = 3
    STAGING = LANE = 4
    PUT = 5
    GET = 6
    RELEASE = 7
    EXISTS = 8
    MATCH = 9
    TOUCH = 10
    EVICT = 11
    STAT = 12
    LIST = 13
    PURGE = 14
    REPORT = 15
    VERIFY = 16
    DEVICE = 17
    REGISTER = DONATE = 18
    UNREGISTER = WITHDRAW = 19
    LOOKUP = 20
    PREFETCH = 21
    NAMESPACES = 22
    NAMESPACE_REMOVE = 23
    CANCEL = 24
    LENT_FILE = 25
    GIVE_BACK = 26


class Flag(enum.IntFlag):
    MORE = 1
    NOWAIT = 2
    LEASE = 4
    INTO = 8
    ATTACH = 16
    ALL = 32
    PIECES = 64
    TALLY = 128
    PURGE = 256
    LEND = 512


class Status(enum.IntEnum):
    OK = 0
    MISS = 1
    EXISTS = 2
    BUSY = 3
    TOO_LARGE = 4
    NOT_DURABLE = 5
    FAILED = 6
    INVALID = 7
    STALE = 8
    DENIED = 9
    QUOTA = 10
    MISMATCH = 11
    NO_NAMESPACE = 12
    VERSION = 13
    SHUTDOWN = 14
    NO_SPACE = 15
    NOT_EMPTY = 16
    CANCELLED = 17

    @classmethod
    def _missing_(cls, value):
        return cls.FAILED  # section 7: a number that is not known is a failure


class NotLent(enum.IntEnum):
    NONE = 0
    DENIED = 1
    UNVERIFIED = 2
    VOLUME = 3
    LIMIT = 4


class Ack(enum.IntEnum):
    ACCEPTED = 0
    WRITTEN = 1
    DURABLE = 2


class Tier(enum.IntFlag):
    MEMORY = 1
    DISK = 2
    ALL = 3


class Report(enum.IntEnum):
    STATUS = 0
    STATS = 1
    METRICS = 2
    CONFIG = 3


class WireError(Exception):
    """Anything that goes wrong between this client and a daemon."""


class SessionEnded(WireError):
    """The daemon's end is closed: nothing that is unanswered will be answered."""


class ReplyTimeout(WireError):
    """No reply in time; the request is still in flight."""


class ProtocolError(WireError):
    """The daemon sent what the specification does not allow."""


class Refused(WireError):
    """A message was answered with a status other than OK."""

    def __init__(self, op, status, text):
        super().__init__(f"{op.name}: {status.name}" + (f": {text}" if text else ""))
        self.op, self.status, self.text = op, status, text


HEADER = struct.Struct("<IHHQ")
REPLY_HEAD = struct.Struct("<IHHQHHIQ")
HELLO = struct.Struct("<IHHQ32s")
HELLO_RESULT = struct.Struct("<HHII4xQQQQ16s")
NAMESPACE = struct.Struct("<QHHI")
BATCH = struct.Struct("<IHHIBBH32s")
PUT_ENTRY = struct.Struct("<32sQIIQ")
PUT_RESULT = struct.Struct("<HHIIIQ")
GET_ENTRY = struct.Struct("<32sIIQII")
PIECE = struct.Struct("<QII")
GET_RESULT = struct.Struct("<HBBIIIQII")
LEASE = struct.Struct("<II")
STAT_RESULT = struct.Struct("<HHIIIQ16x")
LIST = struct.Struct("<IIQ")
LIST_RESULT = struct.Struct("<32sIH2xQ")
NAMESPACES = struct.Struct("<QHBBI")
NAMESPACE_INFO = struct.Struct("<HBBHHIIQQQQQI4x")
NAMESPACE_REMOVE = struct.Struct("<BBHI")

assert HELLO_RESULT.size == 64 and BATCH.size == 48 and PUT_ENTRY.size == GET_ENTRY.size == 56
assert PIECE.size == 16 and PUT_RESULT.size == 24 and GET_RESULT.size == 32 and STAT_RESULT.size == 40
assert LIST_RESULT.size == 48 and NAMESPACE_INFO.size == 64
MAY_REMOVE = 1
NO_OWNER = 0xffffffff

Lease = collections.namedtuple("Lease", "id generation")
Stat = collections.namedtuple("Stat", "status tiers length crc32c leases created_ms")
NamespaceInfo = collections.namedtuple("NamespaceInfo", "name tenant fingerprint may_remove owner sessions chunks "
                                       "stored_bytes chunk_bytes created_ms last_used_ms fingerprint_crc32c")
Listed = collections.namedtuple("Listed", "key length tiers created_ms")
Reply = collections.namedtuple("Reply", "op tag status count value value64 body fds")
Loan = collections.namedtuple("Loan", "id generation file offset length")
Piece = collections.namedtuple("Piece", "offset length region")


class PutResult:
    def __init__(self, client, status, leased, length, lease, offset):
        self.status, self.leased, self.length, self.offset = status, leased, length, offset
        self.lease = lease if leased else None
        self._client = client

    @property
    def stored(self):
        """Is the chunk there?"""
        return self.status in (Status.OK, Status.EXISTS, Status.NOT_DURABLE)

    @property
    def data(self):
        """The chunk as it is in the pool now; valid while the lease is held."""
        return self._client.pool_read(self.offset, self.length) if self.lease else None

    def __repr__(self):
        return f"<put {self.status.name} length={self.length} lease={self.lease}>"


class GetResult:
    def __init__(self, client, status, tier, leased, length, lease, offset, chunk_length, into=None, loan=None,
                 not_lent=NotLent.NONE):
        self.status, self.tier, self.leased, self.length = status, Tier(tier), leased, length
        self.offset, self.chunk_length, self.into = offset, chunk_length, into
        self.lease = lease if leased else None
        self.loan, self.not_lent = loan, not_lent
        self._client = client

    @property
    def data(self):
        """The bytes got: from the pool while the lease is held, or from the staging area; None if there are none."""
        if self.status != Status.OK:
            return None
        if self.into is not None:
            return self._client.staging_read(self.into, self.length)
        return self._client.pool_read(self.offset, self.length)

    def __repr__(self):
        return f"<get {self.status.name} tier={self.tier!r} length={self.length} lease={self.lease}>"


def pack_pieces(groups):
    """Pieces of several keys, each a list of (offset, length, region): (bytes, [(first, n, length) of each key])."""
    body, keys, first = b"", [], 0
    for pieces in groups:
        body += b"".join(PIECE.pack(*p) for p in pieces)
        keys.append((first, len(pieces), sum(p[1] for p in pieces)))
        first += len(pieces)
    return body, keys


def _batches(items, size):
    items = iter(items)
    while part := list(itertools.islice(items, size)):
        yield part


def fingerprint(**fields):
    """The canonical text (6.2) of keyword arguments."""
    return "".join(f"{k}={v}\n" for k, v in sorted(fields.items(), key=lambda kv: kv[0].encode())).encode()


def crc32c(data, _table=[]):
    """CRC-32C as in STAT (6.12). Slow: for tests."""
    if not _table:
        for n in range(256):
            for _ in range(8):
                n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
            _table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


Verified = collections.namedtuple(
    "Verified", "paths segments next_segment next_slot chunks bytes mismatched unreadable skipped gave_up")


# --- the lookup index (section 5.4) ---

U64 = (1 << 64) - 1
LOOKUP_HEAD = struct.Struct("<8sIIQIIQQ")
LOOKUP_LIVE, LOOKUP_SUPERSEDED = 1, 2


def key_hash(secret, number, block):
    """SipHash-1-3 of 32 bytes and a number."""
    def rotate(x, n):
        return (x << n | x >> 64 - n) & U64

    v = [secret[0] ^ 0x736F6D6570736575, secret[1] ^ 0x646F72616E646F6D,
         secret[0] ^ 0x6C7967656E657261, secret[1] ^ 0x7465646279746573]

    def mix():
        v[0], v[2] = (v[0] + v[1]) & U64, (v[2] + v[3]) & U64
        v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
        v[0] = rotate(v[0], 32)
        v[2], v[0] = (v[2] + v[1]) & U64, (v[0] + v[3]) & U64
        v[1], v[3] = rotate(v[1], 17) ^ v[2], rotate(v[3], 21) ^ v[0]
        v[2] = rotate(v[2], 32)

    for word in (*struct.unpack("<QQQQ", block), 36 << 56 | number):
        v[3] ^= word
        mix()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        mix()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


class Lookup:
    """The tenant's table as a client maps it. The caller closes it."""

    def __init__(self, fd, size):
        wanted = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(fd).st_size != size:
            raise ProtocolError("LOOKUP: not sealed, or of another size than said")
        self.map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        magic, version, head, total, self.n_buckets, self.n_stash, *self.secret = LOOKUP_HEAD.unpack_from(self.map)
        if magic != b"LOKPIDX1" or version != 1 or total != size or \
                head + 64 * (self.n_buckets + self.n_stash) != size:
            raise ProtocolError("LOOKUP: a malformed header")
        self.head, self.size = head, size
        self._secrets = {}

    def close(self):
        self.map.close()

    def _u64(self, at):
        return struct.unpack_from("<Q", self.map, at)[0]

    state = property(lambda self: self._u64(64))
    clock_ms = property(lambda self: self._u64(72))
    removals = property(lambda self: self._u64(128))

    def is_live(self):
        return self.state == LOOKUP_LIVE and -100 <= time.monotonic() * 1000 - self.clock_ms <= 3000

    def secret_of(self, name):
        name = name.encode() if isinstance(name, str) else name
        if name not in self._secrets:
            s, step = self.secret, 2 * len(name) + 1
            for at in range(0, len(name), 32):
                block = name[at:at + 32].ljust(32, b"\0")
                s = key_hash(s, step, block), key_hash(s, step + 1, block)
            self._secrets[name] = s
        return self._secrets[name]

    def _pair(self, tag, factor, n):
        m = tag * factor & U64
        m ^= m >> 32
        return (m >> 32) * n >> 32, (m & 0xFFFFFFFF) * n >> 32

    def _look(self, buckets, tag):
        tiers, full = 0, True
        for b in buckets:
            words = struct.unpack_from("<8Q", self.map, self.head + 64 * b)
            full &= bool(words[0] & 4)
            for w in words:
                if w & ~7 == tag:
                    tiers |= w & 3
        return tiers, full

    def find(self, namespace, key):
        """(tiers, is that all?) of a key, by the name of its namespace."""
        tag = key_hash(self.secret_of(namespace), 0, key) & ~7 & U64
        while True:
            before = self.removals
            tiers, full = self._look(self._pair(tag, 0x9E3779B97F4A7C15, self.n_buckets), tag)
            if full:
                stash = self._pair(tag, 0xD6E8FEB86659FD93, self.n_stash)
                more, full = self._look([self.n_buckets + b for b in stash], tag)
                tiers |= more
            if tiers or full or self.removals == before:
                return Tier(tiers), not full


class Client:
    """One session. `path`: of the socket; or `sock`: a connected one. Says HELLO unless `greet` is false."""

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
            _close_all(reply.fds)
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
        """Any bytes as one message. For tests: nothing is checked, no reply is expected."""
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
        """The next reply, whichever it is. SessionEnded at the end of the stream."""
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
            _close_all(fds)
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
        """Sends one request; its tag, for wait()."""
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
        """The reply to this request; others that come before it are kept. Refused if its status is not OK."""
        deadline = time.monotonic() + self.timeout
        while tag not in self._replies:
            reply = self.receive(max(deadline - time.monotonic(), 0.001))
            ops = self._waiting.get(reply.tag)
            if not ops or reply.op not in ops or reply.tag in self._replies:
                _close_all(reply.fds)
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
        """Has its reply come before that to a PING sent now?"""
        self.ping()
        return tag in self._replies

    def call(self, op, body=b"", flags=0, check=True, n_fds=0, fds=()):
        reply = self.wait(self.submit(op, body, flags, fds=fds), check)
        if reply.status == Status.OK and len(reply.fds) != n_fds:
            _close_all(reply.fds)
            raise ProtocolError(f"{op.name}: {len(reply.fds)} descriptors instead of {n_fds}")
        return reply

    # --- handshake (section 4) ---

    def hello(self, name="kvwire", versions=(1, 1)):
        reply = self.call(Op.HELLO, HELLO.pack(MAGIC, *versions, 0, name.encode("ascii")), n_fds=2)
        self.pool_fd, self.liveness_fd = reply.fds
        if reply.count != 1 or len(reply.body) < HELLO_RESULT.size:
            raise ProtocolError("HELLO: a reply without its result")
        (self.version, self.max_keys, self.max_inflight, self.max_message, self.pool_bytes, self.max_chunk,
         self.staging_max, self.features, self.instance) = HELLO_RESULT.unpack_from(reply.body)
        if not versions[0] <= self.version <= versions[1]:
            raise ProtocolError(f"HELLO: version {self.version} is none of {versions}")
        self._map_pool()

    def _map_pool(self):
        seals = fcntl.fcntl(self.pool_fd, fcntl.F_GET_SEALS)
        wanted = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE
        if seals & wanted != wanted:
            raise ProtocolError(f"the pool's seals are {seals:#x}")
        if os.fstat(self.pool_fd).st_size < self.pool_bytes:
            raise ProtocolError("the pool is smaller than it is said to be")
        self.pool = mmap.mmap(self.pool_fd, self.pool_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def pool_read(self, offset, length):
        if offset + length > self.pool_bytes:
            raise ProtocolError(f"{length} bytes at {offset} are not within the pool")
        return self.pool[offset:offset + length]

    # --- one message each (6.1 to 6.3, 6.13 to 6.15) ---

    def ping(self, payload=b""):
        reply = self.call(Op.PING, payload)
        if reply.body != payload:
            raise ProtocolError("PING: another payload came back")
        return reply

    def namespace(self, name, fingerprint=b"", chunk_bytes=0, attach=False):
        """Opens it; its number. The declared chunk size in force is in `chunk_bytes` of the last reply."""
        name = name.encode() if isinstance(name, str) else name
        fingerprint = fingerprint.encode() if isinstance(fingerprint, str) else fingerprint
        body = NAMESPACE.pack(chunk_bytes, len(name), len(fingerprint), 0) + name + fingerprint
        reply = self.call(Op.NAMESPACE, body, Flag.ATTACH if attach else 0)
        self.chunk_bytes = reply.value64
        return reply.value

    def staging(self, size=0):
        """Makes and maps the staging area; its size."""
        reply = self.call(Op.STAGING, struct.pack("<Q", size), n_fds=1)
        fd, = reply.fds
        try:
            if reply.value64 < size or os.fstat(fd).st_size < reply.value64:
                raise ProtocolError("STAGING: smaller than asked for, or than said")
            self.staging_map = mmap.mmap(fd, reply.value64, flags=mmap.MAP_SHARED,
                                      prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        self.staging_bytes = reply.value64
        return self.staging_bytes

    def staging_write(self, offset, data):
        self.staging_map[offset:offset + len(data)] = data

    def staging_read(self, offset, length):
        return self.staging_map[offset:offset + length]

    def register(self, fd, size, offset=0, check=True):
        """Lends [offset, offset + size) of the file (6.18): the region's number, or the refusal's reply with
        check=False. The descriptor stays the caller's."""
        reply = self.call(Op.REGISTER, struct.pack("<QQ", offset, size), check=check, fds=[fd])
        if reply.status != Status.OK:
            return reply
        if reply.value == 0 or reply.value64 != size or reply.count or reply.body:
            raise ProtocolError(f"REGISTER: region {reply.value} of {reply.value64} bytes instead of {size}")
        return reply.value

    def unregister(self, region, check=True):
        """Takes it back (6.19): when this returns, the daemon has unmapped it."""
        reply = self.call(Op.UNREGISTER, struct.pack("<II", region, 0), check=check)
        if reply.count or (reply.status == Status.OK and reply.body):
            raise ProtocolError("UNREGISTER: a reply with results")
        return reply

    def lookup(self, check=True):
        """The tenant's lookup index (6.20), mapped; or the refusal's reply with check=False."""
        reply = self.call(Op.LOOKUP, check=check, n_fds=1)
        if reply.status != Status.OK:
            return reply
        fd, = reply.fds
        try:
            if reply.value or reply.count or reply.body:
                raise ProtocolError("LOOKUP: a reply with results")
            return Lookup(fd, reply.value64)
        finally:
            os.close(fd)

    def tally(self):
        """The session's tally (5.5), once: its descriptor, which is the caller's."""
        reply = self.call(Op.LOOKUP, flags=Flag.TALLY, n_fds=2)
        os.close(reply.fds[0])
        fd = reply.fds[1]
        wanted = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(fd).st_size < TALLY_BYTES:
            os.close(fd)
            raise ProtocolError("LOOKUP: a tally that is not sealed, or too small")
        return fd

    def list_page(self, namespace, cursor=0, count=1024):
        """One LIST: (entries, next cursor; 0 at the end)."""
        reply = self.call(Op.LIST, LIST.pack(namespace, count, cursor))
        if reply.count > count or len(reply.body) != reply.count * LIST_RESULT.size:
            raise ProtocolError(f"LIST: {reply.count} results in {len(reply.body)} bytes")
        return [Listed(*r) for r in LIST_RESULT.iter_unpack(reply.body)], reply.value64

    def list(self, namespace, count=1024):
        """All of a namespace that is on disk."""
        cursor = 0
        while True:
            entries, cursor = self.list_page(namespace, cursor, count)
            yield from entries
            if cursor == 0:
                return

    def namespaces_page(self, cursor=0, count=128, name=b"", tenant=b"", check=True):
        """One NAMESPACES: (entries, next cursor; 0 at the end, how many there are), or the refusal's reply."""
        name, tenant = (t.encode() if isinstance(t, str) else t for t in (name, tenant))
        reply = self.call(Op.NAMESPACES, NAMESPACES.pack(cursor, count, len(name), len(tenant), 0) + name + tenant,
                          check=check)
        if reply.status != Status.OK:
            return reply
        entries, at = [], 0
        for _ in range(reply.count):
            if at + NAMESPACE_INFO.size > len(reply.body):
                raise ProtocolError("NAMESPACES: a result that is cut off")
            size, n, t, f, flags, *numbers = NAMESPACE_INFO.unpack_from(reply.body, at)
            texts = reply.body[at + NAMESPACE_INFO.size:at + size]
            if size % 8 or n + t + f > len(texts) or n == 0 or any(texts[n + t + f:]):
                raise ProtocolError(f"NAMESPACES: texts of {n}, {t} and {f} bytes in a result of {size}")
            entries.append(NamespaceInfo(texts[:n].decode(), texts[n:n + t].decode(), texts[n + t:n + t + f],
                                         bool(flags & MAY_REMOVE), *numbers))
            at += size
        if at != len(reply.body) or reply.count > count:
            raise ProtocolError(f"NAMESPACES: {reply.count} results in {len(reply.body)} bytes")
        return entries, reply.value64, reply.value

    def namespaces(self, count=128, tenant=b""):
        """All that the daemon lists for this client (6.22)."""
        cursor = 0
        while True:
            entries, cursor, _ = self.namespaces_page(cursor, count, tenant=tenant)
            yield from entries
            if cursor == 0:
                return

    def namespace_stat(self, name, tenant=b"", check=True):
        """One by its name, with its fingerprint."""
        page = self.namespaces_page(count=1, name=name, tenant=tenant, check=check)
        return page if isinstance(page, Reply) else page[0][0]

    def namespace_remove(self, name, tenant=b"", purge=False, check=True):
        """Chunks that were purged with it (6.23); or the refusal's reply with check=False."""
        name, tenant = (t.encode() if isinstance(t, str) else t for t in (name, tenant))
        reply = self.call(Op.NAMESPACE_REMOVE, NAMESPACE_REMOVE.pack(len(name), len(tenant), 0, 0) + name + tenant,
                          Flag.PURGE if purge else 0, check=check)
        return reply.value64 if reply.status == Status.OK else reply

    def purge(self, namespace=0, everything=False):
        """Chunks dropped."""
        return self.call(Op.PURGE, struct.pack("<II", namespace, 0), Flag.ALL if everything else 0).value64

    def report(self, what=Report.STATUS):
        reply = self.call(Op.REPORT, struct.pack("<II", what, 0), n_fds=1)
        fd, = reply.fds
        try:
            text = b""
            while len(text) < reply.value64:
                part = os.pread(fd, reply.value64 - len(text), len(text))
                if not part:
                    raise ProtocolError("REPORT: the text is shorter than said")
                text += part
        finally:
            os.close(fd)
        return text.decode()

    def device(self, action, path=0, check=True):
        """`action`: suspend or resume. True if that changed something; the refusal's reply with check=False."""
        reply = self.call(Op.DEVICE, struct.pack("<II", path, {"suspend": 1, "resume": 2}[action]), check=check)
        return reply if reply.status != Status.OK else reply.value64 == 0

    def verify(self, path=0, segment=0, slot=0, max_chunks=4096, max_bytes=16 << 20, check=True):
        """One stretch; a Verified, or the refusal's reply with check=False."""
        reply = self.call(Op.VERIFY, struct.pack("<IIIIQ", path, segment, slot, max_chunks, max_bytes), check=check)
        if reply.status != Status.OK:
            return reply
        if reply.count != 1 or len(reply.body) != 64:
            raise ProtocolError("VERIFY: not one result")
        return Verified(*struct.unpack("<IIIIQQQQQII", reply.body)[:10])

    def verify_volume(self, path=0, **how):
        """All of a path: sums, as a Verified whose place is the end."""
        segment = slot = 0
        sums = [0] * 5
        while True:
            v = self.verify(path, segment, slot, **how)
            sums = [a + b for a, b in zip(sums, (v.chunks, v.bytes, v.mismatched, v.unreadable, v.skipped))]
            segment, slot = v.next_segment, v.next_slot
            if segment >= v.segments or v.gave_up:
                return Verified(v.paths, v.segments, segment, slot, *sums, v.gave_up)

    # --- batches (6.4) ---

    def submit_batch(self, op, namespace=0, entries=(), *, releases=(), flags=0, ack=0, tiers=0, parent=ROOT,
                     timeout_ms=0, pieces=b""):
        """`entries`: each as bytes; `pieces`: as pack_pieces() gives them. Returns a tag."""
        body = BATCH.pack(namespace, len(entries), len(releases), timeout_ms, ack, tiers, len(pieces) // PIECE.size,
                          parent)
        if pieces:
            flags |= Flag.PIECES
        return self.submit(op, body + b"".join(entries) + pieces + b"".join(LEASE.pack(*r) for r in releases), flags)

    def _batch(self, op, namespace, entries, result_bytes, **how):
        reply = self.wait(self.submit_batch(op, namespace, entries, **how))
        return self._results(reply, len(entries), result_bytes)

    @staticmethod
    def _results(reply, n, result_bytes):
        expected = n if result_bytes else 0
        if reply.fds or reply.count != expected or len(reply.body) != expected * result_bytes:
            _close_all(reply.fds)
            raise ProtocolError(f"{reply.op.name}: {reply.count} results in {len(reply.body)} bytes for {n} entries")
        return reply

    def put_entries(self, items, at=0):
        """Copies values to the staging area from `at` on; entries for submit_batch(Op.PUT)."""
        entries = []
        for key, value in items:
            if at + len(value) > self.staging_bytes:
                raise ValueError("the staging area is too small for these values")
            self.staging_write(at, value)
            entries.append(PUT_ENTRY.pack(key, at, len(value), 0, 0))
            at += (len(value) + 63) & ~63
        return entries

    def put_results(self, reply, n):
        self._results(reply, n, PUT_RESULT.size)
        return [PutResult(self, Status(s), bool(flags & 1), length, Lease(i, g), offset)
                for s, flags, length, i, g, offset in PUT_RESULT.iter_unpack(reply.body)]

    def put(self, namespace, items, *, ack=Ack.ACCEPTED, lease=False, nowait=False, more=False, **how):
        """Stores (key, value) pairs, a chain, root first. Makes the staging area if there is none."""
        items = list(items.items()) if isinstance(items, dict) else list(items)
        if self.staging_map is None:
            self.staging()
        flags = (Flag.LEASE if lease else 0) | (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        entries = self.put_entries(items)
        reply = self.wait(self.submit_batch(Op.PUT, namespace, entries, flags=flags, ack=ack, **how))
        return self.put_results(reply, len(entries))

    def put_chain(self, namespace, items, *, size=None, **how):
        """A chain of any length, as several messages (section 8)."""
        items, results, parent = list(items), [], ROOT
        parts = list(_batches(items, size or self.max_keys))
        for i, part in enumerate(parts):
            results += self.put(namespace, part, parent=parent, more=i + 1 < len(parts), **how)
            parent = part[-1][0]
        return results

    def get_results(self, reply, n, into=None):
        self._results(reply, n, GET_RESULT.size)
        results = []
        for k, (s, tier, flags, length, i, g, offset, chunk, file) in enumerate(GET_RESULT.iter_unpack(reply.body)):
            lent = bool(flags & 2)
            r = GetResult(self, Status(s), tier, bool(flags & 1), length, Lease(i, g), offset, chunk,
                          into[k] if into is not None else None, Loan(i, g, file, offset, length) if lent else None,
                          NotLent.NONE if lent else NotLent(file))
            if lent and (r.status != Status.OK or g == 0 or file == 0 or offset % 4096 or length != chunk):
                raise ProtocolError(f"GET: {r} and a loan that does not fit")
            if r.leased != (into is None and r.status == Status.OK and not lent) or (r.leased and g == 0):
                raise ProtocolError(f"GET: {r} and a lease that does not fit")
            results.append(r)
        return results

    def get(self, namespace, keys, *, ranges=None, nowait=False, more=False, **how):
        """Maps: each result that is OK has a lease and `data`. `ranges`: (offset, length) for each key."""
        entries = [GET_ENTRY.pack(k, *(ranges[i] if ranges else (0, 0)), 0, 0, 0) for i, k in enumerate(keys)]
        flags = (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        reply = self.wait(self.submit_batch(Op.GET, namespace, entries, flags=flags, **how))
        return self.get_results(reply, len(entries))

    def borrow(self, namespace, keys, *, more=False, **how):
        """As get(), but what is on disk only is lent where that may be (6.25): `loan` of the result."""
        entries = [GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys]
        flags = Flag.LEND | (Flag.MORE if more else 0)
        return self.get_results(self.wait(self.submit_batch(Op.GET, namespace, entries, flags=flags, **how)), len(keys))

    def give_back(self, loans):
        """Ends loans (6.26): a status each. OK: what was read of it before is the chunk."""
        entries = [LEASE.pack(loan.id, loan.generation) for loan in loans]
        return [Status(s) for s, in struct.iter_unpack("<H", self._batch(Op.GIVE_BACK, 0, entries, 2).body)]

    def lent_file(self, file, check=True):
        """A descriptor of the data file (6.25), the caller's; or the refusal's reply with check=False."""
        reply = self.call(Op.LENT_FILE, struct.pack("<II", file, 0), check=check, n_fds=1)
        if reply.status != Status.OK:
            return reply
        if reply.value64 != os.fstat(reply.fds[0]).st_size or reply.count or reply.body:
            raise ProtocolError("LENT_FILE: a file of another size than said")
        return reply.fds[0]

    def get_into(self, namespace, keys, room, *, at=0, ranges=None, nowait=False, more=False, **how):
        """Copies to the staging area, `room` bytes for each key, one after the other from `at` on."""
        if self.staging_map is None:
            self.staging()
        places = [at + i * ((room + 63) & ~63) for i in range(len(keys))]
        entries = [GET_ENTRY.pack(k, *(ranges[i] if ranges else (0, 0)), places[i], room, 0)
                   for i, k in enumerate(keys)]
        flags = Flag.INTO | (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        reply = self.wait(self.submit_batch(Op.GET, namespace, entries, flags=flags, **how))
        return self.get_results(reply, len(entries), places)

    # --- places in registered buffers (6.5, 6.6) ---

    def submit_put_from(self, namespace, items, *, lease=False, nowait=False, more=False, **how):
        """`items`: (key, (offset, length, region)), or (key, [pieces]) for all of them. Returns a tag."""
        items, pieces = list(items), b""
        if items and isinstance(items[0][1], list):
            pieces, places = pack_pieces(p for _, p in items)
            entries = [PUT_ENTRY.pack(key, first, length, n, 0) for (key, _), (first, n, length) in zip(items, places)]
        else:
            entries = [PUT_ENTRY.pack(key, offset, length, region, 0) for key, (offset, length, region) in items]
        flags = (Flag.LEASE if lease else 0) | (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        return self.submit_batch(Op.PUT, namespace, entries, flags=flags, pieces=pieces, **how)

    def put_from(self, namespace, items, **how):
        items = list(items)
        return self.put_results(self.wait(self.submit_put_from(namespace, items, **how)), len(items))

    def submit_get_to(self, namespace, items, *, ranges=None, nowait=False, more=False, **how):
        """The same for gets: rooms. Returns a tag; its reply's results have no data: look at the region."""
        items, pieces = list(items), b""
        spans = ranges or [(0, 0)] * len(items)
        if items and isinstance(items[0][1], list):
            pieces, places = pack_pieces(p for _, p in items)
            entries = [GET_ENTRY.pack(key, *span, first, length, n)
                       for (key, _), span, (first, n, length) in zip(items, spans, places)]
        else:
            entries = [GET_ENTRY.pack(key, *span, offset, length, region)
                       for (key, (offset, length, region)), span in zip(items, spans)]
        flags = Flag.INTO | (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        return self.submit_batch(Op.GET, namespace, entries, flags=flags, pieces=pieces, **how)

    def get_to(self, namespace, items, **how):
        items = list(items)
        reply = self.wait(self.submit_get_to(namespace, items, **how))
        return self.get_results(reply, len(items), [0] * len(items))

    def value(self, namespace, key):
        """One whole chunk as bytes, or None."""
        result, = self.get(namespace, [key])
        if result.status != Status.OK:
            return None
        data = result.data
        self.release([result.lease])
        return data

    def release(self, leases):
        """How many of them were stale."""
        return self._batch(Op.RELEASE, 0, (), 0, releases=leases).value

    def exists(self, namespace, keys, **how):
        return [Tier(b) for b in self._batch(Op.EXISTS, namespace, keys, 1, **how).body]

    def match(self, namespace, keys, **how):
        """Keys of the leading run that are there."""
        value = self._batch(Op.MATCH, namespace, keys, 0, **how).value
        if value > len(keys):
            raise ProtocolError(f"MATCH: {value} of {len(keys)}")
        return value

    def _statuses(self, op, namespace, keys, how):
        return [Status(s) for s, in struct.iter_unpack("<H", self._batch(op, namespace, keys, 2, **how).body)]

    def touch(self, namespace, keys, more=False, **how):
        return self._statuses(Op.TOUCH, namespace, keys, dict(how, flags=Flag.MORE if more else 0))

    def prefetch(self, namespace, keys, more=False, **how):
        return self._statuses(Op.PREFETCH, namespace, keys, dict(how, flags=Flag.MORE if more else 0))

    def evict(self, namespace, keys, tiers=Tier.ALL, **how):
        return self._statuses(Op.EVICT, namespace, keys, dict(how, tiers=tiers))

    def stat(self, namespace, keys, **how):
        body = self._batch(Op.STAT, namespace, keys, STAT_RESULT.size, **how).body
        return [Stat(Status(s), Tier(tiers), *rest) for s, tiers, *rest in STAT_RESULT.iter_unpack(body)]

    # --- the end (section 10) ---

    def settled(self):
        """After SessionEnded: is all I/O of that daemon over, so that staging memory may be reused?"""
        try:
            fcntl.flock(self.liveness_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.liveness_fd, fcntl.LOCK_UN)
        return True

    # names that programs written before the rename use
    lane = lambda self, size=0: self.staging(size)
    lane_write = lambda self, offset, data: self.staging_write(offset, data)
    lane_read = lambda self, offset, length: self.staging_read(offset, length)
    donate = lambda self, *args, **how: self.register(*args, **how)
    withdraw = lambda self, *args, **how: self.unregister(*args, **how)
    lane_bytes = property(lambda self: self.staging_bytes)
    lane_map = property(lambda self: self.staging_map)
    lane_max = property(lambda self: self.staging_max)


def _close_all(fds):
    for fd in fds:
        os.close(fd)
