# SPDX-License-Identifier: Apache-2.0
"""The tier of vLLM's tiered KV offloading, for vLLM 0.24 to 0.33: moves rows of vLLM's CPU tier to the daemon and back.

KvcacheTier implements vLLM's SecondaryTierManager, and passes jobs to Transfers (transfers.py). vLLM calls its methods in the scheduler's
process, on one thread at a time. The tier keeps the answers that it has given to each request, so that a chunk is looked up once, and a
chunk whose load failed is a miss until the request ends. No method that vLLM calls raises after construction: an exception would end the
engine, and a miss only costs a prefill.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload import base as vllm_base
from vllm.v1.kv_offload.base import LookupResult, OffloadingEvent, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .. import TIER_MEMORY
from ..engine import former, options as checks
from . import hints, identity
from .hints import Hints
from .learned import GAUGES, Learned
from .policy import DISK, MEMORY, REMOTE, LoadPolicy
from .shared import SharedTier, Sought
from .transfers import Transfers

log = logging.getLogger("kvcache.vllm")

_FIELDS = {f.name for f in dataclasses.fields(JobResult)}
_MEDIA = getattr(vllm_base, "Medium", None)
MEDIUM: Any = _MEDIA.STORAGE if _MEDIA is not None else "STORAGE"
LEAST_PREFILL_TOKENS = 256  # tokens below which a store is no sample of prefill, because decoding also stores a few chunks at a time
MOST_CHAIN = 4096  # most keys that are looked up together from the list that vLLM 0.33 provides
_PREFIX = "vllm:kv_offload_kvcache_"
COUNTERS = {
    "vllm:kv_offload_kvcache_lookups": "Chunks that were looked up in kvcache-daemon.",
    "vllm:kv_offload_kvcache_hits": "Chunks that were found there and are worth loading.",
    "vllm:kv_offload_kvcache_declined": "Chunks that were found there and not loaded, because computing them is faster.",
    "vllm:kv_offload_kvcache_unavailable": "Chunks that were not looked up, because the daemon did not answer.",
    "vllm:kv_offload_kvcache_stored_bytes": "Bytes that were stored in the daemon.",
    "vllm:kv_offload_kvcache_loaded_memory_bytes": "Bytes loaded from the daemon's memory.",
    "vllm:kv_offload_kvcache_loaded_disk_bytes": "Bytes loaded from the daemon's disk.",
    "vllm:kv_offload_kvcache_loaded_remote_bytes": "Bytes loaded that came from the shared tier.",
    "vllm:kv_offload_kvcache_failed_stores": "Chunks that vLLM asked to store and that were not stored.",
    "vllm:kv_offload_kvcache_failed_loads": "Chunks that were found and could not be loaded; the engine computed them instead.",
    "vllm:kv_offload_kvcache_failed_fetches": "Chunks that the shared tier did not deliver in time; the engine computed them instead.",
    **{_PREFIX + name: text for name, text in hints.COUNTERS.items()},
}


class _Request:
    """A request of vLLM, with the answers that it was given and its searches of the shared tier."""

    __slots__ = ("answers", "failed", "declined", "asked_at", "touched", "has_advice", "sought", "search_untils", "fetched")

    def __init__(self, has_advice: bool) -> None:
        self.answers: dict[bytes, bool] = {}  # by key, whether the chunk is to be loaded
        self.failed: set[bytes] = set()  # keys of chunks whose load failed, which are misses until the request ends
        self.declined: set[int] = set()  # groups of which the policy has declined chunks; no further chunks of these are loaded
        self.sought: dict[int, Sought] = {}  # by group, the unfinished search of the shared tier
        self.search_untils: dict[int, float] = {}  # by group, the time.monotonic() until which the request may wait for searches
        self.fetched: set[bytes] = set()  # keys of chunks that a search fetched from the shared tier to this host's memory
        self.asked_at = 0.0  # time.monotonic() of the latest lookup; 0: none since the latest store
        self.touched = False  # the request's keys were marked as used in the daemon
        self.has_advice = has_advice

    def forget(self) -> None:
        """Forgets the answers and the searches. The caller has ended the searches with SharedTier.drop()."""
        self.answers.clear()
        self.failed.clear()
        self.sought.clear()
        self.fetched.clear()


class KvcacheTier(SecondaryTierManager):  # type: ignore[misc]
    """vLLM's SecondaryTierManager of this adapter. Its options are keys of the tier's entry in secondary_tiers:

    socket                 path of the daemon's socket; default: $KVCACHE_SOCKET, else the usual places
    namespace              prefix of the namespaces' names ("vllm")
    weights                names the model's weights; default: a digest of their content (kvcache.engine.weights)
    weights_check          "samples" (default) or "full": how much of each file that digest reads
    ack                    when a store is complete: "accepted" (default; the chunk is in memory), "written" or "durable"
    load_policy            "auto" (default): load chunks if that is faster than computing them (policy.py); "always": load every stored chunk
    prefill_tokens_per_s, memory_bytes_per_s, disk_bytes_per_s, remote_bytes_per_s
                           fixed rates for this policy; default: 0, learned
    remote                 also look up chunks in the shared tier (true)
    part_bytes             longest chunk in bytes, a multiple of 4096; longer rows are stored in parts (64 MiB)
    timeout_s              timeout of a request to the daemon, in seconds (10)
    after_reset            "keep" (default), or "forget": chunks stored before a reset of vLLM's cache are not found (identity.Resets)
    enable_kv_events       report stored chunks as KV events if vLLM publishes KV events (false)
    locality               vLLM's locality in these events: "LOCAL" or "REMOTE" (none)

    Options of vLLM's fs tier are accepted and have no effect (kvcache.engine.former). Raises ValueError for a wrong value, and TypeError
    for an unknown option."""

    medium = MEDIUM

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, *,
                 socket: str | None = None, namespace: str = "vllm", weights: str | None = None, weights_check: str = "samples",
                 ack: str = "accepted",
                 load_policy: str = "auto", prefill_tokens_per_s: float = 0.0, memory_bytes_per_s: float = 0.0,
                 disk_bytes_per_s: float = 0.0, remote_bytes_per_s: float = 0.0, remote: bool = True, part_bytes: int = 64 << 20, timeout_s: float = 10.0,
                 after_reset: str = identity.KEEP,
                 enable_kv_events: bool = False, locality: str | None = None, **others: Any) -> None:
        if backpressure_detector is None:
            super().__init__(offloading_spec, primary_kv_view, tier_type)
        else:
            super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        unknown = sorted(set(others) - set(former.VLLM_FS))
        if unknown:
            raise TypeError(f"{unknown[0]!r} is not an option of the tier 'kvcache'; the vLLM adapter's README.md lists the options")
        former.note(log, "vLLM's fs tier", former.VLLM_FS, others)
        former.note(log, "LMCache", former.LMCACHE_VARIABLES, os.environ)
        if load_policy not in ("auto", "always"):
            raise ValueError(f"load_policy must be 'auto' or 'always', not {load_policy!r}")
        if ack not in ("accepted", "written", "durable"):
            raise ValueError(f"ack must be 'accepted', 'written' or 'durable', not {ack!r}")
        socket, namespace = checks.socket_of("socket", socket), checks.prefix_of("namespace", namespace)
        part_bytes, timeout_s = checks.part_bytes_of("part_bytes", part_bytes), checks.timeout_of("timeout_s", timeout_s)
        rates: dict[str, Any] = {name: checks.rate_of(name, rate) for name, rate in (
            ("prefill_tokens_per_s", prefill_tokens_per_s), ("memory_bytes_per_s", memory_bytes_per_s),
            ("disk_bytes_per_s", disk_bytes_per_s), ("remote_bytes_per_s", remote_bytes_per_s))}
        if not isinstance(remote, bool):
            raise ValueError(f"remote must be true or false, not {remote!r}")
        self._resets = identity.Resets(after_reset)
        try:
            self.locality = vllm_base.Locality(locality) if locality is not None else None
        except ValueError:
            raise ValueError(f"locality must be {' or '.join(repr(one.value) for one in vllm_base.Locality)}, not {locality!r}") from None
        assert primary_kv_view.strides is not None and primary_kv_view.shape is not None
        config = offloading_spec.config
        row_bytes = primary_kv_view.strides[0]
        groups = config.groups
        self._tokens = [g.tokens_per_block * config.cache.blocks_per_chunk for g in groups]
        facts = identity.fields_of(config, row_bytes, part_bytes,
                                   weights or identity.weights_of_engine(config.model.name, weights_check, config))
        fingerprint = identity.compose("vllm", {**facts, **identity.of_engine(config), "chunk": "rows"}, identity.new_start())
        identity.warn(log, fingerprint)
        fields = fingerprint.fields
        names = {g: identity.namespace_name(namespace, fields, g) for g in range(len(groups))}
        self._name = names.get(0, "")
        self._policies = [LoadPolicy(tokens, row_bytes, always=load_policy == "always", **rates) for tokens in self._tokens]
        region = getattr(offloading_spec, "_scheduler_mmap", None)
        self._transfers = Transfers(primary_kv_view, primary_kv_view.shape[0], row_bytes, part_bytes, names, fields, socket=socket,
                                    ack=ack, timeout_s=timeout_s, fd=getattr(region, "fd", None))
        self._shared = SharedTier(names, fields, dict.fromkeys(names, row_bytes), socket=socket, timeout_s=timeout_s,
                                  parts=self._transfers.parts, part_bytes=part_bytes) if remote else None
        self._requests: dict[str, _Request] = {}
        self._loads: dict[int, str] = {}
        self._hints = Hints({i for i, g in enumerate(groups) if getattr(g, "sliding_window_size_in_chunks", None) is None})
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._learned = Learned()
        events = getattr(getattr(offloading_spec, "kv_events_config", None), "enable_kv_cache_events", False)
        self._events: list[OffloadingEvent] | None = [] if enable_kv_events and events else None
        log.info("kvcache uses the namespace %s for %d rows of %d bytes in vLLM's CPU memory; %s", names[0] if names else "-",
                 primary_kv_view.shape[0], row_bytes,
                 "the daemon answers" if self._transfers.well else "nothing is loaded or stored until the daemon answers")

    def __repr__(self) -> str:
        transfers, shared = getattr(self, "_transfers", None), getattr(self, "_shared", None)
        if transfers is None:
            return "<KvcacheTier of nothing>"
        return (f"<KvcacheTier {self._name!r}: {'connected' if transfers.well else 'not connected'}, {len(self._loads)} loads in flight"
                f"{', with the shared tier' if shared is not None else ''}>")

    # --- requests and their lookups ---

    def _count(self, name: str, n: int) -> None:
        self._counts[_PREFIX + name] += n

    def _request(self, context: Any) -> _Request:
        request = self._requests.get(context.req_id)
        if request is None:
            request = self._requests[context.req_id] = self._new_request(context)
        return request

    def _new_request(self, context: Any) -> _Request:
        return _Request(self._hints.begin(context))

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._drop(self._requests.get(req_context.req_id))
        self._requests[req_context.req_id] = self._new_request(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        request = self._requests.pop(req_context.req_id, None)
        self._drop(request)
        self._hints.finish(req_context)

    def _drop(self, request: _Request | None) -> None:
        """Ends the request's searches of the shared tier."""
        if request is not None and self._shared is not None:
            for sought in request.sought.values():
                sought.drop(self._shared)

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        request = self._request(req_context)
        request.asked_at = time.monotonic()
        if request.has_advice:
            self._hints.saw(req_context.req_id, (key,))
        if key in request.failed:
            return LookupResult.MISS
        answer = request.answers.get(key)
        if answer is None:
            answer = self._ask(key, request, req_context)
            if answer is None:
                return LookupResult.RETRY if self._transfers.well else LookupResult.MISS
        return LookupResult.HIT if answer and self._transfers.well else LookupResult.MISS

    def _ask(self, key: bytes, request: _Request, context: Any) -> bool | None:
        """Returns whether a chunk that has no answer yet is to be loaded. Returns None while the shared tier is being searched for it."""
        group = identity.group_of(key)
        sought = request.sought.get(group)
        if sought is not None:
            if not self._seek(group, sought, key, request):
                return None
            if (answer := request.answers.get(key)) is not None:
                return answer
        chain, is_named = self._chain(key, group, request, context)
        tiers = self._where(chain)
        if tiers is None:
            return False
        if self._shared is not None and len(tiers) < len(chain) and self._may_seek(group, request):
            sought, policy = Sought(chain), self._policies[group]
            # If vLLM does not provide the keys of the whole lookup, the search collects the keys that vLLM asks for one by one, beginning
            # with this key. These keys may run backwards from the last chunk of a sliding window.
            if (sought.begin(self._shared, policy, group, tiers, request.search_untils) if is_named and len(chain) > 1
                    else not policy.is_hopeless(REMOTE)):
                request.sought[group] = sought
                return None
        return self._decide(group, chain, tiers, self._worth(group, tiers, len(chain), request), request)

    def _where(self, chain: Sequence[bytes]) -> list[int] | None:
        """Returns the tier of each leading key of the chain that this host has. Returns None if the daemon cannot answer now."""
        where = self._transfers.where(chain)
        if where is None:
            self._count("unavailable", 1)
            return None
        run = where.index(0) if 0 in where else len(where)
        return [MEMORY if t & TIER_MEMORY else DISK for t in where[:run]]

    def _may_seek(self, group: int, request: _Request) -> bool:
        return (self._shared is not None and self._shared.on and not self._transfers.salt and group not in request.declined
                and time.monotonic() < request.search_untils.get(group, math.inf))

    def _seek(self, group: int, sought: Sought, key: bytes, request: _Request) -> bool:
        """Advances the search of a group when vLLM asks for `key` of it. Returns whether the search has ended and its keys have answers."""
        assert self._shared is not None
        if not sought.has_begun:
            if sought.add(key):
                return False
            sought.start_at(key)
        policy, chain = self._policies[group], list(sought.keys)

        def decide(tiers: list[int]) -> int:
            return self._worth(group, tiers, len(chain), request)

        if not sought.has_begun:
            tiers = self._where(chain)
            if tiers is not None and len(tiers) < len(chain) and sought.begin(self._shared, policy, group, tiers, request.search_untils):
                return False
            sought.tiers, sought.worth = tiers or [], decide(tiers or [])
        elif not sought.advance(self._shared, policy, decide):
            return False
        del request.sought[group]
        self._count("failed_fetches", sought.failed)
        request.fetched.update(k for k, t in zip(chain[:sought.worth], sought.tiers) if t == REMOTE)
        self._decide(group, chain, sought.tiers, sought.worth, request)
        return True

    def _decide(self, group: int, chain: Sequence[bytes], tiers: Sequence[int], worth: int, request: _Request) -> bool:
        """Counts and records the answers for a chain: its first `worth` chunks are to be loaded. `tiers`: the tiers of the leading chunks that
        were found. Returns whether the first chunk is to be loaded."""
        found = len(tiers)
        self._count("lookups", len(chain))
        self._count("hits", worth)
        self._count("declined", found - worth)
        if found > worth:
            self._transfers.decline(group, found - worth)
        request.answers.update((k, i < worth) for i, k in enumerate(chain[:found + 1]))
        return worth > 0

    def _worth(self, group: int, tiers: list[int], asked: int, request: _Request) -> int:
        if not tiers or group in request.declined:
            return 0
        policy = self._policies[group]
        queued = self._transfers.queued_bytes
        memory, disk = (0, queued) if self._transfers.queued_from_disk else (queued, 0)
        worth = policy.worth_of(asked, tiers, memory, disk, self._shared.queued_bytes if self._shared is not None else 0,
                                alone=len(self._requests) == 1)
        if worth < len(tiers):
            request.declined.add(group)
        return worth

    def _chain(self, key: bytes, group: int, request: _Request, context: Any) -> tuple[list[bytes], bool]:
        """Returns the key and the keys of its group that vLLM will ask for after it. Also returns whether vLLM provides them, as 0.33 does; if
        not, the list has this key only."""
        positions = getattr(context, "_offload_key_positions", None)
        if not isinstance(positions, dict) or key not in positions:
            return [key], False
        first = positions[key]
        after = sorted((at, k) for k, at in positions.items()
                       if at >= first and identity.group_of(k) == group and k not in request.failed and k not in request.answers)
        if not after or after[0][1] != key:
            return [key], False
        return [k for _, k in after[:MOST_CHAIN]], True

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        self._hints.touched(req_context.req_id, keys)
        request = self._requests.get(req_context.req_id)
        if request is None or request.touched:
            return
        request.touched = True
        self._hints.was_used(req_context.req_id)
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(identity.group_of(key), []).append(key)
        for listed in groups.values():
            self._transfers.touch(listed)

    # --- jobs ---

    def _submit(self, job: Any, is_load: bool) -> None:
        rows = getattr(job, "chunk_ids", None)
        if rows is None:
            rows = job.block_ids
        self._transfers.submit(job.job_id, is_load, job.keys, rows, 0 if is_load else self._cost_us(job))

    def _cost_us(self, job: Any) -> int:
        """Returns the microseconds that prefill of one of the job's chunks takes; 0 if the rate of prefill is unknown."""
        group = identity.group_of(next(iter(job.keys))) if job.keys else len(self._policies)
        if group >= len(self._policies) or not self._policies[group].prefill:
            return 0
        return min(int(1e6 * self._tokens[group] / self._policies[group].prefill), 2**32 - 1)

    def submit_load(self, job_metadata: Any) -> None:
        self._loads[job_metadata.job_id] = job_metadata.req_context.req_id
        self._submit(job_metadata, True)

    def submit_store(self, job_metadata: Any) -> None:
        self._learn_prefill(job_metadata)
        self._hints.saw(job_metadata.req_context.req_id, job_metadata.keys)
        self._hints.stores(job_metadata.req_context.req_id, (job_metadata.job_id,))
        self._submit(job_metadata, False)

    def _learn_prefill(self, job: Any) -> None:
        """Takes the first store after a request's lookup as a sample of the rate of prefill: the engine has computed its tokens since the lookup,
        from the first chunk on that the lookup missed. Chunks before that one may come from vLLM's own prefix cache. A second store is no
        sample, because it may follow in the same step."""
        request = self._requests.get(job.req_context.req_id)
        if request is None or not request.asked_at or not job.keys:
            return
        now, group = time.monotonic(), identity.group_of(next(iter(job.keys)))
        keys = [k for k in job.keys if identity.group_of(k) == group]
        missed = next((i for i, k in enumerate(keys) if request.answers.get(k) is False), len(keys))
        count = len(keys) - missed
        if group < len(self._tokens) and count * self._tokens[group] >= LEAST_PREFILL_TOKENS:
            for policy in self._policies:
                policy.saw_prefill(count * self._tokens[group], now - request.asked_at)
        request.asked_at = 0.0

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        while self._shared is not None and self._shared.fetched:
            fetched = self._shared.fetched.popleft()
            self._policies[fetched.group].saw_fetch(fetched.nbytes, fetched.seconds)
        for report in self._transfers.poll():
            moved = len(report.good) * self._transfers.row_bytes
            if report.is_load:
                self._loaded(report)
            else:
                self._hints.stored((report.job,))
                self._count("stored_bytes", moved)
                self._count("failed_stores", len(report.keys) - len(report.good))
                if self._events is not None and report.good:
                    self._events.append(OffloadingEvent(keys=report.good, medium=self.medium, removed=False,
                                                        locality=self.locality))
            values = {"job_id": report.job, "success": len(report.good) == len(report.keys), "successful_keys": report.good,
                      "transfer_time": report.seconds or None, "transfer_bytes": moved}
            results.append(JobResult(**{k: v for k, v in values.items() if k in _FIELDS}))
        self._hints.used(self._wanted)
        if self._hints.has_work:
            self._hints.send(self._transfers.advise)
        return results

    def _wanted(self, name: str) -> set[bytes]:
        """Returns the keys of the chunks that a request is to load."""
        request = self._requests.get(name)
        return {k for k, is_wanted in request.answers.items() if is_wanted} if request is not None else set()

    def _loaded(self, report: Any) -> None:
        request = self._requests.get(self._loads.pop(report.job, ""))
        fetched = min(report.memory_bytes, self._transfers.row_bytes * len(request.fetched.intersection(report.good))) if request else 0
        self._count("loaded_memory_bytes", report.memory_bytes - fetched)
        self._count("loaded_disk_bytes", report.disk_bytes)
        self._count("loaded_remote_bytes", report.remote_bytes + fetched)
        self._count("failed_loads", len(report.keys) - len(report.good))
        if report.seconds and report.keys and len(report.good) == len(report.keys):
            group = identity.group_of(report.keys[0])
            if not report.remote_bytes:  # a load with chunks from the shared tier, evicted after their lookup, is no sample of memory or disk
                self._policies[group].saw_load(report.memory_bytes, report.disk_bytes, report.seconds, report.least_s)
        if request is not None and len(report.good) < len(report.keys):
            # vLLM before 0.28 discards all keys of a job that failed in part, and looks up each of them again.
            request.failed.update(set(report.keys) - set(report.good))

    def has_pending_work(self) -> bool:
        return self._transfers.pending > 0 or self._hints.has_work

    def drain_jobs(self) -> None:
        """Waits until all jobs have ended, and applies the option after_reset. vLLM calls this method before it resets its cache."""
        self._transfers.drain()
        if not self._resets.reset():
            return
        self._transfers.salt = self._resets.salt
        for request in self._requests.values():
            self._drop(request)
            request.forget()

    def shutdown(self) -> None:
        if self._shared is not None:
            self._shared.close()
        self._transfers.close()

    # --- events and metrics ---

    def take_events(self) -> Iterable[OffloadingEvent]:
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        counters = {name: vllm_base.OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}
        return {**counters, **{_PREFIX + name: vllm_base.OffloadingGaugeMetadata(documentation=text) for name, text in GAUGES.items()}}

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        for name, count in self._hints.take_counts().items():
            self._count(name, count)
        for name, count in self._counts.items():
            if count:
                stats.increase_counter(name, count)
                self._counts[name] = 0
        gauges = self._learned.gauges(self._policies[0] if self._policies else None, float(self._transfers.well))
        for name, value in gauges.items():
            stats.set_gauge(_PREFIX + name, value)
        return stats
