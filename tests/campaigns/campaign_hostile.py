# SPDX-License-Identifier: Apache-2.0
"""hostile: clients that know the protocol attack: forged numbers, seals, descriptors, malformed frames, and memory, registered or not,
that changes or disappears while it is read or written. The daemon must stay up, a bystander must get its bytes, and no byte or name of
another tenant may reach the attacker.

If the campaign may become other users, attacker and victim belong to two tenants, and the victim's chunks carry a mark. The mark is
searched for in everything that the attacker can see: its pool, its staging area and its registered memory, during the attack and after it;
then by a new session in the lookup index and reports, too (marks.py)."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import socket
import struct

import campaign_clientkill
import harness
import kvwire
import marks
from campaign_clientkill import COMMON
from harness import KIB, MIB, items, slow
from kvwire import Ack, Flag, Op, Status, Tier
from marks import user
from oracle import Finding

MALLORY, VICTIM = 20010, 20011
SECRET = [(key, marks.value_of(key, 20000)) for key in (marks.key_of("victim", i) for i in range(64))]
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16
TENANTS = f"""tenants:
  - {{name: mallory, users: [{MALLORY}], pool: 16MiB, stored_bytes: 8MiB}}
  - {{name: victim, users: [{VICTIM}], pool: 16MiB}}
"""
_libc = ctypes.CDLL(None, use_errno=True)


def refused_by_kernel(what, call):
    try:
        call()
    except (OSError, ValueError):
        return
    raise Finding("wrong", f"{what} was allowed")


def fallocate(fd, mode, offset, length):
    if _libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def until_ended(c):
    """Waits until the daemon ends the session, which it must; replies until then are ignored."""
    try:
        while True:
            c.receive(20 * slow())
    except kvwire.SessionEnded:
        return
    except kvwire.ReplyTimeout:
        raise Finding("hung", "a session that must be ended was not") from None


def anything(c, op, body=b"", flags=0):
    """Sends a request; any answer is acceptable, and so is the end of the session."""
    try:
        return c.call(op, body, flags, check=False)
    except (kvwire.SessionEnded, kvwire.ProtocolError):
        return None


# --- the attacks; each gets a session that has sent HELLO ---

def write_to_the_pool(c, rng):
    fd = c.pool_fd
    for opened in (fd, None):
        if opened is None:  # root may open the file again whatever its mode; the seals still protect it
            try:
                opened = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            except OSError:
                continue
        refused_by_kernel("mapping the pool writable",
                          lambda: mmap.mmap(opened, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE))
        refused_by_kernel("writing to the pool", lambda: os.pwrite(opened, b"evil", rng.randrange(c.pool_bytes)))
        refused_by_kernel("shrinking the pool", lambda: os.ftruncate(opened, 4096))
        refused_by_kernel("growing the pool", lambda: os.ftruncate(opened, c.pool_bytes + 4096))
        refused_by_kernel("sealing the pool", lambda: fcntl.fcntl(opened, fcntl.F_ADD_SEALS, 8))
        for mode in (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE):
            refused_by_kernel("a hole in the pool", lambda: fallocate(opened, mode, 0, 2 * MIB))
        if opened != fd:
            os.close(opened)


def lock_the_liveness_file(c, rng):
    for how in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        refused_by_kernel("the lock of the liveness file", lambda: fcntl.flock(c.liveness_fd, how | fcntl.LOCK_NB))
    fcntl.flock(c.liveness_fd, fcntl.LOCK_UN)
    refused_by_kernel("the lock of the liveness file", lambda: fcntl.flock(c.liveness_fd, fcntl.LOCK_SH | fcntl.LOCK_NB))


def numbers_of_others(c, rng):
    own = c.namespace("mine")
    keys = [k for k, _ in SECRET]
    for number in [rng.randrange(2, 300) for _ in range(8)] + [0, 0xffffffff, own + (1 << 31)]:
        for op, entry in ((Op.GET, kvwire.GET_ENTRY.pack(keys[0], 0, 0, 0, 0, 0)), (Op.EXISTS, keys[0]),
                          (Op.STAT, keys[0]), (Op.EVICT, keys[0]), (Op.TOUCH, keys[0]), (Op.MATCH, keys[0])):
            reply = c.call(op, harness.batch_head(number, tiers=3 if op == Op.EVICT else 0) + entry, check=False)
            if reply.status != Status.NO_NAMESPACE:
                raise Finding("wrong", f"{op.name} in namespace {number} that was not opened: {reply.status.name}")
        for op, body in ((Op.LIST, kvwire.LIST.pack(number, 10, 0)), (Op.PURGE, struct.pack("<II", number, 0))):
            if c.call(op, body, check=False).status != Status.NO_NAMESPACE:
                raise Finding("wrong", f"{op.name} of namespace {number} that was not opened")
    if any(c.exists(own, keys)) or any(s.status != Status.MISS for s in c.stat(own, keys)) or c.match(own, keys):
        raise Finding("wrong", "keys of the victim are found")
    if list(c.list_page(own, cursor=rng.getrandbits(rng.choice([8, 20, 40, 64])))[0]) and not list(c.list(own)):
        raise Finding("wrong", "a made-up cursor lists what is not in the namespace")


def names_of_others(c, rng):
    if os.geteuid() != 0:
        return
    reply = [None, None]
    for i, name in enumerate(("secrets", "s" + str(rng.randrange(100000, 999999)))):
        try:
            c.namespace(name, attach=True)
            raise Finding("wrong", f"a namespace that is another tenant's, or no tenant's, was attached: {name}")
        except kvwire.Refused as e:
            reply[i] = e.status
    if reply[0] != reply[1]:
        raise Finding("wrong", f"another tenant's namespace answers {reply[0].name}, one that is not there {reply[1].name}")
    for name in ("default", "victim", "mallory"):  # names under which the store keeps tenants
        try:
            c.namespace(name, attach=True)
            raise Finding("wrong", f"{name} was attached")
        except kvwire.Refused:
            pass


def what_admins_do(c, rng):
    if os.geteuid() != 0:
        return
    for op, body, flags in ((Op.PURGE, struct.pack("<II", 0, 0), Flag.ALL),
                            (Op.REPORT, struct.pack("<II", kvwire.Report.CONFIG, 0), 0)):
        reply = c.call(op, body, flags, check=False)
        if reply.status != Status.DENIED:
            raise Finding("wrong", f"{op.name} that only an admin may: {reply.status.name}")
    for op in (16, 17):
        if op in list(Op):
            anything(c, Op(op), bytes(32))


def places_that_are_not_there(c, rng):
    ns = c.namespace("mine")
    size = c.staging(rng.choice([4096, MIB])) or c.staging_bytes
    far = [size, size - 1, size + 4096, 1 << 32, (1 << 64) - 1, (1 << 64) - size, 1 << 63]
    for offset in far:
        for length in (2, size + 1, 0xffffffff, 1 << 31):
            entry = kvwire.PUT_ENTRY.pack(rng.randbytes(32), offset, length, 0, 0)
            if c.put_results(c.wait(c.submit_batch(Op.PUT, ns, [entry])), 1)[0].status not in (Status.INVALID,
                                                                                              Status.TOO_LARGE):
                raise Finding("wrong", f"a put from {offset}, {length} bytes of a staging area of {size}")
    key, value = rng.choice(COMMON)
    common = c.namespace("common")
    c.put(common, [(key, value)] if len(value) <= c.staging_bytes else [(key, value[:1000])])
    for offset in far:
        entry = kvwire.GET_ENTRY.pack(key, 0, 0, offset, 1 + min(size, 20000), 0)
        result, = c.get_results(c.wait(c.submit_batch(Op.GET, common, [entry], flags=Flag.INTO)), 1, [0])
        if result.status == Status.OK:
            raise Finding("wrong", f"a get into {offset} of a staging area of {size}")
    for region in (1, 7, 0xffffffff):
        entry = kvwire.PUT_ENTRY.pack(rng.randbytes(32), 0, 100, region, 0)
        if c.put_results(c.wait(c.submit_batch(Op.PUT, ns, [entry])), 1)[0].status != Status.INVALID:
            raise Finding("wrong", f"a put from region {region}")
    for at, length in ((len(value), 1), (0, len(value) + 1), (0xffffffff, 0xffffffff), (1, 0xffffffff)):
        result, = c.get(common, [key], ranges=[(at, length)])
        if result.status == Status.OK:
            raise Finding("wrong", f"the range {at}, {length} of {result.chunk_length} bytes")


def leases_of_others(c, rng):
    ns = c.namespace("mine")
    c.put(ns, items(("l", rng.random()), 4, 1000))
    results = c.get(ns, [k for k, _ in items(("l", 0), 1, 10)])
    forged = [(rng.randrange(64), rng.choice([0, 1, 2, 3, 0xffffffff])) for _ in range(50)]
    forged += [(0xffffffff, 1), (1 << 22, 1)]
    if c.release(forged) != len(forged):
        raise Finding("wrong", "a lease of another session was released")
    key, value = items(("own", rng.random()), 1, 5000)[0]
    c.put(ns, [(key, value)])
    lease = c.get(ns, [key])[0].lease
    if c.release([lease, lease, (lease[0], lease[1] + 1)]) != 2:
        raise Finding("wrong", "a lease was released twice")
    del results


def broken_frames(c, rng):
    good = [harness.frame(Op.PING, b"x" * rng.randrange(30)),
            harness.frame(Op.GET, harness.batch_head(1) + bytes(56)),
            harness.frame(Op.PUT, harness.batch_head(1, ack=2) + bytes(56)),
            harness.frame(Op.LIST, kvwire.LIST.pack(1, 5, 0)),
            harness.frame(Op.NAMESPACE, struct.pack("<QHHI", 0, 1, 0, 0) + b"n"),
            harness.frame(Op.RELEASE, harness.batch_head(0, 0, 1) + bytes(8))]
    message = bytearray(rng.choice(good))
    how = rng.randrange(6)
    if how == 0:  # a wrong length
        struct.pack_into("<I", message, 0, rng.choice([0, 1, len(message) - 1, len(message) + 1, 0xffffffff]))
    elif how == 1:
        struct.pack_into("<H", message, 4, rng.choice([0, 200, 0xffff, 0x8001]))
    elif how == 2:
        struct.pack_into("<H", message, 6, rng.choice([0x80, 0x4000, 0xffff]))
    elif how == 3:
        message = message[:rng.randrange(16)]
    elif how == 4:
        message += rng.randbytes(rng.randrange(1, 60000))
    else:
        message = bytearray(struct.pack("<IHHQ", 80, Op.HELLO, 0, 1)) + bytes(64)
    c.send(bytes(message))
    until_ended(c)


def noise(c, rng):
    """Sends frames that are partly valid."""
    for _ in range(rng.randint(1, 30)):
        body = rng.randbytes(rng.choice([0, 8, 16, 24, 48, 104, 1000]))
        if anything(c, rng.choice(list(Op)), body, rng.choice([0, 0, 1, 2, 4, 64])) is None:
            return


def descriptors(c, rng):
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(rng.choice([1, 4, 5, 60]))]
    try:
        c.sock.setblocking(True)
        socket.send_fds(c.sock, [harness.frame(rng.choice([Op.PING, Op.GET, Op.STAGING]), bytes(16))], fds)
    finally:
        for fd in fds:
            os.close(fd)
    c.sock.setblocking(False)
    until_ended(c)


def a_staging_that_changes(c, rng):
    """Changes memory while the daemon copies it: the stored chunk must still be consistent."""
    ns = c.namespace("mine")
    c.staging(2 * MIB)
    keys = [rng.randbytes(32) for _ in range(8)]
    tags = []
    for key in keys:
        entries = [kvwire.PUT_ENTRY.pack(key, 0, 256 * KIB, 0, 0)]
        tags.append(c.submit_batch(Op.PUT, ns, entries))
        c.staging_write(rng.randrange(128 * KIB), rng.randbytes(64 * KIB))
    for tag in tags:
        c.wait(tag, check=False)
    for key in keys:
        once, again = c.value(ns, key), c.value(ns, key)
        if once is not None and again is not None and once != again:
            raise Finding("wrong", "a chunk that was put from a changing staging area changes")


def holes_under_the_staging(c, rng):
    reply = c.call(Op.STAGING, struct.pack("<Q", 2 * MIB), n_fds=1)
    fd, = reply.fds
    c.staging_bytes = 2 * MIB
    c.staging_map = mmap.mmap(fd, 2 * MIB)
    ns = c.namespace("mine")
    refused_by_kernel("shrinking the staging area", lambda: os.ftruncate(fd, 0))
    tags = []
    for i in range(20):
        key = rng.randbytes(32)
        tags.append(c.submit_batch(Op.PUT, ns, [kvwire.PUT_ENTRY.pack(key, rng.randrange(MIB), MIB, 0, 0)]))
        tags.append(c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, rng.randrange(MIB), MIB, 0)],
                                   flags=Flag.INTO))
        with contextlib.suppress(OSError):
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, rng.randrange(256) * 4096, MIB)
    os.close(fd)
    for tag in tags:
        if c.wait(tag, check=False).status not in (Status.OK, Status.BUSY, Status.QUOTA):
            raise Finding("wrong", "a request from a staging area with holes")


def descriptors_to_register(c, rng):
    """Registers descriptors of all kinds, none of them valid."""
    def memfd(size, seals, present):
        fd = os.memfd_create("evil", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        if present:
            os.pwrite(fd, bytes(size), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    def readonly():
        fd = memfd(MIB, kvwire.F_SEAL_SHRINK, True)
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        finally:
            os.close(fd)

    for make in (lambda: memfd(MIB, kvwire.F_SEAL_SHRINK, False), readonly,
                 lambda: memfd(MIB, kvwire.F_SEAL_SHRINK | kvwire.F_SEAL_WRITE, True), lambda: os.dup(c.pool_fd),
                 lambda: os.dup(c.liveness_fd), lambda: os.dup(c.sock.fileno()), lambda: os.open("/dev/zero", os.O_RDWR),
                 lambda: os.open("/", os.O_RDONLY), lambda: os.open("/proc/self/mem", os.O_RDWR),
                 lambda: os.memfd_create("empty"), lambda: memfd(100, kvwire.F_SEAL_SHRINK, True)):
        fd = make()
        try:
            reply = c.register(fd, MIB, check=False)
        finally:
            os.close(fd)
        if not isinstance(reply, kvwire.Reply):
            raise Finding("wrong", f"what must not be registered is region {reply}")
    fd = memfd(MIB, kvwire.F_SEAL_SHRINK, True)
    for offset, size in ((0, 2 * MIB), (MIB, 4096), (1, 4096), (0, 1 << 63), ((1 << 64) - 4096, 4095), (0, 100)):
        reply = c.register(fd, size, offset, check=False)
        if not isinstance(reply, kvwire.Reply):
            raise Finding("wrong", f"{size} bytes at {offset} of 1 MiB are region {reply}")
    os.close(fd)


def more_buffers_than_allowed(c, rng):
    """Registers invalid ranges and sizes, and the same memory repeatedly; half of the regions stay until the session ends."""
    number, mapping, fd = campaign_clientkill.lend(c, 8 * MIB)
    regions = [number]
    for _ in range(rng.randint(1, 100)):
        reply = c.register(fd, rng.choice([4096, MIB, 8 * MIB]), check=False)
        if not isinstance(reply, kvwire.Reply):
            regions.append(reply)
        elif reply.status not in (Status.INVALID, Status.QUOTA, Status.BUSY):
            raise Finding("wrong", f"a registration too many is answered {reply.status.name}")
    if len(regions) > 64:
        raise Finding("wrong", f"a session has {len(regions)} regions")
    for region in regions[::2]:
        c.unregister(region)
        if c.unregister(region, check=False).status != Status.INVALID:
            raise Finding("wrong", "a region was unregistered twice")
    for region in [regions[0], 0, 65, 1 << 31, 0xffffffff]:
        if c.unregister(region, check=False).status != Status.INVALID:
            raise Finding("wrong", f"region {region} was unregistered")
    os.close(fd)
    mapping.close()


def regions_of_others(c, rng):
    """Unregisters every number, and uses memory after its unregistration."""
    ns = c.namespace("mine")
    number, mapping, fd = campaign_clientkill.lend(c, MIB)
    key = rng.randbytes(32)
    c.put_from(ns, [(key, (0, 50000, number))])
    places = [(MIB, 1), (MIB - 1, 2), (1 << 63, 10), ((1 << 64) - 1, 10), (0, 0xffffffff), (4096, MIB)]
    for at, length in places:
        results = c.put_from(ns, [(rng.randbytes(32), (at, length, number))])
        results += c.get_to(ns, [(key, (at, length, number))])
        results += c.get_to(ns, [(key, [(0, 100, number), (at, min(length, 1 << 30), number)])])
        if any(r.status not in (Status.INVALID, Status.TOO_LARGE) for r in results):
            raise Finding("wrong", f"{length} bytes at {at} of a region of 1 MiB: {results}")
    c.unregister(number)
    for region in [number, number + 1, rng.randrange(1, 65), 64, 65, 1 << 31]:
        results = c.put_from(ns, [(rng.randbytes(32), (0, 100, region))]) + c.get_to(ns, [(key, (0, 50000, region))])
        if any(r.status != Status.INVALID for r in results):
            raise Finding("wrong", f"region {region}, which is not this session's: {results}")
    os.close(fd)
    mapping.close()


def tormented(c, rng, on_shm, harm):
    """Puts and gets in all ways from and to memory that is changed meanwhile. Each request must be answered."""
    ns, common = c.namespace("mine"), c.namespace("common")
    size = 2 * MIB
    number, mapping, fd = campaign_clientkill.lend(c, size, on_shm)
    c.put(common, COMMON[:8])
    keys, tags = [], []
    for i in range(40):
        length = rng.choice([5000, 64 * KIB, MIB])
        at = rng.choice([0, 4096, MIB - 4096, 77])
        place = [(at, length - 1, number), (0, 1, number)] if rng.random() < 0.2 else (at, length, number)
        if rng.random() < 0.6:
            keys.append(rng.randbytes(32))
            tags.append(c.submit_put_from(ns, [(keys[-1], place)], ack=rng.choice(list(Ack))))
        else:
            tags.append(c.submit_get_to(common, [(rng.choice(COMMON[:8])[0], place)]))
        harm(fd, mapping, size)
    for tag in tags:
        if c.wait(tag, check=False).status not in (Status.OK, Status.BUSY, Status.QUOTA):
            raise Finding("wrong", "a request that names memory which suffers")
    if on_shm:
        os.ftruncate(fd, size)
    for key in keys:
        once = c.value(ns, key)
        c.evict(ns, [key], Tier.MEMORY)
        again = c.value(ns, key)
        if once is not None and again is not None and once != again:
            raise Finding("wrong", "a chunk that was put from memory which suffers changes")
    for key, value in COMMON[:8]:
        if c.value(common, key) not in (None, value):
            raise Finding("wrong", "a chunk that was got into memory which suffers is another one")
    os.close(fd)
    c.lent = [mapping]


def registered_memory_that_changes(c, rng):
    def harm(fd, mapping, size):
        at = rng.randrange(size - 64 * KIB)
        mapping[at:at + 64 * KIB] = rng.randbytes(64 * KIB)
    tormented(c, rng, False, harm)


def holes_in_registered_memory(c, rng):
    def harm(fd, mapping, size):
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, rng.randrange(size // 4096) * 4096, MIB)
    tormented(c, rng, False, harm)


def registered_files_that_are_cut(c, rng):
    def harm(fd, mapping, size):
        with contextlib.suppress(OSError):  # the memfd may be sealed
            os.ftruncate(fd, rng.choice([0, 4096, MIB, 100]))
            if rng.random() < 0.6:
                os.ftruncate(fd, size)
    tormented(c, rng, True, harm)


def a_tally_that_lies(c, rng):
    """Overwrites the session's counters of lookups: with any values, in all places, and with holes. Other sessions' counters must stay
    right: see check_counts()."""
    numbers = [c.namespace(name) for name in ("mine", "common")]
    fd = c.tally()
    try:
        page = mmap.mmap(fd, kvwire.TALLY_BYTES)
        for size in (0, 2 * kvwire.TALLY_BYTES):
            refused_by_kernel("resizing the tally", lambda: os.ftruncate(fd, size))
        refused_by_kernel("sealing the tally", lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_WRITE))
        for _ in range(20):
            page[:] = rng.choice([rng.randbytes(kvwire.TALLY_BYTES), b"\xff" * kvwire.TALLY_BYTES])
            if rng.random() < 0.3:
                fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kvwire.TALLY_BYTES)
            c.match(rng.choice(numbers), [rng.randbytes(32)])
            c.report(rng.choice([kvwire.Report.METRICS, kvwire.Report.STATUS]))
        page.close()
    finally:
        os.close(fd)


def never_ending_chains(c, rng):
    ns = c.namespace("mine")
    for i in range(rng.randint(1, 200)):
        keys = [rng.randbytes(32) for _ in range(rng.randint(1, 300))]
        c.touch(ns, keys, more=True)


def more_than_its_share(c, rng):
    """Takes all it can: leases, keys in flight, chunks, namespaces."""
    ns = c.namespace("mine")
    pairs = items(("share", rng.random()), 40, 100 * KIB)
    harness.put_all(c, ns, pairs, ack=Ack.WRITTEN, timeout_ms=5000)
    c.get(ns, [k for k, _ in pairs], nowait=True)
    keys = [rng.randbytes(32) for _ in range(1024)]
    tags = [c.submit_batch(rng.choice([Op.EXISTS, Op.TOUCH, Op.MATCH]), ns, keys) for _ in range(32)]
    for tag in tags:
        c.wait(tag, check=False)
    for i in range(rng.randint(1, 40)):
        anything(c, Op.NAMESPACE, struct.pack("<QHHI", rng.choice([0, 4096, 1 << 63]), 6, 0, 0) + b"%06d" % i)


ATTACKS = [write_to_the_pool, lock_the_liveness_file, numbers_of_others, names_of_others, what_admins_do,
           places_that_are_not_there, leases_of_others, broken_frames, noise, descriptors, a_staging_that_changes,
           holes_under_the_staging, descriptors_to_register, more_buffers_than_allowed, regions_of_others,
           registered_memory_that_changes, holes_in_registered_memory, registered_files_that_are_cut, a_tally_that_lies,
           never_ending_chains, more_than_its_share]


class Campaign(campaign_clientkill.Campaign):
    LIFE = 100

    def __init__(self, directory, seed, facts):
        rng = random.Random(seed)
        self.facts, self.number, self.monitor, self.children, self.memory = facts, 0, None, {}, None
        self.daemon = harness.Daemon(directory, campaign_clientkill.LEG, settings={
            "memory.pool": "32MiB", "store.limit": "64MiB", "log.level": "error", "listen.mode": "0666",
            "io.backend": rng.choice(["auto", "posix"])})
        if os.geteuid() == 0:
            self.daemon.config = self.daemon.directory / "kvcache.yaml"
            self.daemon.config.write_text(TENANTS)
        self.daemon.start()
        with user(VICTIM):
            self.victim = self.daemon.client(name="victim", timeout=60 * slow())
        self.ns = self.victim.namespace("secrets")
        harness.put_all(self.victim, self.ns, SECRET, ack=Ack.WRITTEN)
        with user(MALLORY), self.daemon.client() as c, contextlib.closing(c.lookup()):
            pass  # the index of its tenant, which stays
        self.daemon.populated_status()
        self.monitor = self.daemon.client(name="monitor", timeout=60 * slow())
        harness.wait_until(lambda: self.holdings()["connections"] == 2, "the first clients have closed", 20)
        self.before = self.holdings()
        self.order, self.looked_up = [], 0

    def look_for_the_mark(self, c):
        if os.geteuid() != 0:
            return  # attacker and victim belong to one tenant
        memory = [c.pool, c.staging_map, *getattr(c, "lent", [])]
        if any(m is not None and marks.find(m, ["victim"]) for m in memory):
            raise Finding("wrong", "the victim's bytes are where the attacker sees them")

    def scan_anew(self, where):
        """Checks what a new session sees, at first and after it has requested the victim's data."""
        if os.geteuid() != 0:
            return
        with user(MALLORY):
            c = self.daemon.client(name="mallory", timeout=60 * slow())
        with c:
            c.staging(MIB)
            marks.scan(c, "mallory", ["victim"], (), True, where, self.facts)
            c.get(c.namespace("mine"), [key for key, _ in SECRET])
            c.get_into(c.namespace("mine"), [key for key, _ in SECRET], 16000)
            marks.scan(c, "mallory", ["victim"], (), False, where, self.facts)

    def check_victim(self):
        """Checks that all chunks are stored, byte for byte."""
        for i in range(0, len(SECRET), 16):
            part = SECRET[i:i + 16]
            for (key, value), result in zip(part, self.victim.get_into(self.ns, [k for k, _ in part], 20000)):
                if result.status != Status.OK or result.data != value:
                    raise Finding("wrong", f"the victim got {result}")
            if not marks.find(self.victim.staging_read(0, MIB), ["victim"]):
                raise Finding("wrong", "the scan does not see the victim's bytes where they are")
            self.looked_up += len(part)
            if not all(t & Tier.DISK for t in self.victim.exists(self.ns, [k for k, _ in part])):
                raise Finding("lost", "the victim's chunks left the disk")

    def check_counts(self):
        """Checks that the victim's lookups are counted as the victim made them."""
        if os.geteuid() != 0:
            return  # attacker and victim belong to one tenant
        samples = harness.parse_metrics(self.monitor.report(kvwire.Report.METRICS))
        for name in ("lookup_keys", "lookup_found_keys"):
            said = samples[f'kvcache_tenant_{name}_total{{tenant="victim"}}']
            if said != self.looked_up:
                raise Finding("wrong", f"{name} of the victim: {said} instead of {self.looked_up}")

    def run(self, rng, left):
        if not self.order:
            self.order = list(ATTACKS)
            rng.shuffle(self.order)
        attack = self.order.pop()
        try:
            with user(MALLORY):
                c = self.daemon.client(name="mallory", timeout=60 * slow())
            try:
                attack(c, rng)
                self.look_for_the_mark(c)
                self.check_victim()  # the victim's own gets must leave nothing visible to the attacker either
                self.look_for_the_mark(c)
            finally:
                c.close()
            self.scan_anew("afterwards")
            self.check_victim()
            self.check_counts()
            harness.wait_until(lambda: self.holdings() == self.before,
                               lambda: f"{self.before} after {attack.__name__}; it is {self.holdings()}", 20)
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"{attack.__name__}: {e}") from None
        except (kvwire.WireError, OSError, AssertionError) as e:
            raise Finding("wrong", f"{attack.__name__}: {type(e).__name__}: {e}; the daemon's status is "
                          f"{self.daemon.process.poll()}") from e
        except Finding as e:
            raise Finding(e.kind, f"{attack.__name__}: {e.text}") from None
        self.facts.add(attack.__name__)
        return 1

    def end(self):
        self.victim.close()
        self.monitor.close()
        try:
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None
