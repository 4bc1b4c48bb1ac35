# SPDX-License-Identifier: Apache-2.0
"""Announced returns: believed as far as they came true, by user; chunks needed latest leave memory first. Demote, share, and bad codes."""

import pytest

import kvwire
from harness import KIB, ctl, items, key_of
from kvwire import Ack, Op, Status, Tier
from test_hints import FINAL, RETURN, hint, hinted

TOOL_CALL, TURN_END, DEMOTE, SHARE = 5, 6, 7, 8
AT_FIRST = 16  # announcements of a new user that may be open


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
