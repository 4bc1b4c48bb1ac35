# SPDX-License-Identifier: Apache-2.0
"""vLLM as an engine of the traffic benchmark: random weights, CUDA graphs, the scheduler and, on one GPU, the worker in one process.

One name of an arm is one way to offload: none; cpu, vLLM's CPU tier; fs, vLLM's tiering with its tier of files; tier, the same with
ours; spec, our spec; lmcache and those that begin with it, a server of LMCache (traffic_lmcache.py).
"""

import gc
import logging
import os
import sys

import traffic_lmcache
from traffic_load import Progress, numbers_of
from traffic_shapes import SHAPES, folder_of, longest_of

GRAPH_SIZES = [1, 2, 4, 8, 16, 24, 32]
ARMS = ("none", "cpu", "fs", "spec", "tier", "lmcache", "lmcache-gds", "lmcache-fs", "lmcache-tier")
OTHERS = {"runner": [("VLLM_USE_V2_MODEL_RUNNER", "0"), ("VLLM_USE_V2_MODEL_RUNNER", "1")],
          "layout": [("VLLM_KV_CACHE_LAYOUT", "NHD"), ("VLLM_KV_CACHE_LAYOUT", "HND")],
          "dtype": [("dtype", "bfloat16"), ("dtype", "float16")],
          "same": [("dtype", "bfloat16"), ("dtype", "bfloat16")]}
OFFLOADING = "vllm:kv_offload_"


def prepare():
    """Imports vLLM. Returns why a process that did so cannot be forked; an empty string if it can."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0")
    import torch
    import vllm  # noqa: F401
    from vllm import LLM, SamplingParams  # noqa: F401
    from vllm.config import KVTransferConfig  # noqa: F401

    return "CUDA is initialized by the import of vLLM" if torch.cuda.is_initialized() else ""


def offloading_of(job):
    """Returns the kv_connector_extra_config of vLLM's own connector, or None in an arm that does without it."""
    arm, socket = job["arm"], job.get("socket")
    options = dict(cpu_bytes_to_use=job["cpu_bytes"], **job.get("extra", {}))
    if arm == "none" or arm.startswith("lmcache"):
        return None
    if arm == "cpu":
        return dict(options, spec_name="CPUOffloadingSpec")
    if arm == "spec":
        return dict(options, spec_name="KvcacheOffloadingSpec", spec_module_path="kvcache.vllm.spec", kvcache_socket=socket,
                    load_policy=job["policy"])
    tier = dict(type="fs", root_dir=job["files"]) if arm == "fs" else dict(type="kvcache", socket=socket, load_policy=job["policy"])
    return dict(options, spec_name="TieringOffloadingSpec", secondary_tiers=[tier])


def arguments_of(job):
    """Returns the arguments of LLM(), except the connector's."""
    shape = SHAPES[job["shape"]]
    how = dict(model=folder_of(job["shape"], job["models"]), load_format="dummy", skip_tokenizer_init=True, dtype=job.get("dtype", "bfloat16"),
               max_model_len=longest_of(job["load"]), gpu_memory_utilization=job["gpu_share"], enable_prefix_caching=True, max_num_seqs=32,
               max_num_batched_tokens=8192, prefix_caching_hash_algo="sha256_cbor", disable_log_stats=False,
               tensor_parallel_size=job["tp"], disable_custom_all_reduce=job["tp"] > 1)
    if job["tp"] > 1:  # a process for each GPU; the scheduler stays in this one
        how["distributed_executor_backend"] = "mp"
    if job["eager"]:
        how["enforce_eager"] = True
    else:
        how["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": GRAPH_SIZES}
    if shape.is_plain:
        how["num_gpu_blocks_override"] = job["gpu_tokens"] // 16
    if job.get("kv_bytes"):  # beside other engines vLLM's profile of free memory would fail
        how["kv_cache_memory_bytes"] = job["kv_bytes"]
    elif not shape.is_plain:
        how["kv_cache_memory_bytes"] = shape.cache_bytes(job["gpu_tokens"], job["tp"])
    return dict(how, **shape.options)


def show_log_of_adapter():
    """Has the log contain what the adapter says, for example how long a GPU's attachment took."""
    adapter = logging.getLogger("kvcache")
    adapter.setLevel(logging.INFO)
    adapter.addHandler(logging.StreamHandler())


class Engine:
    def __init__(self, job):
        prepare()
        show_log_of_adapter()
        os.environ.update(job.get("env", {}))
        import vllm
        from vllm.config import KVTransferConfig

        how, options, connector, self.server = arguments_of(job), offloading_of(job), "OffloadingConnector", None
        if job["arm"].startswith("lmcache"):
            self.server = traffic_lmcache.Server(job)
            options, connector = self.server.options, traffic_lmcache.CONNECTOR
        if options is not None:
            how["kv_transfer_config"] = KVTransferConfig(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=options)
        self.llm = vllm.LLM(**how)
        self.name = f"vLLM {vllm.__version__}"
        self.core, self.seen = self.llm.llm_engine, {}
        self.warm_up(job["load"]["first"])

    def warm_up(self, longest):
        for count in (300, longest):
            self.llm.generate([dict(prompt_token_ids=numbers_of(10**9 + count, count))], self._sampling(4), use_tqdm=False)

    @staticmethod
    def _sampling(count, **more):
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, **more)

    def add(self, name, tokens, answer, return_s=None):
        self.seen[name] = 0
        announced = {} if return_s is None else dict(extra_args=dict(kv_transfer_params=dict(kvcache_return_s=return_s)))
        self.core.add_request(name, dict(prompt_token_ids=tokens), self._sampling(answer, **announced))

    def step(self):
        steps = []
        for output in self.core.step():
            if output.request_id not in self.seen:
                continue
            one = output.outputs[0] if output.outputs else None
            tokens = list(one.token_ids)[self.seen[output.request_id]:] if one else []
            self.seen[output.request_id] += len(tokens)
            reason = one.finish_reason if one else "no output"
            failed = output.finished and reason not in ("length", "stop")
            steps.append(Progress(output.request_id, tokens, output.num_cached_tokens or 0, output.finished, str(reason) if failed else ""))
        return steps

    def forget(self):
        """Empties the GPU's prefix cache. Small requests add steps, with which stores in flight end."""
        for attempt in range(100):
            if self.llm.reset_prefix_cache(reset_connector=True):
                return
            self.llm.generate([dict(prompt_token_ids=numbers_of(2 * 10**9 + attempt, 32))], self._sampling(3), use_tqdm=False)
        raise RuntimeError("vLLM does not reset its prefix cache")

    def learned(self):
        """Returns the counters of the connector and the state of the policies, or the reason why a version does not report them."""
        known = {}
        try:
            self.core.do_log_stats()
            known.update({m.name.removeprefix(OFFLOADING): m.value for m in self.llm.get_metrics()
                          if m.name.startswith(OFFLOADING) and hasattr(m, "value")})
            known.update(seconds_of(known))
        except Exception as problem:  # noqa: BLE001 a figure that is missing must not cost the run
            known["metrics"] = repr(problem)[:200]
        try:
            if self.server:
                known["lmcache"] = self.server.figures()
            known.update(policies())
        except Exception as problem:  # noqa: BLE001
            known["policies"] = repr(problem)[:200]
        return known


def seconds_of(known):
    """Returns the counters of `known` that count seconds, with their fractions: vLLM cuts counters to whole numbers when it reads them."""
    import prometheus_client

    exact = {}
    for metric in prometheus_client.REGISTRY.collect():
        name = metric.name.removeprefix(OFFLOADING)
        if metric.type == "counter" and name in known and ("seconds" in name or name.endswith("_time")):
            exact[name] = sum(s.value for s in metric.samples if s.name == f"{metric.name}_total")
    return exact


def policies():
    """Returns the rates that the load policies of this process have learned."""
    module = sys.modules.get("kvcache.vllm.policy")
    found = [o for o in gc.get_objects() if isinstance(o, module.LoadPolicy)] if module else []
    return {f"policy{number or ''}": dict(prefill_tokens_per_s=round(p.prefill), memory_bytes_per_s=round(p.rates[0]),
                                          disk_bytes_per_s=round(p.rates[1]), memory_samples=getattr(p, "memory_samples", None),
                                          memory_sizes=[p.times.least, p.times.most] if hasattr(p, "times") else None,
                                          overhead_ms=round(p.overhead_s * 1e3, 2))
            for number, p in enumerate(found)}
