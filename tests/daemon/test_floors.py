# SPDX-License-Identifier: Apache-2.0
"""memory.floors: what an engine keeps in the pool while others fill it; and who uses what, in kvcachectl top."""

import json
import subprocess

import pytest

import harness
from harness import KIB, MIB, ctl, get_all, items, put_all
from kvwire import Ack, Tier

CHUNK = 64 * KIB
FLOOR = 4 * MIB


def in_memory(c, ns, pairs):
    return sum(bool(t & Tier.MEMORY) for t in c.exists(ns, [k for k, _ in pairs]))


def fill(c, mine, others):
    """Puts the engine's chunks, and then twice the pool into the namespaces of others."""
    put_all(c, mine, items("mine", 2 * FLOOR // CHUNK, CHUNK), ack=Ack.WRITTEN)
    for i, ns in enumerate(others):
        put_all(c, ns, items(f"other {i}", 16 * MIB // CHUNK, CHUNK), ack=Ack.WRITTEN)


@pytest.mark.parametrize("policy", ["lru", "cq"])
def test_an_engine_keeps_its_floor_and_top_shows_it(make_daemon, policy):
    daemon = make_daemon(settings={"memory.pool": "16MiB", "store.limit": "128MiB", "eviction.policy": policy,
                                   "memory.floors": "vllm/a=4MiB,vllm/=2MiB"}).start()
    pairs = items("mine", 2 * FLOOR // CHUNK, CHUNK)
    with daemon.client() as c:
        mine, others = c.namespace("vllm/a/g0"), [c.namespace("vllm/b/g0"), c.namespace("sglang/x")]
        fill(c, mine, others)
        assert in_memory(c, mine, pairs) == FLOOR // CHUNK
        assert in_memory(c, others[0], items("other 0", 16 * MIB // CHUNK, CHUNK)) == 2 * MIB // CHUNK
        assert get_all(c, mine, [k for k, _ in pairs]) == dict(pairs)
        used = {p: daemon.metric(f'kvcache_floor_used_bytes{{prefix="{p}"}}') for p in ("vllm/a", "vllm/")}
        assert used["vllm/a"] >= FLOOR and used["vllm/"] >= 2 * MIB
        assert daemon.metric('kvcache_floor_bytes{prefix="vllm/a"}') == FLOOR
        assert daemon.metric("kvcache_floor_spared_total") > 0
    said = json.loads(ctl("top", "--json", "--interval", "0.1", "--count", "1", daemon=daemon).stdout.splitlines()[-1])
    assert {f["prefix"]: (f["used_bytes"], f["floor_bytes"]) for f in said["floors"]} == {"vllm/a": (used["vllm/a"], FLOOR),
                                                                                         "vllm/": (used["vllm/"], 2 * MIB)}
    shown = ctl("top", "--interval", "0.1", "--count", "1", daemon=daemon).stdout
    assert "MEMORY OF" in shown and "vllm/a" in shown


def test_without_floors_the_coldest_chunks_leave(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "16MiB", "store.limit": "128MiB", "eviction.policy": "lru"}).start()
    with daemon.client() as c:
        mine, others = c.namespace("vllm/a/g0"), [c.namespace("sglang/x")]
        fill(c, mine, others)
        assert in_memory(c, mine, items("mine", 2 * FLOOR // CHUNK, CHUNK)) == 0
    assert "kvcache_floor_bytes{" not in ctl("stats", daemon=daemon).stdout


@pytest.mark.parametrize("floors, text", [
    ("vllm/", '"vllm/" is not a floor; write PREFIX=SIZE'),
    ("=1MiB", '"=1MiB" is not a floor'),
    ("a=", '"a=" is not a floor'),
    ("a=0", '"a=0" is not a floor'),
    ("a=-1MiB", '"a=-1MiB" is not a floor'),
    ("a=99999999999999999999GiB", "is not a floor"),
    ("a=1MiB,a=2MiB", '"a" has two sizes'),
    ("a\"b=1MiB", "is not a floor"),
    ("a\\b=1MiB", "is not a floor"),
    ("a=8MiB,b=5MiB", "is more than three quarters of memory.pool, which is 16MiB"),
    (",".join(f"p{i}=64KiB" for i in range(16)), "memory.floors: at most 15 entries"),
    ("x" * 256 + "=1MiB", "is not a floor"),
], ids=range(12))
def test_wrong_floors_are_refused(floors, text):
    said = subprocess.run([harness.DAEMON, "--check-config", "--set", "memory.pool=16MiB", "--set", f"memory.floors={floors}"],
                          capture_output=True, text=True, timeout=60)
    assert said.returncode != 0 and text in said.stderr, said.stderr


@pytest.mark.parametrize("floors", ["a=b=1MiB,a=2MiB", "a=2MiB,a=b=1MiB", "a=1MiB,ab=1MiB"])
def test_prefixes_that_begin_alike_are_two_floors(floors):
    said = subprocess.run([harness.DAEMON, "--check-config", "--set", "memory.pool=16MiB", "--set", f"memory.floors={floors}"],
                          capture_output=True, text=True, timeout=60)
    assert "two sizes" not in said.stderr and "not a floor" not in said.stderr, said.stderr
