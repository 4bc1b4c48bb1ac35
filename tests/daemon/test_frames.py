# SPDX-License-Identifier: Apache-2.0
"""Invalid messages: each ends its session and affects nothing else."""

import os
import random
import socket
import struct

import pytest

import harness
import kvwire
from harness import batch_head, frame, items, key_of
from kvwire import Ack, Flag, Op

KEY = key_of("frame")
PUT = kvwire.PUT_ENTRY.pack(KEY, 0, 10, 0, 0)
GET = kvwire.GET_ENTRY.pack(KEY, 0, 0, 0, 0, 0)
BATCHES = {Op.PUT: PUT, Op.GET: GET, Op.EXISTS: KEY, Op.MATCH: KEY, Op.TOUCH: KEY, Op.EVICT: KEY, Op.STAT: KEY,
           Op.PREFETCH: KEY, Op.GIVE_BACK: bytes(8)}


def hello(magic=kvwire.MAGIC, low=1, high=1, features=0, name=b"bad"):
    return frame(Op.HELLO, struct.pack("<IHHQ32s", magic, low, high, features, name))


def batch(op, entry=None, flags=0, **head):
    head.setdefault("tiers", 3 if op == Op.EVICT else 0)
    return frame(op, batch_head(**head) + (BATCHES[op] if entry is None else entry), flags)


def namespace(name=b"n", fingerprint=b"", chunk=0, reserved=0, lengths=None, flags=0):
    a, b = lengths or (len(name), len(fingerprint))
    return frame(Op.NAMESPACE, struct.pack("<QHHI", chunk, a, b, reserved) + name + fingerprint, flags)


ALLOWED = {Op.PUT: 7, Op.GET: 1 | 2 | 8 | 512, Op.TOUCH: 1, Op.PREFETCH: 1, Op.NAMESPACE: 16 | 2048, Op.PURGE: 32 | 4096,
           Op.NAMESPACE_REMOVE: 256, Op.EXISTS: 4096, Op.MATCH: 4096, Op.STAT: 4096, Op.RELEASE: 8192}


def unknown_flags():
    minimal = {
        Op.PING: b"", Op.NAMESPACE: struct.pack("<QHHI", 0, 1, 0, 0) + b"n", Op.STAGING: bytes(8),
        Op.RELEASE: batch_head(count=0), Op.LIST: struct.pack("<IIQ", 1, 10, 0), Op.PURGE: struct.pack("<II", 1, 0),
        Op.REPORT: bytes(8), Op.NAMESPACES: kvwire.NAMESPACES.pack(0, 1, 0, 0, 0),
        Op.NAMESPACE_REMOVE: kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 0) + b"n", Op.CANCEL: bytes(8), Op.LENT_FILE: bytes(8),
        Op.SWEEP: bytes(16),
        **{op: batch_head(tiers=3 if op == Op.EVICT else 0) + entry for op, entry in BATCHES.items()},
    }
    for op, body in minimal.items():
        for bit in range(16):
            if not 1 << bit & ALLOWED.get(op, 0):
                yield f"flag {1 << bit:#x} of {op.name}", frame(op, body, 1 << bit)


BAD = {
    "4 bytes": b"\x04\0\0\0",
    "15 bytes": bytes(15),
    "16 zero bytes": bytes(16),
    "len too small": frame(Op.PING, b"1234", length=16),
    "len too large": frame(Op.PING, b"1234", length=21),
    "len 0": frame(Op.PING, length=0),
    "len 2^32-1": frame(Op.PING, length=2**32 - 1),
    "op 0": frame(0),
    "no op": frame(max(Op) + 1),
    "device, short": frame(Op.DEVICE, bytes(4)),
    "device, long": frame(Op.DEVICE, struct.pack("<IIQ", 0, 1, 0)),
    "device, no action": frame(Op.DEVICE, struct.pack("<II", 0, 0)),
    "device, an unknown action": frame(Op.DEVICE, struct.pack("<II", 0, 3)),
    "device, a flag": frame(Op.DEVICE, struct.pack("<II", 0, 1), flags=1),
    "verify, short": frame(Op.VERIFY, bytes(20)),
    "verify, nothing": frame(Op.VERIFY, struct.pack("<IIIIQ", 0, 0, 0, 0, 1)),
    "verify, too much": frame(Op.VERIFY, struct.pack("<IIIIQ", 0, 0, 0, 65537, 1)),
    "verify, no bytes": frame(Op.VERIFY, struct.pack("<IIIIQ", 0, 0, 0, 1, 0)),
    "verify, a flag": frame(Op.VERIFY, struct.pack("<IIIIQ", 0, 0, 0, 1, 1), flags=1),
    "op 65535": frame(0xFFFF),
    "a reply": frame(Op.PING | 0x8000),
    "ping of 1025 bytes": frame(Op.PING, bytes(1025)),
    "namespace without a body": frame(Op.NAMESPACE),
    "namespace without a name": namespace(b""),
    "namespace whose lengths do not fit": namespace(b"name", lengths=(5, 0)),
    "namespace whose lengths leave some": namespace(b"name", lengths=(3, 0)),
    "namespace whose lengths wrap": namespace(b"name", lengths=(65535, 65535)),
    "namespace of 256 bytes": namespace(b"n" * 256),
    "namespace that is not printable": namespace(b"a\x1bb"),
    "namespace with a NUL": namespace(b"a\0b"),
    "fingerprint of 4097 bytes": namespace(b"n", b"a=" + b"x" * 4094 + b"\n"),
    "namespace, attached with a lifetime": namespace(reserved=1, flags=Flag.ATTACH),
    "staging area, short": frame(Op.STAGING, bytes(4)),
    "staging area, long": frame(Op.STAGING, bytes(16)),
    "list of 0": frame(Op.LIST, struct.pack("<IIQ", 1, 0, 0)),
    "list of 1025": frame(Op.LIST, struct.pack("<IIQ", 1, 1025, 0)),
    "list, short": frame(Op.LIST, bytes(8)),
    "namespaces, none": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 0, 0, 0, 0)),
    "namespaces, 129": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 129, 0, 0, 0)),
    "namespaces, two of one name": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 2, 1, 0, 0) + b"n"),
    "namespaces, a cursor and a name": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(1, 1, 1, 0, 0) + b"n"),
    "namespaces, lengths that do not fit": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 1, 255, 63, 0) + b"n"),
    "namespaces, too long a tenant": frame(Op.NAMESPACES, kvwire.NAMESPACES.pack(0, 1, 0, 64, 0) + b"t" * 64),
    "namespaces, short": frame(Op.NAMESPACES, bytes(8)),
    "removal without a name": frame(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(0, 1, 0, 0) + b"t"),
    "removal, reserved": frame(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 1) + b"n"),
    "removal of what is not printable": frame(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 0) + b"\n"),
    "removal, lengths that leave some": frame(Op.NAMESPACE_REMOVE, kvwire.NAMESPACE_REMOVE.pack(1, 0, 0, 0) + b"nn"),
    "removal, short": frame(Op.NAMESPACE_REMOVE, bytes(4)),
    "cancel without a tag": frame(Op.CANCEL),
    "cancel, short": frame(Op.CANCEL, bytes(4)),
    "cancel, long": frame(Op.CANCEL, bytes(16)),
    "lent file, short": frame(Op.LENT_FILE, bytes(4)),
    "lent file, long": frame(Op.LENT_FILE, bytes(16)),
    "lent file, reserved": frame(Op.LENT_FILE, struct.pack("<II", 1, 1)),
    "nothing given back": frame(Op.GIVE_BACK, batch_head(count=0)),
    "half a loan given back": frame(Op.GIVE_BACK, batch_head() + bytes(4)),
    "a loan given back, with a parent": frame(Op.GIVE_BACK, batch_head(parent=b"p" * 32) + bytes(8)),
    "purge, reserved": frame(Op.PURGE, struct.pack("<II", 1, 1)),
    "purge of all with a namespace": frame(Op.PURGE, struct.pack("<II", 1, 0), Flag.ALL),
    "sweep, short": frame(Op.SWEEP, bytes(8)),
    "sweep, long": frame(Op.SWEEP, bytes(24)),
    "sweep, an unknown option": frame(Op.SWEEP, struct.pack("<QII", 1, 2, 0)),
    "sweep, reserved": frame(Op.SWEEP, struct.pack("<QII", 1, 0, 1)),
    "report, unknown": frame(Op.REPORT, struct.pack("<II", max(kvwire.Report) + 1, 0)),
    "report, reserved": frame(Op.REPORT, struct.pack("<II", 0, 1)),
    "release with an entry": frame(Op.RELEASE, batch_head(count=1) + KEY),
    "release that does not fit": frame(Op.RELEASE, batch_head(count=0, releases=2) + bytes(8)),
    "put, entry reserved": batch(Op.PUT, kvwire.PUT_ENTRY.pack(KEY, 0, 10, 0, 1 << 32)),
    "put, unknown ack": batch(Op.PUT, ack=3),
    "put, the first unknown expectation": batch(Op.PUT, tiers=2),
    "put, the last unknown expectation": batch(Op.PUT, tiers=15),
    "get with an ack": batch(Op.GET, ack=1),
    "get with a place, but not into": batch(Op.GET, kvwire.GET_ENTRY.pack(KEY, 0, 0, 64, 0, 0)),
    "get with room, but not into": batch(Op.GET, kvwire.GET_ENTRY.pack(KEY, 0, 0, 0, 64, 0)),
    "exists with a parent": batch(Op.EXISTS, parent=KEY),
    "stat with an ack": batch(Op.STAT, ack=1),
    "match with tiers": batch(Op.MATCH, tiers=3),
    "evict, no tier": batch(Op.EVICT, tiers=0),
    "evict of disk alone": batch(Op.EVICT, tiers=2),
    "evict, unknown tier": batch(Op.EVICT, tiers=7),
    "touch, reserved": batch(Op.TOUCH, reserved=1),
    "2 keys announced, 1 sent": batch(Op.EXISTS, count=2),
    "1 key announced, 2 sent": batch(Op.EXISTS, KEY * 2),
    "no key": batch(Op.EXISTS, b"", count=0),
    "1025 keys": batch(Op.EXISTS, KEY * 1025, count=1025),
    "65535 keys": batch(Op.EXISTS, KEY * 10, count=65535),
    "65535 releases": batch(Op.EXISTS, releases=65535),
    "batch without its head": frame(Op.GET, bytes(20)),
    "65537 bytes": frame(Op.PING, bytes(65537 - 16)),
    "200000 bytes": frame(Op.PING, bytes(200000 - 16)),
    "empty message": b"",
    "second HELLO": hello(),
    **dict(unknown_flags()),
}

BAD_HELLO = {
    "ping first": frame(Op.PING),
    "staging area first": frame(Op.STAGING, bytes(8)),
    "put first": batch(Op.PUT),
    "report first": frame(Op.REPORT, bytes(8)),
    "wrong magic": hello(magic=0x31435649),
    "version 0": hello(low=0),
    "versions reversed": hello(low=2, high=1),
    "features of version 1": hello(features=1),
    "name without a NUL": hello(name=b"x" * 32),
    "name with an escape": hello(name=b"a\x1b[31m"),
    "name with bytes after its NUL": hello(name=b"a\0b"),
    "short": hello()[:32],
    "short, len fits": frame(Op.HELLO, bytes(16)),
    "long": frame(Op.HELLO, hello()[16:] + b"\0"),
    "with a flag": frame(Op.HELLO, hello()[16:], 1),
    "empty": b"",
    "garbage": os.urandom(16) + b"garbage",
}


def send_raw(sock, message):
    """Sends one message. The socket may refuse one that is too long, which then does not reach the daemon."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sock.send(message)


def is_ended(sock):
    sock.settimeout(10 * harness.slow())
    try:
        return sock.recv(65536) == b""
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def shared(base_directory):
    """Provides one daemon for all these messages, which must accept the next one after any of them."""
    directory = base_directory / "frames"
    directory.mkdir()
    daemon = harness.Daemon(directory).start()
    yield daemon
    daemon.clean_up()


@pytest.fixture(scope="module")
def bystander(shared):
    """Provides an uninvolved client with a lease."""
    with shared.client(name="bystander") as c:
        ns = c.namespace("bystander")
        pair, = items("bystander", 1, 100000)
        c.held, = c.put(ns, [pair], lease=True, ack=Ack.WRITTEN)
        c.number, c.pair = ns, pair
        yield c


def check_bystander(shared, bystander):
    assert shared.process.poll() is None, f"the daemon died:\n{shared.log()[-4000:]}"
    bystander.ping(b"still there")
    assert bystander.held.data == bystander.pair[1]
    assert bystander.value(bystander.number, bystander.pair[0]) == bystander.pair[1]


@pytest.mark.parametrize("name", BAD)
def test_bad_message_ends_its_session_alone(shared, bystander, name):
    ended = shared.metric('kvcache_sessions_ended_total{reason="bad_frame"}')
    with shared.client() as c:
        c.namespace("bad")
        send_raw(c.sock, BAD[name])
        c.sock.setblocking(True)
        assert is_ended(c.sock), f"{name}: the session goes on"
        assert shared.metric('kvcache_sessions_ended_total{reason="bad_frame"}') == ended + 1
    check_bystander(shared, bystander)


@pytest.mark.parametrize("name", BAD_HELLO)
def test_bad_first_message_ends_its_session_alone(shared, bystander, name):
    sock = shared.raw()
    send_raw(sock, BAD_HELLO[name])
    assert is_ended(sock), f"{name}: the session goes on"
    sock.close()
    check_bystander(shared, bystander)


@pytest.mark.parametrize("count", [1, 4, 5, 200])
def test_descriptors_with_a_request_end_the_session_and_are_closed(shared, bystander, count):
    before = shared.holdings_at_rest()
    with open("/dev/null") as null:
        with shared.client() as c:
            c.send(frame(Op.PING), [null.fileno()] * count)
            c.sock.setblocking(True)
            assert is_ended(c.sock)
        sock = shared.raw()
        sock.sendmsg([hello()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", null.fileno()))])
        assert is_ended(sock)
        sock.close()
    shared.wait_for_holdings(before)
    check_bystander(shared, bystander)


def test_requests_before_a_bad_message_are_not_lost(shared):
    with shared.client() as c:
        ns = c.namespace("before")
        pairs = items("before", 8, 30000)
        c.staging()
        tag = c.submit_batch(Op.PUT, ns, c.put_entries(pairs), ack=Ack.WRITTEN)
        c.wait(tag)
        c.send(b"bad")
        with pytest.raises(kvwire.SessionEnded):
            c.receive()
    with shared.client() as c:
        assert all(c.exists(c.namespace("before"), [k for k, _ in pairs]))


def test_bad_message_behind_many_in_flight(shared, bystander):
    for _ in range(5):
        with shared.client() as c:
            ns = c.namespace("behind")
            c.staging()
            entries = c.put_entries(items("behind", 30, 20000))
            for entry in entries:
                c.submit_batch(Op.PUT, ns, [entry], ack=Ack.DURABLE)
            c.send(frame(99))
            with pytest.raises(kvwire.SessionEnded):
                while True:
                    c.receive()
    check_bystander(shared, bystander)


def test_random_bytes(shared, bystander):
    rng = random.Random(7)
    for _ in range(150):
        with shared.client() as c:
            op = rng.choice(list(Op))
            body = rng.randbytes(rng.choice([0, 8, 16, 24, 48, 80, 104, 200, 1000])) if rng.random() < 0.5 else \
                bytes(rng.choice([0, 1, 255]) if rng.random() < 0.2 else 0 for _ in range(rng.choice([8, 16, 48, 80, 104])))
            c.send(frame(op, body, rng.choice([0, 0, 1, 2, 8, 63])))
    check_bystander(shared, bystander)


def test_no_hello_in_time(make_daemon):
    daemon = make_daemon(settings={"limits.handshake": "200ms"}).start()
    silent, greeted = daemon.raw(), daemon.client()
    assert is_ended(silent)
    silent.close()
    assert daemon.metric('kvcache_sessions_ended_total{reason="timeout"}') == 1
    greeted.ping()
    greeted.close()


def test_log_lines_about_clients_are_limited(make_daemon):
    daemon = make_daemon(settings={"log.level": "info"}).start()
    for _ in range(300):
        sock = daemon.raw()
        sock.send(b"bad")
        sock.close()
    for _ in range(300):
        with daemon.client() as c:
            c.send(b"bad")
            with pytest.raises(kvwire.SessionEnded):
                c.receive()
    assert daemon.log().count("bad frame") < 60
    assert daemon.metric("kvcache_log_lines_held_back_total") > 200
