# SPDX-License-Identifier: Apache-2.0
"""Payloads in which every sector identifies its tenant, and a scan of all memory that a client can see for the marks of other tenants
(rule R1): its pool, its staging area, each of its registered regions as a whole, its lookup index, and the files of its reports,
regardless of the lengths that the daemon states."""

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct

import kvwire
import users
from kvwire import Ack, Op, Report, Status, Tier
from oracle import Finding

SECTOR, MARK = 512, 16


def user(uid):
    """Lets this process connect as the user, if it may."""
    return users.user(uid) if os.geteuid() == 0 else contextlib.nullcontext()


def mark_of(tenant):
    return hashlib.sha256(f"a mark of {tenant}".encode()).hexdigest()[:MARK].encode()


def key_of(tenant, *name):
    """Returns a key that contains the mark."""
    return mark_of(tenant) + hashlib.sha256(repr(name).encode()).digest()[:32 - MARK]


def value_of(key, length):
    """Returns a payload for a key of key_of(): any 64 bytes of it show the mark, and no two sectors are equal."""
    unit = key + hashlib.sha256(key).digest()[:24]
    return b"".join((unit + n.to_bytes(8, "little")) * (SECTOR // 64) for n in range(-(-length // SECTOR)))[:length]


def stamped(tenant, data):
    """Returns a payload with the mark in each sector that has room for it. The first bytes are unchanged."""
    mark, stamped = mark_of(tenant), bytearray(data)
    for at in range(SECTOR // 2, len(stamped) - MARK + 1, SECTOR):
        stamped[at:at + MARK] = mark
    return bytes(stamped)


def report_files(client):
    """Yields (name, content) of each report that the client may read: the whole file, not only the text."""
    for what in Report:
        reply = client.call(Op.REPORT, struct.pack("<II", what, 0), check=False, n_fds=1)
        if reply.status == Status.OK:
            fd, = reply.fds
            try:
                yield f"report {what.name}", os.pread(fd, os.fstat(fd).st_size, 0)
            finally:
                os.close(fd)


def memory_of(client, regions=(), everything=True):
    """Yields (name, content) of all that the client can see. Without `everything`: only memory that receives the results of gets."""
    yield "the pool", client.pool
    if client.staging_map is not None:
        yield "the staging area", client.staging_map
    for i, region in enumerate(regions):
        yield f"registered region {i}", region
    if not everything:
        return
    index = client.lookup(check=False)
    if isinstance(index, kvwire.Lookup):
        with contextlib.closing(index):
            yield "the lookup index", index.map
    yield from report_files(client)


def find(memory, others):
    """Returns (tenant, offset) of the first mark of one of these tenants, or None."""
    content = memory[:] if isinstance(memory, mmap.mmap) else memory  # find() on a mapping is slow
    for tenant in others:
        at = content.find(mark_of(tenant))
        if at >= 0:
            return tenant, at
    return None


def scan(client, tenant, others, regions=(), everything=True, where="", facts=None):
    """Checks that the client of `tenant` sees no mark of the others."""
    for name, memory in memory_of(client, regions, everything):
        found = find(memory, others)
        if found:
            other, at = found
            raise Finding("wrong", f"{where}: bytes of {other} at {at:#x} of {name} of {tenant}: "
                          f"{memory[at & ~63:(at & ~63) + 128]!r}")
        if facts is not None:
            facts.add("scanned_mib", len(memory) >> 20)
            facts.add("scans_that_saw_own_bytes", find(memory, [tenant]) is not None)


ONLOOKER = 20031
ONLOOKERS_TENANT = f"tenants:\n  - {{name: onlooker, users: [{ONLOOKER}], pool: 16MiB}}\n"


def onlooker_config(directory):
    """Returns a configuration with a tenant besides the default one, or None if this process cannot become its user."""
    if os.geteuid() != 0:
        return None
    path = directory / "onlooker.yaml"
    path.write_text(ONLOOKERS_TENANT)
    os.chmod(path, 0o644)
    return path


def look_on(daemon, others, keys, where, facts):
    """Runs a client of the onlooker: it puts and gets with each kind of memory, also requests others' `keys`, and scans all that it sees
    before and after."""
    fd = os.memfd_create("onlooker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, bytes(1 << 20), 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
    with contextlib.closing(mmap.mmap(fd, 1 << 20)) as region:
        try:
            with user(ONLOOKER):
                c = daemon.client(name="onlooker")
            with c:
                c.staging(1 << 20)
                number = c.register(fd, 1 << 20)
                scan(c, "onlooker", others, [region], False, where, facts)
                ns = c.namespace("onlooker")
                own = [(key, value_of(key, n)) for n in (1000, 4096, 70000) for key in [key_of("onlooker", n)]]
                c.put(ns, own, ack=Ack.WRITTEN)
                names = [key for key, _ in own] + list(keys)[:32]
                for get in (lambda: c.get(ns, names), lambda: c.get_into(ns, names, 28 << 10),
                            lambda: c.get_to(ns, [(k, (i * 28672 + i % 2, 28000, number)) for i, k in enumerate(names)])):
                    c.evict(ns, names, Tier.MEMORY)
                    results = get()
                    c.release([r.lease for r in results if r.lease])
                    if any(r.status == Status.OK for r in results[len(own):]):
                        raise Finding("wrong", f"{where}: a hit of another tenant's key")
                scan(c, "onlooker", others, [region], True, where, facts)
        finally:
            os.close(fd)
