# SPDX-License-Identifier: Apache-2.0
"""The pool index (section 5.7), mapped as a client does, and the page by which a client holds chunks. kvwire exports all of these names. A
memoryview of native 64 bits reads and writes each word atomically."""

import fcntl
import mmap
import os
import struct
import threading

from kvwire_format import F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, ProtocolError
from kvwire_lookup import U64, key_hash

POOL_INDEX_HEAD = struct.Struct("<8sIIQIIQQ")
POOL_RECORD = struct.Struct("<32sQQIIII")
POOL_INDEX_LIVE = 1
POOL_PAGE_BYTES = 143360
POOL_PAGE_BUCKETS, POOL_PAGE_WAYS, POOL_PAGE_RING, POOL_PAGE_NAMESPACES = 1024, 8, 8192, 256
# Positions of the words in the page.
_WRITTEN, _TAKEN, _ALLOWANCE, _TAGS, _USED, _COUNTS, _HOLDS, _RING = 0, 8, 9, 16, 272, 512, 1536, 9728


class PoolIndex:
    """The tenant's pool index and the session's page. The caller closes it."""

    def __init__(self, fd, size, page_fd):
        for f, wanted, length in ((fd, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, size),
                                  (page_fd, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW, POOL_PAGE_BYTES)):
            if fcntl.fcntl(f, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(f).st_size != length:
                raise ProtocolError("POOL_INDEX: not sealed, or of another size than said")
        self.map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        magic, version, head, total, self.n_buckets, self.n_records, *self.secret = POOL_INDEX_HEAD.unpack_from(self.map)
        if magic != b"LKVPIDX1" or version != 1 or total != size or head != 4096 or \
                head + 64 * (self.n_buckets + self.n_records) > size or size % 4096:
            raise ProtocolError("POOL_INDEX: a malformed header")
        self.size, self._buckets, self._records = size, head, head + 64 * self.n_buckets
        self.page_map = mmap.mmap(page_fd, POOL_PAGE_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.words, self.page = memoryview(self.map).cast("Q"), memoryview(self.page_map).cast("Q")
        self._fence = threading.Lock()

    def close(self):
        self.words.release()
        self.page.release()
        self.map.close()
        self.page_map.close()

    def is_live(self):
        return self.words[8] == POOL_INDEX_LIVE

    allowance = property(lambda self: self.page[_ALLOWANCE])
    taken = property(lambda self: self.page[_TAKEN])
    written = property(lambda self: self.page[_WRITTEN], lambda self, words: self.page.__setitem__(_WRITTEN, words))

    def tag(self, number):
        """Returns the tag of the session's namespace; 0: ask the daemon."""
        return self.page[_TAGS + number - 1]

    def find(self, number, key):
        """Finds a chunk of the session's namespace without holding it. Returns (record, offset, length, generation), or None."""
        tag = self.tag(number)
        hash_ = key_hash((self.secret[0] ^ tag, self.secret[1]), 0, key)
        m = hash_ * 0x9E3779B97F4A7C15 & U64
        m ^= m >> 32
        for bucket in ((m >> 32) * self.n_buckets >> 32, (m & 0xFFFFFFFF) * self.n_buckets >> 32):
            for w in self.words[self._buckets // 8 + 8 * bucket:self._buckets // 8 + 8 * bucket + 8]:
                record = (w & 0xFFFFFFFF) - 1
                if w >> 32 != hash_ >> 32 or not 0 <= record < self.n_records:
                    continue
                found = self._read(record, tag, key)
                if found:
                    return record, *found
        return None

    def _read(self, record, tag, key):
        """Reads the record of the key's chunk consistently. Returns (offset, length, generation)."""
        serial = self._serial(record)
        found, its, offset, length, generation, _, _ = POOL_RECORD.unpack_from(self.map, self._records + 64 * record)
        is_it = tag != 0 and serial & 1 == 1 and found == key and its == tag and self._serial(record) == serial
        return (offset, length, generation) if is_it else None

    def _serial(self, record):
        return self.words[(self._records + 64 * record + 56) // 8] & 0xFFFFFFFF

    def set_hold(self, bucket, way, value):
        """Writes any word of the page, as a client may."""
        self.page[_HOLDS + POOL_PAGE_WAYS * bucket + way] = value
        self.page[_USED + bucket // 64] |= 1 << bucket % 64
        with self._fence:  # a full barrier
            pass

    def hold_record(self, record, length):
        """Holds a record, whatever chunk it has. Returns (bucket, way), for let_go()."""
        bucket = record % POOL_PAGE_BUCKETS
        at = _HOLDS + POOL_PAGE_WAYS * bucket
        way = next(way for way in range(POOL_PAGE_WAYS) if self.page[at + way] == 0)
        self.set_hold(bucket, way, (record + 1) << 32 | length)
        return bucket, way

    def hold(self, number, key):
        """Takes a hold, so that the chunk stays in its place. Returns its (place, offset, length), or None."""
        tag, found = self.tag(number), self.find(number, key)
        if not found:
            return None
        record, _, length, _ = found
        place = self.hold_record(record, length)
        again = self._read(record, tag, key) if self.is_live() and self.tag(number) == tag else None
        if not again or again[1] != length:
            self.let_go(place)
            return None
        return place, again[0], length

    def let_go(self, place):
        bucket, way = place
        at = _HOLDS + POOL_PAGE_WAYS * bucket
        self.page[at + way] = 0
        if not any(self.page[at:at + POOL_PAGE_WAYS]):
            self.page[_USED + bucket // 64] &= ~(1 << bucket % 64) & U64

    def count(self, number, keys=0, mapped=0, copied=0, untold=0):
        """Adds to the counters of gets from the namespace."""
        at = _COUNTS + 4 * (number - 1)
        for i, by in enumerate((keys, mapped, copied, untold)):
            self.page[at + i] = self.page[at + i] + by & U64

    def touch(self, *touches):
        """Reports the accesses of a request: pairs of record and generation."""
        at = self.page[_WRITTEN]
        for word in (0xFFFFFFFF << 32 | len(touches), *(record << 32 | generation for record, generation in touches)):
            self.page[_RING + at % POOL_PAGE_RING] = word
            at = at + 1 & U64
        self.page[_WRITTEN] = at

    def fill_ring(self, touches):
        """Writes the words of requests of 1,023 touches each, a ring of them, without reporting them."""
        words = []
        for at in range(0, len(touches), 1023):
            part = touches[at:at + 1023]
            words += [0xFFFFFFFF << 32 | len(part), *(record << 32 | generation for record, generation in part)]
        self.page[_RING:_RING + POOL_PAGE_RING] = memoryview(struct.pack(f"<{POOL_PAGE_RING}Q", *words)).cast("Q")
