# SPDX-License-Identifier: Apache-2.0
"""Engines of vllm_model.py whose workers register their KV caches with the adapter, and the facts that its tier then has."""

import contextlib
import sys
import types

import fake_vllm
import pytest
import vllm_model
from kvcache.engine import identity
from kvcache.vllm import delivery, hooks
from kvcache.vllm import identity as of_vllm
from kvcache.vllm import worker as workers


@contextlib.contextmanager
def installed():
    """Yields vLLM's OffloadingConnectorWorker with the plugin's wrappers."""
    with pytest.MonkeyPatch.context() as patch:
        fake_vllm.install((0, 33))
        patch.setattr(fake_vllm, "current", None)
        patch.setattr(delivery, "_here", {})
        patch.setattr(hooks, "_configurations", {})
        module = types.ModuleType(workers._WORKER)
        original = vllm_model.OffloadingConnectorWorker
        module.OffloadingConnectorWorker = type(original.__name__, (original,), dict(vars(original)))
        patch.setitem(sys.modules, workers._WORKER, module)
        workers.install()
        yield module.OffloadingConnectorWorker
        fake_vllm.remove()


def row_of(engine):
    return 4 * vllm_model.LAYERS * vllm_model.HEADS * vllm_model.TOKENS * vllm_model.DIM * engine.blocks_per_chunk


def facts_of(worker_class, engine, engine_id="one", changed=lambda caches: None, patch=0, deliver=True):
    """Returns the facts that the tier of this engine has, after its workers have registered their KV caches."""
    sys.modules["vllm"].__version__ = f"{engine.version[0]}.{engine.version[1]}.{patch}"
    sys.modules["vllm.platforms"].current_platform.get_device_capability = lambda: engine.capability
    config = fake_vllm.configuration(dtype=f"torch.{engine.dtype}", revision=engine.revision, quantization=engine.quantization,
                                     hf_overrides=dict(engine.overrides), backend=engine.backend)
    config.cache_config.kv_cache_layout = engine.layout
    config.use_v2_model_runner = engine.runner == "v2"
    config.compilation_config = types.SimpleNamespace(static_forward_context=vllm_model.layers_of(engine))
    hooks._configurations[engine_id] = config
    for rank in range(engine.tp if deliver else 0):
        caches = vllm_model.caches_of(engine)
        changed(caches)
        offloading = vllm_model.offloading_of(engine, engine_id, rank)
        spec = types.SimpleNamespace(config=offloading, extra_config=offloading.extra_config, get_worker=lambda _: "worker")
        worker = worker_class(spec, caches.config, caches.handed_over)
        if caches.cross_layers is not None:
            worker.register_cross_layers_kv_cache(caches.cross_layers, None)
        else:
            worker.register_kv_caches(caches.tensors)
        assert worker.worker == "worker"
    offloading = vllm_model.offloading_of(engine, engine_id)
    return {**of_vllm.fields_of(offloading, row_of(engine), 65536, "w"), **of_vllm.of_engine(offloading), "chunk": "rows"}


def namespace_of(facts):
    made = identity.compose("vllm", facts, "start")
    assert not made.unknown, made.unknown
    return tuple(made.fields.items())
