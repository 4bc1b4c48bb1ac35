# SPDX-License-Identifier: Apache-2.0
"""Hits are reported correctly (proto/README.md 5.5): keys looked up and keys found, by tenant and namespace, including lookups that clients make
without a message. A client's page affects only the counts of its own namespaces, by at most the lookups that it could have made."""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import signal
import time

import pytest

import kvwire
from harness import ctl, items, key_of, put_all, wait_until
from kvwire import Ack, Op, Status
from test_lookup import LibraryClient
from test_tenants import ALICE, BOB, TENANTS
from users import client_as, user

FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE = 2, 1
NS_PER_KEY = 4


@pytest.fixture
def running(make_daemon, directory):
    def run(settings=None, **how):
        return make_daemon(settings={"listen.http": f"unix:{directory / 'd0' / 'h'}", **(settings or {})}, **how).start()
    return run


class Counts:
    """The counters of a daemon, relative to their values at the beginning."""

    def __init__(self, daemon):
        self.daemon, self.before = daemon, daemon.metrics()

    def of(self, name, label=None):
        name = f"kvcache_{name}_total" + (f'{{{label}}}' if label else "")
        return self.daemon.metric(name) - self.before.get(name, 0)

    def lookups(self, by):
        """Returns (found, asked)."""
        label = f'by="{by}"'
        return self.of("lookup_found_keys", label), self.of("lookup_keys", label)

    def tenant(self, name="default"):
        label = f'tenant="{name}"'
        return self.of("tenant_lookup_found_keys", label), self.of("tenant_lookup_keys", label)


def namespace(daemon, name, status=None):
    one, = [n for n in (status or daemon.status())["namespaces"] if n["name"] == name]
    return one


@contextlib.contextmanager
def tally_of(client):
    """Provides the session's mapped page of lookup counters, as write(number, found, missing)."""
    fd = client.tally()
    page = mmap.mmap(fd, kvwire.TALLY_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    try:
        yield fd, lambda number, *pair: kvwire.TALLY.pack_into(page, (number - 1) * kvwire.TALLY.size, *pair)
    finally:
        page.close()
        os.close(fd)


def test_lookups_in_the_index_are_counted_exactly(running):
    daemon = running()
    pairs = items("exact", 100, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        c.namespace("second")
    with LibraryClient(daemon) as library, LibraryClient(daemon, "second") as other:
        library.use_index()
        other.use_index()
        assert daemon.metric("kvcache_lookup_counted_sessions") == 2
        counts, status = Counts(daemon), daemon.status()
        assert library.ask("storm", 500, *keys) == ["0", "500"]
        assert counts.lookups("client") == counts.tenant() == (50000, 50000)
        assert library.match(key_of("nowhere"), *keys) == (0, True)
        assert counts.lookups("client") == (50000, 50101), "a chain is asked for as a whole"
        assert library.match(*keys[:7], key_of("nowhere"), *keys[7:]) == (7, True)
        assert counts.lookups("client") == (50007, 50202), "what is behind a gap is of no use, and is not found"
        assert library.exists(*keys[:5], key_of("nowhere"), *keys[5:10])[1]
        assert counts.lookups("client") == counts.tenant() == (50017, 50213)
        assert other.exists(*keys[:3])[1]
        assert counts.lookups("client") == (50017, 50216)
        assert counts.lookups("daemon") == (0, 0)
        for name, found, asked in (("n", 50017, 50213), ("second", 0, 3)):
            now, before = namespace(daemon, name), namespace(daemon, name, status)
            assert now["lookup_keys"] - before["lookup_keys"] == asked
            assert now["lookup_found_keys"] - before["lookup_found_keys"] == found
            assert now["get_keys"] == now["get_found_keys"] == 0
            label = f'namespace="{name}"'
            assert counts.of("namespace_lookup_keys", label) == asked
            assert counts.of("namespace_lookup_found_keys", label) == found
    assert counts.lookups("client") == counts.tenant() == (50017, 50216), "the end of the session takes nothing back"
    assert daemon.metric("kvcache_lookup_counted_sessions") == 0


def test_lookups_answered_by_the_daemon_are_counted_alike(running):
    daemon = running()
    pairs = items("asked", 20, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        counts = Counts(daemon)
        assert c.match(ns, keys) == 20
        assert c.match(ns, keys[:4] + [key_of("gap")] + keys[4:]) == 4
        assert counts.lookups("daemon") == counts.tenant() == (24, 41)
        c.exists(ns, keys + [key_of("gap"), key_of("gap", 2)])
        assert counts.lookups("daemon") == (44, 63)
        assert counts.lookups("client") == (0, 0)
        # A refused request does not count as a lookup.
        assert c.call(Op.EXISTS, kvwire.BATCH.pack(77, 1, 0, 0, 0, 0, 0, bytes(32)) + keys[0],
                      check=False).status == Status.NO_NAMESPACE
        assert counts.lookups("daemon") == (44, 63)

        c.get(ns, keys[:6] + [key_of("gap")])
        one = namespace(daemon, "n")
        assert (one["get_keys"], one["get_found_keys"]) == (7, 6)
        assert counts.of("tenant_get_keys", 'tenant="default"') == 7
        assert counts.of("tenant_get_found_keys", 'tenant="default"') == 6


def test_a_match_and_its_get_are_one_hit_and_status_says_of_what(running):
    daemon = running()
    pairs = items("ratio", 10, 4000)
    keys = [k for k, _ in pairs]

    def ratio_line():
        return ctl("status", daemon=daemon, check=0).stdout.partition("hit ratio")[2].partition("\n")[0].strip()

    assert "hit_ratio" not in daemon.status()["totals"] and ratio_line() == "", "there is none before a key is asked for"
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.get(ns, keys[:3] + [key_of("gap")])
        totals = daemon.status()["totals"]
        assert (totals["hit_ratio"], totals["hit_ratio_of"]) == (0.75, "gets")
        assert ratio_line() == "75.0 % of the keys of gets (3 of 4)"
        # Behaves like an engine: looks a chain up, and gets the stored part. Every get hits.
        for _ in range(5):
            run = c.match(ns, keys + [key_of("new", i) for i in range(30)])
            assert all(r.status == Status.OK for r in c.get(ns, keys[:run]))
        totals = daemon.status()["totals"]
        assert (totals["hit_ratio"], totals["hit_ratio_of"]) == (0.25, "lookups")
        assert (totals["lookup_keys"], totals["lookup_found_keys"]) == (200, 50)
        assert ratio_line() == "25.0 % of the keys of lookups (50 of 200)"
        page = daemon.http("/")[2].decode()
        assert 'since startup <data value="0.25">25.0&#8239;%</data> of lookups' in page


def test_counts_of_a_client_that_was_killed_stay(running):
    daemon = running()
    pairs = items("killed", 50, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    counts = Counts(daemon)
    with contextlib.suppress(AssertionError), LibraryClient(daemon) as library:
        library.use_index()
        before = counts.lookups("client")
        assert library.ask("storm", 100, *keys) == ["0", "100"]
        library.process.send_signal(signal.SIGKILL)
        library.process.wait()
    wait_until(lambda: daemon.metric("kvcache_sessions") == 1, "its session has ended")
    found, asked = counts.lookups("client")
    assert (found - before[0], asked - before[1]) == (5000, 5000)
    assert namespace(daemon, "n")["lookup_found_keys"] >= 5000


def test_a_restarted_daemon_counts_from_zero(running):
    daemon = running()
    pairs = items("anew", 20, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with LibraryClient(daemon) as library:
        library.use_index()
        assert library.ask("storm", 100, *keys) == ["0", "100"]
        for kill in (False, True):
            daemon.restart(kill=kill)
            wait_until(lambda: not library.exists(*keys)[1], "the next daemon is asked", 30)
            library.use_index()
            counts = Counts(daemon)
            assert 0 <= counts.before['kvcache_lookup_found_keys_total{by="client"}'] < 2000, "not the last one's again"
            assert library.ask("storm", 10, *keys) == ["0", "10"]
            assert counts.lookups("client") == (200, 200)


def test_a_removed_namespace_leaves_its_counts_to_the_tenant_alone(running):
    daemon = running()
    with daemon.client() as c, tally_of(c) as (_, write):
        counts = Counts(daemon)
        old = c.namespace("n")
        kept = c.namespace("kept")
        write(old, 30, 10)
        write(kept, 5, 0)
        c.namespace_remove("n")
        assert counts.tenant() == (35, 45), "what was counted before the removal, though no report came between"
        write(old, 31, 10)
        assert counts.tenant() == (36, 46) and counts.of("lookup_impossible_counts") == 0
        assert {n["name"] for n in daemon.status()["namespaces"]} == {"kept"}
        # A new namespace of that name, with each number of the session in turn, never begins with another's counts.
        for i in range(260):
            number = c.namespace("n")
            one = namespace(daemon, "n")
            assert (one["lookup_keys"], one["lookup_found_keys"]) == (0, 0), number
            write(number, 31 + i + 1, 10)
            one = namespace(daemon, "n")
            assert one["lookup_found_keys"] > 0
            c.namespace_remove("n")
        one = namespace(daemon, "kept")
        assert (one["lookup_keys"], one["lookup_found_keys"]) == (5, 5)


def test_sessions_without_counters_are_counted(running):
    daemon = running()
    with daemon.client() as c:
        assert c.features & kvwire.FEATURE_TALLY
        assert daemon.metric("kvcache_lookup_uncounted_sessions") == 0
        with contextlib.closing(c.lookup()):  # like a library that does not know the counters
            assert daemon.metric("kvcache_lookup_uncounted_sessions") == 1
            assert daemon.metric("kvcache_lookup_counted_sessions") == 0
        with tally_of(c):
            assert daemon.metric("kvcache_lookup_uncounted_sessions") == 0
            assert daemon.metric("kvcache_lookup_counted_sessions") == 1
        # A session has one page, and requests for another are refused.
        reply = c.call(Op.LOOKUP, flags=kvwire.Flag.TALLY, n_fds=1)
        os.close(reply.fds[0])
    wait_until(lambda: daemon.metric("kvcache_lookup_counted_sessions") == 0, "it has ended")


def test_off_with_the_look_up_index(running):
    daemon = running({"memory.lookup_index": "off"})
    with daemon.client() as c:
        assert not c.features & (kvwire.FEATURE_TALLY | kvwire.FEATURE_LOOKUP)
        assert c.call(Op.LOOKUP, flags=kvwire.Flag.TALLY, check=False).status == Status.DENIED


def test_a_tally_costs_the_daemon_no_descriptor(running):
    daemon = running()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(20)]
        for c in clients:
            with contextlib.closing(c.lookup()):
                pass
        before = daemon.fd_count()
        for c in clients:
            os.close(c.tally())
        wait_until(lambda: daemon.fd_count() <= before, "the daemon has closed its descriptors")


def test_R2_a_tally_can_be_neither_cut_nor_grown(running):
    daemon = running()
    with daemon.client() as c, tally_of(c) as (fd, write):
        ns = c.namespace("n")
        for size in (0, 1, 2 * kvwire.TALLY_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_WRITE)
        counts = Counts(daemon)
        write(ns, 100, 50)
        assert counts.lookups("client") == (100, 150)
        # A hole reads as zeros, and decreased counts add nothing.
        libc_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kvwire.TALLY_BYTES)
        assert counts.lookups("client") == (100, 150)
        assert counts.of("lookup_impossible_counts") == 1
        write(ns, 5, 0)
        assert counts.lookups("client") == (105, 155)


def libc_fallocate(fd, mode, offset, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) < 0:
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])


def test_R2_false_counts_add_no_more_than_possible_lookups(running):
    daemon = running()
    draw = random.Random(1)
    with daemon.client() as honest, daemon.client() as c:
        began = time.monotonic_ns()
        with tally_of(c) as (_, write), tally_of(honest) as (_, write_honest):
            numbers = [c.namespace(f"n{i}") for i in range(8)]
            own = honest.namespace("honest")
            counts = Counts(daemon)
            for round in range(50):
                for number in numbers + [200, 256]:  # the last two are not namespaces of this session
                    write(number, draw.choice([0, 1 << 63, (1 << 64) - 1, draw.getrandbits(64)]), draw.getrandbits(64))
                write_honest(own, 3 * (round + 1), round + 1)
                _, asked = counts.lookups("client")
                possible = (time.monotonic_ns() - began) // NS_PER_KEY
                assert 4 * (round + 1) <= asked <= possible + 4 * (round + 1)
                one = namespace(daemon, "honest")
                assert (one["lookup_found_keys"], one["lookup_keys"]) == (3 * (round + 1), 4 * (round + 1))
            assert counts.of("lookup_impossible_counts") >= 50
    wait_until(lambda: daemon.metric("kvcache_sessions") == 1, "both have ended")
    assert counts.lookups("client")[1] <= (time.monotonic_ns() - began) // NS_PER_KEY + 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_R9_each_tenant_counts_for_itself(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(TENANTS)
    daemon.start()
    with client_as(daemon, ALICE) as red, client_as(daemon, BOB) as blue, client_as(daemon, BOB) as blue_too:
        with tally_of(red) as (_, write_red), tally_of(blue) as (_, write_blue), tally_of(blue_too) as (fd, write_too):
            ns = {c: c.namespace("shared") for c in (red, blue, blue_too)}
            counts = Counts(daemon)
            write_red(ns[red], 10, 1)
            write_blue(ns[blue], 0, 20)
            assert not any(os.pread(fd, kvwire.TALLY_BYTES, 0)), "nor has any other session's count a place in it"
            write_too(ns[blue_too], 7, 0)
            assert counts.tenant("red") == (10, 11)
            assert counts.tenant("blue") == (7, 27)
            assert counts.lookups("client") == (17, 38)
            told = {n["tenant"]: (n["lookup_found_keys"], n["lookup_keys"]) for n in daemon.status()["namespaces"]}
            assert told == {"red": (10, 11), "blue": (7, 27)}
            with user(BOB):
                text = kvwire.Client(daemon.socket).report(kvwire.Report.METRICS)
            text = text.decode() if isinstance(text, bytes) else text
            assert 'kvcache_tenant_lookup_keys_total{tenant="blue"} 27' in text
            assert 'tenant="red"' not in text, "blue sees nothing of red's"


def declined_of(daemon):
    total = daemon.metric("kvcache_loads_declined_total")
    assert daemon.status()["totals"]["loads_declined"] == total
    return total


def test_declined_loads_are_in_the_status_and_outlive_their_session(running):
    daemon = running()
    assert declined_of(daemon) == 0 and "declined" not in ctl("status", daemon=daemon).stdout
    with daemon.client() as c, daemon.client() as d:
        for client, count in ((c, 5), (d, 7)):
            number, fd = client.namespace("n"), client.tally()
            os.pwrite(fd, count.to_bytes(8, "little"), kvwire.TALLY_LOADS + 16 * (number - 1))
            os.close(fd)
        assert declined_of(daemon) == 12
    wait_until(lambda: daemon.metric("kvcache_lookup_counted_sessions") == 0, "both have ended")
    assert declined_of(daemon) == 12
    assert "12 chunks stored, but faster to compute than to load" in ctl("status", daemon=daemon).stdout


def test_R2_declined_loads_are_no_more_than_could_have_been_looked_up(running):
    daemon = running()
    with daemon.client() as c:
        began = time.monotonic_ns()
        number, fd = c.namespace("n"), c.tally()
        at = kvwire.TALLY_LOADS + 16 * (number - 1)
        for value in (1 << 63, 0, (1 << 64) - 1, 3):
            os.pwrite(fd, value.to_bytes(8, "little"), at)
            os.pwrite(fd, b"\xff" * 8, at + 8)  # reserved: ignored
            os.pwrite(fd, b"\xff" * 16, kvwire.TALLY_LOADS + 16 * 200)  # no namespace of this session
            assert declined_of(daemon) <= (time.monotonic_ns() - began) // NS_PER_KEY
        before = declined_of(daemon)
        os.pwrite(fd, (8).to_bytes(8, "little"), at)
        assert declined_of(daemon) == before + 5
        assert daemon.metric("kvcache_lookup_impossible_counts_total") >= 4
        libc_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kvwire.TALLY_BYTES)
        assert declined_of(daemon) == before + 5
        os.close(fd)
