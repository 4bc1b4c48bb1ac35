# SPDX-License-Identifier: Apache-2.0
"""kvcache.transformers: what a cache holds comes back bit by bit, under keys that no other prefix, model or layout shares.

Most of it runs over stand-ins for torch and transformers, whose behaviour is a record of the real ones. With the real packages
in the interpreter that runs the tests, the record is checked, and a small Llama goes on from a loaded cache with the same
logits."""

import hashlib
import importlib
import os
import pathlib
import random
import subprocess
import sys
import types

import fake_torch
import fake_transformers
import pytest

import kvcache

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated

BLOCK = 4


@pytest.fixture
def adapter(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    monkeypatch.setitem(sys.modules, "transformers", fake_transformers)
    monkeypatch.delitem(sys.modules, "kvcache.transformers", raising=False)
    yield importlib.import_module("kvcache.transformers")
    sys.modules.pop("kvcache.transformers", None)


def make_store(adapter, client, config=None, /, identity="weights-1", **more):
    return adapter.PrefixStore(client, config or fake_transformers.LlamaConfig(), identity,
                               **{"block_tokens": BLOCK, "dtype": fake_torch.bfloat16, "adapter": "none", **more})


def make_cache(tokens, seed=1, layers=3, heads=2, dim=4, kind=fake_torch.bfloat16):
    rng, cache = random.Random(seed), fake_transformers.DynamicCache(fake_transformers.LlamaConfig(num_hidden_layers=layers))
    for layer in range(layers):
        states = []
        for _ in range(2):
            t = fake_torch.empty((1, heads, tokens, dim), dtype=kind)
            t.memory[:] = rng.randbytes(len(t.memory))
            states.append(t)
        cache.update(*states, layer)
    return cache


def same_prefix(a, b, tokens):
    return all(x.keys[:, :, :tokens].bytes() == y.keys[:, :, :tokens].bytes() and
               x.values[:, :, :tokens].bytes() == y.values[:, :, :tokens].bytes() for x, y in zip(a.layers, b.layers))


def test_what_is_saved_comes_back(adapter, client):
    store, cache, ids = make_store(adapter, client), make_cache(22), list(range(100, 122))
    fresh, known = store.load(ids)
    assert known == 0 and fresh.layers[0].keys is None
    assert repr(store) == f"<PrefixStore {store.namespace.name!r}: blocks of {BLOCK} tokens, {store.block_bytes} bytes>"
    assert store.save(cache, ids) == 20 and store.match(ids) == 20 and store.way == "host"
    assert repr(store).endswith(" bytes, last by host>")
    fresh, known = store.load(ids)
    assert known == 20 and fresh.layers[0].keys.shape == (1, 2, 20, 4) and same_prefix(fresh, cache, 20)
    # the same prefix, and then something else
    fresh, known = store.load(ids[:13] + [1, 2, 3, 4, 5, 6])
    assert known == 12 and same_prefix(fresh, cache, 12)
    store.close()
    assert store.load(ids)[1] == 20


def test_a_token_is_always_left(adapter, client):
    store, cache, ids = make_store(adapter, client), make_cache(8), list(range(8))
    assert store.save(cache, ids) == 8
    assert [store.load(ids[:n])[1] for n in (0, 1, 4, 5, 8)] == [0, 0, 0, 4, 4]
    assert store.load(ids + [9])[1] == 8


def test_only_what_is_new_is_stored(adapter, client, daemon):
    store, ids = make_store(adapter, client), list(range(40))
    store.save(make_cache(12), ids)
    puts = daemon.metric("kvcache_puts_total")
    assert store.save(make_cache(12), ids) == 12 and daemon.metric("kvcache_puts_total") == puts
    assert store.save(make_cache(20), ids) == 20 and daemon.metric("kvcache_puts_total") == puts + 2


def test_in_several_steps(adapter, client, monkeypatch):
    store, cache, ids = make_store(adapter, client), make_cache(50), list(range(50))
    monkeypatch.setattr(adapter, "AT_ONCE_BYTES", 3 * store.block_bytes)
    assert store.save(cache, ids) == 48
    fresh, known = store.load(ids)
    assert known == 48 and same_prefix(fresh, cache, 48)
    store.namespace.evict(adapter.block_keys(ids, BLOCK)[7:8])
    fresh, known = store.load(ids)
    assert known == 28 and same_prefix(fresh, cache, 28)


def test_keys_are_recorded(adapter):
    """The keys are a format on disk: if they change, every stored cache is lost."""
    keys = adapter.block_keys([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    one = hashlib.sha256(bytes(32) + b"".join(n.to_bytes(8, "little") for n in (1, 2, 3, 4))).digest()
    assert keys == [one, hashlib.sha256(one + b"".join(n.to_bytes(8, "little") for n in (5, 6, 7, 8))).digest()]
    assert keys[0].hex() == "ffb37f396c221c1e32e2d90de01d531aa5e704f43017ac4142d39b24fe4d6c58"
    assert adapter.block_keys([1, 2, 3], 4) == []


def test_others_do_not_find_it(adapter, client):
    ids = list(range(20))
    make_store(adapter, client).save(make_cache(20), ids)
    for other in (make_store(adapter, client, identity="weights-2"), make_store(adapter, client, name="other"),
                  make_store(adapter, client, fake_transformers.LlamaConfig(rope_theta=1e6)),
                  make_store(adapter, client, block_tokens=2 * BLOCK), make_store(adapter, client, dtype=fake_torch.float32),
                  make_store(adapter, client, adapter="sql")):
        assert other.match(ids) == 0 and other.load(ids)[1] == 0
    assert make_store(adapter, client, fake_transformers.LlamaConfig(use_cache=False)).match(ids) == 20


def model_with(**said):
    return types.SimpleNamespace(config=fake_transformers.LlamaConfig(), dtype=fake_torch.bfloat16, **said)


@pytest.mark.parametrize("model", [
    fake_transformers.LlamaConfig(), model_with(), model_with(_hf_peft_config_loaded=True), model_with(peft_config={"default": 1}),
    model_with(_hf_peft_config_loaded=False, peft_config={"default": 1}), model_with(_hf_peft_config_loaded=None),
], ids=["configuration", "silent", "loaded", "peft", "both", "none"])
def test_a_store_is_private_unless_the_model_says_that_it_has_no_adapters(adapter, client, caplog, model):
    stores = [make_store(adapter, client, model, adapter=None) for _ in range(2)]
    assert stores[0].save(make_cache(20), range(20)) == 20 and stores[0].match(range(20)) == 20 and stores[1].match(range(20)) == 0
    assert "adapter" in caplog.text and "private" in stores[0].fingerprint
    named = [make_store(adapter, client, model, adapter="sql") for _ in range(2)]
    assert named[0].save(make_cache(20), range(20)) == 20 and named[1].match(range(20)) == 20


def test_close_removes_a_private_namespace(adapter, client, daemon):
    private, shared = make_store(adapter, client, adapter=None), make_store(adapter, client)
    for store in (private, shared):
        assert store.save(make_cache(20), range(20)) == 20
        store.close()
    with daemon.client() as c:
        assert [n.name for n in c.namespaces()] == [shared.namespace.name]


def test_a_model_without_adapters_shares(adapter, client):
    plain = model_with(_hf_peft_config_loaded=False)
    assert make_store(adapter, client, plain, adapter=None).save(make_cache(20), range(20)) == 20
    assert make_store(adapter, client, plain, adapter=None).match(range(20)) == 20
    assert make_store(adapter, client, plain).match(range(20)) == 20  # the option "none" says the same


def test_a_chunk_of_another_length_is_a_miss(adapter, client):
    """A load does not trust the length of a chunk, because other programs may write to the namespace."""
    store, ids = make_store(adapter, client), list(range(20))
    store.save(make_cache(20), ids)
    key = adapter.block_keys(ids, BLOCK)[1]
    store.namespace.evict([key])
    assert store.namespace.put([key], [b"short"]).ok
    assert store.load(ids)[1] == 4


def test_caches_that_do_not_fit_are_refused(adapter, client):
    store, ids = make_store(adapter, client), list(range(12))
    for cache, said in [(make_cache(12, layers=2), "3 layers"), (make_cache(12, heads=4), r"\(1, 4, 12, 4\)"),
                        (make_cache(12, dim=8), r"\(1, 2, 12, 8\)"), (make_cache(12, kind=fake_torch.float32), "float32"),
                        (fake_transformers.DynamicCache(fake_transformers.LlamaConfig()), "layer 0 of the cache is empty"),
                        (object(), "3 layers")]:
        with pytest.raises(kvcache.ArgumentError, match=said):
            store.save(cache, ids)
    with pytest.raises(kvcache.ArgumentError, match="one sequence"):
        store.save(make_cache(12), [ids, ids])
    with pytest.raises(kvcache.ArgumentError, match="64 bits"):
        store.load([2**70])
    sliding = make_store(adapter, client, fake_transformers.LlamaConfig(sliding_window=8))
    with pytest.raises(kvcache.ArgumentError, match="DynamicSlidingWindowLayer"):
        sliding.load(ids)
    for bad in ({"identity": ""}, {"block_tokens": 0}, {"block_tokens": 5000}, {"dtype": None}):
        how = {"identity": "x", "block_tokens": 16, "dtype": fake_torch.bfloat16, **bad}
        with pytest.raises(kvcache.ArgumentError):
            adapter.PrefixStore(client, fake_transformers.LlamaConfig(), **how)


def test_without_a_daemon_nothing_is_found(adapter, directory):
    with kvcache.Client(directory / "nobody") as lonely:
        store = make_store(adapter, lonely)
        assert store.save(make_cache(12), range(12)) == 0 and store.load(range(12))[1] == 0 and store.reason


def test_a_daemon_that_is_restarted(adapter, client, daemon):
    store, cache, ids = make_store(adapter, client), make_cache(12), list(range(12))
    store.save(cache, ids)
    daemon.restart(kill=True)
    fresh, known = store.load(ids)
    for _ in range(200):
        if known:
            break
        fresh, known = store.load(ids)
    assert known == 8 and same_prefix(fresh, cache, 8)


# --- the real ones ---

def test_the_record_is_the_real_packages(source):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=4, num_key_value_heads=2)
    cache = transformers.DynamicCache(config=config)
    assert [type(x).__name__ for x in cache.layers] == ["DynamicLayer"] * 2 and cache.layers[0].keys is None
    states = torch.arange(1 * 2 * 6 * 4, dtype=torch.bfloat16).view(1, 2, 6, 4)
    cache.update(states, states + 1, 0)
    cache.update(states, states + 1, 0)
    assert cache.layers[0].keys.shape == (1, 2, 12, 4) and cache.layers[0].values.dtype == torch.bfloat16
    sliding = transformers.DynamicCache(config=transformers.MistralConfig(sliding_window=8, num_hidden_layers=2))
    assert type(sliding.layers[0]).__name__ == "DynamicSlidingWindowLayer"
    # the stand-in handles shapes as torch does
    mine = fake_torch.empty((1, 2, 6, 4), dtype=fake_torch.bfloat16)
    mine.memory[:] = states.view(torch.uint8).numpy().tobytes()
    def dance(t):
        return t[0, :, 1:5].unflatten(1, (2, 2)).permute(1, 2, 0, 3)
    assert dance(mine).bytes() == dance(states).contiguous().view(torch.uint8).numpy().tobytes()
    assert dance(mine).flatten(0, 1).transpose(0, 1).unsqueeze(0).bytes() == (
        dance(states).flatten(0, 1).transpose(0, 1).unsqueeze(0).contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_a_small_llama_goes_on_with_the_same_logits(client, how):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from kvcache.transformers import PrefixStore
    torch.manual_seed(3)
    config = transformers.LlamaConfig(num_hidden_layers=3, hidden_size=64, intermediate_size=128, num_attention_heads=8,
                                      num_key_value_heads=2, vocab_size=100)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 100, (1, 61))
    store = PrefixStore(client, model, "random-3")
    with torch.no_grad():
        cache = transformers.StaticCache(config=config, max_cache_len=64) if how == "static" else None
        kept = model(ids[:, :48], past_key_values=cache, use_cache=True).past_key_values
        assert store.save(kept, ids) == 48
        loaded, known = store.load(ids)
        assert known == 48
        again, _ = store.load(ids)
        first = model(ids[:, 48:], past_key_values=loaded, use_cache=True).logits
        assert torch.equal(first, model(ids[:, 48:], past_key_values=again, use_cache=True).logits)
        if how == "dynamic":
            assert torch.equal(first, model(ids[:, 48:], past_key_values=kept, use_cache=True).logits)
    store.close()


def test_the_example(daemon, source):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    example = pathlib.Path(source, "client/examples/transformers_blocks.py")
    done = subprocess.run([sys.executable, example, "--socket", daemon.socket, "--tokens", "200", "--new-tokens", "4", "--repeat",
                           "1", "--device", "cpu"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(source / "client/python")})
    assert done.returncode == 0, done
    assert done.stdout.count("logits identical, tokens identical") == 3 and done.stdout.count(": identical\n") == 2
