# SPDX-License-Identifier: Apache-2.0
"""Describes the arrangement of bytes in vLLM's KV caches, as facts for the fingerprint (identity.py).

The worker's wrappers (worker.py) pass the tensors that the model runner registers with the connector. Only these have shape, dtype and strides;
an offloading spec gets one-byte views of (blocks, page bytes). The description does not depend on the number of blocks, so that engines with
different amounts of memory share chunks: a stride or an offset that spans all blocks is given as a multiple of their number.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.identity import Unknown

# Names of the facts that describe the arrangement.
NAMES = ("specs", "dtypes", "shapes", "strides", "offsets", "pages", "backends")
CANONICAL = "canonical"
_BY_RANK = ("specs", "shapes", "strides", "offsets", "pages")  # facts that may differ between ranks, unless pages have the canonical layout


def facts_of(kv_cache_config: Any, registered: Mapping[str, Any], handed_over: Any, layers: Mapping[str, Any],
             canonical: bool) -> dict[str, object]:
    """Returns the facts about the arrangement, with values for all layers in the order of groups and layers, except "pages" (_pages()).
    `registered`: by layer, its tensor or tensors. `handed_over`: vLLM's CanonicalKVCaches. `layers`: the model's layers by name.
    `canonical`: pages have vLLM's canonical layout, which does not depend on the rank. Raises ValueError if vLLM registered no tensor, or a
    tensor without a dimension of blocks."""
    blocks = int(kv_cache_config.num_blocks)
    specs, tensors, backends = [], [], []
    places: dict[int, list[str]] = {}
    for group in kv_cache_config.kv_cache_groups:
        for name in group.layer_names:
            if name not in registered:
                continue  # a group that is not offloaded
            held = registered[name]
            held = list(held) if isinstance(held, (list, tuple)) else [held]
            tensors.append([_tensor(t, blocks) for t in held])
            places.setdefault(held[0].data_ptr(), []).append(name)
            specs.append(_spec_of(group.kv_cache_spec, name))
            backends.append(_backend_of(layers.get(name)))
    if not tensors:
        raise ValueError("vLLM registered no tensor of a layer")
    facts: dict[str, object] = {"specs": _text(specs), "backends": _text(backends), "pages": _text(_pages(handed_over, places))}
    for at, name in enumerate(("dtypes", "shapes", "strides", "offsets")):
        facts[name] = _text([[one[at] for one in layer] for layer in tensors])
    if None in specs:
        facts["specs"] = Unknown("vLLM does not provide the fields of a layer's KV cache spec")
    if None in backends:
        facts["backends"] = Unknown("a layer of vLLM has no attention backend")
    if canonical:
        facts.update(dict.fromkeys(_BY_RANK, CANONICAL))
    return facts


def _text(values: Sequence[object]) -> str:
    """Returns the values of all layers as text. If all layers are alike, the text has their number and one value."""
    alike = all(v == values[0] for v in values)
    return json.dumps([len(values), values[0]] if alike else values, sort_keys=True)


def _tensor(tensor: Any, blocks: int) -> tuple[str, list[int], list[object], object]:
    """Returns the dtype of a tensor, its shape without the number of blocks, its strides in bytes, and its offset in the storage in bytes. The
    stride of a dimension of one element is given as 0, because PyTorch may report any value. Raises ValueError if no dimension has the blocks."""
    shape, size = [int(n) for n in tensor.shape], int(tensor.element_size())
    strides = [int(n) * size for n in tensor.stride()]
    at = max((i for i, n in enumerate(shape) if n % blocks == 0), key=lambda i: strides[i], default=None)
    if at is None:
        raise ValueError(f"a tensor of the shape {shape} has no dimension that is a multiple of its {blocks} blocks")
    block = strides[at] * (shape[at] // blocks)
    shape[at] //= blocks

    def relative(n: int) -> object:
        return n if n <= block or n % blocks else f"{n // blocks} * blocks"

    offset = int(tensor.storage_offset()) * size
    return (str(tensor.dtype).removeprefix("torch."), shape,
            [n if i == at else relative(n) if shape[i] > 1 else 0 for i, n in enumerate(strides)], relative(offset))


def _spec_of(spec: Any, layer: str) -> object:
    """Returns class and fields of a layer's KV cache spec, or None if this version of vLLM does not provide them."""
    spec = getattr(spec, "kv_cache_specs", {}).get(layer, spec)
    return _plain(spec) if dataclasses.is_dataclass(spec) else None


def _plain(value: Any) -> object:
    """Returns a value in a form that JSON can express and that is the same in each process, because no text contains an address."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(v), sort_keys=True) for v in value)
    text = str(value)
    return text if " at 0x" not in text else type(value).__qualname__


def _backend_of(layer: Any) -> str | None:
    backend = layer.get_attn_backend() if hasattr(layer, "get_attn_backend") else None
    return None if backend is None else f"{backend.__module__}.{backend.__qualname__}"


def _pages(handed_over: Any, places: Mapping[int, Sequence[str]]) -> list[object]:
    """Returns two lists: by tensor, the bytes of a page without and with padding, and its layers; by group, the pages of a chunk in their order, each
    as the index of its tensor and its bytes."""
    return [[[int(t.page_size_bytes), int(t.tensor.stride(0)), list(places.get(t.tensor.data_ptr(), ()))] for t in handed_over.tensors],
            [[[int(r.tensor_idx), int(r.page_size_bytes)] for r in refs] for refs in handed_over.group_data_refs]]
