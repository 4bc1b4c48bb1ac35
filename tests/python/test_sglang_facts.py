# SPDX-License-Identifier: Apache-2.0
"""Facts of SGLang's runtime context: each keeps engines apart, and adapters that page hashes lack are refused."""

import sys
import types

import fake_sglang
import pytest
from kvcache.engine import identity
from kvcache.sglang import facts

ns = types.SimpleNamespace


@pytest.fixture
def sglang(monkeypatch):
    storage = fake_sglang.install()
    monkeypatch.setattr(fake_sglang, "current", fake_sglang.configuration())
    yield storage
    fake_sglang.remove()


def adapter(path, content=b"one", name="sql"):
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    (path / "adapter_model.safetensors").write_bytes(content)
    return ns(lora_id="0" * 32, lora_name=name, lora_path=str(path))


def draft(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"draft")
    return str(path)


CHANGES = {
    "quantization": ("model", "quantization", "fp8"), "model_dtype": ("model", "dtype", "float16"),
    "cache_dtype": ("model", "kv_cache_dtype", "fp8_e5m2"), "overrides": ("model", "json_model_override_args", '{"rope_theta": 1}'),
    "load_format": ("model", "load_format", "gguf"), "backend": ("exec", "kernel", ns(
        attention_backend="triton", prefill_attention_backend=None, decode_attention_backend=None)),
    "prefill_backend": ("exec", "kernel", ns(attention_backend="fa3", prefill_attention_backend="x", decode_attention_backend=None)),
    "decode_backend": ("exec", "kernel", ns(attention_backend="fa3", prefill_attention_backend=None, decode_attention_backend="x")),
    "draft_algorithm": ("spec", "speculative_algorithm", "NGRAM"),
    "draft": ("spec", "speculative_draft_model_path", lambda path: draft(path / "draft")),
    "adapters": ("lora", "lora_paths", lambda path: [adapter(path / "lora")]),
    "scales": ("model", "quantization_param_path", lambda path: str(adapter(path / "s").lora_path) + "/adapter_config.json"),
}


def assert_only(fact, before, after):
    assert {name for name in before if before[name] != after[name]} == {fact}
    made = [identity.compose("sglang", one, "s") for one in (before, after)]
    assert made[0].fields != made[1].fields and not made[0].unknown and not made[1].unknown


@pytest.mark.parametrize("fact", CHANGES)
def test_each_fact_of_the_context_keeps_engines_apart(sglang, tmp_path, fact):
    before = facts.of_engine()
    where, name, value = CHANGES[fact]
    setattr(fake_sglang.current[where], name, value(tmp_path) if callable(value) else value)
    assert_only(fact, before, facts.of_engine())


def test_versions_keep_engines_apart_and_post_releases_do_not(sglang):
    before = facts.of_engine()
    sys.modules["sglang"].__version__ = "0.5.23.post1"
    assert facts.of_engine() == before
    sys.modules["sglang"].__version__ = "0.5.22"
    assert_only("version", before, facts.of_engine())


def test_every_fact_has_a_test(sglang):
    assert set(facts.of_engine()) == {*CHANGES, "version"} == set(facts.NAMES)


@pytest.mark.parametrize("where, name, fact", [(where, name.split(".")[0], fact) for fact, (where, name) in facts._ATTRIBUTES.items()])
def test_an_attribute_that_sglang_does_not_have_is_unknown(sglang, where, name, fact):
    delattr(fake_sglang.current[where], name)
    assert fact in identity.compose("sglang", facts.of_engine(), "s").unknown


def test_a_context_that_is_not_published_is_an_unknown_fact(sglang, monkeypatch):
    monkeypatch.setattr(fake_sglang, "current", {})
    assert list(identity.compose("sglang", facts.of_engine(), "s").unknown) == ["configuration"]
    assert facts.model_of("served")[0] == "served" and isinstance(facts.model_of("served")[1], identity.Unknown)


def test_weights_from_a_stream_are_unknown(sglang):
    fake_sglang.current["model"].load_format = "remote"
    assert list(identity.compose("sglang", facts.of_engine(), "s").unknown) == ["load_format"]


def test_random_weights_are_those_of_configuration_and_seed(sglang, tmp_path):
    def weights():
        return facts.weights_of_engine(str(tmp_path), None, "samples")

    fake_sglang.current["model"].load_format = "dummy"
    assert isinstance(weights(), identity.Unknown)
    (tmp_path / "config.json").write_text("{}")
    first = weights()
    assert first == weights() and first.startswith("dummy-")
    fake_sglang.current["device"].random_seed = 43
    other = weights()
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert len({first, other, weights()}) == 3


def test_scales_are_those_in_the_file(sglang, tmp_path):
    path = tmp_path / "scales.json"
    path.write_text("{}")
    fake_sglang.current["model"].quantization_param_path = str(path)
    before = facts.of_engine()
    path.write_text('{"a": 1}')
    assert_only("scales", before, facts.of_engine())


def test_the_backend_has_the_facts_and_no_folders(sglang, monkeypatch):
    made = []
    monkeypatch.setattr(sglang.Link, "namespace", lambda self, name, fields, nbytes: made.append(fields))
    monkeypatch.setattr(sglang.Link, "begin", lambda self: None)
    for folder in ("/pods/1/m", "/pods/2/m"):
        fake_sglang.current["model"].model_path = folder
        config = fake_sglang.Config23(model_name=folder, extra_config={"weights": "tests"})
        storage, pool = sglang.KvcacheStorage(config, {}), fake_sglang.HostPool(pages=2)
        storage.register_mem_pool_host(pool)
        storage.close(), pool.close()
    assert made[0] == made[1] and set(facts.NAMES) <= set(made[0]) and "private" not in made[0]


# --- adapters ---


@pytest.mark.parametrize("form", [
    lambda a: [a], lambda a: {a.lora_name: a.lora_path}, lambda a: [f"{a.lora_name}={a.lora_path}"],
    lambda a: [{"lora_name": a.lora_name, "lora_path": a.lora_path}],
])
def test_an_adapter_that_was_trained_again_in_its_place_keeps_engines_apart(sglang, tmp_path, form):
    """The content of an adapter named at startup is a fact. Its id derives from name and path, and the page hash contains only the id."""
    fake_sglang.current["lora"].lora_paths = form(adapter(tmp_path / "a"))
    before = facts.of_engine()
    assert facts.of_engine() == before
    adapter(tmp_path / "a", b"two")
    assert_only("adapters", before, facts.of_engine())


def test_a_draft_model_that_was_trained_again_in_its_place_keeps_engines_apart(sglang, tmp_path):
    fake_sglang.current["spec"].speculative_draft_model_path = draft(tmp_path / "draft")
    before = facts.of_engine()
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"draft two")
    assert_only("draft", before, facts.of_engine())


def test_an_adapter_that_cannot_be_read_is_unknown(sglang, tmp_path):
    for paths in ([ns(lora_name="x", lora_path=str(tmp_path / "none"))], [object()]):
        fake_sglang.current["lora"].lora_paths = paths
        assert list(identity.compose("sglang", facts.of_engine(), "s").unknown) == ["adapters"]


@pytest.mark.parametrize("enable, paths, hashes, refused", [
    (None, None, False, False), (False, None, False, False), (True, None, False, True), (None, ["a"], False, True),
    (True, None, True, False), (None, ["a"], True, False),
])
def test_engines_with_adapters_that_page_hashes_lack_are_refused(sglang, enable, paths, hashes, refused):
    fake_sglang.current["lora"] = ns(enable_lora=enable, lora_paths=paths)
    if not hashes:
        del sys.modules["sglang.srt.mem_cache.utils"].storage_namespace_seed
    assert bool(facts.refusal()) == refused


def test_a_refused_engine_stores_and_finds_nothing(sglang, caplog):
    del sys.modules["sglang.srt.mem_cache.utils"].storage_namespace_seed
    fake_sglang.current["lora"].enable_lora = True
    pool = fake_sglang.HostPool(pages=2)
    storage = sglang.KvcacheStorage(fake_sglang.Config17(extra_config={"weights": "tests", "interface_v1": 1}), {})
    storage.register_mem_pool_host(pool)
    assert "0.5.20" in caplog.text
    keys = ["0" * 63 + "1"]
    assert storage.batch_exists(keys) == 0 and storage.batch_set_v1(keys, pool.indices([0])) == [False]
    assert storage.batch_get_v1(keys, pool.indices([0])) == [False] and not storage.set(keys[0], pool.kv_buffer)
    storage.close()
    pool.close()
