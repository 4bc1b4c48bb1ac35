# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of the spec (spec.py): lookups, and leases on found chunks from the lookup until all ranks have loaded them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import LookupResult, OffloadingManager, PrepareStoreOutput, RequestOffloadingContext

from .. import TIER_MEMORY, TIER_REMOTE
from . import canary, delivery, hints, hooks, identity, watchdog, windows
from .canary import Canary
from .chunks import KvcacheLoadStoreSpec
from .hints import Hints
from .learned import Learned
from .policy import DISK, MEMORY, REMOTE, LoadPolicy
from .promises import Held, LoadsUnderWay, Promises
from .ranks import Ranks
from .shards import Shard
from .shared import SharedTier, Sought
from .watchdog import Watchdog, timed, timed_store

if TYPE_CHECKING:
    from .spec import KvcacheOffloadingSpec

log = logging.getLogger("kvcache.vllm")

LEAST_PREFILL_TOKENS = 256
MOST_CHAIN = 4096
PREFIX = "vllm:kv_offload_kvcache_"
COUNTERS = {
    "lookups": "Chunks that were looked up in kvcache-daemon.",
    "hits": "Chunks that were found there, are worth loading, and were leased.",
    "partial_hits": "Chunks of which kvcache-daemon had some shards and not all, among those that were looked up.",
    "declined": "Chunks that were found there, and not loaded since computing them is faster.",
    "unavailable": "Chunks that were not looked up since the daemon did not answer.",
    "stored_bytes": "Bytes that the daemon took.",
    "loaded_memory_bytes": "Bytes loaded from the daemon's memory.",
    "loaded_disk_bytes": "Bytes that were read from the daemon's disk to be loaded.",
    "loaded_remote_bytes": "Bytes loaded that came from the tier that hosts share.",
    "failed_stores": "Chunks that were not stored.",
    "store_wait_seconds": "Seconds that the engine has waited for stores whose blocks it needed.",
    "failed_loads": "Chunks that were found and could not be leased: computed instead.",
    "lease_waits": "Chunks whose leases waited until those of other requests ended (limits.leased_bytes).",
    "failed_fetches": "Chunks that the tier that hosts share did not give in time: computed instead.",
    "rescued_loads": "Blocks that were copied one by one since the daemon's memory was not registered with the GPU.",
    **hints.COUNTERS,
    **canary.COUNTERS,
    **watchdog.COUNTERS,
}


class _Request:
    __slots__ = ("answers", "ready", "declined", "gathered", "was_gathered", "computes", "sought", "search_untils", "fetched", "withheld",
                 "has_parents", "missed", "offered")

    def __init__(self) -> None:
        self.computes = False  # all new chunks that it offers for storing are computed in the same step
        self.missed: dict[int, tuple[int, bytes]] = {}  # by group: the latest chunk that was answered to be absent, and the step
        self.offered: set[bytes] = set()  # vLLM offers them again after a preemption, computed or not
        self.withheld: set[bytes] = set()  # stored chunks that the canary makes it compute
        self.has_parents: set[int] = set()  # groups of which it has loaded or offered chunks
        self.forget()

    def forget(self) -> None:
        """Forgets the answers, because vLLM asks for another run next, or again for the run that was loaded."""
        self.answers: dict[bytes, bool] = {}  # whether each is worth loading
        self.ready: set[bytes] = set()  # leased keys: vLLM asks again in each step in which it has no room for the request
        self.declined: set[int] = set()
        self.gathered: dict[int, dict[bytes, int | None]] = {}  # by group: keys to be looked up together, with the tiers of the first one
        self.was_gathered: set[int] = set()
        self.sought: dict[int, Sought] = {}  # by group: the search in the shared tier
        self.search_untils: dict[int, float] = {}  # by group: the time until which it may wait for a search
        self.fetched: set[bytes] = set()  # keys that were fetched from the shared tier


class KvcacheManager(OffloadingManager):  # type: ignore[misc]
    """Implements vLLM's OffloadingManager: answers which chunks are found, and prepares loads and stores."""

    def __init__(self, spec: KvcacheOffloadingSpec) -> None:
        self._spec = spec
        self._ranks = Ranks(spec.config.engine_id, spec.world_size, spec.common)
        self._promises: Promises | None = None
        self._shared: SharedTier | None = None
        self._canary: Canary | None = None  # the worker's canary, if the worker is in this process
        self._variant = 0  # number of the namespaces in use
        self._resets = spec.resets
        self._loads = LoadsUnderWay()
        self._policies: dict[int, LoadPolicy] = {}  # by group
        self._chunk_bytes: Mapping[int, int] = {}  # all shards together
        self._requests: dict[str, _Request] = {}
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._step = 0
        self._hints = Hints({number for number, g in zip(spec.tokens, spec.config.groups)
                             if getattr(g, "sliding_window_size_in_chunks", None) is None})
        self._learned = Learned()
        self._watchdog = Watchdog(spec.store_policy == "auto")
        self.spent = self._watchdog.spent
        if spec.world_size > 1:
            delivery.discard(spec.config.engine_id, spec.world_size)

    def _ready(self) -> Promises | None:
        if not self._ranks.join():
            return None
        if self._promises is None:
            self._serve()
        return self._promises

    def _serve(self) -> None:
        """Starts to serve, after all ranks have published their shards."""
        spec, self._chunk_bytes = self._spec, self._ranks.chunk_bytes()
        if self._ranks.has_scheduler:
            self._canary = canary.here.get(str(spec.config.engine_id))
        self._variant = self._ranks.variant
        self._promises = Promises(self._shards(), socket=spec.socket, timeout_s=spec.timeout_s, serves=self._serves)
        self._promises.salt = self._resets.salt
        if spec.remote and all(len(shards) == 1 for shards in self._ranks.shards.values()):
            fields = next(iter(self._ranks.shards.values()))[0].fields
            self._shared = SharedTier(self._names(), fields, self._chunk_bytes, socket=spec.socket, timeout_s=spec.timeout_s)
        elif spec.remote:
            log.info("an engine whose chunks have shards does not look for chunks in the shared tier: what this host has is found")
        self._policies = {g: LoadPolicy(tokens, self._chunk_bytes[g], by_way_of_memory=True, **spec.policy)
                          for g, tokens in spec.tokens.items() if g in self._chunk_bytes}

    def _shards(self) -> dict[int, list[Shard]]:
        """Returns the shards, with the names of the namespaces in use."""
        return {g: [s._replace(name=canary.named(s.name, self._variant)) for s in shards] for g, shards in self._ranks.shards.items()}

    def _names(self) -> dict[int, str]:
        """Returns the namespace of each group, for engines whose groups have one shard each."""
        return {g: shards[0].name for g, shards in self._shards().items()}

    def _serves(self, pool: int) -> bool:
        """Returns whether all ranks can load from this pool and keep it registered."""
        assert self._promises is not None
        return self._ranks.use({*self._promises.pools(), pool}) and self._ranks.serves(pool)

    # --- lookups ---

    @timed
    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._drop(self._requests.get(req_context.req_id))
        self._requests[req_context.req_id] = _Request()
        self._hints.begin(req_context)
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        request = self._requests.get(req_context.req_id)
        if request is not None and key in request.ready:
            return LookupResult.HIT
        result = self._lookup(key, req_context, request)
        if result is LookupResult.HIT_PENDING:
            self._watchdog.waits()
        return result

    @timed
    def _lookup(self, key: bytes, req_context: Any, request: _Request | None) -> LookupResult:
        promises, name = self._ready(), req_context.req_id
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
            return self._missed(key, request)
        state = promises.state(name, key)
        if state is None:
            return LookupResult.HIT_PENDING
        if not state:
            self._counts["failed_loads"] += 1
            request.answers[key] = False
            return self._missed(key, request)
        request.ready.update(promises.leased(name))
        return LookupResult.HIT

    def _missed(self, key: bytes, request: _Request) -> LookupResult:
        request.computes = False
        request.missed[identity.group_of(key)] = self._step, key
        return LookupResult.MISS

    def _ask(self, promises: Promises, key: bytes, request: _Request, context: Any) -> bool | None:
        """Returns whether a chunk is worth loading; None: the answer follows at the end of the step.

        If vLLM does not say which keys it will ask for next, only the first stored chunk is looked up alone. The keys that follow it in the
        step are collected, and are looked up and decided together."""
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
        window = getattr(context, hooks.WINDOW, None)
        if isinstance(window, windows.Window) and key in window.keys:
            return self._ask_window(promises, key, group, window, request, context.req_id)
        is_tail = self._is_tail(key, group, context)
        chain = [key] if is_tail else self._chain(key, group, request, context)
        where = promises.where(chain)
        if where is None:
            self._counts["unavailable"] += 1
            request.answers[key] = False
            return False
        if is_tail:
            return self._take(promises, group, chain if where[0] else [], chain, _tiers_of(where), request, context.req_id)
        may_gather = not where[0] or group not in request.was_gathered  # gathered again after a search in the shared tier
        if len(chain) == 1 and may_gather and not self._is_hopeless(group, where[0], request):
            request.gathered[group] = {key: where[0]}
            return None
        if self._begin(group, chain, _tiers_of(where), request):
            return None
        return self._decided(promises, group, chain, _tiers_of(where), request, context.req_id)

    def _decided(self, promises: Promises, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request, name: str,
                 worth: int | None = None) -> bool:
        """Decides as _decide() does, and requests leases at once if all the chunks are in memory. Returns whether any is worth loading."""
        worth, in_memory = self._decide(promises, group, chain, tiers, request, name, worth)
        if in_memory and len(chain) > 1:
            promises.ask(name)
        return worth > 0

    # --- windows and states ---

    def _ask_window(self, promises: Promises, key: bytes, group: int, window: windows.Window, request: _Request, name: str) -> bool | None:
        """Answers as _ask() does, for a group whose last chunks alone are needed: all of a run is loaded, or nothing. Loading it saves the
        computation of all that precedes it, so there is no policy. If this host lacks the run, the chunks at the end are looked for in the
        shared tier."""
        found = windows.search(window, request.answers, promises.where)
        if found is None:
            self._counts["unavailable"] += 1
            request.answers[key] = False
            return False
        first, end, known = found
        at = window.keys.index(key)
        if not first <= at < end and self._seek_window(group, window, at, known, request):
            return None
        run = [i for i in range(first, end) if window.keys[i] not in request.answers]
        behind = [window.keys[i] for i in known if i >= first and i not in run]
        tiers = _tiers_of(bytes(known[i] for i in run))
        return self._take(promises, group, [window.keys[i] for i in run], behind, tiers, request, name, key)

    def _seek_window(self, group: int, window: windows.Window, at: int, known: Mapping[int, int], request: _Request) -> bool:
        """Begins a search in the shared tier for the chunks of a window that ends at a key. Returns whether it has begun."""
        need = window.first_size if at == len(window.keys) - 1 else window.size
        listed = range(at, max(-1, at - need), -1)
        if any(window.keys[i] in request.answers or i not in known for i in listed):
            return False
        return self._begin(group, [window.keys[i] for i in listed], _tiers_of(bytes(known[i] for i in listed)), request)

    def _take(self, promises: Promises, group: int, keys: Sequence[bytes], others: Sequence[bytes], tiers: list[int], request: _Request,
              name: str, asked: bytes | None = None) -> bool:
        """Leases these chunks, all or none, and answers that the others are not there. Returns the answer for `asked`, by default the first of
        the others."""
        self._counts["lookups"] += len(keys) + len(set(others) - set(keys))
        request.answers.update(dict.fromkeys(others, False))
        is_given = len(keys) > 0 and self._loadable(group, keys, request) == len(keys)
        request.answers.update(dict.fromkeys(keys, is_given))
        if is_given:
            self._counts["hits"] += len(keys)
            promises.want(name, keys, [t == DISK for t in tiers[:len(keys)]])
            if DISK not in tiers[:len(keys)]:
                promises.ask(name)
        return request.answers.get(others[0] if asked is None else asked, False)

    def _is_tail(self, key: bytes, group: int, context: Any) -> bool:
        """Returns whether a key is that of a partly filled block at the end of a prefix. No chunk follows it."""
        positions = getattr(context, "_offload_key_positions", None)
        return isinstance(positions, dict) and positions.get(key, 0) % self._spec.tokens.get(group, 1) != 0

    # --- chunks of the shared tier ---

    def _may_seek(self, group: int, request: _Request) -> bool:
        return (self._shared is not None and self._shared.on and not self._resets.salt and group not in request.declined
                and time.monotonic() < request.search_untils.get(group, math.inf))

    def _begin(self, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request) -> bool:
        """Begins a search in the shared tier for the chunks that this host lacks. Returns whether it has begun."""
        if self._shared is None or len(tiers) == len(chain) or not self._may_seek(group, request):
            return False
        sought = Sought(chain)
        if sought.begin(self._shared, self._policies[group], group, tiers, request.search_untils):
            request.sought[group] = sought
        return sought.has_begun

    def _seek(self, promises: Promises, group: int, sought: Sought, request: _Request, name: str) -> bool:
        """Advances a search, in each step in which a key of the group is asked for. Returns whether it has ended, with answers."""
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
        """Looks up the collected keys, at the end of a step."""
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
        """Decides how many leading chunks to load, and requests leases on them. Returns their number, and whether all are in memory. `tiers`:
        those of the found chunks; fetched chunks are in memory."""
        self._counts["lookups"] += len(chain)
        run = len(tiers)
        if worth is None:
            worth = self._worth(promises, group, tiers, len(chain), request)
        self._counts["declined"] += run - worth
        worth = self._loadable(group, chain[:worth], request)
        self._counts["hits"] += worth
        request.answers.update(dict.fromkeys(chain[:worth], True))
        request.answers.update(dict.fromkeys(chain[worth:run + 1], False))
        promises.want(name, chain[:worth], [t == DISK for t in tiers[:worth]])
        return worth, DISK not in tiers[:worth]

    def _loadable(self, group: int, keys: Sequence[bytes], request: _Request) -> int:
        """Returns how many leading chunks the canary permits to be loaded. The engine computes the others."""
        n = self._canary.loadable(group, keys, self._variant) if self._canary is not None and not self._resets.salt else len(keys)
        request.withheld.update(keys[n:])
        if n:
            request.has_parents.add(group)
        return n

    @property
    def _comparing(self) -> Canary | None:
        """The canary, if it compares chunks. It does not compare those with a salt, since they are this engine's own."""
        return self._canary if self._canary is not None and self._canary.mode != canary.OFF and not self._resets.salt else None

    def _choose(self, keys: list[bytes], where: bytes, request: _Request | None, context: Any) -> bytes | None:
        """Returns the chunk that the canary compares, of a group's chunks that are computed now. None: it compares none of them."""
        comparing = self._comparing
        if request is None or comparing is None:
            return None
        group = identity.group_of(keys[0])
        if any(self._is_tail(key, group, context) for key in keys):  # no chunk after the prefix is computed
            return None
        chosen = comparing.choose(keys, where, request.withheld, group in request.has_parents)
        request.has_parents.add(group)
        return chosen

    def _follow(self) -> None:
        """Uses the namespaces that the canary has moved to."""
        if self._promises is None or self._ranks.variant == self._variant:
            return
        self._variant = self._ranks.variant
        self._forget()
        self._promises.rename(self._shards())
        if self._shared is not None:
            self._shared.rename(self._names())

    def _worth(self, promises: Promises, group: int, tiers: list[int], asked: int, request: _Request) -> int:
        if not tiers or group in request.declined:
            return 0
        policy = self._policies[group]
        worth = policy.worth_of(asked, tiers, promises.asked_bytes + self._loads.nbytes, promises.asked_disk_bytes,
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

    @timed
    def prepare_load(self, keys: Collection[Any], req_context: Any) -> KvcacheLoadStoreSpec:
        assert self._promises is not None
        name = req_context.req_id
        self._hints.saw(name, keys)
        held = [self._promises.held(name, k) for k in keys]
        request = self._requests.get(name)
        fetched = request.fetched if request is not None else set()
        groups, moved = identity.by_group(keys), 0
        are_alike = not fetched and len({one.tiers for one in held}) == 1
        for group, listed in groups.items():
            if are_alike:
                tiers = {_tier_name(held[0].tiers): len(listed)}
            else:
                tiers = Counter("remote" if k in fetched else _tier_name(self._promises.held(name, k).tiers) for k in listed)
            for tier, n in tiers.items():
                self._counts[f"loaded_{tier}_bytes"] += n * self._chunk_bytes[group]
            moved += len(listed) * self._chunk_bytes[group]
        number = self._loads.begin(name, held, moved)
        self._watchdog.loads(max((len(listed) * self._spec.tokens[g] for g, listed in groups.items()), default=0), self._prefill())
        return KvcacheLoadStoreSpec.of_load(number, held[0].pool if held else 0, self._offsets(keys, held))

    def _prefill(self) -> float:
        """Returns the rate of prefill in tokens per second; 0: unknown."""
        return next((p.prefill for p in self._policies.values()), 0.0)

    def _offsets(self, keys: Collection[bytes], held: Sequence[Held]) -> list[list[int]]:
        """Returns the offsets of the chunks in the pool, by rank."""
        if self._ranks.world_size == 1:
            return [[one.offsets[0] for one in held]]
        owned = [self._ranks.owned[identity.group_of(k)] for k in keys]
        return [[one.offsets[of_group[rank]] for one, of_group in zip(held, owned)] for rank in range(self._ranks.world_size)]

    @timed
    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        self._loads.complete(req_context.req_id)
        request = self._requests.get(req_context.req_id)
        if request is not None:
            self._drop(request)
            request.forget()
            request.computes = True
        if self._promises is not None:
            self._promises.release(req_context.req_id)

    @timed_store
    def prepare_store(self, keys: Collection[Any], req_context: Any) -> PrepareStoreOutput:
        """Returns the chunks that lack a shard. While the daemon does not answer, returns none, which vLLM takes for stored chunks."""
        promises = self._ready()
        groups = identity.by_group(keys)
        self._hints.saw(req_context.req_id, keys)
        self._watchdog.offered(len(keys) > len(groups))
        pauses = self._watchdog.stores_pause
        if promises is None or pauses and self._comparing is None:
            self._watchdog.left_out(len(keys) if promises is not None else 0)
            return PrepareStoreOutput(keys_to_store=[], store_spec=KvcacheLoadStoreSpec.of_store([]), evicted_keys=[])
        missing: dict[bytes, bytes] = {}  # the tiers of each shard
        checks: set[bytes] = set()
        for listed in groups.values():
            by_shard = promises.where_by_shard(listed)
            if by_shard is not None and len(by_shard) == 1:
                where = by_shard[0]
                missing.update(dict.fromkeys((k for k, tiers in zip(listed, where) if not tiers), b"\0"))
            else:
                of_keys = [bytes(of_key) for of_key in zip(*by_shard)] if by_shard is not None else []
                missing.update((k, tiers) for k, tiers in zip(listed, of_keys) if 0 in tiers)
                where = bytes(0 if 0 in tiers else tiers[0] for tiers in of_keys)
            if (chosen := self._choose(listed, where, self._requests.get(req_context.req_id), req_context)) is not None:
                checks.add(chosen)
        if pauses:
            self._watchdog.left_out(len(missing))
            missing = {}
        new = [k for k in keys if k in missing or k in checks]
        self._watchdog.begins_store(len(new))
        self._hints.stores(req_context.req_id, new)
        spec = KvcacheLoadStoreSpec.of_store(new, self._present(new, missing), self._computed_now(groups, req_context), checks,
                                              self._resets.salt)
        return PrepareStoreOutput(keys_to_store=new, store_spec=spec, evicted_keys=[])

    def _present(self, keys: Sequence[bytes], missing: Mapping[bytes, bytes]) -> list[list[bool]]:
        """Returns by rank whether its shard of each of these chunks is stored. Empty if no shard is."""
        if self._ranks.world_size == 1 or not any(map(any, missing.values())):
            return []
        owned = [self._ranks.owned[identity.group_of(k)] for k in keys]
        return [[k in missing and missing[k][of_group[rank]] != 0 for k, of_group in zip(keys, owned)]
                for rank in range(self._ranks.world_size)]

    def _computed_now(self, groups: dict[int, list[bytes]], context: Any) -> int:
        """Returns the number of tokens of these chunks that the step being scheduled computes; 0: too few, or unknown. vLLM also offers chunks
        of its own prefix cache. So the computed ones begin at the first that the lookup of the same step missed, and were not offered before:
        an older answer may be about chunks that another request has computed since."""
        request = self._requests.get(context.req_id)
        if request is None:
            return 0
        most = 0
        for group, keys in groups.items():
            step, missed = request.missed.get(group, (-1, b""))
            if request.computes:
                at = 0
            elif step == self._step and missed in keys:
                at = keys.index(missed)
            else:
                at = len(keys)
            most = max(most, sum(k not in request.offered for k in keys[at:]) * self._spec.tokens.get(group, 0))
            request.offered.update(keys)
        request.computes = request.computes or most > 0
        return most if most >= LEAST_PREFILL_TOKENS else 0

    def complete_store(self, keys: Collection[Any], *context: Any, **options: Any) -> None:  # versions differ in what they pass
        self._watchdog.ends_store(len(keys))
        self._hints.stored(keys)

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Does not mark the chunks as used, because their lookup did. Advice needs the chunks that vLLM has in its own prefix cache, too."""
        self._hints.touched(req_context.req_id, keys)

    @timed
    def on_request_finished(self, req_context: Any) -> None:
        request = self._requests.pop(req_context.req_id, None)
        self._drop(request)
        self._hints.finish(req_context)
        if self._promises is not None:
            self._promises.release(req_context.req_id)  # a load under way holds its own references

    def _drop(self, request: _Request | None) -> None:
        """Drops the searches of a request in the shared tier."""
        if request is not None and self._shared is not None:
            for sought in request.sought.values():
                sought.drop(self._shared)

    def on_schedule_end(self, context: Any) -> None:
        self._end_step()
        self._step += 1
        self._watchdog.end_step(len(self._requests))

    @timed
    def _end_step(self) -> None:
        if not self._ranks.look() or self._promises is None:
            self._loads.sweep(self._ranks.ended_below)
            self._hints.drop()
            return
        for name, request in self._requests.items():
            if request.gathered:
                self._gathered(self._promises, name, request)
        self._follow()
        self._loads.sweep(self._ranks.ended_below)
        self._promises.flush()
        if self._hints.has_work and not self._promises.advising:
            self._hints.send(self._promises.advise, lambda group: len(self._ranks.shards.get(group, ())))
        for read in self._promises.reads:
            self._policies[read.group].saw_read(read.nbytes, read.least_s, read.most_s)
        self._promises.reads.clear()
        self._ranks.use(self._promises.pools())
        while self._shared is not None and self._shared.fetched:
            fetched = self._shared.fetched.popleft()
            self._policies[fetched.group].saw_fetch(fetched.nbytes, fetched.seconds)
        for nbytes, seconds in self._ranks.loads():  # reads from disk ended before, and are counted there
            for policy in self._policies.values():
                policy.saw_load(nbytes, 0, seconds)
            self._watchdog.copied(seconds / self._ranks.world_size)
        for tokens, seconds in self._ranks.prefills():
            for policy in self._policies.values():
                policy.saw_prefill(tokens, seconds)
        self._count_ranks()

    def _count_ranks(self) -> None:
        """Adds the ranks' counters to its own. Ranks spend their seconds concurrently, so the mean counts."""
        counts, ranks = dict(self._ranks.counted()), self._ranks.world_size
        self._counts["store_wait_seconds"] += counts.pop("store_wait_us", 0) / 1e6 / ranks
        self._watchdog.rank_spent(counts.pop("call_us", 0) / 1e6 / ranks, counts.pop("store_call_us", 0) / 1e6 / ranks)
        for name, count in counts.items():
            self._counts[name] += count

    def has_pending_work(self) -> bool:
        self._loads.sweep(self._ranks.ended_below)
        return bool(self._loads) or (self._promises is not None and (self._promises.pending or self._hints.has_work))

    def reset_cache(self) -> None:
        """Chunks stay in the daemon. Whether this engine finds them after that, the option after_reset says."""
        if self._resets.reset() and self._promises is not None:
            self._promises.salt = self._resets.salt
        self._forget()

    def _forget(self) -> None:
        """Forgets what was found. Promised chunks are looked up again. Loads under way keep their leases."""
        self._loads.reset()
        self._watchdog.reset()
        self._hints.reset()
        for name, request in self._requests.items():
            self._drop(request)
            request.forget()
            if self._promises is not None:
                self._promises.release(name)

    def shutdown(self) -> None:
        self._ranks.close()
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        if self._promises is not None:
            self._promises.close()
            self._promises = None

    # --- metrics ---

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        self._count_ranks()
        for name, seconds in self._watchdog.take_counts().items():
            self._counts[name] += seconds
        for name, count in self._hints.take_counts().items():
            self._counts[name] += count
        for name, count in self._canary.take_counts().items() if self._canary is not None else ():
            self._counts[name] += count
        if self._promises is not None:
            self._counts["partial_hits"] += self._promises.partial_hits
            self._counts["lease_waits"] += self._promises.lease_waits
            self._promises.partial_hits = self._promises.lease_waits = 0
        for name, total in self._counts.items():
            if total:
                stats.increase_counter(PREFIX + name, total)
                self._counts[name] = 0
        up = float(self._promises is not None and self._promises.well)
        for name, value in self._learned.gauges(next(iter(self._policies.values()), None), up).items():
            stats.set_gauge(PREFIX + name, value)
        for name, value in self._watchdog.take_gauges().items():
            stats.set_gauge(PREFIX + name, value)
        return stats


def _tier_name(tiers: int) -> str:
    return "remote" if tiers & TIER_REMOTE else "memory" if tiers & TIER_MEMORY else "disk"


def _tiers_of(where: bytes) -> list[int]:
    """Returns the tiers of the leading chunks that this host has."""
    run = where.index(0) if 0 in where else len(where)
    return [MEMORY if t & TIER_MEMORY else DISK for t in where[:run]]
