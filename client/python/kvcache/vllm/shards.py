# SPDX-License-Identifier: Apache-2.0
"""Shards divide a chunk among the ranks of an engine; nothing of vLLM but its descriptions of pages.

A chunk of an engine of several GPUs is stored in shards, each in a namespace of its own with the same keys. Ranks that hold different bytes
have different shards. Ranks that hold the same bytes (MLA, or fewer KV heads than ranks) have one shard and take turns at writing it, by
key. A chunk is found once all its shards are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_CHUNK_BYTES = 64 << 20  # that the daemon takes


class Share(NamedTuple):
    """A rank's share of a group: the number of its shard, how many shards there are, how many ranks write it, and which of them this one is."""

    shard: int = 0
    shards: int = 1
    writers: int = 1
    writer: int = 0

    def is_valid(self, world_size: int) -> bool:
        return (all(type(n) is int for n in self) and 0 <= self.shard < self.shards and 0 <= self.writer < self.writers
                and self.shards * self.writers == world_size)

    def writes(self, key: bytes) -> bool:
        return key[0] % self.writers == self.writer

    def name(self, base: str, group: int) -> str:
        """Returns the name of the shard's namespace. The only shard has the name that engines of one GPU have."""
        return f"{base}/g{group}" if self.shards == 1 else f"{base}/g{group}/s{self.shard}.of.{self.shards}"


class Shard(NamedTuple):
    """A shard of a group, as the scheduler's side knows it."""

    name: str
    fields: Mapping[str, str]
    chunk_bytes: int


def shares_of(group_refs: Sequence[Sequence[Any]], numbers: Sequence[int], parallel: Any) -> dict[int, Share]:
    """Returns the share of this rank in each group. `group_refs`: vLLM's references to pages, by group. Shards are shared only under tensor
    parallelism alone, where vLLM says for each page of a group how many ranks hold its bytes (0.33)."""
    rank, world_size = int(parallel.rank), int(parallel.world_size)
    is_plain = world_size > 1 and world_size == int(parallel.tp_size) and all(
        int(getattr(parallel, name, 1)) == 1 for name in ("pp_size", "pcp_size", "dcp_size"))
    shares = {}
    for number, refs in zip(numbers, group_refs):
        writers = _writers_of(refs, rank) if is_plain else 1
        if world_size % writers:
            writers = 1
        shares[number] = Share(rank // writers, world_size // writers, writers, rank % writers)
    return shares


def _writers_of(refs: Sequence[Any], rank: int) -> int:
    """Returns how many ranks hold exactly the bytes of these pages; 1 where one of the pages is not known to be held by others."""
    said = {(int(m.num_writers), int(m.writer_index)) if (m := getattr(ref, "mapping", None)) is not None else (1, 0) for ref in refs}
    if len(said) != 1:
        return 1
    writers, index = said.pop()
    return writers if writers > 1 and index == rank % writers else 1


def shards_of(descriptions: Sequence[Any]) -> tuple[dict[int, list[Shard]], dict[int, list[int]]]:
    """Returns the shards of each group, and by group the shard of each rank. `descriptions`: one of each rank (page.py). Raises ValueError where
    they do not fit together."""
    numbers = set(descriptions[0].groups)
    if any(set(d.groups) != numbers for d in descriptions):
        raise ValueError("ranks have different groups of KV caches")
    shards: dict[int, list[Shard]] = {}
    owned: dict[int, list[int]] = {}
    for number in sorted(numbers):
        found: dict[int, Shard] = {}
        writers = set()
        for rank, description in enumerate(descriptions):
            nbytes, share = description.groups[number]
            shard = Shard(share.name(description.base, number), description.fields, nbytes)
            if share[1:3] != descriptions[0].groups[number][1][1:3] or found.setdefault(share.shard, shard) != shard:
                raise ValueError(f"rank {rank} and an earlier one do not agree on the shards of group {number}")
            writers.add((share.shard, share.writer))
        if len(writers) != len(descriptions):
            raise ValueError(f"two ranks have the same turn in a shard of group {number}")
        shards[number] = [found[i] for i in sorted(found)]
        owned[number] = [d.groups[number][1].shard for d in descriptions]
    return shards, owned
