# SPDX-License-Identifier: Apache-2.0
"""Client of kvcache-daemon, which keeps the KV-cache blocks of LLM engines in memory and on disk.

    with kvcache.Client() as client:
        blocks = client.namespace("llama-3.1-8b/tp1-rank0", {"model": "llama-3.1-8b", "dtype": "bf16"})
        blocks.put(keys, places)
        hits = blocks.match(keys)

A key is 32 bytes; a chunk is the bytes stored under a key. If the daemon is unreachable, calls answer as if nothing were stored, and raise no
exception. Each key of a request gets a status, a number such as OK, MISS or EXISTS; the engine must compute a chunk again unless status_ok()
returns True for its status. Exceptions report mistakes in calls and derive from Error. These modules start no thread; the adapters for engines
(kvcache.vllm, kvcache.sglang, kvcache.lmcache) do.
"""

from ._aio import AsyncClient, AsyncNamespace
from ._client import Client
from ._errors import ArgumentError, ClosedError, Error, ForkedError, MismatchError, RegionError
from ._library import (BUSY, CANCELLED, DENIED, EXISTS, FAILED, INVALID, KEY_BYTES, LOST, MISMATCH, MISS, NO_NAMESPACE,
                       NO_SPACE, NOT_DURABLE, NOT_EMPTY, OK, PENDING, QUOTA, SHUTDOWN, STALE, TIER_ALL, TIER_DISK, TIER_MEMORY,
                       TIER_REMOTE, TOO_LARGE, VERSION, status_name, status_ok, version)
from ._leases import Leased
from ._memory import Batch, Keys, Places
from ._namespace import Namespace
from ._region import Region
from ._results import Done, Info

__version__: str = version().decode()

__all__ = [
    "ArgumentError", "AsyncClient", "AsyncNamespace", "BUSY", "Batch", "CANCELLED", "Client", "ClosedError", "DENIED", "Done",
    "EXISTS", "Error", "FAILED", "ForkedError", "INVALID", "Info", "KEY_BYTES", "Keys", "LOST", "Leased", "MISMATCH", "MISS",
    "MismatchError", "NOT_DURABLE", "NOT_EMPTY", "NO_NAMESPACE", "NO_SPACE", "Namespace", "OK", "PENDING", "Places", "QUOTA",
    "Region", "RegionError", "SHUTDOWN", "STALE", "TIER_ALL", "TIER_DISK", "TIER_MEMORY", "TIER_REMOTE", "TOO_LARGE", "VERSION",
    "status_name", "status_ok",
]
