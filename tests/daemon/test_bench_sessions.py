# SPDX-License-Identifier: Apache-2.0
"""Benchmark sessions in the daemon: their counters, clock and files, and that they survive kill -9."""

import json
import os
import re
import struct
import threading
import time

import pytest

import kvwire
from harness import KIB, items, put_all, wait_until
from kvwire import Ack, Op, Status, Tier
from test_gds import STRANGER
from users import client_as

INIT, STATUS, RESET, ENABLE, DISABLE, LIST, DELETE = range(1, 8)
RESUME, FORCE = 1, 2
COUNTS = ("transfer_count", "region_count", "total_blocks", "total_bytes", "device_bytes")


def metric(session, path):
    """Returns the metric of a path: {"transfer_count": ...}, zeros if nothing moved there."""
    found = [m for m in session["metrics"] if m["path"] == path]
    assert len(found) <= 1, "the daemon has one technology and one layout a path"
    return found[0] if found else dict.fromkeys(COUNTS, 0)


def counts(session):
    return {(m["path"], m["layout"], m["technology"]): [m[c] for c in COUNTS] for m in session["metrics"]}


def refusal(status):
    return pytest.raises(kvwire.Refused, match=f"BENCH: {status.name}")


def file_of(daemon, name):
    return daemon.store / "bench" / f"bench_{name}.json"


def saved(daemon, name):
    path = file_of(daemon, name)
    return json.loads(path.read_text()) if path.exists() else None


def drop_and_get(c, ns, pairs):
    c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
    for key, value in pairs:
        result, = c.get(ns, [key])
        assert result.data == value
        c.release([result.lease])


def test_puts_and_cold_gets_add_up(leg_daemon):
    pairs = items("moved", 40, 24 * KIB)
    with leg_daemon.client() as c:
        assert c.features & kvwire.FEATURE_BENCH
        ns = c.namespace("n")
        put_all(c, ns, items("before", 10, 24 * KIB), ack=Ack.WRITTEN)
        began = c.bench(INIT, "A")
        assert began["metrics"] == [] and began["active"] and began["enabled"] and began["schema"] == "kvcache.bench.v1"
        for when in "created", "updated":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", began[when])
        assert began["host"]["hostname"] == os.uname().nodename and began["host"]["cpus"] > 0
        assert began["file"] == str(file_of(leg_daemon, "A"))
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        drop_and_get(c, ns, pairs)
        session = c.bench(STATUS)
        written, read = metric(session, "host_to_disk"), metric(session, "disk_to_host")
        for m in (written, read):
            assert m["total_blocks"] == m["region_count"] == 40 and m["total_bytes"] == 40 * 24 * KIB
            assert 0 < m["transfer_count"] <= 40, "adjacent chunks are merged, none is split"
            assert m["device_bytes"] >= m["total_bytes"] and m["busy_secs"] > 0 and m["latency_secs"] > 0
            assert sum(n for _, n in m["size_histogram"]) == sum(n for _, n in m["latency_histogram"]) == m["transfer_count"]
            assert m["min_transfer_size"] >= 24 * KIB and m["max_transfer_size"] <= 512 * KIB
            assert set(m["errors"].values()) == {0} and m["layout"] == "fully_contiguous"
        assert session["enabled_secs"] > 0 and not session["idle"]
        again = c.bench(STATUS, "A")
        assert counts(again) == counts(session), "nothing moves between two questions"
        assert leg_daemon.metric("kvcache_bench_sessions") == leg_daemon.metric("kvcache_bench_session_enabled") == 1


def test_two_clients_add_up(daemon):
    def put_some(name):
        with daemon.client() as c:
            put_all(c, c.namespace(name), items(name, 50, 8 * KIB), ack=Ack.WRITTEN)

    with daemon.client() as c:
        c.bench(INIT, "both")
        threads = [threading.Thread(target=put_some, args=(n,)) for n in ("one", "two")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert metric(c.bench(STATUS), "host_to_disk")["total_bytes"] == 2 * 50 * 8 * KIB


def test_disabling_keeps_the_counts_and_stops_the_clock(daemon):
    with daemon.client() as c:
        ns = c.namespace("n")
        c.bench(INIT, "A")
        put_all(c, ns, items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
        off = c.bench(DISABLE)
        assert not off["enabled"] and off["idle"] and metric(off, "host_to_disk")["total_blocks"] == 10
        put_all(c, ns, items("two", 10, 8 * KIB), ack=Ack.WRITTEN)
        still = c.bench(STATUS)
        assert still == off, "not a byte of it changes"
        assert daemon.metric("kvcache_bench_session_enabled") == 0
        c.bench(ENABLE)
        put_all(c, ns, items("three", 10, 8 * KIB), ack=Ack.WRITTEN)
        on = c.bench(STATUS)
        assert metric(on, "host_to_disk")["total_blocks"] == 20 and on["enabled_secs"] > off["enabled_secs"]


def test_a_reset_under_load_leaves_nothing_of_before(daemon):
    """Requests sent after the reset are counted after it, and earlier ones are not."""
    stop = threading.Event()

    def load():
        with daemon.client() as c:
            ns = c.namespace("load")
            i = 0
            while not stop.is_set():
                put_all(c, ns, items(f"load-{i}", 8, 4 * KIB), ack=Ack.WRITTEN)
                i += 1

    thread = threading.Thread(target=load)
    with daemon.client() as c:
        c.bench(INIT, "A")
        thread.start()
        try:
            for _ in range(20):
                wait_until(lambda: metric(c.bench(STATUS), "host_to_disk")["total_blocks"] > 50, "something moved")
                zero = c.bench(RESET)
                assert zero["metrics"] == [] and zero["enabled_secs"] == 0
        finally:
            stop.set()
            thread.join()
        c.bench(RESET)
        assert c.bench(STATUS)["metrics"] == []


def test_sessions_are_addressed_by_name(daemon):
    with daemon.client() as c:
        with refusal(Status.STALE):
            c.bench(STATUS)
        assert c.bench(LIST) == []
        ns = c.namespace("n")
        c.bench(INIT, "B")
        put_all(c, ns, items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
        b = counts(c.bench(STATUS))
        c.bench(INIT, "A")
        put_all(c, ns, items("two", 5, 8 * KIB), ack=Ack.WRITTEN)
        assert [(s["name"], s["active"], s["enabled"]) for s in c.bench(LIST)] == [("A", True, True), ("B", False, True)]
        assert counts(c.bench(STATUS, "B")) == b, "it keeps what it had"
        assert metric(c.bench(STATUS), "host_to_disk")["total_blocks"] == 5
        for name in ("A", "B"):
            with refusal(Status.EXISTS):
                c.bench(INIT, name)
        resumed = c.bench(INIT, "B", RESUME)
        assert resumed["active"] and counts(resumed) == b
        assert c.bench(INIT, "B", FORCE)["metrics"] == []
        with refusal(Status.MISS):
            c.bench(STATUS, "C")
        with refusal(Status.MISS):
            c.bench(DELETE, "C")
        assert c.bench(DELETE, "B")["name"] == "B"
        with refusal(Status.STALE):
            c.bench(RESET)
        wait_until(lambda: not file_of(daemon, "B").exists() and file_of(daemon, "A").exists(), "one file is left")
        for bad in (".hidden", "a/b", "..", "x" * 62 + "é", "a b", "new\nline", "nul\0"):
            with refusal(Status.INVALID):
                c.bench(INIT, bad)
        assert [s["name"] for s in c.bench(LIST)] == ["A"]


def test_no_more_than_the_limit(daemon):
    with daemon.client() as c:
        for i in range(64):
            c.bench(INIT, f"s{i}")
        with refusal(Status.QUOTA):
            c.bench(INIT, "one-more")
        assert len(c.bench(LIST)) == 64
        c.bench(DELETE, "s7")
        c.bench(INIT, "one-more")


def test_the_session_continues_after_kill_9(daemon):
    with daemon.client() as c:
        ns = c.namespace("n")
        c.bench(INIT, "old")
        c.bench(INIT, "A")
        put_all(c, ns, items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
        before = c.bench(STATUS)
        wait_until(lambda: counts(saved(daemon, "A") or {"metrics": []}) == counts(before), "the file has what was reported")
    daemon.restart(kill=True)
    with daemon.client() as c:
        session = c.bench(STATUS)
        assert session["name"] == "A" and session["enabled"] and counts(session) == counts(before)
        assert session["created"] == before["created"] and session["enabled_secs"] >= before["enabled_secs"]
        put_all(c, c.namespace("n"), items("two", 10, 8 * KIB), ack=Ack.WRITTEN)
        assert metric(c.bench(STATUS), "host_to_disk")["total_blocks"] == 20
        assert [s["active"] for s in c.bench(LIST)] == [True, False]


def test_the_younger_of_two_active_files_is_active(daemon):
    """A daemon killed between the two steps leaves this state."""
    with daemon.client() as c:
        for name in ("A", "C", "B"):
            c.bench(INIT, name)
    daemon.stop()
    for name in ("A", "C", "B"):
        session = saved(daemon, name)
        assert session["active"] == (name == "B")
        file_of(daemon, name).write_text(json.dumps({**session, "active": True}))
    daemon.start()
    with daemon.client() as c:
        assert [(s["name"], s["active"]) for s in c.bench(LIST)] == [("A", False), ("B", True), ("C", False)]


def test_a_session_that_was_read_has_each_path_once(daemon):
    """Counting finds the rows of a file where they are: a row that is there twice makes the next file unreadable."""
    pairs = items("moved", 10, 8 * KIB)
    with daemon.client() as c:
        c.bench(INIT, "A")
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        drop_and_get(c, ns, pairs)
    for starts in 2, 3:
        daemon.restart()
        with daemon.client() as c:
            assert c.bench(STATUS)["name"] == "A"
            ns = c.namespace("n")
            put_all(c, ns, items(f"more-{starts}", 10, 8 * KIB), ack=Ack.WRITTEN)
            drop_and_get(c, ns, pairs)
            session = c.bench(STATUS)
            assert metric(session, "host_to_disk")["total_blocks"] == metric(session, "disk_to_host")["total_blocks"] == 10 * starts
            assert [m["path"] for m in session["metrics"]] == sorted({m["path"] for m in session["metrics"]})


def test_a_stop_saves_the_last_counts(daemon):
    with daemon.client() as c:
        c.bench(INIT, "A")
        put_all(c, c.namespace("n"), items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
    daemon.stop()
    assert metric(saved(daemon, "A"), "host_to_disk")["total_blocks"] == 10


@pytest.mark.parametrize("variable", ["KVCACHE_BENCH_SESSION", "DYNAMO_BENCHMARK_SESSION"])
def test_the_environment_names_a_session(make_daemon, variable):
    daemon = make_daemon(env={variable: "from-env"}).start()
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
        session = c.bench(STATUS)
        assert session["name"] == "from-env" and metric(session, "host_to_disk")["total_blocks"] == 10
    daemon.restart()
    with daemon.client() as c:
        assert counts(c.bench(STATUS)) == counts(session)


def test_a_bad_name_in_the_environment_is_reported_and_harmless(make_daemon):
    daemon = make_daemon(env={"KVCACHE_BENCH_SESSION": "a/b"}).start()
    with daemon.client() as c, refusal(Status.STALE):
        c.bench(STATUS)
    assert 'KVCACHE_BENCH_SESSION: cannot activate benchmark session "a/b"' in daemon.log()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema":"other"}', "\0" * 100, '{"schema":"kvcache.bench.v1","name":"B"}', None])
def test_a_damaged_file_is_named_and_left_alone(make_daemon, content):
    daemon = make_daemon()
    daemon.start()
    with daemon.client() as c:
        c.bench(INIT, "good")
    daemon.stop()
    bad = file_of(daemon, "bad")
    if content is None:
        os.mkfifo(bad)
    else:
        bad.write_text(content)
    (bad.parent / "bench_.json").write_text("x")
    (bad.parent / "else").write_text("x")
    daemon.start()
    assert "bench_bad.json" in daemon.log()
    with daemon.client() as c:
        assert [s["name"] for s in c.bench(LIST)] == ["good"]
        assert os.path.lexists(bad)
        if content is not None:
            c.bench(INIT, "bad")
            wait_until(lambda: saved_name(bad) == "bad", "a new session of that name takes its place")


@pytest.mark.parametrize("make, reason", [(os.mkfifo, "not a regular file"), (os.mkdir, "not a regular file"),
                                          (lambda path: os.symlink("/dev/null", path), "Too many levels of symbolic links"),
                                          (lambda path: path.write_bytes(b" " * (2 << 20)), "File too large")])
def test_the_log_says_why_a_file_cannot_be_read(make_daemon, make, reason):
    daemon = make_daemon().start()
    with daemon.client() as c:
        c.bench(INIT, "good")
    daemon.stop()
    bad = file_of(daemon, "bad")
    make(bad)
    daemon.start()
    assert f"cannot read benchmark session {bad}: {reason}" in daemon.log()


def saved_name(path):
    try:
        return json.loads(path.read_text())["name"]
    except (KeyError, TypeError, ValueError):
        return None


def test_a_folder_that_cannot_be_written_costs_the_file_only(make_daemon):
    daemon = make_daemon().start()
    (daemon.store / "bench").write_text("a file is in the way")
    with daemon.client() as c:
        c.bench(INIT, "A")
        put_all(c, c.namespace("n"), items("one", 10, 8 * KIB), ack=Ack.WRITTEN)
        wait_until(lambda: daemon.metric("kvcache_bench_session_save_errors_total") > 0, "it was tried")
        assert metric(c.bench(STATUS), "host_to_disk")["total_blocks"] == 10
        wait_until(lambda: "benchmark session A cannot be saved" in daemon.log(), "it is said")
        assert daemon.log().count("cannot be saved") == 1
        (daemon.store / "bench").unlink()
        c.bench(STATUS)
        wait_until(lambda: saved(daemon, "A"), "it is tried again")
        wait_until(lambda: daemon.metric("kvcache_bench_session_saves_total") > 0, "it counts")


def test_a_file_that_cannot_be_deleted_is_named_and_no_other_is_harmed(make_daemon):
    daemon = make_daemon().start()
    with daemon.client() as c:
        c.bench(INIT, "A")
        wait_until(lambda: saved(daemon, "A"), "it has a file")
        content = file_of(daemon, "A").read_bytes()
        file_of(daemon, "A").unlink()
        file_of(daemon, "A").mkdir()
        c.bench(DELETE, "A")
        wait_until(lambda: "cannot delete the file of benchmark session A: Is a directory; the session returns" in daemon.log(),
                   "the file is named")
        assert daemon.metric("kvcache_bench_session_save_errors_total") == 1 and "keeps it in memory" not in daemon.log()
        assert c.bench(LIST) == []
        file_of(daemon, "A").rmdir()
        file_of(daemon, "A").write_bytes(content)
    daemon.restart()
    with daemon.client() as c:
        assert [s["name"] for s in c.bench(LIST)] == ["A"], "as the message has it"


def test_a_store_of_sessions_alone_is_no_foreign_folder(make_daemon):
    daemon = make_daemon().start()
    with daemon.client() as c:
        c.bench(INIT, "A")
        wait_until(lambda: saved(daemon, "A"), "it has a file")
    daemon.stop()
    for f in daemon.store.iterdir():
        if f.is_file():
            f.unlink()
    daemon.start()
    with daemon.client() as c:
        assert [s["name"] for s in c.bench(LIST)] == ["A"]


def test_changing_sessions_is_for_admins(daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    with daemon.client() as c, client_as(daemon, STRANGER) as stranger:
        with refusal(Status.DENIED):
            stranger.bench(INIT, "A")
        c.bench(INIT, "A")
        assert stranger.bench(STATUS)["name"] == "A" and len(stranger.bench(LIST)) == 1
        for action in (RESET, ENABLE, DISABLE, DELETE):
            with refusal(Status.DENIED):
                stranger.bench(action, "A")
        assert c.bench(STATUS)["enabled"]


def test_a_caller_that_may_only_ask_causes_no_write(daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    with daemon.client() as c, client_as(daemon, STRANGER) as stranger:
        ns = c.namespace("n")
        c.bench(INIT, "A")
        wait_until(lambda: daemon.metric("kvcache_bench_session_saves_total") == 1, "it has a file")
        began = time.monotonic()
        for i in range(40):
            put_all(c, ns, items(f"n-{i}", 1, 4 * KIB), ack=Ack.WRITTEN)
            assert metric(stranger.bench(STATUS), "host_to_disk")["total_blocks"] == i + 1
        saves = daemon.metric("kvcache_bench_session_saves_total")
        assert saves <= 2 + (time.monotonic() - began) / 5, "it is written by the clock, not for the one that asks"


def test_messages_that_are_none_end_the_session_and_nothing_else(daemon):
    good = struct.pack("<BBHI", INIT, 1, 0, 0) + b"A"
    bad = [b"", good[:7], good + b"x", struct.pack("<BBHI", 0, 1, 0, 0) + b"A", struct.pack("<BBHI", 8, 1, 0, 0) + b"A",
           struct.pack("<BBHI", INIT, 0, 0, 0), struct.pack("<BBHI", INIT, 1, 3, 0) + b"A", struct.pack("<BBHI", STATUS, 1, 1, 0) + b"A",
           struct.pack("<BBHI", LIST, 1, 0, 0) + b"A", struct.pack("<BBHI", INIT, 1, 0, 1) + b"A",
           struct.pack("<BBHI", INIT, 65, 0, 0) + b"x" * 65, struct.pack("<BBHI", INIT, 255, 0, 0) + b"A"]
    for payload in bad:
        with daemon.client() as c, pytest.raises((kvwire.SessionEnded, ConnectionError)):
            c.call(Op.BENCH, payload, n_fds=1)
    with daemon.client() as c:
        assert c.bench(LIST) == []
