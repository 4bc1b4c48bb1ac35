# SPDX-License-Identifier: Apache-2.0
"""memory.floors: what an engine keeps in the pool while others fill it; and who uses what, in kvcachectl top."""

import json
import os
import re
import subprocess

import pytest

import harness
import kvwire
from harness import KIB, MIB, ctl, get_all, items, put_all
from kvwire import Ack, Tier
from test_tenants import ALICE, BOB, client_as, make  # noqa: F401 (make: a fixture)

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
    memory = {n["namespace"]: n["pool_used_bytes"] for n in said["namespaces"]}
    assert (memory["vllm/a/g0"], memory["vllm/b/g0"]) == (used["vllm/a"], used["vllm/"])
    assert sum(memory.values()) == daemon.metric("kvcache_pool_used_bytes")
    shown = ctl("top", "--interval", "0.1", "--count", "1", daemon=daemon).stdout
    assert "MEMORY OF" in shown and "vllm/a" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_users_of_the_only_tenant_see_the_floors(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "16MiB", "memory.floors": "vllm/a=4MiB", "listen.mode": "0666"}).start()
    with client_as(daemon, ALICE) as c:
        put_all(c, c.namespace("vllm/a/g0"), items("mine", 4, CHUNK), ack=Ack.WRITTEN)
        shown = c.report(kvwire.Report.METRICS)
    assert 'kvcache_floor_bytes{prefix="vllm/a"} 4194304' in shown and 'kvcache_floor_used_bytes{prefix="vllm/a"} 262144' in shown


def test_without_floors_the_coldest_chunks_leave(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "16MiB", "store.limit": "128MiB", "eviction.policy": "lru"}).start()
    with daemon.client() as c:
        mine, others = c.namespace("vllm/a/g0"), [c.namespace("sglang/x")]
        fill(c, mine, others)
        assert in_memory(c, mine, items("mine", 2 * FLOOR // CHUNK, CHUNK)) == 0
    assert "kvcache_floor_bytes{" not in ctl("stats", daemon=daemon).stdout


def test_a_reload_leaves_the_floors_until_a_restart(make_daemon, directory):
    """The chunks that are held keep the floor that they have, whatever the file says meanwhile."""
    path = directory / "kvcache.yaml"
    path.write_text("memory:\n  floors: [vllm/a=4MiB]\n")
    daemon = make_daemon(config=path, settings={"memory.pool": "16MiB", "store.limit": "128MiB", "eviction.policy": "lru"}).start()
    pairs = items("mine", 2 * FLOOR // CHUNK, CHUNK)
    with daemon.client() as c:
        mine, others = c.namespace("vllm/a/g0"), [c.namespace("sglang/x")]
        fill(c, mine, others)
        assert in_memory(c, mine, pairs) == FLOOR // CHUNK
        for floors in ("[]", "[sglang/=12MiB]", "[vllm/a=1MiB, sglang/=8MiB]", "[vllm/a=64MiB]"):
            path.write_text(f"memory:\n  floors: {floors}\n")
            said = ctl("reload", daemon=daemon, check=None)
            assert "floors" in said.stdout + said.stderr, said
            put_all(c, others[0], items(floors, 16 * MIB // CHUNK, CHUNK), ack=Ack.WRITTEN)
            assert in_memory(c, mine, pairs) == FLOOR // CHUNK
            assert daemon.metric('kvcache_floor_bytes{prefix="vllm/a"}') == FLOOR
            assert daemon.metric('kvcache_floor_used_bytes{prefix="vllm/a"}') >= FLOOR
    path.write_text("memory:\n  floors: [sglang/=2MiB]\n")
    daemon.restart()
    with daemon.client() as c:
        mine, other = c.namespace("vllm/a/g0"), c.namespace("sglang/x")
        put_all(c, other, items("again", 4 * MIB // CHUNK, CHUNK), ack=Ack.WRITTEN)
        put_all(c, mine, items("more", 32 * MIB // CHUNK, CHUNK), ack=Ack.WRITTEN)
        assert in_memory(c, other, items("again", 4 * MIB // CHUNK, CHUNK)) == 2 * MIB // CHUNK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_each_tenants_pool_has_the_floors(make):
    """Floors are reduced in the smaller pool, and the figures are those of all pools together."""
    daemon = make(f"tenants:\n  - {{name: red, users: [{ALICE}], pool: 16MiB}}\n  - {{name: blue, users: [{BOB}], pool: 8MiB}}\n",
                  {"memory.pool": "16MiB", "store.limit": "256MiB", "eviction.policy": "lru", "memory.floors": "vllm/a=8MiB"})
    whole, reduced = 8 * MIB, 6 * MIB
    pairs = items("mine", 2 * whole // CHUNK, CHUNK)
    with client_as(daemon, ALICE) as red, client_as(daemon, BOB) as blue:
        for c, pool, floor in ((red, 16 * MIB, whole), (blue, 8 * MIB, reduced)):
            mine, other = c.namespace("vllm/a/g0"), c.namespace("vllm/b")
            put_all(c, mine, pairs, ack=Ack.WRITTEN)
            put_all(c, other, items("other", 2 * pool // CHUNK, CHUNK), ack=Ack.WRITTEN)
            assert in_memory(c, mine, pairs) == floor // CHUNK
        said = json.loads(ctl("top", "--json", "--interval", "0.1", "--count", "1", daemon=daemon).stdout.splitlines()[-1])
        row, = said["floors"]
        assert {t["tenant"]: t["pool_used_bytes"] for t in said["tenants"]} == {"default": 0, "red": 16 * MIB, "blue": 8 * MIB}
        assert re.search(r"^TENANT .* MEMORY +STORED$", ctl("top", "--interval", "0.1", "--count", "1", daemon=daemon).stdout, re.M)
        assert (row["prefix"], row["used_bytes"], row["floor_bytes"]) == ("vllm/a", whole + reduced, 2 * whole + reduced)
        assert "kvcache_floor_used_bytes{" not in red.report(kvwire.Report.METRICS), "they sum up what other tenants hold"


@pytest.mark.parametrize("floors, text", [
    ("vllm/", '"vllm/" is not a floor; write PREFIX=SIZE'),
    ("=1MiB", '"=1MiB" is not a floor'),
    ("a=", '"a=" is not a floor'),
    ("a=0", '"a=0" is not a floor'),
    ("a=-1MiB", '"a=-1MiB" is not a floor'),
    ("a=99999999999999999999GiB", "is not a floor"),
    ("a=1MiB,a=2MiB", '"a" has two sizes; leave one of the entries out'),
    ("a\"b=1MiB", "is not a floor"),
    ("a\\b=1MiB", "is not a floor"),
    ("a=8MiB,b=5MiB", "is more than three quarters of memory.pool, which is 16MiB"),
    (",".join(f"p{i}=64KiB" for i in range(16)), "memory.floors: the list has more than 15 entries"),
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
