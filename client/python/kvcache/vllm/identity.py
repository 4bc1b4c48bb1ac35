# SPDX-License-Identifier: Apache-2.0
"""Collects the facts of vLLM on which the bytes of a chunk depend, and names namespaces and keys after them.

The facts come from vLLM's OffloadingConfig, its configuration (VllmConfig) and its workers. `kvcache.engine.identity` composes a fingerprint of
them. A digest of the fingerprint is in the namespace's name, so that engines with different configurations use different namespaces. Each KV
cache group (group of layers) has a namespace, and vLLM's block hash is the key. The block hashes of requests with a LoRA adapter depend on the
adapter's content (hooks.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..engine.identity import Unknown, compose, digest_of, model_digest, new_start, printable, warn
from ..engine.weights import dummy_weights, weights_of
from . import delivery, hooks

__all__ = ["by_group", "compose", "fields_of", "group_of", "names_of", "namespace_base", "namespace_name", "new_start", "of_engine",
           "parts_of", "printable", "warn", "weights_of", "weights_of_engine"]

log = logging.getLogger("kvcache.vllm")

KEY_BYTES = 32  # bytes of the daemon's keys; a key of vLLM is a block hash and four bytes of the group's number
KEEP, FORGET = "keep", "forget"  # values of the option after_reset
_LENGTH = "original_max_position_embeddings"
_VARIABLES = ("VLLM_KV_CACHE_LAYOUT", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_MLA_DISABLE",
              "VLLM_SSM_CONV_STATE_LAYOUT")
# Load formats of vLLM that read weights only from the model's folder, or, in the case of "dummy", from no file.
_FORMATS = ("auto", "hf", "safetensors", "pt", "npcache", "gguf", "mistral", "bitsandbytes", "fastsafetensors", "dummy")


def fields_of(config: Any, row_bytes: int, part_bytes: int, weights: str) -> dict[str, object]:
    """Returns the facts of vLLM's OffloadingConfig. An attribute that an older version of vLLM lacks gets the value that this version
    implies. The parallel sizes are replaced by "canonical" only if vLLM's pages have the canonical layout; vLLM's is_parallelism_agnostic
    is not sufficient."""
    parallel = config.parallel
    canonical = bool(getattr(config, "canonical_layout", False))
    sizes = ("tp_size", "pp_size", "pcp_size", "dcp_size", "rank")
    return {
        "model": config.model.name, "weights": weights, "dtype": config.model.dtype,
        "tokens_per_hash": config.cache.tokens_per_hash, "blocks_per_chunk": config.cache.blocks_per_chunk,
        **{name.removesuffix("_size"): "canonical" if canonical else int(getattr(parallel, name, 0 if name == "rank" else 1))
           for name in sizes},
        "agnostic": int(bool(getattr(parallel, "is_parallelism_agnostic", False))),
        "replicated": int(bool(getattr(config, "replicated_layout", False))),
        "canonical": _canonical_of(config) if canonical else "no",
        "groups": digest_of([[g.tokens_per_block, list(g.layer_names)] for g in config.groups]), "row": row_bytes, "part": part_bytes,
    }


def of_engine(offloading: Any = None, rank: int | None = None) -> dict[str, object]:
    """Returns the facts that OffloadingConfig lacks: in the scheduler those of all ranks, in a worker those of its `rank` alone.

    Facts that the workers have delivered (delivery.py) describe the tensors of the KV caches (arrangement.py). If they are not available, all
    facts are used on which the arrangement of these tensors may depend: vLLM's configuration and full version, the kind of GPU, and
    variables of the environment."""
    config = _configuration(offloading)
    engine_id = getattr(offloading, "engine_id", None)
    world_size = int(getattr(getattr(offloading, "parallel", None), "world_size", 1))
    facts = None if engine_id is None else delivery.delivered(engine_id, world_size) if rank is None else delivery.own(engine_id, rank)
    if facts is None and config is not None:
        log.info("vLLM's workers did not describe their KV caches, so chunks are shared only with engines of the same vLLM version on the same "
                 "kind of GPU")
        facts = {**of_configuration(config), "arrangement": "not described", "backends": _backends_of(config), "version": _version(),
                 "platform": _platform(), "environment": digest_of({n: os.environ.get(n) for n in _VARIABLES})}
    if config is None:
        return {**(facts or {}), "configuration": Unknown("vLLM's configuration is not visible, because the plugin 'kvcache' is not loaded "
                                                          "or does not support this version")}
    cache = config.cache_config
    assert facts is not None
    return {**facts, "hash": _said(cache, "prefix_caching_hash_algo"),
            "seed": _seed_of(_version(), _said(cache, "prefix_caching_hash_algo")), "adapters": _adapters_of(config)}


def of_configuration(config: Any) -> dict[str, object]:
    """Returns the facts of vLLM's configuration on which the values in a chunk depend, not only their arrangement."""
    model, cache = config.model_config, config.cache_config
    return {
        "model_dtype": _said(model, "dtype"), "revision": _said(model, "revision"), "quantization": _said(model, "quantization"),
        "overrides": _said(model, "hf_overrides"), "rope": _rope_of(model), "draft": _draft_of(config), "layout": _layout_of(cache),
        "runner": _runner_of(config), "cache_dtype": _said(cache, "cache_dtype"), "scales": _scales_of(cache),
        "load_format": _load_format_of(config),
    }


def version_of_arrangement(canonical: bool) -> str:
    """Returns the part of vLLM's version that engines must have in common to share chunks, if their tensors are described: the major and minor
    number of a release, or the whole version if it is no release. The canonical layout has a version of its own, so its engines may differ in
    vLLM's version."""
    if canonical:
        return "canonical"
    said = _version()
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\.post\d+)?(\+cu\d+)?", said)
    return release[1] if release else said


def weights_of_engine(name: str, check: str, offloading: Any = None) -> str:
    """Returns the identity of the weights that vLLM loads for the model of this name; an Unknown with the reason if it cannot be determined."""
    config = _configuration(offloading)
    model, load = getattr(config, "model_config", None), getattr(config, "load_config", None)
    if getattr(load, "load_format", None) == "dummy":
        text = getattr(getattr(model, "hf_config", None), "to_json_string", None)
        return dummy_weights(text(), getattr(model, "seed", 0)) if text else Unknown("random weights without a configuration", "weights")
    return weights_of(getattr(model, "model", None) or name, getattr(model, "revision", None), check, getattr(load, "download_dir", None))


def _canonical_of(config: Any) -> str:
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import canonical_format_id

        return str(canonical_format_id(config.kv_cache_layout))
    except Exception as e:
        return Unknown(f"the canonical format has no name: {e}")


def _configuration(offloading: Any) -> Any:
    try:
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
    except ImportError:
        config = None
    return config if config is not None else hooks.configuration_of(getattr(offloading, "engine_id", None))


def _said(config: Any, name: str) -> str:
    """Returns an attribute of vLLM's configuration as text; Unknown if this version of vLLM lacks the attribute, and "none" for None."""
    if not hasattr(config, name):
        return Unknown(f"this vLLM has no {name} in its {type(config).__name__}")
    value = getattr(config, name)
    return _named(value) if isinstance(value, (dict, list)) or callable(value) else str(value or "none").removeprefix("torch.")


def _version() -> str:
    import vllm

    return getattr(vllm, "__version__", None) or Unknown("vLLM has no version")


def _seed_of(version: str, algorithm: str) -> str:
    """Returns the seed of block hashes. Without PYTHONHASHSEED in the environment, vLLM before 0.29 chooses a random seed, and later versions do so
    for hash algorithms that are not cryptographic; the seed is then Unknown."""
    said = os.environ.get("PYTHONHASHSEED")
    if said is not None:
        return f"set {said}"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) >= (0, 29) and algorithm in ("sha256", "sha256_cbor"):
        return "fixed"
    return Unknown("this vLLM computes other block hashes at each start", "PYTHONHASHSEED")


def _platform() -> str:
    """Returns the kind of GPU, on which vLLM's default attention backend and its layout depend."""
    try:
        from vllm.platforms import current_platform

        return f"{current_platform.device_type} {current_platform.get_device_capability()}"
    except Exception as e:
        return Unknown(f"vLLM does not report its platform: {e}")


def _runner_of(config: Any) -> str:
    said = getattr(config, "use_v2_model_runner", None)
    if said is None:  # versions with this attribute missing use runner v1, unless the environment variable selects v2
        said = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0") not in ("", "0")
    return "v2" if said else "v1"


def _scales_of(cache: Any) -> str:
    if str(getattr(cache, "cache_dtype", "")).endswith("_per_token_head"):
        return "per token and head"
    if getattr(cache, "calculate_kv_scales", False):
        return Unknown("scales of an fp8 cache are computed from the first request (calculate_kv_scales)")
    return "none"


def _adapters_of(config: Any) -> str:
    if hasattr(config, "lora_config") and config.lora_config is None:
        return "none"
    if hooks.hashes_have_content():
        return "content"
    return Unknown("block hashes may lack the content of LoRA adapters, because the plugin 'kvcache' is not loaded or does not support this version")


def _load_format_of(config: Any) -> str:
    said = str(getattr(getattr(config, "load_config", None), "load_format", None) or "auto")
    return said if said in _FORMATS else Unknown(f"load_format {said} may read weights that are not in the model's folder")


def _draft_of(config: Any) -> str:
    if not hasattr(config, "speculative_config"):
        return Unknown("this vLLM has no speculative_config")
    draft = config.speculative_config
    name = getattr(draft, "model", None)
    if name is None:
        return f"none {getattr(draft, 'method', None)}"
    weights = weights_of(str(name), getattr(draft, "revision", None))
    return weights if isinstance(weights, Unknown) else f"{name} {weights}"


def _rope_of(model: Any) -> str:
    text = getattr(model, "hf_text_config", None)
    said = {n: getattr(text, n, None) for n in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")}
    rope = _named(said)
    if '"long_factor"' not in rope:
        return rope
    # LongRoPE has two sets of factors. vLLM chooses one of them for all positions, by the longest sequence that the engine accepts.
    length = getattr(model, "max_model_len", None)
    if not isinstance(length, int):
        return Unknown("this vLLM does not report which factors of LongRoPE it uses")
    limits = _lengths_in([said, {_LENGTH: getattr(text, _LENGTH, None)}])
    return f"{rope} long {sorted({length > n for n in limits}) if limits else length}"


def _lengths_in(value: Any) -> set[int]:
    """Returns the lengths for which the model was trained, from all dictionaries within a value."""
    if isinstance(value, dict):
        own = {value[_LENGTH]} if isinstance(value.get(_LENGTH), int) else set()
        return own.union(*map(_lengths_in, value.values()))
    return set().union(*map(_lengths_in, value)) if isinstance(value, (list, tuple)) else set()


def _named(value: Any) -> str:
    """Returns a value as text that is the same in each process: functions appear by their names, not by their addresses."""
    def name(one: Any) -> str:
        return f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', type(one).__qualname__)}"

    return json.dumps(value, sort_keys=True, default=name)


def _backends_of(config: Any) -> str:
    """Returns the attention backends of the layers. If no layers exist in this process, returns the backend that the configuration selects."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

        return ",".join(sorted({b.get_name() for b in get_current_attn_backends(config)}))
    except Exception:
        return "asked " + str(getattr(getattr(config, "attention_config", None), "backend", None))


def _layout_of(cache: Any) -> str:
    said = getattr(cache, "kv_cache_layout", None)
    if said is not None:
        return str(said)
    try:
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        return str(get_kv_cache_layout())
    except Exception as e:
        return Unknown(f"vLLM does not report the layout of its KV cache: {e}")


def namespace_base(prefix: str, fields: Mapping[str, object]) -> str:
    """Returns the first part of the names of all namespaces with this fingerprint."""
    return f"{prefix}/{model_digest(fields)}"


class Resets:
    """The option after_reset, which determines whether chunks that were stored before a reset of vLLM's cache are still found.

    vLLM resets its cache for sleep, for new weights in place, and on request, and does not report the reason. `salt`: bytes that are hashed into
    the keys of all chunks from now on (parts_of()); empty before the first reset that forgets."""

    def __init__(self, option: object) -> None:
        if option not in (KEEP, FORGET):
            raise ValueError(f"after_reset must be {KEEP!r} or {FORGET!r}, not {option!r}")
        self._forgets = option == FORGET
        self._has_said = False
        self.salt = b""

    def reset(self) -> bool:
        """Notes a reset of vLLM's cache. Returns whether this engine no longer finds the chunks that were stored before. These chunks stay in
        the daemon for other engines."""
        if not self._has_said:
            self._has_said = True
            if self._forgets:
                log.info("vLLM has reset its cache: this engine no longer finds chunks that were stored before, and no other engine finds chunks "
                         "that it stores from now on (option after_reset)")
            else:
                log.info("vLLM has reset its cache, and this engine still finds the chunks that were stored before. If its weights change in "
                         "place, start it with after_reset 'forget', because the KV caches of earlier weights are wrong then")
        if self._forgets:
            self.salt = os.urandom(16)
        return self._forgets


def namespace_name(prefix: str, fields: Mapping[str, object], group: int) -> str:
    return f"{namespace_base(prefix, fields)}/g{group}"


def group_of(key: bytes) -> int:
    return int.from_bytes(key[-4:], "big")


def by_group(keys: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Returns the keys of each group, in their order."""
    groups: dict[int, list[bytes]] = {}
    last = b""
    listed: list[bytes] = []  # list of the last key's group, because neighbouring keys mostly belong to one group
    for key in keys:
        suffix = key[-4:]
        if suffix != last:
            last, listed = suffix, groups.setdefault(int.from_bytes(suffix, "big"), [])
        listed.append(key)
    return groups


def names_of(keys: Sequence[bytes], salt: bytes = b"") -> list[bytes]:
    """Returns the daemon's key of each of vLLM's keys, for chunks that are stored in one part. `salt`: see parts_of()."""
    return [k[:-4] if len(k) == KEY_BYTES + 4 and not salt else parts_of(k, 1, salt)[0] for k in keys]


def parts_of(key: bytes, parts: int, salt: bytes = b"") -> list[bytes]:
    """Returns the daemon's keys of one key of vLLM: one for each of the `parts` chunks in which a long row is stored. With a `salt`, the
    daemon's keys differ from those without it, and so the chunks are found only with the same salt."""
    block_hash = bytes(key[:-4])
    if salt:
        own = hashlib.sha256(salt + block_hash).digest()
    else:
        own = block_hash.ljust(KEY_BYTES, b"\0") if len(block_hash) <= KEY_BYTES else hashlib.sha256(block_hash).digest()
    return [own] + [hashlib.sha256(own + part.to_bytes(4, "big")).digest() for part in range(1, parts)]
