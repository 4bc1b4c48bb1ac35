# SPDX-License-Identifier: Apache-2.0
"""The tables of proto/README.md: numbers, flags, statuses, structures, and the errors and results that a client derives from them. Part of
kvwire, which exports all names."""

import collections
import enum
import os
import struct

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
FEATURE_HINT = 128
FEATURE_FILES = 256
FEATURE_BENCH = 512
FEATURE_TRANSFERS = 1024
FEATURE_RECORD = 2048
FEATURE_RELOAD = 4096
FEATURE_STAGES = 65536
FEATURE_LEASE_INTO = 131072
FEATURE_REMOTE = 262144
FEATURE_NO_REPLY = 524288
FEATURE_EVENTS = 2097152
FEATURE_ADVICE = 4194304
FEATURE_NAMESPACE_REPORT = 8388608
FEATURE_HINT_PARENT = 16777216
MATCH_SEARCHING = 1 << 63

TALLY = struct.Struct("<QQ")  # counters of a namespace: keys found, keys missing
TALLY_BYTES = 2 * 256 * TALLY.size  # a second row for each namespace counts declined keys
TALLY_LOADS = TALLY_BYTES // 2
TRANSFERS_BYTES = 16384

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
    HINT = 27
    BENCH = 28
    TRANSFERS = 29
    RECORD = 30
    RELOAD = 31
    SWEEP = 32
    POOL_INDEX = 33
    EVENTS = 34


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
    FILE = 1024
    SET = 2048
    REMOTE = 4096
    NO_REPLY = 8192


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


class EventKind(enum.IntEnum):
    STORED = 1
    REMOVED = 2
    NAMESPACE_REMOVED = 3


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
    REMOTE = 4


class Report(enum.IntEnum):
    STATUS = 0
    STATS = 1
    METRICS = 2
    CONFIG = 3
    STAGES = 4
    NAMESPACES = 5


class WireError(Exception):
    """The base of all errors between this client and a daemon."""


class SessionEnded(WireError):
    """The daemon's end is closed: nothing that is unanswered will be answered."""


class ReplyTimeout(WireError):
    """Reports that no reply came in time; the request is still in flight."""


class ProtocolError(WireError):
    """Reports that the daemon violated the specification."""


class Refused(WireError):
    """Reports a reply with a status other than OK."""

    def __init__(self, op, status, text):
        super().__init__(f"{op.name}: {status.name}" + (f": {text}" if text else ""))
        self.op, self.status, self.text = op, status, text


HEADER = struct.Struct("<IHHQ")
REFUSAL_TAG = 2**64 - 1
REPLY_HEAD = struct.Struct("<IHHQHHIQ")
HELLO = struct.Struct("<IHHQ32s")
HELLO_RESULT = struct.Struct("<HHIIIQQQQ16s")
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
NAMESPACE_INFO = struct.Struct("<HBBHHIIQQQQQII")
NAMESPACE_REMOVE = struct.Struct("<BBHI")
EVENTS = struct.Struct("<QQIHBB")
EVENTS_RESULT = struct.Struct("<QQQII")
EVENT = struct.Struct("<32sQIIBB6x")
EVENT_NAME = struct.Struct("<IHH")

assert HELLO_RESULT.size == 64 and BATCH.size == 48 and PUT_ENTRY.size == GET_ENTRY.size == 56
assert PIECE.size == 16 and PUT_RESULT.size == 24 and GET_RESULT.size == 32 and STAT_RESULT.size == 40
assert LIST_RESULT.size == 48 and NAMESPACE_INFO.size == 64 and EVENT.size == 56
MAY_REMOVE = 1
NO_OWNER = 0xffffffff

Lease = collections.namedtuple("Lease", "id generation")
Stat = collections.namedtuple("Stat", "status tiers length crc32c leases created_ms")
NamespaceInfo = collections.namedtuple("NamespaceInfo", "name tenant fingerprint may_remove owner sessions chunks "
                                       "stored_bytes chunk_bytes created_ms last_used_ms fingerprint_crc32c lifetime_s")
Listed = collections.namedtuple("Listed", "key length tiers created_ms")
Event = collections.namedtuple("Event", "key time_ms namespace length kind tier")
EventsReply = collections.namedtuple("EventsReply", "epoch first next gap events names following")
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
        """Returns whether the chunk is stored."""
        return self.status in (Status.OK, Status.EXISTS, Status.NOT_DURABLE)

    @property
    def data(self):
        """Returns the chunk's present bytes in the pool, which are valid while the lease is held."""
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
        """Returns the bytes got, from the pool while the lease is held, or from the staging area; None if there are none."""
        if self.status != Status.OK:
            return None
        if self.into is not None:
            return self._client.staging_read(self.into, self.length)
        return self._client.pool_read(self.offset, self.length)

    def __repr__(self):
        return f"<get {self.status.name} tier={self.tier!r} length={self.length} lease={self.lease}>"


def pack_pieces(groups):
    """Packs the pieces of several keys, each a list of (offset, length, region). Returns (bytes, [(first, n, length) of each key])."""
    body, keys, first = b"", [], 0
    for pieces in groups:
        body += b"".join(PIECE.pack(*p) for p in pieces)
        keys.append((first, len(pieces), sum(p[1] for p in pieces)))
        first += len(pieces)
    return body, keys


def fingerprint(**fields):
    """Returns the canonical text (6.2) of keyword arguments."""
    return "".join(f"{k}={v}\n" for k, v in sorted(fields.items(), key=lambda kv: kv[0].encode())).encode()


def crc32c(data, _table=[]):
    """Computes the CRC-32C of STAT (6.12), slowly."""
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


def close_all(fds):
    for fd in fds:
        os.close(fd)
