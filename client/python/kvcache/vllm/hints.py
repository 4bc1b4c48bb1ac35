# SPDX-License-Identifier: Apache-2.0
"""Translates hints of vLLM's requests about the reuse of their chunks into advice for the daemon's eviction.

A client of the engine gives hints in vLLM's `kv_hints` (0.33 and later) or in `kv_transfer_params`. `kv_hints` has a list of actions, each with
a type, a version and a payload. Types are spelled in several ways ("kv.retain", "kv_hint.deref.v1"), so only the verb is used. Hints are
not trusted: actions that are unknown, malformed or too many are ignored and counted, the first of them is logged, and no hint raises an
exception.

The tier (tier.py) and the spec's manager (manager.py) keep the advice of their requests in a Hints object, on the engine's thread, until a
request has ended and all its chunks are stored. Then they send it in pieces, with a bounded number of keys in each step. Advice that cannot be
sent is dropped and counted.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable
from typing import Any, NamedTuple

from .identity import by_group, group_of

log = logging.getLogger("kvcache.vllm")

MOST_ACTIONS = 64  # most actions of a request's kv_hints, directives of an action, and names in kvcache_advice that are read
MOST_PARAMETERS = 1024  # most kv_transfer_params of a request whose names are checked
MOST_SECONDS = 2**32 - 1  # times in seconds must be less
TOOL_CALL_S = 120  # longest retention that is translated to the advice "tool_call": the chain is used again soon

MOST_WAITING = 1024  # most ended requests that may wait for their stores; above that, the oldest request's advice is sent at once
MOST_READY_KEYS = 1 << 18  # most keys of ended requests whose advice may wait to be sent; above that, the oldest request's advice is dropped
MOST_KEYS = 1 << 17  # most keys of a request in one group that get advice; saw() adds none to a request that has as many
PIECE_KEYS, LEAST_PIECE_KEYS = 1024, 64  # most keys of one message, for a group with one shard and with many shards
STEP_REQUESTS = 64  # most requests of which a step examines whether vLLM has looked for their chunks
STEP_KEYS = 4096  # most keys that are sent in a step, multiplied by their number of shards; the last piece of a step may exceed this number

COUNTERS = {
    "hints": "Advice to the daemon that requests gave, by kv_hints or kv_transfer_params.",
    "hints_ignored": "Actions of kv_hints, and parameters, that were ignored, because they are unknown, malformed or too many.",
    "hints_dropped": "Advice that was not sent, or only in part, because the daemon did not answer or too much advice waited.",
}

Advice = tuple[str, int]  # the arguments of Namespace.advise(): the advice, and return_s
USED = "used"  # in the place of advice: the chunks are used now, although they are not loaded

_VERB = re.compile(r"(?:kv[._]hints?\.|kv\.)?([a-z_]{1,32})(?:\.v[0-9]+)?")
_PLAIN = {"pin": "pin", "unpin": "unpin", "demote": "demote", "share": "share", "evict": "final", "deref": "final", "release": "final",
          "final": "final", "tool_call": "tool_call", "turn_end": "turn_end"}
_KEYS = frozenset(("kvcache_return_s", "kvcache_advice"))
_PARAMETERS = frozenset(("final", "tool_call", "turn_end", "pin", "unpin", "demote", "share"))


def seconds_of(value: Any) -> int | None:
    """Returns a time in whole seconds, or None if the value is not a number from 0 to below MOST_SECONDS. A time is rounded down, but one
    above 0 to at least 1: a chain that is used later than announced is still in memory, while one that is used earlier may not be there yet."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MOST_SECONDS:
        return None
    return max(1, int(value)) if value > 0 else 0


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)


def _returned(seconds: int | None) -> Advice | None:
    if seconds is None:
        return None
    return ("return", seconds) if seconds > 0 else ("final", 0)


def _retained(payload: dict[str, Any]) -> Advice | None:
    """Returns the advice for an action "retain". A retention of at most TOOL_CALL_S announces that the chain is used again soon, as after a tool
    call. A longer retention announces a return after half its time. Returns None if the payload has no time above 0."""
    directives = payload.get("directives")
    times = [seconds_of(d.get("duration")) for d in directives[:MOST_ACTIONS] if isinstance(d, dict)] if isinstance(directives, list) else \
        [seconds_of(payload.get("ttl", payload.get("duration")))]
    longest = max((t for t in times if t is not None), default=0)
    if longest == 0:
        return None
    return ("tool_call", 0) if longest <= TOOL_CALL_S else ("return", longest // 2)


def _advice_of(action: Any) -> Advice | None:
    name, payload = _field(action, "action_type"), _field(action, "payload")
    match = _VERB.fullmatch(name) if isinstance(name, str) else None
    if match is None or not isinstance(payload, (dict, type(None))):
        return None
    verb, payload = match[1], payload or {}
    if verb in ("return", "session_return"):
        return _returned(seconds_of(payload.get("return_s", payload.get("expected_return_s"))))
    if verb == "retain":
        return _retained(payload)
    return (_PLAIN[verb], 0) if verb in _PLAIN else None


def _of_parameters(params: Any) -> tuple[list[Advice], int]:
    """Returns the advice of a request's kv_transfer_params, and how many parameters were ignored. `kvcache_return_s`: seconds until the chain is
    used again, 0 for never. `kvcache_advice`: one name of an advice, or a list of names."""
    if not isinstance(params, dict):
        return [], 0
    advice: list[Advice] = []
    ignored = sum(isinstance(name, str) and name.startswith("kvcache_") and name not in _KEYS
                  for name in itertools.islice(params, MOST_PARAMETERS))
    if params.get("kvcache_return_s") is not None:
        returned = _returned(seconds_of(params["kvcache_return_s"]))
        advice += [returned] if returned else []
        ignored += returned is None
    names = params.get("kvcache_advice")
    listed: Iterable[Any] = [names] if isinstance(names, str) else names if isinstance(names, list) else [] if names is None else [None]
    for i, name in enumerate(listed):
        if i < MOST_ACTIONS and isinstance(name, str) and name in _PARAMETERS:
            advice.append((name, 0))
        else:
            ignored += 1
    return advice, ignored


def advice_of(context: Any) -> tuple[tuple[Advice, ...], int]:
    """Returns the advice of a request's context, each kind once, and how many actions and parameters were ignored. If several kinds announce when
    the chain is used again, the last one counts."""
    advice, ignored = _of_parameters(getattr(context, "kv_transfer_params", None))
    hints = getattr(context, "kv_hints", None)
    actions = _field(hints, "actions")
    if isinstance(actions, (list, tuple)):
        for action in actions[:MOST_ACTIONS]:
            one = _advice_of(action)
            if one is None:
                ignored += 1
            else:
                advice.append(one)
        ignored += max(len(actions) - MOST_ACTIONS, 0)
    elif hints is not None:
        ignored += 1
    kinds = {"reuse" if a[0] in ("return", "final", "tool_call", "turn_end") else a[0]: a for a in advice}
    return tuple(kinds.values()), ignored


# --- requests ---


class Piece(NamedTuple):
    """Advice about a part of a request's chain in one group. `keys`: root first. `parent`: the chain's key before the first. `advice` and
    `return_s`: arguments of Namespace.advise(), or USED and 0."""

    advice: str
    return_s: int
    group: int
    keys: list[bytes]
    parent: bytes | None = None


class _Hinted:
    """A request with advice. `keys`: keys of its chunks that were looked up, loaded or stored. `touched`: by group, vLLM's own list of the
    request's chunks. `stores`: how many of its chunks or jobs are being stored. `weight`: 1 plus the number that `keys` had when the advice
    became ready to be sent. `context`: vLLM's context of the request. `ended`: the time.monotonic() of its end."""

    __slots__ = ("name", "advice", "keys", "touched", "stores", "weight", "context", "ended")

    def __init__(self, name: str, advice: tuple[Advice, ...], context: Any) -> None:
        self.name, self.advice, self.context = name, advice, context
        self.keys: dict[bytes, None] = {}
        self.touched: dict[int, Collection[bytes]] = {}
        self.stores = self.weight = 0
        self.ended = 0.0

    def advice_now(self) -> list[Advice]:
        """Returns the advice with the seconds that are left until an announced return, at least 1."""
        waited = int(time.monotonic() - self.ended)
        return [(kind, max(1, seconds - waited) if seconds > 0 else 0) for kind, seconds in self.advice]

    def has_chain(self) -> bool:
        return bool(self.keys or self.touched or getattr(self.context, "_offload_key_positions", None))

    def chains(self, whole: Container[int]) -> dict[int, list[bytes]]:
        """Returns the keys of each group, root first as far as vLLM provides their order: by positions (0.33), or by touches (older
        versions). `whole`: the groups of which vLLM stores all chunks. In other groups, which are windows, vLLM stores only some of the
        chunks that it lists, so only chunks that were looked up, loaded or stored are returned."""
        listed = list(itertools.chain.from_iterable(self.touched.values()))
        positions = getattr(self.context, "_offload_key_positions", None)
        if isinstance(positions, dict):
            listed += sorted(positions, key=positions.__getitem__)
        chains = {group: dict.fromkeys(keys if group in whole else (k for k in keys if k in self.keys))
                  for group, keys in by_group(listed).items()}
        for group, keys in by_group(self.keys).items():
            chains.setdefault(group, {}).update(dict.fromkeys(keys))
        return {group: list(itertools.islice(keys, MOST_KEYS)) for group, keys in chains.items()}


class Hints:
    """The advice of an engine's requests. `whole`: the groups of which vLLM stores all chunks."""

    def __init__(self, whole: Container[int]) -> None:
        self._whole = whole
        self._requests: dict[str, _Hinted] = {}  # by name, requests with advice that have not ended
        self._waiting: dict[str, _Hinted] = {}  # ended requests whose chunks are being stored
        self._ready: dict[str, _Hinted] = {}  # ended requests whose advice can be sent
        self._ready_keys = 0
        self._unused: dict[str, _Hinted] = {}  # by name, requests with advice of which used() has not seen the chain
        self._uses: deque[Piece] = deque()  # chunks whose use is to be reported
        self._stores: dict[Hashable, list[_Hinted]] = {}  # by chunk or job that is being stored, the requests that wait for the end of this store
        self._pieces: deque[Piece] = deque()  # pieces of the advice of the request whose advice is being sent
        self._sending = 0  # number of Advice values of the request to which `_pieces` belong; drop() counts them as dropped
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._has_complained = False

    @property
    def has_work(self) -> bool:
        """Returns whether advice or uses are ready to be sent."""
        return bool(self._pieces or self._ready or self._uses)

    def take_counts(self) -> dict[str, int]:
        counts, self._counts = self._counts, dict.fromkeys(COUNTERS, 0)
        return counts

    def begin(self, context: Any) -> bool:
        """Reads the advice of a new request. Returns whether the request has any. Forgets an unfinished request of the same name."""
        name = context.req_id
        self._requests.pop(name, None)
        self._unused.pop(name, None)
        try:
            advice, ignored = advice_of(context)
        except Exception:  # an object of a type that no version of vLLM passes
            advice, ignored = (), 1
        self._counts["hints"] += len(advice)
        self._counts["hints_ignored"] += ignored
        if ignored and not self._has_complained:
            self._has_complained = True
            log.warning("request %.100r: ignored hints: %d. An action of kv_hints or a parameter kvcache_... is ignored if it is unknown, malformed "
                        "or beyond the first %d; kvcache/vllm/README.md lists the valid ones. Further ignored hints are not logged; the metric "
                        "hints_ignored counts them", name, ignored, MOST_ACTIONS)
        if advice:
            self._requests[name] = self._unused[name] = _Hinted(name, advice, context)
        return bool(advice)

    def used(self, loaded: Callable[[str], Container[bytes]]) -> None:
        """Prepares to report the chunks of new requests as used, except those that are loaded, which the daemon notices itself. Without this, the
        return of a session would count as late if its chunks are computed, or found in vLLM's own cache. `loaded`: returns the keys of the
        chunks that a request loads."""
        for _ in range(min(len(self._unused), STEP_REQUESTS)):
            hinted = self._unused.pop(next(iter(self._unused)))
            if not hinted.has_chain():
                self._unused[hinted.name] = hinted  # vLLM has not looked for its chunks yet
                continue
            keys_loaded = loaded(hinted.name)
            for group, keys in hinted.chains(self._whole).items():
                rest = [k for k in keys if k not in keys_loaded]
                self._uses += [Piece(USED, 0, group, rest[first:first + PIECE_KEYS]) for first in range(0, len(rest), PIECE_KEYS)]

    def was_used(self, name: str) -> None:
        """Notes that the daemon knows of the use of a request's chunks."""
        self._unused.pop(name, None)

    def _find(self, name: str) -> _Hinted | None:
        return self._requests.get(name) or self._waiting.get(name) or self._ready.get(name)

    def saw(self, name: str, keys: Iterable[bytes]) -> None:
        """Adds the keys of chunks to the chain of a request with advice, unless the chain has MOST_KEYS keys already; does nothing for other
        requests."""
        hinted = self._find(name)
        if hinted is not None and len(hinted.keys) < MOST_KEYS:
            hinted.keys.update(dict.fromkeys(keys))

    def touched(self, name: str, keys: Collection[bytes]) -> None:
        """Notes vLLM's list of a request's chunks in one group. The list is not copied, because vLLM extends it later."""
        hinted = self._find(name)
        if hinted is not None and keys and isinstance(keys, (list, tuple)):
            hinted.touched[group_of(keys[0])] = keys

    def stores(self, name: str, tokens: Iterable[Hashable]) -> None:
        """Notes that chunks or jobs of a request are being stored. `tokens`: keys of the chunks, or numbers of the jobs, which stored()
        gets when the stores end. vLLM before 0.33 stores the last chunks after the request's end."""
        hinted = self._find(name)
        if hinted is None:
            return
        for token in tokens:
            self._stores.setdefault(token, []).append(hinted)
            hinted.stores += 1
        if hinted.stores and self._ready.get(name) is hinted:
            self._forget_ready(hinted)
            self._wait(hinted)

    def stored(self, tokens: Iterable[Hashable]) -> None:
        """Notes that the stores of these chunks or jobs have ended, whether or not they succeeded. `tokens`: as for stores()."""
        if not self._stores:
            return
        for token in tokens:
            of_token = self._stores.get(token)
            if of_token is None:
                continue
            hinted = of_token.pop(0)
            if not of_token:
                del self._stores[token]
            hinted.stores -= 1
            if not hinted.stores and self._waiting.get(hinted.name) is hinted:
                del self._waiting[hinted.name]
                self._make_ready(hinted)

    def finish(self, context: Any) -> None:
        """Notes the end of a request: the advice is ready to be sent once the stores of the request have ended."""
        hinted = self._requests.pop(context.req_id, None)
        if hinted is None:
            return
        self._unused.pop(context.req_id, None)
        hinted.context, hinted.ended = context, time.monotonic()
        if hinted.stores:
            self._wait(hinted)
        else:
            self._make_ready(hinted)

    def reset(self) -> None:
        """Stops waiting for stores, because vLLM has reset its cache and does not report the end of the stores under way."""
        self._stores = {}
        for hinted in [*self._requests.values(), *self._waiting.values()]:
            hinted.stores = 0
        while self._waiting:
            self._make_ready(self._waiting.pop(next(iter(self._waiting))))

    def _wait(self, hinted: _Hinted) -> None:
        self._waiting[hinted.name] = hinted
        if len(self._waiting) > MOST_WAITING:
            self._make_ready(self._waiting.pop(next(iter(self._waiting))))

    def _make_ready(self, hinted: _Hinted) -> None:
        earlier = self._ready.get(hinted.name)
        if earlier is not None:
            self._forget_ready(earlier)
        self._ready[hinted.name] = hinted
        hinted.weight = 1 + len(hinted.keys)
        self._ready_keys += hinted.weight
        while self._ready_keys > MOST_READY_KEYS and len(self._ready) > 1:
            oldest = next(iter(self._ready.values()))
            self._forget_ready(oldest)
            self._counts["hints_dropped"] += len(oldest.advice)

    def _forget_ready(self, hinted: _Hinted) -> None:
        del self._ready[hinted.name]
        self._ready_keys -= hinted.weight

    # --- sending ---

    def send(self, advise: Callable[[Piece], bool], shards: Callable[[int], int] = lambda group: 1) -> None:
        """Sends uses and then advice, up to the number of keys that one step may send (STEP_KEYS). `advise`: sends a piece, and returns
        whether that succeeded; if not, all waiting advice is dropped. `shards`: returns the number of shards of a group."""
        left = STEP_KEYS
        while left > 0 and self.has_work:
            if not self._uses and not self._pieces:
                self._split(next(iter(self._ready.values())), shards)
                continue
            pieces = self._uses or self._pieces
            piece = pieces[0]
            left -= len(piece.keys) * max(1, shards(piece.group))
            if advise(piece):
                pieces.popleft()
            else:
                self.drop()

    def _split(self, hinted: _Hinted, shards: Callable[[int], int]) -> None:
        """Divides a request's advice into pieces. The end of a chain comes first, because a chunk that is continued by a stored chunk that is not
        final is not final either."""
        self._forget_ready(hinted)
        self._sending = len(hinted.advice)
        advice_now = hinted.advice_now()
        for group, keys in hinted.chains(self._whole).items():
            size = min(PIECE_KEYS, max(LEAST_PIECE_KEYS, STEP_KEYS // max(1, shards(group))))
            for first in reversed(range(0, len(keys), size)):
                parent = keys[first - 1] if first else None
                self._pieces += [Piece(*advice, group, keys[first:first + size], parent) for advice in advice_now]

    def drop(self) -> None:
        """Drops all uses and all advice that are ready to be sent, and counts the advice as dropped."""
        self._uses.clear()
        if self._pieces:
            self._pieces.clear()
            self._counts["hints_dropped"] += self._sending
        self._counts["hints_dropped"] += sum(len(hinted.advice) for hinted in self._ready.values())
        self._ready, self._ready_keys = {}, 0
