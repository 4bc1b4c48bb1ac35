# SPDX-License-Identifier: Apache-2.0
"""The shared tier on a directory that two daemons share: one gets the chunks of the other, byte for byte; any fault of the directory is a miss;
and local traffic continues. The engines have tests of their own (tests/unit, tests/fleet)."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

import harness
import kvwire
from harness import KIB, MIB, bench, ctl, get_all, items, key_of, preload, put_all, value_of, wait_until
from kvwire import Ack, Flag, Status, Tier
from test_budget import SMALL, use_up
from test_hints import FINAL, PIN, RETURN, hint
from test_replay import expected_hits, trace_path, write_trace

FINGERPRINT = b"dtype=bf16\nmodel=m\n"


@pytest.fixture
def host(make_daemon, directory):
    """Provides host(...), which starts a daemon on the shared directory."""
    shared = directory / "shared"
    shared.mkdir()

    def make(start=True, config=None, env=None, **settings):
        daemon = make_daemon(settings={
            "remote.backend": "directory", "remote.path": shared, "remote.write": "all", "remote.write_rate": "0",
            "remote.generation_interval": "1s", "remote.absence_lifetime": "100ms", "remote.timeout": "2s",
            **{k.replace("__", "."): v for k, v in settings.items()}}, config=config, env=env)
        daemon.shared = shared
        return daemon.start() if start else daemon
    return make


def remote(daemon):
    return daemon.status()["remote"]


def known(daemon):
    """Waits until the daemon has read its namespaces from the shared tier, which gets ask from then on."""
    wait_until(lambda: remote(daemon)["namespaces"] > 0 and remote(daemon)["unknown_namespaces"] == 0, "its namespaces are known")


def written(daemon, n):
    """Waits until `n` chunks have been written to the shared tier, or existed there."""
    def count():
        samples = daemon.metrics()
        return sum(samples[f'kvcache_remote_puts_total{{result="{r}"}}'] for r in ("written", "existing")) >= n
    wait_until(count, lambda: f"{n} chunks are written: {remote(daemon)}")


def objects(daemon):
    """Returns the chunks in the shared directory by key."""
    return {p.name: p for p in daemon.shared.rglob("*") if p.is_file() and len(p.name) == 64}


def open_on(client, daemon, name="n", fingerprint=FINGERPRINT):
    ns = client.namespace(name, fingerprint)
    known(daemon)
    return ns


def put_on(daemon, pairs, name="n", fingerprint=FINGERPRINT, wait=True):
    with daemon.client() as c:
        ns = open_on(c, daemon, name, fingerprint)
        assert all(r.status == Status.OK for r in put_all(c, ns, pairs, ack=Ack.WRITTEN).values())
    if wait:
        written(daemon, len(pairs))


def got(client, ns, keys, **how):
    """Gets the keys. Returns (status, tier, bytes or None) of each."""
    results = client.get(ns, keys, **how)
    values = [(r.status, r.tier, r.data) for r in results]
    client.release([r.lease for r in results if r.lease])
    return values


# --- reading and writing ---

def test_R1_other_users_can_read_no_file_of_the_shared_tier_whatever_the_umask(host):
    a = host(start=False)
    a.deprive.append(lambda: os.umask(0))
    a.start()
    put_on(a, items("secret", 4, 10000))
    found = list(a.shared.rglob("*"))
    assert len(objects(a)) == 4
    assert {oct(p.stat().st_mode & 0o777) for p in found if p.is_file()} == {"0o660"}
    assert {oct(p.stat().st_mode & 0o777) for p in found if p.is_dir()} == {"0o770"}


def test_another_host_gets_what_one_has_put(host):
    a, b = host(), host()
    pairs = [pair for n in (1, 40 * KIB, 100001, 2 * MIB) for pair in items(f"of {n}", 3, n)]
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        assert got(c, ns, [k for k, _ in pairs]) == [(Status.OK, Tier.REMOTE, v) for _, v in pairs]
        assert got(c, ns, [k for k, _ in pairs]) == [(Status.OK, Tier.MEMORY, v) for _, v in pairs]
        assert got(c, ns, [key_of("not there")])[0][0] == Status.MISS
        # The chunk is also on the host's own disk, which serves it after memory has evicted it.
        wait_until(lambda: all(t & Tier.DISK for t in c.exists(ns, [k for k, _ in pairs])), "they are on disk")
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        assert got(c, ns, [k for k, _ in pairs]) == [(Status.OK, Tier.DISK, v) for _, v in pairs]
        # Gets can copy into the client's own memory.
        fresh = items("into", 3, 30 * KIB)
        put_on(a, fresh, wait=False)
        written(a, len(pairs) + len(fresh))
        c.staging()
        into = c.get_into(ns, [k for k, _ in fresh], 40 * KIB)
        assert [(r.status, r.tier, r.length) for r in into] == [(Status.OK, Tier.REMOTE, 30 * KIB)] * 3
    samples = b.metrics()
    assert samples['kvcache_gets_total{result="remote"}'] == len(pairs) + 3
    assert samples['kvcache_hits_total{tier="remote"}'] == len(pairs) + 3
    assert samples['kvcache_remote_gets_total{result="hit"}'] == len(pairs) + 3
    assert samples["kvcache_puts_total"] == 0, "no client has put anything there"
    assert remote(a)["rejected"] == remote(b)["rejected"] == 0


def test_only_reused_chunks_are_written_by_default(host):
    a, b = host(**{"remote.write": "reused"}), host(**{"remote.write": "never"})
    pairs = items("reused", 6, 40 * KIB)
    put_on(a, pairs, wait=False)
    with a.client() as c:
        ns = open_on(c, a)
        assert objects(a) == {} and remote(a)["queued"] == 0
        got(c, ns, [k for k, _ in pairs[:3]])
    written(a, 3)
    assert set(objects(a)) == {k.hex() for k, _ in pairs[:3]}
    with b.client() as c:
        ns = open_on(c, b)
        for _ in range(2):
            assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs])] == [Status.OK] * 3 + [Status.MISS] * 3
        put_all(c, ns, items("of b", 3, 40 * KIB))
        got(c, ns, [k for k, _ in items("of b", 3, 40 * KIB)])
    assert remote(b)["puts"] == 0 and len(objects(a)) == 3


def reason(daemon, name):
    return daemon.metric(f'kvcache_remote_offers_total{{reason="{name}"}}')


def fill_disk(daemon, client, ns, upto):
    """Puts chunks that are used once, until `upto` chunks have been evicted. Chunks that are to be shared are written meanwhile."""
    n = 0
    while daemon.metric("kvcache_evictions_total") < upto:
        put_all(client, ns, items(f"fill {n}", 8, 64 * KIB), ack=Ack.WRITTEN)
        wait_until(lambda: remote(daemon)["queued"] == 0 and remote(daemon)["writing_bytes"] == 0, "nothing waits to be written")
        n += 1
        assert n < 1000


def test_chunks_evicted_from_disk_before_their_next_use_are_written(host):
    """Hints decide, because nothing is known yet about which sessions return. Chunks that are used once are not written."""
    a, b = host(**{"remote.write": "reused", "store.limit": "32MiB", "memory.pool": "16MiB"}), host()
    returning, final = items("returning", 24, 64 * KIB), items("final", 24, 64 * KIB)
    with a.client() as c:
        ns = open_on(c, a)
        put_all(c, ns, returning + final, ack=Ack.WRITTEN)
        hint(c, ns, [k for k, _ in returning], RETURN, 30)
        hint(c, ns, [k for k, _ in final], FINAL)
        assert objects(a) == {}
        fill_disk(a, c, ns, 24 + 24 + 40)  # final chunks are evicted first, and offering begins with evictions
        assert not any(c.exists(ns, [k for k, _ in returning])), "they are evicted"
    assert set(objects(a)) == {k.hex() for k, _ in returning}
    assert reason(a, "evicted") == 24 and reason(a, "used_again") == reason(a, "put") == 0
    assert (remote(a)["offered_used_again"], remote(a)["offered_evicted"]) == (0, 24)
    assert "queued: 0 as they were used again, 24 as they were about to be evicted" in ctl("remote", daemon=a, check=0).stdout
    with b.client() as c:
        ns = open_on(c, b)
        assert got(c, ns, [k for k, _ in returning]) == [(Status.OK, Tier.REMOTE, v) for _, v in returning]


def test_chunks_evicted_from_memory_without_a_disk_copy_are_written(host):
    """The store refuses the chunks, because its write budget is used up, so memory has the only copies."""
    a = host(**{"remote.write": "reused", "store.write_budget": SMALL, "store.prewrite": "off", "memory.pool": "16MiB"})
    pairs = items("memory", 12, 64 * KIB)
    with a.client() as c:
        ns = open_on(c, a)
        use_up(c, ns)
        n = 0
        while a.metric("kvcache_pool_evictions_total") == 0:  # evicting these starts the reports
            put_all(c, ns, items(f"older {n}", 8, 64 * KIB), ack=Ack.ACCEPTED)
            n += 1
            assert n < 1000
        put_all(c, ns, pairs, ack=Ack.ACCEPTED)
        hint(c, ns, [k for k, _ in pairs], RETURN, 30)
        while any(c.exists(ns, [k for k, _ in pairs])):
            wait_until(lambda: remote(a)["queued"] == 0 and remote(a)["writing_bytes"] == 0, "nothing waits to be written")
            put_all(c, ns, items(f"fill {n}", 8, 64 * KIB), ack=Ack.ACCEPTED)
            n += 1
            assert n < 1000
        assert a.metric("kvcache_evictions_total") == 0
    assert set(objects(a)) == {k.hex() for k, _ in pairs} and reason(a, "evicted") == 12


def test_a_few_large_chunks_beside_many_small_ones_are_reported_in_time(host):
    """The chunks to be evicted next are offered as often as chunks of their size turn over, however many there are of other sizes."""
    a = host(**{"remote.write": "reused", "store.limit": "32MiB", "memory.pool": "16MiB"})
    returning = []
    with a.client() as c:
        ns = open_on(c, a)
        for i in range(3):
            pairs = items(f"small {i}", 500, 4 * KIB)
            put_all(c, ns, pairs, ack=Ack.WRITTEN)
            assert hint(c, ns, [k for k, _ in pairs], PIN) == [Status.OK] * 500
        for i in range(60):
            pairs = items(f"large {i}", 4, 512 * KIB)
            put_all(c, ns, pairs, ack=Ack.WRITTEN)
            returning += [k for k, _ in pairs]
            if i % 4 == 3:  # a new user is believed for 16 announcements at first
                hint(c, ns, returning[-16:], RETURN, 30)
            wait_until(lambda: remote(a)["queued"] == 0 and remote(a)["writing_bytes"] == 0, lambda: f"what is to be written is: {remote(a)}")
        evicted = [i for i, tier in enumerate(c.exists(ns, returning)) if not tier]
    written = objects(a)
    unwritten = [i for i in evicted if returning[i].hex() not in written]
    # The first chunks leave before anything is known of how their size turns over; 56 of them fill the store.
    assert len(evicted) > 150 and max(unwritten, default=0) < 56, unwritten


@pytest.mark.parametrize("write, gives_way", [("reused", False), ("never", True)])
def test_new_chunks_give_way_only_without_a_shared_tier_that_takes_them(host, write, gives_way):
    """A chunk that gave way would leave before it is offered. More chains than fit return every second here."""
    a = host(**{"remote.write": write, "store.limit": "16MiB", "memory.pool": "8MiB"})
    hot = items("hot", 384, 64 * KIB)
    with a.client() as c:
        ns = open_on(c, a)
        for n in range(5):
            end = time.monotonic() + 1.1
            wait_until(lambda: time.monotonic() > end, "the gap of the chains to count")
            get_all(c, ns, [k for k, _ in hot])
            put_all(c, ns, hot, ack=Ack.WRITTEN)
            put_all(c, ns, items(f"stream {n}", 16, 64 * KIB), ack=Ack.WRITTEN)
    yielded = [a.status()["eviction"][tier]["yielded"] > 0 for tier in ("memory", "disk")]
    assert yielded == [gives_way] * 2


@pytest.mark.parametrize("settings", [{"remote.write": "never"}, {"eviction.policy": "lru"}])
def test_evicted_chunks_without_expected_reuse_are_not_written(host, settings):
    a = host(**{"remote.write": "reused", "store.limit": "32MiB", "memory.pool": "16MiB", **settings})
    pairs = items("returning", 24, 64 * KIB)
    with a.client() as c:
        ns = open_on(c, a)
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        hint(c, ns, [k for k, _ in pairs], RETURN, 30)
        fill_disk(a, c, ns, 60)
    assert objects(a) == {} and reason(a, "evicted") == 0


def test_the_first_writer_wins(host):
    a, b = host(), host()
    pairs = items("first", 4, 40 * KIB)
    put_on(a, pairs)
    put_on(b, pairs)
    assert b.metric('kvcache_remote_puts_total{result="existing"}') == 4
    assert len(objects(a)) == 4


def test_chunks_only_on_disk_are_written_from_there(host):
    """Used again after memory has lost it."""
    a, b = host(**{"remote.write": "reused"}), host()
    pairs = items("disk", 5, 100 * KIB)
    with a.client() as c:
        ns = open_on(c, a)
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        got(c, ns, [k for k, _ in pairs])
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
    written(a, 5)
    with b.client() as c:
        assert got(c, open_on(c, b), [k for k, _ in pairs]) == [(Status.OK, Tier.REMOTE, v) for _, v in pairs]


def test_prefetch_reads_chunks_into_memory(host):
    a, b = host(), host()
    pairs = items("ahead", 8, 40 * KIB)
    put_on(a, pairs)
    keys = [k for k, _ in pairs]
    with b.client() as c:
        ns = open_on(c, b)
        assert c.prefetch(ns, keys) == [Status.OK] * 8
        wait_until(lambda: all(t & Tier.MEMORY for t in c.exists(ns, keys)), "they are in memory")
        assert got(c, ns, keys) == [(Status.OK, Tier.MEMORY, v) for _, v in pairs]
    assert b.metric("kvcache_prefetch_hits_total") == 8


def test_a_nowait_get_has_the_chunk_fetched(host):
    a, b = host(), host()
    (key, value), = items("nowait", 1, 40 * KIB)
    put_on(a, [(key, value)])
    with b.client() as c:
        ns = open_on(c, b)
        assert got(c, ns, [key], nowait=True)[0][0] == Status.MISS
        wait_until(lambda: c.exists(ns, [key]) != [Tier(0)], "it is there")
        assert got(c, ns, [key], nowait=True) == [(Status.OK, Tier.MEMORY, value)]


def test_match_returns_the_run_on_the_shared_tier(host):
    a, b = host(), host()
    pairs = items("chain", 100, 4 * KIB)
    keys = [k for k, _ in pairs]
    put_on(a, pairs[:70])
    with b.client() as c:
        ns = open_on(c, b)
        put_all(c, ns, pairs[:20])
        assert c.match(ns, keys) == 20
        wait_until(lambda: c.reach(ns, keys) == (20, 70, True), lambda: f"it is found: {c.reach(ns, keys)}")
        assert c.reach(ns, keys[:20]) == (20, 20, True)
        assert c.exists(ns, keys[69:71], flags=Flag.REMOTE)[0] in (Tier.REMOTE, Tier(0))
        assert [r.status for r in c.get(ns, keys[20:70])] == [Status.OK] * 50
        assert c.exists(ns, keys[69:70]) == [Tier.MEMORY] or c.exists(ns, keys[69:70]) == [Tier.ALL]
    samples = b.metrics()
    assert samples["kvcache_remote_searches_total"] >= 1
    assert 1 <= samples["kvcache_remote_probes_total"] <= 20


def test_many_keys_at_once_are_all_found(host):
    """The chunks exceed the memory for reads at a time, and the rest waits."""
    a, b = host(), host(**{"remote.read_inflight": "4MiB"})
    pairs = items("many", 200, 100 * KIB)
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        results = c.get(ns, [k for k, _ in pairs[:60]], timeout_ms=30000)
        assert [(r.status, r.tier) for r in results] == [(Status.OK, Tier.REMOTE)] * 60
        c.release([r.lease for r in results])
        values = get_all(c, ns, [k for k, _ in pairs], batch=60)
    assert values == dict(pairs)


def test_gets_of_one_key_are_one_read(host):
    a, b = host(), host()
    (key, value), = items("joined", 1, MIB)
    put_on(a, [(key, value)])
    clients = [b.client() for _ in range(4)]
    try:
        numbers = [open_on(c, b) for c in clients]
        entry = kvwire.GET_ENTRY.pack(key, 0, 0, 0, 0, 0)
        with b.paused():
            tags = [c.submit_batch(kvwire.Op.GET, ns, [entry]) for c, ns in zip(clients, numbers)]
        for c, tag in zip(clients, tags):
            result, = c.get_results(c.wait(tag), 1)
            assert (result.status, result.tier, result.data) == (Status.OK, Tier.REMOTE, value)
    finally:
        for c in clients:
            c.close()
    assert b.metric('kvcache_remote_gets_total{result="hit"}') == 1
    assert b.metric("kvcache_remote_shared_gets_total") == 3


def test_expired_chunks_are_not_served_from_the_shared_tier(host):
    a, b = host(), host()
    pairs = items("old", 2, 40 * KIB)
    put_on(a, pairs)
    with b.client() as c:
        ns = c.namespace("n", FINGERPRINT, lifetime_s=1)
        known(b)
        wait_until(lambda: got(c, ns, [pairs[0][0]])[0][0] == Status.MISS, "it has expired", 5)
        c.evict(ns, [k for k, _ in pairs])
        assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs])] == [Status.MISS] * 2


# --- sharing between hosts and tenants ---

def test_local_namespaces_stay_local(host):
    a, b = host(**{"remote.local_namespaces": "secret,draft-*"}), host()
    for name in ("secret", "draft-1", "open"):
        put_on(a, items(name, 2, 40 * KIB), name=name, wait=False) if name == "open" else None
    with a.client() as c:
        for name in ("secret", "draft-1"):
            put_all(c, c.namespace(name, FINGERPRINT), items(name, 2, 40 * KIB))
    written(a, 2)
    assert set(objects(a)) == {k.hex() for k, _ in items("open", 2, 40 * KIB)}
    with b.client() as c:
        for name, status in (("secret", Status.MISS), ("draft-1", Status.MISS), ("open", Status.OK)):
            ns = open_on(c, b, name)
            assert got(c, ns, [items(name, 2, 40 * KIB)[0][0]])[0][0] == status, name


def test_namespaces_with_different_fingerprints_never_share_chunks(host):
    a, b = host(), host()
    pairs = items("fp", 3, 40 * KIB)
    put_on(a, pairs)
    for name, fingerprint in (("n", b"dtype=fp8\nmodel=m\n"), ("m", FINGERPRINT)):
        with b.client() as c:
            ns = open_on(c, b, name, fingerprint) if name == "m" else open_on(c, b, "n", fingerprint)
            assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs])] == [Status.MISS] * 3


def secret_config(directory, name, text, mode=0o600):
    (directory / f"secret-{name}").write_text(text)
    os.chmod(directory / f"secret-{name}", mode)
    path = directory / f"{name}.yaml"
    path.write_text(f"tenants:\n  - name: default\n    remote_secret: {directory}/secret-{name}\n")
    return path


def test_tenants_with_another_secret_never_meet(host, directory):
    a = host(config=secret_config(directory, "a", "one secret of the tenant's\n"))
    same = host(config=secret_config(directory, "same", "one secret of the tenant's"))
    other = host(config=secret_config(directory, "other", "another secret of the tenant's"))
    none = host()
    pairs = items("secret", 3, 40 * KIB)
    put_on(a, pairs)
    for daemon, status in ((same, Status.OK), (other, Status.MISS), (none, Status.MISS)):
        with daemon.client() as c:
            ns = open_on(c, daemon)
            assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs])] == [status] * 3
        assert "secret of the tenant" not in daemon.log() + json.dumps(daemon.status())


@pytest.mark.parametrize("text,mode,says", [
    ("one secret of the tenant's", 0o644, "mode 0644 lets other users read the file: chmod 0640"),
    ("short", 0o600, "the secret is shorter than 16 bytes"),
    ("x" * 5000, 0o600, "the secret is longer than 4096 bytes")])
def test_a_secret_that_is_none_ends_the_startup(host, directory, text, mode, says):
    daemon = host(start=False, config=secret_config(directory, "bad", text, mode))
    daemon.spawn()
    assert daemon.wait_exit() != 0
    assert says in daemon.log() and (text not in daemon.log() or text == "short")


def test_settings_of_an_engine_are_checked(make_daemon, directory):
    credentials = directory / "credentials"
    credentials.write_text("aws_access_key_id = a\naws_secret_access_key = b\n")
    os.chmod(credentials, 0o644)
    s3 = {"remote.backend": "s3", "remote.endpoint": "https://localhost", "remote.bucket": "b", "remote.credentials": credentials}
    for settings, says in (
            ({"remote.backend": "directory"}, "remote.backend: directory needs remote.path, as in"),
            ({"remote.backend": "rados"}, "remote.backend: rados needs remote.pool, as in"),
            ({"remote.backend": "s3", "remote.bucket": "b"}, "remote.backend: s3 needs remote.endpoint, as in"),
            (dict(s3, **{"remote.endpoint": "localhost"}), "begins with neither https:// nor http://"),
            (s3, "mode 0644 lets other users read the file: chmod 0640"),
            ({"remote.backend": "directory", "remote.path": directory, "remote.prefix": "../up"}, "is not a prefix of object names"),
            ({"remote.backend": "tape"}, "is not one of off, directory, rados, s3")):
        daemon = make_daemon(settings=settings)
        daemon.spawn()
        assert daemon.wait_exit() != 0
        assert says in daemon.log(), says


# --- wrong objects ---

def spoil_payload(path, other):
    with open(path, "r+b") as f:
        f.seek(4096 + 1000)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))


def spoil_header(path, other):
    with open(path, "r+b") as f:
        f.seek(70)
        f.write(b"\xff\xfe")


def truncate(path, other):
    os.truncate(path, os.path.getsize(path) - 100)


def cut_header(path, other):
    os.truncate(path, 100)


def swap(path, other):
    data = other.read_bytes()
    path.unlink()
    path.write_bytes(data)


def empty(path, other):
    os.truncate(path, 0)


@pytest.mark.parametrize("spoil,reason", [(spoil_payload, "checksum"), (spoil_header, "header"), (truncate, "length"),
                                          (cut_header, "header"), (swap, "other_object"), (empty, "header")])
def test_a_wrong_object_is_a_miss_and_counted(host, spoil, reason):
    a, b = host(), host()
    pairs = items("wrong", 2, 40 * KIB)
    put_on(a, pairs)
    files = objects(a)
    bad, good = pairs
    spoil(files[bad[0].hex()], files[good[0].hex()])
    with b.client() as c:
        ns = open_on(c, b)
        assert [(s, v) for s, _, v in got(c, ns, [bad[0], good[0]])] == [(Status.MISS, None), (Status.OK, good[1])]
        # The object is deleted, and a new put of the chunk replaces it.
        wait_until(lambda: bad[0].hex() not in objects(a), "it is deleted")
        assert [s for s, _, _ in got(c, ns, [bad[0]])] == [Status.MISS]
        put_all(c, ns, [bad])
        written(b, 1)
    samples = b.metrics()
    assert samples[f'kvcache_remote_rejected_total{{reason="{reason}"}}'] == 1
    assert samples["kvcache_remote_deletes_total"] == 1
    assert samples['kvcache_misses_total{reason="never_stored"}'] >= 1


def test_an_object_that_is_not_a_file_is_a_miss(host):
    a, b = host(), host()
    pairs = items("odd", 4, 40 * KIB)
    put_on(a, pairs)
    files = [objects(a)[k.hex()] for k, _ in pairs]
    for path in files:
        path.unlink()
    os.mkfifo(files[0])
    files[1].mkdir()
    files[2].symlink_to("/etc/passwd")
    with b.client() as c:
        ns = open_on(c, b)
        assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs], timeout_ms=5000)] == [Status.MISS] * 4


# --- purges ---

def test_a_purge_of_the_shared_tier_holds_on_every_host(host):
    a, b = host(), host()
    pairs = items("purged", 5, 40 * KIB)
    keys = [k for k, _ in pairs]
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        assert [s for s, _, _ in got(c, ns, keys[:3])] == [Status.OK] * 3
    answer = ctl("purge", "n", "--remote", "--yes", daemon=a, check=0).stdout
    assert answer == ("5 chunks purged here\nThe shared tier is purged; other hosts may serve their copies for up to 1 s.\n")
    with b.client() as c:
        ns = c.namespace("n", FINGERPRINT)
        wait_until(lambda: c.match(ns, keys) == 0 and got(c, ns, keys[:1])[0][0] == Status.MISS, "b has learned of it")
        assert [s for s, _, _ in got(c, ns, keys)] == [Status.MISS] * 5
    wait_until(lambda: "purged on the shared tier by another host; 3 chunks dropped here" in b.log(), "it is in the log")
    a.restart(kill=True)
    b.restart()
    for daemon in (a, b):
        with daemon.client() as c:
            ns = open_on(c, daemon)
            assert [s for s, _, _ in got(c, ns, keys)] == [Status.MISS] * 5
    # The host uses the tier again afterwards.
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        wait_until(lambda: [s for s, _, _ in got(c, ns, keys)] == [Status.OK] * 5, "they are there again")
    assert b.metric('kvcache_remote_purges_total{by="own"}') == 0


def test_a_purge_that_a_host_has_missed_is_learned_at_its_startup(host):
    a, b = host(), host()
    pairs = items("missed", 5, 40 * KIB)
    keys = [k for k, _ in pairs]
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        got(c, ns, keys)
        wait_until(lambda: all(t & Tier.DISK for t in c.exists(ns, keys)), "they are on disk")
    b.stop()
    with a.client() as c:
        assert c.purge_remote(c.namespace("n", FINGERPRINT)).value == 1
    b.start()
    with b.client() as c:
        ns = open_on(c, b)
        wait_until(lambda: c.match(ns, keys) == 0, "none of them is found")
        assert [s for s, _, _ in got(c, ns, keys)] == [Status.MISS] * 5
    wait_until(lambda: b.metric('kvcache_remote_purges_total{by="other_host"}') >= 1, "it is counted")
    assert a.metric('kvcache_remote_purges_total{by="own"}') == 1


def test_everything_can_be_purged_there(host):
    a, b = host(**{"remote.local_namespaces": "mine"}), host()
    put_on(a, items("one", 2, 40 * KIB), "one")
    put_on(a, items("two", 2, 40 * KIB), "two", wait=False)
    written(a, 4)
    with a.client() as c:
        mine = c.namespace("mine", FINGERPRINT)
        put_all(c, mine, items("mine", 2, 40 * KIB), ack=Ack.WRITTEN)
        refused = c.purge_remote(mine, check=False)
        assert (refused.status, refused.body) == (Status.INVALID, b"the namespace is not on the shared tier: nothing was purged")
        assert c.match(mine, [k for k, _ in items("mine", 2, 40 * KIB)]) == 2
        assert c.purge_remote(everything=True).value64 == 6
    with b.client() as c:
        for name in ("one", "two"):
            ns = open_on(c, b, name)
            assert [s for s, _, _ in got(c, ns, [k for k, _ in items(name, 2, 40 * KIB)])] == [Status.MISS] * 2


def test_many_namespaces_can_be_purged_there(host):
    a = host()
    with a.client() as c, a.client() as other:
        for i in range(400):
            who = (c, other)[i % 2]  # a session has 256 open at most
            put_all(who, who.namespace(f"n{i}", FINGERPRINT), items(f"n{i}", 1, 4 * KIB))
        wait_until(lambda: remote(a)["namespaces"] == 400 and remote(a)["unknown_namespaces"] == 0, "they are known")
        assert c.purge_remote(everything=True).value64 == 400
    assert a.metric('kvcache_remote_purges_total{by="own"}') == 400


def test_a_purge_that_the_engine_refuses_says_so(host):
    a = host()
    pairs = items("refused", 3, 40 * KIB)
    put_on(a, pairs)
    shutil.rmtree(a.shared)
    with a.client() as c:
        ns = c.namespace("n", FINGERPRINT)
        refused = c.purge_remote(ns, check=False)
        assert refused.status == Status.FAILED
        assert b"purged on this host, but not on the shared tier, which may restore the chunks" in refused.body
        assert c.match(ns, [k for k, _ in pairs]) == 0
    result = ctl("purge", "n", "--remote", "--yes", daemon=a)
    assert result.returncode == 4 and "purged on this host, but not on the shared tier" in result.stderr


def test_without_a_shared_tier_there_is_nothing_to_purge_or_sweep(daemon):
    with daemon.client() as c:
        ns = c.namespace("n", FINGERPRINT)
        put_all(c, ns, items("here", 2, KIB))
        assert not c.features & kvwire.FEATURE_REMOTE
        assert c.purge_remote(ns, check=False).status == Status.INVALID
        assert c.sweep(1, check=False).status == Status.INVALID
        assert c.match(ns, [k for k, _ in items("here", 2, KIB)]) == 2
    result = ctl("purge", "n", "--remote", "--yes", daemon=daemon)
    assert result.returncode == 4 and "no shared tier (remote.backend)" in result.stderr
    assert ctl("remote", daemon=daemon, check=0).stdout == "\nShared tier\n  backend           off (remote.backend)\n"
    assert json.loads(ctl("remote", "status", "--json", daemon=daemon, check=0).stdout) == {"backend": "off"}


# --- failures of the shared tier ---

def local_traffic(daemon, prefix):
    """Checks that local puts and gets work."""
    pairs = items(prefix, 10, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n", FINGERPRINT)
        assert all(r.status == Status.OK for r in put_all(c, ns, pairs, ack=Ack.WRITTEN).values())
        assert got(c, ns, [k for k, _ in pairs]) == [(Status.OK, Tier.MEMORY, v) for _, v in pairs]


def test_a_missing_shared_directory_costs_local_traffic_nothing(host):
    a, b = host(), host()
    pairs = items("gone", 5, 40 * KIB)
    put_on(a, pairs)
    away = a.shared.with_name("away")
    with b.client() as c:
        ns = open_on(c, b)
        shutil.copytree(a.shared, away)
        shutil.rmtree(a.shared)
        local_traffic(b, "meanwhile")
        assert [s for s, _, _ in got(c, ns, [k for k, _ in pairs])] == [Status.MISS] * 5
        local_traffic(b, "and then")
        away.rename(a.shared)
        # The host uses the tier again automatically.
        wait_until(lambda: got(c, ns, [pairs[0][0]])[0][0] == Status.OK, lambda: f"it is used again: {remote(b)}", 30)
        wait_until(lambda: got(c, ns, [k for k, _ in pairs]) == [(Status.OK, tier, v) for tier, (_, v) in zip(
            [t for _, t, _ in got(c, ns, [k for k, _ in pairs])], pairs)], "all of it")


def test_a_daemon_starts_without_its_engine(host):
    a = host(start=False)
    shutil.rmtree(a.shared)
    a.start()
    local_traffic(a, "alone")
    assert a.metric("kvcache_remote_unknown_namespaces") == 1
    wait_until(lambda: sum(v for k, v in a.metrics().items() if k.startswith("kvcache_remote_errors_total")) > 0, "errors are counted")
    a.shared.mkdir()
    put_on(a, items("later", 3, 40 * KIB), wait=False)
    wait_until(lambda: len(objects(a)) > 0, lambda: f"it is used: {remote(a)}", 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_an_engine_that_is_full_is_read_on(host):
    a, b = host(start=False), host(start=False)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", a.shared], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        a.start()
        b.start()
        put_on(a, items("fits", 5, 100 * KIB))
        put_on(a, items("does not fit", 40, 100 * KIB), wait=False)
        wait_until(lambda: remote(a)["full"], lambda: f"it is full: {remote(a)}")
        health = a.status()
        assert [d["reason"] for d in health["degraded"]] == ["remote_full"]
        assert "nothing is written" in ctl("remote", daemon=a, check=0).stdout
        assert a.metric("kvcache_remote_full") == 1
        local_traffic(a, "meanwhile")
        with b.client() as c:
            assert [s for s, _, _ in got(c, open_on(c, b), [k for k, _ in items("fits", 5, 100 * KIB)])] == [Status.OK] * 5
        a.stop()
        b.stop()
    finally:
        for daemon in (a, b):
            if daemon.process is not None:
                daemon.stop()
        subprocess.run(["umount", "-l", a.shared], check=True)


@pytest.fixture
def hangs(host, directory):
    """Provides a host whose reads and writes of the shared directory wait while the switch exists, and one without such a switch."""
    switch = directory / "hang"
    env = {"LD_PRELOAD": preload("tests/daemon/hang.so"), "SHARED_SWITCH": str(switch), "HANG_SWITCH": str(directory / "none")}
    yield host(), host(env=env), switch
    switch.unlink(missing_ok=True)


@pytest.fixture
def hangs_for_long(host, directory, hangs):
    """Provides a host like the second one of `hangs`, which waits for the directory without limit."""
    return host(env=hangs[1].env, remote__timeout="600s")


def ask(client, pairs, timeout_ms):
    """Submits a get without waiting for it. Returns its tag."""
    entries = [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k, _ in pairs]
    return client.submit_batch(kvwire.Op.GET, client.namespace("n", FINGERPRINT), entries, timeout_ms=timeout_ms)


def test_a_hanging_engine_delays_only_requests_to_it(hangs, hangs_for_long):
    a, _, switch = hangs
    b, pairs = hangs_for_long, items("hung", 8, 100 * KIB)
    put_on(a, pairs)
    with b.client() as c, b.client() as waits:
        ns = open_on(c, b)
        put_all(c, ns, items("local", 5, 40 * KIB))
        switch.touch()
        tag = ask(waits, pairs, 600000)
        for i in range(50):
            (status, tier, _), = got(c, ns, [items("local", 5, 40 * KIB)[i % 5][0]])
            assert (status, tier) == (Status.OK, Tier.MEMORY)
        local_traffic(b, "meanwhile")
        wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") > 0 and b.metric("kvcache_remote_inflight_operations") > 0
                   and b.metric('kvcache_remote_inflight_bytes{way="read"}') > 0, "the shared tier is asked")
        assert not waits.answered(tag), "it hangs no longer"
        switch.unlink()
        assert [r.status for r in waits.get_results(waits.wait(tag), 8)] == [Status.OK] * 8


def test_an_engine_that_hangs_is_asked_no_more(hangs):
    a, b, switch = hangs
    pairs = items("hung", 8, 100 * KIB)
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        switch.touch()
        began = time.monotonic()
        results = c.get_results(c.wait(ask(c, pairs, 1500)), 8)
        assert [r.status for r in results] == [Status.MISS] * 8
        assert time.monotonic() - began > 1.4, "each at its deadline"
        # The failure is detected, and the tier is no longer asked.
        wait_until(lambda: got(c, ns, [pairs[0][0]], timeout_ms=50) and remote(b)["breaker"] != "closed",
                   lambda: f"the breaker opens: {remote(b)}", 20)
        assert got(c, ns, [pairs[1][0]], timeout_ms=5000)[0][0] == Status.MISS
        assert b.metric("kvcache_remote_breaker") > 0 and b.metric("kvcache_remote_breaker_trips_total") >= 1
        assert [d["reason"] for d in b.status()["degraded"]] == ["remote_offline"]
        assert "NOT IN USE" in ctl("remote", daemon=b, check=0).stdout or remote(b)["breaker"] == "half open"
        switch.unlink()
        wait_until(lambda: got(c, ns, [pairs[2][0]])[0][0] == Status.OK, lambda: f"it is used again: {remote(b)}", 30)
    assert b.metric('kvcache_remote_gets_total{result="offline"}') >= 1


def test_a_stop_does_not_wait_for_an_engine_that_hangs(hangs):
    a, b, switch = hangs
    pairs = items("stop", 4, 100 * KIB)
    put_on(a, pairs)
    with b.client() as c:
        ns = open_on(c, b)
        switch.touch()
        put_all(c, ns, items("never there", 4, 40 * KIB))
        tag = c.submit_batch(kvwire.Op.GET, ns, [kvwire.GET_ENTRY.pack(pairs[0][0], 0, 0, 0, 0, 0)], timeout_ms=60000)
        wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") == 1, "it waits")
        began = time.monotonic()
        b.stop()
        assert time.monotonic() - began < 60
        results = c.get_results(c.wait(tag), 1)
        assert results[0].status in (Status.SHUTDOWN, Status.MISS)


def test_a_purge_while_a_chunk_is_fetched_drops_it(hangs):
    a, b, switch = hangs
    pairs = items("raced", 2, 100 * KIB)
    (key, _), (ahead, _) = pairs
    put_on(a, pairs)
    with b.client() as c, b.client() as other:
        ns, number = open_on(c, b), other.namespace("n", FINGERPRINT)
        switch.touch()
        tag = c.submit_batch(kvwire.Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, 0, 0, 0)], timeout_ms=60000)
        assert other.prefetch(number, [ahead]) == [Status.OK]
        wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") == 2, "they wait")
        other.purge(number)
        assert c.get_results(c.wait(tag), 1)[0].status == Status.MISS
        switch.unlink()
        wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") == 0, "its bytes have come")
        assert c.exists(ns, [key, ahead]) == [Tier(0), Tier(0)], "they are back"


def test_a_client_that_goes_away_leaves_nothing(hangs):
    a, b, switch = hangs
    pairs = items("away", 4, 100 * KIB)
    put_on(a, pairs)
    with b.client() as c:
        open_on(c, b)
    before = b.holdings_at_rest()
    with b.client() as c:
        ns = c.namespace("n", FINGERPRINT)
        switch.touch()
        c.submit_batch(kvwire.Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k, _ in pairs], timeout_ms=60000)
        wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") == 4, "it waits")
    wait_until(lambda: b.metric('kvcache_resource_used{resource="requests"}') <= 1, "its request is over")
    assert dict(b.holdings(), fds=0) == dict(before, fds=0), "but for the engine's own files"
    switch.unlink()
    wait_until(lambda: b.metric("kvcache_remote_fetching_chunks") == 0, "its bytes have come")
    b.wait_for_holdings(before)


# --- commands ---

def test_a_sweep_makes_room(host):
    a = host()
    put_on(a, items("swept", 10, 100 * KIB))
    dry = json.loads(ctl("remote", "sweep", "--limit", "500KiB", "--dry-run", "--json", daemon=a, check=0).stdout)
    assert dry["dry_run"] and dry["seen"] == 10 and dry["deleted"] >= 5 and len(objects(a)) == 10
    done = json.loads(ctl("remote", "sweep", "--limit", "500KiB", "--json", daemon=a, check=0).stdout)
    assert done["deleted"] == dry["deleted"] == 10 - len(objects(a))
    assert sum(p.stat().st_size for p in objects(a).values()) <= 500 * KIB
    result = ctl("remote", "sweep", daemon=a)
    assert result.returncode == 2 and "needs --limit" in result.stderr
    if os.geteuid() == 0:
        text = ctl("remote", "sweep", "--limit", "0", daemon=a, check=0).stdout
        assert "deleted; 0 B left" in text and objects(a) == {}


def test_the_rate_and_the_policy_of_writing_change_with_a_reload(host, directory):
    config = directory / "kvcache.yaml"
    config.write_text("remote:\n  write_rate: 1MiB\n")
    a = host(config=config, **{"remote.write_rate": None})
    put_on(a, items("slow", 50, 100 * KIB), wait=False)
    wait_until(lambda: remote(a)["queued"] > 0, "they wait for their turn")
    samples = a.metrics()
    assert samples["kvcache_remote_queued_chunks"] > 0 and samples["kvcache_remote_queued_bytes"] > 0
    config.write_text("remote:\n  write_rate: 0\n")
    assert "remote.write_rate: 1MiB is now 0" in ctl("reload", daemon=a, check=0).stdout
    written(a, 50)
    assert a.metric('kvcache_remote_operation_duration_seconds_count{way="write"}') == 50


def test_status_shows_it(host):
    a = host()
    put_on(a, items("shown", 3, 40 * KIB))
    status = a.status()["remote"]
    assert (status["backend"], status["breaker"], status["write"]) == ("directory", "closed", "all")
    assert "shared tier       directory, in use for" in ctl("status", daemon=a, check=0).stdout
    assert "3 written" in ctl("remote", "status", daemon=a, check=0).stdout
    assert json.loads(ctl("remote", "--json", daemon=a, check=0).stdout)["puts"] == 3


# --- the main job ---

def replays(host, path, *arguments):
    """Replays the trace on A, and then on B, whose store is empty."""
    a, b = host(**{"remote.absence_lifetime": "10s"}), host(**{"remote.absence_lifetime": "10s"})
    first = json.loads(bench("replay", path, "--json", "--block-bytes", "16KiB", *arguments, daemon=a, check=0, timeout=300).stdout)
    written(a, first["blocks_put"])
    return first, json.loads(bench("replay", path, "--json", "--block-bytes", "16KiB", *arguments, daemon=b, check=0,
                                   timeout=300).stdout)


def test_a_second_host_hits_chunks_stored_by_the_first(host, directory):
    path = write_trace(directory / "trace", 60)
    asked, _, distinct = expected_hits(path)
    first, second = replays(host, path)
    assert first["blocks_put"] == distinct and first["wrong_bytes"] == second["wrong_bytes"] == 0
    assert second["blocks_hit"] >= 0.99 * asked
    assert second["blocks_hit_remote"] >= 0.99 * distinct


@pytest.mark.figures
def test_a_second_host_hits_chunks_stored_by_the_first_in_the_real_trace(host):
    path = trace_path()
    asked, _, distinct = expected_hits(path, 100)
    first, second = replays(host, path, "--requests", "100")
    assert first["blocks_put"] == distinct and first["wrong_bytes"] == second["wrong_bytes"] == 0
    assert second["blocks_hit"] >= 0.99 * asked
    assert second["blocks_hit_remote"] >= 0.99 * distinct
