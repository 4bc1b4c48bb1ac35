#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores the KV cache of a Hugging Face transformers model in the daemon by blocks, and loads it into a fresh cache.

    python3 transformers_blocks.py [--socket PATH] [--shape tiny|1b|8b] [--tokens 2048] [--device cuda|cpu]

The model is of the Llama kind, with random weights from a seed: its words mean nothing, but its KV cache has the size and shape of a real
one. The prompt is prefilled, and its blocks are saved and loaded into a fresh cache, once from the daemon's memory and once from disk. Keys
and values must be identical, and so must all logits while generation continues from the original cache and from the loaded ones. On a GPU,
blocks are moved by kvcache_gpu_put_blocks() and kvcache_gpu_get_blocks(). Exit status 1: something differed, or nothing was stored.

Prefill uses torch's fused attention (sdpa), generation plain matrix products (eager): on a GPU, the fused kernels compute different logits
each time, even for two copies of one cache. --attention sdpa shows that.

Needs torch, transformers and the package kvcache."""

import argparse
import copy
import statistics
import sys
import time

import torch
import transformers

import kvcache
from kvcache.transformers import PrefixStore, block_keys

SHAPES = {  # layers, hidden, intermediate, heads, KV heads, vocabulary
    "tiny": (4, 256, 512, 8, 2, 1000),
    "1b": (16, 2048, 8192, 32, 8, 32000),
    "8b": (32, 4096, 14336, 32, 8, 128256),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--socket", help="the daemon's; default: $KVCACHE_SOCKET, else the usual places")
    p.add_argument("--shape", choices=SHAPES, default="tiny")
    p.add_argument("--layers", type=int, help="instead of the shape's")
    p.add_argument("--tokens", type=int, default=1024, help="of the prompt (default: %(default)s)")
    p.add_argument("--new-tokens", type=int, default=16, help="generated from each cache (default: %(default)s)")
    p.add_argument("--block-tokens", type=int, default=16)
    p.add_argument("--repeat", type=int, default=5, help="of which the medians are printed (default: %(default)s)")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--attention", choices=("sdpa", "eager"), default="eager",
                   help="of the generation (default: %(default)s)")
    return p.parse_args()


def make_model(a):
    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[a.shape]
    config = transformers.LlamaConfig(
        num_hidden_layers=a.layers or layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocabulary, max_position_embeddings=max(8192, 2 * a.tokens))
    torch.manual_seed(a.seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(a.device):
        return transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()


def timed(device, what):
    """Calls `what`. Returns (milliseconds, result)."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = what()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1000, result


def median(device, repeat, what, before=lambda: None):
    """Calls `before`, and then `what`, `repeat` times after one run that is not counted. Returns (the median of the milliseconds that `what`
    took, its last result)."""
    times = []
    for _ in range(repeat + 1):
        result = None  # free the memory of the previous result first
        before()
        ms, result = timed(device, what)
        times.append(ms)
    return statistics.median(times[1:]), result


def generate(model, cache, rest, n):
    """Generates greedily. Returns all logits and all tokens."""
    logits, tokens, ids = [], [], rest
    for _ in range(n):
        out = model(ids, past_key_values=cache, use_cache=True)
        logits.append(out.logits[:, -1])
        ids = out.logits[:, -1:].argmax(-1)
        tokens.append(int(ids))
    return torch.cat(logits), tokens


@torch.no_grad()
def main():
    a = arguments()
    model = make_model(a)
    ids = torch.randint(0, model.config.vocab_size, (1, a.tokens), device=a.device)
    client = kvcache.Client(a.socket, name="transformers-blocks", required=True)
    store = PrefixStore(client, model, f"random-{a.shape}-seed{a.seed}-{a.device}", block_tokens=a.block_tokens)
    keys = block_keys(ids[0].tolist(), a.block_tokens)
    kept = (a.tokens - 1) // a.block_tokens * a.block_tokens  # at least one token is left to continue from

    print(f"{a.shape}: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} G parameters on {a.device}, torch "
          f"{torch.__version__}, transformers {transformers.__version__}")
    print(f"prompt: {a.tokens} tokens; blocks: {a.block_tokens} tokens, {store.block_bytes} bytes; kept: {kept} tokens, "
          f"{kept // a.block_tokens * store.block_bytes / 1e6:.1f} MB")

    def prefill():
        return model(ids[:, :kept], use_cache=True, logits_to_keep=1).past_key_values

    prefill_ms, cache = median(a.device, a.repeat, prefill)
    save_ms, saved = median(a.device, a.repeat, lambda: store.save(cache, ids[:, :kept]), lambda: store.namespace.evict(keys))
    way = store.way
    print(f"prefill            {prefill_ms:9.1f} ms")
    print(f"save, written      {save_ms:9.1f} ms, by way of the {way}{': ' + store.reason if store.reason else ''}")
    if saved != kept:
        print(f"only {saved} of {kept} tokens were kept", file=sys.stderr)
        return 1

    loaded = {}
    for where, before in (("memory", lambda: None), ("disk", lambda: store.namespace.evict(keys, memory_only=True))):
        load_ms, (loaded[where], n) = median(a.device, a.repeat, lambda: store.load(ids), before)
        print(f"load from {where:<7}  {load_ms:9.1f} ms, by way of the {store.way}: {prefill_ms / load_ms:.2f} x as fast as prefill")
        if n != kept:
            print(f"only {n} of {kept} tokens came from {where}", file=sys.stderr)
            return 1

    same = True
    for where, fresh in loaded.items():
        equal = all(torch.equal(x.keys, y.keys) and torch.equal(x.values, y.values) for x, y in zip(fresh.layers, cache.layers))
        same = same and equal
        print(f"keys and values from {where}: {'identical' if equal else 'DIFFER'}")
    loaded["a copy"] = copy.deepcopy(cache)  # does the model give equal results for equal caches?
    model.set_attn_implementation(a.attention)
    expected, tokens = generate(model, cache, ids[:, kept:], a.new_tokens)
    for where, fresh in loaded.items():
        logits, others = generate(model, fresh, ids[:, kept:], a.new_tokens)
        same = same and torch.equal(logits, expected) and others == tokens
        print(f"{a.new_tokens} tokens generated from {where}: logits {'identical' if torch.equal(logits, expected) else 'DIFFER'}, "
              f"tokens {'identical' if others == tokens else 'DIFFER'}")
    store.close()
    client.close()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
