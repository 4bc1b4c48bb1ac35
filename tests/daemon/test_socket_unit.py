# SPDX-License-Identifier: Apache-2.0
"""The socket unit and a client that reconnects at once, while the store's directory is moved away: the guide's procedure, and the same without
stopping the socket.

systemd-socket-activate takes the place of the socket unit. It inherits the listening socket, waits for a connection, and becomes the daemon; the
socket outlives the daemon, as the unit's does, so the client's next connection starts the next daemon."""

import contextlib
import os
import re
import shutil
import socket
import sys
import threading
import time

import pytest

import harness
from harness import KIB, get_all, put_all, value_of, wait_until
from kvwire import Ack, Status, WireError
from left_out import first_of
from test_systemd import ACTIVATE, need_systemd

ACTIVATOR = shutil.which("systemd-socket-activate")
pytestmark = pytest.mark.skipif(ACTIVATOR is None, reason="systemd-socket-activate is not installed")
SIZE = 4 * KIB
GUIDE_DIRECTORY = "/var/lib/kvcache"
FRESH = "the directory was empty, and a new volume was created in it"
LOST = re.compile(r"is bypassed: .*lost: restart the daemon")


class Unit:
    """kvcache.socket and kvcache.service, as far as a client and an administrator see them."""

    def __init__(self, daemon):
        self.daemon, self.listener = daemon, None
        self.logs = 0  # bytes of the log that earlier daemons have written
        # The activator passes on only the variables that options name.
        keep = [f"--setenv={name}" for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS") if name in daemon.environment()]
        self.activator = [ACTIVATOR, "--seqpacket", "--fdname=kvcache", *keep]

    def start(self, *names):
        """Starts the socket, and the service, which waits for its first client here."""
        if self.listener is None:
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.listener.bind(self.daemon.socket)
            self.listener.listen(64)
            self.activate()

    def activate(self):
        fd = self.listener.fileno()
        self.daemon.prefix = [sys.executable, "-c", ACTIVATE, str(fd), "", *self.activator]
        self.daemon.pass_fds = (fd,)
        self.logs = len(self.daemon.log())
        self.daemon.spawn()

    def stop(self, *names):
        """Stops the units. systemd starts no service for a socket that is to be stopped, and removes its file (RemoveOnStop=). A socket that is
        not stopped starts the service again for the client that waits."""
        if "kvcache.socket" in names:
            os.unlink(self.daemon.socket)
            self.listener.close()
            self.listener = None
        self.daemon.stop()
        if self.listener:
            self.activate()

    def log(self):
        """The log of the present daemon."""
        return self.daemon.log()[self.logs:]


class Engine:
    """A client that puts one chunk after the other, and reconnects at once, as often as its connection ends."""

    def __init__(self, daemon):
        self.daemon, self.life, self.connections = daemon, 0, 0
        self.written, self.refused, self.cancelled = [], [], []  # (life, key); cancelled: by a daemon that was stopping
        self.error = None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            while not self.ends.is_set():
                try:
                    with self.daemon.client() as c:
                        self.connections += 1
                        self.put(c)
                except (WireError, OSError):
                    time.sleep(0.001)
        except Exception as e:
            self.error = e
            raise

    def put(self, c):
        ns = c.namespace("engine")
        while not self.ends.is_set():
            life = self.life
            key = harness.key_of("engine", len(self.written) + len(self.refused) + len(self.cancelled))
            result, = put_all(c, ns, [(key, value_of(key, SIZE))], ack=Ack.WRITTEN).values()
            of_status = {Status.OK: self.written, Status.SHUTDOWN: self.cancelled}
            of_status.get(result.status, self.refused).append((life, key))

    def wait_for(self, acknowledged):
        """Waits for that many further puts that are answered `written`, or are refused."""
        answers = self.written if acknowledged else self.refused
        wanted = len(answers) + 5
        wait_until(lambda: self.error or len(answers) >= wanted, f"puts are {'acknowledged' if acknowledged else 'refused'}", 30)
        assert self.error is None

    def keys(self, *lives):
        return [key for life, key in self.written if life in lives]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.ends.set()
        self.thread.join(60 * harness.slow())
        assert not self.thread.is_alive()


@pytest.fixture
def daemon(make_daemon):
    return need_systemd(make_daemon(settings={"store.prewrite": "off", "memory.pool": "16MiB", "store.limit": "512MiB"}))


@pytest.fixture
def unit(daemon):
    unit = Unit(daemon)
    unit.start()
    yield unit
    if unit.listener:
        unit.listener.close()


def assert_stored(make_daemon, directory, keys):
    """Asserts that a daemon on this directory has the bytes of these keys, and reports no loss."""
    other = make_daemon(store=directory, settings={"store.prewrite": "off", "store.limit": "512MiB"}).start()
    with other.client() as c:
        values = get_all(c, c.namespace("engine"), keys)
    missing = [key for key in keys if values[key] != value_of(key, SIZE)]
    assert not missing, f"{len(missing)} of {len(keys)} chunks answered `written` are missing in {directory}"
    assert "is lost" not in other.log() and "are lost" not in other.log()
    other.stop()


def assert_lives_are_stored(make_daemon, daemon, moved, engine):
    """Asserts that the directory that was moved has the keys of the engine's first life, and the new one those of the second."""
    daemon.stop()
    assert_stored(make_daemon, moved, engine.keys(0))
    assert_stored(make_daemon, daemon.store, engine.keys(1))


def move_store(daemon, replaced):
    """Moves the daemon's directory, and leaves an empty one in its place if `replaced`. Returns its new path."""
    moved = daemon.store.with_name("moved")
    daemon.store.rename(moved)
    if replaced:
        daemon.store.mkdir(mode=0o700)
    return moved


def guide():
    """The commands of conf/operations.md that replace a store."""
    text = (harness.SOURCE / "conf/operations.md").read_text()
    section = text[text.index("To replace a store"):]
    block = re.search(r"\n\n((?:    .*\n)+)", section)[1]
    return [line.split() for line in block.splitlines()]


def test_the_guides_procedure_with_a_client_that_reconnects(unit, make_daemon, daemon):
    """Between the guide's commands no daemon starts; all that was written is in the moved directory, and the new store is empty."""
    moved = None
    with Engine(daemon) as engine:
        engine.wait_for(acknowledged=True)
        for command in guide():
            if command[0] == "systemctl":
                getattr(unit, command[1])(*command[2:])
            else:
                assert command[0] == "mv"
                assert daemon.process is None, "no daemon runs while the directory is moved"
                source, moved = (daemon.store.parent / path.replace(GUIDE_DIRECTORY, daemon.store.name) for path in command[1:])
                source.rename(moved)
                engine.life += 1
        engine.wait_for(acknowledged=True)
    assert daemon.log().count("Communication attempt") == 2, "each daemon was started by a connection"
    assert FRESH in unit.log() and not LOST.search(daemon.log())
    assert engine.keys(0) and not engine.refused
    assert_lives_are_stored(make_daemon, daemon, moved, engine)


@pytest.mark.parametrize("replaced", first_of([False, True]), ids=["moved", "replaced"])
def test_a_directory_moved_before_the_next_activation(unit, make_daemon, daemon, replaced):
    """The socket is not stopped, and the administrator is faster than the client: the next daemon reports that its store is new."""
    with Engine(daemon) as engine:
        engine.wait_for(acknowledged=True)
        daemon.stop()
        moved = move_store(daemon, replaced)
        engine.life += 1
        unit.activate()
        engine.wait_for(acknowledged=True)
    assert FRESH in unit.log() and not LOST.search(daemon.log())
    assert_lives_are_stored(make_daemon, daemon, moved, engine)


@pytest.mark.parametrize("replaced", first_of([False, True]), ids=["moved", "replaced"])
def test_a_directory_moved_after_the_next_activation(unit, make_daemon, daemon, replaced):
    """The client is faster: the daemon that it started notices the move, acknowledges nothing more, and says what to do; then it does so."""
    with Engine(daemon) as engine:
        engine.wait_for(acknowledged=True)
        unit.stop("kvcache.service")
        engine.wait_for(acknowledged=True)
        moved = move_store(daemon, replaced)
        engine.wait_for(acknowledged=False)
        reason = daemon.status()["store"]["volumes"][0]["reason"]
        assert "lost: restart the daemon" in reason and f"volume {daemon.store} is bypassed: {reason}" in unit.log()
        last = len(engine.written)
        engine.wait_for(acknowledged=False)
        assert len(engine.written) == last, "nothing is acknowledged after the refusal"
        engine.life += 1
        unit.stop("kvcache.service")
        engine.wait_for(acknowledged=True)
    assert FRESH in unit.log()
    assert_lives_are_stored(make_daemon, daemon, moved, engine)


def test_a_directory_moved_while_the_next_daemon_starts(unit, make_daemon, daemon):
    """Each chunk that is answered `written` is in one of the directories, whatever the daemon had opened by then; the daemon reports the move."""
    began = time.monotonic()
    with Engine(daemon) as engine:
        engine.wait_for(acknowledged=True)
        start_s = time.monotonic() - began
        for turn in range(8):
            unit.stop("kvcache.service")
            time.sleep(start_s * turn / 8)  # any moment will do; before the daemon makes a new directory there is none
            with contextlib.suppress(FileNotFoundError):
                daemon.store.rename(daemon.store.with_name(f"moved{turn}"))
            answers = len(engine.written) + len(engine.refused)
            wait_until(lambda: daemon.process.poll() is not None or FRESH in unit.log() or LOST.search(unit.log()),
                       "the daemon reports a new store or a lost one, or refuses to start", 30)
            if daemon.process.poll() is None:
                wait_until(lambda: len(engine.written) + len(engine.refused) >= answers + 5, "the client is answered", 30)
            else:
                assert daemon.wait_exit() != 0 and str(daemon.store) in unit.log()
                unit.activate()
    daemon.stop()
    missing = set(engine.keys(0))
    for directory in filter(os.path.exists, (daemon.store, *sorted(daemon.store.parent.glob("moved*")))):
        other = make_daemon(store=directory, settings={"store.prewrite": "off", "store.limit": "512MiB"}).start()
        with other.client() as c:
            missing -= {key for key, value in get_all(c, c.namespace("engine"), missing).items() if value == value_of(key, SIZE)}
        other.stop()
    assert not missing, f"{len(missing)} of {len(engine.written)} chunks answered `written` are nowhere"
