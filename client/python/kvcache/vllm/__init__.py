# SPDX-License-Identifier: Apache-2.0
"""The vLLM adapter, which stores vLLM's KV cache blocks in kvcache-daemon and loads them from there.

vLLM uses it in one of two ways: as a tier of its tiered KV offloading (tier.py), or as an offloading spec that copies directly between
the GPU and the daemon's memory (spec.py). README.md beside this file shows the configuration of both. `register` is the entry point of
the group vllm.general_plugins, which vLLM calls in each of its processes. Importing this package imports nothing of vLLM, and tier.py is
loaded only in the process that makes the tier.
"""

from __future__ import annotations

import logging

TIER_TYPE = "kvcache"


def register() -> None:
    """Registers the tier {"type": "kvcache"} with vLLM, and wraps the functions of vLLM that hooks.py and worker.py name. May be called any
    number of times. Never raises, because an exception would end vLLM."""
    log = logging.getLogger("kvcache.vllm")
    try:
        from . import hooks, worker

        hooks.install()
        worker.install()
    except Exception as e:
        log.warning("functions of this vLLM cannot be wrapped, so the cache of this engine may be private to its start: %s", e)
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError as e:
        log.debug("the tier 'kvcache' is not registered, because this vLLM has no tiers: %s", e)
        return
    try:
        SecondaryTierFactory.register_tier(TIER_TYPE, "kvcache.vllm.tier", "KvcacheTier")
    except ValueError:
        log.debug("the tier 'kvcache' is registered already")
    except Exception as e:
        log.warning("the tier 'kvcache' cannot be registered, so configurations that name it fail: the factory of this vLLM has another interface "
                    "(%s); use a version of vLLM that the adapter's README.md lists", e)
