# SPDX-License-Identifier: Apache-2.0
"""Wrapped functions of vLLM, which collect facts that vLLM passes to no connector.

The plugin entry point (register()) calls install() in each process of vLLM. These functions are wrapped:

- `build_offloading_config`: when the scheduler's process makes a tier, vLLM has no current configuration. The wrapper keeps the configuration
  from which vLLM built the OffloadingConfig, for configuration_of().
- `_maximal_prefix_lookup`: vLLM before 0.33 asks a manager for one key after another. The wrapper leaves all keys of the lookup in the request's
  context, so that the manager can look them up together in one step.
- `_sliding_window_lookup`: vLLM does not pass the window to the manager. The wrapper leaves its keys and size in the request's context.
- `_gen_lora_extra_hash_keys`: block hashes contain a LoRA adapter's name, and its path in newer versions, but not its content. The wrapper adds
  a digest of the content, taken when the adapter is first seen, because the engine keeps the content that it read then.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

from ..engine.identity import Unknown, new_start
from ..engine.weights import weights_of
from .windows import Window

log = logging.getLogger("kvcache.vllm")

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1."
_OFFLOADING, _HASHES = _CONNECTOR + "offloading.config", "vllm.v1.core.kv_cache_utils"
_SCHEDULER = _CONNECTOR + "offloading.scheduler"
KEYS = "_kvcache_keys"  # name of the attribute of a request's context that has the keys of vLLM's prefix lookup
WINDOW = "_kvcache_window"  # name of the attribute of a request's context that has the Window of vLLM's window lookup (windows.py)
MOST_ADAPTERS = 10_000  # most LoRA adapters whose digests are kept
_OF_WINDOW = ("self", "keys", "sliding_window_size", "req_context", "initial_window_size")  # parameters of _sliding_window_lookup in vLLM 0.33

_configurations: dict[str, Any] = {}  # by engine id, vLLM's configuration
_adapters: dict[tuple[int, str, str], str] = {}  # by number, name and path of a LoRA adapter, the result of adapter_digest()


def install() -> None:
    """Wraps the functions. May be called any number of times. Never raises: facts from a function that cannot be wrapped are unknown, and a
    fingerprint with an unknown fact is private, which is safe. If a lookup cannot be wrapped, lookups may take two steps."""
    for module, name, parameters, wrapper in ((_OFFLOADING, "build_offloading_config", ("vllm_config", "kv_cache_config"), _keeping),
                                              (_HASHES, "_gen_lora_extra_hash_keys", ("request",), _with_content)):
        try:
            wrap(importlib.import_module(module), name, parameters, wrapper)
        except Exception as e:
            log.debug("%s.%s is not wrapped: %s", module, name, e)
    try:
        wrap(importlib.import_module(_SCHEDULER).OffloadingConnectorScheduler, "_maximal_prefix_lookup", ("self", "keys", "req_context"), _telling)
    except Exception as e:
        log.debug("_maximal_prefix_lookup is not wrapped, so lookups take two steps: %s", e)
    for window in (_OF_WINDOW, _OF_WINDOW[:-1]):  # the parameters in vLLM 0.33, and in older versions
        try:
            wrap(importlib.import_module(_SCHEDULER).OffloadingConnectorScheduler, "_sliding_window_lookup", window, _telling_window)
        except Exception as e:
            log.debug("_sliding_window_lookup is not wrapped with the parameters %s, so lookups of windows may take two steps: %s", window, e)


def wrap(module: Any, name: str, parameters: tuple[str, ...], wrapper: Callable[[Any], Any]) -> None:
    """Replaces a function of a module or class by its wrapper, unless it is wrapped already; also in vLLM's connector module, if that has
    imported the function. Raises TypeError if the function's parameters are not those that the wrapper expects."""
    original = getattr(module, name)
    if getattr(original, "kvcache_wrapped", False):
        return
    if tuple(inspect.signature(original).parameters) != parameters:
        raise TypeError(f"{name}() has the parameters {inspect.signature(original)}, not ({', '.join(parameters)})")
    wrapped = wrapper(original)
    wrapped.kvcache_wrapped = True
    setattr(module, name, wrapped)
    connector = sys.modules.get(_CONNECTOR + "offloading_connector")
    if getattr(connector, name, None) is original:
        setattr(connector, name, wrapped)


def _keeping(original: Any) -> Any:
    @functools.wraps(original)
    def build(vllm_config: Any, kv_cache_config: Any) -> Any:
        _configurations[str(getattr(vllm_config.kv_transfer_config, "engine_id", ""))] = vllm_config
        return original(vllm_config, kv_cache_config)

    return build


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def lookup(self: Any, keys: Any, req_context: Any) -> Any:
        if isinstance(keys, list) and hasattr(req_context, "__dict__"):
            setattr(req_context, KEYS, keys)
        return original(self, keys, req_context)

    return lookup


def _telling_window(original: Any) -> Any:
    @functools.wraps(original)
    def lookup(self: Any, keys: Any, sliding_window_size: int, req_context: Any, initial_window_size: int | None = None) -> Any:
        if hasattr(req_context, "__dict__"):
            setattr(req_context, WINDOW, Window(keys, sliding_window_size, initial_window_size or sliding_window_size))
        return original(self, keys, sliding_window_size, req_context, *([initial_window_size] if initial_window_size is not None else []))

    return lookup


def configuration_of(engine_id: object) -> Any:
    """Returns vLLM's configuration of this engine, or None if build_offloading_config was not wrapped when vLLM called it."""
    return _configurations.get(str(engine_id))


def _with_content(original: Any) -> Any:
    @functools.wraps(original)
    def keys(request: Any) -> list[Any]:
        said = list(original(request))
        adapter = getattr(request, "lora_request", None)
        if not adapter:
            return said
        # Since 0.29 vLLM's extra keys are tuples, whose second element appears in its KV events.
        tagged = any(isinstance(key, tuple) for key in said)
        return [*said, ("kvcache", adapter_digest(adapter)) if tagged else "kvcache:" + adapter_digest(adapter)]

    return keys


def adapter_digest(adapter: Any) -> str:
    """Returns the digest of a LoRA adapter's content, taken when the adapter is first seen, and again if its `load_inplace` makes vLLM read the
    files again. If the content cannot be read, returns a random text, so that no other engine finds the adapter's blocks."""
    key = (int(adapter.lora_int_id), str(adapter.lora_name), str(getattr(adapter, "lora_path", "")))
    digest = _adapters.get(key)
    if digest is None or getattr(adapter, "load_inplace", False):
        digest = weights_of(key[2])
        if isinstance(digest, Unknown):
            log.warning("the content of the LoRA adapter %s cannot be identified, so its blocks are not found by other engines, nor by this one "
                        "after a restart: %s", key[1], digest.reason)
            digest = new_start()
        _adapters[key] = digest
        if len(_adapters) > MOST_ADAPTERS:
            del _adapters[next(iter(_adapters))]
    return digest


def hashes_have_content() -> bool:
    """Returns whether block hashes contain the content of LoRA adapters."""
    return bool(getattr(getattr(sys.modules.get(_HASHES), "_gen_lora_extra_hash_keys", None), "kvcache_wrapped", False))
