# SPDX-License-Identifier: Apache-2.0
"""The lookup index (section 5.4), mapped and read as a client does. kvwire exports all of these names."""

import fcntl
import mmap
import os
import struct
import time

from kvwire_format import F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, ProtocolError, Tier

U64 = (1 << 64) - 1
LOOKUP_HEAD = struct.Struct("<8sIIQIIQQ")
LOOKUP_LIVE, LOOKUP_SUPERSEDED = 1, 2


def key_hash(secret, number, block):
    """Computes SipHash-1-3 of 32 bytes and a number."""
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
        if magic != b"LOKPIDX1" or version != 2 or total != size or \
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

    @staticmethod
    def _pair(first, tag, n):
        return first, ((tag * n >> 32) - first) % n

    def _look(self, buckets, tag):
        tiers, full = 0, True
        for b in buckets:
            words = struct.unpack_from("<16I", self.map, self.head + 64 * b)
            full &= bool(words[0] & 4)
            for w in words:
                if w & ~7 == tag:
                    tiers |= w & 3
        return tiers, full

    def find(self, namespace, key):
        """Returns (tiers, whether that is complete) of a key, by the name of its namespace."""
        digest = key_hash(self.secret_of(namespace), 0, key)
        tag = digest & 0xFFFFFFF8
        pair = self._pair((digest >> 32) * self.n_buckets >> 32, tag, self.n_buckets)
        while True:
            before = self.removals
            tiers, full = self._look(pair, tag)
            if full:
                m = (min(pair) << 32 | tag) * 0xD6E8FEB86659FD93 & U64
                stash = self._pair((m >> 32) * self.n_stash >> 32, tag, self.n_stash)
                more, full = self._look([self.n_buckets + b for b in stash], tag)
                tiers |= more
            if tiers or full or self.removals == before:
                return Tier(tiers), not full
