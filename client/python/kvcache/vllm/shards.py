# SPDX-License-Identifier: Apache-2.0
"""Shards: the parts into which a chunk is divided among the ranks (GPUs) of one engine. Imports nothing of vLLM.

Each shard is stored in a separate namespace, under the same key. Ranks that hold different bytes of a chunk have different shards. Ranks that
hold the same bytes (MLA, or fewer KV heads than ranks) share one shard, and the chunk's key determines which of them writes it. A chunk is
found once all its shards are stored. Used by the workers (spec.py) and by the manager, through ranks.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_CHUNK_BYTES = 64 << 20  # largest chunk that any daemon accepts; one with a small pool accepts less


class Share(NamedTuple):
    """A rank's share of the chunks of a group: the number of its shard among `shards`, and its own number, `writer`, among the `writers` ranks
    that hold the same shard."""

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
        """Returns the name of the shard's namespace. If there is one shard only, the name has no shard number, as on an engine of one GPU."""
        return f"{base}/g{group}" if self.shards == 1 else f"{base}/g{group}/s{self.shard}.of.{self.shards}"


class Shard(NamedTuple):
    """A shard of a group, as the manager knows it: the name and the fingerprint (`fields`) of its namespace, and the bytes of its part of a chunk."""

    name: str
    fields: Mapping[str, str]
    chunk_bytes: int


def shares_of(group_refs: Sequence[Sequence[Any]], numbers: Sequence[int], parallel: Any) -> dict[int, Share]:
    """Returns the share of this rank in each group. `group_refs`: for each group in `numbers`, vLLM's references to its pages. Ranks share
    a shard only if vLLM reports for each page how many ranks hold its bytes, as it does from 0.33 on, and tensor parallelism is the only
    parallelism."""
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
    """Returns how many ranks hold exactly the bytes of these pages; 1 if vLLM does not report the same for all of the pages."""
    said = {(int(m.num_writers), int(m.writer_index)) if (m := getattr(ref, "mapping", None)) is not None else (1, 0) for ref in refs}
    if len(said) != 1:
        return 1
    writers, index = said.pop()
    return writers if writers > 1 and index == rank % writers else 1


def shards_of(descriptions: Sequence[Any]) -> tuple[dict[int, list[Shard]], dict[int, list[int]]]:
    """Returns the shards of each group, and by group the number of each rank's shard. `descriptions`: for each rank, its page.Description.
    Raises ValueError if the descriptions contradict each other."""
    numbers = set(descriptions[0].groups)
    if any(set(d.groups) != numbers for d in descriptions):
        raise ValueError("ranks of this engine report different groups of KV caches, which KvcacheOffloadingSpec does not support")
    shards: dict[int, list[Shard]] = {}
    owned: dict[int, list[int]] = {}
    for number in sorted(numbers):
        found: dict[int, Shard] = {}
        writers = set()
        for rank, description in enumerate(descriptions):
            nbytes, share = description.groups[number]
            shard = Shard(share.name(description.base, number), description.fields, nbytes)
            if share[1:3] != descriptions[0].groups[number][1][1:3] or found.setdefault(share.shard, shard) != shard:
                raise ValueError(f"rank {rank} and an earlier rank describe the shards of group {number} differently")
            writers.add((share.shard, share.writer))
        if len(writers) != len(descriptions):
            raise ValueError(f"two ranks would write the same chunks of a shard of group {number}")
        shards[number] = [found[i] for i in sorted(found)]
        owned[number] = [d.groups[number][1].shard for d in descriptions]
    return shards, owned
