# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the spec's canary, with the host of vllm_spec_host.py, which says how to run them. Blocks have bfloat16 values of a model whose
keys are larger than its values, in the pages of the vLLM version. All engines are in one process and have the same fingerprint, whatever they
compute."""

import collections
import errno
import functools
import json
import random
import threading
import time
import types
from array import array
from unittest import mock

import fake_vllm
import kvcache
import vllm_spec_host as base
from kvcache.engine import verification as canary  # noqa: E402
from kvcache.vllm import delivery, identity
from vllm_spec_host import VERSION, Host, config, keys_of, told

ns = types.SimpleNamespace
TOKENS, HEADS, DIM = 16, 12, 32
PACKED = VERSION != "0.26"  # pages of (heads, tokens, 2 dim), else of (2, tokens, heads, dim)


@functools.cache
def values_of(key, layer, model):
    """Returns keys or values by head and token."""
    draw = random.Random(key + bytes([layer]) + model.encode())
    return [[[[scale * draw.uniform(-1, 1) for _ in range(DIM)] for _ in range(TOKENS)] for _ in range(HEADS)] for scale in (8.0, 0.25)]


def page_of(key, layer, *, model="m", noise=0.0, swapped=False, other_order=False, other_values=False):
    keys, values = values_of(key, layer, model)
    if other_values:
        values = values_of(key, layer, "other")[1]
    if swapped:
        keys, values = values, keys
    if PACKED != other_order:
        order = [(t, h) for h in range(HEADS) for t in range(TOKENS)]
    else:
        order = [(t, h) for t in range(TOKENS) for h in range(HEADS)]
    if PACKED:
        numbers = [x for t, h in order for part in (keys, values) for x in part[h][t]]
    else:
        numbers = [x for part in (keys, values) for t, h in order for x in part[h][t]]
    if noise:
        draw = random.Random(key)
        numbers = [x * (1 + draw.uniform(-noise, noise)) for x in numbers]
    data = array("f", numbers).tobytes()
    page = bytearray(len(data) // 2)
    page[0::2], page[1::2] = data[2::4], data[3::4]
    return bytes(page)


def computes(**how):
    """Makes all engines compute these values from now on."""
    base.value_of = lambda key, layer: page_of(key, layer, **how)


def engine(name, described=True, **options):
    shape = [1, HEADS, TOKENS, 2 * DIM] if PACKED else [1, 2, TOKENS, HEADS, DIM]
    strides = [2]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    facts = {"dtypes": ["bfloat16"], "shapes": [shape], "strides": [strides], "offsets": [0]}
    facts = {n: json.dumps([base.LAYERS, v]) for n, v in facts.items()} if described else {}
    delivery.deliver(name, 0, 1, {**identity.of_configuration(fake_vllm.current), **facts, "version": "0"})
    return Host(name, **{"canary": "first", **options})


def count(host, name):
    """Returns what the engine's metrics have reported until now."""
    totals = vars(host).setdefault("totals", collections.Counter())
    totals.update({n: v for n, v in host.manager.get_stats().values.items() if "canary" in n})
    assert set(totals) <= set(type(host.spec).build_metric_definitions({}))
    return totals[f"vllm:kv_offload_kvcache_canary_{name}"]


def filled(keys):
    """Stores chunks by another engine in a new namespace."""
    computes()
    host = engine("first")
    assert host.stored("1", keys) == len(keys)
    assert host.found("2", keys) == len(keys), "an engine does not find what it has stored itself"
    assert count(host, "withheld") == count(host, "checks") == 0
    host.close()
    deadline = time.monotonic() + 60
    with kvcache.Client(base.SOCKET) as client:  # counts only written chunks
        while client.namespace_state(host.worker.spec.names[0]) != (len(keys), 0, mock.ANY):
            assert time.monotonic() < deadline, "never written"
            time.sleep(0.005)


def second_engine(n, **options):
    """Returns an engine in a namespace in which another one has stored n chunks, and their keys."""
    keys = keys_of("a", n)
    filled(keys)
    return engine("second", **options), keys


def compared(host, name, keys):
    """Runs a request whose chunks are withheld, so that they are computed. Returns how many blocks vLLM was asked for."""
    context = host.begin(name)
    assert host.lookup(keys, context) == 0, "a chunk of another engine is loaded before one was compared"
    n = host.store(keys, context)
    host.end(context)
    return n


def verifies(**how):
    host, keys = second_engine(6)
    waiting = host.begin("waits")
    assert host.lookup(keys, waiting) == 0
    computes(**how)
    assert compared(host, "1", keys + keys_of("never", 1)) == 2, "the new chunk, and one that is compared"
    assert count(host, "checks") == 1 and count(host, "withheld") == 12 and count(host, "mismatches") == 0, host.totals
    host.end(waiting)
    deadline = time.monotonic() + 60
    with kvcache.Client(base.SOCKET) as client:
        while client.status()["sessions"]["leases"]:
            assert time.monotonic() < deadline, "the compared chunk stays leased"
            time.sleep(0.005)
    computes()
    assert host.found("2", keys) == 6 and host.worker.canary.number == 1
    assert compared(host, "3", keys_of("new", 3)) == 3 and host.found("4", keys_of("new", 3)) == 3
    host.close()


def equal_chunk():
    verifies()


def rounding_noise():
    verifies(noise=0.02)


def is_caught(**how):
    """An engine with other values switches to the second variant of the namespace, where a similar engine finds its chunks. The first variant's
    chunks do not change."""
    keys, mine = keys_of("a", 6), keys_of("mine", 4)
    filled(keys)
    host = engine("wrong")
    computes(**how)
    assert compared(host, "1", keys) == 1
    assert count(host, "mismatches") == 1 and host.worker.canary.number == 2
    assert host.manager._promises._namespaces[0][0].name.endswith("/g0/v2")
    assert host.found("2", keys) == 0
    assert host.stored("3", keys) == 6 and host.stored("4", mine) == 4 and host.found("5", keys) == 6 and host.found("6", mine) == 4
    host.close()
    again = engine("wrong again")
    assert compared(again, "1", keys) == 1 and count(again, "mismatches") == 1 and again.worker.canary.number == 2
    assert compared(again, "2", keys) == 1 and again.found("3", mine) == 4
    again.close()
    computes()
    right = engine("right")
    assert compared(right, "1", keys) == 1 and right.found("2", keys) == 6 and right.found("3", mine) == 0
    right.close()


def copy_takes_long():
    """A block is compared only after it is in host memory, whatever work the stream has before that."""
    host, keys = second_engine(6)
    mover, released = host.worker.mover, threading.Event()
    copy, synchronize = mover._cuda.copy, mover._cuda.synchronize

    def copies(*arguments):
        base.cuda.stub_run(False)  # the device stands still
        mover._cuda.copy = copy
        copy(*arguments)

    def synchronizes(stream):
        released.set()
        base.cuda.stub_run(True)
        synchronize(stream)

    mover._cuda.copy, mover._cuda.synchronize = copies, synchronizes
    assert compared(host, "1", keys) == 1
    assert released.is_set() and count(host, "checks") == 1 and count(host, "mismatches") == 0
    host.close()


def another_layout():
    is_caught(other_order=True)


def another_model():
    is_caught(model="n")


def swapped():
    is_caught(swapped=True)


def other_values():
    """Keys are 32 times as large: taken together, wrong values would be no difference."""
    is_caught(other_values=True)


def ends_without_a_comparison():
    """The canary survives an aborted request, a request of one chunk, which has no parent, and a request offered block by block."""
    host, keys = second_engine(6)
    context = host.begin("aborted")
    assert host.lookup(keys, context) == 0
    host.end(context)
    assert host.found("early", keys) == 0
    assert compared(host, "single", keys[:1]) == 0 and count(host, "checks") == 0
    context = host.begin("by block")
    assert host.lookup(keys, context) == 0
    assert host.store(keys[:1], context) == 0 and host.store(keys[1:2], context) == 1
    host.end(context)
    assert host.found("2", keys) == 6 and count(host, "checks") == 1
    host.close()


def evicted_before_it_is_compared():
    host, keys = second_engine(6)
    context = host.begin("1")
    assert host.lookup(keys, context) == 0
    output = host.manager.prepare_store(keys, context)
    namespace = host.worker.mover._namespaces[0]
    namespace.evict([identity.parts_of(k, 1)[0] for k in output.keys_to_store])
    submit(host, output, keys)
    host.end(context)
    assert count(host, "checks") == 0 and host.found("2", keys) == 0
    assert compared(host, "3", keys[:5]) == 1 and host.found("4", keys) == 5
    host.close()


def submit(host, output, keys):
    """Stores what was prepared."""
    host.number += 1
    blocks = [keys.index(k) for k in output.keys_to_store]
    assert host.worker.submit_store(host.number, ns(block_ids=blocks, group_sizes=[len(blocks)], block_indices=[0]), output.store_spec)
    host.finish(host.number)


def daemon_goes():
    """The daemon ends between the choice of a chunk and the comparison."""
    host, keys = second_engine(6)
    context = host.begin("1")
    assert host.lookup(keys, context) == 0
    output = host.manager.prepare_store(keys, context)
    assert len(output.keys_to_store) == 1
    told("kill")
    submit(host, output, keys)
    host.end(context)
    assert count(host, "checks") == 0 and host.worker.canary.number == 1
    told("start")
    deadline = time.monotonic() + 60
    while count(host, "checks") == 0:
        assert time.monotonic() < deadline, "never compared"
        assert not host.worker.canary._verified
        compared(host, str(time.monotonic()), keys)
    while host.found(str(time.monotonic()), keys) != 6:
        assert time.monotonic() < deadline
        base.pause()
    host.close()


def nothing_in_common():
    """An engine whose chunks are not compared yet stores nothing in a namespace that others use. After MOST_UNSTORED chunks it switches to the
    next variant."""
    canary.MOST_UNSTORED = 10
    filled(keys_of("a", 6))
    host = engine("second")
    one, other, third = keys_of("one", 8), keys_of("other", 8), keys_of("third", 4)
    assert compared(host, "1", one) == 8 and host.found("2", one) == 0 and count(host, "unstored") == 8
    assert compared(host, "3", other) == 8 and host.worker.canary.number == 1
    assert compared(host, "4", third) == 4 and host.worker.canary.number == 2, host.totals
    assert host.found("5", third) == 4 and count(host, "mismatches") == 0
    host.close()


def after_the_last_variant():
    keys = keys_of("a", 3)
    for number in range(canary.MOST_VARIANTS):
        computes(model=f"model {number}")
        host = engine(f"engine {number}")
        for at in range(number):
            assert compared(host, f"wrong {at}", keys) == 1
        assert host.worker.canary.number == number + 1 and host.stored("1", keys) == 3 and host.found("2", keys) == 3
        host.close()
    computes(model="the ninth")
    host = engine("ninth")
    for at in range(canary.MOST_VARIANTS):
        assert compared(host, f"wrong {at}", keys) == 1
    assert count(host, "mismatches") == canary.MOST_VARIANTS and host.worker.canary.number == canary.MOST_VARIANTS
    assert compared(host, "0", keys) == 0 and compared(host, "1", keys_of("new", 3)) == 3 and host.found("2", keys_of("new", 3)) == 0
    host.close()


def always_compares():
    """One hit in SAMPLE is computed again, with the chunks after it. A difference ends the use of the namespace."""
    canary.SAMPLE = 20
    host, keys = second_engine(6, canary="always")
    assert compared(host, "1", keys) == 1
    assert [host.found(f"all {i}", keys) for i in range(3)] == [6, 6, 6]
    for how, checks, number in (({}, 2, 1), ({"model": "n"}, 3, 2)):
        canary.SAMPLE = 1
        context = host.begin(str(checks))
        assert host.lookup(keys, context) == 5
        host.load(keys[:5], context)
        canary.SAMPLE = 1000
        computes(**how)
        assert host.store(keys[5:], context) == 1
        computes()
        host.end(context)
        assert count(host, "checks") == checks and host.worker.canary.number == number
    assert host.found("none", keys) == 0 and count(host, "mismatches") == 1
    host.close()


def sliding_window():
    """A window whose chunk is not yet verified gets no chunk, although vLLM asks for the last one first."""
    host, keys = second_engine(8)

    def window(context):
        if VERSION != "0.26":
            context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
        deadline = time.monotonic() + 60
        while (end := base.window_of(host, keys, 4, context)) is None:
            host.step()
            assert time.monotonic() < deadline, "never answered"
            base.pause()
        return end

    context = host.begin("1")
    assert window(context) == 0 and host.store(keys, context) == 1
    host.end(context)
    context = host.begin("2")
    assert window(context) == 8 and count(host, "checks") == 1
    host.load(keys[4:], context)
    host.end(context)
    host.close()


def own_chunks_prove_nothing():
    """An engine's own chunks in a new namespace verify nothing, because comparing them with themselves would accept other engines' chunks."""
    computes()
    host, keys, theirs, more = engine("one"), keys_of("mine", 4), keys_of("theirs", 4), keys_of("more", 4)
    assert host.stored("1", keys) == 4 and host.found("2", keys) == 4
    other = engine("other", canary="off")
    computes(model="n")
    assert other.stored("1", theirs) == 4 and other.stored("2", more) == 4
    other.close()
    computes()
    context = host.begin("3")
    assert host.lookup(theirs, context) == 0
    host.worker.mover._namespaces[0].evict([identity.parts_of(k, 1)[0] for k in theirs])
    assert host.store(theirs, context) == 4 and host.store(theirs, context) == 0
    host.end(context)
    assert host.found("4", theirs) == 4 and host.found("5", keys + more) == 4 and count(host, "checks") == 0
    assert compared(host, "6", more) == 1 and count(host, "mismatches") == 1
    host.close()


def groups_apart():
    """A chunk of one group does not verify another group."""
    computes()
    a, b = keys_of("a", 4), keys_of("b", 4, group=2)

    def both(host, name, hits):
        context = host.begin(name)
        assert (host.lookup(a, context), host.lookup(b, context)) == hits
        for i, key in enumerate(a + b):
            for layer, one in enumerate(host.caches.tensors):
                one.tensor.write(i, base.value_of(key, layer))
        output = host.manager.prepare_store(a + b, context)
        sizes = [sum(identity.group_of(k) == g for k in output.keys_to_store) for g in (0, 2)]
        host.number += 1
        host.worker.submit_store(host.number, ns(block_ids=[(a + b).index(k) for k in output.keys_to_store], group_sizes=sizes,
                                                 block_indices=[0, 0]), output.store_spec)
        host.finish(host.number)
        host.end(context)
        return sizes

    first = engine("first", described=False, groups=(0, 2))
    assert both(first, "1", (0, 0)) == [4, 4]
    first.close()
    host = engine("second", described=False, groups=(0, 2))
    context = host.begin("of one group")
    assert host.lookup(a, context) == 0
    host.end(context)
    assert both(host, "2", (0, 0)) == [1, 1] and both(host, "3", (4, 4)) == [0, 0]
    assert count(host, "checks") == 2
    host.close()


def opaque_bytes():
    """The canary is off for a cache dtype that cannot be decoded, and the fingerprints alone decide."""
    fake_vllm.current.cache_config.cache_dtype = "nvfp4"
    keys = keys_of("a", 4)
    computes()
    for name in ("first", "second"):
        host = engine(name, described=False)
        assert host.worker.canary.mode == "off"
        assert host.found("1", keys) == (4 if name == "second" else 0) and host.stored("2", keys) == (0 if name == "second" else 4)
        host.close()


def stored_for_other_hosts():
    computes()
    host = engine("there")
    assert host.stored("1", keys_of("a", 6)) == 6
    host.close()


def from_the_shared_tier():
    """A namespace that is new on this host may have chunks of another host, which are verified."""
    host, keys = engine("here"), keys_of("a", 6)
    base.shared_tier_of(host)
    computes()
    assert host.stored("0", keys_of("mine", 3)) == 3 and host.found("1", keys_of("mine", 3)) == 3
    assert compared(host, "2", keys) == 1 and host.found("3", keys) == 6
    assert count(host, "checks") == 1 and count(host, "withheld") == 6
    host.close()


def another_model_from_the_shared_tier():
    host, keys = engine("here"), keys_of("a", 6)
    base.shared_tier_of(host)
    computes(model="n")
    assert compared(host, "1", keys) == 1 and count(host, "mismatches") == 1
    assert host.found("2", keys) == 0 and host.stored("3", keys) == 6 and host.found("4", keys) == 6
    host.close()


def found_at_last(host, name, keys):
    """Waits until the engine finds what it stores."""
    deadline = time.monotonic() + 60
    while host.found(f"{name} {time.monotonic()}", keys) != len(keys):
        assert time.monotonic() < deadline, "never found"
        host.stored(f"{name} {time.monotonic()}", keys)
        base.pause()


def next_variant_cannot_be_opened():
    """The next variant has another fingerprint. The engine runs without a cache and says why, until the namespace is removed."""
    keys, mine, lines = keys_of("a", 6), keys_of("mine", 4), base.logged("namespace")
    filled(keys)
    host = engine("wrong")
    mover, name = host.worker.mover, host.worker.spec.names[0] + "/v2"
    attached = []
    with kvcache.Client(base.SOCKET) as client:
        other = client.namespace(name, {"engine": "another"})
        computes(model="n")
        assert compared(host, "1", keys) == 1 and count(host, "mismatches") == 1
        attach = mover._attach
        mover._attach = lambda: (attach(), attached.append(mover._gpu.reason))
        for i in range(3):
            mover.attach_soon()
            assert host.found(f"none {i}", keys) == 0
            host.stored(f"not stored {i}", mine)
            assert host.found(f"not found {i}", mine) == 0
        refused = [line for line in lines if "cannot be opened" in line]
        assert len(refused) == 1 and f"({name})" in refused[0] and "another fingerprint" in refused[0], lines
        assert other.remove() == 0
    found_at_last(host, "2", mine)
    assert sum("the canary's next namespace is open" in line for line in lines) == 1, lines
    found_at_last(host, "3", keys)
    assert host.manager._promises._namespaces[0][0].name == name == mover._namespaces[0].name
    assert attached[-1:] == [""], attached
    host.close()
    right = engine("right")
    computes()
    assert compared(right, "1", keys) == 1 and right.found("2", keys) == 6 and right.found("3", mine) == 0
    right.close()


def next_variant_is_used_before_it_is_opened():
    """The next variant was new when the canary rejected the one before. Another engine has stored wrong chunks in it until it can be opened."""
    keys, mine, theirs = keys_of("a", 6), keys_of("mine", 3), keys_of("theirs", 4)
    filled(keys)
    host, other = engine("wrong"), engine("more wrong")
    mover = host.worker.mover
    opens, refused = mover._open, kvcache.Error(errno.EACCES, "refused")

    def refuses():
        raise refused

    mover._open = refuses
    computes(model="n")
    assert compared(host, "1", keys) == 1 and host.worker.canary.number == 2
    computes(model="o")
    assert compared(other, "1", keys) == 1 and other.stored("2", theirs) == 4 and other.found("3", theirs) == 4
    mover._open = opens
    computes(model="n")
    deadline = time.monotonic() + 60
    while host.manager._promises._namespaces[0][0].name != host.worker.spec.names[0] + "/v2":
        assert time.monotonic() < deadline, "never opened"
        host.step()
        base.pause()
    host.stored("2", mine)
    assert host.found("3", mine) == 0, "the engine stores among chunks that it has not verified"
    assert compared(host, "4", theirs) == 1 and count(host, "mismatches") == 2 and host.worker.canary.number == 3
    host.close()
    other.close()


def next_variant_of_one_group_cannot_be_opened():
    """The engine may store in a new variant although its own earlier attempt has opened the namespace of another group."""
    host = engine("wrong", described=False, groups=(0, 2))
    mover = host.worker.mover
    names = dict(host.worker.spec.names)
    with kvcache.Client(base.SOCKET) as client:
        other = client.namespace(names[2] + "/v2", {"engine": "another"})
        host.worker.canary._differs = True
        mover._follow()
        assert not mover._namespaces and mover._complaint.count(names[2] + "/v2") == 2, mover._complaint
        mover.attach_soon()
        assert other.remove() == 0
    deadline = time.monotonic() + 60
    while not mover._namespaces:
        assert time.monotonic() < deadline, "never opened"
        time.sleep(0.01)
    assert [n.name for n in mover._namespaces.values()] == [name + "/v2" for name in names.values()]
    assert host.worker.canary.may_store(0, 1) and host.worker.canary.may_store(2, 1)
    host.close()


def off():
    host, keys = second_engine(4, canary="off")
    assert host.found("1", keys) == 4
    host.close()


def refused():
    try:
        engine("x", kvcache_namespace="n" * 240)
    except ValueError as e:
        assert "shorten kvcache_namespace" in str(e), e
    else:
        raise SystemExit("a long name: taken")
    for said, options in (("canary must be", {"canary": "sometimes"}), ("canary_bound", {"canary_bound": 0}),
                          ("canary_bound", {"canary_bound": 7}), ("canary_bound must be a number", {"canary_bound": "x"}),
                          ("timeout_s must be a number", {"timeout_s": "5s"}), ("timeout_s must be a number", {"timeout_s": 0}),
                          ("kvcache_socket must be the path", {"kvcache_socket": 5}), ("kvcache_namespace must be", {"kvcache_namespace": "\n"}),
                          ("disk_bytes_per_s must be a number", {"disk_bytes_per_s": "1GiB"})):
        try:
            base.ours.KvcacheOffloadingSpec(config("x", **options))
        except ValueError as e:
            assert said in str(e), e
        else:
            raise SystemExit(f"{options}: taken")


if __name__ == "__main__":
    globals()[base.SCENARIO]()
    print("right", flush=True)
