# SPDX-License-Identifier: Apache-2.0
"""Random histories of an engine with the spec, over the driver without a GPU and a real daemon:

    vllm_history_host.py SOCKET VERSION LAYOUT-SEED

An engine here is a model of vLLM's scheduler and worker: blocks with a prefix cache of the GPU's own, prompts that are computed in parts, loads
beside the forward pass, stores that are submitted a step later, waits for stores whose blocks are given away. Requests begin, end, are aborted
and preempted at random; caches are reset, engines replaced, and the test kills, empties and stops the daemon.

The bytes of a block follow from the hash of all tokens up to its end. They are compared after each load, in all blocks of each request that
ends, and at the end in the daemon. Then no lease, no job and no memory of an earlier daemon is left."""

import ctypes
import hashlib
import random
import sys
from collections import OrderedDict

import kvcache
import vllm_layouts_host as layouts
import vllm_spec_host as base
from kvcache.vllm import hooks, identity, mover, promises
from vllm.v1.kv_offload.base import LookupResult
from vllm_layouts_host import N, PLAIN, UNEQUAL, Group, hybrid
from vllm_spec_host import VERSION, cuda, ns, told, until

STEPS, TOKENS = 60, 16
LAYOUTS = {"plain": (lambda: [Group(0, PLAIN)], 1), "three": (lambda: [Group(0, UNEQUAL)], 3), "hybrid": (hybrid, 1)}
universe = {}  # the hashes of the blocks that a chunk has, by the hash of the last one


def bytes_of(block, group, page, nbytes):
    return hashlib.shake_128(block + bytes([group.number, page])).digest(nbytes)


class Request:
    def __init__(self, number, blocks, context):
        self.number, self.blocks, self.context = number, blocks, context
        self.state, self.jobs, self.is_signaled = "waits", set(), False
        self.leave()

    def leave(self):
        """Starts again from the first token."""
        self.computed, self.stored, self.tables = 0, 0, []


class Engine(layouts.Engine):
    def __init__(self, rng, layout, name):
        make, self.k = LAYOUTS[layout]
        super().__init__(make(), self.k, name, store_policy="always")
        self.rng, self.requests, self.jobs, self.deferred, self.results = rng, {}, {}, [], []
        self.free, self.cached, self.hash_of, self.users = OrderedDict.fromkeys(range(1, N)), {}, {}, dict.fromkeys(range(1, N), 0)
        self.to_flush, self.stale, self.finished, self.is_late, self.loads = set(), 0, [], rng.random() < 0.5, 0

    # --- memory ---

    def pages(self, group, block):
        for page, (plane, first, nbytes) in enumerate(group.pages):
            yield page, self.arena.address + plane * layouts.PLANE + first + block * layouts.STRIDE, nbytes

    def launch(self, group, block, content):
        """Writes a block in the engine's stream; None: bytes of no request."""
        for page, address, nbytes in self.pages(group, block):
            room = ctypes.create_string_buffer(b"Z" * nbytes if content is None else bytes_of(content, group, page, nbytes), nbytes)
            base.written.append(room)
            assert not cuda.cuMemcpyAsync(ctypes.c_uint64(address), ctypes.c_uint64(ctypes.addressof(room)), ctypes.c_size_t(nbytes), base.stream)

    def check(self, request, first=0):
        for group, table in zip(self.groups, request.tables):
            for at, block in enumerate(table[:request.computed]):
                for page, address, nbytes in self.pages(group, block) if block and at >= first else ():
                    room = ctypes.create_string_buffer(nbytes)
                    self.arena.copy(ctypes.addressof(room), address, nbytes)
                    assert room.raw == bytes_of(request.blocks[at], group, page, nbytes), (
                        f"request {request.number}: block {at} of group {group.number} is wrong in page {page}")

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
        context = layouts.Engine.begin(self, f"{self.spec.config.engine_id} {number}")
        request = self.requests[number] = Request(number, blocks, context)
        for group in self.groups:
            self.place(context, {key: (i + 1) * TOKENS * self.k for i, key in enumerate(self.keys(request, group))})

    def prefix(self, keys, context):
        hits, waits = 0, False
        if self.tells:
            setattr(context, hooks.KEYS, keys)
        for key in keys:
            said = self.timed(self.manager.lookup, key, context)
            if said is LookupResult.MISS:
                break
            hits, waits = hits + 1, waits or said is not LookupResult.HIT
        return None if waits else hits

    def window_end(self, keys, size, context):
        def lookup(_, keys, size, context, initial_window_size=None):
            run, waits = 0, False
            for at in reversed(range(len(keys))):
                said = self.timed(self.manager.lookup, keys[at], context)
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
        self.number += 1
        self.jobs[self.number] = ns(request=request, keys=listed, is_store=False, blocks=set(ids))
        request.jobs.add(self.number)
        self.new_loads[self.number] = spec, ns(block_ids=ids, group_sizes=sizes, block_indices=firsts)
        return True

    def compute(self, request):
        """Schedules a part of a request. Returns False if it has no room."""
        count = min(self.rng.randint(1, 4), len(request.blocks) - request.computed)
        if not all(len(t) == request.computed for t in request.tables):
            raise AssertionError("a table of blocks does not end where the request is computed")
        new = self.take(count * len(self.groups))
        if new is None:
            return False
        for group, table in zip(self.groups, request.tables):
            for content in request.blocks[request.computed:request.computed + count]:
                table.append(new.pop())
                self.work.append((group, table[-1], content))
        request.computed += count
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
        self.jobs[self.number] = ns(request=request, keys=list(wanted), is_store=True, blocks=set(ids))
        request.jobs.add(self.number)
        self.new_stores[self.number] = ns(block_ids=ids, group_sizes=sizes, block_indices=indices), output.store_spec

    def schedule(self):
        self.allocated, self.work, self.new_loads, self.new_stores = set(), [], {}, {}
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
        self.timed(self.manager.on_schedule_end, None)

    def report(self, ended):
        for one in ended:
            assert one.success
            if one.job_id not in self.all_jobs:
                raise AssertionError(f"job {one.job_id} was reported twice")
            job = self.all_jobs.pop(one.job_id)
            is_stale = one.job_id <= self.stale
            if not is_stale:
                del self.jobs[one.job_id]
                job.request.jobs.remove(one.job_id)
            if job.is_store:
                if not is_stale:
                    self.timed(self.manager.complete_store, job.keys, job.request.context)
                continue
            if not is_stale:
                self.timed(self.manager.complete_load, job.keys, job.request.context)
            if job.request.state == "is aborted":
                self.drop(job.request)
                job.request.state = "ended"
            elif job.request.state == "loads":
                self.loads += 1
                job.request.computed, job.request.state = job.request.loads_to, "runs"
                self.cache(job.request)
        for number, request in list(self.requests.items()):
            if request.state == "ended" and request.is_signaled and not request.jobs:
                del self.requests[number]

    # --- a step, as the worker sees it ---

    def run(self):
        self.schedule()
        late, self.results = self.results, []
        self.all_jobs = {**getattr(self, "all_jobs", {}), **self.jobs}
        flush, self.to_flush = self.to_flush, set()
        deferred, self.deferred = self.deferred, list(self.new_stores.items())
        at_once = [(j, s) for j, s in self.deferred if j in flush]
        self.deferred = [(j, s) for j, s in self.deferred if j not in flush]
        for job, (source, spec) in deferred + at_once:
            assert self.timed(self.worker.submit_store, job, source, spec)
        if flush:
            self.timed(self.worker.wait, set(flush))
        for group in self.groups[:1]:
            for block in self.allocated:
                self.launch(group, block, None)
        behind = VERSION != "0.26" and self.rng.random() < 0.7
        if behind:
            self.worker.step_begins()
            self.forward()
        for job, (spec, where) in self.new_loads.items():
            assert self.timed(self.worker.submit_load, job, spec, where)
        if not behind:
            self.forward()
        self.results = self.timed(self.worker.get_finished)
        for one in self.results:
            job = self.all_jobs[one.job_id]
            if not job.is_store and job.request.state in ("loads", "is aborted"):
                whole, job.request.computed = job.request.computed, job.request.loads_to
                self.check(job.request, job.request.loads_from)
                job.request.computed = whole
        if self.is_late:
            self.report(late)
        else:
            self.report(self.results)
            self.results = []
        for request in list(self.requests.values()):
            if request.state == "runs" and request.computed == len(request.blocks):
                self.check(request)
                self.end_request(request)

    def forward(self):
        for group, block, content in self.work:
            self.launch(group, block, content)

    def reset(self):
        """reset_prefix_cache() with running requests and the connector."""
        for request in self.requests.values():
            if request.state == "runs":
                self.preempt(request)
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


def daemon_fails(rng, engines):
    what = rng.choice(["restart", "restart", "empty", "kill", "stop"])
    told(what)
    if what in ("kill", "stop"):
        for _ in range(rng.randint(1, 6)):
            for engine in engines:
                engine.run()
        told("start" if what == "kill" else "continue")


def recovers(engine, blocks):
    """The engine stores and finds again, whatever has happened before."""
    loads, numbers = engine.loads, iter(range(10 ** 6, 2 * 10 ** 6))

    def has_loaded():
        engine.reset()
        engine.add(next(numbers), blocks)
        until(lambda: (engine.run(), engine.is_idle())[1], "requests and jobs never end")
        return engine.loads > loads

    until(has_loaded, "the daemon has come back, and nothing is found")


def main():
    layout, seed = base.SCENARIO.split("-")
    rng = random.Random(f"{layout} {seed} {VERSION}")
    mover.GATHER_S = rng.choice([0.0, 0.01])
    promises.GRACE_S = rng.choice([0.0, 0.002])
    promises.LOOKUP_S, promises.SILENT_S, promises.PROBE_S = 0.5, 0.3, 0.1  # some histories stop the daemon
    mover.STORE_S = 1.0
    source, engines, made, number = prompts(rng), [Engine(rng, layout, f"engine {n}") for n in range(2)], 2, 0
    loads = 0
    for at in range(STEPS):
        for place, engine in enumerate(engines):
            if rng.random() < 0.5:
                number += 1
                engine.add(number, next(source))
            alive = [r for r in engine.requests.values() if r.state in ("waits", "loads", "runs")]
            if alive and rng.random() < 0.15:
                engine.end_request(rng.choice(alive))
            runs = [r for r in engine.requests.values() if r.state == "runs"]
            if runs and rng.random() < 0.1:
                engine.preempt(rng.choice(runs))
            if rng.random() < 0.02:
                engine.reset()
            engine.run()
            if rng.random() < 0.008:
                loads += engine.loads
                engine.close()
                engines[place], made = Engine(rng, layout, f"engine {made}"), made + 1
        if at % 20 == 12:
            daemon_fails(rng, engines)
    for engine in engines:
        recovers(engine, [rng.randbytes(32) for _ in range(8)])
        until(lambda: (engine.run(), not engine.manager.has_pending_work())[1], "the spec never comes to rest")
        assert not engine.manager._requests and not engine.manager._loads and not engine.manager._promises._requests
        assert sum(engine.users.values()) == 0
        loads += engine.loads
    print(f"{loads} loads, {number} requests", file=sys.stderr)
    told("leases")
    found = 0
    with kvcache.Client(base.SOCKET) as client:
        for group in engines[0].groups:
            namespace = client.namespace(engines[0].worker.spec.names[group.number], engines[0].worker.spec.fields)
            for last, blocks in universe.items():
                with namespace.get_map([identity.parts_of(last + group.number.to_bytes(4, "big"), 1)[0]]) as leased:
                    if leased[0] is not None:
                        found += 1
                        assert bytes(leased[0]) == b"".join(bytes_of(b, group, page, nbytes) for b in blocks
                                                            for page, (_, _, nbytes) in enumerate(group.pages)), "a stored chunk is wrong"
    assert loads and found, f"the history tests nothing: {loads} loads, {found} chunks"
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
    print("right", flush=True)
