# SPDX-License-Identifier: Apache-2.0
"""Batches of keys: what a Client of kvwire has of sections 6.4 to 6.12, 6.21 and 6.25 to 6.26."""

import itertools
import os
import struct

from kvwire_format import (
    Ack, BATCH, Flag, GET_ENTRY, GET_RESULT, GetResult, LEASE, Lease, Loan, MATCH_SEARCHING, NotLent, Op, PIECE, PUT_ENTRY,
    PUT_RESULT, ProtocolError, PutResult, ROOT, STAT_RESULT, Stat, Status, Tier, close_all, pack_pieces)


def _batches(items, size):
    items = iter(items)
    while part := list(itertools.islice(items, size)):
        yield part


class Batches:
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
            close_all(reply.fds)
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
        """Sends a chain of any length in several messages (section 8)."""
        items, results, parent = list(items), [], ROOT
        parts = list(_batches(items, size or self.max_keys))
        for i, part in enumerate(parts):
            results += self.put(namespace, part, parent=parent, more=i + 1 < len(parts), **how)
            parent = part[-1][0]
        return results

    def get_results(self, reply, n, into=None, may_copy=False):
        self._results(reply, n, GET_RESULT.size)
        results = []
        for k, (s, tier, flags, length, i, g, offset, chunk, file) in enumerate(GET_RESULT.iter_unpack(reply.body)):
            lent = bool(flags & 2)
            r = GetResult(self, Status(s), tier, bool(flags & 1), length, Lease(i, g), offset, chunk,
                          into[k] if into is not None else None, Loan(i, g, file, offset, length) if lent else None,
                          NotLent.NONE if lent else NotLent(file))
            if lent and (r.status != Status.OK or g == 0 or file == 0 or offset % 4096 or length != chunk):
                raise ProtocolError(f"GET: {r} and a loan that does not fit")
            if r.leased != (into is None and r.status == Status.OK and not lent) and not (may_copy and not r.leased) or (r.leased and g == 0):
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
        """Gets like get(), but borrows chunks that are only on disk if permitted (6.25): `loan` of the result."""
        entries = [GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys]
        flags = Flag.LEND | (Flag.MORE if more else 0)
        return self.get_results(self.wait(self.submit_batch(Op.GET, namespace, entries, flags=flags, **how)), len(keys))

    def give_back(self, loans):
        """Ends loans (6.26). Returns a status for each: OK if the bytes read before are those of the chunk."""
        entries = [LEASE.pack(loan.id, loan.generation) for loan in loans]
        return [Status(s) for s, in struct.iter_unpack("<H", self._batch(Op.GIVE_BACK, 0, entries, 2).body)]

    def lent_file(self, file, check=True):
        """Returns a descriptor of the data file (6.25), which the caller closes, or the refusal's reply with check=False."""
        reply = self.call(Op.LENT_FILE, struct.pack("<II", file, 0), check=check, n_fds=1)
        if reply.status != Status.OK:
            return reply
        if reply.value64 != os.fstat(reply.fds[0]).st_size or reply.count or reply.body:
            raise ProtocolError("LENT_FILE: a file of another size than said")
        return reply.fds[0]

    def get_into(self, namespace, keys, room, *, at=0, ranges=None, nowait=False, more=False, **how):
        """Gets keys into the staging area, `room` bytes for each key, from `at` on."""
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
        """Submits a get. `items` are (key, (offset, length, region)), or (key, [pieces]) for all of them. Returns a tag."""
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

    def submit_get_to(self, namespace, items, *, ranges=None, nowait=False, more=False, lease=False, **how):
        """Submits a get with targets. Returns a tag; the reply's results have no data, which is in the region."""
        items, pieces = list(items), b""
        spans = ranges or [(0, 0)] * len(items)
        if items and isinstance(items[0][1], list):
            pieces, places = pack_pieces(p for _, p in items)
            entries = [GET_ENTRY.pack(key, *span, first, length, n)
                       for (key, _), span, (first, n, length) in zip(items, spans, places)]
        else:
            entries = [GET_ENTRY.pack(key, *span, offset, length, region)
                       for (key, (offset, length, region)), span in zip(items, spans)]
        flags = Flag.INTO | (Flag.LEASE if lease else 0) | (Flag.NOWAIT if nowait else 0) | (Flag.MORE if more else 0)
        return self.submit_batch(Op.GET, namespace, entries, flags=flags, pieces=pieces, **how)

    def get_to(self, namespace, items, **how):
        items = list(items)
        reply = self.wait(self.submit_get_to(namespace, items, **how))
        return self.get_results(reply, len(items), None if how.get("lease") else [0] * len(items), may_copy=how.get("lease"))

    def value(self, namespace, key):
        """Returns one whole chunk as bytes, or None."""
        result, = self.get(namespace, [key])
        if result.status != Status.OK:
            return None
        data = result.data
        self.release([result.lease])
        return data

    def release(self, leases):
        """Releases leases. Returns how many were stale."""
        return self._batch(Op.RELEASE, 0, (), 0, releases=leases).value

    def exists(self, namespace, keys, **how):
        return [Tier(b) for b in self._batch(Op.EXISTS, namespace, keys, 1, **how).body]

    def match(self, namespace, keys, **how):
        """Returns the number of leading keys that are stored."""
        value = self._batch(Op.MATCH, namespace, keys, 0, **how).value
        if value > len(keys):
            raise ProtocolError(f"MATCH: {value} of {len(keys)}")
        return value

    def reach(self, namespace, keys, **how):
        """Returns the number of leading keys that are stored here, the number of further ones that the shared tier has, and whether that is
        final."""
        reply = self._batch(Op.MATCH, namespace, keys, 0, flags=Flag.REMOTE, **how)
        shared = reply.value64 & ~MATCH_SEARCHING
        if reply.value + shared > len(keys):
            raise ProtocolError(f"MATCH: {reply.value} and {shared} of {len(keys)}")
        return reply.value, reply.value + shared, not reply.value64 & MATCH_SEARCHING

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
