# SPDX-License-Identifier: Apache-2.0
"""Random histories of an engine with the spec, over the driver without a GPU and a real daemon:

    vllm_history_host.py SOCKET VERSION LAYOUT-SEED

An engine here is a model of vLLM's scheduler and workers: blocks with a prefix cache of the GPU's own, prompts that are computed in parts, loads
beside the forward pass, stores that are submitted a step later, waits for stores whose blocks are given away. Drafted tokens are computed ahead,
and the next step overwrites the blocks of those that are rejected. Requests begin, end, are aborted and preempted at random; caches are reset,
engines replaced, and the test has faults befall the daemon. The ranks of an engine of several GPUs are processes; they are killed, refused
memory, and reconnect.

The bytes of a block follow from the hash of all tokens up to its end, and from the shard. They are compared after each load, in all blocks of
each request that ends, and at the end in the daemon. Each forward pass also reads a block of the tokens before it. A chunk is found only if the
ranks of all shards were given it to store, and a rank that is closed neither reads nor writes its memory. At the end no lease, no job and no
memory of an earlier daemon is left.

While the device of a rank stands still, another program evicts the chunks that its loads still have to read, and has their places filled: only a
lease keeps them. The driver refuses some copies in the middle of a load. An engine whose option after_reset is "forget" gets other weights at
each reset, and with them other bytes for the same tokens."""

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import random
import sys
from collections import OrderedDict

import kvcache
import vllm_layouts_host as layouts
import vllm_ranks_host as ranks_host
import vllm_spec_host as base
from kvcache.vllm import hooks, identity, mover, promises, spec as ours
from vllm.v1.kv_offload.base import LookupResult
from vllm_layouts_host import N, PLAIN, UNEQUAL, Group, hybrid
from vllm_spec_host import VERSION, cuda, ns, told, until

STEPS, TOKENS = 60, 16
MOST_COMPUTED = 6  # blocks of a group that a step computes for a request, with drafted ones
LAYOUTS = {  # the groups, the blocks of a chunk, the ranks, and how many of them hold the same bytes
    "plain": (lambda: [Group(0, PLAIN)], 1, 1, 1), "three": (lambda: [Group(0, UNEQUAL)], 3, 1, 1), "hybrid": (hybrid, 1, 1, 1),
    "two": (lambda: [Group(0, UNEQUAL)], 1, 2, 1), "hybrids": (hybrid, 1, 3, 1), "latent": (lambda: [Group(0, UNEQUAL)], 3, 2, 2),
}
OPTIONS = {"store_policy": "always", "timeout_s": 2.0}  # an engine that is closed waits for the daemon for that time
OUT_OF_MEMORY, REFUSED = 2, 801  # CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_SUPPORTED
REFUSALS = (b"cuMemcpyAsync", b"cuMemcpyBatchAsync_v2", b"cuLaunchKernel", b"cuEventRecord", b"cuStreamWaitEvent")  # calls of a load
universe = {}  # the hashes of the blocks that a chunk has, by the hash of the last one
cuda.stub_memory.restype = ctypes.c_void_p
submitted = {}  # by shard and weights: the keys of the chunks that a rank was given to store


@functools.lru_cache(512)
def bytes_of(block, group, page, nbytes, shard=0):
    return hashlib.shake_128(block + bytes([group, page, shard])).digest(nbytes)


def refuses():
    raise OSError(errno.EIO, "refused")


class Rank:
    """A GPU of an engine: its memory, and its worker."""

    def __init__(self, layout, name, deadlines, options, rank):
        make, per_chunk, world, writers = LAYOUTS[layout]
        hurry(deadlines)
        self.groups, self.rank, self.shard = make(), rank, rank // writers
        self.passes = []  # by forward pass whose reads are not compared yet: the event behind it, and the bytes read with the expected ones
        self.arena, caches = layouts.memory_of(self.groups)
        made = layouts.config_of(self.groups, per_chunk, name, world_size=world, **OPTIONS, **options)
        made.parallel.rank = rank
        for refs in caches.group_data_refs if world > 1 else ():
            for ref in refs:
                ref.mapping = ns(num_writers=writers, writer_index=rank % writers)
        self.worker = ours.KvcacheWorker(ours.KvcacheOffloadingSpec(made), caches, 0, lambda: base.stream.value)

    def pages(self, group, block):
        for page, (plane, first, nbytes) in enumerate(group.pages):
            yield page, self.arena.address + plane * layouts.PLANE + first + block * layouts.STRIDE, nbytes

    def launch(self, group, block, content):
        """Writes a block in the engine's stream; None: bytes of no request."""
        for page, address, nbytes in self.pages(group, block):
            data = b"Z" * nbytes if content is None else bytes_of(content, group.number, page, nbytes, self.shard)
            room = ctypes.create_string_buffer(data, nbytes)
            base.written.append(room)
            assert not cuda.cuMemcpyAsync(ctypes.c_uint64(address), ctypes.c_uint64(ctypes.addressof(room)), ctypes.c_size_t(nbytes), base.stream)

    def step(self, one):
        """Returns the numbers of the jobs that have ended."""
        runs = self.rank not in one.lags
        cuda.stub_run(runs)
        self.compare(False)
        for job, (source, spec) in one.stores:
            assert self.worker.submit_store(job, source, spec)
        if one.flush:
            cuda.stub_run(True)
            self.worker.wait(set(one.flush))
            cuda.stub_run(runs)
        for block in one.allocated:
            self.launch(self.groups[0], block, None)
        awaited = {job for job, (*_, is_awaited) in one.loads if is_awaited}
        if one.is_behind:
            self.worker.step_begins()
        if one.is_behind and not awaited:
            self.forward(one)
        with self.refused(one.refused):
            for job, (spec, where, is_awaited) in one.loads:
                assert self.worker.submit_load(job, spec, where, **({"expedited": True} if is_awaited else {}))
        self.worker.wait(awaited)
        if not one.is_behind or awaited:
            self.forward(one)
        for seed in () if runs else one.operations:  # a device that stands still has made some copies of a load before
            cuda.stub_step(seed)
        ended = self.worker.get_finished()
        assert all(e.success for e in ended)
        return [e.job_id for e in ended]

    @contextlib.contextmanager
    def refused(self, what):
        """Has the driver refuse a call of the library, or the library all loads. Neither ends the engine."""
        gpu = self.worker.mover._gpu
        if what == "loads":
            gpu.copy_leased = lambda layout, blocks, *a, **o: refuses() if blocks else kvcache._gpu.Gpu.copy_leased(gpu, layout, blocks, *a, **o)
        elif what:
            cuda.stub_fault(*what, 1, REFUSED)
        yield
        if what == "loads":
            del gpu.copy_leased
        elif what:
            cuda.stub_fault(*what, 0, 0)

    def forward(self, one):
        """Queues a forward pass: it writes the blocks of its tokens, and reads some of earlier tokens, which another request may compute."""
        for group, block, content in one.work:
            self.launch(self.groups[group], block, content)
        read = []
        for group, block, content, of in one.reads:
            pages = list(self.pages(self.groups[group], block))
            page, address, nbytes = pages[of % len(pages)]
            room = ctypes.create_string_buffer(nbytes)
            assert not cuda.cuMemcpyAsync(ctypes.c_uint64(ctypes.addressof(room)), ctypes.c_uint64(address), ctypes.c_size_t(nbytes), base.stream)
            read.append((room, (content, self.groups[group].number, page, nbytes, self.shard), (group, block, page)))
        if read:
            event = ctypes.c_void_p()
            assert not cuda.cuEventCreate(ctypes.byref(event), 2) and not cuda.cuEventRecord(event, base.stream)
            self.passes.append((event, read))

    def compare(self, waits):
        """Compares what forward passes have read. Waits for them, or leaves out those that are not over."""
        while self.passes:
            event, read = self.passes[0]
            if waits:
                cuda.stub_run(True)
                with base.relaxed():
                    assert not cuda.cuEventSynchronize(event)
            elif cuda.cuEventQuery(event):
                break
            assert not cuda.cuEventDestroy_v2(event)
            wrong = [where for room, expected, where in read if room.raw != bytes_of(*expected)]
            assert not wrong, f"a forward pass of rank {self.rank} has read wrong bytes: {wrong} (group, block, page)"
            del self.passes[0]

    def wrong(self, blocks, is_now=False):
        """Returns those of the blocks whose bytes are not those of their contents: once the engine's stream has done its work, or now. The device
        does no other work for that."""
        found = []
        for group, block, content in blocks:
            for page, address, nbytes in self.pages(self.groups[group], block):
                room = ctypes.create_string_buffer(nbytes)
                if is_now:
                    ctypes.memmove(room, cuda.stub_memory(ctypes.c_uint64(address)), nbytes)
                else:
                    self.arena.copy(ctypes.addressof(room), address, nbytes)
                if room.raw != bytes_of(content, self.groups[group].number, page, nbytes, self.shard):
                    found.append((group, block, page))
        return found

    def refuse(self, after, times):
        """Has the driver refuse to register memory."""
        cuda.stub_fault(b"cuMemHostRegister_v2", after, times, OUT_OF_MEMORY)

    def reconnect(self):
        self.worker.mover.attach_soon()

    def described(self):
        return self.shard, self.worker.spec.names, self.worker.spec.fields

    def close(self):
        """Closes the worker, and gives its memory to another program."""
        self.compare(True)
        cuda.stub_run(True)
        self.worker.shutdown()
        self.arena.write(b"W" * self.arena.nbytes)

    def is_untouched(self):
        return self.arena.read() == b"W" * self.arena.nbytes


class RankDied(Exception):
    """A rank was killed, and vLLM ends the engine."""


class Request:
    def __init__(self, number, blocks, context):
        self.number, self.blocks, self.context = number, blocks, context
        self.state, self.jobs, self.is_signaled = "waits", set(), False
        self.leave()

    def leave(self):
        """Starts again from the first token."""
        self.computed, self.stored, self.tables = 0, 0, []
        self.accepted = 0  # the blocks that were drafted in the latest step, and are not rejected


class Engine(ranks_host.Processes, layouts.Engine):
    def __init__(self, rng, layout, name, deadlines):
        make, self.k, world, self.writers = LAYOUTS[layout]
        options = {"copies": rng.choice(("auto", "auto", "kernel", "batch", "plain", "bounce")),
                   "after_reset": rng.choice(("keep", "keep", "keep", "forget"))}
        self.forgets, self.weights = options["after_reset"] == "forget", b""
        self.groups, self.per_chunk, self.here, self.between, self.moment = make(), self.k, None, None, "now"
        self.victim, self.number, self.slowest_s, self.counted = None, 0, 0.0, {}
        if world == 1:
            self.world, self.here = 1, Rank(layout, name, deadlines, options, 0)
        else:
            self.start_ranks(world, Rank, layout, name, deadlines, options)
        self.spec = ours.KvcacheOffloadingSpec(layouts.config_of(self.groups, self.k, name, world_size=world, **OPTIONS, **options))
        self.manager = self.spec.get_manager()
        base.pickles(self.manager, world)
        until(self.manager._ready, "the ranks never take part")
        self.shards = range(world // self.writers)
        self.rng, self.requests, self.jobs, self.deferred, self.results = rng, {}, {}, [], []
        self.free, self.cached, self.hash_of, self.users = OrderedDict.fromkeys(range(1, N)), {}, {}, dict.fromkeys(range(1, N), 0)
        self.to_flush, self.stale, self.finished, self.is_late, self.loads = set(), 0, [], rng.random() < 0.5, 0
        self.all_jobs = {}
        self.awaits = VERSION != "0.26" and rng.random() < 0.8  # vLLM's sync_load_budget_bytes
        self.lag, self.lags = 0, ()  # the steps for which the devices of these ranks stop, so that loads and stores are in flight
        self.recent = []  # the keys of the loads since then, with their salts

    # --- the ranks ---

    def all(self, method, *arguments, of=None):
        """Has ranks act, as in Processes. If a rank was chosen to die, kills it meanwhile."""
        if self.here is not None:
            return [getattr(self.here, method)(*arguments)]
        if self.victim is None:
            return super().all(method, *arguments, of=of)
        for connection in self.connections:
            connection.send((method, *arguments))
        self.processes[self.victim].kill()
        raise RankDied

    def is_at(self, moment):
        """Makes the planned event happen, if this is its place in the step."""
        if self.between is not None and moment == self.moment:
            call, self.between = self.between, None
            call()

    def evict(self, blocks):
        """Evicts some of these chunks from one shard."""
        shard, names, fields = self.rng.choice(self.all("described"))
        group, name = self.rng.choice(list(names.items()))
        chunks = [b for b in blocks if b in universe]
        keys = [b + group.to_bytes(4, "big") for b in self.rng.sample(chunks, min(8, len(chunks)))]
        with kvcache.Client(base.SOCKET) as client:
            if keys:
                client.namespace(name, fields).evict(identity.names_of(keys, self.salt), memory_only=self.rng.random() < 0.3)

    @property
    def salt(self):
        return self.spec.resets.salt

    def displace(self):
        """Evicts the chunks of loads that have begun since devices stopped, and has another program use their places in the pool."""
        described = {shard: (names, fields) for shard, names, fields in self.all("described")}
        with kvcache.Client(base.SOCKET) as client:
            other = client.namespace("another program", {"model": "another"})
            for (names, fields), group in itertools.product(described.values(), self.groups):
                evicted = [name for listed, salt in self.recent
                           for name in identity.names_of([k for k in listed if identity.group_of(k) == group.number], salt)]
                if evicted:
                    client.namespace(names[group.number], fields).evict(evicted)
                    data = self.rng.randbytes(64) * (self.k * group.block_bytes // 64 + 1)
                    other.put([self.rng.randbytes(32) for _ in evicted], [data[:self.k * group.block_bytes] for _ in evicted], ack="accepted")

    def close(self):
        self.all("close")
        self.manager.shutdown()

    def bury(self):
        """Ends the engine of a rank that was killed. vLLM lets the others shut down, or kills them as well."""
        for rank, (connection, process) in enumerate(zip(self.connections, self.processes)):
            if rank != self.victim and self.rng.random() < 0.5:
                connection.recv()
                connection.send(("close",))
                connection.recv()
            process.kill()
            process.join()
            connection.close()
        self.manager.shutdown()

    def end(self):
        """Ends an engine that is closed."""
        assert all(self.all("is_untouched")), "memory was written to after its rank had closed"
        if self.here is None:
            self.end_ranks()

    # --- memory ---

    def content(self, block, weights=None):
        """Returns the hash from which the bytes of a block follow, by default those of the engine's weights."""
        weights = self.weights if weights is None else weights
        return hashlib.sha256(block + weights).digest() if weights else block

    def check(self, request, first=0, end=None, of=None, weights=None):
        blocks, end = [], request.computed if end is None else end
        for group, table in enumerate(request.tables):
            blocks += [(group, table[at], self.content(request.blocks[at], weights)) for at in range(first, end) if table[at]]
        for rank, wrong in enumerate(self.all("wrong", blocks, of is not None, of=of)):
            assert not wrong, f"request {request.number}: of {first} to {end}, {wrong} are wrong (group, block, page) in rank {of or rank}"

    def take(self, count):
        """Allocates blocks, which may be those of earlier requests that are still cached. None: there are not as many."""
        if count > len(self.free):
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.cached.pop(self.hash_of.pop(block, None), None)
            self.users[block] = 1
        self.allocated.update(taken)
        return taken

    def use(self, block):
        self.users[block] += 1
        self.free.pop(block, None)

    def drop(self, request):
        for table in request.tables:
            for block in reversed(table):
                if block:
                    self.users[block] -= 1
                    if not self.users[block]:
                        self.free[block] = None
        request.leave()

    def cache(self, request):
        for group, table in zip(self.groups, request.tables):
            for content, block in zip(request.blocks[:request.computed], table):
                if block and block not in self.hash_of and (content, group.number) not in self.cached:
                    self.cached[content, group.number], self.hash_of[block] = block, (content, group.number)

    def local(self, request):
        """Returns the tables of the longest prefix that the GPU has, at most all but one block."""
        n, most = 0, len(request.blocks) - 1
        while n < most and all((request.blocks[n], g.number) in self.cached for g in self.groups if g.window is None):
            n += 1
        while n and not all((request.blocks[i], g.number) in self.cached for g in self.groups if g.window is not None
                            for i in range(max(0, n - g.window * self.k), n)):
            n -= 1
        return n, [[self.cached[request.blocks[i], g.number] if g.window is None or i >= n - g.window * self.k else 0 for i in range(n)]
                   for g in self.groups]

    # --- the scheduler's side ---

    def keys(self, request, group):
        return [request.blocks[i] + group.number.to_bytes(4, "big") for i in range(self.k - 1, len(request.blocks), self.k)]

    def add(self, number, blocks):
        for end in range(self.k, len(blocks) + 1, self.k):
            universe[blocks[end - 1]] = blocks[end - self.k:end]
        context = self.begin(f"{self.spec.config.engine_id} {number}")
        request = self.requests[number] = Request(number, blocks, context)
        for group in self.groups:
            self.place(context, {key: (i + 1) * TOKENS * self.k for i, key in enumerate(self.keys(request, group))})

    def ask(self, key, context):
        said = self.timed(self.manager.lookup, key, context)
        assert said is not LookupResult.HIT or all(key in submitted.get((shard, self.weights), ()) for shard in self.shards), \
            "a chunk is found that lacks a shard, or is of other weights"
        return said

    def prefix(self, keys, context):
        hits, waits = 0, False
        if self.tells:
            setattr(context, hooks.KEYS, keys)
        for key in keys:
            said = self.ask(key, context)
            if said is LookupResult.MISS:
                break
            hits, waits = hits + 1, waits or said is not LookupResult.HIT
        return None if waits else hits

    def window_end(self, keys, size, context):
        def lookup(_, keys, size, context, initial_window_size=None):
            run, waits = 0, False
            for at in reversed(range(len(keys))):
                said = self.ask(keys[at], context)
                run, waits = (0, False) if said is LookupResult.MISS else (run + 1, waits or said is not LookupResult.HIT)
                if run == size:
                    return None if waits else at + size
            return None if waits else run

        return (hooks._telling_window(lookup) if self.tells else lookup)(None, keys, size, context)

    def hits(self, request, local):
        """Returns the number of chunks that are found beyond the blocks that the GPU has; None: ask again in the next step."""
        first, found = local // self.k, (len(request.blocks) - 1) // self.k
        for group in self.groups:
            if group.window is None and found > first:
                n = self.prefix(self.keys(request, group)[first:found], request.context)
                if n is None:
                    return None
                found = first + n
        again = True
        while again and found > first:
            again = False
            for group in self.groups:
                if group.window is not None and found > first:
                    end = self.window_end(self.keys(request, group)[first:found], group.window, request.context)
                    if end is None:
                        return None
                    again, found = again or first + end < found, first + end
        return max(0, found - first)

    def admit(self, request):
        """Returns whether a waiting request goes on now: loads, or computes."""
        if request.jobs:
            return True
        local, tables = self.local(request)
        hits = self.hits(request, local)
        if hits is None:
            return True
        end = (local // self.k + hits) * self.k if hits else local
        request.stored = end // self.k if hits else 0
        if end <= local:
            end = local
        firsts = [max(local, end - g.window * self.k) if g.window is not None else local for g in self.groups]
        for table in tables:
            for block in filter(None, table):
                self.use(block)
        new = self.take(sum(end - first for first in firsts))
        if new is None:
            request.tables = tables
            self.drop(request)
            return False
        request.tables, request.computed = tables, local
        if end == local:
            request.state = "runs"
            return True
        ids, sizes, listed = [], [], []
        for group, table, first in zip(self.groups, tables, firsts):
            blocks = [new.pop() for _ in range(end - first)]
            table += [0] * (first - len(table)) + blocks
            ids, sizes, listed = ids + blocks, sizes + [len(blocks)], listed + self.keys(request, group)[first // self.k:end // self.k]
        spec = self.timed(self.manager.prepare_load, listed, request.context)
        request.state, request.loads_to, request.loads_from = "loads", end, min(firsts)
        is_awaited = self.awaits and self.rng.random() < 0.6 and len(self.free) >= MOST_COMPUTED * len(self.groups)
        if is_awaited:  # vLLM takes the blocks for loaded before the copies begin, and computes behind them in the same step
            request.state, request.computed = "runs", end
            self.cache(request)
        self.number += 1
        self.jobs[self.number] = ns(request=request, keys=listed, is_store=False, is_awaited=is_awaited, blocks=set(ids), ended=set(),
                                    weights=self.weights)
        self.recent.append((listed, self.salt))
        request.jobs.add(self.number)
        self.new_loads[self.number] = spec, ns(block_ids=ids, group_sizes=sizes, block_indices=firsts), is_awaited
        return True

    def compute(self, request):
        """Schedules a part of a request, and sometimes the blocks of drafted tokens after it. Returns False if it has no room."""
        request.computed += request.accepted
        request.accepted = 0
        left = len(request.blocks) - request.computed
        count = min(self.rng.randint(1, 4), left)
        drafted = min(self.rng.choice((0, 0, 0, 1, 2)), left - count)
        lacking = [max(0, request.computed + count + drafted - len(table)) for table in request.tables]
        new = self.take(sum(lacking))
        if new is None:
            return False
        accepted = self.rng.randint(0, drafted)
        for group, table in enumerate(request.tables):
            kept = [at for at in range(request.computed) if table[at]]
            if kept:
                at = self.rng.choice(kept)
                self.reads.append((group, table[at], self.content(request.blocks[at]), at))
        for group, (table, n) in enumerate(zip(request.tables, lacking)):
            table += [new.pop() for _ in range(n)]
            for at in range(request.computed, request.computed + count + drafted):
                is_right = at < request.computed + count + accepted
                self.work.append((group, table[at], self.content(request.blocks[at]) if is_right else b"rejected" + request.blocks[at]))
        request.computed += count
        request.accepted = accepted
        self.cache(request)
        return True

    def preempt(self, request):
        self.to_flush |= request.jobs
        self.drop(request)
        request.state = "waits"

    def end_request(self, request):
        """Ends a request. The next step offers its chunks, when other requests may have its blocks."""
        self.finished.append((request, request.computed, [list(t) for t in request.tables]))
        if request.state == "loads":
            request.state = "is aborted"
            return
        request.state = "ended"
        kept = request.stored
        self.drop(request)
        request.stored = kept

    def offer(self, request, computed, tables):
        end, ids, sizes, indices, listed = computed // self.k, [], [], [], []
        for group, table in zip(self.groups, tables):
            listed += [key for at, key in enumerate(self.keys(request, group)[:end]) if at >= request.stored
                       and all(table[at * self.k:(at + 1) * self.k])]
        request.stored = max(request.stored, end)
        if not listed:
            return
        output = self.timed(self.manager.prepare_store, listed, request.context)
        wanted = set(output.keys_to_store)
        assert wanted <= set(listed)
        if not wanted:
            return
        for group, table in zip(self.groups, tables):
            at = [i for i, key in enumerate(self.keys(request, group)[:end]) if key in wanted and all(table[i * self.k:(i + 1) * self.k])]
            blocks = [table[i * self.k + j] for i in at for j in range(self.k)]
            ids, sizes, indices = ids + blocks, sizes + [len(blocks)], indices + [at[0] * self.k if at else 0]
        self.number += 1
        self.jobs[self.number] = ns(request=request, keys=list(wanted), is_store=True, blocks=set(ids), ended=set(), weights=self.weights)
        request.jobs.add(self.number)
        self.new_stores[self.number] = ns(block_ids=ids, group_sizes=sizes, block_indices=indices), output.store_spec

    def schedule(self):
        self.allocated, self.work, self.reads, self.new_loads, self.new_stores = set(), [], [], {}, {}
        self.tells = VERSION == "0.26" and self.rng.random() < 0.8 or self.rng.random() < 0.3 or len(self.groups) > 1
        running = [r for r in self.requests.values() if r.state == "runs" and r.computed < len(r.blocks)]
        for at, request in enumerate(running):
            if request.state == "runs" and not self.compute(request):
                self.preempt(self.rng.choice([r for r in running[at:] if r.state == "runs"]))
        for request in [r for r in self.requests.values() if r.state == "waits"]:
            if not self.admit(request):
                break
            if request.state == "runs" and not self.compute(request):
                self.preempt(request)
                break
        for job, one in self.jobs.items():
            if one.is_store and one.blocks & self.allocated:
                self.to_flush.add(job)
        if VERSION == "0.26":
            self.end_schedule()
        for request in self.requests.values():
            if request.state == "runs":
                self.offer(request, request.computed, request.tables)
        for request, computed, tables in self.finished:
            if request.state == "ended":
                before = set(self.new_stores)
                self.offer(request, computed, tables)
                self.to_flush |= {j for j in set(self.new_stores) - before if self.jobs[j].blocks & self.allocated}
            self.timed(self.manager.on_request_finished, request.context)
            request.is_signaled = True
        self.finished = []
        if VERSION != "0.26":
            self.end_schedule()

    def end_schedule(self):
        self.is_at("end")
        self.timed(self.manager.on_schedule_end, None)

    def report(self, ended):
        for number in ended:
            job = self.all_jobs.pop(number)
            is_stale = number <= self.stale
            if not is_stale:
                del self.jobs[number]
                job.request.jobs.remove(number)
            if job.is_store:
                if not is_stale:
                    self.timed(self.manager.complete_store, job.keys, job.request.context)
                continue
            if not is_stale:
                self.timed(self.manager.complete_load, job.keys, job.request.context)
            if job.is_awaited:
                self.loads += 1
            elif job.request.state == "is aborted":
                self.drop(job.request)
                job.request.state = "ended"
            elif job.request.state == "loads":
                self.loads += 1
                job.request.computed, job.request.state = job.request.loads_to, "runs"
                self.cache(job.request)
        for number, request in list(self.requests.items()):
            if request.state == "ended" and request.is_signaled and not request.jobs:
                del self.requests[number]

    # --- a step, as the workers see it ---

    def run(self):
        self.schedule()
        self.is_at("ranks")
        late, self.results = self.results, []
        self.all_jobs.update(self.jobs)
        flush, self.to_flush = self.to_flush, set()
        deferred, self.deferred = self.deferred, list(self.new_stores.items())
        at_once = [(j, s) for j, s in self.deferred if j in flush]
        self.deferred = [(j, s) for j, s in self.deferred if j not in flush]
        for job, (_, spec) in deferred + at_once:
            for shard in self.shards:
                submitted.setdefault((shard, self.all_jobs[job].weights), set()).update(spec.keys())
        is_behind = VERSION != "0.26" and self.rng.random() < 0.7
        self.lag = self.lag - 1 if self.lag else self.rng.choice((0, 0, 0, 0, 0, 0, 4))
        if not self.lag:
            self.lags, self.recent = (), []
        elif not self.lags:
            self.lags = self.rng.sample(range(self.world), self.rng.randint(1, self.world))
        refused = self.rng.choice((None, None, None, "loads", (self.rng.choice(REFUSALS), self.rng.randint(0, 5)))) if self.new_loads else None
        operations = [self.rng.getrandbits(16) for _ in range(self.rng.choice((0, 2, 8, 32)))] if self.lags else []
        ended = self.all("step", ns(lags=self.lags, operations=operations, stores=deferred + at_once, flush=flush, allocated=self.allocated,
                                    is_behind=is_behind, work=self.work, reads=self.reads, loads=list(self.new_loads.items()),
                                    refused=refused))
        for rank, numbers in enumerate(ended):
            for number in numbers:
                self.ends(rank, number)
        if self.is_late:
            self.report(late)
        else:
            self.report(self.results)
            self.results = []
        for request in list(self.requests.values()):
            if request.state == "runs" and request.computed == len(request.blocks):
                self.check(request)
                self.end_request(request)

    def ends(self, rank, number):
        """A rank reports a job."""
        assert number in self.all_jobs and rank not in self.all_jobs[number].ended, f"job {number} was reported twice"
        job = self.all_jobs[number]
        if not job.is_store and not job.is_awaited and job.request.state in ("loads", "is aborted"):
            self.check(job.request, job.request.loads_from, job.request.loads_to, of=[rank], weights=job.weights)
        job.ended.add(rank)
        if len(job.ended) == self.world:
            self.results.append(number)

    def reset(self):
        """reset_prefix_cache() with running requests and the connector. An engine that forgets has other weights from then on, and requests that
        load are aborted before."""
        for request in self.requests.values():
            if request.state == "runs":
                self.preempt(request)
            elif request.state == "loads" and self.forgets:
                self.end_request(request)
        self.cached.clear()
        self.hash_of.clear()
        self.to_flush |= set(self.jobs)
        for request in [r for r, *_ in self.finished]:
            if request.state == "ended":
                self.timed(self.manager.on_request_finished, request.context)
                request.is_signaled = True
        self.finished = [one for one in self.finished if not one[0].is_signaled]
        self.timed(self.manager.reset_cache)
        for request in self.requests.values():
            request.jobs.clear()
            request.stored = 0
        self.stale = self.number
        self.jobs.clear()
        if self.forgets:
            self.weights = hashlib.sha256(f"{self.spec.config.engine_id} {self.weights}".encode()).digest()

    def empty(self):
        """Empties the GPU's own prefix cache, and the connector's unless that forgets what is stored."""
        if not self.forgets:
            self.reset()
        self.cached.clear()
        self.hash_of.clear()

    def is_idle(self):
        return not self.requests and not self.jobs and not self.deferred and not self.finished and not self.results


def prompts(rng):
    """Yields prompts, as the hashes of their blocks. Many continue earlier ones."""
    known = []
    while True:
        blocks = []
        if known and rng.random() < 0.8:
            one = rng.choice(known)
            blocks = one[:rng.randint(1, len(one))]
        for _ in range(rng.randint(0 if blocks else 2, 7)):
            blocks = [*blocks, hashlib.sha256((blocks[-1] if blocks else b"") + rng.randbytes(8)).digest()]
        known.append(blocks[:14])
        yield known[-1]


BRIEF = {"mover": dict(PAUSE_S=0.02, LONGEST_PAUSE_S=0.05, LOOK_S=0.01, STORE_S=1.0),
         "promises": dict(REST_S=0.02, LONGEST_REST_S=0.05, HUNG_S=0.05, NO_GRACE_S=0.02, LOOKUP_S=0.5, SILENT_S=0.3, PROBE_S=0.1)}


def hurry(deadlines):
    """Lets engines notice soon that the daemon hangs, and that it answers again."""
    for (module, name), value in deadlines.items():
        setattr({"mover": mover, "promises": promises}[module], name, value)


class History:
    def __init__(self, layout, rng):
        self.layout, self.rng = layout, rng
        self.deadlines = {(module, name): value for module, values in BRIEF.items() for name, value in values.items()}
        self.deadlines.update({("mover", "GATHER_S"): rng.choice([0.0, 0.01, 0.05]), ("promises", "GRACE_S"): rng.choice([0.0, 0.002]),
                               ("mover", "SLICE_BLOCKS"): rng.choice([4, 32]), ("mover", "FLUSH_S"): rng.choice([0.0, 0.1, 0.1, 0.1])})
        hurry(self.deadlines)
        self.made, self.loads, self.number, self.source, self.closed = 0, 0, 0, prompts(rng), []
        self.engines = [self.engine() for _ in range(2)]

    def engine(self):
        self.made += 1
        return Engine(self.rng, self.layout, f"engine {self.made}", self.deadlines)

    def run(self, engine):
        """Has an engine make a step. Ends it if a rank dies meanwhile."""
        try:
            engine.run()
        except RankDied:
            engine.bury()
            self.ends(engine)

    def ends(self, engine):
        self.loads += engine.loads
        self.engines[self.engines.index(engine)] = None

    def closes(self, engine):
        engine.close()
        self.ends(engine)
        self.closed.append(engine)

    def everyone(self, steps=1):
        for _ in range(steps):
            for engine in filter(None, list(self.engines)):
                self.run(engine)

    def acts(self, engine):
        """Has requests of an engine begin, end and be preempted, and then a step."""
        rng = self.rng
        if rng.random() < 0.5:
            self.number += 1
            engine.add(self.number, next(self.source))
        alive = [r for r in engine.requests.values() if r.state in ("waits", "loads", "runs")]
        if alive and rng.random() < 0.15:
            engine.end_request(rng.choice(alive))
        runs = [r for r in engine.requests.values() if r.state == "runs"]
        if runs and rng.random() < 0.1:
            engine.preempt(rng.choice(runs))
        loads = [r for r in alive if r.state == "loads"] if engine.lags else []
        if loads and rng.random() < 0.5:  # the scheduler forgets a load whose copies are still to be made
            if rng.random() < 0.5:
                engine.end_request(rng.choice(loads))
            else:
                engine.reset()
            engine.between, engine.moment = engine.displace, "ranks"
        elif rng.random() < 0.02:
            engine.reset()
        self.run(engine)
        if engine.lags and engine.recent and rng.random() < 0.5:
            engine.displace()

    def fault(self):
        rng, engine = self.rng, self.rng.choice(self.engines)
        if engine.world > 1:
            what = rng.choice(("daemon", "daemon", "daemon", "refuse", "reconnect", "kill", "evict", "evict"))
        else:
            what = rng.choice(("daemon", "daemon", "daemon", "reconnect", "evict"))
        if what == "kill":
            engine.victim = rng.randrange(engine.world)
        elif what == "reconnect":
            engine.all("reconnect", of=[rng.randrange(engine.world)])
        elif what == "refuse":
            engine.all("refuse", rng.randint(0, 2), rng.randint(1, 3), of=[rng.randrange(engine.world)])
        if what == "evict":
            self.happens(engine, lambda: engine.evict([b for r in engine.requests.values() for b in r.blocks]))
        elif what in ("daemon", "refuse"):
            self.daemon_fails(engine)
        self.everyone(rng.randint(1, 3))
        self.engines = [one or self.engine() for one in self.engines]

    def happens(self, engine, call):
        """Calls call(), often between the scheduler's part of a step and that of the ranks, or before leases are requested."""
        engine.between, engine.moment = call, self.rng.choice(("now", "end", "ranks"))
        if engine.moment == "now":
            engine.is_at("now")
        else:
            self.run(engine)

    def daemon_fails(self, engine):
        lasts = []
        self.happens(engine, lambda: lasts.append(told("fault") == "lasts"))
        if lasts[0]:
            self.everyone(self.rng.randint(1, 6))
            if self.rng.random() < 0.3:
                self.closes(engine)
            elif engine.world > 1 and self.rng.random() < 0.3:
                engine.victim = self.rng.randrange(engine.world)
                self.run(engine)
            told("heal")


def recovers(engine, blocks):
    """The engine stores and finds again, whatever has happened before. Chunks that lose a shard are stored again."""
    numbers = iter(range(10 ** 6, 2 * 10 ** 6))

    def has_loaded():
        loads = engine.loads
        engine.empty()
        engine.add(next(numbers), blocks)
        until(lambda: (engine.run(), engine.is_idle())[1], "requests and jobs never end")
        return engine.loads > loads

    until(has_loaded, "the daemon has come back, and nothing is found")
    engine.evict(blocks)
    until(has_loaded, "chunks have lost a shard, and nothing is found")


def stored_chunks(engine):
    """Compares all chunks that the daemon has under keys of the engine with the bytes of their blocks. Returns their number."""
    found = 0
    described = {shard: (names, fields) for shard, names, fields in engine.all("described")}
    with kvcache.Client(base.SOCKET) as client:
        for shard, group in itertools.product(described, engine.groups):
            namespace = client.namespace(described[shard][0][group.number], described[shard][1])
            for last, blocks in universe.items():
                key = last + group.number.to_bytes(4, "big")
                with namespace.get_map(identity.names_of([key], engine.salt)) as leased:
                    if leased[0] is not None:
                        found += 1
                        assert key in submitted[shard, engine.weights], "a chunk is stored that no rank was given, or of other weights"
                        assert bytes(leased[0]) == b"".join(bytes_of(engine.content(b), group.number, page, nbytes, shard) for b in blocks
                                                            for page, (_, _, nbytes) in enumerate(group.pages)), "a stored chunk is wrong"
    return found


def main():
    layout, seed = base.SCENARIO.split("-")
    rng = random.Random(f"{layout} {seed} {VERSION}")
    history = History(layout, rng)
    for at in range(STEPS):
        for place in range(2):
            history.acts(history.engines[place])
            if rng.random() < 0.008:
                history.closes(history.engines[place])
                history.engines[place] = history.engine()
        if at % 10 == 9:
            history.fault()
    for engine in history.engines:  # an engine that stands still would keep its leases while the others recover
        until(lambda: (engine.run(), engine.is_idle())[1], "requests and jobs never end")
    for engine in history.engines:
        recovers(engine, [rng.randbytes(32) for _ in range(8)])
        until(lambda: (engine.run(), not engine.manager.has_pending_work())[1], "the spec never comes to rest")
        assert not engine.manager._requests and not engine.manager._loads and not engine.manager._promises._requests
        assert sum(engine.users.values()) == 0
    told("leases")
    engines = {engine.salt: engine for engine in history.engines}
    found = sum(map(stored_chunks, engines.values()))
    if b"" not in engines:  # the chunks that engines have stored before their first reset
        engine = history.engine()
        found += stored_chunks(engine)
        history.engines.append(engine)
    for engine in list(history.engines):
        history.closes(engine)
    print(f"{history.loads} loads, {history.number} requests, {found} chunks", file=sys.stderr)
    assert history.loads and found, f"the history tests nothing: {history.loads} loads, {found} chunks"
    for engine in history.closed:
        engine.end()


if __name__ == "__main__":
    main()
    print("right", flush=True)
