# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM under the traffic benchmark: the interface that tests/engines/traffic_vllm.py uses, over its stub of an engine.

tests/engines/vllm_arguments.py compares this interface with that of the real versions.
"""

import json
import os
import pathlib
import sys
import types
import urllib.request

import traffic_stub
from kvcache.vllm.policy import LoadPolicy

__version__ = "fake"
ns = types.SimpleNamespace


class SamplingParams:
    def __init__(self, *, temperature, max_tokens, ignore_eos, detokenize, extra_args=None):
        assert temperature == 0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens
        self.return_s = ((extra_args or {}).get("kv_transfer_params") or {}).get("kvcache_return_s")


def job_of(how):
    """Returns the stub's job for these arguments of LLM()."""
    config = how.get("kv_transfer_config")
    options = config.kv_connector_extra_config if config else {}
    tier = options.get("secondary_tiers", [{}])[0]
    arms = {None: "none", "CPUOffloadingSpec": "cpu", "KvcacheOffloadingSpec": "spec", "TieringOffloadingSpec": tier.get("type")}
    arm, cpu_bytes = arms[options.get("spec_name")], options.get("cpu_bytes_to_use", 0)
    if config and config.kv_connector == "LMCacheMPConnector":
        arm, cpu_bytes, tier = arm_of_server(options)
    shape = json.loads((pathlib.Path(how["model"]) / "config.json").read_text())
    variant = dict(dtype=how["dtype"], runner=os.environ.get("VLLM_USE_V2_MODEL_RUNNER"), layout=os.environ.get("VLLM_KV_CACHE_LAYOUT"))
    return dict(variant, arm={"kvcache": "tier"}.get(arm, arm), shape=repr(shape), gpu_tokens=how["num_gpu_blocks_override"] * 16,
                cpu_bytes=cpu_bytes, socket=options.get("kvcache_socket") or tier.get("socket"), number=0)


def arm_of_server(options):
    """Returns the stub's arm for what the substitute of LMCache's server was started with, its memory, and the options of its adapter."""
    with urllib.request.urlopen(f"http://127.0.0.1:{options['lmcache.mp.port']}/status") as answer:
        known = json.load(answer)
    adapter, cpu_bytes = known["adapter"], int(known["l1_size_gb"] * (1 << 30))
    if (adapter or {}).get("type") != "plugin":
        return "cpu", cpu_bytes, {}
    assert (adapter["module_path"], adapter["class_name"]) == ("kvcache.lmcache.adapter", "KvcacheL2Adapter")
    return "tier", cpu_bytes, adapter["adapter_params"]


class LLMEngine:
    """Reports the tokens of a request cumulatively, as vLLM does."""

    def __init__(self, stub):
        self.stub, self.said = stub, {}

    def add_request(self, request_id, prompt, params):
        self.said[request_id] = []
        self.stub.add(request_id, prompt["prompt_token_ids"], params.max_tokens, params.return_s)

    def step(self):
        outputs = []
        for progress in self.stub.step():
            self.said[progress.name] += progress.tokens
            reason = (progress.reason or "length") if progress.finished else None
            one = ns(token_ids=list(self.said[progress.name]), finish_reason=reason)
            outputs.append(ns(request_id=progress.name, outputs=[one], num_cached_tokens=progress.cached, finished=progress.finished))
        return outputs

    def do_log_stats(self):
        print("KV Transfer metrics: none")


class LLM:
    def __init__(self, **how):
        assert how["load_format"] == "dummy" and ("compilation_config" in how) != ("enforce_eager" in how)
        if os.environ.get("FAKE_CUDA_NEEDS_EXEC") and sys.argv[1] == "serve":
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        self.llm_engine = LLMEngine(traffic_stub.Engine(job_of(how)))
        self.policy = LoadPolicy(16, 4096)
        self.refused_resets = 2  # stores are in flight

    def generate(self, prompts, params, *, use_tqdm):
        self.llm_engine.add_request("generate", prompts[0], params)
        while not any(o.request_id == "generate" and o.finished for o in self.llm_engine.step()):
            pass

    def reset_prefix_cache(self, reset_running_requests=False, reset_connector=False):
        self.refused_resets -= 1
        if self.refused_resets < 0:
            self.llm_engine.stub.forget()
        return self.refused_resets < 0

    def get_metrics(self):
        return [ns(name="vllm:kv_offload_kvcache_hits", value=3), ns(name="vllm:kv_offload_kvcache_call_seconds", value=0),
                ns(name="vllm:kv_offload_load_size", values=[1]), ns(name="vllm:prompt_tokens", value=1)]
