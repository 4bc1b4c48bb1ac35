# SPDX-License-Identifier: Apache-2.0
"""The manager of the offloading spec (spec.py), vLLM's OffloadingManager in the scheduler's process.

vLLM calls the manager on the scheduler's thread, in every step of the engine. The manager answers which chunks of a request are to be
loaded: the chunks that the daemon has, that are worth loading (policy.py) and that it could lease (promises.py). It keeps the leases
from the lookup until all ranks have loaded the chunks. Chunks that are offered for storing are stored unless the daemon has them. While the
daemon does not answer or a rank does not take part, every lookup is a miss and nothing is stored.
"""

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

LEAST_PREFILL_TOKENS = 256  # tokens below which a store is no sample of prefill
MOST_CHAIN = 4096  # most keys that are looked up together from a list that vLLM or a wrapper provides
PREFIX = "vllm:kv_offload_kvcache_"
COUNTERS = {
    "lookups": "Chunks that were looked up in kvcache-daemon.",
    "hits": "Chunks that were found there, are worth loading, and were leased.",
    "partial_hits": "Chunks that were looked up and of which kvcache-daemon had some shards, but not all.",
    "declined": "Chunks that were found there and not loaded, because computing them is faster.",
    "unavailable": "Chunks that were not looked up, because the daemon did not answer.",
    "stored_bytes": "Bytes that were stored in the daemon.",
    "loaded_memory_bytes": "Bytes loaded from the daemon's memory.",
    "loaded_disk_bytes": "Bytes that were read from the daemon's disk to be loaded.",
    "loaded_remote_bytes": "Bytes loaded that came from the shared tier.",
    "failed_stores": "Chunks that vLLM asked to store and that were not stored.",
    "store_wait_seconds": "Seconds that the engine has waited for stores whose blocks it needed.",
    "failed_loads": "Chunks that were found and could not be leased; the engine computed them instead.",
    "lease_waits": "Chunks whose leases waited until leases of other requests ended (limits.leased_bytes).",
    "failed_fetches": "Chunks that the shared tier did not deliver in time; the engine computed them instead.",
    "rescued_loads": "Blocks that were copied one by one, because the daemon's memory was not registered with the GPU.",
    **hints.COUNTERS,
    **canary.COUNTERS,
    **watchdog.COUNTERS,
}


class _Request:
    """A request of vLLM, with the answers that it was given and the state of its lookups."""

    __slots__ = ("answers", "ready", "declined", "gathered", "was_gathered", "computes", "sought", "search_untils", "fetched", "withheld",
                 "has_parents", "missed", "offered")

    def __init__(self) -> None:
        self.computes = False  # each chunk that the request newly offers for storing is computed in the step that offers it
        self.missed: dict[int, tuple[int, bytes]] = {}  # by group, the step and the key of the latest lookup that was a miss
        self.offered: set[bytes] = set()  # keys offered for storing; vLLM offers them again after a preemption, even without computing them again
        self.withheld: set[bytes] = set()  # keys of stored chunks that the canary did not let the request load
        self.has_parents: set[int] = set()  # groups of which the request has loaded or offered chunks
        self.forget()

    def forget(self) -> None:
        """Forgets the answers, because vLLM looks up other chunks next, or the loaded chunks again."""
        self.answers: dict[bytes, bool] = {}  # by key, whether the chunk is to be loaded
        self.ready: set[bytes] = set()  # keys of leased chunks; vLLM repeats the lookup in each step until it has room for the request
        self.declined: set[int] = set()  # groups of which the policy has declined chunks; no further chunks of these are loaded
        self.gathered: dict[int, dict[bytes, int | None]] = {}  # by group, keys to look up together: the first with its tiers, the others with None
        self.was_gathered: set[int] = set()  # groups whose keys were looked up together before
        self.sought: dict[int, Sought] = {}  # by group, the unfinished search of the shared tier
        self.search_untils: dict[int, float] = {}  # by group, the time.monotonic() until which the request may wait for searches
        self.fetched: set[bytes] = set()  # keys of chunks that a search fetched from the shared tier to this host's memory


class KvcacheManager(OffloadingManager):  # type: ignore[misc]
    """Implements vLLM's OffloadingManager: answers lookups, and prepares the loads and stores that the workers carry out."""

    def __init__(self, spec: KvcacheOffloadingSpec) -> None:
        self._spec = spec
        self._ranks = Ranks(spec.config.engine_id, spec.world_size, spec.common)
        self._promises: Promises | None = None
        self._shared: SharedTier | None = None
        self._canary: Canary | None = None  # the worker's canary if the worker is in this process, else None
        self._variant = 0  # number of the namespaces' variant in use (kvcache.engine.verification)
        self._resets = spec.resets
        self._loads = LoadsUnderWay()
        self._policies: dict[int, LoadPolicy] = {}  # by group, its load policy; empty until all ranks take part
        self._chunk_bytes: Mapping[int, int] = {}  # by group, bytes of a chunk in all its shards
        self._requests: dict[str, _Request] = {}
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._step = 0  # number of schedules that have ended
        self._looked_up = -1  # the value of `_step` at the latest lookup
        self._stores_then_ends = False  # vLLM offers a step's chunks for storing before it calls on_schedule_end(); versions before 0.33 do it after
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
        """Connects to the daemon with the namespaces that the ranks use. Called once, when all ranks have described them in the engine's page."""
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
            log.info("chunks of this engine are divided into shards, so it finds chunks of this host only and does not search the shared tier")
        self._policies = {g: LoadPolicy(tokens, self._chunk_bytes[g], by_way_of_memory=True, **spec.policy)
                          for g, tokens in spec.tokens.items() if g in self._chunk_bytes}

    def _shards(self) -> dict[int, list[Shard]]:
        """Returns by group the shards of a chunk, with the names of the namespaces' variant in use."""
        return {g: [s._replace(name=canary.named(s.name, self._variant)) for s in shards] for g, shards in self._ranks.shards.items()}

    def _names(self) -> dict[int, str]:
        """Returns the namespace of each group, for engines whose groups have one shard each."""
        return {g: shards[0].name for g, shards in self._shards().items()}

    def _serves(self, pool: int) -> bool:
        """Lists the pool in the engine's page as in use, so that the ranks keep it registered. Returns whether this succeeded and all ranks
        can load from the pool."""
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
        self._looked_up = self._step
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
        """Returns whether a chunk is to be loaded. Returns None if the answer is not known yet; vLLM asks again in the next step.

        If vLLM does not provide the keys of the whole lookup, the first chunk is looked up alone. The keys that vLLM asks for after it in
        the same step are collected and looked up together at the end of the step, and one decision of the policy applies to all of them."""
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
        may_gather = not where[0] or group not in request.was_gathered  # keys are collected again only if this host lacks the first one
        if len(chain) == 1 and may_gather and not self._is_hopeless(group, where[0], request):
            request.gathered[group] = {key: where[0]}
            return None
        if self._begin(group, chain, _tiers_of(where), request):
            return None
        return self._decided(promises, group, chain, _tiers_of(where), request, context.req_id)

    def _decided(self, promises: Promises, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request, name: str,
                 worth: int | None = None) -> bool:
        """Decides as _decide() does. If there are several chunks and all that are to be loaded are in memory, requests their leases at once
        instead of at the end of the step. Returns whether any chunk is to be loaded."""
        worth, in_memory = self._decide(promises, group, chain, tiers, request, name, worth)
        if in_memory and len(chain) > 1:
            promises.ask(name)
        return worth > 0

    # --- lookups of sliding windows and of states (windows.py) ---

    def _ask_window(self, promises: Promises, key: bytes, group: int, window: windows.Window, request: _Request, name: str) -> bool | None:
        """Answers as _ask() does, for a group of which only the last chunks are needed: a whole run of that many chunks is loaded, or nothing.
        Loading the run saves the computation of all tokens before it, so no policy is asked. If this host lacks the run, the shared tier is
        searched for the chunks at the end."""
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
        """Begins a search of the shared tier for the chunks of a window that ends at the key `at`. Returns whether a search has begun."""
        need = window.first_size if at == len(window.keys) - 1 else window.size
        listed = range(at, max(-1, at - need), -1)
        if any(window.keys[i] in request.answers or i not in known for i in listed):
            return False
        return self._begin(group, [window.keys[i] for i in listed], _tiers_of(bytes(known[i] for i in listed)), request)

    def _take(self, promises: Promises, group: int, keys: Sequence[bytes], others: Sequence[bytes], tiers: list[int], request: _Request,
              name: str, asked: bytes | None = None) -> bool:
        """Requests leases on the chunks `keys`, if all of them may be loaded, and records that the chunks `others` are misses. Returns the answer
        for the key `asked`, by default the first key of `others`."""
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
        """Returns whether a key belongs to a partly filled block at the end of a prefix, so that no chunk follows."""
        positions = getattr(context, "_offload_key_positions", None)
        return isinstance(positions, dict) and positions.get(key, 0) % self._spec.tokens.get(group, 1) != 0

    # --- searches of the shared tier ---

    def _may_seek(self, group: int, request: _Request) -> bool:
        return (self._shared is not None and self._shared.on and not self._resets.salt and group not in request.declined
                and time.monotonic() < request.search_untils.get(group, math.inf))

    def _begin(self, group: int, chain: Sequence[bytes], tiers: list[int], request: _Request) -> bool:
        """Begins a search of the shared tier for the chunks that this host lacks. Returns whether a search has begun."""
        if self._shared is None or len(tiers) == len(chain) or not self._may_seek(group, request):
            return False
        sought = Sought(chain)
        if sought.begin(self._shared, self._policies[group], group, tiers, request.search_untils):
            request.sought[group] = sought
        return sought.has_begun

    def _seek(self, promises: Promises, group: int, sought: Sought, request: _Request, name: str) -> bool:
        """Advances the search of a group when vLLM asks for a key of it. Returns whether the search has ended and its keys have answers."""
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

    # --- which chunks are worth loading ---

    def _is_hopeless(self, group: int, tiers: int, request: _Request) -> bool:
        if not tiers:
            return not self._may_seek(group, request) or self._policies[group].is_hopeless(REMOTE)
        return group in request.declined or self._policies[group].is_hopeless(MEMORY if tiers & TIER_MEMORY else DISK)

    def _gathered(self, promises: Promises, name: str, request: _Request) -> None:
        """Looks up the keys of a request that were collected in this step, and decides which chunks to load. Called at the end of the step."""
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
        """Decides how many leading chunks of a chain to load, and notes that their leases are wanted. Returns this number, and whether these
        chunks are all in memory. `tiers`: the tiers of the leading chunks that were found; chunks that were fetched from the shared tier
        (REMOTE) are in memory by now."""
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

    # --- the canary ---

    def _loadable(self, group: int, keys: Sequence[bytes], request: _Request) -> int:
        """Returns how many leading chunks the canary permits to be loaded. The engine computes the other chunks."""
        n = self._canary.loadable(group, keys, self._variant) if self._canary is not None and not self._resets.salt else len(keys)
        request.withheld.update(keys[n:])
        if n:
            request.has_parents.add(group)
        return n

    @property
    def _comparing(self) -> Canary | None:
        """Returns the canary if it compares chunks, else None. With a salt, all chunks are this engine's own, and no chunk is compared."""
        return self._canary if self._canary is not None and self._canary.mode != canary.OFF and not self._resets.salt else None

    def _choose(self, keys: list[bytes], where: bytes, request: _Request | None, context: Any) -> bytes | None:
        """Returns the chunk for the canary to compare, among chunks of one group that the engine computes now. Returns None if the canary
        compares none of these chunks. `where`: the tiers of each chunk, 0 if it is not stored."""
        comparing = self._comparing
        if request is None or comparing is None:
            return None
        group = identity.group_of(keys[0])
        if any(self._is_tail(key, group, context) for key in keys):  # the prefix ends with this chunk, and no chunk after it is computed
            return None
        chosen = comparing.choose(keys, where, request.withheld, group in request.has_parents)
        request.has_parents.add(group)
        return chosen

    def _follow(self) -> None:
        """Uses the namespaces' next variant if the canary has rejected the present one, and forgets all answers."""
        if self._promises is None or self._ranks.variant == self._variant:
            return
        self._variant = self._ranks.variant
        self._forget()
        self._promises.rename(self._shards())
        if self._shared is not None:
            self._shared.rename(self._names())

    # --- the policy's answer, and the keys of a lookup ---

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
        """Returns the key and the keys of its group that vLLM will ask for after it. vLLM 0.33 provides these keys, and in older versions a wrapper
        (hooks.py) provides them. If no keys are provided, the list has this key only."""
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

    # --- loads, stores and the end of requests and steps ---

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
        """Returns the rate of prefill in tokens per second; 0 if it is unknown."""
        return next((p.prefill for p in self._policies.values()), 0.0)

    def _offsets(self, keys: Collection[bytes], held: Sequence[Held]) -> list[list[int]]:
        """Returns for each rank a list: the offset in the pool of the rank's shard of each chunk."""
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
        """Returns the chunks of which at least one shard is not stored, and the chunks that the canary compares. While stores pause (watchdog.py),
        returns only chunks for the canary, and while a rank takes no part or the daemon does not answer, none. vLLM takes a chunk that is not
        returned for stored."""
        promises = self._ready()
        groups = identity.by_group(keys)
        self._scheduled(req_context.req_id)
        self._stores_then_ends = self._stores_then_ends or self._looked_up == self._step
        self._hints.saw(req_context.req_id, keys)
        self._watchdog.offered(len(keys) > len(groups))
        pauses = self._watchdog.stores_pause
        if promises is None or pauses and self._comparing is None:
            self._watchdog.left_out(len(keys) if promises is not None else 0)
            return PrepareStoreOutput(keys_to_store=[], store_spec=KvcacheLoadStoreSpec.of_store([]), evicted_keys=[])
        missing: dict[bytes, bytes] = {}  # by key of each chunk that lacks a shard, the tiers of each shard; 0: not stored
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

    def _scheduled(self, name: str) -> None:
        """Ends the lookups of a request that computes, because vLLM has prepared its load, or loads nothing. Chunks that were found and are not
        loaded would stay leased until the request ends. After a preemption vLLM looks chunks up again, among them those stored meanwhile."""
        request = self._requests.get(name)
        if request is None or not request.answers:
            return
        self._drop(request)
        request.forget()
        if self._promises is not None:
            self._promises.release(name)  # a load under way keeps its leases (LoadsUnderWay)

    def _present(self, keys: Sequence[bytes], missing: Mapping[bytes, bytes]) -> list[list[bool]]:
        """Returns for each rank, and for each of these chunks, whether the rank's shard is stored. Returns an empty list if no shard is stored, or
        if there is one rank only."""
        if self._ranks.world_size == 1 or not any(map(any, missing.values())):
            return []
        owned = [self._ranks.owned[identity.group_of(k)] for k in keys]
        return [[k in missing and missing[k][of_group[rank]] != 0 for k, of_group in zip(keys, owned)]
                for rank in range(self._ranks.world_size)]

    def _computed_now(self, groups: dict[int, list[bytes]], context: Any) -> int:
        """Returns how many tokens of these chunks the step being scheduled computes; 0 if there are fewer than LEAST_PREFILL_TOKENS, or the number
        is unknown. vLLM also offers chunks of its own prefix cache. The computed chunks are those from the first miss of this step's lookup
        on that were not offered before. A miss of an earlier step does not count, because another request may have computed the chunk since."""
        request = self._requests.get(context.req_id)
        if request is None:
            return 0
        most, present = 0, self._step if self._stores_then_ends else self._step - 1
        for group, keys in groups.items():
            step, missed = request.missed.get(group, (-1, b""))
            if request.computes:
                at = 0
            elif step == present and missed in keys:
                at = keys.index(missed)
            else:
                at = len(keys)
            most = max(most, sum(k not in request.offered for k in keys[at:]) * self._spec.tokens.get(group, 0))
            request.offered.update(keys)
        request.computes = request.computes or most > 0
        return most if most >= LEAST_PREFILL_TOKENS else 0

    def complete_store(self, keys: Collection[Any], *context: Any, **options: Any) -> None:  # the other arguments depend on vLLM's version
        self._watchdog.ends_store(len(keys))
        self._hints.stored(keys)

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Adds the chunks to the chain for which the request gives advice (hints.py), because they include chunks of vLLM's own prefix cache.
        Does not mark them as used in the daemon (Hints.used())."""
        self._hints.touched(req_context.req_id, keys)

    @timed
    def on_request_finished(self, req_context: Any) -> None:
        request = self._requests.pop(req_context.req_id, None)
        self._drop(request)
        self._hints.finish(req_context)
        if self._promises is not None:
            self._promises.release(req_context.req_id)  # a load under way keeps its leases (LoadsUnderWay)

    def _drop(self, request: _Request | None) -> None:
        """Cancels the request's unfinished searches of the shared tier, so that no answer is kept for a request that has ended."""
        if request is not None and self._shared is not None:
            for sought in request.sought.values():
                sought.drop(self._shared)

    def on_schedule_end(self, context: Any) -> None:
        self._end_step()
        self._step += 1
        self._watchdog.end_step(len(self._requests))

    @timed
    def _end_step(self) -> None:
        takes_part = self._ranks.look()
        if self._promises is None:
            self._loads.sweep(self._ranks.ended_below)
            self._hints.drop()
            return
        if takes_part:
            for name, request in self._requests.items():
                if request.gathered:
                    self._gathered(self._promises, name, request)
            self._follow()
        else:
            self._hints.drop()
        self._release_lost(self._promises, takes_part)
        self._loads.sweep(self._ranks.ended_below)
        self._promises.flush()
        self._hints.used(self._loaded)
        if self._hints.has_work and not self._promises.advising:
            self._hints.send(self._promises.advise, lambda group: len(self._ranks.shards.get(group, ())))
        for read in self._promises.reads:
            self._policies[read.group].saw_read(read.nbytes, read.least_s, read.most_s)
        self._promises.reads.clear()
        self._ranks.use(self._promises.pools())
        while self._shared is not None and self._shared.fetched:
            fetched = self._shared.fetched.popleft()
            self._policies[fetched.group].saw_fetch(fetched.nbytes, fetched.seconds)
        for nbytes, seconds in self._ranks.loads():  # copies from memory only: reads from disk ended before, and are samples of their own
            for policy in self._policies.values():
                policy.saw_load(nbytes, 0, seconds)
            self._watchdog.copied(seconds / self._ranks.world_size)
        for tokens, seconds in self._ranks.prefills():
            for policy in self._policies.values():
                policy.saw_prefill(tokens, seconds)
        self._count_ranks()

    def _loaded(self, name: str) -> set[bytes]:
        """Returns the keys of the chunks that a request is to load."""
        request = self._requests.get(name)
        return {k for k, is_loaded in request.answers.items() if is_loaded} if request is not None else set()

    def _release_lost(self, promises: Promises, takes_part: bool) -> None:
        """Forgets the answers of requests whose chunks cannot be loaded, and releases their leases: of all requests if a rank takes no part, and of
        those with chunks in a pool that a rank has lost. Otherwise the chunks would stay leased and could not be evicted, and a load of them would
        end the engine. Loads under way keep their leases, because other ranks may be copying."""
        lost = {pool for pool in promises.pools() if not self._ranks.has(pool)}
        if takes_part and not lost:
            return
        for name, request in self._requests.items():
            if (request.answers or request.sought or request.gathered) and (not takes_part or promises.pool(name) in lost):
                self._drop(request)
                request.forget()
                promises.release(name)

    def _count_ranks(self) -> None:
        """Adds the ranks' counters to the manager's. Ranks spend their seconds concurrently, so the mean of the ranks' seconds is added."""
        counts, ranks = dict(self._ranks.counted()), self._ranks.world_size
        self._counts["store_wait_seconds"] += counts.pop("store_wait_us", 0) / 1e6 / ranks
        self._watchdog.rank_spent(counts.pop("call_us", 0) / 1e6 / ranks, counts.pop("store_call_us", 0) / 1e6 / ranks)
        for name, count in counts.items():
            self._counts[name] += count

    def has_pending_work(self) -> bool:
        self._loads.sweep(self._ranks.ended_below)
        return bool(self._loads) or (self._promises is not None and (self._promises.pending or self._hints.has_work))

    def reset_cache(self) -> None:
        """Forgets all answers, because vLLM resets its cache. Chunks stay in the daemon; the option after_reset determines whether this engine
        still finds them."""
        if self._resets.reset() and self._promises is not None:
            self._promises.salt = self._resets.salt
        self._forget()

    def _forget(self) -> None:
        """Forgets all answers and releases the leases of requests, whose chunks are then looked up again. Loads under way keep their leases."""
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
    """Returns the tier of each leading chunk that this host has: MEMORY or DISK. `where`: the tiers of each chunk, 0 if absent."""
    run = where.index(0) if 0 in where else len(where)
    return [MEMORY if t & TIER_MEMORY else DISK for t in where[:run]]
