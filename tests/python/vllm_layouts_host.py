# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the spec with KV caches whose groups differ, with the host of vllm_spec_host.py, which says how to run them.

All pages lie in one allocation of the device, as in vLLM 0.33. A load is checked by all bytes of the allocation: those of its blocks are
right, and no other byte has changed."""

import ctypes
import hashlib
import random
import types

import kvcache
import vllm_spec_host as base
from kvcache.vllm import arrays, hooks, identity
from kvcache.vllm import spec as ours
from vllm.v1.kv_offload.base import LookupResult
from vllm_spec_host import VERSION, Host, config, cuda, keys_of

ns = types.SimpleNamespace
KIB = 1 << 10
N, STRIDE = 40, 48 * KIB  # blocks, and bytes from one to the next
PLANE = N * STRIDE


class Group:
    """`pages`: of each layer, the plane that it lies in, its first byte in a block's row of the plane, and its bytes without padding."""

    def __init__(self, number, pages, tokens=16, window=None):
        self.number, self.pages, self.tokens, self.window = number, pages, tokens, window

    @property
    def block_bytes(self):
        return sum(nbytes for _, _, nbytes in self.pages)


class Arena:
    def __init__(self, planes):
        address, self.nbytes = ctypes.c_uint64(), planes * PLANE
        assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.nbytes))
        self.address = address.value

    def copy(self, to, source, nbytes):
        assert not cuda.cuMemcpyAsync(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), base.stream)
        with base.relaxed():
            assert not cuda.cuStreamSynchronize(base.stream)

    def write(self, data):
        room = ctypes.create_string_buffer(bytes(data), self.nbytes)
        self.copy(self.address, ctypes.addressof(room), self.nbytes)

    def read(self):
        room = ctypes.create_string_buffer(self.nbytes)
        self.copy(ctypes.addressof(room), self.address, self.nbytes)
        return bytearray(room.raw)


class View:
    """A tensor of vLLM, with a layer's pages as (blocks, bytes)."""

    def __init__(self, address, stride, page):
        self.address, self.shape, self._stride = address, (N, page), stride

    def data_ptr(self):
        return self.address

    def stride(self, _):
        return self._stride


def part_of(key, place, page, nbytes):
    """Returns the bytes of a layer in one block of a chunk."""
    return hashlib.shake_128(key + bytes([place, page])).digest(nbytes)


def memory_of(groups):
    """Returns an arena with the pages of these groups, and the KV caches that vLLM hands over."""
    arena, tensors, refs = Arena(1 + max(plane for g in groups for plane, _, _ in g.pages)), [], []
    for group in groups:
        refs.append([])
        for plane, first, nbytes in group.pages:
            refs[-1].append(ns(tensor_idx=len(tensors), page_size_bytes=nbytes))
            tensors.append(ns(tensor=View(arena.address + plane * PLANE + first, STRIDE, nbytes), page_size_bytes=nbytes))
    return arena, ns(tensors=tensors, group_data_refs=refs)


def config_of(groups, per_chunk, name, **options):
    made = config(name, blocks_per_chunk=per_chunk, **options)
    made.groups = tuple(ns(tokens_per_block=g.tokens, layer_names=tuple(f"{g.number} {i}" for i in range(len(g.pages))), group_id=g.number,
                           **({} if VERSION == "0.26" else {"sliding_window_size_in_chunks": g.window})) for g in groups)
    return made


class Engine(Host):
    """An engine with the given groups. Its chunks have `per_chunk` blocks, a number or one for each group."""

    def __init__(self, groups, per_chunk=1, name="one", **options):
        self.groups, self.per_chunk = groups, per_chunk
        self.arena, self.caches = memory_of(groups)
        made = config_of(groups, per_chunk, name, **options)
        self.spec = ours.KvcacheOffloadingSpec(made)
        self.worker = ours.KvcacheWorker(ours.KvcacheOffloadingSpec(made), self.caches, 0, lambda: base.stream.value)
        self.manager = self.spec.get_manager()
        base.pickles(self.manager)
        if not self.worker._refusal:
            base.until(self.manager._ready, "the worker never takes part")
        self.number, self.slowest_s, self.counted = 0, 0.0, {}

    def begin(self, name, keys=()):
        context = super().begin(name)
        for group, listed in keys:
            self.place(context, {k: (i + 1) * group.tokens * self.per_chunk for i, k in enumerate(listed)})
        return context

    def place(self, context, positions):
        if VERSION != "0.26":
            context._offload_key_positions.update(positions)

    def put_in(self, memory, group, block, key, place, zeros=False):
        for page, (plane, first, nbytes) in enumerate(group.pages):
            at = plane * PLANE + first + block * STRIDE
            memory[at:at + nbytes] = bytes(nbytes) if zeros else part_of(key, place, page, nbytes)

    def submit(self, keys, tables, context, first_chunk=0):
        """Stores like vLLM's scheduler: the chunks of each group, and the blocks of the request, where 0 is none."""
        memory = bytearray(random.Random(7).randbytes(self.arena.nbytes))
        output = self.manager.prepare_store([k for listed in keys for k in listed], context)
        ids, sizes, indices = [], [], []
        for group, listed, table in zip(self.groups, keys, tables):
            there = [(first_chunk * self.per_chunk + i, b) for i, b in enumerate(table)
                     if b and listed[i // self.per_chunk] in output.keys_to_store]
            for i, block in there:
                at = i - first_chunk * self.per_chunk
                self.put_in(memory, group, block, listed[at // self.per_chunk], at % self.per_chunk)
            ids += [b for _, b in there]
            sizes.append(len(there))
            indices.append(there[0][0] if there else 0)
        self.arena.write(memory)
        self.number += 1
        assert self.worker.submit_store(self.number, ns(block_ids=ids, group_sizes=sizes, block_indices=indices), output.store_spec)
        ended = self.finish(self.number)
        assert self.arena.read() == memory, "a store has changed memory of the engine"
        return ended.transfer_size

    def stored(self, name, keys, tables, first_chunk=0):
        context = self.begin(name, zip(self.groups, keys))
        nbytes = self.submit(keys, tables, context, first_chunk)
        self.end(context)
        return nbytes

    def load(self, keys, tables, first_indices, context, zeros=()):
        """Loads the blocks of each group from an index of the request on; `keys`: of the chunks that they lie in."""
        spec = self.manager.prepare_load([k for listed in keys for k in listed], context)
        memory = bytearray(random.Random(8).randbytes(self.arena.nbytes))
        self.arena.write(memory)
        self.number += 1
        where = ns(block_ids=[b for table in tables for b in table], group_sizes=[len(t) for t in tables], block_indices=list(first_indices))
        assert self.worker.submit_load(self.number, spec, where)
        del spec
        self.worker.wait({self.number})
        ended = self.finish(self.number)
        self.manager.complete_load([k for listed in keys for k in listed], context)
        for group, listed, table, first in zip(self.groups, keys, tables, first_indices):
            for i, block in enumerate(table):
                at = first % self.per_chunk + i
                key, place = listed[at // self.per_chunk], at % self.per_chunk
                self.put_in(memory, group, block, key, place, (key, place) in zeros)
        now = self.arena.read()
        assert now == memory, f"byte {next(i for i, (a, b) in enumerate(zip(now, memory)) if a != b):#x} is wrong"
        return ended.transfer_size

    def window(self, keys, size, context, first_size=None):
        """Returns the result of vLLM 0.33's _sliding_window_lookup, after as many steps as it takes."""
        def lookup(_, keys, sliding_window_size, req_context, initial_window_size=None):
            run, need, waits = 0, initial_window_size or sliding_window_size, False
            for at in reversed(range(len(keys))):
                said = self.manager.lookup(keys[at], req_context)
                if said is LookupResult.MISS:
                    run, need, waits = 0, sliding_window_size, False
                else:
                    run, waits = run + 1, waits or said is LookupResult.HIT_PENDING
                if run == need:
                    return None if waits else at + need
            return None if waits else run

        end, steps = None, 0
        while end is None:
            end, steps = hooks._telling_window(lookup)(None, keys, size, context, first_size), steps + 1
            self.step()
            assert steps < 10000
            base.pause()
        return end


def counted(name):
    """Has the calls of a method of Namespace noted by the number of their keys."""
    asked, original = [], getattr(kvcache.Namespace, name)
    setattr(kvcache.Namespace, name, lambda self, keys, *a, **o: asked.append(len(keys)) or original(self, keys, *a, **o))
    return asked


def chunks_in_the_daemon(engine, keys):
    """Returns the chunks of a group."""
    with kvcache.Client(base.SOCKET) as client:
        namespace = client.namespace(engine.worker.spec.names[identity.group_of(keys[0])], engine.worker.spec.fields)
        with namespace.get_map([k[:32] for k in keys]) as leased:
            return [bytes(chunk) for chunk in leased]


def patient():
    base.promises.GRACE_S = 60.0  # a lease on memory comes in the step in which it is asked for


PLAIN = [(layer, 0, STRIDE) for layer in range(3)]
PADDED = [(layer, 0, 24 * KIB) for layer in range(3)]
UNEQUAL = [(0, 0, 24 * KIB), (1, 4 * KIB, 512), (2, 0, 40 * KIB + 8)]


def chunk_of_three_blocks_from_the_middle():
    for at, pages in enumerate((PLAIN, PADDED, UNEQUAL)):
        engine = Engine([group := Group(0, pages)], per_chunk=3, name=f"engine {at}")
        keys, table = keys_of(f"three {at}", 4), random.Random(at).sample(range(1, N), 12)
        nbytes = engine.stored("1", [keys], [table])
        assert nbytes == 12 * group.block_bytes, nbytes
        for first, end in ((0, 12), (4, 10), (5, 6), (2, 3), (6, 9), (11, 12)):
            chunks = keys[first // 3:-(-end // 3)]
            context = engine.begin(f"{first} {end}", [(group, keys)])
            assert Host.lookup(engine, chunks, context) == len(chunks)
            moved = engine.load([chunks], [random.Random(end).sample(range(1, N), end - first)], [first], context)
            assert moved == (end - first) * group.block_bytes, moved
            engine.end(context)
        engine.close()


def regions_with_padding():
    for at, pages in enumerate((PADDED, UNEQUAL)):
        engine = Engine([group := Group(0, pages)], name=f"engine {at}")
        keys, table = keys_of(f"padded {at}", 20), list(range(3, 23))
        nbytes = engine.stored("1", [keys], [table])
        assert nbytes == engine.worker.mover.stored_bytes == 20 * group.block_bytes
        context = engine.begin("2", [(group, keys)])
        assert Host.lookup(engine, keys, context) == 20
        engine.load([keys], [list(range(39, 19, -1))], [0], context)
        engine.end(context)
        assert not engine.worker.mover.loads.rescued
        [chunk] = chunks_in_the_daemon(engine, [keys[5]])
        assert chunk == b"".join(part_of(keys[5], 0, i, n) for i, (_, _, n) in enumerate(pages)), "padding is in the chunk"
        engine.close()


def rescued_loads():
    """Parts of chunks are right where the library does not copy, too."""
    engine = Engine([group := Group(0, UNEQUAL)], per_chunk=3)
    keys = keys_of("rescued", 3)
    engine.stored("1", [keys], [list(range(1, 10))])
    context = engine.begin("2", [(group, keys)])
    assert Host.lookup(engine, keys, context) == 3
    gpu = engine.worker.mover._gpu
    copy_leased, gpu.copy_leased = gpu.copy_leased, lambda layout, blocks, pool, *a, **o: copy_leased(layout, blocks, 1, *a, **o)
    engine.load([keys], [[7, 30, 2, 9, 21]], [2], context)
    assert engine.worker.mover.loads.rescued == 5
    del gpu.copy_leased
    engine.end(context)
    engine.close()


def hybrid():
    """Returns three groups, full attention, a window of three chunks, and states. All have the same layers, whose pages share memory in
    different blocks."""
    return [Group(0, [(0, 0, 48 * KIB), (1, 0, 48 * KIB)]), Group(2, [(0, 0, 24 * KIB), (1, 0, 20 * KIB)], window=3),
            Group(3, [(0, 0, 33 * KIB + 64), (1, 64, 16), (2, 0, 40 * KIB)], window=1)]


def groups_of_unequal_pages():
    engine = Engine(groups := hybrid())
    keys = [keys_of("hybrid", n, g.number) for g, n in zip(groups, (12, 5, 1))]
    free = random.Random(1).sample(range(1, N), 18)
    tables = [free[:12], free[12:17], free[17:]]
    nbytes, expected = engine.stored("1", keys, tables), sum(len(k) * g.block_bytes for g, k in zip(groups, keys))
    assert expected <= nbytes <= 1.02 * expected, (nbytes, expected)
    assert sum(len(chunk) for listed in keys for chunk in chunks_in_the_daemon(engine, listed)) == nbytes
    context = engine.begin("2", zip(groups, keys))
    assert Host.lookup(engine, keys[0], context) == 12
    assert engine.window(keys[1], 3, context) == 5 and engine.window(keys[2], 1, context) == 1
    random.Random(2).shuffle(free)
    engine.load([keys[0], keys[1][2:], keys[2]], [free[:12], free[12:15], free[15:16]], [0, 2, 11], context)
    engine.end(context)
    computed_although_a_group_is_found(engine, keys[0], free)
    engine.close()


def computed_although_a_group_is_found(engine, keys, free):
    """A request of which one group has no chunks is computed. The leases that it has in the other group end then, and not with the request. After a
    preemption it is asked about again, and finds what it has stored itself."""
    missing, more = keys_of("absent", 4, engine.groups[1].number), keys_of("computed", 3)
    context = engine.begin("3", zip(engine.groups, (keys + more, missing)))
    assert Host.lookup(engine, keys + more, context) == 12 and engine.window(missing, 3, context) == 0
    assert base.leases() == 12
    engine.submit([more, [], []], [free[:3], [], []], context, 12)
    engine.step()
    base.until(lambda: base.leases() == 0, "leases stay until the request has ended")
    assert Host.lookup(engine, keys + more, context) == 15, "a request does not find what it has stored before its preemption"
    engine.load([keys + more, [], []], [free[:15], [], []], [0, 0, 0], context)
    engine.end(context)


def window_tail_only():
    patient()
    group = Group(0, [(0, 0, 8 * KIB)], window=3)
    engine = Engine([group])
    keys = keys_of("window", 36)
    engine.stored("1", [keys], [list(range(1, 37))])
    for name, asked_for, size, first_size, end in (("end", keys, 3, None, 36), ("beyond", keys + keys_of("never", 500), 3, None, 36),
                                                   ("partly", keys + keys_of("none", 1), 3, 4, 36), ("larger", keys, 3, 4, 36),
                                                   ("beginning", keys[:2], 3, None, 2), ("never", keys_of("no", 700), 3, None, 0)):
        asked, leased = counted("tiers"), counted("submit_get_map")
        context = engine.begin(name, [(group, asked_for)])
        assert engine.window(asked_for, size, context, first_size) == end, name
        need = first_size if first_size and end == len(asked_for) else min(size, end)
        assert asked[0] == min(first_size or size, len(asked_for)) and len(asked) <= 6, asked
        assert sum(leased) == need, (name, leased)
        if end:
            moved = engine.load([asked_for[end - need:end]], [list(range(30, 30 + need))], [end - need], context)
            assert moved == need * group.block_bytes
        engine.end(context)
    engine.close()


def window_behind_a_gap():
    """vLLM needs the window's chunks in a row."""
    patient()
    group = Group(0, [(0, 0, 8 * KIB)], window=3)
    engine = Engine([group])
    keys = keys_of("gaps", 30)
    there = [k for i, k in enumerate(keys) if i not in (0, 10, 20, 23, 26, 28)]
    engine.stored("1", [there], [list(range(1, 1 + len(there)))])
    leased = counted("submit_get_map")
    context = engine.begin("2", [(group, keys)])
    assert engine.window(keys, 3, context) == 20 and sum(leased) == 3, leased
    # Another group has less, so vLLM asks again for the end of a shorter prefix.
    assert engine.window(keys[:19], 3, context) == 19 and sum(leased) == 4, leased
    engine.load([keys[16:19]], [[1, 2, 3]], [16], context)
    engine.end(context)
    engine.close()


def window_on_disk():
    """A whole window is read from disk whatever loading costs, because otherwise everything before it would have to be computed."""
    group = Group(0, [(0, 0, 8 * KIB)], window=3)
    engine = Engine([group], ack="written", load_policy="auto", prefill_tokens_per_s=1e9, disk_bytes_per_s=1e3)
    keys = keys_of("disk", 12)
    engine.stored("1", [keys], [list(range(1, 13))])
    with kvcache.Client(base.SOCKET) as client:
        [name] = engine.worker.spec.names.values()
        client.namespace(name, engine.worker.spec.fields).evict([k[:32] for k in keys], memory_only=True)
    context = engine.begin("2", [(group, keys)])
    assert engine.window(keys, 3, context) == 12
    engine.load([keys[9:]], [[1, 2, 3]], [9], context)
    engine.end(context)
    assert engine.counts()["loaded_disk_bytes"] == 3 * group.block_bytes
    engine.close()


def state_at_boundary():
    """A state is a window of one chunk; with 0.33 a prefix may end within a block."""
    patient()
    group = Group(0, [(0, 0, 40 * KIB + 256), (1, 0, 256)], window=1)
    engine = Engine([group])
    keys, tail = keys_of("states", 20), keys_of("tail", 1)
    engine.stored("1", [[keys[7]]], [[3]], first_chunk=7)
    engine.stored("2", [[keys[15]]], [[4]], first_chunk=15)
    leased = counted("submit_get_map")
    context = engine.begin("3", [(group, keys)])
    assert engine.window(keys, 1, context) == 16 and sum(leased) == 1
    assert engine.load([[keys[15]]], [[9]], [15], context) == group.block_bytes
    engine.end(context)
    context = engine.begin("4", [(group, keys)])
    assert engine.window(keys[:15], 1, context) == 8
    engine.load([[keys[7]]], [[9]], [7], context)
    engine.end(context)
    if VERSION != "0.26":
        context = engine.begin("5")
        engine.place(context, {tail[0]: 8 * 16 + 5})
        engine.submit([tail], [[6]], context)
        engine.end(context)
        context = engine.begin("6", [(group, keys)])
        assert engine.window(keys[:9], 1, context) == 8
        engine.place(context, {tail[0]: 8 * 16 + 5})
        del leased[:]
        assert engine.manager.lookup(tail[0], context) is LookupResult.HIT and leased == [1]
        engine.load([[tail[0]]], [[11]], [8], context)
        engine.end(context)
    engine.close()


def chunk_without_its_first_blocks():
    """Blocks that a window has passed are left out by vLLM. Where vLLM ensures that no load needs them, zeros are stored."""
    arrays.zeros_are_safe = lambda _: VERSION != "0.26"
    group = Group(0, [(0, 0, 8 * KIB), (1, 0, 4 * KIB)], window=1)
    engine = Engine([group], per_chunk=3)
    keys = keys_of("passed", 5)
    stored = engine.stored("1", [keys[1:3]], [[0, 0, 5, 6, 7, 8]], first_chunk=1)
    there = 2 if engine.worker.spec.stores_zeros else 1
    assert stored == there * 3 * group.block_bytes
    context = engine.begin("2", [(group, keys[:3])])
    assert engine.window(keys[:3], 1, context) == 3
    engine.load([[keys[2]]], [[31, 32]], [7], context)
    assert engine.window(keys[:2], 1, context) == (2 if there == 2 else 0)
    if there == 2:
        engine.load([[keys[1]]], [[11]], [5], context)
        assert engine.window(keys[:2], 1, context) == 2
        engine.load([[keys[1]]], [[21, 22, 23]], [3], context, zeros={(keys[1], 0), (keys[1], 1)})
    engine.end(context)
    # Blocks that are left out of another chunk: it is not known which they are.
    assert engine.stored("3", [keys[3:]], [[1, 2, 3, 0, 0, 4]], first_chunk=3) == 0
    counts = engine.counts()
    assert counts["failed_stores"] == 2 + (2 - there), counts
    assert engine.stored("4", [keys[3:]], [[1, 2, 3, 9, 8, 4]], first_chunk=3) == 6 * group.block_bytes
    engine.close()


def window_from_the_shared_tier():
    """The keys of a window are looked for together where a wrapper lists them."""
    host, keys = Host(), keys_of("others", 20)
    base.shared_tier_of(host)
    begin, begun = host.manager._shared.begin, []
    host.manager._shared.begin = lambda group, keys, *a: begun.append(list(keys)) or begin(group, keys, *a)
    context = host.begin("1")
    if VERSION != "0.26":
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    assert Engine.window(host, keys, 4, context) == 20
    assert begun == [keys[:15:-1]], begun
    host.load(keys[16:], context)
    host.end(context)
    host.close()


def attached_whatever_the_size_of_a_chunk():
    """Eight chunks and their padding are no whole number of pages, and the staging memory is."""
    engine = Engine([group := Group(0, UNEQUAL)], per_chunk=300)
    nbytes = 300 * group.block_bytes
    assert nbytes > 16 << 20 and nbytes % 512, nbytes
    assert engine.worker.mover._gpu.attached, engine.worker.mover._gpu.reason
    engine.close()


def told_apart():
    """Chunks with other pages, another order or another number of blocks are never found. The namespaces of plain caches keep their names."""
    def names(groups, per_chunk=1):
        engine = Engine(groups, per_chunk, name=f"engine {len(seen)}")
        name, fact = tuple(engine.worker.spec.names.values()), engine.worker.spec.fields["chunk"]
        engine.close()
        return name, fact

    seen = {}
    for groups, k in (([Group(0, PLAIN)], 1), ([Group(0, PLAIN)], 2), ([Group(0, PADDED)], 1), ([Group(0, UNEQUAL)], 1),
                      ([Group(0, UNEQUAL[::-1])], 1), ([Group(0, UNEQUAL)], 2), ([Group(0, [(0, 0, KIB), (1, 0, 2 * KIB), (2, 0, KIB)])], 1),
                      ([Group(0, [(0, 0, KIB), (1, 0, KIB), (2, 0, 2 * KIB)])], 1)):
        name, fact = names(groups, k)
        assert name not in seen, "two layouts have one namespace"
        assert (fact == "layers") == (groups[0].pages is PLAIN and k == 1), fact
        seen[name] = fact
    assert names([Group(0, [(2, 8 * KIB, 24 * KIB), (0, 0, 512), (1, 64, 40 * KIB + 8)])])[0] in seen, "padding divides engines"


def refused():
    try:
        Engine([Group(0, PLAIN)], per_chunk=0)
    except ValueError as e:
        assert "at least one block" in str(e), e
    else:
        raise SystemExit("chunks without blocks are taken")
    for said, pages, per_chunk in (("smaller blocks_per_chunk", PLAIN, 500), ("overlap", [(0, 0, 8 * KIB), (0, 4 * KIB, 8 * KIB)], 1)):
        engine = Engine([Group(0, pages)], per_chunk=per_chunk, name=said)  # the engine serves without a cache
        assert said in engine.worker._refusal, engine.worker._refusal
        assert Host.lookup(engine, keys_of("refused", 2), engine.begin("1")) == 0
        try:
            engine.worker.submit_load(1, ours.KvcacheLoadStoreSpec.of_load(0, 1, [[0]]), ns(block_ids=[1], group_sizes=[1], block_indices=[0]))
        except RuntimeError as e:
            assert "compute with wrong KV" in str(e), e
        else:
            raise SystemExit("a worker that refuses takes a load, and leaves it out")
        engine.close()
    unequal = Engine([Group(0, PLAIN)]).caches
    unequal.tensors[1].tensor.shape = (N - 1, STRIDE)
    for said, caches in (("the same number of blocks", unequal), ("no KV cache", ns(tensors=[], group_data_refs=[]))):
        try:
            arrays.blocks_of(caches)
        except ValueError as e:
            assert said in str(e), e
        else:
            raise SystemExit(f"{said}: taken")


def jobs_that_do_not_fit():
    """A job whose blocks are not those of its chunks is an error, and moves nothing."""
    engine = Engine([group := Group(0, PADDED)], per_chunk=3)
    keys = keys_of("wrong", 3)
    engine.stored("1", [keys], [list(range(1, 10))])
    context = engine.begin("2", [(group, keys)])
    assert Host.lookup(engine, keys, context) == 3
    spec, output = engine.manager.prepare_load(keys, context), engine.manager.prepare_store(keys_of("new", 2), engine.begin("3"))
    for call, of, ids, sizes, indices in ((engine.worker.submit_load, spec, range(1, 6), [5], [0]),
                                          (engine.worker.submit_load, spec, range(1, 11), [10], [0]),
                                          (engine.worker.submit_load, spec, [], [0], [0]), (engine.worker.submit_load, spec, [N] * 9, [9], [0]),
                                          (engine.worker.submit_store, output.store_spec, range(1, 8), [7], [0]),
                                          (engine.worker.submit_store, output.store_spec, [], [0], [0]),
                                          (engine.worker.submit_store, output.store_spec, [N] * 6, [6], [0])):
        where = ns(block_ids=list(ids), group_sizes=sizes, block_indices=indices)
        memory = engine.arena.read()
        try:
            call(99, *((spec, where) if of is spec else (where, of)))
        except ValueError as e:
            assert "99" in str(e)
        else:
            raise SystemExit(f"{sizes}: taken")
        assert engine.arena.read() == memory
    del spec, of
    engine.manager.complete_load(keys, context)
    engine.end(context)
    engine.close()


if __name__ == "__main__":
    {**vars(base), **globals()}[base.SCENARIO]()
    print("right", flush=True)
