# SPDX-License-Identifier: Apache-2.0
"""The memory pool survives a planned restart, and nothing else. The next daemon serves only bytes that were put; chunks that clients of the last
one had leased do not change until these close; and after a crash, or with a damaged map, everything comes from the disk.

A manager in Python replaces systemd: it keeps the descriptors that a daemon passes to it, and starts the next one with them. The two mounts
are in a separate mount namespace, so this needs root.
"""

import array
import contextlib
import fcntl
import mmap
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import harness
import kvwire
from harness import KIB, MIB, items, key_of, put_all, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from test_systemd import ACTIVATE, need_systemd

MAP = "kept-map"
HEAD = struct.Struct("<8sIIQQ16sQIIQII")  # daemon/keep/format.h
CHUNK_BYTES = 88


class Manager:
    """Keeps descriptors by name, `room` of them at most, as systemd's FileDescriptorStoreMax= has it."""

    def __init__(self, directory, room=4096):
        self.path = str(directory / "notify")
        self.room, self.kept, self.refused = room, [], 0
        self.ready = threading.Event()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                data, control, _, _ = self.sock.recvmsg(4096, socket.CMSG_SPACE(64))
            except OSError:
                return
            fds = array.array("i")
            for level, kind, text in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(text[:len(text) - len(text) % fds.itemsize])
            lines = data.decode().splitlines()
            if lines == ["end"]:
                return
            fields = dict(line.split("=", 1) for line in lines if "=" in line)
            with self.lock:
                self._handle(fields, list(fds))
            if fields.get("READY") == "1":
                self.ready.set()

    def _handle(self, fields, fds):
        name = fields.get("FDNAME", "stored")
        if fields.get("FDSTOREREMOVE") == "1":
            for fd in [fd for n, fd in self.kept if n == name]:
                os.close(fd)
            self.kept = [(n, fd) for n, fd in self.kept if n != name]
        if fields.get("FDSTORE") == "1":
            for fd in fds:
                if len(self.kept) < self.room:
                    self.kept.append((name, fd))
                else:
                    os.close(fd)
                    self.refused += 1
        else:
            for fd in fds:  # closing the descriptor of BARRIER=1 signals that everything before it was seen
                os.close(fd)

    def names(self):
        with self.lock:
            return [name for name, _ in self.kept]

    def fd(self, name):
        with self.lock:
            return next(fd for n, fd in self.kept if n == name)

    def close(self):
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as s:
            s.sendto(b"end", self.path)
        self.thread.join()
        self.sock.close()
        for _, fd in self.kept:
            os.close(fd)
        self.kept = []


@pytest.fixture(scope="module")
def mounts(base_directory):
    """Provides a mount namespace with the two mounts: the process that holds it, and the directory."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("needs root, and unshare, for mounts")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="memory-", dir=base_directory))  # other files use this fixture, too
    for name in ("rw", "ro", "writable"):
        (directory / name).mkdir(parents=True)
    script = (f"mount --make-rprivate / && mount -t tmpfs -o size=0,huge=advise,mode=0700 none {directory}/rw && "
              f"mount --bind {directory}/rw {directory}/ro && mount -o remount,bind,ro {directory}/ro && echo ok && exec cat")
    process = harness.spawn(["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    line = process.stdout.readline()
    if line != "ok\n":
        process.communicate()
        pytest.skip(f"cannot mount here: {line.strip()}")
    yield process.pid, directory
    process.communicate()


class Service:
    """A daemon under the manager. stop() and start() correspond to `systemctl restart`."""

    def __init__(self, make_daemon, directory, mounts, room=4096, keep="auto", settings=None):
        pid, memory = mounts
        self.manager = Manager(directory, room)
        self.daemon = need_systemd(make_daemon(settings={"memory.directory": memory, "memory.keep": keep, **(settings or {})},
                                               env={"NOTIFY_SOCKET": self.manager.path}))
        self.prefix = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"] if pid else []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(self.daemon.socket)
        self.socket.listen(64)
        self.used = None  # processor time until it was READY

    def start(self):
        """Starts a daemon with the manager's descriptors, and waits until it is READY and its pool has its memory."""
        with self.manager.lock:
            kept = list(self.manager.kept)
        fds = [self.socket.fileno()] + [fd for _, fd in kept]
        names = ":".join(["kvcache"] + [name for name, _ in kept])
        self.daemon.prefix = self.prefix + [sys.executable, "-c", ACTIVATE, ",".join(map(str, fds)), names]
        self.daemon.pass_fds = tuple(fds)
        self.manager.ready.clear()
        began = time.monotonic()
        self.daemon.spawn()
        while not self.manager.ready.wait(0.01):
            assert self.daemon.process.poll() is None, self.daemon.log()
            assert time.monotonic() < began + 60 * harness.slow()
        self.used = self.daemon.cpu_seconds()
        return self.daemon.wait_started()

    def restart(self):
        self.daemon.stop()
        return self.start()

    def kept(self):
        return self.daemon.status()["kept_memory"]

    def verified(self):
        """Waits until all kept chunks are verified. Returns their status."""
        wait_until(lambda: self.kept()["pending"] == 0, "all that was kept is verified", 60)
        return self.kept()

    def close(self):
        self.socket.close()
        self.manager.close()


@pytest.fixture
def service(make_daemon, directory, mounts):
    made = []

    def make(**how):
        (directory / f"m{len(made)}").mkdir()
        made.append(Service(make_daemon, directory / f"m{len(made)}", mounts, **how))
        return made[-1]
    yield make
    for s in made:
        with contextlib.suppress(Exception):
            s.daemon.note_metrics()
            s.daemon.stop()
        s.close()


def fill(daemon, name, count, length=256 * KIB):
    pairs = items(name, count, length)
    with daemon.client() as c:
        put_all(c, c.namespace(name), pairs, ack=Ack.WRITTEN)
    return pairs


def read(client, namespace, pairs):
    """Gets the pairs. Returns (tier, whether the bytes are right) of each."""
    out = []
    for at in range(0, len(pairs), 16):
        part = pairs[at:at + 16]
        results = client.get(namespace, [k for k, _ in part], timeout_ms=60000)
        out += [(r.tier if r.status == Status.OK else None, r.status == Status.OK and r.data == v)
                for r, (_, v) in zip(results, part)]
        client.release([r.lease for r in results if r.lease])
    return out


def test_a_planned_restart_keeps_the_pool(service):
    s = service(settings={"memory.pool": "256MiB", "store.limit": "1GiB", "memory.staging": "64MiB"})
    daemon = s.start()
    daemon.populated_status()
    assert daemon.status()["kept_memory"]["ready"], daemon.log()
    pairs = fill(daemon, "warm", 600)
    for _ in range(2):
        daemon = s.restart()
        assert s.used < 2 * harness.slow(), f"READY after {s.used:.2f} s of processor time"
        kept = s.verified()
        assert kept["chunks"] >= len(pairs) and kept["verified"] == kept["chunks"], (kept, daemon.log())
        with daemon.client() as c:
            got = read(c, c.namespace("warm"), pairs)
        assert all(right for _, right in got)
        assert sum(tier == Tier.MEMORY for tier, _ in got) >= 0.95 * len(pairs)
        assert daemon.metric('kvcache_kept_chunks_total{result="verified"}') == kept["verified"]
    print(f"READY after {s.used:.2f} s of processor time; {kept['verified']} of {kept['chunks']} chunks, "
          f"{kept['verified_bytes'] / MIB:.0f} MiB verified in {kept['verify_seconds']:.3f} s")
    assert "memory kept" in harness.ctl("status", daemon=daemon, check=0).stdout


def test_R11_a_leased_chunk_is_unchanged_after_two_restarts(service):
    """Evicted, purged or still cached: as long as its client's end of the old socket is open, and no longer."""
    s = service()
    daemon = s.start()
    pairs = fill(daemon, "leased", 12, 256 * KIB)
    holder = daemon.client(name="holder")
    ns = holder.namespace("leased")
    held = holder.get(ns, [k for k, _ in pairs])
    assert all(r.lease for r in held)
    with daemon.client() as c:
        assert c.evict(c.namespace("leased"), [k for k, _ in pairs[:4]]) == [Status.OK] * 4
    for round in range(2):
        daemon = s.restart()
        assert daemon.metric("kvcache_kept_clients") == 1 and daemon.metric("kvcache_kept_leases") == 12
        s.verified()
        with daemon.client() as c:
            ns = c.namespace("leased")
            got = read(c, ns, pairs)
            assert [tier for tier, _ in got[:4]] == [None] * 4, "what was evicted is not found again"
            assert all(right and tier == Tier.MEMORY for tier, right in got[4:])
            if round == 1:
                c.purge(ns)
            flood = items(f"flood{round}", 384, 256 * KIB)  # three times the pool
            put_all(c, c.namespace("flood"), flood, ack=Ack.WRITTEN)
            assert all(right for tier, right in read(c, c.namespace("flood"), flood) if tier)
        assert [holder.pool_read(r.offset, len(v)) for r, (_, v) in zip(held, pairs)] == [v for _, v in pairs]
        assert daemon.metric("kvcache_kept_leases") == 12
    with pytest.raises((kvwire.SessionEnded, OSError)):
        holder.ping()
    holder.close()
    wait_until(lambda: daemon.metric("kvcache_kept_leases") == 0, "the leases end with the client")
    wait_until(lambda: not [name for name in s.manager.names() if "lease" in name], "the manager has its socket no more")
    assert daemon.status()["pool"]["leased_bytes"] == 0
    with daemon.client() as c:
        put_all(c, c.namespace("flood"), items("after", 256, 256 * KIB), ack=Ack.WRITTEN)


def test_a_client_that_ends_while_no_daemon_runs_holds_nothing(service):
    s = service()
    daemon = s.start()
    pairs = fill(daemon, "brief", 4)
    holder = daemon.client()
    assert all(r.lease for r in holder.get(holder.namespace("brief"), [k for k, _ in pairs]))
    daemon.stop()
    assert [name for name in s.manager.names() if "lease" in name]
    holder.close()
    daemon = s.start()
    wait_until(lambda: daemon.metric("kvcache_kept_clients") == 0, "its leases end")
    assert daemon.status()["pool"]["leased_bytes"] == 0


def test_after_a_crash_memory_is_cold_and_the_disk_warm(service):
    s = service()
    daemon = s.start()
    pairs = fill(daemon, "crash", 64)
    for _ in range(2):  # the second daemon has taken memory over
        daemon.kill()
        daemon = s.start()
        assert s.verified()["chunks"] == 0
        daemon.populated_status()
        with daemon.client() as c:
            assert read(c, c.namespace("crash"), pairs) == [(Tier.DISK, True)] * len(pairs)
        daemon = s.restart()
        assert s.verified()["verified"] == len(pairs)
    with daemon.client() as c:
        assert read(c, c.namespace("crash"), pairs) == [(Tier.MEMORY, True)] * len(pairs)


def check_answers(s, name, pairs):
    """Checks that every byte is right, from memory or disk, which has all of it. Returns the number of hits in memory."""
    s.verified()
    with s.daemon.client() as c:
        got = read(c, c.namespace(name), pairs)
    assert all(right for _, right in got)
    return sum(tier == Tier.MEMORY for tier, _ in got)


def test_a_damaged_map_gives_misses(service):
    s = service()
    s.start()
    pairs = fill(s.daemon, "damage", 48, 64 * KIB)
    rng = random.Random(1)
    for _ in range(6):
        s.daemon.stop()
        fd = s.manager.fd(MAP)
        size = os.fstat(fd).st_size
        index, = struct.unpack_from("<Q", os.pread(fd, 64, 0), 24)
        at = rng.choice([rng.randrange(index), rng.randrange(index, size)])
        byte, = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 1 << rng.randrange(8)]), at)
        s.start()
        warm = check_answers(s, "damage", pairs)
        assert warm == (0 if at < index else len(pairs) - 1), at
        assert s.kept()["damaged"] == (0 if at < index else 1)
    for cut in (0, 40, 64, 200, -1, -80):
        s.daemon.stop()
        fd = s.manager.fd(MAP)
        os.ftruncate(fd, cut if cut >= 0 else os.fstat(fd).st_size + cut)
        s.start()
        assert check_answers(s, "damage", pairs) == 0
    assert MAP not in s.manager.names()


def test_bytes_that_changed_in_memory_are_not_served(service):
    s = service()
    s.start()
    pairs = fill(s.daemon, "bytes", 40, 256 * KIB)
    s.daemon.stop()
    pool = s.manager.fd(next(n for n in s.manager.names() if n.endswith("-rw")))
    where = 0
    for n, (_, value) in enumerate(pairs[:10]):  # flips one bit of each
        for at in range(0, 32 * MIB, 4096):
            if os.pread(pool, 64, at) == value[:64]:
                os.pwrite(pool, bytes([value[1000 * n] ^ 1]), at + 1000 * n)
                where += 1
    assert where >= 10
    s.start()
    assert check_answers(s, "bytes", pairs) == 30
    assert s.kept()["damaged"] == 10
    assert s.daemon.metric('kvcache_kept_chunks_total{result="damaged"}') == 10
    assert "damaged" in harness.ctl("status", "memory", daemon=s.daemon, check=0).stdout


def test_a_map_of_another_store_or_time_is_not_used(service, make_daemon):
    """A daemon started without systemd has used the store in between, and the chunks that it purged stay purged."""
    s = service()
    s.start()
    pairs = fill(s.daemon, "other", 16)
    s.daemon.stop()
    other = make_daemon(store=s.daemon.store).start()
    with other.client() as c:
        c.purge(c.namespace("other"))
    other.stop()
    s.start()
    with s.daemon.client() as c:
        assert read(c, c.namespace("other"), pairs) == [(None, False)] * len(pairs)
    assert s.kept()["chunks"] == 0 and "another daemon has opened it since" in s.daemon.log()
    # A store that was created again in between has none of the chunks.
    pairs = fill(s.daemon, "other", 16)
    s.daemon.stop()
    shutil.rmtree(s.daemon.store)
    s.start()
    with s.daemon.client() as c:
        assert read(c, c.namespace("other"), pairs) == [(None, False)] * len(pairs)


def test_purges_evicts_and_puts_after_takeover_win(service):
    s = service()
    s.start()
    pairs = fill(s.daemon, "wins", 100, 256 * KIB)
    s.restart()
    with s.daemon.client() as c:  # whether these are verified by now, or not
        ns = c.namespace("wins")
        assert c.evict(ns, [pairs[0][0]]) == [Status.OK]
        c.purge(ns)
        assert c.exists(ns, [k for k, _ in pairs]) == [Tier(0)] * len(pairs)
        fresh = [(k, value_of(k + b"anew", 256 * KIB)) for k, _ in pairs[:50]]
        put_all(c, ns, fresh, ack=Ack.WRITTEN)
        s.verified()
        assert [right for _, right in read(c, ns, fresh)] == [True] * len(fresh)
        assert read(c, ns, pairs[50:]) == [(None, False)] * 50
    s.restart()
    assert s.verified()["verified"] == 50


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_a_manager_that_keeps_too_little(service, room):
    """The manager keeps the pool's two descriptors, the map, and the socket of a client with a lease. If one of these is missing, the memory is
    empty."""
    s = service(room=room)
    s.start()
    pairs = fill(s.daemon, "little", 16)
    holder = s.daemon.client()
    held, = holder.get(holder.namespace("little"), [pairs[0][0]])
    s.restart()
    assert s.manager.refused > 0
    assert check_answers(s, "little", pairs) == 0
    with s.daemon.client() as c:
        put_all(c, c.namespace("more"), items("more", 256, 256 * KIB), ack=Ack.WRITTEN)
    assert holder.pool_read(held.offset, len(pairs[0][1])) == pairs[0][1]
    holder.close()


def test_a_changed_pool_size_starts_with_an_empty_pool(service):
    s = service()
    s.start()
    pairs = fill(s.daemon, "size", 16)
    s.daemon.settings["memory.pool"] = "48MiB"
    s.restart()
    assert "the pool's size was changed" in s.daemon.log()
    assert check_answers(s, "size", pairs) == 0
    s.restart()
    assert check_answers(s, "size", pairs) == 16, "and that one is kept in turn"
    assert len(s.manager.names()) == 2, "what is of no use was dropped"


def test_a_size_that_the_daemon_chose_stays(service, directory):
    """auto depends on available memory, which does not include the kept pool. Here the size of another pool changes it."""
    config = directory / "config.yaml"
    config.write_text("access:\n  users: [root]\ntenants:\n  - name: other\n    users: [daemon]\n")
    s = service(settings={"memory.pool": "128MiB"})
    s.daemon.config = config
    s.start()
    first, second = ({n for n in s.manager.names() if n.endswith(f"-{tenant}-rw")} for tenant in (0, 1))
    s.daemon.settings["memory.pool"] = "96MiB"
    s.restart()
    assert "the pool of tenant other keeps the size it had in the previous daemon: 32 MiB" in s.daemon.log()
    assert second < set(s.manager.names()) and not first & set(s.manager.names())


def test_the_next_policy_has_the_chunks_too(service):
    s = service(settings={"eviction.policy": "lru"})
    s.start()
    pairs = fill(s.daemon, "policy", 16)
    s.daemon.settings["eviction.policy"] = "cq"
    s.restart()
    assert check_answers(s, "policy", pairs) == 16


def test_chunks_used_last_are_evicted_last(service):
    s = service(settings={"eviction.policy": "lru"})
    s.start()
    pairs = fill(s.daemon, "order", 100, 256 * KIB)
    with s.daemon.client() as c:
        assert all(right for _, right in read(c, c.namespace("order"), pairs[:20]))
    s.restart()
    s.verified()
    s.daemon.populated_status()
    with s.daemon.client() as c:
        put_all(c, c.namespace("new"), items("new", 80, 256 * KIB), ack=Ack.WRITTEN)
        tiers = [tier for tier, _ in read(c, c.namespace("order"), pairs[:20])]
    assert tiers.count(Tier.MEMORY) >= 18, tiers


def test_two_tenants_keep_their_own(service, directory):
    config = directory / "config.yaml"
    config.write_text("access:\n  users: [root]\ntenants:\n  - name: other\n    users: [daemon]\n    pool: 16MiB\n")
    s = service()
    s.daemon.config = config
    s.start()
    pairs = fill(s.daemon, "mine", 16)
    assert len(s.manager.names()) == 4
    s.restart()
    assert check_answers(s, "mine", pairs) == 16


def no_way_to_write(fd):
    for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}"):
        with pytest.raises(OSError):
            os.close(os.open(path, os.O_RDWR))
    with pytest.raises(OSError):
        mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    libc = harness._libc
    libc.mmap.restype = harness.ctypes.c_void_p
    at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert libc.mprotect(harness.ctypes.c_void_p(at), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    assert libc.madvise(harness.ctypes.c_void_p(at), 4096, 9) == -1, "MADV_REMOVE would punch a hole"
    libc.munmap(harness.ctypes.c_void_p(at), 4096)
    for change in (lambda: os.ftruncate(fd, 0), lambda: os.write(fd, b"x"), lambda: os.fchmod(fd, 0o666),
                   lambda: os.utime(fd), lambda: os.setxattr(fd, "user.x", b"x"),
                   lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)):
        with pytest.raises(OSError):
            change()
    for mode in (0, 0x01, 0x03, 0x10):  # also KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
        assert libc.fallocate(fd, mode, harness.ctypes.c_long(0), harness.ctypes.c_long(4096)) == -1


def test_R1_no_client_can_write_to_a_pool_that_is_kept(service):
    s = service()
    s.start()
    (_, value), = fill(s.daemon, "safe", 1)
    for _ in range(2):  # the second daemon has taken the memory over
        with s.daemon.client() as c:
            result, = c.get(c.namespace("safe"), [key_of("safe", 0)])
            no_way_to_write(c.pool_fd)
            assert os.fstat(c.pool_fd).st_nlink == 0
            assert result.data == value
        s.restart()


def test_without_such_mounts_the_pool_is_sealed(service, directory):
    """The daemon behaves as without memory.keep; with memory.keep: on there is a warning, and the status gives the reason."""
    plain = directory / "plain"
    for name in ("rw", "ro"):
        (plain / name).mkdir(parents=True)
    s = service(keep="on")
    for place, reason in ((plain, "are not mounts of one tmpfs"), (directory / "none", "No such file")):
        s.daemon.settings["memory.directory"] = place
        s.start()
        assert reason in s.daemon.status()["kept_memory"]["reason"]
        assert "the pool will not survive a restart of this daemon" in s.daemon.log()
        with s.daemon.client() as c:
            assert fcntl.fcntl(c.pool_fd, fcntl.F_GET_SEALS) & kvwire.F_SEAL_FUTURE_WRITE
        pairs = fill(s.daemon, "sealed", 4)
        s.daemon.stop()
    s.daemon.settings.update({"memory.keep": "off"})
    s.start()
    assert s.daemon.status()["kept_memory"]["reason"] == "memory.keep is off"
    assert check_answers(s, "sealed", pairs) == 0
    assert "the memory is lost: memory.keep is off" in harness.ctl("status", "memory", daemon=s.daemon, check=0).stdout


def test_R1_a_mount_that_can_be_written_to_is_not_used(make_daemon, directory, mounts):
    pid, memory = mounts
    subprocess.run(["nsenter", f"--mount=/proc/{pid}/ns/mnt", "sh", "-c",
                    f"mkdir -p {memory}/both && mount -t tmpfs none {memory}/writable && mkdir {memory}/writable/rw "
                    f"{memory}/writable/ro && mount -t tmpfs none {memory}/writable/rw && "
                    f"mount --bind {memory}/writable/rw {memory}/writable/ro"], check=False)
    (directory / "w").mkdir()
    s = Service(make_daemon, directory / "w", (pid, memory / "writable"))
    try:
        s.start()
        assert "must be mounted read-only" in s.kept()["reason"]
        with s.daemon.client() as c:
            assert fcntl.fcntl(c.pool_fd, fcntl.F_GET_SEALS) & kvwire.F_SEAL_FUTURE_WRITE
        s.daemon.stop()
    finally:
        s.close()


def test_replay_continues_after_two_restarts(service):
    """A client of the library that gets at full speed and reconnects compares every byte."""
    s = service(settings={"memory.pool": "64MiB", "store.limit": "512MiB"})
    s.start()
    result = {}

    def replay():
        result["said"] = harness.bench("replay", "--json", "--synthetic", "chat", "--requests", 4000, "--clients", 4,
                                       "--reconnect", 30, daemon=s.daemon, timeout=200)
    client = threading.Thread(target=replay)
    client.start()
    for _ in range(2):
        before = s.daemon.metric("kvcache_puts_total")
        wait_until(lambda: s.daemon.metric("kvcache_puts_total") > before + 200 or not client.is_alive(), "it replays", 60)
        assert client.is_alive(), "the replay is over before the restart"
        chunks = s.daemon.status()["pool"]["chunks"]
        s.restart()
        assert s.used < 2 * harness.slow(), f"READY after {s.used:.2f} s of processor time"
        kept = s.kept()
        assert kept["chunks"] >= 0.95 * chunks, (kept, chunks)
        assert s.verified()["damaged"] == 0
    client.join()
    said = harness.json.loads(result["said"].stdout)
    assert said["wrong_bytes"] == 0 and said["reconnects"] >= 2, said
    assert said["errors"] == said["lost"], f"calls failed that no restart ended: {said}"
    wait_until(lambda: s.daemon.metric("kvcache_kept_clients") == 0, "its leases ended with it")


def test_clients_that_close_while_the_daemon_stops(service):
    """Sockets are passed on while their sessions end. Messages that arrive meanwhile belong to no session."""
    s = service(settings={"limits.leases": "65536", "memory.pool": "64MiB"})
    s.start()
    pairs = fill(s.daemon, "closing", 4, 8 * KIB)
    small = [s.daemon.client() for _ in range(60)]
    for c in small:
        held, = c.get(c.namespace("closing"), [pairs[0][0]])
        assert held.lease
    big = s.daemon.client()  # passing on its leases takes a while
    for _ in range(20):
        big.get(big.namespace("closing"), [pairs[1][0]] * 512)
    child = os.fork()
    if child == 0:
        ended = select.poll()
        ended.register(small[0].sock.fileno(), select.POLLRDHUP)
        ended.poll(20000)
        for c in small:
            c.sock.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    s.restart()
    os.waitpid(child, 0)
    for c in small:
        c.close()
    wait_until(lambda: s.kept()["clients"] == 1, "the clients that have closed")
    big.close()
    wait_until(lambda: s.kept()["clients"] == 0 and s.kept()["leases"] == 0, "the last one")
    s.verified()
    assert check_answers(s, "closing", pairs) == 4
