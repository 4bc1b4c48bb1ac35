# SPDX-License-Identifier: Apache-2.0
"""Announced returns: believed as far as they came true, by user; chunks needed latest leave memory first. Demote, share, and bad codes."""

import os

import pytest

import kvwire
from harness import KIB, ctl, get_all, items, key_of, put_all
from kvwire import Ack, Op, Status, Tier
from test_eviction import change
from test_hints import FINAL, RETURN, fill, hint, hinted
from test_tenants import ALICE, BOB, TENANTS, client_as

TOOL_CALL, TURN_END, DEMOTE, SHARE = 5, 6, 7, 8
AT_FIRST, OF_USER = 16, 2048  # announcements of a new user, and of any user, that may be open


@pytest.fixture
def small(make_daemon):
    return make_daemon(settings={"store.limit": "256MiB", "memory.pool": "16MiB"}).start()


def outcomes(daemon, outcome):
    return daemon.metric(f'kvcache_hint_announcements_total{{outcome="{outcome}"}}')


def put(c, ns, name, keys=4, bytes=KIB, **how):
    chain = items(name, keys, bytes)
    c.put(ns, chain, ack=Ack.WRITTEN, **how)
    return [k for k, _ in chain]


def announce(c, ns, name, seconds, then_use, **how):
    keys = put(c, ns, name, **how)
    assert hint(c, ns, keys, RETURN, seconds) == [Status.OK] * len(keys)
    if then_use:
        c.wait(c.submit_batch(Op.TOUCH, ns, keys))
    return keys


def test_a_user_whose_announcements_are_false_is_disbelieved_until_they_are_true(small):
    with small.client() as c:
        assert c.features & kvwire.FEATURE_ADVICE
        ns = c.namespace("n")
        for i in range(AT_FIRST):
            announce(c, ns, f"false-{i}", 3600, then_use=True)
        assert outcomes(small, "early") == AT_FIRST
        assert small.metric("kvcache_hint_least_belief") < 0.5
        before = hinted(small, "return")
        announce(c, ns, "more", 3600, then_use=False)
        assert hinted(small, "disbelieved") > 0 and outcomes(small, "disbelieved") > 0
        assert hinted(small, "return") == before
        for i in range(4 * AT_FIRST):
            announce(c, ns, f"true-{i}", 1, then_use=True)
        assert outcomes(small, "true") == 4 * AT_FIRST
        before = hinted(small, "return")
        announce(c, ns, "last", 60, then_use=False)
        assert hinted(small, "return") == before + 4


def test_a_new_user_is_believed_for_a_few_chains_at_a_time(small):
    with small.client() as c:
        ns = c.namespace("n")
        for i in range(AT_FIRST + 4):
            announce(c, ns, f"chain-{i}", 60, then_use=False)
        assert small.metric("kvcache_hint_open_announcements") == AT_FIRST
        assert outcomes(small, "unmeasured") == 4
        assert hinted(small, "disbelieved") == 16


def test_the_chain_that_returns_latest_leaves_memory_first(small):
    with small.client() as c:
        ns = c.namespace("n")
        for i in range(AT_FIRST):
            announce(c, ns, f"credit-{i}", 1, then_use=True)
        soon = announce(c, ns, "soon", 20, then_use=False, keys=32, bytes=32 * KIB)
        late = announce(c, ns, "late", 100000, then_use=False, keys=32, bytes=32 * KIB)
        for i in range(200):
            announce(c, ns, f"fill-{i}", 600, then_use=False, keys=8, bytes=32 * KIB)
            left = sum(bool(t & Tier.MEMORY) for t in c.exists(ns, late))
            assert all(t & Tier.MEMORY for t in c.exists(ns, soon)) or left == 0
            if left == 0:
                break
        assert left == 0
        assert all(c.exists(ns, late)), "the chunks are still on disk"


def test_reasons_of_stops_are_counted_and_shown(small):
    with small.client() as c:
        ns = c.namespace("default")
        keys = put(c, ns, "k")
        assert hint(c, ns, keys, TOOL_CALL) == [Status.OK] * 4
        assert hint(c, ns, keys + [key_of("stranger")], TURN_END) == [Status.OK] * 4 + [Status.MISS]
        assert hinted(small, "tool_call") == hinted(small, "turn_end") == 4
        assert "hint: returns within 600 s" in ctl("stat", keys[0].hex(), daemon=small, check=0).stdout
        assert hint(c, ns, keys, FINAL) == [Status.OK] * 4


def test_demote_drops_only_unused_copies_in_memory(small):
    with small.client() as c:
        ns = c.namespace("n")
        keys = put(c, ns, "k", keys=3)
        leased = c.get(ns, keys[:1])[0]
        assert hint(c, ns, keys, DEMOTE) == [Status.BUSY, Status.OK, Status.OK]
        assert [bool(t & Tier.MEMORY) for t in c.exists(ns, keys)] == [True, False, False]
        assert all(t & Tier.DISK for t in c.exists(ns, keys))
        assert (hinted(small, "demoted"), hinted(small, "demote_busy")) == (2, 1)
        assert leased is not None
        assert hint(c, ns, keys + [key_of("stranger")], SHARE) == [Status.OK] * 3 + [Status.MISS]


@pytest.mark.parametrize("code, good", [(0, True), (1, True), (16, True), (255, True), (2, False), (3, False), (15, False)])
def test_a_put_says_when_its_chain_returns(small, code, good):
    with small.client() as c, small.client() as bystander:
        ns = c.namespace("n")
        chain = items("k", 2, KIB)
        c.staging(64 * KIB)
        tag = c.submit_batch(Op.PUT, ns, c.put_entries(chain), tiers=code, ack=Ack.WRITTEN)
        if good:
            c.wait(tag)
            assert all(c.exists(ns, [k for k, _ in chain]))
            assert small.metric("kvcache_hint_open_announcements") == (code >= 16)
        else:
            with pytest.raises(kvwire.SessionEnded):
                c.wait(tag)
        bystander.ping()


def test_no_switch_of_the_policy_and_no_restart_loses_a_promised_chunk(make_daemon):
    daemon = make_daemon(settings={"eviction.policy": None, "store.limit": "256MiB", "memory.pool": "16MiB"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("eviction:\n  policy: cq\n")
    daemon.start()
    chains = [items(f"chain-{i}", 4, 32 * KIB) for i in range(AT_FIRST)]
    pairs = dict(sum(chains, []))

    def announce_all(c, ns):
        for i, chain in enumerate(chains):
            assert hint(c, ns, [k for k, _ in chain], RETURN, 1 + i) == [Status.OK] * 4
        assert daemon.metric("kvcache_hint_open_announcements") == AT_FIRST

    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, list(pairs.items()), ack=Ack.WRITTEN)
        for policy in ("lru", "cq"):
            announce_all(c, ns)
            change(daemon, policy)
            assert all(t & Tier.MEMORY for t in c.exists(ns, list(pairs)))
            fill(c, ns, policy, 100)  # evicts all from memory
            assert not any(t & Tier.MEMORY for t in c.exists(ns, list(pairs)))
            assert get_all(c, ns, list(pairs)) == pairs
    for kill in (False, True):
        with daemon.client() as c:
            announce_all(c, c.namespace("n"))
        daemon.restart(kill=kill)
        with daemon.client() as c:
            assert daemon.metric("kvcache_hint_open_announcements") == 0
            assert get_all(c, c.namespace("n"), list(pairs)) == pairs


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_a_believed_user_leaves_announcements_to_others(make_daemon):
    """The user has told the truth, and then announces a return for everything."""
    daemon = make_daemon(settings={"listen.mode": "0666", "store.limit": "256MiB"}).start()
    with client_as(daemon, ALICE) as liar, client_as(daemon, BOB) as other:
        ns = liar.namespace("n")
        for i in range(AT_FIRST):
            announce(liar, ns, f"true-{i}", 1, then_use=True)
        keys = sum((put(liar, ns, f"more-{i}", keys=700) for i in range(3)), [])
        for k in keys:
            assert hint(liar, ns, [k], RETURN, 2**32 - 1) == [Status.OK]
        assert daemon.metric("kvcache_hint_open_announcements") == OF_USER
        assert outcomes(daemon, "unmeasured") == len(keys) - OF_USER
        for i in range(100):
            assert hint(liar, ns, [key_of(f"unknown-{i}-{j}") for j in range(1000)], RETURN, 1) == [Status.MISS] * 1000
        assert daemon.metric("kvcache_hint_open_announcements") == OF_USER
        announce(other, other.namespace("of another"), "k", 60, then_use=False)
        assert daemon.metric("kvcache_hint_open_announcements") == OF_USER + 1
        assert outcomes(daemon, "unmeasured") == len(keys) - OF_USER


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_advice_reaches_no_key_of_another_tenant(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text(TENANTS)
    daemon.start()
    with client_as(daemon, ALICE) as red, client_as(daemon, BOB) as blue:
        keys = put(blue, blue.namespace("n"), "k")
        ns = red.namespace("n")
        for kind, seconds in ((RETURN, 1), (FINAL, 0), (TOOL_CALL, 0), (TURN_END, 0), (DEMOTE, 0), (SHARE, 0)):
            assert hint(red, ns, keys, kind, seconds) == [Status.MISS] * 4
        assert all(t & Tier.MEMORY for t in blue.exists(blue.namespace("n"), keys))
        assert daemon.metric("kvcache_hint_open_announcements") == 0
