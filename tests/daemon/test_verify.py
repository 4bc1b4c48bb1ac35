# SPDX-License-Identifier: Apache-2.0
"""Damage on disk is found by the background pass, by `kvcachectl verify`, and with --store without a daemon."""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

import harness
import kvwire
from harness import KIB, MIB, ctl, items, wait_until
from kvwire import Ack, Op, Refused, Status

GOOD, DROPPED, NOT_RUN = 0, 1, 2
LENGTHS = [33, 4096, 10000, 65536, 300001, 1500003]


def fill(daemon, count=48, prefix="verify"):
    """Puts chunks of many sizes on disk. Returns (namespace, pairs)."""
    pairs = [(k, harness.value_of(k, LENGTHS[i % len(LENGTHS)])) for i, (k, _) in enumerate(items(prefix, count, 1))]
    with daemon.client() as c:
        harness.put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    return pairs


def find(daemon, value):
    """Returns (file, offset) of a chunk's bytes on disk."""
    head = value[:4096]
    for path in sorted(daemon.store.glob("segment-*")):
        data = path.read_bytes()
        at = data.find(head)
        while at >= 0 and (at % harness.PAGE or data[at:at + len(value)] != value):
            at = data.find(head, at + 1)
        if at >= 0:
            return path, at
    raise AssertionError("the chunk is in no segment")


def flip(path, offset, bit=3):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0] ^ 1 << bit
        f.seek(offset)
        f.write(bytes([byte]))
        f.flush()
        os.fsync(f.fileno())


def spoil(daemon, pairs, count, seed):
    """Flips a bit in each of `count` chunks, and one after the end of each of as many others. Returns the keys of the former."""
    rng = random.Random(seed)
    chosen = rng.sample(pairs, 2 * count)
    for key, value in chosen[:count]:
        path, at = find(daemon, value)
        flip(path, at + rng.randrange(len(value)), rng.randrange(8))
    for key, value in chosen[count:]:
        if len(value) % harness.PAGE:
            path, at = find(daemon, value)
            flip(path, at + len(value))
    return {k for k, _ in chosen[:count]}


def check_misses(daemon, pairs, bad):
    with daemon.client() as c:
        got = harness.get_all(c, c.namespace("n"), [k for k, _ in pairs])
    assert {k for k, v in got.items() if v is None} == bad
    assert all(v is None or v == dict(pairs)[k] for k, v in got.items())


def verify(*arguments, check, **how):
    return json.loads(ctl("verify", "--json", *arguments, check=check, **how).stdout)


def evict_memory(daemon, pairs):
    """Evicts the chunks from memory, so that the next get reads from disk."""
    with daemon.client() as c:
        ns = c.namespace("n")
        for i in range(0, len(pairs), 512):
            keys = [k for k, _ in pairs[i:i + 512]]
            statuses = c.evict(ns, keys, kvwire.Tier.MEMORY)
            assert set(statuses) <= {Status.OK, Status.MISS, Status.BUSY}
            only_there = [k for k, status in zip(keys, statuses) if status == Status.BUSY]
            assert not only_there or set(c.evict(ns, only_there)) == {Status.OK}


# --- a running daemon ---

def test_verify_of_a_good_store(daemon):
    pairs = fill(daemon)
    said = verify(daemon=daemon, check=GOOD)
    assert said["chunks"] == len(pairs) and said["bytes"] == sum(len(v) for _, v in pairs)
    assert said["dropped"] == said["skipped"] == 0 and said["complete"] is True
    path, = said["volumes"]
    assert path["volume"] == str(daemon.store)
    assert sum(s["chunks"] for s in path["segments"]) == len(pairs)
    text = ctl("verify", daemon=daemon, check=GOOD).stdout
    assert "48 chunks" in text and "all good" in text
    assert "0000" in ctl("verify", "-v", daemon=daemon, check=GOOD).stdout
    check_misses(daemon, pairs, set())


def test_verify_of_an_empty_store(daemon):
    assert verify(daemon=daemon, check=GOOD)["chunks"] == 0
    assert "all good" in ctl("verify", daemon=daemon, check=GOOD).stdout


def test_verify_drops_exactly_the_bad_chunks(daemon):
    pairs = fill(daemon)
    bad = spoil(daemon, pairs, 7, seed=1)
    said = verify(daemon=daemon, check=DROPPED)
    assert (said["mismatched"], said["unreadable"], said["dropped"]) == (7, 0, 7)
    assert said["chunks"] == len(pairs)
    evict_memory(daemon, pairs)
    check_misses(daemon, pairs, bad)
    metrics = daemon.metrics()
    assert metrics["kvcache_scrub_failures_total"] == metrics["kvcache_store_crc_failures_total"] == 7
    assert metrics["kvcache_scrub_chunks_total"] == len(pairs)
    assert metrics["kvcache_scrub_bytes_total"] >= sum(len(v) for _, v in pairs)
    for key in bad:
        assert key.hex() in daemon.log(), "each dropped chunk is logged"
    assert verify(daemon=daemon, check=GOOD)["chunks"] == len(pairs) - 7
    daemon.restart(kill=True)
    check_misses(daemon, pairs, bad)


def test_verify_reports_by_segment(daemon):
    pairs = fill(daemon)
    path, at = find(daemon, pairs[5][1])
    flip(path, at)
    text = ctl("verify", daemon=daemon, check=DROPPED).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert rows[0][0] == "segment"
    assert [r[0] for r in rows[1:]] == [path.name.removeprefix("segment-")]
    assert "1 did not match" in text and str(daemon.store) in text


def test_verify_runs_concurrently_with_puts_and_gets(daemon):
    """Concurrent puts, evictions and purges cause no findings."""
    pairs = fill(daemon, 60)
    client = daemon.client()
    ns = client.namespace("n")
    process = None
    try:
        for round in range(4):
            process = harness.spawn([str(harness.CTL), "--socket", daemon.socket, "verify", "--json"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            more = items(f"round {round}", 200, 65536)
            harness.put_all(client, ns, more, ack=Ack.WRITTEN)
            client.evict(ns, [k for k, _ in more[:50]])
            assert all(v == dict(pairs)[k] for k, v in harness.get_all(client, ns, [k for k, _ in pairs]).items() if v)
            out, err = process.communicate(timeout=60 * harness.slow())
            assert process.returncode == GOOD, err + out
            process = None
    finally:
        if process:
            process.kill()
            process.wait()
        client.close()


def test_only_one_path_of_the_store(daemon):
    fill(daemon, 6)
    assert verify("--volume", "0", daemon=daemon, check=GOOD)["chunks"] == 6
    assert verify("--volume", daemon.store, daemon=daemon, check=GOOD)["chunks"] == 6
    for wrong in ("1", "/nowhere", "", "-1", "x" * 5000):
        result = ctl("verify", "--volume", wrong, daemon=daemon, check=NOT_RUN)
        assert "no volume" in result.stderr


@pytest.mark.parametrize("arguments", [["x"], ["--no-such"], ["--store"], ["--volume", "0", "--store", "/tmp"],
                                       sum((["--store", f"/tmp/{i}"] for i in range(17)), [])])
def test_wrong_usage(daemon, arguments):
    result = ctl("verify", *arguments, daemon=daemon, check=NOT_RUN)
    assert result.stderr and not result.stdout


def test_no_daemon_there(directory):
    result = ctl("--socket", str(directory / "none"), "verify", check=NOT_RUN)
    assert "none" in result.stderr


def test_R9_verify_is_for_admins(daemon):
    fill(daemon, 6)
    os.chmod(daemon.socket, 0o777)
    os.chmod(daemon.directory, 0o755)
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            harness.become_stranger()
            with daemon.client() as c:
                reply = c.verify(check=False)
                os.write(write, bytes([reply.status]))
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    answer = os.read(read, 10)
    os.close(read)
    assert answer == bytes([Status.DENIED])
    assert daemon.metric("kvcache_scrub_chunks_total") == 0


def test_hostile_stretches(daemon):
    """Any place and size is answered, and only the requested range is read."""
    pairs = fill(daemon, 12)
    rng = random.Random(5)
    edges = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1]
    with daemon.client() as c:
        segments = c.verify(max_chunks=1).segments
        for _ in range(300):
            segment, slot = rng.choice(edges), rng.choice(edges)
            count = rng.choice([1, 2, 65536])
            size = rng.choice([1, 4096, 2**63, 2**64 - 1])
            v = c.verify(0, segment, slot, count, size)
            assert v.chunks <= min(count, len(pairs)) and v.mismatched == v.unreadable == v.skipped == 0
            assert v.segments >= segments and v.paths == 1 and v.gave_up == 0
            assert v.next_segment <= max(segment, v.segments)
        for path in edges[1:]:
            with pytest.raises(Refused) as refused:
                c.verify(path)
            assert refused.value.status == Status.INVALID
        assert c.verify_volume().chunks == len(pairs)


def test_concurrent_verifies_are_served_or_busy_and_survive_disconnects(daemon):
    """Requests are served or refused as BUSY; those of a client that hangs up end without trace."""
    pairs = fill(daemon)
    body = struct.pack("<IIIIQ", 0, 0, 0, 4096, 16 << 20)
    clients = [daemon.client(name=f"v{i}") for i in range(4)]
    try:
        tags = [(c, c.submit(Op.VERIFY, body)) for _ in range(32) for c in clients]
        statuses = [c.wait(tag, check=False).status for c, tag in tags[:64]]
        assert set(statuses) <= {Status.OK, Status.BUSY} and Status.OK in statuses
    finally:
        for c in clients:
            c.close()
    assert verify(daemon=daemon, check=GOOD)["chunks"] == len(pairs)
    wait_until(lambda: daemon.status()["sessions"]["connections"] == 1, "the others have ended")


# --- a store of several volumes ---

@pytest.fixture
def two_volumes(make_daemon, directory):
    """Provides a daemon with two volumes, and chunks on both: (daemon, paths, pairs)."""
    paths = [directory / "a", directory / "b"]
    daemon = make_daemon(settings={"store.path": ",".join(map(str, paths)), "store.limit": "320MiB"}).start()
    pairs = fill(daemon, 60)
    return daemon, paths, pairs


def find_in(paths, value):
    for path in paths:
        class Holder:
            store = path
        try:
            return find(Holder, value)
        except AssertionError:
            pass
    raise AssertionError("the chunk is on no volume")


def test_verify_of_several_paths(two_volumes):
    daemon, paths, pairs = two_volumes
    said = verify(daemon=daemon, check=GOOD)
    assert [p["volume"] for p in said["volumes"]] == [str(p) for p in paths]
    assert all(p["chunks"] > 0 for p in said["volumes"]) and said["chunks"] == len(pairs)
    key, value = pairs[7]
    file, at = find_in(paths, value)
    flip(file, at + 100)
    n = paths.index(file.parent)
    assert verify("--volume", paths[1 - n], daemon=daemon, check=GOOD)["chunks"] == said["volumes"][1 - n]["chunks"]
    said = verify(daemon=daemon, check=DROPPED)
    assert [p["mismatched"] for p in said["volumes"]] == [int(i == n) for i in range(2)]
    evict_memory(daemon, pairs)
    check_misses(daemon, pairs, {key})


def test_offline_of_several_paths(two_volumes):
    """Verifies each volume alone, or all in one run; afterwards they are one store as before."""
    daemon, paths, pairs = two_volumes
    daemon.stop()
    bad = set()
    for key, value in (pairs[3], pairs[4], pairs[20]):
        file, at = find_in(paths, value)
        flip(file, at)
        bad.add(key)
    whole = verify("--store", paths[0], "--store", paths[1], check=DROPPED)
    assert whole["chunks"] == len(pairs) and whole["mismatched"] == 3
    assert {f["key"] for p in whole["volumes"] for f in p.get("findings", [])} == {k.hex() for k in bad}
    alone = [verify("--store", p, check=GOOD)["chunks"] for p in paths]
    assert min(alone) > 0 and sum(alone) == len(pairs) - 3
    daemon.start()
    assert daemon.status()["store"]["clean_start"] is True
    check_misses(daemon, pairs, bad)


# --- in the background ---

@pytest.fixture
def scrubbed(make_daemon):
    return make_daemon(settings={"store.scrub_interval": "1s", "store.scrub_rate": "1GiB"}).start()


def test_the_background_pass_finds_damage_in_unused_chunks(scrubbed):
    pairs = fill(scrubbed)
    bad = spoil(scrubbed, pairs, 5, seed=2)
    wait_until(lambda: scrubbed.metric("kvcache_scrub_failures_total") == 5, "the pass finds them", 30)
    before = scrubbed.metric("kvcache_scrub_passes_total")
    wait_until(lambda: scrubbed.metric("kvcache_scrub_passes_total") >= before + 1, "passes end", 30)
    metrics = scrubbed.metrics()
    assert metrics["kvcache_scrub_last_pass_timestamp_seconds"] > 1.7e9
    assert 0 <= metrics["kvcache_scrub_progress_ratio"] <= 1
    scrub = scrubbed.status()["store"]["scrub"]
    assert scrub["failures"] == 5 and scrub["passes"] >= 1 and scrub["interval_seconds"] == 1
    assert re.search(r"scrubbed +[\d,]+ chunks, 5 dropped", ctl("status", daemon=scrubbed, check=0).stdout)
    evict_memory(scrubbed, pairs)
    check_misses(scrubbed, pairs, bad)


def test_the_background_pass_keeps_its_rate_and_reports_progress(make_daemon):
    rate = 4 * MIB
    daemon = make_daemon(settings={"store.scrub_interval": "1s", "store.scrub_rate": rate}).start()
    fill(daemon)
    began = time.monotonic()
    before = daemon.metric("kvcache_scrub_bytes_total")
    wait_until(lambda: daemon.metric("kvcache_scrub_progress_ratio") > 0, "it gets on", 30)
    took_at_most = time.monotonic() - began
    assert daemon.metric("kvcache_scrub_bytes_total") - before <= rate * took_at_most + 2 * MIB
    scrub = daemon.status()["store"]["scrub"]
    assert scrub["running"] is True and 0 < scrub["segments_done"] < scrub["segments"]
    assert re.search(r"scrub +4 MiB/s, every 1.0 s; now at \d+", ctl("status", "store", daemon=daemon, check=0).stdout)


def test_the_background_pass_can_be_switched_off_and_on(make_daemon, directory):
    config = directory / "c.yaml"
    config.write_text("store:\n  scrub_rate: 0\n  scrub_interval: 1s\n")
    daemon = make_daemon(config=config).start()
    pairs = fill(daemon, 12)
    status = daemon.status()["store"]["scrub"]
    assert status["rate_bytes"] == 0 and status["passes"] == 0 and status["bytes"] == 0
    config.write_text("store:\n  scrub_rate: 1GiB\n  scrub_interval: 1s\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("kvcache_scrub_chunks_total") >= len(pairs), "it begins", 30)
    config.write_text("store:\n  scrub_rate: 0\n  scrub_interval: 1s\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.status()["store"]["scrub"]["rate_bytes"] == 0, "it is off")
    passes = daemon.metric("kvcache_scrub_passes_total")
    verify(daemon=daemon, check=GOOD)
    assert daemon.metric("kvcache_scrub_passes_total") == passes


# --- without a daemon ---

@pytest.fixture
def stopped(daemon):
    """Provides a stopped daemon with a full store: (daemon, pairs)."""
    pairs = fill(daemon)
    daemon.stop()
    return daemon, pairs


def listing(directory):
    return {p.name: (p.stat().st_size, p.stat().st_uid) for p in directory.iterdir()}


def test_offline_of_a_good_store(stopped):
    daemon, pairs = stopped
    before = listing(daemon.store)
    said = verify("--store", daemon.store, check=GOOD)
    assert said["chunks"] == len(pairs) and said["dropped"] == 0
    assert said["volumes"][0]["chunks_found"] == len(pairs) and said["volumes"][0]["clean"] is True
    assert "all good" in ctl("verify", "--store", daemon.store, check=GOOD).stdout
    assert listing(daemon.store) == before, "verifying made or changed files"
    daemon.start()
    assert daemon.status()["store"]["clean_start"] is True
    check_misses(daemon, pairs, set())


def test_offline_finds_exactly_the_keys_that_are_bad(stopped):
    daemon, pairs = stopped
    bad = spoil(daemon, pairs, 9, seed=3)
    said = verify("--store", daemon.store, check=DROPPED)
    path, = said["volumes"]
    assert {f["key"] for f in path["findings"]} == {k.hex() for k in bad}
    assert {f["namespace"] for f in path["findings"]} == {"n"}
    assert said["mismatched"] == 9
    assert verify("--store", daemon.store, check=GOOD)["chunks"] == len(pairs) - 9
    daemon.start()
    check_misses(daemon, pairs, bad)


def test_offline_prints_the_keys(stopped):
    daemon, pairs = stopped
    bad = spoil(daemon, pairs, 3, seed=4)
    text = ctl("verify", "--store", daemon.store, check=DROPPED).stdout
    assert {line.split()[1] for line in text.splitlines() if line.startswith("dropped:")} == {k.hex() for k in bad}
    assert "3 did not match" in text


def test_offline_after_a_kill(daemon):
    pairs = fill(daemon)
    daemon.kill()
    said = verify("--store", daemon.store, check=GOOD)
    assert said["chunks"] == len(pairs) and said["volumes"][0]["clean"] is False
    assert "not closed cleanly" not in ctl("verify", "--store", daemon.store, check=GOOD).stdout
    daemon.start()
    check_misses(daemon, pairs, set())


def test_offline_verify_reports_entries_dropped_by_recovery(stopped):
    """A damaged table page costs the entries it held, and is reported."""
    daemon, pairs = stopped
    table = daemon.store / "table"
    data = bytearray(table.read_bytes())
    pages = [i for i in range(0, len(data), harness.PAGE) if any(data[i:i + harness.PAGE])]
    data[pages[0] + 200] ^= 1
    table.write_bytes(data)
    text = ctl("verify", "--store", daemon.store, check=DROPPED).stdout
    assert "1 table page is damaged: chunks that were recorded only there are lost" in text
    assert text.splitlines()[-1].endswith(": 1 table page damaged") and "all good" not in text
    table.write_bytes(data)
    said = verify("--store", daemon.store, check=DROPPED)
    path, = said["volumes"]
    assert path["damaged_table_pages"] == 1 and said["complete"] is True
    assert said["chunks"] == path["chunks_found"] < len(pairs)
    daemon.start()
    with daemon.client() as c:
        got = harness.get_all(c, c.namespace("n"), [k for k, _ in pairs])
    assert sum(v is not None for v in got.values()) == said["chunks"]


def test_offline_of_a_store_in_use(daemon):
    fill(daemon, 6)
    result = ctl("verify", "--store", daemon.store, check=NOT_RUN)
    assert "a daemon or another kvcachectl verify has this store open" in result.stderr and "leave out --store" in result.stderr
    with open("/proc/locks") as f:  # some file systems show other numbers there
        if f":{(daemon.store / 'LOCK').stat().st_ino} " in f.read():
            assert f"process {daemon.pid}" in result.stderr
    assert verify(daemon=daemon, check=GOOD)["chunks"] == 6


def test_offline_verify_refuses_a_directory_without_a_store(stopped, directory):
    daemon, _ = stopped
    empty = directory / "empty"
    empty.mkdir()
    file = directory / "file"
    file.write_text("x")
    foreign = directory / "foreign"
    foreign.mkdir()
    (foreign / "superblock").write_bytes(os.urandom(16384))
    cases = [(directory / "missing", "No such file"), (empty, "not a kvcache store"), (file, "not a directory"),
             (foreign, "not a kvcache store"), ("", "No such file"), ("x" * 5000, "too long")]
    for path, word in cases:
        result = ctl("verify", "--store", path, check=NOT_RUN)
        assert word in result.stderr, result.stderr
    assert list(empty.iterdir()) == [], "it made a store of an empty directory"
    # A store that cannot be verified does not prevent others from being verified, before or after it; nothing is called good.
    for stores in ([daemon.store, empty], [empty, daemon.store]):
        result = ctl("verify", *[word for store in stores for word in ("--store", store)], check=NOT_RUN)
        assert "48 chunks" in result.stdout and "nothing bad so far" in result.stdout and str(empty) in result.stderr


@pytest.mark.parametrize("offset, word", [(12, "version"), (40 - 8, "incompat")])
def test_offline_of_another_format(stopped, offset, word):
    """A version or a feature that this build does not know, with a correct CRC in all four copies, is refused."""
    daemon, _ = stopped
    path = daemon.store / "superblock"
    data = bytearray(path.read_bytes())
    for copy in range(0, len(data), harness.PAGE):
        struct.pack_into("<I", data, copy + offset, 99)
        struct.pack_into("<I", data, copy + 8, kvwire.crc32c(bytes(data[copy + 12:copy + harness.PAGE])))
    path.write_bytes(data)
    result = ctl("verify", "--store", daemon.store, check=NOT_RUN)
    assert word in result.stderr


def test_offline_of_a_damaged_superblock(stopped):
    daemon, pairs = stopped
    path = daemon.store / "superblock"
    data = bytearray(path.read_bytes())
    for copy in range(3):
        data[copy * harness.PAGE + 60] ^= 1
    path.write_bytes(data)
    assert verify("--store", daemon.store, check=GOOD)["chunks"] == len(pairs)
    data = bytearray(path.read_bytes())
    for copy in range(4):
        data[copy * harness.PAGE + 60] ^= 1
    path.write_bytes(data)
    assert "none of its four copies" in ctl("verify", "--store", daemon.store, check=NOT_RUN).stderr


def test_offline_keeps_files_the_owners(make_daemon):
    """root can verify another user's store, whose files stay that user's."""
    if os.geteuid() != 0:
        pytest.skip("needs root to have a store of another user")
    daemon = make_daemon(unprivileged=True).start()
    pairs = fill(daemon)
    daemon.stop()
    spoil(daemon, pairs, 2, seed=6)
    verify("--store", daemon.store, check=DROPPED)
    assert {p.stat().st_uid for p in daemon.store.iterdir()} == {harness.STRANGER}
    daemon.start()


def test_offline_of_a_copy_with_missing_segments(stopped, directory):
    """A data file that is missing, or short, costs the chunks in it, and is reported until a daemon has reported it."""
    daemon, pairs = stopped
    copy = directory / "copy"
    shutil.copytree(daemon.store, copy)
    first, _ = find(daemon, pairs[0][1])
    os.truncate(copy / first.name, 8192)
    said = verify("--store", copy, check=DROPPED)
    assert said["chunks"] < len(pairs)
    assert said["volumes"][0]["lost_files"] == 1 and said["volumes"][0]["lost_chunks"] == len(pairs) - said["chunks"]
    assert verify("--store", daemon.store, "--store", copy, check=DROPPED)["chunks"] == len(pairs) + said["chunks"]
