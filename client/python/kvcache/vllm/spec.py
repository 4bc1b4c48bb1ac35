# SPDX-License-Identifier: Apache-2.0
"""A spec of our own for vLLM's KV offloading, 0.24 to 0.33: the daemon's memory is the CPU tier. Blocks go from the GPU to the
daemon and back without vLLM's CPU tier between them.

The manager (scheduler's side) and the worker live in one process, which is how vLLM runs an engine of one GPU: the manager's
leases are what the worker's loads rest on. The two find each other by the engine's id; until the worker is there, or where it is in
another process, everything is a miss. Engines of more GPUs are refused: they have the tier (tier.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from vllm.v1.kv_offload import base as vllm_base
from vllm.v1.kv_offload.base import (LoadStoreSpec, LookupResult, OffloadingManager, OffloadingSpec, OffloadingWorker,
                                     PrepareStoreOutput, RequestOffloadingContext, TransferResult)

from .. import TIER_MEMORY
from . import identity
from .mover import Blocks, Mover, Part
from .policy import DISK, MEMORY, LoadPolicy
from .promises import Held, Promises

log = logging.getLogger("kvcache.vllm")

LEAST_PREFILL_TOKENS = 256
MOST_CHAIN = 4096
_PREFIX = "vllm:kv_offload_kvcache_"
COUNTERS = {
    "lookups": "Chunks that were looked up in kvcache-daemon.",
    "hits": "Chunks that were found there, are worth loading, and were leased.",
    "declined": "Chunks that were found there, and not loaded since computing them is faster.",
    "unavailable": "Chunks that were not looked up since the daemon did not answer.",
    "stored_bytes": "Bytes that the daemon took.",
    "loaded_memory_bytes": "Bytes loaded from the daemon's memory.",
    "loaded_disk_bytes": "Bytes that were read from the daemon's disk to be loaded.",
    "failed_stores": "Chunks that were not stored.",
    "failed_loads": "Chunks that were found and could not be leased: computed instead.",
    "rescued_loads": "Chunks that were copied from leased memory since the daemon did not answer.",
}
GAUGES = {
    "up": "1 while kvcache-daemon answers.",
    "prefill_tokens_per_second": "The rate of prefill that loading is compared with.",
    "memory_bytes_per_second": "The rate of loads from the daemon's memory.",
    "disk_bytes_per_second": "The rate of loads from the daemon's disk.",
}

_workers: dict[str, KvcacheWorker] = {}  # of this process, by the engine's id
_workers_lock = threading.Lock()


class KvcacheLoadStoreSpec(LoadStoreSpec):  # type: ignore[misc]
    """Chunks by their keys, in the order of the blocks; of a load, the leases that keep them where they are."""

    def __init__(self, keys: list[bytes], held: list[Held]) -> None:
        self.keys, self.held = keys, held

    def __repr__(self) -> str:
        return f"<{len(self.keys)} chunks of kvcache-daemon>"


class _Request:
    __slots__ = ("answers", "declined", "asked_at")

    def __init__(self) -> None:
        self.answers: dict[bytes, bool] = {}  # worth loading?
        self.declined: set[int] = set()
        self.asked_at = 0.0


class KvcacheManager(OffloadingManager):  # type: ignore[misc]
    """The scheduler's side: what is there, and leases on it from the lookup on."""

    def __init__(self, spec: KvcacheOffloadingSpec) -> None:
        self._spec = spec
        self._promises: Promises | None = None
        self._worker: KvcacheWorker | None = None
        self._policies: list[LoadPolicy] = []
        self._requests: dict[str, _Request] = {}
        self._load_began: dict[str, tuple[float, int, int]] = {}
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._seen = {"stored_bytes": 0, "failed_stores": 0, "rescued_loads": 0}
        self._warned = False

    def _ready(self) -> Promises | None:
        if self._promises is None:
            with _workers_lock:
                worker = _workers.get(self._spec.config.engine_id)
            if worker is None:
                if not self._warned:
                    log.warning("vLLM's worker is in another process, or not there yet: nothing is loaded or stored until it is in "
                                "this one")
                    self._warned = True
                return None
            spec, self._worker = self._spec, worker
            chunk_bytes = {g: b.chunk_bytes for g, b in enumerate(worker.mover.blocks)}
            self._promises = Promises(spec.names, spec.fields, chunk_bytes, socket=spec.socket, timeout_s=spec.timeout_s)
            self._policies = [LoadPolicy(tokens, chunk_bytes[g], **spec.policy) for g, tokens in enumerate(spec.tokens)]
        return self._promises

    # --- lookups ---

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._requests[req_context.req_id] = _Request()
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        promises = self._ready()
        if promises is None:
            return LookupResult.MISS
        request = self._requests.setdefault(req_context.req_id, _Request())
        request.asked_at = time.monotonic()
        worth = request.answers.get(key)
        if worth is None:
            worth = self._ask(promises, key, request, req_context)
        if not worth:
            return LookupResult.MISS
        state = promises.state(req_context.req_id, key)
        if state is None:
            return LookupResult.RETRY
        if not state:
            self._counts["failed_loads"] += 1
            request.answers[key] = False
            return LookupResult.MISS
        return LookupResult.HIT

    def _ask(self, promises: Promises, key: bytes, request: _Request, context: Any) -> bool:
        group = identity.group_of(key)
        if group >= len(self._policies):
            return False
        chain = self._chain(key, group, request, context)
        where = promises.where(chain)
        if where is None:
            self._counts["unavailable"] += 1
            request.answers[key] = False
            return False
        self._counts["lookups"] += len(chain)
        run = where.index(0) if 0 in where else len(where)
        worth = self._worth(promises, group, [MEMORY if t & TIER_MEMORY else DISK for t in where[:run]], len(chain), request)
        self._counts["hits"] += worth
        self._counts["declined"] += run - worth
        request.answers.update((k, i < worth) for i, k in enumerate(chain[:run + 1]))
        promises.want(context.req_id, chain[:worth])
        return worth > 0

    def _worth(self, promises: Promises, group: int, tiers: list[int], asked: int, request: _Request) -> int:
        if not tiers or group in request.declined:
            return 0
        policy, queued = self._policies[group], promises.asked_bytes
        worth = policy.worth(tiers, queued) if asked > 1 else int(policy.worth_next(tiers[0], queued))
        if worth < len(tiers):
            request.declined.add(group)
        return worth

    @staticmethod
    def _chain(key: bytes, group: int, request: _Request, context: Any) -> list[bytes]:
        """This key and those of its group that vLLM will ask for after it, where it has said them (0.33)."""
        positions = getattr(context, "_offload_key_positions", None)
        if not isinstance(positions, dict) or key not in positions:
            return [key]
        first = positions[key]
        after = sorted((at, k) for k, at in positions.items()
                       if at >= first and identity.group_of(k) == group and k not in request.answers)
        return [k for _, k in after[:MOST_CHAIN]] if after and after[0][1] == key else [key]

    # --- jobs ---

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> KvcacheLoadStoreSpec:
        assert self._promises is not None
        name = req_context.req_id
        held = [self._promises.held(name, k) for k in keys]
        memory = disk = 0
        for key, one in zip(keys, held):
            length = self._chunk_bytes(key)
            memory, disk = (memory + length, disk) if one.tiers & TIER_MEMORY else (memory, disk + length)
        self._counts["loaded_memory_bytes"] += memory
        self._counts["loaded_disk_bytes"] += disk
        self._load_began[name] = (time.monotonic(), memory, disk)
        return KvcacheLoadStoreSpec(list(keys), held)

    def _chunk_bytes(self, key: bytes) -> int:
        assert self._worker is not None
        return self._worker.mover.blocks[identity.group_of(key)].chunk_bytes

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        began, memory, disk = self._load_began.pop(req_context.req_id, (0.0, 0, 0))
        if memory and not disk and keys:  # what was read from disk had its time before prepare_load()
            self._policies[identity.group_of(next(iter(keys)))].saw_load(memory, 0, time.monotonic() - began)
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.answers.clear()
        if self._promises is not None:
            self._promises.release(req_context.req_id)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> PrepareStoreOutput:
        """What is not there yet. Nothing, while the daemon does not answer: vLLM takes that as stored."""
        new: list[bytes] = []
        promises = self._ready()
        if promises is not None:
            groups: dict[int, list[bytes]] = {}
            for key in keys:
                groups.setdefault(identity.group_of(key), []).append(key)
            missing: set[bytes] = set()
            for listed in groups.values():
                where = promises.where(listed)
                missing.update(k for k, t in zip(listed, where or b"") if not t)
            new = [k for k in keys if k in missing]
            self._learn_prefill(new, req_context)
        return PrepareStoreOutput(keys_to_store=new, store_spec=KvcacheLoadStoreSpec(new, []), evicted_keys=[])

    def _learn_prefill(self, keys: Sequence[bytes], context: Any) -> None:
        """Since the request was last looked up or stored from, these tokens were computed."""
        request = self._requests.get(context.req_id)
        if request is None or not keys:
            return
        now, group = time.monotonic(), identity.group_of(keys[0])
        tokens = sum(identity.group_of(k) == group for k in keys) * self._spec.tokens[group]
        if request.asked_at and tokens >= LEAST_PREFILL_TOKENS:
            for policy in self._policies:
                policy.saw_prefill(tokens, now - request.asked_at)
        request.asked_at = now

    def on_request_finished(self, req_context: Any) -> None:
        self._requests.pop(req_context.req_id, None)
        if self._promises is not None:
            self._promises.release(req_context.req_id)  # a load under way holds its own references

    def on_schedule_end(self, context: Any) -> None:
        if self._promises is not None:
            self._promises.flush()

    def has_pending_work(self) -> bool:
        return self._promises is not None and self._promises.pending

    def reset_cache(self) -> None:
        """What is stored stays: it is others', too. What was promised is looked up again."""
        for name, request in self._requests.items():
            request.answers.clear()
            if self._promises is not None:
                self._promises.release(name)

    def shutdown(self) -> None:
        if self._promises is not None:
            self._promises.close()
            self._promises = None

    # --- what is reported ---

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        if self._worker is not None:
            for name, seen in self._seen.items():
                now = getattr(self._worker.mover, name)
                self._counts[name] += now - seen
                self._seen[name] = now
        for name, count in self._counts.items():
            if count:
                stats.increase_counter(_PREFIX + name, count)
                self._counts[name] = 0
        policy = self._policies[0] if self._policies else None
        rates = (policy.prefill, *policy.rates) if policy else (0.0, 0.0, 0.0)
        for name, value in zip(GAUGES, (float(self._promises is not None and self._promises.well), *rates)):
            stats.set_gauge(_PREFIX + name, value)
        return stats


def blocks_of(kv_caches: Any) -> list[Blocks]:
    """ValueError: a layout that is not served."""
    groups = []
    for refs in kv_caches.group_data_refs:
        tensors = [kv_caches.tensors[r.tensor_idx] for r in refs]
        sizes = {t.page_size_bytes for t in tensors} | {r.page_size_bytes for r in refs} | {t.tensor.stride(0) for t in tensors}
        counts = {t.tensor.shape[0] for t in tensors}
        if len(sizes) != 1 or len(counts) != 1:
            raise ValueError("KvcacheOffloadingSpec serves KV caches whose layers have pages of one size without padding, not "
                             f"{sorted(sizes)} bytes in {sorted(counts)} blocks: use the tier (TieringOffloadingSpec)")
        groups.append(Blocks(tuple(t.tensor.data_ptr() for t in tensors), sizes.pop(), counts.pop()))
    if not groups:
        raise ValueError("there is no KV cache to be offloaded")
    return groups


class KvcacheWorker(OffloadingWorker):  # type: ignore[misc]
    def __init__(self, spec: KvcacheOffloadingSpec, kv_caches: Any, device: int, current_stream: Any) -> None:
        self._engine = spec.config.engine_id
        self.mover = Mover(blocks_of(kv_caches), spec.names, spec.fields, socket=spec.socket, device=device, ack=spec.ack,
                           timeout_s=spec.timeout_s, current_stream=current_stream)
        with _workers_lock:
            _workers[self._engine] = self

    def _submit(self, job_id: int, is_load: bool, chunks: KvcacheLoadStoreSpec, gpu: Any) -> bool:
        blocks, at, parts = [int(b) for b in gpu.block_ids], 0, []
        if len(blocks) != len(chunks.keys):
            raise ValueError(f"job {job_id}: {len(chunks.keys)} chunks for {len(blocks)} blocks")
        for group, size in enumerate(gpu.group_sizes):
            if size:
                parts.append(Part(group, chunks.keys[at:at + size], blocks[at:at + size],
                                  [h.address for h in chunks.held[at:at + size]]))
            at += size
        self.mover.submit(job_id, is_load, parts, keep=list(chunks.held))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: KvcacheLoadStoreSpec) -> bool:
        return self._submit(job_id, False, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: KvcacheLoadStoreSpec, dst_spec: Any, expedited: bool = False) -> bool:
        return self._submit(job_id, True, src_spec, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        return [TransferResult(job_id=e.job, success=e.success, transfer_size=e.nbytes, transfer_time=e.seconds)
                for e in self.mover.finished()]

    def wait(self, job_ids: set[int]) -> None:
        self.mover.wait(set(job_ids))

    def shutdown(self) -> None:
        with _workers_lock:
            if _workers.get(self._engine) is self:
                del _workers[self._engine]
        self.mover.close()


class KvcacheOffloadingSpec(OffloadingSpec):  # type: ignore[misc]
    """Keys of kv_connector_extra_config, as the tier's (tier.py): kvcache_socket, kvcache_namespace, weights, ack, load_policy,
    prefill_tokens_per_s, memory_bytes_per_s, disk_bytes_per_s, timeout_s (5)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if not hasattr(self, "replicated_layout"):
            self.replicated_layout = False
        options = dict(config.extra_config)
        if config.parallel.world_size > 1:
            raise ValueError(f"KvcacheOffloadingSpec serves engines of one GPU, not of {config.parallel.world_size}: use the tier "
                             "(TieringOffloadingSpec)")
        if config.cache.blocks_per_chunk != 1:
            raise ValueError(f"KvcacheOffloadingSpec has chunks of one block, not of {config.cache.blocks_per_chunk}: leave block_size "
                             "and blocks_per_chunk out")
        self.ack = str(options.get("ack", "accepted"))
        if self.ack not in ("accepted", "written", "durable"):
            raise ValueError(f"ack is 'accepted', 'written' or 'durable', not {self.ack!r}")
        load_policy = options.get("load_policy", "auto")
        if load_policy not in ("auto", "always"):
            raise ValueError(f"load_policy is 'auto' or 'always', not {load_policy!r}")
        self.policy: dict[str, Any] = {"always": load_policy == "always", **{
            name: float(options.get(name, 0.0)) for name in ("prefill_tokens_per_s", "memory_bytes_per_s", "disk_bytes_per_s")}}
        self.socket = options.get("kvcache_socket")
        self.timeout_s = float(options.get("timeout_s", 5.0))
        self.tokens = [g.tokens_per_block for g in config.groups]
        self.fields = identity.fields_of(config, int(config.worker_kv_bytes_per_block), 0,
                                         str(options.get("weights") or identity.weights_of(config.model.name)))
        if self.fields["weights"] == "unknown":
            log.warning("which weights %s has is unknown: set `weights` to their revision, so that other weights under this name do "
                        "not find its chunks", config.model.name)
        self.fields["chunk"] = "layers"  # one page a layer; a row of the tier is another thing
        self.names = {g: identity.namespace_name(str(options.get("kvcache_namespace", "vllm")), self.fields, g)
                      for g in range(len(config.groups))}
        self._manager: KvcacheManager | None = None
        self._worker: KvcacheWorker | None = None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        counters = {_PREFIX + n: vllm_base.OffloadingCounterMetadata(documentation=text) for n, text in COUNTERS.items()}
        return {**counters, **{_PREFIX + n: vllm_base.OffloadingGaugeMetadata(documentation=text) for n, text in GAUGES.items()}}

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
