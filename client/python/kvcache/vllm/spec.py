# SPDX-License-Identifier: Apache-2.0
"""A spec of our own for vLLM's KV offloading, 0.24 to 0.33: the daemon's memory is the CPU tier. Blocks go from the GPU to the
daemon and back without vLLM's CPU tier between them.

The manager (scheduler's side) and the worker live in one process, which is how vLLM runs an engine of one GPU: the manager's
leases are what the worker's loads rest on. The two find each other by the engine's id; until the worker is there, or where it is in
another process, everything is a miss. Engines of more GPUs are refused: they have the tier (tier.py).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vllm.v1.kv_offload import base as vllm_base
from vllm.v1.kv_offload.base import (LoadStoreSpec, LookupResult, OffloadingManager, OffloadingSpec, OffloadingWorker,
                                     PrepareStoreOutput, RequestOffloadingContext, TransferResult)

from .. import TIER_MEMORY, TIER_REMOTE
from ..engine.canary import BOUND
from . import canary, hooks, identity, worker as steps
from .canary import Canary
from .loads import LoadPart
from .mover import Blocks, Mover, Part
from .policy import DISK, MEMORY, REMOTE, LoadPolicy
from .promises import Held, Promises
from .shared import SharedTier, Sought
from .start import start_if_asked
from .units import Group, units_of

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
    "loaded_remote_bytes": "Bytes loaded that came from the tier that hosts share.",
    "failed_stores": "Chunks that were not stored.",
    "store_wait_seconds": "Seconds that the engine has waited for stores whose blocks it needed.",
    "failed_loads": "Chunks that were found and could not be leased: computed instead.",
    "failed_fetches": "Chunks that the tier that hosts share did not give in time: computed instead.",
    "rescued_loads": "Chunks that were copied one by one since the daemon's memory was not registered with the GPU.",
    **canary.COUNTERS,
}
GAUGES = {
    "up": "1 while kvcache-daemon answers.",
    "prefill_tokens_per_second": "The rate of prefill that loading is compared with.",
    "memory_bytes_per_second": "The rate of loads from the daemon's memory.",
    "disk_bytes_per_second": "The rate of loads from the daemon's disk.",
    "remote_bytes_per_second": "The rate of loads from the tier that hosts share.",
}

_workers: dict[str, KvcacheWorker] = {}  # of this process, by the engine's id
_workers_lock = threading.Lock()


class KvcacheLoadStoreSpec(LoadStoreSpec):  # type: ignore[misc]
    """Chunks by their keys, in the order of the blocks; of a load, the leases that keep them where they are; of a store, those that are
    compared and not stored."""

    def __init__(self, keys: list[bytes], held: list[Held], tokens: int = 0, checks: Collection[bytes] = ()) -> None:
        self.keys, self.held, self.checks = keys, held, checks
        self.tokens, self.scheduled = tokens, time.monotonic()  # what is computed for a store, and from when on

    def __repr__(self) -> str:
        return f"<{len(self.keys)} chunks of kvcache-daemon>"


class _Request:
    __slots__ = ("answers", "ready", "declined", "gathered", "was_gathered", "computes", "sought", "search_untils", "fetched", "withheld",
                 "has_parents")

    def __init__(self) -> None:
        self.computes = False  # all that it offers to be stored is computed in that step
        self.withheld: set[bytes] = set()  # stored chunks that the canary has it compute
        self.has_parents: set[int] = set()  # groups of which it was given chunks, or has offered some
        self.forget()

    def forget(self) -> None:
        """Forgets the answers: vLLM asks for another run next, or for the same after it was loaded."""
        self.answers: dict[bytes, bool] = {}  # worth loading?
        self.ready: set[bytes] = set()  # leased: vLLM asks again in each step in which it has no room for the request
        self.declined: set[int] = set()
        self.gathered: dict[int, dict[bytes, int | None]] = {}  # by group, to be asked about together; the first one's tiers
        self.was_gathered: set[int] = set()
        self.sought: dict[int, Sought] = {}  # by group: what is looked for in the shared tier
        self.search_untils: dict[int, float] = {}  # by group: it waits for that no longer
        self.fetched: set[bytes] = set()  # keys that came from there


class KvcacheManager(OffloadingManager):  # type: ignore[misc]
    """The scheduler's side: what is there, and leases on it from the lookup on."""

    def __init__(self, spec: KvcacheOffloadingSpec) -> None:
        self._spec = spec
        self._promises: Promises | None = None
        self._shared: SharedTier | None = None
        self._canary: Canary | None = None
        self._variant = 0  # the number of the namespaces that are asked about
        self._worker: KvcacheWorker | None = None
        self._policies: dict[int, LoadPolicy] = {}  # by group
        self._chunk_bytes: Mapping[int, int] = {}
        self._requests: dict[str, _Request] = {}
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._seen: dict[str, float] = {"stored_bytes": 0, "failed_stores": 0, "rescued_loads": 0, "store_wait_seconds": 0.0}
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
            spec, self._worker, self._chunk_bytes = worker.spec, worker, worker.chunk_bytes
            self._canary, self._variant = worker.canary, worker.canary.number
            names = self._canary.names
            self._promises = Promises(names, spec.fields, self._chunk_bytes, socket=spec.socket, timeout_s=spec.timeout_s,
                                      serves=worker.mover.serves)
            if spec.remote:
                self._shared = SharedTier(names, spec.fields, self._chunk_bytes, socket=spec.socket, timeout_s=spec.timeout_s)
            self._policies = {g: LoadPolicy(tokens, self._chunk_bytes[g], by_way_of_memory=True, **spec.policy) for g, tokens in spec.tokens.items()}
        return self._promises

    # --- lookups ---

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._drop(self._requests.get(req_context.req_id))
        self._requests[req_context.req_id] = _Request()
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        name = req_context.req_id
        request = self._requests.get(name)
        if request is not None and key in request.ready:
            return LookupResult.HIT
        promises = self._ready()
        if promises is None:
            return LookupResult.MISS
        if request is None:
            request = self._requests[name] = _Request()
        worth = request.answers.get(key)
        if worth is None:
            worth = self._ask(promises, key, request, req_context)
            if worth is None:
                return LookupResult.HIT_PENDING
        if not worth:
            request.computes = False
            return LookupResult.MISS
        state = promises.state(name, key)
        if state is None:
            return LookupResult.HIT_PENDING
        if not state:
            self._counts["failed_loads"] += 1
            request.answers[key] = False
            return LookupResult.MISS
        request.ready.add(key)
        return LookupResult.HIT

    def _ask(self, promises: Promises, key: bytes, request: _Request, context: Any) -> bool | None:
        """Is it worth loading? None: it is known at the end of the step.

        Where vLLM does not say what it will ask for next, only the first chunk that is there is asked about alone: with it come
        all that follow it in this step, by one question and with one decision."""
        group = identity.group_of(key)
        if group not in self._policies:
            return False
        gathered = request.gathered.get(group)
        if gathered is not None:
            gathered.setdefault(key)
            return None
        sought = request.sought.get(group)
        if sought is not None:
            if not self._seek(promises, group, sought, request, context.req_id):
                return None
            if (answer := request.answers.get(key)) is not None:
                return answer
        chain = self._chain(key, group, request, context)
        where = promises.where(chain)
        if where is None:
            self._counts["unavailable"] += 1
            request.answers[key] = False
            return False
        may_gather = not where[0] or group not in request.was_gathered  # again, where the shared tier is asked
        if len(chain) == 1 and may_gather and not self._is_hopeless(group, where[0], request):
            request.gathered[group] = {key: where[0]}
            return None
        if self._begin(group, chain, _tiers_of(where), request):
            return None
        return self._decided(promises, group, chain, _tiers_of(where), request, context.req_id)

    def _decided(self, promises: Promises, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request, name: str,
                 worth: int | None = None) -> bool:
        """And asks at once for what is in memory."""
        worth, in_memory = self._decide(promises, group, chain, tiers, request, name, worth)
        if in_memory and len(chain) > 1:
            promises.ask(name)
        return worth > 0

    # --- what the shared tier has ---

    def _may_seek(self, group: int, request: _Request) -> bool:
        return (self._shared is not None and self._shared.on and group not in request.declined
                and time.monotonic() < request.search_untils.get(group, math.inf))

    def _begin(self, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request) -> bool:
        """Has what is not here looked for. False: it is not."""
        if self._shared is None or len(tiers) == len(chain) or not self._may_seek(group, request):
            return False
        sought = Sought(chain)
        if sought.begin(self._shared, self._policies[group], group, tiers, request.search_untils):
            request.sought[group] = sought
        return sought.has_begun

    def _seek(self, promises: Promises, group: int, sought: Sought, request: _Request, name: str) -> bool:
        """In each step, whatever key of the group is asked for. True: it has ended, and there are answers."""
        assert self._shared is not None
        chain = list(sought.keys)
        if not sought.advance(self._shared, self._policies[group],
                              lambda tiers: self._worth(promises, group, tiers, len(chain), request)):
            return False
        del request.sought[group]
        self._counts["failed_fetches"] += sought.failed
        request.fetched.update(k for k, t in zip(chain[:sought.worth], sought.tiers) if t == REMOTE)
        self._decided(promises, group, chain, sought.tiers, request, name, sought.worth)
        return True

    def _is_hopeless(self, group: int, tiers: int, request: _Request) -> bool:
        if not tiers:
            return not self._may_seek(group, request) or self._policies[group].is_hopeless(REMOTE)
        return group in request.declined or self._policies[group].is_hopeless(MEMORY if tiers & TIER_MEMORY else DISK)

    def _gathered(self, promises: Promises, name: str, request: _Request) -> None:
        """At the end of a step."""
        for group, listed in request.gathered.items():
            request.was_gathered.add(group)
            keys = list(listed)
            where = promises.where(keys[1:]) if len(keys) > 1 else b""
            if where is None:
                self._counts["unavailable"] += 1
                request.answers[keys[0]] = False
                continue
            first = listed[keys[0]]
            assert first is not None
            tiers = _tiers_of(bytes([first]) + where)
            if not self._begin(group, keys, tiers, request):
                self._decide(promises, group, keys, tiers, request, name)
        request.gathered = {}

    def _decide(self, promises: Promises, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request,
                name: str, worth: int | None = None) -> tuple[int, bool]:
        """How many leading ones to load, which are asked for; and whether all of them are in memory. `tiers`: of those that are found;
        what came from the shared tier is in memory."""
        self._counts["lookups"] += len(chain)
        run = len(tiers)
        if worth is None:
            worth = self._worth(promises, group, tiers, len(chain), request)
        self._counts["declined"] += run - worth
        worth = self._loadable(group, chain[:worth], request)
        self._counts["hits"] += worth
        request.answers.update((k, i < worth) for i, k in enumerate(chain[:run + 1]))
        promises.want(name, chain[:worth], [t == DISK for t in tiers[:worth]])
        return worth, DISK not in tiers[:worth]

    def _loadable(self, group: int, keys: Sequence[bytes], request: _Request) -> int:
        """Returns how many of them the canary lets be loaded, from the first on. The others are computed."""
        assert self._canary is not None
        n = self._canary.loadable(group, keys, self._variant)
        request.withheld.update(keys[n:])
        if n:
            request.has_parents.add(group)
        return n

    def _choose(self, keys: list[bytes], where: bytes, request: _Request | None) -> bytes | None:
        """Returns the chunk that the canary compares, of a group's chunks that are computed now. None: it compares none of them."""
        if request is None or self._canary is None:
            return None
        group = identity.group_of(keys[0])
        chosen = self._canary.choose(keys, where, request.withheld, group in request.has_parents)
        request.has_parents.add(group)
        return chosen

    def _follow(self) -> None:
        """Goes on with the namespaces that the canary has moved to."""
        if self._canary is None or self._promises is None or self._canary.number == self._variant:
            return
        self._variant, names = self._canary.number, self._canary.names
        self.reset_cache()
        self._promises.rename(names)
        if self._shared is not None:
            self._shared.rename(names)

    def _worth(self, promises: Promises, group: int, tiers: list[int], asked: int, request: _Request) -> int:
        if not tiers or group in request.declined:
            return 0
        policy = self._policies[group]
        loading = self._worker.mover.loads.loading_bytes if self._worker is not None else 0
        worth = policy.worth_of(asked, tiers, promises.asked_bytes + loading, promises.asked_disk_bytes,
                                self._shared.queued_bytes if self._shared is not None else 0, alone=len(self._requests) == 1)
        if worth < len(tiers):
            request.declined.add(group)
        return worth

    @staticmethod
    def _chain(key: bytes, group: int, request: _Request, context: Any) -> list[bytes]:
        """This key and those of its group that vLLM will ask for after it, where they are known: vLLM 0.33 says them, and in older ones a
        wrapper does (hooks.py)."""
        listed = getattr(context, hooks.KEYS, None)
        if isinstance(listed, list) and key in listed:
            first = listed.index(key)
            return [k for k in listed[first:first + MOST_CHAIN] if k not in request.answers]
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
        request = self._requests.get(name)
        fetched = request.fetched if request is not None else set()
        moved = {"memory": 0, "disk": 0, "remote": 0}
        for key, one in zip(keys, held):
            tier = "remote" if one.tiers & TIER_REMOTE or key in fetched else "memory" if one.tiers & TIER_MEMORY else "disk"
            moved[tier] += self._chunk_bytes[identity.group_of(key)]
        for tier, nbytes in moved.items():
            self._counts[f"loaded_{tier}_bytes"] += nbytes
        return KvcacheLoadStoreSpec(list(keys), held)

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            self._drop(request)
            request.forget()
            request.computes = True
        if self._promises is not None:
            self._promises.release(req_context.req_id)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> PrepareStoreOutput:
        """What is not there yet. Nothing, while the daemon does not answer: vLLM takes that as stored."""
        new: list[bytes] = []
        checks: set[bytes] = set()
        tokens = 0
        promises = self._ready()
        if promises is not None:
            groups: dict[int, list[bytes]] = {}
            for key in keys:
                groups.setdefault(identity.group_of(key), []).append(key)
            missing: set[bytes] = set()
            for listed in groups.values():
                where = promises.where(listed)
                missing.update(k for k, t in zip(listed, where or b"") if not t)
                if (chosen := self._choose(listed, where or b"", self._requests.get(req_context.req_id))) is not None:
                    checks.add(chosen)
            new = [k for k in keys if k in missing or k in checks]
            tokens = self._computed_now(groups, req_context)
        return PrepareStoreOutput(keys_to_store=new, store_spec=KvcacheLoadStoreSpec(new, [], tokens, checks), evicted_keys=[])

    def _computed_now(self, groups: dict[int, list[bytes]], context: Any) -> int:
        """Tokens of these chunks that are computed in the step which is being scheduled; 0: too few, or it is not known. vLLM
        offers what its own prefix cache has, too: what is computed begins where the lookup ended."""
        request = self._requests.get(context.req_id)
        if request is None:
            return 0
        most = 0
        for group, keys in groups.items():
            if not request.computes:
                at = next((i for i, k in enumerate(keys) if request.answers.get(k) is False), None)
                if at is None:
                    continue
                keys = keys[at:]
            most = max(most, len(keys) * self._spec.tokens.get(group, 0))
        request.computes = request.computes or most > 0
        return most if most >= LEAST_PREFILL_TOKENS else 0

    def on_request_finished(self, req_context: Any) -> None:
        request = self._requests.pop(req_context.req_id, None)
        self._drop(request)
        if self._promises is not None:
            self._promises.release(req_context.req_id)  # a load under way holds its own references

    def _drop(self, request: _Request | None) -> None:
        """What it looks for in the shared tier."""
        if request is not None and self._shared is not None:
            for sought in request.sought.values():
                sought.drop(self._shared)

    def on_schedule_end(self, context: Any) -> None:
        if self._promises is None or self._worker is None:
            return
        for name, request in self._requests.items():
            if request.gathered:
                self._gathered(self._promises, name, request)
        self._follow()
        self._promises.flush()
        for read in self._promises.reads:
            self._policies[read.group].saw_read(read.nbytes, read.least_s, read.most_s)
        self._promises.reads.clear()
        self._worker.mover.release_pools(self._promises.pools)
        while self._shared is not None and self._shared.fetched:
            fetched = self._shared.fetched.popleft()
            self._policies[fetched.group].saw_fetch(fetched.nbytes, fetched.seconds)
        for nbytes, seconds in self._worker.mover.loaded():  # reads from disk ended before, and are counted there
            for policy in self._policies.values():
                policy.saw_load(nbytes, 0, seconds)
        for tokens, seconds in self._worker.mover.computed():
            for policy in self._policies.values():
                policy.saw_prefill(tokens, seconds)

    def has_pending_work(self) -> bool:
        return self._promises is not None and self._worker is not None and (self._promises.pending or self._worker.mover.busy)

    def reset_cache(self) -> None:
        """What is stored stays: it is others', too. What was promised is looked up again."""
        for name, request in self._requests.items():
            self._drop(request)
            request.forget()
            if self._promises is not None:
                self._promises.release(name)

    def shutdown(self) -> None:
        if self._worker is not None:  # it copies from what is leased
            self._worker.shutdown()
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        if self._promises is not None:
            self._promises.close()
            self._promises = None

    # --- what is reported ---

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        if self._worker is not None:
            for name, seen in self._seen.items():
                now = self._worker.counted(name)
                self._counts[name] += now - seen
                self._seen[name] = now
        for name, count in self._canary.take_counts().items() if self._canary is not None else ():
            self._counts[name] += count
        for name, count in self._counts.items():
            if count:
                stats.increase_counter(_PREFIX + name, count)
                self._counts[name] = 0
        policy = next(iter(self._policies.values()), None)
        rates = (policy.prefill, *policy.rates) if policy else (0.0,) * 4
        for name, value in zip(GAUGES, (float(self._promises is not None and self._promises.well), *rates)):
            stats.set_gauge(_PREFIX + name, value)
        return stats


def _tiers_of(where: bytes) -> list[int]:
    """Of the leading ones that are here."""
    run = where.index(0) if 0 in where else len(where)
    return [MEMORY if t & TIER_MEMORY else DISK for t in where[:run]]


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
        self._engine, self.spec = spec.config.engine_id, spec
        spec.name()
        blocks = blocks_of(kv_caches)
        if len(blocks) != len(spec.tokens):
            raise ValueError(f"KV caches of {len(blocks)} groups, and the configuration has {len(spec.tokens)}")
        self.chunk_bytes = {g: b.chunk_bytes for g, b in zip(spec.tokens, blocks)}
        self.canary = spec.canary_of(blocks)
        self.mover = Mover(blocks, self.canary, spec.fields, socket=spec.socket, device=device, ack=spec.ack,
                           timeout_s=spec.timeout_s, current_stream=current_stream)
        steps.listeners.add(self)
        with _workers_lock:
            _workers[self._engine] = self

    def counted(self, name: str) -> float:
        """Returns the count of this name of COUNTERS."""
        mover = self.mover
        return {"rescued_loads": mover.loads.rescued, "store_wait_seconds": mover.store_wait_s, "stored_bytes": mover.stored_bytes,
                "failed_stores": mover.failed_stores}[name]

    def step_begins(self) -> None:
        self.mover.loads.step_begins()

    @staticmethod
    def _listed(job_id: int, chunks: KvcacheLoadStoreSpec, gpu: Any) -> Iterator[tuple[int, int, list[int]]]:
        """By group: its number, where its chunks begin, and its blocks."""
        blocks, at = [int(b) for b in gpu.block_ids], 0
        if len(blocks) != len(chunks.keys):
            raise ValueError(f"job {job_id}: {len(chunks.keys)} chunks for {len(blocks)} blocks")
        for group, size in enumerate(gpu.group_sizes):
            if size:
                yield group, at, blocks[at:at + size]
            at += size

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: KvcacheLoadStoreSpec) -> bool:
        parts, checks = [], []
        for group, at, blocks in self._listed(job_id, dst_spec, src_spec):
            listed = list(zip(dst_spec.keys[at:at + len(blocks)], blocks))
            moved = [one for one in listed if one[0] not in dst_spec.checks]
            if moved:
                parts.append(Part(group, [k for k, _ in moved], [b for _, b in moved]))
            checks += [Part(group, [key], [block], is_check=True) for key, block in listed if key in dst_spec.checks]
        self.mover.submit(job_id, checks + parts, dst_spec.tokens, dst_spec.scheduled)
        return True

    def submit_load(self, job_id: int, src_spec: KvcacheLoadStoreSpec, dst_spec: Any, expedited: bool = False) -> bool:
        """vLLM calls wait() for an expedited load before the forward pass of the same step: it returns at once, since the engine's stream
        waits for the copies."""
        parts = [LoadPart(group, blocks, src_spec.held[at:at + len(blocks)])
                 for group, at, blocks in self._listed(job_id, src_spec, dst_spec)]
        self.mover.load(job_id, parts, list(src_spec.held), expedited)
        return True

    def get_finished(self) -> list[TransferResult]:
        return [TransferResult(job_id=e.job, success=e.success, transfer_size=e.nbytes, transfer_time=e.seconds)
                for e in self.mover.finished()]

    def wait(self, job_ids: set[int]) -> None:
        self.mover.wait(set(job_ids))

    def shutdown(self) -> None:
        steps.listeners.discard(self)
        with _workers_lock:
            if _workers.get(self._engine) is self:
                del _workers[self._engine]
        self.mover.close()


class KvcacheOffloadingSpec(OffloadingSpec):  # type: ignore[misc]
    """Keys of kv_connector_extra_config, as the tier's (tier.py): kvcache_socket, kvcache_namespace, weights, weights_check, ack,
    load_policy, prefill_tokens_per_s, memory_bytes_per_s, disk_bytes_per_s, remote_bytes_per_s, timeout_s (5); and kvcache_remote, the tier's
    `remote`; canary (canary.py) and canary_bound; kvcache_start and kvcache_idle (start.py)."""

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
            name: float(options.get(name, 0.0))
            for name in ("prefill_tokens_per_s", "memory_bytes_per_s", "disk_bytes_per_s", "remote_bytes_per_s")}}
        self.remote = options.get("kvcache_remote", True)
        if not isinstance(self.remote, bool):
            raise ValueError(f"kvcache_remote is true or false, not {self.remote!r}")
        start_if_asked(options)
        self.socket = options.get("kvcache_socket")
        self.timeout_s = float(options.get("timeout_s", 5.0))
        # By the number that keys have, which is not the place in the list where vLLM leaves groups out (0.33).
        self.tokens = {int(getattr(g, "group_id", at)): int(g.tokens_per_block) for at, g in enumerate(config.groups)}
        self.canary = str(options.get("canary", "off"))
        if self.canary not in canary.MODES:
            raise ValueError(f"canary is 'off', 'first' or 'always', not {self.canary!r}")
        self.canary_bound = float(options.get("canary_bound", BOUND))
        if not 0 < self.canary_bound < 1:
            raise ValueError(f"canary_bound is a number between 0 and 1, not {self.canary_bound!r}")
        self.facts = identity.fields_of(config, int(config.worker_kv_bytes_per_block), 0,
                                        str(options.get("weights") or identity.weights_of_engine(
                                            config.model.name, str(options.get("weights_check", "samples")), config)))
        self.facts["chunk"] = "layers"  # one page a layer; a row of the tier is different
        self.of_engine: dict[str, object] = {}
        self.fields: dict[str, str] = {}
        self.names: dict[int, str] = {}
        self._manager: KvcacheManager | None = None
        self._worker: KvcacheWorker | None = None

    def name(self) -> None:
        """Composes the fingerprint in the worker, where the engine's facts are known. The scheduler's side takes the worker's names."""
        self.of_engine = identity.of_engine(self.config)
        fingerprint = identity.compose("vllm", {**self.facts, **self.of_engine}, identity.new_start())
        identity.warn(log, fingerprint)
        self.fields = fingerprint.fields
        self.names = {g: identity.namespace_name(str(self.config.extra_config.get("kvcache_namespace", "vllm")), self.fields, g)
                      for g in self.tokens}

    def canary_of(self, blocks: Sequence[Blocks]) -> Canary:
        """Returns the canary of an engine with these blocks, one for each group."""
        groups = [Group(number, list(g.layer_names), len(b.bases), b.page_bytes)
                  for number, g, b in zip(self.tokens, self.config.groups, blocks)]
        return Canary(self.canary, self.canary_bound, self.names, self.fields, units_of(self.of_engine, groups))

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
