# SPDX-License-Identifier: Apache-2.0
"""The daemon's reports to systemd, and its inherited sockets; without systemd."""

import os
import signal
import socket
import sys

import pytest

import harness
import kvwire
from harness import items, slow
from kvwire import Ack

# systemd's place: puts the descriptors where they belong, names them, and becomes the daemon.
ACTIVATE = """
import fcntl, os, sys
fds = [int(fd) for fd in sys.argv[1].split(',')]
fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3 + len(fds)) for fd in fds]
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
if sys.argv[2]:
    os.environ['LISTEN_FDNAMES'] = sys.argv[2]
os.execv(sys.argv[3], sys.argv[3:])
"""


class Manager:
    """The socket on which systemd would listen."""

    def __init__(self, directory):
        self.path = str(directory / "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.settimeout(20 * harness.slow())

    def next(self):
        return self.sock.recv(4096).decode().splitlines()

    def next_with(self, wanted):
        while True:
            lines = self.next()
            if any(line.startswith(wanted) for line in lines):
                return lines


@pytest.fixture
def manager(make_daemon, directory):
    m = Manager(directory)
    yield m
    m.sock.close()


def need_systemd(daemon):
    """Skips a test in a build without libsystemd."""
    if b"NOTIFY_SOCKET" not in harness.DAEMON.read_bytes():
        pytest.skip("built without libsystemd")
    return daemon


def test_ready_reloading_stopping(make_daemon, manager):
    daemon = need_systemd(make_daemon(env={"NOTIFY_SOCKET": manager.path}))
    daemon.spawn()
    assert manager.next() == ["STATUS=starting: opening the store and reading its tables; nothing is served yet"]
    assert "READY=1" in manager.next()
    assert manager.next_with("STATUS=")[0].startswith("STATUS=ready")
    daemon.answers()
    daemon.process.send_signal(signal.SIGHUP)
    reloading = manager.next_with("RELOADING=1")
    stamp, = [int(line.split("=")[1]) for line in reloading if line.startswith("MONOTONIC_USEC=")]
    with open("/proc/uptime") as f:
        assert 0 < stamp / 1e6 <= float(f.read().split()[0]) + 1
    manager.next_with("READY=1")
    with daemon.client() as c:
        c.put(c.namespace("notify"), items("notify", 3, 1000))
    daemon.process.send_signal(signal.SIGTERM)
    stopping = manager.next_with("STOPPING=1")
    assert any(line.startswith("STATUS=") for line in stopping)
    assert daemon.wait_exit() == 0


def test_a_daemon_that_cannot_start_does_not_say_ready(make_daemon, manager):
    daemon = need_systemd(make_daemon(env={"NOTIFY_SOCKET": manager.path}))
    daemon.store.mkdir()
    (daemon.store / "foreign").write_text("x")
    assert daemon.spawn().wait_exit() == 65
    manager.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            assert "READY=1" not in manager.next()


def test_watchdog_is_fed(make_daemon, manager):
    daemon = need_systemd(make_daemon(env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}))
    daemon.spawn()
    for _ in range(3):
        manager.next_with("WATCHDOG=1")
    daemon.stop()


def test_a_manager_that_does_not_read_delays_no_client(make_daemon, manager):
    """The manager's socket holds about ten messages, and the daemon serves and ends although it is full."""
    daemon = need_systemd(make_daemon(env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "2000"}))
    daemon.start()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            sender.sendto(b"full", manager.path)
    sender.close()
    with daemon.client() as c:
        ns = c.namespace("unread")
        c.exists(ns, [k for k, _ in items("unread", 3, 1000)])
        before = daemon.metric("kvcache_uptime_seconds")  # a hundred pings later
        harness.wait_until(lambda: daemon.metric("kvcache_uptime_seconds") > before + 0.1, "the loop turns")
    daemon.stop()


def activated(daemon, sockets, names=None):
    fds = [s.fileno() for s in sockets]
    daemon.prefix = [sys.executable, "-c", ACTIVATE, ",".join(map(str, fds)), names or ""]
    daemon.pass_fds = tuple(fds)
    return daemon


def listening(path, kind=socket.SOCK_SEQPACKET):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(path)
    s.listen(16)
    return s


@pytest.mark.parametrize("names", [None, "kvcache.socket", "kvcache"])
def test_inherited_socket(make_daemon, names):
    daemon = need_systemd(make_daemon())
    with listening(daemon.socket) as s:
        early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        early.connect(daemon.socket)  # before there is a daemon: the socket queues the connection
        activated(daemon, [s], names).spawn()
        with kvwire.Client(sock=early, timeout=20 * slow()) as c:  # says HELLO before limits.handshake ends
            daemon.wait_started()
            pairs = items("inherited", 3, 1000)
            c.put(c.namespace("inherited"), pairs, ack=Ack.WRITTEN)
        daemon.stop()
        assert os.path.exists(daemon.socket), "the socket is systemd's, and not the daemon's to remove"
        # The next daemon serves a client that connects meanwhile.
        late = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        late.connect(daemon.socket)
        daemon.spawn()
        with kvwire.Client(sock=late, timeout=20 * slow()) as c:
            daemon.wait_started()
            assert all(c.exists(c.namespace("inherited"), [k for k, _ in pairs]))


def test_inherited_socket_for_http(make_daemon):
    daemon = need_systemd(make_daemon())
    with listening(daemon.socket) as s, listening(daemon.http_socket, socket.SOCK_STREAM) as h:
        activated(daemon, [h, s], "http:kvcache.socket").start()
        assert daemon.http("/readyz")[0] == 200
        assert daemon.status()["http"] == f"unix:{daemon.http_socket}"


def test_the_status_names_the_socket_that_is_inherited(make_daemon):
    daemon = need_systemd(make_daemon())
    configured, daemon.socket = daemon.socket, daemon.socket + "-of-the-unit"
    with listening(daemon.socket) as s:
        activated(daemon, [s]).start()
        assert daemon.settings["listen.socket"] == configured and daemon.status()["socket"] == daemon.socket
        assert f"ready: socket {daemon.socket}, " in daemon.log()


def test_inherited_socket_of_the_wrong_kind(make_daemon):
    daemon = need_systemd(make_daemon())
    with listening(daemon.socket, socket.SOCK_STREAM) as s:
        assert activated(daemon, [s]).spawn().wait_exit() not in (0, None)
        assert "SEQPACKET" in daemon.log()


def test_an_unknown_inherited_socket_prevents_startup(make_daemon):
    daemon = need_systemd(make_daemon())
    with listening(daemon.socket) as s:
        assert activated(daemon, [s], "mystery.socket").spawn().wait_exit() not in (0, None)
        assert "inherited" in daemon.log()
