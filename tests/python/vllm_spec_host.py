# SPDX-License-Identifier: Apache-2.0
"""A program that plays vLLM's scheduler and worker for our spec, over the driver without a GPU:

    vllm_spec_host.py SOCKET VERSION SCENARIO

VERSION is 0.26 or 0.33, or real for the installed vLLM. It has vLLM's assertions. It prints what the test must do meanwhile, such as ending
the daemon, and a line of input confirms that."""

import contextlib
import ctypes
import errno
import faulthandler
import hashlib
import logging
import os
import pickle
import sys
import threading
import time
import types

import deadlines
import fake_vllm

faulthandler.enable()
SOCKET, VERSION, SCENARIO = sys.argv[1:4]
if VERSION != "real":
    fake_vllm.install((0, int(VERSION.split(".")[1])))
from vllm.v1.kv_offload.base import LookupResult  # noqa: E402

import kvcache  # noqa: E402
from kvcache.vllm import breakeven, hooks, identity, mover, page, promises, spec as ours, worker as vllm_worker  # noqa: E402

deadlines.lengthen()  # a scenario in which the daemon hangs sets those that it is about
if SCENARIO not in ("stored_and_loaded", "two_ranks_stored_and_loaded"):
    mover.STAGING_BYTES = 16 << 20  # each worker touches all of it, which costs more than the scenario itself

N, LAYERS, PAGE = 80, 3, 24 << 10
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
ns = types.SimpleNamespace
cuda = ctypes.CDLL("libcuda.so.1")
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxPushCurrent_v2(context) and not cuda.cuStreamCreate(ctypes.byref(stream), 1)


def keys_of(name, count, group=0):
    return [hashlib.sha256(f"{name} {i}".encode()).digest() + group.to_bytes(4, "big") for i in range(count)]


weights = b""  # a scenario that changes an engine's weights sets others


def value_of(key, layer):
    return hashlib.shake_128(key + bytes([layer]) + weights).digest(PAGE)


@contextlib.contextmanager
def relaxed():
    """The tests' own calls invalidate no capture."""
    mode = ctypes.c_int(2)
    assert not cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        assert not cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def after(seconds, then=lambda: None):
    """Blocks the engine's stream for `seconds`, as a forward pass does, and then calls `then`."""
    def wait(_):
        time.sleep(seconds)
        then()

    called = CALLBACK(wait)
    written.append(called)
    assert not cuda.cuLaunchHostFunc(stream, called, None)


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def told(what):
    """Prints what the test must do. Returns its answer, when it has done so."""
    print(what, flush=True)
    return sys.stdin.readline().strip()


def config(engine, world_size=1, blocks_per_chunk=1, groups=(0,), **options):
    parallel = ns(rank=0, world_size=world_size, tp_size=world_size, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)
    return ns(groups=tuple(ns(tokens_per_block=16, layer_names=("0", "1", "2"), group_id=g) for g in groups), model=ns(name="tests/model", dtype="bfloat16"),
              cache=ns(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk), parallel=parallel, engine_id=engine,
              worker_kv_bytes_per_block=LAYERS * PAGE, enable_kv_cache_events=False,
              extra_config={"kvcache_socket": SOCKET, "weights": "tests", "load_policy": "always", "timeout_s": 60.0, **options})


class Tensor:
    """Blocks of a layer, in memory of the device."""

    def __init__(self, page=None):
        address, page = ctypes.c_uint64(), page or PAGE
        assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(N * PAGE))
        self.address, self.page, self.shape = address.value, page, (N, page)

    def data_ptr(self):
        return self.address

    def stride(self, _):
        return self.page

    def copy(self, to, source):
        assert not cuda.cuMemcpyAsync(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(PAGE), stream)

    def write(self, block, data):
        """Writes blocks in the engine's stream, and does not wait for it."""
        room = ctypes.create_string_buffer(data, PAGE)
        written.append(room)
        self.copy(self.address + block * PAGE, ctypes.addressof(room))

    def read(self, block):
        room = ctypes.create_string_buffer(PAGE)
        self.copy(ctypes.addressof(room), self.address + block * PAGE)
        with relaxed():
            assert not cuda.cuStreamSynchronize(stream)
        return room.raw


written = []


def caches(*pages, groups=1):
    """The groups share the tensors, and have blocks of their own."""
    return ns(tensors=[ns(tensor=Tensor(p), page_size_bytes=p) for p in pages],
              group_data_refs=[[ns(tensor_idx=i, page_size_bytes=p) for i, p in enumerate(pages)]] * groups)


def until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def pause():
    """Pauses a loop of the engine's thread that waits, as a step of vLLM computes. A loop without a pause would take the processor from the
    threads and processes for which it waits."""
    time.sleep(0.001)


def leases():
    with kvcache.Client(SOCKET) as client:
        return client.status()["sessions"]["leases"]


def found_again(host, keys, stores=True):
    """Looks chunks up until all are found, and stores what is not, unless only loads are wanted."""
    deadline = time.monotonic() + 60
    while host.found(str(time.monotonic()), keys) != len(keys):
        assert time.monotonic() < deadline, "the daemon has answered again, and nothing is found"
        if stores:
            host.stored(str(time.monotonic()), keys)
        pause()


def pickled(spec, ranks=1):
    """Returns the specification as a rank in another process gets it."""
    data = pickle.dumps(spec, protocol=5)
    keys = sum(len(k) - 4 for k in spec.keys())
    assert len(data) <= keys + 16 * ranks * spec.count * (not keys) + ranks * spec.count // 8 + 1024, (len(data), spec.count)
    assert ranks == 1 or len(data) <= 16 * ranks * spec.count + 1024, (len(data), spec.count)
    return pickle.loads(data)


def pickles(manager, ranks=1):
    """Has all specifications pickled, as vLLM's executor of several processes does."""
    load, store = manager.prepare_load, manager.prepare_store
    manager.prepare_load = lambda *a: pickled(load(*a), ranks)

    def prepare_store(*arguments):
        output = store(*arguments)
        output.store_spec = pickled(output.store_spec, ranks)
        return output

    manager.prepare_store = prepare_store


class Host:
    def __init__(self, engine="one", worker=True, memory=None, **options):
        self.spec = ours.KvcacheOffloadingSpec(config(engine, **options))
        self.caches = memory or caches(*[PAGE] * LAYERS, groups=len(options.get("groups", (0,))))
        self.worker = ours.KvcacheWorker(ours.KvcacheOffloadingSpec(config(engine, **options)), self.caches, 0,
                                         lambda: stream.value) if worker else None
        self.manager = self.spec.get_manager()
        pickles(self.manager)
        if worker:
            until(self.manager._ready, "the worker never takes part")
        self.number, self.slowest_s, self.counted = 0, 0.0, {}

    def timed(self, call, *arguments, **options):
        started = time.monotonic()
        try:
            return call(*arguments, **options)
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def begin(self, name):
        context = (fake_vllm.ReqContext33 if VERSION != "0.26" else fake_vllm.ReqContext26)(name)
        self.timed(self.manager.on_new_request, context)
        return context

    def end(self, context):
        self.timed(self.manager.on_request_finished, context)
        self.step()

    def step(self):
        self.timed(self.manager.on_schedule_end, None)

    def looked_up(self, name, keys, found):
        """Begins a request and looks its keys up, of which `found` must be found. Returns its context."""
        context = self.begin(name)
        assert self.lookup(keys, context) == found, self.counts()
        return context

    def offered(self, keys, context):
        """Ends the schedule of a step that offers chunks for storing. vLLM 0.33 ends it after the offer, and 0.26 before. Returns the answer."""
        if VERSION == "0.26":
            self.step()
        output = self.timed(self.manager.prepare_store, keys, context)
        if VERSION != "0.26":
            self.step()
        return output

    def lookup(self, keys, context, seconds=60):
        """Returns how many leading keys are promised, after as many steps as necessary."""
        if VERSION != "0.26":
            for i, key in enumerate(keys):
                context._offload_key_positions.setdefault(key, 16 * self.spec.per_chunk * (i + 1))
        deadline = time.monotonic() + seconds
        while True:
            hits, deferred = 0, False
            for key in keys:
                said = self.timed(self.manager.lookup, key, context)
                if said is LookupResult.MISS:
                    break
                hits, deferred = hits + (said is LookupResult.HIT), deferred or said in (LookupResult.RETRY, LookupResult.HIT_PENDING)
            self.step()
            if not deferred:
                return hits
            assert time.monotonic() < deadline, "the lookup is never answered"
            pause()

    def finish(self, number):
        deadline = time.monotonic() + 60
        ended = []
        while not ended:
            assert time.monotonic() < deadline, f"job {number} is never reported"
            ended = self.worker.get_finished()
            self.step()
            if not ended:
                pause()
        assert [e.job_id for e in ended] == [number] and ended[0].success
        return ended[0]

    def store(self, keys, context, first=0, prepared=lambda: None):
        """Stores what is missing. Calls prepared() between the scheduler's and the worker's part."""
        for i, key in enumerate(keys):
            for layer, one in enumerate(self.caches.tensors):
                one.tensor.write(first + i, value_of(key, layer))
        output = self.timed(self.manager.prepare_store, keys, context)
        assert set(output.keys_to_store) <= set(keys) and not output.evicted_keys
        blocks = [first + keys.index(k) for k in output.keys_to_store]
        prepared()
        self.number += 1
        assert self.timed(self.worker.submit_store, self.number, ns(block_ids=blocks, group_sizes=[len(blocks)], block_indices=[0]),
                          output.store_spec)
        self.finish(self.number)
        self.manager.complete_store(output.keys_to_store, context)
        for block in blocks:  # the engine may use the blocks again
            for one in self.caches.tensors:
                one.tensor.write(block, b"U" * PAGE)
        return len(blocks)

    def load(self, keys, context, first=40):
        self.number += 1
        spec = self.timed(self.manager.prepare_load, keys, context)
        blocks = [first + len(keys) - 1 - i for i in range(len(keys))]
        for block in blocks:
            for one in self.caches.tensors:
                one.tensor.write(block, b"Z" * PAGE)  # vLLM zeroes a block first, and the load must overwrite all of it
        assert self.timed(self.worker.submit_load, self.number, spec, ns(block_ids=blocks, group_sizes=[len(blocks)], block_indices=[0]))
        del spec
        self.worker.wait({self.number})
        self.finish(self.number)
        self.timed(self.manager.complete_load, keys, context)
        for key, block in zip(keys, blocks):
            for layer, one in enumerate(self.caches.tensors):
                assert one.tensor.read(block) == value_of(key, layer), f"wrong bytes in block {block}, layer {layer}"

    def stored(self, name, keys, first=0):
        context = self.begin(name)
        self.lookup(keys, context)
        n = self.store(keys, context, first)
        self.end(context)
        return n

    def found(self, name, keys):
        context = self.begin(name)
        hits = self.lookup(keys, context)
        if hits:
            self.load(keys[:hits], context)
        self.end(context)
        return hits

    def works(self, clock, seconds):
        """The engine has a request, and steps, for so long by a clock of its own."""
        context = self.begin(f"works until {clock.now + seconds}")
        for _ in range(seconds):
            self.step()
            clock.now += 1.0
        self.end(context)

    def counts(self):
        for name, value in self.manager.get_stats().values.items():
            self.counted[name.removeprefix("vllm:kv_offload_kvcache_")] = value
        return self.counted

    def close(self):
        self.worker.shutdown()
        self.manager.shutdown()


def stored_and_loaded():
    host, keys = Host(), keys_of("a", 37)
    assert host.found("0", keys) == 0
    assert host.stored("1", keys) == 37 and host.stored("2", keys) == 0
    assert host.found("3", keys + keys_of("never", 3)) == 37
    if VERSION != "real":
        counts = host.counts()
        assert counts["stored_bytes"] == counts["loaded_memory_bytes"] == 37 * LAYERS * PAGE and counts["up"] == 1, counts
        assert {"vllm:kv_offload_kvcache_" + n for n in counts} <= set(type(host.spec).build_metric_definitions({}))
    assert host.manager._watchdog._storing == 0, "stores that have ended count as under way"
    assert repr(host.spec) == "<KvcacheOffloadingSpec: the scheduler's side, 1 GPU>"
    name = host.worker.spec.names[0]
    assert repr(host.worker.spec).startswith(f"<KvcacheOffloadingSpec {name!r}: "), repr(host.worker.spec)
    beside = Host("two")
    assert beside.found("4", keys) == 37
    host.close()
    assert beside.found("5", keys) == 37
    beside.close()


def killed_after_a_store():
    host = Host()
    assert host.stored("1", keys_of("kept", 20)) == 20
    os.kill(os.getpid(), 9)


def next_engine():
    host = Host("next")
    assert host.found("1", keys_of("kept", 20)) == 20
    host.close()


def from_disk():
    host, keys = Host(ack="written"), keys_of("disk", 12)
    assert host.stored("1", keys) == 12
    with kvcache.Client(SOCKET) as client:
        client.namespace(host.worker.spec.names[0], host.worker.spec.fields).evict([identity.parts_of(k, 1)[0] for k in keys], memory_only=True)
    assert host.found("2", keys) == 12
    host.step()
    [rates] = (p.rates for p in host.manager._policies.values())
    assert rates[1] > 0, "nothing was learned of the disk"
    assert VERSION == "real" or host.counts()["loaded_disk_bytes"] > 0
    host.close()


def stored_for_other_hosts():
    host = Host()
    assert host.stored("1", keys_of("others", 20)) == 20 and host.stored("2", keys_of("single", 1)) == 1
    host.close()


def shared_tier_of(host):
    deadline = time.monotonic() + 60
    assert host.manager._ready() is not None
    while not host.manager._shared.on:
        assert time.monotonic() < deadline, "it knows of no shared tier"
        time.sleep(0.005)


def from_the_shared_tier():
    """A host that has some of the chunks itself gets the others from the shared tier and asks for none twice. A host with the shared
    tier switched off gets only its own."""
    off, keys = Host("off", kvcache_remote=False), keys_of("others", 20)
    assert off.stored("1", keys[:5]) == 5
    host = Host()
    shared_tier_of(host)
    asking, reach = [], kvcache.Namespace.reach
    kvcache.Namespace.reach = lambda *a, **options: asking.append(threading.get_ident()) or reach(*a, **options)
    assert off.found("2", keys) == 5 and off.manager._shared is None
    off.close()
    assert host.found("single", keys_of("single", 1)) == 1
    assert host.found("3", keys + keys_of("never", 2)) == 20
    host.step()
    counts = host.counts()
    assert counts["loaded_remote_bytes"] == 16 * LAYERS * PAGE and counts["loaded_memory_bytes"] == 5 * LAYERS * PAGE, counts
    assert "failed_fetches" not in counts and "failed_loads" not in counts, counts
    assert counts["remote_bytes_per_second"] > 0
    assert host.found("4", keys) == 20 and "loaded_remote_bytes" not in host.manager.get_stats().values
    assert asking and threading.get_ident() not in asking, "the engine's thread asks the shared tier"
    thread = host.manager._shared._thread
    host.close()
    assert not thread.is_alive(), "the thread of the searches stays"


def first_chunks_from_elsewhere():
    """Chunks that another request computes meanwhile are not loaded, because vLLM no longer asks for them."""
    host, keys = Host(), keys_of("others", 20)
    shared_tier_of(host)
    context = host.begin("1")
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    for _ in range(2):  # vLLM may ask twice in a step
        assert host.manager.lookup(keys[0], context) is LookupResult.HIT_PENDING
        assert all(host.manager.lookup(k, context) is LookupResult.HIT_PENDING for k in keys)
    host.step()
    assert host.manager._requests["1"].sought and host.lookup(keys[5:], context) == 15
    host.load(keys[5:], context)
    host.end(context)
    host.close()


def window_of(host, keys, size, context):
    """Returns the result of vLLM's lookup for a sliding window: the end of the last run of `size` chunks, or None while a chunk waits."""
    run, waits = 0, False
    for at in reversed(range(len(keys))):
        said = host.manager.lookup(keys[at], context)
        run, waits = 0 if said is LookupResult.MISS else run + 1, waits or said is LookupResult.HIT_PENDING
        if run == size:
            return None if waits else at + size
    return None if waits else run


def sliding_window_from_the_shared_tier():
    """Chunks of a sliding window are found although vLLM asks for the last chunk first, and no host has the chunks after the window."""
    host, keys = Host(), keys_of("others", 20) + keys_of("never", 2)
    shared_tier_of(host)
    begin, begun = host.manager._shared.begin, []
    host.manager._shared.begin = lambda group, keys, *a: begun.append(keys) or begin(group, keys, *a)
    context, end, deadline = host.begin("1"), None, time.monotonic() + 60
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    while end is None:
        end = window_of(host, keys, 4, context)
        host.step()
        assert time.monotonic() < deadline, "never answered"
        pause()
    assert end == 20 and len(begun[0]) == 4, begun  # together
    host.load(keys[16:20], context)
    host.end(context)
    host.close()


def daemon_ends_before_the_load():
    host, keys = Host(), keys_of("gone", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    told("kill")
    host.load(keys, context)
    host.end(context)
    assert not host.worker.mover.loads.rescued, "the daemon's memory is still registered, and no use was made of that"
    assert host.found("3", keys) == 0 and host.stored("4", keys_of("later", 3)) == 0
    assert VERSION == "real" or host.counts()["up"] == 0
    told("start")
    found_again(host, keys_of("back", 4))
    assert VERSION == "real" or host.counts()["up"] == 1
    assert host.slowest_s < deadlines.PATIENT_S, "a call of the engine's waited"
    assert not host.worker.mover.loads.rescued
    until(lambda: len(host.worker.mover._gpu.pools()) == 1, "the old daemon's memory stays registered")
    host.close()


def leases_in_as_many_pools_as_are_kept():
    """Requests that wait hold leases in the memory of several daemons that have ended. Their loads are right, however many daemons follow."""
    host, waiting = Host(), []
    for n in range(page.MOST_POOLS):
        keys = keys_of(f"of daemon {n}", 5)
        found_again(host, keys)
        waiting.append((keys, host.looked_up(f"waits {n}", keys, 5)))
        told("restart")
    one, tried = host.worker.mover, threading.Semaphore(0)
    until(lambda: one._client.info() is not None, "the rank never connects to the last daemon")
    again = one._attach_again
    one._attach_again = lambda: (again(), tried.release())
    for _ in range(2):  # a call may have been under way
        one.attach_soon()
        assert tried.acquire(timeout=60), "the rank never tries to attach to the last daemon"
    del one._attach_again
    for keys, context in waiting:
        host.load(keys, context)
        host.end(context)
    assert not host.worker.mover.loads.rescued
    found_again(host, keys_of("later", 4))
    until(lambda: len(host.worker.mover._gpu.pools()) == 1, "the memory of earlier daemons stays registered")
    host.close()


def daemon_hangs_once_it_is_attached():
    """An engine's start does not wait for a daemon whose memory is registered already, and which then hangs or gets no core."""
    renew, renewed = kvcache._gpu.Gpu.renew, []

    def renews(one, namespace):
        renewed.append(renew(one, namespace))
        told("stop")
        return renewed[0]

    kvcache._gpu.Gpu.renew = renews
    spec = ours.KvcacheOffloadingSpec(config("one"))
    worker = ours.KvcacheWorker(spec, caches(*[PAGE] * LAYERS), 0, lambda: stream.value)
    kvcache._gpu.Gpu.renew = renew
    assert renewed == [True] and worker.mover._attached.is_set(), "the start has waited for the daemon as long as it waits at all"
    told("continue")
    worker.shutdown()


def only_loads_after_a_restart():
    """After a restart of the daemon, which keeps the chunks on disk, an engine that has nothing to store still has its memory registered."""
    host, keys = Host(ack="written"), keys_of("kept", 10)
    assert host.stored("1", keys) == 10
    told("restart")
    found_again(host, keys, stores=False)
    assert not host.worker.mover.loads.rescued
    host.close()


def daemon_hangs_before_the_load():
    host, keys = Host(timeout_s=5.0), keys_of("hung", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    promises.LOOKUP_S = 1.0
    told("stop")
    host.load(keys, context)
    host.end(context)
    assert not host.worker.mover.loads.rescued, "a load waits for the daemon"
    assert host.found("3", keys) == 0
    assert host.slowest_s < deadlines.PATIENT_S, "a call of the engine's waited for more than a lookup's deadline"
    told("continue")
    found_again(host, keys, stores=False)
    host.close()


def declined():
    host, keys = Host(load_policy="auto", prefill_tokens_per_s=1e9, memory_bytes_per_s=1e6, disk_bytes_per_s=1e6), keys_of("slow", 8)
    host.stored("1", keys)
    assert host.found("2", keys) == 0
    assert VERSION == "real" or host.counts()["declined"] >= 1
    host.close()


def ended_or_reset_before_the_load():
    """Leases that arrive for an ended request are released."""
    host, keys = Host(), keys_of("ended", 10)
    host.stored("1", keys)
    context = host.begin("2")
    host.manager.lookup(keys[0], context)
    host.end(context)
    context = host.looked_up("3", keys, 10)
    host.manager.reset_cache()
    assert host.lookup(keys, context) == 10
    host.load(keys, context)
    host.end(context)
    told("leases")
    host.close()


def forgotten_after_a_reset():
    """With after_reset "forget", a reset ends the reuse of what was stored before, also of the engine's own chunks: the weights may be others.
    A store that was prepared before the reset is not found after it. No other engine finds the chunks that are stored after it."""
    beside, host, keys = Host("beside"), Host(after_reset="forget"), keys_of("forgotten", 10)
    assert host.stored("1", keys[:5]) == 5 and host.found("2", keys) == 5 and beside.found("3", keys) == 5
    context = host.begin("4")
    assert host.lookup(keys, context) == 5
    assert host.store(keys[5:], context, prepared=host.manager.reset_cache) == 5
    assert host.lookup(keys, context) == 0, "the request goes on with what was found before"
    host.end(context)
    assert host.found("5", keys) == 0
    assert beside.found("6", keys) == 10, "other engines lose the chunks"
    for at in range(2):
        assert host.stored(f"{at}", keys) == 10 and host.found(f"again {at}", keys) == 10
        host.manager.reset_cache()
        assert host.found(f"forgotten {at}", keys) == 0
    mine = keys_of("of this engine alone", 4)
    assert host.stored("7", mine) == 4 and host.found("8", mine) == 4 and beside.found("9", mine) == 0
    try:
        Host(after_reset="never")
    except ValueError as e:
        assert "after_reset must be 'keep' or 'forget', not 'never'" in str(e)
    else:
        raise AssertionError("an unknown value is accepted")
    early = Host("early", worker=False, after_reset="forget")
    early.manager.reset_cache()
    early.worker = ours.KvcacheWorker(ours.KvcacheOffloadingSpec(config("early")), early.caches, 0, lambda: stream.value)
    until(early.manager._ready, "the worker never takes part")
    assert early.found("10", keys) == 0, "a reset before the first lookup is forgotten"
    early.close()
    beside.close()
    host.close()


def held_before_a_reset():
    """A request that holds chunks when vLLM resets its cache does not load them afterwards, although another request has stored chunks of the
    new weights under the same keys. Neither does a request whose leases arrive only after the reset."""
    global weights
    host, keys, late = Host(after_reset="forget"), keys_of("held", 10), []
    client = host.manager._promises._client
    reap = client.reap

    def asked(context, answers):
        """Looks the keys up until so many answers about leases have arrived, and keeps these."""
        client.reap = lambda timeout: late.extend(reap(timeout)) or []
        while len(late) < answers:
            for key in keys:
                assert host.manager.lookup(key, context) is not LookupResult.HIT
            host.step()
            pause()

    assert host.stored("1", keys) == 10
    holds, asks = host.looked_up("holds", keys, 10), host.begin("asks")
    if VERSION != "0.26":
        asks._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    asked(asks, 1)
    host.manager.reset_cache()
    weights = b"new"
    assert host.stored("2", keys) == 10
    asked(asks, 2)
    arrive = [[late[0]], *[[]] * 4, [late[1]]]  # a lookup of a step comes between the two
    client.reap = lambda timeout: arrive.pop(0) if arrive else reap(timeout)
    for context in asks, holds:
        assert host.lookup(keys, context) == 10
        host.load(keys, context)
        host.end(context)
    host.close()


def waits_for_room():
    """A request whose leases do not fit beside those of another one waits until they have ended, for a while. Alone, it loads what fits."""
    host, keys, others = Host(), keys_of("first", 9), keys_of("second", 9)
    for each in keys, others:
        assert host.stored(f"store {each[0]}", each) == 9
    promises.ROOM_S = 60.0
    assert 9 <= host.found("alone", keys + others) < 18, "the limit does not lie between one request and two"
    assert not host.counts().get("lease_waits")

    first = host.looked_up("1", keys, 9)
    second = host.begin("2")
    try:
        host.lookup(others, second, seconds=0.2)
    except AssertionError as e:
        assert "never answered" in str(e)
    else:
        raise AssertionError("the second request does not wait")
    assert host.manager.has_pending_work() and host.counts()["lease_waits"], host.counts()
    host.load(keys, first)
    host.end(first)
    assert host.lookup(others, second) == 9
    host.load(others, second)
    host.end(second)
    host.counts()

    promises.ROOM_S = 0.0
    host.counted.clear()
    first = host.looked_up("3", keys, 9)
    second = host.begin("4")
    fit = host.lookup(others, second)
    assert 0 < fit < 9 and host.lookup(others, second) == fit and host.counts()["failed_loads"] == 1, host.counts()
    host.load(others[:fit], second)
    host.end(second)
    host.load(keys, first)
    host.end(first)

    promises.ROOM_S = 60.0
    first, second, third = host.looked_up("5", keys, 9), host.begin("6"), keys_of("third", 4)
    assert host.stored("store third", third) == 4
    for _ in range(50):
        for key in others:
            host.manager.lookup(key, second)
        host.step()
    host.end(second)
    host.end(first)
    assert host.found("7", third) == 4 and host.found("8", others) == 9
    host.close()


def copied_in_each_way():
    """Loads and stores have the right bytes with each way of copying."""
    for way in "kernel", "batch", "plain", "bounce":
        host, keys = Host(way, copies=way), keys_of(way, 20)
        assert host.stored("1", keys) == 20 and host.found("2", keys) == 20
        assert not host.counts().get("rescued_loads"), way
        host.close()


def ended_while_leases_are_asked_for():
    """A request ends before the daemon has answered, and the engine has nothing else to do. The spec asks for steps until the leases that
    arrive were released."""
    host, keys = Host(), keys_of("asked", 10)
    assert host.stored("1", keys) == 10 and host.found("2", keys) == 10
    until(lambda: (host.step(), not host.manager.has_pending_work())[1], "the spec never comes to rest")
    until(lambda: host.manager._promises.where(keys) and host.manager._promises._client.info().lookup_bytes, "the index never answers")
    told("stop")
    context = host.begin("3")
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    while not host.manager._promises._requests or not host.manager._promises._requests["3"].asked:
        assert all(host.manager.lookup(k, context) is LookupResult.HIT_PENDING for k in keys)
        host.step()
    host.end(context)
    waits = host.manager.has_pending_work()
    told("continue")
    assert waits, "the engine rests, and leases will arrive"
    until(lambda: (host.step(), not host.manager.has_pending_work())[1], "the spec never comes to rest")
    told("leases")
    host.close()


def aborted_while_it_loads():
    """A request may end before its load does, after which the engine steps only as long as the spec asks for it."""
    host, keys = Host(), keys_of("aborted", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    spec = host.manager.prepare_load(keys, context)
    host.number += 1
    assert host.worker.submit_load(host.number, spec, ns(block_ids=list(range(40, 50)), group_sizes=[10], block_indices=[0]))
    host.end(context)
    del spec
    while not host.worker.get_finished():
        time.sleep(0.001)
    host.manager.complete_load(keys, context)
    while host.manager.has_pending_work():
        host.step()
        pause()
    told("leases")
    host.close()


def loads_whatever_fails():
    """Only the GPU's driver can make a load fail, because vLLM asserts that loads succeed."""
    host, keys = Host(), keys_of("fails", 10)
    host.stored("1", keys)
    loads, gpu = host.worker.mover.loads, host.worker.mover._gpu
    copy_leased, calls = gpu.copy_leased, []

    def fails(*arguments, **options):
        if not arguments[1]:  # an attachment
            return copy_leased(*arguments, **options)
        calls.append(arguments)
        raise error

    unserved = loads._unserved
    for name, error in (("stale", OSError(errno.ESTALE, "stale")), ("refused", OSError(errno.EIO, "refused"))):
        gpu.copy_leased, asked = fails, []
        loads._unserved = lambda asked=asked: asked.append(1) or unserved()
        assert host.found(name, keys) == 10 and len(calls) == 1
        assert asked, "no new attachment is requested, and loads stay slow"
        del gpu.copy_leased, calls[:]
    assert loads.rescued == 20 and (VERSION == "real" or host.counts()["rescued_loads"] == 20)
    context = host.looked_up("elsewhere", keys, 10)
    spec = host.manager.prepare_load(keys, context)
    where = ns(block_ids=list(range(40, 50)), group_sizes=[10], block_indices=[0])
    for pool, offset in ((spec.pool ^ 1, 0), (spec.pool, 1 << 40), (spec.pool, gpu.pool_memory(spec.pool)[1] - PAGE)):
        wrong = pickled(spec)
        wrong.pool, wrong.offsets[3] = pool, offset or wrong.offsets[3]
        try:
            host.worker.submit_load(7, wrong, where)
            raise SystemExit(f"a load of {pool:x} + {offset} was taken")
        except RuntimeError as e:
            assert "compute with wrong KV" in str(e), e
    host.manager.complete_load(keys, context)
    host.end(context)
    assert host.found("good", keys) == 10 and loads.rescued == 20
    context = host.looked_up("copies fail", keys, 10)
    gpu.reap_leased = lambda timeout: [(number, errno.EIO, seconds) for number, _, seconds in kvcache._gpu.Gpu.reap_leased(gpu, timeout)]
    number, ended = load_of(host, keys, context, 40), []
    until(lambda: ended.extend(host.worker.get_finished()) or ended, "the load never ends")
    del gpu.reap_leased
    assert [(e.job_id, e.success) for e in ended] == [(number, False)], "blocks that were not loaded are taken for good"
    assert [s for s in loads.samples if s[1] > 0] == [], "a load that failed shows no rate"
    host.manager.complete_load(keys, context)
    host.end(context)
    host.close()


def loads_in_the_engine_s_thread():
    """A load involves neither the daemon nor another thread, and is timed by the GPU's clock."""
    host, keys = Host(), keys_of("direct", 40)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 40)
    threads, copy_leased = [], host.worker.mover._gpu.copy_leased
    host.worker.mover._gpu.copy_leased = lambda *a, **o: threads.append(threading.get_ident()) or copy_leased(*a, **o)
    # The thread of the mover does nothing. It waits without the lock, which the engine's thread takes as well.
    held, changed = threading.Event(), host.worker.mover._changed
    host.worker.mover._next = lambda: changed.wait_for(held.is_set) and []
    host.load(keys, context)
    assert threads == [threading.get_ident()]
    host.step()
    assert host.manager._policies[0].memory_samples == 1
    del host.worker.mover._next
    with changed:
        held.set()
        changed.notify_all()
    host.end(context)
    host.close()


def load_of(host, keys, context, first, **options):
    spec = host.manager.prepare_load(keys, context)
    host.number += 1
    where = ns(block_ids=list(range(first, first + len(keys))), group_sizes=[len(keys)], block_indices=[0])
    assert host.timed(host.worker.submit_load, host.number, spec, where, **options)
    return host.number


def expedited():
    """With vLLM 0.33, which loads before the forward pass of the same step, the thread does not wait, and the pass sees the blocks."""
    host, keys = Host(), keys_of("sync", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    cuda.stub_run(False)  # streams stand still
    vllm_worker.step_begins()  # behind it vLLM zeroes the new blocks
    for block in range(40, 50):
        for one in host.caches.tensors:
            one.tensor.write(block, b"Z" * PAGE)  # an earlier step that is not over
    number = load_of(host, keys, context, 40, expedited=True)
    host.worker.wait({number})
    assert not host.worker.get_finished(), "the load is reported before its copies are done"
    seen = [[ctypes.create_string_buffer(PAGE) for _ in range(LAYERS)] for _ in keys]
    for i in range(10):
        for layer, one in enumerate(host.caches.tensors):
            one.tensor.copy(ctypes.addressof(seen[i][layer]), one.tensor.address + (40 + i) * PAGE)
    cuda.stub_run(True)
    host.finish(number)
    with relaxed():
        assert not cuda.cuStreamSynchronize(stream)
    for i, key in enumerate(keys):
        for layer in range(LAYERS):
            assert seen[i][layer].raw == value_of(key, layer), "the forward pass does not see what was loaded"
    host.manager.complete_load(keys, context)
    host.end(context)
    host.close()


def waited_for_a_load():
    """An engine that waits for a load, because it needs the blocks otherwise, continues when all copies of the load are made."""
    host, keys = Host(), keys_of("needed", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    gpu = host.worker.mover._gpu
    cuda.stub_run(False)
    number = load_of(host, keys, context, 40)
    assert not host.worker.get_finished()
    gpu.reap_leased = lambda timeout: (cuda.stub_run(True), kvcache._gpu.Gpu.reap_leased(gpu, timeout))[1]  # the device continues
    host.worker.wait({number})
    cuda.stub_run(False)
    del gpu.reap_leased
    assert [e.job_id for e in host.worker.get_finished()] == [number], "the engine does not wait for the load"
    cuda.stub_run(True)
    host.manager.complete_load(keys, context)
    host.end(context)
    host.close()


def beside_the_forward_pass():
    """A load that begins after the step was launched waits only for the work that was in the stream when the step began."""
    host, keys, first = Host(), keys_of("beside", 4), 0
    host.stored("1", keys)
    for seed in range(20):
        context = host.looked_up(str(seed), keys, 4)
        passed = []
        cuda.stub_run(False)
        for block in range(40, 44):
            for one in host.caches.tensors:
                one.tensor.write(block, b"Z" * PAGE)
        vllm_worker.step_begins()
        called = CALLBACK(lambda _, passed=passed: passed.append(1))
        written.append(called)
        for _ in range(100):  # the forward pass
            one.tensor.copy(one.tensor.address, one.tensor.address + PAGE)
        assert not cuda.cuLaunchHostFunc(stream, called, None)
        number, steps = load_of(host, keys, context, 40), seed
        ended = []
        while not ended:
            assert cuda.stub_step(steps)
            steps, ended = steps + 1, host.worker.get_finished()
        first += not passed
        cuda.stub_run(True)
        assert [e.job_id for e in ended] == [number]
        for i, key in enumerate(keys):
            for layer, one in enumerate(host.caches.tensors):
                assert one.tensor.read(40 + i) == value_of(key, layer)
        host.manager.complete_load(keys, context)
        host.end(context)
    assert first, "a load waits for the forward pass"
    host.close()


def a_step_that_did_not_say_that_it_began():
    """vLLM's step has an event before it only where it has loads. A load of another step follows all that the stream holds."""
    host, keys, begun = Host(), keys_of("not begun", 4), []
    host.stored("1", keys)
    begins = vllm_worker._beginning(lambda *a: None)
    loads, step_begins = host.worker.mover.loads, host.worker.mover.loads.step_begins
    loads.step_begins = lambda: begun.append(1) or step_begins()
    for metadata, count in ((ns(load_jobs={}), 0), (ns(load_jobs={7: None}), 1), (ns(), 1), (None, 1)):
        begins(None, ns(kv_connector_metadata=metadata))
        assert len(begun) == count, metadata
        begun.clear()
    del loads.step_begins
    for seed in range(20):
        context = host.looked_up(str(seed), keys, 4)
        vllm_worker.step_begins()
        host.worker.get_finished()
        cuda.stub_run(False)
        for block in range(40, 44):
            for one in host.caches.tensors:
                one.tensor.write(block, b"Z" * PAGE)
        number, steps = load_of(host, keys, context, 40), seed
        ended = []
        while not ended:
            assert cuda.stub_step(steps)
            steps, ended = steps + 1, host.worker.get_finished()
        cuda.stub_run(True)
        assert [e.job_id for e in ended] == [number]
        for i, key in enumerate(keys):
            for layer, one in enumerate(host.caches.tensors):
                assert one.tensor.read(40 + i) == value_of(key, layer), "a load came before earlier work of the engine's"
        host.manager.complete_load(keys, context)
        host.end(context)
    host.close()


def prefill_rate():
    """vLLM has a step's chunks offered while it schedules the step: what computes them comes after that. And it offers what its own
    prefix cache has."""
    host, keys = Host(load_policy="auto"), keys_of("rate", 60)
    begun = time.monotonic()
    context = host.begin("1")
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    assert host.manager.lookup(keys[20], context) is LookupResult.MISS  # 20 are in the GPU, 40 are computed
    output = host.offered(keys, context)
    assert len(output.keys_to_store) == 60
    after(0.2)
    host.number += 1
    host.worker.submit_store(host.number, ns(block_ids=list(range(60)), group_sizes=[60], block_indices=[0]), output.store_spec)
    del output
    host.finish(host.number)
    host.step()
    (policy,) = host.manager._policies.values() if isinstance(host.manager._policies, dict) else host.manager._policies
    assert 640 / (time.monotonic() - begun) < policy.prefill < 640 / 0.19, policy.prefill
    context = host.begin("2")  # all blocks are in the GPU, so nothing is computed or learned
    host.offered(keys_of("others", 60), context)
    assert policy.prefill < 640 / 0.19, policy.prefill
    host.close()


def prefill_rate_beside_awaited_loads():
    """The time for which a step waits for its loads is no time of computing. A step says nothing while no load has shown how long it waits."""
    host, keys, loaded = Host(load_policy="auto"), keys_of("beside", 60), keys_of("loaded", 10)
    host.stored("0", loaded)
    (policy,) = host.manager._policies.values()
    learned = []
    for number, rate in (("1", 0.0), ("2", len(loaded) * LAYERS * PAGE / 0.9)):  # at that rate 0.9 of the second are the load's
        host.worker.mover.loads.bytes_per_s = rate
        context = host.begin(number)
        if VERSION != "0.26":
            context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
        assert host.manager.lookup(keys[0], context) is LookupResult.MISS
        output = host.offered(keys, context)
        other = host.looked_up(number + " loads", loaded, 10)
        begun = time.monotonic()
        # A second of work, by a function of C: one of Python would wait for the lock that the call of the load keeps.
        assert not cuda.cuLaunchHostFunc(stream, ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), ctypes.c_void_p(1_000_000))
        load_of(host, loaded, other, 60, expedited=True)
        host.number += 1
        host.worker.submit_store(host.number, ns(block_ids=list(range(60)), group_sizes=[60], block_indices=[0]), output.store_spec)
        del output
        until(lambda: (host.worker.get_finished(), host.step(), not host.worker.mover.loads.busy and not host.worker.mover._under_way)[2],
              "the jobs never end")
        took_s = time.monotonic() - begun
        host.manager.complete_load(loaded, other)
        host.end(other)
        host.end(context)
        learned.append(policy.prefill)
        keys = keys_of("beside again", 60)
    assert learned[0] == 0 and learned[1] > 960 / (took_s - 0.45), (learned, took_s)
    host.close()


def prefill_rate_of_chunks_that_others_computed():
    """A request that waits is asked about several times. Chunks that the engine's own prefix cache got meanwhile were computed by another
    request, or by this one before a preemption, and say nothing of the rate of prefill."""
    host, keys, submitted = Host(load_policy="auto"), keys_of("shared", 80), []
    host.stored("0", keys_of("first", 1))
    context = host.begin("1")
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    assert host.manager.lookup(keys[0], context) is LookupResult.MISS  # there is no room for it
    host.step()
    assert host.manager.lookup(keys[40], context) is LookupResult.MISS  # 40 are in the GPU now
    submitted.append(host.offered(keys[:60], context).store_spec.tokens)
    submitted.append(host.offered(keys[60:], context).store_spec.tokens)
    host.manager.lookup(keys_of("another end", 1)[0], context)
    submitted.append(host.offered(keys, context).store_spec.tokens)  # the request was preempted, and all is in the GPU
    other = host.begin("2")
    host.manager.lookup(keys_of("others", 60)[0], other)
    host.step()
    submitted.append(host.offered(keys_of("others", 60), other).store_spec.tokens)  # all of it came to be in the GPU
    assert submitted == [320, 320, 0, 0], submitted
    host.close()


def captures():
    """No call of ours invalidates the capture of a CUDA graph by another thread, whatever call of the driver it begins at, and each call
    restores its thread's capture mode."""
    memory, keys, calls, n, mode = caches(*[PAGE] * LAYERS), keys_of("captured", 8), ctypes.c_uint(1), 1, ctypes.c_int(0)
    while n <= calls.value:
        cuda.stub_arm_capture(n)
        host = Host(f"engine {n}", memory=memory)
        host.stored("1", keys)
        assert host.found("2", keys) == 8
        host.close()
        assert cuda.stub_disarm_capture(ctypes.byref(calls)), f"the capture that began before call {n} of {calls.value} is invalid"
        assert not cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) and mode.value == 0
        n += 1 + n // 3
    assert n > 50


def a_captured_stream_is_left_alone():
    """While the stream is captured, a store is dropped and counted, and a load is refused. The capture continues."""
    host, keys = Host(), keys_of("stream", 4)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 4)
    spec = host.manager.prepare_load(keys, context)
    others = keys_of("other", 4)
    output = host.manager.prepare_store(others, host.begin("3"))
    where = ns(block_ids=[0, 1, 2, 3], group_sizes=[4], block_indices=[0])
    assert not cuda.stub_begin_capture(stream, 0)
    assert host.worker.submit_store(7, where, output.store_spec)
    assert [(e.job_id, e.success) for e in host.worker.get_finished()] == [(7, True)]
    try:
        host.worker.submit_load(8, spec, where)
        raise AssertionError("a load that cannot be ordered was taken")
    except RuntimeError as e:
        assert "captures a CUDA graph" in str(e)
    assert cuda.stub_end_capture(stream)
    assert host.counts()["failed_stores"] == 4
    del spec, output
    host.manager.complete_load(keys, context)
    host.close()


def groups_by_their_numbers():
    """Groups share tensors, and vLLM 0.33 leaves some out."""
    host = Host(groups=(0, 2))
    a, b = keys_of("group", 9), keys_of("group", 7, group=2)
    context = host.begin("1")
    for i, key in enumerate(a + b):
        for layer, one in enumerate(host.caches.tensors):
            one.tensor.write(i, value_of(key, layer))
    output = host.manager.prepare_store(a + b, context)
    assert output.keys_to_store == a + b
    host.number += 1
    host.worker.submit_store(host.number, ns(block_ids=list(range(16)), group_sizes=[9, 7], block_indices=[0, 0]), output.store_spec)
    host.finish(host.number)
    host.end(context)
    context = host.begin("2")
    assert host.lookup(a, context) == 9 and host.lookup(b, context) == 7
    spec = host.manager.prepare_load(a + b, context)
    host.number += 1
    host.worker.submit_load(host.number, spec, ns(block_ids=list(range(40, 56)), group_sizes=[9, 7], block_indices=[0, 0]))
    host.finish(host.number)
    host.manager.complete_load(a + b, context)
    for i, key in enumerate(a + b):
        for layer, one in enumerate(host.caches.tensors):
            assert one.tensor.read(40 + i) == value_of(key, layer)
    host.end(context)
    host.close()


def answered_at_once():
    """A lookup of chunks in memory is answered in the step in which vLLM asks, because each further step of a busy engine may last as long as
    the prefill of other requests."""
    host, keys = Host(), keys_of("at once", 40)
    host.stored("1", keys)
    promises.GRACE_S = 60.0
    context, asked = host.begin("2"), []
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))

    def prefix_lookup(_, keys, req_context):
        """vLLM's own."""
        for at, key in enumerate(keys):
            asked.append(said := host.manager.lookup(key, req_context))
            if said is not LookupResult.HIT:
                return at
        return len(keys)

    assert hooks._telling(prefix_lookup)(None, keys + keys_of("never", 3), context) == 40, asked
    host.load(keys, context)
    host.end(context)
    host.close()


def asked_as_one():
    """A request of 512 chunks takes a few calls, not hundreds, because each takes time of the engine's thread."""
    host, keys = Host(), keys_of("many", 40)
    host.stored("1", keys)
    asked, tiers = [], kvcache.Namespace.tiers
    kvcache.Namespace.tiers = lambda self, k, **options: asked.append(k.count) or tiers(self, k, **options)
    reaped, reap = [], kvcache.Client.reap
    kvcache.Client.reap = lambda self, *a, **options: reaped.append(1) or reap(self, *a, **options)
    steps, step = [], host.step
    host.step = lambda: steps.append(1) or step()
    context = host.begin("2")
    assert host.lookup(keys + keys_of("none", 3), context) == 40
    assert sum(asked) <= 45 and len(asked) <= 3, asked
    assert len(reaped) <= 4 * len(steps) + 2, (len(reaped), len(steps))
    host.load(keys, context)
    host.end(context)
    host.close()


def preempted_and_declined():
    """The policy decides again about a request that is scheduled after a preemption, although it declined it before."""
    host, keys = Host(load_policy="auto", prefill_tokens_per_s=1e9, memory_bytes_per_s=1e6, disk_bytes_per_s=1e6), keys_of("again", 8)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 0)
    for policy in host.manager._policies.values() if isinstance(host.manager._policies, dict) else host.manager._policies:
        policy.prefill = 1e3
        policy.rates[:] = [1e12, 1e12, 1e12]
    host.manager.reset_cache()
    for _ in range(2):  # the request is preempted after its load, before it computes anything
        assert host.lookup(keys, context) == 8
        host.load(keys, context)
    host.end(context)
    host.close()


def told_apart():
    """Bytes with another meaning are never found: another dtype of the model, attention backend, order in a block, or revision."""
    def engine(**changed):
        fake_vllm.current = fake_vllm.configuration(**changed)
        return Host("engine " + str(changed))

    host, keys = engine(), keys_of("apart", 5)
    assert host.stored("1", keys) == 5
    host.close()
    for changed in ({"dtype": "torch.float16"}, {"revision": "b"}, {"layout": "HND"}, {"backend": "FLASHINFER"}, {"draft": "d"},
                    {"hf_overrides": {"rope_theta": 1e6}}, {"hf_overrides": told_apart}):
        other = engine(**changed)
        assert other.found("2", keys) == 0, changed
        other.close()
    same = engine()
    assert same.found("3", keys) == 5
    same.close()
    names = []
    for function in ((lambda config: config), (lambda config: config)):  # one function with two addresses, as in two processes
        fake_vllm.current.model_config.hf_overrides = {"change": function}
        names.append(identity.of_engine())
    assert names[0] == names[1]


def waited_for_first():
    """A store whose blocks the engine needs goes before those that were queued earlier."""
    host, many, few = Host(), keys_of("many", 70), keys_of("few", 2)
    host.stored("0", keys_of("first", 1))
    put, order, entered, go = host.worker.mover._gpu.put, [], threading.Event(), threading.Event()

    def puts(namespace, layout, blocks, keys, **options):
        order.append(len(blocks))
        entered.set()
        assert go.wait(60)
        return put(namespace, layout, blocks, keys, **options)

    host.worker.mover._gpu.put = puts
    mover.FLUSH_S = 60.0
    for number, keys in ((1, many), (2, few)):
        output = host.manager.prepare_store(keys, host.begin(f"request {number}"))
        where = ns(block_ids=list(range(len(keys))), group_sizes=[len(keys)], block_indices=[0])
        host.worker.submit_store(number, where, output.store_spec)
        if number == 1:
            assert entered.wait(60)
    waits = threading.Thread(target=host.worker.wait, args=({2},))
    waits.start()
    while not host.worker.mover._under_way[2].wanted:
        time.sleep(0.001)
    go.set()
    waits.join()
    assert order[:2] == [mover.SLICE_BLOCKS, 2], order
    host.worker.wait({1})
    assert host.counts()["store_wait_seconds"] > 0
    host.worker.get_finished()

    # A slice of a store that the daemon is reading is not over, however long the engine has waited. The other slices are dropped.
    keys, mover.FLUSH_S = keys_of("being read", 70), 0.0
    entered.clear()
    go.clear()
    order.clear()
    output = host.manager.prepare_store(keys, host.begin("3"))
    host.worker.submit_store(3, ns(block_ids=list(range(70)), group_sizes=[70], block_indices=[0]), output.store_spec)
    one = host.worker.mover
    assert entered.wait(60)
    waits = threading.Thread(target=host.worker.wait, args=({3},))
    job = one._under_way[3]
    waits.start()
    until(lambda: job.hurried, "the engine waits on")
    with one._changed:
        pass
    assert 3 in one._under_way and not host.worker.get_finished() and waits.is_alive(), "the engine may overwrite blocks that are being read"
    go.set()
    waits.join()
    assert [e.job_id for e in host.worker.get_finished()] == [3] and one.left_out == 0
    assert order == [mover.SLICE_BLOCKS] and host.counts()["failed_stores"] == 70 - mover.SLICE_BLOCKS, order
    del host.worker.mover._gpu.put
    the_driver_fails_at_stores(host)
    host.close()


def the_driver_fails_at_stores(host):
    """Stores at which the driver fails end, and their chunks count as not stored: one alone, and several together."""
    one, ended, until_computed = host.worker.mover, [], host.worker.mover._cuda.wait_until

    def fails(event):
        until_computed(event)
        raise OSError("the driver fails")

    host.counts()
    host.counted.clear()
    one._cuda.wait_until, mover.GATHER_S = fails, 60.0
    for number, count in ((40, 70), (41, 1), (42, 2)):
        output = host.manager.prepare_store(keys_of(f"fails {number}", count), host.begin(f"request {number}"))
        host.worker.submit_store(number, ns(block_ids=list(range(count)), group_sizes=[count], block_indices=[0]), output.store_spec)
    with one._changed:
        mover.GATHER_S = 0.0
        one._changed.notify_all()
    until(lambda: ended.extend(host.worker.get_finished()) or len(ended) == 3, "a store at which the driver fails never ends")
    assert all(e.success and not e.transfer_size for e in ended)
    assert host.counts()["failed_stores"] == 73, host.counted
    del one._cuda.wait_until
    look, failed = one._look_at_page, threading.Event()
    one._look_at_page = lambda: failed.set() if failed.is_set() else (failed.set(), 1 / 0)
    assert failed.wait(60)
    one._look_at_page = look
    assert host.found("again", keys_of("fails 42", 2)) == 0 and host.stored("again", keys_of("fails 42", 2)) == 2


def small_stores_go_together():
    """Chunks that the engine computes one by one are stored with one request, each in its own namespace, because each request takes time of the
    engine."""
    host = Host(groups=(0, 2))
    keys = keys_of("small", 6) + keys_of("small", 3, group=2)
    host.stored("0", keys_of("first", 1))
    mover.GATHER_S = 60.0
    put, puts = host.worker.mover._gpu.put, []
    host.worker.mover._gpu.put = lambda *a, **o: puts.append(len(a[2])) or put(*a, **o)
    for number, key in enumerate(keys, 10):
        output = host.manager.prepare_store([key], host.begin(f"request {number}"))
        for layer, one in enumerate(host.caches.tensors):
            one.tensor.write(number, value_of(key, layer))
        sizes = [1, 0] if key in keys[:6] else [0, 1]
        host.worker.submit_store(number, ns(block_ids=[number], group_sizes=sizes, block_indices=[0, 0]), output.store_spec)
    assert not host.worker.get_finished() and not puts
    with host.worker.mover._changed:
        mover.GATHER_S = 0.0
        host.worker.mover._changed.notify_all()
    ended = []
    while len(ended) < len(keys):
        ended += host.worker.get_finished()
        pause()
    assert sorted(e.job_id for e in ended) == list(range(10, 19)) and puts == [6, 3], puts
    assert all(e.success and e.transfer_size == LAYERS * PAGE for e in ended)
    del host.worker.mover._gpu.put
    assert host.found("again", keys[:6]) == 6
    assert host.counts()["stored_bytes"] == 10 * LAYERS * PAGE
    host.counted.clear()
    host.worker.mover._gpu.put = lambda *a, **o: bytes([kvcache.BUSY]) + put(*a, **o)[1:]
    mover.GATHER_S, ended = 60.0, []
    for number, key in enumerate(keys_of("refused in part", 3), 30):
        output = host.manager.prepare_store([key], host.begin(f"request {number}"))
        host.worker.submit_store(number, ns(block_ids=[number], group_sizes=[1, 0], block_indices=[0, 0]), output.store_spec)
    with host.worker.mover._changed:
        mover.GATHER_S = 0.0
        host.worker.mover._changed.notify_all()
    until(lambda: ended.extend(host.worker.get_finished()) or len(ended) == 3, "the stores never end")
    assert {e.job_id: e.transfer_size for e in ended} == {30: 0, 31: LAYERS * PAGE, 32: LAYERS * PAGE} and all(e.success for e in ended)
    counts = host.counts()
    assert (counts["stored_bytes"], counts["failed_stores"]) == (2 * LAYERS * PAGE, 1), counts
    host.close()


def gathered_and_waited_for():
    """Small stores that are gathered are read once they are computed, also if the engine has meanwhile waited for one of them long enough."""
    host, keys, numbers = Host(), keys_of("gathered", 4), [20, 21, 22, 23]
    host.stored("0", keys_of("first", 1))
    mover.GATHER_S, mover.FLUSH_S = 60.0, 0.0
    one, order, waits = host.worker.mover, [], threading.Thread(target=host.worker.wait, args=(set(numbers),))
    step, until_computed, put, started = one._step, one._cuda.wait_until, one._gpu.put, threading.Event()

    def steps(jobs):
        waits.start()
        started.set()
        until(lambda: all(j.hurried for j in jobs), "the engine waits on")
        step(jobs)

    one._step = steps
    one._cuda.wait_until = lambda event: (until_computed(event), order.append("computed"))
    one._gpu.put = lambda *a, **o: (order.append("put"), put(*a, **o))[1]
    for number, key in zip(numbers, keys):
        output = host.manager.prepare_store([key], host.begin(f"request {number}"))
        for layer, memory in enumerate(host.caches.tensors):
            memory.tensor.write(number, value_of(key, layer))
        host.worker.submit_store(number, ns(block_ids=[number], group_sizes=[1], block_indices=[0]), output.store_spec)
    with one._changed:
        mover.GATHER_S = 0.0
        one._changed.notify_all()
    until(started.is_set, "the stores never go")
    waits.join()
    assert order == ["computed", "put"], order
    del one._step, one._cuda.wait_until, one._gpu.put
    assert sorted(e.job_id for e in host.worker.get_finished()) == numbers
    context = host.looked_up("again", keys, 4)
    host.load(keys, context)
    host.end(context)
    host.close()


def closed_while_it_stores():
    """After the scheduler's side has ended, stores are dropped and reported, so that the engine does not wait for any of them forever."""
    host, many, few = Host(), keys_of("many", 70), keys_of("few", 2)
    host.stored("0", keys_of("first", 1))
    one, entered, go, mover.FLUSH_S = host.worker.mover, threading.Event(), threading.Event(), 90.0
    put = one._gpu.put
    one._gpu.put = lambda *a, **o: (entered.set(), go.wait(60), put(*a, **o))[2]
    outputs = [host.manager.prepare_store(keys, host.begin(str(len(keys)))) for keys in (many, few)]
    where = [ns(block_ids=list(range(len(keys))), group_sizes=[len(keys)], block_indices=[0]) for keys in (many, few)]
    host.worker.submit_store(1, where[0], outputs[0].store_spec)
    assert entered.wait(60)
    waits = threading.Thread(target=host.worker.wait, args=({1},), daemon=True)
    waits.start()
    host.manager._ranks._page.close(0.0)
    go.set()
    one._thread.join(60)
    waits.join(60)
    assert not one._thread.is_alive() and not waits.is_alive(), "the engine waits for a store that will never be"
    host.worker.submit_store(2, where[1], outputs[1].store_spec)
    assert sorted((e.job_id, e.success) for e in host.worker.get_finished()) == [(1, True), (2, True)]
    host.worker.wait({2})
    host.close()


def hung_while_it_stores():
    """An engine that needs the blocks of stores does not wait for a daemon that hangs."""
    host, keys = Host(timeout_s=30.0), keys_of("stuck", 70)
    host.stored("0", keys_of("first", 1))  # the namespace and the staging memory are open from here on
    context = host.begin("1")
    output = host.manager.prepare_store(keys, context)
    mover.STORE_S = 2.0
    told("stop")
    host.worker.submit_store(88, ns(block_ids=list(range(70)), group_sizes=[70], block_indices=[0]), output.store_spec)
    started = time.monotonic()
    host.worker.wait({88})
    took = time.monotonic() - started
    assert [e.success for e in host.worker.get_finished()] == [True]
    told("continue")
    assert took < 30.0, took
    host.end(context)
    host.close()


def hung_while_it_is_asked():
    """A request does not wait until its timeout for a daemon that hangs, and one that comes back is asked again."""
    host, keys = Host(timeout_s=10 * deadlines.PATIENT_S), keys_of("silent", 10)
    host.stored("1", keys)
    promises.LOOKUP_S, promises.SILENT_S = 1.0, 0.5
    told("stop")
    assert host.found("2", keys) == 0
    told("continue")
    found_again(host, keys, stores=False)
    host.close()


def stores_while_it_attaches():
    """The memory of a new daemon is registered for many seconds. An engine that needs the blocks of stores does not wait for that."""
    host, keys = Host(), keys_of("new memory", 4)
    host.stored("0", keys_of("first", 1))
    one, go_on, begun = host.worker.mover, threading.Event(), threading.Event()
    renew = one._gpu.renew

    def slowly(namespace):
        begun.set()
        assert go_on.wait(deadlines.PATIENT_S)
        return renew(namespace)

    one._gpu.renew = slowly
    one.attach_soon()
    assert begun.wait(deadlines.PATIENT_S)
    output = host.manager.prepare_store(keys, host.begin("1"))
    host.worker.submit_store(88, ns(block_ids=[0, 1, 2, 3], group_sizes=[4], block_indices=[0]), output.store_spec)
    host.worker.wait({88})  # would never return
    assert [e.job_id for e in host.worker.get_finished()] == [88] and one.left_out == 4
    go_on.set()
    one._gpu.renew = renew
    until(lambda: not one._dropped_events, "the event of the store is never dropped")
    assert host.stored("2", keys) == 4
    host.close()


def driver_refuses_the_memory():
    """An engine whose driver does not register the daemon's memory stores, loads nothing, and says so once. It loads when the driver registers the
    memory."""
    lines, register = logged("the daemon's memory"), (b"cuMemHostRegister_v2", 0)
    cuda.stub_fault(*register, 1 << 30, OUT_OF_MEMORY)
    host, keys = Host(ack="written"), keys_of("a", 8)
    assert host.worker.mover._gpu.attached and not host.worker.mover._gpu.pools()
    assert host.stored("1", keys) == 8 and host.found("2", keys) == 0
    until(lambda: len(lines) != 1 or host.worker.mover._try_again_at, "nothing is registered again")
    assert len(lines) == 1 and "refuses to register" in lines[0] and "the pool cannot be registered" in lines[0], lines
    cuda.stub_fault(*register, 0, 0)
    found_again(host, keys, stores=False)
    assert len(lines) == 2 and "registered with the GPU now" in lines[1], lines
    host.close()


class Clock:
    """The adapter's clock for costs stands still unless a test sets it."""

    def __init__(self):
        self.now = 1000.0
        breakeven.clock = lambda: self.now
        mover.GATHER_S = 0.0  # nothing is stored a little later

    def slow_stores(self, worker, seconds):
        """Has each store cost the engine's thread so long."""
        submit = worker.mover.submit

        def submits(number, parts, *more):
            self.now += seconds if parts else 0.0
            submit(number, parts, *more)

        worker.mover.submit = submits


def logged(about="chunks are stored"):
    """Returns a list that gets the lines of the adapter's log with these words; by default, those about stores that pause and resume."""
    lines = []
    log = logging.getLogger("kvcache.vllm")
    log.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage()) if about in record.getMessage() else None
    log.addHandler(handler)
    return lines


def paused_by_its_stores(host, clock):
    """Stores new chunks until stores pause. Returns how often."""
    n = 0
    while not host.manager._watchdog.stores_pause:
        assert host.stored(f"new {n}", keys_of(f"new {n}", 2)) == 2
        host.works(clock, 2)
        n += 1
        assert n < 200, "stores never pause"
    return n


def stores_that_cost_too_much():
    """Stores pause where they cost the engine's thread more than hits save, lookups and loads go on, and stores resume when hits pay."""
    clock, lines = Clock(), logged()
    host = Host(prefill_tokens_per_s=10.0)
    clock.slow_stores(host.worker, 1.0)
    stored = paused_by_its_stores(host, clock)
    assert stored > 5 and len(lines) == 1 and lines[0].startswith("no chunks are stored"), (stored, lines)
    asked, where = [], promises.Promises.where_by_shard
    promises.Promises.where_by_shard = lambda self, keys: asked.append(keys) or where(self, keys)
    context = host.begin("paused")
    assert host.store(keys_of("paused", 3), context) == 0 and not asked, "what is not stored is looked up"
    host.end(context)
    counts = host.counts()
    assert VERSION == "real" or (counts["paused_chunks"], counts["stores_paused"]) == (3, 1.0), counts
    assert VERSION == "real" or counts["store_call_seconds"] == stored <= counts["call_seconds"], counts
    host.works(clock, 59)
    rounds = 0
    while host.manager._watchdog.stores_pause:  # 32 tokens of each hit are 3.2 s of prefill
        assert host.found(f"hit {rounds}", keys_of("new 1", 2)) == 2
        host.works(clock, 1)
        rounds += 1
        assert rounds < 50, "stores never resume"
    assert len(lines) == 2 and lines[1].startswith("chunks are stored again: in the last"), lines
    assert host.stored("resumed", keys_of("paused", 3)) == 3 and host.found("again", keys_of("paused", 3)) == 3
    for i in range(80):  # with such hits they go on
        host.found(f"more {i}", keys_of("new 2", 2))
        assert host.stored(f"more new {i}", keys_of(f"more {i}", 1)) == 1
        host.works(clock, 1)
    assert len(lines) == 2, lines
    assert VERSION == "real" or host.counts()["stores_paused"] == 0.0 and host.counts()["balance_seconds"] > 0
    assert host.counted.keys() <= {n.removeprefix("vllm:kv_offload_kvcache_") for n in type(host.spec).build_metric_definitions({})}
    host.close()


def stores_that_cost_little_or_are_always_wanted():
    """An engine without any hits stores on where that costs it nothing, or where the option says so."""
    clock, lines = Clock(), logged()
    for name, options, seconds in (("normal", {}, 0.01), ("always", {"store_policy": "always"}, 1.0)):
        host = Host(name, prefill_tokens_per_s=10.0, kvcache_namespace=name, **options)
        clock.slow_stores(host.worker, seconds)
        for i in range(40):
            assert host.stored(f"new {i}", keys_of(f"{name} {i}", 1)) == 1
            host.works(clock, 4)
        host.close()
    assert not lines, lines


def without_a_worker():
    host = Host(worker=False)
    context = host.begin("1")
    assert host.lookup(keys_of("x", 2), context) == 0
    assert host.manager.prepare_store(keys_of("x", 2), context).keys_to_store == []
    host.end(context)


def refused():
    for said, make in (("at most 1024 GPUs", lambda: Host(world_size=2000)), ("ack", lambda: Host(ack="soon")),
                       ("load_policy", lambda: Host(load_policy="never")), ("store_policy", lambda: Host(store_policy="never")), ("copies must be one of auto, kernel", lambda: Host(copies="fast")),
                       ("kvcache_start", lambda: Host(kvcache_start="yes")), ("sync_load_budget_bytes", lambda: Host(sync_load_budget_bytes=-1)),
                       ("sync_load_budget_bytes", lambda: Host(sync_load_budget_bytes="4GiB"))):
        try:
            make()
        except ValueError as e:
            assert said in str(e), e
        else:
            raise SystemExit(f"{said}: taken")


def awaited_loads_by_default():
    """vLLM reads its option from the spec, whose default is not vLLM's. A version without such loads prepares none."""
    for options, budget in (({}, ours.SYNC_LOAD_BYTES), ({"sync_load_budget_bytes": 0}, 0), ({"sync_load_budget_bytes": 5}, 5),
                            ({"sync_load_budget_bytes": "5"}, "5"), ({"sync_load_budget_bytes": 5e9}, 5e9)):
        given = config("one", **options)
        spec = ours.KvcacheOffloadingSpec(given)
        assert spec.extra_config["sync_load_budget_bytes"] == budget and spec.extra_config["kvcache_socket"] == SOCKET
        assert given.extra_config.get("sync_load_budget_bytes") == options.get("sync_load_budget_bytes")
        assert spec.has_awaited_loads == (VERSION != "0.26" and int(budget) > 0)


def former_options():
    """The spec accepts the options of llm-d's backend and of LMCache, and names them without their values."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("kvcache.vllm").addHandler(handler)
    os.environ["LMCACHE_MAX_LOCAL_CPU_SIZE"] = "5"
    Host(worker=False, shared_storage_path="/mnt/kv", threads_per_gpu="64", gds_mode="read_only", access_key="a-secret", lookup_mode="dict",
         **{"lmcache.gds_path": "/mnt/kv"})
    named = sorted(text for text in said if "llm-d" in text)
    assert [text.split()[0] for text in named] == ["access_key", "gds_mode", "lookup_mode", "shared_storage_path", "threads_per_gpu"], named
    assert "remote.credentials" in named[0] and "io.gds and io.gds_puts" in named[1] and "needs no such setting" in named[2]
    assert not any("a-secret" in text for text in said), said
    named = sorted(text for text in said if "LMCache" in text)
    assert [text.split()[0] for text in named] == ["LMCACHE_MAX_LOCAL_CPU_SIZE", "lmcache.gds_path"], named
    assert "memory.pool" in named[0] and "store.path" in named[1]


if __name__ == "__main__":
    globals()[SCENARIO]()
    print("right", flush=True)
