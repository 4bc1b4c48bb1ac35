# SPDX-License-Identifier: Apache-2.0
"""Payloads whose every sector says which tenant it belongs to, and a scan of all the memory that a client can see for the
marks of other tenants (rule R1): its pool, its lane, all of each region that it has registered, its look-up index, and
the files of its reports, whatever the daemon has said of the lengths that are in use.
"""

import contextlib
import hashlib
import mmap
import os
import struct

import kvwire
from kvwire import Op, Report, Status
from oracle import Finding

SECTOR, MARK = 512, 16


@contextlib.contextmanager
def user(uid):
    """This process connects as that user, if it may become it."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def mark_of(tenant):
    return hashlib.sha256(f"a mark of {tenant}".encode()).hexdigest()[:MARK].encode()


def key_of(tenant, *name):
    """A key that carries the mark itself."""
    return mark_of(tenant) + hashlib.sha256(repr(name).encode()).digest()[:32 - MARK]


def value_of(key, length):
    """A payload for a key of key_of(): 64 bytes of it are enough to see the mark, and no two sectors are alike."""
    unit = key + hashlib.sha256(key).digest()[:24]
    return b"".join((unit + n.to_bytes(8, "little")) * (SECTOR // 64) for n in range(-(-length // SECTOR)))[:length]


def stamped(tenant, data):
    """Another payload, with the mark in each sector that has room for it. The first bytes stay as they are."""
    mark, stamped = mark_of(tenant), bytearray(data)
    for at in range(SECTOR // 2, len(stamped) - MARK + 1, SECTOR):
        stamped[at:at + MARK] = mark
    return bytes(stamped)


def report_files(client):
    """(name, content) of each report that this client is given: the whole file, not only the text."""
    for what in Report:
        reply = client.call(Op.REPORT, struct.pack("<II", what, 0), check=False, n_fds=1)
        if reply.status == Status.OK:
            fd, = reply.fds
            try:
                yield f"report {what.name}", os.pread(fd, os.fstat(fd).st_size, 0)
            finally:
                os.close(fd)


def memory_of(client, regions=(), everything=True):
    """(name, content) of what a client can see. Without `everything`: only what gets are answered in."""
    yield "the pool", client.pool
    if client.lane_map is not None:
        yield "the lane", client.lane_map
    for i, region in enumerate(regions):
        yield f"registered region {i}", region
    if not everything:
        return
    index = client.lookup(check=False)
    if isinstance(index, kvwire.Lookup):
        with contextlib.closing(index):
            yield "the look-up index", index.map
    yield from report_files(client)


def find(memory, others):
    """(tenant, offset) of the first mark of one of these tenants, or None."""
    content = memory[:] if isinstance(memory, mmap.mmap) else memory  # find() of a mapping is slow
    for tenant in others:
        at = content.find(mark_of(tenant))
        if at >= 0:
            return tenant, at
    return None


def scan(client, tenant, others, regions=(), everything=True, where="", facts=None):
    """Nothing of the others is in what this client of `tenant` can see."""
    for name, memory in memory_of(client, regions, everything):
        found = find(memory, others)
        if found:
            other, at = found
            raise Finding("wrong", f"{where}: bytes of {other} at {at:#x} of {name} of {tenant}: "
                          f"{memory[at & ~63:(at & ~63) + 128]!r}")
        if facts is not None:
            facts.add("scanned_mib", len(memory) >> 20)
            facts.add("scans_that_saw_own_bytes", find(memory, [tenant]) is not None)
