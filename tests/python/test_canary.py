# SPDX-License-Identifier: Apache-2.0
"""The distance between chunks, and the units of vLLM's chunks against a model of their bytes."""

import collections
import itertools
import math
import random
import struct

import pytest
import vllm_engines
import vllm_model
from kvcache.engine import canary, verification
from kvcache.engine.canary import Unit
from kvcache.vllm import canary as of_vllm
from kvcache.vllm import units

EXACT = {"bfloat16": [0.0, 1.0, -2.5, 2.0**100], "float16": [0.0, 1.0, -2.5, 65504.0], "float32": [0.0, 1.0, -2.5, 2.0**-140],
         "float8_e4m3fn": [0.0, 1.0, -2.5, 448.0, 2.0**-9], "float8_e5m2": [0.0, 1.0, -2.5, 57344.0, 2.0**-16]}
BYTES_OF_FLOAT8 = {"float8_e4m3fn": [0x00, 0x38, 0xc2, 0x7e, 0x01], "float8_e5m2": [0x00, 0x3c, 0xc1, 0x7b, 0x01]}


def encoded(dtype, values):
    if dtype in BYTES_OF_FLOAT8:
        return bytes(BYTES_OF_FLOAT8[dtype])
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{'e' if dtype == 'float16' else 'f'}", *values)


def unit_of(data, dtype="float32"):
    return Unit("all", dtype, ((0, len(data)),))


@pytest.mark.parametrize("dtype", EXACT)
def test_a_dtype_is_decoded_exactly(dtype):
    assert canary._DECODERS[dtype](encoded(dtype, EXACT[dtype])) == EXACT[dtype]


def test_not_a_number_and_infinity_of_float8():
    values = canary._DECODERS["float8_e4m3fn"](b"\x7f\xff")
    assert all(map(math.isnan, values))
    values = canary._DECODERS["float8_e5m2"](b"\x7c\xfc\x7d")
    assert values[:2] == [math.inf, -math.inf] and math.isnan(values[2])


def test_the_distance_is_relative():
    for scale in (1e-6, 1.0, 1e6):
        one, other = struct.pack("<2f", 3 * scale, 4 * scale), struct.pack("<2f", 3 * scale, 4.5 * scale)
        expected = 0.5 / math.hypot(3, 4.5)
        assert canary.distance([unit_of(one)], one, other).value == pytest.approx(expected, rel=1e-6)
        assert canary.distance([unit_of(one)], other, one).value == pytest.approx(expected, rel=1e-6)
    assert canary.distance([unit_of(one)], bytes(8), one).value == pytest.approx(1.0)


def test_equal_bytes_are_equal_whatever_they_are():
    data = b"\xff" * 8
    assert canary.distance([unit_of(data)], data, data).value == 0.0
    assert canary.distance([unit_of(bytes(8))], bytes(8), struct.pack("<2f", -0.0, 0.0)).value == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_a_difference(bad):
    good, wrong = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 1, 2, bad, 4)
    both = [Unit("a", "float32", ((0, 8),)), Unit("b", "float32", ((8, 16),))]
    assert canary.distance(both, good, wrong) == (math.inf, "b")
    assert canary.distance(list(reversed(both)), struct.pack("<4f", 1, 2.5, bad, 4), good) == (math.inf, "b")


def test_a_chunk_of_another_length_differs():
    assert canary.distance([], bytes(8), bytes(12)).value == math.inf


def test_the_worst_unit_counts():
    """Taken together, large keys would hide values of another model."""
    draw = random.Random(1)
    keys, values, others = ([scale * draw.gauss(0, 1) for _ in range(1000)] for scale in (100, 1, 1))
    rounded = [k * 1.001 for k in keys]
    one, other = struct.pack("<2000f", *keys, *values), struct.pack("<2000f", *rounded, *others)
    apart = [Unit("keys", "float32", ((0, 4000),)), Unit("values", "float32", ((4000, 8000),))]
    assert canary.distance([unit_of(one)], one, other).value < canary.BOUND / 10
    found = canary.distance(apart, memoryview(one), memoryview(other))
    assert found.unit == "values" and found.value > 1.0


# --- units of vLLM's chunks ---

ENGINES = [vllm_model.Engine(version=v, runner=runner, layout=layout, dtype=dtype)
           for v in ((0, 25), (0, 26), (0, 28), (0, 29), (0, 33)) for runner in ("v1", "v2") for layout in vllm_model.layouts_of(v)
           for dtype in ("bfloat16", "float16")]


def units_of(engine):
    caches = vllm_model.caches_of(engine)
    with vllm_engines.installed() as worker:
        facts = vllm_engines.facts_of(worker, engine)
    views = caches.handed_over.tensors
    group = units.Group(3, vllm_model.NAMES, len(views), views[0].page_size_bytes)
    return units.units_of(facts, [group])[3], caches


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.version[1]}-{e.runner}-{e.layout}-{e.dtype}")
def test_units_are_keys_and_values_of_each_layer(engine):
    listed, caches = units_of(engine)
    labels = [label for _, label, _ in vllm_model.chunk_of(engine)]
    covered = collections.Counter(at for unit in listed for start, end in unit.ranges for at in range(start, end))
    assert covered == dict.fromkeys(range(len(labels)), 1), "each byte is in one unit"
    assert {u.dtype for u in listed} == {engine.dtype}
    assert len(listed) == 2 * vllm_model.LAYERS
    if caches.cross_layers is not None:
        return  # one tensor of all layers, which does not separate keys and values
    for unit, (layer, part) in zip(listed, itertools.product(range(vllm_model.LAYERS), range(2))):
        assert unit.name == f"{vllm_model.NAMES[layer]}{(' keys', ' values')[part]}"
        assert {labels[at][:2] for start, end in unit.ranges for at in range(start, end)} == {(layer, part)}


def test_elements_of_a_unit_have_the_order_of_memory():
    for engine in ENGINES:
        for unit in units_of(engine)[0]:
            assert list(unit.ranges) == sorted(unit.ranges)


GROUP = units.Group(0, ("a", "b"), 2, 64)


@pytest.mark.parametrize("facts, dtype", [({"model_dtype": "float16"}, "float16"),
                                          ({"model_dtype": "float16", "cache_dtype": "auto"}, "float16"),
                                          ({"model_dtype": "float16", "cache_dtype": "fp8"}, "float8_e4m3fn"),
                                          ({"cache_dtype": "fp8_e5m2"}, "float8_e5m2"), ({"cache_dtype": "bfloat16"}, "bfloat16")])
def test_layers_that_no_worker_described_are_halved(facts, dtype):
    listed = units.units_of(facts, [GROUP])[0]
    assert [(u.dtype, u.ranges) for u in listed] == [(dtype, ((at, at + 32),)) for at in (0, 32, 64, 96)]


@pytest.mark.parametrize("facts", [{}, {"cache_dtype": "nvfp4"}, {"cache_dtype": "fp8_ds_mla"}, {"model_dtype": "unknown"}])
def test_a_dtype_that_is_not_known_has_no_units(facts):
    assert units.units_of(facts, [GROUP]) == {0: []}


def test_units_of_unequal_pages_lie_in_each_block_of_a_chunk():
    listed = units.units_of({"model_dtype": "float16"}, [units.Group(0, ("a", "b"), 2, 0, (64, 16), 2)])[0]
    assert [u.ranges for u in listed] == [((0, 32), (80, 112)), ((32, 64), (112, 144)), ((64, 72), (144, 152)), ((72, 80), (152, 160))]


def described(shape, strides, dtype="bfloat16", offset=0):
    text = {"dtypes": [dtype], "shapes": [shape], "strides": [strides], "offsets": [offset]}
    return {name: str([2, value]).replace("'", '"') for name, value in text.items()}


def test_a_cache_without_keys_and_values_is_one_unit():
    listed = units.units_of({**described([1, 4, 8], [64, 16, 2])}, [GROUP])[0]
    assert [(u.name, u.ranges) for u in listed] == [("a", ((0, 64),)), ("b", ((64, 128),))]


def test_fp8_in_tensors_of_bytes_is_decoded_by_the_cache_dtype():
    facts = {**described([1, 2, 4, 2, 4], [64, 32, 8, 4, 1], "uint8"), "cache_dtype": "fp8_e4m3"}
    listed = units.units_of(facts, [GROUP])[0]
    assert listed[:2] == [Unit("a keys", "float8_e4m3fn", ((0, 32),)), Unit("a values", "float8_e4m3fn", ((32, 64),))]
    assert units.units_of({**facts, "cache_dtype": "nvfp4"}, [GROUP]) == {0: []}


@pytest.mark.parametrize("strides", [[64, "32 * blocks", 8, 4, 2], [64, 64, 16, 8, 4]])
def test_a_tensor_that_is_not_in_its_page_is_not_believed(strides):
    facts = {**described([1, 2, 4, 2, 2], strides), "model_dtype": "bfloat16"}
    assert [u.name for u in units.units_of(facts, [GROUP])[0]][:2] == ["a first half", "a second half"]


# --- the namespaces in use ---


def keys_of(group, *names):
    return [name.encode().ljust(32) + group.to_bytes(4, "big") for name in names]


def made(mode="first", opaque=(), is_unused=False, groups=(0, 2)):
    one = of_vllm.Canary(mode, 0.2, {g: f"n/g{g}" for g in groups}, {"model": "m"},
                         {g: [] if g in opaque else [unit_of(bytes(4))] for g in groups})
    one.enter(lambda _: of_vllm.State(is_unused, "model=m"))
    return one


def compare(one, group=0, equal=True):
    one.compare(keys_of(group, "compared")[0], struct.pack("<f", 1), struct.pack("<f", 1 if equal else 2))


def loadable(one, group=0, number=1):
    return one.loadable(group, keys_of(group, "a", "b", "c"), number)


def test_a_group_that_cannot_be_decoded_is_verified_by_the_others():
    one = made(opaque=[2])
    assert loadable(one, 2) == 0
    compare(one)
    assert loadable(one, 0) == loadable(one, 2) == 3


def test_chunks_of_the_variant_before_are_not_loaded():
    """The scheduler's side follows at the end of its step, and the next variant may be verified by then."""
    one = made()
    compare(one, equal=False)
    assert loadable(one) == 0 and one.moves(lambda _: None) and one.names == {0: "n/g0/v2", 2: "n/g2/v2"}
    compare(one)
    assert loadable(one, number=1) == 0 and loadable(one, number=2) == 3


def test_nothing_is_compared_or_stored_between_a_mismatch_and_the_move():
    one = made(is_unused=True)
    compare(one, 2)
    compare(one, 0, equal=False)
    compare(one, 0)
    assert loadable(one, 0) == loadable(one, 2) == 0 and not one.may_store(2, 1)


@pytest.mark.parametrize("state", [None, of_vllm.State(False, "")])
def test_nothing_is_stored_where_a_namespace_may_have_chunks(state):
    one = made()
    one.enter(lambda name: state if name.endswith("g2") else of_vllm.State(True, ""))
    assert not one.may_store(0, 1) and not one.may_store(2, 1)
    one.enter(lambda _: of_vllm.State(True, ""))
    assert one.may_store(0, 1) and one.may_store(2, 1)


def test_a_chunk_of_this_engine_s_own_verifies_nothing():
    one = made(is_unused=True)
    one.stored(keys_of(0, "compared"))
    compare(one)
    assert loadable(one) == 0 and one.take_counts()["canary_checks"] == 0
    one.compare(keys_of(0, "of another")[0], struct.pack("<f", 1), struct.pack("<f", 1))
    assert loadable(one) == 3


def test_a_group_without_comparisons_is_verified_by_the_others_in_the_end(monkeypatch):
    monkeypatch.setattr(verification, "MOST_UNSTORED", 10)
    one = made()
    compare(one)
    assert not one.may_store(2, 10) and loadable(one, 2) == 0
    assert one.may_store(2, 1) and loadable(one, 2) == 3 and not one.moves(lambda _: None)


def test_a_new_namespace_of_one_engine_is_verified_in_the_end(monkeypatch):
    monkeypatch.setattr(verification, "MOST_OWN", 3)
    one = made(is_unused=True)
    assert one.may_store(0, 2)
    one.stored(keys_of(0, "a", "b"))
    assert loadable(one) == 2 and one.may_store(0, 1)
    one.stored(keys_of(2, "c"))
    assert loadable(one) == 2 and loadable(one, 2) == 0
    assert one.may_store(0, 1) and loadable(one) == loadable(one, 2) == 3


def test_a_private_namespace_has_no_canary():
    one = of_vllm.Canary("first", 0.2, {0: "n"}, {"private": "start"}, {0: [unit_of(bytes(4))]})
    assert one.mode == "off" and one.loadable(0, keys_of(0, "a"), 1) == 1 and one.may_store(0, 1)


def test_a_mismatch_is_logged_with_both_fingerprints(caplog):
    one = made()
    compare(one, equal=False)
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "n/g0 " in record.getMessage() and "model=m" in record.getMessage() and "{'model': 'm'}" in record.getMessage()


def test_the_last_suitable_chunk_is_compared():
    one, keys = made(groups=(0,)), keys_of(0, "a", "b", "c")
    assert one.choose(keys, b"\1\1\1", set(keys), False) == keys[2]
    assert one.choose(keys, b"\1\1\0", set(keys), False) == keys[1] == one.choose(keys, b"\1\1\1", {keys[1]}, False)
    assert one.choose(keys, b"\1\0\0", set(keys), False) is None, "the first chunk of a prompt depends on no position"
    assert one.choose(keys, b"\1\0\0", set(keys), True) == keys[0]
    assert one.choose(keys, b"\1\1\1", set(), True) is None and one.choose([], b"", set(keys), True) is None
    new = made(is_unused=True, groups=(0,))
    new.stored(keys[2:])
    assert new.choose(keys, b"\1\1\1", set(keys), False) == keys[1]
    compare(one)
    assert one.choose(keys, b"\1\1\1", set(keys), True) is None


def test_nothing_is_loaded_or_stored_after_the_last_variant():
    one, keys = made(is_unused=True, groups=(0,)), keys_of(0, "a", "b", "c")
    for number in range(1, verification.MOST_VARIANTS):
        compare(one, equal=False)
        assert one.moves(lambda _: of_vllm.State(True, "")) and one.number == number + 1 and one.may_store(0, 3)
        one.stored(keys)
        assert loadable(one, number=one.number) == 3
    compare(one, equal=False)
    assert not one.moves(lambda _: of_vllm.State(True, "")) and one.number == verification.MOST_VARIANTS and one.has_decided
    assert not one.may_store(0, 1) and loadable(one, number=one.number) == 0 and one.choose(keys, b"\1\1\1", set(keys), True) is None
