# SPDX-License-Identifier: Apache-2.0
"""eviction.policy changes while the daemon runs: under load, without a chunk lost, in every pool and volume. Misses say why."""

import os
import re
import threading
import time

import pytest

import kvwire
from harness import KIB, ctl, get_all, items, key_of, put_all, slow, wait_until
from kvwire import Ack, Status, Tier
from test_hints import standing
from test_tiers import flip_byte

REASONS = ("never_stored", "evicted_pool", "evicted_disk", "failed_check", "refused", "expired")


def change(daemon, policy):
    reloads = daemon.metric("kvcache_config_reloads_total")
    daemon.config.write_text(f"eviction:\n  policy: {policy}\n")
    os.kill(daemon.pid, 1)
    wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == reloads + 1, "the reload")


@pytest.fixture
def make(make_daemon):
    def make(**settings):
        daemon = make_daemon(settings={"eviction.policy": None, **settings})
        daemon.config = daemon.directory / "kvcache.yaml"
        daemon.config.write_text("eviction:\n  policy: cq\n")
        return daemon
    return make


def class_of(daemon, key, tier):
    return standing(daemon, key, tier)["class"]


def test_a_reload_changes_the_policy_and_keeps_every_chunk_in_its_order(make):
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs = items("chain", 64, 32 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        for policy in ("lru", "cq", "lru"):
            change(daemon, policy)
            assert daemon.status()["eviction"]["policy"] == policy
            assert [int(t) for t in c.exists(ns, keys)] == [int(Tier.MEMORY | Tier.DISK)] * 64
            assert get_all(c, ns, keys) == dict(pairs)
            expected = "by recency" if policy == "lru" else "used"
            for tier in ("memory", "disk"):
                assert class_of(daemon, keys[0], tier).startswith(expected)
        assert "eviction.policy: switched to lru" in daemon.log()
        # A second reload with the same policy changes nothing.
        said = daemon.log().count("eviction.policy: switched to")
        change(daemon, "lru")
        assert daemon.log().count("eviction.policy: switched to") == said
        # Chunks used last before the change are evicted last after it.
        get_all(c, ns, keys[:8])
        change(daemon, "cq")
        for i in range(400):
            c.put(ns, items(f"more-{i}", 8, 32 * KIB), ack=Ack.WRITTEN)
            here = [bool(t) for t in c.exists(ns, keys)]
            if not all(here[8:]):
                break
        assert not all(here[8:]) and all(here[:8])


def test_an_unknown_policy_changes_nothing(make):
    daemon = make().start()
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("k", 1, KIB), ack=Ack.WRITTEN)
        daemon.config.write_text("eviction:\n  policy: arc\n")
        os.kill(daemon.pid, 1)
        wait_until(lambda: "is not one of cq, lru" in daemon.log(), "the refusal")
        assert class_of(daemon, key_of("k", 0), "disk") == "used once, end of a chain"


def test_the_policy_changes_under_load(make):
    """Clients put, get and keep leases meanwhile; a store of 32 MiB evicts all the time."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    stop = threading.Event()
    rounds, problems = [0, 0], []

    def work(number):
        try:
            with daemon.client() as c:
                ns = c.namespace("load")
                while not stop.is_set():
                    pairs = items((number, rounds[number] % 200), 8, 30000)
                    put = c.put(ns, pairs, ack=Ack.WRITTEN)
                    problems.extend(r.status for r in put if r.status not in (Status.OK, Status.EXISTS))
                    leased = c.get(ns, [k for k, _ in pairs])
                    for r, (_, value) in zip(leased, pairs):
                        if r.status == Status.OK and bytes(r.data) != value:
                            problems.append("a wrong byte")
                    c.release([r.lease for r in leased if r.status == Status.OK])
                    rounds[number] += 1
        except Exception as e:  # the other thread must end, too
            problems.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    try:
        for i in range(10):
            before = list(rounds)
            change(daemon, "lru" if i % 2 == 0 else "cq")
            wait_until(lambda: problems or all(r >= b + 20 for r, b in zip(rounds, before)), "the load to go on")
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert problems == []
    assert daemon.metric("kvcache_evictions_total") > 0 and daemon.metric("kvcache_pool_evictions_total") > 0
    daemon.stop()


def test_a_volume_that_is_resumed_has_the_policy_of_now(make):
    daemon = make(**{"store.limit": "64MiB"}).start()
    pairs = items("chain", 4, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        assert c.device("suspend", 0)
        change(daemon, "lru")
        assert c.device("resume", 0)
        assert [bool(t & Tier.DISK) for t in c.exists(ns, [k for k, _ in pairs])] == [True] * 4
        assert class_of(daemon, pairs[0][0], "disk") == "by recency"
        assert class_of(daemon, pairs[0][0], "memory") == "by recency"


def misses(daemon):
    """Returns the counted misses by reason, without zeros."""
    found = {r: daemon.metric(f'kvcache_misses_total{{reason="{r}"}}') for r in REASONS}
    totals = daemon.status()["totals"]
    assert totals["misses_by_reason"] == found and totals["misses"] == sum(found.values())
    return {r: n for r, n in found.items() if n}


def missing(c, ns, pairs):
    got = get_all(c, ns, [k for k, _ in pairs])
    assert all(v is None or v == dict(pairs)[k] for k, v in got.items())
    return sum(v is None for v in got.values())


def absent(c, ns, pairs):
    """Returns the pairs that lookups do not find; lookups count no miss."""
    parts = [pairs[i:i + 256] for i in range(0, len(pairs), 256)]
    return [p for part in parts for p, tiers in zip(part, c.exists(ns, [k for k, _ in part])) if not tiers]


def test_misses_distinguish_chunks_never_stored_and_dropped(make):
    daemon = make().start()
    pairs = items("k", 8, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert misses(daemon) == {}
        assert "misses" not in ctl("status", daemon=daemon).stdout.split("Since it started")[1].replace("0 misses", "")
        assert missing(c, ns, pairs) == 8
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs])
        assert missing(c, ns, pairs) == 8
        c.exists(ns, [k for k, _ in pairs])  # a lookup is no get
    assert misses(daemon) == {"never_stored": 16}
    assert "16 never stored, or forgotten" in ctl("status", daemon=daemon).stdout


def test_metrics_show_how_long_evicted_chunks_were_unused(make):
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    assert "evicted_age_seconds" not in daemon.status()["eviction"]["disk"]
    began = time.monotonic()
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("k", 2048, 32 * KIB), ack=Ack.WRITTEN)
        took = time.monotonic() - began
        for tier, evictions in (("disk", "kvcache_evictions_total"), ("memory", "kvcache_pool_evictions_total")):
            count = daemon.metric(f'kvcache_evicted_age_seconds_count{{tier="{tier}"}}')
            assert count == daemon.metric(evictions) > 0
            assert daemon.metric(f'kvcache_evicted_age_seconds_bucket{{tier="{tier}",le="1048576.0"}}') == count
            assert 0 < daemon.metric(f'kvcache_evicted_age_seconds_sum{{tier="{tier}"}}') < count * (took * 1.2 + 0.2)
            ages = daemon.status()["eviction"][tier]["evicted_age_seconds"]
            assert 0 <= ages["p10"] <= ages["p50"] <= ages["p90"] < took * 1.2 + 0.2 and ages["p90"] > 0
    assert len(re.findall("(memory|disk) ages +a tenth of what was evicted had been unused for at most",
                          ctl("status", "eviction", daemon=daemon).stdout)) == 2


@pytest.mark.parametrize("volumes", [1, 2])
def test_chunks_evicted_from_disk_are_remembered(make_daemon, directory, volumes):
    settings = {"memory.pool": "16MiB", "store.limit": f"{32 * volumes}MiB", "listen.http": "off"}
    if volumes > 1:
        settings["store.path"] = ",".join(str(directory / name) for name in "ab")
    daemon = make_daemon(settings=settings).start()
    pairs = items("k", 4096, 32 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        evicted = daemon.metric("kvcache_evictions_total")
        absent_pairs = absent(c, ns, pairs)[-256:]
        assert evicted > 256 and len(absent_pairs) == 256
        assert missing(c, ns, absent_pairs) == 256
        assert misses(daemon) == {"evicted_disk": 256}
        # A key that is stored again is no longer remembered as evicted.
        put_all(c, ns, absent_pairs[:8], ack=Ack.WRITTEN)
        assert missing(c, ns, absent_pairs[:8]) == 0
    assert misses(daemon) == {"evicted_disk": 256}
    assert "256 evicted from disk" in ctl("status", daemon=daemon).stdout


def test_misses_distinguish_chunks_evicted_from_the_pool_alone(make):
    daemon = make(**{"memory.pool": "16MiB"}).start()
    pairs = items("k", 768, 32 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        assert c.device("suspend", 0)
        put_all(c, ns, pairs, ack=Ack.ACCEPTED)
        absent_pairs = absent(c, ns, pairs)
        assert len(absent_pairs) > 100 and missing(c, ns, absent_pairs) == len(absent_pairs)
    assert misses(daemon) == {"evicted_pool": len(absent_pairs)}


def test_a_failed_check_counts_as_a_miss_for_that_reason(make):
    daemon = make().start()
    pairs = items("k", 4, 64 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        flip_byte(daemon.store, pairs[2][1], 40000)
        assert missing(c, ns, pairs) == 1
        assert misses(daemon) == {"failed_check": 1}
        assert missing(c, ns, pairs) == 1
    assert misses(daemon) == {"failed_check": 1, "never_stored": 1}


def test_lru_remembers_nothing(make):
    daemon = make(**{"eviction.policy": "lru", "memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs = items("k", 2048, 32 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        count = missing(c, ns, pairs[:256])
    assert count == 256 and misses(daemon) == {"never_stored": 256}


def use(c, ns, pairs, hits):
    """Uses a chain as an engine does: gets its first `hits` chunks and puts the others, as parts of one chain."""
    keys = [k for k, _ in pairs]
    if hits:
        got = c.get(ns, keys[:hits], more=hits < len(keys))
        assert [r.status for r in got] == [Status.OK] * hits
        for r in got:
            if r.lease:
                c.release([r.lease])
    if hits < len(keys):
        how = {"parent": keys[hits - 1]} if hits else {}
        put = c.put(ns, pairs[hits:], ack=Ack.WRITTEN, **how)
        assert {r.status for r in put} <= {Status.OK, Status.EXISTS}


def let_pass(seconds):
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the chain to be old enough")


QUICK = "used every 10 s or faster"


def classes(daemon, key):
    return {class_of(daemon, key, tier) for tier in ("memory", "disk")}


def test_a_chain_that_returns_after_a_second_has_the_class_of_its_gap(make):
    """From the third use on, or from the second of a chunk that a later turn has put; a use right after another is no return."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs = items("chain", 8, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, pairs[:6], 0)
        use(c, ns, pairs[:6], 6)
        assert classes(daemon, pairs[0][0]) == {"used twice"}
        let_pass(1.2)
        use(c, ns, pairs[:7], 6)
        for key, _ in (pairs[0], pairs[5]):
            assert classes(daemon, key) == {QUICK}
        assert class_of(daemon, pairs[6][0], "disk") == "used once, end of a chain"
        let_pass(1.2)
        use(c, ns, pairs, 7)
        assert classes(daemon, pairs[6][0]) == {"used twice"}
        use(c, ns, pairs, 8)
        for key, _ in (pairs[6], pairs[7]):
            assert classes(daemon, key) == {QUICK}


def test_a_beginning_that_sessions_share_gives_a_chain_no_gap(make):
    """A chunk counts that is in the deeper half of the chain, no matter in how many messages the chain arrives."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    shared, one, other = items("shared", 2, KIB), items("one", 6, KIB), items("other", 6, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, shared + one, 0)
        let_pass(1.2)
        use(c, ns, shared + other, 2)
        for key, _ in (shared[0], other[0], other[4]):
            assert QUICK not in classes(daemon, key)
        c.put(ns, other[4:5], ack=Ack.WRITTEN, parent=shared[1][0])
        for _ in range(2):
            let_pass(1.2)
            use(c, ns, shared + other, 8)
        assert classes(daemon, other[0][0]) == {QUICK}
        assert QUICK not in classes(daemon, one[0][0])
        third = items("third", 2, KIB)
        put = c.put(ns, third, ack=Ack.WRITTEN, parent=shared[1][0])
        assert [r.status for r in put] == [Status.OK] * 2
        for _ in range(2):
            use(c, ns, third, 2)
        assert classes(daemon, third[0][0]) == {"used 3 times"}


def test_new_chunks_have_the_place_of_their_turn_before_the_chain_ends(make):
    """A chunk may give way before that, and must not be judged as the beginning of a new prompt."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs = items("chain", 7, KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, pairs[:2], 0)
        use(c, ns, pairs[:4], 2)
        c.release([r.lease for r in c.get(ns, keys[:4], more=True)])
        c.put(ns, pairs[4:6], ack=Ack.WRITTEN, parent=keys[3], more=True)
        assert classes(daemon, keys[4]) == classes(daemon, keys[5]) == {"used once, in a later turn"}
        c.put(ns, pairs[6:], ack=Ack.WRITTEN, parent=keys[5])
        assert classes(daemon, keys[6]) == {"used once, end of a chain"}


def test_an_evicted_chain_that_returns_has_its_gap(make):
    """The policies of both tiers remember the gap, so that its chunks need not return once more to be known."""
    daemon = make(**{"memory.pool": "8MiB", "store.limit": "16MiB"}).start()
    pairs = items("chain", 8, 64 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, pairs, 0)
        let_pass(1.2)
        use(c, ns, pairs, 8)
        put_all(c, ns, items("flood", 320, 64 * KIB), ack=Ack.WRITTEN)
        let_pass(1.2)
        present = c.match(ns, [k for k, _ in pairs])
        assert present < 4
        use(c, ns, pairs, present)
        assert class_of(daemon, pairs[6][0], "disk") == QUICK


def test_predicted_returns_are_measured(make):
    """A chain with a known gap is expected back within twice the gap: it comes in time, then not, and at last too late."""
    daemon = make(**{"memory.pool": "16MiB", "store.limit": "32MiB"}).start()
    pairs, factor = items("chain", 6, KIB), slow()  # a longer gap has a longer window

    def counted():
        returns = daemon.status()["eviction"]["returns"]
        assert returns["evicted"] == returns["prefetched"] == returns["prefetch_hits"] == 0
        return tuple(returns[name] for name in ("expected", "in_time", "missed", "late"))

    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, pairs, 0)
        assert counted() == (0, 0, 0, 0)  # one use is no gap
        let_pass(1.3 * factor)
        use(c, ns, pairs, 6)
        assert counted() == (1, 0, 0, 0)
        let_pass(1.1 * factor)
        use(c, ns, pairs, 6)
        assert counted() == (1, 1, 0, 0)
        wait_until(lambda: counted() == (0, 1, 1, 0), "the chain to be missed")
        let_pass(2.2 * factor)  # ages are rounded
        use(c, ns, pairs, 6)
        assert counted() == (1, 1, 1, 1)
        assert "1 chain expected back; 50.0 % of those before came in time" in ctl("status", "--all", daemon=daemon, check=0).stdout
    assert daemon.metric('kvcache_return_outcomes_total{outcome="in_time"}') == daemon.metric("kvcache_return_late_total") == 1


def test_a_chain_that_returns_after_its_eviction_counts_as_evicted(make):
    daemon = make(**{"memory.pool": "8MiB", "store.limit": "16MiB"}).start()
    pairs = items("chain", 8, 64 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        use(c, ns, pairs, 0)
        let_pass(1.2)
        use(c, ns, pairs, 8)
        let_pass(1.1)
        put_all(c, ns, items("flood", 320, 64 * KIB), ack=Ack.WRITTEN)
        assert c.match(ns, [k for k, _ in pairs]) == 0
        use(c, ns, pairs, 0)
        returns = daemon.status()["eviction"]["returns"]
    assert returns["evicted"] == 1 and returns["in_time"] + returns["late"] == 1


def test_new_chunks_give_way_to_chunks_that_return(make):
    """A stream of new chunks is worth less than more returning chunks than fit; every put is accepted, and a lease lasts."""
    daemon = make(**{"memory.pool": "8MiB", "store.limit": "16MiB"}).start()
    hot = items("hot", 384, 64 * KIB)
    rounds = iter(range(1000))
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, hot[:4], ack=Ack.WRITTEN)
        leased = c.get(ns, [k for k, _ in hot[:4]])

        def gave_way():
            let_pass(1.1)
            get_all(c, ns, [k for k, _ in hot])
            put = put_all(c, ns, hot, ack=Ack.WRITTEN)
            stream = put_all(c, ns, items(f"stream {next(rounds)}", 16, 64 * KIB), ack=Ack.WRITTEN)
            assert {r.status for r in put.values()} <= {Status.OK, Status.EXISTS}
            assert {r.status for r in stream.values()} == {Status.OK}
            return all(daemon.metric(f'kvcache_evict_yielded_total{{tier="{tier}"}}') for tier in ("disk", "memory"))

        wait_until(gave_way, "new chunks to give way")
        for r, (_, value) in zip(leased, hot):
            assert r.status == Status.OK and bytes(r.data) == value
        c.release([r.lease for r in leased])
        assert all(daemon.status()["eviction"][tier]["yielded"] > 0 for tier in ("memory", "disk"))
