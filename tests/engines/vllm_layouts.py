# SPDX-License-Identifier: Apache-2.0
"""Tests kvcache's layouts and lookups of windows with vLLM's own classes, for KV caches with several groups, padding, windows or states.

OffloadingConnectorWorker, KVCacheConfig, the specs of groups and the lookup of OffloadingConnectorScheduler are vLLM's. The tensors are in memory
of the CPU, where kvcache's layouts gather and scatter blocks."""

import contextlib
import hashlib
import random
import types

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.kv_offload.base import LookupResult, PrepareStoreOutput, ReqContext, RequestOffloadingContext

from kvcache._gpu import NO_BLOCK
from kvcache.vllm import arrays, hooks, identity, windows
from kvcache.vllm.spec import SYNC_LOAD_BYTES

ns = types.SimpleNamespace
BLOCKS, TOKENS, PAGE = 24, 16, 12 << 10
PARALLEL = ns(tensor_parallel_size=1, prefill_context_parallel_size=1, decode_context_parallel_size=1, world_size=1, rank=0,
              cp_kv_cache_interleave_size=1)


def handed_over(groups, tensors, views):
    """Returns the CanonicalKVCaches that vLLM makes."""
    caches = []
    config = interface.KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups)
    spec = ns(config=ns(canonical_layout=False, parallel=PARALLEL, groups=(), engine_id="layouts"), extra_config={}, replicated_layout=False,
              get_worker=caches.append)
    configuration = ns(parallel_config=PARALLEL, cache_config=ns(kv_cache_layout=None), compilation_config=ns(static_forward_context={}),
                       model_config=ns(get_total_num_kv_heads=lambda: 4, use_mla=False))
    is_new = not hasattr(interface.KVCacheTensor(size=1, **_places([""])), "shared_by")
    made = OffloadingConnectorWorker(spec, configuration, config) if is_new else OffloadingConnectorWorker(spec, config)
    made.register_kv_caches(views)
    [canonical] = caches
    return canonical


def _places(names):
    fields = interface.KVCacheTensor.__dataclass_fields__
    return {"shared_by": names} if "shared_by" in fields else {"layers": names, "layer_stride": PAGE, "block_stride": PAGE}


def hybrid():
    """Returns two attention layers with padded pages, and two layers of states that share their memory in separate blocks."""
    padded = {"page_size_padded": PAGE} if "page_size_padded" in interface.FullAttentionSpec.__dataclass_fields__ else {}
    attention = interface.FullAttentionSpec(block_size=TOKENS, num_kv_heads=4, head_size=32, dtype=torch.bfloat16, **padded)
    state = interface.MambaSpec(block_size=TOKENS, shapes=((7, 33), (5, 64)), dtypes=(torch.float32, torch.bfloat16), page_size_padded=PAGE)
    assert attention.page_size_bytes == state.page_size_bytes == PAGE
    groups = [interface.KVCacheGroupSpec(["a0", "a1"], attention), interface.KVCacheGroupSpec(["s0", "s1"], state)]
    storage = [torch.frombuffer(bytearray(random.Random(i).randbytes(BLOCKS * PAGE)), dtype=torch.int8) for i in range(2)]
    views = {}
    for i, whole in enumerate(storage):
        pages = whole.view(torch.bfloat16)
        views[f"a{i}"] = pages.as_strided((BLOCKS, 4, TOKENS, 64), (PAGE // 2, TOKENS * 64, 64, 1))
        state_view = whole.as_strided((BLOCKS, PAGE), (PAGE, 1))
        views[f"s{i}"] = state_view if is_one_tensor() else [state_view]
    tensors = [interface.KVCacheTensor(size=BLOCKS * PAGE, **_places([f"a{i}", f"s{i}"])) for i in range(2)]
    return groups, tensors, views, storage


def is_one_tensor():
    """Returns whether the states of a layer are registered as one tensor, as from 0.29 on."""
    return "shared_by" not in interface.KVCacheTensor.__dataclass_fields__


def padded_pages_and_states_are_regions(make_host, daemon):
    groups, tensors, views, storage = hybrid()
    made = arrays.blocks_of(handed_over(groups, tensors, views), 3)
    sizes = [4 * TOKENS * 64 * 2, 7 * 33 * 4 + 5 * 64 * 2]
    assert [b.sizes for b in made] == [[n, n] for n in sizes], [b.sizes for b in made]
    assert [b.chunk_bytes for b in made] == [6 * n for n in sizes] and not any(b.is_plain for b in made)
    before = [bytes(s.numpy()) for s in storage]
    for group, nbytes in zip(made, sizes):
        chunk, listed = bytearray(group.chunk_bytes), [5, 20, 11]
        group.layout().gather(listed, chunk)
        assert bytes(chunk) == b"".join(m[b * PAGE:b * PAGE + nbytes] for b in listed for m in before)
        group.layout().scatter([7, 8, 9], chunk)
        now = [bytes(s.numpy()) for s in storage]
        for memory, old in zip(now, before):
            expected = bytearray(old)
            for to, source in zip((7, 8, 9), listed):
                expected[to * PAGE:to * PAGE + nbytes] = old[source * PAGE:source * PAGE + nbytes]
            assert memory == bytes(expected), "padding was touched, or a block is wrong"
        before = now


def windows_are_told(make_host, daemon):
    """vLLM's lookup of a window leaves its keys in the context, and finds what windows.search() finds."""
    hooks.install()
    scheduler, draw = OffloadingConnectorScheduler.__new__(OffloadingConnectorScheduler), random.Random(3)
    new = len(OffloadingConnectorScheduler._sliding_window_lookup.__wrapped__.__code__.co_varnames) and \
        "initial_window_size" in OffloadingConnectorScheduler._sliding_window_lookup.__wrapped__.__code__.co_varnames
    for _ in range(300):
        keys = [i.to_bytes(4, "big") for i in range(draw.randint(0, 40))]
        size = draw.randint(1, 5)
        first_size = size + draw.randint(0, 2) if new else size
        present = {k for k in keys if draw.random() < 0.8}
        seen = []

        def lookup(key, context):
            seen.append(getattr(context, hooks.WINDOW))
            return LookupResult.HIT if key in present else LookupResult.MISS

        scheduler.manager = ns(lookup=lookup)
        end = scheduler._sliding_window_lookup(keys, size, ReqContext("a"), *([first_size] if new else []))
        window = windows.Window(keys, size, first_size)
        assert all(w == window for w in seen) and (seen or not keys)
        assert windows.search(window, {}, lambda listed: bytes(k in present for k in listed)).end == end


WINDOW = 40


class Manager:
    """A manager that finds the keys of `chunks`."""

    def __init__(self):
        self.chunks, self.lock = {}, contextlib.nullcontext()

    def lookup(self, key, context):
        return LookupResult.HIT if key in self.chunks else LookupResult.MISS

    def on_new_request(self, context):
        return RequestOffloadingContext()

    def prepare_load(self, keys, context):
        return list(keys)

    def prepare_store(self, keys, context):
        new = [k for k in keys if k not in self.chunks]
        return PrepareStoreOutput(keys_to_store=new, store_spec=new, evicted_keys=[])

    def nothing(self, *_):
        pass

    complete_load = complete_store = on_request_finished = on_schedule_end = touch = nothing


class Engine:
    """vLLM's scheduler of offloading over blocks whose content identifies them: one group with full attention, and one with a window, whose
    blocks have `hashes` hashes each. Chunks are made and divided as by the spec's worker. With a `budget`, loads of so many bytes a step precede
    the forward pass of the same step (since vLLM 0.33)."""

    def __init__(self, per_chunk, hashes, manager, budget=0):
        self.per_chunk, self.hashes, self.manager = per_chunk, (1, hashes), manager
        full = interface.FullAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        slides = interface.SlidingWindowSpec(block_size=hashes * TOKENS, num_kv_heads=1, head_size=8, dtype=torch.bfloat16, sliding_window=WINDOW)
        groups = [interface.KVCacheGroupSpec(["a"], full), interface.KVCacheGroupSpec(["b"], slides)]
        size = -(-WINDOW // (hashes * TOKENS * per_chunk))
        offloaded = tuple(ns(group_id=i, tokens_per_block=TOKENS * self.hashes[i], layer_names=n, sliding_window_size_in_chunks=w)
                          for i, (n, w) in enumerate(((("a",), None), (("b",), size))))
        spec = ns(config=ns(groups=offloaded), blocks_per_chunk=per_chunk, tokens_per_hash=TOKENS, tokens_per_block=(TOKENS, hashes * TOKENS),
                  offload_prompt_only=False, extra_config={"sync_load_budget_bytes": budget}, get_manager=lambda: manager,
                  kv_events_config=ns(enable_kv_cache_events=False, self_describing_kv_events=False))
        self.configuration = ns(cache_config=ns(prefix_cache_retention_interval=None, enable_prefix_caching=True), speculative_config=None,
                                parallel_config=ns(world_size=1, decode_context_parallel_size=1))
        self.scheduler = OffloadingConnectorScheduler(spec, self.configuration, interface.KVCacheConfig(1000, [], groups))
        self.memory, self.free = {}, list(range(1, 1000))
        self.loads_first = budget > 0 and hasattr(self.scheduler, "_reserve_sync_load")

    def request(self, name, tokens):
        hashes, above = [], b""
        for at in range(len(tokens) // TOKENS):
            above = hashlib.sha256(above + repr(tokens[at * TOKENS:(at + 1) * TOKENS]).encode()).digest()
            hashes.append(above)
        request = ns(request_id=name, num_tokens=len(tokens), num_prompt_tokens=len(tokens), block_hashes=hashes, num_computed_tokens=0,
                     kv_transfer_params=None, kv_hints=None, skip_reading_prefix_cache=False, is_finished=lambda: False, status=None,
                     shared_prefix_boundary=None, lora_request=None, all_token_ids=tokens, mm_features=[], cache_salt=None)
        self.scheduler.on_new_request(request)
        return request

    def load(self, request):
        """Returns the tokens that were loaded, and the blocks of each group."""
        found, is_beside = self.scheduler.get_num_new_matched_tokens(request, 0)
        tables = [[], []]
        if not found:
            return 0, tables
        assert is_beside == (not self.loads_first), "sync_load_budget_bytes does not decide how a chunk is loaded"
        tables[0] += [self.free.pop() for _ in range(-(-found // TOKENS))]
        for at in range(-(-found // self.tokens(1))):
            tables[1].append(0 if (at + 1) * self.tokens(1) <= found - WINDOW + 1 else self.free.pop())
        blocks = [[ns(block_id=b, is_null=b == 0, block_hash=None if is_beside else b) for b in table] for table in tables]
        self.scheduler.update_state_after_alloc(request, ns(blocks=blocks), found)
        [job] = self.scheduler._current_batch_load_jobs.values()
        keys, gpu, at = job.src_spec, job.dst_spec, 0
        for group, (size, first) in enumerate(zip(gpu.group_sizes, gpu.block_indices)):
            listed = [k for k in keys if identity.group_of(k) == group]
            blocks = [int(b) for b in gpu.block_ids[at:at + size]]
            assert len(listed) == arrays.chunks_of(size, first, self.per_chunk)
            for slot in arrays.slots_of(blocks, first, self.per_chunk):
                self.memory[slot.block] = list(self.manager.chunks[listed[slot.chunk]][slot.place])
            at += size
        if is_beside:
            self.plan()  # a step in which the request waits for its load
        return found, tables

    def tokens(self, group):
        return TOKENS * self.hashes[group]

    def step(self, request, tables, computed, tokens, is_new):
        """Computes tokens of a request, and stores what vLLM has stored."""
        for i, block in enumerate(tables[1]):
            if block and (i + 1) * self.tokens(1) <= computed - WINDOW + 1:
                self.free.append(block)  # the next allocation takes it
                tables[1][i] = 0
        added = [[self.free.pop() for _ in range(len(table), -(-(computed + tokens) // self.tokens(group)))] for group, table in enumerate(tables)]
        for group, (table, new) in enumerate(zip(tables, added)):
            table += new
            self.memory.update((block, [None] * self.hashes[group]) for block in new)
            for at in range(computed // TOKENS, min((computed + tokens) // TOKENS, len(request.block_hashes))):
                self.memory[table[at // self.hashes[group]]][at % self.hashes[group]] = (group, request.block_hashes[at])
        request.num_computed_tokens = computed
        if is_new:
            self.plan({request.request_id: tokens}, new=[ns(req_id=request.request_id, block_ids=tuple(map(list, tables)))])
        else:
            self.plan({request.request_id: tokens}, old=([request.request_id], [tuple(added)]))

    def plan(self, tokens=(), new=(), old=((), ())):
        cached = ns(req_ids=list(old[0]), new_block_ids=list(old[1]), resumed_req_ids=set())
        output = ns(scheduled_new_reqs=list(new), scheduled_cached_reqs=cached, preempted_req_ids=None, finished_req_ids=set(),
                    num_scheduled_tokens=dict(tokens), kv_cache_block_copies=None, kv_connector_block_state=None)
        meta = self.scheduler.build_connector_meta(output)
        for number, job in meta.store_jobs.items():
            self.store(job)
        done = ns(kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys([*meta.store_jobs, *meta.load_jobs], 1)))
        self.scheduler.update_connector_output(done)

    def store(self, job):
        gpu, keys, at = job.src_spec, job.dst_spec, 0
        for group, (size, first) in enumerate(zip(gpu.group_sizes, gpu.block_indices)):
            listed = [k for k in keys if identity.group_of(k) == group]
            placed = arrays.filled([int(b) for b in gpu.block_ids[at:at + size]], len(listed), first, self.per_chunk)
            at += size
            for i, key in enumerate(listed if placed is not None else ()):
                blocks = placed[i * self.per_chunk:(i + 1) * self.per_chunk]
                if NO_BLOCK in blocks and not arrays.zeros_are_safe(self.configuration):
                    continue
                self.manager.chunks[key] = [list(self.memory[b]) if b != NO_BLOCK else ["zeros"] * self.hashes[group] for b in blocks]


def schedulers_find_the_blocks_that_they_stored(make_host, daemon):
    """Requests with common beginnings are computed in steps of any size, and later ones load the shared part. Each block then has the content of
    its place, and none the zeros of a block that was left out."""
    loaded = zeros = 0
    # vLLM 0.26 asserts that a window's load fits, which fails if a prefix ends within a block of the window.
    sizes = (1, 1, 2, 4) if hasattr(OffloadingConnectorScheduler, "_reachable_store_block_mask") else (1,)
    for seed in range(120):
        draw, manager = random.Random(seed), Manager()
        engine = Engine(draw.choice((1, 2, 3, 4)), draw.choice(sizes), manager, draw.choice((0, SYNC_LOAD_BYTES)))
        trunk = [draw.randrange(100) for _ in range(600)]
        for number in range(8):
            shared = draw.randrange(0, 500)
            tokens = trunk[:shared] + [draw.randrange(100) for _ in range(draw.randrange(1, 120))]
            request = engine.request(f"{seed} {number}", tokens)
            computed, tables = engine.load(request)
            for group, table in enumerate(tables):
                for at in range(computed // TOKENS):
                    block, n = table[at // engine.hashes[group]], engine.hashes[group]
                    assert not block or engine.memory[block][at % n] == (group, request.block_hashes[at]), (seed, number, group, at)
            loaded, is_new = loaded + computed, True
            while computed < len(tokens):
                n = min(len(tokens) - computed, draw.choice((16, 40, 100, 300)))
                engine.step(request, tables, computed, n, is_new)
                computed, is_new = computed + n, False
            for key in [k for k in manager.chunks if draw.random() < 0.1]:  # evicted
                zeros += "zeros" in sum(manager.chunks.pop(key), [])
        zeros += sum("zeros" in sum(chunk, []) for chunk in manager.chunks.values())
    assert loaded > 10_000 and (zeros > 0) == arrays.zeros_are_safe(engine.configuration), (loaded, zeros)


SCENARIOS = (padded_pages_and_states_are_regions, windows_are_told, schedulers_find_the_blocks_that_they_stored)
