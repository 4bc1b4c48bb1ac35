# SPDX-License-Identifier: Apache-2.0
"""Names the namespaces and keys under which SGLang's pages are stored, and collects the facts of their fingerprint.

A page's bytes depend on the model and its weights, on the host pool (type, layout, tokens of a page, layers, heads), on the rank and the
number of ranks, and on whether SGLang passes a page in pieces or as one tensor. All of these are facts of the fingerprint, whose digest is in
the namespace's name, so that engines with different configurations use different namespaces. Ranks that hold the same bytes (MLA) share
a namespace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.identity import Unknown, compose, digest_of, model_digest, model_name, new_start, printable, warn
from ..vllm import identity as shared

__all__ = ["Unknown", "compose", "fields_of", "key_of", "namespace_name", "new_start", "parts_of", "printable", "warn"]

_OF_POOL = ("layer_num", "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim",
            "kv_cache_dim", "head_group_num", "storage_format_tag")


def is_replicated(config: Any, pool: Any, side: str) -> bool:
    """Returns whether all ranks hold the same bytes in a host pool. `side`: the pool's name; empty for the pool of K and V. For an MLA model, a
    further pool counts as replicated only if it is recognised by its name or its type."""
    if not config.is_mla_model or not side:
        return bool(config.is_mla_model)
    return side.endswith("indexer") or side.startswith("deepseek_v4_") or type(pool).__name__.startswith("MLA")


def fields_of(config: Any, pool: Any, lengths: Sequence[int], *, model: str, revision: str, weights: str,
              part_bytes: int, side: str = "") -> dict[str, object]:
    """Returns the facts of SGLang that determine a page's bytes.

    `config`: SGLang's HiCacheStorageConfig; an attribute that an older version lacks gets the value that this version implies. `lengths`: bytes
    of a page's pieces; empty if each page is passed as one tensor. `side`: name of a host pool other than that of K and V."""
    def of(name: str, otherwise: object) -> object:
        value = getattr(config, name, None)
        return otherwise if value is None else value

    replicated, dcp = is_replicated(config, pool, side), int(str(of("dcp_size", 1)))
    apart = not replicated or dcp > 1  # the rank is a fact; with decode context parallelism (DCP), MLA ranks of equal dcp_rank still share
    rank = of("dcp_rank", 0) if replicated else config.tp_rank
    geometry = [[n, printable(getattr(pool, n, None))] for n in _OF_POOL]
    return {
        "model": model, "revision": revision, "weights": weights,
        "served": model_name(config.model_name or "-"), "dtype": getattr(pool, "dtype", None),
        "pool": type(pool).__name__, "layout": getattr(pool, "layout", None),
        "page_tokens": str(getattr(pool, "page_size", 0)),
        "geometry": digest_of([geometry, list(lengths)]),
        "form": ("pieces" if lengths else "flat") + (f"-{side}" if side else ""), "replicated": str(int(replicated)),
        "tp": str(config.tp_size if apart else 1), "tp_rank": str(rank if apart else 0),
        "pp": str(config.pp_size), "pp_rank": str(config.pp_rank),
        "cp": str(of("attn_cp_size", 1)), "cp_rank": str(of("attn_cp_rank", 0)),
        "dcp": str(dcp), "part": str(part_bytes),
    }


def namespace_name(prefix: str, fields: Mapping[str, object]) -> str:
    return f"{prefix}/{model_digest(fields)}/{fields['form']}"


def key_of(name: str, pool: str = "") -> bytes:
    """Returns the daemon's key of a page. `name`: SGLang's key. If it has 64 hexadecimal digits, not all of them 0, and `pool` is empty,
    these are the 32 bytes of the daemon's key; otherwise, the daemon's key is a digest of `name` and `pool`."""
    if not pool and len(name) == 64:
        try:
            key = bytes.fromhex(name)
            if len(key) == 32 and any(key):
                return key
        except ValueError:
            pass
    return hashlib.sha256(f"{pool}\n{name}".encode("utf-8", "surrogateescape")).digest()


def parts_of(key: bytes, parts: int) -> list[bytes]:
    """Returns the daemon's keys of the `parts` chunks in which a page is stored."""
    return [key] if parts == 1 else shared.parts_of(key + bytes(4), parts)
