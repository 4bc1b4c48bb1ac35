# SPDX-License-Identifier: Apache-2.0
"""Requests that give advice, as the spec sees them, in engines of one GPU and of several. vllm_spec_host.py says how to run the scenarios. Each
calls the manager in the order of its version of vLLM: 0.26 ends a request before the step in which it stores the last chunks, 0.33 at the end
of that step."""

import contextlib
import logging
import sys
import time

import deadlines
import fake_vllm
import kvcache
import vllm_ranks_host as ranks
import vllm_spec_host as base
from kvcache.vllm import hints, identity, promises
from vllm_spec_host import SCENARIO, VERSION, keys_of, ns, told, until

NEW = VERSION != "0.26"
said = []  # the advice that the engine's thread submits: namespace, advice, return_s, keys
parents = []  # the key before the first of each
lines = []  # lines of the log about advice
submit_advise = kvcache.Namespace.submit_advise


def spied(self, keys, advice, return_s=0, **options):
    said.append((self.name, advice, return_s, keys.count))
    parents.append(options.get("parent"))
    return submit_advise(self, keys, advice, return_s, **options)


kvcache.Namespace.submit_advise = spied
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage()) if "hints" in record.getMessage() or "advice" in record.getMessage() else None
logging.getLogger("kvcache.vllm").addHandler(handler)


def taken():
    """Returns the advice since the last call."""
    now, said[:] = list(said), []
    return now


def begin(host, name, params=None, actions=()):
    context = (fake_vllm.ReqContext33 if NEW else fake_vllm.ReqContext26)(name, params)
    if actions:
        context.kv_hints = ns(protocol_version="0.1", message_id="m", actions=[
            ns(action_id="1", action_type=kind, action_version="0.1", payload=payload) for kind, payload in actions])
    host.timed(host.manager.on_new_request, context)
    return context


def store(host, keys, context, last=False, ends=lambda: None):
    """Stores chunks of a request. With `last`, the request ends, before or in the step that stores them. vLLM reports stores in the next step."""
    if last and not NEW:
        host.timed(host.manager.on_request_finished, context)
    prepare, finish, output = host.manager.prepare_store, host.finish, []
    host.manager.prepare_store = lambda *a: output.append(prepare(*a)) or output[-1]

    def finished(number):
        if last and NEW:
            host.timed(host.manager.on_request_finished, context)
        host.step()
        ends()
        finish(number)

    host.finish = finished
    try:
        host.store(keys, context)
    finally:
        host.finish = finish
        del host.manager.prepare_store
        base.pickles(host.manager, getattr(host, "world", 1))
    if output[0].keys_to_store:
        host.timed(host.manager.complete_store, output[0].keys_to_store, context)


def settled(host):
    """Steps as vLLM does while the manager has work."""
    deadline = time.monotonic() + 60
    while host.manager.has_pending_work():
        assert time.monotonic() < deadline, "the manager always has work"
        host.step()
        base.pause()


def names_of(host):
    return [s.name for of_group in host.manager._ranks.shards.values() for s in of_group]


def advised(host, name, keys, params=None, actions=()):
    """A request that looks chunks up, stores them, and ends. Returns its advice."""
    context = begin(host, name, params, actions)
    host.lookup(keys, context)
    store(host, keys, context, last=True)
    settled(host)
    return taken()


def given_when_all_is_stored():
    """Advice is given once, for the whole chain, after the request's end and the end of its last store."""
    host, keys = base.Host(), keys_of("a", 12)
    [name] = names_of(host)
    context = begin(host, "1", {"kvcache_return_s": 90})
    assert host.lookup(keys, context) == 0
    store(host, keys[:8], context)
    host.step()
    assert not taken() and not host.manager.has_pending_work()
    store(host, keys[8:], context, last=True, ends=lambda: (host.step(), said and sys.exit("given before the chunks were stored")))
    assert not taken() and host.manager.has_pending_work(), "vLLM would not step again"
    host.step()
    assert taken() == [(name, "return", 90, 12)] and not host.manager.has_pending_work()
    assert advised(host, "2", keys, {"kvcache_advice": ["turn_end", "pin"]}) == [(name, "turn_end", 0, 12), (name, "pin", 0, 12)]
    assert advised(host, "3", keys) == advised(host, "4", keys, {"kvcache_advice": []}) == []
    context = begin(host, "5", {"kvcache_return_s": 0})  # this request only loads
    assert host.lookup(keys, context) == 12
    host.load(keys, context)
    host.end(context)
    settled(host)
    assert taken() == [(name, "final", 0, 12)]
    if NEW:
        assert advised(host, "6", keys, actions=[("kv.retain", {"directives": [{"duration": 60.0}]}), ("kv.unpin", {})]) == [
            (name, "tool_call", 0, 12), (name, "unpin", 0, 12)]
    if VERSION != "real":
        counts = host.counts()
        assert counts["hints"] == (6 if NEW else 4) and not counts.keys() & {"hints_ignored", "hints_dropped"}, counts
        assert counts.keys() <= {n.removeprefix("vllm:kv_offload_kvcache_") for n in type(host.spec).build_metric_definitions({})}
    assert not lines, lines
    until(lambda: host.step() or not host.manager._promises.advising, "the daemon never answers")
    host.close()


def chunks_of_the_engines_own_cache():
    """The chain includes chunks that the request found in vLLM's prefix cache, root first."""
    host, keys = base.Host(), keys_of("b", 10)
    host.stored("0", keys[:4])
    context, passed = begin(host, "1", {"kvcache_return_s": 90}), []
    advise = host.manager._promises.advise
    host.manager._promises.advise = lambda piece: passed.append(piece) or advise(piece)
    if NEW:
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
        for key in keys[4:]:
            host.manager.lookup(key, context)
        host.step()
    else:
        host.lookup(keys[4:], context)
    listed = list(keys[:9])
    if not NEW:
        host.manager.touch(listed, context)
    listed.append(keys[9])
    store(host, keys[4:], context, last=True)
    settled(host)
    assert [p for p in passed if p.advice != hints.USED] == [("return", 90, 0, keys, None)], passed
    host.close()


def returns_without_a_load():
    """The chunks of two sessions that return are used: one's are in vLLM's own cache, and the other's are computed, because that is faster."""
    host, keys, others = base.Host(), keys_of("own", 9), keys_of("computed", 9)
    for name, listed in (("1", keys[:8]), ("2", others[:8])):
        assert advised(host, name, listed, {"kvcache_return_s": 90}) == [(*names_of(host), "return", 90, 8)]
    told("announced")
    for policy in host.manager._policies.values():
        policy.worth_of = lambda *_, **__: 0
    for name, listed, sought in (("3", keys, keys[8:]), ("4", others, others)):
        context = begin(host, name, {"kvcache_advice": ["turn_end"]})
        if NEW:
            context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(listed))
        assert host.lookup(sought, context) == 0
        if not NEW:
            host.manager.touch(listed, context)
        until(lambda: host.step() or not host.manager.has_pending_work(), "the uses are never sent")
        host.end(context)
        settled(host)
        assert taken() == [(*names_of(host), "turn_end", 0, 9)]
    host.close()


def groups_have_their_namespaces():
    host = base.Host(groups=(0, 2))
    first, third = keys_of("group", 9), keys_of("group", 7, group=2)
    context = begin(host, "1", {"kvcache_return_s": 0})
    output = host.manager.prepare_store(first + third, context)
    host.number += 1
    where = ns(block_ids=list(range(16)), group_sizes=[9, 7], block_indices=[0, 0])
    host.worker.submit_store(host.number, where, output.store_spec)
    host.finish(host.number)
    host.manager.complete_store(output.keys_to_store, context)
    host.end(context)
    settled(host)
    assert sorted(taken()) == [(n, "final", 0, count) for n, count in zip(sorted(names_of(host)), (9, 7))]
    host.close()


def shards_all_have_advice():
    """Two ranks have a shard each, or one together."""
    for writers in (1, 2):
        host, keys = ranks.Engine(f"writers {writers}", writers=writers, kvcache_namespace=f"writers{writers}"), keys_of("s", 11)
        assert advised(host, "1", keys, {"kvcache_return_s": 90}) == [(n, "return", 90, 11) for n in names_of(host)]
        assert len(names_of(host)) == 2 // writers
        host.close()


def hostile():
    """Invalid hints are ignored, with one line in the log, and requests go on."""
    host, keys = base.Host(), keys_of("c", 3)
    cases = [{"kvcache_return_s": v} for v in ("soon", -1, float("nan"), float("inf"), 2**40, 10**400, True, [], {}, b"5")]
    cases += [{"kvcache_advice": v} for v in (5, {"a": 1}, ["evict", None, []], "prefetch" * 10**5, ["nonsense"] * 10**5, [["pin"]])]
    cases += [{"kvcache_unknown": 1}]
    for i, params in enumerate(cases):
        assert advised(host, f"params {i}", keys, params) == [], params
    assert all(advised(host, f"none {i}", keys, params) == [] for i, params in enumerate((5, "x", ["kvcache_return_s"], {"max_offload_tokens": 5})))
    of_hints = 0
    if NEW:
        actions = [("kv.return", {"return_s": float("nan")}), ("kv.return", []), (7, {}), ("kv.fetch", {}), ("a" * 10**5, {}),
                   ("kv.retain", {"directives": [{"duration": -1}] * 10**5})]
        assert advised(host, "actions", keys, actions=actions) == []
        for i, envelope in enumerate((5, "x", {}, {"actions": 3}, ns(actions=[None] * 10**5))):
            context = begin(host, f"envelope {i}")
            context.kv_hints = envelope
            host.manager.on_new_request(context)
            host.end(context)
        of_hints = len(actions) + 4 + 10**5
    settled(host)
    assert not taken()
    if VERSION != "real":
        counts = host.counts()
        assert "hints" not in counts and counts["hints_ignored"] >= len(cases) + of_hints, counts
    assert len(lines) == 1 and "ignored hints: 1." in lines[0], lines
    assert advised(host, "good", keys, {"kvcache_return_s": 5, "kvcache_advice": ["nonsense"]}) == [(*names_of(host), "return", 5, 3)]
    assert len(lines) == 1
    host.close()


def many_keys_take_many_steps():
    """A step submits a bounded number of keys, and none while earlier ones are unanswered."""
    host, keys = base.Host(), keys_of("many", 15_000)
    context = begin(host, "1", {"kvcache_return_s": 0})
    if NEW:
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    else:
        host.manager.touch(keys, context)
    host.manager.on_request_finished(context)
    steps = []
    while host.manager.has_pending_work():
        was_advising = host.manager._promises.advising
        host.step()
        steps.append(sum(count for *_, count in taken()))
        assert not (was_advising and steps[-1] and host.manager._promises._advising > 5), "more than a step's advice is in flight"
        base.pause()
    end = 15_000 - 15_000 % hints.PIECE_KEYS
    assert parents[-1] is None
    assert [bytes(p) for p in parents[-2:-16:-1]] == [keys[n - 1][:-4] for n in range(hints.PIECE_KEYS, end + 1, hints.PIECE_KEYS)]
    assert sum(steps) == 15_000 and max(steps) < hints.STEP_KEYS + hints.PIECE_KEYS, steps
    host.close()


def stores_that_are_reset():
    """After a reset vLLM reports no end of stores, so that advice waits for none."""
    host, keys = base.Host(), keys_of("d", 5)
    context = begin(host, "1", {"kvcache_return_s": 90})
    store_of, host.manager.complete_store = host.manager.complete_store, lambda *a: None
    store(host, keys, context, last=True)
    settled(host)
    assert not taken()
    host.manager.complete_store = store_of
    host.manager.reset_cache()
    settled(host)
    assert taken() == [(*names_of(host), "return", 90, 5)]
    host.close()


def ended_with_advice(host, name, keys):
    """A request ends with advice. The calls of the engine's thread must not wait."""
    context = begin(host, name, {"kvcache_advice": ["final", "pin"]})
    host.manager._hints.saw(name, keys)
    host.end(context)
    settled(host)


@contextlib.contextmanager
def quick(host):
    """The calls within take no longer than a healthy engine permits, on a busy machine."""
    host.slowest_s = 0.0
    yield
    assert host.slowest_s < 5.0, host.slowest_s


def daemon_is_killed():
    """Advice is dropped while no daemon answers, and given to the next one."""
    host, keys = base.Host(), keys_of("e", 9)
    host.stored("0", keys)
    context = begin(host, "early", {"kvcache_advice": "tool_call"})
    told("kill")
    host.lookup(keys_of("notices", 1), context)
    taken()
    with quick(host):
        for i in range(20):
            ended_with_advice(host, str(i), keys)
        host.end(context)
        settled(host)
    assert VERSION == "real" or host.counts()["hints_dropped"] >= 40, host.counted
    told("start")
    base.found_again(host, keys)
    taken()
    assert advised(host, "again", keys, {"kvcache_return_s": 7}) == [(*names_of(host), "return", 7, 9)]
    host.close()


def daemon_hangs():
    """A daemon that hangs gets advice of one step. The engine's thread waits for none of it, nor does the manager have work forever."""
    host, keys = base.Host(timeout_s=10 * deadlines.PATIENT_S), keys_of("f", 9)
    host.stored("0", keys)
    promises.ADVICE_S, promises.NO_ADVICE_S = 0.3, 1.0
    told("stop")
    taken()
    with quick(host):
        for i in range(20):
            ended_with_advice(host, str(i), keys)
    assert 0 < len(taken()) <= 4, "advice piles up at a daemon that hangs"
    assert VERSION == "real" or host.counts()["hints_dropped"] >= 36, host.counted
    told("continue")

    def is_advised():
        ended_with_advice(host, str(time.monotonic()), keys)
        return taken() and not host.manager._promises._no_advice_until > time.monotonic()

    until(is_advised, "advice is never given again")
    base.found_again(host, keys)
    host.close()


def without_a_worker():
    """While ranks have not attached, advice is dropped."""
    host = base.Host(worker=False)
    context = begin(host, "1", {"kvcache_return_s": 5})
    assert host.manager.prepare_store(keys_of("g", 2), context).keys_to_store == []
    host.end(context)
    assert not host.manager.has_pending_work() and not taken()
    assert VERSION == "real" or host.counts()["hints_dropped"] == 1


if __name__ == "__main__":
    assert identity.group_of(keys_of("a", 1)[0]) == 0
    globals()[SCENARIO]()
    print("right", flush=True)
