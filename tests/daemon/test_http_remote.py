# SPDX-License-Identifier: Apache-2.0
"""HTTP for other hosts: only if configured; the token; the limits of one address."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

import harness
import kvwire
from harness import ctl, wait_until

TOKEN = "0123456789abcdef-the-token"


def own_address():
    """Returns an address of this host that is not loopback. Connections to it look like those of another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return s.getsockname()[0]


def port_of(daemon):
    return int(daemon.status()["http"].rsplit(":", 1)[1])


def ask(port, path="/metrics", token=None, address="127.0.0.1", headers=None):
    """(status, headers, body)"""
    connection = http.client.HTTPConnection(address, port, timeout=30 * harness.slow())
    try:
        connection.request("GET", path, headers={**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})})
        reply = connection.getresponse()
        return reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), reply.read()
    finally:
        connection.close()


@pytest.fixture
def token_file(directory):
    path = directory / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o640)
    return path


def remote(make_daemon, **settings):
    return make_daemon(settings={"listen.http": "0.0.0.0:0", "http.allow_remote": "true", **settings})


def check_config(daemon):
    options = [x for key, value in daemon.settings.items() if value is not None for x in ("--set", f"{key}={value}")]
    return subprocess.run([harness.DAEMON, "--config", "/dev/null", "--check-config", *options], capture_output=True, text=True,
                          timeout=60 * harness.slow())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "own"])
def test_R13_other_addresses_are_refused_unless_they_are_allowed(make_daemon, address):
    if address == "own":
        address = f"{own_address()}:0"
    refused = make_daemon(settings={"listen.http": address})
    assert refused.spawn().wait_exit() == 78
    assert "http.allow_remote: true" in refused.log() and address in refused.log()
    check = check_config(refused)
    assert check.returncode == 78 and "http.allow_remote: true" in check.stderr

    if address.startswith("[") and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    daemon = remote(make_daemon, **{"listen.http": address})
    assert check_config(daemon).returncode == 0
    daemon.start()
    for host in {own_address(), address[:-2] if address[0] not in "0[" else "127.0.0.1"}:
        assert ask(port_of(daemon), address=host)[0] == 200
        assert ask(port_of(daemon), "/readyz", address=host)[0] == 200
    warned = [line for line in daemon.log().splitlines() if " warning: " in line and "http.token_file" in line]
    assert len(warned) == 1 and daemon.status()["http"] in warned[0]


def test_remote_http_is_read_only(make_daemon):
    daemon = remote(make_daemon).start()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(daemon), timeout=60 * harness.slow())
        connection.request(method, "/metrics")
        assert connection.getresponse().status == 405
        connection.close()


def test_R13_pages_need_the_token_and_probes_do_not(make_daemon, token_file):
    daemon = remote(make_daemon, **{"http.token_file": token_file}).start()
    assert check_config(daemon).returncode == 0
    port = port_of(daemon)
    refused = 0
    for path in ("/", "/metrics", "/status", "/nothing"):
        for headers in ({}, {"Authorization": ""}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Bearer {TOKEN[:-1]}"},
                        {"Authorization": f"Bearer {TOKEN[:8]} {TOKEN[8:]}"}, {"Authorization": f"Basic {TOKEN}"},
                        {"Authorization": "Bearer " + "x" * 5000}, {"Authorization": f"Bearer {TOKEN} {TOKEN}"}):
            status, reply, body = ask(port, path, headers=headers)
            assert status == 401 and reply["www-authenticate"] == 'Bearer realm="kvcache"', headers
            assert b"kvcache_" not in body and b"pid" not in body and TOKEN.encode() not in body
            refused += 1
        assert ask(port, path, TOKEN)[0] == (404 if path == "/nothing" else 200)
    assert b"kvcache_ready 1" in ask(port, token=TOKEN)[2]
    assert ask(port, "/healthz")[0::2] == (200, b"ok\n")
    assert ask(port, "/readyz")[0::2] == (200, b"ready\n")
    assert daemon.metric('kvcache_http_requests_refused_total{code="401"}') == refused
    assert " warning: listen.http" not in daemon.log() and "with a token" in daemon.log()
    assert daemon.status()["http_token"] is True
    assert re.search(r"^  http +http://0\.0\.0\.0:\d+, with a token$", ctl("status", daemon=daemon, check=0).stdout, re.M)


def test_R13_the_token_is_shown_nowhere(make_daemon, token_file):
    daemon = remote(make_daemon, **{"http.token_file": token_file, "log.level": "debug"}).start()
    ask(port_of(daemon), token=TOKEN)
    ask(port_of(daemon), token=TOKEN + "wrong")
    ctl("reload", daemon=daemon, check=0)
    with daemon.client() as c:
        shown = [c.report(what) for what in (kvwire.Report.STATUS, kvwire.Report.METRICS, kvwire.Report.CONFIG)]
    printed = subprocess.run([harness.DAEMON, "--config", "/dev/null", "--set", f"http.token_file={token_file}", "--print-config"],
                             capture_output=True, text=True, timeout=60 * harness.slow())
    assert printed.returncode == 0 and str(token_file) in printed.stdout
    shown += [daemon.log(), printed.stdout, printed.stderr, ask(port_of(daemon), "/status", TOKEN)[2].decode(),
              ask(port_of(daemon), "/", TOKEN)[2].decode()]
    assert not [text for text in shown if TOKEN in text]


def test_probes_without_the_token_do_not_name_degradations(make_daemon, token_file):
    daemon = remote(make_daemon, **{"http.token_file": token_file}).start()
    ctl("device", "suspend", daemon.store, daemon=daemon, check=0)
    wait_until(lambda: ask(port_of(daemon), "/readyz")[0] == 503, "it is not ready")
    body = b"not ready: no volume of the store is in use; chunks live in memory only\n"
    assert ask(port_of(daemon), "/readyz")[2] == body
    with_token = ask(port_of(daemon), "/readyz", TOKEN)[2]
    assert with_token.startswith(body) and str(daemon.store).encode() in with_token
    assert ask(port_of(daemon), "/healthz")[0::2] == (200, b"ok\n")


@pytest.mark.parametrize("what, mode, said", [
    (TOKEN, 0o644, "mode 0644 lets other users read the file: chmod 0640"), (TOKEN, 0o662, "lets other users change the file"),
    ("", 0o600, "the file is empty"), ("\n", 0o600, "the file is empty"), ("short", 0o600, "shorter than 16 characters"),
    ("x" * 513, 0o600, "longer than 512 characters"), (f"{TOKEN} {TOKEN}", 0o600, "without a space"), (None, 0, "No such file"),
    ("directory", 0, "not a regular file")])
def test_a_file_that_will_not_do_is_an_error_at_startup(make_daemon, directory, what, mode, said):
    path = directory / "token"
    if what == "directory":
        path.mkdir()
    elif what is not None:
        path.write_text(what)
        path.chmod(mode)
    daemon = remote(make_daemon, **{"http.token_file": path})
    assert daemon.spawn().wait_exit() == 78
    assert f"http.token_file: {path}: " in daemon.log() and said in daemon.log()
    check = check_config(daemon)
    assert check.returncode == 78 and said in check.stderr and TOKEN not in daemon.log() + check.stderr


def test_a_reload_reads_the_token_again(make_daemon, directory, token_file):
    """An invalid token file fails the reload, and the present token stays in use."""
    config = directory / "kvcache.yaml"
    config.write_text(f"http: {{token_file: {token_file}}}\n")
    daemon = make_daemon(config=config, settings={"listen.http": "127.0.0.1:0"}).start()
    port = port_of(daemon)
    assert ctl("reload", daemon=daemon, check=0).stdout == "nothing has changed\n"
    token_file.write_text("another-token-0123456789\n")
    assert ask(port, token=TOKEN)[0] == 200, "until the reload"
    assert "http.token_file: the token has changed" in ctl("reload", daemon=daemon, check=0).stdout
    assert ask(port, token=TOKEN)[0] == 401 and ask(port, token="another-token-0123456789")[0] == 200

    for spoil in (lambda: token_file.write_text(""), lambda: (token_file.write_text(TOKEN), token_file.chmod(0o644)),
                  token_file.unlink):
        spoil()
        said = ctl("reload", daemon=daemon, check=4)
        assert f"http.token_file: {token_file}: " in said.stderr and "nothing was changed" in said.stderr
        assert ask(port, token=TOKEN)[0] == 401 and ask(port, token="another-token-0123456789")[0] == 200
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("kvcache_config_reloads_refused_total") == 4, "SIGHUP is a failed reload, too")

    config.write_text("http: {token_file: off}\n")
    ctl("reload", daemon=daemon, check=0)
    assert ask(port)[0] == 200
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    config.write_text(f"http: {{token_file: '{token_file}'}}\n")
    ctl("reload", daemon=daemon, check=0)
    assert ask(port)[0] == 401 and ask(port, token=TOKEN)[0] == 200


def test_an_unreadable_file_is_a_missing_permission(make_daemon, directory, token_file):
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a file that the daemon's user cannot read")
    token_file.chmod(0o600)
    daemon = make_daemon(settings={"listen.http": "127.0.0.1:0", "http.token_file": token_file}, unprivileged=True)
    os.chmod(directory, 0o755)
    assert daemon.spawn().wait_exit() == 77
    assert f"http.token_file: {token_file}: Permission denied" in daemon.log()


def test_a_file_of_another_user_is_refused(make_daemon, directory, token_file):
    if os.geteuid() != 0:
        pytest.skip("needs root, to make files of another user")
    os.chmod(directory, 0o755)
    settings = {"listen.http": "127.0.0.1:0", "http.token_file": token_file}
    daemon = make_daemon(settings=settings, unprivileged=True)
    os.chown(token_file, 12345, harness.STRANGER)
    assert daemon.spawn().wait_exit() == 78
    assert "the file belongs to another user" in daemon.log()
    os.chown(token_file, 0, harness.STRANGER)  # root's, and of the daemon's group: as /etc/kvcache has it
    again = make_daemon(settings=settings, unprivileged=True).start()
    assert ask(port_of(again), token=TOKEN)[0] == 200


def test_more_pages_than_the_rate_are_refused_and_counted(make_daemon):
    daemon = remote(make_daemon, **{"limits.http_rate": 1}).start()
    port = port_of(daemon)
    replies = [ask(port) for _ in range(30)]
    refused = [headers for status, headers, _ in replies if status == 429]
    assert refused and all(headers["retry-after"] == "1" for headers in refused)
    assert {status for status, _, _ in replies} == {200, 429}
    assert replies[0][0] == 200 and ask(port, "/readyz")[0] == 200 and ask(port, "/healthz")[0] == 200
    assert daemon.metric('kvcache_http_requests_refused_total{code="429"}') == len(refused)
    wait_until(lambda: ask(port)[0] == 200, "the address has earned another page")


def test_R13_a_flood_from_one_address_leaves_the_rest_to_others(make_daemon):
    """One address opens all connections that it can get, and requests pages as fast as it can; clients, probes and other addresses are
    served."""
    daemon = remote(make_daemon, **{"limits.http_connections": 16, "limits.http_rate": 20}).start()
    port, address, over = port_of(daemon), own_address(), threading.Event()
    idle = [socket.create_connection((address, port), timeout=20) for _ in range(40)]
    wait_until(lambda: daemon.metric("kvcache_http_connections_refused_total") >= 28, "no more than 12 of 16 are one address's")
    assert daemon.metric("kvcache_http_connections_open") == 12
    for s in idle[:6]:
        s.close()
    wait_until(lambda: daemon.metric("kvcache_http_connections_open") <= 6, "there are places again")

    def flood():
        while not over.is_set():
            try:
                ask(port, "/status", address=address)
            except (OSError, http.client.HTTPException):
                pass

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for t in threads:
        t.start()
    try:
        wait_until(lambda: daemon.metric('kvcache_http_requests_refused_total{code="429"}') >= 50, "the flood is on")
        for _ in range(20):
            assert ask(port, "/readyz")[0] == 200 and ask(port, "/healthz")[0] == 200
            assert ask(port, "/metrics")[0] == 200, "from another address"
            with daemon.client() as c:
                c.ping()
    finally:
        over.set()
        for t in threads:
            t.join()
        for s in idle:
            s.close()
    pages = daemon.metric('kvcache_loop_duration_seconds_count{part="http"}')
    assert pages <= 20 + 20 * daemon.metric("kvcache_uptime_seconds") + 40


def test_prometheus_scrapes_with_the_token(make_daemon, directory, token_file):
    import prometheus

    daemon = make_daemon(settings={"listen.http": "127.0.0.1:0", "http.token_file": token_file}).start()
    with prometheus.Prometheus(directory / "prometheus", {"kvcache": {"a": port_of(daemon)}}, token_file=token_file) as p:
        assert p.query("kvcache_ready")[0][1] == 1
    assert daemon.metric('kvcache_http_requests_refused_total{code="401"}') == 0


def test_a_page_needs_a_name_of_this_host_unless_it_has_the_token(make_daemon, token_file):
    other = {"Host": "evil.example:9750"}
    daemon = make_daemon(settings={"listen.http": "127.0.0.1:0", "http.hosts": "kvcache.example.com,proxy"}).start()
    port = port_of(daemon)
    for path in ("/", "/metrics", "/status", "/history"):
        for name in ("127.0.0.1", "[::1]", "localhost:1", socket.gethostname(), "KVCACHE.example.com:80", "proxy"):
            assert ask(port, path, headers={"Host": name})[0] == 200, name
        status, _, body = ask(port, path, headers=other)
        assert status == 421 and b"http.hosts" in body and b"kvcache_" not in body and b"pid" not in body
    assert daemon.metric('kvcache_http_requests_refused_total{code="421"}') == 4
    assert ask(port, "/healthz", headers=other)[0::2] == (200, b"ok\n") and ask(port, "/readyz", headers=other)[0::2] == (200, b"ready\n")
    with socket.create_connection(("127.0.0.1", port), timeout=30 * harness.slow()) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 400 ")

    open_to_all = remote(make_daemon).start()
    assert ask(port_of(open_to_all), headers=other)[0] == 200 and ask(port_of(open_to_all), "/status", headers=other)[0] == 421
    with_token = remote(make_daemon, **{"http.token_file": token_file}).start()
    assert ask(port_of(with_token), "/status", token=TOKEN, headers=other)[0] == 200
    assert ask(port_of(with_token), "/status", headers=other)[0] == 401
    local = make_daemon()
    local.settings["listen.http"] = f"unix:{local.http_socket}"
    local.start()
    assert local.http("/status", headers=other)[0] == 200
