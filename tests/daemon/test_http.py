# SPDX-License-Identifier: Apache-2.0
"""HTTP: the pages, who may read them, and slow or numerous visitors."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import harness
from harness import items, key_of, wait_until
from kvwire import Ack, Tier


@pytest.fixture
def web(make_daemon):
    daemon = make_daemon()
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    return daemon.start()


def traffic(daemon):
    """Uses all parts of the daemon, so that every metric has a value."""
    with daemon.client() as c:
        ns = c.namespace("web")
        pairs = items("web", 20, 10000)
        for ack in Ack:
            c.put(ns, pairs, ack=ack, lease=ack == Ack.WRITTEN)
        keys = [k for k, _ in pairs]
        c.evict(ns, keys[:5], Tier.MEMORY)
        c.get(ns, keys + [key_of("none")])
        c.get_into(ns, keys, 10000)
        c.match(ns, keys)
        c.stat(ns, keys)
        list(c.list(ns))
        c.purge(ns)
        c.send(b"bad")


def test_pages(web):
    traffic(web)
    status, headers, body = web.http("/healthz")
    assert status == 200 and body
    assert web.http("/readyz")[0] == 200
    status, headers, body = web.http("/status")
    assert status == 200 and headers["content-type"].startswith("application/json")
    said = json.loads(body)
    assert said["ready"] is True and said["totals"]["puts"] == 20 and said["http"] == f"unix:{web.http_socket}"
    assert said.keys() | {"configuration"} == web.status().keys()  # the names of files are for admins
    status, headers, body = web.http("/")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"kvcache" in body
    status, headers, body = web.http("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain") and "version=0.0.4" in headers["content-type"]
    metrics = harness.parse_metrics(body.decode())
    assert metrics["kvcache_puts_total"] == 20 and metrics['kvcache_hits_total{tier="disk"}'] == 5
    assert metrics['kvcache_misses_total{reason="never_stored"}'] == 1
    assert metrics['kvcache_request_duration_seconds_count{op="PUT"}'] == 3


def test_a_sound_daemon_answers_ready_and_nothing_else(web):
    wait_until(lambda: web.status()["pool"]["populated_bytes"] == 32 << 20, "the pool is populated")
    assert web.http("/healthz")[0::2] == (200, b"ok\n")
    expected = b"ready\n"
    if not web.status()["io"]["direct"] or web.status()["io"]["backend"] == "posix":
        pytest.skip("this machine degrades it")
    assert web.http("/readyz")[0::2] == (200, expected)
    status = web.status()
    assert (status["ready"], status["state"], status["health"], status["degraded"]) == (True, "ready", "ok", [])
    assert sum(v for n, v in web.metrics().items() if n.startswith("kvcache_degraded{")) == 0
    page = web.http("/")[2].decode()
    assert '<section class="health ok"' in page and "<span>ready</span>" in page and "starting" not in page


def test_memory_that_is_not_registered_on_request_is_no_degradation(make_daemon):
    leg = next(leg for leg in harness.LEGS if leg.name == "memlock")
    if leg.why_not():
        pytest.skip(leg.why_not())
    daemon = make_daemon(leg, settings={"io.registration": "off"}).start()
    io = daemon.populated_status()["io"]
    if io["backend"] == "posix":
        pytest.skip("not even a ring can be had with this limit now")
    assert not io["registered"] and io["registered_reason"] == "io.registration is off"
    assert not [d for d in daemon.status()["degraded"] if d["reason"] == "io_unregistered"]
    assert daemon.metric('kvcache_io_registrations_refused_total{memory="pool"}') == 0 and "RLIMIT_MEMLOCK" not in daemon.log()
    with daemon.client() as c:
        ns = c.namespace("n")
        stored = items("k", 32, 64 << 10)
        harness.put_all(c, ns, stored, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in stored], tiers=Tier.MEMORY)
        assert [bytes(r.data) for r in c.get(ns, [k for k, _ in stored])] == [v for _, v in stored]


@pytest.mark.parametrize("leg", harness.LEGS, ids=lambda leg: leg.name)
def test_missing_machine_features_are_reported_as_degraded(make_daemon, leg):
    if leg.why_not():
        pytest.skip(leg.why_not())
    daemon = make_daemon(leg)
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    io = daemon.start().populated_status()["io"]
    reasons = {d["reason"]: d["text"] for d in daemon.status()["degraded"]}
    if leg.name == "seccomp":
        assert "io_fallback" in reasons and io["reason"] in reasons["io_fallback"]
    if leg.name == "posix":
        assert "io_fallback" not in reasons and "io_unregistered" not in reasons, "it was asked for"
    if leg.name == "memlock" and io["backend"] == "posix":
        # The limit is the user's: another test's daemon has taken it, and not even a ring can be had.
        assert "RLIMIT_MEMLOCK" in reasons["io_fallback"]
    elif leg.name == "memlock":
        assert "RLIMIT_MEMLOCK" in reasons["io_unregistered"]
        warned = [line for line in daemon.log().splitlines() if " warning: " in line and "RLIMIT_MEMLOCK" in line]
        assert len(warned) == 1 and "ulimit -l" in warned[0] and "LimitMEMLOCK=" in warned[0]
        assert daemon.metric('kvcache_io_registrations_refused_total{memory="pool"}') > 0
    else:
        assert daemon.metric('kvcache_io_registrations_refused_total{memory="pool"}') == 0
    assert ("io_buffered" in reasons) == (not io["direct"])
    body = daemon.http("/readyz")[2].decode().splitlines()
    assert body == ["ready"] + [f"degraded: {text}" for text in reasons.values()]
    assert daemon.http("/healthz")[0::2] == (200, b"ok\n")


@contextlib.contextmanager
def workers_held(daemon):
    """Stops all threads of the I/O, while the loop runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
    held = []
    try:
        for t in map(int, os.listdir(f"/proc/{daemon.pid}/task")):
            if not re.fullmatch(r"kio-.*\n", pathlib.Path(f"/proc/{daemon.pid}/task/{t}/comm").read_text()):
                continue
            if libc.ptrace(SEIZE, t, 0, 0) != 0:
                pytest.skip(f"this machine does not allow ptrace: {os.strerror(ctypes.get_errno())}")
            held.append(t)
            assert libc.ptrace(INTERRUPT, t, 0, 0) == 0
            os.waitpid(t, WALL)
        yield
    finally:
        for t in held:
            libc.ptrace(DETACH, t, 0, 0)


@pytest.fixture
def one_worker(make_daemon):
    daemon = make_daemon(settings={"io.workers": 1, "io.backend": "posix", "store.prewrite": "off"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start().populated_status()  # counts as one call to a device
    return daemon


def test_the_daemon_reports_that_it_is_stopping(one_worker):
    with one_worker.client() as c:
        ns = c.namespace("n")
        with workers_held(one_worker):
            put = threading.Thread(target=lambda: c.put(ns, items("stop", 1, 1000), ack=Ack.WRITTEN))
            put.start()
            wait_until(lambda: one_worker.metric("kvcache_io_queued") + one_worker.metric("kvcache_pool_unwritten_bytes"),
                       "the put waits for the worker")
            one_worker.process.send_signal(signal.SIGTERM)
            wait_until(lambda: one_worker.http("/readyz")[0] == 503, "it is not ready")
            assert one_worker.http("/readyz")[2] == b"not ready: stopping\n"
            assert one_worker.http("/healthz")[0::2] == (200, b"ok\n")
            said = json.loads(one_worker.http("/status")[2])
            assert (said["ready"], said["state"]) == (False, "stopping")
            assert "not ready: stopping" in one_worker.http("/")[2].decode()
        put.join()
    assert one_worker.wait_exit() == 0


def test_healthz_reports_a_worker_that_does_not_advance(one_worker):
    with one_worker.client() as c:
        with workers_held(one_worker):
            # A volume is synced by a blocking-call thread, which was idle and does not take the call.
            suspending = threading.Thread(target=lambda: c.device("suspend"))
            suspending.start()
            wait_until(lambda: one_worker.http("/healthz")[0] == 503, "it is not alive", 25)
            assert b"a worker thread has made no progress for 1" in one_worker.http("/healthz")[2]
            assert one_worker.log().count("a worker thread has made no progress") == 1
        suspending.join()
        wait_until(lambda: one_worker.http("/healthz")[0::2] == (200, b"ok\n"), "it is alive again")
        assert "all worker threads make progress again" in one_worker.log()


def test_live_reserved_and_limit_are_distinguished(web):
    with web.client() as c:
        c.put(c.namespace("n"), items("live", 10, 10000), ack=Ack.WRITTEN)
    status, metrics = web.status(), web.metrics()
    store, pool, path = status["store"], status["pool"], status["store"]["volumes"][0]
    for said in (store, path):
        assert said["live_bytes"] == said["payload_bytes"] == 100000
        assert said["live_bytes"] < said["reserved_bytes"] == said["used_bytes"] <= said["limit_bytes"]
    assert pool["live_bytes"] == 100000 < pool["used_bytes"] < pool["bytes"]
    # The volumes also have their earlier name, which older programs read.
    assert store["paths"] == [{"path": path["volume"], "state": path["state"]}]
    assert metrics["kvcache_store_live_bytes"] == metrics["kvcache_pool_live_bytes"] == 100000
    assert metrics[f'kvcache_volume_live_bytes{{volume="{path["volume"]}"}}'] == 100000
    wait_until(lambda: abs(web.metric("kvcache_store_reserved_bytes") - web.disk_usage()) < 4 << 20,
               "what is reserved is on the disk: room is prepared ahead of its use")
    said = harness.ctl("status", "--all", daemon=web, check=0).stdout
    assert re.search(r"^  live +97\.7 KiB of 128 MiB ", said, re.M)
    assert re.search(r"^  reserved +[\d.]+ [KM]iB of 128 MiB: ", said, re.M)
    assert re.search(r"^  live +97\.7 KiB: the bytes of the chunks", said, re.M)


def test_unknown_pages_and_methods_are_refused(web):
    assert web.http("/nothing")[0] == 404
    assert web.http("/metrics/../status")[0] in (404, 200)
    for method in ("POST", "PUT", "DELETE"):
        status, headers, _ = web.http("/metrics", method)
        assert status == 405 and "GET" in headers["allow"]
    status, headers, body = web.http("/metrics", "HEAD")
    assert status == 200 and body == b"" and int(headers.get("content-length", 1)) > 0


def test_openmetrics_is_served_on_request(web):
    traffic(web)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    _, headers, body = web.http("/metrics", headers={"Accept": accept})
    assert headers["content-type"].startswith("application/openmetrics-text")
    text = body.decode()
    assert text.endswith("# EOF\n")
    assert "# TYPE kvcache_puts counter\n" in text and "kvcache_puts_total 20" in text
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
    assert len(types) == len(set(types)) > 50
    _, headers, body = web.http("/metrics", headers={"Accept": "text/plain"})
    assert headers["content-type"].startswith("text/plain") and b"# EOF" not in body


def test_promtool_finds_nothing_to_say(web):
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed")
    traffic(web)
    _, _, body = web.http("/metrics")
    result = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, timeout=60 * harness.slow())
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_counters_never_fall(web):
    before = web.metrics()
    traffic(web)
    after = web.metrics()
    # Labels of an info metric may change.
    assert {n for n in before if "_info{" not in n} <= after.keys()
    fallen = {n: (before[n], after[n]) for n in before if re.search(r"_(total|count|sum|bucket)\b", n) and after[n] < before[n]}
    assert not fallen


def test_the_socket_file_has_its_mode_and_is_removed_with_the_daemon(web):
    mode = os.stat(web.http_socket).st_mode
    assert stat.S_ISSOCK(mode) and not mode & 0o007
    web.stop()
    assert not os.path.exists(web.http_socket)


# Sets the loopback device up (SIOCSIFFLAGS: IFF_UP), and listens at the default address until it is killed.
LISTENS = """
import fcntl, signal, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))
s.bind(("127.0.0.1", 9750))
s.listen()
print("listens", flush=True)
signal.pause()
"""


@pytest.fixture
def where_the_default_is_taken():
    """Provides a command that executes another in a network namespace in which the default address is in use."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("needs root, and unshare, for a network of its own")
    process = harness.spawn(["unshare", "--net", sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.stdout.readline()
    if said != "listens\n":
        pytest.skip(f"no network namespace here: {said}{process.communicate()[0]}")
    return ["nsenter", f"--net=/proc/{process.pid}/ns/net"]


def test_busy_default_address_is_a_warning(make_daemon, where_the_default_is_taken):
    daemon, asked = make_daemon(settings={"listen.http": None}), make_daemon(settings={"listen.http": "127.0.0.1:9750"})
    daemon.prefix = asked.prefix = where_the_default_is_taken
    daemon.start()
    assert daemon.status()["http"] == "off"
    assert any("9750" in line for line in daemon.log().splitlines() if " warning: " in line)
    assert daemon.status()["degraded"] == [{"reason": "http_off", "text":
                                            "nothing is served over HTTP: 127.0.0.1:9750 was in use at startup; "
                                            "set listen.http to another address, and restart the daemon"}]
    assert daemon.metric('kvcache_degraded{reason="http_off"}') == 1
    assert asked.spawn().wait_exit() == 75
    assert "127.0.0.1:9750" in asked.log() and "set listen.http to another address, or to off" in asked.log()


@pytest.mark.parametrize("address", ["0.0.0.0:9751", "myhost:9751", "[2001:db8::1]:9751", "nonsense", "127.0.0.1:99999",
                                     "unix:relative"])
def test_address_that_will_not_do(make_daemon, address):
    """--check-config refuses the address as well, because a configuration that it accepts must start."""
    daemon = make_daemon(settings={"listen.http": address})
    assert daemon.spawn().wait_exit() == 78
    assert "listen.http" in daemon.log()
    check = subprocess.run([harness.DAEMON, "--check-config", "--set", f"listen.http={address}"], capture_output=True,
                           text=True, timeout=60 * harness.slow())
    assert check.returncode == 78 and "listen.http" in check.stderr


def connect(daemon):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(daemon.http_socket)
    s.settimeout(20 * harness.slow())
    return s


def test_a_slow_visitor_is_cut_off(make_daemon):
    """The deadline is absolute: a byte now and then does not help."""
    daemon = make_daemon(settings={"limits.http": "400ms"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    began = time.monotonic()
    idle, trickle = connect(daemon), connect(daemon)
    trickle.settimeout(0.02)
    request, sent, ended = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"z" * 100000, 0, False
    while not ended and time.monotonic() - began < 60 * harness.slow():
        try:
            trickle.send(request[sent:sent + 1])
            sent += 1
            ended = trickle.recv(1) == b""
        except socket.timeout:
            pass
        except OSError:
            ended = True
    assert ended and time.monotonic() - began > 0.3
    assert idle.recv(1) == b""
    assert daemon.http("/healthz")[0] == 200
    wait_until(lambda: daemon.metric("kvcache_http_deadlines_total") >= 2, "the deadlines are counted")
    idle.close()
    trickle.close()


def test_too_many_visitors(make_daemon):
    daemon = make_daemon(settings={"limits.http_connections": 5})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    fds = daemon.holdings_at_rest()["fds"]
    crowd = [connect(daemon) for _ in range(40)]
    wait_until(lambda: daemon.metric("kvcache_http_connections_refused_total") >= 30, "connections beyond the cap are refused")
    assert daemon.fd_count() <= fds + 6
    with daemon.client() as c:
        c.ping()
    for s in crowd:
        s.close()
    wait_until(lambda: daemon.fd_count() == fds, "their descriptors are closed")
    assert daemon.http("/healthz")[0] == 200


@pytest.mark.parametrize("request_bytes", [b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"x" * 100000,
                                           b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n",
                                           b"GET /" + b"a" * 50000 + b" HTTP/1.1\r\n\r\n",
                                           b"GET http://[::1/metrics HTTP/1.1\r\n\r\n",
                                           b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n"])
def test_nonsense_does_no_harm(web, request_bytes):
    s = connect(web)
    try:
        s.sendall(request_bytes)
        s.shutdown(socket.SHUT_WR)
        while s.recv(65536):
            pass
    except OSError:
        pass
    s.close()
    assert web.http("/healthz")[0] == 200
    with web.client() as c:
        c.ping()


def test_visitors_that_leave_amid_the_answer(web):
    fds = web.holdings_at_rest()["fds"]
    for _ in range(50):
        s = connect(web)
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        s.close()
    wait_until(lambda: web.fd_count() == fds, "their descriptors are closed")


def test_tcp_on_a_port_of_the_kernels_choice(make_daemon):
    daemon = make_daemon(settings={"listen.http": "127.0.0.1:0"}).start()
    address = daemon.status()["http"]
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", address)
    with urllib.request.urlopen(address + "/readyz", timeout=20) as reply:
        assert reply.status == 200
