# SPDX-License-Identifier: Apache-2.0
"""Records a daemon's answers outside of it, and derives the answers that are allowed after it was killed.

Each key has a Record. One process changes it, so that the order of its changes is known; any process reads it. The content of a key is a
*version*: a number, or None for nothing. Each put offers a new version, so that old bytes are recognized. A record holds two sets of
versions:

live     versions that a get may find now
after    versions that may be found if the daemon is killed now and started again

A change that is not answered yet adds to `maybe` the versions that it may lead to. The rules are those of proto/README.md: an `accepted`
put may be lost, `written` and `durable` puts may not; keys dropped by an answered evict or purge do not return after a kill; the first put
wins. The daemon evicts nothing on its own, because the store is larger than all keys together."""

import hashlib
import pathlib
import random
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "daemon"))

from kvwire import Ack, Status  # noqa: E402

SIZES = [1, 700, 4096, 5000, 20000, 65536, 200000, 700000]
NOISE = random.Random("noise").randbytes(8 << 20) * 2


class Finding(Exception):
    """A violation. `kind` is wrong, lost or hung."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


def size_of(key, version):
    return SIZES[(key[0] + version) % len(SIZES)]


def value_of(key, version):
    """Returns the bytes of one version. No two versions and no two pages share bytes; the first four are the version."""
    digest = hashlib.sha256(key + struct.pack("<I", version)).digest()
    at, = struct.unpack_from("<I", digest)
    at %= len(NOISE) // 2
    length = size_of(key, version)
    return (struct.pack("<I", version) + digest + NOISE[at:at + length])[:length]


def identify(key, data):
    """Identifies the version of the bytes. Returns 0 if they are too short to identify it, None if no put had them."""
    if len(data) < 4:
        return 0 if len(data) in SIZES else None
    version, = struct.unpack_from("<I", data)
    return version if value_of(key, version) == data else None


class Record:
    __slots__ = ("live", "after", "maybe", "version", "pending", "overlap", "sent", "answered", "earlier", "story")

    def __init__(self):
        self.live, self.after, self.maybe = {None}, {None}, set()
        self.version = 0      # last version offered
        self.pending = None   # "put" or "evict", until it is answered
        self.overlap = False  # ... and a purge was sent since
        self.sent = self.answered = 0.0  # last put that may have stored something; answered None: not yet
        self.earlier = 0.0, 0.0          # ... before the one in flight
        self.story = []

    def tell(self, what):
        """Returns the last events of the key, for a finding."""
        self.story = self.story[-15:] + [f"{time.monotonic():.4f} {what}"]

    def tale(self):
        return "".join("\n    " + line for line in self.story)

    def found(self, version):
        """Sets the content, which has been read from the disk."""
        self.live, self.after, self.maybe = {version}, {version}, set()
        self.pending, self.overlap = None, False
        self.story = [f"found {version}"]
        self.sent, self.answered, self.earlier = 0.0, 0.0, (0.0, 0.0)

    def expected(self):
        return self.live | self.maybe

    def check(self, key, data, allowed, where):
        """Checks a get's answer, data or None, against the allowed versions. Returns the version."""
        if data is None:
            if None not in allowed:
                raise Finding("lost", f"{where}: a miss; the key holds version {sorted(allowed)}: {key.hex()}{self.tale()}")
            return None
        for version in allowed:
            if version is not None and data == value_of(key, version):
                return version
        version = identify(key, data)
        raise Finding("wrong", f"{where}: {len(data)} bytes "
                      f"{'of no version' if version is None else f'of version {version}'}, allowed are "
                      f"{sorted(allowed, key=str)}: {key.hex()}{self.tale()}")

    # --- changes: sent, answered, or never to be answered ---

    def put_sent(self, now):
        self.version += 1
        self.tell(f"put {self.version} sent")
        self.pending = "put"
        self.earlier = self.sent, self.answered
        if None in self.live:
            self.maybe.add(self.version)
            self.sent, self.answered = now, None
        return self.version

    def put_answered(self, key, version, status, ack, now, soft):
        """`soft`: contents that are possible because another client may have dropped the key: {None} or nothing."""
        self.tell(f"put {version} {ack.name} answered {status.name}")
        if status in (Status.OK, Status.NOT_DURABLE):
            if None not in self.live and not self.overlap:
                raise Finding("lost", f"put: {status.name} where the key holds version {sorted(self.live)}: {key.hex()}"
                              f"{self.tale()}")
            self.live = {version} | soft
            self.after = {version} if ack != Ack.ACCEPTED else self.after | {version, None}
            self.answered = now
        elif status == Status.EXISTS:
            present = self.live - {None}
            if not present and not self.overlap:
                raise Finding("wrong", f"put: EXISTS where there is nothing: {key.hex()}{self.tale()}")
            if ack != Ack.ACCEPTED:
                self.after = present or self.after
        elif status not in (Status.BUSY, Status.NO_SPACE, Status.SHUTDOWN):
            raise Finding("wrong", f"put: {status.name}: {key.hex()}{self.tale()}")
        if self.overlap:
            self.live, self.after = self.live | {None}, self.after | {None}
        if status not in (Status.OK, Status.NOT_DURABLE):
            self.sent, self.answered = self.earlier
        self.maybe, self.pending, self.overlap = set(), None, False

    def evict_sent(self):
        self.tell("evict sent")
        self.pending = "evict"
        self.maybe.add(None)

    def evict_answered(self, key, status):
        self.tell(f"evict answered {status.name}")
        if status == Status.MISS and None not in self.live:
            raise Finding("lost", f"evict: a miss; the key holds version {sorted(self.live)}: {key.hex()}{self.tale()}")
        if status not in (Status.OK, Status.MISS):
            raise Finding("wrong", f"evict: {status.name}: {key.hex()}{self.tale()}")
        self.live, self.after = {None}, {None} if status == Status.OK else self.after | {None}
        self.maybe, self.pending, self.overlap = set(), None, False

    def purge_sent(self):
        self.tell("purge sent")
        self.maybe.add(None)
        if self.pending == "put":
            self.maybe.add(self.version)  # the put may be applied after the purge, whatever the key held before
        if self.pending:
            self.overlap = True

    def purge_answered(self, overlapped):
        """`overlapped`: a put or evict was in flight when the purge was sent; either may have come first."""
        self.tell("purge answered")
        if overlapped:
            self.live, self.after = self.live | {None}, self.after | {None}
        else:
            self.live, self.after, self.maybe = {None}, {None}, set()

    def purged_by_another(self, sent, answered):
        """Records a purge of everything, sent and (None: not) answered at these times."""
        under_way = self.pending == "put" and self.answered is None
        put_sent, put_answered = self.earlier if under_way else (self.sent, self.answered)
        if answered is not None and put_answered < sent:
            self.after = {None}
        elif answered is None or put_sent <= answered:
            self.after = self.after | {None}

    def never_answered(self):
        """Records the daemon's death: changes in flight may have happened."""
        self.after = self.after | self.maybe
        self.pending, self.overlap = None, False
