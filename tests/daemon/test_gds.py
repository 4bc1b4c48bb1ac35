# SPDX-License-Identifier: Apache-2.0
"""Loans: chunks that a client reads directly from the data files, as GPUDirect Storage does, here with pread().

The daemon lends to users that io.gds allows, only chunks that it has verified, only for the time of the loan, and never another tenant's
bytes.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import subprocess

import pytest

import harness
import kvwire
from harness import KIB, MIB, get_all, items, put_all, wait_until
from kvwire import Ack, Flag, NotLent, Op, Status, Tier
from harness import BUILD
from test_tenants import ALICE, BOB
from users import client_as

STRANGER = 20009

needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")


def read(fd, loan):
    """Reads a chunk like a client: whole pages, O_DIRECT, into aligned memory."""
    size = (loan.length + 4095) & ~4095
    with mmap.mmap(-1, size) as room:
        assert os.preadv(fd, [room], loan.offset) >= loan.length
        return room[:loan.length]


class Files:
    """The descriptors of a session's files, each asked for once."""

    def __init__(self, client):
        self.client, self.fds = client, {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for fd in self.fds.values():
            os.close(fd)

    def read(self, loan):
        if loan.file not in self.fds:
            self.fds[loan.file] = self.client.lent_file(loan.file)
        return read(self.fds[loan.file], loan)


def written(client, ns, pairs):
    """Puts the pairs on disk and evicts them from memory."""
    assert {r.status for r in put_all(client, ns, pairs, ack=Ack.WRITTEN).values()} <= {Status.OK, Status.EXISTS}
    forget(client, ns, [k for k, _ in pairs])


def forget(client, ns, keys):
    """Evicts the keys from memory. A chunk that is not on disk yet stays."""
    for at in range(0, len(keys), 1024):
        client.evict(ns, keys[at:at + 1024], tiers=Tier.MEMORY)


def verified(client, ns, pairs):
    """Puts the pairs, and makes the daemon read them back once."""
    written(client, ns, pairs)
    assert get_all(client, ns, [k for k, _ in pairs]) == dict(pairs)
    forget(client, ns, [k for k, _ in pairs])


def loans_of(daemon):
    return daemon.metric('kvcache_resource_used{resource="loans"}'), \
        daemon.metric('kvcache_resource_used{resource="loaned_bytes"}')


@pytest.fixture
def daemon(make_daemon):
    daemon = make_daemon(settings={"store.prewrite": "off"}).start()
    if not all(p["direct"] for p in daemon.status()["store"]["volumes"]):
        pytest.skip("no O_DIRECT here")
    return daemon


def test_R10_small_loans_leave_other_sizes_room(make_daemon):
    """A loan of 4 KiB in each data file would prevent every file from being cut for another size, and puts of that size would find no space."""
    daemon = make_daemon(settings={"store.prewrite": "off", "store.limit": "32MiB", "memory.pool": "16MiB"}).start()
    if not all(p["direct"] for p in daemon.status()["store"]["volumes"]):
        pytest.skip("no O_DIRECT here")
    pairs = items("small", 9000, 4 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        written(c, ns, pairs)
        lent, refused = {}, 0
        for at in range(0, len(pairs), 250):
            keys = [k for k, _ in pairs[at:at + 250]]
            get_all(c, ns, keys)
            forget(c, ns, keys)
            results = c.borrow(ns, keys)
            refused += sum(r.loan is None for r in results)
            leases = [r.lease for r in results if r.lease]
            more = [r.loan for r in results if r.loan and lent.setdefault(r.loan.file, r.loan) is not r.loan]
            for end, which in (c.release, leases), (c.give_back, more):
                if which:
                    end(which)
        for k, v in items("large", 12, 64 * KIB):
            assert c.put(ns, [(k, v)], ack=Ack.WRITTEN)[0].status == Status.OK
        files = daemon.status()["store"]["segments"]
        assert 0 < len(lent) <= files - 2 and refused > 0, "two data files stay without loans"
        assert daemon.metric('kvcache_not_lent_chunks_total{reason="limit"}') > 0
        assert c.give_back(list(lent.values())) == [Status.OK] * len(lent)


def test_lent_bytes_equal_the_put_bytes(daemon):
    pairs = [(k, v[:1 + i * 997]) for i, (k, v) in enumerate(items("lend", 40, 40 * KIB))]
    with daemon.client() as c, Files(c) as files:
        assert c.features & kvwire.FEATURE_LEND and c.features & kvwire.FEATURE_LENDS
        ns = c.namespace("n")
        verified(c, ns, pairs)
        results = c.borrow(ns, [k for k, _ in pairs] + [harness.key_of("absent")])
        assert results.pop().status == Status.MISS
        loans = [r.loan for r in results]
        assert all(loans) and all(r.tier == Tier.DISK for r in results)
        assert [files.read(loan) for loan in loans] == [v for _, v in pairs]
        assert loans_of(daemon) == (40, sum((len(v) + 4095) // 4096 * 4096 for _, v in pairs))
        assert c.give_back(loans) == [Status.OK] * 40
        assert loans_of(daemon) == (0, 0)
        assert c.give_back(loans) == [Status.STALE] * 40
        for fd in files.fds.values():
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
            with pytest.raises(OSError):
                os.pwrite(fd, bytes(4096), 0)


def test_chunks_in_memory_are_not_lent(daemon):
    (key, value), = items("resident", 1, 20 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, [(key, value)])
        assert c.borrow(ns, [key])[0].loan
        assert c.value(ns, key) == value
        r, = c.borrow(ns, [key])
        assert r.loan is None and r.not_lent == NotLent.NONE and r.tier == Tier.MEMORY and r.data == value


@pytest.mark.parametrize("kill", [False, True])
def test_a_chunk_is_lent_only_after_it_was_verified_since_startup(daemon, kill):
    pairs = items("unverified", 8, 30 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        written(c, ns, pairs)
        results = c.borrow(ns, keys)  # put by this process, and never read back
        assert {r.not_lent for r in results} == {NotLent.UNVERIFIED}
        assert [r.data for r in results] == [v for _, v in pairs]
        c.release([r.lease for r in results])
        forget(c, ns, keys)
        assert all(r.loan for r in c.borrow(ns, keys))
    daemon.restart(kill=kill)
    with daemon.client() as c:
        ns = c.namespace("n")
        results = c.borrow(ns, keys)
        assert {r.not_lent for r in results} == {NotLent.UNVERIFIED}
        assert [r.data for r in results] == [v for _, v in pairs]
        c.release([r.lease for r in results])
        forget(c, ns, keys)
        assert all(r.loan for r in c.borrow(ns, keys))


# --- for as long as the loan lasts ---

def fill(client, ns, name, size, total):
    """Puts more than the store holds, so that all evictable chunks are evicted."""
    pairs = items(name, total // size, size)
    put_all(client, ns, pairs, ack=Ack.WRITTEN)


def test_R7_a_slot_that_is_lent_is_given_to_no_other(daemon):
    pairs = items("held", 20, 60 * KIB)
    with daemon.client() as c, Files(c) as files:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        loans = [r.loan for r in c.borrow(ns, [k for k, _ in pairs])]
        fill(c, ns, "flood", 60 * KIB, 200 * MIB)
        assert daemon.metric("kvcache_evictions_total") > 0
        assert [files.read(loan) for loan in loans] == [v for _, v in pairs]
        assert c.give_back(loans) == [Status.OK] * 20
        fill(c, ns, "second flood", 60 * KIB, 200 * MIB)
        assert c.exists(ns, [k for k, _ in pairs]) == [Tier(0)] * 20


@pytest.mark.parametrize("how", ["purge", "evict"])
def test_bytes_purged_during_a_loan_stay_and_do_not_count(daemon, how):
    pairs = items(how, 8, 60 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, Files(c) as files:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        loans = [r.loan for r in c.borrow(ns, keys)]
        if how == "purge":
            assert c.purge(ns) == 8
        else:
            assert c.evict(ns, keys) == [Status.OK] * 8
        # The same keys again, and many others, cannot take the slots, which the loans keep.
        put_all(c, ns, [(k, v[::-1]) for k, v in pairs], ack=Ack.WRITTEN)
        fill(c, ns, "flood", 60 * KIB, 200 * MIB)
        assert [files.read(loan) for loan in loans] == [v for _, v in pairs]
        assert c.give_back(loans) == [Status.MISS] * 8
    assert daemon.metric('kvcache_loans_ended_total{how="void"}') == 8


def flip(store, value):
    """Flips one bit of the chunk in whichever data file has it."""
    for path in store.glob("segment-*"):
        if path.stat().st_size == 0:
            continue  # the next one, which is being made
        with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
            at = m.find(value)
            if at >= 0:
                m[at + 1000] ^= 1
                m.flush()
                return
    raise AssertionError("it is in no data file")


def test_P1_a_chunk_that_goes_bad_during_its_loan_does_not_count(daemon):
    pairs = items("rot", 4, 60 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        loans = [r.loan for r in c.borrow(ns, keys)]
        flip(daemon.store, pairs[2][1])
        assert c.verify_volume().mismatched == 1
        assert c.give_back(loans) == [Status.OK, Status.OK, Status.MISS, Status.OK]
        assert [bool(r.loan) for r in c.borrow(ns, keys)] == [True, True, False, True]


def test_P1_a_loan_on_a_failed_volume_does_not_count(make_daemon, directory):
    paths = [directory / "a", directory / "b"]
    daemon = make_daemon(settings={"store.path": ",".join(map(str, paths)), "store.prewrite": "off"}).start()
    pairs = items("volumes", 40, 40 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        before = {r.loan.file: None for r in c.borrow(ns, keys)}
        loans = [r.loan for r in c.borrow(ns, keys)]
        assert all(loans)
        assert c.device("suspend", 0)
        first = c.give_back(loans[:20])
        assert c.device("resume", 0)
        second = c.give_back(loans[20:])
        assert {Status.OK, Status.MISS} == set(first) == set(second)
        # The resumed volume has new files, and lends only chunks that it has verified again.
        results = c.borrow(ns, keys)
        assert {NotLent.NONE, NotLent.UNVERIFIED} == {r.not_lent for r in results}
        c.release([r.lease for r in results if r.lease])
        forget(c, ns, keys)
        after = {r.loan.file for r in c.borrow(ns, keys)}
        assert after - set(before), "the files of the volume that was resumed have new numbers"
        closed = set(before) - after
        assert closed
        assert {c.lent_file(file, check=False).status for file in closed} == {Status.STALE}
    wait_until(lambda: loans_of(daemon) == (0, 0), "the loans end with their client")


def test_R11_loans_end_with_their_client_and_not_with_its_session_alone(daemon):
    pairs = items("dead", 30, 20 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        verified(c, c.namespace("n"), pairs)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            d = daemon.client()
            assert all(r.loan for r in d.borrow(d.namespace("n"), keys))
            os.kill(os.getpid(), 9)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    wait_until(lambda: loans_of(daemon) == (0, 0), "the loans end")
    assert daemon.metric('kvcache_loans_ended_total{how="abandoned"}') == 30
    d = daemon.client()
    loans = [r.loan for r in d.borrow(d.namespace("n"), keys)]
    assert all(loans) and loans_of(daemon)[0] == 30
    d.send(b"not a frame")  # the daemon ends the session
    with pytest.raises(kvwire.SessionEnded):
        d.receive(timeout=10 * harness.slow())
    assert loans_of(daemon)[0] == 30
    d.close()
    wait_until(lambda: loans_of(daemon) == (0, 0), "the loans end")


def test_P1_no_loan_outlives_the_daemon(daemon):
    """A client cannot return its loan to a killed daemon, so the bytes that it read do not count."""
    (key, value), = items("killed", 1, 60 * KIB)
    with daemon.client() as c, Files(c) as files:
        ns = c.namespace("n")
        verified(c, ns, [(key, value)])
        loan = c.borrow(ns, [key])[0].loan
        assert files.read(loan) == value
        daemon.restart(kill=True)
        with pytest.raises(kvwire.SessionEnded):
            c.give_back([loan])
    with daemon.client() as c:
        assert c.give_back([loan]) == [Status.STALE]
        assert c.lent_file(loan.file, check=False).status == Status.STALE


def test_R12_loans_and_files_that_there_are_not(daemon):
    pairs = items("forged", 3, 20 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, daemon.client() as other:
        assert c.give_back([kvwire.Loan(0, 1, 0, 0, 0)]) == [Status.STALE]  # before there was any
        ns = c.namespace("n")
        verified(c, ns, pairs)
        loans = [r.loan for r in c.borrow(ns, keys)]
        forged = [loans[0]._replace(generation=loans[0].generation + 1), loans[0]._replace(generation=0),
                  loans[0]._replace(id=65536), loans[0]._replace(id=0xffffffff), loans[0]._replace(id=1 << 20)]
        assert c.give_back(forged) == [Status.STALE] * 5
        assert other.give_back(loans) == [Status.STALE] * 3
        assert c.give_back([loans[0], loans[0], loans[1]]) == [Status.OK, Status.STALE, Status.OK]
        for file in (0, loans[0].file + 1, 0xffffffff):
            assert other.lent_file(file, check=False).status == Status.STALE
        assert loans_of(daemon)[0] == 1
        assert c.borrow(ns, [bytes(32)])[0].status == Status.INVALID


@pytest.mark.parametrize("body, flags, op", [
    (struct.pack("<II", 1, 1), 0, Op.LENT_FILE),  # a reserved field
    (struct.pack("<I", 1), 0, Op.LENT_FILE),
    (b"", 0, Op.LENT_FILE),
    (struct.pack("<II", 1, 0), Flag.LEND, Op.LENT_FILE),
    (harness.batch_head(count=0), 0, Op.GIVE_BACK),
    (harness.batch_head(count=2) + bytes(8), 0, Op.GIVE_BACK),
    (harness.batch_head(count=1, parent=b"x" * 32) + bytes(8), 0, Op.GIVE_BACK),
    (harness.batch_head(count=1) + bytes(8), Flag.LEND, Op.GIVE_BACK),
    (harness.batch_head(count=1) + kvwire.GET_ENTRY.pack(b"k" * 32, 4096, 0, 0, 0, 0), Flag.LEND, Op.GET),
    (harness.batch_head(count=1) + kvwire.GET_ENTRY.pack(b"k" * 32, 0, 1, 0, 0, 0), Flag.LEND, Op.GET),
    (harness.batch_head(count=1) + kvwire.GET_ENTRY.pack(b"k" * 32, 0, 0, 0, 1, 0), Flag.LEND | Flag.INTO, Op.GET),
    (harness.batch_head(count=1) + b"k" * 32, Flag.LEND, Op.EXISTS),
])
def test_R12_a_malformed_message_about_loans_ends_its_session(daemon, body, flags, op):
    with daemon.client() as good:
        bad = daemon.client()
        bad.namespace("n")
        bad.send(harness.frame(op, body, flags=flags))
        with pytest.raises(kvwire.SessionEnded):
            bad.receive(timeout=10 * harness.slow())
        good.ping()


def test_ten_thousand_loans(make_daemon):
    daemon = make_daemon(settings={"store.prewrite": "off", "store.limit": "512MiB", "memory.pool": "64MiB"}).start()
    pairs = items("many", 10000, 4096)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, Files(c) as files:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        loans = []
        for at in range(0, len(keys), 1000):
            loans += [r.loan for r in c.borrow(ns, keys[at:at + 1000])]
        assert all(loans) and loans_of(daemon) == (10000, 10000 * 4096)
        assert all(files.read(loan) == value for loan, (_, value) in zip(loans[::7], pairs[::7]))
        for at in range(0, len(keys), 1000):
            assert c.give_back(loans[at:at + 1000]) == [Status.OK] * 1000
    assert loans_of(daemon) == (0, 0)


def test_R10_a_quarter_of_the_store_is_lent_at_most(daemon):
    pairs = items("quota", 500, 128 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        results = c.borrow(ns, keys)
        lent = sum(r.loan.length for r in results if r.loan)
        assert 24 * MIB - 128 * KIB < lent <= 24 * MIB  # by one user three quarters of that; the limit is 128 MiB
        refused = [r for r in results if not r.loan]
        assert {r.not_lent for r in refused} == {NotLent.LIMIT}
        assert daemon.metric('kvcache_not_lent_chunks_total{reason="limit"}') == len(refused)
        assert daemon.metric('kvcache_resource_refusals_total{resource="loaned_bytes"}') == len(refused)
        assert c.give_back([r.loan for r in results if r.loan]) == [Status.OK] * (500 - len(refused))


# --- to whom ---

@needs_users
@pytest.mark.parametrize("policy, to_root, to_admins, to_all", [
    ("off", False, False, False), ("auto", True, True, False), ("on", True, True, True)])
def test_R9_chunks_are_lent_only_to_users_of_io_gds(make_daemon, policy, to_root, to_admins, to_all):
    daemon = make_daemon(settings={"listen.mode": "0666", "io.gds": policy, "store.prewrite": "off"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(f"access:\n  admin_users: [{ALICE}]\n")
    daemon.start()
    pairs = items("policy", 2, 20 * KIB)
    with daemon.client() as c:
        verified(c, c.namespace("n"), pairs)
    for uid, lends in ((0, to_root), (ALICE, to_admins), (STRANGER, to_all)):
        with client_as(daemon, uid) as c:
            assert bool(c.features & kvwire.FEATURE_LENDS) == lends
            ns = c.namespace("n")
            results = c.borrow(ns, [k for k, _ in pairs])
            if lends:
                assert all(r.loan for r in results)
                os.close(c.lent_file(results[0].loan.file))
            else:
                assert {r.not_lent for r in results} == {NotLent.DENIED}
                assert [r.data for r in results] == [v for _, v in pairs]
                assert c.lent_file(1, check=False).status == Status.DENIED
                c.release([r.lease for r in results])
                forget(c, ns, [k for k, _ in pairs])


def test_io_gds_follows_a_reload(make_daemon):
    daemon = make_daemon(settings={"store.prewrite": "off"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("io:\n  gds: off\n")
    daemon.start()
    (key, value), = items("reload", 1, 20 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, [(key, value)])
        assert c.borrow(ns, [key])[0].not_lent == NotLent.DENIED
        daemon.config.write_text("io:\n  gds: auto\n")
        os.kill(daemon.pid, 1)
        wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == 1, "the reload")
        forget(c, ns, [key])
        assert c.borrow(ns, [key])[0].loan


TWO = f"""tenants:
  - name: red
    users: [{ALICE}]
    pool: 16MiB
  - name: blue
    users: [{BOB}]
    pool: 16MiB
io:
  gds: on
"""


@pytest.fixture
def two(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666", "store.prewrite": "off", "store.limit": "16MiB"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(TWO)
    return daemon.start()


@needs_users
def test_R9_another_tenants_chunks_and_files_are_not_there(two):
    (key, value), = items("red", 1, 20 * KIB)
    with client_as(two, ALICE) as red, client_as(two, BOB) as blue:
        verified(red, red.namespace("n"), [(key, value)])
        loan = red.borrow(red.namespace("n"), [key])[0].loan
        assert loan
        r, = blue.borrow(blue.namespace("n"), [key])
        assert r.status == Status.MISS and r.loan is None and r.not_lent == NotLent.NONE
        assert blue.lent_file(loan.file, check=False).status == Status.STALE
        assert blue.give_back([loan]) == [Status.STALE]
        assert red.give_back([loan]) == [Status.OK]


@needs_users
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("lent", [False, True])
def test_R1_a_file_that_was_lent_shows_no_byte_of_the_next_tenant(two, lent, restart):
    """A data file is replaced if a descriptor of it may still be open in another process, because a descriptor cannot be revoked and survives a
    restart."""
    mine = items("mine", 400, 60 * KIB)
    theirs = [(harness.key_of("theirs", i), b"theirs" * 10240) for i in range(400)]
    kept = []
    with client_as(two, ALICE) as red:
        ns = red.namespace("n")
        put_all(red, ns, mine, ack=Ack.WRITTEN)
        there = [k for k, t in zip((k for k, _ in mine), red.exists(ns, [k for k, _ in mine])) if t & Tier.DISK]
        forget(red, ns, there)
        get_all(red, ns, there)
        forget(red, ns, there)
        if lent:
            files = {r.loan.file for r in red.borrow(ns, there) if r.loan}
            assert files
            kept = [red.lent_file(file) for file in files]
        assert red.purge(ns) > 0
    if restart:
        two.restart(kill=True)
    with client_as(two, BOB) as blue:
        ns = blue.namespace("n")
        put_all(blue, ns, theirs, ack=Ack.WRITTEN)
        assert sum(1 for t in blue.exists(ns, [k for k, _ in theirs]) if t & Tier.DISK) > 50
        for fd in kept:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
                assert m.find(b"theirstheirs") < 0
            os.close(fd)
        keys = [k for k, _ in theirs]
        forget(blue, ns, keys)
        assert all(v is None or v == dict(theirs)[k] for k, v in get_all(blue, ns, keys).items())
    assert two.metric("kvcache_store_handovers_total") > 0
    assert (two.metric("kvcache_store_handover_replacements_total") > 0) == lent
    assert two.metric("kvcache_store_handover_failures_total") == 0
    two.restart(kill=True)
    with client_as(two, BOB) as blue:
        ns = blue.namespace("n")
        assert sum(1 for v in get_all(blue, ns, [k for k, _ in theirs]).values() if v) > 50


def test_without_o_direct_nothing_is_lent(make_daemon):
    daemon = make_daemon(settings={"io.direct": "off"}).start()
    (key, value), = items("buffered", 1, 20 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, [(key, value)])
        r, = c.borrow(ns, [key])
        assert r.not_lent == NotLent.VOLUME and r.data == value
    assert daemon.metric('kvcache_not_lent_chunks_total{reason="volume"}') == 1


# --- the library ---

CLIENT = BUILD / "tests" / "daemon" / "loan-client"


def loan_client(daemon, scenario, **how):
    return harness.spawn([CLIENT, str(daemon.socket), scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         **how)


def finish(process, line=None):
    out, _ = process.communicate(line, timeout=120 * harness.slow())
    assert process.returncode == 0 and out.endswith("ok\n"), out


ROOMY = {"store.prewrite": "off", "memory.pool": "128MiB"}


def test_the_library_borrows_reads_and_gives_back(make_daemon):
    daemon = make_daemon(settings=ROOMY).start()
    finish(loan_client(daemon, "roundtrip"))
    wait_until(lambda: loans_of(daemon) == (0, 0), "the loans end")


def test_the_librarys_loans_end_with_the_daemon(make_daemon):
    daemon = make_daemon(settings=ROOMY).start()
    process = loan_client(daemon, "restart")
    assert process.stdout.readline() == "ready\n"
    daemon.restart(kill=True)
    finish(process, "go on\n")


@needs_users
def test_the_library_gets_no_loans_if_the_user_may_not(make_daemon):
    daemon = make_daemon(settings={**ROOMY, "listen.mode": "0666"}).start()
    finish(loan_client(daemon, "denied", user=STRANGER, group=STRANGER, extra_groups=[]))
