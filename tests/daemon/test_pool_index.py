# SPDX-License-Identifier: Apache-2.0
"""The pool index (proto/README.md 5.7, 6.33): clients get chunks in memory without a message, and chunks do not move while they are held.

kvwire.py, correctly or not, and the library (hits-client) write the pages. Whatever a client holds or writes, no other client sees a byte of
another key, and its holds are released when its session ends.
"""

import contextlib
import os
import pathlib
import random
import signal
import struct
import subprocess
import threading

import pytest

import harness
import kvwire
from harness import BUILD, KIB, MIB, items, key_of, put_all, slow, value_of, wait_until
from kvwire import Ack, Op, Status, Tier
from line_client import LineClient
from test_keep_memory import mounts, service  # noqa: F401 - fixtures

FEATURE = 1 << 20
STRESS = BUILD / "tests" / "daemon" / "hits-stress"
LONG = os.environ.get("KVCACHE_TEST_LONG") == "1"
NO_LOOKUP = 2
SMALL = {"memory.pool": "16MiB", "store.limit": "64MiB", "limits.wait": "200ms"}


class LibraryClient(LineClient):
    """A process that gets chunks through libkvcache."""

    program = BUILD / "tests" / "daemon" / "hits-client"

    def _got(self, how, keys):
        *results, local = self.ask(how, *keys)
        assert local in ("0", str(len(keys))) and len(results) == len(keys), (results[:2], local)
        pairs = [r.split(":") for r in results]
        return [bytes.fromhex(value) if status == "0" else Status(int(status)) for status, value in pairs], local != "0"

    def get(self, *keys):
        """Gets the keys under leases. Returns (the bytes of each, or its status; whether all were got without the daemon)."""
        return self._got("get", keys)

    def into(self, *keys):
        return self._got("into", keys)

    def more(self, *keys):
        return self._got("more", keys)

    def cut(self, *keys):
        return self._got("cut", keys)

    def changed(self):
        """Returns (the number of leases, the number of those whose bytes have changed)."""
        return tuple(map(int, self.ask("check")))

    def info(self):
        """(bytes of the index, keys got by it, reconnects)"""
        return tuple(map(int, self.ask("info")))

    def release(self, *count):
        assert self.ask("release", *count) == ["0"]

    def use_index(self, *keys):
        """Gets until the daemon is not asked any more."""
        wait_until(lambda: self.into(*keys)[1], "the library has its pool index")


@contextlib.contextmanager
def index_of(client):
    with contextlib.closing(client.pool_index()) as index:
        yield index


@pytest.fixture
def small(make_daemon):
    return make_daemon(settings=SMALL).start()


def in_index(index, number, keys):
    return {k for k in keys if index.find(number, k)}


def filled(index, number, keys):
    wait_until(lambda: in_index(index, number, keys) == set(keys), "the index has what was there")


RECORDS = 2048  # upper bound of the records in use, if chunks are large


def hold_everything(index, length=256 * KIB):
    """Holds every record, whatever chunk of that length it has, or will have."""
    return [index.hold_record(record, length) for record in range(RECORDS)]


def flood(client, ns, name, count=96, length=256 * KIB):
    """Puts more chunks than fit into the small pool."""
    pairs = items(name, count, length)
    for at in range(0, count, 8):
        client.put(ns, pairs[at:at + 8], ack=Ack.ACCEPTED)
    return pairs


def all_is_let_go(daemon):
    """Waits until nothing is held, and no slot waits for that."""
    def idle():
        now = daemon.metrics()
        return now["kvcache_pool_index_holds"] == now["kvcache_pool_index_held_chunks"] == now["kvcache_pool_leased_bytes"] == 0
    wait_until(idle, "nothing is held")


# --- the protocol ---

def test_descriptors_are_sealed_and_chunks_in_memory_are_found(daemon):
    pairs = items("found", 40, 10000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        assert c.features & FEATURE
        ns = c.namespace("n")
        put_all(c, ns, pairs[:30], ack=Ack.WRITTEN)
        with index_of(c) as index:  # index_of() checks seals, sizes and the header
            assert index.is_live() and 0 < index.allowance <= c.pool_bytes // 8
            assert index.tag(ns) and not any(index.tag(n) for n in range(1, 257) if n != ns)
            filled(index, ns, keys[:30])
            put_all(c, ns, pairs[30:], ack=Ack.ACCEPTED)
            assert in_index(index, ns, keys) == set(keys)
            for k, v in pairs:
                _, offset, length, _ = index.find(ns, k)
                assert length == len(v) and c.pool_read(offset, length) == v
            c.evict(ns, keys[:10])
            c.evict(ns, keys[10:20], tiers=Tier.MEMORY)
            assert in_index(index, ns, keys) == set(keys[20:])
            assert c.value(ns, keys[15]) == pairs[15][1]
            assert index.find(ns, keys[15])
            c.purge(ns)
            assert not in_index(index, ns, keys)


def test_a_session_has_one_page(daemon):
    with daemon.client() as c:
        with index_of(c):
            assert c.pool_index(check=False).status == Status.EXISTS
            assert c.call(Op.PING, b"still there").body == b"still there"
        with daemon.client() as other, index_of(other) as its:
            assert its.taken == 0


def test_a_malformed_request_ends_the_session(daemon):
    for body, flags in ((b"", 1), (b"", 1 << 15), (b"\0", 0), (bytes(8), 0)):
        with daemon.client() as c, pytest.raises(kvwire.SessionEnded):
            c.call(Op.POOL_INDEX, body, flags=flags)
    with daemon.client() as c, index_of(c) as index:
        assert index.is_live()


def test_off_by_the_configuration(make_daemon):
    daemon = make_daemon(settings={"memory.pool_index": "off"}).start()
    pairs = items("off", 8, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        assert not c.features & FEATURE
        assert c.pool_index(check=False).status == Status.DENIED
        put_all(c, c.namespace("n"), pairs)
    with LibraryClient(daemon) as library:
        for _ in range(8):
            assert library.into(*keys) == ([v for _, v in pairs], False)
        assert library.info() == (0, 0, 0)
    assert daemon.metric('kvcache_requests_total{op="POOL_INDEX"}') == 1, "the library does not ask where there is none"


def test_tags_come_and_go_with_namespaces(daemon):
    pair, = items("tag", 1, 4000)
    with daemon.client() as c, daemon.client() as admin:
        first = c.namespace("first")
        with index_of(c) as index:
            second = c.namespace("second")
            assert index.tag(first) and index.tag(second) and index.tag(first) != index.tag(second)
            put_all(c, second, [pair])
            filled(index, second, [pair[0]])
            assert not index.find(first, pair[0])
            tag = index.tag(second)
            # With a lifetime, each chunk may have expired, so clients must ask the daemon.
            assert admin.set_lifetime("second", 60) == 60
            assert index.tag(second) == 0 and index.tag(first)
            assert admin.set_lifetime("second", 0) == 0
            assert index.tag(second) == tag and index.find(second, pair[0])
            assert index.tag(c.namespace("brief", lifetime_s=60)) == 0
            c.purge(second)
            c.namespace_remove("second")
            assert index.tag(second) == 0 and index.tag(first)
            again = c.namespace("second")
            assert index.tag(again) not in (0, tag)
            assert not index.find(again, pair[0])
    with daemon.client() as c:
        ns = c.namespace("lives", lifetime_s=60)
        with index_of(c) as index:
            assert index.tag(ns) == 0


def test_recording_suspends_it(daemon):
    pairs = items("recorded", 8, 4000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, LibraryClient(daemon) as library, index_of(c) as index:
        put_all(c, c.namespace("n"), pairs)
        library.use_index(*keys)
        with daemon.client() as recorder:
            reply = recorder.call(Op.RECORD, struct.pack("<II", 60, 0), n_fds=1)
            assert not index.is_live()
            assert library.into(*keys) == ([v for _, v in pairs], False)
            with daemon.client() as late, index_of(late) as its:
                assert not its.is_live()
            os.close(reply.fds[0])
        wait_until(index.is_live, "the recording has ended")
        assert library.into(*keys) == ([v for _, v in pairs], True)


# --- holding, by the page ---

def test_held_chunks_are_not_evicted_until_released(small):
    with small.client() as c, small.client() as holder:
        ns, number = c.namespace("n"), holder.namespace("n")
        pairs = items("held", 8, 16 * KIB)
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        with index_of(holder) as index:
            filled(index, number, [k for k, _ in pairs])
            held = [index.hold(number, k) for k, _ in pairs]
            assert all(held) and sum(length for _, _, length in held) <= index.allowance
            flood(c, ns, "one")
            assert in_index(index, number, [k for k, _ in pairs]) == {k for k, _ in pairs}, "they were the oldest"
            # The chunks are evicted from memory and disk, but the held bytes do not change.
            c.evict(ns, [k for k, _ in pairs[:4]])
            c.purge(ns)
            assert not in_index(index, number, [k for k, _ in pairs])
            put_all(c, ns, [(k, value_of(key_of("other", k), len(v))) for k, v in pairs], ack=Ack.ACCEPTED)
            flood(c, ns, "two")
            flood(c, ns, "three")
            for (_, v), (_, offset, length) in zip(pairs, held):
                assert holder.pool_read(offset, length) == v
            for place, _, _ in held:
                index.let_go(place)
            # All of the pool is available to other clients again, although there were always other chunks to evict.
            all_is_let_go(small)


def test_a_client_that_holds_everything_is_ended(small):
    small.populated_status()
    with small.client() as c, small.client(name="hog") as hog:
        number = hog.namespace("n")
        with index_of(hog) as index:
            ns = c.namespace("n")
            flood(c, ns, "all")
            wait_until(lambda: small.metric("kvcache_pool_unwritten_bytes") == 0, "the chunks can be evicted")
            hold_everything(index)

            def is_ended():
                assert c.put(ns, items(os.urandom(4), 1, 256 * KIB))[0].status == Status.OK, "others have the private slabs"
                return small.log().count("more of the pool than its share") > before
            before = small.log().count("more of the pool than its share")
            wait_until(is_ended, "the session is ended", 20)
            with pytest.raises((kvwire.SessionEnded, OSError)):
                hog.ping()
                hog.ping()
        for _ in range(2):
            assert {r.status for r in c.put(ns, items(os.urandom(4), 8, 256 * KIB))} == {Status.OK}
    assert small.metric('kvcache_sessions_ended_total{reason="bad_frame"}') == 1


def test_sessions_that_hold_everything_in_turn_are_ended(small):
    """The limit applies to the user: neither session alone is seen to hold too much often enough."""
    small.populated_status()
    with small.client() as c, small.client(name="hog") as one, small.client(name="hog") as two:
        ns = c.namespace("n")
        for client in (one, two):
            client.namespace("n")
        with index_of(one) as first, index_of(two) as second:
            flood(c, ns, "all")
            wait_until(lambda: small.metric("kvcache_pool_unwritten_bytes") == 0, "the chunks can be evicted")
            turns = [first, second]

            def is_revoked():
                """Puts while one of both holds everything; returns whether a session was revoked."""
                places = hold_everything(turns[0])
                answers = {c.put(ns, items(os.urandom(4), 1, 256 * KIB))[0].status for _ in range(20)}
                for place in places:
                    turns[0].let_go(place)
                turns.reverse()
                assert answers == {Status.OK}, "others have the private slabs"
                return small.metric("kvcache_pool_index_revoked_clients_total") > 0
            wait_until(is_revoked, "a session is revoked", 20)
            with small.client() as again:
                assert again.pool_index(check=False).status == Status.QUOTA


def test_a_session_that_ended_gives_out_nothing_more(small):
    """The daemon has ended the session; the client still has its page, and holds chunks that it has found."""
    pairs = items("ended", 4, 4000)
    keys = [k for k, _ in pairs]
    with small.client() as c, small.client() as ended:
        ns, number = c.namespace("n"), ended.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        with index_of(ended) as index:
            filled(index, number, keys)
            tag = index.tag(number)
            held = index.hold(number, keys[0])
            with pytest.raises(kvwire.SessionEnded):
                ended.call(Op.POOL_INDEX, b"", flags=1)
            assert held and not any(index.tag(n) for n in range(1, 257))
            # An operation that gives tags to other sessions gives none to this one.
            assert c.set_lifetime("n", 60) == 60 and c.set_lifetime("n", 0) == 0
            with index_of(c) as its:
                assert its.tag(ns) == tag and its.find(ns, keys[1])
            assert not any(index.tag(n) for n in range(1, 257))
            assert index.hold(number, keys[1]) is None
            c.evict(ns, keys)
            flood(c, ns, "press")
            assert ended.pool_read(held[1], held[2]) == pairs[0][1]
    all_is_let_go(small)


def test_a_full_ring_does_not_delay_reading_of_others(small):
    with small.client() as c, small.client() as busy:
        c.namespace("n")
        busy.namespace("n")
        with index_of(busy) as full, index_of(c) as index:
            # Touches of missing chunks: reading the ring counts, not finding the chunks.
            for _ in range(8):
                full.touch(*[(1 << 31, 0)] * 1023)
            index.touch((1 << 31, 0))

            def is_read():  # never is the ring empty meanwhile
                for _ in range(100000):
                    full.written = full.taken + kvwire.POOL_PAGE_RING
                    if index.taken == 2:
                        return True
                return False
            wait_until(is_read, "the other one is read")
            assert c.call(Op.PING, b"at once").body == b"at once"


def loop_work(daemon):
    """Returns (CPU time of the event loop in ms, how often it has slept)."""
    task = pathlib.Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}")
    sleeps = next(line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary_ctxt_switches"))
    return int((task / "schedstat").read_text().split()[0]) / 1e6, int(sleeps.split()[1])


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_the_loop_sleeps_between_stretches_of_touches(make_daemon, ended):
    """A client that waits for a processor, with its reply, gets it from a loop that sleeps."""
    daemon = make_daemon(settings={"memory.pool": "64MiB", "store.limit": "128MiB"}).start()
    pairs = items("touched", 2000, 4 * KIB)
    with contextlib.ExitStack() as stack:
        c = stack.enter_context(daemon.client())
        ns = c.namespace("n")
        put_all(c, ns, pairs, batch=100, ack=Ack.ACCEPTED)
        sessions = [stack.enter_context(daemon.client()) for _ in range(16)]
        numbers = [session.namespace("n") for session in sessions]
        indexes = [stack.enter_context(index_of(session)) for session in sessions]
        filled(indexes[0], numbers[0], [k for k, _ in pairs])
        touches = [(found[0], found[3]) for found in (indexes[0].find(numbers[0], k) for k, _ in pairs)]
        for index in indexes:
            index.fill_ring([random.choice(touches) for _ in range(kvwire.POOL_PAGE_RING - 8)])
        cpu_ms, sleeps = loop_work(daemon)
        for session, index in zip(sessions, indexes):
            index.written = index.taken + kvwire.POOL_PAGE_RING
            if ended:
                session.sock.close()
        c.call(Op.PING, b"look")
        wait_until(lambda: all(index.taken == index.written for index in indexes), "all rings are read")
        now_ms, now_sleeps = loop_work(daemon)
        assert now_sleeps - sleeps >= (now_ms - cpu_ms) / 4, (now_sleeps - sleeps, now_ms - cpu_ms)


def test_a_put_waits_for_briefly_held_chunks(make_daemon):
    """Ending a hold sends no message: the daemon checks again after a while. Leases of an admin keep the put from the private slabs."""
    daemon = make_daemon(settings={**SMALL, "limits.wait": "20s"}).start()
    daemon.populated_status()
    with daemon.client() as c, daemon.client() as holder:
        ns, number = c.namespace("n"), holder.namespace("n")
        pairs = flood(c, ns, "all")
        wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "the chunks can be evicted")
        with index_of(holder) as index:
            resident = {k for k, _ in pairs if c.exists(ns, [k])[0] & Tier.MEMORY}
            wait_until(lambda: len(in_index(index, number, list(resident))) == len(resident) - 16, "the index has all but the private slabs")
            private = [k for k in resident if not index.find(number, k)]
            leases = [r.lease for r in c.get(ns, private, nowait=True) if r.lease]
            held = hold_everything(index)
            tag = c.submit_batch(Op.PUT, ns, *put_of(c, items("waits", 1, 256 * KIB)))
            assert not c.answered(tag)
            for place in held:
                index.let_go(place)
            assert c.put_results(c.wait(tag), 1)[0].status == Status.OK
            assert len(leases) == len(private) == 16
        assert c.exists(ns, [pairs[0][0]]) == [Tier.DISK]


def put_of(client, pairs):
    if client.staging_map is None:
        client.staging(4 * MIB)
    return (client.put_entries(pairs),)


def test_a_killed_client_gives_everything_back(small):
    """A client is killed while it holds all that it can, so that others have only the private slabs."""
    small.populated_status()
    with small.client() as c:
        ns = c.namespace("n")
        flood(c, ns, "all")
        pid = os.fork()
        if pid == 0:
            try:
                with small.client(name="victim") as victim:
                    index = victim.pool_index()
                    victim.namespace("n")
                    hold_everything(index)
                    os.kill(os.getpid(), signal.SIGSTOP)
            finally:
                os._exit(1)
        os.waitpid(pid, os.WUNTRACED)
        wait_until(lambda: small.metric("kvcache_pool_unwritten_bytes") == 0, "the chunks can be evicted")
        assert {r.status for r in c.put(ns, items("private", 8, 256 * KIB))} == {Status.OK}
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert {r.status for r in c.put(ns, items("yes", 8, 256 * KIB))} == {Status.OK}
        flood(c, ns, "more")
        all_is_let_go(small)


def test_garbage_in_a_page_affects_only_its_client(small):
    """A client overwrites every word of its page repeatedly, while another one puts, gets and checks each byte."""
    rng = random.Random(7)
    stop = threading.Event()

    def scribble():
        rounds = 0
        while not stop.is_set():
            with small.client(name="scribbler") as bad, contextlib.suppress(kvwire.SessionEnded, OSError):
                bad.namespace("n")
                bad.namespace("m")
                reply = bad.pool_index(check=False)
                if isinstance(reply, kvwire.Reply):
                    assert reply.status == Status.QUOTA
                    continue
                with contextlib.closing(reply) as index:
                    for _ in range(20):
                        kind = rng.randrange(5)
                        if kind == 0:
                            index.page_map[:] = rng.randbytes(kvwire.POOL_PAGE_BYTES)
                        elif kind == 1:
                            index.page_map[:] = b"\xff" * kvwire.POOL_PAGE_BYTES
                        elif kind == 2:
                            for _ in range(2000):
                                index.page[rng.randrange(len(index.page))] = rng.getrandbits(rng.choice((8, 20, 40, 64)))
                        elif kind == 3:  # holds that may be some
                            for _ in range(rng.randrange(RECORDS)):
                                record = rng.randrange(1000)
                                index.set_hold(record % kvwire.POOL_PAGE_BUCKETS, rng.randrange(kvwire.POOL_PAGE_WAYS),
                                               (record + 1) << 32 | rng.choice((16, 64)) * KIB)
                        else:  # touches likewise
                            for _ in range(20):
                                index.touch(*((rng.randrange(1000), rng.randrange(4)) for _ in range(rng.randrange(50))))
                        if rng.random() < 0.3:
                            bad.ping()
                rounds += 1
        return rounds

    rounds = []
    thread = threading.Thread(target=lambda: rounds.append(scribble()))
    with small.client() as c:
        ns = c.namespace("n")
        pairs = items("right", 400, 64 * KIB)
        thread.start()
        try:
            for _ in range(30):
                some = rng.sample(pairs, 8)
                assert {r.status for r in c.put(ns, some, ack=rng.choice(list(Ack)))} <= {Status.OK, Status.EXISTS, Status.BUSY}
                some = rng.sample(pairs, 8)
                for (_, v), r in zip(some, c.get(ns, [k for k, _ in some])):
                    assert r.status in (Status.OK, Status.MISS, Status.BUSY)
                    assert r.status != Status.OK or r.data == v
                    if r.lease:
                        c.release([r.lease])
        finally:
            stop.set()
            thread.join()
        assert rounds and rounds[0] > 0
        assert small.metric("kvcache_lookup_impossible_counts_total") > 0
        c.evict(ns, [k for k, _ in pairs], tiers=Tier.MEMORY)
        all_is_let_go(small)


def test_counts_and_touches_of_a_page(small):
    """Counts are accepted as far as they can be true; chunks touched through the page outlive others."""
    small.populated_status()
    with small.client() as c, small.client() as other:
        ns, number = c.namespace("n"), other.namespace("n")
        pairs = items("kept", 30, 256 * KIB)
        keys = [k for k, _ in pairs]
        put_all(c, ns, pairs, batch=8, ack=Ack.WRITTEN)
        with index_of(other) as index:
            filled(index, number, keys)
            before = small.metrics()
            index.count(number, 5, 5 * 256 * KIB, 7, 1)
            now = small.metrics()
            label = 'namespace="n"'
            for name, by in (('kvcache_hits_total{tier="memory"}', 5), ('kvcache_get_bytes_total{form="map"}', 5 * 256 * KIB),
                             ('kvcache_get_bytes_total{form="into"}', 7), (f"kvcache_namespace_get_keys_total{{{label}}}", 5),
                             (f"kvcache_namespace_get_found_keys_total{{{label}}}", 5),
                             ("kvcache_lookup_impossible_counts_total", 0)):
                assert now[name] - before[name] == by, name
            index.count(number, 1, 1 << 60, 0, 0)
            assert small.metric("kvcache_lookup_impossible_counts_total") > before["kvcache_lookup_impossible_counts_total"]
            assert small.metric('kvcache_get_bytes_total{form="map"}') - before['kvcache_get_bytes_total{form="map"}'] <= 10 * MIB

            touched = keys[:8]
            index.touch(*((found[0], found[3]) for found in (index.find(number, k) for k in touched)))
            wait_until(lambda: index.taken == 9, "the touches are taken")

            def pressed():  # a slow device refuses some of the puts
                flood(c, ns, "new", 40)
                return len(in_index(index, number, keys)) < 30
            wait_until(pressed, "some have left")
            assert in_index(index, number, keys) >= set(touched)


# --- with the library ---

def test_uses_before_a_message_are_touched_before_it(small):
    """The uses that a client reports are applied before its hint that a chain has ended, because they would otherwise make the chain young
    again."""
    with small.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs := items("order", 2, 4 * KIB))
        with index_of(c) as index:
            filled(index, ns, [k for k, _ in pairs])
            record, _, _, generation = index.find(ns, pairs[0][0])
            for _ in range(20):  # the loop would read it within a millisecond in any case
                index.touch((record, generation))
                c.exists(ns, [pairs[1][0]])
                assert index.taken == index.written


def test_gets_are_answered_without_the_daemon(daemon):
    pairs = items("local", 16, 5000)
    keys, values = zip(*pairs)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with LibraryClient(daemon) as library, LibraryClient(daemon, flags=NO_LOOKUP) as asks:
        assert library.info()[0] == 0
        library.use_index(*keys)
        bytes_mapped, local, _ = library.info()
        assert bytes_mapped > 4096 and local == 16
        before = daemon.metrics()
        assert library.get(*keys) == (list(values), True)
        assert library.into(*keys) == (list(values), True)
        assert library.ask("storm", 500, *keys) == ["0", "8000"]
        assert library.changed() == (16, 0)
        now = daemon.metrics()
        name = 'kvcache_requests_total{op="GET"}'
        assert now[name] == before[name]
        # The counters equal the gets.
        for name, by in (('kvcache_hits_total{tier="memory"}', 502 * 16), ('kvcache_get_bytes_total{form="map"}', 16 * 5000),
                         ('kvcache_get_bytes_total{form="into"}', 501 * 16 * 5000),
                         ('kvcache_tenant_get_bytes_total{tenant="default"}', 502 * 16 * 5000),
                         ('kvcache_namespace_get_found_keys_total{namespace="n"}', 502 * 16),
                         ('kvcache_misses_total{reason="unknown"}', 0), ("kvcache_lookup_impossible_counts_total", 0)):
            assert now.get(name, 0) - before.get(name, 0) == by, name
        # The library answers a request completely, or passes it to the daemon completely.
        got, is_local = library.into(keys[0], key_of("nowhere"), keys[1])
        assert got == [values[0], Status.MISS, values[1]] and not is_local
        library.release()
        for _ in range(4):
            assert asks.into(*keys) == (list(values), False)
        assert asks.info()[:2] == (0, 0)
    after = daemon.metrics()
    name = 'kvcache_hits_total{tier="memory"}'
    assert after[name] - now[name] == 2 + 4 * 16, "the end of a session takes nothing back"


def test_a_chunk_is_found_in_either_bucket(make_daemon):
    """With this many small chunks, some first buckets are more than half full, and second buckets have the rest. Groups have any size."""
    daemon = make_daemon(settings={**SMALL, "memory.pool": "64MiB"}).start()  # 70 may be held, of a page at least
    pairs = items("many", 10000, 100)
    with daemon.client() as c, LibraryClient(daemon) as library:
        put_all(c, c.namespace("n"), pairs, batch=500, ack=Ack.WRITTEN)
        library.use_index(*(k for k, _ in pairs[-64:]))
        at, asked = 0, 0
        for size in (*range(1, 70), 1):
            keys, values = map(list, zip(*pairs[at:at + size]))
            got, is_local = library.into(*keys)
            assert got == values, (at, size)
            asked += not is_local
            at += size
        assert at == 2416 and asked == 0


def test_leases_protect_chunks_from_evict_purge_and_pressure(small):
    """Leases of the daemon and of the index protect chunks alike."""
    pairs = items("leased", 12, 4 * KIB)
    keys, values = zip(*pairs)
    with small.client() as c, LibraryClient(small) as library:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert library.get(*keys) == (list(values), False)
        library.use_index(*keys)
        assert library.get(*keys) == (list(values), True)
        assert library.changed() == (24, 0)
        assert library.ask("evict", *keys[:6]) == ["6"]
        assert library.into(*keys[:6]) == ([Status.MISS] * 6, False)
        flood(c, ns, "press")
        assert library.changed() == (24, 0)
        c.purge(ns)
        assert library.into(*keys) == ([Status.MISS] * 12, False)
        other = [value_of(key_of("anew", k), 4 * KIB) for k in keys]
        put_all(c, ns, list(zip(keys, other)), ack=Ack.ACCEPTED)
        assert library.into(*keys) == (other, True)
        flood(c, ns, "press more")
        assert library.changed() == (24, 0)
        library.release()
        assert library.changed() == (0, 0)
        flood(c, ns, "the last")
        all_is_let_go(small)


def test_a_continued_chain_stays_with_the_daemon_to_its_end(daemon):
    """A part of a chain is got from the daemon, so that it sees the whole chain. A complete chain is answered by the library."""
    pairs = items("chain", 8, 3000)
    keys, values = zip(*pairs)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with LibraryClient(daemon) as library:
        library.use_index(*keys)
        assert library.more(*keys[:4]) == (list(values[:4]), False)
        assert library.more(*keys[4:6]) == (list(values[4:6]), False)
        assert library.into(*keys[6:]) == (list(values[6:]), False)
        assert library.into(*keys[6:]) == (list(values[6:]), True)


def test_leases_of_one_chunk_share_its_place(small):
    pair, = items("shared", 1, 8000)
    key, value = pair
    with small.client() as c, LibraryClient(small) as library:
        ns = c.namespace("n")
        put_all(c, ns, [pair], ack=Ack.WRITTEN)
        library.use_index(key)
        for _ in range(20):  # more than a bucket has places
            assert library.get(key) == ([value], True)
        assert library.into(key) == ([value], True)
        assert small.metric("kvcache_pool_index_holds") == 1
        library.release(19)
        assert small.metric("kvcache_pool_index_holds") == 1
        c.evict(ns, [key])
        flood(c, ns, "press")
        assert library.changed() == (1, 0)
        library.release()
        all_is_let_go(small)


def test_a_full_bucket_of_holds_is_no_error(make_daemon):
    """The page has room for eight chunks whose records are a multiple of 1024 apart; the next one is requested from the daemon."""
    daemon = make_daemon(settings={"memory.pool": "48MiB", "store.limit": "64MiB"}).start()
    daemon.populated_status()
    ways, apart = kvwire.POOL_PAGE_WAYS, kvwire.POOL_PAGE_BUCKETS
    pairs = items("bucket", (ways + 1) * apart, 100)
    with daemon.client() as c, LibraryClient(daemon) as library:
        ns = c.namespace("n")
        put_all(c, ns, pairs, batch=512, ack=Ack.ACCEPTED)
        with index_of(c) as index:
            wait_until(lambda: index.find(ns, pairs[-1][0]), "the index has the last one")
            first, _, _, _ = index.find(ns, pairs[0][0])
            same = [(k, v) for k, v in pairs[::apart // 8] if (index.find(ns, k)[0] - first) % apart == 0]
        assert len(same) == ways + 1
        keys, values = map(list, zip(*same))
        library.use_index(*keys[:ways])
        assert library.into(*keys) == (values, False)
        assert library.get(*keys[:ways]) == (values[:ways], True)
        assert library.into(keys[ways]) == (values[ways:], False)
        assert library.into(*keys[:ways]) == (values[:ways], True), "these are held already"
        assert library.into(pairs[1][0]) == ([pairs[1][1]], True), "other buckets have room"
        library.release()
        assert library.into(keys[ways]) == (values[ways:], True)


def test_a_session_that_is_lost_while_releases_are_sent(daemon):
    """Answered requests stay valid; the index and the page are unmapped after them."""
    pairs = items("lost", 8, 5000)
    keys, values = map(list, zip(*pairs))
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with LibraryClient(daemon) as library:
        assert library.get(*keys) == (values, False)  # under leases of the daemon's
        library.use_index(*keys)
        assert library.ask("unsaid") == ["0"]
        assert library.cut(*keys) == (values, True)
        assert library.into(*keys)[0] == values
        library.use_index(*keys)
        assert library.info()[2] == 1


def test_chunks_hit_through_the_index_outlive_unused_ones(small):
    small.populated_status()
    hot, cold = items("hot", 8, 16 * KIB), items("cold", 8, 16 * KIB)
    keys = [k for k, _ in hot]
    with small.client() as c, LibraryClient(small) as library:
        ns = c.namespace("n")
        put_all(c, ns, hot + cold, ack=Ack.WRITTEN)
        library.use_index(*keys)
        for round in range(30):  # a sixteenth of the pool in each round
            assert library.into(*keys) == ([v for _, v in hot], True), f"round {round}"
            flood(c, ns, ("flood", round), 64, 16 * KIB)
        assert not any(t & Tier.MEMORY for t in c.exists(ns, [k for k, _ in cold]))


def test_a_killed_daemons_memory_is_not_read_any_more(daemon):
    pairs = items("old", 8, 9000)
    keys, old = zip(*pairs)
    new = [value_of(key_of("new", k), 9000) for k in keys]
    with LibraryClient(daemon) as library:
        with daemon.client() as c:
            put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        library.use_index(*keys)
        assert library.get(*keys) == (list(old), True)
        daemon.restart(kill=True)
        with daemon.client() as c:
            ns = c.namespace("n")
            assert c.purge(ns) == 8
            put_all(c, ns, list(zip(keys, new)), ack=Ack.ACCEPTED)
        assert library.into(*keys)[0] == new
        library.use_index(*keys)
        assert library.into(*keys) == (new, True)
        assert library.get(*keys) == (new, True)
        assert library.info()[2] == 1
        assert library.changed() == (16, 0), "leases outlive the daemon"
        library.release()
        assert library.into(*keys) == (new, True)


def test_a_planned_restart_with_leases(service):  # noqa: F811
    s = service(settings={"memory.pool": "32MiB"})
    daemon = s.start()
    daemon.populated_status()
    pairs = items("restart", 8, 16 * KIB)
    keys, old = zip(*pairs)
    with LibraryClient(daemon) as library:
        with daemon.client() as c:
            put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        library.use_index(*keys)
        assert library.get(*keys) == (list(old), True)
        daemon = s.restart()
        s.verified()
        assert daemon.metric("kvcache_kept_clients") == 1 and daemon.metric("kvcache_kept_leases") == 8
        new = [value_of(key_of("anew", k), 16 * KIB) for k in keys]
        with daemon.client() as c:
            ns = c.namespace("n")
            c.purge(ns)
            put_all(c, ns, list(zip(keys, new)), ack=Ack.ACCEPTED)
            flood(c, c.namespace("flood"), "press", 400)
        assert library.changed() == (8, 0)
        assert library.into(*keys)[0] == new
        library.use_index(*keys)
        assert library.get(*keys) == (new, True)
        assert library.changed() == (16, 0)
        library.release()
        wait_until(lambda: daemon.metric("kvcache_kept_leases") == 0, "the old session is closed")
        assert library.into(*keys) == (new, True)


# --- everything at once ---

@pytest.mark.parametrize("length, keys, getters, putters", [(512, 4000, 2, 1), (16 * KIB, 1500, 2, 1)])
def test_no_byte_is_of_another_chunk(make_daemon, length, keys, getters, putters):
    """Chunks are put and evicted, in a pool that has room for only some of them, while other clients get them by the index."""
    daemon = make_daemon(settings={"memory.pool": "8MiB", "store.limit": "64MiB", "limits.wait": "50ms",
                                   "store.write_budget": "1MiB", "eviction.policy": "lru"}).start()
    daemon.populated_status()
    ms = 20000 if LONG else 1200
    local = [0]

    def run():
        """Runs the processes for `ms` milliseconds. Returns whether the index has answered often enough by then."""
        processes = [harness.spawn([str(STRESS), daemon.socket, "n", what, str(seed), str(ms), str(keys), str(length)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for seed, what in enumerate(["get"] * getters + ["put"] * putters)]
        for p in processes:
            out, errors = p.communicate(timeout=60 * slow())
            assert p.returncode == 0 and not harness.SANITIZER_REPORT.search(errors), errors
            word, own, asked, misses, dropped, wrong = out.split()
            assert (word, wrong) == ("gets", "0"), errors
            local[0] += int(own)
        return local[0] > 100

    wait_until(run, lambda: f"100 chunks are got by the index, but {local[0]} were", 60)
