# SPDX-License-Identifier: Apache-2.0
"""Advice that requests of vLLM give, with good, bad and hostile envelopes, and how it is kept until it can be sent. test_vllm_contract.py and
test_vllm_spec_hints.py pass it to a real daemon."""

import hashlib
import types

import pytest

from kvcache.vllm import hints
from kvcache.vllm.hints import Hints, advice_of


def envelope(*actions):
    return types.SimpleNamespace(protocol_version="0.1", message_id="m", actions=[
        types.SimpleNamespace(action_id=str(i), action_type=name, action_version="0.1", payload=payload)
        for i, (name, payload) in enumerate(actions)])


def context(params=None, kv_hints=None):
    return types.SimpleNamespace(req_id="a", kv_transfer_params=params, kv_hints=kv_hints)


@pytest.mark.parametrize("action, payload, advice", [
    ("kv.return", {"return_s": 59.5}, ("return", 59)), ("kv.return", {"return_s": 0.2}, ("return", 1)), ("return", {"expected_return_s": 7}, ("return", 7)),
    ("kv.return", {"return_s": 0}, ("final", 0)), ("kv_hint.deref.v1", {}, ("final", 0)), ("kv.evict", None, ("final", 0)),
    ("kv.retain", {"directives": [{"priority": 9, "duration": 60.0}, {"priority": 1}]}, ("tool_call", 0)),
    ("kv.retain", {"directives": [{"duration": 10}, {"duration": 600}]}, ("return", 300)), ("kv.retain", {"ttl": 300}, ("return", 150)),
    ("kv.pin", {}, ("pin", 0)), ("kv.demote", {"session_id": "s"}, ("demote", 0)), ("kv.share", {}, ("share", 0))])
def test_known_actions_are_advice(action, payload, advice):
    assert advice_of(context(kv_hints=envelope((action, payload)))) == ((advice,), 0)
    as_dict = {"actions": [{"action_type": action, "payload": payload}]}
    assert advice_of(context(kv_hints=as_dict)) == ((advice,), 0)


HOSTILE = [None, 5, "x", [], {}, {"actions": 3}, {"actions": [None, 5, {}, {"action_type": 7}, {"action_type": "kv.return", "payload": []}]},
           envelope(("kv.return", {"return_s": -1}), ("kv.return", {"return_s": float("nan")}), ("kv.return", {"return_s": 10**400}),
                    ("kv.retain", {"directives": [None, {"duration": "x"}, {"duration": True}]}), ("kv.retain", {"ttl": []}),
                    ("kv.fetch", {}), ("a" * 100000, {}), ("kv.return", None)),
           envelope(*[("kv.unknown", {})] * 100000)]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_kv_hints_are_no_advice(hostile):
    advice, ignored = advice_of(context(kv_hints=hostile))
    assert advice == () and (ignored > 0) == (hostile is not None)


def test_the_last_word_on_a_return_counts_and_actions_are_bounded():
    many = envelope(*[("kv.return", {"return_s": i + 1}) for i in range(80)])
    assert advice_of(context({"kvcache_return_s": 0}, many)) == ((("return", 64),), 16)
    params = {"kvcache_advice": ["tool_call", "pin", "nonsense", 5, "tool_call"], "kvcache_return_s": "soon"}
    assert advice_of(context(params)) == ((("tool_call", 0), ("pin", 0)), 3)
    assert advice_of(context({"kvcache_advice": {"a": 1}})) == ((), 1)


# --- requests, as tier and spec keep them ---


def keys_of(name, count, group=0):
    return [hashlib.sha256(f"{name} {i}".encode()).digest() + group.to_bytes(4, "big") for i in range(count)]


def sent_by(hints, shards=lambda group: 1):
    sent = []
    hints.send(lambda piece: sent.append((piece.advice, piece.return_s, piece.keys)) is None, shards)
    return sent


def begun(hints, keys, name="a", params=None, **of_context):
    made = context(params or {"kvcache_return_s": 60})
    made.req_id = name
    vars(made).update(of_context)
    assert hints.begin(made)
    hints.saw(name, keys)
    return made


def test_advice_waits_for_the_end_and_all_stores():
    made, keys = Hints({0}), keys_of("a", 5)
    request = begun(made, keys[:3])
    made.stores("a", keys[:2])
    made.stores("b", keys)  # has no advice
    assert sent_by(made) == []
    made.stored(keys[:1])
    made.finish(request)
    assert not made.has_work
    made.saw("a", keys)
    made.stores("a", keys[3:])  # after the end, as vLLM 0.26 does
    made.stored(keys[1:2])
    assert sent_by(made) == []
    made.stored([*keys[3:], *keys_of("unknown", 2)])
    assert made.has_work and sent_by(made) == [("return", 60, keys)]
    assert not made.has_work and sent_by(made) == [] and made.take_counts() == {"hints": 1, "hints_ignored": 0, "hints_dropped": 0}


@pytest.mark.parametrize("waited, left", [(0.0, 60), (7.9, 53), (100.0, 1)])
def test_the_time_until_advice_is_sent_is_subtracted_from_a_return(monkeypatch, waited, left):
    now = [1000.0]
    monkeypatch.setattr(hints.time, "monotonic", lambda: now[0])
    made, keys = Hints({0}), keys_of("a", 3)
    request = begun(made, keys, params={"kvcache_return_s": 60, "kvcache_advice": ["pin"]})
    made.stores("a", keys[2:])
    made.finish(request)
    now[0] += waited
    made.stored(keys[2:])
    assert sent_by(made) == [("return", left, keys), ("pin", 0, keys)]


def test_a_store_after_the_end_delays_advice_that_was_ready():
    made, keys = Hints({0}), keys_of("a", 5)
    made.finish(begun(made, keys[:3]))
    made.saw("a", keys[3:])
    made.stores("a", keys[3:])
    assert sent_by(made) == []
    made.stored(keys[3:])
    assert sent_by(made) == [("return", 60, keys)]


def test_two_requests_that_store_the_same_chunk():
    made, keys = Hints({0}), keys_of("a", 2)
    requests = [begun(made, keys, name) for name in "ab"]
    for request in requests:
        made.stores(request.req_id, keys)
        made.finish(request)
    made.stored(keys)
    made.stored(keys)
    assert sent_by(made) == [("return", 60, keys)] * 2 and not made._stores


def test_the_order_of_a_chain_is_that_of_positions_or_touches():
    keys = keys_of("a", 6)
    made = Hints({0})
    made.finish(begun(made, keys[2:4], _offload_key_positions={k: 16 * i for i, k in reversed(list(enumerate(keys)))}))
    assert sent_by(made) == [("return", 60, keys)]
    request = begun(made, keys[2:4])
    listed = keys[:3]
    made.touched("a", listed)
    listed += keys[3:]  # vLLM extends its list
    made.finish(request)
    assert sent_by(made) == [("return", 60, keys)]
    request = begun(made, keys[:1])
    for strange in ([], iter(keys), {keys[1]: 1}, None):
        made.touched("a", strange)
    made.finish(request)
    assert sent_by(made) == [("return", 60, keys[:1])]


def test_of_a_window_only_the_chunks_that_were_seen_have_advice():
    full, window = keys_of("full", 4), keys_of("window", 4, group=1)
    made = Hints({0})
    made.finish(begun(made, window[2:], _offload_key_positions={k: i for i, k in enumerate(full + window)}))
    assert sorted(sent_by(made)) == sorted([("return", 60, full), ("return", 60, window[2:])])


def test_a_step_sends_a_bounded_number_of_keys_the_end_of_a_chain_first():
    made, keys = Hints({0}), keys_of("long", 10_000)
    made.finish(begun(made, keys, params={"kvcache_advice": ["final", "pin"]}))
    steps = []
    while made.has_work:
        steps.append(sent_by(made))
        assert hints.STEP_KEYS <= sum(len(k) for _, _, k in steps[-1]) <= hints.STEP_KEYS + hints.PIECE_KEYS or not made.has_work
    pieces = [p for step in steps for p in step]
    for advice in ("final", "pin"):
        assert [k for said, _, part in reversed(pieces) if said == advice for k in part] == keys
    assert len(steps) == 5 and max(len(k) for _, _, k in pieces) <= hints.PIECE_KEYS
    made.finish(begun(made, keys[:600]))
    assert [len(k) for _, _, k in sent_by(made, lambda group: 8)] == [88, 512]
    made.finish(begun(made, keys[:600]))
    assert len(sent_by(made, lambda group: 0)) == 1


def test_each_part_of_a_chain_names_the_key_before_it():
    made, keys, sent = Hints({0}), keys_of("long", 2 * hints.PIECE_KEYS + 3), []
    made.finish(begun(made, keys))
    while made.has_work:
        made.send(lambda piece: sent.append(piece) is None)
    assert [piece.parent for piece in sent] == [keys[2 * hints.PIECE_KEYS - 1], keys[hints.PIECE_KEYS - 1], None]
    assert [k for piece in reversed(sent) for k in piece.keys] == keys


def test_a_chain_is_bounded():
    made = Hints({0})
    request = begun(made, [])
    for i in range(3):
        made.saw("a", [n.to_bytes(36, "big") for n in range(i * hints.MOST_KEYS, (i + 1) * hints.MOST_KEYS)])
    made.finish(request)
    total = 0
    while made.has_work:
        total += sum(len(k) for _, _, k in sent_by(made))
    assert 0 < total <= hints.MOST_KEYS


def test_advice_that_cannot_be_sent_is_dropped_and_counted():
    made, keys = Hints({0}), keys_of("a", 3000)
    for name in "abc":
        made.finish(begun(made, keys, name, {"kvcache_advice": ["final", "pin"]}))
    answers = [True, False]
    made.send(lambda *_: answers.pop(0))
    assert answers == [] and not made.has_work and made.take_counts()["hints_dropped"] == 6
    for name in "abc":
        made.finish(begun(made, keys, name))
    assert len(sent_by(made)) == 5  # a part of the second request's is left
    made.drop()
    assert not made.has_work and made.take_counts()["hints_dropped"] == 2
    made.drop()
    assert made.take_counts()["hints_dropped"] == 0


def test_too_much_advice_is_dropped(monkeypatch):
    monkeypatch.setattr(hints, "MOST_READY_KEYS", 250)
    made, keys = Hints({0}), keys_of("a", 100)
    for i in range(10):
        made.finish(begun(made, keys, str(i)))
    assert made.take_counts()["hints_dropped"] == 8 and len(sent_by(made)) == 2 and made._ready_keys == 0
    made.finish(begun(made, keys_of("larger than the limit", 300)))
    assert len(sent_by(made)) == 1


def test_the_oldest_advice_does_not_wait_when_too_many_requests_wait(monkeypatch):
    monkeypatch.setattr(hints, "MOST_WAITING", 2)
    made, keys = Hints({0}), keys_of("a", 3)
    for i, key in enumerate(keys):
        request = begun(made, [key], str(i))
        made.stores(str(i), [key])
        made.finish(request)
    assert sent_by(made) == [("return", 60, keys[:1])]
    made.stored(keys)
    assert sent_by(made) == [("return", 60, [k]) for k in keys[1:]]


def test_uses_are_reported_once_and_first_and_a_step_looks_at_a_bounded_number_of_requests():
    """Requests wait for long before vLLM looks for the chunks of the last one."""
    waiting, asked, keys = Hints({0}), [], keys_of("a", 6)
    for n in range(2 * hints.STEP_REQUESTS):
        begun(waiting, (), f"waits {n}", {"kvcache_return_s": 9})
    begun(waiting, (), "found", {"kvcache_return_s": 9}, _offload_key_positions={k: 16 * i for i, k in enumerate(keys)})
    for _ in range(3):
        assert not waiting.has_work
        waiting.used(lambda name: asked.append(name) or {keys[0], keys[1]})
    assert asked == ["found"] and sent_by(waiting) == [(hints.USED, 0, keys[2:])]
    waiting.used(lambda name: asked.append(name) or ())
    assert asked == ["found"] and not waiting.has_work


def test_a_reset_awaits_no_store():
    made, keys = Hints({0}), keys_of("a", 3)
    ended, goes_on = begun(made, keys[:1], "ended"), begun(made, keys, "goes on")
    for name in ("ended", "goes on"):
        made.stores(name, keys)
    made.finish(ended)
    made.reset()
    assert sent_by(made) == [("return", 60, keys[:1])]
    made.stored(keys)
    made.finish(goes_on)
    assert sent_by(made) == [("return", 60, keys)]


def test_a_name_that_is_used_again():
    made, keys = Hints({0}), keys_of("a", 3)
    first = begun(made, keys[:1])
    made.stores("a", keys[:1])
    made.finish(first)
    second = begun(made, keys[1:])
    made.stores("a", keys[1:])
    made.finish(second)
    made.stored(keys)
    assert ("return", 60, keys[1:]) in sent_by(made) and not made._stores and not made._waiting
    third = begun(made, keys)
    plain = context({})
    assert not made.begin(plain)  # "a", too
    made.finish(third)
    assert sent_by(made) == []


@pytest.mark.parametrize("hostile", HOSTILE[1:], ids=range(1, len(HOSTILE)))
def test_ignored_hints_have_one_line_in_the_log(hostile, caplog):
    made = Hints({0})
    for _ in range(3):
        assert not made.begin(context(hostile, hostile))
    counts = made.take_counts()
    assert counts["hints"] == 0 and counts["hints_ignored"] >= 3
    assert len(caplog.records) == 1 and "ignored hints: " in caplog.text and len(caplog.text) < 1000


def test_no_object_makes_begin_raise(caplog):
    class Raises:
        def __getattr__(self, name):
            raise RuntimeError(name)

    made = Hints({0})
    assert not made.begin(context({}, Raises())) and made.take_counts()["hints_ignored"] == 1
    assert not made.begin(types.SimpleNamespace(req_id="x" * 10**6, kv_transfer_params={"kvcache_return": 5}))
    assert len(caplog.records) == 1
    assert not made.begin(types.SimpleNamespace(req_id="a", kv_transfer_params={"do_remote_decode": True, 5: 6}))
    assert made.take_counts()["hints_ignored"] == 1
