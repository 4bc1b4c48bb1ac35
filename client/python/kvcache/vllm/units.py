# SPDX-License-Identifier: Apache-2.0
"""Divides chunks of vLLM's KV cache into the units that the canary compares (kvcache.engine.canary): the keys or the values of a layer.

The workers describe the tensors of the layers (arrangement.py). A tensor's shape and strides determine where keys and values lie in a page:
pages are (2, tokens, heads, dim) up to vLLM 0.25, and (heads, tokens, 2 dim) later, in any order of memory. A tensor of any other shape is
one unit. If no worker has described the tensors, or the description does not show where in a page they lie, each layer's share of a page is
divided into halves. Bytes whose dtype cannot be decoded belong to no unit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..engine.canary import Unit, can_decode

# By dtype, the bytes of one element.
SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}
_BY_CACHE_DTYPE = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "half": "float16", "float": "float32"}


class _Tensor(NamedTuple):
    """A tensor of a layer. `shape` has the dimensions of one block; strides and the offset are in bytes. A stride or an offset that is a
    text describes a multiple of the number of blocks (arrangement.py)."""

    dtype: str
    shape: list[int]
    strides: list[Any]
    offset: Any


class Group(NamedTuple):
    """A group of layers and the arrangement of its chunks."""

    number: int
    layers: Sequence[str]
    pages: int  # number of pages of a block
    page_bytes: int
    sizes: Sequence[int] = ()  # bytes of each page; empty if each page has page_bytes
    blocks: int = 1  # number of blocks of a chunk

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Returns for each page of a block its offset in the block's part of a chunk, and its bytes."""
        sizes = list(self.sizes) or [self.page_bytes] * self.pages
        return [(sum(sizes[:page]), nbytes) for page, nbytes in enumerate(sizes)]


def units_of(facts: Mapping[str, object], groups: Sequence[Group]) -> dict[int, list[Unit]]:
    """Returns by group the units of a chunk. A group whose bytes cannot be decoded has no units."""
    described = _described(facts, [name for group in groups for name in group.layers])
    dtype = _dtype_of_cache(facts)
    units = {}
    for group in groups:
        listed: list[Unit] = []
        packed = group.pages == 1 and len(group.layers) > 1
        for (start, nbytes), layers in zip(group.bounds, _layers_by_page(group)):
            exact = _exact(described, layers, packed, start, nbytes, facts)
            listed += _halves(dtype, layers, start, nbytes) if exact is None else exact
        units[group.number] = [_in_each_block(u, group) for u in listed if can_decode(u.dtype)]
    return units


def _in_each_block(unit: Unit, group: Group) -> Unit:
    block_bytes = sum(nbytes for _, nbytes in group.bounds)
    return unit._replace(ranges=tuple((block * block_bytes + first, block * block_bytes + end)
                                      for block in range(group.blocks) for first, end in unit.ranges))


def _layers_by_page(group: Group) -> list[list[str]]:
    """Returns the layers of each page of a block. vLLM registers one page for each layer, in the order of the layers, or one page for all of them;
    other pages get a number instead of layers."""
    if group.pages == len(group.layers):
        return [[name] for name in group.layers]
    if group.pages == 1:
        return [list(group.layers)]
    return [[f"page {page}"] for page in range(group.pages)]


def _dtype_of_cache(facts: Mapping[str, object]) -> str:
    said = str(facts.get("cache_dtype", "auto"))
    said = str(facts.get("model_dtype", "")) if said == "auto" else said
    return _BY_CACHE_DTYPE.get(said, said)


def _described(facts: Mapping[str, object], layers: Sequence[str]) -> dict[str, list[_Tensor]]:
    """Returns the tensors of each layer; an empty dict if the workers have not described all layers."""
    columns = []
    for name in ("dtypes", "shapes", "strides", "offsets"):
        try:
            column = json.loads(str(facts.get(name, "")))
        except ValueError:
            return {}
        if isinstance(column, list) and len(column) == 2 and isinstance(column[0], int):  # one value for all layers, and their number
            column = [column[1]] * column[0]
        if not isinstance(column, list) or len(column) != len(layers):
            return {}
        columns.append(column)
    return {layer: [_Tensor(*one) for one in zip(*tensors)] for layer, tensors in zip(layers, zip(*columns))}


def _exact(described: Mapping[str, list[_Tensor]], layers: Sequence[str], packed: bool, start: int, page_bytes: int,
           facts: Mapping[str, object]) -> list[Unit] | None:
    """Returns the units of a page from the description of its layers' tensors. Returns None if the layers are not described, a stride or a
    needed offset depends on the number of blocks, or a tensor does not lie in the page. `packed`: the page has the tensors of several
    layers."""
    units = []
    for layer in layers:
        tensors = described.get(layer, [])
        if not tensors or any(isinstance(n, str) for t in tensors for n in t.strides):
            return None
        base = tensors[0].offset if not packed else 0
        for tensor in tensors:
            if len(tensors) == 1 and not packed:
                offset = 0
            elif isinstance(tensor.offset, str) or isinstance(base, str):
                return None
            else:
                offset = tensor.offset - base
            dtype = _dtype(tensor.dtype, facts)
            if not can_decode(dtype):
                continue
            for part, shift, dims in _parts(tensor, SIZES[dtype]):
                ranges = _ranges(start + offset + shift, dims, SIZES[dtype])
                if min(r[0] for r in ranges) < start or max(r[1] for r in ranges) > start + page_bytes:
                    return None
                units.append(Unit(f"{layer}{part}", dtype, ranges))
    nbytes = sum(end - first for unit in units for first, end in unit.ranges)
    return units if nbytes <= page_bytes else None  # more bytes than the page has: each layer has the tensor of all layers


def _dtype(said: str, facts: Mapping[str, object]) -> str:
    """Returns the dtype of a tensor's elements. vLLM keeps an fp8 cache in tensors of bytes."""
    return _dtype_of_cache(facts) if said in ("uint8", "int8") else _BY_CACHE_DTYPE.get(said, said)


def _parts(tensor: _Tensor, size: int) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """Divides a tensor into keys and values if its shape permits. Returns for each part its name, the offset of its first byte in the tensor, and
    its dimensions as lengths and strides."""
    dims = [(n, int(stride)) for n, stride in zip(tensor.shape, tensor.strides)]
    if len(dims) == 5 and dims[1][0] == 2:
        rest = [d for at, d in enumerate(dims) if at != 1]
        return [(" keys", 0, rest), (" values", dims[1][1], rest)]
    if len(dims) == 4 and dims[-1][0] % 2 == 0 and dims[-1][1] == size:
        half = [*dims[:-1], (dims[-1][0] // 2, size)]
        return [(" keys", 0, half), (" values", dims[-1][0] // 2 * size, half)]
    return [("", 0, dims)]


def _ranges(start: int, dims: Sequence[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    """Returns the contiguous byte ranges of a strided view, in the order of memory."""
    run, outer = size, []
    for n, stride in sorted((d for d in dims if d[0] > 1), key=lambda d: d[1]):
        if stride == run:
            run *= n
        else:
            outer.append(range(0, n * stride, stride) if stride else range(1))
    return tuple((start + sum(at), start + sum(at) + run) for at in itertools.product(*reversed(outer)))


def _halves(dtype: str, layers: Sequence[str], start: int, page_bytes: int) -> list[Unit]:
    if dtype not in SIZES:
        return []
    names = [f"{layer} {half} half" for layer in layers for half in ("first", "second")]
    piece, rest = divmod(page_bytes, len(names))
    if rest or piece % SIZES[dtype]:
        return [Unit(" ".join(layers), dtype, ((start, start + page_bytes),))] if page_bytes % SIZES[dtype] == 0 else []
    return [Unit(name, dtype, ((start + at * piece, start + (at + 1) * piece),)) for at, name in enumerate(names)]
