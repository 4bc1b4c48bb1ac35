# SPDX-License-Identifier: Apache-2.0
"""A stop while a device does not answer is bounded, reported, and as safe as a kill."""

import json
import re
import signal
import socket

import pytest

import kvwire
from harness import KIB, ctl, items, key_of, preload, put_all, wait_until
from kvwire import Ack, Status


def uptime(client):
    return json.loads(client.report())["uptime_seconds"]


@pytest.fixture
def hangs(make_daemon, directory):
    """Provides a daemon whose writes wait while the switch exists."""
    switch = directory / "hang"
    daemon = make_daemon(settings={"io.backend": "posix", "io.hang": "1s", "limits.drain": "1s", "store.prewrite": "off"},
                         env={"LD_PRELOAD": preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)})
    return daemon.start(), switch


def test_R15_a_stop_does_not_wait_for_a_device_that_hangs(hangs):
    daemon, switch = hangs
    before, after = items("before", 20, 40 * KIB), items("after", 20, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, before, ack=Ack.WRITTEN)
        switch.touch()
        put_all(c, ns, after, ack=Ack.ACCEPTED)
        wait_until(lambda: "has not completed for 1 s" in c.report(), "the path is called hung")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_exit() == 74
    assert f"within 1 s (io.hang), the oldest on volume {daemon.store}; exiting without marking the store clean" in daemon.log()

    switch.unlink()
    daemon.start()
    with daemon.client() as c:
        ns = c.namespace("n")
        for key, value in before:
            result = c.get(ns, [key])[0]
            assert result.status == Status.OK and result.data == value, "what was written is lost"
            c.release([result.lease])


def test_a_stop_waits_for_a_device_that_answers_in_time(hangs):
    daemon, switch = hangs
    with daemon.client() as c:
        ns = c.namespace("n")
        switch.touch()
        pairs = items("late", 5, 40 * KIB)
        put_all(c, ns, pairs, ack=Ack.ACCEPTED)
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "not on disk yet; writing" in daemon.log(), "it stops")
    switch.unlink()
    assert daemon.wait_exit() == 0
    daemon.start()
    with daemon.client() as c:
        ns = c.namespace("n")
        assert all(c.get(ns, [key])[0].status == Status.OK for key, _ in pairs)


def test_an_idle_daemon_ends_and_a_connected_client_keeps_it(make_daemon, directory):
    """The time counts from the end of the last connection, and accepted chunks are written before the daemon ends."""
    daemon = make_daemon(settings={"store.prewrite": "off", "io.hang": "1s"}, config=directory / "kvcache.yaml")
    daemon.config.write_text("")
    daemon.start()
    pairs = items("idle", 5, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.ACCEPTED)
        daemon.config.write_text("listen.idle: 300ms\n")
        ctl("reload", daemon=daemon, check=0)
        # Waits for several ticks of the daemon, one of which would end it if it did not count this client.
        began = uptime(c)
        wait_until(lambda: uptime(c) > began + 2, "two seconds of the daemon")
        assert json.loads(c.report())["sessions"]["idle_stop_seconds"] == 0.3
        assert re.search(r"^ +stops after 0.3 s without a client \(listen.idle\)$", ctl("status", daemon=daemon, check=0).stdout, re.M)
    assert daemon.wait_exit() == 0
    assert "no client has been connected for 300 ms (listen.idle), so the daemon stops" in daemon.log()
    daemon.config.write_text("")
    daemon.start()
    with daemon.client() as c:
        ns = c.namespace("n")
        assert all(c.get(ns, [key])[0].status == Status.OK for key, _ in pairs)


def test_a_daemon_that_no_client_has_ever_used_ends(make_daemon):
    daemon = make_daemon(settings={"listen.idle": "100ms"}).spawn()
    assert daemon.wait_exit() == 0
    assert "no client has been connected for 100 ms (listen.idle), so the daemon stops" in daemon.log()


@pytest.mark.parametrize("leases", [False, True])
def test_the_last_replies_reach_a_client_that_sent_more(make_daemon, leases):
    """A client with leases also sees the end of the stream if nothing keeps the memory. A close with unread messages would reset the connection."""
    daemon = make_daemon().start()
    with daemon.client() as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ns = c.namespace("n")
        pairs = items("x", 2, 5000)
        c.put(ns, pairs, ack=Ack.WRITTEN)
        if leases:
            c.get(ns, [k for k, _ in pairs])
        c.sock.settimeout(0.2)
        keys = [key_of("none", i) for i in range(1024)]
        with pytest.raises(OSError):  # until the socket takes no more, as the replies are not read
            for _ in range(2000):
                c.submit_batch(kvwire.Op.STAT, ns, keys)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait_exit() == 0
        while c.sock.recv(1 << 20):
            pass  # ConnectionResetError would be a reply lost
