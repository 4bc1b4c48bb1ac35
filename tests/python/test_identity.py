# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: each fact keeps apart, unknown facts are private, and no fact of an adapter can be left out unseen."""

import logging
import sys
import types

import fake_sglang
import fake_vllm
import pytest
from kvcache.engine import identity
from kvcache.lmcache import identity as of_lmcache
from kvcache.sglang import identity as of_sglang
from kvcache.vllm import hooks
from kvcache.vllm import identity as of_vllm

ns = types.SimpleNamespace


def offloading(**changed):
    parallel = {"rank": 0, "tp_size": 2, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "is_parallelism_agnostic": False}
    parallel.update((k, changed.pop(k)) for k in list(changed) if k in parallel)
    return ns(groups=(ns(tokens_per_block=changed.pop("tokens", 16), layer_names=changed.pop("layers", ("0", "1"))),),
              model=ns(name=changed.pop("model", "org/m"), dtype=changed.pop("kv_dtype", "bf16")), engine_id="one",
              cache=ns(tokens_per_hash=changed.pop("per_hash", 16), blocks_per_chunk=changed.pop("blocks", 1)),
              parallel=ns(**parallel), **changed)


@pytest.fixture
def vllm(monkeypatch):
    fake_vllm.install((0, 33))
    monkeypatch.setattr(fake_vllm, "current", fake_vllm.configuration())
    yield fake_vllm
    fake_vllm.remove()


def facts_of_vllm(row=4096, part=65536, weights="w", **changed):
    return {**of_vllm.fields_of(offloading(**changed), row, part, weights), **of_vllm.of_engine()}


def facts_of_sglang(model="org/m", revision="main", weights="w", part=65536, lengths=(8, 8), pool=None, side="", **changed):
    return of_sglang.fields_of(fake_sglang.Config23(**changed), pool or fake_sglang.HostPool(pages=2), lengths, model=model,
                               revision=revision, weights=weights, part_bytes=part, side=side)


def facts_of_lmcache(model="org/m", weights="w", shape=(2, 8), release="0.5", part=65536, adapter="none"):
    return of_lmcache.fields_of(model, weights, of_lmcache.layout_of([shape], [ns(itemsize=2)]), release, part, adapter)


def host_pool(kind=fake_sglang.HostPool, **changed):
    """Returns a host pool of SGLang with changed attributes."""
    pool = kind(pages=2)
    for name, value in changed.items():
        setattr(pool, name, value)
    return pool


class OtherPool(fake_sglang.HostPool):
    pass


# A change for each fact that changes no other fact. Facts of "configuration" change vLLM's configuration.
VLLM = {
    "model": {"model": "org/n"}, "weights": {"weights": "x"}, "dtype": {"kv_dtype": "fp8"}, "tokens_per_hash": {"per_hash": 32},
    "blocks_per_chunk": {"blocks": 2}, "tp": {"tp_size": 4}, "pp": {"pp_size": 2}, "pcp": {"pcp_size": 2}, "dcp": {"dcp_size": 2},
    "rank": {"rank": 1}, "agnostic": {"is_parallelism_agnostic": True}, "replicated": {"replicated_layout": True},
    "groups": {"layers": ("1", "0")}, "row": {"row": 8192}, "part": {"part": 4096},
}
CONFIGURATION = {
    "model_dtype": ("model_config", "dtype", "torch.float16"), "revision": ("model_config", "revision", "b"),
    "quantization": ("model_config", "quantization", "fp8"),
    "overrides": ("model_config", "hf_overrides", {"rope_scaling": {"factor": 4}}),
    "rope": ("model_config", "hf_text_config", ns(rope_theta=1e6)), "draft": ("speculative_config", "method", "ngram"),
    "backends": ("attention_config", "backend", "FLASHINFER"), "layout": ("cache_config", "kv_cache_layout", "HND"),
    "runner": ("", "use_v2_model_runner", True), "cache_dtype": ("cache_config", "cache_dtype", "fp8"),
    "hash": ("cache_config", "prefix_caching_hash_algo", "sha256"), "load_format": ("load_config", "load_format", "gguf"),
}
SGLANG = {
    "model": {"model": "org/n"}, "revision": {"revision": "b"}, "weights": {"weights": "x"}, "served": {"model_name": "other"},
    "geometry": {"lengths": (16,)}, "replicated": {"is_mla_model": True}, "tp": {"tp_size": 2}, "tp_rank": {"tp_rank": 1},
    "pp": {"pp_size": 2},
    "pp_rank": {"pp_rank": 1}, "cp": {"attn_cp_size": 2}, "cp_rank": {"attn_cp_rank": 1}, "dcp": {"dcp_size": 2}, "part": {"part": 4096},
    "dtype": {"pool": host_pool(dtype="torch.float16")}, "pool": {"pool": host_pool(OtherPool)}, "layout": {"pool": host_pool(layout="layer_first")},
    "page_tokens": {"pool": host_pool(page_size=128)},
}
LMCACHE = {"model": {"model": "org/n"}, "weights": {"weights": "x"}, "layout": {"shape": (4, 4)}, "release": {"release": "0.6"},
           "part": {"part": 4096}, "adapter": {"adapter": "sql"}}


def assert_only(fact, one, other, also=()):
    """Checks that two sets of facts differ only in this fact: without it, their engines would share a namespace."""
    assert identity.compose("e", one, "s").fields != identity.compose("e", other, "s").fields
    left_out = {fact, *also}
    rest = [{k: v for k, v in facts.items() if k not in left_out} for facts in (one, other)]
    assert identity.compose("e", rest[0], "s").fields == identity.compose("e", rest[1], "s").fields


@pytest.mark.parametrize("fact", VLLM)
def test_each_fact_of_offloading_config_keeps_engines_apart(vllm, fact):
    assert_only(fact, facts_of_vllm(), facts_of_vllm(**VLLM[fact]))


@pytest.mark.parametrize("fact", CONFIGURATION)
def test_each_fact_of_vllm_s_configuration_keeps_engines_apart(vllm, fact):
    before = facts_of_vllm()
    part, name, value = CONFIGURATION[fact]
    setattr(getattr(vllm.current, part) if part else vllm.current, name, value)
    assert_only(fact, before, facts_of_vllm())


@pytest.mark.parametrize("fact, change", [
    ("version", lambda: setattr(__import__("vllm"), "__version__", "0.34.0")),
    ("platform", lambda: setattr(__import__("vllm.platforms").platforms, "current_platform",
                                 ns(device_type="cuda", get_device_capability=lambda: (10, 0)))),
])
def test_vllm_s_version_and_platform_keep_engines_apart(vllm, fact, change):
    before = facts_of_vllm()
    change()
    assert_only(fact, before, facts_of_vllm())


def test_a_layout_variable_keeps_engines_apart(vllm, monkeypatch):
    before = facts_of_vllm()
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert_only("environment", before, facts_of_vllm())


@pytest.mark.parametrize("version, algorithm, known", [
    ("0.26.0", "sha256_cbor", False), ("0.28.9", "sha256", False), ("dev", "sha256", False), ("0.33.0", "xxhash_cbor", False),
    ("0.29.0", "sha256", True), ("0.33.1rc1", "sha256_cbor", True), ("1.0", "sha256", True),
])
def test_the_seed_of_block_hashes_keeps_engines_apart(vllm, monkeypatch, version, algorithm, known):
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    vllm.current.cache_config.prefix_caching_hash_algo = algorithm
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    before = facts_of_vllm()
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert_only("seed", before, facts_of_vllm())
    monkeypatch.delenv("PYTHONHASHSEED")
    assert_only("seed", before, facts_of_vllm(), also=("private",))
    made = identity.compose("vllm", facts_of_vllm(), "s")
    assert list(made.unknown) == ([] if known else ["seed"])
    assert known or made.unknown["seed"].option == "PYTHONHASHSEED"


LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize("text", [
    {"rope_parameters": {**LONG_ROPE, "original_max_position_embeddings": 4096}},
    {"rope_parameters": {"full_attention": {**LONG_ROPE, "original_max_position_embeddings": 4096}}},
    {"rope_scaling": LONG_ROPE, "original_max_position_embeddings": 4096},
])
def test_the_factors_of_long_rope_keep_engines_apart_and_other_lengths_do_not(vllm, text):
    """vLLM takes the long factors for all positions if an engine accepts longer sequences than the model was trained for."""
    model = vllm.current.model_config
    model.hf_text_config, model.max_model_len = ns(**text), 4096
    short = facts_of_vllm()
    model.max_model_len = 2048
    assert facts_of_vllm() == short
    model.max_model_len = 4097
    long = facts_of_vllm()
    assert_only("rope", short, long)
    model.max_model_len = 131072
    assert facts_of_vllm() == long


def test_long_rope_of_an_unknown_length(vllm):
    model = vllm.current.model_config
    model.hf_text_config, model.max_model_len = ns(rope_scaling=LONG_ROPE), 4096
    before = facts_of_vllm()
    model.max_model_len = 4097
    assert_only("rope", before, facts_of_vllm())
    del model.max_model_len
    assert list(identity.compose("vllm", facts_of_vllm(), "s").unknown) == ["rope"]


def test_lengths_do_not_matter_without_long_rope(vllm):
    vllm.current.model_config.max_model_len = 1
    before = facts_of_vllm()
    vllm.current.model_config.max_model_len = 2
    assert facts_of_vllm() == before


def test_every_fact_of_vllm_has_a_test(vllm):
    tested = {*VLLM, *CONFIGURATION, "version", "platform", "environment", "canonical", "scales", "adapters", "seed",
              "arrangement"}
    assert set(facts_of_vllm()) == tested


@pytest.mark.parametrize("fact", SGLANG)
def test_each_fact_of_sglang_keeps_engines_apart(fact):
    also = ("form", "geometry") if fact == "geometry" else ("tp", "tp_rank") if fact == "replicated" else ()
    assert_only(fact, facts_of_sglang(tp_size=1), facts_of_sglang(**{"tp_size": 1, **SGLANG[fact]}), also)


@pytest.mark.parametrize("attribute", of_sglang._OF_POOL)
def test_each_attribute_of_a_host_pool_keeps_engines_apart(attribute):
    """Pieces of the same length may divide their bytes into heads and layers in other ways."""
    assert_only("geometry", facts_of_sglang(), facts_of_sglang(pool=host_pool(**{attribute: 7})))


def test_pools_of_the_same_shape_are_kept_apart_by_their_names():
    seen = {str(facts_of_sglang(lengths=lengths, side=side)["form"]) for lengths in ((8, 8), ()) for side in ("", "indexer", "draft")}
    assert len(seen) == 6


def test_every_fact_of_sglang_has_a_test():
    assert set(facts_of_sglang()) == {*SGLANG, "form"}


def test_every_fact_of_lmcache_has_a_test():
    assert set(facts_of_lmcache()) == {*LMCACHE, "bytes", "form"}


@pytest.mark.parametrize("fact", LMCACHE)
def test_each_fact_of_lmcache_keeps_engines_apart(fact):
    assert_only(fact, facts_of_lmcache(), facts_of_lmcache(**LMCACHE[fact]))


@pytest.mark.parametrize("name, change", [
    ("scales", lambda c: setattr(c.cache_config, "calculate_kv_scales", True)),
    ("adapters", lambda c: setattr(c, "lora_config", object())), ("adapters", lambda c: delattr(c, "lora_config")),
    ("load_format", lambda c: setattr(c.load_config, "load_format", "runai_streamer")),
    ("draft", lambda c: setattr(c.speculative_config, "model", "org/absent")), ("draft", lambda c: delattr(c, "speculative_config")),
    ("layout", lambda c: setattr(c.cache_config, "kv_cache_layout", None)),
    *[(fact, lambda c, part=part, name=name: delattr(getattr(c, part), name)) for fact, (part, name, _) in CONFIGURATION.items()
      if fact in ("model_dtype", "revision", "quantization", "overrides", "cache_dtype", "hash")],
])
def test_a_fact_that_vllm_does_not_say_is_unknown(vllm, name, change):
    assert not identity.compose("vllm", facts_of_vllm(), "s").unknown
    change(vllm.current)
    assert list(identity.compose("vllm", facts_of_vllm(), "s").unknown) == [name]


def test_no_configuration_is_an_unknown_fact(vllm):
    vllm.current = None
    made = identity.compose("vllm", facts_of_vllm(), "s")
    assert list(made.unknown) == ["configuration"] and made.fields["private"] == "s"


@pytest.mark.parametrize("value", [None, "unknown", identity.Unknown("a reason", "weights")])
def test_an_unknown_fact_makes_the_fingerprint_private(value):
    facts = {"model": "m", "weights": value}
    one, two = (identity.compose("e", facts, identity.new_start()) for _ in range(2))
    assert one.fields != two.fields and one.fields["weights"] == "unknown"
    known = {"model": "m", "weights": "w"}
    assert identity.compose("e", known, "1").fields == identity.compose("e", known, "2").fields


def test_one_warning_names_the_fact_and_the_option(caplog):
    made = identity.compose("e", {"weights": identity.Unknown("no folder", "weights"), "layout": None}, "s")
    with caplog.at_level(logging.WARNING):
        identity.warn(logging.getLogger("kvcache.test"), made)
        identity.warn(logging.getLogger("kvcache.test"), identity.compose("e", {"a": "b"}, "s"))
    assert len(caplog.records) == 1
    assert all(part in caplog.text for part in ("weights: no folder", "set `weights`", "layout"))


def test_values_are_short_printable_and_distinct():
    values = ["a\nb", "a%a;b", "ä", "\x00", "%0;", "x" * 97, "x" * 98, "x" * 10_000_000, "=", "\ud800"]
    texts = [identity.printable(v) for v in values]
    assert len(set(texts)) == len(values) and all(t.isascii() and t.isprintable() and len(t) <= identity.LONGEST for t in texts)


@pytest.mark.parametrize("name", ["engine", "format", "private"])
def test_a_fact_cannot_replace_a_field_of_the_composition(name):
    with pytest.raises(ValueError, match=name):
        identity.compose("e", {name: "x"}, "s")


@pytest.mark.parametrize("name, expected", [
    ("org/m", "m"), ("/data/pod-1/m/", "m"), ("m", "m"), ("/hub/models--org--m/snapshots/abc", "m"), ("/hub/models--m/snapshots/abc/", "m"),
    ("/snapshots/abc", "abc"),
])
def test_a_model_in_another_folder_is_the_same(name, expected):
    facts = {"model": name, "weights": "w"}
    assert identity.compose("e", facts, "s").fields["model"] == expected
    assert identity.model_digest(facts).startswith(expected + "-")


def test_the_order_of_facts_does_not_matter():
    one, two = (identity.compose("e", facts, "s").fields for facts in ({"b": 1, "a": 2}, {"a": 2, "b": 1}))
    assert list(one.items()) == list(two.items())


# --- wrapped functions of vLLM ---


def install(monkeypatch, **functions):
    modules = {name: types.ModuleType(name) for name in (hooks._OFFLOADING, hooks._HASHES)}
    modules[hooks._OFFLOADING].build_offloading_config = functions.get("build", lambda vllm_config, kv_cache_config: "built")
    modules[hooks._HASHES]._gen_lora_extra_hash_keys = functions.get(
        "keys", lambda request: [request.lora_request.lora_name] if request.lora_request else [])
    for name, module in modules.items():
        monkeypatch.setitem(hooks.sys.modules, name, module)
    monkeypatch.setattr(hooks.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(hooks, "_adapters", {})
    monkeypatch.setattr(hooks, "_configurations", {})
    hooks.install()
    hooks.install()
    return modules


def adapter(path, content, number=1, **more):
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    (path / "adapter_model.safetensors").write_bytes(content)
    return ns(lora_request=ns(lora_int_id=number, lora_name="sql", lora_path=str(path), **more))


def test_block_hashes_contain_an_adapter_s_content(monkeypatch, tmp_path):
    keys = install(monkeypatch)[hooks._HASHES]._gen_lora_extra_hash_keys
    assert hooks.hashes_have_content() and keys(ns(lora_request=None)) == []
    one = keys(adapter(tmp_path / "a", b"one"))
    assert one[0] == "sql" and len(one) == 2
    assert keys(adapter(tmp_path / "a", b"two!")) == one  # the engine keeps the adapter that it has read
    assert keys(adapter(tmp_path / "a", b"two!", load_inplace=True)) != one
    assert keys(adapter(tmp_path / "a", b"two!", number=2)) != one
    assert keys(adapter(tmp_path / "b", b"one", number=3)) == one


def test_keys_of_adapters_have_the_form_of_vllm_s(monkeypatch, tmp_path):
    """vLLM 0.29 and later publish `key[1]` of each key in KV events."""
    keys = install(monkeypatch, keys=lambda request: [("lora", request.lora_request.lora_name, request.lora_request.lora_path)])
    said = keys[hooks._HASHES]._gen_lora_extra_hash_keys(adapter(tmp_path / "a", b"one"))
    bare = install(monkeypatch)[hooks._HASHES]._gen_lora_extra_hash_keys(adapter(tmp_path / "a", b"one"))
    assert said[0][0] == "lora" and said[1][0] == "kvcache" and bare == ["sql", "kvcache:" + said[1][1]]


def test_an_unreadable_adapter_is_private(monkeypatch, tmp_path):
    keys = install(monkeypatch)[hooks._HASHES]._gen_lora_extra_hash_keys
    absent = [ns(lora_request=ns(lora_int_id=n, lora_name="x", lora_path=str(tmp_path / "none"))) for n in (1, 2)]
    assert keys(absent[0]) == keys(absent[0]) != keys(absent[1])


def test_another_signature_is_not_wrapped(monkeypatch):
    install(monkeypatch, keys=lambda request, other: [])
    assert not hooks.hashes_have_content()


def test_the_scheduler_sees_the_configuration_of_its_tier(monkeypatch, vllm):
    config, vllm.current = vllm.current, None
    build = install(monkeypatch)[hooks._OFFLOADING].build_offloading_config
    assert build(config, None) == "built"
    assert "layout" in of_vllm.of_engine(offloading()) and "configuration" in of_vllm.of_engine(ns(engine_id="two"))


def test_lmcache_is_private_until_its_adapters_are_named() -> None:
    layout = of_lmcache.Layout("[]", 4096)
    silent, named = (identity.compose("lmcache", of_lmcache.fields_of("m", "w", layout, "0.5", 4096, a), "start")
                     for a in (None, "none"))
    assert set(silent.unknown) == {"adapter"} and silent.unknown["adapter"].option == "adapter"
    assert silent.fields["private"] == "start" and not named.unknown and "private" not in named.fields
