# SPDX-License-Identifier: Apache-2.0
"""Rule R10: resources that a client makes the daemon use are charged to its user, bounded, and freed; and some are left for other users,
whatever one user takes. Acting as several users needs root."""

import contextlib
import itertools
import json
import os
import signal
import socket
import struct

import pytest

import harness
import kvwire
from harness import KIB, MIB, PAGE, items, put_all, wait_until
from kvwire import Ack, Flag, Op, Status
from buffers import sealed_memfd
from left_out import first_of
from test_tenants import ALICE, BOB
from users import client_as, user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it acts as several users")
REPORT = struct.pack("<II", 1, 0)


def resource(daemon, name, what="used"):
    return daemon.metric(f'kvcache_resource_{what}{{resource="{name}"}}')


def close_all(*lists):
    for c in sum(map(list, lists), []):
        c.close()


@pytest.mark.parametrize("settings, refused", [
    ({"limits.uid_requests": 64}, Status.QUOTA),
    ({"limits.requests": 64, "limits.uid_requests": 1000}, Status.BUSY),
    ({"limits.uid_request_memory": "2MiB"}, Status.QUOTA),
    ({"limits.request_memory": "4MiB", "limits.uid_request_memory": "1GiB"}, Status.BUSY)])
def test_R10_requests_in_flight_are_charged(make_daemon, settings, refused):
    """Requests of many keys from many sessions, which are all read before the first is answered."""
    daemon = make_daemon(settings=settings).start()
    keys = [harness.key_of("x", i) for i in range(1000)]
    clients = [daemon.client() for _ in range(120)]
    for c in clients:
        c.namespace("n")
    with daemon.paused():
        tags = [c.submit_batch(Op.STAT, 1, keys) for c in clients]
    statuses = {c.wait(tag, check=False).status for c, tag in zip(clients, tags)}
    assert statuses == {Status.OK, refused}
    thing = "request_bytes" if any("memory" in s for s in settings) else "requests"
    assert resource(daemon, thing, "refusals_total") > 0
    assert resource(daemon, "requests") == resource(daemon, "request_bytes") == 0
    assert len(clients[-1].stat(1, keys)) == len(keys)
    close_all(clients)


def test_R10_pieces_are_charged(make_daemon):
    """The charge of a key depends on its number of pieces, at most 4,076, which take memory."""
    daemon = make_daemon(settings={"limits.uid_request_memory": "1MiB"}).start()
    pieces = kvwire.PIECE.pack(0, 512, 0) * 4000
    clients = [daemon.client() for _ in range(40)]
    for c in clients:
        c.namespace("n")
        c.staging(4096)
    with daemon.paused():
        tags = [c.submit_batch(Op.PUT, 1, [kvwire.PUT_ENTRY.pack(harness.key_of("p", i), 0, 4000 * 512, 4000, 0)],
                               ack=Ack.WRITTEN, pieces=pieces) for i, c in enumerate(clients)]
    statuses = [c.wait(tag, check=False).status for c, tag in zip(clients, tags)]
    assert set(statuses) == {Status.OK, Status.QUOTA}
    assert statuses.count(Status.OK) >= 5
    assert resource(daemon, "request_bytes") == 0
    close_all(clients)


def test_pieces_that_several_keys_share_are_found_once_for_all(client):
    """Pieces are converted in place, so another key that names the same ones finds the same bytes, and an invalid one stays invalid."""
    ns = client.namespace("n")
    client.staging(MIB)
    client.staging_write(0, bytes(range(200)))
    pieces = kvwire.pack_pieces([[(0, 64, 0), (64, 64, 0), (MIB, 64, 0), (128, 64, 0)]])[0]

    def put(name, first, n):
        return kvwire.PUT_ENTRY.pack(harness.key_of(name), first, 64 * n, n, 0)
    tag = client.submit_batch(Op.PUT, ns, [put("a", 0, 2), put("b", 1, 2), put("c", 1, 1), put("d", 2, 1), put("e", 3, 1),
                                           put("f", 0, 2)], pieces=pieces)
    results = client.put_results(client.wait(tag), 6)
    assert [r.status for r in results] == [Status.OK, Status.INVALID, Status.OK, Status.INVALID, Status.OK, Status.OK]
    for name, at, length in ("a", 0, 128), ("c", 64, 64), ("e", 128, 64), ("f", 0, 128):
        assert client.value(ns, harness.key_of(name)) == bytes(range(200))[at:at + length]


def touch_chain(c, ns, messages, keys, parent=kvwire.ROOT, first=0):
    """Sends messages of a chain that stays open, numbered from `first`. Returns the last key."""
    tags = []
    for m in range(first, first + messages):
        names = [harness.key_of(id(c), m, i) for i in range(keys)]
        tags.append(c.submit_batch(Op.TOUCH, ns, names, flags=Flag.MORE, parent=parent))
        parent = names[-1]
        if len(tags) == 32 or m == first + messages - 1:
            assert all(c.wait(tag).status == Status.OK for tag in tags)
            tags = []
    return parent


@pytest.mark.parametrize("messages, keys", first_of([(40, 1000), (300, 100), (3000, 1)], 2))
def test_R10_open_chains_are_charged_and_split(make_daemon, messages, keys):
    daemon = make_daemon(settings={"limits.uid_request_memory": "1MiB"}).start()
    clients = [daemon.client() for _ in range(3 if keys > 1 else 30)]
    # In turns, because a chain that waits long for others on a slow machine would be closed as not continued.
    ends = [(c, c.namespace("n"), kvwire.ROOT) for c in clients]
    turn = max(1, messages // 100)
    for first in range(0, messages, turn):
        ends = [(c, ns, touch_chain(c, ns, turn, keys, parent, first)) for c, ns, parent in ends]
    # The places of a thousand keys take 16 KiB, in however many messages they came.
    used = resource(daemon, "request_bytes")
    assert 0.5 * MIB < used <= MIB
    assert daemon.metric("kvcache_chains_split_total") > 0
    for c in clients[:-1]:
        c.close()
    wait_until(lambda: resource(daemon, "request_bytes") < used, "chains end with their sessions")
    clients[-1].ping()
    wait_until(lambda: resource(daemon, "request_bytes") == 0, "a chain that is not continued is closed", 20)
    close_all(clients)


def test_R10_a_long_chain_of_small_messages_uses_little_memory_beyond_its_places(daemon):
    with daemon.client() as c:
        touch_chain(c, c.namespace("n"), 2048, 1)
        assert 2048 * 16 < resource(daemon, "request_bytes") < 2048 * 16 * 2


@pytest.mark.parametrize("op", [Op.STAT, Op.LIST])
def test_R10_replies_that_are_not_read_are_charged(make_daemon, op):
    """The socket holds some replies. The daemon keeps those of requests in flight, charges them, and reads no more requests."""
    daemon = make_daemon(settings={"store.limit": "256MiB"}).start()
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("many", 1100, 16), ack=Ack.WRITTEN)
        keys = [harness.key_of("x", i) for i in range(1000)]
        other = daemon.client(timeout=0.5 * harness.slow())
        ns = other.namespace("n")
        with pytest.raises(kvwire.ReplyTimeout):
            for _ in range(300):
                if op == Op.STAT:
                    other.submit_batch(op, ns, keys)
                else:
                    other.submit(op, kvwire.LIST.pack(ns, 1024, 0))
        wait_until(lambda: resource(daemon, "request_bytes") > 30000, "replies wait")
        assert resource(daemon, "request_bytes") < 64 * 65536
        other.close()
        wait_until(lambda: resource(daemon, "request_bytes") == 0, "they end with their session")


# --- several users ---

def no_more(call):
    """Sends requests until one is refused. Returns the number of accepted ones."""
    n = 0
    while True:
        try:
            call()
        except kvwire.Refused as e:
            assert e.status in (Status.QUOTA, Status.BUSY)
            return n
        n += 1


@needs_root
def test_R10_one_user_does_not_lend_all_that_may_be_lent(make_daemon):
    """Ranges that no earlier one contains are charged, however much they overlap, even of one file."""
    daemon = make_daemon(settings={"listen.mode": "0666", "limits.registered": "64MiB"}).start()
    fd = sealed_memfd(MIB + 64 * PAGE)
    clients = [client_as(daemon, ALICE) for _ in range(2)]

    def lend_all(c, base):
        places = itertools.count(base)
        return no_more(lambda: c.register(fd, MIB, next(places) * PAGE))

    assert sum(lend_all(c, base) for c, base in zip(clients, (0, 48))) == 48
    assert resource(daemon, "registered_bytes", "largest_user") == 48 * MIB
    with client_as(daemon, BOB) as other:
        assert lend_all(other, 0) == 12
        third = client_as(daemon, 4243)
        assert third.register(fd, MIB) > 0
        third.close()
    close_all(clients)
    wait_until(lambda: resource(daemon, "registered_bytes") == 0, "regions end with their sessions")
    os.close(fd)


def test_R10_descriptors_of_deferred_requests_are_charged(make_daemon):
    """The report comes before most of the requests that take turns: it finds these waiting, each with its descriptor."""
    daemon = make_daemon().start()
    monitor, fd = daemon.client(name="monitor"), sealed_memfd(MIB)
    clients = [daemon.client() for _ in range(20)]
    with daemon.paused():
        tag = monitor.submit(Op.REPORT, struct.pack("<II", kvwire.Report.STATS, 0))
        tags = [c.submit(Op.REGISTER, struct.pack("<QQ", 0, MIB), fds=[fd]) for c in clients]
    reply = monitor.wait(tag)
    with open(reply.fds[0], "rb") as f:
        stats = json.loads(os.pread(f.fileno(), reply.value64, 0))
    waiting = stats["kvcache_deferred_requests"]
    assert 0 < waiting <= len(clients)
    assert stats["kvcache_resource_used"]["deferred_fds"] == stats["kvcache_resource_largest_user"]["deferred_fds"] == waiting
    assert stats["kvcache_client_descriptors"]["deferred_request"] == waiting
    assert stats["kvcache_resource_used"]["request_bytes"] >= waiting * (kvwire.HEADER.size + 16)
    assert stats["kvcache_open_descriptors"] > 2 * waiting
    assert all(c.wait(t).value == 1 for c, t in zip(clients, tags))
    assert resource(daemon, "deferred_fds") == resource(daemon, "request_bytes") == 0
    # A registration that is waiting is also freed with its session.
    with daemon.paused():
        for c in clients:
            c.submit(Op.REGISTER, struct.pack("<QQ", 0, MIB), fds=[fd])
            c.close()
    wait_until(lambda: daemon.metric('kvcache_client_descriptors{of="connection"}') == 2, "they have closed")
    wait_until(lambda: daemon.metric('kvcache_client_descriptors{of="closing"}') == 0, "the descriptors are closed")
    assert resource(daemon, "deferred_fds") == resource(daemon, "request_bytes") == 0
    monitor.close()
    os.close(fd)


@needs_root
@pytest.mark.parametrize("size", [4096, 100000, MIB])
def test_R10_leases_of_one_user_leave_room_for_another(make_daemon, size):
    daemon = make_daemon(settings={"listen.mode": "0666", "store.limit": "128MiB"}).start()
    keys = [k for k, _ in items("leased", min(28 * MIB // size, 3000), size)]
    with daemon.client() as c:
        c.staging(4 * MIB)
        put_all(c, c.namespace("n"), items("leased", len(keys), size), ack=Ack.WRITTEN, batch=max(1, min(64, 2 * MIB // size)))
    greedy = [client_as(daemon, uid) for uid in (ALICE, ALICE, ALICE, BOB, BOB)]
    for n, c in enumerate(greedy):
        ns = c.namespace("n")
        at = n * len(keys) // len(greedy)
        for i in range(0, len(keys), 500):
            c.get(ns, (keys[at:] + keys[:at])[i:i + 500], nowait=True)
    assert daemon.metric("kvcache_pool_leased_bytes") <= 16 * MIB
    with client_as(daemon, 4243) as other:
        ns = other.namespace("n")
        mine = harness.key_of("mine")
        assert other.put(ns, [(mine, b"y" * 1000)], ack=Ack.WRITTEN)[0].status == Status.OK
        result, = other.get(ns, [mine], timeout_ms=5000)
        assert result.status == Status.OK and result.data == b"y" * 1000
    close_all(greedy)
    wait_until(lambda: daemon.metric("kvcache_pool_leased_bytes") == 0, "leases end with their sessions")


@needs_root
def test_R10_small_leases_of_one_user_leave_other_sizes_room(make_daemon):
    """A leased chunk of 4 KiB in each slab would prevent every slab from being cut for chunks of 64 KiB."""
    daemon = make_daemon(settings={"listen.mode": "0666", "memory.pool": "16MiB", "store.limit": "128MiB", "memory.pool_index": "off"}).start()
    small = items("small", 5000, 4 * KIB)
    greedy, other = client_as(daemon, ALICE), client_as(daemon, BOB)
    theirs, ns = greedy.namespace("small"), other.namespace("large")
    greedy.staging(1 * MIB)
    other.staging(1 * MIB)
    put_all(greedy, theirs, small, ack=Ack.WRITTEN, batch=64)
    slabs = set()
    for k, v in reversed(small):
        result, = greedy.get(theirs, [k], nowait=True)
        if result.status == Status.MISS:
            continue
        assert result.status == Status.OK and result.data == v
        if result.offset // (2 * MIB) in slabs:
            greedy.release([result.lease])
        else:
            slabs.add(result.offset // (2 * MIB))
    assert len(slabs) == daemon.metric("kvcache_pool_leased_slabs") == 6, "two of eight slabs stay without leases"
    assert daemon.metric("kvcache_pool_moved_chunks_total") > 0
    large = items("large", 8, 64 * KIB)
    for k, v in large:
        assert other.put(ns, [(k, v)], ack=Ack.WRITTEN, nowait=True)[0].status == Status.OK
        other.evict(ns, [k], tiers=kvwire.Tier.MEMORY)
        result, = other.get(ns, [k], timeout_ms=5000)
        assert result.status == Status.OK and result.data == v
        other.release([result.lease])
    close_all([greedy, other])
    wait_until(lambda: daemon.metric("kvcache_pool_leased_bytes") == 0, "leases end with their sessions")


def hold_in_each_slab(client, index, ns, keys, slab_bytes):
    """Holds a chunk in each slab in which the index has one, and a chunk of unknown key in each other. Returns the former's places and bytes."""
    held = {}
    for k in keys:
        found = index.find(ns, k)
        if found and found[1] // slab_bytes not in held:
            _, offset, length = index.hold(ns, k)
            held[offset // slab_bytes] = offset, client.pool[offset:offset + length]
    for record in range(5, index.n_records, slab_bytes // (4 * KIB)):
        index.hold_record(record, 4 * KIB)
    return held


@needs_root
@pytest.mark.parametrize("leases", [False, True], ids=["holds", "holds-and-leases"])
def test_R10_small_holds_of_one_user_leave_other_sizes_room(make_daemon, leases):
    """A held chunk of 4 KiB in each slab, and a leased one where none can be held, would prevent every slab from being cut for other sizes."""
    daemon = make_daemon(settings={"listen.mode": "0666", "memory.pool": "16MiB", "store.limit": "256MiB"}).start()
    small = items("small", 5000, 4 * KIB)
    greedy, other = client_as(daemon, ALICE), client_as(daemon, BOB)
    theirs, ns = greedy.namespace("small"), other.namespace("large")
    index = greedy.pool_index()
    wait_until(index.is_live, "the index is ready")
    greedy.staging(1 * MIB)
    other.staging(1 * MIB)
    put_all(greedy, theirs, small, ack=Ack.WRITTEN, batch=64)
    held = hold_in_each_slab(greedy, index, theirs, [k for k, _ in reversed(small)], 2 * MIB)
    for i in range(0, len(small) if leases else 0, 64):
        results = greedy.get(theirs, [k for k, _ in small[i:i + 64]], nowait=True)
        greedy.release([r.lease for r in results if r.leased and r.offset // (2 * MIB) in held])
    for i in range(4):
        for size in (64 * KIB, 1 * MIB):
            k, v = items(f"large-{size}-{i}", 1, size)[0]
            assert other.put(ns, [(k, v)], ack=Ack.ACCEPTED if i % 2 else Ack.WRITTEN, timeout_ms=5000)[0].status == Status.OK
            wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "the chunk is on disk")
            other.evict(ns, [k], tiers=kvwire.Tier.MEMORY)
            assert other.get_into(ns, [k], size, timeout_ms=5000)[0].status == Status.OK
            other.evict(ns, [k], tiers=kvwire.Tier.MEMORY)
            result, = other.get(ns, [k], timeout_ms=5000)
            assert result.status == Status.OK and result.data == v
            other.release([result.lease])
    assert len(held) == 6 and daemon.metric("kvcache_pool_private_slabs") == 2, "clients hold no chunk in two of eight slabs"
    for offset, data in held.values():
        assert greedy.pool[offset:offset + len(data)] == data, "a held chunk keeps its bytes"
    index.close()
    close_all([greedy, other])


def leave_unread(daemon, uid, n):
    c = client_as(daemon, uid)
    for _ in range(n):
        c.submit(Op.REPORT, REPORT)
    return c


def has_unread(c):
    """Returns whether the client has an unread descriptor. The first reply shows that, because replies with descriptors come before the BUSY
    ones."""
    try:
        _, fds, _, _ = socket.recv_fds(c.sock, 4096, 8, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    for fd in fds:
        os.close(fd)
    return bool(fds)


@needs_root
def test_R10_unread_descriptors_of_one_user_leave_others_theirs(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666", "limits.unread_fds": 64}).start()
    good = client_as(daemon, BOB)
    monitor = daemon.client(name="monitor")
    connections = 3  # these two, and the one that asks for metrics
    wait_until(lambda: resource(daemon, "connections") == connections, "the first ones are closed")
    evil = [leave_unread(daemon, ALICE, 32) for _ in range(6)]
    wait_until(lambda: resource(daemon, "unread_fds", "refusals_total") > 0, "some are refused")
    assert 20 < resource(daemon, "unread_fds", "largest_user") <= 48
    for _ in range(10):
        with client_as(daemon, BOB) as c:
            c.staging(65536)
            c.report()
            c.lookup().close()
    good.staging(65536)
    # Closed on one side only, they are charged, and counted as connections, until their descriptors are read.
    unread = resource(daemon, "unread_fds")
    evil.append(client_as(daemon, ALICE))  # a client that has read everything it was sent
    for c in evil:
        c.shutdown()
    # Sessions without unread descriptors end at once, and the others stay.
    wait_until(lambda: resource(daemon, "connections") == connections + sum(map(has_unread, evil)), "those that were sent none end")
    assert any(map(has_unread, evil))
    with client_as(daemon, BOB) as c:
        c.ping()
        assert resource(daemon, "unread_fds", "largest_user") >= unread - 4
    for c in evil:
        with contextlib.suppress(kvwire.SessionEnded):
            while True:
                for fd in c.receive(5).fds:
                    os.close(fd)
    wait_until(lambda: resource(daemon, "connections") == connections, "they end when all is read")
    wait_until(lambda: resource(daemon, "unread_fds") <= 2, "the charge is given back")
    close_all(evil, [good, monitor])


@needs_root
def test_R10_a_greeting_waits_for_descriptors_to_be_read(make_daemon):
    """A client without room for another greeting waits, and is served when one of its other greetings was read."""
    daemon = make_daemon(settings={"listen.mode": "0666", "limits.unread_fds": 64, "limits.handshake": "60s"}).start()
    hello = kvwire.HEADER.pack(64, Op.HELLO, 0, 1) + kvwire.HELLO.pack(kvwire.MAGIC, 1, 1, 0, b"waits")
    raw = []
    for _ in range(30):  # two descriptors each, of 48
        with user(ALICE):
            s = daemon.raw()
        s.send(hello)
        s.settimeout(30 * harness.slow())
        raw.append(s)
    wait_until(lambda: daemon.metric("kvcache_replies_held_total") >= 6, "the last ones wait")
    with client_as(daemon, BOB) as c:
        c.ping()
    daemon.assert_idle()
    for s in raw:
        assert s.recv(4096)[4:6] == b"\x01\x80"
    for s in raw:
        s.close()


@needs_root
def test_R10_the_kernel_refuses_descriptors_and_no_session_ends(make_daemon, tmp_path):
    """While another process of the daemon's user has the most descriptors in flight that the kernel allows, replies wait and sessions survive."""
    import resource as rlimit

    def few_files():
        rlimit.setrlimit(rlimit.RLIMIT_NOFILE, (256, 256))
    daemon = make_daemon(leg=harness.Leg("few", deprive=[few_files], unprivileged=True),
                         settings={"listen.mode": "0666"}).start()
    with client_as(daemon, BOB) as c:
        c.ping()
        child = os.fork()
        if child == 0:  # runs as the daemon's user, sends descriptors to itself and reads none
            try:
                os.setgroups([])
                os.setgid(harness.STRANGER)
                os.setuid(harness.STRANGER)
                rlimit.setrlimit(rlimit.RLIMIT_NOFILE, (2000, 2000))
                pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
                null = os.open("/dev/null", os.O_RDONLY)
                for a, _ in pairs:
                    a.setblocking(False)
                    with contextlib.suppress(OSError):
                        socket.send_fds(a, [b"x"], [null] * 200)
                signal.pause()
            finally:
                os._exit(0)
        try:
            def refused():
                tag = c.submit(Op.REPORT, REPORT)
                try:
                    reply = c.wait(tag)
                except kvwire.ReplyTimeout:
                    return tag
                os.close(reply.fds[0])
                return None
            c.timeout = 0.3 * harness.slow()
            tag = None
            for _ in range(100):
                tag = refused()
                if tag is not None:
                    break
            assert tag is not None, "the kernel refuses none"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        c.timeout = 20 * harness.slow()
        reply = c.wait(tag)
        assert len(reply.fds) == 1
        os.close(reply.fds[0])
        assert daemon.metric("kvcache_replies_held_total") > 0
