# SPDX-License-Identifier: Apache-2.0
"""Requests of one message each: what a Client of kvwire has of sections 6.1 to 6.3, 6.13 to 6.20 and 6.22 to 6.23."""

import fcntl
import mmap
import json
import os
import struct

from kvwire_format import (
    EVENT, EVENTS, EVENTS_RESULT, EVENT_NAME, Event, EventKind, EventsReply,
    F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, Flag, LIST, LIST_RESULT, Listed, MAY_REMOVE, NAMESPACE,
    NAMESPACES, NAMESPACE_INFO, NAMESPACE_REMOVE, NamespaceInfo, Op, ProtocolError, Reply, Report, Status,
    TALLY_BYTES, TRANSFERS_BYTES, Tier, Verified)
from kvwire_lookup import Lookup
from kvwire_pool_index import PoolIndex


class Messages:
    def ping(self, payload=b""):
        reply = self.call(Op.PING, payload)
        if reply.body != payload:
            raise ProtocolError("PING: another payload came back")
        return reply

    def namespace(self, name, fingerprint=b"", chunk_bytes=0, attach=False, lifetime_s=0):
        """Opens it; its number. The declared chunk size in force is in `chunk_bytes` of the last reply."""
        name = name.encode() if isinstance(name, str) else name
        fingerprint = fingerprint.encode() if isinstance(fingerprint, str) else fingerprint
        body = NAMESPACE.pack(chunk_bytes, len(name), len(fingerprint), lifetime_s) + name + fingerprint
        reply = self.call(Op.NAMESPACE, body, Flag.ATTACH if attach else 0)
        self.chunk_bytes = reply.value64
        return reply.value

    def set_lifetime(self, name, lifetime_s, tenant=b"", check=True):
        """The lifetime that it has from now on; or the refusal's reply with check=False."""
        name, tenant = (t.encode() if isinstance(t, str) else t for t in (name, tenant))
        reply = self.call(Op.NAMESPACE, NAMESPACE.pack(0, len(name), len(tenant), lifetime_s) + name + tenant, Flag.SET,
                          check=check)
        return reply.value if reply.status == Status.OK else reply

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

    def register(self, fd, size, offset=0, check=True, on_disk=False):
        """Lends [offset, offset + size) of the file (6.18): the region's number, or the refusal's reply with
        check=False. The descriptor stays the caller's."""
        reply = self.call(Op.REGISTER, struct.pack("<QQ", offset, size), Flag.FILE if on_disk else 0, check=check,
                          fds=[fd])
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

    def pool_index(self, check=True):
        """The tenant's pool index and the session's page (6.33), mapped, once; or the refusal's reply with check=False."""
        reply = self.call(Op.POOL_INDEX, check=check, n_fds=2)
        if reply.status != Status.OK:
            return reply
        try:
            if reply.value or reply.count or reply.body:
                raise ProtocolError("POOL_INDEX: a reply with results")
            return PoolIndex(reply.fds[0], reply.value64, reply.fds[1])
        finally:
            for fd in reply.fds:
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

    def transfers(self):
        """The session's counters of what it moves (5.6), once: their descriptor, which is the caller's."""
        reply = self.call(Op.TRANSFERS, n_fds=1)
        fd, = reply.fds
        wanted = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & wanted != wanted or os.fstat(fd).st_size != reply.value64 != TRANSFERS_BYTES:
            os.close(fd)
            raise ProtocolError("TRANSFERS: a page that is not sealed, or of another size")
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

    def events(self, epoch=0, start=0, wait_ms=0, count=1024, snapshot=False):
        """One EVENTS (6.34)."""
        return self.take_events(self.wait(self.ask_events(epoch, start, wait_ms, count, snapshot)), count)

    def ask_events(self, epoch=0, start=0, wait_ms=0, count=1024, snapshot=False):
        """The tag of an EVENTS that was sent."""
        return self.submit(Op.EVENTS, EVENTS.pack(epoch, start, wait_ms, count, int(snapshot), 0))

    def take_events(self, reply, count=1024):
        """Parses a reply to EVENTS."""
        body, at = reply.body, EVENTS_RESULT.size + reply.count * EVENT.size
        if len(body) < at or reply.count > count:
            raise ProtocolError(f"EVENTS: {reply.count} events in {len(body)} bytes")
        epoch, first, following, flags, _ = EVENTS_RESULT.unpack_from(body)
        events = [Event(key, time_ms, number, length, EventKind(kind), Tier(tier))
                  for key, time_ms, number, length, kind, tier in EVENT.iter_unpack(body[EVENTS_RESULT.size:at])]
        names = {}
        for _ in range(reply.value):
            number, length, _ = EVENT_NAME.unpack_from(body, at)
            text, padded = body[at + EVENT_NAME.size:][:length], -(-(EVENT_NAME.size + length) // 8) * 8
            if not length or len(text) != length or number in names or any(body[at + EVENT_NAME.size + length:at + padded]):
                raise ProtocolError("EVENTS: a name that is cut off, empty or sent twice")
            names[number] = text.decode()
            at += padded
        if at != len(body) or epoch == 0 or flags & ~1 or (flags and events) or set(names) - {e.namespace for e in events}:
            raise ProtocolError(f"EVENTS: {at} of {len(body)} bytes, epoch {epoch}, flags {flags}")
        return EventsReply(epoch, first, following, bool(flags & 1), events, names, reply.value64)

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
        """Returns one namespace by its name, with its fingerprint."""
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

    def purge_remote(self, namespace=0, everything=False, check=True):
        """The reply: `value` is for how many seconds other hosts may still have it."""
        return self.call(Op.PURGE, struct.pack("<II", namespace, 0), Flag.REMOTE | (Flag.ALL if everything else 0), check=check)

    def sweep(self, limit, dry_run=False, check=True):
        """(seen, bytes, deleted, bytes), or the refusal's reply with check=False."""
        reply = self.call(Op.SWEEP, struct.pack("<QII", limit, 1 if dry_run else 0, 0), check=check)
        return struct.unpack("<4Q", reply.body) if reply.status == Status.OK else reply

    def report(self, what=Report.STATUS):
        return self.text_of(self.call(Op.REPORT, struct.pack("<II", what, 0), n_fds=1))

    def bench(self, action, name="", options=0):
        """A benchmark session, as the object that the reply's JSON is."""
        name = name.encode()
        return json.loads(self.text_of(self.call(Op.BENCH, struct.pack("<BBHI", action, len(name), options, 0) + name, n_fds=1)))

    def text_of(self, reply):
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
