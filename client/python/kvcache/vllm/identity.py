# SPDX-License-Identifier: Apache-2.0
"""Under which names vLLM's chunks are stored: namespace, fingerprint, keys.

A chunk's bytes depend on what vLLM's own FileMapper puts into its paths, on the weights, which vLLM leaves out, and on the size
of a row. All of that is the fingerprint; a digest of it is in the namespace's name, so that configurations that differ lie side by
side. Each group of layers (KV cache group) has a namespace, and the block hash is the key.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

KEY_BYTES = 32
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def weights_of(model: str) -> str:
    """Which weights lie under this name: a digest over the files of a folder (config.json, and names, sizes and times of weights), the
    commit that the hub's cache has, or "unknown"."""
    folder = pathlib.Path(model)
    if folder.is_dir():
        seen = hashlib.sha256()
        for f in sorted(folder.iterdir()):
            if f.name == "config.json":
                seen.update(f.read_bytes())
            elif f.suffix in WEIGHTS:
                st = f.stat()
                seen.update(f"{f.name} {st.st_size} {st.st_mtime_ns}\n".encode())
        return "files-" + seen.hexdigest()[:16]
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    ref = pathlib.Path(cache, "models--" + model.replace("/", "--"), "refs", "main")
    try:
        return "commit-" + ref.read_text().strip()[:40]
    except OSError:
        return "unknown"


def fields_of(config: Any, row_bytes: int, part_bytes: int, weights: str) -> dict[str, str]:
    """The fingerprint. `config`: vLLM's OffloadingConfig; what a version of it lacks has its old value."""
    parallel = config.parallel
    replicated = bool(getattr(config, "replicated_layout", False))
    canonical = getattr(config, "kv_cache_layout", None) if getattr(config, "canonical_layout", False) else None
    agnostic = bool(getattr(parallel, "is_parallelism_agnostic", False)) or replicated

    def ranks(name: str) -> int:
        return 1 if agnostic else int(getattr(parallel, name, 1))

    groups = [[g.tokens_per_block, list(g.layer_names)] for g in config.groups]
    digest = hashlib.sha256(json.dumps(groups).encode()).hexdigest()
    return {
        "engine": "vllm", "model": printable(config.model.name), "weights": printable(weights), "dtype": printable(config.model.dtype),
        "tokens_per_hash": str(config.cache.tokens_per_hash), "blocks_per_chunk": str(config.cache.blocks_per_chunk),
        "tp": str(ranks("tp_size")), "pp": str(ranks("pp_size")), "pcp": str(ranks("pcp_size")), "dcp": str(ranks("dcp_size")),
        "rank": "0" if agnostic else str(getattr(parallel, "rank", 0)), "groups": digest, "replicated": str(int(replicated)),
        "canonical": printable(canonical or "no"), "row": str(row_bytes), "part": str(part_bytes),
    }


def of_engine() -> dict[str, str]:
    """What OffloadingConfig leaves out and a block's bytes depend on: "auto" is the model's dtype, attention backends order a block's
    heads and tokens in their own way, and the files of a model are those of a revision. From the configuration that vLLM has at hand
    while a worker makes its caches; empty where it has none."""
    try:
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
    except ImportError:
        config = None
    if config is None:
        return {}
    model = config.model_config
    return {"model_dtype": printable(str(model.dtype).removeprefix("torch.")), "revision": printable(getattr(model, "revision", None)),
            "quantization": printable(getattr(model, "quantization", None)),
            "overrides": printable(_named(getattr(model, "hf_overrides", None) or "no")),
            "draft": printable(getattr(getattr(config, "speculative_config", None), "model", None)),
            "backends": printable(_backends_of(config)), "layout": printable(_layout_of(config))}


def _named(value: Any) -> str:
    """The same in each process: a function's text has an address."""
    def name(one: Any) -> str:
        return f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', type(one).__qualname__)}"

    return json.dumps(value, sort_keys=True, default=name)


def _backends_of(config: Any) -> str:
    """Also where a version has no such function, two backends that were asked for differ."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

        return ",".join(sorted({b.get_name() for b in get_current_attn_backends(config)}))
    except Exception:
        return str(getattr(getattr(config, "attention_config", None), "backend", None))


def _layout_of(config: Any) -> str:
    named = getattr(config.cache_config, "kv_cache_layout", None)
    if named is not None:
        return str(named)
    try:
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        return str(get_kv_cache_layout())
    except Exception:
        return "unknown"


def printable(value: object) -> str:
    text = re.sub(r"[^ -~]", lambda m: f"%{ord(m[0]):x}", str(value))
    return text if len(text) <= 512 else hashlib.sha256(text.encode()).hexdigest()


def namespace_name(prefix: str, fields: Mapping[str, str], group: int) -> str:
    digest = hashlib.sha256(json.dumps(dict(fields), sort_keys=True).encode()).hexdigest()[:12]
    model = re.sub(r"[^A-Za-z0-9._-]+", "_", os.path.basename(fields["model"].rstrip("/")))[:96]
    return f"{prefix}/{model}-{digest}/g{group}"


def group_of(key: bytes) -> int:
    return int.from_bytes(key[-4:], "big")


def parts_of(key: bytes, parts: int) -> list[bytes]:
    """The daemon's keys of one of vLLM's: a row longer than the daemon takes is stored in parts."""
    block_hash = bytes(key[:-4])
    own = block_hash.ljust(KEY_BYTES, b"\0") if len(block_hash) <= KEY_BYTES else hashlib.sha256(block_hash).digest()
    return [own] + [hashlib.sha256(own + part.to_bytes(4, "big")).digest() for part in range(1, parts)]
