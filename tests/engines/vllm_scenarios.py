# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test the vLLM tier as vLLM's managers call it. Shared by vllm_check.py, which runs them with the real vLLM, and
tests/python/test_vllm_contract.py, which runs them with a substitute.

Each scenario is a function. Its parameters are `make`, which makes a host from the tier's options, and a running daemon of
tests/daemon/harness.py. A host stores, looks up and loads chunks as vLLM's scheduler does, and owns the rows, of `host.row` bytes each."""

import contextlib
import hashlib
import threading

import kvcache
from kvcache.vllm import identity, transfers
from scenarios import wait_for

transfers.LOOKUP_S = 2.0  # on a busy machine
GROUP = (0).to_bytes(4, "big")


def keys_of(name, count):
    return [hashlib.sha256(f"{name} {i}".encode()).digest() + GROUP for i in range(count)]


def value_of(key, length):
    return hashlib.shake_128(key).digest(length)


@contextlib.contextmanager
def threads_that_call(kind, name):
    """Lists the numbers of the threads that call this method of the class during the block."""
    called, method = [], getattr(kind, name)

    def noted(*arguments, **options):
        called.append(threading.get_ident())
        return method(*arguments, **options)

    setattr(kind, name, noted)
    try:
        yield called
    finally:
        setattr(kind, name, method)


def store(host, name, keys):
    context = host.begin(name)
    host.lookup(keys, context)
    host.store({k: value_of(k, host.row) for k in keys}, context)
    host.settle()
    host.finish(context)


def check_load(host, name, keys, found=None):
    """Checks that the first `found` keys are hits and are loaded correctly, and that the other keys are misses."""
    found = len(keys) if found is None else found
    context = host.begin(name)
    said = host.lookup(keys, context)
    assert said == ["RETRY"] * found + ["MISS"] * (len(keys) - found), said
    host.settle()
    assert host.lookup(keys[:found], context) == ["HIT"] * found
    for key, got in host.load(keys[:found], context).items():
        assert got == value_of(key, host.row), f"wrong bytes under {key.hex()}"
    host.finish(context)


def what_is_stored_is_loaded(make, daemon):
    host = make()
    keys = keys_of("stored", 16)
    store(host, "a", keys)
    host.reset()
    check_load(host, "b", keys + keys_of("never", 2), found=16)
    host.reset()
    store(host, "c", keys_of("more", 8))
    host.reset()
    check_load(host, "d", keys_of("more", 8))
    counts = host.counts()
    assert counts["vllm:kv_offload_kvcache_stored_bytes"] == 24 * host.row, counts
    assert counts["vllm:kv_offload_kvcache_loaded_memory_bytes"] + counts.get(
        "vllm:kv_offload_kvcache_loaded_disk_bytes", 0) == 24 * host.row, counts
    assert counts["vllm:kv_offload_kvcache_up"] == 1
    host.close()


def another_engine_finds_it(make, daemon):
    keys = keys_of("shared", 6)
    first = make()
    store(first, "a", keys)
    second = make()
    check_load(second, "b", keys)
    first.close()
    third = make()
    check_load(third, "c", keys)
    other = make(weights="others")
    check_load(other, "d", keys, found=0)
    for host in (second, third, other):
        host.close()


def rows_in_parts(make, daemon):
    host = make(part_bytes=4096 * 3)
    assert host.tier._transfers.parts > 1
    keys = keys_of("parts", 5)
    store(host, "a", keys)
    host.reset()
    check_load(host, "b", keys)
    host.close()


def a_daemon_that_comes_later(make, daemon):
    daemon.kill()
    host = make()
    keys = keys_of("later", 4)
    store(host, "a", keys)
    host.reset()
    check_load(host, "b", keys, found=0)
    daemon.start()
    wait_for("the tier connects", lambda: host.tier._transfers.well)
    store(host, "c", keys)
    host.reset()
    check_load(host, "d", keys)
    host.close()


def killed_and_started_again(make, daemon):
    host = make(ack="written")
    keys = keys_of("kept", 8)
    store(host, "a", keys)
    daemon.kill()
    host.reset()
    check_load(host, "b", keys, found=0)
    store(host, "c", keys_of("lost", 4))
    daemon.start()
    wait_for("the tier connects again", lambda: host.tier._transfers.well)
    host.reset()
    check_load(host, "d", keys)
    store(host, "e", keys_of("again", 4))
    host.reset()
    check_load(host, "f", keys_of("again", 4))
    host.close()


def killed_under_a_load(make, daemon):
    host = make(ack="written")
    keys = keys_of("under", 8)
    store(host, "a", keys)
    host.reset()
    daemon.pause()
    context = host.begin("b")
    host.lookup(keys, context)
    host.step()
    daemon.kill()
    host.settle()
    assert host.lookup(keys, context) == ["MISS"] * 8
    host.finish(context)
    daemon.start()
    wait_for("the tier connects again", lambda: host.tier._transfers.well)
    assert host.tier._transfers.pending == 0
    check_load(host, "c", keys)
    host.close()


def hung_and_gone_on(make, daemon):
    host = make(ack="written", timeout_s=1.0)
    keys, others = keys_of("hung", 8), keys_of("others", 8)
    store(host, "a", keys)
    store(host, "a2", others)
    host.reset()
    daemon.pause()
    context = host.begin("b")
    host.lookup(keys, context)
    for _ in range(3):
        host.step()
    wait_for("the daemon is seen to hang", lambda: (host.step(), not host.tier._transfers.well)[1])
    second = host.begin("c")
    with threads_that_call(kvcache.Namespace, "tiers") as asking, threads_that_call(kvcache.Client, "flush") as flushing:
        assert host.lookup(others, second) == ["MISS"] * 8
        host.store({k: value_of(k, host.row) for k in keys_of("new", 4)}, second)
        for _ in range(3):
            host.step()
        host.finish(second)
    assert threading.get_ident() not in asking + flushing, "the engine's thread asks a daemon that is known to hang"
    daemon.resume()
    host.settle()
    said = host.lookup(keys, context)
    assert set(said) <= {"HIT", "MISS"}, said
    good = [k for k, s in zip(keys, said) if s == "HIT"]
    for key, got in host.load(good, context).items():
        assert got == value_of(key, host.row)
    host.finish(context)
    wait_for("the tier uses it again", lambda: host.tier._transfers.well)
    host.reset()
    check_load(host, "d", others)
    host.close()


def evicted_in_between(make, daemon):
    host = make()
    keys = keys_of("evicted", 6)
    store(host, "a", keys)
    host.reset()
    context = host.begin("b")
    host.lookup(keys, context)
    with kvcache.Client(daemon.socket, required=True) as client:
        tier = host.tier._transfers
        own = tier._namespaces[0]
        fields = dict(line.split("=", 1) for line in own._fingerprint.rstrip(b"\0").decode().splitlines())
        client.namespace(own.name, fields).evict([identity.parts_of(keys[3], 1)[0]])
    host.settle()
    said = host.lookup(keys, context)
    assert said[3] == "MISS", said
    host.settle()
    for key, got in host.load([k for k, s in zip(keys, said) if s == "HIT"], context).items():
        assert got == value_of(key, host.row)
    host.finish(context)
    assert host.counts()["vllm:kv_offload_kvcache_failed_loads"] >= 1
    host.close()


def a_reset_under_jobs(make, daemon):
    host = make()
    keys = keys_of("reset", 8)
    context = host.begin("a")
    host.lookup(keys, context)
    host.store({k: value_of(k, host.row) for k in keys}, context)
    host.reset()
    host.finish(context)
    host.settle()
    check_load(host, "b", keys)
    host.close()


def many_requests_and_a_daemon_that_dies(make, daemon):
    """Rounds of stores and loads; in some the daemon is killed or stopped in the middle. Never a wrong byte, never an assertion."""
    host = make(ack="written")
    for n in range(12):
        keys = keys_of(f"round {n % 4}", 6)
        context = host.begin(f"r{n}")
        host.lookup(keys, context)
        host.step()
        if n % 4 == 1:
            daemon.kill()
        elif n % 4 == 2:
            daemon.pause()
            host.step()
            daemon.resume()
        host.settle()
        said = host.lookup(keys, context)
        good = [k for k, s in zip(keys, said) if s == "HIT"]
        for key, got in host.load(good, context).items():
            assert got == value_of(key, host.row)
        host.store({k: value_of(k, host.row) for k in keys}, context)
        host.settle()
        host.finish(context)
        host.reset()
        if n % 4 == 1:
            daemon.start()
            wait_for("the tier connects again", lambda: host.tier._transfers.well)
    wait_for("the tier is well", lambda: host.tier._transfers.well)
    check_load(host, "last", keys_of("round 3", 6))
    host.close()


SCENARIOS = [what_is_stored_is_loaded, another_engine_finds_it, rows_in_parts, a_daemon_that_comes_later, killed_and_started_again,
             killed_under_a_load, hung_and_gone_on, evicted_in_between, a_reset_under_jobs, many_requests_and_a_daemon_that_dies]
OF_DEADLINES = [hung_and_gone_on]  # a call ends at the adapter's own
