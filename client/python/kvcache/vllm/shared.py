# SPDX-License-Identifier: Apache-2.0
"""Searches of the shared tier: fetches a request's chain to this host's daemon while the request waits. Imports nothing of vLLM.

Used by the tier (tier.py) and by the spec's manager (manager.py). The engine's thread begins a search, reads its state at each step, decides
how many of the found chunks to fetch, and drops the search; none of these calls waits. A second thread with a connection of its own asks the
daemon which chunks of the chain the shared tier has, and makes it fetch chunks to its memory. From there a chunk is loaded like any other.

A search is LOOKING, then FOUND, then FETCHING, then ENDED. LOOKING and FETCHING have deadlines, which the engine's thread enforces when it
reads the state: the search continues with the chunks that are known or fetched by then. A daemon, a shared tier or a second thread that
hangs therefore delays a request no longer than the deadlines. A chunk that is not fetched in time is computed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import LOST, PENDING, TIER_REMOTE, Client, Keys, Namespace, status_ok
from .identity import parts_of
from .policy import REMOTE, LoadPolicy

log = logging.getLogger("kvcache.vllm")

POLL_S = 0.002      # first interval between lookups of a chain, and interval between reaps of fetched chunks
MOST_POLL_S = 0.016 # longest interval between lookups of a chain; each is twice the one before, up to this length
ABANDONED_S = 10.0  # time after its deadline at which a search is dropped, if the engine's thread has not dropped it
ASK_S = 0.25        # timeout of a request that the daemon answers without the shared tier
STATUS_S = 10.0     # interval between reads of the daemon's status: whether it has a shared tier, and the tier's rate and latency
REST_S = 0.5        # interval between reads of the status while no daemon answers, and pause of the second thread after a failure
ROUND_BYTES = 64 << 20  # most bytes of one request for chunks, but at least one chunk; at most a sixteenth of the daemon's pool

LOOKING, FOUND, FETCHING, ENDED = range(4)  # states of a search


class Search:
    """A search for a chain of one group. `keys`: root first. `here`: how many leading chunks this host has. `reach`: how many leading chunks
    this host and the shared tier have together. `wanted`: how many chunks after these `here` are to be fetched. `got`: how many of these were
    fetched in time. `until`: the time.monotonic() of the deadline in the present state."""

    def __init__(self, group: int, keys: Sequence[bytes], here: int, until: float) -> None:
        self.group, self.keys, self.here, self.until = group, tuple(keys), here, until
        self.packed: Keys | None = None  # the daemon's keys of `keys`; None until the first lookup
        self.state = LOOKING
        self.reach, self.wanted, self.got = here, 0, 0
        self.ask_at, self.pause_s = 0.0, POLL_S  # time.monotonic() of the next lookup, and the interval after it in seconds
        self.began = 0.0  # time.monotonic() at which the fetch began
        self.asked = False  # a request of the fetch is in flight
        self.came, self.is_remote = 0, False  # chunks that were fetched, including late ones; whether any came from the shared tier
        self.before = 0  # bytes that other searches were still to fetch when the fetch began


class Sought:
    """Keys of one group that a request looks up together, in the order in which vLLM asks for them, and their search.

    vLLM may ask next for any of these keys, or for another key of the group, because it may get the first chunks elsewhere. Once advance() has
    returned True, `tiers` has the tiers of the leading keys, `worth` the number of these that are to be loaded, and `failed` the number that
    the shared tier did not deliver in time."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = dict.fromkeys(keys)
        self.until = math.inf  # time.monotonic() at which the search ends in any case, if necessary with this host's chunks alone
        self.tiers: list[int] = []
        self.worth = self.failed = 0
        self._decided = False
        self._search: Search | None = None

    @property
    def has_begun(self) -> bool:
        return self._search is not None

    def add(self, key: bytes) -> bool:
        """Adds a key to a search that has not begun. Returns False if the search has the key already: vLLM has then begun its next step."""
        is_new = key not in self.keys
        self.keys[key] = None
        return is_new

    def start_at(self, key: bytes) -> None:
        """Drops the keys before this one, for which vLLM no longer asks."""
        keys = list(self.keys)
        self.keys = dict.fromkeys(keys[keys.index(key):])

    def begin(self, shared: SharedTier, policy: LoadPolicy, group: int, tiers: list[int], untils: dict[int, float]) -> bool:
        """Begins the search. `tiers`: the tiers of the leading keys, which this host has. `untils`: by group, the time until which the request may
        wait for searches; the first search of a group sets this time. Returns False if the time has passed, or the policy allows none."""
        policy.expect_remote(shared.bytes_per_s, shared.latency_s)
        now = time.monotonic()
        if group not in untils:
            untils[group] = now + policy.longest_search(len(self.keys) - len(tiers), shared.queued_bytes)
        longest_s = untils[group] - now
        if longest_s > 0:
            self.tiers, self.until = tiers, untils[group] + shared.timeout_s
            self._search = shared.begin(group, list(self.keys), len(tiers), longest_s)
        return longest_s > 0

    def advance(self, shared: SharedTier, policy: LoadPolicy, decide: Callable[[list[int]], int]) -> bool:
        """Continues the search according to its state. Returns whether the search has ended. `decide`: given the tiers of the leading keys, returns
        how many of these chunks to load."""
        search = self._search
        assert search is not None
        state = shared.state(search)
        if state != ENDED and time.monotonic() >= self.until:  # vLLM has not asked since the deadline
            shared.drop(search)
            state = ENDED
        if state == FOUND:
            self.tiers += [REMOTE] * (search.reach - search.here)
            self.worth, self._decided = decide(self.tiers), True
            if self.worth > search.here:
                shared.fetch(search, self.worth - search.here, policy.longest_fetch(self.worth - search.here))
                return False
            shared.drop(search)
        elif state != ENDED:
            return False
        elif not self._decided:
            self.worth = decide(self.tiers)
        elif search.got < search.wanted:
            self.failed, self.worth = search.wanted - search.got, search.here + search.got
            del self.tiers[self.worth:]
        return True

    def drop(self, shared: SharedTier) -> None:
        if self._search is not None:
            shared.drop(self._search)


class Fetched(NamedTuple):
    """A sample of a fetch: the bytes of one group that a search fetched from the shared tier, and the seconds that the fetch took. For a
    fetch that was not complete at its deadline, both are estimates for all wanted chunks (SharedTier._learn())."""

    group: int
    nbytes: int
    seconds: float


class _Round(NamedTuple):
    """The tag of a request that fetches the next `chunks` chunks of a search."""

    search: Search
    chunks: int


class SharedTier:
    """The searches of all requests of an engine, and the thread that carries them out. `names` and `fields`: the namespaces' names by group, and
    their fingerprint. `chunk_bytes`: by group, the size of a chunk, which is stored under `parts` keys with at most `part_bytes` each.
    `timeout_s`: the longest time for which a request waits for a fetch."""

    def __init__(self, names: Mapping[int, str], fields: Mapping[str, str], chunk_bytes: Mapping[int, int], *, socket: str | None,
                 timeout_s: float, parts: int = 1, part_bytes: int = 0) -> None:
        self._chunk_bytes, self.timeout_s = dict(chunk_bytes), timeout_s
        self._parts, self._part_bytes = parts, part_bytes
        self._client = Client(socket, "vllm shared tier", timeout=ASK_S, connect_timeout=0.2)
        self._names, self._fields = dict(names), dict(fields)
        self._namespaces: dict[str, Namespace] = {}
        self.on = False  # the daemon has a shared tier that works
        self.bytes_per_s = self.latency_s = 0.0  # rate and latency of the shared tier, as the daemon has measured them; 0: not measured
        self.fetched: deque[Fetched] = deque()  # samples for the load policy, which the owner removes
        self._lock = threading.Lock()  # guards the searches
        self._searches: list[Search] = []
        self._round_bytes = ROUND_BYTES
        self._status_at = 0.0
        self._closing, self._kick = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvcache-shared-tier", daemon=True)
        self._thread.start()

    # --- the engine's thread ---

    def begin(self, group: int, keys: Sequence[bytes], here: int, longest_s: float) -> Search:
        """Begins a search for the keys after the first `here`, which this host has. The search takes at most `longest_s`."""
        search = Search(group, keys, here, time.monotonic() + longest_s)
        with self._lock:
            self._searches.append(search)
        self._kick.set()
        return search

    def state(self, search: Search) -> int:
        """Returns the state of a search. A search ends at its deadline, with the chunks that are known or fetched by then."""
        with self._lock:
            self._expire(search)
            return search.state

    @staticmethod
    def _expire(search: Search) -> None:
        """Applies a search's deadline. The caller holds the lock."""
        if search.state in (LOOKING, FETCHING) and time.monotonic() >= search.until:
            search.state = FOUND if search.state == LOOKING and search.reach > search.here else ENDED

    def fetch(self, search: Search, count: int, longest_s: float) -> None:
        """Starts to fetch the `count` chunks after the first `here` chunks of a search that is FOUND, for at most `longest_s` or the
        timeout, whichever is shorter."""
        with self._lock:
            if search not in self._searches:  # the thread has just dropped the search as abandoned
                self._searches.append(search)
            search.before = self._queued_bytes()
            search.wanted, search.began = count, time.monotonic()
            search.until = search.began + min(longest_s, self.timeout_s)
            search.state = FETCHING
        self._kick.set()

    def drop(self, search: Search) -> None:
        with self._lock:
            search.state = ENDED

    @property
    def queued_bytes(self) -> int:
        """Returns the bytes that all searches are still to fetch."""
        with self._lock:
            return self._queued_bytes()

    def _queued_bytes(self) -> int:
        return sum((s.wanted - s.got) * self._chunk_bytes[s.group] for s in self._searches if s.state == FETCHING)

    def rename(self, names: Mapping[int, str]) -> None:
        """Uses other namespaces from now on. The caller has dropped all searches."""
        self._names = dict(names)

    def close(self) -> None:
        self._closing.set()
        self._kick.set()
        self._thread.join(2 * ASK_S + self.timeout_s)

    # --- the thread of the searches ---

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception as e:  # the thread must survive unknown failures
                self.on = False
                self._status_at = time.monotonic() + REST_S
                log.warning("searches of the shared tier failed and their chunks are computed; further searches begin in %.1f s: %s", REST_S, e)
                self._end_all()
                self._closing.wait(REST_S)
        self._client.close()

    def _turn(self) -> None:
        if time.monotonic() >= self._status_at:
            self._read_status()
        with self._lock:
            for search in self._searches:
                self._expire(search)
                if time.monotonic() >= search.until + ABANDONED_S:
                    search.state = ENDED
            self._searches = [s for s in self._searches if s.state != ENDED or s.asked]
            searches = list(self._searches)
        looking = [s for s in searches if s.state == LOOKING]
        for search in looking:
            if time.monotonic() >= search.ask_at:
                self._look(search)
        for search in searches:
            if search.state == FETCHING and not search.asked:
                self._ask(search)
        if self._client.inflight:
            for done in self._client.reap(POLL_S):
                self._answered(done)
        else:
            next_at = min((s.ask_at for s in looking), default=self._status_at)
            self._kick.wait(max(0.0, next_at - time.monotonic()))
            self._kick.clear()

    def _read_status(self) -> None:
        status = self._client.status()
        remote = (status or {}).get("remote", {})
        self.bytes_per_s = float(remote.get("read_rate_bytes", 0))
        self.latency_s = float(remote.get("read_latency_seconds", 0))
        info = self._client.info() if status is not None else None
        if info is not None:
            self._round_bytes = max(4096, min(ROUND_BYTES, info.pool_bytes // 16))
        self.on = remote.get("backend", "off") != "off" and remote.get("breaker") == "closed"
        self._status_at = time.monotonic() + (STATUS_S if info is not None else REST_S)

    def _end_all(self) -> None:
        with self._lock:
            for search in self._searches:
                search.state, search.asked = ENDED, False

    def _namespace(self, group: int) -> Namespace:
        name = self._names[group]
        namespace = self._namespaces.get(name)
        if namespace is None:
            declared = self._chunk_bytes[group] if self._parts == 1 else self._part_bytes
            namespace = self._namespaces[name] = self._client.namespace(name, self._fields, declared)
        return namespace

    def _names_of(self, keys: Sequence[bytes]) -> list[bytes]:
        return [p for k in keys for p in parts_of(k, self._parts)]

    def _look(self, search: Search) -> None:
        if search.packed is None:
            search.packed = Keys(self._names_of(search.keys))
        _, run, final = self._namespace(search.group).reach(search.packed, timeout=ASK_S)
        search.ask_at, search.pause_s = time.monotonic() + search.pause_s, min(2 * search.pause_s, MOST_POLL_S)
        with self._lock:
            search.reach = max(search.here, run // self._parts)
            if search.state == LOOKING and (final or not self._client.connected):
                search.state = FOUND if search.reach > search.here else ENDED

    def _ask(self, search: Search) -> None:
        """Requests the chunks that a search fetches next, one or more within a round's bytes (ROUND_BYTES), and a prefetch of the next round. Ends
        the search if its deadline has passed or no chunk is left."""
        namespace, left = self._namespace(search.group), search.until - time.monotonic()
        step = max(1, self._round_bytes // self._chunk_bytes[search.group])
        first, end = search.here + search.got, search.here + search.wanted
        now, behind = search.keys[first:min(first + step, end)], search.keys[first + step:min(first + 2 * step, end)]
        if left <= 0 or not now:
            self._end(search)
            return
        namespace.submit_get_map(self._names_of(now), tag=_Round(search, len(now)), timeout=left)
        search.asked = True
        if behind:
            namespace.submit_prefetch(self._names_of(behind), tag=None, timeout=ASK_S)

    def _answered(self, done: Any) -> None:
        if done.tag is None:
            return
        search, count = done.tag
        length = self._parts
        good = [all(map(status_ok, done.status[i * length:(i + 1) * length])) for i in range(count)]
        run = good.index(False) if False in good else count
        search.came += run
        search.is_remote |= any(t & TIER_REMOTE for t in done.tiers)
        if done.leased is not None:
            done.leased.release()  # the daemon keeps the chunks in memory for the load that follows
        with self._lock:
            search.asked = False
            search.got += run if search.state == FETCHING else 0
            goes_on = search.state == FETCHING and run == count and search.got < search.wanted
        if not goes_on:
            if PENDING not in done.status and LOST not in done.status:
                self._learn(search, run < count)
            self._end(search)
            self._client.flush()

    def _learn(self, search: Search, failed: bool) -> None:
        """Records a fetch as a sample for the load policy. If one chunk came from the shared tier, all chunks count as fetched from there, because
        the prefetch has moved later ones to memory before they are requested. The time is divided between this search and the bytes that other
        searches were fetching. A fetch that failed at its deadline only shows that fetching takes longer: its time is extrapolated from the
        fetched chunks to the wanted ones, at least doubled, and not divided."""
        took = time.monotonic() - search.began
        if failed and took >= 0.8 * (search.until - search.began):
            nbytes = search.wanted * self._chunk_bytes[search.group]
            self.fetched.append(Fetched(search.group, nbytes, took * max(2.0, search.wanted / max(search.came, 1))))
        elif search.is_remote and search.came:
            nbytes = search.came * self._chunk_bytes[search.group]
            self.fetched.append(Fetched(search.group, nbytes, took * nbytes / (nbytes + search.before)))

    def _end(self, search: Search) -> None:
        with self._lock:
            search.state = ENDED
