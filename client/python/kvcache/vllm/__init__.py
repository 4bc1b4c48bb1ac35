# SPDX-License-Identifier: Apache-2.0
"""kvcache-daemon as a tier of vLLM's tiered KV offloading; README.md beside this file has the line of configuration.

Importing this imports nothing of vLLM. `register` is the entry point of the group vllm.general_plugins: vLLM calls it in each
of its processes, and the tier's module is loaded only where the tier is made.
"""

from __future__ import annotations

import logging

TIER_TYPE = "kvcache"


def register() -> None:
    """Makes {"type": "kvcache"} known to vLLM. May be called any number of times; never raises, since vLLM would end."""
    log = logging.getLogger("kvcache.vllm")
    try:
        from . import hooks, worker

        hooks.install()
        worker.install()
    except Exception as e:
        log.warning("facts of vLLM cannot be collected: %s", e)
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError as e:
        log.debug("this vLLM has no tiers: %s", e)
        return
    try:
        SecondaryTierFactory.register_tier(TIER_TYPE, "kvcache.vllm.tier", "KvcacheTier")
    except ValueError:
        log.debug("the tier is registered already")
    except Exception as e:  # the factory is another one than was known
        log.warning("vLLM does not take the tier 'kvcache': %s", e)
