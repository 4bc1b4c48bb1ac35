# SPDX-License-Identifier: Apache-2.0
"""vLLM's own classes hand over KV caches that are not plain, and look windows up.

OffloadingConnectorWorker, KVCacheConfig, the specs of groups and the lookup of OffloadingConnectorScheduler are real. Tensors are of the CPU,
where kvcache's layouts gather and scatter."""

import random
import types

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.kv_offload.base import LookupResult, ReqContext

from kvcache.vllm import arrays, hooks, windows

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
    """Two attention layers with padded pages, and two layers of states that overlay them in blocks of their own."""
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
    """From 0.29 on the states of a layer are registered as one tensor."""
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


SCENARIOS = (padded_pages_and_states_are_regions, windows_are_told)
