# SPDX-License-Identifier: Apache-2.0
"""Advice to the daemon from what a request says of its session: vLLM's `kv_hints` (0.33 and later) and `kv_transfer_params`.

An envelope has actions, each with a type, a version and a payload. Types are named in several ways ("kv.retain", "kv_hint.deref.v1"), so
the verb alone counts. Everything is from a client of the engine: unknown, malformed and excess actions are ignored and counted, and nothing
here raises."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

MOST_ACTIONS = 64
MOST_SECONDS = 2**32 - 1
TOOL_CALL_S = 120  # within which the daemon expects the chain after a tool call

Advice = tuple[str, int]  # the arguments of Namespace.advise(): the advice, and return_s

_VERB = re.compile(r"(?:kv[._]hints?\.|kv\.)?([a-z_]{1,32})(?:\.v[0-9]+)?")
_PLAIN = {"pin": "pin", "unpin": "unpin", "demote": "demote", "share": "share", "evict": "final", "deref": "final", "release": "final",
          "final": "final", "tool_call": "tool_call", "turn_end": "turn_end"}
_PARAMETERS = frozenset(("final", "tool_call", "turn_end", "pin", "unpin", "demote", "share"))


def seconds_of(value: Any) -> int | None:
    """Returns whole seconds, rounded up; None if it is no time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MOST_SECONDS:
        return None
    return math.ceil(value)


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)


def _returned(seconds: int | None) -> Advice | None:
    if seconds is None:
        return None
    return ("return", seconds) if seconds > 0 else ("final", 0)


def _retained(payload: dict[str, Any]) -> Advice | None:
    """A retention for a time announces a use within that time: soon, or about in the middle of it."""
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
    """`kvcache_return_s`: seconds, 0 for never; `kvcache_advice`: one name or a list of them."""
    if not isinstance(params, dict):
        return [], 0
    advice, ignored = [], 0
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
    """Returns the advice that a request's context gives, each kind once, and how many actions were ignored. Of several that say when the
    chain is used again, the last counts."""
    advice, ignored = _of_parameters(getattr(context, "kv_transfer_params", None))
    actions = _field(getattr(context, "kv_hints", None), "actions")
    if isinstance(actions, (list, tuple)):
        for action in actions[:MOST_ACTIONS]:
            one = _advice_of(action)
            if one is None:
                ignored += 1
            else:
                advice.append(one)
        ignored += max(len(actions) - MOST_ACTIONS, 0)
    elif actions is not None:
        ignored += 1
    kinds = {"reuse" if a[0] in ("return", "final", "tool_call", "turn_end") else a[0]: a for a in advice}
    return tuple(kinds.values()), ignored
