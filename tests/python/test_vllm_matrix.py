# SPDX-License-Identifier: Apache-2.0
"""Compares all pairs of vLLM engines that differ in facts on which their chunks may depend: they have the same namespace if and only if they
have the same bytes.

The expected answer comes from vllm_model.py, which writes numbered blocks as each engine does. Pairs with equal bytes that do not share are
listed with their reasons in LOST.
"""

import functools
import itertools

import pytest
import vllm_engines
import vllm_model
from kvcache.vllm import arrangement
from vllm_engines import facts_of, namespace_of
from vllm_model import Engine

VERSIONS = [(0, n) for n in range(24, 34)]
VALUES = {  # the numbers depend on these, whatever their arrangement
    "dtype": ("bfloat16", "float16"), "revision": ("a", "b"), "quantization": (None, "fp8"), "overrides": ((), (("rope_theta", 1e6),)),
}
LOST = {
    "version": "the code of another version may compute or pack otherwise, and its tensors look the same",
    "runner": "vLLM's own file tier keeps the two runners apart (#49440)",
    "backend": "a backend may order the content of a page by itself",
    "tp": "equal bytes under several sizes need heads outermost, which vLLM promises and does not keep (#55191)",
    "layout": "layouts that differ only in where a layer's pages lie have other tensors",
}


@pytest.fixture
def vllm():
    with vllm_engines.installed() as worker_class:
        yield worker_class


@functools.cache
def arrangement_of(engine):
    return vllm_model.chunk_of(engine)


def bytes_of(engine):
    """Returns the values that decide, according to the model, whether two engines have equal chunks."""
    plain = Engine(engine.version, engine.runner, engine.layout, engine.tp, blocks_per_chunk=engine.blocks_per_chunk)
    return arrangement_of(plain), *(getattr(engine, name) for name in VALUES)


def engines():
    for version in VERSIONS:
        others = itertools.product(("v1", "v2"), vllm_model.layouts_of(version), (1, 2, 4), *VALUES.values(),
                                   ("FlashAttentionBackend", "TritonAttentionBackend"), (1, 2))
        for runner, layout, tp, dtype, revision, quantization, overrides, backend, count in others:
            yield Engine(version, runner, layout, tp, dtype, revision, quantization, overrides, backend, count)


def test_engines_share_a_namespace_if_and_only_if_their_bytes_are_equal(vllm):
    by_namespace, by_bytes, by_tensors = {}, {}, {}
    for count, engine in enumerate(engines(), 1):
        facts, content = facts_of(vllm, engine), bytes_of(engine)
        namespace = namespace_of(facts)
        wrong = by_namespace.setdefault(namespace, (content, engine))
        assert wrong[0] == content, f"share and must not: {wrong[1]} and {engine}"
        kept_apart = tuple(getattr(engine, name) for name in LOST)
        lost = by_bytes.setdefault((content, kept_apart), (namespace, engine))
        assert lost[0] == namespace, f"do not share and could: {lost[1]} and {engine}: {set(lost[0]) ^ set(namespace)}"
        described = tuple(str(facts[n]) for n in (*arrangement.NAMES, "tp", "blocks_per_chunk"))
        wrong = by_tensors.setdefault(described, (content[0], engine))
        assert wrong[0] == content[0], f"have the same description: {wrong[1]} and {engine}"
        if count % 7 == 0:  # the size of the memory and the kind of GPU do not matter
            other = engine._replace(blocks=(96, 1000)[count % 2], capability=(10, 0))
            assert namespace_of(facts_of(vllm, other)) == namespace
    assert count == 13440


@pytest.mark.parametrize("reason", LOST)
def test_each_reason_for_a_lost_pair_has_one(vllm, reason):
    """Each reason in LOST has a pair with equal bytes; one without would hide a pair that could share."""
    seen = {}
    for engine in engines():
        others = tuple(getattr(engine, name) for name in LOST if name != reason)
        if seen.setdefault((bytes_of(engine), others), getattr(engine, reason)) != getattr(engine, reason):
            return
    pytest.fail(f"no two engines with equal bytes differ only in {reason}")


@pytest.mark.parametrize("one, other", [
    (Engine(version=(0, 25)), Engine(version=(0, 26))),
    (Engine(version=(0, 26), layout="HND"), Engine(version=(0, 26), layout="HND", runner="v2")),
    (Engine(layout="NHD"), Engine(layout="HND")), (Engine(tp=1), Engine(tp=2)),
])
def test_the_model_tells_upstream_s_wrong_pairs_apart(one, other):
    assert vllm_model.chunk_of(one) != vllm_model.chunk_of(other)


def test_the_model_finds_the_promise_of_vllm_true_where_heads_are_outermost():
    engine = Engine(version=(0, 26), layout="HND")
    assert vllm_model.chunk_of(engine) == vllm_model.chunk_of(engine._replace(tp=4))
