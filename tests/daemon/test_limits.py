# SPDX-License-Identifier: Apache-2.0
"""Costs that one client may cause the others: unread output, exhausted descriptors, very long requests."""

import contextlib
import json
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

import harness
import kvwire
from harness import KIB, frame, items, put_all, slow, wait_until
from kvwire import Ack, Op, Status


def test_R13_without_descriptors_nothing_spins_and_waiting_peers_are_served_later(make_daemon):
    def few_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    daemon = make_daemon(leg=harness.Leg("few", deprive=[few_descriptors])).start()
    daemon.populated_status()
    waiting = []
    with daemon.client(name="first") as first:
        for _ in range(80):
            waiting.append(daemon.raw())  # the kernel's queue takes them
        hello = kvwire.HEADER.pack(64, Op.HELLO, 0, 1) + kvwire.HELLO.pack(kvwire.MAGIC, 1, 1, 0, b"waits")
        for s in waiting:
            s.send(hello)
        wait_until(lambda: "cannot accept connections" in daemon.log(), "it says that it is out of descriptors")
        first.ping()
        daemon.assert_idle()
        first.ping()
        for s in waiting[:40]:
            s.close()
        for s in waiting[40:]:
            s.settimeout(30 * slow())
            assert s.recv(4096)[4:6] == b"\x01\x80"
            s.close()
        first.ping()
    assert daemon.log().count("cannot accept connections") < 20


def test_R12_reading_stops_while_output_waits(daemon):
    """A client that does not read its replies is not read either, which bounds the daemon's memory for it."""
    c = daemon.client()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ns = c.namespace("n")
    c.timeout = 0.3 * slow()
    keys = [harness.key_of("none", i) for i in range(1024)]
    sent = 0
    with pytest.raises(kvwire.ReplyTimeout):
        for _ in range(2000):
            c.submit_batch(Op.STAT, ns, keys)
            sent += 1
    assert sent < 600, "it goes on reading"
    daemon.assert_idle()
    with daemon.client() as other:
        other.ping()
    c.timeout = 30 * slow()
    for _ in range(sent):  # everything that was sent is answered once it reads
        assert c.receive(30 * slow()).status == Status.OK
    c.close()


def test_R12_descriptors_that_are_left_unread_are_bounded(daemon):
    """Descriptors in flight count against the daemon's own limit."""
    pings = 'kvcache_requests_total{op="PING"}'
    with daemon.client() as c:
        c.lookup().close()  # the index exists now, so that no answer has to wait
        for op, body in (Op.REPORT, bytes(8)), (Op.LOOKUP, b""):
            before = daemon.metric(pings)
            tags = [c.submit(op, body) for _ in range(60)]
            ping = c.submit(Op.PING)
            wait_until(lambda: daemon.metric(pings) > before, "all is answered, and nothing read")
            statuses = []
            for tag in tags:
                reply = c.wait(tag, check=False)
                statuses.append(reply.status)
                assert len(reply.fds) == (reply.status == Status.OK)
                for fd in reply.fds:
                    os.close(fd)
            c.wait(ping)
            n = statuses.count(Status.OK)
            assert 16 <= n <= 32 and statuses == [Status.OK] * n + [Status.BUSY] * (60 - n), op.name
            for _ in range(100):  # a client that reads is always served
                fd, = c.call(op, body, n_fds=1).fds
                os.close(fd)
            for _ in range(60):  # regardless of other requests it has sent by then
                ping, tag = c.submit(Op.PING), c.submit(op, body)
                fd, = c.wait(tag).fds
                os.close(fd)
                c.wait(ping)


def test_R11_a_session_that_the_daemon_ends_keeps_its_leases_until_the_peer_closes(daemon):
    c = daemon.client()
    pairs = items("kept", 3, 50000)
    put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    results = c.get(1, [k for k, _ in pairs])
    c.send(b"not a frame")
    with pytest.raises(kvwire.SessionEnded):
        c.receive()
    with daemon.client() as other:
        ns = other.namespace("filler")
        put_all(other, ns, items("filler", 700, 64 * KIB), timeout_ms=30000)
        assert json.loads(other.report())["sessions"]["leases"] == 3
    assert [r.data for r in results] == [v for _, v in pairs]
    c.close()
    wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "the leases end with the peer's end")


def test_R16_a_client_with_little_to_ask_does_not_wait_for_those_with_much(daemon):
    """Requests of a thousand keys from eight sessions, and then a small one: it is answered before they are."""
    greedy = [daemon.client(name="greedy") for _ in range(8)]
    keys = [harness.key_of("much", i) for i in range(1024)]
    with daemon.client(name="polite") as polite:
        ns = polite.namespace("n")
        for c in greedy:
            c.namespace("n")

        def overtakes():
            daemon.pause()
            tags = [(c, c.submit_batch(Op.STAT, 1, keys)) for c in greedy]
            tag = polite.submit_batch(Op.EXISTS, ns, keys[:2])
            daemon.resume()
            polite.wait(tag)
            readable, _, _ = select.select([c.sock for c in greedy], [], [], 0)
            for c, tag in tags:
                assert c.wait(tag).status == Status.OK
            return len(readable) < len(greedy)  # if this process was late, the test looks again
        wait_until(overtakes, "the polite one is answered before the last of the greedy")
    for c in greedy:
        c.close()


def test_a_request_is_timed_from_its_arrival(daemon):
    """HELLO and messages that arrived while the daemon was stopped are measured as well."""
    with daemon.client() as c:
        before = json.loads(c.report(kvwire.Report.STATS))["kvcache_request_duration_seconds"]
        assert before["HELLO"]["count"] >= 1
        daemon.pause()
        tag = c.submit(Op.PING)
        time.sleep(0.05)
        daemon.resume()
        c.wait(tag)
        after = json.loads(c.report(kvwire.Report.STATS))["kvcache_request_duration_seconds"]
        assert after["PING"]["count"] == before["PING"]["count"] + 1


@pytest.mark.parametrize("setting, status", [({"limits.uid_keys": 1024}, Status.QUOTA),
                                             ({"limits.keys": 1024, "limits.uid_keys": 65536}, Status.BUSY)])
def test_R10_keys_in_flight_over_the_limit_are_refused(make_daemon, setting, status):
    """One user over the limit gets QUOTA; all users together get BUSY. Two requests in one iteration exceed the limit only together."""
    daemon = make_daemon(settings=setting).start()
    keys = [harness.key_of("x", i) for i in range(700)]
    with daemon.client() as a, daemon.client() as b:
        for c in (a, b):
            c.namespace("n")
        daemon.pause()
        tags = [(c, c.submit_batch(Op.STAT, 1, keys)) for c in (a, b)]
        daemon.resume()
        assert sorted(c.wait(tag, check=False).status for c, tag in tags) == sorted([Status.OK, status])
        assert len(b.stat(1, keys)) == len(keys)
    assert daemon.metric('kvcache_tenant_keys{tenant="default"}') == 0
    assert daemon.metric('kvcache_tenant_quota_refusals_total{tenant="default"}') == 1


@pytest.fixture
def stubborn(tmp_path):
    """Provides a file on a file system in user space, which cannot be closed before the server has ended. No process may be started while it is
    open here."""
    (tmp_path / "fuse").mkdir()
    (tmp_path / "backing").write_bytes(bytes(4096))
    (tmp_path / "switch").write_text("flush")
    server = harness.spawn([sys.executable, str(pathlib.Path(__file__).with_name("fusedisk.py")),
                            str(tmp_path / "fuse"), str(tmp_path / "backing"), str(tmp_path / "switch")],
                           stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "ready\n":
            pytest.skip("this host does not allow FUSE mounts")
        yield server, tmp_path / "fuse" / "disk"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        subprocess.run(["umount", "-l", str(tmp_path / "fuse")], capture_output=True, check=False)


@pytest.mark.parametrize("count", [3, 100])
def test_R12_a_descriptor_that_cannot_be_closed_blocks_no_client(make_daemon, stubborn, count):
    server, path = stubborn
    daemon = make_daemon().start()
    before = daemon.holdings_at_rest()
    fd = os.open(path, os.O_RDWR)
    try:
        for _ in range(count):
            with daemon.client() as c:
                c.send(frame(Op.PING), [fd])  # to be closed by the daemon, with the session
                with pytest.raises(kvwire.SessionEnded):
                    c.receive()
        with daemon.client() as c:
            ns = c.namespace("polite")
            c.put(ns, items("polite", 4, 5000), ack=Ack.WRITTEN)
            c.ping()
            # A few descriptors are kept for each user; further ones stay in the socket.
            assert min(count, 7) <= daemon.fd_count() - before["fds"] <= count + 10
    finally:
        server.kill()
        server.wait()
        with contextlib.suppress(OSError):  # the server of the file has ended
            os.close(fd)
    wait_until(lambda: daemon.fd_count() <= before["fds"], "they are closed once that is possible")


@pytest.mark.parametrize("count", [1, 100])
def test_R12_a_descriptor_that_cannot_be_closed_does_not_keep_the_store_open(make_daemon, stubborn, count):
    server, path = stubborn
    daemon = make_daemon().start()
    fd = os.open(path, os.O_RDWR)
    try:
        with daemon.client() as c:
            ns = c.namespace("polite")
            pairs = items("polite", 4, 5000)
            c.put(ns, pairs, ack=Ack.ACCEPTED)
        for _ in range(count):
            with daemon.client() as c:
                c.send(frame(Op.PING), [fd])
                with pytest.raises(kvwire.SessionEnded):
                    c.receive()
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "exiting without waiting for it" in daemon.log(), "it has closed all else")
    finally:
        server.kill()
        server.wait()
        with contextlib.suppress(OSError):
            os.close(fd)
    assert daemon.wait_exit() == 0
    daemon.start()
    assert "not closed cleanly" not in daemon.log()
    with daemon.client() as c:
        ns = c.namespace("polite")
        assert all(c.exists(ns, [k for k, _ in pairs]))
