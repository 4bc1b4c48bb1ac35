# SPDX-License-Identifier: Apache-2.0
"""Measures the time to first token on a GPU: real vLLM with random weights of the Llama-3.1-8B shape, one long prompt. One process is one
engine:

    vllm_gpu.py cpu | fs | kvcache | restart | spec | spec-second | spec-restart

cpu: vLLM's CPU tier; fs: its tier of files; kvcache: our tier, from the daemon's memory and from its disk, and then kill -9 of the engine;
restart: our tier in the next engine. spec: the same with our spec, after which the engine stays until $BESIDE is removed; spec-second: an
engine concurrent with it; spec-restart: the next one after it. vllm_gpu.sh runs them and prints the table. The output has lines "figure NAME
MS..." and "tokens NAME ...".
"""

import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONHASHSEED="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_USE_FLASHINFER_SAMPLER="0")
TOKENS, ROUNDS = int(os.environ.get("NTOK", "8192")), int(os.environ.get("ROUNDS", "5"))


def model():
    folder = os.path.join(tempfile.gettempdir(), "model-8b")
    os.makedirs(folder, exist_ok=True)
    shape = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", initializer_range=0.02,
                 max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, attention_bias=False, mlp_bias=False,
                 tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, num_hidden_layers=32,
                 num_key_value_heads=8, head_dim=128, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                 vocab_size=128256)
    with open(folder + "/config.json", "w") as f:
        json.dump(shape, f)
    return folder


def engine(kind, most_tokens=TOKENS + 1024, cpu_bytes=8 << 30, policy=os.environ.get("POLICY", "always"), **more):
    """Makes an engine. `kind` is none for vLLM without offloading, or one of the above."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options = dict(cpu_bytes_to_use=cpu_bytes)
    if kind == "cpu":
        options.update(spec_name="CPUOffloadingSpec")
    elif kind == "spec":
        options.update(spec_name="KvcacheOffloadingSpec", spec_module_path="kvcache.vllm.spec", kvcache_socket=os.environ["KVSOCK"],
                       load_policy=policy)
    elif kind != "none":
        tier = dict(type="fs", root_dir=os.environ["FSDIR"]) if kind == "fs" else dict(
            type="kvcache", socket=os.environ["KVSOCK"], load_policy=policy)
        options.update(spec_name="TieringOffloadingSpec", secondary_tiers=[tier])
    if kind != "none":
        more["kv_transfer_config"] = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=options)
    return LLM(model=model(), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=most_tokens,
               enforce_eager=True, gpu_memory_utilization=0.45, enable_prefix_caching=True, max_num_seqs=8,
               max_num_batched_tokens=8192, prefix_caching_hash_algo="sha256_cbor", disable_log_stats=False, **more)


def main(kind):
    from vllm import SamplingParams

    numbers = random.Random(7)
    prompt = [numbers.randrange(10, 128000) for _ in range(TOKENS)]
    others = [[numbers.randrange(10, 128000) for _ in range(TOKENS)] for _ in range(ROUNDS)]
    what = "kvcache" if kind == "restart" else kind.split("-")[0]
    llm = engine(what)

    def ask(tokens, count=8):
        out = llm.generate([dict(prompt_token_ids=tokens)],
                           SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False), use_tqdm=False)[0]
        return out.metrics.first_token_latency * 1e3, list(out.outputs[0].token_ids), out.num_cached_tokens

    def settle():
        for _ in range(20):
            ask(others[0][:32], 4)
            time.sleep(0.03)

    def figure(name, before, prompts=None):
        times, seen = [], set()
        for tokens in prompts or [prompt] * ROUNDS:
            before()
            ms, said, cached = ask(tokens)
            times.append(ms)
            if not prompts:
                seen.add(tuple(said))
            settle()
        print(f"figure {name} median {statistics.median(times):.0f} cached {cached}:", *(f"{t:.0f}" for t in times), flush=True)
        for said in seen:
            print(f"tokens {name.replace(chr(32), chr(95))}", *said, flush=True)

    def forget_all(connector=True):
        for _ in range(20):
            if llm.reset_prefix_cache(reset_connector=connector):
                return
            settle()
        raise RuntimeError("vLLM does not reset its prefix cache")

    def forget_gpu():
        forget_all(False)

    def forget_memory():
        """Evicts the prompt's chunks from memory, so that they are only on disk."""
        forget_all()
        for one in watched:
            deadline = time.monotonic() + 20
            while True:
                with one._transfers._lock if what == "kvcache" else contextlib.nullcontext():
                    for space in (one._transfers if what == "kvcache" else one._promises)._namespaces.values():
                        keys = list(stored)
                        space.evict(keys, memory_only=True)
                        where = space.tiers(keys)
                if not any(t & 1 for t in where) or time.monotonic() > deadline:
                    print("disk only", sum(t == 2 for t in where), "of", len(where), flush=True)
                    break
                time.sleep(0.1)

    ask(others[0][:256])
    if kind in ("restart", "spec-restart", "spec-second"):
        figure(kind, forget_all)
        return
    stored, watched = set(), set()
    if kind == "kvcache":
        from kvcache.vllm import identity, tier as tiers
        store = tiers.KvcacheTier.submit_store

        def watch(self, job):
            watched.add(self)
            stored.update(identity.parts_of(k, 1)[0] for k in job.keys)
            store(self, job)

        tiers.KvcacheTier.submit_store = watch
    elif kind == "spec":
        from kvcache.vllm import identity, spec as specs
        prepare = specs.KvcacheManager.prepare_store

        def watch_spec(self, keys, context):
            watched.add(self)
            stored.update(identity.parts_of(k, 1)[0] for k in keys)
            return prepare(self, keys, context)

        specs.KvcacheManager.prepare_store = watch_spec
    ask(others[0])
    settle()
    if kind == "cpu":
        figure("prefill", forget_all, others)
    _, said, _ = ask(prompt)
    print("tokens cold", *said, flush=True)
    settle()
    if kind == "cpu":
        figure("cpu tier", forget_gpu)
    else:
        figure(kind + (" memory" if kind != "fs" else ""), forget_all)
    if kind in ("kvcache", "spec"):
        figure(kind + " disk", forget_memory)
        forget_all()
        ask(prompt)
        settle()
        beside = pathlib.Path(os.environ.get("BESIDE", "/nonexistent"))
        if kind == "spec" and beside.exists():
            beside.write_text("ready")
            while beside.exists():
                time.sleep(0.05)
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    main(sys.argv[1])
