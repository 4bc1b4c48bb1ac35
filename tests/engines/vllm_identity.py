# SPDX-License-Identifier: Apache-2.0
"""Checks the facts of vLLM against the model of its bytes (tests/python/vllm_model.py), with CPU tensors that vLLM's own classes register.

OffloadingConnectorWorker, KVCacheConfig, FullAttentionSpec, layouts and FlashAttention's orders are vLLM's. The model runner, which allocates
the tensors, is replaced, because it needs a GPU."""

import types

import fake_vllm
import torch
import vllm_model
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1 import kv_cache_interface as interface

from kvcache.vllm import arrangement, delivery, hooks, worker

ns = types.SimpleNamespace
COMPARED = ("shapes", "strides", "offsets", "pages")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def groups_of(engine):
    spec = interface.FullAttentionSpec(block_size=vllm_model.TOKENS, num_kv_heads=vllm_model.HEADS // engine.tp, head_size=vllm_model.DIM,
                                       dtype=DTYPES[engine.dtype])
    return spec, [interface.KVCacheGroupSpec(list(vllm_model.NAMES), spec)]


def registered_by_33(engine):
    """Returns vLLM's KVCacheConfig and the views of its create_kv_cache_views(), in one allocation."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    spec, groups = groups_of(engine)
    layout = KVCacheLayout[vllm_model.LAYOUTS_29.get(engine.layout, engine.layout)]
    strides = interface.compute_layout_strides(spec, engine.blocks, vllm_model.LAYERS, layout)
    size = spec.page_size_bytes * engine.blocks * vllm_model.LAYERS
    tensor = interface.KVCacheTensor(size=size, layers=list(vllm_model.NAMES), layer_stride=strides[0], block_stride=strides[1])
    views = interface.create_kv_cache_views(torch.zeros(size, dtype=torch.int8), spec, engine.blocks, layout, tensor)
    config = interface.KVCacheConfig(num_blocks=engine.blocks, kv_cache_tensors=[tensor], kv_cache_groups=groups)
    return config, dict(zip(vllm_model.NAMES, views)), None


def registered_by_26(engine):
    """Returns vLLM's KVCacheConfig, and its tensors in the order of its FlashAttention backend."""
    from vllm.v1.attention.backends import flash_attn

    spec, groups = groups_of(engine)
    flash_attn.get_kv_cache_layout = lambda: engine.layout
    backend = flash_attn.FlashAttentionBackend
    heads = vllm_model.HEADS // engine.tp
    shape = (engine.blocks, heads, vllm_model.TOKENS, 2 * vllm_model.DIM)
    assert backend.get_kv_cache_shape(engine.blocks, 16, heads, vllm_model.DIM) == (*shape[:2], 16, shape[3])
    size = spec.page_size_bytes * engine.blocks
    config = interface.KVCacheConfig(engine.blocks, [interface.KVCacheTensor(size, [n]) for n in vllm_model.NAMES], groups)
    cross = engine.runner == "v1"
    order = backend.get_kv_cache_stride_order(include_num_layers_dimension=cross)
    if cross:
        return config, {}, torch.zeros([(vllm_model.LAYERS, *shape)[at] for at in order], dtype=spec.dtype)
    inverse = [order.index(at) for at in range(len(order))]
    return config, {n: torch.zeros([shape[at] for at in order], dtype=spec.dtype).permute(*inverse) for n in vllm_model.NAMES}, None


def facts_of(engine):
    """Returns the facts that vLLM's worker delivers."""
    config, tensors, cross = (registered_by_33 if engine.version >= (0, 29) else registered_by_26)(engine)
    offloading = vllm_model.offloading_of(engine, "identity")
    offloading.canonical_layout = False
    spec = ns(config=offloading, extra_config=offloading.extra_config, replicated_layout=False, get_worker=lambda caches: caches)
    configuration = fake_vllm.configuration(dtype=f"torch.{engine.dtype}")
    configuration.cache_config.kv_cache_layout = engine.layout
    configuration.compilation_config = ns(static_forward_context=vllm_model.layers_of(engine))
    configuration.parallel_config = ns(tensor_parallel_size=engine.tp, prefill_context_parallel_size=1, world_size=engine.tp, rank=0,
                                       decode_context_parallel_size=1, cp_kv_cache_interleave_size=1)
    configuration.model_config.get_total_num_kv_heads = lambda: vllm_model.HEADS
    hooks._configurations["identity"] = configuration
    arguments = (spec, configuration, config) if engine.version >= (0, 27) else (spec, config)
    made = OffloadingConnectorWorker(*arguments)
    if cross is None:
        made.register_kv_caches(tensors)
    else:
        from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

        made.register_cross_layers_kv_cache(cross, FlashAttentionBackend)
    return delivery._here["identity", 0]


def modelled(engine):
    caches = vllm_model.caches_of(engine)
    tensors = caches.tensors or dict.fromkeys(vllm_model.NAMES, caches.cross_layers)
    return arrangement.facts_of(caches.config, tensors, caches.handed_over, vllm_model.layers_of(engine), False)


def registered_tensors_are_those_of_the_model(make_host, daemon):
    import vllm

    version = tuple(int(n) for n in vllm.__version__.split(".")[:2])
    worker.install()
    seen = {}
    layouts = [n for n in vllm_model.layouts_of(version) if n != "BHLNC"]  # vLLM cannot hand over pages that lie in pieces
    for engine in [vllm_model.Engine(version, runner, layout, tp, dtype)
                   for runner in ("v1", "v2") for layout in layouts for tp in (1, 2, 4) for dtype in DTYPES]:
        facts, expected = facts_of(engine), modelled(engine)
        assert {n: facts[n] for n in COMPARED} == {n: expected[n] for n in COMPARED}, f"{engine}: {facts} and not {expected}"
        assert "FullAttentionSpec" in facts["specs"] or facts["specs"].startswith("sha256-")
        chunk = vllm_model.chunk_of(engine)
        wrong = seen.setdefault(tuple(facts[n] for n in arrangement.NAMES), chunk)
        assert wrong == chunk, f"{engine} has the description of an engine with other bytes"
