# SPDX-License-Identifier: Apache-2.0
"""Specifications of loads and stores, which the scheduler's side gives to the ranks.

vLLM pickles a specification and gives the same one to all ranks, so it has the places of all of them and no object that lives: the leases stay
with the scheduler's side (promises.py). It takes 8 bytes for each rank and chunk of a load. A store takes the bytes of its keys, and a
bit for each rank and chunk where some shards are stored already.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Collection, Iterator, Sequence

from vllm.v1.kv_offload.base import LoadStoreSpec

_GROUP_BYTES = 4


class KvcacheLoadStoreSpec(LoadStoreSpec):  # type: ignore[misc]
    """Chunks in the order of vLLM's blocks. A load has its number, the pool that all chunks lie in, and their offsets in it, the first rank's
    first. A store has keys and their salt, the chunks that are compared and not stored, the tokens that are computed for it, and from when on."""

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
        """Makes the specification of a load. `offsets`: by rank, the offset of each chunk in the pool."""
        self = cls(len(offsets[0]))
        self.number, self.pool = number, pool
        self.offsets = array("q", itertools.chain.from_iterable(offsets))
        return self

    @classmethod
    def of_store(cls, keys: Sequence[bytes], present: Sequence[Sequence[bool]] = (), tokens: int = 0,
                 checks: Collection[bytes] = (), salt: bytes = b"") -> KvcacheLoadStoreSpec:
        """Makes the specification of a store. `present`: by rank, whether its shard of each chunk is stored; empty if no shard is."""
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
        """Returns whether the rank's shard of a chunk was stored before."""
        bit = rank * self.count + chunk
        return bool(self.present) and bool(self.present[bit >> 3] >> (bit & 7) & 1)
