# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon for a vLLM engine if the engine's configuration asks for one (`kvcache_start`). Used by the offloading spec (spec.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import serve

log = logging.getLogger("kvcache.vllm")


def start_if_asked(options: Mapping[str, Any]) -> None:
    """Starts a daemon if `options`, vLLM's kv_connector_extra_config, has `"kvcache_start": true` and no daemon answers. If the daemon does
    not start, logs a warning, and the engine runs without a cache. Raises ValueError if the option is neither true nor false."""
    asked = options.get("kvcache_start", False)
    if not isinstance(asked, bool):
        raise ValueError(f"kvcache_start must be true or false, not {asked!r}")
    if not asked:
        return
    try:
        path = serve.ensure(str(options.get("kvcache_idle", serve.IDLE)), options.get("kvcache_socket"))
        log.info("this engine uses the kvcache-daemon at %s (kvcache_start)", path)
    except OSError as e:
        log.warning("kvcache-daemon could not be started (kvcache_start), so this engine runs without a cache: %s", serve.why(e))
