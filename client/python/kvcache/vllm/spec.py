# SPDX-License-Identifier: Apache-2.0
"""The offloading spec for vLLM 0.24 to 0.33: blocks move directly between the GPU and the daemon's memory, which replaces vLLM's CPU tier.

The spec makes the manager in vLLM's scheduler (manager.py), and for each GPU a worker, which may be in a process of its own and is also
called a rank. vLLM pickles a LoadStoreSpec (chunks.py) for all workers, so it has offsets and keys only; the manager holds the leases on
the chunks. Each worker reports in the engine's page (page.py) the pools that it has mapped, the namespaces and sizes of the chunks that it
stores, and its counters. A chunk of an engine of several GPUs is stored in shards (shards.py). Until all workers have reported, every
lookup is a miss and nothing is stored.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.v1.kv_offload import base as vllm_base
from vllm.v1.kv_offload.base import OffloadingSpec, OffloadingWorker, TransferResult

from .._gpu import ENGINES, NO_BLOCK
from ..engine import former, options as checks
from ..engine.canary import BOUND
from . import arrays, canary, hooks, identity, page, watchdog, worker as steps
from .arrays import Blocks, blocks_of
from .canary import Canary
from .chunks import KvcacheLoadStoreSpec
from .learned import GAUGES
from .loads import Ended, LoadPart
from .manager import COUNTERS, PREFIX, KvcacheManager
from .mover import Mover, Part
from .page import Description, RankPage, Seat
from .shards import Share, shares_of
from .start import start_if_asked
from .units import Group, units_of
from .watchdog import Spent, timed, timed_store

log = logging.getLogger("kvcache.vllm")

SYNC_LOAD_BYTES = 4 << 30  # default of sync_load_budget_bytes: most bytes that a step loads before its forward pass; 4 GiB take about 80 ms
REFUSAL_S = 60.0  # time beyond page.NAME_S for which a worker that refuses waits for the page: vLLM makes the scheduler after the workers


class KvcacheWorker(OffloadingWorker):  # type: ignore[misc]
    """vLLM's OffloadingWorker of one GPU. A worker that cannot take part logs the reason, writes it to the engine's page, and reports all
    stores as completed: the engine then serves without a cache."""

    def __init__(self, spec: KvcacheOffloadingSpec, kv_caches: Any, device: int, current_stream: Any) -> None:
        self.spec, self._rank = spec, int(spec.config.parallel.rank)
        self.mover: Mover | None = None
        self.spent = Spent()
        self._dropped: deque[Ended] = deque()
        self._refusal = ""
        self._seat = Seat(spec.config.engine_id, self._rank, spec.world_size, spec.common, self._opened)
        try:
            blocks = blocks_of(kv_caches, spec.per_chunk)
            if len(blocks) != len(spec.tokens):
                raise ValueError(f"KV caches of {len(blocks)} groups were registered, but vLLM's configuration has {len(spec.tokens)} groups")
        except ValueError as e:
            self._refuse(str(e))
            return
        spec.facts["chunk"] = arrays.fact_of(blocks)
        spec.name(shares_of(kv_caches.group_data_refs, list(spec.tokens), spec.config.parallel))
        self.chunk_bytes = {g: b.chunk_bytes for g, b in zip(spec.tokens, blocks)}
        self._blocks = blocks
        self.canary = spec.canary_of(blocks)
        canary.here[str(spec.config.engine_id)] = self.canary
        try:
            self.mover = Mover(blocks, self.canary, spec.fields, seat=self._seat, socket=spec.socket, device=device, ack=spec.ack,
                               timeout_s=spec.timeout_s, copies=spec.copies, has_awaited_loads=spec.has_awaited_loads,
                               current_stream=current_stream)
        except OSError as e:
            if isinstance(e, ValueError):  # ArgumentError: a name or a size that every daemon refuses
                raise
            self._refuse(str(e))
            return
        self.mover.spent = self.spent
        steps.listeners.add(self)

    def _opened(self, opened: RankPage) -> None:
        """Describes this worker in the engine's page, which has just been found, or writes there why the worker takes no part."""
        if self._refusal:
            opened.refuse(self._refusal)
            return
        if not opened.is_here:
            self.canary.turn_off("vLLM's scheduler is in another process")
        opened.set_variant(self.canary.number)
        opened.describe(Description(self.spec.base, dict(self.spec.fields),
                                    {g: (nbytes, self.spec.shares[g]) for g, nbytes in self.chunk_bytes.items()}))

    def _refuse(self, why: str) -> None:
        log.error("this engine runs without a cache, because its worker of rank %d cannot take part: %s", self._rank, why)
        self._refusal = why
        threading.Thread(target=self._say_refusal, name="kvcache-refusal", daemon=True).start()

    def _say_refusal(self) -> None:
        """Waits until the page is found, where _opened() writes the refusal, for as long as the page may appear and have a name."""
        until = time.monotonic() + page.NAME_S + REFUSAL_S
        while self._seat.poll() is None and not self._seat.has_failed and time.monotonic() < until:
            time.sleep(0.05)

    @timed
    def step_begins(self) -> None:
        if self.mover is not None:
            self.mover.loads.step_begins()

    @staticmethod
    def _listed(gpu: Any) -> Iterator[tuple[int, list[int], int]]:
        """Yields for each group that has blocks: its position in the list of groups, its blocks, and the index of the first of these among
        the blocks of the request."""
        ids = gpu.block_ids
        blocks, at = ids.tolist() if hasattr(ids, "tolist") else list(map(int, ids)), 0
        for group, (size, first_index) in enumerate(zip(gpu.group_sizes, gpu.block_indices)):
            if size:
                yield group, blocks[at:at + size], int(first_index)
            at += size

    @timed_store
    def submit_store(self, job_id: int, src_spec: Any, dst_spec: KvcacheLoadStoreSpec) -> bool:
        if self.mover is None:
            self._dropped.append(Ended(job_id, True, 0, 0.0))
            return True
        k, parts, checks, keys, taken = self.spec.per_chunk, [], [], dst_spec.keys(), 0
        for group, blocks, first_index in self._listed(src_spec):
            number = list(self.spec.tokens)[group]
            suffix = number.to_bytes(4, "big")
            chunks = [i for i, key in enumerate(keys) if key.endswith(suffix)]
            taken += len(chunks)
            left_out, placed = self._placed(job_id, blocks, len(chunks), first_index)
            self.mover.left_out += left_out
            if not dst_spec.checks and not dst_spec.present and self.spec.shares[number].writers == 1:
                if left_out < len(chunks):
                    parts.append(Part(group, [keys[i] for i in chunks[left_out:]], placed, salt=dst_spec.salt))
                continue
            listed = [(i, placed[at * k:(at + 1) * k]) for at, i in enumerate(chunks[left_out:])]
            moved = [(keys[i], chunk) for i, chunk in listed if i not in dst_spec.checks and self._stores(dst_spec, i, keys[i])]
            if moved:
                parts.append(Part(group, [key for key, _ in moved], [b for _, chunk in moved for b in chunk], salt=dst_spec.salt))
            checks += [Part(group, [keys[i]], chunk, is_check=True, salt=dst_spec.salt) for i, chunk in listed if i in dst_spec.checks and NO_BLOCK not in chunk]
        if taken != len(keys):
            raise ValueError(f"job {job_id}: vLLM passed {len(keys)} chunks to store, but blocks for {taken} of them only")
        self.mover.submit(job_id, checks + parts, dst_spec.tokens, dst_spec.scheduled)
        return True

    def _stores(self, chunks: KvcacheLoadStoreSpec, i: int, key: bytes) -> bool:
        """Returns whether this rank puts a chunk: the rank's shard of it is not stored yet, and it is this rank's turn to write that shard."""
        return not chunks.is_present(self._rank, i) and self.spec.shares[identity.group_of(key)].writes(key)

    def _placed(self, job_id: int, blocks: list[int], chunks: int, first_index: int) -> tuple[int, list[int]]:
        """Returns how many leading chunks of a store are left out, and the blocks of the other chunks, `per_chunk` for each. All chunks are left
        out if their blocks cannot be assigned. The first chunk is left out if vLLM omitted some of its blocks and zeros may not replace these.
        Raises ValueError if there are more blocks than the chunks have, or not one block for each chunk of one block."""
        k = self.spec.per_chunk
        placed = arrays.filled(blocks, chunks, first_index, k)
        if placed is None and (k == 1 or len(blocks) > chunks * k):
            raise ValueError(f"job {job_id}: vLLM passed {len(blocks)} blocks to store, but its {chunks} chunks of {k} blocks have "
                             f"{chunks * k}")
        if placed is None:
            return chunks, []
        return (1, placed[k:]) if NO_BLOCK in placed and not self.spec.stores_zeros else (0, placed)

    @timed
    def submit_load(self, job_id: int, src_spec: KvcacheLoadStoreSpec, dst_spec: Any, expedited: bool = False) -> bool:
        """Begins a load. vLLM calls wait() for an expedited load before the forward pass of the same step; wait() then returns at once, because
        the engine's stream waits for the copies."""
        if self.mover is None:
            raise RuntimeError(f"job {job_id}: this rank does not take part in the cache ({self._refusal}) but was given a load; without the "
                               "load the engine would compute with wrong KV, so it ends")
        offsets, k, parts, at = src_spec.offsets_of(self._rank), self.spec.per_chunk, [], 0
        for group, blocks, first_index in self._listed(dst_spec):
            chunks = arrays.chunks_of(len(blocks), first_index, k)
            of_group, at = offsets[at:at + chunks], at + chunks
            if len(of_group) != chunks:
                break
            if k == 1 and arrays.NULL_BLOCK not in blocks:
                if blocks:
                    parts.append(LoadPart(group, blocks, of_group))
                continue
            slots = arrays.slots_of(blocks, first_index, k)
            if slots:
                block_bytes = self._blocks[group].block_bytes
                parts.append(LoadPart(group, [s.block for s in slots], [of_group[s.chunk] + s.place * block_bytes for s in slots]))
        if at != src_spec.count:
            raise ValueError(f"job {job_id}: vLLM passed {src_spec.count} chunks to load, but blocks for {at} chunks")
        self.mover.load(job_id, parts, src_spec.pool, src_spec.number, expedited)
        return True

    @timed
    def get_finished(self) -> list[TransferResult]:
        ended = self.mover.finished() if self.mover is not None else []
        while self._dropped:
            ended.append(self._dropped.popleft())
        return [TransferResult(job_id=e.job, success=e.success, transfer_size=e.nbytes, transfer_time=e.seconds) for e in ended]

    @timed
    def wait(self, job_ids: set[int]) -> None:
        if self.mover is not None:
            self.mover.wait(set(job_ids))

    def shutdown(self) -> None:
        steps.listeners.discard(self)
        if self.mover is not None:
            self.mover.close()
        elif self._seat.page is not None:
            self._seat.page.leave()


class KvcacheOffloadingSpec(OffloadingSpec):  # type: ignore[misc]
    """vLLM's OffloadingSpec of this adapter. Its options are keys of kv_connector_extra_config.

    As for the tier (tier.py): weights, weights_check, ack, load_policy, after_reset, prefill_tokens_per_s, memory_bytes_per_s,
    disk_bytes_per_s, remote_bytes_per_s and timeout_s (5 s by default); and kvcache_socket, kvcache_namespace and kvcache_remote for the
    tier's socket, namespace and remote. For the spec alone: store_policy (watchdog.py), copies (_gpu.py), canary and canary_bound
    (canary.py), kvcache_start and kvcache_idle (start.py). vLLM's own sync_load_budget_bytes is SYNC_LOAD_BYTES by default.

    Options of llm-d's backend and of LMCache are accepted and have no effect (kvcache.engine.former). Raises ValueError for a wrong value."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if not hasattr(self, "replicated_layout"):
            self.replicated_layout = False
        options = dict(config.extra_config)
        # vLLM 0.33 reads this option from the spec. vLLM's own default of 0 costs each request that loads one or two steps.
        self.extra_config = {"sync_load_budget_bytes": SYNC_LOAD_BYTES, **options}
        budget = checks.size_of("sync_load_budget_bytes", self.extra_config["sync_load_budget_bytes"])
        self.has_awaited_loads = budget > 0 and "expedited" in inspect.signature(OffloadingWorker.submit_load).parameters
        former.note(log, "llm-d's file-system backend", former.LLMD, options)
        former.note(log, "LMCache", former.LMCACHE_IN_VLLM, {*options, *os.environ})
        self.world_size = int(config.parallel.world_size)
        if self.world_size > page.MOST_RANKS:
            raise ValueError(f"KvcacheOffloadingSpec supports engines of at most {page.MOST_RANKS} GPUs, not of {self.world_size}")
        self.per_chunk = int(config.cache.blocks_per_chunk)
        if self.per_chunk < 1:
            raise ValueError(f"a chunk has at least one block, not {self.per_chunk}: leave blocks_per_chunk out, or set it to 1 or more")
        self.stores_zeros = self.per_chunk > 1 and arrays.zeros_are_safe(hooks.configuration_of(config.engine_id))
        self.ack = str(options.get("ack", "accepted"))
        if self.ack not in ("accepted", "written", "durable"):
            raise ValueError(f"ack must be 'accepted', 'written' or 'durable', not {self.ack!r}")
        self.copies = str(options.get("copies", "auto"))
        if self.copies not in ENGINES:
            raise ValueError(f"copies must be one of {', '.join(ENGINES)}, not {self.copies!r}")
        load_policy = options.get("load_policy", "auto")
        if load_policy not in ("auto", "always"):
            raise ValueError(f"load_policy must be 'auto' or 'always', not {load_policy!r}")
        self.store_policy = options.get("store_policy", "auto")
        if self.store_policy not in ("auto", "always"):
            raise ValueError(f"store_policy must be 'auto' or 'always', not {self.store_policy!r}")
        self.policy: dict[str, Any] = {"always": load_policy == "always", **{
            name: checks.number_of(name, options.get(name, 0.0))
            for name in ("prefill_tokens_per_s", "memory_bytes_per_s", "disk_bytes_per_s", "remote_bytes_per_s")}}
        self.resets = identity.Resets(options.get("after_reset", identity.KEEP))
        self.remote = options.get("kvcache_remote", True)
        if not isinstance(self.remote, bool):
            raise ValueError(f"kvcache_remote must be true or false, not {self.remote!r}")
        self.socket = checks.socket_of("kvcache_socket", options.get("kvcache_socket"))
        self.prefix = checks.prefix_of("kvcache_namespace", options.get("kvcache_namespace", "vllm"))
        start_if_asked(options)
        self.timeout_s = checks.timeout_of("timeout_s", options.get("timeout_s", 5.0))
        # Tokens of a chunk, by the group's number in keys. If vLLM 0.33 leaves groups out, this number differs from the position in the list.
        self.tokens = {int(getattr(g, "group_id", at)): int(g.tokens_per_block) * self.per_chunk for at, g in enumerate(config.groups)}
        self.canary = str(options.get("canary", "off"))
        if self.canary not in canary.MODES:
            raise ValueError(f"canary must be 'off', 'first' or 'always', not {self.canary!r}")
        if self.canary != canary.OFF and self.world_size > 1:
            log.warning("the canary is off, so stored chunks are loaded without a comparison: it supports engines of one GPU, not of %d",
                        self.world_size)
            self.canary = canary.OFF
        self.canary_bound = checks.bound_of("canary_bound", options.get("canary_bound", BOUND))
        self.facts = identity.fields_of(config, int(config.worker_kv_bytes_per_block), 0,
                                        str(options.get("weights") or identity.weights_of_engine(
                                            config.model.name, str(options.get("weights_check", "samples")), config)))
        self.facts["chunk"] = arrays.PLAIN  # the worker replaces it with the exact value, which distinguishes chunks from the tier's rows
        if self.facts["rank"] != "canonical":
            self.facts["rank"] = 0  # the shard's number is in the namespace's name instead
        # All ranks and the scheduler's process must agree on these facts. Others are left out: groups and page sizes differ between the
        # ranks, and the scheduler's process may not know the weights.
        self.common = page.digest_of({**{n: self.facts[n] for n in ("model", "dtype", "blocks_per_chunk", "tp", "pp", "pcp", "dcp")},
                                      "namespace": self.prefix})
        self.of_engine: dict[str, object] = {}
        self.fields: dict[str, str] = {}
        self.names: dict[int, str] = {}
        self.shares: dict[int, Share] = {}
        self.base = ""
        self._manager: KvcacheManager | None = None
        self._worker: KvcacheWorker | None = None

    def __repr__(self) -> str:
        if not hasattr(self, "names"):
            return "<KvcacheOffloadingSpec of nothing>"
        part = "the scheduler's and a worker's" if self._manager and self._worker else "a worker's" if self._worker else "the scheduler's"
        name = next(iter(self.names.values()), "")
        return f"<KvcacheOffloadingSpec{f' {name!r}' if name else ''}: {part} side, {self.world_size} GPU{'s' if self.world_size > 1 else ''}>"

    def name(self, shares: Mapping[int, Share] | None = None) -> None:
        """Composes this rank's fingerprint and its namespaces' names. Called in the worker, which knows the engine's facts; the manager takes
        the names from the workers' descriptions in the engine's page. `shares`: this rank's share by group; None: each rank has a shard of its
        own."""
        rank = int(self.config.parallel.rank)
        self.of_engine = identity.of_engine(self.config, rank)
        fingerprint = identity.compose("vllm", {**self.facts, **self.of_engine}, identity.new_start())
        identity.warn(log, fingerprint)
        self.fields = fingerprint.fields
        alone = Share(rank, self.world_size)
        # With an unknown fact, each rank puts a random text of its own into its fingerprint, so that no two ranks can share a namespace.
        self.shares = {g: alone if shares is None or fingerprint.unknown else shares[g] for g in self.tokens}
        self.base = identity.namespace_base(self.prefix, self.fields)
        self.names = {g: share.name(self.base, g) for g, share in self.shares.items()}

    def canary_of(self, blocks: Sequence[Blocks]) -> Canary:
        """Returns the canary of an engine with these blocks, one for each group."""
        groups = [Group(number, list(g.layer_names), len(b.regions), 0, b.sizes, b.per_chunk)
                  for number, g, b in zip(self.tokens, self.config.groups, blocks)]
        units = units_of(self.of_engine, groups)
        if self.stores_zeros:  # chunks of windows may contain zeros for blocks that another request has computed: they are not compared
            units.update((number, []) for number, g in zip(self.tokens, self.config.groups)
                         if getattr(g, "sliding_window_size_in_chunks", None) is not None)
        return Canary(self.canary, self.canary_bound, self.names, self.fields, units)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        counters = {PREFIX + n: vllm_base.OffloadingCounterMetadata(documentation=text) for n, text in COUNTERS.items()}
        gauges = {**GAUGES, **watchdog.GAUGES}
        return {**counters, **{PREFIX + n: vllm_base.OffloadingGaugeMetadata(documentation=text) for n, text in gauges.items()}}

    def get_manager(self) -> KvcacheManager:
        if self._manager is None:
            self._manager = KvcacheManager(self)
        return self._manager

    def get_worker(self, kv_caches: Any) -> KvcacheWorker:
        if self._worker is None:
            import torch

            device = kv_caches.tensors[0].tensor.device.index or 0
            self._worker = KvcacheWorker(self, kv_caches, device, lambda: torch.cuda.current_stream(device).cuda_stream)
        return self._worker
