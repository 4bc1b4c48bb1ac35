# SPDX-License-Identifier: Apache-2.0
"""Hints of clients: final chunks are evicted first, chunks that another chain continues stay, and a hint has no other effect."""

import json
import random

import pytest

import kvwire
from harness import KIB, ctl, items, key_of, put_all
from kvwire import Ack, Op, Status, Tier

FINAL, RETURN = 1, 2


def hint(c, ns, keys, kind=FINAL, seconds=0, **how):
    reply = c.wait(c.submit_batch(Op.HINT, ns, keys, ack=kind, timeout_ms=seconds, **how))
    assert len(reply.body) == 2 * len(keys)
    return [Status(int.from_bytes(reply.body[i:i + 2], "little")) for i in range(0, len(reply.body), 2)]


def fill(c, ns, name, chains, keys=8, bytes=32 * KIB):
    """Puts chains of `keys` keys, each with one message."""
    for i in range(chains):
        c.put(ns, items(f"{name}-{i}", keys, bytes), ack=Ack.WRITTEN)


@pytest.fixture
def small(make_daemon):
    return make_daemon(settings={"store.limit": "32MiB", "memory.pool": "16MiB"}).start()


def hinted(daemon, kind):
    return daemon.metric(f'kvcache_hints_total{{hint="{kind}"}}')


@pytest.mark.parametrize("ack", [Ack.ACCEPTED, Ack.WRITTEN])
def test_final_chunks_are_evicted_first_although_youngest(small, ack):
    """Chunks put before the final ones stay, even if the store has not received the final ones yet."""
    kept, final = items("kept", 64, 32 * KIB), items("final", 64, 32 * KIB)
    with small.client() as c:
        assert c.features & kvwire.FEATURE_HINT
        ns = c.namespace("n")
        c.put(ns, kept, ack=Ack.WRITTEN)
        c.put(ns, final, ack=ack)
        assert hint(c, ns, [k for k, _ in final] + [key_of("stranger")]) == [Status.OK] * 64 + [Status.MISS]
        assert hinted(small, "final") == 64
        for i in range(200):
            fill(c, ns, f"more-{i}", 1, 8)
            left = sum(bool(t) for t in c.exists(ns, [k for k, _ in final]))
            here = sum(bool(t) for t in c.exists(ns, [k for k, _ in kept]))
            assert here == 64 or left == 0, f"{left} of the final chain are there, and {64 - here} of the others are not"
            if left == 0:
                break
        assert left == 0


def test_chunks_that_another_chain_continues_are_not_final(small):
    shared, one, two = items("shared", 4, KIB), items("one", 4, KIB), items("two", 4, KIB)
    with small.client() as c:
        ns = c.namespace("n")
        c.put(ns, shared + one, ack=Ack.WRITTEN)
        c.get(ns, [k for k, _ in shared], more=True)
        c.put(ns, two, parent=shared[-1][0], ack=Ack.WRITTEN)
        keys = [k for k, _ in shared + one]
        assert hint(c, ns, keys) == [Status.OK] * 8
        assert (hinted(small, "final"), hinted(small, "shared")) == (4, 4)
        # When the other chain is final, too, no chain continues this one.
        assert hint(c, ns, [k for k, _ in two]) == [Status.OK] * 4
        assert hinted(small, "final") == 8


def test_a_hint_changes_no_byte_ends_no_lease_and_reaches_no_other_namespace(small):
    pairs = items("chain", 8, 32 * KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c, small.client() as other:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        leased = c.get(ns, keys)
        assert hint(c, ns, keys) == [Status.OK] * 8
        fill(c, ns, "more", 200)
        assert [bytes(r.data) for r in leased] == [v for _, v in pairs], "what is leased stays where it is"
        c.release([r.lease for r in leased])

        strange = other.namespace("strange")
        assert hint(other, strange, keys) == [Status.MISS] * 8, "the same keys, in another namespace"
        with pytest.raises(kvwire.Refused, match="NO_NAMESPACE"):
            hint(other, strange + 1, keys)
        assert hinted(small, "final") == 8


def test_the_hint_of_a_return_is_taken_and_counted(small):
    pairs = items("chain", 8, KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        for seconds in (1, 60, 61, 600, 601, 2**32 - 1):
            assert hint(c, ns, keys, RETURN, seconds) == [Status.OK] * 8
        assert hinted(small, "return") == 48
        assert [bytes(r.data) for r in c.get(ns, keys)] == [v for _, v in pairs]


def standings(daemon, keys, tier):
    """Returns the standing of chunks at one moment: ages in uses are estimated by the present rate, so those of two moments cannot be compared."""
    said = json.loads(ctl("stat", "--json", "-n", "n", *[key.hex() for key in keys], daemon=daemon, check=0).stdout)
    return [of_key["eviction"][tier] for of_key in said["keys"]]


def standing(daemon, key, tier):
    return standings(daemon, [key], tier)[0]


def test_stat_says_why_a_chunk_would_be_evicted(small):
    pairs, other = items("chain", 3, KIB), items("other", 1, KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        c.put(ns, other, ack=Ack.WRITTEN)
        for tier in ("memory", "disk"):
            first, last = standings(small, [keys[0], keys[2]], tier)
            assert first["class"] == "used once" and first["continued"] and first["evicted"] == "after the chunks that continue it"
            assert last["class"] == "used once, end of a chain" and last["next"] and last["evicted"] == "next"
            # Ages in uses are estimated from the time, which is the same for the touches of one millisecond.
            assert last["age_uses"] >= first["age_uses"] > 0 and not last["pinned"]
        leased = c.get(ns, keys)
        memory = standing(small, keys[2], "memory")
        assert memory["class"] == "used twice" and memory["pinned"] and "not while" in memory["evicted"]
        c.release([r.lease for r in leased])
        c.ping()
        hint(c, ns, keys, RETURN, 60)
        assert standing(small, keys[1], "disk")["class"] == "hint: returns within 60 s"
        hint(c, ns, keys)
        assert standing(small, keys[1], "disk")["class"] == "hint: final"
        assert standing(small, keys[2], "disk")["evicted"] == "next"
        text = ctl("stat", "-n", "n", keys[2].hex(), other[0][0].hex(), daemon=small, check=0).stdout
        assert "hint: final" in text and "used once, end of a chain" in text
        c.evict(ns, keys, Tier.MEMORY)
        assert "memory" not in json.loads(ctl("stat", "--json", "-n", "n", keys[0].hex(), daemon=small,
                                              check=0).stdout)["keys"][0]["eviction"]


def test_stat_under_lru_goes_by_recency(make_daemon):
    daemon = make_daemon(settings={"eviction.policy": "lru"}).start()
    pairs = items("chain", 2, KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert hint(c, ns, [pairs[0][0]]) == [Status.OK]
        assert standing(daemon, pairs[1][0], "disk")["evicted"] == "next"
        assert standing(daemon, pairs[0][0], "disk") == {
            "class": "by recency", "age_uses": 0, "worth": None, "next": False, "pinned": False, "pinned_by_client": False,
            "cost_ns_per_byte": None, "continued": False,
            "evicted": "after chunks used before it"}


@pytest.mark.parametrize("kind, seconds, how", [
    (0, 0, {}), (3, 1, {}), (4, 1, {}), (9, 0, {}), (5, 1, {}), (7, 1, {}), (8, 1, {}), (255, 1, {}), (FINAL, 1, {}), (RETURN, 0, {}), (FINAL, 0, {"tiers": 1}), (FINAL, 0, {"flags": 1}),
    (FINAL, 0, {"parent": key_of("p")}), (3, 0, {"parent": key_of("p")})])
def test_a_malformed_hint_ends_the_session(small, kind, seconds, how):
    with small.client() as c, small.client() as bystander:
        ns = c.namespace("n")
        with pytest.raises(kvwire.SessionEnded):
            hint(c, ns, [key_of("k")], kind, seconds, **how)
        bystander.ping()


def test_hints_are_given_by_kvcachectl(small):
    with small.client() as c:
        put_all(c, c.namespace("default"), items("k", 3, KIB))
    keys = [k.hex() for k, _ in items("k", 3, KIB)]
    assert ctl("hint", "final", *keys, daemon=small, check=0).stdout == "3 hinted, 0 missing\n"
    assert ctl("hint", "return", "120", keys[0], "00" * 31 + "01", daemon=small, check=1).stdout == "1 hinted, 1 missing\n"
    assert json.loads(ctl("hint", "final", *keys, "--json", daemon=small, check=0).stdout) == {"hinted": 3, "missing": 0}
    assert hinted(small, "final") == 6 and hinted(small, "return") == 1
    for wrong in (["hint"], ["hint", "final"], ["hint", "return"], ["hint", "return", "0", keys[0]], ["hint", "return", "x", keys[0]],
                  ["hint", "soon", keys[0]], ["hint", "final", "--from", "f", keys[0]]):
        assert "hint" in ctl(*wrong, daemon=small, check=2).stderr


# --- pins ---

PIN, UNPIN = 3, 4


def pinned(daemon, kind):
    return hinted(daemon, {PIN: "pinned", UNPIN: "unpinned"}.get(kind, kind))


def pinned_bytes(daemon):
    return daemon.metric('kvcache_tenant_pinned_bytes{tenant="default"}')


def test_pinned_chunks_stay_until_they_are_unpinned(small):
    pairs = items("kept", 8, 32 * KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c:
        assert c.features & 8192
        ns = c.namespace("n")
        c.put(ns, pairs + items("other", 8, 32 * KIB), ack=Ack.WRITTEN)
        assert hint(c, ns, keys + [key_of("stranger")], PIN) == [Status.OK] * 8 + [Status.MISS]
        assert (pinned(small, PIN), pinned_bytes(small)) == (8, 8 * 32 * KIB)
        assert standing(small, keys[0], "disk")["pinned_by_client"]
        assert standing(small, keys[0], "disk")["evicted"] == "not until it is unpinned"
        fill(c, ns, "more", 300)
        assert all(t & Tier.DISK for t in c.exists(ns, keys)), "more than the store holds was put since"
        assert not any(t & Tier.DISK for t in c.exists(ns, [k for k, _ in items("other", 8, 32 * KIB)]))
        assert [bytes(r.data) for r in c.get(ns, keys)] == [v for _, v in pairs]
        # A pinned chunk is removed by name or by a purge like any other.
        c.evict(ns, keys[:1])
        assert pinned_bytes(small) == 7 * 32 * KIB
        assert hint(c, ns, keys, UNPIN) == [Status.MISS] + [Status.OK] * 7
        assert (pinned(small, UNPIN), pinned_bytes(small)) == (7, 0)
        fill(c, ns, "again", 300)
        assert not any(t & Tier.DISK for t in c.exists(ns, keys))
        assert small.metric("kvcache_pinned_evictions_total") == 0


def test_a_tenant_pins_up_to_its_limit(make_daemon):
    daemon = make_daemon(settings={"store.limit": "32MiB", "memory.pool": "16MiB"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("tenants: [{name: default, pinned_bytes: 64KiB}]\n")
    daemon.start()
    pairs = items("kept", 3, 32 * KIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert hint(c, ns, keys, PIN) == [Status.OK, Status.OK, Status.QUOTA]
        assert hinted(daemon, "pin_refused") == 1
        assert daemon.metric('kvcache_tenant_max_pinned_bytes{tenant="default"}') == 64 * KIB
        said = ctl("pin", "-n", "n", *(k.hex() for k in keys), daemon=daemon, check=4)
        assert said.stdout == ("2 pinned, 0 missing, 1 not pinned: over the tenant's limit (tenants.pinned_bytes)\n")
        assert hint(c, ns, keys[:1], UNPIN) == [Status.OK]
        assert hint(c, ns, keys[1:], PIN) == [Status.OK] * 2


def test_pins_refuse_no_put(make_daemon):
    """A tenant that pins more than the store holds can still put; its own pinned chunks are then evicted."""
    daemon = make_daemon(settings={"store.limit": "32MiB", "memory.pool": "16MiB"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("tenants: [{name: default, pinned_bytes: 1TiB}]\n")
    daemon.start()
    with daemon.client() as c:
        ns = c.namespace("n")
        # One by one, because the first chunk of a batch might be evicted for the last one before it is pinned.
        pairs = items("kept", 1500, 32 * KIB)
        for key, value in pairs:
            assert c.put(ns, [(key, value)], ack=Ack.WRITTEN)[0].status == Status.OK
            assert hint(c, ns, [key], PIN) == [Status.OK]
        pairs = pairs[-8:]
        assert daemon.metric("kvcache_pinned_evictions_total") > 0
        assert 0 < pinned_bytes(daemon) <= 32 * 1024 * KIB
        assert [bytes(r.data) for r in c.get(ns, [k for k, _ in pairs])] == [v for _, v in pairs]


def test_pins_outlive_a_restart_and_the_kvcachectl_that_made_them(small):
    pairs = items("kept", 4, 32 * KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c:
        c.put(c.namespace("n"), pairs, ack=Ack.WRITTEN)
    said = ctl("pin", "--json", "-n", "n", *(k.hex() for k in keys), key_of("stranger").hex(), daemon=small, check=1)
    assert json.loads(said.stdout) == {"pinned": 4, "missing": 1, "not_yet_on_disk": 0, "over_limit": 0}
    small.restart()
    assert pinned_bytes(small) == 4 * 32 * KIB
    with small.client() as c:
        ns = c.namespace("n")
        fill(c, ns, "more", 300)
        assert [bytes(r.data) for r in c.get(ns, keys)] == [v for _, v in pairs]
    assert ctl("unpin", "-n", "n", keys[0].hex(), daemon=small).stdout == "1 unpinned, 0 missing\n"
    assert ctl("unpin", "-n", "n", keys[0].hex(), daemon=small).stdout == "1 unpinned, 0 missing\n", "twice is fine"
    small.restart()
    assert pinned_bytes(small) == 3 * 32 * KIB


def test_another_policy_keeps_the_pins(make_daemon):
    daemon = make_daemon(settings={"store.limit": "32MiB", "memory.pool": "16MiB", "eviction.policy": None})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("eviction: {policy: cq}\n")
    daemon.start()
    pairs = items("kept", 4, 32 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert hint(c, ns, [k for k, _ in pairs], PIN) == [Status.OK] * 4
        daemon.config.write_text("eviction: {policy: lru}\n")
        assert ctl("reload", daemon=daemon).returncode == 0
        assert daemon.status()["eviction"]["policy"] == "lru"
        fill(c, ns, "more", 300)
        assert all(c.exists(ns, [k for k, _ in pairs]))


# --- costs ---

def put_with_cost(c, ns, pairs, costs_us, **how):
    """Chunks whose puts say what computing them again would take."""
    c.staging() if c.staging_map is None else None
    entries = [kvwire.PUT_ENTRY.pack(*kvwire.PUT_ENTRY.unpack(e)[:3], 0, cost)
               for e, cost in zip(c.put_entries(pairs), costs_us, strict=True)]
    return c.put_results(c.wait(c.submit_batch(Op.PUT, ns, entries, **how)), len(pairs))


def cost(daemon, key, tier):
    return standing(daemon, key, tier)["cost_ns_per_byte"]


def test_a_cost_goes_with_the_chunk_to_disk_and_back_and_over_a_restart(small):
    pairs = items("k", 3, 32 * KIB)
    keys = [k for k, _ in pairs]
    with small.client() as c:
        ns = c.namespace("n")
        put_with_cost(c, ns, pairs, [0, 26, 2**32 - 1], ack=Ack.WRITTEN)
        for tier in ("memory", "disk"):
            assert [cost(small, k, tier) for k in keys] == [None, 0.8, 6.4], "26 us for 32 KiB; more than there are levels"
        # A chunk read from disk into memory keeps its cost there.
        c.evict(ns, keys, Tier.MEMORY)
        c.get(ns, keys)
        assert cost(small, keys[1], "memory") == 0.8
    small.restart()
    assert cost(small, keys[1], "disk") == 0.8
    with small.client() as c:
        assert [bytes(r.data) for r in c.get(c.namespace("n"), keys)] == [v for _, v in pairs]


@pytest.mark.figures
def test_the_more_expensive_of_two_models_keeps_more(small):
    """Chunks of both models are used equally often, but those that take twenty times as long to compute get most of the room."""
    with small.client() as c:
        ns = c.namespace("n")
        cheap, dear = items("cheap", 1200, 32 * KIB), items("dear", 1200, 32 * KIB)
        hits = {"cheap": 0, "dear": 0}
        order = random.Random(5)
        for i in range(4000):
            name, pairs, us = order.choice((("cheap", cheap, 4), ("dear", dear, 80)))
            pair = pairs[order.randrange(len(pairs))]
            if c.exists(ns, [pair[0]])[0] & Tier.DISK:
                c.touch(ns, [pair[0]])
                hits[name] += i >= 2000
            else:
                put_with_cost(c, ns, [pair], [us], ack=Ack.WRITTEN)
        assert hits["dear"] > 2 * hits["cheap"], hits
