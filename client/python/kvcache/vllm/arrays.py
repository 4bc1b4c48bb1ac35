# SPDX-License-Identifier: Apache-2.0
"""Describes the memory of vLLM's KV caches as layouts for libkvcache, and the blocks of a chunk. Used by the worker (spec.py).

vLLM passes CanonicalKVCaches to a spec: tensors of (blocks, bytes), and for each group of layers references to these tensors. Each reference
becomes a region of the group's layout: the address of its first block, the distance between blocks, and the bytes of a page without padding.
Regions describe pages of one size and of several, padded and packed pages, and blocks of all layers.

A chunk consists of `per_chunk` blocks, one after the other. A load may begin within a chunk, at a block that vLLM's block_indices determine. A
store of a window's chunk may lack the chunk's first blocks, which the model no longer needed: zeros are stored in their place. The module
imports vLLM only in zeros_are_safe().
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._errors import ArgumentError
from .._gpu import BLOCK_FIRST, NO_BLOCK, Layout
from ..engine.identity import digest_of
from .shards import MOST_CHUNK_BYTES

PLAIN = "layers"  # result of fact_of() for chunks of one block with pages of one size and without padding
NULL_BLOCK = 0  # vLLM's block for a position whose KV it does not keep, which must not be loaded
_SCHEDULER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"


class Region(NamedTuple):
    """One page of each block: address of the first block's page, distance between blocks in bytes, and bytes of a page without padding."""

    base: int
    stride: int
    nbytes: int


class Blocks(NamedTuple):
    """The blocks of a group of layers in the GPU's memory: `blocks` in all, `per_chunk` of which form a chunk."""

    regions: tuple[Region, ...]
    blocks: int
    per_chunk: int = 1

    @property
    def block_bytes(self) -> int:
        return sum(r.nbytes for r in self.regions)

    @property
    def chunk_bytes(self) -> int:
        return self.per_chunk * self.block_bytes

    @property
    def sizes(self) -> list[int]:
        return [r.nbytes for r in self.regions]

    @property
    def is_plain(self) -> bool:
        """Returns whether a block has pages of one size without padding."""
        return len({n for r in self.regions for n in (r.stride, r.nbytes)}) == 1

    def layout(self) -> Layout:
        """Returns the layout of the blocks. Does not check it: Layout.block_bytes raises ArgumentError if the regions overlap or are too
        many."""
        if self.is_plain:
            page = self.regions[0].nbytes
            return Layout(BLOCK_FIRST, layers=len(self.regions), outer=1, page_tokens=1, dtype_bytes=1, inner=page, blocks=self.blocks,
                          bases=[r.base for r in self.regions], base_bytes=page * self.blocks)
        return Layout.of_regions(self.regions, blocks=self.blocks)

    def pieces(self, block: int) -> Iterator[tuple[int, int, int]]:
        """Yields for each page of a block its address, its offset in the block's part of a chunk, and its size in bytes."""
        at = 0
        for region in self.regions:
            yield region.base + block * region.stride, at, region.nbytes
            at += region.nbytes


def blocks_of(kv_caches: Any, per_chunk: int = 1) -> list[Blocks]:
    """Returns the blocks of each group. `kv_caches`: vLLM's CanonicalKVCaches. Raises ValueError for a layout that is not supported, for chunks
    that are longer than the daemon accepts, and if no KV cache is to be offloaded."""
    groups = [_blocks_of_group(kv_caches, refs, per_chunk) for refs in kv_caches.group_data_refs]
    if not groups:
        raise ValueError("vLLM has no KV cache to be offloaded")
    return groups


def _blocks_of_group(kv_caches: Any, refs: Sequence[Any], per_chunk: int) -> Blocks:
    tensors = [kv_caches.tensors[r.tensor_idx] for r in refs]
    counts = {int(t.tensor.shape[0]) for t in tensors}
    if len(counts) != 1:
        raise ValueError("KvcacheOffloadingSpec supports KV caches whose layers have the same number of blocks, but these have "
                         f"{sorted(counts)}: use the tier (TieringOffloadingSpec)")
    # Layers that share their KV cache are one region.
    regions = dict.fromkeys(Region(int(t.tensor.data_ptr()), int(t.tensor.stride(0)), int(r.page_size_bytes)) for t, r in zip(tensors, refs))
    group = Blocks(tuple(regions), counts.pop(), per_chunk)
    if group.chunk_bytes > MOST_CHUNK_BYTES:
        raise ValueError(f"a chunk of {per_chunk} blocks has {group.chunk_bytes} bytes, but the daemon accepts at most {MOST_CHUNK_BYTES}: set "
                         "a smaller blocks_per_chunk or block_size")
    try:
        nbytes = group.layout().block_bytes
    except ArgumentError as e:
        raise ValueError(f"KvcacheOffloadingSpec does not support the layout of this KV cache ({e}): use the tier "
                         "(TieringOffloadingSpec)") from e
    assert nbytes == group.block_bytes
    return group


def fact_of(groups: Sequence[Blocks]) -> str:
    """Returns the fact "chunk" of the fingerprint, which describes the sizes of a chunk's pages in their order, and the number of its
    blocks. For chunks of one block with pages of one size and without padding the fact is PLAIN, because other facts distinguish such
    chunks already."""
    if all(g.is_plain and g.per_chunk == 1 for g in groups):
        return PLAIN
    return f"regions {digest_of([[g.per_chunk, g.sizes] for g in groups])}"


class Slot(NamedTuple):
    """A block that a load fills: its number in the GPU's memory, the position of its chunk in the load, and its place among the chunk's blocks."""

    block: int
    chunk: int
    place: int


def slots_of(blocks: Sequence[int], first_index: int, per_chunk: int) -> list[Slot]:
    """Returns the blocks that a group's load fills, without vLLM's null block. `first_index`: the index of the first block among the blocks of the
    request."""
    skip = first_index % per_chunk
    return [Slot(block, (skip + i) // per_chunk, (skip + i) % per_chunk) for i, block in enumerate(blocks) if block != NULL_BLOCK]


def chunks_of(blocks: int, first_index: int, per_chunk: int) -> int:
    """Returns from how many chunks a load of `blocks` blocks is filled. `first_index`: as for slots_of()."""
    return -(-(first_index % per_chunk + blocks) // per_chunk) if blocks else 0


def filled(blocks: Sequence[int], chunks: int, first_index: int, per_chunk: int) -> list[int] | None:
    """Returns the blocks of a group's store, `per_chunk` for each chunk, with NO_BLOCK for each block that vLLM has left out at the beginning of
    the first chunk. Returns None if vLLM has left out other blocks, because the places of the remaining blocks are then unknown, and if it has
    passed more blocks than the chunks have."""
    missing = chunks * per_chunk - len(blocks)
    if missing < 0 or missing != (first_index % per_chunk if blocks else 0):
        return None
    return [NO_BLOCK] * missing + list(blocks)


def zeros_are_safe(configuration: Any) -> bool:
    """Returns whether zeros may replace the blocks that vLLM leaves out of a window's chunk, because no load ever needs these blocks. This holds for
    versions of vLLM that compute which blocks a later lookup can reach, unless they are configured to keep blocks at chosen boundaries only
    (prefix_cache_retention_interval). `configuration`: vLLM's configuration; None: it is unknown, and the result is False."""
    try:
        scheduler = importlib.import_module(_SCHEDULER).OffloadingConnectorScheduler
    except (ImportError, AttributeError):
        return False
    retention = getattr(getattr(configuration, "cache_config", None), "prefix_cache_retention_interval", None)
    return hasattr(scheduler, "_reachable_store_block_mask") and configuration is not None and retention is None
