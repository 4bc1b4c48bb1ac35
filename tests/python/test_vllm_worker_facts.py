# SPDX-License-Identifier: Apache-2.0
"""Facts of vLLM's workers: each keeps engines apart, they reach the scheduler of their engine only, and other facts stand in for them."""

import dataclasses
import importlib
import json
import logging
import multiprocessing
import os
import sys
import types

import kvcache.vllm
import pytest
import vllm_engines
import vllm_model
from kvcache.engine import identity
from kvcache.vllm import arrangement, delivery, shards
from kvcache.vllm import worker as workers
from vllm_engines import facts_of, namespace_of
from vllm_model import Engine

ns = types.SimpleNamespace


@pytest.fixture
def vllm():
    with vllm_engines.installed() as worker_class:
        yield worker_class


def set_all(name, value):
    def change(caches):
        for tensor in caches.tensors.values():
            setattr(tensor, name, value(getattr(tensor, name)))

    return change


def change_spec(caches):
    group = caches.config.kv_cache_groups[0]
    group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, head_size=3)


def move_second_layer(caches):
    caches.tensors[vllm_model.NAMES[1]].offset += 1


CHANGES = {  # fact -> a change of what vLLM registers or hands over that no other fact shows
    "specs": change_spec,
    "dtypes": set_all("dtype", lambda _: "torch.float8"),
    "shapes": set_all("shape", lambda shape: (*shape[:3], shape[3] - 1)),
    "strides": set_all("strides", lambda strides: (strides[0], strides[2], strides[1], strides[3])),
    "offsets": move_second_layer,
    "pages": lambda caches: caches.handed_over.tensors.reverse(),
}


@pytest.mark.parametrize("fact", CHANGES)
def test_each_fact_of_the_tensors_keeps_engines_apart(vllm, fact):
    engine = Engine(layout="BLHNC" if fact == "offsets" else "NHD")
    one, other = facts_of(vllm, engine), facts_of(vllm, engine, changed=CHANGES[fact])
    assert {name for name in one if one[name] != other[name]} == {fact} and set(one) == set(other)
    assert namespace_of(one) != namespace_of(other)


def test_the_backend_of_each_layer_keeps_engines_apart(vllm):
    one, other = facts_of(vllm, Engine()), facts_of(vllm, Engine(backend="Other"))
    assert {name for name in one if one[name] != other[name]} == {"backends"} and namespace_of(one) != namespace_of(other)


def test_every_fact_of_a_worker_has_a_test(vllm):
    assert {*CHANGES, "backends"} == set(arrangement.NAMES)
    assert set(arrangement.NAMES) <= set(facts_of(vllm, Engine()))


@pytest.mark.parametrize("change, fact", [
    (lambda caches: setattr(caches.config.kv_cache_groups[0], "kv_cache_spec", ns()), "specs"),
    (lambda caches: None, "backends"),
])
def test_a_fact_that_a_worker_cannot_tell_is_unknown(vllm, monkeypatch, change, fact):
    if fact == "backends":
        monkeypatch.setattr(vllm_model, "layers_of", lambda engine: {})
    assert list(identity.compose("vllm", facts_of(vllm, Engine(), changed=change), "s").unknown) == [fact]


def test_patch_releases_and_kinds_of_gpu_share_if_the_tensors_are_described(vllm):
    one, other = Engine(), Engine(capability=(10, 0))
    assert namespace_of(facts_of(vllm, one)) == namespace_of(facts_of(vllm, other, patch=1))
    assert namespace_of(facts_of(vllm, one)) != namespace_of(facts_of(vllm, one._replace(version=(0, 34))))


@pytest.mark.parametrize("engine, patch", [
    (Engine(capability=(10, 0)), 0), (Engine(), 1), (Engine(runner="v2"), 0), (Engine(layout="HND"), 0),
])
def test_engines_whose_workers_tell_nothing_are_kept_apart_by_version_gpu_and_configuration(vllm, caplog, engine, patch):
    caplog.set_level(logging.INFO, "kvcache.vllm")
    one, other = facts_of(vllm, Engine(), "x", deliver=False), facts_of(vllm, engine, "y", patch=patch, deliver=False)
    assert one["arrangement"] == "not described" and namespace_of(one) != namespace_of(other)
    assert "did not describe" in caplog.text
    caplog.clear()
    assert namespace_of(facts_of(vllm, Engine())) != namespace_of(one) and "did not describe" not in caplog.text


def test_variables_keep_engines_apart_only_if_the_tensors_are_not_described(vllm, monkeypatch):
    before = [namespace_of(facts_of(vllm, Engine(), "x", deliver=deliver)) for deliver in (False, True)]
    monkeypatch.setattr(delivery, "_here", {})
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "NHD")
    after = [namespace_of(facts_of(vllm, Engine(), "x", deliver=deliver)) for deliver in (False, True)]
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("version", ["0.34.0.dev7+gabc", "0.33.0rc1", "dev"])
def test_versions_that_are_no_releases_have_no_others_to_share_with(vllm, monkeypatch, version):
    monkeypatch.setattr(__import__("vllm"), "__version__", version)
    assert workers.identity.version_of_arrangement(False) == version


def test_canonical_pages_share_across_versions_and_ranks(vllm):
    caches = vllm_model.caches_of(Engine(tp=2))
    layers = vllm_model.layers_of(Engine())
    facts = arrangement.facts_of(caches.config, caches.tensors, caches.handed_over, layers, canonical=True)
    caches = vllm_model.caches_of(Engine(tp=4))
    assert facts == arrangement.facts_of(caches.config, caches.tensors, caches.handed_over, layers, canonical=True)
    assert workers.identity.version_of_arrangement(True) == "canonical" and facts["dtypes"] != "canonical"


def test_canonical_formats_keep_engines_apart_and_sizes_and_ranks_do_not(vllm, monkeypatch):
    def facts(layout, **changed):
        config = vllm_model.offloading_of(Engine(), "one")
        config.canonical_layout, config.kv_cache_layout = True, layout
        vars(config.parallel).update(changed)
        return workers.identity.fields_of(config, 4096, 4096, "w")

    assert isinstance(facts("LBNHC")["canonical"], identity.Unknown)
    name = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping"
    monkeypatch.setitem(sys.modules, name, ns(canonical_format_id=lambda layout: f"v1-{layout}"))
    one, other = facts("LBNHC"), facts("LBHNC")
    assert {n for n in one if one[n] != other[n]} == {"canonical"} and one == facts("LBNHC", tp_size=4, rank=1, pcp_size=2)


def test_keys_and_values_may_lie_outside_a_block():
    """ROCm's tensors are (2, blocks, ...): the distance of keys and values depends on the number of blocks, the arrangement does not."""
    told = []
    for blocks in (64, 96):
        shape = (2, blocks, 4, 2)
        tensor = vllm_model.Tensor(vllm_model.Storage(0), "bfloat16", shape, vllm_model.strides_of(shape, range(4)))
        told.append(arrangement._tensor(tensor, blocks))
    assert told[0] == told[1] == ("bfloat16", [2, 1, 4, 2], ["16 * blocks", 16, 4, 2], 0)


def test_the_outermost_dimension_of_as_many_elements_as_blocks_is_that_of_blocks():
    tensor = vllm_model.Tensor(vllm_model.Storage(0), "bfloat16", (64, 64, 2), (2, 128, 1))
    assert arrangement._tensor(tensor, 64) == ("bfloat16", [64, 1, 2], [4, 256, 2], 0)


def test_the_stride_of_one_element_does_not_matter():
    one, other = (vllm_model.Tensor(vllm_model.Storage(0), "bfloat16", (64, 1, 4), (4, stride, 1)) for stride in (4, 1))
    assert arrangement._tensor(one, 64) == arrangement._tensor(other, 64)


def test_the_class_of_a_spec_keeps_engines_apart(vllm):
    def change(caches):
        group = caches.config.kv_cache_groups[0]
        fields = dataclasses.asdict(group.kv_cache_spec)
        group.kv_cache_spec = dataclasses.make_dataclass("SlidingWindowSpec", fields)(**fields)

    one, other = facts_of(vllm, Engine()), facts_of(vllm, Engine(), changed=change)
    assert {name for name in one if one[name] != other[name]} == {"specs"}


def test_blocks_of_kernels_are_part_of_a_block():
    tensor = vllm_model.Tensor(vllm_model.Storage(0), "bfloat16", (128, 4, 2), (8, 2, 1))
    assert arrangement._tensor(tensor, 64) == ("bfloat16", [2, 4, 2], [16, 4, 2], 0)


def test_states_have_several_tensors(vllm):
    caches = vllm_model.caches_of(Engine())
    states = {n: [t, vllm_model.Tensor(t.storage, "float32", (64, 3), (3, 1), 0, 4)] for n, t in caches.tensors.items()}
    facts = arrangement.facts_of(caches.config, states, caches.handed_over, vllm_model.layers_of(Engine()), False)
    assert json.loads(facts["dtypes"]) == [2, ["bfloat16", "float32"]]


def test_no_text_of_a_spec_contains_an_address():
    @dataclasses.dataclass
    class Spec:
        function: object

    assert arrangement._spec_of(Spec(object()), "0") == arrangement._spec_of(Spec(object()), "0")


def test_engines_without_kvcache_are_left_alone(vllm, monkeypatch):
    monkeypatch.setattr(workers, "deliver", lambda *_: pytest.fail("it is another's engine"))
    spec = ns(config=None, extra_config={"secondary_tiers": [{"type": "fs"}]}, get_worker=lambda _: "worker")
    worker = vllm(spec, None, None)
    worker.register_kv_caches({})
    assert worker.worker == "worker"
    for tier in ({"type": "kvcache"}, {"type": "KvcacheTier", "module_path": "kvcache.vllm.tier"}):
        assert workers.is_used_by(ns(extra_config={"secondary_tiers": [tier]}))


def test_layers_that_are_not_offloaded_do_not_matter(vllm):
    def change(caches):
        caches.config.kv_cache_groups.append(ns(layer_names=["scratch"], kv_cache_spec=ns()))
        caches.tensors["scratch"] = vllm_model.Tensor(vllm_model.Storage(0), "int8", (7,), (1,))

    assert facts_of(vllm, Engine()) == facts_of(vllm, Engine(), changed=change)


def test_a_worker_that_fails_to_describe_does_not_leave_an_earlier_engine_s_facts(vllm, caplog):
    assert "strides" in facts_of(vllm, Engine(), "one")
    assert "strides" not in facts_of(vllm, Engine(), "one", changed=lambda caches: caches.tensors.clear())
    assert "cannot be described" in caplog.text


# --- from processes ---


def deliver_from_process(folder, rank, facts, engine_id):
    delivery.FOLDER = folder
    delivery.deliver(engine_id, rank, 2, facts)


def deliver(folder, *facts, engine_id="one"):
    for rank, said in enumerate(facts):
        process = multiprocessing.get_context("spawn").Process(target=deliver_from_process, args=(folder, rank, said, engine_id))
        process.start()
        process.join()
        assert process.exitcode == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "FOLDER", str(tmp_path))
    monkeypatch.setattr(delivery, "_here", {})
    return tmp_path


def test_facts_of_ranks_reach_the_process_that_started_them(folder):
    deliver(str(folder), {"same": "1", "differs": "a"}, {"same": "1", "differs": identity.Unknown("no reason", "weights")})
    facts = delivery.delivered("one", 2)
    assert facts["same"] == "1" and facts["differs"].reason == "no reason" and facts["differs"].option == "weights"
    assert delivery.delivered("two", 2) is None and delivery.delivered("one", 3) is None
    assert all(os.stat(folder / name).st_mode & 0o777 == 0o600 for name in os.listdir(folder))


def test_a_fact_that_differs_between_ranks_names_all(folder):
    delivery.deliver("one", 0, 2, {"a": "x", "b": "y"})
    delivery.deliver("one", 1, 2, {"a": "x", "b": "z"})
    assert delivery.delivered("one", 2) == {"a": "x", "b": '["y", "z"]'}
    delivery.deliver("one", 1, 2, {"a": "x"})
    assert delivery.delivered("one", 2) is None


@pytest.mark.parametrize("damage", [
    lambda path: path.chmod(0o644), lambda path: path.write_text("{"), lambda path: path.write_text('{"format": 1, "facts": {"a": 1}}'),
    lambda path: path.write_text('{"format": 2, "facts": {"a": "1"}}'), lambda path: path.write_text("[" * 100_000),
    lambda path: path.write_text(path.read_text().ljust(delivery.MOST_BYTES + 1)),
    lambda path: (path.rename(f"{path}x"), path.symlink_to(f"{path}x")),
    lambda path: (path.unlink(), os.mkfifo(path, 0o600)), lambda path: path.unlink(),
])
def test_a_file_that_is_not_a_worker_s_is_not_believed(folder, damage):
    deliver(str(folder), {"a": "1"}, {"a": "1"})
    assert delivery.delivered("one", 2)
    damage(sorted(folder.iterdir())[1])
    assert delivery.delivered("one", 2) is None


def test_files_of_processes_that_ended_are_removed(folder):
    ended = folder / f"kvcache-facts-{os.getpid()}-1-{'0' * 32}-0"  # this process started at another time
    other = folder / "kvcache-facts-of-another-kind"
    ended.touch(), other.touch()
    deliver(str(folder), {"a": "1"}, {"a": "1"})
    assert not ended.exists() and other.exists() and delivery.delivered("one", 2)


# --- the tier and the spec use the facts ---


def test_the_tier_has_the_facts_of_the_workers(vllm, monkeypatch):
    tier = importlib.import_module("kvcache.vllm.tier")
    made = []

    def transfers(view, rows, row_bytes, part_bytes, names, fields, **options):
        made.append(fields)
        return ns(well=True)

    monkeypatch.setattr(tier, "Transfers", transfers)
    for layout in ("NHD", "HND"):
        facts = facts_of(vllm, Engine(tp=2, layout=layout))
        config = vllm_model.offloading_of(Engine(tp=2), "one")
        view = memoryview(bytearray(4096)).cast("b", (1, 4096))
        tier.KvcacheTier(ns(config=config), view, "kvcache", weights="w", remote=False)
        assert made[-1]["strides"] == facts["strides"] and "private" not in made[-1]
    assert made[0] != made[1]


def test_the_spec_has_the_facts_of_its_worker(vllm):
    spec_of = importlib.import_module("kvcache.vllm.spec").KvcacheOffloadingSpec
    for engine in (Engine(), Engine(layout="HND")):
        facts = facts_of(vllm, engine)
        config = vllm_model.offloading_of(engine, "one")
        config.worker_kv_bytes_per_block, config.extra_config = 4096, {"weights": "w"}
        spec = spec_of(config)
        spec.name()
        assert spec.fields["strides"] == facts["strides"] and spec.fields["version"] == "0.33" and "private" not in spec.fields


def test_ranks_with_an_unknown_fact_share_no_shard(vllm):
    """Each of them has a namespace that no other rank finds, so no rank writes for another one."""
    spec_of, config = importlib.import_module("kvcache.vllm.spec").KvcacheOffloadingSpec, vllm_model.offloading_of(Engine(tp=2), "one")
    facts_of(vllm, Engine(tp=2))
    shared = shards.Share(0, 1, 2, 0)
    for weights, share in (("w", shared), ("unknown", shards.Share(0, 2))):
        config.worker_kv_bytes_per_block, config.extra_config, config.parallel.world_size = 4096, {"weights": weights}, 2
        spec = spec_of(config)
        spec.name(dict.fromkeys(spec.tokens, shared))
        assert set(spec.shares.values()) == {share} and ("private" in spec.fields) == (weights == "unknown"), spec.fields


def test_the_plugin_wraps_the_worker(vllm, monkeypatch):
    monkeypatch.setattr(workers, "install", lambda: called.append(1))
    called = []
    kvcache.vllm.register()
    assert called == [1] and vllm.register_kv_caches.kvcache_wrapped and vllm._init_worker.kvcache_wrapped


def test_a_worker_of_another_signature_is_not_wrapped(vllm, monkeypatch, caplog):
    module = types.ModuleType(workers._WORKER)
    module.OffloadingConnectorWorker = type("OffloadingConnectorWorker", (), {"_init_worker": lambda self, caches, more: None})
    monkeypatch.setitem(sys.modules, workers._WORKER, module)
    workers.install()
    assert not hasattr(module.OffloadingConnectorWorker._init_worker, "kvcache_wrapped")
