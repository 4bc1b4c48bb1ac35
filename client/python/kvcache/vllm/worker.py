# SPDX-License-Identifier: Apache-2.0
"""Wrapped methods of vLLM's workers, which collect facts that only workers know, and report the beginning of a step.

The plugin entry point (register()) wraps methods of vLLM's OffloadingConnectorWorker in each process of vLLM. When the model runner registers
its KV caches, the wrappers see both the tensors and the views that vLLM makes of them for an offloading spec. They describe both
(arrangement.py) and leave the facts for the scheduler (delivery.py). For engines that do not use kvcache, the wrappers only call the
original method. Another wrapper calls step_begins() of the spec's workers before vLLM launches the work of a step.
"""

from __future__ import annotations

import functools
import importlib
import logging
import weakref
from collections.abc import Mapping
from typing import Any

from . import arrangement, delivery, hooks, identity

log = logging.getLogger("kvcache.vllm")

_WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"
_TENSORS = "_kvcache_tensors"  # attribute of vLLM's worker with the registered tensors; set while a wrapped register method runs
_STEPS = "vllm.v1.worker.gpu.kv_connector"

listeners: weakref.WeakSet[Any] = weakref.WeakSet()  # objects whose step_begins() is called before vLLM launches the work of a step


def install() -> None:
    """Wraps the methods. May be called any number of times. Never raises: if a method cannot be wrapped, the worker's facts are not delivered,
    or loads wait for the forward pass of their step."""
    try:
        cls = importlib.import_module(_WORKER).OffloadingConnectorWorker
    except Exception as e:
        log.debug("vLLM's offloading worker is not wrapped: %s", e)
        return
    for name, parameters, wrapper in (("register_kv_caches", ("self", "kv_caches"), _registering),
                                      ("register_cross_layers_kv_cache", ("self", "kv_cache", "attn_backend"), _registering_cross_layers),
                                      ("_init_worker", ("self", "kv_caches"), _describing)):
        try:
            hooks.wrap(cls, name, parameters, wrapper)
        except Exception as e:
            log.debug("%s.%s is not wrapped: %s", cls.__name__, name, e)
    try:  # the newer model runner begins loads after the forward pass, so loads need an event from the step's beginning
        hooks.wrap(importlib.import_module(_STEPS).ActiveKVConnector, "pre_forward",
                   ("self", "scheduler_output", "input_batch", "attn_metadata"), _beginning)
    except Exception as e:
        log.debug("vLLM's pre_forward is not wrapped, so loads wait for the forward pass of their step: %s", e)


def step_begins() -> None:
    """Reports the beginning of a step to the listeners. vLLM has launched only the work that prepares the step's new blocks."""
    for listener in listeners:
        listener.step_begins()


def _may_load(scheduler_output: Any) -> bool:
    """Returns whether blocks may be loaded in this step. Without loads no event is recorded, because recording takes the driver's locks."""
    jobs = getattr(getattr(scheduler_output, "kv_connector_metadata", None), "load_jobs", None)
    return not isinstance(jobs, dict) or len(jobs) > 0


def _beginning(original: Any) -> Any:
    @functools.wraps(original)
    def pre_forward(self: Any, scheduler_output: Any, input_batch: Any = None, attn_metadata: Any = None) -> Any:
        if _may_load(scheduler_output):
            step_begins()
        return original(self, scheduler_output, input_batch, attn_metadata)

    return pre_forward


def _registering(original: Any) -> Any:
    @functools.wraps(original)
    def register(self: Any, kv_caches: Any) -> Any:
        return _with_tensors(self, kv_caches, lambda: original(self, kv_caches))

    return register


def _registering_cross_layers(original: Any) -> Any:
    """Wraps the method for engines that have one tensor with the pages of all layers, which form one group."""
    @functools.wraps(original)
    def register(self: Any, kv_cache: Any, attn_backend: Any) -> Any:
        groups = getattr(getattr(self, "kv_cache_config", None), "kv_cache_groups", ())
        tensors = {name: kv_cache for group in groups for name in group.layer_names}
        return _with_tensors(self, tensors, lambda: original(self, kv_cache, attn_backend))

    return register


def _with_tensors(worker: Any, tensors: Any, call: Any) -> Any:
    setattr(worker, _TENSORS, tensors)
    try:
        return call()
    finally:
        setattr(worker, _TENSORS, None)


def _describing(original: Any) -> Any:
    @functools.wraps(original)
    def init_worker(self: Any, kv_caches: Any) -> Any:
        try:
            if is_used_by(self.spec):
                deliver(self, kv_caches)
        except Exception as e:  # the engine must start
            log.warning("the arrangement of vLLM's KV caches cannot be described, so this engine shares chunks only with engines of the same "
                        "version on the same kind of GPU: %s: %s",
                        type(e).__name__, e)
        return original(self, kv_caches)

    return init_worker


def is_used_by(spec: Any) -> bool:
    """Returns whether vLLM's offloading spec is this adapter's, or has a tier of this adapter."""
    tiers = getattr(spec, "extra_config", {}).get("secondary_tiers") or ()
    return any(c.__module__.startswith("kvcache.") for c in type(spec).__mro__) or any(
        isinstance(t, Mapping) and ("kvcache" in (t.get("type"), str(t.get("module_path")).partition(".")[0])) for t in tiers)


def deliver(worker: Any, kv_caches: Any) -> None:
    """Leaves the facts of this worker for the scheduler (delivery.py). Raises an exception, such as ValueError, if they cannot be
    determined or written."""
    config = worker.spec.config
    rank, world_size = int(config.parallel.rank), int(config.parallel.world_size)
    delivery.forget(config.engine_id, rank)
    engine = getattr(worker, "vllm_config", None) or hooks.configuration_of(config.engine_id)
    if engine is None:
        raise ValueError("the adapter cannot find vLLM's configuration of this engine")
    layers = engine.compilation_config.static_forward_context
    canonical = bool(getattr(config, "canonical_layout", False))
    offloaded = {name for group in config.groups for name in group.layer_names}
    tensors = {name: held for name, held in (getattr(worker, _TENSORS, None) or {}).items() if name in offloaded}
    facts = arrangement.facts_of(worker.kv_cache_config, tensors, kv_caches, layers, canonical)
    delivery.deliver(config.engine_id, rank, world_size, {**identity.of_configuration(engine), **facts,
                                                          "version": identity.version_of_arrangement(canonical)})
