# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon for the engine if its options ask for one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import serve

log = logging.getLogger("kvcache.vllm")


def start_if_asked(options: Mapping[str, Any]) -> None:
    """With `"kvcache_start": true` in kv_connector_extra_config, starts a daemon unless one answers. An engine whose daemon does not start
    runs without a cache."""
    asked = options.get("kvcache_start", False)
    if not isinstance(asked, bool):
        raise ValueError(f"kvcache_start must be true or false, not {asked!r}")
    if not asked:
        return
    try:
        path = serve.ensure(str(options.get("kvcache_idle", serve.IDLE)), options.get("kvcache_socket"))
        log.info("kvcache-daemon serves at %s", path)
    except OSError as e:
        log.warning("no kvcache-daemon was started (kvcache_start): %s", serve.why(e))
