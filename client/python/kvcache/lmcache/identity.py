# SPDX-License-Identifier: Apache-2.0
"""Names the namespaces and keys under which LMCache's objects are stored, and collects the facts of their fingerprint.

An object's bytes depend on the model, its weights and LoRA adapters, on the object's layout (shapes and element types), on the rank and the
number of ranks, on the group of layers, and on LMCache's release, which determines their arrangement. Model, weights, adapters, layout and
release are facts of the fingerprint, whose digest is in the namespace's name. Rank and group, and the salt by which LMCache separates users, are
parts of the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..engine.identity import Unknown, compose, new_start, printable, warn
from ..engine.weights import weights_of
from ..sglang.identity import namespace_name

__all__ = ["Layout", "compose", "fields_of", "key_of", "layout_of", "namespace_name", "new_start", "printable", "warn", "weights_of"]


class Layout(NamedTuple):
    """The shapes and element types of an object, and its size in bytes."""

    text: str
    nbytes: int


def layout_of(shapes: Sequence[Any], dtypes: Sequence[Any]) -> Layout:
    """Returns the layout of these shapes and element types. Raises ValueError for a type without a size or a shape without elements."""
    pieces, nbytes = [], 0
    for shape, dtype in zip(shapes, dtypes):
        size = getattr(dtype, "itemsize", 0)
        for n in shape:
            size *= int(n)
        pieces.append([[int(n) for n in shape], str(dtype)])
        nbytes += size
    if not pieces or len(shapes) != len(dtypes) or nbytes <= 0:
        raise ValueError(f"an object must have shapes and element types, not {pieces}")
    return Layout(json.dumps(pieces), nbytes)


def fields_of(model: str, weights: str, layout: Layout, release: str, part_bytes: int, adapter: str | None = None) -> dict[str, object]:
    """Returns the facts of the fingerprint. `release`: LMCache's major and minor version. `adapter`: the option that names the LoRA adapters that
    the engines use; without it, the fact is Unknown."""
    return {"release": release, "model": model, "weights": weights,
            "adapter": adapter or Unknown("LMCache does not report which LoRA adapters its engines use", "adapter"),
            "layout": layout.text, "bytes": layout.nbytes, "part": part_bytes, "form": "objects"}


MOST_SALT = 128  # characters of the longest salt, which is LMCache's own limit
MOST_MODEL = 1024  # characters of the longest name of a model


def refusal_of(key: Any) -> str:
    """Returns why a key of LMCache is invalid, so that its object is neither stored nor found; an empty string if it is valid. LMCache packs the
    number of ranks and the rank into one byte each of kv_rank, so that more than 255 ranks would share keys. The number of ranks is 0 in keys
    of LMCache's tools."""
    rank, group = key.kv_rank, getattr(key, "object_group_id", 0)
    salt, model = getattr(key, "cache_salt", ""), key.model_name
    if not isinstance(key.chunk_hash, bytes) or not key.chunk_hash:
        return "its hash is empty or not bytes"
    if not isinstance(model, str) or not model or len(model) > MOST_MODEL or "@" in model:
        return f"its model {str(model)[:40]!r} is not a name of {MOST_MODEL} characters at most, without @"
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 32:
        return f"its rank {rank!r} is not a number of 32 bits: LMCache's keys distinguish at most 255 ranks"
    if rank >> 24 and (rank >> 16 & 0xFF) >= rank >> 24:
        return f"its rank is {rank >> 16 & 0xFF}, but its number of ranks is {rank >> 24}"
    if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group < 1 << 32:
        return f"its group of layers {group!r} is not a number of 32 bits"
    if not isinstance(salt, str) or len(salt) > MOST_SALT or any(c in "@/\\\0" for c in salt):
        return f"its salt {str(salt)[:40]!r} is not a text of {MOST_SALT} characters at most, without @, /, \\ and NUL"
    return ""


def key_of(key: Any) -> bytes:
    """Returns the daemon's key: a digest of LMCache's ObjectKey without its model. Each field is preceded by its length, so that different keys
    never give the same input to the digest."""
    salt = str(getattr(key, "cache_salt", "")).encode("utf-8", "surrogateescape")
    fields = (bytes(key.chunk_hash), int(key.kv_rank).to_bytes(8, "big"), int(getattr(key, "object_group_id", 0)).to_bytes(8, "big"), salt)
    return hashlib.sha256(b"".join(len(f).to_bytes(4, "big") + f for f in fields)).digest()
