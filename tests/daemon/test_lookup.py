# SPDX-License-Identifier: Apache-2.0
"""The lookup index (proto/README.md 5.4, 6.20): clients that read it get the daemon's answers.

kvwire.py, written from the specification, and the library (lookup-client) both read the table; the library's answers say whether it asked the
daemon. A stored chunk that is not being changed is never reported as absent.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import threading

import pytest

import kvwire
from harness import BUILD, ctl, frame, items, key_of, put_all, wait_until
from kvwire import Ack, Op, Status, Tier
from line_client import LineClient
from test_tenants import ALICE, BOB, TENANTS
from users import client_as

NO_LOOKUP = 2


class LibraryClient(LineClient):
    """A process that looks keys up through libkvcache."""

    program = BUILD / "tests" / "daemon" / "lookup-client"

    def exists(self, *keys):
        """Returns (the tiers of each key, whether all were found without the daemon)."""
        *tiers, local = map(int, self.ask("exists", *keys))
        assert local in (0, len(keys))
        return [Tier(t) for t in tiers], local > 0

    def match(self, *keys):
        run, local = map(int, self.ask("match", *keys))
        return run, local > 0

    def use_index(self):
        """Asks until it is the index that answers."""
        wait_until(lambda: self.exists(key_of("nowhere"))[1], "the library has its index")


def read(lookup, name, keys):
    found = [lookup.find(name, k) for k in keys]
    assert all(known for _, known in found)
    return [tiers for tiers, _ in found]


def agree(c, ns, name, keys, *others):
    """Checks that the daemon, the table and the library agree, while nothing changes."""
    said = c.exists(ns, keys)
    with contextlib.closing(c.lookup()) as lookup:
        assert lookup.is_live()
        assert read(lookup, name, keys) == said
    for library in others:
        library.use_index()
        assert library.exists(*keys) == (said, True)
        run = next((i for i, t in enumerate(said) if not t), len(keys))
        assert library.match(*keys) == (run, True) and c.match(ns, keys) == run
    return said


def told_by_ctl(daemon):
    return ctl("status", "memory", daemon=daemon, check=0).stdout.partition("lookup index")[2].partition("\n")[0]


def at_rest(daemon):
    """Waits until all chunks are written."""
    wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")


@pytest.fixture
def running(make_daemon, directory):
    def run(settings=None, **how):
        return make_daemon(settings={"listen.http": f"unix:{directory / 'd0' / 'h'}", **(settings or {})}, **how).start()
    return run


def test_the_table_the_library_and_the_daemon_agree_whatever_happens(running):
    daemon = running()
    pairs = items("agree", 60, 10000)
    keys = [k for k, _ in pairs] + [key_of("never", i) for i in range(20)]
    with daemon.client() as c, LibraryClient(daemon) as library:
        ns = c.namespace("n")
        other = c.namespace("other")
        assert agree(c, ns, "n", keys, library) == [Tier(0)] * 80
        assert {r.status for r in put_all(c, ns, pairs[:50], ack=Ack.WRITTEN).values()} == {Status.OK}
        put_all(c, other, pairs[50:], ack=Ack.WRITTEN)
        assert agree(c, ns, "n", keys, library) == [Tier.ALL] * 50 + [Tier(0)] * 30
        assert agree(c, other, "other", keys) == [Tier(0)] * 50 + [Tier.ALL] * 10 + [Tier(0)] * 20
        c.evict(ns, keys[:10], tiers=Tier.MEMORY)
        assert agree(c, ns, "n", keys, library)[:10] == [Tier.DISK] * 10
        c.evict(ns, keys[5:15])
        assert agree(c, ns, "n", keys, library)[5:15] == [Tier(0)] * 10
        assert c.value(ns, keys[0]) == pairs[0][1]
        assert agree(c, ns, "n", keys, library)[0] == Tier.ALL
        c.put(ns, pairs[50:], ack=Ack.ACCEPTED)
        assert all(library.exists(*keys[50:60])[0])
        at_rest(daemon)
        agree(c, ns, "n", keys, library)
        assert c.purge(ns) == 50
        assert agree(c, ns, "n", keys, library) == [Tier(0)] * 80
        assert agree(c, other, "other", keys)[50:60] == [Tier.ALL] * 10
        assert daemon.metric("kvcache_lookup_index_entries") == 20

    daemon.restart(kill=True)
    assert daemon.metric("kvcache_lookup_index_tables") == 0, "startup makes none"
    with daemon.client() as c, LibraryClient(daemon, "other") as library:
        assert agree(c, c.namespace("other"), "other", keys, library)[50:60] == [Tier.DISK] * 10


def test_an_accepted_chunk_is_found_at_once_by_its_client(running):
    daemon = running()
    with LibraryClient(daemon) as library:
        library.use_index()
        for i in range(300):
            key = key_of("at once", i)
            assert library.ask("put", key, 3000) == [str(int(Status.OK))]
            tiers, local = library.exists(key)
            assert tiers[0] and local


def test_the_daemon_is_asked_nothing(running):
    daemon = running()
    pairs = items("quiet", 100, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with LibraryClient(daemon) as library:
        library.use_index()
        before = {op: daemon.metric(f'kvcache_requests_total{{op="{op}"}}') for op in ("EXISTS", "MATCH", "LOOKUP")}
        assert library.ask("storm", 500, *keys) == ["0", "500"]
        for op, count in before.items():
            assert daemon.metric(f'kvcache_requests_total{{op="{op}"}}') == count
        assert before["LOOKUP"] == 1
    with LibraryClient(daemon, flags=NO_LOOKUP) as library:
        assert library.ask("storm", 5, *keys) == ["0", "0"]
        assert library.ask("info")[0] == "0"
    assert daemon.metric('kvcache_requests_total{op="MATCH"}') == before["MATCH"] + 5
    assert daemon.metric('kvcache_requests_total{op="LOOKUP"}') == before["LOOKUP"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_R9_a_tenants_table_says_nothing_of_another(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(TENANTS)
    daemon.start()
    pairs = items("mine", 40, 20000)
    keys = [k for k, _ in pairs]
    with client_as(daemon, ALICE) as red, client_as(daemon, BOB) as blue, \
            contextlib.closing(blue.lookup()) as before:
        ns = red.namespace("shared")
        blue.namespace("shared")
        image = before.map[4096:]
        put_all(red, ns, pairs, ack=Ack.WRITTEN)
        with contextlib.closing(red.lookup()) as own, contextlib.closing(blue.lookup()) as other:
            assert read(own, "shared", keys) == [Tier.ALL] * 40
            assert read(other, "shared", keys) == [Tier(0)] * 40
            assert other.map[4096:] == image, "not a word of it has changed"
            assert own.secret != other.secret
            assert not any(image)
        red.purge(ns)
        assert before.map[4096:] == image and before.removals == 0


def test_only_the_daemon_can_write_the_index(running):
    daemon = running()
    with daemon.client() as c:
        reply = c.call(Op.LOOKUP, n_fds=1)
        fd, = reply.fds
        try:
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            with pytest.raises(OSError):
                os.write(fd, b"x")
            with pytest.raises(PermissionError):
                mmap.mmap(fd, reply.value64, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            for size in (0, reply.value64 + 4096):
                with pytest.raises(OSError):
                    os.ftruncate(fd, size)
            try:  # root can open the file again; the seals must prevent writing
                again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            except PermissionError:
                return
            try:
                with pytest.raises(PermissionError):
                    os.pwrite(again, b"x", 0)
                with pytest.raises(PermissionError):
                    mmap.mmap(again, reply.value64, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
                with pytest.raises(PermissionError):
                    os.ftruncate(again, 0)
            finally:
                os.close(again)
        finally:
            os.close(fd)


def test_growth_is_not_seen_as_absence(running):
    """A small table is replaced several times by larger ones during lookups; chunks that were always stored are always found."""
    daemon = running({"store.limit": "320MiB", "memory.pool": "16MiB", "store.prewrite": "off"})
    fixed = items("fixed", 200, 900)
    keys = [k for k, _ in fixed]
    stop, storms = threading.Event(), []

    def look():
        with LibraryClient(daemon) as library:
            while not stop.is_set():
                storms.append(tuple(map(int, library.ask("storm", 200, *keys))))

    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, fixed, ack=Ack.WRITTEN)
        lookers = [threading.Thread(target=look) for _ in range(2)]
        for thread in lookers:
            thread.start()
        try:
            first = None
            for part in range(100):
                put_all(c, ns, [(key_of("more", part, i), b"x" * 900) for i in range(1024)], batch=256, ack=Ack.WRITTEN)
                builds = daemon.metric("kvcache_lookup_index_builds_total")
                first = first or builds
                if builds >= first + 2 and builds > 2:
                    break
        finally:
            stop.set()
            for thread in lookers:
                thread.join()
        assert daemon.metric("kvcache_lookup_index_builds_total") > 2
        assert daemon.metric("kvcache_lookup_index_overflowed") >= 0
        assert daemon.metric("kvcache_evictions_total") == 0
        some = keys + [key_of("more", p, i) for p in range(part) for i in range(0, 1024, 37)]
        with contextlib.closing(c.lookup()) as lookup:
            wait_until(lookup.is_live, "it is live")
            for at in range(0, len(some), 1024):
                for key, tiers in zip(some[at:at + 1024], c.exists(ns, some[at:at + 1024])):
                    found, known = lookup.find("n", key)
                    assert found == tiers or not known
    assert sum(wrong for wrong, _ in storms) == 0 and sum(local for _, local in storms) > 0


def test_a_daemon_that_is_stopped_is_not_believed_for_long(running):
    daemon = running()
    (key, value), = items("stopped", 1, 5000)
    with daemon.client() as c, LibraryClient(daemon) as library:
        ns = c.namespace("n")
        c.put(ns, [(key, value)], ack=Ack.WRITTEN)
        library.use_index()
        daemon.pause()
        try:
            answer = wait_until(lambda: (a := library.ask("exists", key))[0] == "error" and a, "it asks the daemon", 30)
            assert int(answer[1]) == -errno.ETIMEDOUT
        finally:
            daemon.resume()
        wait_until(lambda: library.ask("exists", key) == ["3", "1"], "the index answers again", 30)
        assert library.ask("info")[1] == "0", "all in one session"


def test_a_restarted_daemon_is_asked_for_its_own_index(running):
    daemon = running()
    pairs = items("restarted", 10, 5000)
    keys = [k for k, _ in pairs]
    with LibraryClient(daemon) as library:
        with daemon.client() as c:
            put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        library.use_index()
        daemon.restart()
        assert library.exists(*keys) == ([Tier.DISK] * 10, False), "one that stops says so"
        library.use_index()
        assert library.exists(*keys) == ([Tier.DISK] * 10, True)
        daemon.restart(kill=True)
        wait_until(lambda: not library.exists(*keys)[1], "a killed one's clock stands", 30)
        library.use_index()
        assert library.exists(*keys) == ([Tier.DISK] * 10, True)
        assert library.ask("info")[1] == "2"


def test_off_by_configuration(running):
    daemon = running({"memory.lookup_index": "off"})
    pairs = items("off", 3, 5000)
    with daemon.client() as c, LibraryClient(daemon) as library:
        assert not c.features & kvwire.FEATURE_LOOKUP
        assert c.lookup(check=False).status == Status.DENIED
        c.put(c.namespace("n"), pairs, ack=Ack.WRITTEN)
        for _ in range(5):
            assert library.exists(*[k for k, _ in pairs]) == ([Tier.ALL] * 3, False)
        assert daemon.metric('kvcache_requests_total{op="LOOKUP"}') == 1
        assert daemon.metric("kvcache_lookup_index_bytes") == 0
        assert not daemon.status()["lookup_index"]["enabled"]
        assert told_by_ctl(daemon).strip().startswith("off")


def test_the_index_appears_in_status_and_metrics(running):
    daemon = running()
    pairs = items("told", 30, 4000)
    with daemon.client() as c:
        assert c.features & kvwire.FEATURE_LOOKUP
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert daemon.status()["lookup_index"] == {
            "enabled": True, "tables": 0, "building": 0, "entries": 0, "unplaced": 0, "bytes": 0, "buckets": 0,
            "overflowed": 0, "builds": 0, "failed_builds": 0}
        assert daemon.metric("kvcache_lookup_index_tables") == 0
        with contextlib.closing(c.lookup()) as lookup:
            told = daemon.status()["lookup_index"]
            assert told["tables"] == told["builds"] == 1 and told["entries"] == 60 and told["bytes"] == lookup.size
            assert told["buckets"] == lookup.n_buckets + lookup.n_stash
            assert daemon.metric("kvcache_lookup_index_bytes") == lookup.size
            assert daemon.metric("kvcache_lookup_index_entries") == 60
            assert daemon.metric("kvcache_lookup_index_builds_total") == 1
            assert daemon.metric("kvcache_lookup_index_buckets") == told["buckets"]
        with contextlib.closing(c.lookup()) as again:
            assert again.secret == lookup.secret, "one that is there is not built again"
    assert "60 entries" in told_by_ctl(daemon)


def test_clients_that_leave_while_the_index_is_built_harm_no_other(running):
    daemon = running()
    pairs = items("away", 400, 900)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, batch=256, ack=Ack.WRITTEN)
    daemon.restart()
    for i in range(20):
        with daemon.client() as c:
            for _ in range(4):
                c.submit(Op.LOOKUP)
    with daemon.client() as c:
        tags = [c.submit(Op.LOOKUP) for _ in range(8)]
        for tag in tags:
            reply = c.wait(tag)
            os.close(reply.fds[0])
        agree(c, c.namespace("n"), "n", [k for k, _ in pairs])
    wait_until(lambda: daemon.metric("kvcache_sessions") == 1, "only the asking session is there")


@pytest.mark.parametrize("body", [b"\0", bytes(8), bytes(16)])
def test_a_lookup_with_a_body_ends_the_session(running, body):
    daemon = running()
    with daemon.client() as c:
        c.send(frame(Op.LOOKUP, body))
        with pytest.raises(kvwire.SessionEnded):
            c.receive()


def test_a_resumed_volume_restores_its_chunks(make_daemon, directory):
    paths = [directory / "a", directory / "b"]
    daemon = make_daemon(settings={"store.path": ",".join(map(str, paths)),
                                   "listen.http": f"unix:{directory / 'd0' / 'h'}"}).start()
    pairs = items("paths", 120, 20000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, LibraryClient(daemon) as library:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        agree(c, ns, "n", keys, library)
        old = c.lookup()
        for _ in range(2):
            c.device("suspend", 1)
            # Keys of the suspended volume may still be in the index, and are then misses; keys of the other volume are found.
            here, there = c.exists(ns, keys), library.exists(*keys)[0]
            assert all(not h & ~t for h, t in zip(here, there))
            c.evict(ns, keys[:20], tiers=Tier.MEMORY)
            c.device("resume", 1)
            assert old.state == kvwire.LOOKUP_SUPERSEDED
            assert all(agree(c, ns, "n", keys, library))
            old.close()
            old = c.lookup()
        c.evict(ns, keys[30:60])
        assert agree(c, ns, "n", keys, library)[30:60] == [Tier(0)] * 30
        old.close()


def test_no_stored_chunk_is_reported_absent_under_load(running):
    """Puts, gets, evicts and evictions by the daemon; an oracle of its own keys beside each writer."""
    daemon = running({"store.limit": "64MiB", "memory.pool": "8MiB"})
    stop, problems = threading.Event(), []
    seconds = 4

    def work(number):
        draw = random.Random(number)
        fixed = items(("kept", number), 20, 3000)
        try:
            with daemon.client() as c, LibraryClient(daemon) as library:
                ns = c.namespace("n")
                library.use_index()
                round = 0
                while not stop.is_set():
                    round += 1
                    # Chunks touched last are not evicted.
                    results = c.put(ns, fixed, ack=Ack.WRITTEN, lease=True)
                    if any(r.status not in (Status.OK, Status.EXISTS) for r in results):
                        problems.append([r.status for r in results])
                    tiers, _ = library.exists(*[k for k, _ in fixed])
                    if not all(tiers):
                        problems.append(("absent", number, round, tiers))
                    held = [r.lease for r in results if r.leased]
                    mine = items((number, draw.randrange(40)), 8, draw.randrange(1, 60000))
                    c.put(ns, mine, ack=draw.choice(list(Ack)))
                    c.evict(ns, [k for k, _ in mine[:draw.randrange(1, 8)]], tiers=draw.choice([Tier.MEMORY, Tier.ALL]))
                    if library.match(*[k for k, _ in fixed])[0] != len(fixed):
                        problems.append(("run", number, round))
                    c.release(held)
        except Exception as e:
            problems.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[:5]
