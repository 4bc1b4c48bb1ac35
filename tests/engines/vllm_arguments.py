# SPDX-License-Identifier: Apache-2.0
"""Checks, without a GPU, that the functions, arguments and attributes of vLLM that traffic_vllm.py uses exist in an installed vLLM."""

import importlib
import inspect
import os
import pathlib
import tempfile
import types

import traffic
import traffic_lmcache
import traffic_vllm

ns = types.SimpleNamespace


def jobs(folder):
    """Returns a job of each arm, as the driver makes it, and one of several engines on a GPU."""
    options = traffic.options_of(["--pack", folder, "--shape", "tiny"])
    place = ns(daemon=ns(socket=f"{folder}/s"), files=f"{folder}/files", cgroup="", host=ns(scratch=pathlib.Path(folder)))
    of_arms = [options.job(arm, 1, place) for arm in ("none", "cpu", "fs", "tier", "spec")]
    return [*of_arms, dict(of_arms[-1], kv_bytes=options.kv_bytes()), dict(of_arms[-1], eager=True), dict(of_arms[-1], tp=2)]


def has_arguments(function, *arguments, **named):
    inspect.signature(function).bind(None, *arguments, **named)


def check_values_of_the_environment():
    """Compares the values by which two engines of --identity differ with those that this version takes."""
    from vllm import envs

    for what in ("runner", "layout"):
        for name, value in traffic_vllm.OTHERS[what]:
            os.environ[name] = value
            try:
                assert getattr(envs, name) in (value, value == "1"), (name, value)
            finally:
                del os.environ[name]


def the_traffic_benchmark_uses_vllm_as_it_is(make_host, daemon):
    assert traffic_vllm.prepare() == "", "an engine could not be forked"
    import vllm
    from vllm.config import CUDAGraphMode, KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.engine.arg_utils import EngineArgs
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    with tempfile.TemporaryDirectory() as folder:
        for job in jobs(folder):
            arguments, offloading = traffic_vllm.arguments_of(job), traffic_vllm.offloading_of(job)
            if offloading:
                arguments["kv_transfer_config"] = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both",
                                                                   kv_connector_extra_config=offloading)
            has_arguments(vllm.LLM.__init__, **arguments)
            EngineArgs(**arguments)
            if offloading and "spec_module_path" not in offloading:
                assert offloading["spec_name"] in OffloadingSpecFactory._registry
            for tier in (offloading or {}).get("secondary_tiers", []):
                assert tier["type"] in SecondaryTierFactory._registry
    assert CUDAGraphMode["FULL_DECODE_ONLY"] and traffic_lmcache.CONNECTOR in KVConnectorFactory._registry
    assert hasattr(importlib.import_module("kvcache.vllm.spec"), "KvcacheOffloadingSpec")
    has_arguments(LLMEngine.add_request, "name", dict(prompt_token_ids=[1]), None)
    has_arguments(vllm.LLM.reset_prefix_cache, reset_connector=True)
    has_arguments(vllm.LLM.generate, [dict(prompt_token_ids=[1])], None, use_tqdm=False)
    for owner, name in ((LLMEngine, "step"), (LLMEngine, "do_log_stats"), (vllm.LLM, "get_metrics")):
        has_arguments(getattr(owner, name))
    assert {"request_id", "outputs", "finished", "num_cached_tokens"} <= inspect.signature(RequestOutput.__init__).parameters.keys()
    assert {"token_ids", "finish_reason"} <= inspect.signature(CompletionOutput.__init__).parameters.keys()
    assert traffic_vllm.Engine._sampling(4).output_kind.name == "CUMULATIVE"
    check_values_of_the_environment()
