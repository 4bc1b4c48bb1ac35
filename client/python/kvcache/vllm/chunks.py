# SPDX-License-Identifier: Apache-2.0
"""KvcacheLoadStoreSpec, vLLM's LoadStoreSpec of this adapter: the description of a load or a store that the manager passes to the ranks.

vLLM pickles the description and gives the same one to all ranks. It therefore has the offsets of all ranks' shards and no live objects: the
manager keeps the leases (promises.py). A load takes 8 bytes for each rank and chunk. A store takes the bytes of its keys, and one bit for each
rank and chunk if some of the chunks' shards are stored already.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Collection, Iterator, Sequence

from vllm.v1.kv_offload.base import LoadStoreSpec

_GROUP_BYTES = 4


class KvcacheLoadStoreSpec(LoadStoreSpec):  # type: ignore[misc]
    """The chunks of a load or a store, `count` of them, in the order of vLLM's blocks.

    A load has the `number` by which the manager counts loads (promises.LoadsUnderWay), the id of the `pool` in which all chunks lie, and
    the chunks' `offsets` in the pool, those of rank 0 first. A store has its keys(), the `salt` of the keys, the positions of chunks that
    the canary compares instead of storing them (`checks`), the `tokens` that the engine computes for the store (0: unknown), the
    time.monotonic() just before the engine computes them (`scheduled`), and a bit for each rank and chunk whose shard is stored already
    (`present`; empty: none is)."""

    __slots__ = ("count", "number", "pool", "offsets", "_hashes", "_hash_bytes", "_groups", "present", "checks", "tokens", "scheduled", "salt")

    def __init__(self, count: int) -> None:
        self.count = count
        self.number = self.pool = 0
        self.offsets = array("q")
        self._hashes, self._hash_bytes, self._groups = b"", 0, array("Q")
        self.present = b""
        self.checks: tuple[int, ...] = ()
        self.tokens, self.scheduled, self.salt = 0, 0.0, b""

    @classmethod
    def of_load(cls, number: int, pool: int, offsets: Sequence[Sequence[int]]) -> KvcacheLoadStoreSpec:
        """Makes the description of a load. `offsets`: for each rank, the offset of its shard of each chunk in the pool."""
        self = cls(len(offsets[0]))
        self.number, self.pool = number, pool
        self.offsets = array("q", itertools.chain.from_iterable(offsets))
        return self

    @classmethod
    def of_store(cls, keys: Sequence[bytes], present: Sequence[Sequence[bool]] = (), tokens: int = 0,
                 checks: Collection[bytes] = (), salt: bytes = b"") -> KvcacheLoadStoreSpec:
        """Makes the description of a store. `present`: for each rank, whether its shard of each chunk is stored; empty if no shard is stored."""
        self = cls(len(keys))
        hashes = [bytes(k[:-_GROUP_BYTES]) for k in keys]
        self._hash_bytes = len(hashes[0]) if hashes else 0
        if any(len(h) != self._hash_bytes for h in hashes):
            raise ValueError("block hashes of one request have different lengths")
        self._hashes = b"".join(hashes)
        for suffix, run in itertools.groupby([k[-_GROUP_BYTES:] for k in keys]):
            self._groups.extend((int.from_bytes(suffix, "big"), len(list(run))))
        if any(map(any, present)):
            bits = sum(1 << i for i, said in enumerate(itertools.chain.from_iterable(present)) if said)
            self.present = bits.to_bytes(-(-len(present) * len(keys) // 8), "little")
        self.checks = tuple(i for i, k in enumerate(keys) if k in checks) if checks else ()
        self.tokens, self.scheduled, self.salt = tokens, time.monotonic(), salt
        return self

    def __getstate__(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        for name, value in zip(self.__slots__, state):
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"<{self.count} chunks of kvcache-daemon>"

    def offsets_of(self, rank: int) -> array[int]:
        return self.offsets[rank * self.count:(rank + 1) * self.count]

    def keys(self) -> list[bytes]:
        """Returns the keys of a store."""
        suffixes = self._suffixes()
        return [self._hashes[at:at + self._hash_bytes] + suffix
                for at, suffix in zip(range(0, len(self._hashes), self._hash_bytes or 1), suffixes)]

    def _suffixes(self) -> Iterator[bytes]:
        for at in range(0, len(self._groups), 2):
            yield from itertools.repeat(self._groups[at].to_bytes(_GROUP_BYTES, "big"), self._groups[at + 1])

    def is_present(self, rank: int, chunk: int) -> bool:
        """Returns whether the rank's shard of a chunk is stored already."""
        bit = rank * self.count + chunk
        return bool(self.present) and bool(self.present[bit >> 3] >> (bit & 7) & 1)
