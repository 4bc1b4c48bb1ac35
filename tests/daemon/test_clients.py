# SPDX-License-Identifier: Apache-2.0
"""Many clients, and clients that die: their resources are freed, and other clients are not affected."""

import os
import select
import signal
import socket
import traceback

import pytest

import kvwire
from harness import KIB, MIB, die_with_parent, in_threads, items, key_of, put_all, slow, value_of, wait_until
from kvwire import Ack, Flag, Op, Status


COMMON = 32 * KIB  # bytes of each of the 64 chunks that are there from the start


def get_entry(key):
    return kvwire.GET_ENTRY.pack(key, 0, 0, 0, 0, 0)


# --- the states in which a client dies; each returns what must stay alive until it is killed ---

def connected(daemon):
    return daemon.raw()


def greeted(daemon):
    return daemon.client()


def with_staging(daemon):
    c = daemon.client()
    c.staging(MIB)
    return c


def mid_put(daemon):
    c = daemon.client()
    ns = c.namespace("victims")
    c.staging()
    entries = c.put_entries(items(("mid put", os.getpid()), 60, 256 * KIB))
    for i in range(0, 60, 10):
        c.submit_batch(Op.PUT, ns, entries[i:i + 10], ack=Ack.DURABLE, flags=Flag.LEASE)
    return c


def mid_namespace(daemon):
    c = daemon.client()
    for i in range(20):
        name = f"victim-{os.getpid()}-{i}".encode()
        c.submit(Op.NAMESPACE, kvwire.NAMESPACE.pack(0, len(name), 0, 0) + name)
    return c


def holding_leases(daemon):
    c = daemon.client()
    ns = c.namespace("victims")
    results = c.put(ns, items(("leases", os.getpid()), 10, 50000), lease=True)
    assert all(r.leased for r in results)
    return c


def in_flight_64(daemon):
    c = daemon.client()
    ns = c.namespace("common")
    keys = [k for k, _ in items("common", 64, COMMON)]
    for key in keys:
        c.submit_batch(Op.GET, ns, [get_entry(key)])
    return c


def in_flight_into(daemon):
    c = daemon.client()
    ns = c.namespace("common")
    c.staging()
    for i, (key, _) in enumerate(items("common", 64, COMMON)):
        c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, i * COMMON, COMMON, 0)], flags=Flag.INTO)
    return c


def not_reading_replies(daemon):
    c = daemon.client()
    ns = c.namespace("common")
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.sock.setblocking(False)
    keys = [k for k, _ in items("common", 64, COMMON)]
    c.timeout = 0.2
    try:
        for _ in range(2000):
            c.submit_batch(Op.STAT, ns, keys * 16)
            c.submit(Op.REPORT, bytes(8))
    except kvwire.ReplyTimeout:
        return c
    raise AssertionError("the daemon takes any number of requests from one who does not read")


def half_a_chain(daemon):
    c = daemon.client()
    ns = c.namespace("victims")
    pairs = items(("half", os.getpid()), 20, 5000)
    c.put(ns, pairs, more=True)
    c.touch(ns, [k for k, _ in pairs], more=True)
    return c


def waiting_for_room(daemon):
    c = daemon.client()
    ns = c.namespace("victims")
    c.staging()
    entries = c.put_entries(items(("room", os.getpid()), 24, MIB))
    c.submit_batch(Op.PUT, ns, entries, ack=Ack.ACCEPTED, timeout_ms=600000)
    return c


def ended_by_the_daemon(daemon):
    c = holding_leases(daemon)
    c.send(b"bad")
    try:
        c.receive()
    except kvwire.SessionEnded:
        return c
    raise AssertionError("a bad frame was answered")


STATES = [connected, greeted, with_staging, mid_put, mid_namespace, holding_leases, in_flight_64, in_flight_into,
          not_reading_replies, half_a_chain, waiting_for_room, ended_by_the_daemon]


class Victim:
    """A process that enters a state and stays there until it is killed."""

    def __init__(self, daemon, state):
        self.state, self.alive = state, True
        self.ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                kept = state(daemon)
                os.write(tell, b"!")
                while kept:
                    signal.pause()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(tell)

    def wait(self):
        """Waits until the process is in its state."""
        readable, _, _ = select.select([self.ready], [], [], 20 * slow())
        assert readable and os.read(self.ready, 1) == b"!", f"{self.state.__name__}: the client did not get that far"
        return self

    def kill(self):
        if self.alive:
            self.alive = False
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.ready)


@pytest.fixture
def victims():
    """victims(daemon, state, ...): processes in these states, which the test kills; else they end with it."""
    made = []

    def make(daemon, *states):
        fresh = [Victim(daemon, state) for state in states]
        made.extend(fresh)
        return [v.wait() for v in fresh]

    yield make
    for v in made:
        v.kill()


def fill(daemon):
    with daemon.client() as c:
        ns = c.namespace("common")
        put_all(c, ns, items("common", 64, COMMON), ack=Ack.WRITTEN)
        c.namespace("victims")


@pytest.mark.parametrize("state", STATES, ids=lambda s: s.__name__)
def test_client_killed(leg_daemon, victims, state):
    """Resources of a killed client are freed as soon as its I/O is over, and another client is served all the while."""
    fill(leg_daemon)
    with leg_daemon.client() as bystander:
        ns = bystander.namespace("common")
        bystander.staging()
        (key, value), = items("common", 1, COMMON)
        before = leg_daemon.holdings_at_rest()
        dying = victims(leg_daemon, state, state, state)
        got, = bystander.get_into(ns, [key], len(value))
        assert got.data == value
        for v in dying:
            v.kill()
        leg_daemon.wait_for_holdings(before)
        bystander.ping()
        assert bystander.value(ns, key) == value


def test_many_clients_killed_in_all_states(daemon, victims):
    fill(daemon)
    before = daemon.holdings_at_rest()
    for _ in range(3):
        for v in victims(daemon, *STATES):
            v.kill()
    daemon.wait_for_holdings(before)
    with daemon.client() as c:
        assert c.value(c.namespace("common"), key_of("common", 5)) == value_of(key_of("common", 5), COMMON)


def test_clients_that_do_not_read_do_not_hold_up_others(daemon, victims):
    fill(daemon)
    victims(daemon, *[not_reading_replies] * 4)
    with daemon.client() as c:
        ns = c.namespace("common")
        for key, value in items("common", 64, COMMON):
            assert c.value(ns, key) == value
        assert daemon.status()["sessions"]["connections"] >= 5


def test_the_65th_request_waits_for_replies_to_be_read(daemon, client):
    """Requests of a client that does not read wait, and are neither refused nor lost. All are answered once it reads."""
    ns = client.namespace("backpressure")
    keys = [key_of("b", i) for i in range(512)]
    tags, client.timeout = [], 0.3
    try:
        for _ in range(3000):
            tags.append(client.submit_batch(Op.STAT, ns, keys))
    except kvwire.ReplyTimeout:
        pass
    assert len(tags) < 3000, "the daemon takes any number of requests from one who does not read"
    client.timeout = 30 * slow()
    for tag in tags:
        assert client.wait(tag).count == 512
    client.ping()


def test_a_hundred_clients_put_and_get_at_once(leg_daemon):
    count, each = 100, 8

    def work(number):
        with leg_daemon.client(name=f"client {number}") as c:
            ns = c.namespace("hundred")
            c.staging(256 * KIB)
            mine = [(k, value_of(k, 20000)) for k in (key_of("hundred", number, i) for i in range(each))]
            shared = [(k, value_of(k, 10000)) for k in (key_of("shared", i) for i in range(4))]
            results = c.put(ns, mine + shared, ack=Ack.WRITTEN if number % 2 else Ack.ACCEPTED, timeout_ms=60000)
            assert all(r.stored for r in results), results
            wrong = 0
            for _ in range(2):
                for key, value in mine + shared:
                    got, = c.get(ns, [key], timeout_ms=60000)
                    assert got.status == Status.OK, got
                    wrong += got.data != value
                    c.release([got.lease])
                into = c.get_into(ns, [k for k, _ in mine], 20000, timeout_ms=60000)
                wrong += sum(r.data != v for r, (_, v) in zip(into, mine))
                # another client's chunk, if it is stored already
                other = (number * 7 + 1) % count
                for i in range(each):
                    key = key_of("hundred", other, i)
                    value = c.value(ns, key)
                    wrong += value not in (None, value_of(key, 20000))
            return wrong

    before = leg_daemon.holdings_at_rest()
    assert sum(in_threads(count, work)) == 0
    leg_daemon.wait_for_holdings(before)


def test_connecting_and_closing_leaves_nothing(daemon):
    before = daemon.holdings_at_rest()
    for i in range(300):
        if i % 3 == 0:
            daemon.raw().close()
        else:
            c = daemon.client()
            if i % 3 == 1:
                c.staging(4096)
            c.close()
    daemon.wait_for_holdings(before)


def test_a_forked_copy_of_the_socket_keeps_the_session(daemon):
    """The client's end is closed when its last copy is."""
    c = daemon.client()
    ns = c.namespace("fork")
    c.put(ns, items("fork", 3, 1000), lease=True)
    copy = os.dup(c.sock.fileno())
    c.close()
    assert daemon.status()["sessions"]["leases"] == 3
    os.close(copy)
    wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "the leases end")
