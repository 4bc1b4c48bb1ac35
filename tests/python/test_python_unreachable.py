# SPDX-License-Identifier: Apache-2.0
"""A daemon that is unreachable, killed, restarted or hung causes misses, never exceptions. A client refuses calls after a fork or close, and
invalid names."""

import gc
import os
import pathlib
import select
import subprocess
import sys
import threading
import time

import harness
import kvcache
import pytest
from harness import in_threads, key_of, value_of, wait_until

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated

LENGTH = 8192
KEYS = [key_of("away", i) for i in range(16)]
VALUES = [value_of(k, LENGTH) for k in KEYS]
FINGERPRINT = {"model": "m"}


def rooms():
    return [bytearray(LENGTH) for _ in KEYS]


def assert_all_miss(client, blocks):
    assert blocks.match(KEYS) == 0
    for statuses in (blocks.exists(KEYS), blocks.touch(KEYS), blocks.prefetch(KEYS), blocks.evict(KEYS), blocks.hint(KEYS)):
        assert len(statuses) == 16 and not any(kvcache.status_ok(s) for s in statuses)
    for done in (blocks.put(KEYS, VALUES), blocks.get(KEYS, rooms())):
        assert done.found == 0 and done.error and done.reason and not done.ok
    with blocks.get_map(KEYS) as leased:
        assert list(leased) == [None] * 16
    assert client.info() is None


def test_a_daemon_that_was_never_there(directory):
    with kvcache.Client(directory / "none") as client:
        assert not client.connected and "is kvcache-daemon running?" in client.error
        assert_all_miss(client, client.namespace("test", FINGERPRINT))
    with pytest.raises(kvcache.Error) as e:
        kvcache.Client(directory / "none", required=True)
    assert e.value.errno and str(directory) in e.value.strerror


def check_that_attempts_become_rare(client):
    """Checks that lookups fail and that few of them try to connect: the pause before an attempt doubles, from 20 ms on."""
    blocks, attempts = client.namespace("test", FINGERPRINT), []
    client._connect = lambda connect=client._connect: attempts.append(time.monotonic()) or connect()
    while len(attempts) < 5:
        assert blocks.match(KEYS) == 0
    pauses = [after - before for before, after in zip(attempts, attempts[1:])]
    assert all(pause >= least for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.16))), pauses


def test_attempts_to_connect_become_rare(directory):
    """Attempts to connect become rare, because otherwise each lookup of an engine would pay for one."""
    with kvcache.Client(directory / "none") as client:
        check_that_attempts_become_rare(client)


def test_a_daemon_that_comes_later(make_daemon):
    daemon = make_daemon()
    client = kvcache.Client(daemon.socket)
    blocks = client.namespace("test", FINGERPRINT)
    region = client.allocate(16 * LENGTH)
    assert not region.registered and region.reason
    assert blocks.put(KEYS, VALUES).found == 0
    daemon.start()
    wait_until(lambda: blocks.put(KEYS, VALUES).ok, "puts are accepted")
    assert client.connected and client.error == "" and region.registered and region.reason == ""
    places = (region, range(0, 16 * LENGTH, LENGTH), LENGTH)
    assert blocks.get(KEYS, places).ok and bytes(region.memory) == b"".join(VALUES)
    client.close()


def test_requests_that_could_not_be_sent_are_reaped(directory):
    with kvcache.Client(directory / "none") as client:
        blocks = client.namespace("test", FINGERPRINT)
        poll = select.poll()
        poll.register(client.fileno(), select.POLLIN)
        blocks.submit_put(KEYS, VALUES, tag="put")
        blocks.submit_get(KEYS, rooms(), tag="get")
        blocks.submit_get_map(KEYS, tag="map")
        assert client.inflight == 3 and poll.poll(0)
        done = {d.tag: d for d in client.reap()}
        assert set(done) == {"put", "get", "map"} and set(done["get"].status) == {kvcache.LOST}
        assert list(done["map"].leased) == [None] * 16
        assert not poll.poll(0) and client.reap(10) == []


def test_killed_in_the_middle_of_gets(make_daemon):
    """Every get is a hit with the right bytes, or a miss, and hits return after a restart."""
    daemon = make_daemon().start()
    client = kvcache.Client(daemon.socket, timeout=20 * harness.slow())
    blocks = client.namespace("test", FINGERPRINT)
    region = client.allocate(16 * LENGTH)
    place = kvcache.Batch(KEYS, region.places(range(0, 16 * LENGTH, LENGTH), LENGTH))
    assert blocks.put(KEYS, VALUES).ok
    for _ in range(3):
        killer = threading.Timer(0.05, daemon.process.kill)
        killer.start()
        misses = 0
        while misses < 5:
            room = rooms()
            done = blocks.get(KEYS, room)
            assert all(got == value for got, value, s in zip(room, VALUES, done.status) if s == kvcache.OK)
            with blocks.get_map(KEYS) as leased:
                assert all(view is None or view == value for view, value in zip(leased, VALUES))
            misses += not done.ok
            assert blocks.match(KEYS) in range(17)
        killer.join()
        daemon._reap()
        daemon.start()
        wait_until(lambda: blocks.get(place).ok, "hits again")
        assert bytes(region.memory) == b"".join(VALUES) and region.registered
    assert client.info().reconnects == 3
    client.close()


def test_submitted_requests_of_a_killed_daemon_are_reaped(make_daemon):
    daemon = make_daemon().start()
    with kvcache.Client(daemon.socket) as client:
        blocks = client.namespace("test", FINGERPRINT)
        assert blocks.put(KEYS, VALUES).ok
        daemon.pause()
        for i in range(5):
            blocks.submit_get(KEYS, rooms(), tag=i)
        daemon.kill()
        done = []
        while client.inflight:
            done += client.reap(20)
        assert {d.tag for d in done} == set(range(5)) and {s for d in done for s in d.status} == {kvcache.LOST}
        assert {d.reason for d in done} == {"the connection to the daemon was lost"}
        daemon.start()
        wait_until(lambda: blocks.get(KEYS, rooms()).ok, "hits again")


def test_a_hung_daemon_costs_the_timeout(make_daemon):
    daemon = make_daemon().start()
    with kvcache.Client(daemon.socket, lookup=False) as client:
        blocks = client.namespace("test", FINGERPRINT)
        region = client.allocate(16 * LENGTH)
        assert blocks.put(KEYS, VALUES).ok and region.settled()
        daemon.pause()
        try:
            done = blocks.get(KEYS, rooms(), timeout=0.1)
            assert done.found == 0 and done.error and set(done.status) <= {kvcache.PENDING, kvcache.BUSY}
            assert blocks.match(KEYS, timeout=0.05) == 0
            assert blocks.exists(KEYS, timeout=0.05).count(kvcache.OK) == 0
            assert blocks.put(KEYS, VALUES, timeout=0.05).found == 0
            assert list(blocks.get_map(KEYS, timeout=0.05)) == [None] * 16
            blocks.get(KEYS, (region, range(0, 16 * LENGTH, LENGTH), LENGTH), timeout=0.05)
            assert not region.settled()
            blocks.submit_get(KEYS, rooms(), tag="late", timeout=0.05)
            assert [(d.found, d.reason) for d in client.reap(20)] == [(0, "the daemon did not answer in time")]
        finally:
            daemon.resume()
        room = rooms()
        wait_until(lambda: blocks.get(KEYS, room).ok, "hits again")
        assert room == VALUES
        wait_until(region.settled, "the late reply has come")


def test_a_daemon_that_hangs_at_connect_costs_the_timeout_now_and_then(make_daemon):
    daemon = make_daemon().start()
    daemon.pause()
    try:
        with kvcache.Client(daemon.socket, connect_timeout=0.1) as client:
            check_that_attempts_become_rare(client)
    finally:
        daemon.resume()


def test_another_fingerprint_is_refused(client, blocks):
    with pytest.raises(kvcache.MismatchError) as e:
        client.namespace("test", {"model": "m", "dtype": "fp8"})
    assert "dtype" in e.value.strerror
    assert client.namespace("test", {"dtype": "bf16", "model": "m"}).exists([KEYS[0]]) == bytes([kvcache.MISS])


def test_another_fingerprint_that_shows_late_is_a_status(make_daemon):
    daemon = make_daemon()
    client = kvcache.Client(daemon.socket)
    early = client.namespace("test", {"model": "other"})
    daemon.start()
    with kvcache.Client(daemon.socket, required=True) as other:
        assert other.namespace("test", FINGERPRINT).put(KEYS, VALUES).ok
    wait_until(lambda: set(early.get(KEYS, rooms()).status) == {kvcache.MISMATCH}, "the mismatch is noticed")
    assert early.match(KEYS) == 0 and set(early.put(KEYS, VALUES).status) == {kvcache.MISMATCH}
    early.submit_get(KEYS, rooms(), tag=1)
    assert [set(d.status) for d in client.reap(5)] == [{kvcache.MISMATCH}]
    client.close()


# --- refused arguments ---

@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800", "größe", "a\nb", b"bytes", None, 5])
def test_names_that_are_none(client, name):
    with pytest.raises(kvcache.ArgumentError):
        client.namespace(name, {})


@pytest.mark.parametrize("fingerprint", [{"a=b": 1}, {"a": "b\n"}, {"a": "\0"}, {"": 1}, {"a\nb": 1}, {"A": 1}, {"a": "größe"},
                                         {5: 1}, {"a": "x" * 4096}])
def test_fingerprints_that_are_none(client, fingerprint):
    with pytest.raises(kvcache.ArgumentError):
        client.namespace("fingerprints", fingerprint)


@pytest.mark.parametrize("options", [
    {"socket": "a\0b"}, {"socket": ""}, {"name": "a\0b"}, {"staging_bytes": -1}, {"staging_bytes": 2**64}, {"timeout": 0},
    {"timeout": float("nan")}, {"connect_timeout": -1}, {"timeout": "1"}, {"staging_bytes": 1.5},
])
def test_options_that_are_none(options):
    with pytest.raises(kvcache.ArgumentError):
        kvcache.Client(**options)


@pytest.mark.parametrize("chunk_bytes", [-1, 2**64, "1", 1.5])
def test_chunk_bytes_that_are_none(client, chunk_bytes):
    with pytest.raises(kvcache.ArgumentError):
        client.namespace("chunks", {}, chunk_bytes)


def test_a_name_of_any_text(client):
    for name in ("x" * 255, "a/b c=d", " "):
        assert client.namespace(name, {"a.b": "x=y", "a": "", "a-": 5, "b": True}, 2**40).put(KEYS[:1], VALUES[:1]).ok


def test_a_long_path_and_a_long_name(directory, daemon):
    assert not kvcache.Client("/" + "x" * 300).connected
    assert kvcache.Client(daemon.socket, name="n" * 100).connected
    assert kvcache.Client(pathlib.Path(daemon.socket), name="ü" * 100).connected


def test_a_closed_client(client, blocks):
    blocks.put(KEYS, VALUES)
    region, batch = client.allocate(4096), kvcache.Batch(KEYS, rooms())
    blocks.submit_get(batch, tag=1)
    leased = blocks.get_map(KEYS)
    client.close()
    client.close()
    for call in (lambda: blocks.match(KEYS), lambda: blocks.get(batch), lambda: blocks.submit_get(batch),
                 lambda: blocks.get_map(KEYS), client.reap, client.fileno, client.info, client.flush, lambda: client.cancel(1),
                 lambda: client.namespace("x", {}),
                 lambda: client.register(bytearray(4096), copy=True), lambda: client.allocate(4096), region.settled,
                 region.unregister, lambda: leased[0]):
        with pytest.raises(kvcache.ClosedError):
            call()
    leased.release()
    assert bytes(region.memory) == bytes(4096) and not region.registered


def test_a_client_that_is_forgotten_closes_its_connection(daemon):
    before = daemon.status()["sessions"]["connections"]
    client = kvcache.Client(daemon.socket)
    client.namespace("test", {}).submit_put(KEYS, VALUES)
    del client
    wait_until(lambda: daemon.status()["sessions"]["connections"] == before, "the connection is closed")


def in_child(work):
    """Calls `work` in a forked child and returns its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr(work()).encode())
        except BaseException as e:  # the child must not continue with the parent's tests
            os.write(write, f"raised {e!r}".encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as f:
        said = f.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, said
    return said


def test_after_fork(client, blocks, daemon):
    blocks.put(KEYS, VALUES)
    leased = blocks.get_map(KEYS)
    view = leased[0]

    def child():
        said = []
        for call in (lambda: blocks.match(KEYS), lambda: blocks.get(KEYS, rooms()), client.reap, client.info,
                     lambda: blocks.submit_put(KEYS, VALUES), lambda: client.namespace("x", {})):
            try:
                call()
            except kvcache.ForkedError:
                said.append("refused")
        try:
            view[0]
        except ValueError:
            said.append("invalid")
        leased.release()
        client.close()
        with kvcache.Client(daemon.socket) as own:
            said.append(own.namespace("test", {"model": "m", "dtype": "bf16"}).match(KEYS))
        return said

    assert in_child(child) == repr(["refused"] * 6 + ["invalid", 16])
    assert bytes(view) == VALUES[0] and blocks.match(KEYS) == 16 and blocks.get(KEYS, rooms()).ok


def test_fork_while_another_thread_is_in_a_call(client, blocks):
    """close() in the child does not wait for a lock that nothing will release there."""
    blocks.put(KEYS, VALUES)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with client._entered():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()

    def child():
        try:
            blocks.match(KEYS)
        except kvcache.ForkedError:
            client.close()
            return "closed"

    try:
        assert in_child(child) == repr("closed")
    finally:
        leave.set()
        thread.join()
    assert blocks.match(KEYS) == 16


def test_threads_share_a_client(client, blocks):
    """Calls of several threads run one after the other, and each gets its own answer."""
    def work(n):
        keys = [key_of("thread", n, i) for i in range(8)]
        values = [value_of(k, LENGTH) for k in keys]
        for _ in range(30):
            assert blocks.put(keys, values).ok and blocks.match(keys) == 8
            room = [bytearray(LENGTH) for _ in keys]
            assert blocks.get(keys, room).ok and room == values
            with blocks.get_map(keys) as leased:
                assert [bytes(v) for v in leased] == values
            assert set(blocks.exists(keys)) == {kvcache.OK}
        return n

    assert in_threads(6, work) == list(range(6))


def test_reap_does_not_hold_the_client(client, blocks):
    blocks.put(KEYS, VALUES)
    blocks.submit_get(KEYS, rooms(), tag=1)
    client.reap(20)
    reaped = []
    os_stop = threading.Event()

    def reaper():
        while not os_stop.is_set():
            reaped.extend(client.reap(1))

    thread = threading.Thread(target=reaper)
    thread.start()
    try:
        for i in range(50):
            blocks.submit_get(KEYS, rooms(), tag=i)
            assert blocks.match(KEYS) == 16
        wait_until(lambda: len(reaped) == 50, "all are reaped")
    finally:
        os_stop.set()
        thread.join()
    assert {d.tag for d in reaped} == set(range(50)) and all(d.ok for d in reaped)


def test_closed_by_another_thread(daemon):
    """A call after close() fails with ClosedError, and has no other effect."""
    for _ in range(10):
        client = kvcache.Client(daemon.socket)
        blocks = client.namespace("test", {})
        blocks.put(KEYS, VALUES)

        def work(n, client=client, blocks=blocks):
            if n == 0:
                time.sleep(0.005)
                client.close()
                return
            try:
                while True:
                    blocks.get(KEYS, rooms())
                    for view in blocks.get_map(KEYS):
                        view[0]
                    client.reap()
            except (kvcache.ClosedError, ValueError):  # ValueError: close() invalidates views
                pass

        in_threads(4, work)


def test_closing_ends_a_reap_that_waits(make_daemon):
    daemon = make_daemon().start()
    gc.collect()  # closes the descriptors that earlier tests left in reference cycles
    descriptors = set(os.listdir("/proc/self/fd"))
    client = kvcache.Client(daemon.socket)
    blocks = client.namespace("test", {})
    blocks.put(KEYS, VALUES)
    daemon.pause()
    try:
        blocks.submit_get(KEYS, rooms())

        def work(n):
            if n == 0:
                wait_until(lambda: client._waiting == 3, "three threads wait")
                client.close()
                return
            with pytest.raises(kvcache.ClosedError):
                client.reap(1000)

        in_threads(4, work)
        gc.collect()
        assert set(os.listdir("/proc/self/fd")) == descriptors
    finally:
        daemon.resume()


def test_importing_starts_no_thread():
    code = "import os, kvcache; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(kvcache.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout == "1\n"


def test_the_library_that_is_missing_is_named(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(kvcache.__file__).parents[1]), "KVCACHE_LIBRARY": "/none"}
    ran = subprocess.run([sys.executable, "-c", "import kvcache"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 1 and "ImportError" in ran.stderr and "pip install" in ran.stderr and "unset it" in ran.stderr
