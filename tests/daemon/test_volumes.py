# SPDX-License-Identifier: Apache-2.0
"""A store of several volumes: distribution of chunks, kill -9, suspend and resume under load, and missing or full volumes."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest

import harness
import kvwire
from harness import KIB, MIB, ctl, get_all, items, put_all, wait_until
from kvwire import Ack, Status


@pytest.fixture
def make(make_daemon, directory):
    def make(*names, settings=None, **how):
        paths = [directory / name for name in names]
        settings = {"store.path": ",".join(map(str, paths)), "listen.http": f"unix:{directory / 'd0' / 'h'}",
                    **(settings or {})}
        daemon = make_daemon(settings=settings, **how)
        daemon.paths = [str(p) for p in paths]
        return daemon
    return make


def volumes_of(daemon):
    return daemon.status()["store"]["volumes"]


def metric(daemon, name, path):
    return daemon.metric(f'kvcache_{name}{{volume="{path}"}}')


def test_chunks_are_spread_over_the_paths_and_survive_a_kill(make):
    daemon = make("a", "b").start()
    pairs = items("spread", 200, 20000)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert {r.status for r in put_all(c, ns, pairs, ack=Ack.WRITTEN).values()} == {Status.OK}
        assert c.evict(ns, [pairs[0][0]])[0] == Status.OK
    for path in volumes_of(daemon):
        assert path["state"] == "up" and path["chunks"] > 50
        assert metric(daemon, "volume_chunks", path["volume"]) == path["chunks"]
        assert metric(daemon, "volume_bypassed", path["volume"]) == 0
        assert metric(daemon, "volume_written_bytes_total", path["volume"]) >= path["payload_bytes"]
    assert sum(p["limit_bytes"] for p in volumes_of(daemon)) <= 128 * MIB
    daemon.restart(kill=True)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert get_all(c, ns, [k for k, _ in pairs]) == {**dict(pairs), pairs[0][0]: None}
        assert len(list(c.list(ns))) == len(pairs) - 1
        assert c.purge(ns) == len(pairs) - 1
    daemon.restart(kill=True)
    assert daemon.status()["store"]["chunks"] == 0


def test_suspend_and_resume_under_load_lose_and_invent_nothing(make):
    daemon = make("a", "b").start()
    stop = threading.Event()
    problems = []

    def work(number):
        try:
            with daemon.client() as c:
                ns = c.namespace("load")
                round = 0
                while not stop.is_set():
                    pairs = items((number, round % 20), 8, 30000)
                    for r in c.put(ns, pairs, ack=Ack.WRITTEN):
                        if r.status not in (Status.OK, Status.EXISTS):
                            problems.append(r.status)
                    for key, value in get_all(c, ns, [k for k, _ in pairs]).items():
                        if value is not None and value != dict(pairs)[key]:
                            problems.append("a wrong byte")
                    round += 1
        except Exception as e:  # the other thread must end, too
            problems.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    try:
        with daemon.client() as admin:
            for round in range(6):
                assert admin.device("suspend", round % 2)
                assert volumes_of(daemon)[round % 2]["state"] == "suspended"
                assert not admin.device("suspend", round % 2)
                assert admin.device("resume", round % 2)
                assert not admin.device("resume", round % 2)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert problems == []
    assert [p["state"] for p in volumes_of(daemon)] == ["up", "up"]
    assert [metric(daemon, "volume_bypasses_total", p) for p in daemon.paths] == [3, 3]


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_chunks_purged_while_a_volume_is_suspended_never_return(make, kill):
    daemon = make("a", "b").start()
    pairs = items("purged", 100, 10000)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.device("suspend", 1)
        assert c.purge(ns) > 0
    daemon.restart(kill)
    with daemon.client() as c:
        assert set(get_all(c, c.namespace("n"), [k for k, _ in pairs]).values()) == {None}
    assert "was offline while" in daemon.log()


def test_evicted_while_a_path_is_suspended_does_not_come_back_either(make):
    daemon = make("a", "b").start()
    pairs = items("evicted", 60, 10000)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.device("suspend", 0)
        c.evict(ns, [k for k, _ in pairs])
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert set(get_all(c, c.namespace("n"), [k for k, _ in pairs]).values()) == {None}


def test_with_the_only_path_suspended_puts_live_in_the_pool(make):
    daemon = make("a").start()
    pairs = items("pool", 10, 10000)
    more = items("more", 10, 10000)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.device("suspend")
        assert {r.status for r in put_all(c, ns, more, ack=Ack.ACCEPTED).values()} == {Status.OK}
        assert get_all(c, ns, [k for k, _ in more]) == dict(more)
        assert list(c.list(ns)) == [], "what is in memory only is not listed"
        assert {r.status for r in put_all(c, ns, items("written", 3, 5000), ack=Ack.WRITTEN).values()} == {Status.FAILED}
        c.namespace("another")
        refused = ctl("put", "k", daemon=daemon, check=4, input="x").stderr
        assert "the daemon could not read or write its disk" in refused and "kvcachectl device ls" in refused
        assert daemon.metric("kvcache_put_pool_only_total") == 10
        assert daemon.metric("kvcache_store_bypassed") == 1
        assert daemon.http("/healthz")[0::2] == (200, b"ok\n"), "the process works"
        status, _, body = daemon.http("/readyz")
        assert status == 503 and body.decode().splitlines() == [
            "not ready: no volume of the store is in use; chunks live in memory only",
            "degraded: no volume of the store is in use: nothing is written to disk or read from it; "
            "kvcachectl device ls says why",
            f"degraded: volume {daemon.paths[0]} is suspended by an admin"]
        status = daemon.status()
        assert (status["ready"], status["state"], status["health"]) == (False, "offline", "degraded")
        assert [d["reason"] for d in status["degraded"]] == ["store_offline", "volume_suspended"]
        assert daemon.metric("kvcache_ready") == 0
        said = ctl("status", daemon=daemon, check=0).stdout
        assert ", not ready: offline, degraded," in said and "OFFLINE" in said
        assert "10 of them on volumes that are not in use" in said and "failed" not in said
        assert c.device("resume")
        assert daemon.http("/healthz")[0::2] == (200, b"ok\n")
        assert daemon.http("/readyz")[0::2] == (200, b"ready\n")
        assert daemon.metric("kvcache_ready") == 1
        assert get_all(c, ns, [k for k, _ in pairs]) == dict(pairs)
        assert {r.status for r in put_all(c, ns, items("written", 3, 5000), ack=Ack.WRITTEN).values()} == {Status.OK}


def test_kvcachectl_device(make):
    daemon = make("a", "b").start()
    out = ctl("device", "ls", daemon=daemon, check=0).stdout.splitlines()
    assert len(out) == 3 and [line.split()[:2] for line in out[1:]] == [[p, "up"] for p in daemon.paths]
    assert ctl("device", daemon=daemon, check=0).stdout.splitlines()[0] == out[0]
    assert ctl("device", "suspend", daemon.paths[1], daemon=daemon, check=0).stdout == f"{daemon.paths[1]}: suspended\n"
    listed = json.loads(ctl("--json", "device", "ls", daemon=daemon, check=0).stdout)["volumes"]
    assert [p["state"] for p in listed] == ["up", "suspended"]
    assert "suspended by an admin" in ctl("device", "ls", daemon=daemon, check=0).stdout
    assert daemon.http("/healthz")[0::2] == (200, b"ok\n")
    told = f"volume {daemon.paths[1]} is suspended by an admin"
    assert daemon.http("/readyz")[0::2] == (200, f"ready\ndegraded: {told}\n".encode())
    status = daemon.status()
    assert status["degraded"] == [{"reason": "volume_suspended", "text": told}]
    assert (status["ready"], status["state"], status["health"]) == (True, "ready", "degraded")
    assert daemon.metric('kvcache_degraded{reason="volume_suspended"}') == 1
    states = ("up", "suspended", "failed", "hung", "resuming", "bypassed")
    for path, true in ((daemon.paths[0], {"up"}), (daemon.paths[1], {"suspended", "bypassed"})):
        assert {s for s in states if metric(daemon, f"volume_{s}", path)} == true
        assert metric(daemon, "volume_state_since_timestamp_seconds", path) == pytest.approx(time.time(), abs=600)
    said = ctl("status", daemon=daemon, check=0).stdout
    assert f"DEGRADED          {told}\n" in said and f"{daemon.paths[1]}: suspended by an admin, since 20" in said
    page = daemon.http("/")[2].decode()
    assert told in page and "fail" not in page.replace("full refusals", "").replace("failures", "").replace("failed builds", "").replace("failed check", "")
    assert daemon.metric("kvcache_store_bypassed") == 0
    said = json.loads(ctl("--json", "device", "suspend", "1", daemon=daemon, check=0).stdout)
    assert said == {"volume": daemon.paths[1], "state": "suspended", "changed": False}
    assert ctl("device", "resume", daemon.paths[1], daemon=daemon, check=0).stdout == f"{daemon.paths[1]}: in use\n"
    assert ctl("device", "resume", daemon.paths[1], daemon=daemon, check=0).stdout == f"{daemon.paths[1]}: was in use\n"
    assert "no volume '/nowhere'" in ctl("device", "resume", "/nowhere", daemon=daemon, check=1).stderr
    for wrong in (["eject", "0"], ["suspend"], ["resume", "0", "1"], ["ls", "0"]):
        ctl("device", *wrong, daemon=daemon, check=2)
    assert daemon.log().count("is suspended") == 1 and daemon.log().count("is in use again") == 1


def test_there_is_no_such_path(make):
    daemon = make("a").start()
    with daemon.client() as c:
        for path in (1, 16, 2**32 - 1):
            for action in ("suspend", "resume"):
                assert c.device(action, path, check=False).status == Status.INVALID
        assert c.device("suspend", 0)


def test_R9_suspending_and_resuming_are_for_admins(make):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    daemon = make("a", settings={"listen.mode": "0666"}).start()
    os.chmod(daemon.directory, 0o755)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"?"
        try:
            harness.become_stranger()
            with daemon.client() as c:
                answer = bytes([c.device(a, 0, check=False).status for a in ("suspend", "resume")])
        finally:
            os.write(write, answer)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as f:
        answer = f.read()
    os.waitpid(pid, 0)
    assert answer == bytes([Status.DENIED] * 2)
    assert volumes_of(daemon)[0]["state"] == "up"


def test_a_volume_that_cannot_be_opened_is_reported_and_can_be_resumed(make):
    daemon = make("a", "b").start()
    pairs = items("missing", 100, 10000)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    on_a = volumes_of(daemon)[0]["chunks"]
    daemon.stop()
    os.rename(daemon.paths[1], daemon.paths[1] + ".away")
    with open(daemon.paths[1], "w"):
        pass
    daemon.start()
    assert f"volume {daemon.paths[1]} is bypassed" in daemon.log()
    assert metric(daemon, "volume_failed", daemon.paths[1]) == 1 and metric(daemon, "volume_hung", daemon.paths[1]) == 0
    assert f"degraded: volume {daemon.paths[1]} is bypassed: " in daemon.http("/readyz")[2].decode()
    with daemon.client() as c:
        ns = c.namespace("n")
        found = get_all(c, ns, [k for k, _ in pairs])
        assert sum(v is not None for v in found.values()) == on_a
        assert all(v is None or v == dict(pairs)[k] for k, v in found.items())
        assert c.device("resume", 1, check=False).status == Status.FAILED
        assert "cannot" in ctl("device", "resume", "1", daemon=daemon, check=4).stderr
        os.unlink(daemon.paths[1])
        os.rename(daemon.paths[1] + ".away", daemon.paths[1])
        assert c.device("resume", 1)
        assert get_all(c, ns, [k for k, _ in pairs]) == dict(pairs)


def test_paths_of_different_stores_are_refused_by_name(make, make_daemon):
    for name in ("a", "b"):
        daemon = make(name).start()
        daemon.stop()
    daemon = make("a", "b").spawn()
    assert daemon.wait_exit() != 0
    assert all(p in daemon.log() for p in daemon.paths) and "two stores" in daemon.log()


def test_a_file_system_that_others_fill_stops_the_growth_and_nothing_else(make, directory):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    mount = directory / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", mount], capture_output=True).returncode != 0:
        pytest.skip("this host does not allow tmpfs mounts")
    try:
        daemon = make("a", "small/b", settings={"store.limit": "256MiB", "store.reserve": "8MiB"})
        daemon.start()
        with open(mount / "others", "wb") as f:
            free = shutil.disk_usage(mount).free
            os.posix_fallocate(f.fileno(), 0, max(free - 6 * MIB, 1))
        pairs = items("full", 500, 200 * KIB)
        with daemon.client() as c:
            ns = c.namespace("n")
            assert {r.status for r in put_all(c, ns, pairs, ack=Ack.WRITTEN, timeout_ms=60000).values()} == {Status.OK}
            found = get_all(c, ns, [k for k, _ in pairs])
        assert all(v is None or v == dict(pairs)[k] for k, v in found.items())
        assert sum(v is not None for v in found.values()) > 300
        full = volumes_of(daemon)[1]
        assert full["full"] and full["state"] == "up"
        assert metric(daemon, "volume_full", daemon.paths[1]) == 1
        assert metric(daemon, "volume_full_refusals_total", daemon.paths[1]) >= 1
        assert daemon.log().count("no free space above store.reserve") == 1
        assert "the file system has no free space above store.reserve" in ctl("device", "ls", daemon=daemon, check=0).stdout
        assert shutil.disk_usage(mount).free >= 4 * MIB
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
