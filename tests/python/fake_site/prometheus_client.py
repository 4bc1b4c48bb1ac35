# SPDX-License-Identifier: Apache-2.0
"""Replaces prometheus_client for the traffic benchmark, which reads the registry of vLLM's metrics."""

import types

ns = types.SimpleNamespace


class REGISTRY:
    @staticmethod
    def collect():
        name = "vllm:kv_offload_kvcache_call_seconds"
        yield ns(name=name, type="counter", samples=[ns(name=f"{name}_total", value=0.75), ns(name=f"{name}_created", value=1e9)])
        yield ns(name="vllm:kv_offload_kvcache_hits", type="counter", samples=[ns(name="vllm:kv_offload_kvcache_hits_total", value=5.0)])
        yield ns(name="vllm:kv_offload_kvcache_balance_seconds", type="gauge", samples=[])
