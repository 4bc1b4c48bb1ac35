# SPDX-License-Identifier: Apache-2.0
"""Advice that requests of vLLM give, with good, bad and hostile envelopes. test_vllm_contract.py passes it to a real daemon."""

import types

import pytest

from kvcache.vllm.hints import advice_of


def envelope(*actions):
    return types.SimpleNamespace(protocol_version="0.1", message_id="m", actions=[
        types.SimpleNamespace(action_id=str(i), action_type=name, action_version="0.1", payload=payload)
        for i, (name, payload) in enumerate(actions)])


def context(params=None, hints=None):
    return types.SimpleNamespace(req_id="a", kv_transfer_params=params, kv_hints=hints)


@pytest.mark.parametrize("action, payload, advice", [
    ("kv.return", {"return_s": 59.5}, ("return", 60)), ("return", {"expected_return_s": 7}, ("return", 7)),
    ("kv.return", {"return_s": 0}, ("final", 0)), ("kv_hint.deref.v1", {}, ("final", 0)), ("kv.evict", None, ("final", 0)),
    ("kv.retain", {"directives": [{"priority": 9, "duration": 60.0}, {"priority": 1}]}, ("tool_call", 0)),
    ("kv.retain", {"directives": [{"duration": 10}, {"duration": 600}]}, ("return", 300)), ("kv.retain", {"ttl": 300}, ("return", 150)),
    ("kv.pin", {}, ("pin", 0)), ("kv.demote", {"session_id": "s"}, ("demote", 0)), ("kv.share", {}, ("share", 0))])
def test_known_actions_are_advice(action, payload, advice):
    assert advice_of(context(hints=envelope((action, payload)))) == ((advice,), 0)
    as_dict = {"actions": [{"action_type": action, "payload": payload}]}
    assert advice_of(context(hints=as_dict)) == ((advice,), 0)


HOSTILE = [None, 5, "x", [], {}, {"actions": 3}, {"actions": [None, 5, {}, {"action_type": 7}, {"action_type": "kv.return", "payload": []}]},
           envelope(("kv.return", {"return_s": -1}), ("kv.return", {"return_s": float("nan")}), ("kv.return", {"return_s": 10**400}),
                    ("kv.retain", {"directives": [None, {"duration": "x"}, {"duration": True}]}), ("kv.retain", {"ttl": []}),
                    ("kv.fetch", {}), ("a" * 100000, {}), ("kv.return", None)),
           envelope(*[("kv.unknown", {})] * 100000)]


@pytest.mark.parametrize("hints", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_kv_hints_are_no_advice(hints):
    advice, ignored = advice_of(context(hints=hints))
    assert advice == ()
    assert ignored > 0 or not getattr(hints, "actions", hints.get("actions") if isinstance(hints, dict) else None)


def test_the_last_word_on_a_return_counts_and_actions_are_bounded():
    many = envelope(*[("kv.return", {"return_s": i + 1}) for i in range(80)])
    assert advice_of(context({"kvcache_return_s": 0}, many)) == ((("return", 64),), 16)
    params = {"kvcache_advice": ["tool_call", "pin", "nonsense", 5, "tool_call"], "kvcache_return_s": "soon"}
    assert advice_of(context(params)) == ((("tool_call", 0), ("pin", 0)), 3)
    assert advice_of(context({"kvcache_advice": {"a": 1}})) == ((), 1)
