# SPDX-License-Identifier: Apache-2.0
"""Events (proto/README.md 6.34): a subscriber's index is what the daemon lists, whatever happens to the daemon and to the subscriber.

follower.py keeps the index by events and snapshots alone; rings are so small here that there are gaps.
"""

import contextlib
import json
import os
import random
import signal
import struct
import subprocess

import pytest

import harness
import kvwire
from follower import Follower, History, SMALL_STORE, at_rest, listed, same
from harness import KIB, ctl, frame, items, put_all, wait_until
from kvwire import Ack, EventKind, Op, Status, Tier
from test_tenants import ALICE, BOB, TENANTS, make  # noqa: F401 - make is a fixture
from users import client_as

RING = 256 * KIB
SMALL_RING = 64 * 16  # sixteen events


@pytest.fixture
def running(make_daemon):
    def run(settings=None, **how):
        return make_daemon(settings={"events.ring": RING, "listen.http": "off", **(settings or {})}, **how).start()
    return run


def metric(daemon, name):
    return json.loads(ctl("stats", "--json", daemon=daemon, check=0).stdout)[f"kvcache_events_{name}"]


def test_each_change_of_a_tier_is_an_event(running):
    daemon = running()
    pairs = items("each", 3, 10000)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, Follower(daemon.client) as f:
        assert c.features & kvwire.FEATURE_EVENTS
        same(f, daemon)
        assert (f.gaps, f.events) == (1, 0)
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        reply = c.events(f.epoch, f.next)
        assert not reply.gap and reply.names == {1: "n"} and reply.following == reply.next == f.next + 6
        assert {(e.key, e.kind, e.tier, e.length) for e in reply.events} == {
            (k, EventKind.STORED, tier, 10000) for k in keys for tier in (Tier.MEMORY, Tier.DISK)}
        assert all(abs(e.time_ms / 1000 - os.stat(daemon.socket).st_mtime) < 60 for e in reply.events)
        same(f, daemon)
        c.evict(ns, keys[:1], tiers=Tier.MEMORY)
        at = f.next
        same(f, daemon)
        reply = c.events(f.epoch, at)
        assert [(e.key, e.kind, e.tier) for e in reply.events] == [(keys[0], EventKind.REMOVED, Tier.MEMORY)]
        assert c.value(ns, keys[0]) == pairs[0][1]
        same(f, daemon)
        c.evict(ns, keys[1:2])
        same(f, daemon)
        assert f.by_name() == {"n": {keys[0]: Tier.ALL, keys[2]: Tier.ALL}}
        assert c.purge(ns) == 2
        same(f, daemon)
        assert f.by_name() == {} and f.gaps == 1 and f.repeats == 0
        at = f.next
        c.namespace_remove("n")
        c.namespace("n")
        put_all(c, c.namespace("n"), pairs[:1], ack=Ack.WRITTEN)
        same(f, daemon)
        reply = c.events(f.epoch, at)
        assert [e.kind for e in reply.events][0] == EventKind.NAMESPACE_REMOVED and reply.names == {2: "n"}, \
            "the new namespace has another number"
        c.events(f.epoch, at, count=2)
        assert len(c.events(f.epoch, at, count=2).events) == 2


@pytest.mark.parametrize("ring", [SMALL_RING, RING], ids=["small", "large"])
def test_the_index_equals_the_list_after_any_history(running, ring):
    daemon = running({"events.ring": ring, **SMALL_STORE})
    gaps = 0
    for seed in range(4):
        with Follower(daemon.client, count=random.Random(seed).choice((1, 7, 1024))) as follower:
            history = History(daemon, random.Random(seed), follower)
            for _ in range(40):
                history.step()
            history.end()
            gaps += follower.gaps
    assert gaps > 4


@pytest.mark.repeated
@pytest.mark.limit(600)
def test_the_index_equals_the_list_after_many_histories(running):
    daemon = running({"events.ring": SMALL_RING * 8, **SMALL_STORE})
    for seed in range(100, 160):
        rng = random.Random(seed)
        with Follower(daemon.client, count=rng.choice((1, 7, 64, 1024))) as follower:
            history = History(daemon, rng, follower)
            for _ in range(rng.randrange(10, 120)):
                history.step()
            history.end()


def test_volumes_that_leave_and_return_are_seen(make_daemon, directory):
    """A chunk that was put while a volume was suspended is on two volumes later, and stays when one of them drops it."""
    daemon = make_daemon(settings={"events.ring": RING, "store.limit": "32MiB", "memory.pool": "8MiB", "store.prewrite": "off",
                                   "store.path": f"{directory / 'v0'},{directory / 'v1'}"}).start()
    pairs = items("volumes", 40, 100 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c, Follower(daemon.client) as f:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        same(f, daemon)
        ctl("device", "suspend", "0", daemon=daemon, check=0)
        same(f, daemon)
        assert 0 < len(f.by_name()["n"]) < 40 and f.gaps == 2
        c.evict(ns, keys, tiers=Tier.MEMORY)
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        same(f, daemon)
        assert len(f.by_name()["n"]) == 40
        ctl("device", "resume", "0", daemon=daemon, check=0)
        same(f, daemon)
        assert f.gaps == 3
        met = twice = 0
        for i in range(60):
            before = set(f.by_name()["n"])
            put_all(c, ns, items(f"more-{i}", 8, 100 * KIB), ack=Ack.WRITTEN)
            same(f, daemon)
            met += len(before - set(f.by_name()["n"]))
            twice = max(twice, f.repeats)
        assert met > 40 and twice > 0, "chunks left a volume, and some of them were still on the other one"
        ctl("device", "suspend", "1", daemon=daemon, check=0)
        same(f, daemon)
        ctl("device", "resume", "1", daemon=daemon, check=0)
        c.evict(ns, list(f.by_name()["n"])[:20])
        same(f, daemon)
    assert metric(daemon, "resets_total") == 4


def test_a_request_waits_for_events(running):
    daemon = running()
    with daemon.client() as c, daemon.client() as other, Follower(daemon.client) as f:
        f.catch_up()
        tag = c.ask_events(f.epoch, f.next, wait_ms=60000)
        assert not c.answered(tag)
        with pytest.raises(kvwire.Refused) as e:
            c.events(f.epoch, f.next, wait_ms=1)
        assert e.value.status == Status.BUSY
        assert metric(daemon, "waiting") == 1
        put_all(other, other.namespace("n"), items("wait", 1, 100), ack=Ack.ACCEPTED)
        reply = c.take_events(c.wait(tag))
        assert reply.events and not reply.gap
        # without events the wait ends
        at_rest(daemon)
        f.catch_up()
        reply = c.events(f.epoch, f.next, wait_ms=20)
        assert (reply.events, reply.following, reply.gap) == ([], f.next, False)
        # a gap and a wait of zero are answered at once
        assert c.events(f.epoch + 2, f.next, wait_ms=60000).gap
        assert c.events(f.epoch, f.next + 1, wait_ms=60000).gap
        assert not c.events(f.epoch, f.next).events
        # the end of the session ends the wait, and that of the daemon answers it
        c.ask_events(f.epoch, f.next, wait_ms=60000)
        tag = other.ask_events(f.epoch, f.next, wait_ms=60000)
        assert not other.answered(tag)
        c.close()
        wait_until(lambda: metric(daemon, "waiting") == 1, "the wait of the closed session ends")
        daemon.process.send_signal(signal.SIGTERM)
        with pytest.raises(kvwire.Refused) as e:
            other.wait(tag)
        assert e.value.status == Status.SHUTDOWN
        assert daemon.wait_exit() == 0


def test_a_reader_that_sleeps_finds_a_gap_and_costs_nothing(running):
    daemon = running({"events.ring": SMALL_RING})
    with daemon.client() as c, Follower(daemon.client) as f, Follower(daemon.client) as quick:
        ns = c.namespace("n")
        c.staging()
        f.catch_up()
        quick.catch_up()
        memory = daemon.holdings_at_rest()
        for i in range(4):
            put_all(c, ns, items(f"sleep-{i}", 7, 200), ack=Ack.WRITTEN)
            quick.catch_up()
        assert (quick.gaps, f.gaps) == (1, 1)
        assert daemon.holdings_at_rest() == memory
        same(f, daemon)
        same(quick, daemon)
        assert (quick.gaps, f.gaps) == (1, 2)
    assert metric(daemon, "overwritten_total") == metric(daemon, "written_total") - 16 > 0
    assert metric(daemon, "gaps_total") == 3


def test_R9_events_are_the_tenants_own(make):  # noqa: F811
    daemon = make(TENANTS, settings={"events.ring": RING, "store.limit": "64MiB"})

    def as_user(uid):
        return lambda: client_as(daemon, uid)

    with Follower(as_user(ALICE)) as red, Follower(as_user(BOB)) as blue, Follower(daemon.client) as root:
        for follower in (red, blue, root):
            follower.catch_up()
        before = {f: f.next for f in (red, blue, root)}
        with client_as(daemon, ALICE) as c:
            for i in range(3):
                put_all(c, c.namespace(f"red-{i}"), items("secret", 5, 1000), ack=Ack.WRITTEN)
        at_rest(daemon)
        same(red, daemon, as_user(ALICE))
        assert len(red.by_name()) == 3
        for follower in (blue, root):
            follower.catch_up()
            assert (follower.next, follower.events, follower.held, follower.gaps) == (before[follower], 0, {}, 1)
        for connect in (as_user(BOB), daemon.client):
            with contextlib.closing(connect()) as c:
                for cursor in (0, 1, 1 << 32, 1 << 63, 1 << 63 | 3):
                    assert not c.events(start=cursor, snapshot=True).events
                assert c.events().next == before[blue] == 1
        with client_as(daemon, BOB) as c:
            put_all(c, c.namespace("red-0"), items("own", 1, 1000), ack=Ack.WRITTEN)
        blue.catch_up()
        assert set(blue.held) == {1}, "numbers of namespaces do not tell of others'"
        with client_as(daemon, ALICE) as c:
            c.namespace_remove("red-1", purge=True)
        at = blue.next
        blue.catch_up()
        assert blue.next == at
        same(red, daemon, as_user(ALICE))


def body(epoch=0, start=0, wait_ms=0, count=1, kind=0, reserved=0):
    return struct.pack("<QQIHBB", epoch, start, wait_ms, count, kind, reserved)


@pytest.mark.parametrize("message", [
    body()[:-1], body() + b"\0", b"", body(count=0), body(count=1025), body(kind=2), body(kind=255), body(reserved=1),
    body(wait_ms=60001), body(wait_ms=2**32 - 1), body(kind=1, epoch=1), body(kind=1, wait_ms=1)])
def test_a_malformed_request_ends_its_session_alone(daemon, message):
    with daemon.client() as c, daemon.client() as other:
        c.send(frame(Op.EVENTS, message))
        with pytest.raises(kvwire.SessionEnded):
            c.receive()
        other.ping()
    with daemon.client() as c:
        c.send(frame(Op.EVENTS, body(), flags=1))
        with pytest.raises(kvwire.SessionEnded):
            c.receive()


def test_any_position_and_cursor_is_answered(running):
    daemon = running({"events.ring": SMALL_RING})
    rng = random.Random(7)
    with daemon.client() as c, Follower(daemon.client) as f:
        put_all(c, c.namespace("n" * 255), items("any", 40, 300), ack=Ack.WRITTEN)
        f.catch_up()
        edges = (0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**63 + 1, 2**63 + 2**32, 2**64 - 1)
        for number in (*edges, *(rng.getrandbits(rng.randrange(1, 65)) for _ in range(200))):
            reply = c.events(f.epoch, number, count=rng.choice((1, 3, 1024)))
            assert reply.gap == (not reply.first <= number <= reply.next)
            assert c.events(number, f.next).gap == (number != f.epoch)
            c.events(start=number, snapshot=True, count=rng.choice((1, 2, 63, 64, 65, 1024)))
        same(f, daemon)


def test_a_snapshot_has_every_chunk_whatever_its_steps(running):
    daemon = running({"memory.pool": "16MiB"})
    with daemon.client() as c:
        for name in ("a" * 255, "b" * 200, "c"):
            put_all(c, c.namespace(name), items(name[:1], 150, 100), ack=Ack.WRITTEN)
        c.evict(c.namespace("c"), [k for k, _ in items("c", 100, 100)], tiers=Tier.MEMORY)
        for count in (1, 5, 64, 100, 1024):
            with Follower(daemon.client, count=count) as f:
                same(f, daemon)
                assert sum(map(len, f.by_name().values())) == 450


def test_without_a_ring_there_are_no_events(make_daemon):
    daemon = make_daemon().start()
    with daemon.client() as c:
        assert not c.features & kvwire.FEATURE_EVENTS
        with pytest.raises(kvwire.Refused) as e:
            c.events()
        assert e.value.status == Status.DENIED and "events.ring" in e.value.text
    assert "events.ring" in ctl("events", daemon=daemon, check=4).stderr
    assert "off (events.ring)" in ctl("status", "memory", daemon=daemon, check=0).stdout
    assert daemon.status()["events"]["enabled"] is False


def printed_by(daemon, *words):
    return json.loads(ctl("events", "--json", *words, daemon=daemon, check=0).stdout)["events"]


def index_of(printed):
    """The index that the lines of `kvcachectl events --snapshot --json` make."""
    held = {}
    for e in printed:
        if e["kind"] == "gap":
            held = {}
        elif e["kind"] in ("snapshot", "stored"):
            held.setdefault((e["namespace"], e["key"]), set()).add(e["tier"])
        elif e["kind"] == "removed":
            held.get((e["namespace"], e["key"]), set()).discard(e["tier"])
        elif e["kind"] == "namespace_removed":
            held = {k: v for k, v in held.items() if k[0] != "n"}
    return {key: tiers for key, tiers in held.items() if "disk" in tiers}


def index_of_ls(daemon, *names):
    return {(name, e["key"]): set(e["tiers"]) for name in names
            for e in json.loads(ctl("ls", "-n", name, "--json", daemon=daemon, check=0).stdout)["chunks"]}


def test_kvcachectl_prints_events(running):
    daemon = running({"events.ring": SMALL_RING})
    pairs = items("printed", 6, 5000)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        at_rest(daemon)
        text = ctl("events", daemon=daemon, check=0).stdout.splitlines()
        assert len(text) == 12 and all(" stored " in line and line.endswith(" n") and "4.88 KiB" in line for line in text)
        assert sum(" memory " in line for line in text) == 6
        printed = printed_by(daemon)
        assert [e["sequence"] for e in printed] == list(range(1, 13))
        assert printed[0]["bytes"] == 5000 and printed[0]["namespace"] == "n" and printed[0]["tier"] == "memory"
        c.evict(ns, [k for k, _ in pairs[:3]])
        assert len(printed_by(daemon)) == 16, "the ring has sixteen events"
        process = harness.spawn([str(harness.CTL), "--socket", daemon.socket, "events", "--follow", "--snapshot", "--json"],
                                stdout=subprocess.PIPE, text=True)
        out = []

        def read_until(condition):
            while not condition(out):
                line = process.stdout.readline()
                assert line, "the program ended"
                out.append(json.loads(line))

        try:
            read_until(lambda out: out and out[-1]["kind"] == "snapshot_end")
            assert index_of(out) == index_of_ls(daemon, "n")
            put_all(c, ns, items("more", 2, 100), ack=Ack.WRITTEN)
            read_until(lambda out: index_of(out) == index_of_ls(daemon, "n"))
            with contextlib.ExitStack() as stopped:
                os.kill(process.pid, signal.SIGSTOP)
                stopped.callback(os.kill, process.pid, signal.SIGCONT)
                for i in range(5):
                    put_all(c, ns, items(f"gap-{i}", 7, 100), ack=Ack.WRITTEN)
            read_until(lambda out: [e["kind"] for e in out].count("snapshot_end") == 2)
            read_until(lambda out: index_of(out) == index_of_ls(daemon, "n"))
            process.send_signal(signal.SIGINT)
            assert process.wait(30 * harness.slow()) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert ctl("events", "n", daemon=daemon).returncode == 2


def test_status_and_metrics_count_events(make_daemon, directory):
    daemon = make_daemon(settings={"events.ring": 100000, "listen.http": f"unix:{directory / 'd0' / 'h'}"}).start()
    with daemon.client() as c, Follower(daemon.client) as f:
        put_all(c, c.namespace("n"), items("counted", 3, 100), ack=Ack.WRITTEN)
        f.catch_up()
        c.evict(c.namespace("n"), [items("counted", 1, 100)[0][0]])
        f.catch_up()
        assert daemon.status()["events"] == {
            "enabled": True, "ring_bytes": 65536, "waiting": 0, "written": 8, "overwritten": 0, "sent": 2, "gaps": 1,
            "resets": 0, "snapshot_entries": 6}
        assert daemon.metric("kvcache_events_written_total") == 8
    assert "64 KiB, 8 written, 0 readers waiting, 1 gaps" in ctl("status", "memory", daemon=daemon, check=0).stdout


def test_events_of_the_library_follow_the_daemon(running):
    """kvcachectl is the library's user; here its calls meet a restart of the daemon."""
    daemon = running(SMALL_STORE)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("library", 5, 1000), ack=Ack.WRITTEN)
        at_rest(daemon)
    daemon.restart(kill=True)
    printed = printed_by(daemon, "--snapshot")
    assert [e["kind"] for e in printed] == ["gap"] + ["snapshot"] * 5 + ["snapshot_end"]
    assert index_of(printed) == index_of_ls(daemon, "n")
