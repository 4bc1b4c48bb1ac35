# SPDX-License-Identifier: Apache-2.0
"""The eviction policy's knowledge, and the order in which chunks were used, across a restart: a file, its damage, and its value."""

import os
import time

import pytest

from harness import KIB, bench, get_all, items, put_all, wait_until
from kvwire import Ack, Tier
from test_hints import standing, standings
from test_replay import LONG, replay, trace_path

SAVES, ERRORS = "kvcache_eviction_saves_total", "kvcache_eviction_save_errors_total"
RESTORED = "kvcache_eviction_restored_chunks"
DAMAGED = "eviction starts without saved state"


@pytest.fixture
def make(make_daemon):
    def make(**settings):
        daemon = make_daemon(settings={"memory.pool": "16MiB", "store.limit": "32MiB", **settings})
        daemon.learned = daemon.store / "learned"
        return daemon
    return make


def classes(daemon, pairs):
    return [standing(daemon, k, "disk")["class"] for k, _ in pairs]


def fill(daemon, seed="k", n=64):
    """Puts chunks, and uses the last eight three times. By recovery alone they would be the oldest of their second."""
    pairs = items(seed, n, 32 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        for _ in range(2):
            get_all(c, ns, [k for k, _ in pairs[-8:]])
    return pairs


def check_all_there(daemon, pairs):
    with daemon.client() as c:
        assert get_all(c, c.namespace("n"), [k for k, _ in pairs]) == dict(pairs)


def test_the_order_of_use_outlives_a_restart(make):
    daemon = make().start()
    assert daemon.metric(RESTORED) == 0 and not daemon.learned.exists()
    pairs = fill(daemon)
    before = classes(daemon, pairs[-16:])
    assert len(set(before[8:])) == 1 and before[8] not in before[:8]
    daemon.restart()
    assert daemon.learned.stat().st_mode & 0o777 == 0o600
    assert daemon.metric(RESTORED) == 64 and DAMAGED not in daemon.log()
    assert classes(daemon, pairs[-16:]) == before
    check_all_there(daemon, pairs)
    daemon.stop()


@pytest.mark.parametrize("policy", ["cq", "lru"])
@pytest.mark.parametrize("volumes", [1, 2])
def test_chunks_used_last_are_not_evicted_first_after_a_restart(make, directory, policy, volumes):
    """Recovery alone would make an order of puts."""
    settings = {"eviction.policy": policy, "store.limit": f"{32 * volumes}MiB"}
    if volumes > 1:
        settings["store.path"] = ",".join(str(directory / name) for name in "ab")
    daemon = make(**settings).start()
    pairs = fill(daemon, n=512 * volumes)
    daemon.restart()
    assert daemon.metric(RESTORED) == 512 * volumes
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("later", 700 * volumes, 32 * KIB), ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        there = [bool(t) for i in range(0, len(pairs), 256) for t in c.exists(ns, [k for k, _ in pairs[i:i + 256]])]
        assert there.count(False) > 64 and all(there[-8:])
    daemon.stop()


def test_evicted_chunks_are_remembered_across_a_restart(make):
    daemon = make().start()
    pairs = items("k", 2048, 32 * KIB)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    remembered = daemon.metric('kvcache_evict_ghosts{tier="disk"}')
    assert remembered > 512
    daemon.restart()
    assert daemon.metric('kvcache_evict_ghosts{tier="disk"}') == remembered
    with daemon.client() as c:
        ns = c.namespace("n")
        absent = [p for i in range(0, 2048, 256) for p, tiers in
                  zip(pairs[i:i + 256], c.exists(ns, [k for k, _ in pairs[i:i + 256]])) if not tiers]
        assert set(get_all(c, ns, [k for k, _ in absent[:64]]).values()) == {None}
    assert daemon.metric('kvcache_misses_total{reason="evicted_disk"}') == 64
    daemon.stop()


def saved_since(daemon, saves):
    wait_until(lambda: daemon.metric(SAVES) >= saves, "it is saved", 20)


def test_a_kill_loses_only_knowledge_since_the_last_save(make):
    daemon = make(**{"eviction.save_interval": "1s"}).start()
    pairs = fill(daemon)
    # A save that began before the last use may be in progress; the one after that is complete.
    saved_since(daemon, daemon.metric(SAVES) + 1)
    with daemon.client() as c:
        get_all(c, c.namespace("n"), [pairs[0][0]])
    saved_since(daemon, daemon.metric(SAVES) + 1)
    before = classes(daemon, pairs)
    later = items("later", 16, 32 * KIB)
    daemon.learned.rename(daemon.learned.with_name("kept"))
    with daemon.client() as c:
        put_all(c, c.namespace("n"), later, ack=Ack.WRITTEN)
    daemon.kill()
    daemon.learned.with_name("kept").rename(daemon.learned)
    daemon.start()
    assert daemon.metric(RESTORED) == 64
    assert classes(daemon, pairs) == before
    # Chunks put since are younger than all of these.
    ages = [of_chunk["age_uses"] for of_chunk in standings(daemon, [k for k, _ in later + pairs], "disk")]
    assert max(ages[:len(later)]) < min(ages[len(later):])
    check_all_there(daemon, pairs + later)
    daemon.stop()


def test_nothing_is_saved_while_nothing_is_used(make):
    daemon = make(**{"eviction.save_interval": "1s"}).start()
    fill(daemon)
    saved_since(daemon, 1)
    written = daemon.learned.stat()
    began = daemon.metric("kvcache_eviction_saved_timestamp_seconds")
    assert time.time() - 60 < began <= time.time() and daemon.metric("kvcache_eviction_saved_bytes") == written.st_size
    saves = daemon.metric(SAVES)
    ticks = daemon.metric("kvcache_uptime_seconds") + 3
    wait_until(lambda: daemon.metric("kvcache_uptime_seconds") > ticks, "three intervals have passed", 20)
    assert daemon.metric(SAVES) <= saves + 1  # one more for uses during the first save
    daemon.stop()


def corrupt(path, how):
    whole = path.read_bytes()
    if how == "a byte":
        whole = whole[:5000] + bytes([whole[5000] ^ 4]) + whole[5001:]
    elif how == "cut off":
        whole = whole[:len(whole) // 2]
    elif how == "empty":
        whole = b""
    elif how == "longer":
        whole += b"x"
    elif how == "foreign":
        whole = b"{}\n" * 5000
    elif how == "version":
        whole = whole[:8] + b"\x63" + whole[9:]
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a link":
        path.with_name("elsewhere").write_bytes(whole)
        path.symlink_to("elsewhere")
    elif how == "huge":
        with open(path, "wb") as f:
            f.truncate(2**40)
    else:
        path.write_bytes(whole)


@pytest.mark.parametrize("how", ["a byte", "cut off", "empty", "longer", "foreign", "version", "a folder", "a pipe", "a link", "huge"])
def test_a_damaged_file_costs_a_line_of_the_log(make, how):
    daemon = make().start()
    pairs = fill(daemon)
    daemon.stop()
    corrupt(daemon.learned, how)
    daemon.start()
    assert daemon.log().count(DAMAGED) == 1 and f"{daemon.learned}: " in daemon.log()
    assert daemon.metric(RESTORED) == 0
    check_all_there(daemon, pairs)
    daemon.restart()
    # A damaged file is written again, unless it is replaced by something that no file can overwrite.
    assert daemon.metric(RESTORED) == (0 if how == "a folder" else 64)
    assert daemon.log().count(DAMAGED) == (2 if how == "a folder" else 1)
    check_all_there(daemon, pairs)
    daemon.stop()


def test_a_file_of_another_store_or_policy_restores_nothing(make):
    one, other = make().start(), make().start()
    fill(one, "one")
    pairs = fill(other, "other")
    one.stop()
    other.stop()
    other.learned.write_bytes(one.learned.read_bytes())
    other.start()
    assert other.metric(RESTORED) == 0 and DAMAGED not in other.log()
    check_all_there(other, pairs)
    other.stop()
    other.settings["eviction.policy"] = "lru"
    other.start()
    assert other.metric(RESTORED) == 0 and standing(other, pairs[0][0], "disk")["class"] == "by recency"
    check_all_there(other, pairs)
    other.stop()


def test_a_file_that_cannot_be_written_is_reported_once_and_tried_again(make):
    daemon = make(**{"eviction.save_interval": "1s"}).start()
    in_the_way = daemon.learned.with_name("learned.new")
    in_the_way.mkdir()
    pairs = fill(daemon)
    wait_until(lambda: daemon.metric(ERRORS) >= 2, "it is tried twice", 20)
    assert daemon.log().count("cannot save eviction state") == 1
    assert daemon.metric(SAVES) == 0 and not daemon.learned.exists()
    in_the_way.rmdir()
    saved_since(daemon, 1)
    check_all_there(daemon, pairs)
    daemon.stop()


def test_nothing_is_written_into_the_folder_of_a_suspended_volume(make, directory):
    """The volume may no longer be mounted."""
    daemon = make(**{"eviction.save_interval": "1s", "store.limit": "64MiB",
                     "store.path": ",".join(str(directory / name) for name in "ab")}).start()
    learned = directory / "a" / "learned"
    with daemon.client() as c:
        assert c.device("suspend", 0)
    pairs = fill(daemon)
    ticks = daemon.metric("kvcache_uptime_seconds") + 3
    wait_until(lambda: daemon.metric("kvcache_uptime_seconds") > ticks, "three intervals have passed", 20)
    assert daemon.metric(SAVES) == daemon.metric(ERRORS) == 0 and not learned.exists()
    with daemon.client() as c:
        assert c.device("resume", 0)
    saved_since(daemon, 1)
    assert learned.exists()
    with daemon.client() as c:
        assert c.device("suspend", 0)
    learned.unlink()
    fill(daemon, "later")
    daemon.restart()
    assert not learned.exists() and daemon.metric(RESTORED) == 0
    check_all_there(daemon, pairs)
    daemon.stop()


@pytest.fixture(scope="module")
def hits_without_a_restart():
    """Returns the hits for test_a_restart_in_the_middle_of_a_trace_costs_no_hits, computed once."""
    return []


@pytest.mark.nightly
@pytest.mark.figures
@pytest.mark.parametrize("kill", [True] + [False] * LONG)
def test_a_restart_in_the_middle_of_a_trace_costs_no_hits(make_daemon, directory, hits_without_a_restart, kill):
    """At a capacity of 5 %. Two replays of a trace differ by up to 0.2 points, so the best of three counts. Without the file, the ratio is 0.8
    points lower."""
    lines, blocks = trace_path().read_text().splitlines(True), int(182790 * 0.05)
    parts = []
    for i in range(2):
        parts.append(directory / f"half-{i}")
        parts[i].write_text("".join(lines[i * len(lines) // 2:(i + 1) * len(lines) // 2]))

    def run(restarts):
        daemon = make_daemon(settings={"store.limit": 16 * KIB * blocks, "memory.pool": "28MiB",
                                       "eviction.save_interval": "1s"}).start()
        first = replay(daemon, parts[0], "--block-bytes", "16KiB")
        if restarts:
            saved_since(daemon, daemon.metric(SAVES) + (1 if kill else 0))
            daemon.restart(kill=kill)
            assert daemon.metric(RESTORED) > 0.9 * blocks
        second = replay(daemon, parts[1], "--block-bytes", "16KiB")
        assert first["wrong_bytes"] == second["wrong_bytes"] == 0
        daemon.stop()
        return (first["blocks_hit"] + second["blocks_hit"]) / (first["blocks_asked"] + second["blocks_asked"])

    if not hits_without_a_restart:
        hits_without_a_restart.append(run(False))
    without, found = hits_without_a_restart[0], []
    for _ in range(3):
        found.append(run(True))
        if found[-1] >= without - 0.003:
            return
    pytest.fail(f"hits without a restart: {without}, with one: {found}")
