# SPDX-License-Identifier: Apache-2.0
"""Chunks of one key in the namespaces of several shards leave a tier together."""

import pytest

from harness import KIB, ctl, get_all, items, put_all
from kvwire import Ack, Tier

LIMITS = {"memory.pool": "16MiB", "store.limit": "24MiB"}
SHARDS = 4
KEYS = 32
CHUNK = 32 * KIB


def whole_and_part(c, namespaces, keys, tier):
    """Returns how many keys have all their shards in the tier, and how many have some of them."""
    found = [[bool(t & tier) for t in c.exists(ns, keys)] for ns in namespaces]
    shards = [sum(of) for of in zip(*found)]
    return shards.count(len(namespaces)), sum(0 < n < len(namespaces) for n in shards)


@pytest.mark.parametrize("policy", ["lru", "cq"])
def test_shards_of_a_key_leave_both_tiers_together(make_daemon, policy):
    daemon = make_daemon(settings={**LIMITS, "eviction.policy": policy}).start()
    pairs, later = items("k", KEYS, CHUNK), items("later", 2048, CHUNK)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        shards = [c.namespace(f"vllm/m/g0/s{i}.of.{SHARDS}") for i in range(SHARDS)]
        other = c.namespace("other")
        # The first shard is old when the others are put, so that without sets it leaves alone.
        put_all(c, shards[0], pairs, ack=Ack.WRITTEN)
        put_all(c, other, items("before", 64, CHUNK), ack=Ack.WRITTEN)
        for ns in shards[1:]:
            put_all(c, ns, pairs, ack=Ack.WRITTEN)
        tiers = (Tier.MEMORY, Tier.DISK)
        for at in range(0, len(later), 8):
            put_all(c, other, later[at:at + 8], ack=Ack.WRITTEN)
            for tier in tiers:
                whole, part = whole_and_part(c, shards, keys, tier)
                # One put of eight chunks may evict shards of some keys whose other shards follow with the next ones.
                assert part <= 8, (tier, whole, part)
        assert [whole_and_part(c, shards, keys, tier) for tier in tiers] == [(0, 0), (0, 0)]
        for ns in shards:
            assert all(v is None for v in get_all(c, ns, keys).values())
    shown = ctl("stats", daemon=daemon).stdout
    for tier in ("memory", "disk"):
        assert daemon.metric(f'kvcache_set_demoted_total{{tier="{tier}"}}') >= KEYS
        assert daemon.metric(f'kvcache_set_evicted_total{{tier="{tier}"}}') >= KEYS
        assert daemon.metric(f'kvcache_set_missed_total{{tier="{tier}"}}') == 0
        assert daemon.metric(f'kvcache_set_incomplete_chunks{{tier="{tier}"}}') == 0
    assert "kvcache_set_demoted_total" in shown and "kvcache_set_evicted_total" in shown


def test_a_missing_shard_that_is_stored_again_keeps_the_set(make_daemon):
    daemon = make_daemon(settings={**LIMITS, "eviction.policy": "lru"}).start()
    pairs = items("k", 1, CHUNK)
    key = pairs[0][0]
    with daemon.client() as c:
        shards = [c.namespace(f"vllm/m/g0/s{i}.of.2") for i in range(2)]
        other = c.namespace("other")
        put_all(c, shards[0], pairs, ack=Ack.WRITTEN)
        put_all(c, other, items("before", 64, CHUNK), ack=Ack.WRITTEN)
        put_all(c, shards[1], pairs, ack=Ack.WRITTEN)
        for pair in items("later", 1024, CHUNK):
            put_all(c, other, [pair], ack=Ack.WRITTEN)
            if not c.exists(shards[0], [key])[0]:
                break
        assert c.exists(shards[1], [key])[0] & Tier.DISK
        assert daemon.metric('kvcache_set_incomplete_chunks{tier="disk"}') == 1
        put_all(c, shards[0], pairs, ack=Ack.WRITTEN)
        put_all(c, other, items("more", 16, CHUNK), ack=Ack.WRITTEN)
        assert daemon.metric('kvcache_set_promoted_total{tier="disk"}') == 1
        assert [get_all(c, ns, [key]) for ns in shards] == [dict(pairs)] * 2
